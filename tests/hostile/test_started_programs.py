"""Nothing that Sonde started goes on without it: a paid program does not go on spending, a command does not go on working."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import time
from pathlib import Path

import pytest
from victim import Victim

from journeys.journey import SONDE
from sonde.contexts.workspace.reach import confinable
from system_calls import translated

LEAVES = """\
#!/bin/sh
(setsid sh -c 'echo $$ > {0}/left; exec sleep 600' > /dev/null 2>&1 &)
while [ ! -s {0}/left ]; do sleep 0.01; done
echo $$ > {0}/pid.new; mv {0}/pid.new {0}/pid
exec sleep 600
"""
MEDDLES = translated("""\
import ctypes, errno, os, resource, sys

system = ctypes.CDLL(None, use_errno=True).syscall
pair = lambda number: (ctypes.c_ulong * 2)(number, number)
cpu = ctypes.c_ulong(1)
attributes = (ctypes.c_uint32 * 12)(48, 3)  # SCHED_BATCH
other, me = int(sys.argv[1]), os.getpid()
for pid in (os.getppid(), other):
    calls = {
        "no descriptors": (@SYS_prlimit64@, pid, resource.RLIMIT_NOFILE, pair(0), None),
        "no time": (@SYS_prlimit64@, pid, resource.RLIMIT_CPU, pair(1), None),
        "affinity": (@SYS_sched_setaffinity@, pid, 8, ctypes.byref(cpu)),
        "nice": (@SYS_setpriority@, 0, pid, 19),
        "scheduler": (@SYS_sched_setscheduler@, pid, 3, ctypes.byref(ctypes.c_int(0))),
        "parameters": (@SYS_sched_setparam@, pid, ctypes.byref(ctypes.c_int(0))),
        "attributes": (@SYS_sched_setattr@, pid, attributes, 0),
        "disk": (@SYS_ioprio_set@, 1, pid, 3 << 13),
        "disk of the user": (@SYS_ioprio_set@, 3, 0, 7 << 13),  # no such class: it fails in any case, and must for the right reason
        "trace": (@SYS_ptrace@, 16, pid, 0, 0),
        "compare": (@SYS_kcmp@, pid, me, 1, 0, 0),
        "pages": (@SYS_migrate_pages@, pid, 8, ctypes.byref(cpu), ctypes.byref(cpu)),
        "descriptor": (@SYS_pidfd_getfd@, os.pidfd_open(pid), 0, 0),
    }
    for name, call in calls.items():
        if system(*call) >= 0 or ctypes.get_errno() not in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            print("MEDDLED", name)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
os.setpriority(os.PRIO_PROCESS, 0, os.nice(0))
os.sched_setaffinity(0, os.sched_getaffinity(me))
print("MINE", resource.prlimit(me, resource.RLIMIT_NOFILE))
sys.stdout.flush()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("left.new", "w") as file:
            print(os.getpid(), file=file)
        os.rename("left.new", "left")
        os.closerange(0, 100)
        os.execvp("sleep", ["sleep", "600"])
    os._exit(0)
os.wait()
while not os.path.exists("left"):
    os.sched_yield()
""")
DATAGRAMS = """\
import socket, sys

for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK):
    try:
        socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"an order", sys.argv[1])
        print("REACHED")
    except PermissionError:
        print("REFUSED")
for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
    near, far = socket.socketpair(socket.AF_UNIX, kind)
    near.send(b"hello")
    assert far.recv(9) == b"hello"
    far.close()
    for reach in (lambda: near.connect(sys.argv[1]), lambda: near.sendto(b"an order", sys.argv[1])):
        try:
            reach()
            print("REACHED")
        except OSError:
            print("REFUSED")
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


@pytest.mark.skipif(not confinable(), reason="this kernel has no landlock")
def test_an_allowed_command_changes_no_process_outside(victim: Victim) -> None:
    victim.write("b.md", "start\n")
    victim.write("work.py", MEDDLES)
    with subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL) as outside:
        before = resource.prlimit(outside.pid, resource.RLIMIT_CPU), os.getpriority(os.PRIO_PROCESS, outside.pid)
        command = f"python3 work.py {outside.pid}"
        model = victim.model(
            f"print(execute_command({command!r}))\nprint(read_file('b.md')['content'])", "FINAL('Done. [b.md:1-1]')"
        )
        flags = ("--allow-command", f"={command}", "--large", "--runs-dir", victim.own, "--model", model.name)

        victim.sonde("edit", "Work", ".", *flags)

        after = resource.prlimit(outside.pid, resource.RLIMIT_CPU), os.getpriority(os.PRIO_PROCESS, outside.pid)
        outside.kill()
    assert "MINE (100, 100)" in model.prompts[1]  # its own limits are its own affair
    assert "MEDDLED" not in model.prompts[1]
    assert after == before
    assert has_ended(int((victim.folder / "left").read_text()))


@pytest.mark.hostile_long
@pytest.mark.skipif(not confinable(), reason="this kernel has no landlock")
def test_an_allowed_command_sends_nothing_to_a_socket_of_another_program(victim: Victim) -> None:
    victim.write("b.md", "start\n")
    victim.write("work.py", DATAGRAMS)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(str(victim.folder / "door"))
        door.setblocking(False)
        model = victim.model(
            "print(execute_command('python3 work.py door'))\nprint(read_file('b.md')['content'])",
            "FINAL('Done. [b.md:1-1]')",
        )
        flags = ("--allow-command", "=python3 work.py door", "--large", "--runs-dir", victim.own, "--model", model.name)

        victim.sonde("edit", "Work", ".", *flags)

        with pytest.raises(BlockingIOError):
            door.recv(100)
    assert model.prompts[1].count("REFUSED") == 7 and "REACHED" not in model.prompts[1]


@pytest.mark.hostile_long
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
