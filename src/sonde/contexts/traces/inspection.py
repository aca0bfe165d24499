"""The inspection tools over traces (contracts 2.5): read-only, stable order, pages by cursor, every cut marked.

A cursor is the id of the last row seen: `list_spans(t, after=rows[-1]["span_id"])`. A tool logs what it shows as excerpts, each with the
hash of the whole artifact, even if the shown value is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from sonde.contexts.traces.caps import clipped, fitted
from sonde.contexts.traces.filters import parse_filter
from sonde.contexts.traces.shape import Tree, trace_overview
from sonde.contexts.traces.span import Row, SpanSummary, us_of
from sonde.contexts.traces.store import TraceQuery, TraceStore, unknown_span
from sonde.contexts.traces.transcript import Step, shortened, transcript_of
from sonde.contexts.traces.views import (
    artifact_excerpts,
    chunks_of,
    content_excerpt,
    messages_of,
    span_excerpt,
    tool_io_of,
)
from sonde.core.canonical import plural
from sonde.core.evidence import EvidenceKind, Excerpt, Observed
from sonde.core.patterns import Pattern, compiled
from sonde.errors import ToolFault

MAX_ROWS = 1000
SNIPPET = 80
SCANNED_CHARS = 200_000_000
PAGE_CHARS = 7_000
MOST_CHARS = 100_000
LINE_CHARS = (24, 200)
"""How much of a step its line in the outline of a long trace tells, at least and at most."""


class Inspection:
    """The tools as bound methods; their docstrings are what the model reads."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._read: tuple[str, tuple[Step, ...]] | None = None  # the trace that read_trace read last

    def list_traces(
        self,
        project_name: str,
        *,
        start_time: str | None = None,
        end_time: str | None = None,
        filter_expr: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> Observed:
        """Traces of a project by (start_time, trace_id). Page on with after=<last trace_id>.
        filter_expr keeps traces with a span that fits: "status_code == 'ERROR' and span_kind == 'TOOL'".
        Example: traces = list_traces("checkout", filter_expr="latency_ms > 5000")
        """
        query = TraceQuery(
            project=project_name,
            start_us=_moment(start_time),
            end_us=_moment(end_time),
            condition=parse_filter(filter_expr) if filter_expr else None,
            after=after,
            limit=_bounded(limit),
        )
        page = self._store.traces(query)
        if not page.rows and after is None and project_name not in (known := self._store.projects()):
            raise ToolFault(f"there is no project {project_name!r}; there are: {', '.join(known[:20])}")
        return Observed([row.row() for row in page.rows], truncated=page.more)

    def list_spans(self, trace_id: str, *, after: str | None = None, limit: int = MAX_ROWS) -> Observed:
        """Every span of a trace by (start_time, span_id), without content. Page on with after=<last span_id>.
        Rows: {span_id, parent_id, name, span_kind, status_code, status_message, start_time, end_time, latency_ms, trace_id}.
        """
        return _listed(self._store.summaries(trace_id), after, limit)

    def get_spans(
        self,
        trace_id: str,
        type: str | None = None,  # noqa: A002 - the contract's name
        *,
        after: str | None = None,
        limit: int = MAX_ROWS,
    ) -> Observed:
        """Spans of a trace, only those of one kind if type is given (LLM, TOOL, RETRIEVER, CHAIN, AGENT, ...)."""
        found = self._store.summaries(trace_id)
        return _listed([span for span in found if type is None or span.kind == type.upper()], after, limit)

    def get_span(self, span_id: str) -> Observed:
        """One span: {summary: a row of list_spans, attributes, events}. Long texts are cut and marked; get_attribute reads on."""
        span = self._store.span(span_id)
        value, note = fitted(
            {"summary": span.summary.row(), **span.content(), **({"gaps": list(span.gaps)} if span.gaps else {})}
        )
        return Observed(value, (span_excerpt(span.summary), content_excerpt(span)), note)

    def get_attribute(self, span_id: str, key: str, start: int = 0, length: int = 20_000) -> Observed:
        """A piece of one attribute as text: characters start to start+length, with the total length."""
        span = self._store.span(span_id)
        if key not in span.attributes:
            raise ToolFault(
                f"span {span_id} has no attribute {key!r}; it has: {', '.join(sorted(span.attributes)[:30])}"
            )
        text = str(span.attributes[key])
        piece = text[max(0, start) : max(0, start) + max(1, min(length, 200_000))]
        return Observed({"text": piece, "start": max(0, start), "total": len(text)}, (content_excerpt(span),))

    def get_children(self, span_id: str, *, after: str | None = None, limit: int = MAX_ROWS) -> Observed:
        """Direct children of a span by (start_time, span_id)."""
        return _listed(self._store.children(span_id), after, limit)

    def get_path(self, span_id: str) -> Observed:
        """The spans from the root of the trace down to this one."""
        own = self._store.span(span_id).summary
        path = Tree(self._store.summaries(own.trace_id)).path(span_id)
        return Observed([span.row() for span in path], tuple(span_excerpt(span) for span in path))

    def get_messages(self, span_id: str) -> Observed:
        """[{role, content, metadata}] of a span, inputs before outputs, to be cited as MESSAGE with metadata["ref"]. A message that only
        calls tools has them in metadata["tool_calls"]; "index_gap" there: the source dropped some.
        """
        span = self._store.span(span_id)
        found = messages_of(span)
        value, note = fitted([artifact.row for artifact in found])
        return Observed(value, artifact_excerpts(EvidenceKind.MESSAGE, span, found), note)

    def get_tool_io(self, span_id: str) -> Observed:
        """{tool_name, input, output, status_code, artifact_id} of a tool call, cited as TOOL_IO with artifact_id; None if it is none.
        The error of a failed call is the status_message of its span (list_spans, get_span, read_trace).
        """
        span = self._store.span(span_id)
        found = tool_io_of(span)
        if found is None:
            return Observed(None)
        value, note = fitted(found.row)
        return Observed(value, artifact_excerpts(EvidenceKind.TOOL_IO, span, [found]), note)

    def get_retrieval_chunks(self, span_id: str) -> Observed:
        """[{content, score, metadata, document_id, artifact_id}] in a retriever's order, cited as RETRIEVAL_CHUNK with artifact_id."""
        span = self._store.span(span_id)
        found = chunks_of(span)
        value, note = fitted([artifact.row for artifact in found])
        return Observed(value, artifact_excerpts(EvidenceKind.RETRIEVAL_CHUNK, span, found), note)

    def search_trace(
        self,
        trace_id: str,
        pattern: str,
        fields: list[str] | None = None,
        *,
        after: str | None = None,
        limit: int = 200,
    ) -> Observed:
        """[{span_id, field, value_snippet}] of fields that match a regular expression (RE2, any case); fields are names or prefixes:
        ["output.value", "status_message", "events"].
        Example: hits = search_trace(trace_id, "timeout|rate.?limit")
        """
        found, wanted, most = _matcher(pattern), tuple(fields or ()), _bounded(limit)
        rows: list[Row] = []
        excerpts: dict[str, Excerpt] = {}
        scanned, last, waiting = 0, after, after is not None
        looked = 0
        for span in self._store.spans(trace_id):
            if waiting:
                waiting = span.summary.span_id != after
                continue
            if len(rows) >= most or scanned > SCANNED_CHARS:
                note = f"{len(rows)} matches after {scanned} characters; go on with after={last!r}"
                return Observed(rows, tuple(excerpts.values()), note)
            last, looked = span.summary.span_id, looked + 1
            texts = [("name", span.summary.name), ("status_message", span.summary.status_message)]
            texts += [(key, str(span.attributes[key])) for key in sorted(span.attributes)]
            for event in span.events:
                texts += [(f"events.{event.name}.{key}", str(value)) for key, value in sorted(event.attributes.items())]
            for field, text in texts:
                if wanted and not field.startswith(wanted):
                    continue
                scanned += len(text)
                if (match := found.search(text)) is None:
                    continue
                snippet = clipped(text[max(0, match.start() - SNIPPET) : match.end() + SNIPPET], 2000)
                ids = {"trace_id": span.summary.trace_id, "span_id": span.summary.span_id}
                rows.append({**ids, "field": field, "value_snippet": snippet})
                in_summary = field in {"name", "status_message"}
                excerpt = span_excerpt(span.summary) if in_summary else content_excerpt(span)
                excerpts[excerpt.ref] = excerpt
        if waiting:
            raise unknown_span(str(after))
        within = f"the fields {', '.join(wanted)}" if wanted else "any field"
        nothing = None if rows else f"nothing matches {pattern!r} in {within} of {plural(looked, 'span')}"
        return Observed(rows, tuple(excerpts.values()), nothing)

    def search(self, text_or_chunks: Any, pattern: str) -> list[str]:
        """Sorted distinct matches of a regular expression in a text, or in a list of texts, messages or chunks."""
        found = _matcher(pattern)
        matches: set[str] = set()
        for text in _texts(text_or_chunks):
            # Searches bytes, because RE2 would encode a whole str again for each match.
            data, start = text.encode("utf-8", "replace"), 0
            while start <= len(data) and (match := found.search(data, start)) is not None:
                if match.end() > match.start():
                    matches.add(data[match.start() : match.end()].decode("utf-8", "replace"))
                start = max(match.end(), match.start() + 1)
                while start < len(data) and data[start] & 0xC0 == 0x80:  # within a character
                    start += 1
        return sorted(matches)

    def overview(self, trace_id: str) -> Observed:
        """A trace at a glance: roots, kinds, error groups, latency quantiles, slowest spans, known gaps."""
        spans = self._store.summaries(trace_id)
        value = trace_overview(trace_id, spans, self._store.gaps(trace_id))
        shown = {row["span_id"] for row in (*value["roots"], *value["slowest"])}
        shown |= {span_id for group in value["error_groups"] for span_id in group["span_ids"]}
        return Observed(value, tuple(span_excerpt(span) for span in spans if span.span_id in shown))

    def read_trace(self, trace_id: str, first_step: int = 0, chars: int = PAGE_CHARS) -> Observed:
        """What happened in a trace, in words: what was new to each step and what came out, errors included. A trace of more than
        `chars` characters begins with a line per step; first_step=N reads from step N on. Every shown span may be cited.
        Example: print(read_trace(trace_id))
        """
        if self._read is None or self._read[0] != trace_id:
            self._store.summaries(trace_id)  # says so when there is no such trace
            self._read = (trace_id, transcript_of(self._store.spans(trace_id)).steps)
        steps, room = self._read[1], max(500, min(chars, MOST_CHARS))
        start = next((at for at, step in enumerate(steps) if step.number >= first_step), len(steps))
        if start == len(steps):
            raise ToolFault(f"there is no step {first_step}; the trace has {len(steps)} steps, counted from 0")
        texts, outline = _page(steps[start:], room), ""
        if start == 0 and len(texts) < len(steps):  # the first steps alone are mostly prompts
            outline = _outline(steps, room * 3 // 4)
            texts = _page(steps, room - len(outline))
        end = start + len(texts)
        head = f"[steps {steps[start].number} to {steps[end - 1].number} of a trace of {len(steps)} steps]"
        ending = "[end of the trace]"
        if end < len(steps):
            ending = f"[{len(steps) - end} more steps: go on with first_step={steps[end].number}]"
        excerpts: list[Excerpt] = []
        if outline:
            listed = {words[1] for line in outline.split("\n") if len(words := line.split(" ", 2)) > 1}
            excerpts += [span_excerpt(span) for span in self._store.summaries(trace_id) if span.span_id in listed]
        for step in steps[start:end]:
            span = self._store.span(step.span_id)
            call = tool_io_of(span)
            excerpts += [span_excerpt(span.summary), content_excerpt(span)]
            excerpts += artifact_excerpts(EvidenceKind.TOOL_IO, span, [call]) if call else ()
        told = [f"[a line for each of {len(steps)} steps]\n{outline}"] if outline else []
        return Observed("\n\n".join([*told, head, *texts, ending]), tuple(excerpts))

    def get_annotations(self, trace_id: str, span_id: str | None = None) -> list[Row]:
        """Annotations on a span, or on the trace itself when no span is given."""
        return self._store.annotations(trace_id, span_id)


def _outline(steps: Sequence[Step], room: int) -> str:
    """A line per step, with its error if it has one; the middle is left out if there are too many."""
    told = [replace(step, came=step.around or step.came) for step in steps]
    least, most = LINE_CHARS
    wide = (room - sum(len(step.line(0)) + 3 for step in told)) // len(told)
    return shortened("\n".join(step.line(max(least, min(wide, most))) for step in told), room)


def _page(steps: Sequence[Step], room: int) -> list[str]:
    """Whole steps as far as they fit, at least one; texts of a step are cut to a third of the page."""
    texts: list[str] = []
    used = 0
    for step in steps:
        words = step.text(room // 3, most=room // 2)
        used += len(words)
        if texts and used > room:
            break
        texts.append(words)
    return texts


def _matcher(pattern: str) -> Pattern:
    try:
        return compiled(pattern, any_case=True)
    except ValueError as broken:
        raise ToolFault(f"pattern {pattern!r} is not RE2: {broken}; for example: timeout|rate.?limit") from None


def _texts(value: Any) -> list[str]:
    match value:
        case str():
            return [value]
        case dict():
            content = cast("Row", value).get("content")
            return [str(content)] if content is not None else []
        case list():
            return [text for item in cast("list[Any]", value) for text in _texts(item)]
        case _:
            raise ToolFault("search takes a text, or a list of texts, messages or chunks with a 'content'")


def _listed(spans: Sequence[SpanSummary], after: str | None, limit: int) -> Observed:
    start = 0
    if after is not None:
        start = next((at for at, span in enumerate(spans, start=1) if span.span_id == after), 0)
        if start == 0:
            raise unknown_span(after)
    rows = spans[start : start + _bounded(limit)]
    left = len(spans) - start - len(rows)
    note = f"{len(rows)} of {len(spans)} spans; go on with after={rows[-1].span_id!r}" if left > 0 else None
    return Observed([span.row() for span in rows], tuple(span_excerpt(span) for span in rows), note)


def _bounded(limit: int) -> int:
    return max(1, min(limit, MAX_ROWS))


def _moment(text: str | None) -> int | None:
    try:
        return us_of(text)
    except ValueError:
        raise ToolFault(f"{text!r} is not a time; write 2026-11-01T12:00:00Z") from None
