"""`sonde doctor` on machines that lack something: a filter of the kernel's takes system calls away from the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli_program import Shown, environment

from system_calls import SYS

WITHOUT = """
import ctypes, os, struct, sys
def step(code, then, otherwise, value):
    return struct.pack("HBBI", code, then, otherwise, value)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_void_p)]
number, error = int(sys.argv[1]), int(sys.argv[2])
steps = step(0x20, 0, 0, 0) + step(0x15, 0, 1, number) + step(0x06, 0, 0, 0x00050000 | error) + step(0x06, 0, 0, 0x7FFF0000)
held = ctypes.create_string_buffer(steps)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(4, ctypes.addressof(held))), 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "sonde", *sys.argv[3:]])
"""
ENOSYS, EPERM = 38, 1
LACKING = {
    "landlock": (SYS["landlock_create_ruleset"], ENOSYS, "landlock"),
    "seccomp": (SYS["seccomp"], ENOSYS, "seccomp"),
    "watching processes": (SYS["pidfd_open"], EPERM, "pidfd_open"),
    "ending processes": (SYS["pidfd_send_signal"], ENOSYS, "pidfd_open"),
}


def sonde_without(number: int, error: int, *words: str, cwd: Path) -> Shown:
    command = [sys.executable, "-c", WITHOUT, str(number), str(error), *words]
    return subprocess.run(
        command, cwd=cwd, env=environment(cwd), capture_output=True, text=True, timeout=250, check=False
    )


@pytest.mark.parametrize(
    "lacking", [pytest.param(each, marks=[pytest.mark.long] * (each != "landlock")) for each in LACKING]
)
def test_doctor_names_what_the_machine_lacks(lacking: str, tmp_path: Path) -> None:
    number, error, named = LACKING[lacking]

    shown = sonde_without(number, error, "doctor", "--json", cwd=tmp_path)

    assert shown.returncode == 1, shown.stderr
    found = json.loads(shown.stdout)
    assert not found["safe"] and named in found["problem"]


@pytest.mark.long
def test_the_page_of_a_machine_that_lacks_something_says_so(tmp_path: Path) -> None:
    number, error, _ = LACKING["landlock"]

    page = sonde_without(number, error, "doctor", cwd=tmp_path)

    assert page.returncode == 1, page.stderr
    assert "CANNOT run safely here" in page.stdout


@pytest.mark.long
def test_doctor_lists_the_layers_that_are_on_and_what_the_missing_one_would_have_stopped(tmp_path: Path) -> None:
    number, error, _ = LACKING["landlock"]

    page = sonde_without(number, error, "doctor", cwd=tmp_path)

    layers = next(line for line in page.stdout.splitlines() if line.startswith("layers"))
    missing = next(line for line in page.stdout.splitlines() if line.startswith("missing"))
    assert "seccomp" in layers and "rlimits" in layers and "landlock" not in layers
    assert "landlock" in missing and "would have stopped opening files" in missing
    assert "--without landlock" in page.stdout


@pytest.mark.long
def test_a_machine_without_landlock_runs_code_only_if_the_flag_is_typed(tmp_path: Path) -> None:
    number, error, _ = LACKING["landlock"]
    (tmp_path / "program.py").write_text("print(6 * 7)")
    words = ("exec", "program.py", "--json")

    refused = sonde_without(number, error, *words, cwd=tmp_path)
    agreed = sonde_without(number, error, *words, "--without", "landlock", cwd=tmp_path)
    content = sonde_without(number, error, "doctor", "--without", "landlock", cwd=tmp_path)

    assert refused.returncode == 2 and "--without landlock" in refused.stderr
    assert json.loads(agreed.stdout)["stdout"] == "42\n" and "without landlock" in json.loads(agreed.stdout)["layers"]
    assert content.returncode == os.EX_OK


@pytest.mark.long
def test_giving_up_landlock_gives_up_no_other_layer(tmp_path: Path) -> None:
    number, error, _ = LACKING["seccomp"]

    shown = sonde_without(number, error, "doctor", "--without", "landlock", "--json", cwd=tmp_path)

    assert shown.returncode == 1
    assert "seccomp" in json.loads(shown.stdout)["problem"]


@pytest.mark.long
def test_user_namespaces_are_not_needed(tmp_path: Path) -> None:
    assert sonde_without(SYS["unshare"], EPERM, "doctor", cwd=tmp_path).returncode == os.EX_OK
