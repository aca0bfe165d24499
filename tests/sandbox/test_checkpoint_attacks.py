"""Attacks on the checkpoint protocol itself: within a turn, and left behind in a state for the next one.

Each must leave no stray process, and the variables of earlier turns; at worst the turn it was made in is lost.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from watching import RAW, kind, no_strays, run

from sonde.sandbox import ForkServer, Limits, Sandbox
from sonde.sandbox.policy import PROFILES
from system_calls import MACHINE, SYS, translated

CLONE, PRCTL, SIGPROCMASK = SYS["clone"], SYS["prctl"], SYS["rt_sigprocmask"]
FORK = SYS.get("fork", -1)
GOOD = 0x8000 | 17
X32 = "0x40000000"

MUST_KILL = {
    "fork": "raw(@SYS_fork@)",
    "vfork": "raw(@SYS_vfork@)",
    "os.fork": "os.fork()",
    "clone as fork": "raw(@SYS_clone@, 17)",
    "clone of a thread": "raw(@SYS_clone@, 0x3D0F00, 0)",
    "clone without a signal": "raw(@SYS_clone@, 0x8000)",
    "clone with shared memory": f"raw(@SYS_clone@, {GOOD} | 0x100)",
    "clone into a namespace": f"raw(@SYS_clone@, {GOOD} | 0x20000000)",
    "clone with a stack": f"raw(@SYS_clone@, {GOOD}, 4096)",
    "clone with high bits in flags": f"raw(@SYS_clone@, {GOOD} | 1 << 40)",
    "clone with high bits in stack": f"raw(@SYS_clone@, {GOOD}, 1 << 40)",
    "x32 fork": f"raw({X32} | 57)",
    "not to die with the parent": "raw(@SYS_prctl@, 1, 0)",
    "another signal at parent death": "raw(@SYS_prctl@, 1, 15)",
    "to be dumpable": "raw(@SYS_prctl@, 4, 1)",
    "new seccomp filter": "raw(@SYS_prctl@, 22, 1)",
    "seccomp listener": "raw(@SYS_seccomp@, 1, 8, 0)",
    "ptrace": "raw(@SYS_ptrace@, 0, 0)",
    "process_vm_readv": "raw(@SYS_process_vm_readv@, os.getppid(), 0, 0, 0, 0)",
    "kill the group": "raw(@SYS_kill@, 0, 9)",
    "kill the zygote": "raw(@SYS_kill@, os.getppid(), 9)",
    "signal by thread": "raw(@SYS_tgkill@, os.getpid(), os.getpid(), 9)",
    "pidfd_open": "raw(@SYS_pidfd_open@, os.getppid(), 0)",
    "setpgid": "raw(@SYS_setpgid@, 0, 0)",
    "setsid": "raw(@SYS_setsid@)",
    "itimer": "raw(@SYS_setitimer@, 0, 0, 0)",
    "alarm": "raw(@SYS_alarm@, 1)",
    "timer_create": "raw(@SYS_timer_create@, 0, 0, 0)",
    "memfd_create": "raw(@SYS_memfd_create@, 0, 0)",
    "userfaultfd": "raw(@SYS_userfaultfd@, 0)",
    "io_uring": "raw(@SYS_io_uring_setup@, 1, 0)",
    "bpf": "raw(@SYS_bpf@, 0, 0, 0)",
    "sendmsg of descriptors": "raw(@SYS_sendmsg@, 3, 0, 0)",
    "recvmsg": "raw(@SYS_recvmsg@, 3, 0, 0)",
    "unshare": "raw(@SYS_unshare@, 0x10000000)",
    "setuid back": "raw(@SYS_setuid@, 0)",
    "raise the memory limit": "raw(@SYS_setrlimit@, 9, 0)",
    "send out of band": "raw(@SYS_sendto@, 3, 0, 0, 1, 0, 0)",
    "mount": "raw(@SYS_mount@, 0, 0, 0, 0, 0)",
}

MUST_FAIL = {
    "clone3": "raw(@SYS_clone3@, 0, 0)",
    "shared mapping": "raw(@SYS_mmap@, 0, 4096, 3, 0x21, -1, 0)",
    "executable mapping": "raw(@SYS_mmap@, 0, 4096, 7, 0x22, -1, 0)",
    "make memory executable": "raw(@SYS_mprotect@, raw(@SYS_mmap@, 0, 4096, 3, 0x22, -1, 0), 4096, 5)",
    "not to be inherited": "raw(@SYS_madvise@, raw(@SYS_mmap@, 0, 4096, 3, 0x22, -1, 0), 4096, 10)",
    "open": "raw(@SYS_open@, 0, 0)",
    "prlimit": "raw(@SYS_prlimit64@, 0, 9, 0, 0)",
    "to have a socket signal the parent": "raw(@SYS_fcntl@, 3, 8, os.getppid())",
    "to choose that signal": "raw(@SYS_fcntl@, 3, 10, 9)",
    "to change a terminal": "raw(@SYS_ioctl@, 0, 0x5412, 0)",
}

PATIENT_S = 60.0
END = "\nwhile True: pass"
WITHIN = {
    "the permitted fork, unasked": f"raw({CLONE}, {GOOD})" + END,
    "a second greeting": f"raw({PRCTL}, 1, 9)" + END,
    "fork and greeting in a loop": f"while True:\n    raw({CLONE}, {GOOD})\n    raw({PRCTL}, 1, 9)",
    "forged done, then spinning": "os.write(3, frame(2, 1, DONE))" + END,
    "forged done, then death": "os.write(3, frame(2, 1, DONE))\nos._exit(0)",
    "forged done, then a violation": "os.write(3, frame(2, 1, DONE))\nos.fork()",
    "descriptors shuffled": "for fd in range(64):\n    if fd != 3:\n        try: os.close(fd)\n        except OSError: pass\nkept2 = 1",
    "channel duplicated": "copy = os.dup(3)\nos.close(3)\nos.write(copy, frame(2, 1, DONE))" + END,
    "channel replaced by nothing": "os.close(3)\nos.dup(0)" + END,
    "reading its own answer": "os.read(3, 1)" + END,
    "trusted loop overwritten": "m = sys.modules['worker.session']\nm.park = lambda **k: None",
    "report overwritten": "sys.modules['worker.session'].CodeSession._done = lambda *a: None",
    "send overwritten": "sys.modules['worker.channel'].send = lambda *a: None",
    "collector callback": "import gc\ngc.callbacks.append(lambda *a: os._exit(1))\ngc.collect()",
    "tracing": "sys.settrace(lambda *a: os._exit(1))\ndef f(): pass\nf()",
    "stdout that lies": "class S:\n    def write(self, t): os._exit(1)\nsys.stdout = S()\nprint('x')",
    "no recursion left": "sys.setrecursionlimit(30)\nkept2 = 1",
    "builtins broken": "import builtins\nbuiltins.len = None\nbuiltins.isinstance = None",
    "json broken": "import json\njson.dumps = None",
}

LEFT_BEHIND = {
    "trusted loop skips the greeting": f"m = sys.modules['worker.session']\nreal = m.kernel.raw\n"
    f"m.kernel.raw = lambda n, *a: 0 if n == {PRCTL} else real(n, *a)",
    "child spins instead of greeting": "m = sys.modules['worker.session']\nreal = m.kernel.raw\n"
    f"def evil(n, *a):\n    if n == {PRCTL}:\n        while True: pass\n    return real(n, *a)\nm.kernel.raw = evil",
    "state forks on its own": "m = sys.modules['worker.session']\nreal = m.kernel.raw\n"
    f"def evil(n, *a):\n    r = real(n, *a)\n    if n == {CLONE} and r: real({FORK})\n    return r\nm.kernel.raw = evil",
    "state spins after the fork": "m = sys.modules['worker.session']\nreal = m.kernel.raw\n"
    f"def evil(n, *a):\n    r = real(n, *a)\n    if n == {CLONE} and r:\n        while True: pass\n    return r\nm.kernel.raw = evil",
    "state exits after the fork": "m = sys.modules['worker.session']\nreal = m.kernel.raw\n"
    f"def evil(n, *a):\n    r = real(n, *a)\n    if n == {CLONE} and r: os._exit(0)\n    return r\nm.kernel.raw = evil",
    "child parks instead of greeting": "m = sys.modules['worker.session']\nreal = m.kernel.raw\n"
    f"def evil(n, *a):\n    if n == {PRCTL}: return real({CLONE}, {GOOD})\n    return real(n, *a)\nm.kernel.raw = evil",
    "request ignored": "sys.modules['worker.session'].channel.receive = lambda: {}",
    "request makes it die": "sys.modules['worker.session'].channel.receive = lambda: os._exit(0)",
    "signals unblocked": f"raw({SIGPROCMASK}, 2, 0, 0, 8)\nimport signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "collector broken": "import gc\nsys.modules['worker.session'].gc = None",
}


def possible(attacks: dict[str, str]) -> list[str]:
    """Without those whose system call this machine does not have."""
    return [
        name
        for name, code in attacks.items()
        if "(-1" not in translated(code) and (X32 not in code or MACHINE == "x86_64")
    ]


@pytest.fixture(name="server", scope="module")
def _server() -> Iterator[ForkServer]:
    server = ForkServer(PROFILES["open"].preload, grace_s=PATIENT_S)
    yield server
    server.close()


@contextmanager
def impatient(server: ForkServer) -> Generator[None]:
    """States that spin are given up soon. Honest turns are made with patience: the machine may be busy."""
    server.grace_s = 1.0
    try:
        yield
    finally:
        server.grace_s = PATIENT_S


@pytest.fixture(name="box")
def _box(server: ForkServer) -> Sandbox:
    return Sandbox("open", host=lambda name, args: None, limits=Limits(wall_s=60), server=server)


@pytest.mark.requirement("O10")
@pytest.mark.parametrize("name", possible(MUST_KILL))
def test_a_forbidden_call_is_a_violation(box: Sandbox, name: str) -> None:
    with box:
        run(box, "kept = 1")
        code = f"{RAW}\ntry:\n    {translated(MUST_KILL[name])}\nexcept BaseException:\n    pass\nprint('alive')"

        assert kind(box.execute(code)) == "violation"
        assert run(box, "print(kept)") == "1\n"
        assert no_strays(box)


@pytest.mark.parametrize("name", possible(MUST_FAIL))
def test_a_softly_refused_call_fails(box: Sandbox, name: str) -> None:
    with box:
        assert run(box, f"{RAW}\nprint({translated(MUST_FAIL[name])})") == "-1\n"


@pytest.mark.parametrize("name", WITHIN)
def test_an_attack_within_a_turn_costs_that_turn_at_most(server: ForkServer, box: Sandbox, name: str) -> None:
    with box:
        run(box, "kept = 1")
        with impatient(server):
            box.execute(RAW + WITHIN[name], wall_s=0.6)
            after = box.execute("print(kept)", wall_s=0.6)
        if not after.ok:  # the attacked state was accepted, then found unusable
            box.rollback(1)
            after = box.execute("print(kept)")

        assert after.stdout == "1\n"
        assert no_strays(box)


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_an_attack_left_in_a_state_costs_that_state_at_most(server: ForkServer, box: Sandbox, name: str) -> None:
    with box:
        run(box, "kept = 1")
        with impatient(server):
            attacked = box.execute(RAW + LEFT_BEHIND[name])
            assert kind(attacked) != "error"  # the attack found what it attacks
            for _ in range(3):
                box.execute("later = 1", wall_s=0.6)
        box.rollback(1)

        assert run(box, "print(kept)") == "1\n"
        assert no_strays(box)
