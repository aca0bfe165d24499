"""Investigations of traces: `rca`, `comply`, `incident`; each gives a report as data, as Markdown and as annotations.

    found = sonde.rca("4f1c…", "traces.jsonl", model="openai:gpt-4o-mini")
    print(found.report["primary_label"], found.annotator_kind, found.run_dir)

They work without a model too: the deterministic pre-filter and fallback give an honest report marked CODE. Annotations go back to a
Phoenix server unless `writeback=False`; for files they lie in annotations.jsonl beside the report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

from sonde.api.ask_run import check_knobs
from sonde.api.launch import Finished, Job, Launch, OnEvent, run_for_answer
from sonde.api.settings import Settings, load_settings
from sonde.api.trace_source import ENGINES, Case, Source, absolute, source_of
from sonde.api.writeback import Writeback
from sonde.contexts.traces.context import TracesContext
from sonde.core.budget import Budget
from sonde.core.cancellation import Stop
from sonde.core.deadline import Clock, SystemClock
from sonde.core.record import RunRecord
from sonde.core.status import RunStatus
from sonde.engines.whole_trace import engine_for
from sonde.errors import ConfigError, RunError
from sonde.models.base import Model
from sonde.runtime.engine import Engine, Gathered, Prefilter
from sonde.runtime.wiring import ModeChoice


@dataclass(frozen=True, slots=True, kw_only=True)
class Investigation:
    """A finished investigation: the report as data, who judged, how it ended, where its folder is."""

    report: dict[str, Any] | None
    text: str
    annotator_kind: Literal["LLM", "CODE"]
    status: RunStatus
    record: RunRecord
    run_dir: Path | None
    gaps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an investigation is run; the same for every engine."""

    model: str | Model | None = None
    sub_model: str | Model | None = None
    budget: Budget | None = None
    knobs: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    profile: str | None = None
    mode: ModeChoice | None = None
    runs_dir: str | Path | None = None
    on_event: OnEvent | None = None
    on_text: Callable[[str, str], None] | None = None
    cancel: threading.Event = field(default_factory=Stop)
    settings: Settings | None = None
    clock: Clock = field(default_factory=SystemClock)
    cache: Path | None = None
    in_memory: bool = False
    unsafe: bool = False

    def chosen(self) -> Settings:
        """The settings, loaded when none were given."""
        return self.settings or load_settings()


def rca(
    trace_id: str,
    source: str | Path | Source,
    *,
    project: str | None = None,
    taxonomy: str | Path | None = None,
    writeback: bool = True,
    options: Options | None = None,
    **more: Any,
) -> Investigation:
    """Why did this trace fail? With a `taxonomy` the report also lists every failure that can be proved.

    `more` are fields of Options, or budget knobs: rca(id, "traces.jsonl", model="openai:gpt-4o-mini", max_iterations=20).
    """
    how = _options(options, more)
    case = Case(
        engine="rca",
        place=_place(source, project, how),
        trace_ids=(_one(trace_id),),
        taxonomy=str(taxonomy) if taxonomy else None,
        writeback=writeback,
    )
    return investigate(case, how)


def comply(
    trace_id: str,
    source: str | Path | Source,
    *,
    project: str | None = None,
    controls: str | None = None,
    controls_files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    writeback: bool = True,
    options: Options | None = None,
    **more: Any,
) -> Investigation:
    """Does this trace keep its controls? `controls` is a version; `overrides` are controls to judge whether they apply or not."""
    how = _options(options, more)
    case = Case(
        engine="compliance",
        place=_place(source, project, how),
        trace_ids=(_one(trace_id),),
        controls_version=controls,
        controls_files=absolute(controls_files),
        overrides=tuple(overrides),
        writeback=writeback,
    )
    return investigate(case, how)


def incident(
    source: str | Path | Source,
    *,
    project: str | None = None,
    start: str | None = None,
    end: str | None = None,
    filter_expr: str | None = None,
    trace_ids: Sequence[str] = (),
    configs: str | Path | None = None,
    writeback: bool = True,
    options: Options | None = None,
    **more: Any,
) -> Investigation:
    """What happened in this window of time? `configs` is a folder of config snapshots; `trace_ids` are looked at in any case."""
    how = _options(options, more)
    case = Case(
        engine="incident",
        place=_place(source, project, how),
        trace_ids=tuple(dict.fromkeys(trace_ids)),
        start=start,
        end=end,
        filter_expr=filter_expr,
        configs=absolute([configs])[0] if configs else None,
        writeback=writeback,
    )
    return investigate(case, how)


def investigate(case: Case, options: Options) -> Investigation:
    """Run one case."""
    settings = options.chosen()
    context = case.open()
    launch = Launch(
        settings=settings,
        runs_dir=Path(options.runs_dir) if options.runs_dir else None,
        on_event=options.on_event,
        on_text=options.on_text,
        cancel=options.cancel,
        clock=options.clock,
        in_memory=options.in_memory,
        secrets=tuple(case.place.secrets()),
    )
    try:
        return investigation_of(run_for_answer(job_of(case, context, options, settings), launch))
    finally:
        context.store.close()


def job_of(case: Case, context: TracesContext, options: Options, settings: Settings) -> Job:
    """The job of a case; the same again from a recorded recipe."""
    writeback = Writeback(case=case, context=context)
    params = case.params(context.store)
    spec = {
        "model": _spec(options.model, settings.model),
        "sub_model": _spec(options.sub_model, settings.sub_model),
    }
    return Job(
        engine=_engine(case, params, context),
        objective=case.objective,
        context=context,
        model=options.model,
        sub_model=options.sub_model,
        budget=options.budget,
        knobs=check_knobs(options.knobs),
        params=params,
        input_ref=case.input_ref(),
        profile=options.profile or settings.sandbox_profile,
        mode=options.mode or cast("ModeChoice", settings.mode),
        unsafe=options.unsafe,
        recipe={**case.recipe(), **spec},
        writeback=writeback if case.writes_back else None,
        files=writeback.files,
    )


def _engine(case: Case, params: Mapping[str, Any], context: TracesContext) -> Engine:
    try:
        return engine_for(params, context) if case.engine == "rca" else ENGINES[case.engine]
    except (
        RunError
    ) as error:  # the server does not answer: the run begins and ends with that, so that there is a record
        return replace(ENGINES[case.engine], prefilter=_raising(error))


def _raising(error: RunError) -> Callable[[Gathered], Prefilter]:
    def prefilter(_gathered: Gathered) -> Prefilter:
        raise error

    return prefilter


def investigation_of(finished: Finished) -> Investigation:
    """The finished run as callers get it."""
    conclusion = finished.ended.conclusion
    return Investigation(
        report=conclusion.output,
        text=conclusion.text,
        annotator_kind=finished.annotator,
        status=finished.ended.status,
        record=finished.record,
        run_dir=finished.run_dir.path if finished.run_dir else None,
        gaps=conclusion.gaps,
    )


def _spec(given: str | Model | None, configured: str | None) -> str | None:
    return given if isinstance(given, str) else configured if given is None else None


def _options(options: Options | None, more: Mapping[str, Any]) -> Options:
    """Options from a value, or from keywords: fields by name, everything else is a budget knob."""
    if options is not None and more:
        raise ConfigError(f"give either options or {', '.join(sorted(more))}, not both")
    if options is not None:
        return options
    named = {name: value for name, value in more.items() if name in Options.__slots__ and name != "knobs"}
    turned = {name: value for name, value in more.items() if name not in named and name != "knobs"}
    return Options(**named, knobs={**more.get("knobs", {}), **turned})


def _place(source: str | Path | Source, project: str | None, options: Options) -> Source:
    return source_of(source, project, options.chosen().environ, options.cache)


def _one(trace_id: str) -> str:
    if not trace_id.strip():
        raise ConfigError("the trace id is empty; `sonde traces ls` lists them")
    return trace_id.strip()
