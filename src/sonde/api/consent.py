"""What a recorded run may not do by itself: start a program, get a key of the user, read what looks like a secret, write to a server,
or raise what may be spent or used.

Its folder may be a stranger's. The user says yes for this call, by a flag or a parameter, or has said it in their own settings. What a
file of settings that was merely found may do, config_file.py says.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.api.settings import Settings

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
    """Refuse to send the user's Phoenix key to a server that only a recorded run names."""
    keys = [name for name in ("PHOENIX_API_KEY", "PHOENIX_CLIENT_HEADERS") if settings.environ.get(name)]
    if keys and not is_chosen_server(recorded, settings):
        raise ConfigError(
            f"this run names {recorded} as the place of its traces, which is not your server ({settings.source}), and "
            f"{' and '.join(keys)} would be sent there. If it is yours, name it again: --context {recorded}, or "
            f"--source with publish, or set PHOENIX_COLLECTOR_ENDPOINT"
        )


def is_chosen_server(address: str, settings: Settings) -> bool:
    """Whether an address is on this machine or of the server that the user has set."""
    return is_here(address) or _origin(address) == _origin(settings.source)


def _origin(address: str) -> tuple[str, str]:
    parts = urlsplit(address)
    return parts.scheme, parts.netloc.lower()
