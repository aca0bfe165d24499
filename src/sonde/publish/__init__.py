"""Runs as OpenTelemetry traces, and where annotations are written. It reads events; it changes no run."""
