"""What a worker can reach at all: every system call by number, clocks of others, descriptors, memory that is not counted."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from watching import RAW, kept_pids, kind, run

from sonde.sandbox import ForkServer, Limits, Sandbox
from sonde.sandbox.policy import PROFILES
from sonde.sandbox.worker.tables import ALLOWED, NUMBERS, SOFT
from system_calls import MACHINE, SYS, translated

RULED = {"mmap", "mprotect", "clone", "clone3", "fcntl", "futex", "madvise", "prctl"} | {
    "clock_gettime",
    "clock_getres",
    "clock_nanosleep",
}
"""Calls that are judged by their arguments."""
PROBES = {335, 336} if MACHINE == "x86_64" else set[int]()
"""uretprobe and uprobe: the kernel lets them past every filter, and they do nothing outside of a probe."""
HIGHEST = 512
CLOCKS = SYS["clock_gettime"], SYS["clock_getres"], SYS["clock_nanosleep"]
X32 = 0x40000000


@pytest.fixture(name="box")
def _box() -> Iterator[Sandbox]:
    with Sandbox("open", limits=Limits(wall_s=100)) as box:
        run(box, RAW)
        yield box


def unnamed_calls() -> list[int]:
    named = {*ALLOWED, *SOFT, *RULED}
    known = {number for name, number in NUMBERS[MACHINE].items() if name in named}
    return [number for number in range(HIGHEST) if number not in known | PROBES]


@pytest.mark.hostile_long
@pytest.mark.requirement("O10")
def test_every_system_call_that_no_table_names_is_a_violation(box: Sandbox) -> None:
    survived = [number for number in unnamed_calls() if kind(box.execute(f"raw({number}, -1, -1, -1)")) != "violation"]

    assert survived == []


@pytest.mark.skipif(MACHINE != "x86_64", reason="only x86_64 has calls of this kind")
def test_every_system_call_of_the_x32_kind_is_a_violation(box: Sandbox) -> None:
    numbers = [X32 | number for number in (*range(64), 157, 317, 512, 513, 520, 522, 545)]

    assert [each for each in numbers if kind(box.execute(f"raw({each}, -1, -1, -1)")) != "violation"] == []


def test_clocks_of_the_machine_are_read_and_clocks_of_processes_are_not(box: Sandbox) -> None:
    assert (
        run(box, "import time\nprint(*(time.clock_gettime(each) >= 0 for each in range(8)))") == "True " * 7 + "True\n"
    )
    code = f"for pid in (os.getpid(), os.getppid(), 1, {os.getpid()}):\n"
    code += f"    print([raw(call, ~pid << 3 | 2, 1, 0, 0) for call in {CLOCKS}], ctypes.get_errno())"

    assert time.clock_gettime(~os.getpid() << 3 | 2) > 0  # as anybody else may
    assert run(box, code) == f"[-1, -1, -1] {errno.EINVAL}\n" * 4


WAIT = translated("""
page = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value & ~4095
def futex(operation, value, seconds=0):
    patience = ctypes.create_string_buffer(struct.pack("qq", seconds, 0))
    return raw(@SYS_futex@, page, operation, value, ctypes.addressof(patience))
""")


def test_two_sessions_have_no_word_of_memory_in_common_to_wait_on(box: Sandbox) -> None:
    """Outside, and without the private flag, whoever waits on a page of libc is woken by whoever names the same page."""
    witness = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{RAW}{WAIT}\nprint(flush=True)\nprint(futex(0, ctypes.c_uint32.from_address(page).value, 1))",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert witness.stdout is not None
    witness.stdout.readline()
    code = f"{WAIT}\nfor _ in range(100_000):\n    if futex(1, 1) > 0: print('woken')"

    assert run(box, code) == ""
    assert witness.stdout.read() == "-1\n"  # nobody woke it
    witness.stdout.close()
    witness.wait()


def test_pages_that_no_count_sees_are_refused(box: Sandbox) -> None:
    huge_table, huge_advice = (
        translated("raw(@SYS_mmap@, 0, 1 << 21, 3, 0x40022, -1, 0)"),
        translated("raw(@SYS_madvise@, raw(@SYS_mmap@, 0, 1 << 22, 3, 0x22, -1, 0), 1 << 22, 14)"),
    )

    assert run(box, f"print({huge_table}, ctypes.get_errno())") == f"-1 {errno.EACCES}\n"
    assert run(box, f"print({huge_advice}, ctypes.get_errno())") == f"-1 {errno.EINVAL}\n"


def test_kept_states_are_bounded_by_memory_also_when_the_kernel_likes_huge_pages() -> None:
    touch = "import mmap\nsize = 60 << 20\nm = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE)\n"
    touch += "try: m.madvise(mmap.MADV_HUGEPAGE)\nexcept OSError: pass\nm[::4096] = bytes(size // 4096)"
    with Sandbox("open", limits=Limits(memory="200MiB")) as box:
        for _ in range(10):
            run(box, touch)

        assert 2 <= len(kept_pids(box)) <= 5


def test_a_supervisor_with_thousands_of_descriptors_passes_none_of_them_on() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 6000:
        pytest.skip("this user may not open that many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 6000), hard))
    null = os.open(os.devnull, os.O_RDONLY)
    taken = [null]
    try:
        while taken[-1] < 4500:
            taken.append(os.dup(null))
        server = ForkServer(PROFILES["open"].preload)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with Sandbox("open", server=server) as box:
        assert (
            run(box, f"{RAW}\nprint([fd for fd in range(6000) if raw({SYS['fcntl']}, fd, 1) >= 0])") == "[0, 1, 2, 3]\n"
        )
    server.close()
