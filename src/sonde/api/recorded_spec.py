"""The job of a recorded run, built again from what its first event says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sonde.api.consent import require_sources
from sonde.api.follow_up import earlier_runs
from sonde.api.investigations import Options, job_of
from sonde.api.launch import Job
from sonde.api.settings import Settings
from sonde.api.sources import Opened, is_there, open_context
from sonde.api.trace_source import case_of
from sonde.contexts.workspace import LocalWorkspace, Policy, WorkspaceContext, reject
from sonde.core.budget import Budget
from sonde.core.events import RunStarted
from sonde.engines.ask import ASK
from sonde.engines.edit import EDIT
from sonde.errors import ConfigError
from sonde.runtime.wiring import Mode
from sonde.sandbox import Limits
from sonde.tools import tool

Tools = Sequence[Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a caller gives again: what could not be stored."""

    settings: Settings
    context: Any = None
    tools: Tools = ()


Builder = Callable[[RunStarted, Given], Job]


def rebuild(started: RunStarted, settings: Settings, *, context: Any = None, tools: Tools = ()) -> Job:
    """The same job: engine, question, context, budget, schema. What cannot be stored (data, functions) is given again."""
    engine = started.settings.get("engine", started.run_type)
    builder = BUILDERS.get(engine)
    if builder is None:
        raise ConfigError(f"this version cannot go on with a run of the engine {engine!r}")
    return builder(started, Given(settings=settings, context=context, tools=tools))


def _ask(started: RunStarted, given: Given) -> Job:
    recipe = started.settings
    opened = sources(started, given.context)
    return Job(
        engine=ASK,
        objective=started.objective,
        context=opened.context,
        model=recipe.get("model"),
        sub_model=recipe.get("sub_model"),
        tools=_own_tools(recipe.get("tools"), given.tools),
        budget=Budget(**started.budget),
        schema=recipe.get("schema"),
        variables=opened.variables,
        input_ref=started.input_ref,
        profile=started.profile,
        backend=_backend(started),
        limits=Limits(**recipe.get("limits", {})),
        mode=cast("Mode", started.mode),
        earlier=recipe.get("earlier", ""),
        played=earlier_runs(recipe.get("continues")),
        recipe=_without_version(recipe),
    )


def _own_tools(recorded: Any, given: Tools) -> Tools:
    """The user's own tools, which are functions and not stored; ConfigError names those that were not given again."""
    there = {tool(each).name for each in given}
    names = [str(name) for name in cast("list[Any]", recorded)] if isinstance(recorded, list) else []
    missing = [name for name in names if name not in there]
    if missing:
        raise ConfigError(
            f"this run had tools of your own ({', '.join(missing)}), which are not stored: do it from Python and give them again, "
            f"for example sonde.replay(RUN, tools=[{missing[0]}])"
        )
    return given


def _backend(started: RunStarted) -> str:
    """The one that the run was recorded with: code that ran in one may not run in another."""
    named = (layer.removeprefix("backend: ") for layer in started.layers if layer.startswith("backend: "))
    return next(named, "kernel")


def _without_version(recipe: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in recipe.items() if key != "version"}


def _investigation(started: RunStarted, given: Given) -> Job:
    """An investigation; `context` is the path or address where the traces are now, when they have moved."""
    recipe = started.settings
    case = case_of(recipe, given.settings, given.context)
    options = Options(
        model=recipe.get("model"),
        sub_model=recipe.get("sub_model"),
        budget=Budget(**started.budget),
        profile=started.profile,
        mode=cast("Mode", started.mode),
    )
    job = job_of(case, case.open(), options, given.settings)
    return replace(job, recipe=_without_version(recipe), backend=_backend(started))


def _edit(started: RunStarted, given: Given) -> Job:
    """A task in a folder. Nobody is there to approve, so what is not recorded is not written and not run."""
    recipe = started.settings
    root = given.context or recipe.get("workspace")
    if root is None:
        raise ConfigError("this run worked in an editor's workspace, which is not stored: give the folder again")
    commands = tuple(recipe.get("commands", ()))
    workspace = LocalWorkspace(Path(root), approve=reject, policy=Policy())
    return Job(
        engine=EDIT,
        objective=started.objective,
        context=WorkspaceContext(workspace, commands=commands),
        model=recipe.get("model"),
        sub_model=recipe.get("sub_model"),
        budget=Budget(**started.budget),
        profile=started.profile,
        backend=_backend(started),
        mode=cast("Mode", started.mode),
        recipe=_without_version(recipe),
    )


def sources(started: RunStarted, context: Any) -> Opened:
    """The context of a recorded run, from its paths or from what the caller gives again."""
    if context is not None:
        return open_context([context], code=bool(started.settings.get("code")))
    recorded = started.settings.get("sources")
    if recorded is None:
        raise ConfigError(
            "this run was asked about standard input or data in memory, which is not stored: give it again, "
            "with --context PATH (or - for standard input), in Python with context=…"
        )
    paths: list[str] = recorded.get("paths", [])
    require_sources(paths)
    gone = [path for path in paths if not is_there(path)]
    if gone:
        raise ConfigError(
            f"this run read {gone[0]}, which is not there any more: put it back, or say where it is now with --context PATH"
        )
    return open_context(paths, code=bool(recorded.get("code")))


BUILDERS: dict[str, Builder] = {
    "ask": _ask,
    "edit": _edit,
    "rca": _investigation,
    "compliance": _investigation,
    "incident": _investigation,
}
