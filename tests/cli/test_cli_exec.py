"""`sonde exec` and `sonde doctor`: the sandbox from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_program import sonde

from sonde.cli.commands.doctor import report
from sonde.sandbox.doctor import Check, Diagnosis


def test_a_program_prints_and_finishes(tmp_path: Path) -> None:
    shown = sonde("exec", "-", cwd=tmp_path, stdin="print(6 * 7)\nFINAL({'b': 1, 'a': [2]})")

    assert (shown.returncode, shown.stdout, shown.stderr) == (0, '42\n{"a":[2],"b":1}\n', "")


def test_a_file_is_run_with_shared_text(tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text("print(context.count('x'))")
    (tmp_path / "big.txt").write_text("x" * 100_000)

    assert sonde("exec", "count.py", "--share", "context=big.txt", cwd=tmp_path).stdout == "100000\n"


@pytest.mark.requirement(119)
def test_a_refused_import_is_exit_code_1_with_what_is_allowed(tmp_path: Path) -> None:
    shown = sonde("exec", "-", cwd=tmp_path, stdin="x = 1\nimport socket")

    assert shown.returncode == 1
    assert "line 2" in shown.stderr and "statistics" in shown.stderr


def test_the_example_of_a_refusal_is_shown_once(tmp_path: Path) -> None:
    shown = sonde("exec", "-", "--profile", "strict", cwd=tmp_path, stdin="import json")

    assert shown.stderr.count("total = sum(values)") == 1


def test_a_program_that_runs_for_ever_is_stopped(tmp_path: Path) -> None:
    shown = sonde("exec", "-", "--wall", "0.3", "--json", cwd=tmp_path, stdin="while True: pass")

    assert shown.returncode == 1
    assert json.loads(shown.stdout)["fault"]["kind"] == "timeout"


def test_json_is_one_object_and_nothing_else(tmp_path: Path) -> None:
    shown = sonde("exec", "-", "--json", cwd=tmp_path, stdin="print('noise')\nFINAL(0)")

    result = json.loads(shown.stdout)
    assert (result["ok"], result["finished"], result["final"], result["stdout"]) == (True, True, 0, "noise\n")
    assert "seccomp" in result["layers"]
    assert shown.stderr == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["missing.py"], "missing.py"),
        (["-", "--profile", "lax"], "analysis"),
        (["-", "--share", "nonsense"], "NAME=PATH"),
        (["-", "--share", "a=missing.txt"], "missing.txt"),
        (["-", "--memory", "lots"], "512MiB"),
        (["-", "--wall", "0"], "wall_s"),
        (["binary.py"], "UTF-8"),
    ],
)
def test_bad_input_is_exit_code_2_with_a_hint(words: list[str], hint: str, tmp_path: Path) -> None:
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe")

    shown = sonde("exec", *words, cwd=tmp_path, stdin="print(1)")

    assert shown.returncode == 2
    assert shown.stderr.startswith("sonde: ") and hint in shown.stderr
    assert "Traceback" not in shown.stderr


def test_the_profile_may_come_from_settings(tmp_path: Path) -> None:
    shown = sonde("exec", "-", cwd=tmp_path, stdin="class A: pass", SONDE_SANDBOX_PROFILE="strict")

    assert shown.returncode == 1
    assert sonde("exec", "-", cwd=tmp_path, stdin="class A: pass").returncode == 0


def test_doctor_tries_the_sandbox_and_names_layers_kernel_and_versions(tmp_path: Path) -> None:
    shown = sonde("doctor", cwd=tmp_path)

    assert shown.returncode == 0
    for word in ("kernel", "python", "seccomp", "landlock", "sonde 0.", "untrusted code can run safely here"):
        assert word in shown.stdout


def test_doctor_as_data(tmp_path: Path) -> None:
    found = json.loads(sonde("doctor", "--json", cwd=tmp_path).stdout)

    assert found["safe"] is True
    assert all(check["ok"] for check in found["checks"])
    assert set(found["extras"]) >= {"models", "otel", "code"}


def test_doctor_exits_1_and_says_what_to_do_where_code_could_not_run_safely(capsys: pytest.CaptureFixture[str]) -> None:
    sick = Diagnosis(
        safe=False,
        problem="landlock is missing; boot a kernel with CONFIG_SECURITY_LANDLOCK",
        machine="x86_64",
        kernel="Linux 4.0",
        python="CPython 3.11",
        layers=(),
        missing={},
        checks=(Check(name="a file cannot be read", ok=False, detail="it was read"),),
        profiles=("open",),
        versions={"sonde": "0"},
    )

    assert report(sick, json=False) == 1
    shown = capsys.readouterr().out
    assert (
        "CANNOT" in shown and "CONFIG_SECURITY_LANDLOCK" in shown and "NO  a file cannot be read: it was read" in shown
    )
    assert report(sick, json=True) == 1


def test_a_program_that_begins_with_a_byte_order_mark_runs(tmp_path: Path) -> None:
    (tmp_path / "from_an_editor.py").write_bytes(b"\xef\xbb\xbfprint(1)")

    assert sonde("exec", "from_an_editor.py", cwd=tmp_path).stdout == "1\n"


def test_one_name_for_two_shares_is_refused(tmp_path: Path) -> None:
    for name in ("one.txt", "two.txt"):
        (tmp_path / name).write_text(name)
    shown = sonde("exec", "-", "--share", "a=one.txt", "--share", "a=two.txt", cwd=tmp_path, stdin="print(a)")

    assert shown.returncode == 2 and "'a'" in shown.stderr


@pytest.mark.requirement(84)
def test_a_violation_is_called_by_its_code(tmp_path: Path) -> None:
    code = "import os\nprint('before')\nos.fork()"
    plain = sonde("exec", "-", "--profile", "open", cwd=tmp_path, stdin=code)
    told = sonde("exec", "-", "--profile", "open", "--json", cwd=tmp_path, stdin=code)

    assert (plain.returncode, plain.stdout) == (1, "") and "SANDBOX_VIOLATION" in plain.stderr
    assert json.loads(told.stdout)["fault"]["code"] == "SANDBOX_VIOLATION"
