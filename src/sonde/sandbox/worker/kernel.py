"""Raw system calls through ctypes, by name. Everything the confinement asks of the kernel goes through `call`."""

from __future__ import annotations

import ctypes
import os

from .tables import NUMBERS

MACHINE = os.uname().machine
_numbers = NUMBERS.get(MACHINE, {})
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
