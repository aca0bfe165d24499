"""What a recorded run may not do by itself: start a program, get a key of the user, read what looks like a secret, write to a server,
or raise what may be spent or used.

Its folder may be a stranger's. The user says yes for this call with a flag or a parameter, or has said so in their own settings.
config_file.py says what a file of settings that was merely found may do.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from sonde.api.config_file import state_folder
from sonde.api.keys import KEYS, KNOBS
from sonde.core.canonical import clip
from sonde.disk import AnyPath, NotPlain, below, is_mine, open_plain, root_of
from sonde.errors import ConfigError
from sonde.sandbox.base import Limits

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.core.events import RunStarted
    from sonde.runs.rundir import RunDir
    from sonde.runtime.run import RunSpec


ANYWHERE = ("/",)
"""Recorded paths may be anywhere, but they are not the words of the user: no pipe is waited for, and no secret read."""


KEY_BYTES = 32


def seal_key(environ: Mapping[str, str], *, make: bool = False) -> bytes | None:
    """The user's key for the seals of their runs; None without a home, or if others can read it. `make` makes it on first use.

    Settings that a program builds by hand hold no environment: then this process's own says where the state is.
    """
    folder = state_folder(environ or os.environ)
    if folder is None:
        return None
    path = folder / "seal.key"
    if make and not path.exists():
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            new = folder / f".seal-{secrets.token_hex(8)}.key"
            try:
                with open(
                    new, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)
                ) as file:  # Path.open takes no mode
                    file.write(secrets.token_bytes(KEY_BYTES))
                os.link(new, path)  # whole at once; of several processes the first one wins
            finally:
                new.unlink(missing_ok=True)
    with suppress(OSError), open_plain(path) as file:
        state = os.fstat(file.fileno())
        key = file.read(KEY_BYTES + 1)
        readable = (
            sys.platform != "win32" and stat.S_IMODE(state.st_mode) & 0o077
        )  # there a home is private by its own rules
        if is_mine(state) and not readable and len(key) == KEY_BYTES:
            return key
    return None


def is_own(run: RunDir, environ: Mapping[str, str]) -> bool:
    """Whether this user made the run on this machine: its seal holds."""
    key = seal_key(environ)
    return key is not None and run.is_sealed(key)


def is_made_here(run: RunDir, settings: Settings) -> bool:
    """Whether it is the user's own and lies in their state folder, where no stranger can add to it: then it may start its program."""
    kept = settings.state_runs
    return kept is not None and run.path.resolve().parent == kept.resolve() and is_own(run, settings.environ)


def readable_places(
    run: RunDir, environ: Mapping[str, str] = MappingProxyType({}), *, trust_run: bool = False
) -> Sequence[AnyPath]:
    """The folders in which files that a recorded run names may be read.

    Anywhere for a run that this user made on this machine (its seal holds), or that they trust in this call. Otherwise only the run's own
    folder and the working folder; not that either if it is the home folder or around it, because then it holds everything.
    """
    if trust_run or is_own(run, environ):
        return ANYWHERE
    here, home = Path.cwd().resolve(), (environ or os.environ).get("HOME")
    around_home = home is not None and Path(home).resolve().is_relative_to(here)
    return (run.path.resolve(), *(() if around_home else (here,)))


def is_trusted(places: Sequence[AnyPath]) -> bool:
    """Whether `readable_places` says so of a run: it is the user's own, or they trust it in this call."""
    return tuple(places) == ANYWHERE


def require_model(spec: object, settings: Settings, flag: str) -> None:
    """Refuse to start the program that a recorded run names, unless the user's own settings name it too."""
    if not isinstance(spec, str) or spec in (settings.model, settings.sub_model):
        return
    if spec in settings.models:  # an entry of the user's own, or of a file that they accepted
        return
    kind, _, what = spec.partition(":")
    wish = f"start `{what}`" if kind == "command" else ""
    if kind == "local" and ("/" in what or what.endswith(".gguf")):
        wish = f"load the weights {what} into native code"
    if wish:
        raise ConfigError(
            f"this run wants to {wish}, and a recorded run may not by itself. If it is yours, name it again: {flag} {spec!r}"
        )


def require_caps(spec: RunSpec, settings: Settings, limits: Limits) -> None:
    """Refuse a recorded run that may use more than the user allows. It does not run with less: it would silently take another course."""
    engine = spec.engine
    allowed = settings.budget(engine.budget, engine.maxima)
    flags: list[str] = []
    for name in KNOBS:
        recorded, most = getattr(spec.budget, name), getattr(allowed, name)
        if name != "sampling_seed" and most is not None and (recorded is None or recorded > most):
            flags.append(f"{KEYS[name].option} {'inf' if recorded is None else recorded}")
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


def require_sources(paths: Iterable[str], within: Sequence[AnyPath]) -> None:
    """Refuse to read a path because a recorded run names it, if it looks like a secret or lies outside of `readable_places`.

    Whoever expands a glob judges what it matches (`list_sources` with the same places).
    """
    for path in paths:
        if "\0" in path:
            raise ConfigError("this run was asked about a path with a zero byte in it; no file has such a name")
        try:
            below("/", path)
        except NotPlain as refused:
            raise ConfigError(
                f"this run was asked about {clip(path, 200)} ({refused.strerror}). If you mean it, name it again: --context "
                f"{clip(path, 200)}"
            ) from None
        try:
            below(root_of(Path.cwd() / path, within), path)
        except NotPlain:
            raise ConfigError(
                f"this run was not made here by you, and it names {clip(path, 200)}, which is neither in its folder nor below the one "
                "you are in: it is not read. If you trust the run, say --trust-run (in Python trust_run=True)"
            ) from None


def require_server(recorded: str, settings: Settings) -> None:
    """Refuse to ask a server, and to send it the user's key, because only a recorded run names it."""
    if not is_chosen_server(recorded, settings):
        raise ConfigError(
            f"this run names {recorded} as the place of its traces, which is not your server ({settings.source}). If it is yours, "
            f"name it again: --context {recorded}, or --source with publish, or set SONDE_SOURCE"
        )


def require_writeback(started: RunStarted, context: Any, said: bool | None) -> bool:
    """Whether a recorded run that writes to a server may do so again: only the user can say, for this call."""
    place = str(context or started.settings.get("source", ""))
    product = _origin(place)[0]
    if said and product not in ("", "phoenix"):
        raise ConfigError(f"annotations are written to Phoenix only, and this run reads {place}: leave --writeback out")
    if said is None and started.settings.get("writeback") and product == "phoenix":
        raise ConfigError(
            f"this run writes annotations to {place}, and a recorded run may not by itself. Say --writeback, or --no-writeback "
            "(`sonde publish` can write them later)"
        )
    return bool(said)


def is_chosen_server(address: str, settings: Settings) -> bool:
    """Whether an address is that of the server the user has set, and the product the same: each has its own key."""
    return _origin(address) == _origin(settings.source)


def _origin(address: str) -> tuple[str, str, str]:
    from sonde.contexts.traces.store import server_of  # noqa: PLC0415  # loaded only for those who read traces

    product, url = server_of(address) or ("", "")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(
            f"{address!r} is not the address of a server; write one such as http://localhost:6006"
        ) from None
    return product, parts.scheme, parts.netloc.lower()
