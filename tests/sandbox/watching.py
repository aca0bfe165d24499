"""Looking at sandbox processes from outside, as the tests' judge."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from sonde.sandbox import ExecResult, Sandbox

RAW = """
import ctypes, os, struct, sys
syscall = ctypes.CDLL(None, use_errno=True).syscall
syscall.restype = ctypes.c_long
syscall.argtypes = [ctypes.c_long] * 7
def raw(*numbers):
    return syscall(*numbers, *([0] * (7 - len(numbers))))
def frame(kind, sequence, text, extra=b"", text_size=None, raw_size=None):
    text_size = len(text) if text_size is None else text_size
    raw_size = len(extra) if raw_size is None else raw_size
    return struct.pack("<BIII", kind, sequence, text_size, raw_size) + text + extra
DONE = b'{"report":{"out":["","",0,0],"err":["","",0,0],"fault":null,"variables":[],"rebound":[]},"raw":[]}'
"""
"""What hostile code begins with: raw system calls and home-made frames."""


def members(group: int) -> list[int]:
    """Live processes of the group, zombies left out."""
    found: list[int] = []
    for name in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        try:
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] not in {b"Z", b"X"}:
            found.append(int(name))
    return found


def group_of(box: Sandbox) -> int:
    return box._family.group


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.002)
    return True


def kept_pids(box: Sandbox) -> set[int]:
    return {state.pid for _, state in box._history.entries}


def no_strays(*boxes: Sandbox) -> bool:
    """Is every process of the family one that some box keeps?"""
    known = set[int]().union(*map(kept_pids, boxes))
    return eventually(lambda: set(members(group_of(boxes[0]))) <= known)


def run(box: Sandbox, code: str, wall_s: float | None = None) -> str:
    """stdout of a turn that must work."""
    result = box.execute(code, wall_s)
    assert result.ok, result.fault
    return result.stdout


def kind(result: ExecResult) -> str | None:
    return result.fault.kind if result.fault else None
