"""The two seccomp filters, assembled as BPF from the tables: the gate, and the allowlist.

The gate turns exactly two calls into user notifications: the fork that the supervisor must permit, and the PDEATHSIG that
every child must ask for before it gets its socket. Every other way to start a process kills. The allowlist kills whatever is
not named. The kernel takes the strictest verdict of the two, so each can be read alone.
"""

from __future__ import annotations

import ctypes
import errno
import struct
from functools import cache

from . import kernel, tables

ALLOW = 0x7FFF0000
KILL = 0x80000000
NOTIFY = 0x7FC00000

SET_MODE_FILTER = 1
NEW_LISTENER = 8
LOAD, JUMP_EQ, JUMP_SET, RETURN = 0x20, 0x15, 0x45, 0x06
NUMBER_AT, ARCH_AT = 0, 4
INSTRUCTION = struct.Struct("<HBBI")

Code = list[tuple[int, int, int, int]]
Check = tuple[int, str, int]
"""(argument, "is" | "low" | "lacks", value): the argument equals the value, its low half does, or it has none of its bits."""


def refuse(error: int) -> int:
    return 0x00050000 | error


def assemble() -> None:
    """Make the filters now: the zygote does it once, and no worker has to."""
    if kernel.MACHINE in tables.NUMBERS:
        _gate_program(kernel.MACHINE)
        _allowlist_program(kernel.MACHINE, gated=True)
        _parser_program(kernel.MACHINE)


def install_gate(machine: str) -> int:
    """Install the first filter; returns the descriptor of its listener."""
    return _install(_gate_program(machine), NEW_LISTENER)


def install_allowlist(machine: str, *, gated: bool) -> None:
    _install(_allowlist_program(machine, gated=gated), 0)


def install_parser_allowlist(machine: str) -> None:
    _install(_parser_program(machine), 0)


@cache
def _parser_program(machine: str) -> bytes:
    return _packed(allowlist(machine, tables.ALLOWED_TO_PARSERS, forks=False))


def install_command_filter(machine: str) -> None:
    """For a program that the user allowed: all calls but those that lead around its confinement."""
    numbers = tables.NUMBERS[machine]
    code = _prologue(machine)
    code += [(JUMP_SET, 0, 1, tables.X32_BIT), _return(refuse(errno.ENOSYS))]
    for family in tables.FAMILIES_OF_COMMANDS:
        code += _when(numbers["socket"], ((0, "low", family),), ALLOW, None)
    code += _when(numbers["socket"], (), refuse(errno.EACCES), ALLOW)
    for kind in tables.PAIRS_OF_COMMANDS:
        code += _when(numbers["socketpair"], ((0, "low", tables.AF_UNIX), (1, "low", kind)), ALLOW, None)
    code += _when(numbers["socketpair"], (), refuse(errno.EACCES), ALLOW)
    code += _when(numbers["prlimit64"], (_is(2, 0),), ALLOW, None)  # no new limit: it only reads
    for name, (kinds, process) in tables.OF_ITSELF_TO_COMMANDS.items():
        itself = (process, "low", 0)
        for checks in [((0, "low", kind), itself) for kind in kinds] or [(itself,)]:
            code += _when(numbers[name], checks, ALLOW, None)
        code += _when(numbers[name], (), refuse(errno.EPERM), ALLOW)
    for name in tables.REFUSED_TO_COMMANDS:
        code += _when(numbers[name], (), refuse(errno.ENOSYS), ALLOW)
    _install(_packed([*code, _return(ALLOW)]), 0)


@cache
def _gate_program(machine: str) -> bytes:
    return _packed(gate(machine))


@cache
def _allowlist_program(machine: str, *, gated: bool) -> bytes:
    return _packed(allowlist(machine, () if gated else tables.ALLOWED_WITHOUT_GATE))


def gate(machine: str) -> Code:
    """Notify for the one fork and the one prctl; kill other ways to start a process; let all else through."""
    numbers = tables.NUMBERS[machine]
    code = _prologue(machine)
    code += _when(numbers["clone"], (_is(0, tables.FORK_FLAGS), _is(1, 0)), NOTIFY, KILL)
    code += _when(numbers["prctl"], (_is(0, tables.PR_SET_PDEATHSIG), _is(1, tables.SIGKILL)), NOTIFY, ALLOW)
    code += _when(numbers["clone3"], (), refuse(errno.ENOSYS), KILL)
    for name in ("fork", "vfork"):
        if name in numbers:
            code += _when(numbers[name], (), KILL, KILL)
    return [*code, _return(ALLOW)]


def allowlist(machine: str, more: tuple[str, ...] = (), *, forks: bool = True) -> Code:
    """Allow what CPython needs, refuse softly what it asks for by itself, kill for the rest."""
    numbers = tables.NUMBERS[machine]
    code = _prologue(machine)
    for name in (*tables.ALLOWED, *more):
        if name in numbers:
            code += _when(numbers[name], (), ALLOW, KILL)
    no_exec, no_share = (2, "lacks", 4), (3, "lacks", 1)  # PROT_EXEC; MAP_SHARED, which would survive a rollback
    no_huge = (3, "lacks", 0x40000)  # MAP_HUGETLB: no count of resident memory has these pages in it
    denied = refuse(errno.EACCES)
    code += _when(numbers["mmap"], (no_exec, no_share, no_huge), ALLOW, denied)
    code += _when(numbers["mprotect"], (no_exec,), ALLOW, denied)
    if forks:
        code += _when(numbers["clone"], (_is(0, tables.FORK_FLAGS), _is(1, 0)), ALLOW, KILL)
    code += _when(numbers["clone3"], (), refuse(errno.ENOSYS), KILL)
    if "getpgrp" not in numbers:  # libc asks getpgid for the group of the caller, and only of it
        code += _when(numbers["getpgid"], ((0, "low", 0),), ALLOW, KILL)
    for name in tables.CLOCKS:
        code += _when(numbers[name], ((0, "lacks", tables.DYNAMIC_CLOCK),), ALLOW, refuse(errno.EINVAL))
    for command in tables.FCNTL:
        code += _when(numbers["fcntl"], ((1, "low", command),), ALLOW, None)
    code += _when(numbers["fcntl"], (), refuse(errno.EINVAL), KILL)
    for operation in tables.FUTEX:
        code += _when(numbers["futex"], ((1, "low", operation),), ALLOW, None)
    code += _when(numbers["futex"], (), refuse(errno.ENOSYS), KILL)
    for advice in tables.MADVICE:
        code += _when(numbers["madvise"], (_is(2, advice),), ALLOW, None)
    code += _when(numbers["madvise"], (), refuse(errno.EINVAL), KILL)
    code += _when(numbers["prctl"], (_is(0, tables.PR_SET_PDEATHSIG), _is(1, tables.SIGKILL)), ALLOW, None)
    code += _when(numbers["prctl"], (_is(0, tables.PR_SET_VMA),), refuse(errno.EINVAL), KILL)
    for name, error in tables.SOFT.items():
        if name in numbers:
            code += _when(numbers[name], (), refuse(error), KILL)
    return [*code, _return(KILL)]


def _is(argument: int, value: int) -> Check:
    return (argument, "is", value)


def _prologue(machine: str) -> Code:
    """A foreign architecture is killed; the x32 numbers of x86_64 are in no table and meet KILL in the allowlist."""
    arch = (JUMP_EQ, 1, 0, tables.AUDIT_ARCH[machine])
    return [(LOAD, 0, 0, ARCH_AT), arch, _return(KILL), (LOAD, 0, 0, NUMBER_AT)]


def _when(number: int, checks: tuple[Check, ...], good: int, bad: int | None) -> Code:
    """If the call is `number`: `good` when every check holds, else `bad`; None falls through to the next rule."""
    steps = [step for check in checks for step in _steps(check)]
    last = _return(bad) if bad is not None else (LOAD, 0, 0, NUMBER_AT)
    body: Code = []
    for position, (op, value, jumps_when_true) in enumerate(steps):
        to_bad = len(steps) - position  # over the remaining steps and the good return
        match op:
            case "load":
                body.append((LOAD, 0, 0, value))
            case "equal" | "bits":
                true, false = (to_bad, 0) if jumps_when_true else (0, to_bad)
                body.append((JUMP_EQ if op == "equal" else JUMP_SET, true, false, value))
            case _:
                raise AssertionError(op)
    body += [_return(good), last]
    return [(JUMP_EQ, 0, len(body), number), *body]


def _steps(check: Check) -> list[tuple[str, int, bool]]:
    """(operation, value, does the jump to `bad` happen when true) for one check of a 64-bit argument."""
    argument, kind, value = check
    low = 16 + 8 * argument
    if kind == "lacks":
        return [("load", low, False), ("bits", value, True)]
    if kind == "low":  # an int to the kernel, which does not look at the rest
        return [("load", low, False), ("equal", value, False)]
    halves = (value & 0xFFFFFFFF, value >> 32)
    return [
        *(("load", low, False), ("equal", halves[0], False)),
        *(("load", low + 4, False), ("equal", halves[1], False)),
    ]


def _return(verdict: int) -> tuple[int, int, int, int]:
    return (RETURN, 0, 0, verdict)


def _packed(code: Code) -> bytes:
    return b"".join(INSTRUCTION.pack(*each) for each in code)


def _install(packed: bytes, flags: int) -> int:
    filters = ctypes.create_string_buffer(packed, len(packed))
    program = struct.pack("<HxxxxxxQ", len(packed) // INSTRUCTION.size, ctypes.addressof(filters))
    address = ctypes.create_string_buffer(program, len(program))
    return kernel.call("seccomp", SET_MODE_FILTER, flags, ctypes.addressof(address))
