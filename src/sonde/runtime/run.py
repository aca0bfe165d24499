"""One run from its first event to its last: pre-filter, root session, status.

Whatever happens there is an end on the stream: success, partial, failure, a violation, an error of ours, or the user's Ctrl-C.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sonde.core.budget import Scope
from sonde.core.canonical import hash_value, jsonable
from sonde.core.deadline import Deadline
from sonde.core.events import ROOT, ModelReplied, RunEnded, RunStarted, StatusChanged, SubcallEnded
from sonde.core.status import RUN_TRANSITIONS, RunStatus, advance
from sonde.errors import (
    BudgetExceeded,
    ModelCallFailed,
    RunError,
    UnexpectedRuntimeError,
    UsageError,
    WritebackFailed,
)
from sonde.runs.recording import Diverged
from sonde.runtime.engine import Conclusion, Gathered, Prefilter
from sonde.runtime.finish import Outcome
from sonde.runtime.prompts import template_hash
from sonde.runtime.session import Session
from sonde.runtime.wiring import Wiring

NO_MODEL = "no model is set: pass --model, for example --model openai:gpt-4o-mini with OPENAI_API_KEY set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended; the record is the recorder's fold. `mistake` is the caller's, found too late to run nothing."""

    status: RunStatus
    conclusion: Conclusion
    annotator: str
    error: RunError | None
    elapsed_s: float
    mistake: UsageError | None = None


class Run:
    """One invocation."""

    def __init__(self, wiring: Wiring, *, settings: dict[str, Any] | None = None) -> None:
        self.wiring = wiring
        self.task = wiring.task
        self.settings = settings or {}
        self.status = RunStatus.INITIALIZED
        self.deadline = Deadline(wiring.clock, self.task.budget.max_wall_time_sec, stop=wiring.cancel)
        self.scope = Scope(self.task.budget, self.deadline, pooled_turns=self.task.engine.pooled_turns)
        self._replied = False

    def execute(self) -> Ended:
        """Run to the end. Only a replay that takes another path raises."""
        self.wiring.emit(self._started())
        self._advance(RunStatus.RUNNING)
        mistake: UsageError | None = None
        try:
            outcome = self._outcome()
        except Diverged:
            raise
        except UsageError as error:
            mistake, outcome = error, _failed(UnexpectedRuntimeError(error.message, stage=error.stage))
        except RunError as error:
            outcome = _failed(error)
        except KeyboardInterrupt:
            outcome = _failed(UnexpectedRuntimeError("cancelled by the user before there was anything to keep"))
        except Exception as error:  # noqa: BLE001  # the top of a run: a fault of ours must end in the record, not in silence
            outcome = _failed(UnexpectedRuntimeError(f"{type(error).__name__}: {error}"))
        return replace(self._end(outcome), mistake=mistake)

    def _outcome(self) -> Outcome:
        prefilter = self._prefilter()
        if self.wiring.model is None:
            return self._without_model(prefilter)
        self.wiring.recorder.listen(self._watch)
        outcome = Session(self.wiring, self.scope, ROOT, prefilter=prefilter).run()
        silent = isinstance(outcome.error, ModelCallFailed) and not self._replied
        if silent and self.task.engine.fails_without_reply and outcome.error is not None:
            return _failed(outcome.error)
        return outcome

    def _watch(self, event: Any) -> None:
        self._replied = self._replied or isinstance(event, ModelReplied)

    def _prefilter(self) -> Prefilter:
        if self.task.engine.prefilter is None:
            return Prefilter()
        prefilter = self.task.engine.prefilter(self._gathered(Prefilter(), ""))
        self.wiring.log.note(prefilter.excerpts)
        return prefilter

    def _without_model(self, prefilter: Prefilter) -> Outcome:
        spoken = self.task.engine.fallback(self._gathered(prefilter, NO_MODEL))
        gaps = tuple(dict.fromkeys((*spoken.gaps, *prefilter.gaps, NO_MODEL)))
        return Outcome(
            status=RunStatus.PARTIAL if spoken.output is not None else RunStatus.FAILED,
            conclusion=replace(spoken, gaps=gaps),
            annotator="CODE",
            error=None if spoken.output is not None else UnexpectedRuntimeError(NO_MODEL),
        )

    def _gathered(self, prefilter: Prefilter, reason: str) -> Gathered:
        return Gathered(
            objective=self.task.objective,
            context=self.task.context,
            registry=self.wiring.registry,
            prover=self.wiring.prover,
            prefilter=prefilter,
            schema=self.task.schema,
            params=self.task.params,
            reason=reason,
        )

    def _advance(self, status: RunStatus, error: RunError | None = None) -> None:
        self.status = advance(RUN_TRANSITIONS, self.status, status)
        self.wiring.emit(StatusChanged(status=status.value, error=None if error is None else error.row()))

    def _end(self, outcome: Outcome) -> Ended:
        self._end_subcalls(outcome.error)
        unwritten = self._write_back(outcome)
        if isinstance(outcome.error, BudgetExceeded):
            self._advance(RunStatus.TERMINATED_BUDGET, outcome.error)
        self._advance(outcome.status, outcome.error)
        output = jsonable(outcome.conclusion.output)
        elapsed = self.deadline.elapsed()
        self.wiring.emit(
            RunEnded(
                status=self.status.value,
                output=output,
                output_type=self.task.engine.output_type if output is not None else None,
                output_hash=hash_value(output),
                annotator_kind=outcome.annotator,
                gaps=list(outcome.conclusion.gaps),
                error=None if outcome.error is None else outcome.error.row(),
                elapsed_s=round(elapsed, 3),
            )
        )
        outcome = _without_writeback(outcome, unwritten) if unwritten is not None else outcome
        return Ended(
            status=outcome.status,
            conclusion=outcome.conclusion,
            annotator=outcome.annotator,
            error=outcome.error,
            elapsed_s=elapsed,
        )

    def _end_subcalls(self, error: RunError | None) -> None:
        """Tell the end of those that are left behind: calls of a model that did not hear of the stop."""
        status = "terminated_budget" if isinstance(error, BudgetExceeded) else "failed"
        summary = "the run has ended before it" if error is None else error.message
        row = None if error is None else error.row()
        for path in reversed(self.wiring.recorder.fold.open_subcalls):
            self.wiring.emit(SubcallEnded(session=path, call_id=path, status=status, summary=summary, error=row))

    def _write_back(self, outcome: Outcome) -> WritebackFailed | None:
        """Write annotations before the end is told. The end itself is told without it, so that a later write-back mends the record."""
        if self.wiring.writeback is None or outcome.conclusion.output is None:
            return None
        wrote = self.wiring.writeback(outcome.conclusion.output, outcome.annotator, self.wiring.run_id)
        if wrote is None:
            return None
        self.wiring.emit(wrote)
        return None if wrote.status == "succeeded" else WritebackFailed((wrote.error or {}).get("message", "failed"))

    def _started(self) -> RunStarted:
        wiring, task = self.wiring, self.task
        model = wiring.model.name if wiring.model else None
        return RunStarted(
            run_id=wiring.run_id,
            run_type=task.engine.run_type,
            objective=task.objective,
            engine_version=self.settings.get("version", ""),
            model=model,
            sub_model=wiring.sub_model.name if wiring.sub_model else model,
            provider=(model or "none:").partition(":")[0],
            temperature=0.0,
            prompt_template_hash=template_hash(task.engine),
            mode=wiring.mode,
            profile=wiring.profile,
            budget=task.budget.as_dict(),
            seed=wiring.seed,
            input_ref=dict(task.input_ref),
            dataset_ref=dict(task.dataset_ref),
            settings=self.settings,
            variables=sorted(task.variables),
            context=task.context.describe(),
            layers=wiring.layers,
        )


def _without_writeback(outcome: Outcome, failed: WritebackFailed) -> Outcome:
    """A success whose annotations are not written is partial, and may be tried again."""
    return replace(
        outcome,
        status=RunStatus.PARTIAL if outcome.status is RunStatus.SUCCEEDED else outcome.status,
        conclusion=replace(outcome.conclusion, gaps=(*outcome.conclusion.gaps, failed.message)),
        error=outcome.error or failed,
    )


def _failed(error: RunError) -> Outcome:
    return Outcome(
        status=RunStatus.FAILED,
        conclusion=Conclusion(output=None, gaps=(error.message,)),
        annotator="CODE",
        error=error,
    )
