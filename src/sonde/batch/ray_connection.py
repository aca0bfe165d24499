"""Getting at a Ray cluster, or saying within half a minute why not.

Ray itself may try for minutes, or end the program; so a given address is knocked at and tried in another process first.
"""

from __future__ import annotations

import io
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sonde.errors import ConfigError

CONNECT_S = 20.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Aside(io.StringIO):
    """Where Ray's news of its nodes goes: standard error, without the colours that a log would keep."""

    def write(self, text: str, /) -> int:
        """Pass it on."""
        return sys.stderr.write(_COLOUR.sub("", text))

    def flush(self) -> None:
        """At once."""
        sys.stderr.flush()


def connect(on: str) -> tuple[Any, bool]:
    """Ray, connected; and whether this call may end the connection. ConfigError within half a minute when it is not to be had."""
    if find_spec("ray") is None:
        raise ConfigError(f"--on {on} needs Ray, which is not installed: pip install 'sonde-rlm[cluster]'")
    loaded: Any = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        return loaded, False
    address = on if on.startswith("ray://") else os.environ.get("RAY_ADDRESS") or None
    with _probed(address) if address not in (None, "auto") else nullcontext():
        ray: Any = import_module("ray")  # takes as long as the probe, so at the same time
    with _own_signals():
        _init(ray, address)
    return ray, True


def _init(ray: Any, address: str | None) -> None:
    """Without an address Ray takes the cluster of this machine, and starts one where there is none.

    In the calling thread: the processes that Ray starts die with the thread that started them.
    """
    try:
        try:
            ray.init(address=address, logging_level="error", log_to_driver=False)
        except ConnectionError:
            if not (address or "").startswith("ray://"):
                raise
            # The door was open: on a busy head a client's server comes up later than Ray waits for it. Once more.
            ray.init(address=address, logging_level="error", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError) as error:
        where = f"at {address}" if address else "of this machine"
        raise ConfigError(f"the Ray cluster {where} cannot be used: {type(error).__name__}: {error}") from None


def _knock(address: str) -> None:
    """A closed door is noticed at once, before Ray tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{address} is no address of a cluster: write ray://HOST:PORT, such as ray://head:10001")
    try:
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {host}:{port} ({error}); is it up, and is the port that of the Ray client (10001)?"
        ) from None


def _require_client(address: str) -> None:
    if address.startswith("ray://") and find_spec("grpc") is None:
        raise ConfigError(f"{address} needs the Ray client, which is not installed: pip install 'ray[client]'")


def _trial(address: str) -> str:
    """What to run to see that a cluster is there. A Ray client takes long to come up, so only its door is tried where that can be done."""
    if address.startswith("ray://") and os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        channel = f"grpc.insecure_channel({address.removeprefix('ray://')!r})"
        return f"import grpc; grpc.channel_ready_future({channel}).result()"
    return f"import ray; ray.init(address={address!r}, logging_level='error', log_to_driver=False)"


@contextmanager
def _probed(address: str) -> Generator[None]:
    """Meanwhile the address is tried in another process, which can be ended: Ray itself may wait for minutes, or end the program."""
    _knock(address)
    _require_client(address)
    with subprocess.Popen(
        [sys.executable, "-c", _trial(address)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as probe:
        try:
            yield
            _, said = probe.communicate(timeout=CONNECT_S)
        except subprocess.TimeoutExpired:
            raise ConfigError(
                f"what listens at {address} did not answer as a Ray cluster within {CONNECT_S:.0f} s"
            ) from None
        finally:
            probe.kill()
    if probe.returncode:
        last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ConfigError(f"the Ray cluster at {address} cannot be used: {last[:500]}")


@contextmanager
def _own_signals() -> Generator[None]:
    """Ray takes SIGTERM for itself; it stays with whoever had it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
