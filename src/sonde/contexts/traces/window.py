"""A window of time over all its traces: how many failed, what failed alike, since when, and what else changed. No model, no engine.

    window = read_window(store, TraceQuery(start_us=..., end_us=...))
    window.row()                                  # {"traces": 30, "failed": 10, "failure_rate": 0.33, "verdict": "incident", ...}
    [group.row() for group in window.groups]      # the main group first
    window.group_by("release"), window.rate_over_time(), window.compare_windows(at="2026-11-01T12:14Z")

Groups are errors, and where figures are out of line `slow`, `costly` or `retries`. All are found in the same way: which traces are hit, and
whether they begin at some moment (a likelihood ratio, so that one stray error does not set the onset). Bounded: from more than READ_TRACES
traces or READ_SPANS spans every n-th is read and the counts are of those; a gap says so.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate
from statistics import median
from typing import Literal, TypeVar

from sonde.contexts.traces.groups import (
    BLAST_KEYS,
    MAX_TRACE_SPANS,
    MODEL_KEYS,
    RELEASE_KEYS,
    TOOL_KEYS,
    Attribute,
    AttributeTable,
    ErrorKind,
    StepFigures,
    TraceFacts,
    error_groups_of,
    facts_of,
)
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.shape import quantiles
from sonde.contexts.traces.span import Row, time_text, us_of
from sonde.contexts.traces.store import TraceQuery, TraceRow, TraceStore
from sonde.core.canonical import sha256_text
from sonde.core.deadline import deadline_in_force
from sonde.errors import ToolFault

READ_TRACES = 20_000
READ_SPANS = 400_000
SERVER_TRACES = 1_000  # each is a request
LISTED = 200_000
BUCKETS = 12
SHOWN_VALUES = 8
SURE = 4.5  # of a log likelihood ratio for an onset, and the logarithm of the number of groups that were looked at
BUMP = 4.0  # more for an onset that also ends: there are many more of those to choose from
FEW = 3
COMPARED = 12  # values of a component: fewer are not searched for a shift
BURST = 5  # hits of an onset that also ends
RANK_Z = 3.7  # of a Mann-Whitney test
RANK_BUMP = 1.0
PIECES = 150
MAX_COLUMNS = 300
Each = TypeVar("Each")
Kind = Literal["error", "retries", "slow", "costly"]
Pattern = Literal["onset", "steady", "stray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Onset:
    """Where hits begin, and end if they do: positions in the order of traces, with hits and traces before and since."""

    position: int
    end: int
    sureness: float
    before: tuple[int, int]
    since: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Traces that were hit alike, by their positions in the window."""

    kind: Kind
    component: str
    message: str
    form: str
    members: tuple[int, ...]
    span_ids: tuple[str, ...]
    onset: Onset | None
    pattern: Pattern
    spans: int = 0
    also: int = 0
    figures: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def id(self) -> str:
        """The same for the same failure in every window."""
        return sha256_text(f"{self.kind}\0{self.component}\0{self.form}")[:12]

    @property
    def name(self) -> str:
        """As reports say it."""
        return f"{self.component}: {self.message}" if self.message else self.component


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The traces of a window by (start, id), and their groups, the main one first."""

    traces: tuple[TraceFacts, ...]
    listed: int
    groups: tuple[Group, ...]
    table: AttributeTable
    gaps: tuple[str, ...] = ()

    @property
    def verdict(self) -> Literal["healthy", "steady", "incident"]:
        """`incident`: something began, a group of a tenth and more failed, or a fifth of all; `steady`: other failures; else healthy.
        Errors that began but were all mended by another try are an incident only if they are a tenth of the traces.
        """
        for each in self.groups:
            failed = sum(self.traces[at].outcome == "failed" for at in each.members)
            mended = each.kind == "error" and not failed and self._share(each) < 0.1
            if (each.pattern == "onset" and not mended) or (
                each.pattern == "steady" and failed * 10 >= len(self.traces)
            ):
                return "incident"
        if self.failed * 5 > len(self.traces):
            return "incident"
        return "steady" if self.groups else "healthy"

    @property
    def failed(self) -> int:
        """How many traces failed."""
        return sum(each.outcome == "failed" for each in self.traces)

    def _share(self, group: Group) -> float:
        return len(group.members) / max(1, len(self.traces))

    def row(self) -> Row:
        """The window as data."""
        traces = self.traces
        outcomes = Counter(each.outcome for each in traces)
        tokens = [each.tokens for each in traces if each.tokens]
        costs = [each.cost for each in traces if each.cost]
        return {
            "traces": len(traces),
            "listed": self.listed,
            "failed": outcomes["failed"],
            "recovered": outcomes["recovered"],
            "failure_rate": round(outcomes["failed"] / max(1, len(traces)), 4),
            "spans": sum(each.spans for each in traces),
            "error_spans": sum(each.error_spans for each in traces),
            "start": seconds(traces[0].start_us) if traces else None,
            "end": seconds(traces[-1].start_us) if traces else None,
            "verdict": self.verdict,
            "latency_ms": quantiles([each.latency_ms for each in traces]),
            "tokens": quantiles([float(each) for each in tokens]),
            "cost": quantiles(costs),
            "rate_over_time": self.rate_over_time(),
            "outliers": self.outliers(),
        }

    def outliers(self) -> list[Row]:
        """Single traces far beyond the others (ten deviations and five times the median), in time or tokens; at most five of each."""
        found: list[Row] = []
        for what, figures in (
            ("latency_ms", [each.latency_ms for each in self.traces]),
            ("tokens", [float(each.tokens) for each in self.traces]),
        ):
            if len(figures) < 8:
                continue
            middle = median(figures)
            spread = median(abs(each - middle) for each in figures) * 1.4826
            far = [
                (each, at) for at, each in enumerate(figures) if middle and each > max(middle + 10 * spread, 5 * middle)
            ]
            for value, at in sorted(far, reverse=True)[:5]:
                ids = {"trace_id": self.traces[at].trace_id, "root_span_id": self.traces[at].root_span_id}
                found.append({**ids, "what": what, "value": round(value), "median": round(middle)})
        return found

    def group(self, name: str) -> Group:
        """A group by its id, or by part of its name; ToolFault if there is none."""
        wanted = name.strip().lower()
        for each in self.groups:
            if wanted == each.id or (wanted and wanted in each.name.lower()):
                return each
        known = ", ".join(f"{each.id} ({each.name[:60]})" for each in self.groups[:SHOWN_VALUES])
        raise ToolFault(f"there is no group {name!r}; there are: {known or 'none'}")

    def group_by(self, key: str, *, group: str | None = None, limit: int = 30) -> list[Row]:
        """Traces by an attribute (`release`, `model`, `tool`, `user.id`, any key of a span), by `component` of the failure, by `outcome`
        or by `group`: how many, how many failed, and with `group` how many are in that one. The largest first.
        """
        hits = set(self.group(group).members) if group else None
        counted: dict[str, list[int]] = {}
        for position, facts in enumerate(self.traces):
            for value in self._values(facts, position, key):
                row = counted.setdefault(value, [0, 0, 0])
                row[0] += 1
                row[1] += facts.outcome == "failed"
                row[2] += hits is not None and position in hits
        if not counted and key in {"release", "model", "tool"}:
            return []
        if not counted:
            keys = ", ".join(sorted(self.table.values)[:40])
            raise ToolFault(
                f"no trace of the window has {key!r}; keys: component, outcome, group, model, tool, release, {keys}"
            )
        rows: list[Row] = []
        for value, (traces, failed, inside) in sorted(counted.items(), key=lambda item: (-item[1][0], item[0]))[:limit]:
            row = {"value": value, "traces": traces, "failed": failed, "failure_rate": round(failed / traces, 4)}
            rows.append({**row, "in_group": inside} if hits is not None else row)
        return rows

    def _values(self, facts: TraceFacts, position: int, key: str) -> Iterable[str]:
        match key:
            case "outcome":
                return [facts.outcome]
            case "component":
                return [facts.failure.component] if facts.failure else []
            case "group":
                return [each.name for each in self.groups if position in each.members]
            case _:
                keys = keys_of(key)
                return dict.fromkeys(value for name, value in facts.attributes if name in keys)

    def rate_over_time(self, *, group: str | None = None, buckets: int = BUCKETS) -> list[Row]:
        """The window in equal pieces of time: traces, failed ones (or those of a group) and the median latency of each."""
        if not self.traces:
            return []
        hits = set(self.group(group).members) if group else None
        return self._rates(hits, buckets)

    def _rates(self, hits: set[int] | None, buckets: int = BUCKETS) -> list[Row]:
        buckets = max(1, min(buckets, 100))
        first, last = self.traces[0].start_us, self.traces[-1].start_us
        width = max(1, -(-(last - first + 1) // buckets))
        parts: dict[int, list[int]] = {}
        for position, facts in enumerate(self.traces):
            parts.setdefault((facts.start_us - first) // width, []).append(position)
        rows: list[Row] = []
        for part in range((last - first) // width + 1):
            inside = parts.get(part, [])
            hit = [at for at in inside if (self.traces[at].outcome == "failed" if hits is None else at in hits)]
            rows.append(
                {
                    "from": seconds(first + part * width),
                    "traces": len(inside),
                    "hit": len(hit),
                    "rate": round(len(hit) / len(inside), 4) if inside else None,
                    "median_ms": round(median(self.traces[at].latency_ms for at in inside), 1) if inside else None,
                }
            )
        return rows

    def compare_windows(
        self, *, at: str | None = None, before: Sequence[str] | None = None, after: Sequence[str] | None = None
    ) -> Row:
        """Two parts of the window side by side: before and after a moment, or any two spans of time [from, to): counts, medians, the
        groups of each, and the attribute values that only one of them has.
        """
        if at is not None:
            ranges = ((-math.inf, _moment(at)), (_moment(at), math.inf))
        elif before is not None and after is not None and len(before) == len(after) == 2:
            ranges = tuple((_moment(one[0]), _moment(one[1])) for one in (before, after))
        else:
            raise ToolFault("compare_windows takes at='2026-11-01T12:00Z', or before=[from, to] and after=[from, to]")
        parts = [[at for at, each in enumerate(self.traces) if low <= each.start_us < high] for low, high in ranges]
        rows: list[Row] = []
        seen: list[Counter[Attribute]] = []
        for part in parts:
            inside = [self.traces[at] for at in part]
            seen.append(Counter(pair for each in inside for pair in each.attributes))
            failed = sum(each.outcome == "failed" for each in inside)
            rows.append(
                {
                    "traces": len(inside),
                    "failed": failed,
                    "failure_rate": round(failed / len(inside), 4) if inside else None,
                    "median_ms": round(median(each.latency_ms for each in inside), 1) if inside else None,
                    "median_tokens": round(median(each.tokens for each in inside)) if inside else None,
                    "groups": [
                        {"id": each.id, "group": each.name, "count": hit}
                        for each in self.groups
                        if (hit := len(set(each.members).intersection(part)))
                    ],
                }
            )
        only: list[list[Row]] = []
        for own, other in (seen, reversed(seen)):
            found = [(count, pair) for pair, count in own.items() if pair not in other and count >= FEW]
            top = sorted(found, key=lambda one: (-one[0], one[1]))[:SHOWN_VALUES]
            only.append([{"attribute": key, "value": value, "traces": count} for count, (key, value) in top])
        return {"before": rows[0], "after": rows[1], "only_before": only[0], "only_after": only[1]}

    def group_row(self, group: Group) -> Row:
        """A group as data: counts, times, shares, what is over-represented in it, and whom it touches."""
        inside = [self.traces[at] for at in group.members]
        onset = group.onset
        return {
            "id": group.id,
            "kind": group.kind,
            "component": group.component,
            "service": self._service(group),
            "message": group.message,
            "count": len(inside),
            "share": round(self._share(group), 4),
            "failed": sum(each.outcome == "failed" for each in inside),
            "recovered": sum(each.outcome == "recovered" for each in inside),
            "spans": group.spans,
            "also": group.also,
            "pattern": group.pattern,
            "first_seen": seconds(inside[0].start_us),
            "last_seen": seconds(inside[-1].start_us),
            "onset": None
            if onset is None
            else {
                "at": seconds(self.traces[onset.position].start_us),
                "before": f"{onset.before[0]} of {onset.before[1]}",
                "since": f"{onset.since[0]} of {onset.since[1]}",
                **self._reached(group, onset.position),
            },
            "figures": dict(group.figures),
            "by": self.shares(group),
            "over_represented": self.over_represented(group),
            "blast_radius": self.blast_radius(group),
            "rate_over_time": [
                {"from": each["from"], "traces": each["traces"], "hit": each["hit"]}
                for each in self._rates(set(group.members))
            ],
            "example_trace_ids": [each.trace_id for each in spread(inside)],
            "example_span_ids": list(group.span_ids[:5]),
        }

    def _service(self, group: Group) -> str:
        """The service in which most of the group failed; empty if spans do not say."""
        failures = [
            each for at in group.members for each in self.traces[at].failures if each.component == group.component
        ]
        named = Counter(each.service for each in failures if each.service)
        return named.most_common(1)[0][0] if named else ""

    def _reached(self, group: Group, onset: int) -> dict[str, str]:
        """Of the traces that called the group's component, how many it hit, before the onset and since."""
        hits = set(group.members)
        calls = [
            at for at, each in enumerate(self.traces) if any(step.component == group.component for step in each.steps)
        ]
        sides = {"before": [at for at in calls if at < onset], "since": [at for at in calls if at >= onset]}
        return {f"{side}_of_calls": f"{sum(at in hits for at in ats)} of {len(ats)}" for side, ats in sides.items()}

    def shares(self, group: Group) -> dict[str, list[Row]]:
        """By release, model and tool: how many of the traces that have a value are in the group."""
        found: dict[str, list[Row]] = {}
        members = set(group.members)
        for name in ("release", "model", "tool"):
            counted: dict[str, list[int]] = {}
            for position, facts in enumerate(self.traces):
                for value in self._values(facts, position, name):
                    row = counted.setdefault(value, [0, 0])
                    row[0] += 1
                    row[1] += position in members
            ranked = sorted(counted.items(), key=lambda item: (-item[1][1], -item[1][0], item[0]))[:SHOWN_VALUES]
            rows = [{"value": value, "count": inside, "traces": traces} for value, (traces, inside) in ranked]
            if any(row["count"] for row in rows):
                found[name] = rows
        return found

    def over_represented(self, group: Group) -> list[Row]:
        """Attribute values that the group has more often than the traces outside it, the clearest first; `lift` is how many times."""
        members = set(group.members)
        inside = Counter(pair for at in members for pair in self.traces[at].attributes)
        everywhere = Counter(pair for each in self.traces for pair in each.attributes)
        outside = len(self.traces) - len(members)
        found: list[tuple[float, Row]] = []
        for (key, value), hit in inside.items():
            others = everywhere[key, value] - hit
            share, usual = hit / len(members), others / max(1, outside)
            if hit < 2 or share <= usual or outside == 0:
                continue
            sureness = surplus(hit, len(members), others, outside)
            if sureness < SURE / 2:
                continue
            row = {
                "attribute": key,
                "value": value,
                "in_group": hit,
                "of_group": len(members),
                "in_others": others,
                "of_others": outside,
                "lift": round(share / max(usual, 0.5 / outside), 1),
            }
            found.append((sureness, row))
        return [row for _, row in sorted(found, key=lambda one: (-one[0], one[1]["attribute"]))[:SHOWN_VALUES]]

    def blast_radius(self, group: Group) -> dict[str, int]:
        """How many users, sessions, services and tenants the group touches, where attributes say so."""
        radius: dict[str, int] = {}
        for name, keys in BLAST_KEYS.items():
            touched = {value for at in group.members for key, value in self.traces[at].attributes if key in keys}
            if touched:
                radius[name] = len(touched)
        return radius


@cache
def keys_of(name: str) -> frozenset[str]:
    """The attribute keys behind a name such as `model`."""
    known = {"release": RELEASE_KEYS, "model": MODEL_KEYS, "tool": TOOL_KEYS}
    known |= {one.removesuffix("s"): keys for one, keys in BLAST_KEYS.items()}
    return frozenset((*known.get(name, ()), name))


def _moment(text: str) -> int:
    try:
        found = us_of(text)
    except ValueError:
        found = None
    if found is None:
        raise ToolFault(f"{text!r} is not a time; write 2026-11-01T12:00:00Z")
    return found


def seconds(microseconds: int) -> str:
    """RFC 3339 to the second, as reports write times."""
    return f"{time_text(microseconds)[:19]}Z"


def spread(items: Sequence[Each], most: int = 5) -> list[Each]:
    """A few, from the first to the last."""
    if len(items) <= most:
        return list(items)
    return [items[round((len(items) - 1) / (most - 1) * number)] for number in range(most)]


def read_window(store: TraceStore, query: TraceQuery | None = None, trace_ids: Sequence[str] = ()) -> Window:
    """The window of a query, or of the named traces alone, read once; named traces count whether the query finds them or not."""
    rows = list(_rows(store, query)) if query is not None else []
    gaps: list[str] = []
    listed = len(rows)
    if listed >= LISTED:
        gaps.append(f"the window has more than {LISTED:,} traces; only the first of them count")
    most = SERVER_TRACES if isinstance(store, ServerStore) else READ_TRACES
    spans = sum(row.span_count for row in rows)
    step = max(1, -(-listed // most), -(-spans // READ_SPANS))
    if step > 1:
        gaps.append(
            f"{listed:,} traces with {spans:,} spans lie in the window: one in {step} was read, and counts are of those"
        )
    chosen = dict.fromkeys(row.trace_id for row in rows[::step])
    table = AttributeTable()
    facts: list[TraceFacts] = []
    wanted = (*chosen, *(each for each in trace_ids if each not in chosen))
    run = deadline_in_force()
    since = 0.0 if run is None else run.clock.now()
    for trace_id in wanted:
        each = facts_of(trace_id, store.spans(trace_id), table)
        facts.append(each)
        if each.cut:
            gaps.append(f"{trace_id} has {each.spans:,} spans; only the first {MAX_TRACE_SPANS:,} count")
        try:
            since = since if run is None else run.check(since, "others were still unread")
        except ToolFault as fault:
            gaps.append(f"{len(facts):,} of {len(wanted):,} traces were read and count: {fault.message}")
            break
    return window_of(facts, table, listed=max(listed, len(facts)), gaps=gaps)


def _rows(store: TraceStore, query: TraceQuery) -> Iterator[TraceRow]:
    seen, after = 0, query.after
    while seen < LISTED:
        page = store.traces(replace(query, after=after, limit=1000))
        yield from page.rows
        seen += len(page.rows)
        if page.more is None or not page.rows:
            return
        after = page.rows[-1].trace_id


def window_of(facts: Iterable[TraceFacts], table: AttributeTable, *, listed: int, gaps: Sequence[str] = ()) -> Window:
    """The window of traces whose facts are known."""
    traces = tuple(sorted(facts, key=lambda each: (each.start_us, each.trace_id)))
    kinds = error_groups_of(traces)
    looks = sum(len(kind.members) >= FEW for kind in kinds)
    fine = [0, *accumulate(not each.failures for each in traces)]
    errors = [_error_group(kind, traces, fine, looks) for kind in kinds]
    return Window(
        traces=traces,
        listed=listed,
        groups=tuple(_ranked([*errors, *_out_of_line(traces, errors)], traces)),
        table=table,
        gaps=tuple(gaps),
    )


def _ranked(groups: list[Group], traces: Sequence[TraceFacts]) -> list[Group]:
    """What began in the window comes first, failures before figures, the clearest onset before others; then what is there all along, then
    errors that all traces recovered from; then strays, by size.
    """
    order = {"onset": 0, "steady": 1, "stray": 2}

    def rank(group: Group) -> tuple[bool, bool, int, bool, float, int, int, str]:
        sureness = round(group.onset.sureness, 6) if group.onset else 0.0
        figures = group.kind in {"slow", "costly"} or (group.kind == "retries" and group.form == "calls")
        mended = not figures and all(traces[at].outcome == "recovered" for at in group.members)
        within = (order[group.pattern], figures, -sureness, -len(group.members), group.members[0], group.name)
        return (group.pattern == "stray", mended, *within)

    return sorted(groups, key=rank)


def _error_group(kind: ErrorKind, traces: Sequence[TraceFacts], fine: Sequence[int], looks: int) -> Group:
    """`fine` says how many traces before each one, and in all, have no failure."""
    members = tuple(sorted(kind.members))
    # First among its own and the fine ones alone: thousands of groups cannot each look at all traces.
    onset = onset_of([fine[at] + place for place, at in enumerate(members)], fine[-1] + len(members), looks=looks)
    if onset is not None:
        onset = onset_of(members, len(traces), hit_otherwise(members, traces), looks)
    failures = [kind.members[at] for at in members]
    again = [traces[at].retries.get(kind.component, 0) for at in members]
    first = failures[0] if onset is None else kind.members[onset.position]
    pattern = _pattern(onset, members, len(traces))
    return Group(
        kind="retries" if median(again) >= 2 and pattern != "stray" else "error",
        component=kind.component,
        message=first.message[:400],
        form=kind.form,
        members=members,
        span_ids=tuple(each.span_id for each in spread(failures)),
        onset=onset,
        pattern=pattern,
        spans=kind.spans,
        also=kind.also,
        figures={"median_retries": median(again)} if median(again) >= 2 else {},
    )


def together(window: Window) -> Group:
    """All failed traces as if they were one group: a change may break many things in many ways."""
    members = tuple(at for at, each in enumerate(window.traces) if each.outcome == "failed")
    onset = onset_of(members, len(window.traces))
    return Group(
        kind="error",
        component="",
        message="",
        form="",
        members=members,
        span_ids=(),
        onset=onset,
        pattern=_pattern(onset, members, len(window.traces)),
    )


def _pattern(onset: Onset | None, members: Sequence[int], traces: int) -> Pattern:
    if onset is not None:
        return "onset"
    return "steady" if len(members) >= FEW and len(members) * 50 >= traces else "stray"


def surplus(hit: int, of: int, others: int, of_others: int) -> float:
    """The log likelihood ratio that two shares differ rather than are one."""
    together = _likelihood(hit + others, of + of_others)
    return _likelihood(hit, of) + _likelihood(others, of_others) - together


def _likelihood(hits: int, of: int) -> float:
    if hits in {0, of}:
        return 0.0
    return hits * math.log(hits / of) + (of - hits) * math.log(1 - hits / of)


def hit_otherwise(members: Sequence[int], traces: Sequence[TraceFacts]) -> tuple[int, ...]:
    """Traces that failed in another way: whether they would have failed in this one nobody knows."""
    own = set(members)
    return tuple(at for at, each in enumerate(traces) if each.failures and at not in own)


def onset_of(hits: Sequence[int], of: int, without: Sequence[int] = (), looks: int = 1) -> Onset | None:
    """Where hits begin to come more often than before, if they clearly do; `hits` are positions in order. One early stray does not count,
    since the many traces without a hit behind it speak against it. Positions in `without` count neither as hit nor as fine. The more
    groups were looked at, the clearer it must be.
    """
    if without:
        found = onset_of([at - bisect_left(without, at) for at in hits], of - len(without), looks=looks)
        if found is None:
            return None
        left = sorted(set(range(of)).difference(without))
        start, stop = left[found.position], left[found.end]
        return replace(
            found, position=start, end=stop, before=(found.before[0], start), since=(found.since[0], stop - start + 1)
        )
    best: Onset | None = None
    worth = SURE + math.log(max(1, looks))
    ends = hits if len(hits) <= 300 else hits[-1:]
    for first, start in enumerate(hits):
        for stop in (of - 1, *ends):
            last = bisect_left(hits, stop + 1)
            inside, length = last - first, stop - start + 1
            if inside < (BURST if stop < of - 1 else FEW) or start < FEW:  # too few before it to call it a beginning
                continue
            outside = len(hits) - inside
            if inside * (of - length) <= outside * length:
                continue
            sureness = surplus(inside, length, outside, of - length)
            value = sureness - (BUMP if stop < of - 1 else 0.0) + (1.0 if inside == length and not outside else 0.0)
            if value > worth:
                worth = value
                best = Onset(position=start, end=stop, sureness=sureness, before=(first, start), since=(inside, length))
    return best


def _out_of_line(traces: Sequence[TraceFacts], errors: Sequence[Group]) -> list[Group]:
    """Groups of traces whose own time, tokens, cost or calls of one component are out of line, unless errors explain them. Failed traces
    are not compared: they end early, or wait long.
    """
    columns: dict[str, list[tuple[int, StepFigures]]] = {}
    for at, facts in enumerate(traces):
        for step in facts.steps if facts.outcome != "failed" else ():
            columns.setdefault(step.component, []).append((at, step))
    usual = {
        "self_ms": median(each.latency_ms for each in traces) if traces else 0.0,
        "tokens": median(each.tokens for each in traces) if traces else 0.0,
        "cost": median(each.cost for each in traces) if traces else 0.0,
        "calls": 0.0,
    }
    frequent = sorted(columns.items(), key=lambda item: (-len(item[1]), item[0]))[:MAX_COLUMNS]
    found: list[tuple[float, Group]] = []
    metrics: tuple[tuple[Kind, str, Callable[[StepFigures], float]], ...] = (
        ("retries", "calls", lambda step: float(step.calls)),
        ("costly", "cost", lambda step: step.cost / step.calls),
        ("costly", "tokens", lambda step: step.tokens / step.calls),
        ("slow", "self_ms", lambda step: step.self_ms / step.calls),
    )
    for kind, what, figure in metrics:
        for component, column in sorted(frequent):
            values = [figure(step) for _, step in column]
            if len(values) < COMPARED or not any(values):
                continue
            often = median(step.calls for _, step in column)
            shift = _shift(values, least=2.0 if what == "calls" else 0.15 * usual[what] / often)
            if shift is None:
                continue
            hits, before, after = shift
            members = tuple(column[at][0] for at in hits)
            onset = onset_of(members, len(traces))
            if onset is None:
                continue
            units = {"self_ms": "ms", "tokens": "tokens", "cost": "cost", "calls": "calls"}[what]
            message = f"{_amount(after)} {units} per {'trace' if what == 'calls' else 'call'}, {_amount(before)} before"
            group = Group(
                kind=kind,
                component=component,
                message=message,
                form=what,
                members=members,
                span_ids=tuple(traces[at].root_span_id for at in spread(members)),
                onset=onset,
                pattern="onset",
                figures={"before": round(before, 4), "after": round(after, 4)},
            )
            found.append(((after - before) / max(usual[what], 1e-9), group))
    kept: list[Group] = []
    for _, group in sorted(found, key=lambda one: -one[0]):
        inside = set(group.members)
        explained = any(
            len(inside.intersection(other.members))
            >= (0.7 if other.kind in {"error", "retries"} else 0.5) * len(inside)
            for other in (*errors, *kept)
        )
        if not explained:
            kept.append(group)
    return kept


def _amount(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _shift(values: Sequence[float], *, least: float) -> tuple[list[int], float, float] | None:
    """The positions whose values are out of line, and the medians outside and among them: a new level since some moment, or a part of the
    values far above the rest. `least` is the increase below which nobody would call it that.
    """
    moved = _level(values)
    if moved is not None:
        start, stop, before, after = moved
        if after >= 1.5 * before and after - before >= least:
            between = math.sqrt(max(before, 1e-9) * after)
            return [at for at in range(start, stop) if values[at] > between], before, after
    middle = median(values)
    spread_out = median(abs(each - middle) for each in values) * 1.4826
    limit = max(middle + 6 * spread_out, 2 * middle, middle + least)
    hits = [at for at, value in enumerate(values) if value > limit]
    if len(hits) < FEW:
        return None
    others = [value for value in values if value <= limit]
    return hits, median(others), median(values[at] for at in hits)


def _level(values: Sequence[float]) -> tuple[int, int, float, float] | None:
    """The part of the values that ranks higher than the rest (the largest Mann-Whitney z), to the end or not, with both medians."""
    count = len(values)
    order = sorted(range(count), key=lambda at: values[at])
    ranks = [0.0] * count
    at = 0
    while at < count:  # equal values share the middle of their ranks
        stop = at
        while stop + 1 < count and values[order[stop + 1]] == values[order[at]]:
            stop += 1
        for place in range(at, stop + 1):
            ranks[order[place]] = (at + stop) / 2 + 1
        at = stop + 1
    sums = [0.0]
    for rank in ranks:
        sums.append(sums[-1] + rank)
    cuts = (
        sorted({round(count * piece / PIECES) for piece in range(PIECES + 1)}) if count > PIECES else range(count + 1)
    )
    best, found = RANK_Z, None
    for start in cuts:
        for stop in cuts:
            inside = stop - start
            if inside < 5 or count - inside < 5:
                continue
            spread_out = math.sqrt(inside * (count - inside) * (count + 1) / 12)
            z = (sums[stop] - sums[start] - inside * (count + 1) / 2) / spread_out
            z -= RANK_BUMP if start > 0 and stop < count else 0.0
            if z > best and start >= 5:
                best, found = z, (start, stop)
    if found is None:
        return None
    start, stop = found
    return start, stop, median([*values[:start], *values[stop:]]), median(values[start:stop])
