"""Investigations as library calls: one job builder for the engines that look at traces, and `rca`.

    report = sonde.rca("trace-id", source="traces.jsonl", model="openai:gpt-4o-mini").report

A source is a file, a folder, or the address of a Phoenix server. Annotations go back to Phoenix when the source is
one (unless `writeback=False`), and into annotations.jsonl beside the report otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sonde.api.asking import check_knobs
from sonde.api.launch import Finished, Job, Launch, OnEvent, run_job
from sonde.api.settings import Settings, load_settings
from sonde.contexts.configs import ConfigSnapshots
from sonde.contexts.controls import ControlsLibrary
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.sources import open_store
from sonde.core.budget import Budget
from sonde.core.deadline import Clock, SystemClock
from sonde.core.record import RunRecord
from sonde.core.status import RunStatus
from sonde.engines.rca import RCA
from sonde.engines.taxonomies import load_taxonomy
from sonde.models.base import Model
from sonde.runtime.engine import Engine
from sonde.runtime.wiring import Mode


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
class Source:
    """Where traces are and what goes with them."""

    source: str | Path
    project: str | None = None
    api_key: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cache: Path | None = None
    controls: ControlsLibrary | None = None
    configs: ConfigSnapshots | None = None

    def open(self, trace_ids: Sequence[str] = ()) -> TracesContext:
        """The context of a run over these traces."""
        store = open_store(
            self.source, project=self.project, cache=self.cache, api_key=self.api_key, headers=self.headers
        )
        return TracesContext(store, controls=self.controls, configs=self.configs, trace_ids=trace_ids)

    def recipe(self) -> dict[str, Any]:
        """What a resume needs; keys and headers are not in it."""
        path = str(self.source)
        server = path.startswith(("http://", "https://"))
        return {"source": path if server else str(Path(path).absolute()), "project": self.project}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How an investigation is run; the same for every engine."""

    model: str | Model | None = None
    sub_model: str | Model | None = None
    budget: Budget | None = None
    knobs: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    profile: str | None = None
    mode: Mode = "code"
    runs_dir: str | Path | None = None
    on_event: OnEvent | None = None
    on_text: Callable[[str, str], None] | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    settings: Settings | None = None
    clock: Clock = field(default_factory=SystemClock)
    in_memory: bool = False
    unsafe: bool = False

    def chosen(self) -> Settings:
        """The settings, loaded when none were given."""
        return self.settings or load_settings()


def investigate(
    engine: Engine,
    objective: str,
    context: TracesContext,
    *,
    options: Options,
    params: Mapping[str, Any],
    input_ref: Mapping[str, Any],
    recipe: Mapping[str, Any],
) -> Finished:
    """Run one investigation."""
    settings = options.chosen()
    job = Job(
        engine=engine,
        objective=objective,
        context=context,
        model=options.model,
        sub_model=options.sub_model,
        budget=options.budget,
        knobs=check_knobs(options.knobs),
        params=params,
        input_ref=input_ref,
        profile=options.profile or settings.sandbox_profile,
        mode=options.mode,
        unsafe=options.unsafe,
        recipe={"engine": engine.name, **recipe},
    )
    launch = Launch(
        settings=settings,
        runs_dir=Path(options.runs_dir) if options.runs_dir else None,
        on_event=options.on_event,
        on_text=options.on_text,
        cancel=options.cancel,
        clock=options.clock,
        in_memory=options.in_memory,
    )
    return run_job(job, launch)


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


def rca(
    trace_id: str,
    source: str | Path | Source,
    *,
    project: str | None = None,
    taxonomy: str | Path | None = None,
    options: Options | None = None,
) -> Investigation:
    """Why did this trace fail? With a `taxonomy` the report also lists every failure that can be proved."""
    place = source if isinstance(source, Source) else Source(source=source, project=project)
    context = place.open((trace_id,))
    count = len(context.store.summaries(trace_id))
    categories = load_taxonomy(taxonomy) if taxonomy else None
    finished = investigate(
        RCA,
        f"Find the root cause of the failure in trace {trace_id}.",
        context,
        options=options or Options(),
        params={"trace_id": trace_id, "span_count": count, "taxonomy": categories},
        input_ref={"project_name": place.project, "trace_ids": [trace_id]},
        recipe={**place.recipe(), "trace_ids": [trace_id], "taxonomy": str(taxonomy) if taxonomy else None},
    )
    return investigation_of(finished)
