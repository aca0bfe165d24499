"""Failures of many traces as groups: one failure per trace, the same component, and the same message apart from ids and numbers.

    facts = facts_of(trace_id, store.spans(trace_id), AttributeTable())
    groups = error_groups_of([facts, ...])

The failure of a trace is where it began: the deepest failed span that no later try mended and from which the failure went up to the root.
What a parent says about it ("step failed") is a consequence and no group. If no span failed, or all that failed was mended, the quiet
signs of the rules (a tool that returned an error as its output) are failures in the same way. A trace has recovered if a later try of the
same step mended all of this; its failures are grouped too. It is a count, not a judgement: two causes with one message in one component
are one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from sonde.contexts.traces.failure_words import CODE, component_of, failure_text, folded, overlap, telling_words
from sonde.contexts.traces.prefilter import shortened
from sonde.contexts.traces.rules import Sign, quiet_signs, strongest
from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.span import Span, SpanSummary

MAX_TRACE_SPANS = 20_000
MAX_COMPONENTS = 200
MAX_KEYS = 300
MAX_VALUES = 2_000
MAX_PAIRS = 100
MOST_STATED = 1e12  # tokens or dollars of one span; the sums of what is more could not be written
MAX_GROUPS = 1_000
VALUE_CHARS = 120
FORM_CHARS = 300
ALIKE = 0.75
SLOT_WORDS = 40
SLOT_VALUES = 3
BLAST_KEYS = {
    "users": ("user.id", "enduser.id", "langfuse.user.id", "gen_ai.user.id"),
    "sessions": ("session.id", "gen_ai.conversation.id", "thread.id", "langfuse.session.id"),
    "services": ("service.name",),
    "tenants": ("tenant.id", "customer.id", "organization.id", "tenant", "customer"),
}
RELEASE_KEYS = ("release", "service.version", "app.version", "version", "langfuse.release", "metadata.release")
MODEL_KEYS = ("llm.model_name", "gen_ai.request.model", "gen_ai.response.model", "embedding.model_name")
TOOL_KEYS = ("tool.name", "gen_ai.tool.name")
_COUNTED = frozenset(key for keys in BLAST_KEYS.values() for key in keys)
_LEFT_OUT = (  # content, and what only says again that something failed or how long it took
    *("input.", "output.", "llm.input_messages", "llm.output_messages", "llm.prompts", "llm.choices", "llm.tools"),
    *("gen_ai.prompt", "gen_ai.completion", "gen_ai.input", "gen_ai.output", "gen_ai.usage", "gen_ai.tool.call"),
    *("gen_ai.response.id", "gen_ai.system_instructions", "retrieval.", "retriever.", "reranker.", "embedding.e"),
    *("tool.parameters", "tool.description", "tool.json_schema", "tool_call", "llm.token_count", "llm.cost", "cost"),
    *("exception", "error", "otel.", "openinference.", "traceloop.entity", "message", "llm.function_call", "document"),
    *("thread.name", "code.", "process.", "http.status", "http.response", "rpc.grpc.status", "duration", "latency"),
)
Outcome = Literal["failed", "recovered", "healthy"]
Attribute = tuple[str, str]


class StepFigures(NamedTuple):
    """One component in one trace: how often it ran, how long by itself, what it used."""

    component: str
    calls: int
    self_ms: float
    tokens: int
    cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed span of a trace, in the words that group it. `attempts` are the spans of this trace that failed alike."""

    span_id: str
    component: str
    kind: str
    message: str
    form: str
    at_us: int
    service: str = ""
    attempts: int = 1
    mended: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFacts:
    """What a window knows of one trace; small, so that many fit into memory."""

    trace_id: str
    root_span_id: str
    root_name: str
    first_tool: str
    start_us: int
    latency_ms: float
    spans: int
    error_spans: int
    outcome: Outcome
    failures: tuple[Failure, ...]
    """Where failures began, each kind once; the one that stands for the trace first."""
    attributes: tuple[Attribute, ...]
    steps: tuple[StepFigures, ...]
    retries: Mapping[str, int]
    """Failed tries that were followed by another one, by component."""
    cut: int = 0

    @property
    def failure(self) -> Failure | None:
        """The one that stands for the trace."""
        return self.failures[0] if self.failures else None

    @property
    def signature(self) -> tuple[str, str, str]:
        """Traces with the same one tell the same story."""
        failure = self.failure
        return (failure.component, failure.form, "") if failure else (self.root_name, self.first_tool, "healthy")

    @property
    def tokens(self) -> int:
        """All that the trace used."""
        return sum(step.tokens for step in self.steps)

    @property
    def cost(self) -> float:
        """All that the trace cost, where spans say so."""
        return sum(step.cost for step in self.steps)


class AttributeTable:
    """Pairs of key and value, each kept once, and bounded: a key with too many values is dropped unless it is one that is counted."""

    def __init__(self) -> None:
        self.values: dict[str, dict[str, Attribute]] = {}
        self.dropped: set[str] = set()

    def pair(self, key: str, value: Any) -> Attribute | None:
        """The pair that stands for this attribute; None for content, long texts and keys with too many values."""
        if key in self.dropped or not isinstance(value, str | int | float) or value == "":
            return None
        text = value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else f"{value:g}"
        if len(text) > VALUE_CHARS or "\n" in text:
            return None
        known = self.values.get(key)
        if known is None:
            if key.startswith(_LEFT_OUT) or len(self.values) >= MAX_KEYS:
                self.dropped.add(key) if len(self.dropped) < MAX_VALUES else None
                return None
            known = self.values[key] = {}
        pair = known.get(text)
        if pair is None:
            if len(known) >= MAX_VALUES and key not in _COUNTED:
                self.dropped.add(key)
                del self.values[key]
                return None
            pair = known[text] = (key, text)
        return pair


def version_key(key: str, service: str) -> str:
    """The key under which the version or release of one service counts, since a trace may pass several."""
    return f"{key} ({service[:VALUE_CHARS]})"


@dataclass(slots=True)
class _Reading:
    """Spans of one trace without their content."""

    spans: list[SpanSummary] = field(default_factory=list[SpanSummary])
    said: dict[str, str] = field(default_factory=dict[str, str])
    usage: dict[str, tuple[int, float]] = field(default_factory=dict[str, tuple[int, float]])
    pairs: dict[Attribute, None] = field(default_factory=dict[Attribute, None])
    services: dict[str, str] = field(default_factory=dict[str, str])
    cut: int = 0


def facts_of(trace_id: str, spans: Iterable[Span], table: AttributeTable) -> TraceFacts:
    """The facts of one trace. Spans beyond MAX_TRACE_SPANS are only counted. If no span failed, or a later try mended all that did, quiet
    signs are its failures: a tool that returned an error, a retriever that found nothing, an answer that was cut.
    """
    read = _Reading()
    quiet: list[Sign] = []
    for span in spans:
        if len(read.spans) >= MAX_TRACE_SPANS:
            read.cut += 1
            continue
        summary, attributes = span.summary, span.attributes
        read.spans.append(summary)
        if summary.status == "ERROR" or summary.exception or (summary.status == "UNSET" and "error.type" in attributes):
            read.said[summary.span_id] = failure_text(span)
        elif len(quiet) < MAX_PAIRS:
            quiet += quiet_signs(shortened(span))
        for key, value in (*attributes.items(), *span.resource.items()):
            if len(read.pairs) < MAX_PAIRS and (pair := table.pair(key, value)) is not None:
                read.pairs[pair] = None
        if service := str(attributes.get("service.name") or span.resource.get("service.name") or ""):
            read.services[summary.span_id] = service[:VALUE_CHARS]
            for key in RELEASE_KEYS:
                version = attributes.get(key) or span.resource.get(key)
                if version and (pair := table.pair(version_key(key, service), version)) is not None:
                    read.pairs[pair] = None
        used = _usage(attributes)
        if used != (0, 0.0):
            read.usage[summary.span_id] = used
    tree = Tree(read.spans)
    roots = tree.roots()
    root = roots[0]
    failures, retries = _failures(tree, read)
    unmended = any(not failure.mended for failure in failures) or root.span_id in read.said
    if quiet and not unmended:
        loud = read.said
        read.said = loud | {sign.span.summary.span_id: sign.why for sign in strongest(quiet)}
        found = _failures(tree, read)
        unmended = any(not failure.mended for failure in found[0]) or root.span_id in read.said
        if unmended or not loud:
            failures, retries = found
        else:
            read.said = loud
    start = min(span.start_us for span in read.spans)
    return TraceFacts(
        trace_id=trace_id,
        root_span_id=root.span_id,
        root_name=root.name,
        first_tool=next((span.name for span in read.spans if span.kind == "TOOL"), ""),
        start_us=start,
        latency_ms=max(0, max(span.end_us or span.start_us for span in read.spans) - start) / 1000,
        spans=len(read.spans) + read.cut,
        error_spans=len(read.said),
        outcome="healthy" if not failures else "failed" if unmended else "recovered",
        failures=tuple(failures),
        attributes=tuple(read.pairs),
        steps=_steps(tree, roots, read.usage),
        retries=retries,
        cut=read.cut,
    )


def _failures(tree: Tree, read: _Reading) -> tuple[list[Failure], dict[str, int]]:
    """Where failures began, the one that stands for the trace first; and how often a failed step was tried again."""
    said, roots = read.said, tree.roots()
    last: dict[tuple[str, str], tuple[int, str]] = {}  # the last try of a step, and the last one that succeeded
    last_good: dict[tuple[str, str], tuple[int, str]] = {}
    above_a_failure: set[str] = set()
    for span in tree.by_id.values():  # by time
        above = tree.parent(span)
        step = (above.span_id if above else "", component_of(span.name))
        last[step] = span.order
        if span.span_id not in said:
            last_good[step] = span.order
        while span.span_id in said and above is not None and above.span_id not in above_a_failure:
            above_a_failure.add(above.span_id)
            above = tree.parent(above)
    retries: Counter[str] = Counter()
    ranked: list[tuple[tuple[bool, bool, tuple[int, str]], Failure]] = []
    # From the roots down: whether all above failed too, whether a later try mended it or one above it, and in which service it is.
    walk = [(span, span.span_id == roots[0].span_id, False, "") for span in roots]
    for span, up, healed, service in walk:  # grows while it is walked
        above, name = tree.parent(span), component_of(span.name)
        step = (above.span_id if above else "", name)
        failed = span.span_id in said
        retries[name] += failed and last[step] > span.order
        healed = healed or (failed and last_good.get(step, span.order) > span.order)  # noqa: PLW2901 - what holds from here down
        service = read.services.get(span.span_id, service)  # noqa: PLW2901 - the same
        walk += [(child, up and failed, healed, service) for child in tree.children(span.span_id)]
        if not failed or span.span_id in above_a_failure:
            continue
        failure = Failure(
            span_id=span.span_id,
            component=name,
            kind=span.kind,
            message=said[span.span_id],
            form=folded(said[span.span_id])[:FORM_CHARS],
            at_us=span.start_us,
            service=service,
            mended=healed,
        )
        ranked.append(((healed, not up, span.order), failure))
    kinds: dict[tuple[str, str], list[Failure]] = {}
    for _, failure in sorted(ranked, key=lambda one: one[0]):
        kinds.setdefault((failure.component, folded(failure.form, quotes=True)), []).append(failure)
    found = [replace(alike[0], attempts=len(alike)) for alike in list(kinds.values())[:MAX_PAIRS]]
    return found, {name: count for name, count in retries.items() if count}


def _usage(attributes: Mapping[str, Any]) -> tuple[int, float]:
    """Tokens and cost that a span states."""

    def number(*keys: str) -> float:
        found = (attributes.get(key) for key in keys)
        return next((float(each) for each in found if isinstance(each, int | float) and 0 < each <= MOST_STATED), 0.0)

    tokens = number("llm.token_count.total", "gen_ai.usage.total_tokens") or (
        number("llm.token_count.prompt", "gen_ai.usage.input_tokens")
        + number("llm.token_count.completion", "gen_ai.usage.output_tokens")
    )
    return int(tokens), number(
        "llm.cost.total", "gen_ai.usage.cost", "gen_ai.usage.total_cost", "cost.total", "cost_usd", "cost"
    )


def _steps(tree: Tree, roots: Sequence[SpanSummary], usage: Mapping[str, tuple[int, float]]) -> tuple[StepFigures, ...]:
    """Calls, own time, tokens and cost by component. A parent that repeats the sum of its children counts once."""
    order: list[SpanSummary] = list(roots)
    for span in order:  # grows while it is walked
        order += tree.children(span.span_id)
    below: dict[str, tuple[int, float]] = {}
    steps: dict[str, list[float]] = {}
    for span in reversed(order):
        children = tree.children(span.span_id)
        known = [sum(below[child.span_id][at] for child in children) for at in (0, 1)]
        own = usage.get(span.span_id, (0, 0.0))
        below[span.span_id] = (max(own[0], int(known[0])), max(own[1], known[1]))
        name = component_of(span.name)
        if name not in steps and len(steps) >= MAX_COMPONENTS:
            name = "others"
        figures = steps.setdefault(name, [0, 0.0, 0, 0.0])
        figures[0] += 1
        figures[1] += max(0.0, span.latency_ms - sum(child.latency_ms for child in children))
        figures[2] += max(0, own[0] - known[0])
        figures[3] += max(0.0, own[1] - known[1])
    return tuple(
        StepFigures(name, int(calls), self_ms, int(tokens), cost)
        for name, (calls, self_ms, tokens, cost) in sorted(steps.items())
    )


@dataclass(slots=True)
class ErrorKind:
    """Traces of one group of errors, as positions in the list that was grouped, and the failure of each."""

    component: str
    form: str
    members: dict[int, Failure] = field(default_factory=dict[int, Failure])
    also: int = 0
    """Traces that failed like this as well, after something else that stands for them."""
    spans: int = 0


def error_groups_of(facts: Sequence[TraceFacts]) -> list[ErrorKind]:
    """Groups of the failures of these traces, the largest first. Every trace is in the group of the failure that stands for it."""
    values: dict[tuple[str, str], Counter[str]] = {}
    for each in facts:
        for failure in each.failures:
            place = (failure.component, _without_quotes(failure.form).lower())
            values.setdefault(place, Counter())[failure.form.lower()] += 1
    vary = {place: len(seen) >= 3 and max(seen.values()) * 2 < seen.total() for place, seen in values.items()}

    def key_of(failure: Failure) -> tuple[str, str]:
        """Quoted words tell failures apart unless they vary: a value of its own for nearly every trace says nothing."""
        form, place = failure.form.lower(), (failure.component, _without_quotes(failure.form).lower())
        single = values[place][form] == 1 and len(values[place]) > 1
        return place if vary[place] or single else (failure.component, form)

    forms = Counter(key_of(failure) for each in facts for failure in each.failures)
    same = _with_slots(forms)
    kinds: dict[tuple[str, str], ErrorKind] = {}
    for position, each in enumerate(facts):
        for rank, failure in enumerate(each.failures):
            key = key_of(failure)
            key = (key[0], same.get(key, key[1]))
            if key not in kinds and len(kinds) >= MAX_GROUPS:
                key = (failure.component, "others")
            kind = kinds.setdefault(key, ErrorKind(key[0], key[1]))
            kind.spans += failure.attempts
            if rank == 0:
                kind.members[position] = failure
            else:
                kind.also += 1
    return _merged([kind for kind in kinds.values() if kind.members])


@lru_cache(maxsize=1 << 14)  # the same failures come again, window after window
def _without_quotes(form: str) -> str:
    return folded(form, quotes=True)


def _with_slots(forms: Counter[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Forms that differ in one word, which varies, as one form with a place for it."""
    slots: dict[tuple[str, str], Counter[tuple[str, str]]] = {}
    for (component, form), count in list(forms.items())[:MAX_GROUPS]:
        words = form.split()[:SLOT_WORDS]
        for at in (at for at, word in enumerate(words) if not word.startswith(CODE)):
            open_form = " ".join([*words[:at], "#", *words[at + 1 :]])
            slots.setdefault((component, open_form), Counter())[component, form] += count
    found: dict[tuple[str, str], str] = {}
    for (_, open_form), alike in sorted(slots.items(), key=lambda one: (-len(one[1]), one[0])):
        ((_, most),) = alike.most_common(1)
        if len(alike) >= SLOT_VALUES and most * 2 < alike.total():
            for key in alike:
                found.setdefault(key, open_form)
    return found


def _merged(kinds: list[ErrorKind]) -> list[ErrorKind]:
    """Small groups whose words are nearly those of a larger one in the same component join it."""
    kept: list[tuple[ErrorKind, frozenset[str]]] = []
    having: dict[tuple[str, str], list[int]] = {}  # which of them have a word, by component and word
    for kind in sorted(kinds, key=lambda each: (-len(each.members), each.component, each.form)):
        words = telling_words(kind.form) | {word for word in kind.form.split() if word.isdigit()}  # 429 is not 503
        places = [(kind.component, word) for word in words or [""]]
        home = None
        if len(kind.members) < 3:
            # Whoever has ALIKE of these words lacks few of them, so it has one of the few that are rarest.
            rarest = sorted((having.get(place, []) for place in places), key=len)[: int(len(words) * (1 - ALIKE)) + 1]
            for at in sorted({at for found in rarest for at in found}):
                near, known = kept[at]
                # That quoted words tell them apart was decided before.
                if overlap(known, words) >= ALIKE and _without_quotes(near.form) != _without_quotes(kind.form):
                    home = near
                    break
        if home is None:
            for place in places:
                having.setdefault(place, []).append(len(kept))
            kept.append((kind, words))
            continue
        home.members |= kind.members
        home.also += kind.also
        home.spans += kind.spans
    return sorted(
        (kind for kind, _ in kept), key=lambda each: (-len(each.members), min(each.members), each.component, each.form)
    )
