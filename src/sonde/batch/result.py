"""The result of one item: the line that results.jsonl, the report and the issues are made of.

Everything in it is read from the run's own record and output; the journal stays the truth. Texts are clipped: a line has a few hundred
bytes and ten thousand of them fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from sonde.batch.manifest import Item
from sonde.contexts.traces.rules import NO_FAILURE
from sonde.core.canonical import plural
from sonde.core.events import RunEnded
from sonde.core.run_record import RunRecord
from sonde.engines.pages import VERDICTS
from sonde.engines.submission import fields_of

Status = Literal["succeeded", "partial", "failed", "refused"]
CLIP = 300
FINDINGS = 20


class FoundFailure(msgspec.Struct, frozen=True, kw_only=True):
    """One finding of an RCA report: what, where in the traced system, and the words of its evidence."""

    label: str
    component: str = ""
    words: str = ""
    span_id: str = ""
    first: bool = False


class ItemResult(msgspec.Struct, frozen=True, kw_only=True):
    """One finished item. `refused`: it could not be started (a missing file, an unknown trace), so it has no run."""

    id: str
    key: str
    engine: str
    status: Status
    judge: str = "CODE"
    code: str | None = None
    message: str = ""
    retryable: bool = False
    label: str | None = None
    confidence: float | None = None
    summary: str = ""
    cost_usd: float = 0.0
    unpriced: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    model_calls: int = 0
    turns: int = 0
    latency_s: float = 0.0
    started_at: str = ""
    resumed: bool = False
    attempt: int = 1
    trace_ids: list[str] = []
    seen_at: str | None = None
    findings: list[FoundFailure] = []
    verdicts: dict[str, str] = {}
    """The verdict on each control, in the order of the report; only of compliance items."""

    @property
    def failed(self) -> bool:
        """Whether it has no output."""
        return self.status in ("failed", "refused")


class Component(msgspec.Struct, frozen=True, kw_only=True):
    """The span behind a finding, as far as issues need it."""

    name: str = ""
    message: str = ""
    start: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run's record and its last event."""

    record: RunRecord
    ended: RunEnded


Spans = Callable[[str], Mapping[str, Component]]


def run_path(result: ItemResult) -> str:
    """Where the summary of an item's run is, from the batch folder."""
    again = "" if result.attempt == 1 else f".{result.attempt}"
    return f"items/{result.key}{again}/summary.md"


def refused(item: Item, message: str) -> ItemResult:
    """An item that could not be started."""
    return ItemResult(id=item.id, key=item.key, engine=item.engine, status="refused", message=_words(message))


def given_up(item: Item, message: str) -> ItemResult:
    """An item that cannot be finished: it kills its worker, or meets a fault of ours."""
    code = "UNEXPECTED_RUNTIME_ERROR"
    return ItemResult(id=item.id, key=item.key, engine=item.engine, status="failed", code=code, message=_words(message))


def _words(message: str) -> str:
    """Clipped, and writable: a message may name a file whose name is not UTF-8."""
    return message[:CLIP].encode("utf-8", "backslashreplace").decode()


def result_of(item: Item, run: FinishedRun, *, resumed: bool = False, spans: Spans | None = None) -> ItemResult:
    """The line of a finished run; `spans` finds the spans of a trace by their ids."""
    record, ended = run.record, run.ended
    output = fields_of(ended.output)
    error: dict[str, Any] = ended.error or (record.error.model_dump(mode="json") if record.error else {})
    usage = record.runtime_ref.usage
    traces = [str(trace) for trace in item.fields.get("trace_ids", [])]
    findings, seen_at = list[FoundFailure](), None
    if item.engine == "rca" and output and spans is not None and traces:
        findings, seen_at = _found_failures(output, spans, traces[0])
    label = output.get("primary_label", output.get("overall_verdict"))
    confidence = output.get("confidence", output.get("overall_confidence"))
    verdicts = {str(each["control_id"]): str(each["pass_fail"]) for each in output.get("controls_evaluated") or ()}
    summary = str(output.get("summary") or output.get("incident_summary") or output.get("answer") or "")
    if verdicts:
        summary = _compliance_words(str(label), verdicts)
    return ItemResult(
        id=item.id,
        key=item.key,
        engine=item.engine,
        status=cast("Status", record.status.value),
        judge=ended.annotator_kind,
        code=error.get("code"),
        message=str(error.get("message", ""))[:CLIP],
        retryable=bool(error.get("retryable", False)),
        label=str(label) if label is not None else None,
        confidence=float(confidence) if isinstance(confidence, int | float) else None,
        summary=summary[:CLIP],
        cost_usd=usage.cost_usd,
        unpriced=usage.unpriced,
        tokens_in=usage.tokens_in,
        tokens_out=usage.tokens_out,
        model_calls=record.metrics.model_calls,
        turns=usage.iterations,
        latency_s=round(record.metrics.total_latency_s, 4),
        started_at=record.started_at,
        resumed=resumed,
        trace_ids=traces,
        seen_at=seen_at,
        findings=findings,
        verdicts=verdicts,
    )


def _compliance_words(verdict: str, verdicts: Mapping[str, str]) -> str:
    """A verdict and the controls that decide it, as a sentence."""
    failed, unjudged, passed = (
        [name for name, each in verdicts.items() if each == kind] for kind in ("fail", "insufficient_evidence", "pass")
    )
    told = [f"{', '.join(failed)} failed"] if failed else []
    told += [f"{', '.join(unjudged)} could not be judged"] if unjudged else []
    told = told or [f"{plural(len(passed), 'control')} passed" if passed else "no control applies"]
    return f"{VERDICTS.get(verdict, verdict).lower()}: {'; '.join(told)}"


def _found_failures(output: Mapping[str, Any], spans: Spans, trace_id: str) -> tuple[list[FoundFailure], str | None]:
    """The findings of an RCA report and when its trace began.

    A report without findings counts as one: its label, at the span that its first proof points to; none if it found no failure.
    """
    known = spans(trace_id)
    listed: list[dict[str, Any]] = output.get("findings") or []
    if not listed and output.get("primary_label") != NO_FAILURE:
        refs: list[dict[str, Any]] = output.get("evidence_refs") or []
        span_id = next((str(ref["span_id"]) for ref in refs if ref.get("span_id")), "")
        why = str(output.get("summary", ""))
        label = output.get("primary_label", "")
        listed = [{"category": label, "span_id": span_id, "why": why, "first_failure": True}]
    found: list[FoundFailure] = []
    for finding in listed[:FINDINGS]:
        span_id = str(finding.get("span_id", ""))
        span = known.get(span_id, Component())
        found.append(
            FoundFailure(
                label=str(finding.get("category", "")),
                component=span.name,
                words=(span.message or str(finding.get("why", "")))[:CLIP],
                span_id=span_id,
                first=bool(finding.get("first_failure", False)),
            )
        )
    return found, min((span.start for span in known.values() if span.start), default=None)
