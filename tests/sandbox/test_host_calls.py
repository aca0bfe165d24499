"""Host calls: what code asks of the parent, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest
from watching import kind, run

from sonde.errors import RecursionLimitReached, ToolFault
from sonde.sandbox import Args, Limits, Sandbox


class Speechless(Exception):
    """An error whose message cannot be had."""

    def __str__(self) -> str:
        raise AttributeError("detail")


def echo(name: str, args: Args) -> Any:
    return [name, list(args), args.named]


@pytest.mark.parametrize(
    "value",
    [
        "text é \N{GRINNING FACE}",
        0,
        -1,
        10**30,
        1.5,
        True,
        None,
        [1, [2]],
        {"a": {"b": []}},
        b"\x00\xff",
        {"raw": [b"a", b""]},
    ],
)
def test_values_go_there_and_back(value: Any) -> None:
    with Sandbox(host=echo) as box:
        assert (
            run(box, f"print(ask({value!r}, key={value!r}) == ['ask', [{value!r}], {{'key': {value!r}}}])") == "True\n"
        )


def test_any_unknown_name_that_is_called_goes_to_the_host_when_no_functions_are_named() -> None:
    with Sandbox(host=echo) as box:
        assert (
            run(box, "def later(): return llm_query('x')\nprint(later(), len([1]))") == "['llm_query', ['x'], {}] 1\n"
        )
        assert kind(box.execute("print(undefined)")) == "error"


def test_only_named_functions_are_bound() -> None:
    with Sandbox(host=echo, functions=["grep"]) as box:
        assert run(box, "print(grep('a')[0])") == "grep\n"
        assert kind(box.execute("other('a')")) == "error"


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (ValueError("bad value"), "ValueError: bad value"),
        (KeyError("k"), "KeyError: 'k'"),
        (
            ExceptionGroup("two went wrong", [ValueError("a"), OSError("b")]),
            "RuntimeError: ExceptionGroup: two went wrong",
        ),
        (Speechless(), "RuntimeError: Speechless: <its message raised AttributeError>"),
        (ToolFault("no such file; try list_files()"), "ToolError: no such file; try list_files()"),
        (UnicodeDecodeError("utf-8", b"x", 0, 1, "why"), "RuntimeError: UnicodeDecodeError"),
    ],
)
def test_an_exception_of_the_host_arrives_as_an_ordinary_one(error: Exception, seen: str) -> None:
    def host(name: str, args: Args) -> None:
        raise error

    with Sandbox(host=host) as box:
        fault = box.execute("x = 1\nask()").fault

        assert fault is not None and fault.kind == "error" and fault.message.startswith(seen) and fault.line == 2
        assert run(box, "try:\n    ask()\nexcept Exception as e:\n    print('caught')") == "caught\n"
        assert run(
            box, "try:\n    ask()\nexcept ToolError:\n    print('tool')\nexcept Exception:\n    print('other')"
        ) in {
            "tool\n",
            "other\n",
        }


def test_a_run_error_of_the_host_ends_the_turn_from_outside_and_is_raised() -> None:
    def host(name: str, args: Args) -> None:
        raise RecursionLimitReached("no tool calls left", limit="tool_calls")

    with Sandbox(host=host) as box:
        run(box, "x = 1")
        with pytest.raises(RecursionLimitReached):
            box.execute("x = 2\ntry:\n    ask()\nexcept BaseException:\n    pass")

        assert run(box, "print(x)") == "1\n"


def test_a_result_that_is_not_json_like_is_an_error_in_the_code() -> None:
    with Sandbox(host=lambda name, args: object()) as box:
        fault = box.execute("ask()").fault

        assert fault is not None and "not JSON-like" in fault.message


@pytest.mark.parametrize("argument", ["object()", "{1, 2}", "lambda: 0", "float('inf')", "{(1, 2): 3}"])
def test_an_argument_that_is_not_json_like_is_an_error_in_the_code(argument: str) -> None:
    with Sandbox(host=echo) as box:
        assert kind(box.execute(f"ask({argument})")) == "error"
        assert run(box, "print(ask(1)[1])") == "[1]\n"


def test_a_large_result_and_a_large_argument_pass() -> None:
    with Sandbox(host=lambda name, args: args[0] * 2) as box:
        assert run(box, "r = ask('x' * 5_000_000)\nprint(len(r))") == "10000000\n"


def test_a_value_of_too_many_parts_is_an_error_in_the_code() -> None:
    with Sandbox(host=echo) as box:
        fault = box.execute("ask([0] * 3_000_000)").fault

        assert fault is not None and fault.kind == "error" and "parts" in fault.message
        assert run(box, "print(ask(1)[1])") == "[1]\n"


def test_a_result_over_the_frame_limit_is_an_error_in_the_code() -> None:
    with Sandbox(host=lambda name, args: "x" * 300_000, limits=Limits(frame_bytes=100_000)) as box:
        fault = box.execute("ask()").fault

        assert fault is not None and fault.kind == "error" and "at most 100000 fit" in fault.message
        assert kind(box.execute("ask('y' * 300_000)")) == "error"


def test_the_quota_ends_a_loop_of_calls_and_keeps_the_state() -> None:
    served: list[int] = []
    with Sandbox(host=lambda name, args: served.append(1), limits=Limits(host_calls=50)) as box:
        run(box, "x = 1")
        result = box.execute("while True: ask()")

        assert kind(result) == "quota" and len(served) == 50
        assert run(box, "print(x)") == "1\n"


def test_time_in_the_host_is_not_the_codes_time() -> None:
    import threading

    def host(name: str, args: Args) -> None:
        threading.Event().wait(3.5)

    with Sandbox(host=host, limits=Limits(wall_s=3)) as box:
        result = box.execute("ask()")

        assert result.ok and result.usage.host_s >= 3


def test_a_host_may_use_other_boxes_but_not_the_one_it_serves() -> None:
    def host(name: str, args: Args) -> str:
        if name == "inner":
            with Sandbox() as other:
                return other.execute("print(6 * 7)").stdout
        return box.execute("1").stdout

    with Sandbox(host=host) as box:
        assert run(box, "print(inner())") == "42\n\n"
        assert kind(box.execute("outer()")) == "error"


def test_without_a_host_there_is_nothing_to_call() -> None:
    with Sandbox() as box:
        assert kind(box.execute("llm_query('x')")) == "error"


def test_code_that_talks_to_the_host_all_the_time_is_still_held_to_its_memory() -> None:
    with Sandbox(host=echo, limits=Limits(memory="32MiB")) as box:
        run(box, "kept = 1")
        result = box.execute("rows = []\nfor _ in range(200):\n    rows.append(b'x' * (1 << 20))\n    ask()")

        assert kind(result) == "memory"
        assert run(box, "print(kept)") == "1\n"


def test_a_turn_that_ends_with_more_than_its_memory_is_not_kept() -> None:
    with Sandbox(limits=Limits(memory="1MiB")) as box:
        result = box.execute("rows = b'x' * (150 << 20)")

        assert kind(result) == "memory"
        assert kind(box.execute("rows")) == "error"


def test_a_result_that_is_nested_too_deeply_is_an_error_in_the_code() -> None:
    deep: list[Any] = []
    for _ in range(10_000):
        deep = [deep]

    with Sandbox(host=lambda name, args: deep) as box:
        run(box, "kept = 1")
        assert run(box, "try:\n    ask()\nexcept TypeError:\n    print(kept)") == "1\n"


def test_a_message_of_the_host_is_cut_to_what_can_be_read() -> None:
    def host(name: str, args: Args) -> None:
        raise ValueError("x" * 80_000_000)

    with Sandbox(host=host) as box:
        assert run(box, "try:\n    ask()\nexcept ValueError as error:\n    print(len(str(error)))") == "100000\n"
