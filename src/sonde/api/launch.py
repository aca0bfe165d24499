"""From a spec to a result: opens the models, makes the folder, opens the journal, runs the loop, writes the files.

This is the only place that puts the parts together; everything below gets values. A run folder is complete after every kind of ending.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from sonde.api.config_file import state_folder
from sonde.api.consent import seal_key
from sonde.api.keys import unknown
from sonde.api.result import Answer, Edited, Investigation, Result, ran_lines
from sonde.api.settings import NO_MODEL, Settings, load_settings
from sonde.contexts import Context, Maskable
from sonde.contexts.files.about import shown_name
from sonde.contexts.workspace import WorkspaceContext
from sonde.contexts.workspace.history import WriteLog, by_commands
from sonde.core.budget import Budget
from sonde.core.cancellation import Stop, heeding
from sonde.core.canonical import hash_value, plural, sha256_text, shown_cost
from sonde.core.deadline import Clock, Deadline, SystemClock
from sonde.core.events import Event, RunResumed, RunStarted
from sonde.core.evidence import Citation, Excerpt, Reread
from sonde.core.markdown_safety import line, quiet, quoted_headings
from sonde.core.record import RunRecord
from sonde.core.redaction import rewrite_value, secret_forms
from sonde.core.schema import load_schema
from sonde.errors import ConfigError, RunError, ToolFault
from sonde.models import open_model
from sonde.models.base import SAMPLING, Model, suited_mode
from sonde.publish.otel import TraceSender, otlp_exporter
from sonde.runs.catalog import INVESTIGATIONS
from sonde.runs.placeholders import PlaceholderFile, new_id
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import ANSWER, ARTIFACTS, REPORT, SUMMARY, RunDir, artifacts_folder, new_run_id
from sonde.runtime.engine import Engine
from sonde.runtime.finish import Outcome
from sonde.runtime.functions import refuse_taken
from sonde.runtime.prompts import taught
from sonde.runtime.run import Mode, ModeChoice, OnEvent, OnText, Run, RunSpec
from sonde.sandbox.base import check_without
from sonde.sandbox.policy import profile_named
from sonde.tools import ToolRegistry

if TYPE_CHECKING:
    from sonde.core.mask import Mask

MASKED = f"masked: placeholders stand for people's data in this run; {REPORT} in its folder has the values"


def sonde_version() -> str:
    """The installed version."""
    try:
        return version("sonde-rlm")
    except PackageNotFoundError:
        return "0+unknown"


class RunOptions(TypedDict, total=False):
    """The keywords of every function that starts a run; `help(sonde.ask)` explains them. None means not given."""

    model: str | Model | None
    sub_model: str | Model | None
    budget: Budget | None
    profile: str | None
    packages: Sequence[str] | None
    mode: ModeChoice | None
    runs_dir: str | Path | None
    on_event: OnEvent | None
    on_text: OnText | None
    cancel: threading.Event | None
    settings: Settings | None
    clock: Clock | None
    unsafe: bool
    without: str
    in_memory: bool
    mask: bool | Mask | None
    mask_patterns: Mapping[str, str] | None
    restore: bool
    max_iterations: int | None
    max_depth: int | None
    max_tool_calls: int | None
    max_subcalls: int | None
    max_tokens_total: int | None
    max_tokens_per_subcall: int | None
    max_cost_usd: float | None
    max_wall_time_sec: float | None
    sampling_seed: int | None
    reasoning_effort: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None


def budget_of(engine: Engine, settings: Settings, options: Mapping[str, Any]) -> Budget:
    """The limits of a run, from the options, else the settings, else the engine."""
    given = {name: value for name, value in options.items() if value is not None}
    budget = settings.budget(engine.budget, engine.maxima)
    if "budget" in given:  # one that a caller gives must fit the contract as a whole
        if not isinstance(given["budget"], Budget):
            raise ConfigError(
                "budget is a sonde.Budget, for example Budget(max_iterations=5); or give max_iterations=5 alone"
            )
        budget = given["budget"].override(engine.maxima, **given["budget"].as_dict())
    return budget.override(
        engine.maxima, **{name: given[name] for name in Budget.__dataclass_fields__ if name in given}
    )


def spec_of(
    engine: Engine, objective: str, context: Context, settings: Settings, options: RunOptions | None = None
) -> RunSpec:
    """A run from the options, else the settings, else the engine; ConfigError names an option that does not exist."""
    stray = next((name for name in options or () if name not in RunOptions.__annotations__), None)
    if stray is not None:
        raise unknown("argument", stray, RunOptions.__annotations__, "every run")
    given: dict[str, Any] = {name: value for name, value in (options or {}).items() if value is not None}
    check_without(given.get("without", ""))
    model, sub_model = given.get("model", settings.model), given.get("sub_model", settings.sub_model)
    if isinstance(model, str) and model == NO_MODEL:
        model = sub_model = None
    budget = budget_of(engine, settings, given)
    mask = mask_of(settings, options)
    masked(context, mask)
    objective = objective if mask is None else mask.asked(objective)
    profile = given.get("profile", settings.sandbox_profile or engine.profile)
    usual = (
        settings.packages if engine.profile == "general" else ()
    )  # investigations have only what they are given by name
    packages = profile_named(profile).having(given.get("packages", usual)).extra
    return RunSpec(
        engine=engine,
        objective=objective,
        context=context,
        budget=budget,
        model=model,
        sub_model=sub_model,
        mode=given.get("mode", settings.mode),
        profile=profile,
        packages=packages,
        backend=settings.backend,
        unsafe=given.get("unsafe", False),
        without=given.get("without", ""),
        sampling={name: given[name] for name in SAMPLING if name in given},
        max_parallel=settings.max_parallel,
        max_journal_bytes=settings.max_journal_mb << 20,
        runs_dir=Path(given.get("runs_dir", settings.runs_home(engine.name))),
        in_memory=given.get("in_memory", False),
        secrets=settings.secrets(),
        mask=mask,
        restore=given.get("restore", True),
        on_event=given.get("on_event"),
        on_text=given.get("on_text"),
        cancel=given.get("cancel") or Stop(),
        clock=given.get("clock") or SystemClock(),
        notes=_notes_on_time(model, settings, budget.max_wall_time_sec),
    )


def _notes_on_time(model: Any, settings: Settings, wall_s: float) -> tuple[str, ...]:
    """That the run ends before one reply of its model may take as long as the user allows."""
    if not isinstance(model, str) or (settings.timeout_s is None and model not in settings.models):
        return ()
    choice = settings.choose(model)
    allowed, is_program = choice.settings.timeout_s, choice.spec.startswith("command:")
    if allowed is None or allowed <= wall_s or (is_program and not choice.settings.count_wait):
        return ()
    uncounted = ", or do not count the wait: --no-count-wait" if is_program else ""
    return (
        f"a reply may take {allowed:g} s, but the run ends after {wall_s:g} s; raise --max-wall-time-sec{uncounted}",
    )


def mask_of(settings: Settings, options: RunOptions | None = None) -> Mask | None:
    """What hides people's data in a run with these options, else settings; None: nothing does."""
    given, patterns = (options or {}).get("mask"), (options or {}).get("mask_patterns")
    wanted = given or settings.mask or patterns or (settings.mask_patterns and "mask" not in settings.sources)
    if given is False or not wanted:
        return None
    from sonde.core.mask import Mask, patterns_of  # noqa: PLC0415  # loaded only for those who mask

    if isinstance(given, Mask):
        return given
    return Mask({**patterns_of(settings.mask_patterns), **(patterns or {})}, key=seal_key(settings.environ, make=True))


def masked(context: Context, mask: Mask | None) -> None:
    """Mask the context from now on, or not any more."""
    if isinstance(context, Maskable):
        context.mask_with(mask)
    elif mask is not None:
        raise ConfigError(
            f"{type(context).__name__} cannot be masked: it has no mask_with(mask), as docs/privacy.md says"
        )


def model_names(spec: RunSpec) -> dict[str, str | None]:
    """How the models can be opened again; None for one that only the caller has."""
    return {
        "model": spec.model if isinstance(spec.model, str) else None,
        "sub_model": spec.sub_model if isinstance(spec.sub_model, str) else None,
    }


def run(engine: Engine, objective: str, context: Context, **options: Unpack[RunOptions]) -> Result:
    """Run any engine, yours included.

    engine     what kind of job it is
    objective  the task in words
    context    what code may look at, for example a FilesContext

    The keywords are those of `ask`: model, budget, runs_dir and so on.
    """
    settings = options.get("settings") or load_settings()
    return launch(spec_of(engine, objective, context, settings, options), settings)


def launch(spec: RunSpec, settings: Settings) -> Result:
    """Run to the end and leave a complete folder."""
    if spec.schema is not None:
        spec = replace(spec, schema=load_schema(spec.schema))
    dataset_hash = ""
    reading = Deadline(spec.clock, spec.budget.max_wall_time_sec, started=spec.began)
    # Data that cannot be reached, or not in time: the run itself fails at once, and its record says so.
    with reading.in_force(), suppress(RunError, ToolFault):
        plain = spec.context.fingerprint()
        dataset_hash = plain if spec.mask is None else spec.mask.keyed(plain)
    registry = ToolRegistry(
        taught(spec.context.tools(), spec.profile),
        spec.engine.tools,
        clock=spec.clock,
        given=taught(spec.tools, spec.profile),
    )
    refuse_taken(registry.given)
    with heeding(spec.cancel) as stop, opened_models(spec, settings) as (model, sub_model):
        spec = replace(spec, mode=mode_of(spec, model))
        run_dir = spec.run_dir
        if run_dir is None and not spec.in_memory:
            home = (
                spec.runs_dir if spec.runs_dir != ARTIFACTS else artifacts_folder(named=settings.runs_dir is not None)
            )
            run_dir = RunDir.create(home, new_run_id(spec.clock))
        journal = run_dir.journal(spec.secrets, spec.max_journal_bytes) if run_dir else None
        if run_dir is not None and isinstance(spec.context, WorkspaceContext):
            spec.context.keep_in(
                WriteLog(run_dir.path, seal_key(settings.environ, make=True), spec.mask, secret_forms(spec.secrets))
            )
        if spec.mask is not None:
            spec = keeping_pairs(spec, spec.mask, settings, run_dir)
        recording = spec.recording
        heard = recording.clock.hear if recording.clock is not None else None
        key = None if run_dir is None or recording.resumed or not spec.own else seal_key(settings.environ, make=True)

        def seal(event: Event) -> None:
            if isinstance(event, RunStarted) and run_dir is not None and key is not None:
                run_dir.seal(key)

        listeners = tuple(each for each in (heard, seal if key else None, spec.on_event, tracer_of(settings)) if each)
        recorder = Recorder(spec.clock, journal, listeners, recording if recording.resumed else None, spec.mask)
        this_run = Run(
            spec=spec,
            model=model,
            sub_model=sub_model,
            registry=registry,
            recorder=recorder,
            run_id=run_dir.run_id if run_dir else new_run_id(spec.clock),
            version=sonde_version(),
            dataset_hash=dataset_hash,
            cancel=stop,
        )
        try:
            if recording.resumed and recording.clock is not None:
                recorder.emit(RunResumed(elapsed_s=recording.clock.used, replayed=len(recording)))
            outcome = this_run.execute()
        finally:
            this_run.over.set()
            if journal is not None:
                journal.close()
    result = result_of(spec, outcome, recorder, run_dir, settings)
    if run_dir is not None:
        try:
            write_files(spec, outcome, result.record, run_dir, settings)
        except OSError as error:
            if spec.needs_files:
                raise
            gap = (
                f"the files of {run_dir.path} could not all be written: {error.strerror}; its journal is whole: make room, "
                f"then `sonde resume {run_dir.run_id}` writes them without asking a model"
            )
            result = replace(result, gaps=(*result.gaps, gap))
    if outcome.mistake is not None:
        raise outcome.mistake
    return result


def tracer_of(settings: Settings) -> TraceSender | None:
    """Sends the run as a trace, where the settings say so."""
    if settings.otel_endpoint is None:
        return None
    exporter = otlp_exporter(settings.otel_endpoint)
    return TraceSender(exporter, content=settings.otel_content, project=settings.otel_project)


def keeping_pairs(spec: RunSpec, mask: Mask, settings: Settings, run_dir: RunDir | None) -> RunSpec:
    """The spec with a masked recipe that names the file of its placeholders; what the mask hides goes into that file first."""
    then = spec.recording.at(RunStarted) if spec.recording.resumed else None
    name = new_id() if then is None else str(then.settings.get("mask", {}).get("id"))
    hidden = mask.hidden_texts({name: value for name, value in spec.recipe.items() if name != "mask"})
    hidden["mask"] = {"id": name, "patterns": mask.patterns}
    notes = (MASKED, *spec.notes)
    spec = replace(spec, recipe=hidden, input_ref=mask.hidden_texts(dict(spec.input_ref)), notes=notes)
    kept = state_folder(settings.environ or os.environ)
    if run_dir is not None and kept is not None:
        pairs = PlaceholderFile(kept, name)
        pairs.write(mask.pairs() if then is None else ())
        mask.keep = lambda name, value: pairs.write([(name, value)])
    return spec


def restored(outcome: Outcome, mask: Mask, reread: Reread | None = None) -> Outcome:
    """The outcome for the user, with the real values; citations of lines that can be `reread` get the hash of the real ones."""

    def real(citation: Citation) -> Citation:
        where = {name: getattr(citation, name) for name in ("kind", "ref", "path", "start_line", "end_line")}
        text = reread(Excerpt(**where, hash=citation.excerpt_hash)) if reread and citation.start_line > 0 else None
        unchanged = text is not None and sha256_text(text) == citation.excerpt_hash
        names = ("path", "ref", "snippet", "signal", "trace_id", "span_id")
        words = {name: mask.restored(getattr(citation, name)) for name in names if hasattr(citation, name)}
        hashed = sha256_text(mask.restored(text or "")) if unchanged else citation.excerpt_hash
        return citation.model_copy(update={**words, "excerpt_hash": hashed})

    conclusion = outcome.conclusion
    shown = replace(
        conclusion,
        text=mask.restored(conclusion.text),
        output=mask.restored_value(conclusion.output),
        citations=tuple(map(real, conclusion.citations)),
        gaps=tuple(map(mask.restored, conclusion.gaps)),
    )
    return replace(outcome, conclusion=shown)


def result_of(
    spec: RunSpec, outcome: Outcome, recorder: Recorder, run_dir: RunDir | None, settings: Settings
) -> Result:
    """What came of a run: the kind of result that its engine makes."""
    mask = spec.mask if spec.restore else None
    outcome = outcome if mask is None else restored(outcome, mask, spec.context.reread)
    conclusion = outcome.conclusion
    left_out: Mapping[str, str] = getattr(spec.context, "left_out", {})
    common: dict[str, Any] = {
        "text": conclusion.text,
        "value": conclusion.output,
        "status": outcome.status,
        "citations": conclusion.citations,
        "evidence": conclusion.evidence,
        "gaps": (*conclusion.gaps, *(f"left out: {shown_name(name)} ({why})" for name, why in left_out.items())),
        "annotator_kind": outcome.annotator,
        "cost": recorder.fold.usage.cost,
        "record": recorder.fold.record(),
        "run_dir": run_dir.path if run_dir else None,
        "error": outcome.error,
    }
    match spec.engine.name:
        case "ask":
            common["value"] = conclusion.output["value"] if conclusion.output else None
            return Answer(**common)
        case "edit":
            common["value"] = None
            changed: Sequence[str] = getattr(spec.context, "changed", ())
            changed = tuple(changed if mask is None else map(mask.restored, changed))
            log = () if run_dir is None else WriteLog(run_dir.path, seal_key(settings.environ)).read()
            others = (path if mask is None else mask.restored(path) for path in by_commands(log))
            return Edited(**common, changed=changed, changed_by_commands=tuple(others), ran=commands_of(spec, mask))
        case "rca" | "compliance" | "incident":
            return Investigation(**common)
        case _:
            return Result(**common)


def commands_of(spec: RunSpec, mask: Mask | None) -> dict[str, int | None]:
    """The commands that an edit ran, with how the last run of each ended; with the real values if they are masked."""
    ran: Mapping[str, int | None] = getattr(spec.context, "ran", {})
    return {line if mask is None else mask.restored(line): code for line, code in ran.items()}


def mode_of(spec: RunSpec, model: Model | None) -> Mode:
    """The form of replies: the one asked for, else what suits the model. Only an answer in words can be guided."""
    if spec.mode == "guided" and not spec.engine.answers:
        raise ConfigError(f"mode guided is for questions (sonde ask); {spec.engine.name} takes code or actions")
    if spec.mode != "auto":
        return spec.mode
    suits = suited_mode(model)
    return "actions" if suits == "guided" and not spec.engine.answers else suits


@contextmanager
def opened_models(spec: RunSpec, settings: Settings) -> Generator[tuple[Model | None, Model | None]]:
    """The root's model and the sub-calls' (None: the same one). Equal ones are opened once; what we opened we close."""
    root, sub = spec.model, spec.sub_model
    if root is None and sub is not None:
        raise ConfigError("a sub-model is set but no model: pass --model as well")
    same = root is sub
    if isinstance(root, str) and isinstance(sub, str):
        same = settings.choose(root) == settings.choose(sub)
    if spec.sampling and any(each is not None and not isinstance(each, str) for each in (root, sub)):
        raise ConfigError(
            f"{next(iter(spec.sampling))} is for models that are given by name; set it on your own object"
        )
    settings = settings.sampled(spec.sampling)
    with ExitStack() as stack:
        model = _open(root, settings, stack)
        yield model, None if same else _open(sub, settings, stack)


def _open(model: str | Model | None, settings: Settings, stack: ExitStack) -> Model | None:
    if model is None:
        return None
    if not isinstance(model, str):
        if not isinstance(getattr(model, "name", None), str) or not callable(getattr(model, "complete", None)):
            raise ConfigError(
                f"{model!r:.80} is no model: give a text such as openai:gpt-4o-mini, or an object with `name` and `complete` "
                "(docs/add-a-model.md)"
            )
        return model
    choice = settings.choose(model)
    opened = open_model(choice.spec, choice.settings)
    close = getattr(opened, "close", None)
    if close is not None:
        stack.callback(close)
    return opened


def write_files(spec: RunSpec, outcome: Outcome, record: RunRecord, run_dir: RunDir, settings: Settings) -> None:
    """Everything but the journal; like it, these files hold no values of keys. summary.md comes last: with it the folder is complete."""
    keys, conclusion = secret_forms(spec.secrets), outcome.conclusion
    files = dict(spec.files(outcome, run_dir.run_id)) if spec.files is not None else {}
    if (
        spec.mask is not None
    ):  # the one page with the real values; all that programs read or that is given away stays masked
        page = files.get(REPORT)
        whole = summary_text(restored(outcome, spec.mask), record, commands_of(spec, spec.mask))
        files[REPORT] = spec.mask.restored(page) if page else whole
    for name, text in files.items():
        run_dir.write_text(name, keys.remove(text))
    log = WriteLog(run_dir.path, seal_key(settings.environ))
    log.write_patches()
    run_dir.write_record(record)
    try:
        output_hash = hash_value(conclusion.output)
    except (TypeError, ValueError):  # not plain data
        output_hash = None
    result = {
        "run_id": run_dir.run_id,
        "status": outcome.status.value,
        "annotator_kind": outcome.annotator,
        "output": conclusion.output,
        "output_hash": output_hash,
        "citations": [each.model_dump(mode="json") for each in conclusion.citations],
        "evidence_refs": [each.model_dump(mode="json") for each in conclusion.evidence],
        "gaps": list(conclusion.gaps),
        "error": None if record.error is None else record.error.model_dump(mode="json"),
    }
    run_dir.write_result(rewrite_value(result, keys.remove) if keys.spellings else result)
    run_dir.write_text(ANSWER, quiet(keys.remove(conclusion.text)) + "\n" if conclusion.text else "")
    page = summary_text(outcome, record, commands_of(spec, None), by_commands(log.read()))
    run_dir.write_text(SUMMARY, keys.remove(page))


def summary_text(
    outcome: Outcome, record: RunRecord, ran: Mapping[str, int | None], by_commands: Sequence[str] = ()
) -> str:
    """The run on one page."""
    usage, conclusion = record.runtime_ref.usage, outcome.conclusion
    tokens, text = usage.tokens_total, quiet(conclusion.text.strip())
    lines = [
        f"# {record.run_type}: {outcome.status.value}",
        "",
        f"- run: {record.run_id}",
        f"- model: {record.runtime_ref.model_name or 'none'}; judged by {outcome.annotator}",
        (
            f"- used: {plural(usage.iterations, 'turn')}, {plural(usage.tool_calls, 'tool call')}, "
            f"{plural(usage.llm_subcalls, 'sub-call')}, {plural(tokens, 'token')}, "
            f"{shown_cost(usage.cost)}, {outcome.elapsed_s:.1f} s"
        ),
        *(f"- ran: {line(each)}" for each in ran_lines(ran)),
        *([f"- changed by commands: {line(', '.join(by_commands))}"] if by_commands else []),
        "",
        (text if record.run_type in INVESTIGATIONS else quoted_headings(text)) or "(no output)",
    ]
    if conclusion.citations:
        lines += ["", "## Citations"]
        lines += [f"- {line(c.heading)} {line(c.snippet)}" for c in conclusion.citations]
    # The text of a report shows its own evidence and gaps.
    shown: Any = conclusion.output if conclusion.text and record.run_type in INVESTIGATIONS else None
    if conclusion.evidence and shown is None:
        lines += ["", "## Evidence"]
        lines += [f"- {e.kind.value} {line(e.ref)} ({e.excerpt_hash[:12]})" for e in conclusion.evidence]
    gaps = [gap for gap in conclusion.gaps if shown is None or gap not in shown["gaps"]]
    if gaps:
        lines += ["", "## Gaps", *(f"- {line(gap)}" for gap in gaps)]
    if outcome.error is not None:
        lines += ["", "## Error", f"{outcome.error.code.value} in {outcome.error.stage}: {line(outcome.error.message)}"]
    return "\n".join(lines) + "\n"
