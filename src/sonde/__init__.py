"""Sonde: lower a language model into data that does not fit in a prompt.

    answer = sonde.ask("Which service first logged the outage?", "logs/", model="openai:gpt-4o-mini")

Names are loaded when they are used: `import sonde` does nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it takes longer than this file, and Ctrl-C is not caught before the command line runs
if TYPE_CHECKING:
    from typing import Any

    from sonde.api import (
        Answer,
        Budget,
        Investigation,
        Options,
        Publication,
        Replayed,
        Settings,
        Source,
        aask,
        ask,
        branch,
        comply,
        incident,
        load_settings,
        publish_run,
        rca,
        replay,
        resume,
    )

__all__ = [
    "Answer",
    "Budget",
    "Investigation",
    "Options",
    "Publication",
    "Replayed",
    "Settings",
    "Source",
    "aask",
    "ask",
    "branch",
    "comply",
    "incident",
    "load_settings",
    "publish_run",
    "rca",
    "replay",
    "resume",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sonde import api  # noqa: PLC0415  # loaded when used

    return getattr(api, name)
