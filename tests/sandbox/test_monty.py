"""The portable backend: the same turns in an interpreter. Run by scripts/test_monty.sh."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sonde.errors import ConfigError, RunError, SandboxLost, SandboxUnavailable, ToolFault, UnexpectedRuntimeError
from sonde.sandbox import Args, Box, CodeClock, ExecFault, Limits, open_box

pytestmark = pytest.mark.monty


def monty_is_there() -> bool:
    try:
        open_box("monty").close()
    except SandboxUnavailable:
        return False
    return True


needs_monty = pytest.mark.skipif(not monty_is_there(), reason="pydantic-monty is not installed: scripts/test_monty.sh")


def serve(name: str, args: Args) -> object:
    match name:
        case "fail":
            raise ToolFault("no such row")
        case "crash":
            raise KeyError("k")
        case "abort":
            raise UnexpectedRuntimeError("enough")
        case "objects":
            return object()
        case _:
            return [name, list(args), args.named]


def opened(**options: object) -> Box:
    functions = ["look", "fail", "crash", "abort", "objects", "delegate"]
    return open_box("monty", host=serve, functions=functions, sharing=["delegate"], **options)


def fault_of(box: Box, code: str) -> ExecFault:
    result = box.execute(code)
    assert not result.ok and result.fault is not None
    return result.fault


@pytest.mark.skipif(monty_is_there(), reason="pydantic-monty is installed")
def test_without_the_package_the_message_says_how_to_get_it() -> None:
    with pytest.raises(SandboxUnavailable, match=r"\[monty\]"):
        open_box("monty")


def test_an_unknown_backend_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigError, match="kernel, monty"):
        open_box("docker")


@needs_monty
def test_state_lives_on_from_turn_to_turn_and_changes_are_told() -> None:
    box = opened()
    first = box.execute("x = [1, 2]\ny = 'abc'")
    second = box.execute("x.append(3)\nprint(sum(x))")

    assert [(each.name, each.type, each.size) for each in first.variables] == [("x", "list", 2), ("y", "str", 3)]
    assert [each.name for each in second.variables] == ["x"]
    assert (second.stdout, second.turn) == ("6\n", 2)


@needs_monty
def test_the_layers_say_that_no_kernel_stands_behind_it() -> None:
    layers = opened().execute("1").layers

    assert layers[0].startswith("interpreter: monty")
    assert "NO KERNEL LAYERS" in layers


@needs_monty
def test_shares_of_every_form_are_plain_text(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("grüße\n")
    box = opened()
    box.share("context", file)
    box.share("docs", {"a": "one", "b": b"two"})
    box.inject("rows", [{"id": 1}])

    assert box.execute("FINAL([len(context), docs['b'], rows[0]['id']])").final.value == [6, "two", 1]  # type: ignore[union-attr]


@needs_monty
def test_shares_are_limited_and_must_be_text() -> None:
    box = opened(limits=Limits(shared_bytes=10))
    with pytest.raises(ConfigError):
        box.share("context", "x" * 11)
    with pytest.raises(ConfigError):
        box.share("context", b"\xff\xfe")
    with pytest.raises(ConfigError):
        box.share("look", "a name that is taken")
    with pytest.raises(ConfigError):
        box.inject("thing", object())


@needs_monty
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("FINAL(0)", 0),
        ("set_final({'a': {2, 1}})", {"a": [1, 2]}),
        ("SUBMIT(answer=None)", {"answer": None}),
        ("answer = 'yes'\nFINAL_VAR('answer')", "yes"),
        ("try:\n    FINAL(1)\nexcept Exception:\n    FINAL(2)", 1),
        ("try:\n    FINAL(1)\nexcept:\n    print('caught')\n    FINAL(2)", 1),
    ],
)
def test_a_final_value_ends_the_block(code: str, value: object) -> None:
    result = opened().execute(code + "\nprint('after')")

    assert result.ok and result.final is not None
    assert result.final.value == value
    assert result.stdout == ""


@needs_monty
def test_what_was_assigned_before_the_end_stays() -> None:
    box = opened()
    box.execute("z = 5\nFINAL(z)\nz = 6")

    assert box.execute("print(z)").stdout == "5\n"


@needs_monty
@pytest.mark.parametrize("code", ["FINAL()", "FINAL(1, 2)", "FINAL_VAR(3)", "FINAL_VAR('nowhere')", "SUBMIT(1)"])
def test_a_wrong_finish_is_a_fault(code: str) -> None:
    assert fault_of(opened(), code).kind == "error"


@needs_monty
def test_host_calls_carry_arguments_and_results() -> None:
    result = opened().execute("FINAL(look(1, 'b', key={'n': [None, 2.5]}))")

    assert result.final is not None
    assert result.final.value == ["look", [1, "b"], {"key": {"n": [None, 2.5]}}]
    assert result.usage.host_calls == 1


@needs_monty
def test_errors_of_the_host_can_be_caught_by_the_code() -> None:
    code = (
        "try:\n    fail()\nexcept ToolError as e:\n    print(e)\ntry:\n    crash()\nexcept KeyError:\n    print('key')"
    )

    assert opened().execute(code).stdout == "no such row\nkey\n"


@needs_monty
def test_a_run_error_of_the_host_voids_the_turn() -> None:
    box = opened()
    box.execute("x = 1")
    with pytest.raises(RunError):
        box.execute("x = 2\nabort()")

    assert box.execute("print(x)").stdout == "1\n"


@needs_monty
@pytest.mark.parametrize("code", ["objects()", "look(lambda: 1, {1, 2})", "look({1, 2})"])
def test_values_that_are_not_json_like_do_not_cross(code: str) -> None:
    fault = fault_of(opened(), f"class A:\n    pass\n{code}")

    assert "JSON-like" in fault.message


@needs_monty
def test_variables_are_passed_on_by_name() -> None:
    code = "rows = [1]\nx = 2\nFINAL(delegate('go', share=['rows',\n    'x']))"
    box = opened()

    assert box.execute(code).final.value == ["delegate", ["go"], {"share": {"rows": [1], "x": 2}}]  # type: ignore[union-attr]
    assert "literal" in fault_of(box, "names = ['x']\ndelegate('go', share=names)").message


@needs_monty
def test_the_quota_of_host_calls_ends_a_loop_and_the_state_before_stands() -> None:
    box = opened(limits=Limits(host_calls=5))
    box.execute("x = 1")

    assert fault_of(box, "x = 2\nfor i in range(10):\n    look(i)").kind == "quota"
    assert box.execute("print(x)").stdout == "1\n"


@needs_monty
def test_more_host_calls_than_monty_itself_allows_are_counted_by_our_limit_only() -> None:
    result = opened().execute("for i in range(1500):\n    look(i)")

    assert result.ok and result.usage.host_calls == 1500


@needs_monty
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("while True:\n    pass", "timeout"),
        ("import time\ntime.sleep(3600)", "timeout"),
        ("x = 'a' * 10 ** 9", "memory"),
        ("x = []\nwhile True:\n    x.append('a' * 1000000)", "memory"),
        ("def f():\n    return f()\nf()", "error"),
        ("9 ** 9 ** 9", "memory"),
    ],
)
def test_a_bomb_is_bounded_and_the_state_before_it_stands(code: str, kind: str) -> None:
    box = opened(profile="open", limits=Limits(wall_s=5.0, memory="64MiB"))
    box.execute("kept = 41")

    assert fault_of(box, code).kind == kind
    assert box.execute("print(kept + 1)").stdout == "42\n"


@needs_monty
def test_a_turn_may_have_less_time_than_the_limit_and_waiting_for_the_host_is_free() -> None:
    waited = threading.Event()

    def slow(name: str, args: Args) -> str:
        waited.wait(3.5)
        return "done"

    box = open_box("monty", host=slow, functions=["slow"], limits=Limits(wall_s=30))
    assert box.execute("FINAL(slow())", wall_s=3).ok
    result = box.execute("print('so far')\nwhile True:\n    pass", wall_s=0.3)
    assert result.fault is not None and result.fault.kind == "timeout"


@needs_monty
def test_a_flood_of_output_is_cut_with_head_tail_and_true_length() -> None:
    result = opened(limits=Limits(output_chars=1000)).execute("print('start')\nprint('x' * 50000)\nprint('end')")

    assert len(result.stdout) <= 1000
    assert result.stdout.startswith("start") and result.stdout.endswith("end\n")
    assert result.output_chars == 50_011


@needs_monty
@pytest.mark.parametrize(
    ("code", "kind", "line"),
    [
        ("x = 1\nclass A(dict):\n    pass", "gate", 2),
        ("def f():\n    yield 1", "gate", 2),
        ("x = {1: 2}\n\ndel x[1]", "gate", 3),
        ("class A:\n    @property\n    def x(self):\n        return 1", "gate", 1),
        ("import json\nimport statistics", "import", 2),
        ("import operator", "import", 1),
        ("import textwrap", "import", 1),
        ("import os", "import", 1),
        ("x = (", "syntax", 1),
        ("FINAL = 3", "gate", 1),
        ("a = 1\nlist(map(look, [1]))", "error", 2),
        ("dir()", "error", 1),
    ],
)
def test_what_monty_cannot_do_is_said_with_line_and_hint(code: str, kind: str, line: int) -> None:
    fault = fault_of(opened(), code)

    assert (fault.kind, fault.line) == (kind, line)
    assert fault.hint


@needs_monty
def test_a_missing_module_can_be_caught() -> None:
    assert opened().execute("try:\n    import numpy\nexcept ImportError:\n    print('none')").stdout == "none\n"


@needs_monty
def test_the_strict_profile_holds_here_too() -> None:
    assert fault_of(open_box("monty", profile="strict"), "import json").kind == "gate"


@needs_monty
def test_assign_only_lifts_tool_calls_out_of_the_code() -> None:
    box = open_box("monty", profile="assign-only", host=serve, functions=["look"])

    assert box.execute("row = look(1)\nFINAL(row)").final.value == ["look", [1], {}]  # type: ignore[union-attr]


@needs_monty
def test_clock_and_dice_are_the_callers() -> None:
    code = "import random, time\nfrom datetime import date\nFINAL([time.time(), date.today().isoformat(), random.random()])"

    def once() -> object:
        box = opened(profile="open", clock=CodeClock(start=86_400.0), seed=7)
        result = box.execute(code)
        assert result.final is not None
        return result.final.value

    first = once()
    assert first == once()
    assert isinstance(first, list) and first[:2] == [86_400.0, "1970-01-02"]


@needs_monty
def test_rollback_and_branches_go_back_and_apart() -> None:
    box = opened()
    for value in (1, 2, 3):
        box.execute(f"x = {value}")
    twin = box.branch()
    box.rollback(1)
    twin.execute("x = 9")

    assert box.execute("print(x)").stdout == "1\n"
    assert twin.execute("print(x)").stdout == "9\n"
    assert box.turn == 2
    with pytest.raises(ConfigError):
        box.rollback(7)


@needs_monty
def test_old_states_are_forgotten_beyond_what_is_kept() -> None:
    box = opened(keep_states=2)
    for value in range(5):
        box.execute(f"x = {value}")
    with pytest.raises(ConfigError):
        box.rollback(1)


@needs_monty
def test_a_box_is_used_by_one_turn_at_a_time_and_not_after_its_end() -> None:
    inner: list[Exception] = []

    def again(name: str, args: Args) -> None:
        try:
            box.execute("1")
        except ConfigError as error:
            inner.append(error)

    box = open_box("monty", host=again, functions=["again"])
    box.execute("again()")
    assert len(inner) == 1
    box.close()
    box.close()
    with pytest.raises(SandboxLost):
        box.execute("1")


@needs_monty
def test_unsafe_has_no_meaning_here_and_is_refused() -> None:
    with pytest.raises(ConfigError):
        open_box("monty", unsafe=True)


def test_importing_the_sandbox_needs_no_kernel_of_linux() -> None:
    strip = "import fcntl, os, signal\nfor m in (fcntl, os, signal):\n"
    strip += "    for n in [n for n in dir(m) if n.startswith(('F_SEAL', 'F_ADD', 'memfd', 'MFD', 'pidfd'))]: delattr(m, n)\n"
    done = subprocess.run([sys.executable, "-c", strip + "import sonde.sandbox, sonde.sandbox.portable"], check=False)

    assert done.returncode == 0


@needs_monty
@pytest.mark.parametrize(
    ("profile", "code"),
    [
        ("strict", "import json"),
        ("strict", "class A: pass"),
        ("strict", "x = ''.__class__"),
        ("strict", "[].no_such_method()"),
        ("assign-only", "nav_info()"),
        ("assign-only", "x = nav_info(1 + 1)"),
    ],
)
def test_a_profile_refuses_with_the_words_of_the_kernel_backend(profile: str, code: str) -> None:
    faults: list[ExecFault] = []
    for backend in ("kernel", "monty"):
        with open_box(backend, profile=profile, host=serve, functions=["nav_info"]) as box:
            faults.append(fault_of(box, code))

    assert faults[0] == faults[1]


@needs_monty
@pytest.mark.parametrize("module", ["csv", "os", "subprocess"])
def test_a_module_outside_the_profile_is_an_import_fault_whether_monty_has_it_or_not(module: str) -> None:
    with open_box("monty", profile="analysis") as box:
        assert fault_of(box, f"import {module}").kind == "import"
    with open_box("monty", profile="open") as box:
        assert box.execute("import csv").ok
