"""Runs as OpenTelemetry traces. It reads events; it changes no run."""
