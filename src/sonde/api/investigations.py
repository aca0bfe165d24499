"""Investigations of traces: `rca`, `comply`, `incident`; each gives a report as data, as Markdown and as annotations.

    found = sonde.rca("4f1c…", "traces.jsonl", model="openai:gpt-4o-mini")
    print(found.report["primary_label"], found.annotator_kind, found.run_dir)

They work without a model too: the deterministic pre-filter and fallback give an honest report marked CODE. Annotations go back to a
Phoenix server unless `writeback=False`; for files they are in annotations.jsonl beside the report.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from sonde.api.launch import RunOptions, budget_of, launch, mask_of, masked, model_names, spec_of
from sonde.api.publication import Writeback
from sonde.api.result import Investigation
from sonde.api.settings import Settings, load_settings
from sonde.api.trace_source import ENGINES, Case, Source, absolute, absolute_changes, source_of
from sonde.contexts.traces.changes import read_changes
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.maskedstore import MaskedStore
from sonde.core.deadline import Deadline, SystemClock, guarded
from sonde.engines.conversation import engine_for
from sonde.engines.whole_trace import READING_MAXIMA
from sonde.errors import ConfigError, RunError
from sonde.runtime.engine import Gathered, Prefilter
from sonde.runtime.run import RunSpec


def rca(
    trace_id: str,
    source: str | Path | Source,
    *,
    project: str | None = None,
    taxonomy: str | Path | None = None,
    writeback: bool = True,
    replace_judgements: bool = False,
    **options: Unpack[RunOptions],
) -> Investigation:
    """Why did this trace fail?

        found = sonde.rca("4f1c…", "traces.jsonl", model="openai:gpt-4o-mini", max_iterations=20)

    trace_id   the trace, or the beginning of its id
    source     a trace file, a folder, the address of a Phoenix server, or a Source
    project    the project of the traces
    taxonomy   a file of failure categories, or the name of a shipped one: the report then lists every failure that can be proved
    writeback  write annotations to the server; files never get any
    replace_judgements  let a rule's annotations replace a model's, and a model's a person's

    The other keywords are those of `ask`: model, budget, runs_dir and so on.
    """
    settings = options.get("settings") or load_settings()
    case = Case(
        engine="rca",
        place=source_of(source, project, settings.environ, cache_gb=settings.trace_cache_gb),
        trace_ids=(_one(trace_id),),
        taxonomy=str(taxonomy) if taxonomy else None,
        writeback=writeback,
        replace_judgements=replace_judgements,
    )
    return investigate(case, settings, options)


def comply(
    trace_id: str,
    source: str | Path | Source,
    *,
    project: str | None = None,
    controls: str | None = None,
    controls_files: Sequence[str | Path] = (),
    overrides: Sequence[str] = (),
    verdicts: Mapping[str, str] | None = None,
    reason: str = "",
    writeback: bool = True,
    replace_judgements: bool = False,
    **options: Unpack[RunOptions],
) -> Investigation:
    """Does this trace keep its controls?

    trace_id, source, project, writeback, replace_judgements  as for `rca`
    controls        the version of the controls; None: the only one in your files, else the shipped one
    controls_files  files of controls of your own
    overrides       controls to judge whether they apply or not
    verdicts        your own verdicts by control, for example {"llm09.misinformation": "pass"}; they replace the rule's and the
                    model's, which the report keeps beside them
    reason          why; needed with verdicts

    The other keywords are those of `ask`: model, budget, runs_dir and so on.
    """
    settings = options.get("settings") or load_settings()
    case = Case(
        engine="compliance",
        place=source_of(source, project, settings.environ, cache_gb=settings.trace_cache_gb),
        trace_ids=(_one(trace_id),),
        controls_version=controls,
        controls_files=absolute(controls_files),
        overrides=tuple(overrides),
        verdicts=dict(verdicts or {}),
        reason=reason,
        writeback=writeback,
        replace_judgements=replace_judgements,
    )
    return investigate(case, settings, options)


def incident(
    source: str | Path | Source,
    *,
    project: str | None = None,
    start: str | None = None,
    end: str | None = None,
    filter_expr: str | None = None,
    trace_ids: Sequence[str] = (),
    configs: str | Path | None = None,
    changes: Sequence[str] = (),
    writeback: bool = True,
    replace_judgements: bool = False,
    **options: Unpack[RunOptions],
) -> Investigation:
    """What happened in this window of time?

    source, project, writeback, replace_judgements  as for `rca`
    start, end   the window, as RFC 3339; None: from the first trace, to the last
    filter_expr  which spans are meant, for example "status == 'ERROR'"
    trace_ids    traces that are looked at in any case
    configs      a folder of config snapshots
    changes      what else changed: "git:REPO" for the commits and tags of a repository, or a JSON file of deploys

    The other keywords are those of `ask`: model, budget, runs_dir and so on.
    """
    settings = options.get("settings") or load_settings()
    case = Case(
        engine="incident",
        place=source_of(source, project, settings.environ, cache_gb=settings.trace_cache_gb),
        trace_ids=tuple(dict.fromkeys(trace_ids)),
        start=start,
        end=end,
        filter_expr=filter_expr,
        configs=absolute([configs])[0] if configs else None,
        changes=absolute_changes(changes),
        writeback=writeback,
        replace_judgements=replace_judgements,
    )
    return investigate(case, settings, options)


def investigate(case: Case, settings: Settings, options: RunOptions) -> Investigation:
    """Run one case."""
    engine = ENGINES[case.engine]
    if case.engine == "rca":  # only the open trace shows whether it is read as a whole, which may take longer
        engine = replace(engine, maxima=READING_MAXIMA)
    budget = budget_of(engine, settings, options)
    loading = Deadline(options.get("clock") or SystemClock(), budget.max_wall_time_sec)
    with loading.in_force(), guarded("loading the traces"):
        case = case.resolved()
        context = case.open(recorded=True)
    try:
        with loading.in_force():
            spec = case_spec(case, context, settings, options)
        found = launch(replace(spec, began=loading.started if case.place.server else None), settings)
    finally:
        context.store.close()
    assert isinstance(found, Investigation)
    return found


def case_spec(case: Case, context: TracesContext, settings: Settings, options: RunOptions | None = None) -> RunSpec:
    """The run of a case, new or from a recorded recipe."""
    mask = mask_of(settings, options)
    masked(context, mask)
    options = {**(options or {}), "mask": mask or False}
    writeback = Writeback(case=case, context=context, mask=mask)
    params = case.params(context.store)
    if mask is not None:
        params |= {name: mask.hidden_value(params[name]) for name in ("trace_id", "trace_ids") if name in params}
        params |= {name: mask.keyed(params[name])[:12] for name in ("incident_id",) if name in params}
    if case.changes:
        query = case.query()
        start, end = (query.start_us, query.end_us) if query else (None, None)
        hide = str if mask is None else mask.hidden
        params["changes"] = read_changes(case.changes, settings.environ, start_us=start, end_us=end, hide=hide)
    engine = ENGINES[case.engine]
    refusal = context.refusal
    try:
        engine = engine_for(params, context) if case.engine == "rca" and refusal is None else engine
    except RunError as error:
        refusal = error
    if refusal is not None:
        reason = refusal

        # The source does not serve this case: the run starts and ends with that, so that a record says so.
        def prefilter(_gathered: Gathered) -> Prefilter:
            raise reason

        engine = replace(engine, prefilter=prefilter)
    spec = spec_of(engine, case.objective, context, settings, options)
    real = context.store.inner if isinstance(context.store, MaskedStore) else context.store
    upto = real.upto if isinstance(real, FileStore) else None
    return replace(
        spec,
        params=params,
        input_ref=case.input_ref(),
        dataset=case.place.dataset,
        recipe={**case.recipe(), **({} if upto is None else {"upto": upto}), **model_names(spec)},
        secrets=(*spec.secrets, *case.place.secrets()),
        writeback=writeback if case.writeback and case.place.writable else None,
        files=writeback.files,
    )


def _one(trace_id: str) -> str:
    if not trace_id.strip():
        raise ConfigError("the trace id is empty; `sonde traces ls` lists them")
    return trace_id.strip()
