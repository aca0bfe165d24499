"""A window over all its traces: counts, groups, onsets, figures out of line, and the three tables. No model, no engine."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sonde.contexts.traces import groups
from sonde.contexts.traces.catalog import export_traces
from sonde.contexts.traces.failure_words import component_of, folded
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.groups import Failure, error_groups_of
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.window import Window, read_window
from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ToolFault

START_NS = 1_780_000_000_000_000_000
MINUTE = 60_000_000_000
Json = dict[str, Any]


def step(name: str, *, ms: int = 300, error: str = "", tries: int = 1, tokens: int | None = None) -> Json:
    used = {} if tokens is None else {"llm.token_count.total": tokens}
    return {"name": name, "ms": ms, "error": error, "tries": tries, "attributes": used}


def trace(number: int, steps: Iterable[Json], *, root_error: str = "", **attributes: Any) -> list[Json]:
    """A root and its steps one after the other; a step with several tries fails in all but the last, or in all if it has an error."""
    made: list[Json] = []

    def span(name: str, parent: str | None, at: int, ms: int, *, error: str, said: Json) -> str:
        span_id = f"{number + 1:010x}{len(made):06x}"
        made.append(
            {
                "trace_id": f"{number + 1:032x}",
                "span_id": span_id,
                "parent_id": parent,
                "name": name,
                "start_time": START_NS + number * MINUTE + at,
                "end_time": START_NS + number * MINUTE + at + ms * 1_000_000,
                "status_code": "ERROR" if error else "UNSET",
                "status_message": error,
                "events": [],
                "attributes": said,
            }
        )
        return span_id

    root = span("handle", None, 0, 0, error=root_error, said=attributes)
    at = 1_000_000
    for each in steps:
        for again in range(each["tries"]):
            last = again == each["tries"] - 1
            error = each["error"] if last else "ReadTimeout after 30 s"
            span(each["name"], root, at, each["ms"], error=error, said=each["attributes"])
            at += each["ms"] * 1_000_000
    made[0]["end_time"] = made[0]["start_time"] + at
    return made


@pytest.fixture
def window(tmp_path: Path) -> Callable[[Iterable[list[Json]]], Window]:
    def read(traces: Iterable[list[Json]]) -> Window:
        path = tmp_path / "traces.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for rows in traces for row in rows))
        with FileStore(path) as store:
            return read_window(store, TraceQuery())

    return read


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("order 8812-AX not found", "order 9-B not found"),
        ("Step 4: no answer in 30 s", "Step 12: no answer in 7.5 s"),
        ("SKU-1193 is gone at 2026-01-01T10:00:00Z", "SKU-7 is gone at 2026-02-03T11:12:13.5Z"),
        ("session 4f1c2b9a8d7e6f5a lost", "session 0x7f3a lost"),
        ("GET http://tax.internal/v1/quote?id=7 failed", "GET http://tax.internal/v1/quote?id=8 failed"),
        ("bad arguments {'a': 1}", "bad arguments {'b': 'x y'}"),
        ("send_mail failed with {'message': 'hello'}", "send_mail failed with {'message': 'good bye'}"),
        (
            '{"error": {"message": "user 7 is locked", "id": "x"}}',
            '{"error": {"message": "user 8 is locked", "id": "y"}}',
        ),
    ],
)
def test_messages_that_differ_in_ids_numbers_and_times_are_folded_to_one(one: str, other: str) -> None:
    assert folded(one) == folded(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("KeyError: 'currency'", "KeyError: 'amount'"),
        ("429 too many requests", "503 too many requests"),
        ("upstream returned 429", "upstream returned 502"),
        ("GET http://tax.internal/v1 failed", "GET http://mail.internal/v1 failed"),
        ('{"error": "permission denied"}', '{"error": "database is locked"}'),
        (
            "Error code: 400 - {'error': {'message': 'unknown model'}}",
            "Error code: 400 - {'error': {'message': 'too long'}}",
        ),
        (
            '{"status": "error", "detail": "no such order, and the rest is cut',
            '{"status": "error", "detail": "no stock, and the',
        ),
    ],
)
def test_words_and_status_codes_that_say_what_happened_stay(one: str, other: str) -> None:
    assert folded(one) != folded(other)


@pytest.mark.parametrize("said", ["{" + "{}" * 980 + "{x", "{a{b}" * 400, "{" * 2000])
def test_thousands_of_failures_that_say_nothing_but_braces_are_soon_folded(said: str) -> None:
    began = time.process_time()
    forms = {folded(said, quotes=quotes) for _ in range(5_000) for quotes in (False, True)}

    assert len(forms) == 1
    assert time.process_time() - began < 10


def test_a_component_loses_its_number_and_keeps_its_name() -> None:
    assert component_of("Step 4") == component_of("Step 12") == "Step #"
    assert component_of("chat gpt-4o") == "chat gpt-4o"


def test_each_trace_counts_once_where_its_failure_began_and_an_early_stray_sets_no_onset(
    window: Callable[[Iterable[list[Json]]], Window],
) -> None:
    broken = {2, 21, 23, 24, 27, 29, 30, 33, 36, 38, 39}

    found = window(
        trace(
            number,
            [
                step("reserve", error="socket closed" if number == 9 else ""),
                step("charge", error="KeyError: 'currency'" if number in broken else ""),
            ],
            root_error="step failed" if number in broken or number == 9 else "",
            release="2.4.1" if number >= 20 else "2.4.0",
        )
        for number in range(40)
    )

    row = found.row()
    assert (row["traces"], row["failed"], row["verdict"]) == (40, 12, "incident")
    assert [(each.name, len(each.members), each.pattern) for each in found.groups] == [
        ("charge: KeyError: 'currency'", 11, "onset"),
        ("reserve: socket closed", 1, "stray"),
    ]
    onset = found.groups[0].onset
    assert onset is not None and onset.position == 21
    main = found.group_row(found.groups[0])
    assert main["first_seen"] < main["onset"]["at"]
    assert main["onset"]["before"] == "1 of 21"
    assert main["over_represented"][0] | {"lift": None} == {
        "attribute": "release",
        "value": "2.4.1",
        "in_group": 10,
        "of_group": 11,
        "in_others": 10,
        "of_others": 29,
        "lift": None,
    }


def test_quoted_words_tell_failures_apart_unless_they_vary(window: Callable[[Iterable[list[Json]]], Window]) -> None:
    names = ["anna", "bert", "carla", "dora", "emil", "fritz"]

    found = window(
        trace(
            number,
            [
                step("look_up", error=f"nobody is called '{names[number]}'" if number < 6 else ""),
                step("pay", error=f"KeyError: '{'currency' if number % 2 else 'amount'}'" if number >= 6 else ""),
            ],
        )
        for number in range(12)
    )

    assert sorted((each.component, len(each.members)) for each in found.groups) == [
        ("look_up", 6),
        ("pay", 3),
        ("pay", 3),
    ]


def test_an_error_that_only_an_event_tells_counts_and_a_later_try_that_succeeds_mends_it(tmp_path: Path) -> None:
    raised = {"name": "exception", "attributes": {"exception.type": "app.errors.Overdrawn", "exception.message": "no"}}
    only_event = trace(0, [step("charge")])
    only_event[1]["events"] = [{**raised, "timestamp": only_event[1]["start_time"]}]
    path = tmp_path / "traces.jsonl"
    rows = [*only_event, *trace(1, [step("fetch", tries=2)]), *trace(2, [step("fetch")])]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    with FileStore(path) as store:
        found = read_window(store, TraceQuery())

    assert [each.outcome for each in found.traces] == ["failed", "recovered", "healthy"]
    assert {each.name for each in found.groups} == {"charge: Overdrawn: no", "fetch: ReadTimeout after 30 s"}


def test_a_trace_recovered_only_if_every_sign_of_failure_in_it_was_mended(tmp_path: Path) -> None:
    def returns(text: str) -> Json:
        said = {"openinference.span.kind": "TOOL", "output.value": text}
        return {**step("charge_card"), "attributes": said}

    refused, paid, again = returns('{"error": "bad currency"}'), returns('{"paid": 1}'), step("search", tries=2)
    path = tmp_path / "t.jsonl"
    traces = [[again, refused], [refused, again], [again, refused, paid], [again, paid], [refused, paid], [paid]]
    rows = [row for number, steps in enumerate(traces) for row in trace(number, steps)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    with FileStore(path) as store:
        found = read_window(store, TraceQuery())

    outcomes = ["failed", "failed", "recovered", "recovered", "recovered", "healthy"]
    assert [each.outcome for each in found.traces] == outcomes
    standing = [each.failure.component for each in found.traces if each.failure is not None]
    assert standing == ["charge_card", "charge_card", "search", "search", "charge_card"]


def test_a_component_that_became_slow_is_a_group_and_not_its_callers(
    window: Callable[[Iterable[list[Json]]], Window],
) -> None:
    dice = random.Random(3)

    found = window(
        trace(
            number,
            [
                step("plan", ms=dice.randint(200, 400)),
                step("search", ms=dice.randint(300, 500) * (4 if number >= 30 else 1)),
            ],
        )
        for number in range(60)
    )

    ((kind, component, onset),) = [(each.kind, each.component, each.onset) for each in found.groups]
    assert (kind, component) == ("slow", "search")
    assert onset is not None and onset.position in range(29, 32)
    assert found.failed == 0


def test_tokens_and_tries_out_of_line_are_groups_of_their_kind(
    window: Callable[[Iterable[list[Json]]], Window],
) -> None:
    dice = random.Random(4)

    found = window(
        trace(
            number,
            [
                step(
                    "answer",
                    tokens=dice.randint(900, 1100) * (6 if 20 <= number < 29 else 1),
                ),
                step("fetch", ms=20, tries=5 if number >= 40 else 1),
            ],
        )
        for number in range(60)
    )

    assert {(each.kind, each.component, len(each.members)) for each in found.groups} == {
        ("costly", "answer", 9),
        ("retries", "fetch", 20),
    }


@pytest.mark.parametrize("seed", range(20))
def test_a_window_with_noise_only_has_no_group_that_began(
    window: Callable[[Iterable[list[Json]]], Window], seed: int
) -> None:
    dice = random.Random(seed)

    found = window(
        trace(
            number,
            [
                step("plan", ms=int(dice.lognormvariate(6, 0.6)), tokens=dice.randint(300, 2000)),
                step(
                    "search", ms=int(dice.lognormvariate(5, 0.9)), error="cache is cold" if dice.random() < 0.02 else ""
                ),
            ],
        )
        for number in range(60)
    )

    assert [each for each in found.groups if each.pattern == "onset"] == []
    assert found.verdict != "incident"


def test_the_three_tables_count_by_attribute_over_time_and_between_two_windows(
    window: Callable[[Iterable[list[Json]]], Window],
) -> None:
    found = window(
        trace(
            number,
            [step("charge", error="declined" if number >= 15 and number % 2 else "")],
            release="2" if number >= 15 else "1",
            **{"user.id": f"u{number % 4}"},
        )
        for number in range(30)
    )

    assert found.group_by("release") == [
        {"value": "1", "traces": 15, "failed": 0, "failure_rate": 0.0},
        {"value": "2", "traces": 15, "failed": 8, "failure_rate": 0.5333},
    ]
    assert [row["hit"] for row in found.rate_over_time(group="declined", buckets=2)] == [0, 8]
    sides = found.compare_windows(at=found.rate_over_time(buckets=30)[15]["from"])
    assert (sides["before"]["failed"], sides["after"]["failed"]) == (0, 8)
    assert sides["only_after"][0] == {"attribute": "release", "value": "2", "traces": 15}
    assert found.group_row(found.groups[0])["blast_radius"] == {"users": 2}
    for wrong in (lambda: found.group_by("colour"), lambda: found.compare_windows(at="noon"), found.compare_windows):
        with pytest.raises(ToolFault):
            wrong()


def test_the_version_of_a_service_that_only_the_resource_of_an_export_names_counts(tmp_path: Path) -> None:
    def exported(number: int) -> str:
        raw = {
            "traceId": f"{number:032x}",
            "spanId": f"{number:016x}",
            "name": "handle",
            "startTimeUnixNano": str(START_NS + number * MINUTE),
            "endTimeUnixNano": str(START_NS + number * MINUTE + 1),
        }
        version = {"key": "service.version", "value": {"stringValue": "7" if number > 2 else "6"}}
        large = {"key": "build", "value": {"intValue": str(2**80)}}
        resource = {"attributes": [version, large]}
        return json.dumps({"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": [raw]}]}]})

    path = tmp_path / "export.jsonl"
    path.write_text("\n".join(map(exported, range(1, 6))))
    again = tmp_path / "again.jsonl"

    with FileStore(path) as store, again.open("w") as stream:
        export_traces(store, [f"{number:032x}" for number in range(1, 6)], stream)
    with FileStore(again) as store:
        found = read_window(store, TraceQuery())

    assert [(row["value"], row["traces"]) for row in found.group_by("release")] == [("7", 3), ("6", 2)]


class TickingClock(SystemClock):
    """A second passes whenever somebody looks."""

    seconds = 0.0

    def now(self) -> float:
        self.seconds += 1
        return self.seconds


def test_a_window_that_takes_longer_than_its_run_may_counts_what_was_read_and_says_so(
    window: Callable[[Iterable[list[Json]]], Window],
) -> None:
    with Deadline(TickingClock(), 10).in_force():
        found = window(trace(number, [step("pay", error="ledger down")]) for number in range(40))

    assert 3 <= len(found.traces) < 40
    assert [gap for gap in found.gaps if f"{len(found.traces)} of 40 traces were read" in gap]


def test_work_on_messages_that_all_differ_grows_with_their_number_not_with_its_square(
    window: Callable[[Iterable[list[Json]]], Window], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = Counter[str]()

    def counted(name: str) -> None:
        real = getattr(groups, name)

        def count(*given: Any, **more: Any) -> Any:
            done[name] += 1
            return real(*given, **more)

        monkeypatch.setattr(groups, name, count)

    for name in ("folded", "overlap", "telling_words"):
        counted(name)
    draw = random.Random(7)
    words = ["".join(draw.choices("abcdefghij", k=7)) for _ in range(5_000)]
    (fine,) = window([trace(0, [step("pay")])]).traces
    told = [" ".join(draw.sample(words, 30)) for _ in range(200)] + [f"no '{word}' here" for word in words[:200]]
    found = error_groups_of(
        [
            replace(
                fine,
                failures=(Failure(span_id="1", component="pay", kind="TOOL", message=form, form=form, at_us=0),),
            )
            for form in told
        ]
    )

    assert len(found) == 201, "what varies between quotes is one group"
    assert max(done.values()) <= 2 * len(told), done
