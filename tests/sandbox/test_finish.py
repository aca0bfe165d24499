"""FINAL and its kin: one mechanism that ends the block at once."""

from __future__ import annotations

import pytest
from watching import kind, run

from sonde.sandbox import ExecResult, Final, Limits, Sandbox


def finish(code: str) -> ExecResult:
    with Sandbox() as box:
        return box.execute(code)


@pytest.mark.parametrize(
    "value", [0, "", None, False, [], {}, 0.0, "text", {"a": [1, {"b": None}]}, b"\x00\xff", [b"a", "b", b"c"]]
)
def test_the_final_value_arrives_as_it_was_given_also_when_falsy(value: object) -> None:
    result = finish(f"FINAL({value!r})")

    assert result.ok and result.final == Final(value)


@pytest.mark.parametrize(
    "code",
    [
        "FINAL(42)",
        "set_final(42)",
        "answer = 42\nFINAL_VAR('answer')",
        "try:\n    FINAL(42)\nexcept BaseException:\n    FINAL('caught')",
        "try:\n    FINAL(42)\nfinally:\n    FINAL('in finally')",
        "while True:\n    try:\n        FINAL(42)\n    except:\n        pass",
        "def g():\n    try:\n        yield FINAL(42)\n    finally:\n        FINAL('closed')\nfor x in g(): pass",
        "class C:\n    def __exit__(self, *a): return True\n    def __enter__(self): FINAL(42)\nwith C(): FINAL(1)",
        "sorted([1, 2], key=lambda x: FINAL(42))",
    ],
)
def test_it_stops_the_block_at_once_and_nothing_can_catch_it(code: str) -> None:
    result = finish(f"print('before')\n{code}\nprint('after')")

    assert result.final == Final(42)
    assert result.stdout == "before\n"


def test_submit_takes_fields() -> None:
    assert finish("SUBMIT(answer='x', score=0)").final == Final({"answer": "x", "score": 0})


def test_no_final_signal_is_none() -> None:
    assert finish("x = 1").final is None


@pytest.mark.parametrize(
    "code", ["FINAL()", "FINAL_VAR('missing')", "FINAL_VAR(3)", "SUBMIT(1)", "FINAL(float('nan'))"]
)
def test_a_wrong_call_is_an_ordinary_error(code: str) -> None:
    result = finish(code)

    assert kind(result) == "error" and result.final is None


@pytest.mark.parametrize("name", ["FINAL", "FINAL_VAR", "set_final"])
def test_a_wrong_call_is_told_by_the_name_that_the_code_used(name: str) -> None:
    result = finish(f"{name}()")

    assert result.fault is not None and f"TypeError: {name}() missing" in result.fault.traceback


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("FINAL({3, 1, 2})", [1, 2, 3]),
        ("FINAL({(1, 2): 'x'})", {"(1, 2)": "x"}),
        ("import datetime\nFINAL(datetime.date(2024, 1, 2))", "2024-01-02"),
        ("from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\nFINAL([P(1)])", [{"x": 1}]),
        ("FINAL(10 ** 40)", 10**40),
        ("FINAL('\\ud800')", "?"),
    ],
)
def test_an_answer_is_not_lost_for_its_type(code: str, value: object) -> None:
    assert finish(code).final == Final(value)


def test_the_session_goes_on_after_a_final_with_all_its_variables() -> None:
    with Sandbox() as box:
        for turn in range(5):
            result = box.execute(
                f"x{turn} = {turn}\ndef deep(n):\n    return FINAL(n) if n > 200 else deep(n + 1)\ndeep(0)"
            )
            assert result.final == Final(201)

        assert run(box, "print(x0, x1, x2, x3, x4)") == "0 1 2 3 4\n"
        assert run(box, "def f(n): return n if n == 0 else f(n - 1)\nprint(f(800))") == "0\n"


def test_a_final_over_the_frame_limit_is_an_error_not_a_loss() -> None:
    with Sandbox(limits=Limits(frame_bytes=100_000)) as box:
        assert kind(box.execute("x = 1\nFINAL('a' * 200_000)")) == "error"
        assert run(box, "print(x)") == "1\n"


def test_a_rebound_finish_function_is_restored_with_a_warning() -> None:
    with Sandbox() as box:
        result = box.execute("FINAL = 3")

        assert "FINAL" in result.warnings[0]
        assert box.execute("FINAL(1)").final == Final(1)
