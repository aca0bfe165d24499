"""Limits and failures, each with real programs: what ends a run, its class, its exit code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rlms_loop import CITED, Loop, fenced, has_ended

from sonde.rlms.result import exit_code

pytestmark = pytest.mark.long


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


@pytest.mark.requirement(42)
@pytest.mark.requirement(45)
def test_a_root_that_only_emits_a_forbidden_import_ends_as_a_sandbox_violation(loop: Loop) -> None:
    called = loop.shell(loop.replies("root", [fenced("import os\nset_final(os.environ)")]), max_steps=3)

    assert called.code == 1
    assert called.result["error_code"] == "sandbox_violation"
    assert called.result["stats"]["step_count"] == 3
    assert "sandbox_violation" in (loop.output / "summary.md").read_text()


@pytest.mark.parametrize("last", ["x = 1 / 0", "x = 1", "sub_rlm('x', depth=9)"])
def test_code_that_ran_after_the_refusal_makes_it_a_limit(loop: Loop, last: str) -> None:
    result = loop.work(loop.replies("root", ["import os", last]), max_steps=2)

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)


@pytest.mark.requirement(39)
def test_steps_are_limited(loop: Loop) -> None:
    root = loop.replies("root", ["x = 1"])

    result = loop.work(root, max_steps=3)

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)
    assert "max_steps of 3" in result["error"]
    assert root.calls == result["stats"]["step_count"] == 3


@pytest.mark.requirement(39)
@pytest.mark.requirement(45)
@pytest.mark.parametrize(("max_depth", "depth"), [(2, 3), (1, 2), (0, 1)])
def test_a_sub_call_declared_deeper_than_the_limit_ends_the_run(loop: Loop, max_depth: int, depth: int) -> None:
    sub = loop.replies("sub", ["never asked"])
    root = loop.replies("root", [f'x = sub_rlm("too deep", depth={depth})\n{CITED}'])

    result = loop.work(root, max_depth=max_depth, subcall_command_json=sub.command)

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)
    assert "depth exceeded" in result["error"]
    assert (root.calls, sub.calls) == (1, 0)


@pytest.mark.requirement(39)
@pytest.mark.parametrize(("flag", "allowed"), [(0, 4), (3, 3)])
def test_sub_calls_are_limited_to_twice_the_steps_unless_said_otherwise(loop: Loop, flag: int, allowed: int) -> None:
    sub = loop.replies("sub", ["yes"])
    root = loop.replies("root", ['for n in range(9):\n    sub_rlm(f"number {n}")'])

    result = loop.work(root, max_steps=2, max_subcalls=flag, subcall_command_json=sub.command)

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)
    assert "subcall limit exceeded" in result["error"]
    assert result["limits"]["max_subcalls"] == allowed
    assert sub.calls == result["stats"]["subcall_count"] == allowed


def test_a_sub_call_prompt_above_its_bound_is_a_fault(loop: Loop) -> None:
    sub = loop.replies("sub", ["yes"])
    root = loop.replies("root", ['sub_rlm("x" * 120001)', f'sub_rlm("x" * 120000)\n{CITED}'])

    result = loop.work(root, subcall_command_json=sub.command)

    assert result["ok"] is True
    assert sub.calls == 1
    assert "120,000" in root.prompt(2)


@pytest.mark.requirement(39)
def test_code_that_loops_for_ever_is_ended_in_time(loop: Loop) -> None:
    result = loop.work(loop.replies("root", ["while True:\n    pass"]), timeout_seconds=4)

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)
    assert "timeout_seconds of 4" in result["error"]


@pytest.mark.requirement(39)
def test_a_program_that_hangs_is_ended_in_time_with_its_children(loop: Loop) -> None:
    root = loop.program("root", 'sleep 600 & echo $! > "$0.pid"; trap "" TERM; wait; sleep 600')

    called = loop.shell(root, timeout_seconds=20)

    assert called.code == 2
    assert called.result["error_code"] == "limit_exceeded"
    assert called.result["trace"][0]["returncode"] != 0
    assert has_ended(Path(f"{root.path}.pid").read_text())


def test_a_sub_call_that_ran_out_of_its_time_is_a_fault_and_not_an_answer(loop: Loop) -> None:
    code = "try:\n    x = sub_rlm('look')\nexcept ToolError as error:\n    x = [str(error)]\nset_final(x)"
    sub = loop.program("sub", "exec sleep 600")

    result = loop.work(
        loop.replies("root", [code]),
        subcall_command_json=sub.command,
        timeout_seconds=12,
        require_citations="false",
    )

    assert isinstance(result["final"], list)
    assert "the sub-call failed" in result["final"][0]


def test_a_sub_call_that_hangs_does_not_hold_the_run_beyond_its_time(loop: Loop) -> None:
    result = loop.work(
        loop.replies("root", ['sub_rlm("x")']),
        subcall_command_json=loop.program("sub", "sleep 600").command,
        timeout_seconds=6,
    )

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)


def test_a_failure_shows_paths_and_hides_keys(loop: Loop) -> None:
    root = loop.program("root", 'echo "$PWD refused $AGENT_TOKEN" >&2; exit 1')

    called = loop.shell(root, env={"AGENT_TOKEN": "t-123456", "PLACE": str(loop.repo)})

    assert f"{loop.repo} refused [key removed]" in called.result["error"]


def test_a_root_that_exits_3_is_a_failed_invocation_and_says_what_it_said(loop: Loop) -> None:
    called = loop.shell(loop.program("root", "echo out of credit >&2; exit 3"))

    assert called.code == 1
    assert called.result["error_code"] == "model_invocation_failed"
    assert "out of credit" in called.result["error"]
    assert called.result["trace"][0]["returncode"] == 3


@pytest.mark.parametrize("said", ["", r"\n", r"   \n\n"])
def test_a_root_that_prints_nothing_but_blanks_is_a_failed_invocation(loop: Loop, said: str) -> None:
    result = loop.work(loop.program("root", f"cat > /dev/null; printf '{said}'"))

    assert (result["error_code"], exit_code(result)) == ("model_invocation_failed", 1)


def test_binary_output_is_code_that_cannot_be_read_until_the_steps_are_used_up(loop: Loop) -> None:
    result = loop.work(loop.program("root", "head -c 3000 /dev/urandom"), max_steps=2)

    assert (result["error_code"], exit_code(result)) == ("limit_exceeded", 2)


def test_100_megabytes_of_output_are_a_failed_invocation_and_are_not_kept(loop: Loop) -> None:
    called = loop.call(loop.program("root", "yes 'x = 1' | head -c 100000000"))

    assert called.code == 1
    assert called.result["error_code"] == "model_invocation_failed"
    assert sum(each.stat().st_size for each in loop.output.rglob("*") if each.is_file()) < 1_000_000


def test_a_failing_sub_call_program_is_told_to_the_root_which_goes_on(loop: Loop) -> None:
    sub = loop.program("sub", "exit 7")
    root = loop.replies("root", ['sub_rlm("x")', CITED])

    result = loop.work(root, subcall_command_json=sub.command)

    assert result["ok"] is True
    assert "exit code 7" in root.prompt(2)
    assert [(row["type"], row["returncode"]) for row in result["trace"]][:3] == [("root", 0), *[("subcall", 7)] * 2]


def test_a_program_that_does_not_exist_is_a_wrong_configuration(loop: Loop) -> None:
    result = loop.work(None, root_command_json='["/no/such/program"]')

    assert (result["error_code"], exit_code(result)) == ("invalid_config", 2)


def test_a_list_that_is_too_large_is_refused_and_not_cut(loop: Loop) -> None:
    loop.files.write_bytes(b"src/a.py\n" * 1_800_000)

    result = loop.work(loop.replies("root", [CITED]))

    assert (result["ok"], result.get("error_code")) == (False, "invalid_config")
    assert "more than 16,000,000 bytes" in result["error"]


@pytest.mark.parametrize("names", [(), ("missing.py",), ("image.bin",)])
def test_a_list_without_a_readable_file_is_a_wrong_configuration(loop: Loop, names: tuple[str, ...]) -> None:
    (loop.repo / "image.bin").write_bytes(os.urandom(4096))
    loop.list(*names)

    result = loop.work(loop.replies("root", [CITED]))

    assert (result["error_code"], exit_code(result)) == ("invalid_config", 2)
