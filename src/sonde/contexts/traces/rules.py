"""The rule label of a trace: one of six words, with a confidence and the evidence for it. General words, no names of any data set.

The cause is where an error begins: the earliest failed span below which nothing failed. Wrappers that only pass an error on do not count,
nor do steps that succeeded when tried again. If nothing failed, quiet signs decide: empty or irrelevant retrieval, tools that report errors
as output, answers cut short. Without a sign the label says that no failure was found. A rule reads words, not meaning; its confidence
never passes 0.82.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.span import Row, Span
from sonde.contexts.traces.views import artifact_excerpts, chunks_of, content_excerpt, span_excerpt, tool_io_of
from sonde.core.evidence import EvidenceKind, Excerpt

LABELS = (
    "retrieval_failure",
    "tool_failure",
    "instruction_failure",
    "upstream_dependency_failure",
    "data_schema_mismatch",
)
NO_FAILURE = "no_failure_found"
CONFIDENCE = {
    "upstream_dependency_failure": 0.68,
    "tool_failure": 0.66,
    "data_schema_mismatch": 0.64,
    "retrieval_failure": 0.60,
    "instruction_failure": 0.45,
}
UNAVAILABLE = 0.35
CAP = 0.82
LOW_SCORE = 0.3
_SCHEMA = re.compile(
    r"schema|validation ?error|valid(ate|ation) failed|pars(e|ing) (error|fail)|(could|can)( ?no|')t (parse|decode|deserialize)|"
    r"JSONDecodeError|(invalid|malformed|unexpected) (json|xml|yaml|type|field|key|format of)|(missing|unknown|unexpected) (required )?"
    r"(field|key|column|property|parameter|keyword argument)|unexpected keyword|expecting value|type mismatch|wrong type",
    re.IGNORECASE,
)
_UPSTREAM_STRONG = re.compile(
    r"upstream|rate.?limit|too many requests|service (is )?(temporarily )?unavailable|bad gateway|gateway time-?out|"
    r"\b(429|502|503|504)\b|quota exceeded|connection (refused|reset|aborted)|overloaded|name or service not known",
    re.IGNORECASE,
)
_UPSTREAM = re.compile(r"time[d]? ?-?out|unavailable|gateway|deadline|unreachable|temporar|connection", re.IGNORECASE)
_ERROR_OUTPUT = re.compile(
    r"^[^\S\n]*\[?(an? )?(unexpected )?(error|exception|failed|failure|traceback)\b|\berror (when|while|during) |"
    r"^[^\S\n]*\w*(Error|Exception)\b|\"(error|errors)\"\s*:\s*[^\s\[{n\"f]|\"(error|errors)\"\s*:\s*(\"\s*[^\"\s]|[{\[]\s*[^\]}\s])",
    re.IGNORECASE | re.MULTILINE,
)
_EMPTY_OUTPUT = re.compile(
    r"^\s*(?:(\[\]|\{\}|null|none)\s*)?$|\bno (results|documents|matches|hits)( were)? (found|returned)\b",
    re.IGNORECASE,
)
_TOOL_NAME = re.compile(r"(^|[._ -])tools?([._ -]|$)|Tool\b")
_RETRIEVER_NAME = re.compile(r"retriev|vector.?(search|store|db)|(^|[._ -])rag([._ -]|$)", re.IGNORECASE)
_SCORE_KEY = re.compile(r"(^|[._])(relevance|score|similarity)(_score)?$")
_STATUS_KEYS = ("http.status_code", "http.response.status_code")
_FORMAT_KEYS = ("output.format", "response.format", "llm.finish_reason")
_QUIET_ORDER = {"retrieval_failure": 0, "upstream_dependency_failure": 1, "data_schema_mismatch": 1, "tool_failure": 1}
_BAD_FORMATS = frozenset({"unexpected", "invalid", "malformed", "length", "max_tokens", "content_filter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleVerdict:
    """A label with its confidence, the excerpts that carry it, and why in words."""

    label: str
    confidence: float
    excerpts: tuple[Excerpt, ...]
    why: str
    span_id: str | None = None
    failed: bool = False
    """Whether a span failed and no later try mended it."""

    def row(self) -> Row:
        """For the sandbox and the prompt."""
        refs = [{"kind": str(excerpt.kind), "ref": excerpt.ref} for excerpt in self.excerpts]
        return {
            "label": self.label,
            "confidence": self.confidence,
            "why": self.why,
            "span_id": self.span_id,
            "failed": self.failed,
            "evidence": refs,
        }


@dataclass(frozen=True, slots=True)
class Sign:
    """Something suspicious in one span."""

    label: str
    span: Span
    why: str


def judge(spans: Sequence[Span], tree: Tree, read: Callable[[str], Span]) -> RuleVerdict:
    """The label of a trace from the spans that were opened, which may be shortened; `read` gives the whole one for the evidence."""
    failed: list[Span] = []
    for span in filter(_failed, spans):
        summary = span.summary
        above = tree.parent(summary)
        later = [
            other
            for other in (tree.children(above.span_id) if above else ())
            if other.name == summary.name and other.span_id != summary.span_id and other.start_us >= summary.start_us
        ]
        if all(other.status == "ERROR" or other.exception for other in later):  # else the step succeeded in the end
            failed.append(span)
    passed_on = {above.span_id for span in failed for above in tree.path(span.summary.span_id)[:-1]}
    origins = [span for span in failed if span.summary.span_id not in passed_on]
    first = min(origins, key=lambda span: span.summary.order, default=None)
    sign = sign_of_failure(first) if first is not None else None
    if sign is None or sign.label == "instruction_failure":
        sign = next(iter(strongest(found for span in spans for found in quiet_signs(span))), sign)
    if sign is None:
        share = len(spans) / max(1, len(tree.by_id))
        why = f"nothing failed and no sign was found in {len(spans)} of {len(tree.by_id)} spans"
        shown = tuple(span_excerpt(span.summary) for span in spans[:2])
        return RuleVerdict(label=NO_FAILURE, confidence=round(UNAVAILABLE * share, 2), excerpts=shown, why=why)
    span = read(sign.span.summary.span_id)
    excerpts = [span_excerpt(span.summary)]
    if (call := tool_io_of(span)) is not None:
        excerpts += artifact_excerpts(EvidenceKind.TOOL_IO, span, [call])
    if sign.label == "retrieval_failure":
        excerpts += artifact_excerpts(EvidenceKind.RETRIEVAL_CHUNK, span, chunks_of(span)[:3])
    if len(excerpts) == 1:
        excerpts.append(content_excerpt(span))
    bonus = 0.10 if len({(excerpt.kind, excerpt.ref) for excerpt in excerpts}) >= 2 else 0.0
    return RuleVerdict(
        label=sign.label,
        confidence=round(min(CAP, CONFIDENCE[sign.label] + bonus), 2),
        excerpts=tuple(excerpts),
        why=sign.why,
        span_id=sign.span.summary.span_id,
        failed=first is not None,
    )


def strongest(quiet: Iterable[Sign]) -> list[Sign]:
    """Those of these signs that count: of the kind that says most."""
    ranked = [(_QUIET_ORDER.get(sign.label, 2), sign) for sign in quiet]
    best = min((rank for rank, _ in ranked), default=0)
    return [sign for rank, sign in ranked if rank == best]


def _failed(span: Span) -> bool:
    return span.summary.status == "ERROR" or span.summary.exception


def sign_of_failure(span: Span) -> Sign:
    """What a failed span says by itself."""
    text, kind = error_text(span), kind_of(span)
    if _SCHEMA.search(text):
        return Sign("data_schema_mismatch", span, f"{kind} span failed on the form of data: {_short(text)}")
    if _server_error(span) or _UPSTREAM_STRONG.search(text):
        return Sign("upstream_dependency_failure", span, f"a service behind the {kind} span failed: {_short(text)}")
    if kind == "TOOL":
        return Sign("tool_failure", span, f"a tool failed: {_short(text)}")
    if kind == "RETRIEVER":
        return Sign("retrieval_failure", span, f"a retriever failed: {_short(text)}")
    if _UPSTREAM.search(text):
        return Sign("upstream_dependency_failure", span, f"a call did not come back: {_short(text)}")
    return Sign("instruction_failure", span, f"{kind} span failed: {_short(text)}")


def quiet_signs(span: Span) -> Iterator[Sign]:
    """Signs in a span that did not fail: empty or irrelevant retrieval, a tool that says OK and returns an error, a cut answer."""
    kind = "" if _failed(span) else kind_of(span)
    if kind == "RETRIEVER":
        own = [value for key, value in span.attributes.items() if _SCORE_KEY.search(key)]
        chunks = [artifact.row["score"] for artifact in chunks_of(span)]
        scores = _numbers(chunks) or _numbers(own)  # of the documents, or the retriever's own figure
        output = span.attributes.get("output.value")
        if scores and all(0 <= score <= 1 for score in scores) and max(scores) < LOW_SCORE:  # other scales say nothing
            yield Sign("retrieval_failure", span, f"the best retrieval score is {max(scores):g}")
        elif not chunks and (output is None or _EMPTY_OUTPUT.search(str(output)[:2000])):
            yield Sign("retrieval_failure", span, "the retriever returned nothing")
    if kind == "TOOL":
        call = tool_io_of(span)
        returned = str(call.row["output"] or "")[:4000] if call else ""
        if _ERROR_OUTPUT.search(returned) or _server_error(span):
            label = "tool_failure"
            if _SCHEMA.search(returned):
                label = "data_schema_mismatch"
            elif _server_error(span) or _UPSTREAM_STRONG.search(returned):
                label = "upstream_dependency_failure"
            yield Sign(label, span, f"a tool returned: {_short(returned)}")
    said = [str(span.attributes.get(key, "")).lower() for key in _FORMAT_KEYS]
    if any(word in _BAD_FORMATS for word in said):
        yield Sign("instruction_failure", span, f"an answer has the wrong form: {', '.join(filter(None, said))}")


def kind_of(span: Span) -> str:
    """The kind, guessed from the name where instrumentation gave none."""
    kind = span.summary.kind
    if kind != "UNKNOWN":
        return kind
    if _RETRIEVER_NAME.search(span.summary.name):
        return "RETRIEVER"
    return "TOOL" if _TOOL_NAME.search(span.summary.name) or "tool.name" in span.attributes else kind


def error_text(span: Span) -> str:
    """What a failed span says about its failure, each thing once."""
    parts = [span.summary.status_message]
    for event in span.events:
        if event.is_exception:
            said = (str(event.attributes.get(key, "")) for key in ("exception.type", "exception.message"))
            parts += [part for part in said if not any(part in other for other in parts)]
    return "\n".join(part for part in parts if part)[:8000]


def _server_error(span: Span) -> bool:
    codes = (span.attributes.get(key) for key in _STATUS_KEYS)
    return any(str(code) == "429" or str(code).startswith("5") for code in codes if code is not None)


def _numbers(values: Iterable[Any]) -> list[float]:
    return [float(value) for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 160 else f"{line[:160]}…"
