"""sonde.toml: finding it, reading it, and refusing what it may not hold.

Two files count: the first sonde.toml upward from the working folder, and the user's own ~/.config/sonde/sonde.toml. SONDE_CONFIG
names one file instead of both (empty: none). A file that merely lies in a folder may be a stranger's: settings that could send
something away, start a program or spend more are left out and listed in `ignored`, until the user accepts the file as it is with
`sonde config trust`. Keys are never in a file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from sonde.api.keys import KEYS, check, command_spec, unknown
from sonde.core.budget import Budget
from sonde.disk import is_mine, is_too_long
from sonde.errors import ConfigError
from sonde.models.base import SAMPLING, Price

NAME = "sonde.toml"
MAX_BYTES = 100_000
MAX_DOTS = 200  # a key a.b.c… takes quadratic time
_LONG_NUMBER = re.compile(rb"0[xob][0-9A-Fa-f_]{64}")  # Python reads such a number, but refuses to write it out
NEEDS_TRUST = (  # who gets the prompts, what runs the code, and what commands may reach
    *("model", "sub_model", "base_url", "backend"),
    *("reasoning_effort", "max_output_tokens"),  # thinking costs
    *("command_read", "command_write"),
    "count_wait",  # waiting that does not count has no end
    "trace_cache_gb",  # it fills the disk, or throws away what others need
    "mask_patterns",  # they would take the place of the user's own
)


@dataclass(frozen=True, slots=True)
class Found:
    """A value and where it came from."""

    value: Any
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """An entry of [models]: a spec with the options that belong to it."""

    spec: str
    source: str
    base_url: str | None = None
    api_key_env: str | None = None
    timeout_s: float | None = None
    count_wait: bool | None = None
    prompt_mode: str | None = None
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    price: Price | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    env_names: tuple[str, ...] = ()
    """Variables that its program gets from our environment, where they are set."""
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])


_MODEL_KEYS = (
    "command",
    "name",
    "base_url",
    "api_key_env",
    "timeout_s",
    "count_wait",
    "prompt_mode",
    *SAMPLING,
    "price",
    "env",
    "extra_body",
)
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file, checked: what it sets at its top, in its presets and as models. `ignored` names what it may not set by itself."""

    path: Path
    own: bool
    top: Mapping[str, Found]
    presets: Mapping[str, Mapping[str, Found]]
    models: Mapping[str, NamedModel]
    ignored: tuple[str, ...] = ()


def find_files(environ: Mapping[str, str], cwd: Path) -> list[ConfigFile]:
    """The files that count, the nearest first."""
    if "SONDE_CONFIG" in environ:
        named = environ["SONDE_CONFIG"]
        return [_checked(cwd / named, _bytes_of(cwd / named), own=True)] if named else []
    folder = user_folder(environ, "XDG_CONFIG_HOME", ".config")
    user = folder / NAME if folder else None
    project = project_file(cwd)
    own = [_checked(user, _bytes_of(user), own=True)] if user and _is_file(user) else []
    if project is None or project == user:
        return own
    data = _bytes_of(project)
    found, kept = _checked(project, data, own=False), _trust_file(environ)
    trusted = kept is not None and _trusted(kept).get(str(project.resolve())) == hashlib.sha256(data).hexdigest()
    if trusted:
        return [found, *own]
    # What a stranger's file may set: nothing that sends, starts, writes elsewhere or costs more than usual.
    ignored: list[str] = []
    usual = asdict(Budget()) | {
        "max_parallel": KEYS["max_parallel"].default,
        "max_journal_mb": KEYS["max_journal_mb"].default,
    }
    usual |= {name: hit.value for file in own for name, hit in file.top.items() if name in usual}

    def harmless(layer: Mapping[str, Found], prefix: str = "") -> dict[str, Found]:
        risky = {name for name in layer if name in NEEDS_TRUST}
        risky |= {name for name in layer if name == "mask" and layer[name].value is False}
        runs = str(layer["runs_dir"].value) if "runs_dir" in layer else ""
        if runs and (is_too_long(runs) or not Path(runs).resolve().is_relative_to(project.parent.resolve())):
            risky.add("runs_dir")  # prompts and answers are written there
        # It may lower a limit, not raise it: where no price is known, tokens and turns are the only bound on spending.
        most = {name: math.inf if usual[name] is None else usual[name] for name in layer if name in usual}
        asked = {name: math.inf if layer[name].value is None else layer[name].value for name in most}
        risky |= {name for name in most if name != "sampling_seed" and asked[name] > most[name]}
        ignored.extend(prefix + name for name in layer if name in risky)
        return {name: hit for name, hit in layer.items() if name not in risky}

    top = harmless(found.top)
    presets = {name: harmless(layer, f"preset.{name}.") for name, layer in found.presets.items()}
    # An entry that only adds to a model with a name of its own is left out; the name still means that model.
    ignored.extend(f"models.{name}" + (".price" if entry.spec == name else "") for name, entry in found.models.items())
    return [replace(found, top=top, presets=presets, models={}, ignored=tuple(ignored)), *own]


def project_file(cwd: Path) -> Path | None:
    """The first sonde.toml upward from a folder."""
    for folder in (cwd, *cwd.parents):
        path = folder / NAME
        # A file that someone else put where everybody may write, as in /tmp, is not this project's.
        if _is_file(path):
            state = path.stat()
            if not folder.stat().st_mode & stat.S_IWOTH or is_mine(state) or state.st_uid == 0:
                return path
    return None


def trust(path: Path, environ: Mapping[str, str]) -> None:
    """Accept a file as it is now; after a change it must be accepted again."""
    kept = _trust_file(environ)
    if kept is None:
        raise ConfigError("no home folder to remember that in: set HOME or XDG_STATE_HOME")
    data = _bytes_of(path)
    _checked(path, data, own=False)
    known = _trusted(kept) | {str(path.resolve()): hashlib.sha256(data).hexdigest()}
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    kept.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def state_folder(environ: Mapping[str, str]) -> Path | None:
    """Where Sonde keeps what is neither a setting nor a cache: accepted files, runs; None without a home."""
    return user_folder(environ, "XDG_STATE_HOME", ".local/state")


def user_folder(environ: Mapping[str, str], variable: str, usual: str) -> Path | None:
    """Sonde's folder where this variable says, else in its usual place below the home (USERPROFILE is Windows' name for it)."""
    home = environ.get("HOME") or environ.get("USERPROFILE")
    base = environ.get(variable) or (home and f"{home}/{usual}")
    return Path(base) / "sonde" if base else None


def _trust_file(environ: Mapping[str, str]) -> Path | None:
    folder = state_folder(environ)
    return folder / "trusted.json" if folder else None


def _trusted(kept: Path) -> dict[str, str]:
    """What was accepted: sums by path. A damaged file accepts nothing."""
    try:
        known: Any = json.loads(kept.read_bytes())
    except (OSError, ValueError):
        return {}
    return cast("dict[str, str]", known) if isinstance(known, dict) else {}


def _is_file(path: Path) -> bool:
    """Also False where we may not look."""
    try:
        return path.is_file()
    except OSError:
        return False


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} has more than {MAX_BYTES:,} bytes; a file of settings is smaller")
    return data


def _checked(path: Path, text: bytes, *, own: bool) -> ConfigFile:
    """The file's contents, or ConfigError with the file, the key and what is allowed."""
    if any(line.count(b".") > MAX_DOTS for line in text.splitlines()) or _LONG_NUMBER.search(text):
        raise ConfigError(f"{path} has a line with more than {MAX_DOTS} dots or a number of more than 64 digits")
    try:
        data = tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:  # ValueError: also a number of too many digits
        raise ConfigError(f"{path} is not TOML: {error}") from error
    presets: dict[str, dict[str, Found]] = {}
    for word in ("profile", "preset"):  # the first is what presets were called
        for name, table in _tables(data.pop(word, {}), path).items():
            presets[name] = _layer(table, path, f"{path} [{word}.{name}]")
    models = _tables(data.pop("models", {}), path)
    return ConfigFile(
        path,
        own,
        _layer(data, path, str(path)),
        presets,
        {name: _model(table, f"{path} [models.{name}]", name) for name, table in models.items()},
    )


def _tables(value: Any, path: Path) -> dict[str, Table]:
    tables = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    if tables is None or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{path}: presets and models are tables with a name, e.g. [preset.ci] or [models.mine]")
    return tables


def _layer(table: Table, path: Path, source: str) -> dict[str, Found]:
    """The values of one table."""
    for name in table:
        if name in KEYS and not KEYS[name].in_file:
            raise ConfigError(
                f'{source}: a price belongs to a model: [models."openai:NAME"] with price = {{input = 0.5, output = 1.5}}'
                if name == "price"
                else f"{source}: {name} does not belong in a file; set {KEYS[name].variables[-1]} instead"
            )
        if name not in KEYS:
            allowed = [key.name for key in KEYS.values() if key.in_file]
            raise unknown("key", name, [*allowed, "models", "preset"], source)
    checked = {name: check(KEYS[name], value, source) for name, value in table.items()}
    for name, value in checked.items():
        if KEYS[name].form == "path":
            checked[name] = str(path.parent / value)
        elif KEYS[name].form == "folders":
            checked[name] = tuple(str(path.parent / each) for each in value)
    return {name: Found(value, source) for name, value in checked.items()}


def _model(table: Table, source: str, label: str) -> NamedModel:
    for name in table:
        if name not in _MODEL_KEYS:
            raise unknown("key", name, _MODEL_KEYS, source)
    command, name = table.get("command"), table.get("name")
    only_more = (
        command is None and name is None and "price" in table
    )  # what is known of a model that has a name already
    spec = command_spec(cast("list[Any]", command)) if isinstance(command, list) else label if only_more else name
    if not isinstance(spec, str) or (command is not None and name is not None):
        raise ConfigError(
            f'{source} needs either command = ["python3", "my_model.py"] or name = "openai:gpt-4o-mini", or only a price if '
            f"{label!r} is the model's name"
        )
    if ":" in label and not only_more:
        raise ConfigError(f"{source}: {label!r} is the name of a provider's model; give yours another name")
    plain = {key: check(KEYS[key], table[key], source) for key in KEYS if key in table and key != "price"}
    variable = table.get("api_key_env")
    if variable is not None and not isinstance(variable, str):
        raise ConfigError(f"{source}: api_key_env must be the name of an environment variable, not {variable!r}")
    env: Any = table.get("env", {})
    names = cast("list[Any]", env) if isinstance(env, list) else []
    if not isinstance(env, dict | list) or not all(isinstance(each, str) for each in names):
        raise ConfigError(
            f'{source}: env must be a list of variables to pass on, ["NAME"], or a table {{NAME = "value"}}, not {env!r}'
        )
    return NamedModel(
        spec=spec,
        source=source,
        api_key_env=variable,
        price=None if "price" not in table else check(KEYS["price"], table["price"], f"{NAME} [models.{label}]"),
        env={str(key): str(value) for key, value in cast("Table", env).items()} if isinstance(env, dict) else {},
        env_names=tuple(names),
        extra_body=_sub_table(table, "extra_body", source),
        **plain,
    )


def _sub_table(table: Table, key: str, source: str) -> Table:
    value: Any = table.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: {key} must be a table, not {value!r}")
    return cast("Table", value)
