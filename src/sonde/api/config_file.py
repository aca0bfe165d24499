"""sonde.toml: finding it, reading it, and refusing what it may not hold.

Two files count: the first sonde.toml upward from the working folder, and the user's own ~/.config/sonde/sonde.toml. SONDE_CONFIG
names one file instead of both (empty: none). A file that merely lies in a folder was not chosen by anybody, so `own` is false for it, and
settings.py does not let it start a program or send prompts elsewhere by itself. Keys never stand in a file.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from sonde.api.keys import KEYS, check, command_spec, unknown
from sonde.errors import ConfigError
from sonde.models.base import TokenUsage
from sonde.models.prices import price

NAME = "sonde.toml"


@dataclass(frozen=True, slots=True)
class Found:
    """A value and where it came from; `chosen` is false when it comes from a file that nobody named, `typed` true for this call's flags."""

    value: Any
    source: str
    chosen: bool = True
    typed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """An entry of [models]: a spec with the options that belong to it."""

    spec: str
    source: str
    chosen: bool = True
    base_url: str | None = None
    api_key_env: str | None = None
    timeout_s: float | None = None
    count_wait: bool = True
    prompt_mode: str = "stdin"
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])


_MODEL_KEYS = (
    "command",
    "name",
    "base_url",
    "api_key_env",
    "timeout_s",
    "count_wait",
    "prompt_mode",
    "env",
    "extra_body",
)
Table = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file, checked: what it sets at its top, in its profiles and as models."""

    path: Path
    own: bool
    top: Mapping[str, Found]
    profiles: Mapping[str, Mapping[str, Found]]
    models: Mapping[str, NamedModel]


def find_files(environ: Mapping[str, str], cwd: Path) -> list[ConfigFile]:
    """The files that count, the nearest first."""
    if "SONDE_CONFIG" in environ:
        named = environ["SONDE_CONFIG"]
        return [read_file(cwd / named, own=True)] if named else []
    user = _user_file(environ)
    project = next((path for folder in (cwd, *cwd.parents) if _counts(path := folder / NAME)), None)
    own = [read_file(user, own=True)] if user and _is_file(user) else []
    return own if project is None or project == user else [read_file(project, own=False), *own]


def _counts(path: Path) -> bool:
    """A file that someone else put where everybody may write, as in /tmp, is not this project's."""
    if not _is_file(path):
        return False
    everybody = path.parent.stat().st_mode & stat.S_IWOTH
    return not everybody or path.stat().st_uid in (os.getuid(), 0)


def _is_file(path: Path) -> bool:
    """Also False where we may not look."""
    try:
        return path.is_file()
    except OSError:
        return False


def _user_file(environ: Mapping[str, str]) -> Path | None:
    home = environ.get("XDG_CONFIG_HOME") or (environ.get("HOME") and f"{environ['HOME']}/.config")
    return Path(home) / "sonde" / NAME if home else None


def read_file(path: Path, *, own: bool) -> ConfigFile:
    """The file's contents, or ConfigError with the file, the key and what is allowed."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error
    profiles, models = _tables(data.pop("profile", {}), path), _tables(data.pop("models", {}), path)
    return ConfigFile(
        path,
        own,
        _layer(data, path, str(path), chosen=own),
        {name: _layer(table, path, f"{path} [profile.{name}]") for name, table in profiles.items()},
        {name: _model(table, f"{path} [models.{name}]", name, own=own) for name, table in models.items()},
    )


def _tables(value: Any, path: Path) -> dict[str, Table]:
    tables = cast("dict[str, Any]", value) if isinstance(value, dict) else None
    if tables is None or not all(isinstance(table, dict) for table in tables.values()):
        raise ConfigError(f"{path}: profiles and models are tables with a name, e.g. [profile.ci] or [models.mine]")
    return tables


def _layer(table: Table, path: Path, source: str, *, chosen: bool = True) -> dict[str, Found]:
    """The values of one table. A profile is always chosen: someone named it."""
    for name in table:
        if name in KEYS and not KEYS[name].in_file:
            raise ConfigError(f"{source}: {name} does not belong in a file; set {KEYS[name].variables[-1]} instead")
        if name not in KEYS:
            allowed = [key.name for key in KEYS.values() if key.in_file]
            raise unknown("key", name, [*allowed, "models", "profile"], source)
    return {name: Found(_value(name, value, path, source), source, chosen) for name, value in table.items()}


def _value(name: str, value: Any, path: Path, source: str) -> Any:
    checked = check(KEYS[name], value, source)
    return str(path.parent / checked) if KEYS[name].form == "path" else checked


def _model(table: Table, source: str, label: str, *, own: bool) -> NamedModel:
    for name in table:
        if name not in _MODEL_KEYS:
            raise unknown("key", name, _MODEL_KEYS, source)
    command, name = table.get("command"), table.get("name")
    spec = command_spec(cast("list[Any]", command)) if isinstance(command, list) else name
    if not isinstance(spec, str) or (command is None) == (name is None):
        raise ConfigError(f'{source} needs either command = ["python3", "my_model.py"] or name = "openai:gpt-4o-mini"')
    if ":" in label or (not own and (command or table.get("base_url")) and _is_known(label)):
        raise ConfigError(f"{source}: {label!r} is the name of a provider's model; give yours another name")
    plain = {key: check(KEYS[key], table[key], source) for key in KEYS if key in table}
    return NamedModel(
        spec=spec,
        source=source,
        chosen=own,
        api_key_env=_optional_text(table, "api_key_env", source),
        env={str(key): str(value) for key, value in _sub_table(table, "env", source).items()},
        extra_body=_sub_table(table, "extra_body", source),
        **plain,
    )


def _is_known(name: str) -> bool:
    """Whether people who type this name mean a provider's model."""
    return price(name, TokenUsage(1, 1)) is not None


def _optional_text(table: Table, key: str, source: str) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{source}: {key} must be the name of an environment variable, not {value!r}")
    return value


def _sub_table(table: Table, key: str, source: str) -> Table:
    value: Any = table.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{source}: {key} must be a table, not {value!r}")
    return cast("Table", value)
