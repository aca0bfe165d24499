"""The `ask` engine over traces: the same loop, with the counts of the window in the first prompt, and spans and groups as proof.

`[span:ID]` cites a span, `[group:ID]` a group of failures, whose count is taken again; what SQL and the tables returned is cited by the
call. Without a model the answer is what was counted: the window, its groups, and the spans that share words with the question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from sonde.contexts.traces.question import QuestionContext, brief
from sonde.contexts.traces.span import Row
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.views import span_excerpt
from sonde.contexts.traces.window import Group, Window, seconds
from sonde.core.canonical import clip, plural
from sonde.core.evidence import Citation, Refuted
from sonde.engines import ask
from sonde.engines.ask import ASK, BRIEF
from sonde.engines.submission import Counted, miscounted
from sonde.errors import NotInSource
from sonde.runtime.engine import Conclusion, Gathered, Prefilter
from sonde.runtime.prompts import prompt_file

SHOWN_GROUPS = 10
GROUP_ROWS = 20
SPOKEN_GROUPS = 8
SPOKEN_SPANS = 6
SPOKEN_NAMES = 8
MESSAGE_CHARS = 160
_FUNCTIONS = prompt_file("engines/ask_traces_functions")
_RARE = (
    *("overview", "list_traces", "get_spans", "get_attribute", "get_children", "get_path", "get_retrieval_chunks"),
    "get_annotations",
)


def prefilter(gathered: Gathered) -> Prefilter:
    """The counts of the window and its groups; of files beside the traces what `ask` shows of them."""
    context = cast("QuestionContext", gathered.context)
    if context.refusal is not None:
        raise context.refusal
    window = context.window
    if not window.traces:
        raise NotInSource(_empty(context))
    groups = [window.group_row(each) for each in window.groups[:GROUP_ROWS]]
    shown = window.groups[:SHOWN_GROUPS]
    only = f" Its id: {_flat(window.traces[0].trace_id)}." if len(window.traces) == 1 else ""
    lines = [f"Window: {_counted(window)}{only}{_failing(context)}", *(f"- {_line(window, each)}" for each in shown)]
    if len(window.groups) > len(shown):
        lines.append(f"- and {len(window.groups) - len(shown)} smaller groups, in `groups`")
    examples = [context.store.span(each.span_ids[0]).summary for each in shown if each.span_ids]
    excerpts = [*(context.group_excerpt(each) for each in window.groups), *map(span_excerpt, examples)]
    text, later = "\n".join(lines), None
    if context.given is not None:
        beside = ask.first_look(replace(gathered, context=context.given))
        excerpts += beside.excerpts
        later = None if beside.later is None else f"{text}\n\n{beside.later}"
        text = f"{text}\n\n{beside.text}".strip()
    return Prefilter(
        variables={"window": window.row(), "groups": groups},
        text=text,
        later=later,
        excerpts=tuple(excerpts),
        gaps=(*context.store.skipped(), *window.gaps),
    )


def _empty(context: QuestionContext) -> str:
    """That no trace lies in the window, and when traces began."""
    every = context.store.traces(TraceQuery(limit=1000)).rows
    if not every:
        return "the source holds no traces in this window; widen --from and --to, or --last"
    began = f"traces began between {seconds(every[0].start_us)} and {seconds(every[-1].start_us)}"
    return f"no trace lies in this window ({began}); widen --from and --to, or --last"


def _counted(window: Window) -> str:
    row = window.row()
    recovered = f", {row['recovered']} more recovered from an error" if row["recovered"] else ""
    return (
        f"{plural(row['traces'], 'trace')} begun from {row['start']} to {row['end']}; {row['failed']} failed "
        f"({row['failure_rate']:.0%}){recovered}; {plural(row['spans'], 'span')}, {row['error_spans']:,} with errors; "
        f"latency p50 {_seconds(row['latency_ms'], 'p50')}, p95 {_seconds(row['latency_ms'], 'p95')}."
    )


def _failing(context: QuestionContext) -> str:
    names = ", ".join(f"{_flat(row['name'])} {row['spans']}" for row in context.failing(SPOKEN_NAMES))
    return f" Spans with status ERROR by name: {names}." if names else ""


def _flat(text: str) -> str:
    """Words of a trace on one line: nothing in them begins a line of ours."""
    return clip(" ".join(text.split()), MESSAGE_CHARS)


def _seconds(quantiles: Row, name: str) -> str:
    return f"{quantiles.get(name, 0) / 1000:.3g} s"


def _line(window: Window, group: Group) -> str:
    """A group on one line, with the ids that cite it."""
    row = brief(window, group)
    said = _flat(group.message) or "no message"
    since = f"; since {began}" if (began := _onset(window, group)) else ""
    spans = f", {plural(group.spans, 'span')}" if group.spans else ""
    example = f"; for example span {_flat(group.span_ids[0])}" if group.span_ids else ""
    return (
        f"group:{group.id} {group.kind} in {group.component}: {said} | {row['traces']} of {len(window.traces)} traces{spans}, "
        f"{row['first_seen']} to {row['last_seen']}{since}{example}"
    )


def _onset(window: Window, group: Group) -> str:
    """When a group began, and what speaks for it; "" where nothing clearly began."""
    if group.onset is None:
        return ""
    (hit, of), (before, of_before) = group.onset.since, group.onset.before
    at = seconds(window.traces[group.onset.position].start_us)
    return f"{at} ({hit} of {of} traces since, {before} of {of_before} before)"


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """As for files; a count in the text that contradicts the window's is a problem as well."""
    conclusion = ask.conclude(value, gathered)
    window = cast("QuestionContext", gathered.context).window

    def count() -> Sequence[Counted]:
        row = window.row()
        return [
            Counted(kind="spans", total=row["spans"], failed=(row["error_spans"],)),
            Counted(kind="traces", total=row["traces"], failed=(row["failed"], row["failed"] + row["recovered"])),
        ]

    wrong = miscounted({"the answer": conclusion.text}, count)
    return replace(conclusion, problems=(*conclusion.problems, *wrong))


def fallback(gathered: Gathered) -> Conclusion:
    """What was counted, and the spans and passages that share words with the question; honest about being no answer."""
    context = cast("QuestionContext", gathered.context)
    window = context.window
    spans = list(context.matching(gathered.objective, SPOKEN_SPANS)) if gathered.objective.strip() else []
    gathered.prover.log.note(span_excerpt(span) for span in spans)
    citations: list[Citation] = []

    def cited(ref: str) -> str:
        proved = gathered.prover.traced(ref, signal="counted" if ref.startswith("group:") else "words")
        if isinstance(proved, Refuted):
            return ""
        citations.append(proved.model_copy(update={"fallback": True}))
        return f"[{len(citations)}] {_flat(ref)}"

    parts = [
        "No model has answered this question. This is what counting says:",
        f"{_counted(window)}{_failing(context)}",
    ]
    shown = window.groups[:SPOKEN_GROUPS]
    for group in shown:
        row = brief(window, group)
        said = _flat(group.message) or "it gives no message"
        began = f" It began at {began}." if (began := _onset(window, group)) else ""
        sentence = (
            f"{group.component} ({group.kind}) is in {row['traces']} of {plural(len(window.traces), 'trace')}, first at "
            f"{row['first_seen']}, last at {row['last_seen']}: {said}.{began}"
        )
        parts.append(f"{cited(f'group:{group.id}')}\n\n    {sentence}")
    if not shown:
        parts.append("No group of failures stands out.")
    elif len(window.groups) > len(shown):
        parts.append(f"{len(window.groups) - len(shown)} smaller groups are not listed.")
    if spans:
        parts.append("These spans share words with the question:")
        for span in spans:
            what = f"{_flat(span.name)} ({span.kind}) ended with {span.status} at {seconds(span.start_us)}"
            sentence = (
                f"{what} in trace {_flat(span.trace_id)}{f': {said}' if (said := _flat(span.status_message)) else ''}"
            )
            parts.append(f"{cited(f'span:{span.span_id}')}\n\n    {sentence}.")
    if context.given is not None:
        beside = ask.fallback(replace(gathered, context=context.given))
        number = len(citations)
        citations += beside.citations
        body = beside.text.partition("\n\n")[2]
        for at in range(len(beside.citations), 0, -1):
            body = body.replace(f"[{at}] ", f"[{at + number}] ", 1) if number else body
        parts += ["These passages of the files bear on it:", body] if body else []
    return ask.answered("\n\n".join(parts), citations, gathered)


_RULES = [line for line in ASK.system.splitlines() if "Prove each claim by [path" not in line]  # spans prove it here

QUESTION = replace(
    ASK,
    system="\n".join([*_RULES, prompt_file("engines/ask_traces")]),
    templates=(*ASK.templates, _FUNCTIONS),
    prefilter=prefilter,
    brief={
        **BRIEF,
        **{line.partition("(")[0]: line for line in _FUNCTIONS.splitlines()},
        **dict.fromkeys(_RARE, ""),
    },
    cited=("sql", "group_by", "rate_over_time", "compare_windows", "line_history"),
    conclude=conclude,
    fallback=fallback,
    final_example='FINAL("The answer, in plain words. [span:ID] [group:ID]")',
)
