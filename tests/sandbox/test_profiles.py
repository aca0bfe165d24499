"""The profiles through the sandbox's own door."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from watching import kind

from sonde.errors import ToolCallFailed, ToolFault
from sonde.sandbox import Args, CodeClock, ExecResult, Final, Limits, Sandbox, Variable
from sonde.sandbox.policy import ALLOWED_MODULES, BLOCKED_MODULES


def run(code: str, profile: str = "analysis") -> ExecResult:
    with Sandbox(profile=profile) as box:
        return box.execute(code)


def nav(name: str, args: Args) -> Any:
    """A host with three tools: one that works, one that refuses, one that is broken."""
    if name == "nav_read":
        raise ToolFault(f"there is no symbol {args[0]!r}")
    if name == "nav_search":
        raise KeyError("index")
    return {"total_lines": 3, "args": list(args)} if name == "nav_info" else "x" * 3_000_000


TOOLS = ["nav_info", "nav_read", "nav_search", "nav_outline"]


@pytest.mark.requirement(82)
def test_every_allowed_module_can_be_imported_and_used_in_analysis() -> None:
    lines = [f"import {module}" for module in sorted(ALLOWED_MODULES)]
    lines += ["from collections import abc, Counter", "from json import *", "from datetime import datetime as when"]
    lines += ["print(math.sqrt(16), re.sub('a', 'b', 'aa'), loads('[1]'), Counter('aab')['a'], abc.Mapping.__name__)"]
    result = run("\n".join(lines))

    assert result.fault is None
    assert result.stdout == "4.0 bb [1] 2 Mapping\n"


def test_a_module_that_was_not_imported_is_told_how() -> None:
    result = run("print(copy.__name__)")

    assert result.fault is not None
    assert result.fault.hint == "Nothing is imported beforehand: write `import copy` first."


@pytest.mark.parametrize("profile", ["analysis", "general", "assign-only", "open"])
def test_everyday_names_need_no_import(profile: str) -> None:
    with Sandbox(profile=profile) as box:
        first = box.execute(
            "def words(text):\n    return Counter(re.findall('[a-z]+', text))\nprint(words('a b a')['a'])"
        )
        later = box.execute(
            "print(words('c')['c'], json.dumps([math.floor(2.5)]), datetime.fromisoformat('2026-11-01').day)"
        )
        module = box.execute("print(datetime.datetime(2026, 11, 2).day, datetime.timedelta(1).days)")

    assert [each.stdout for each in (first, later, module)] == ["2\n", "1 [2] 1\n", "2 1\n"]
    assert [each.name for each in first.variables] == ["words"]


def test_a_name_that_code_binds_itself_wins_over_the_everyday_one() -> None:
    with Sandbox(profile="general") as box:
        box.execute("re = 'mine'\nprint(Counter('a'))")
        box.inject("json", [1])
        later = box.execute("from collections import OrderedDict as Counter\nprint(re, json, Counter.__name__)")

    assert later.stdout == "mine [1] OrderedDict\n"


@pytest.mark.parametrize(("profile", "name"), [("strict", "re"), ("analysis", "random"), ("general", "os")])
def test_a_name_that_the_profile_does_not_let_code_import_stays_undefined(profile: str, name: str) -> None:
    fault = run(f"print({name})", profile=profile).fault

    assert fault is not None
    assert fault.message == f"NameError: name {name!r} is not defined"


@pytest.mark.requirement(81)
@pytest.mark.requirement(119)
def test_blocked_and_unlisted_modules_raise_an_import_error_that_code_can_catch() -> None:
    names = sorted(BLOCKED_MODULES | {"random", "ssl", "os.path", "http.client", "numpy"})
    code = f"for name in {names}:\n    try:\n        __import__(name)\n    except ImportError as error:\n        print(name)"

    assert run(code).stdout.split() == names


@pytest.mark.requirement(119)
def test_the_import_error_says_what_is_allowed() -> None:
    fault = run("import os").fault

    assert fault is not None and fault.kind == "import" and fault.line == 1
    assert "Allowed modules: collections, copy, dataclasses" in fault.message


@pytest.mark.parametrize(
    "code",
    [
        "import re; re.enum",
        "import dataclasses; dataclasses.sys",
        "import json; json.codecs",
        "import statistics as s; s.random",
    ],
)
def test_an_allowed_module_does_not_hand_out_the_modules_it_uses(code: str) -> None:
    fault = run(code).fault

    assert fault is not None and fault.kind == "error" and "AttributeError" in fault.message


@pytest.mark.parametrize("code", ["from dataclasses import sys", "from json import codecs", "from re import enum"])
def test_nor_by_from(code: str) -> None:
    fault = run(code).fault

    assert fault is not None and fault.kind == "import"


@pytest.mark.requirement(38)
def test_strict_runs_useful_code_over_several_turns() -> None:
    with Sandbox(profile="strict", host=lambda name, args: ["b", "a"], functions=["list_files"]) as box:
        assert box.execute("def first(rows):\n    return sorted(rows)[0]\nnames = list_files()").ok
        result = box.execute(
            "try:\n    names[9]\nexcept IndexError:\n    FINAL({'first': first(names), 'n': len(names)})"
        )

    assert result.final is not None and result.final.value == {"first": "a", "n": 2}


@pytest.mark.requirement(38)
def test_a_strict_refusal_runs_no_line_and_cannot_be_caught() -> None:
    with Sandbox(profile="strict") as box:
        box.execute("kept = 1")
        result = box.execute("kept = 2\ntry:\n    x = kept.__class__\nexcept Exception:\n    kept = 3")
        after = box.execute("print(kept)")

    assert result.fault is not None and result.fault.kind == "gate" and result.fault.line == 3
    assert result.fault.hint
    assert after.stdout == "1\n"


@pytest.mark.requirement(31)
def test_an_intercepted_call_reaches_the_final_value() -> None:
    with Sandbox(profile="assign-only", host=nav, functions=TOOLS, session_id="0123456789") as box:
        result = box.execute("info = nav_info(); more = nav_info(2)\nFINAL([info['total_lines'], more['args']])")

    assert result.final is not None and result.final.value == [3, [2]]


@pytest.mark.requirement(24)
def test_a_call_that_cannot_be_lifted_is_a_failed_turn_with_an_example() -> None:
    with Sandbox(profile="assign-only", host=nav, functions=TOOLS) as box:
        fault = box.execute("print(nav_info())").fault

    assert fault is not None and fault.kind == "gate" and fault.line == 1
    assert fault.hint == "result = nav_info()\nprint(result)"


@pytest.mark.requirement(25)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("x = 1\ny = nav_read('A', chunk_index=1)", "ToolError in nav_read('A', chunk_index=1)"),
        ("\ny = nav_search('b')", "KeyError in nav_search('b')"),
    ],
)
def test_a_tool_that_fails_tells_line_name_arguments_and_what_to_do(code: str, words: str) -> None:
    with Sandbox(profile="assign-only", host=nav, functions=TOOLS) as box:
        result = box.execute(code)
        after = box.execute("print('x' in globals())")

    assert result.fault is not None and result.fault.line == 2
    assert words in result.fault.message and result.fault.hint
    assert after.stdout == "False\n"


def test_the_hosts_own_will_to_stop_leaves_the_sandbox() -> None:
    def stop(name: str, args: Args) -> None:
        raise ToolCallFailed("the store is gone")

    with Sandbox(profile="assign-only", host=stop, functions=TOOLS) as box, pytest.raises(ToolCallFailed):
        box.execute("x = nav_info()")


@pytest.mark.requirement(22)
def test_a_large_intercepted_result_is_cut_with_a_warning_and_kept_once() -> None:
    with Sandbox(profile="assign-only", host=nav, functions=TOOLS) as box:
        result = box.execute("text = nav_outline()\nprint(len(text) <= 1_000_000)")
        after = box.execute("print([name for name in globals() if 'icpt' in name])")

    assert result.stdout == "True\n"
    assert any("3,0" in warning and "nav_outline" in warning for warning in result.warnings)
    assert after.stdout == "[]\n"


def test_the_worker_of_assign_only_makes_no_host_call_at_all() -> None:
    code = "import json\njson.dumps.__globals__['codecs'].sys.modules['os'].write(3, b'\\x01' + bytes(12))"
    with Sandbox(profile="assign-only", host=nav, functions=TOOLS) as box:
        fault = box.execute(code).fault

    assert fault is not None and fault.kind == "violation"


def test_lifted_calls_count_against_the_quota_before_one_of_them_is_made() -> None:
    made: list[str] = []

    def host(name: str, args: Args) -> int:
        made.append(name)
        return 1

    code = "a = nav_info()\nb = nav_info()\n"
    with Sandbox("assign-only", host=host, functions=TOOLS, limits=Limits(host_calls=2)) as box:
        assert box.execute(code).usage.host_calls == 2
        fault = box.execute(code + "c = nav_info()").fault

        assert fault is not None and fault.kind == "quota" and "at most 2" in fault.message
        assert len(made) == 2


def test_a_tool_that_failed_is_counted_too() -> None:
    with Sandbox("assign-only", host=nav, functions=TOOLS) as box:
        result = box.execute("a = nav_info()\nb = nav_search('x')\nc = nav_info()")

        assert result.fault is not None and result.fault.line == 2
        assert result.usage.host_calls == 2


def test_without_named_functions_every_unknown_name_that_is_called_is_a_tool_to_lift() -> None:
    with Sandbox("assign-only", host=lambda name, args: [name, *args]) as box:
        assert box.execute("x = nav_ls('src')\nFINAL(x)").final == Final(["nav_ls", "src"])
        assert box.execute("def _f(x): return x\nprint(_f(1), len('abc'))").stdout == "1 3\n"
        assert box.execute("print(_f(2))").stdout == "2\n"
        fault = box.execute("print(nav_ls('src'))").fault
        assert fault is not None and fault.kind == "gate" and fault.line == 1


def test_what_a_tool_returns_arrives_as_data_in_every_profile() -> None:
    def host(name: str, args: Args) -> Any:
        return [dt.date(2026, 1, 2), Variable("rows", "list", 3)]

    for profile in ("open", "general", "analysis", "strict", "assign-only"):
        with Sandbox(profile, host=host, functions=["tool"]) as box:
            result = box.execute("got = tool()\nFINAL(got)")
            assert result.final == Final(["2026-01-02", {"name": "rows", "type": "list", "size": 3}]), profile


@pytest.mark.requirement(38)
def test_strict_code_may_call_every_function_that_an_earlier_turn_defined() -> None:
    with Sandbox("strict") as box:
        box.execute("def _own(x):\n    return x\n" + "\n".join(f"def f{n}():\n    return {n}" for n in range(300)))

        assert box.execute("print(_own(1), f0(), f299())").stdout == "1 0 299\n"


@pytest.mark.requirement(38)
def test_strict_code_without_a_host_is_told_before_it_runs_that_a_function_is_not_there() -> None:
    result = run("print('begun')\ntext = read_file('a')", "strict")

    assert result.fault is not None and (result.fault.kind, result.fault.line) == ("gate", 2)
    assert result.stdout == ""


@pytest.mark.requirement(82)
@pytest.mark.parametrize("clock", [None, CodeClock(start=1e9)])
@pytest.mark.parametrize("profile", ["general", "analysis", "assign-only"])
def test_all_of_datetime_works_though_it_imports_other_modules_itself(profile: str, clock: CodeClock | None) -> None:
    code = """
from datetime import date, datetime, time
when = datetime.strptime("2026-01-02 03:04", "%Y-%m-%d %H:%M")
print(when.strftime("%A"), f"{when:%H:%M}", time(5).strftime("%H"), when.timetuple().tm_yday, when.utctimetuple().tm_hour)
print(date(2026, 1, 2).ctime(), date.today() >= date(2001, 9, 9), "x".encode("utf-16-le"))
"""
    with Sandbox(profile, clock=clock) as box:
        result = box.execute(code)

    assert result.fault is None
    assert result.stdout == "Friday 03:04 05 2 3\nFri Jan  2 00:00:00 2026 True b'x\\x00'\n"


@pytest.mark.requirement(82)
def test_what_datetime_may_import_the_code_may_not() -> None:
    for attempt in ("import time", "import _strptime", "__import__('time')", "from time import time"):
        assert kind(run(attempt)) == "import"
    assert run("print(__import__('time', globals(), globals(), []))").stdout == "None\n"
    assert kind(run("__import__('os', globals(), globals(), [])")) == "import"
