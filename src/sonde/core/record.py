"""The fold of the event stream into the run record: nothing is in the record that is not in the stream.

`RecordFold.add(event)` for each event, `record()` at any time. Texts are clipped and lists bounded, with counts of what was left out, so
that a record stays below 1 MB whatever the run did. The types are in `run_record`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from sonde.core.canonical import clip
from sonde.core.deadline import rfc3339
from sonde.core.events import (
    ROOT,
    Cited,
    Event,
    HostReturned,
    ModelFailed,
    ModelReplied,
    Noted,
    RunEnded,
    RunStarted,
    StateChanged,
    StatusChanged,
    SubcallEnded,
    SubcallStarted,
    TurnStarted,
    WroteBack,
)
from sonde.core.run_record import (
    Artifacts,
    Counters,
    DatasetRef,
    InputRef,
    Metrics,
    OutputRef,
    RecordedError,
    RecordedUsage,
    RunRecord,
    RunState,
    RuntimeRef,
    RunType,
    SubcallMetadata,
    WritebackRef,
)
from sonde.core.status import RUN_TRANSITIONS, LoopState, RunStatus
from sonde.core.trajectory import Bounded, ReplStep, Trajectory, that_fit, written_bytes
from sonde.errors import ErrorCode

__all__ = ["RecordFold", "RunRecord", "moment", "percentile"]

LIST_LIMIT = 500
STATES_LIMIT = 2_000
SUBCALLS_BYTES = 120_000
CITATIONS_BYTES = 100_000
LIST_BYTES = 40_000
INLINE_OUTPUT_BYTES = 20_000


class RecordFold:
    """The record so far. Not safe for threads: the recorder adds one event at a time."""

    def __init__(self) -> None:
        self._start: RunStarted | None = None
        self._end: RunEnded | None = None
        self._written: WroteBack | None = None
        self._status = RunStatus.INITIALIZED
        self._error: dict[str, Any] | None = None
        self._usage: dict[str, Any] = RecordedUsage().model_dump()
        self._metrics: dict[str, Any] = Metrics().model_dump()
        self._unpriced = False
        self._tool_latencies: list[float] = []
        self._states: dict[str, list[str]] = {}
        self._subcalls: dict[str, dict[str, Any]] = {}
        self._trajectory = Trajectory()
        self._evidence: dict[str, None] = {}
        self._citations: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._notes: list[str] = []
        self._last_at = 0.0

    @property
    def started(self) -> bool:
        """Whether there is anything to record yet."""
        return self._start is not None

    @property
    def usage(self) -> RecordedUsage:
        """The counters so far."""
        return RecordedUsage.model_validate(self._usage)

    @property
    def cost(self) -> float | None:
        """What was paid, in US dollars; None when a reply came from a model whose price is not known."""
        return None if self._unpriced else self._usage["cost_usd"]

    @property
    def open_subcalls(self) -> list[str]:
        """The sub-calls that have begun and not ended, in the order of their beginnings."""
        return [session for session, known in self._subcalls.items() if "completed_at" not in known]

    def add(self, event: Event) -> None:
        """Take one event in."""
        self._last_at = max(self._last_at, event.at)
        self._trajectory.add(event)
        match event:
            case RunStarted():
                self._start = event
            case StatusChanged():
                self._status, self._error = RunStatus(event.status), event.error or self._error
            case RunEnded():
                self._ended(event)
            case WroteBack():
                self._wrote_back(event)
            case StateChanged():
                self._moved(event)
            case Cited():
                self._cite(event.citation)
            case Noted():
                self._notes.append(clip(event.text, 500))
            case _:
                self._count(event)

    def _count(self, event: Event) -> None:
        match event:
            case TurnStarted():
                self._usage["iterations"] += 1
            case HostReturned():
                self._host(event)
            case ModelReplied():
                self._replied(event)
            case ModelFailed():
                self._spend(event.tokens_in, 0, 0.0, event.latency_s)
                self._metrics["model_failures"] += 1
            case SubcallStarted():
                self._subcall(event)
            case SubcallEnded():
                self._subcall_ended(event)
            case _:
                pass

    def _host(self, event: HostReturned) -> None:
        self._evidence.update(dict.fromkeys(str(excerpt.get("ref", "")) for excerpt in event.excerpts))
        if event.tool:
            self._usage["tool_calls"] += 1
            self._tool_latencies.append(event.latency_s)

    def _replied(self, event: ModelReplied) -> None:
        self._spend(event.tokens_in, event.tokens_out, event.cost_usd or 0.0, event.latency_s)
        self._unpriced = self._unpriced or event.cost_usd is None
        self._metrics["model_calls"] += 1
        self._metrics["tokens_cached"] += event.cached_in

    def _spend(self, tokens_in: int, tokens_out: int, cost_usd: float, latency_s: float) -> None:
        self._usage["tokens_in"] += tokens_in
        self._usage["tokens_out"] += tokens_out
        self._usage["cost_usd"] += cost_usd
        self._metrics["model_latency_s"] += latency_s

    def _subcall(self, event: SubcallStarted) -> None:
        self._usage["llm_subcalls"] += 1
        self._usage["depth_reached"] = max(self._usage["depth_reached"], event.depth)
        self._subcalls[event.session] = {
            "call_id": event.call_id,
            "parent_call_id": event.parent_call_id,
            "depth": event.depth,
            "objective": clip(event.objective, 500),
            "input_ref_hash": event.input_ref_hash,
            "started_at": moment(event.at),
            "session": event.session,
            "mode": event.mode,
        }

    def _subcall_ended(self, event: SubcallEnded) -> None:
        known = self._subcalls.get(event.session)
        if known is not None:
            known |= {
                "completed_at": moment(event.at),
                "status": event.status,
                "summary": clip(event.summary, 500),
                "gaps": [clip(gap, 200) for gap in event.gaps[:10]],
                "evidence_count": len(event.evidence_refs),
                "tokens_in": event.tokens_in,
                "tokens_out": event.tokens_out,
                "cost_usd": event.cost_usd,
            }

    def _moved(self, event: StateChanged) -> None:
        path = self._states.setdefault(event.session, [LoopState.INITIALIZED.value])
        if event.state != LoopState.INITIALIZED:
            path.append(event.state)

    def _ended(self, event: RunEnded) -> None:
        self._end, self._status = event, RunStatus(event.status)
        for citation in _citations_of(event.output):
            self._cite(citation)

    def _cite(self, citation: dict[str, Any]) -> None:
        without_text = {name: value for name, value in citation.items() if name != "snippet"}
        key = tuple(str(citation.get(name, "")) for name in ("kind", "ref", "path", "start_line", "end_line"))
        self._citations.setdefault(key, without_text)

    def _wrote_back(self, event: WroteBack) -> None:
        self._written = event
        self._metrics["writeback_succeeded"] += event.succeeded
        self._metrics["writeback_failed"] += event.failed

    def status(self) -> RunStatus:
        """The run's status, final once it has ended; a write-back that failed makes a success partial until one succeeds."""
        if self._end is None and not RUN_TRANSITIONS[self._status]:
            return RunStatus.RUNNING
        unwritten = self._written is not None and self._written.status != "succeeded"
        return RunStatus.PARTIAL if unwritten and self._status is RunStatus.SUCCEEDED else self._status

    def record(self) -> RunRecord:
        """The record now. The run must have started."""
        start = self._start
        if start is None:
            raise ValueError("no run_started event was folded; there is nothing to record")
        input_ref = _input_ref(start)
        citations = that_fit(list(self._citations.values())[:LIST_LIMIT], CITATIONS_BYTES)
        notes, gaps = self._notes, self._end.gaps if self._end else []
        kept_notes, kept_gaps = _kept(notes), _kept(gaps)
        return RunRecord(
            schema_version=start.schema_version,
            run_id=start.run_id,
            run_type=cast("RunType", start.run_type),
            status=self.status(),
            started_at=moment(start.at),
            completed_at=moment(max(start.at, self._end.at)) if self._end else None,
            dataset_ref=DatasetRef.model_validate(start.dataset_ref),
            input_ref=input_ref,
            runtime_ref=self._runtime_ref(start),
            output_ref=self._output_ref(start),
            writeback_ref=self._writeback_ref(),
            error=self._recorded_error(),
            objective=clip(start.objective, 2_000),
            annotator_kind=self._end.annotator_kind if self._end else "CODE",
            gaps=kept_gaps,
            gaps_omitted=len(gaps) - len(kept_gaps),
            notes=kept_notes,
            notes_omitted=len(notes) - len(kept_notes),
            citations=citations,
            citations_omitted=len(self._citations) - len(citations),
            metrics=self.metrics(),
            state=self._state(start, input_ref),
        )

    def metrics(self) -> Metrics:
        """R116."""
        latencies = self._tool_latencies
        return Metrics.model_validate(
            self._metrics
            | {name: self._usage[name] for name in ("tool_calls", "depth_reached", "tokens_in", "tokens_out")}
            | {
                "total_latency_s": self._end.elapsed_s if self._end else self._last_at - self._first_at(),
                "tool_latency_s": math.fsum(latencies),
                "tool_latency_p95_s": percentile(latencies, 95),
            }
        )

    def _first_at(self) -> float:
        return self._start.at if self._start else self._last_at

    def _runtime_ref(self, start: RunStarted) -> RuntimeRef:
        states, steps = self._states.get(ROOT, []), self._trajectory.steps()
        subcalls = Bounded(SUBCALLS_BYTES)
        for session, known in self._subcalls.items():
            subcalls.add(known | {"state_trajectory": self._states.get(session, [])[:LIST_LIMIT]})
        return RuntimeRef(
            engine_version=start.engine_version,
            model_provider=start.provider,
            model_name=start.model,
            sub_model_name=start.sub_model,
            temperature=start.temperature,
            prompt_template_hash=start.prompt_template_hash,
            mode=start.mode,
            profile=start.profile,
            budget=start.budget,
            usage=self.usage,
            state_trajectory=states[:STATES_LIMIT],
            state_trajectory_omitted=max(0, len(states) - STATES_LIMIT),
            subcall_metadata=[SubcallMetadata.model_validate(item) for item in subcalls.items()],
            subcall_metadata_omitted=subcalls.omitted,
            repl_trajectory=[ReplStep.model_validate(step) for step in steps.items()],
            repl_trajectory_omitted=steps.omitted,
            scaffold=start.scaffold,
            layers=start.layers,
            unsafe="unsafe" in start.layers or bool(start.settings.get("unsafe", False)),
        )

    def _output_ref(self, start: RunStarted) -> OutputRef:
        end = self._end
        if end is None or (end.output is None and end.status not in ("succeeded", "partial")):
            return OutputRef()
        return OutputRef(
            artifact_type=end.output_type,
            artifact_path="result.json",
            schema_version=start.schema_version,
            sha256=end.output_hash or None,
        )

    def _writeback_ref(self) -> WritebackRef:
        written = self._written
        if written is None:
            return WritebackRef()
        return WritebackRef(
            phoenix_annotation_ids=written.annotation_ids[:LIST_LIMIT],
            writeback_status=written.status,
            annotation_names=sorted(set(written.names)),
            annotator_kinds=sorted(set(written.annotator_kinds)),
        )

    def _recorded_error(self) -> RecordedError | None:
        status = self.status()
        unwritten = self._written.error if self._written and self._written.status != "succeeded" else None
        error = (self._end.error if self._end else None) or self._error or unwritten
        if status not in (RunStatus.FAILED, RunStatus.PARTIAL, RunStatus.TERMINATED_BUDGET):
            return None
        if error is not None:
            return RecordedError.model_validate(error | {"message": clip(str(error.get("message", "")), 4_000)})
        return None if status is not RunStatus.FAILED else _unexplained()

    def _state(self, start: RunStarted, input_ref: InputRef) -> RunState:
        used, seen = self._usage, list(self._evidence)
        ids = that_fit([clip(ref, 200) for ref in seen[:LIST_LIMIT]], LIST_BYTES)
        return RunState(
            run_id=start.run_id,
            engine_type=cast("RunType", start.run_type),
            status=self.status(),
            input_ref=input_ref,
            budget=start.budget,
            counters=Counters(
                iteration=used["iterations"],
                depth=used["depth_reached"],
                tool_calls_total=used["tool_calls"],
                tokens_total=used["tokens_in"] + used["tokens_out"],
            ),
            artifacts=Artifacts(
                intermediate_evidence_ids=ids,
                intermediate_evidence_omitted=len(seen) - len(ids),
                final_output=self._final_output(),
            ),
        )

    def _final_output(self) -> Any:
        end = self._end
        if end is None or end.output is None:
            return None
        small = written_bytes(end.output) <= INLINE_OUTPUT_BYTES
        return end.output if small else {"artifact_path": "result.json", "sha256": end.output_hash}


def _kept(texts: Sequence[str]) -> list[str]:
    return that_fit([clip(text, 500) for text in texts[:LIST_LIMIT]], LIST_BYTES)


def _input_ref(start: RunStarted) -> InputRef:
    """What was asked for; of thousands of traces the first, for the journal has them all."""
    asked = InputRef.model_validate(start.input_ref)
    kept = that_fit(asked.trace_ids, LIST_BYTES)
    return asked.model_copy(update={"trace_ids": kept, "trace_ids_omitted": len(asked.trace_ids) - len(kept)})


def _citations_of(output: Any) -> list[dict[str, Any]]:
    listed: Any = cast("Any", output).get("citations") if isinstance(output, dict) else None
    found = cast("list[Any]", listed) if isinstance(listed, list) else []
    return [cast("dict[str, Any]", each) for each in found if isinstance(each, dict)]


def _unexplained() -> RecordedError:
    return RecordedError(
        code=ErrorCode.UNEXPECTED_RUNTIME_ERROR,
        message="the run ended as failed without naming an error",
        stage="run_engine",
        retryable=False,
    )


def moment(at: float) -> str:
    """Seconds since the epoch as records write them."""
    return rfc3339(datetime.fromtimestamp(at, UTC))


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that is at least as large as this share of them; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else 0.0
