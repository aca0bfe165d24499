"""A worker that lies about its turn is not believed where it matters: how the turn ended, how long things are, how deep they go."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from watching import RAW, kind, run

from sonde.sandbox import Sandbox
from sonde.sandbox.frames import CALL, BadFrame, parse_body
from sonde.sandbox.worker.channel import DEEPEST, too_deep

HONEST: dict[str, Any] = {"out": ["", "", 0, 0], "err": ["", "", 0, 0], "fault": None, "variables": [], "rebound": []}
FAULT = {"kind": "error", "message": "so it says", "line": 1, "hint": None, "traceback": ""}
HUGE = 10**30
SERVE = "sys._getframe(1).f_locals['self'].serve()"
"""Come to rest as the trusted loop does, and serve the next turn."""

values = st.recursive(
    st.none() | st.integers() | st.text(st.sampled_from('[]{}"\\a'), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.sampled_from('[]{}"\\'), max_size=4), inner),
    max_leaves=20,
)


def lie(report: dict[str, Any], **more: Any) -> str:
    """Code that sends this report instead of its own and then waits like an honest state."""
    text = json.dumps({"report": HONEST | report, "raw": [], **more}).encode()
    return f"{RAW}\nstolen = 1\nos.write(3, frame(2, 1, {text!r}))\n{SERVE}"


@pytest.fixture(name="box")
def _box() -> Iterator[Sandbox]:
    with Sandbox("open") as box:
        run(box, "kept = 1")
        yield box


@pytest.mark.requirement("O13")
@pytest.mark.parametrize("claimed", ["violation", "timeout", "crash", "quota", "gate", "output", "memory", "nonsense"])
def test_how_a_turn_ended_is_not_for_the_worker_to_say(box: Sandbox, claimed: str) -> None:
    result = box.execute(lie({"fault": FAULT | {"kind": claimed}}))

    assert kind(result) == ("memory" if claimed == "memory" else "error")
    assert result.fault is not None and result.fault.keeps_state  # it came to rest, so it did stay
    assert run(box, "print(kept, stolen)") == "1 1\n"


@pytest.mark.parametrize(
    "report",
    [
        {"out": ["", "", HUGE, 0]},
        {"err": ["", "", 0, HUGE]},
        {"out": ["", "", -HUGE, 0]},
        {"fault": FAULT | {"line": HUGE}},
        {"variables": [["x", "list", HUGE]]},
    ],
    ids=["stdout", "stderr", "negative", "line", "variable"],
)
def test_a_length_that_nothing_has_is_a_violation(box: Sandbox, report: dict[str, Any]) -> None:
    assert kind(box.execute(lie(report))) == "violation"
    assert run(box, "print(kept)") == "1\n"


def test_a_range_that_is_longer_than_a_length_can_be_costs_nothing(box: Sandbox) -> None:
    result = box.execute("numbers = range(10**30)")

    assert [(each.name, each.size) for each in result.variables] == [("numbers", None)]


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_a_final_value_may_be_deep_but_not_so_deep_that_following_it_takes_a_stack(box: Sandbox) -> None:
    make = "value = 1\nfor _ in range({}): value = [value]\nFINAL(value)"
    deep, deeper = box.execute(make.format(100)), box.execute(make.format(300))

    assert deep.final is not None and deep.final.value == nested(100)
    assert kind(deeper) == "error" and deeper.fault is not None and "nested" in deeper.fault.message
    assert run(box, "print(kept)") == "1\n"


@pytest.mark.parametrize("limit", [1000, 1_000_000])
def test_a_forged_value_that_is_too_deep_is_refused_whatever_stack_the_supervisor_thinks_it_has(limit: int) -> None:
    text = b'{"call":["ask",[' + b"[" * 400_000 + b"]" * 400_000 + b'],{}],"raw":[]}'
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, before))
    try:
        with pytest.raises(BadFrame, match="nested"):
            parse_body(CALL, text, b"")
    finally:
        sys.setrecursionlimit(before)


def depth_of(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - JSON
    return 1 + max(map(depth_of, inner), default=0) if isinstance(inner, list) else 0  # pyright: ignore[reportUnknownArgumentType] - as above


@settings(deadline=None)
@given(value=values, extra=st.integers(-8, 8))
def test_depth_is_counted_right_whatever_the_strings_hold(value: Any, extra: int) -> None:
    around = DEEPEST - depth_of(value) + extra
    text = "[" * around + json.dumps(value, ensure_ascii=False) + "]" * around

    assert too_deep(text.encode()) is (extra > 0)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 1_000_000 + b"]" * 1_000_000,
        (b"[" * 200 + b"]" * 199) * 5_000,
        b"[" * 300 + b'"' + b'\\"' * 7_000_000,
        b"[" * 300 + b'"' * 15_000_000,
        b"[" * 300 + b'"' + b"\\" * 15_000_000,
    ],
    ids=["deep", "growing", "escapes", "quotes", "backslashes"],
)
def test_depth_is_found_quickly_in_texts_that_are_made_to_be_slow(text: bytes) -> None:
    assert too_deep(text)
