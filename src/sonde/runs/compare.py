"""Two runs side by side, ignoring ids and times: equal, or the first difference; then cost, calls, evidence and answers.

Sessions are compared one by one, because parallel sub-calls finish in any order; the difference that came first in the left run is shown.
Retries of a model call and a resume are circumstances, not differences. Prompts show how much time is left, so times in them are masked.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import Any, cast

from sonde.core.canonical import canonical_json, clip
from sonde.core.difference import hunks
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
from sonde.runs.rundir import fold

_IDS = frozenset({"seq", "at", "run_id", "request_hash", "annotation_ids", "price_source"})
_TIMED = frozenset({"clock", "latency_s", "waited_s", "wait_s", "duration_s", "elapsed_s", "call_s", "attempts"})
_COUNTED = frozenset({"tokens_in", "tokens_out", "cached_in", "cost_usd", "unpriced", "left"})
ASIDE = _IDS | _TIMED | _COUNTED
"""Ids, times, and counts that follow from texts which are compared themselves; `numbers` has their sums."""

SHOWN = 2_000
_SHARES = frozenset({"seconds", "tokens", "cost_usd", "max_wall_time_sec", "max_tokens_total", "max_cost_usd"})
_TIMES = re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?Z?|\b\d+(?:\.\d+)? ?(?:s|sec|seconds|minutes)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstDifference:
    """Where the runs part, and what each side has there (None: nothing)."""

    session: str
    what: str
    field: str
    left: str | None
    right: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A number of both runs; None for a cost that nobody knows."""

    name: str
    left: float | None
    right: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """References that one side saw or cited and the other did not."""

    both: int
    only_left: list[str]
    only_right: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `sonde diff` prints; `equal` ignores ids and times."""

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


def compare(left: Sequence[AnyEvent], right: Sequence[AnyEvent]) -> Comparison:
    """Compare the events of two runs."""
    difference = first_difference(left, right)
    one, other = fold(left), fold(right)
    ours, theirs = one.runtime_ref.usage.model_dump(), other.runtime_ref.usage.model_dump()
    ours["cost_usd"], theirs["cost_usd"] = one.runtime_ref.usage.cost, other.runtime_ref.usage.cost
    for name in ("total_latency_s", "model_latency_s", "tool_latency_s"):
        ours[name], theirs[name] = getattr(one.metrics, name), getattr(other.metrics, name)
    our_calls, their_calls = (
        Counter(event.name for event in events if isinstance(event, HostReturned)) for events in (left, right)
    )
    answers = _answer(left), _answer(right)
    changed = hunks(answers[0].splitlines(), answers[1].splitlines(), context=2)
    return Comparison(
        left=one.run_id,
        right=other.run_id,
        equal=difference is None,
        first_difference=difference,
        numbers=[Pair(name=name, left=ours[name], right=theirs.get(name)) for name in ours if name != "unpriced"],
        tools=[
            Pair(name=name, left=our_calls[name], right=their_calls[name]) for name in sorted(our_calls | their_calls)
        ],
        evidence=_evidence(_seen(left), _seen(right)),
        citations=_evidence(_cited(one), _cited(other)),
        same_answer=answers[0] == answers[1],
        left_answer=answers[0],
        right_answer=answers[1],
        answer_diff=["--- left", "+++ right", *changed] if changed else [],
    )


def first_difference(left: Iterable[AnyEvent], right: Iterable[AnyEvent]) -> FirstDifference | None:
    """The earliest place, in the left run's order, where the two are not the same."""
    ours, theirs = _by_session(left), _by_session(right)
    found: list[tuple[int, FirstDifference]] = []
    for session in sorted(ours.keys() | theirs.keys()):
        for mine, other in zip_longest(ours.get(session, []), theirs.get(session, [])):
            one, two = (None if event is None else comparable(event) for event in (mine, other))
            if one == two:
                continue
            name = ""
            sides = [None if side is None else canonical_json(side) for side in (one, two)]
            if one is not None and two is not None:
                name = next(key for key in ("type", *one, *two) if one.get(key) != two.get(key))
                values = (side.get(name) for side in (one, two))
                sides = [value if isinstance(value, str) else canonical_json(value) for value in values]
            shown = [None if side is None else clip(side, SHOWN) for side in sides]
            what: Event = mine or other
            place = [f"{part} {getattr(what, part)}" for part in ("turn", "ordinal", "block") if hasattr(what, part)]
            words = " ".join([str(as_dict(what)["type"]), *place])
            difference = FirstDifference(session=session, what=words, field=name, left=shown[0], right=shown[1])
            found.append((what.seq, difference))
            break
    return min(found, key=lambda place: place[0])[1] if found else None


def _by_session(events: Iterable[AnyEvent]) -> dict[str, list[Event]]:
    grouped: dict[str, list[Event]] = {}
    for event in events:
        if not isinstance(event, RunResumed | ModelFailed):
            grouped.setdefault(event.session, []).append(event)
    return grouped


def comparable(event: Event) -> dict[str, Any]:
    """An event without what may differ between two runs that did the same. Shares of a budget depend on the clock too."""
    fields = {name: value for name, value in as_dict(event).items() if name not in ASIDE}
    if isinstance(event, ModelAsked):
        fields["messages"] = [{**each, "content": _TIMES.sub("…", each.get("content", ""))} for each in event.messages]
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
