"""Sonde: lower a language model into data that does not fit in a prompt.

    answer = sonde.ask("Which service first logged the outage?", "logs/", model="openai:gpt-4o-mini")

Names are loaded when they are used: `import sonde` does nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing it takes longer than this file, and Ctrl-C is not caught before the command line runs
if TYPE_CHECKING:
    from typing import Any

    from sonde.api.ask_run import aask, ask
    from sonde.api.edit_run import edit, undo
    from sonde.api.investigations import comply, incident, rca
    from sonde.api.launch import RunOptions, run
    from sonde.api.publication import Publication, publish_run
    from sonde.api.rerun import Replayed, branch, replay, resume
    from sonde.api.result import Answer, Edited, Investigation, Result
    from sonde.api.settings import Settings, load_settings
    from sonde.api.trace_source import Source
    from sonde.core.budget import Budget

__all__ = [
    "Answer",
    "Budget",
    "Edited",
    "Investigation",
    "Publication",
    "Replayed",
    "Result",
    "RunOptions",
    "Settings",
    "Source",
    "aask",
    "ask",
    "branch",
    "comply",
    "edit",
    "incident",
    "load_settings",
    "publish_run",
    "rca",
    "replay",
    "resume",
    "run",
    "undo",
]

_HOMES = {
    "Answer": "sonde.api.result",
    "Budget": "sonde.core.budget",
    "Edited": "sonde.api.result",
    "Investigation": "sonde.api.result",
    "Publication": "sonde.api.publication",
    "Replayed": "sonde.api.rerun",
    "Result": "sonde.api.result",
    "RunOptions": "sonde.api.launch",
    "Settings": "sonde.api.settings",
    "Source": "sonde.api.trace_source",
    "aask": "sonde.api.ask_run",
    "ask": "sonde.api.ask_run",
    "branch": "sonde.api.rerun",
    "comply": "sonde.api.investigations",
    "edit": "sonde.api.edit_run",
    "incident": "sonde.api.investigations",
    "load_settings": "sonde.api.settings",
    "publish_run": "sonde.api.publication",
    "rca": "sonde.api.investigations",
    "replay": "sonde.api.rerun",
    "resume": "sonde.api.rerun",
    "run": "sonde.api.launch",
    "undo": "sonde.api.edit_run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib  # noqa: PLC0415  # as TYPE_CHECKING above

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__doc__", "__file__", "__name__", "__path__"]
