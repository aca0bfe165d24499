"""What an exception of the host is called and says, for the code that made the call."""

from __future__ import annotations

MESSAGE_CHARS = 100_000
"""More is no message, and would go to the worker whole."""


def named(error: Exception) -> tuple[str, str]:
    """The name of its class and its message, whatever its own methods do."""
    return type(error).__name__, _message(error)[:MESSAGE_CHARS]


def _message(error: Exception) -> str:
    match error:
        case KeyError(args=(str(key),)):
            return key  # its str() has the quotes already, and would get them twice
        case _:
            pass
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - the host's own class: nothing is known about what it raises
        return f"<its message raised {type(broken).__name__}>"
