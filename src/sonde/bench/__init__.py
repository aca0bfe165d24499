"""Measuring a model with Sonde and without it on tasks whose answers are known; and the recordings that `sonde demo` plays."""
