"""Bad input from the caller: a clear error, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from watching import kind, run

from sonde.errors import ConfigError
from sonde.sandbox import CodeClock, Final, Limits, Sandbox
from sonde.sandbox.base import parse_size


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


CALLS: dict[str, Callable[[Sandbox], object]] = {
    "code that is bytes": lambda box: box.execute(b"x = 1"),  # pyright: ignore[reportArgumentType] - the point
    "code that is None": lambda box: box.execute(None),  # pyright: ignore[reportArgumentType] - the point
    "zero wall time": lambda box: box.execute("1", wall_s=0),
    "negative wall time": lambda box: box.execute("1", wall_s=-1),
    "wall time over the CPU limit": lambda box: box.execute("1", wall_s=1e9),
    "wall time that is not a number": lambda box: box.execute("1", wall_s=float("nan")),
    "a name that is no name": lambda box: box.inject("not a name", 1),
    "a keyword": lambda box: box.inject("class", 1),
    "a hidden name": lambda box: box.inject("__builtins__", 1),
    "a host function's name": lambda box: box.inject("ask", 1),
    "a finish function's name": lambda box: box.share("FINAL", "x"),
    "a share under a host function's name": lambda box: box.share("ask", "x"),
    "a share's name twice": lambda box: (box.share("one", "x"), box.share("one", "y")),
    "a value that is not data": lambda box: box.inject("value", object()),
    "a function as a value": lambda box: box.inject("value", print),
    "a value nested too deeply": lambda box: box.inject("value", nested(10_000)),
    "a name that is a number": lambda box: box.inject(5, 1),  # pyright: ignore[reportArgumentType] - the point
    "the name of the sandbox's own exception": lambda box: box.share("ToolError", "x"),
    "one name for a value and a share": lambda box: (box.inject("one", 1), box.share("one", "x")),
    "a clock without a time": lambda box: setattr(box, "clock", CodeClock(start=float("nan"))),
    "a value bigger than memory": lambda box: box.inject("value", b"x" * 60_000_000),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_call_is_refused_and_the_box_goes_on(name: str) -> None:
    with Sandbox(host=lambda name, args: 1, functions=["ask"], limits=Limits(memory="64MiB")) as box:
        run(box, "kept = 1")
        with pytest.raises(ConfigError):
            CALLS[name](box)

        assert run(box, "print(kept, ask())") == "1 1\n"


CODE = {
    "null byte": "x = 1\ny = '\0'",
    "ten megabytes": "x = 1\n" * 1_700_000,
    "deep nesting": "x = " + "(" * 5000 + ")" * 5000,
    "deep operators": "x = " + "-" * 100_000 + "1",
    "lone surrogate": "x = '\ud800'",
    "nonsense": "def def def",
}


@pytest.mark.parametrize("profile", ["open", "general", "analysis", "strict", "assign-only"])
@pytest.mark.parametrize("name", CODE)
def test_bad_code_is_a_fault_and_nothing_is_lost(name: str, profile: str) -> None:
    with Sandbox(profile) as box:
        run(box, "kept = 1")

        assert kind(box.execute(CODE[name])) in {"syntax", "memory", "error", "crash", "gate"}
        assert run(box, "print(kept)") == "1\n"


@pytest.mark.parametrize("code", ["", "\n\n", "# nothing", "   "])
def test_code_that_does_nothing_is_fine(code: str) -> None:
    with Sandbox() as box:
        assert box.execute(code).ok


def test_an_unknown_profile_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="analysis"):
        Sandbox("nonsense")


@pytest.mark.parametrize(
    "limits",
    [
        {"wall_s": 0},
        {"wall_s": -1},
        {"wall_s": float("inf")},
        {"memory": 0},
        {"memory": "-1GiB"},
        {"memory": "lots"},
        {"cpu_s": 0},
        {"output_chars": 10},
        {"host_calls": 0},
        {"frame_bytes": -5},
        {"shared_bytes": 0},
        {"source_chars": 0},
        {"wall_s": "30"},
        {"wall_s": None},
        {"wall_s": 1e300},
        {"memory": None},
        {"memory": True},
        {"memory": "9" * 400},
        {"memory": "100000000000GiB"},
        {"host_calls": "many"},
        {"output_chars": 8192.5},
        {"output_chars": 10**9},
    ],
)
def test_limits_at_or_below_zero_or_beyond_reason_are_refused(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Limits(**limits)


@pytest.mark.parametrize(
    ("text", "size"), [("1GiB", 1 << 30), ("512 MB", 512_000_000), ("1.5k", 1500), (7, 7), ("100", 100)]
)
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "functions", [["not a name"], ["FINAL"], ["__import__"], ["class"], ["ToolError"], [1], "text"]
)
def test_a_bad_name_of_a_function_is_refused(functions: Any) -> None:
    with pytest.raises(ConfigError):
        Sandbox(host=lambda name, args: 1, functions=functions)


def test_functions_without_a_host_are_refused() -> None:
    with pytest.raises(ConfigError, match="host"):
        Sandbox(functions=["ask"])


@pytest.mark.parametrize("options", [{"keep_states": 0}, {"keep_states": "3"}, {"seed": "x"}])
def test_no_kept_state_at_all_and_a_seed_that_is_no_number_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        Sandbox(**options)


def test_the_line_of_half_a_character_is_named_in_every_profile() -> None:
    for profile in ("open", "general", "analysis", "strict", "assign-only"):
        with Sandbox(profile) as box:
            fault = box.execute("x = 1\ny = '\ud800'").fault
            assert fault is not None and (fault.kind, fault.line) == ("syntax", 2)


def test_output_and_final_value_are_told_whatever_the_limit_on_frames() -> None:
    with Sandbox("analysis", limits=Limits(frame_bytes=100)) as box:
        assert len(run(box, "print('\\0' * 8000)")) == 8001
        assert box.execute("FINAL(1)").final == Final(1)
        fault = box.execute("FINAL('x' * 200)").fault
        assert fault is not None and "the limit is 100" in fault.message


def test_the_longest_output_that_can_be_asked_for_is_told() -> None:
    with Sandbox("open", limits=Limits(output_chars=500_000)) as box:
        result = box.execute(
            "import sys\nfor stream in (sys.stdout, sys.stderr): print('\\0' * 2_000_000, file=stream)"
        )

        assert result.ok and len(result.stdout) + len(result.stderr) <= 500_000
        assert result.output_chars == 4_000_002
