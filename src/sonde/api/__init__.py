"""The library: ask questions, run investigations, look at runs. Everything that reads the environment is here or in cli/.

Names are loaded when they are used, so that `sonde --help` and `sonde runs` do not wait for models and sandboxes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sonde.api.again import Replayed, branch, replay, resume
    from sonde.api.asking import Answer, aask, ask
    from sonde.api.case import Source
    from sonde.api.investigating import Investigation, Options, comply, incident, rca
    from sonde.api.publishing import Publication, publish_run
    from sonde.api.settings import Settings, load_settings
    from sonde.core.budget import Budget

_HOMES = {
    "Answer": "sonde.api.asking",
    "Budget": "sonde.core.budget",
    "Investigation": "sonde.api.investigating",
    "Options": "sonde.api.investigating",
    "Publication": "sonde.api.publishing",
    "Replayed": "sonde.api.again",
    "Settings": "sonde.api.settings",
    "Source": "sonde.api.case",
    "aask": "sonde.api.asking",
    "ask": "sonde.api.asking",
    "branch": "sonde.api.again",
    "comply": "sonde.api.investigating",
    "incident": "sonde.api.investigating",
    "load_settings": "sonde.api.settings",
    "publish_run": "sonde.api.publishing",
    "rca": "sonde.api.investigating",
    "replay": "sonde.api.again",
    "resume": "sonde.api.again",
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
