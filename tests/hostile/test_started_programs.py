"""Nothing that Sonde started goes on without it: a paid program does not go on spending, a command does not go on working."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from victim import Victim

from journeys.journey import SONDE

LEAVES = """\
#!/bin/sh
(setsid sh -c 'echo $$ > {0}/left; exec sleep 600' > /dev/null 2>&1 &)
while [ ! -s {0}/left ]; do sleep 0.01; done
echo $$ > {0}/pid.new; mv {0}/pid.new {0}/pid
exec sleep 600
"""
NO_LANDLOCK = """\
import errno
from sonde.sandbox.worker import kernel, seccomp
kernel.call("prctl", 38, 1)
number = kernel.number("landlock_create_ruleset")
code = seccomp._prologue(kernel.MACHINE) + seccomp._when(number, (), seccomp.refuse(errno.ENOSYS), seccomp.ALLOW)
seccomp._install(seccomp._packed([*code, seccomp._return(seccomp.ALLOW)]), 0)
"""


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> int:
    """The process id in a file, as soon as it is there."""
    until = time.monotonic() + 200
    while not path.exists():
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    return int(path.read_text())


def has_ended(pid: int) -> bool:
    """Whether a process ends; waits for it."""
    until = time.monotonic() + 100
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "ZX":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


def start(victim: Victim, *words: str | Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [str(SONDE), *map(str, words)],
        cwd=victim.folder,
        env=victim.environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_a_model_program_ends_with_a_sonde_that_is_killed(victim: Victim) -> None:
    victim.write("a.txt", "one\n")
    model = victim.own / "model"
    model.write_text(LEAVES.format(victim.own))
    model.chmod(0o755)
    sonde = start(victim, "ask", "Why?", "a.txt", "--model", f"command:{model}", "--runs-dir", victim.own)
    pid = wait_for(victim.own / "pid", sonde)
    left = int((victim.own / "left").read_text())

    sonde.kill()
    sonde.wait()

    assert has_ended(pid)
    assert has_ended(left)


@pytest.mark.hostile_long
def test_an_allowed_command_ends_with_a_sonde_that_is_killed(victim: Victim) -> None:
    victim.write("work.sh", LEAVES.format(victim.folder).replace("exec sleep", "echo $TMPDIR > place\nexec sleep"))
    model = victim.model("print(execute_command('sh work.sh'))")
    flags = ("--allow-command", "=sh work.sh", "--large", "--runs-dir", victim.own, "--model", model.name)
    sonde = start(victim, "edit", "Work", ".", *flags)
    pid = wait_for(victim.folder / "pid", sonde)
    left = int((victim.folder / "left").read_text())
    place = victim.folder / "place"
    while not place.exists() or not place.read_text():
        time.sleep(0.02)

    sonde.kill()
    sonde.wait()

    assert has_ended(pid)
    assert has_ended(left)
    until = time.monotonic() + 100
    while Path(place.read_text().strip()).exists():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.hostile_long
def test_a_child_that_left_an_allowed_command_ends_with_it(victim: Victim) -> None:
    victim.write("b.md", "start\n")
    victim.write("work.sh", LEAVES.format(victim.folder).replace("exec sleep 600\n", "", 1))
    model = victim.model(
        "print(execute_command('sh work.sh'))\nprint(read_file('b.md')['content'])", "FINAL('Done. [b.md:1-1]')"
    )
    flags = ("--allow-command", "=sh work.sh", "--large", "--runs-dir", victim.own, "--model", model.name)

    victim.sonde("edit", "Work", ".", *flags)

    assert "'exitCode': 0" in model.prompts[1]
    assert has_ended(int((victim.folder / "left").read_text()))


def test_a_kernel_without_landlock_is_not_passed_over_in_silence(victim: Victim) -> None:
    victim.write("b.md", "start\n")
    model = victim.model(
        "print(execute_command('ls'))\nprint(read_file('b.md')['content'])", "FINAL('Done. [b.md:1-1]')"
    )
    call = f"sonde.edit('Look', '.', commands=['=ls'], model={model.name!r}, runs_dir={str(victim.own)!r}, unsafe=True,"

    done = victim.python(f"{NO_LANDLOCK}\nimport sonde\nprint({call} max_tokens_total=100_000).status)")

    assert done.returncode == 0, done.stderr
    assert "'exitCode': 0" in model.prompts[1]
    [journal] = victim.own.glob("*/events.jsonl")
    assert "not confined here, because this kernel has no landlock" in journal.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads these files anyway")
@pytest.mark.hostile_long
def test_a_command_of_root_does_not_read_what_only_root_may(victim: Victim) -> None:
    victim.write("b.md", "start\n")
    command = "cat /etc/shadow"
    model = victim.model(
        f"print(execute_command({command!r}))\nprint(read_file('b.md')['content'])", "FINAL('Done. [b.md:1-1]')"
    )

    victim.sonde(
        "edit",
        "Look",
        ".",
        "--allow-command",
        f"={command}",
        "--large",
        "--runs-dir",
        victim.own,
        "--model",
        model.name,
    )

    assert "Permission denied" in model.prompts[1]
    assert "root:*" not in model.prompts[1] and "root:!" not in model.prompts[1]
