"""One run: what to do (`RunSpec`), and the way from the first event to the last (`Run`): pre-filter, root session, status.

Whatever happens, the stream has an end: success, partial, failure, a violation, an error of ours, or the user's Ctrl-C.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sonde.contexts import Context
from sonde.core.budget import Budget, Scope
from sonde.core.calls import CallRef, shown_text
from sonde.core.cancellation import Stop
from sonde.core.canonical import hash_value, jsonable
from sonde.core.deadline import Clock, Deadline, Overrun, RepeatTime, SystemClock, guarded
from sonde.core.events import (
    JOURNAL_FORMAT,
    ROOT,
    Event,
    ModelReplied,
    Noted,
    RunEnded,
    RunStarted,
    StatusChanged,
    SubcallEnded,
    WroteBack,
)
from sonde.core.evidence import EvidenceLog, Excerpt
from sonde.core.status import RUN_TRANSITIONS, RunStatus, advance
from sonde.errors import (
    BudgetExceeded,
    Cancelled,
    ModelCallFailed,
    RunError,
    ToolCallFailed,
    ToolFault,
    UnexpectedRuntimeError,
    UsageError,
    WritebackFailed,
    by_user,
)
from sonde.models.base import Model, output_limit, own_price, price_source, sampling_of
from sonde.runs.recorder import Recorder
from sonde.runs.recording import Diverged, EarlierRuns, Recording
from sonde.runs.rundir import ARTIFACTS, RunDir
from sonde.runtime.engine import NO_PREFILTER, Conclusion, Engine, Gathered, Prefilter, Prover
from sonde.runtime.finish import Outcome
from sonde.runtime.prompts import template_hash
from sonde.runtime.session import Session
from sonde.sandbox import Limits
from sonde.tools import ToolRegistry

if TYPE_CHECKING:
    from sonde.core.mask import Mask

WHOLE_CHARS, FOLLOWING_CHARS = 32_000, 6_000
"""How much of small data the first prompt shows whole: about 8,000 tokens, and less where an earlier run has looked at it."""
NO_MODEL = "no model is set: pass --model or set SONDE_MODEL, for example to openai:gpt-4o-mini with OPENAI_API_KEY set"

Mode = Literal["code", "actions", "guided"]
ModeChoice = Mode | Literal["auto"]
OnEvent = Callable[[Event], None]
OnText = Callable[[str, str], None]
E = TypeVar("E", bound=Event)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What to run, where its files go, and who watches. Everything is decided here except the models, which are opened at the start."""

    engine: Engine
    objective: str
    context: Context
    budget: Budget
    model: str | Model | None = None
    """None: the engine's fallback answers."""
    sub_model: str | Model | None = None
    """None: the root's model answers sub-calls too."""
    tools: Sequence[Callable[..., Any]] = ()
    schema: Mapping[str, Any] | None = None
    citations: bool = True
    """False: a final value needs none; see `Engine.cites`."""
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    input_ref: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dataset: str = ""
    """What the record calls the data; "": the engine's name."""
    mode: ModeChoice = "auto"
    profile: str = "analysis"
    packages: tuple[str, ...] = ()
    """Installed packages that code may import besides."""
    backend: str = "kernel"
    limits: Limits = field(default_factory=Limits)
    unsafe: bool = False
    without: str = ""
    """The layer that the caller has given up: "landlock", or none."""
    sampling: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the caller sets of effort, reply length, temperature and top_p, for models given by name."""
    max_parallel: int = 16
    max_journal_bytes: int = 256 << 20
    notes: Sequence[str] = ()
    """What the reader of the run must know from the start."""
    recipe: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What a later resume needs to build the same run again."""

    runs_dir: Path = ARTIFACTS
    run_dir: RunDir | None = None
    """A folder that exists already; None: a new one in `runs_dir`, unless the run is in memory."""
    in_memory: bool = False
    own: bool = True
    """Whether the folder gets the user's seal: what the run reads was named by them, not by a stranger's recording."""
    needs_files: bool = False
    """Whether a full disk at the very end is an error. Otherwise it costs a gap, not the answer, which was paid for."""
    secrets: Sequence[str] = ()
    mask: Mask | None = None
    """Hides people's data. The context, the objective and the variables are masked already."""
    restore: bool = True
    """Whether the result of a masked run has the real values."""
    on_event: OnEvent | None = None
    on_text: OnText | None = None
    cancel: threading.Event = field(default_factory=Stop)
    clock: Clock = field(default_factory=SystemClock)
    began: float | None = None
    """When the run's time began on the clock, if it was before the run is executed; a recording has its own time."""
    writeback: Callable[[Any, str, str], WroteBack | None] | None = None
    files: Callable[[Outcome, str], Mapping[str, str]] | None = None
    """Makes more files for the folder, from how the run ended and its id."""

    earlier: str = ""
    played: EarlierRuns = field(default_factory=EarlierRuns)
    recording: Recording = field(default_factory=Recording)
    """The run to play again, as far as it goes."""
    again: RepeatTime | None = None
    """How long recorded code may run again, in real time."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One invocation: what all its sessions share, and its execution. A child session gets a copy with an evidence log of its own."""

    spec: RunSpec
    model: Model | None
    sub_model: Model | None
    registry: ToolRegistry
    recorder: Recorder
    run_id: str
    version: str = ""
    dataset_hash: str = ""
    cancel: Stop = field(default_factory=Stop)
    log: EvidenceLog = field(default_factory=EvidenceLog)
    over: threading.Event = field(default_factory=threading.Event)
    noted: set[str] = field(default_factory=set[str])
    sent: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    """The texts of each session's last request, without the values of keys."""
    replies: dict[str, ModelReplied] = field(default_factory=dict[str, ModelReplied])
    """What sub-calls replied to plain prompts, by the prompt's hash."""
    status: RunStatus = RunStatus.INITIALIZED

    @property
    def clock(self) -> Clock:
        """The clock of the recording, if it has one, else the real one."""
        return self.spec.recording.clock or self.spec.clock

    @property
    def cites(self) -> bool:
        """Whether a final value must be proved."""
        return self.spec.citations and self.spec.engine.cites

    @property
    def format(self) -> int:
        """What this run records: a recorded one as it did then, so that the steps of its loop keep their numbers."""
        then = self.spec.recording.at(RunStarted)
        return JOURNAL_FORMAT if then is None else then.format

    @property
    def described(self) -> str:
        """What the context holds, for the prompt. A recorded run over the same data says it in the words of then: a source of traces may
        hold others by now, and they are none of this run's business.
        """
        then = self.spec.recording.at(RunStarted)
        if then is not None and self.dataset_hash and then.dataset_ref.get("dataset_hash") == self.dataset_hash:
            return then.context
        return self.spec.context.describe()

    @property
    def seed(self) -> int:
        """What randomness of this run starts from."""
        return self.spec.budget.sampling_seed or 0

    @property
    def prover(self) -> Prover:
        """Proves pointers against this run's log, its record, and the context as it is now."""
        return Prover(self.log, self.reread, self.recorder.returned, blanks=self.spec.engine.scripted)

    def reread(self, excerpt: Excerpt) -> str | None:
        """The text behind an excerpt: from the record for what a user's tool returned, otherwise from the context."""
        if CallRef.read(excerpt.ref) is None:
            try:
                with guarded("reading the citations again"):
                    return self.spec.context.reread(excerpt)
            except Overrun as late:
                self.note(late.message)
                return None
        event = self.recorder.returned(excerpt.ref)
        return None if event is None else shown_text(event.result)

    def emit(self, event: E) -> E:
        """Put an event on the stream. Use what comes back: it is what was recorded. After the end nobody speaks."""
        if self.over.is_set():
            raise Cancelled("the run is over", limit="cancelled")
        return self.recorder.emit(event)

    def note(self, text: str) -> None:
        """Tell the reader of the run something, once."""
        if text not in self.noted:
            self.noted.add(text)
            self.emit(Noted(text=text, level="warning"))

    def check_cancel(self) -> None:
        """Raise when the user has stopped the run, or when it has filled its share of the disk."""
        if self.cancel.is_set():
            raise by_user()
        self.recorder.check_room()

    def execute(self) -> Outcome:
        """Run to the end. Raises only for a replay that takes another path."""
        engine = self.spec.engine
        deadline = Deadline(self.clock, self.spec.budget.max_wall_time_sec, stop=self.cancel)
        if self.spec.began is not None and not self.spec.recording.events:
            deadline.started = self.spec.began
        self.emit(self._started())
        self._advance(RunStatus.RUNNING)
        left = self.spec.without
        agreed = [f"this run did without {left} (--without {left}); all other layers were on"] if left else []
        for text in (*self.spec.notes, *agreed):
            self.note(text)
        mistake: UsageError | None = None
        try:
            with deadline.in_force():
                prefilter = NO_PREFILTER
                if engine.prefilter is not None:
                    try:
                        with guarded("the first look at the data"):
                            prefilter = engine.prefilter(self._gathered(prefilter, ""))
                    except ToolFault as fault:  # no model is there yet that could try another way
                        raise ToolCallFailed(fault.message) from None
                    self.log.note(prefilter.excerpts, shown=True)
                if self.model is None:
                    spoken = engine.fallback(self._gathered(prefilter, NO_MODEL))
                    gaps = tuple(dict.fromkeys((*spoken.gaps, *prefilter.gaps, NO_MODEL)))
                    outcome = Outcome(
                        status=RunStatus.PARTIAL if spoken.output is not None else RunStatus.FAILED,
                        conclusion=replace(spoken, gaps=gaps),
                        annotator=spoken.judge(fallback=True),
                        error=None if spoken.output is not None else UnexpectedRuntimeError(NO_MODEL),
                    )
                else:
                    scope = Scope(self.spec.budget, deadline)
                    outcome = Session(self, scope, ROOT, prefilter=prefilter).run()
                if (
                    engine.fails_without_reply
                    and isinstance(outcome.error, ModelCallFailed)
                    and not self.recorder.fold.metrics().model_calls
                ):
                    outcome = _failed(outcome.error)
        except Diverged:
            raise
        except UsageError as error:
            kept = RunError(error.message, stage=error.stage)
            kept.code = error.code
            mistake, outcome = error, _failed(kept)
        except RunError as error:
            outcome = _failed(error)
        except KeyboardInterrupt:
            outcome = _failed(UnexpectedRuntimeError("cancelled by the user before there was anything to keep"))
        except Exception as error:  # noqa: BLE001  # the top of a run: a fault of ours must end in the record, not in silence
            outcome = _failed(UnexpectedRuntimeError(f"{type(error).__name__}: {error}"))
        if agreed:
            told = replace(outcome.conclusion, gaps=(*outcome.conclusion.gaps, *agreed))
            outcome = replace(outcome, conclusion=told)
        return replace(self._end(outcome, deadline), mistake=mistake)

    def _gathered(self, prefilter: Prefilter, reason: str) -> Gathered:
        return Gathered(
            objective=self.spec.objective,
            context=self.spec.context,
            registry=self.registry,
            prover=self.prover,
            prefilter=prefilter,
            room=self._room(),
            schema=self.spec.schema,
            params=self.spec.params,
            reason=reason,
        )

    def _room(self) -> int:
        """How many characters of the data the first prompt may show: never more than about a quarter of the tokens."""
        if self.spec.mode == "guided" or self.spec.profile == "assign-only":
            return 0
        most = FOLLOWING_CHARS if self.spec.earlier else WHOLE_CHARS
        return min(most, self.spec.budget.max_tokens_total or most)

    def _advance(self, status: RunStatus, error: RunError | None = None) -> None:
        self.status = advance(RUN_TRANSITIONS, self.status, status)
        self.emit(StatusChanged(status=status.value, error=None if error is None else error.row()))

    def _end(self, outcome: Outcome, deadline: Deadline) -> Outcome:
        error = None if outcome.error is None else outcome.error.row()
        # Sub-calls that were left behind: their model did not hear of the stop.
        status = "terminated_budget" if isinstance(outcome.error, BudgetExceeded) else "failed"
        summary = "the run has ended before it" if outcome.error is None else outcome.error.message
        for path in reversed(self.recorder.fold.open_subcalls):
            self.emit(SubcallEnded(session=path, call_id=path, status=status, summary=summary, error=error))
        # Annotations are written before the end is on the stream. The end itself does not mention them, so that a later
        # write-back can mend the record.
        unwritten: WritebackFailed | None = None
        if self.spec.writeback is not None and outcome.conclusion.output is not None:
            wrote = self.spec.writeback(outcome.conclusion.output, outcome.annotator, self.run_id)
            if wrote is not None:
                self.emit(wrote)
                if wrote.status != "succeeded":
                    unwritten = WritebackFailed((wrote.error or {}).get("message", "failed"))
        if isinstance(outcome.error, BudgetExceeded):
            self._advance(RunStatus.TERMINATED_BUDGET, outcome.error)
        self._advance(outcome.status, outcome.error)
        output = jsonable(outcome.conclusion.output)
        outcome = replace(outcome, elapsed_s=deadline.elapsed())
        self.emit(
            RunEnded(
                status=self.status.value,
                output=output,
                output_type=self.spec.engine.output_type if output is not None else None,
                output_hash=hash_value(output),
                annotator_kind=outcome.annotator,
                gaps=list(outcome.conclusion.gaps),
                error=error,
                elapsed_s=round(outcome.elapsed_s, 3),
                unproved=outcome.conclusion.unproved,
            )
        )
        if unwritten is None:
            return outcome
        return replace(  # a success whose annotations are not written is partial; writing them can be tried again
            outcome,
            status=RunStatus.PARTIAL if outcome.status is RunStatus.SUCCEEDED else outcome.status,
            conclusion=replace(outcome.conclusion, gaps=(*outcome.conclusion.gaps, unwritten.message)),
            error=outcome.error or unwritten,
        )

    def _started(self) -> RunStarted:
        spec, model = self.spec, self.model.name if self.model else None
        # What the record says about the sandbox, where it is not the usual one.
        interpreter = [] if spec.backend == "kernel" else [f"backend: {spec.backend}", "NO KERNEL LAYERS"]
        packages = {"packages": list(spec.packages)} if spec.packages else {}
        sent = sampling_of(self.model, thinks=spec.engine.thinks)
        then = spec.recording.at(RunStarted)
        dataset = then.dataset_ref.get("dataset_id") if then else spec.dataset or spec.engine.name
        return RunStarted(
            run_id=self.run_id,
            run_type=spec.engine.run_type,
            objective=spec.objective,
            engine_version=self.version,
            model=model,
            sub_model=self.sub_model.name if self.sub_model else model,
            provider=(model or "none:").partition(":")[0],
            temperature=float(sent.get("temperature", 0.0)),
            prompt_template_hash=template_hash(spec.engine),
            mode=spec.mode,
            profile=spec.profile,
            budget=spec.budget.as_dict(),
            seed=self.seed,
            input_ref=dict(spec.input_ref),
            dataset_ref={"dataset_id": dataset, "dataset_hash": self.dataset_hash},
            settings={"version": self.version, **packages, **spec.recipe},
            variables=sorted(spec.variables),
            context=self.described,
            sampling={**sent, "max_output_tokens": output_limit(self.model, spec.engine.max_output_tokens)}
            if model
            else {},
            price_source=then.price_source if then else price_source(model, own_price(self.model)) if model else "",
            format=self.format,
            layers=[
                *(["unsafe"] if spec.unsafe else []),
                *([f"without {spec.without}"] if spec.without else []),
                *interpreter,
            ],
        )


def _failed(error: RunError) -> Outcome:
    return Outcome(
        status=RunStatus.FAILED,
        conclusion=Conclusion(output=None, gaps=(error.message,)),
        annotator="CODE",
        error=error,
    )
