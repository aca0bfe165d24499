"""Raw system calls through ctypes, by name. Everything the confinement asks of the kernel goes through `call`."""

from __future__ import annotations

import ctypes
import os
import sys

from .tables import NUMBERS

MACHINE = os.uname().machine if sys.platform == "linux" else ""
ASK_PERSONALITY = 0xFFFFFFFF
NO_RANDOM_ADDRESSES = 0x0040000
_numbers = NUMBERS.get(MACHINE, {})
if sys.platform == "linux":  # elsewhere the same numbers would mean other calls
    # PyDLL keeps the GIL and runs no at-fork hooks: the process that returns from clone() is the same interpreter.
    _syscall = ctypes.PyDLL(None, use_errno=True).syscall
    _syscall.restype = ctypes.c_long
    _syscall.argtypes = [ctypes.c_long] * 7


def call(name: str, *arguments: int) -> int:
    """One system call; OSError when the kernel refuses."""
    result = raw(_numbers[name], *arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return result


def raw(number: int, *arguments: int) -> int:
    return _syscall(number, *arguments, *(0,) * (6 - len(arguments)))


def number(name: str) -> int:
    return _numbers[name]


def address(data: bytes) -> int:
    """Where the bytes lie in memory; valid while the caller holds them."""
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0


def fix_addresses() -> None:
    """Start this program again without address randomisation; if the kernel refuses, nothing else changes.

    With fixed addresses `repr(object())` and the order of a set of objects repeat in a replay.
    """
    try:
        now = call("personality", ASK_PERSONALITY)
        if now & NO_RANDOM_ADDRESSES:
            return
        call("personality", now | NO_RANDOM_ADDRESSES)
    except (OSError, KeyError):
        return
    # The same environment as before: CPython has added LC_CTYPE to ours.
    os.execve(sys.orig_argv[0], sys.orig_argv, {"PYTHONHASHSEED": "0"})  # noqa: S606 - no shell, no other program
