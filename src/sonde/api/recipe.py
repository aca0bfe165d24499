"""The form of a recipe: what the first event of a recorded run says about how to build its job again.

The folder may be a stranger's or damaged, so the form is checked before anything is made of it. What the values may bring about is a
matter of consent.py.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sonde.core.budget import Budget
from sonde.core.events import RunStarted
from sonde.errors import ConfigError
from sonde.sandbox import Limits


class _Sources(msgspec.Struct):
    paths: list[str] = []
    code: bool = False


class _Recipe(msgspec.Struct):
    engine: str | None = None
    model: str | None = None
    sub_model: str | None = None
    sources: _Sources | None = None
    code: bool = False
    schema: dict[str, Any] | None = None
    earlier: str = ""
    continues: str | None = None
    workspace: str | None = None
    commands: list[str] = []
    source: str | None = None
    project: str | None = None
    trace_ids: list[str] = []
    taxonomy: str | None = None
    controls_version: str | None = None
    controls_files: list[str] = []
    overrides: list[str] = []
    start: str | None = None
    end: str | None = None
    filter_expr: str | None = None
    configs: str | None = None
    writeback: bool = False
    limits: dict[str, float | int | str | None] = {}


def check_recipe(started: RunStarted) -> None:
    """ConfigError where a field that a job is built from has another form than Sonde writes."""
    try:
        msgspec.convert(started.settings, _Recipe)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this run cannot be gone on with: its settings were changed or damaged ({error})") from None
    for what, given, known in (
        ("budget", started.budget, Budget),
        ("limit", started.settings.get("limits", {}), Limits),
    ):
        unknown = sorted(set(given) - set(known.__dataclass_fields__))
        if unknown:
            raise ConfigError(f"this run cannot be gone on with: this version knows no {what} {', '.join(unknown)}")
