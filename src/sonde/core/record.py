"""Folds the event stream into the run record; the record holds nothing that is not in the stream.

Call `RecordFold.add(event)` for each event and `record()` at any time. Texts are clipped and lists bounded, and what was left out is
counted, so a record stays below 1 MB whatever the run did. The types are in `run_record`.
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
    RunRecord,
    RunState,
    RuntimeRef,
    RunType,
    SubcallMetadata,
    WritebackRef,
)
from sonde.core.status import RUN_TRANSITIONS, LoopState, RunStatus
from sonde.core.trajectory import Bounded, ReplStep, Trajectory, that_fit, written_bytes
from sonde.core.usage import Usage, used_by
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
        self._metrics: dict[str, Any] = Metrics().model_dump()
        self.usage = Usage()
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
    def open_subcalls(self) -> list[str]:
        """The sub-calls that have started but not ended, in the order they started."""
        return [session for session, known in self._subcalls.items() if "completed_at" not in known]

    def add(self, event: Event) -> None:
        """Take one event in."""
        self._last_at = max(self._last_at, event.at)
        self._trajectory.add(event)
        self.usage += used_by(event)
        metrics = self._metrics
        match event:
            case RunStarted():
                self._start = event
            case StatusChanged():
                self._status, self._error = RunStatus(event.status), event.error or self._error
            case RunEnded():
                self._end, self._status = event, RunStatus(event.status)
                output: Any = event.output
                listed: Any = cast("dict[str, Any]", output).get("citations") if isinstance(output, dict) else None
                for citation in cast("list[Any]", listed) if isinstance(listed, list) else []:
                    if isinstance(citation, dict):
                        self._cite(cast("dict[str, Any]", citation))
            case WroteBack():
                self._written = event
                metrics["writeback_succeeded"] += event.succeeded
                metrics["writeback_failed"] += event.failed
            case StateChanged():
                path = self._states.setdefault(event.session, [LoopState.INITIALIZED.value])
                if event.state != LoopState.INITIALIZED:
                    path.append(event.state)
            case Cited():
                self._cite(event.citation)
            case Noted():
                self._notes.append(clip(event.text, 500))
            case HostReturned():
                self._evidence.update(dict.fromkeys(str(excerpt.get("ref", "")) for excerpt in event.excerpts))
                if event.tool:
                    self._tool_latencies.append(event.latency_s)
            case ModelReplied():
                metrics["model_latency_s"] += event.latency_s
                metrics["model_calls"] += 1
                metrics["tokens_cached"] += event.cached_in
            case ModelFailed():
                metrics["model_latency_s"] += event.latency_s
                metrics["model_failures"] += 1
            case SubcallStarted() | SubcallEnded():
                self._add_subcall(event)
            case _:
                pass

    def _add_subcall(self, event: SubcallStarted | SubcallEnded) -> None:
        if isinstance(event, SubcallStarted):
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
        elif event.session in self._subcalls:
            self._subcalls[event.session] |= {
                "completed_at": moment(event.at),
                "status": event.status,
                "summary": clip(event.summary, 500),
                "gaps": [clip(gap, 200) for gap in event.gaps[:10]],
                "evidence_count": len(event.evidence_refs),
                "tokens_in": event.tokens_in,
                "tokens_out": event.tokens_out,
                "cost_usd": event.cost_usd,
            }

    def _cite(self, citation: dict[str, Any]) -> None:
        without_text = {name: value for name, value in citation.items() if name != "snippet"}
        key = tuple(str(citation.get(name, "")) for name in ("kind", "ref", "path", "start_line", "end_line"))
        self._citations.setdefault(key, without_text)

    def status(self) -> RunStatus:
        """The run's status, final once it has ended. A failed write-back makes a success partial until one succeeds."""
        if self._end is None and not RUN_TRANSITIONS[self._status]:
            return RunStatus.RUNNING
        unwritten = self._written is not None and self._written.status != "succeeded"
        return RunStatus.PARTIAL if unwritten and self._status is RunStatus.SUCCEEDED else self._status

    def record(self) -> RunRecord:
        """The record now. The run must have started."""
        start, end, written = self._start, self._end, self._written
        if start is None:
            raise ValueError("no run_started event was folded; there is nothing to record")
        asked = InputRef.model_validate(start.input_ref)
        traces = that_fit(asked.trace_ids, LIST_BYTES)  # the first of thousands; the journal has them all
        input_ref = asked.model_copy(
            update={"trace_ids": traces, "trace_ids_omitted": len(asked.trace_ids) - len(traces)}
        )
        output_ref, writeback_ref = OutputRef(), WritebackRef()
        if end is not None and (end.output is not None or end.status in ("succeeded", "partial")):
            output_ref = OutputRef(
                artifact_type=end.output_type,
                artifact_path="result.json",
                schema_version=start.schema_version,
                sha256=end.output_hash or None,
            )
        if written is not None:
            writeback_ref = WritebackRef(
                phoenix_annotation_ids=written.annotation_ids[:LIST_LIMIT],
                writeback_status=written.status,
                annotation_names=sorted(set(written.names)),
                annotator_kinds=sorted(set(written.annotator_kinds)),
            )
        citations = that_fit(list(self._citations.values())[:LIST_LIMIT], CITATIONS_BYTES)
        notes, gaps = self._notes, end.gaps if end else []
        kept_notes, kept_gaps = _kept(notes), _kept(gaps)
        return RunRecord(
            schema_version=start.schema_version,
            run_id=start.run_id,
            run_type=cast("RunType", start.run_type),
            status=self.status(),
            started_at=moment(start.at),
            completed_at=moment(max(start.at, end.at)) if end else None,
            dataset_ref=DatasetRef.model_validate(start.dataset_ref),
            input_ref=input_ref,
            runtime_ref=self._runtime_ref(start),
            output_ref=output_ref,
            writeback_ref=writeback_ref,
            error=self._recorded_error(),
            objective=clip(start.objective, 2_000),
            annotator_kind=end.annotator_kind if end else "CODE",
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
        since = self._start.at if self._start else self._last_at
        return Metrics.model_validate(
            self._metrics
            | self.usage.model_dump(include={"tool_calls", "depth_reached", "tokens_in", "tokens_out"})
            | {
                "total_latency_s": self._end.elapsed_s if self._end else self._last_at - since,
                "tool_latency_s": math.fsum(latencies),
                "tool_latency_p95_s": percentile(latencies, 95),
            }
        )

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
            price_source=start.price_source or None,
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
            unproved=self._end is not None and self._end.unproved,
        )

    def _recorded_error(self) -> RecordedError | None:
        status = self.status()
        unwritten = self._written.error if self._written and self._written.status != "succeeded" else None
        error = (self._end.error if self._end else None) or self._error or unwritten
        if status not in (RunStatus.FAILED, RunStatus.PARTIAL, RunStatus.TERMINATED_BUDGET):
            return None
        if error is not None:
            return RecordedError.model_validate(error | {"message": clip(str(error.get("message", "")), 4_000)})
        if status is not RunStatus.FAILED:
            return None
        return RecordedError(
            code=ErrorCode.UNEXPECTED_RUNTIME_ERROR,
            message="the run ended as failed without naming an error",
            stage="run_engine",
            retryable=False,
        )

    def _state(self, start: RunStarted, input_ref: InputRef) -> RunState:
        used, seen, end = self.usage, list(self._evidence), self._end
        ids = that_fit([clip(ref, 200) for ref in seen[:LIST_LIMIT]], LIST_BYTES)
        output = end.output if end else None
        if end is not None and output is not None and written_bytes(output) > INLINE_OUTPUT_BYTES:
            output = {"artifact_path": "result.json", "sha256": end.output_hash}
        return RunState(
            run_id=start.run_id,
            engine_type=cast("RunType", start.run_type),
            status=self.status(),
            input_ref=input_ref,
            budget=start.budget,
            counters=Counters(
                iteration=used.iterations,
                depth=used.depth_reached,
                tool_calls_total=used.tool_calls,
                tokens_total=used.tokens_total,
            ),
            artifacts=Artifacts(
                intermediate_evidence_ids=ids,
                intermediate_evidence_omitted=len(seen) - len(ids),
                final_output=output,
            ),
        )


def _kept(texts: Sequence[str]) -> list[str]:
    return that_fit([clip(text, 500) for text in texts[:LIST_LIMIT]], LIST_BYTES)


def moment(at: float) -> str:
    """Seconds since the epoch as records write them."""
    return rfc3339(datetime.fromtimestamp(at, UTC))


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that is at least as large as this share of them; 0 for none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)] if ordered else 0.0
