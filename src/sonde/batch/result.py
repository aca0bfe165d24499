"""The result of one item: the line that results.jsonl, the report and the issues are made of.

Everything in it is read from the run's own record and output, and is masked if the run is; the journal stays the truth. What is long is
cut, and `cut` says so: ten thousand lines fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

from sonde.batch.manifest import Item
from sonde.contexts.traces.rules import NO_FAILURE
from sonde.core.canonical import cut, plural
from sonde.core.events import RunEnded
from sonde.core.run_record import RunRecord
from sonde.engines.pages import VERDICTS
from sonde.engines.submission import fields_of

Status = Literal["succeeded", "partial", "failed", "refused"]
CLIP = 300
ANSWER = 20_000  # characters; of a value too, as JSON
FINDINGS = 20
CITATIONS = 100
_CITED = ("path", "start_line", "end_line", "kind", "ref", "trace_id", "span_id")


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
    answer: str = ""
    """The whole text of which `summary` is the beginning."""
    value: Any = None
    """The answer as data, if it is more than a text."""
    citations: list[dict[str, Any]] = []
    """What proves it: lines of files, or references into traces."""
    cut: list[str] = []
    """Which of the three above are too long for this line; the run's result.json has them."""
    unproved: bool = False
    cost_usd: float | None = 0.0
    """None if a part of it is not known; `known_usd` is then the rest."""
    known_usd: float = 0.0
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

    @property
    def paid_usd(self) -> float:
        """The cost as far as it is known."""
        return self.known_usd if self.cost_usd is None else self.cost_usd

    @property
    def priced(self) -> bool:
        """Whether all of the cost is known. Lines of older versions have a number all the same."""
        return self.cost_usd is not None and not self.unpriced


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
    value = output.get("value")
    if isinstance(value, str) and not item.fields.get("schema"):
        value = None  # it is the answer itself
    cited: list[dict[str, Any]] = output.get("citations") or output.get("evidence_refs") or []
    sizes = {
        "answer": len(summary) > ANSWER,
        "value": len(msgspec.json.encode(value)) > ANSWER,
        "citations": len(cited) > CITATIONS,
    }
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
        summary=cut(summary, CLIP),
        answer=cut(summary, ANSWER),
        value=None if sizes["value"] else value,
        citations=[{name: each[name] for name in _CITED if each.get(name)} for each in cited[:CITATIONS]],
        cut=[name for name, long in sizes.items() if long],
        unproved=record.runtime_ref.unproved,
        cost_usd=record.runtime_ref.cost,
        known_usd=0.0 if record.runtime_ref.cost is not None else usage.cost_usd,
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
