"""A turn: what it leaves, what it reports, and what a killed one does not touch."""

from __future__ import annotations

import pytest
from watching import RAW, kind, no_strays, run

from sonde.sandbox import Limits, Sandbox, Variable

BLOCKED = [
    "os",
    "subprocess",
    "socket",
    "http",
    "urllib",
    "pathlib",
    "shutil",
    "signal",
    "ctypes",
    "importlib",
    "sys",
    "multiprocessing",
    "threading",
]
ALLOWED = [
    "json",
    "re",
    "math",
    "statistics",
    "collections",
    "itertools",
    "functools",
    "operator",
    "datetime",
    "dataclasses",
    "typing",
    "copy",
    "textwrap",
    "hashlib",
]

RICH_STATE = """
import random
class Point:
    def __init__(self, x): self.x = x
    def double(self): return Point(self.x * 2)
def count():
    n = 0
    while True:
        n += 1
        yield n
numbers = count()
next(numbers)
point = Point(21)
values = {"a": [1, 2, 3]}
random.random()
"""
CHECK_STATE = "print(next(numbers), point.double().x, values, isinstance(point, Point), round(random.random(), 6))"

LETHAL = {
    "timeout": "values['a'].append(4); next(numbers)\nwhile True: pass",
    "sleep": "next(numbers)\nimport time\ntime.sleep(60)",
    "exit": "values.clear()\nimport os\nos._exit(0)",
    "segfault": "values.clear()\nimport ctypes\nctypes.string_at(0)",
    "abort": "values.clear()\nimport os\nos.abort()",
    "system call": "values.clear()\nimport socket\nsocket.socket()",
    "fork": "values.clear()\nimport os\nos.fork()",
    "thread": "import threading\nthreading.Thread(target=print).start()",
    "exec": "import os\nos.execv('/bin/true', ['true'])",
    "closed channel": "import os\nos.close(3)\nwhile True: pass",
    "stack": RAW
    + "sys.setrecursionlimit(10**8)\nclass A:\n    def __getattr__(self, n): return getattr(self, n)\nA().x",
}


def test_variables_functions_and_imports_live_from_turn_to_turn() -> None:
    with Sandbox() as box:
        run(box, "import json\ndef double(x): return x * 2\nrows = [1, 2]")
        run(box, "rows.append(double(21))")

        assert run(box, "print(json.dumps(rows))") == "[1, 2, 42]\n"


@pytest.mark.requirement(78)
def test_each_turn_is_a_process_of_its_own() -> None:
    with Sandbox("open") as box:
        pids = {run(box, "import os\nprint(os.getpid())") for _ in range(5)}

        assert len(pids) == 5


@pytest.mark.parametrize("death", LETHAL)
def test_a_turn_that_dies_leaves_everything_of_earlier_turns(death: str) -> None:
    with Sandbox("open") as box, Sandbox("open") as undisturbed:
        for each in (box, undisturbed):
            run(each, RICH_STATE)

        killed = box.execute(LETHAL[death], wall_s=1.0)

        assert kind(killed) in {"timeout", "crash", "violation", "error"}
        if kind(killed) != "error":
            assert run(box, CHECK_STATE) == run(undisturbed, CHECK_STATE)
        assert no_strays(box)


@pytest.mark.requirement(80, 121)
def test_a_runaway_turn_is_killed_at_its_wall_time() -> None:
    assert Limits().wall_s == 30.0
    with Sandbox(limits=Limits(wall_s=0.5)) as box:
        result = box.execute("while True: pass")

        assert kind(result) == "timeout" and result.usage.wall_s >= 0.5


@pytest.mark.parametrize(
    "code", ["x = 10 ** 10 ** 10", "import re\nre.match('(a+)+$', 'a' * 64 + 'b')", "sum(range(10**12))"]
)
def test_loops_inside_c_code_are_killed_too(code: str) -> None:
    with Sandbox(limits=Limits(wall_s=0.3)) as box:
        assert kind(box.execute(code)) in {"timeout", "memory"}


@pytest.mark.parametrize("code", ["x = 'a' * 10**9", "x = [0] * 10**9", "x = []\nwhile True: x.append(' ' * 100000)"])
def test_too_much_memory_is_a_fault_and_the_state_lives(code: str) -> None:
    with Sandbox(limits=Limits(memory="128MiB", wall_s=60)) as box:
        run(box, "kept = 1")

        assert kind(box.execute(code)) == "memory"
        assert run(box, "x = None\nprint(kept)") == "1\n"


def test_an_ordinary_exception_keeps_what_was_done_before_it() -> None:
    with Sandbox() as box:
        result = box.execute("a = 1\nb = 1 / 0\nc = 3")

        assert kind(result) == "error"
        assert result.fault is not None and result.fault.line == 2
        assert run(box, "print(a, 'c' in globals())") == "1 False\n"


def test_a_traceback_shows_frames_of_the_generated_code_only() -> None:
    with Sandbox() as box:
        run(box, "import json\ndef read(text):\n    return json.loads(text)")
        fault = box.execute("value = 1\nread('{')").fault

        assert fault is not None
        assert fault.traceback.splitlines() == [
            "Traceback (most recent call last):",
            "  turn 2, line 2, in <module>",
            "    read('{')",
            "  turn 1, line 3, in read",
            "    return json.loads(text)",
            "JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ]


def test_a_deep_recursion_gives_a_short_traceback() -> None:
    with Sandbox() as box:
        fault = box.execute("def f(n):\n    return f(n + 1)\nf(0)").fault

        assert fault is not None and fault.kind == "error" and fault.message.startswith("RecursionError")
        assert "more frames" in fault.traceback and len(fault.traceback) < 4000


def test_an_exception_that_cannot_be_shown_is_still_a_fault() -> None:
    with Sandbox() as box:
        fault = box.execute("class Odd(Exception):\n    def __str__(self): raise ValueError\nraise Odd()").fault

        assert fault is not None and "Odd" in fault.message


def test_a_syntax_error_names_the_line() -> None:
    with Sandbox() as box:
        fault = box.execute("x = 1\ny = = 2").fault

        assert fault is not None and fault.kind == "syntax" and fault.line == 2


@pytest.mark.parametrize("code", ["exit()", "raise SystemExit(0)", "raise KeyboardInterrupt"])
def test_leaving_by_exception_is_a_fault_of_the_turn_only(code: str) -> None:
    with Sandbox() as box:
        assert kind(box.execute(f"x = 1\n{code}")) == "error"
        assert run(box, "print(x)") == "1\n"


@pytest.mark.requirement(81, 119)
@pytest.mark.parametrize("module", BLOCKED)
def test_a_blocked_module_raises_import_error_with_the_allowed_list(module: str) -> None:
    with Sandbox() as box:
        fault = box.execute(f"import {module}").fault

        assert fault is not None and fault.kind == "import"
        assert module in fault.message and "statistics" in fault.message


@pytest.mark.requirement(82)
def test_every_allowed_module_can_be_imported_and_no_other() -> None:
    with Sandbox() as box:
        for module in ALLOWED:
            run(box, f"import {module}")
        for module in ("random", "time", "base64", "pickle", "asyncio"):
            assert kind(box.execute(f"import {module}")) == "import"


@pytest.mark.requirement(82)
@pytest.mark.parametrize(
    "code", ["from json import codecs", "from re import enum", "from dataclasses import sys", "import json.tool"]
)
def test_a_module_is_not_reached_through_an_allowed_one(code: str) -> None:
    with Sandbox() as box:
        assert kind(box.execute(code)) == "import"


def test_a_catchable_import_error_is_an_ordinary_one() -> None:
    with Sandbox() as box:
        assert run(box, "try:\n    import os\nexcept ImportError as e:\n    print(e.name)") == "os\n"


def test_changed_variables_are_reported_by_name_type_and_size() -> None:
    with Sandbox() as box:
        first = box.execute("import json\nrows = [1, 2]\nname = 'abc'\nn = 5\n_hidden = 1\ndef f(): pass")
        second = box.execute("rows.append(3)\nn = 6")
        third = box.execute("pass")

        assert set(first.variables) == {
            Variable("rows", "list", 2),
            Variable("name", "str", 3),
            Variable("n", "int", None),
            Variable("f", "function", None),
        }
        assert set(second.variables) == {Variable("rows", "list", 3), Variable("n", "int", None)}
        assert third.variables == ()


def test_usage_tells_what_the_turn_took() -> None:
    with Sandbox(host=lambda name, args: None) as box:
        usage = box.execute("for _ in range(3): ask()\nx = [i for i in range(300000)]").usage

        assert usage.host_calls == 3
        assert usage.cpu_s > 0 and usage.wall_s > 0 and usage.memory_bytes > 1_000_000


@pytest.mark.requirement(38)
def test_the_strict_profile_refuses_before_it_runs() -> None:
    with Sandbox("strict") as box:
        refused = box.execute("x = ().__class__")

        assert kind(refused) == "gate"
        assert run(box, "total = sum([1, 2, 3])\nprint(total)") == "6\n"
        assert kind(box.execute("print(open)")) in {"error", "gate"}


@pytest.mark.requirement(20, 21, 23)
def test_the_assign_only_profile_serves_tool_calls_before_the_code_runs() -> None:
    served: list[str] = []

    def host(name: str, args: tuple[object, ...]) -> object:
        served.append(f"{name}{tuple(args)}")
        return {"name": name, "args": list(args)}

    with Sandbox("assign-only", host=host, functions=["read", "look"], session_id="0123456789") as box:
        assert run(box, "a = read('x')\nb = look(2)\nprint(a['args'], b['name'])") == "['x'] look\n"
        assert served == ["read('x',)", "look(2,)"]
        assert kind(box.execute("print(read('x'))")) == "gate"
        assert run(box, "c = look(3)\nprint('__rlm_icpt_01234567_2' in globals())") == "True\n"


def test_a_traceback_shows_its_frames_however_long_the_message_is() -> None:
    with Sandbox() as box:
        fault = box.execute("def inner():\n    raise ValueError('x' * 100_000)\ninner()").fault

        assert fault is not None and "turn 1, line 2, in inner" in fault.traceback
