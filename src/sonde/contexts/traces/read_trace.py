"""A trace read aloud, page by page: the tool with which a model reads what happened without opening span after span.

The words are those of `transcript`; every shown step is logged as evidence: its span, its content and, for a tool, its call.
"""

from __future__ import annotations

from collections.abc import Sequence

from sonde.contexts.traces.evidence import artifact_excerpts, content_excerpt, span_excerpt
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.step import Step
from sonde.contexts.traces.store import TraceStore
from sonde.contexts.traces.transcript import Transcript, transcript_of
from sonde.contexts.traces.views import tool_io_of
from sonde.core.evidence import EvidenceKind, Excerpt, Observed
from sonde.errors import ToolFault

PAGE_CHARS = 7_000
MOST_CHARS = 100_000


class Aloud:
    """The tool as a bound method; its docstring is what the model reads. The trace that was read last is kept."""

    def __init__(self, store: TraceStore) -> None:
        self._store = store
        self._kept: tuple[str, Transcript] | None = None

    def read_trace(self, trace_id: str, first_step: int = 0, chars: int = PAGE_CHARS) -> Observed:
        """What happened in a trace, step by step in words: what was new to each step and what came out, errors included.
        From first_step on, about `chars` characters; the first line says which steps, the last how to go on. Every shown span may be cited.
        Example: print(read_trace(trace_id))
        """
        steps = self._transcript(trace_id).steps
        start = next((at for at, step in enumerate(steps) if step.number >= first_step), len(steps))
        if start == len(steps):
            raise ToolFault(f"there is no step {first_step}; the trace has {len(steps)} steps, counted from 0")
        shown = _page(steps[start:], max(500, min(chars, MOST_CHARS)))
        head = f"[steps {shown[0][0].number} to {shown[-1][0].number} of a trace of {len(steps)} steps]"
        text = "\n\n".join([head, *(words for _, words in shown), _ending(steps, start + len(shown))])
        return Observed(text, self._excerpts([step for step, _ in shown]))

    def _transcript(self, trace_id: str) -> Transcript:
        if self._kept is None or self._kept[0] != trace_id:
            self._store.summaries(trace_id)  # says so when there is no such trace
            self._kept = (trace_id, transcript_of(self._store.spans(trace_id)))
        return self._kept[1]

    def _excerpts(self, steps: Sequence[Step]) -> tuple[Excerpt, ...]:
        return tuple(each for step in steps for each in _excerpts_of(self._store.span(step.span_id)))


def _excerpts_of(span: Span) -> list[Excerpt]:
    call = tool_io_of(span)
    calls = artifact_excerpts(EvidenceKind.TOOL_IO, span, [call]) if call else ()
    return [span_excerpt(span.summary), content_excerpt(span), *calls]


def _page(steps: Sequence[Step], room: int) -> list[tuple[Step, str]]:
    """Whole steps as far as they fit, at least one; texts of a step are cut to a third of the page."""
    shown: list[tuple[Step, str]] = []
    used = 0
    for step in steps:
        words = step.text(room // 3, most=room // 2)
        used += len(words)
        if shown and used > room:
            break
        shown.append((step, words))
    return shown


def _ending(steps: Sequence[Step], after: int) -> str:
    if after >= len(steps):
        return "[end of the trace]"
    return f"[{len(steps) - after} more steps: go on with first_step={steps[after].number}]"
