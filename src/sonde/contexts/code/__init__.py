"""Source code as a context."""

from sonde.contexts.code.context import CodeContext

__all__ = ["CodeContext"]
