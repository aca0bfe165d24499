"""The layers a worker puts on before it sees one line of generated code.

Promises that each layer was accepted by the kernel, or is named as missing. Does not check that the kernel keeps its word:
the escape suite does.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import kernel, seccomp, tables

NOBODY = 65534
LANDLOCK_FILES_BY_ABI = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
LANDLOCK_VERSION_FLAG = 1

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


def _landlock() -> str:
    """A ruleset that handles everything this kernel knows and allows nothing."""
    abi = landlock_abi()
    files = LANDLOCK_FILES_BY_ABI[min(abi, 5)]
    network = 3 if abi >= 4 else 0
    scoped = 3 if abi >= 6 else 0
    ruleset = struct.pack("<QQQ", files, network, scoped)
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    descriptor = kernel.call("landlock_create_ruleset", kernel.address(ruleset), size)
    kernel.call("landlock_restrict_self", descriptor)
    os.close(descriptor)
    return f"abi {abi}"


def _fork_gate(send_listener: Send) -> None:
    """The listener goes to the supervisor and is closed here, so that no generated code can answer itself."""
    listener = seccomp.install_gate(kernel.MACHINE)
    send_listener(listener)
    os.close(listener)
