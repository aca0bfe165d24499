"""The library: ask questions, run investigations, look at runs. Everything that reads the environment is here or in cli/.

Names are loaded when they are used, so that `sonde --help` and `sonde runs` do not wait for models and sandboxes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.api.ask_run import Answer, aask, ask
    from sonde.api.investigations import Investigation, Options, comply, incident, rca
    from sonde.api.publication import Publication, publish_run
    from sonde.api.rerun import Replayed, branch, replay, resume
    from sonde.api.settings import Settings, load_settings
    from sonde.api.trace_source import Source
    from sonde.core.budget import Budget

_HOMES = {
    "Answer": "sonde.api.ask_run",
    "Budget": "sonde.core.budget",
    "Investigation": "sonde.api.investigations",
    "Options": "sonde.api.investigations",
    "Publication": "sonde.api.publication",
    "Replayed": "sonde.api.rerun",
    "Settings": "sonde.api.settings",
    "Source": "sonde.api.trace_source",
    "aask": "sonde.api.ask_run",
    "ask": "sonde.api.ask_run",
    "branch": "sonde.api.rerun",
    "comply": "sonde.api.investigations",
    "incident": "sonde.api.investigations",
    "load_settings": "sonde.api.settings",
    "publish_run": "sonde.api.publication",
    "rca": "sonde.api.investigations",
    "replay": "sonde.api.rerun",
    "resume": "sonde.api.rerun",
}

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
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
