"""What a recorded run may not do by itself: start a program, get a key of the user, read what looks like a secret, write to a server,
or raise what may be spent or used.

Its folder may be a stranger's. The user says yes for this call, by a flag or a parameter, or has said it in their own settings. What a
file of settings that was merely found may do, config_file.py says.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sonde.api.keys import KEYS, KNOBS
from sonde.errors import ConfigError
from sonde.sandbox.base import Limits

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.core.events import RunStarted
    from sonde.runtime.run import RunSpec

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def _wish(spec: str) -> str:
    """What opening this model would do on this machine that a stranger may not decide; empty for the harmless ones."""
    kind, _, what = spec.partition(":")
    if kind == "local" and ("/" in what or what.endswith(".gguf")):
        return f"load the weights {what} into native code"
    return f"start `{what}`" if kind == "command" else ""


def is_here(address: str) -> bool:
    """Whether an address is on this machine, read as strictly as it can be read."""
    try:
        return urlsplit(address).hostname in LOOPBACK and "\\" not in address
    except ValueError:
        return False


def require_model(spec: object, settings: Settings, flag: str) -> None:
    """Refuse to start the program that a recorded run names, unless the user's own settings name it too."""
    if not isinstance(spec, str) or spec in (settings.model, settings.sub_model):
        return
    if spec in settings.models:  # an entry of the user's own, or of a file that they accepted
        return
    if wish := _wish(spec):
        raise ConfigError(
            f"this run wants to {wish}, and a recorded run may not by itself. If it is yours, name it again: {flag} {spec!r}"
        )


def require_caps(spec: RunSpec, settings: Settings, limits: Limits) -> None:
    """Refuse a recorded run that may use more than the user allows. It is not run with less: it would take another course unseen."""
    engine = spec.engine
    allowed = settings.budget(engine.budget, engine.maxima)
    more = [
        name
        for name in KNOBS
        if name != "sampling_seed" and _exceeds(getattr(spec.budget, name), getattr(allowed, name))
    ]
    flags = [f"{KEYS[name].option} {_amount(getattr(spec.budget, name))}" for name in more]
    for name in Limits.__dataclass_fields__:
        number = {"memory": "memory_bytes", "cpu_s": "cpu_seconds"}.get(name, name)
        recorded = getattr(spec.limits, name)
        if recorded is not None and getattr(spec.limits, number) > getattr(limits, number):
            flags.append(f"--limit {name}={recorded}")
    if spec.backend not in ("kernel", settings.backend):
        flags.append(f"--backend {spec.backend}")
    if flags:
        raise ConfigError(
            f"this run was recorded with more than you allow, and a recorded run may not by itself. If it is yours, say it again: "
            f"{' '.join(flags)}"
        )


def _exceeds(recorded: float | None, allowed: float | None) -> bool:
    return allowed is not None and (recorded is None or recorded > allowed)


def _amount(value: float | None) -> str:
    return "inf" if value is None else str(value)


def require_sources(paths: Iterable[str]) -> None:
    """Refuse to read what looks like a secret because a recorded run names it: only the user can mean that."""
    from sonde.contexts.files.names import secret_reason  # noqa: PLC0415  # its package is heavy, and settings are read by every command

    for path in paths:
        real = Path(path).resolve().as_posix()
        reason = next(filter(None, map(secret_reason, (path, f"{path}/x", real, f"{real}/x"))), None)
        if reason is not None:
            raise ConfigError(
                f"this run was asked about {path} ({reason}). If you mean it, name it again: --context {path}"
            )


def require_server(recorded: str, settings: Settings) -> None:
    """Refuse to ask a server, and to send it the user's Phoenix key, because only a recorded run names it."""
    if not is_chosen_server(recorded, settings):
        raise ConfigError(
            f"this run names {recorded} as the place of its traces, which is not your server ({settings.source}). If it is yours, "
            f"name it again: --context {recorded}, or --source with publish, or set PHOENIX_COLLECTOR_ENDPOINT"
        )


def require_writeback(started: RunStarted, context: Any, said: bool | None) -> bool:
    """Whether a recorded run that writes to a server may do so again: only the user can say, for this call."""
    place = str(context or started.settings.get("source", ""))
    if said is None and started.settings.get("writeback") and urlsplit(place).scheme in ("http", "https"):
        raise ConfigError(
            f"this run writes annotations to {place}, and a recorded run may not by itself. Say --writeback, or --no-writeback "
            "(`sonde publish` can write them later)"
        )
    return bool(said)


def is_chosen_server(address: str, settings: Settings) -> bool:
    """Whether an address is of the server that the user has set."""
    return _origin(address) == _origin(settings.source)


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc.lower()
