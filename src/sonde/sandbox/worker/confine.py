"""The layers a worker puts on before it sees one line of generated code.

Promises that each layer was accepted by the kernel, or is named as missing. Does not check that the kernel keeps its word:
the escape suite does.
"""

from __future__ import annotations

import os
import signal
import stat
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from . import kernel, seccomp, tables

if sys.platform != "win32":
    import resource

NOBODY = 65534
CAP_KILL = 5
LANDLOCK_FILES_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
LANDLOCK_VERSION_FLAG = 1
LANDLOCK_PATH_BENEATH = 1
READ_RIGHTS = 0b1101  # execute, read a file, list a folder
LIST_RIGHT = 0b1000
WRITE_RIGHTS = 0x1FFFF & ~(1 << 6 | 1 << 11)  # everything but making devices
RIGHTS_ON_FILES = 0b111 | 1 << 14 | 1 << 15  # execute, write, read, cut, ioctl: the others are about folders
KEPT_CAPABILITIES = (
    0,
    1,
    3,
    4,
    5,
    6,
    7,
    10,
)  # chown, dac_override, fowner, fsetid, kill, setgid, setuid, net_bind_service

Send = Callable[[int], None]


class Origin(NamedTuple):
    """Where a worker comes from: its zygote, and the address space that it mapped when the worker was forked."""

    zygote: int
    mapped: int


def confine(config: Mapping[str, Any], origin: Origin, send_listener: Send) -> tuple[list[str], list[str]]:
    """Put on every layer, in the order that works for root and for an ordinary user: (layers on, layers missing).

    setuid clears PDEATHSIG, so it comes before; an ordinary user needs NO_NEW_PRIVS before seccomp.
    """
    on: list[str] = []
    missing: list[str] = []
    _put_on(on, missing, config, "rlimits", lambda: _limit(config, origin.mapped))
    if os.geteuid() == 0:
        _put_on(on, missing, config, "uid", _drop_uid)
    _put_on(on, missing, config, "pdeathsig", lambda: _die_with(origin.zygote))
    _put_on(on, missing, config, "no_new_privs", _no_new_privs)
    _put_on(on, missing, config, "landlock", _landlock)
    _put_on(on, missing, config, "fork-gate", lambda: _fork_gate(send_listener))
    _put_on(on, missing, config, "seccomp", lambda: seccomp.install_allowlist(kernel.MACHINE, gated="fork-gate" in on))
    return on, missing


def confine_parser(config: Mapping[str, Any], origin: Origin) -> tuple[list[str], list[str]]:
    """The layers of a process that reads documents: as above, without a fork gate, because it never forks."""
    on: list[str] = []
    missing: list[str] = []
    _put_on(on, missing, config, "rlimits", lambda: _limit(config, origin.mapped))
    if os.geteuid() == 0:
        _put_on(on, missing, config, "uid", _drop_uid)
    _put_on(on, missing, config, "pdeathsig", lambda: _die_with(origin.zygote))
    _put_on(on, missing, config, "no_new_privs", _no_new_privs)
    _put_on(on, missing, config, "landlock", _landlock)
    _put_on(on, missing, config, "seccomp", lambda: seccomp.install_parser_allowlist(kernel.MACHINE))
    return on, missing


def _put_on(
    on: list[str], missing: list[str], config: Mapping[str, Any], layer: str, put: Callable[[], str | None]
) -> None:
    if layer in config["without"]:
        missing.append(layer)
        return
    try:
        detail = put()
    except (OSError, KeyError, ValueError) as error:
        missing.append(f"{layer} ({error})")
    else:
        on.append(f"{layer} {detail}" if detail else layer)


def _limit(config: Mapping[str, Any], mapped: int) -> None:
    """No RLIMIT_NPROC: zero would make the one permitted fork fail, and it does not bind root anyway.

    No huge pages: what a kept state holds is counted by its page faults, and one fault would be two megabytes.
    """
    limits = {
        resource.RLIMIT_AS: mapped + config["memory"] + config["shared"],
        resource.RLIMIT_CPU: config["cpu"],
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for which, value in limits.items():
        hard = resource.getrlimit(which)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (value, value))
    kernel.call("prctl", tables.PR_SET_THP_DISABLE, 1)


def address_space() -> int:
    """What the interpreter maps before any code ran: the memory limit counts from here."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _drop_uid() -> str:
    with open("/proc/self/uid_map", "rb") as file:
        mapped = [tuple(map(int, line.split())) for line in file]
    if not any(first <= NOBODY < first + length for first, _, length in mapped):
        raise ValueError(f"root of a user namespace that has no uid {NOBODY}")
    with open("/proc/self/status", "rb") as file:
        may = next(int(line.split()[1], 16) for line in file if line.startswith(b"CapEff"))
    if not may & 1 << CAP_KILL:
        raise ValueError("root without CAP_KILL, who could not end a process of another user")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    return str(NOBODY)


def _die_with(zygote: int) -> None:
    kernel.call("prctl", tables.PR_SET_PDEATHSIG, signal.SIGKILL)
    kernel.call("prctl", tables.PR_SET_DUMPABLE, 0)
    if os.getppid() != zygote:  # it died before we asked to die with it
        os._exit(1)


def _no_new_privs() -> None:
    kernel.call("prctl", tables.PR_SET_NO_NEW_PRIVS, 1)


def landlock_abi() -> int:
    return kernel.call("landlock_create_ruleset", 0, 0, LANDLOCK_VERSION_FLAG)


def _landlock(allowed: Mapping[str, int] | None = None) -> str:
    """A ruleset that handles everything this kernel knows and allows nothing, or these rights below these paths and the network."""
    abi = landlock_abi()
    files = LANDLOCK_FILES_BY_ABI[min(abi, 5)]
    network = 3 if abi >= 4 and allowed is None else 0
    scoped = 3 if abi >= 6 else 0
    ruleset = struct.pack("<QQQ", files, network, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    descriptor = kernel.call("landlock_create_ruleset", kernel.address(ruleset), size)
    for path, rights in (allowed or {}).items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # what is not there needs no right
        on_file = RIGHTS_ON_FILES if not stat.S_ISDIR(os.fstat(place).st_mode) else files
        rule = struct.pack("<Qi", rights & files & on_file, place)
        kernel.call("landlock_add_rule", descriptor, LANDLOCK_PATH_BENEATH, kernel.address(rule), 0)
        os.close(place)
    kernel.call("landlock_restrict_self", descriptor)
    os.close(descriptor)
    return f"abi {abi}"


def confine_command(read: Sequence[str], write: Sequence[str]) -> None:
    """The layers of a program that the user allowed: files by place, no privileges to gain, no door to other programs.

    TCP stays open. Sockets of other programs on this machine do not: through them D-Bus or Docker would run something unconfined, and
    landlock does not cover them. OSError if a layer is refused.
    """
    rights = dict.fromkeys(read, READ_RIGHTS)
    if "/etc" in rights and os.geteuid() == 0:
        rights.update(dict.fromkeys(_public("/etc"), READ_RIGHTS), **{"/etc": LIST_RIGHT})
    rights.update(dict.fromkeys(write, WRITE_RIGHTS))
    if os.geteuid() == 0:
        for capability in range(64):
            if capability not in KEPT_CAPABILITIES:
                with suppress(OSError):  # unknown to this kernel, or taken away already
                    kernel.call("prctl", tables.PR_CAPBSET_DROP, capability)
    _no_new_privs()
    _landlock(rights)
    seccomp.install_command_filter(kernel.MACHINE)


def _public(folder: str) -> Iterator[str]:
    """What everybody may read below a folder: root would read the rest as well."""
    with os.scandir(folder) as entries:
        for entry in entries:
            mode = os.stat(entry.path).st_mode if entry.is_file() else entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode) and mode & 0o005 == 0o005:
                yield from _public(entry.path)
            elif stat.S_ISREG(mode) and mode & 0o004:
                yield entry.path


def _fork_gate(send_listener: Send) -> None:
    """The listener goes to the supervisor and is closed here, so that no generated code can answer itself."""
    listener = seccomp.install_gate(kernel.MACHINE)
    send_listener(listener)
    os.close(listener)
