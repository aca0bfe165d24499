"""The job of a recorded run, built again from what its first event says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from sonde.api.launch import Job
from sonde.api.settings import Settings
from sonde.api.sources import Opened, open_context
from sonde.core.budget import Budget
from sonde.core.events import RunStarted
from sonde.engines.ask import ASK
from sonde.errors import ConfigError
from sonde.runtime.wiring import Mode

Tools = Sequence[Callable[..., Any]]
Builder = Callable[[RunStarted, Any, Tools], Job]


def rebuild(started: RunStarted, settings: Settings, *, context: Any = None, tools: Tools = ()) -> Job:
    """The same job: engine, question, context, budget, schema. What cannot be stored (data, functions) is given again."""
    del settings  # the model comes from the record or from the caller
    engine = started.settings.get("engine", started.run_type)
    builder = BUILDERS.get(engine)
    if builder is None:
        raise ConfigError(f"this version cannot go on with a run of the engine {engine!r}")
    return builder(started, context, tools)


def _ask(started: RunStarted, context: Any, tools: Tools) -> Job:
    recipe = started.settings
    opened = sources(started, context)
    return Job(
        engine=ASK,
        objective=started.objective,
        context=opened.context,
        model=recipe.get("model"),
        sub_model=recipe.get("sub_model"),
        tools=tools,
        budget=Budget(**started.budget),
        schema=recipe.get("schema"),
        variables=opened.variables,
        input_ref=started.input_ref,
        profile=started.profile,
        mode=cast("Mode", started.mode),
        earlier=recipe.get("earlier", ""),
        recipe={key: value for key, value in recipe.items() if key != "version"},
    )


def sources(started: RunStarted, context: Any) -> Opened:
    """The context of a recorded run, from its paths or from what the caller gives again."""
    if context is not None:
        return open_context([context], code=bool(started.settings.get("code")))
    recorded = started.settings.get("sources")
    if recorded is None:
        raise ConfigError("this run was asked about data in memory, which is not stored: give it again as `context`")
    return open_context(recorded.get("paths", []), code=bool(recorded.get("code")))


BUILDERS: dict[str, Builder] = {"ask": _ask}
