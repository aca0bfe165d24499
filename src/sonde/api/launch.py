"""From settings to a finished run: models opened, folder made, journal open, loop run, files written.

The only place that puts the parts together; everything below gets values. A run folder is complete after every kind of ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, cast

from sonde.api.settings import Settings
from sonde.contexts.base import Context
from sonde.core.budget import Budget, shown_cost
from sonde.core.cancellation import Stop, heeding
from sonde.core.canonical import hash_value
from sonde.core.deadline import Clock, SystemClock
from sonde.core.events import Event, RunResumed, WroteBack
from sonde.core.markdown_safety import quiet
from sonde.core.plurals import plural
from sonde.core.record import RunRecord
from sonde.core.schema import load_schema
from sonde.errors import ConfigError, RunError
from sonde.models import open_model
from sonde.models.base import Model, suited_mode
from sonde.publish.otel import TraceSender, otlp_exporter
from sonde.runs.recorder import Recorder
from sonde.runs.recording import EarlierRuns, Recording
from sonde.runs.redaction import SecretForms, rewrite_value, secret_forms
from sonde.runs.rundir import RunDir, new_run_id
from sonde.runtime.engine import Engine
from sonde.runtime.functions import refuse_taken
from sonde.runtime.run import Ended, Run
from sonde.runtime.wiring import Mode, ModeChoice, Task, Wiring
from sonde.sandbox import Limits
from sonde.tools.registry import ToolRegistry

OnEvent = Callable[[Event], None]


def sonde_version() -> str:
    """The installed version."""
    try:
        return version("sonde-rlm")
    except PackageNotFoundError:
        return "0+unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be run. `recipe` is what a later resume needs to build the same context again; `files` makes more files for the folder."""

    engine: Engine
    objective: str
    context: Context
    model: str | Model | None = None
    sub_model: str | Model | None = None
    tools: Sequence[Callable[..., Any]] = ()
    budget: Budget | None = None
    knobs: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    schema: Mapping[str, Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    input_ref: Mapping[str, Any] = field(default_factory=dict[str, Any])
    profile: str = "analysis"
    backend: str | None = None
    """None: the settings' one."""
    mode: ModeChoice = "auto"
    unsafe: bool = False
    limits: Limits = field(default_factory=Limits)
    earlier: str = ""
    played: EarlierRuns = field(default_factory=EarlierRuns)
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])
    writeback: Callable[[Any, str, str], WroteBack | None] | None = None
    files: Callable[[Ended, str], Mapping[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How it is run: settings, where the folder goes, who watches, who may stop it (`cancel`: a Stop, or any event)."""

    settings: Settings
    runs_dir: Path | None = None
    on_event: OnEvent | None = None
    on_text: Callable[[str, str], None] | None = None
    cancel: threading.Event = field(default_factory=Stop)
    clock: Clock = field(default_factory=SystemClock)
    recording: Recording = field(default_factory=Recording)
    run_dir: RunDir | None = None
    in_memory: bool = False
    secrets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that has ended: its outcome, its record, its folder (None for a run in memory)."""

    ended: Ended
    record: RunRecord
    run_dir: RunDir | None
    annotator: Literal["LLM", "CODE"]


class FilesUnwritten(OSError):
    """The run has ended and its journal is whole, but other files of its folder could not be written. `finished` says so in its gaps."""

    def __init__(self, error: OSError, finished: Finished, run_dir: RunDir) -> None:
        super().__init__(error.errno, error.strerror, error.filename)
        gap = (
            f"the files of {run_dir.path} could not all be written: {error.strerror}; its journal is whole: make room, "
            f"then `sonde resume {run_dir.run_id}` writes them without asking a model"
        )
        conclusion = finished.ended.conclusion
        conclusion = replace(conclusion, gaps=(*conclusion.gaps, gap))
        self.finished = replace(finished, ended=replace(finished.ended, conclusion=conclusion))


def run_for_answer(job: Job, launch: Launch) -> Finished:
    """As `run_job`, but a disk that fills up at the very end costs a gap and not the answer, which was paid for."""
    try:
        return run_job(job, launch)
    except FilesUnwritten as unwritten:
        return unwritten.finished


def run_job(job: Job, launch: Launch) -> Finished:
    """Run a job to its end and leave a complete folder."""
    task = _task(job, launch)
    registry = ToolRegistry(job.context.tools(), job.engine.tools, clock=launch.clock, given=job.tools)
    refuse_taken(registry.given)
    with heeding(launch.cancel) as stop, opened_models(job, launch.settings) as models:
        job = replace(job, mode=mode_of(job, models[0]))
        finished = _run(job, launch, task, registry, models, stop=stop)
    if finished.ended.mistake is not None:
        raise finished.ended.mistake
    return finished


def _run(
    job: Job,
    launch: Launch,
    task: Task,
    registry: ToolRegistry,
    models: tuple[Model | None, Model | None],
    *,
    stop: Stop,
) -> Finished:
    run_dir = launch.run_dir
    if run_dir is None and not launch.in_memory:
        run_dir = RunDir.create(launch.runs_dir or launch.settings.runs_dir, new_run_id(launch.clock))
    journal = run_dir.journal(_secrets(launch)) if run_dir else None
    recording = launch.recording
    heard = recording.clock.hear if recording.clock is not None else None
    listeners = tuple(each for each in (heard, launch.on_event, tracer_of(launch.settings)) if each)
    recorder = Recorder(launch.clock, journal, listeners, recording if recording.resumed else None)
    run_id = run_dir.run_id if run_dir else new_run_id(launch.clock)
    wiring = _wiring(job, launch, task, registry=registry, recorder=recorder, models=models, run_id=run_id)
    wiring = replace(wiring, cancel=stop)
    try:
        if recording.resumed and recording.clock is not None:
            recorder.emit(RunResumed(elapsed_s=recording.clock.used, replayed=len(recording)))
        settings = {"version": sonde_version(), **job.recipe}
        ended = Run(wiring, settings=settings).execute()
        record = recorder.fold.record()
    finally:
        wiring.over.set()
        if journal is not None:
            journal.close()
    finished = Finished(
        ended=ended, record=record, run_dir=run_dir, annotator=cast("Literal['LLM', 'CODE']", ended.annotator)
    )
    if run_dir is not None:
        _write_files(job, finished, run_dir, secret_forms(_secrets(launch)))
    return finished


def _write_files(job: Job, finished: Finished, run_dir: RunDir, keys: SecretForms) -> None:
    """All files but the journal; like it, they do not hold the values of keys."""
    try:
        if job.files is not None:
            for name, text in job.files(finished.ended, run_dir.run_id).items():
                run_dir.write_text(name, keys.remove(text))
        write_artifacts(run_dir, finished.ended, finished.record, keys)
    except OSError as error:
        raise FilesUnwritten(error, finished, run_dir) from error


def _secrets(launch: Launch) -> list[str]:
    return [*launch.settings.secrets(), *launch.secrets]


def tracer_of(settings: Settings) -> OnEvent | None:
    """Who sends the run as an OpenTelemetry trace when it has ended, if anyone is to."""
    if settings.otel_endpoint is None:
        return None
    exporter = otlp_exporter(settings.otel_endpoint)
    return TraceSender(exporter, content=settings.otel_content, project=settings.otel_project)


def _task(job: Job, launch: Launch) -> Task:
    return Task(
        engine=job.engine,
        objective=job.objective,
        context=job.context,
        budget=_budget(job, launch.settings),
        schema=None if job.schema is None else load_schema(job.schema),
        params=job.params,
        variables=job.variables,
        input_ref=job.input_ref,
        dataset_ref={"dataset_id": job.engine.name, "dataset_hash": _fingerprint(job.context)},
        earlier=job.earlier,
        played=job.played,
    )


def _wiring(
    job: Job,
    launch: Launch,
    task: Task,
    *,
    registry: ToolRegistry,
    recorder: Recorder,
    models: tuple[Model | None, Model | None],
    run_id: str,
) -> Wiring:
    return Wiring(
        task=task,
        model=models[0],
        sub_model=models[1],
        registry=registry,
        recorder=recorder,
        recording=launch.recording,
        clock=launch.recording.clock or launch.clock,
        run_id=run_id,
        mode=mode_of(job, models[0]),
        profile=job.profile,
        backend=job.backend or launch.settings.backend,
        limits=job.limits,
        unsafe=job.unsafe,
        seed=task.budget.sampling_seed or 0,
        max_parallel=launch.settings.max_parallel,
        on_text=launch.on_text,
        writeback=job.writeback,
    )


def mode_of(job: Job, model: Model | None) -> Mode:
    """The form of replies: the one asked for, else what suits the model. Only an answer in words can be guided."""
    if job.mode == "guided" and not job.engine.answers:
        raise ConfigError(f"mode guided is for questions (sonde ask); {job.engine.name} takes code or actions")
    if job.mode != "auto":
        return job.mode
    suits = suited_mode(model)
    return "actions" if suits == "guided" and not job.engine.answers else suits


def _fingerprint(context: Context) -> str:
    try:
        return context.fingerprint()
    except RunError:
        return ""  # the data cannot be reached: the run itself meets that at once, and its record says so


def _budget(job: Job, settings: Settings) -> Budget:
    if job.budget is not None:
        return job.budget.override(job.engine.maxima, **job.budget.as_dict()).override(job.engine.maxima, **job.knobs)
    return settings.budget(job.engine.budget, job.engine.maxima).override(job.engine.maxima, **job.knobs)


@contextmanager
def opened_models(job: Job, settings: Settings) -> Generator[tuple[Model | None, Model | None]]:
    """The root's model and the sub-calls' (None: the same one). Equal ones are opened once; what we opened we close."""
    root = job.model if job.model is not None else settings.model
    sub = job.sub_model if job.sub_model is not None else settings.sub_model
    if root is None and sub is not None:
        raise ConfigError("a sub-model is set but no model: pass --model as well")
    with ExitStack() as stack:
        model = _open(root, settings, stack)
        yield model, None if _same(root, sub, settings) else _open(sub, settings, stack)


def _same(root: str | Model | None, sub: str | Model | None, settings: Settings) -> bool:
    if isinstance(root, str) and isinstance(sub, str):
        return settings.choose(root) == settings.choose(sub)
    return root is sub


def _open(model: str | Model | None, settings: Settings, stack: ExitStack) -> Model | None:
    if model is None or not isinstance(model, str):
        return model
    choice = settings.choose(model)
    opened = open_model(choice.spec, choice.settings)
    close = getattr(opened, "close", None)
    if close is not None:
        stack.callback(close)
    return opened


def write_artifacts(run_dir: RunDir, ended: Ended, record: RunRecord, keys: SecretForms) -> None:
    """run_record.json, result.json, answer.md and, as the sign that all is there, summary.md."""
    conclusion = ended.conclusion
    run_dir.write_record(record)
    result = {
        "run_id": run_dir.run_id,
        "status": ended.status.value,
        "annotator_kind": ended.annotator,
        "output": conclusion.output,
        "output_hash": hash_value(conclusion.output) if _plain(conclusion.output) else None,
        "citations": [each.model_dump(mode="json") for each in conclusion.citations],
        "evidence_refs": [each.model_dump(mode="json") for each in conclusion.evidence],
        "gaps": list(conclusion.gaps),
        "error": None if record.error is None else record.error.model_dump(mode="json"),
    }
    run_dir.write_result(rewrite_value(result, keys.remove) if keys.spellings else result)
    run_dir.write_answer(quiet(keys.remove(conclusion.text)) + "\n" if conclusion.text else "")
    run_dir.write_summary(quiet(keys.remove(summary_text(ended, record))))


def _plain(value: Any) -> bool:
    try:
        hash_value(value)
    except (TypeError, ValueError):
        return False
    return True


def summary_text(ended: Ended, record: RunRecord) -> str:
    """The run on one page."""
    usage = record.runtime_ref.usage
    tokens = usage.tokens_in + usage.tokens_out
    lines = [
        f"# {record.run_type}: {ended.status.value}",
        "",
        f"- run: {record.run_id}",
        f"- model: {record.runtime_ref.model_name or 'none'}; judged by {ended.annotator}",
        (
            f"- used: {plural(usage.iterations, 'turn')}, {plural(usage.tool_calls, 'tool call')}, "
            f"{plural(usage.llm_subcalls, 'sub-call')}, {plural(tokens, 'token')}, "
            f"{shown_cost(usage.cost_usd, tokens)}, {ended.elapsed_s:.1f} s"
        ),
        "",
        ended.conclusion.text.strip() or "(no output)",
    ]
    if ended.conclusion.citations:
        lines += ["", "## Citations"]
        lines += [f"- {c.place} {c.snippet}" for c in ended.conclusion.citations]
    if ended.conclusion.evidence:
        lines += ["", "## Evidence"]
        lines += [f"- {e.kind.value} {e.ref} ({e.excerpt_hash[:12]})" for e in ended.conclusion.evidence]
    if ended.conclusion.gaps:
        lines += ["", "## Gaps", *(f"- {gap}" for gap in ended.conclusion.gaps)]
    if ended.error is not None:
        lines += ["", "## Error", f"{ended.error.code.value} in {ended.error.stage}: {ended.error.message}"]
    return "\n".join(lines) + "\n"
