"""The spec of a recorded run, built again from what its first event says."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from sonde.api.consent import require_sources
from sonde.api.follow_up import earlier_runs
from sonde.api.investigations import case_spec
from sonde.api.launch import RunOptions, model_names, spec_of
from sonde.api.recorded_run import unmasked
from sonde.api.settings import Settings
from sonde.api.sources import Opened, is_there, recorded_exclusion, reopened
from sonde.api.trace_source import ENGINES, case_of
from sonde.contexts import Context
from sonde.contexts.workspace import LocalWorkspace, Policy, WorkspaceContext, reject
from sonde.core.budget import Budget
from sonde.core.deadline import Clock, Deadline, SystemClock
from sonde.core.events import RunStarted
from sonde.disk import AnyPath
from sonde.engines.ask import ASK
from sonde.engines.edit import EDIT
from sonde.errors import ConfigError
from sonde.runtime.engine import Engine
from sonde.runtime.run import Mode, RunSpec
from sonde.sandbox import Limits
from sonde.tools import tool

if TYPE_CHECKING:
    from sonde.core.mask import Mask

Tools = Sequence[Callable[..., Any]]


@contextmanager
def rebuilt(
    started: RunStarted,
    settings: Settings,
    *,
    within: Sequence[AnyPath],
    context: Any = None,
    tools: Tools = (),
    beside: Sequence[Path] = (),
    mask: Mask | None = None,
    without: str = "",
    clock: Clock | None = None,
) -> Generator[RunSpec]:
    """The same run: engine, question, context, budget, schema. The caller gives again what is not stored (data, functions).

    `within` are the places in which it may read the paths that the recording names (`readable_places`). `context` is the data of a
    question, the folder of a task, or where the traces of an investigation are now; `beside` are the folders in which the runs that it
    continues may lie; `without` is the layer that the caller gives up, whatever the recording says. What this opens it also closes.
    """
    started = unmasked(started, mask)
    recipe = started.settings
    options: RunOptions = {**_options(started, mask), "without": without}

    def loading(engine: Engine) -> AbstractContextManager[None]:
        """The time for opening sources: that of the recorded run, as far as the user's settings allow it."""
        allowed = settings.budget(engine.budget, engine.maxima).max_wall_time_sec
        seconds = min(allowed, Budget(**started.budget).max_wall_time_sec)
        return Deadline(clock or SystemClock(), seconds).in_force()

    match recipe.get("engine", started.run_type):
        case "ask":
            own, there = recipe.get("tools"), {tool(each).name for each in tools}  # the user's functions are not stored
            names = [str(name) for name in cast("list[Any]", own)] if isinstance(own, list) else []
            missing = [name for name in names if name not in there]
            if missing:
                raise ConfigError(
                    f"this run had tools of your own ({', '.join(missing)}), which are not stored: do it from Python and give "
                    f"them again, for example sonde.replay(RUN, tools=[{missing[0]}])"
                )
            limits, schema = Limits(**recipe.get("limits", {})), recipe.get("schema")
            with ExitStack() as stack:
                with loading(ASK):
                    opened = stack.enter_context(sources(started, context, settings, within, without))
                used = {
                    "sources": opened.recipe,
                    "code": bool(recipe.get("code")),
                    "schema": schema,
                    "tools": sorted(there),
                }
                yield replace(
                    opened.given_to(
                        _recorded(
                            started,
                            opened.engine,
                            opened.context,
                            settings,
                            options=options,
                            used={**used, "limits": asdict(limits)},
                        )
                    ),
                    tools=tools,
                    schema=schema,
                    citations=recipe.get("citations", True),
                    input_ref=started.input_ref,
                    limits=limits,
                    played=earlier_runs(recipe.get("continues"), beside),
                )
        case "edit":
            root = context or recipe.get("workspace")
            if root is None:
                raise ConfigError(
                    "this run worked in an editor's workspace, which is not stored: give the folder again"
                )
            if context is None:
                require_sources([str(root)], within)
            # Nobody is there to approve, so nothing is written or run beyond what is recorded.
            left_out = recorded_exclusion(recipe)
            policy = Policy(exclusion=left_out.below(str(Path(root).absolute())))
            workspace = LocalWorkspace(Path(root), approve=reject, policy=policy, without=without)
            commands = tuple(recipe.get("commands", ()))  # only what the prompt says; the policy allows none
            used = {"workspace": str(Path(root).absolute()), "commands": list(commands)}
            worked_in = WorkspaceContext(workspace, commands=commands)
            worked_in.judges_commands = recipe.get("judges_commands", False)
            used |= {"judges_commands": True} if worked_in.judges_commands else {}
            used |= {"gitignore": left_out.gitignore, "exclude": list(left_out.globs)}
            yield replace(
                _recorded(started, EDIT, worked_in, settings, options=options, used=used),
                played=earlier_runs(recipe.get("continues"), beside),
            )
        case "rca" | "compliance" | "incident":
            case = case_of(recipe, settings, context, within=within)
            with loading(ENGINES[case.engine]):
                traces = case.open()
            with closing(traces.store):
                spec = case_spec(case, traces, settings, options)
                yield replace(spec, backend=_backend(started))
        case engine:
            raise ConfigError(f"this version cannot continue a run of the engine {engine!r}")


def _recorded(
    started: RunStarted,
    engine: Engine,
    context: Context,
    settings: Settings,
    *,
    options: RunOptions,
    used: Mapping[str, Any],
) -> RunSpec:
    """The spec with a recipe of what this call uses: a new run must not pass on what a stranger's recording merely says."""
    spec = spec_of(engine, started.objective, context, settings, options)
    told = {key: started.settings[key] for key in ("earlier", "continues", "citations") if key in started.settings}
    return replace(
        spec,
        backend=_backend(started),
        recipe={"engine": engine.name, **used, **told, **model_names(spec)},
        earlier=told.get("earlier", ""),
    )


def _options(started: RunStarted, mask: Mask | None) -> RunOptions:
    """The options the recorded run was started with; for a model object of its caller, the model of the settings."""
    recipe = started.settings
    return {
        "model": recipe.get("model"),
        "sub_model": recipe.get("sub_model"),
        "budget": Budget(**started.budget),
        "profile": started.profile,
        "packages": recipe.get("packages", ()),
        "mode": cast("Mode", started.mode),
        "mask": mask or False,
    }


def _backend(started: RunStarted) -> str:
    """The backend of the recorded run: code that ran in one may not run in another."""
    named = (layer.removeprefix("backend: ") for layer in started.layers if layer.startswith("backend: "))
    return next(named, "kernel")


@contextmanager
def sources(
    started: RunStarted, context: Any, settings: Settings, within: Sequence[AnyPath], without: str = ""
) -> Generator[Opened]:
    """What a recorded run was asked about, from its paths and traces or from what the caller gives again."""
    recorded = started.settings.get("sources")
    if recorded is None and context is None:
        raise ConfigError(
            "this run was asked about standard input or data in memory, which is not stored: give it again, "
            "with --context PATH (or - for standard input), in Python with context=…"
        )
    recorded = cast("dict[str, Any]", recorded or {"code": started.settings.get("code")})
    paths: list[str] = recorded.get("paths", [])
    require_sources(paths if context is None else (), within)
    gone = [path for path in paths if context is None and not is_there(path)]
    if gone:
        raise ConfigError(
            f"this run read {gone[0]}, which no longer exists: put it back, or say where it is now with --context PATH"
        )
    with reopened(recorded, settings, within, moved=context, without=without) as opened:
        yield opened
