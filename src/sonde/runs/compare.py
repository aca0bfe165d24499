"""Two runs side by side, ids and times aside: equal, or the first difference; then what it cost, what was called, seen and answered.

Sessions are compared one by one, because parallel sub-calls finish in any order; the difference that came first in the left run is shown.
Retries of a model call and the fact of a resume are circumstances, not differences. Prompts show the time that is left: it is masked.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

from sonde.core.canonical import canonical_json, clip
from sonde.core.events import (
    AnyEvent,
    Event,
    HostReturned,
    ModelAsked,
    ModelFailed,
    RunEnded,
    RunResumed,
    SubcallStarted,
    WroteBack,
    as_dict,
)
from sonde.core.record import RunRecord
from sonde.runs.rundir import RunDir, fold

_IDS = frozenset({"seq", "at", "run_id", "request_hash", "annotation_ids"})
_TIMED = frozenset({"clock", "latency_s", "waited_s", "wait_s", "duration_s", "elapsed_s", "attempts"})
_COUNTED = frozenset({"tokens_in", "tokens_out", "cached_in", "cost_usd", "left"})
ASIDE = _IDS | _TIMED | _COUNTED
"""Ids, times, and counts that follow from texts which are compared themselves; their sums stand in `numbers`."""

SHOWN = 2_000
_SHARES = frozenset({"seconds", "tokens", "cost_usd", "max_wall_time_sec", "max_tokens_total", "max_cost_usd"})
_TIMES = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?|\b\d+(?:\.\d+)? ?(?:s|sec|seconds|minutes)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where the runs part, and what stands there on each side (None: nothing)."""

    session: str
    what: str
    field: str
    left: str | None
    right: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A number of both runs."""

    name: str
    left: float
    right: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """References that one side saw or cited and the other did not."""

    both: int
    only_left: list[str]
    only_right: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `sonde diff` prints; `equal` is about the paths, ids and times aside."""

    left: str
    right: str
    equal: bool
    first_difference: FirstDifference | None
    numbers: list[Pair]
    tools: list[Pair]
    evidence: Evidence
    citations: Evidence
    same_answer: bool
    left_answer: str
    right_answer: str
    answer_diff: list[str]

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def compare(left: RunDir, right: RunDir) -> Comparison:
    """Compare two run folders."""
    return compare_events(left.events(), right.events())


def compare_events(left: Sequence[AnyEvent], right: Sequence[AnyEvent]) -> Comparison:
    """Compare two streams."""
    difference = first_difference(left, right)
    one, other = fold(left), fold(right)
    answers = _answer(left), _answer(right)
    return Comparison(
        left=one.run_id,
        right=other.run_id,
        equal=difference is None,
        first_difference=difference,
        numbers=_numbers(one, other),
        tools=_tools(left, right),
        evidence=_evidence(_seen(left), _seen(right)),
        citations=_evidence(_cited(one), _cited(other)),
        same_answer=answers[0] == answers[1],
        left_answer=answers[0],
        right_answer=answers[1],
        answer_diff=_diff(*answers),
    )


def _diff(left: str, right: str) -> list[str]:
    return list(difflib.unified_diff(left.splitlines(), right.splitlines(), "left", "right", n=2, lineterm=""))


def first_difference(left: Iterable[AnyEvent], right: Iterable[AnyEvent]) -> FirstDifference | None:
    """The earliest place, in the left run's order, where the two are not the same."""
    ours, theirs = _by_session(left), _by_session(right)
    found = [
        place
        for session in sorted(ours.keys() | theirs.keys())
        if (place := _parting(session, ours.get(session, []), theirs.get(session, []))) is not None
    ]
    return min(found, key=lambda place: place[0])[1] if found else None


def _by_session(events: Iterable[AnyEvent]) -> dict[str, list[Event]]:
    grouped: dict[str, list[Event]] = {}
    for event in events:
        if not isinstance(event, RunResumed | ModelFailed):
            grouped.setdefault(event.session, []).append(event)
    return grouped


def _parting(session: str, ours: list[Event], theirs: list[Event]) -> tuple[int, FirstDifference] | None:
    for mine, other in zip(ours, theirs, strict=False):
        difference = _difference(session, mine, other)
        if difference is not None:
            return mine.seq, difference
    if len(ours) == len(theirs):
        return None
    longer = (ours if len(ours) > len(theirs) else theirs)[min(len(ours), len(theirs))]
    only = clip(canonical_json(comparable(longer)), SHOWN)
    sides = (only, None) if len(ours) > len(theirs) else (None, only)
    return longer.seq, FirstDifference(session=session, what=_what(longer), field="", left=sides[0], right=sides[1])


def _difference(session: str, mine: Event, other: Event) -> FirstDifference | None:
    left, right = comparable(mine), comparable(other)
    if left == right:
        return None
    name = next(key for key in (*left, *right) if left.get(key) != right.get(key))
    if left["type"] != right["type"]:
        name = "type"
    sides = [clip(_text(side.get(name)), SHOWN) for side in (left, right)]
    return FirstDifference(session=session, what=_what(mine), field=name, left=sides[0], right=sides[1])


def _what(event: Event) -> str:
    place = [f"{name} {getattr(event, name)}" for name in ("turn", "ordinal", "block") if hasattr(event, name)]
    return " ".join([str(as_dict(event)["type"]), *place])


def _text(value: Any) -> str:
    return value if isinstance(value, str) else canonical_json(value)


def comparable(event: Event) -> dict[str, Any]:
    """An event without what may differ between two runs that did the same: shares of a budget depend on the clock too."""
    fields = {name: value for name, value in as_dict(event).items() if name not in ASIDE}
    if isinstance(event, ModelAsked):
        fields["messages"] = [{**each, "content": _TIMES.sub("…", each["content"])} for each in event.messages]
    if isinstance(event, HostReturned) and event.name == "budget":
        fields["result"], fields["response_hash"] = _timeless(event.result), ""
    if isinstance(event, SubcallStarted):
        fields["budget"] = _timeless(event.budget)
    if isinstance(event, WroteBack):
        fields["annotation_ids"] = len(event.annotation_ids)
    return fields


def _timeless(left: Any) -> Any:
    if not isinstance(left, dict):
        return left
    return {name: value for name, value in cast("dict[str, Any]", left).items() if name not in _SHARES}


def _numbers(left: RunRecord, right: RunRecord) -> list[Pair]:
    ours, theirs = left.runtime_ref.usage.model_dump(), right.runtime_ref.usage.model_dump()
    pairs = [Pair(name=name, left=ours[name], right=theirs[name]) for name in ours]
    times = [(name, left.metrics, right.metrics) for name in ("total_latency_s", "model_latency_s", "tool_latency_s")]
    return pairs + [Pair(name=name, left=getattr(a, name), right=getattr(b, name)) for name, a, b in times]


def _tools(left: Iterable[AnyEvent], right: Iterable[AnyEvent]) -> list[Pair]:
    ours, theirs = (Counter(e.name for e in events if isinstance(e, HostReturned)) for events in (left, right))
    return [Pair(name=name, left=ours[name], right=theirs[name]) for name in sorted(ours | theirs)]


def _seen(events: Iterable[AnyEvent]) -> set[str]:
    return {str(each.get("ref")) for event in events if isinstance(event, HostReturned) for each in event.excerpts}


def _cited(record: RunRecord) -> set[str]:
    return {str(citation.get("ref")) for citation in record.citations}


def _evidence(left: set[str], right: set[str]) -> Evidence:
    return Evidence(both=len(left & right), only_left=sorted(left - right), only_right=sorted(right - left))


def _answer(events: Iterable[AnyEvent]) -> str:
    ends = [event for event in events if isinstance(event, RunEnded)]
    output: Any = ends[-1].output if ends else None
    match output:
        case None:
            return ""
        case str():
            return output
        case {"answer": str() as words, "value": None | str() | {"answer": str()}}:
            return words
        case _:
            return json.dumps(output, indent=2, sort_keys=True, ensure_ascii=False)
