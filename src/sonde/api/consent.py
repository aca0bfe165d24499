"""What a file that was merely found, or a run that somebody recorded, may not do by itself: start a program, have prompts sent to
another machine, get a key of the user, read what looks like a secret, or raise what may be spent.

Such a file or run may be a stranger's. The user chooses: by a flag, by a variable, by a profile that a flag names, or in a file of their
own. A name counts as chosen for an entry of a found file only when it was typed for this call; a name that was set before, elsewhere,
meant something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from sonde.api.config_file import Found, NamedModel
from sonde.core.budget import Budget
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.api.settings import Settings

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HOW = "Choose it yourself: by the flag, by the variable, by --use PROFILE, or in ~/.config/sonde/sonde.toml"
_HOW_ENTRY = "Choose it yourself: by --model NAME, by --use PROFILE, or with SONDE_CONFIG=sonde.toml"


def require_choice(found: Mapping[str, Found], models: Mapping[str, NamedModel]) -> None:
    """Refuse what a file that nobody chose would start or send away."""
    for hit in (found[name] for name in ("model", "sub_model") if name in found):
        entry = models.get(hit.value)
        if entry is None and not hit.chosen:
            _refuse_command(hit.source, str(hit.value), _HOW)
        if entry is not None and not entry.chosen and not hit.typed:
            _refuse_command(entry.source, entry.spec, _HOW_ENTRY)
            _refuse_address(entry.source, entry.base_url, _HOW_ENTRY)
    _refuse_cost(found.get("max_cost_usd"))
    address = found.get("base_url")
    if address and not address.chosen:
        _refuse_address(address.source, str(address.value), _HOW)


def _refuse_command(source: str, spec: str, how: str) -> None:
    if wish := _wish(spec):
        raise ConfigError(f"{source} wants to {wish}, and a file found in a folder may not. {how}.")


def _wish(spec: str) -> str:
    """What opening this model would do on this machine that a stranger may not decide; empty for the harmless ones."""
    kind, _, what = spec.partition(":")
    if kind == "local" and ("/" in what or what.endswith(".gguf")):
        return f"load the weights {what} into native code"
    return f"start `{what}`" if kind == "command" else ""


def _refuse_address(source: str, base_url: str | None, how: str) -> None:
    if base_url and not is_here(base_url):
        raise ConfigError(f"{source} wants prompts sent to {base_url}, and a file found in a folder may not. {how}.")


def _refuse_cost(cost: Found | None) -> None:
    usual = Budget().max_cost_usd
    if cost is not None and not cost.chosen and usual is not None and cost.value > usual:
        raise ConfigError(
            f"{cost.source} wants up to {cost.value:g} USD spent on a run, and a file found in a folder may not ask for more than "
            f"{usual:g}. {_HOW}."
        )


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
    entry = settings.models.get(spec)
    if entry is not None and entry.chosen:
        return
    if wish := _wish(entry.spec if entry else spec):
        raise ConfigError(
            f"this run wants to {wish}, and a recorded run may not by itself. If it is yours, name it again: {flag} {spec!r}"
        )
    if entry is not None:
        _refuse_address(entry.source, entry.base_url, _HOW_ENTRY)


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
