"""A connection to a Ray cluster, or within half a minute the reason why not.

Ray itself may try for minutes, or end the program; so another process tries a given address first.
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
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sonde.errors import ConfigError, how_to_install

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
    """Ray, connected; and whether the caller may end the connection. ConfigError within half a minute if that fails."""
    if find_spec("ray") is None:
        raise ConfigError(f"--on {on} needs Ray, which is not installed: {how_to_install('cluster')}")
    loaded: Any = sys.modules.get("ray")
    if loaded is not None and loaded.is_initialized():
        return loaded, False
    address = on if on.startswith("ray://") else os.environ.get("RAY_ADDRESS") or None
    with _probed(address) if address not in (None, "auto") else nullcontext():
        ray: Any = import_module("ray")  # takes as long as the probe, so at the same time
    # Without an address Ray uses the cluster of this machine, or starts one. In the calling thread, because the processes that Ray
    # starts die with the thread that started them.
    start = partial(ray.init, address=address, logging_level="error", log_to_driver=False)
    # Ray takes SIGTERM for itself; give it back to whoever had it.
    mine = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in mine}
    try:
        try:
            start()
        except ConnectionError:
            if not (address or "").startswith("ray://"):
                raise
            start()  # the door was open: on a busy head a client's server comes up later than Ray waits for it
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError) as error:
        where = f"at {address}" if address else "of this machine"
        raise ConfigError(f"the Ray cluster {where} cannot be used: {type(error).__name__}: {error}") from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return ray, True


@contextmanager
def _probed(address: str) -> Generator[None]:
    """Meanwhile another process tries the address and can be ended; Ray itself may wait for minutes, or end the program."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{address} is no address of a cluster: write ray://HOST:PORT, such as ray://head:10001")
    try:  # notices a closed door at once
        socket.create_connection((host, int(port)), timeout=5.0).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster answers at {host}:{port} ({error}); is it up, and is the port that of the Ray client (10001)?"
        ) from None
    client = address.startswith("ray://")
    if client and find_spec("grpc") is None:
        raise ConfigError(f"{address} needs the Ray client, which is not installed: pip install 'ray[client]'")
    trial = f"import ray; ray.init(address={address!r}, logging_level='error', log_to_driver=False)"
    if client and os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
        # A Ray client takes long to come up, so try only its door. With TLS that takes a whole client.
        channel = f"grpc.insecure_channel({address.removeprefix('ray://')!r})"
        trial = f"import grpc; grpc.channel_ready_future({channel}).result()"
    with subprocess.Popen([sys.executable, "-c", trial], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as probe:
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
