"""The entry point. It imports nothing at its top, so that Ctrl-C ends the program quietly while Python still imports the rest.

What Python does before it reads this file is out of its reach.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it from typing takes longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Sequence

INTERRUPTED = 130  # 128 + SIGINT, as shells say it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    try:
        from sonde.cli.program import run

        return run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
