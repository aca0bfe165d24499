"""What the loop asks for: flags and the loop's environment variables, read into one value.

A variable overrides its flag: the loop always passes flags, made from the role's runner, and a person overrules them from outside.
An unknown prompt mode means stdin. This module runs nothing and opens only the metadata file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import msgspec

from sonde.core.canonical import json_value, jsonable
from sonde.disk import read_named
from sonde.errors import ConfigError
from sonde.models.base import PromptMode

MAX_JSON_BYTES = 64 << 20
REQUIRED = (
    "repo",
    "loop_id",
    "role",
    "iteration",
    "context_file_list",
    "output_dir",
    "max_steps",
    "max_depth",
    "timeout_seconds",
)
OVERRIDES = {
    "max_subcalls": "SUPERLOOP_RLMS_MAX_SUBCALLS",
    **{
        f"{who}_{what}": f"SUPERLOOP_RLMS_{who}_{what}".upper()
        for who in ("root", "subcall")
        for what in ("command_json", "args_json", "prompt_mode")
    },
}
MOST = 10**9
RUNS = "runs"
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class MissingRootCommand(ConfigError):
    """Nobody said which program is the root model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A program that is a model: its words, without a shell, and how it gets its prompt."""

    argv: tuple[str, ...]
    prompt_mode: PromptMode = "stdin"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """The limits of one invocation, as result.json shows them."""

    max_steps: int
    max_depth: int
    timeout_seconds: int
    max_subcalls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One invocation, fully resolved."""

    repo: str
    loop_id: str
    role: str
    iteration: int
    context_file_list: str
    output_dir: str
    limits: LoopLimits
    root: Runner
    subcall: Runner
    require_citations: bool = True
    format: str = "json"
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    standalone: bool = False
    """No loop is around the worker, so it also keeps status, index, events and the journal of the run."""
    runs_dir: str = ""
    """Where the journal goes; "": nobody keeps it."""
    listed: tuple[str, ...] | None = None
    """The names in the list; None: it was not read yet."""

    def to_wire(self) -> dict[str, Any]:
        """As the worker process gets it."""
        return msgspec.to_builtins(self)

    @classmethod
    def from_wire(cls, wire: Mapping[str, Any]) -> Request:
        """What `to_wire` gave."""
        return msgspec.convert(wire, cls)


def read_request(flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Request:
    """The request; ConfigError says which flag is wrong and shows a right one."""
    given = {name: value for name, value in flags.items() if value is not None}
    given |= {name: environ[variable] for name, variable in OVERRIDES.items() if environ.get(variable)}
    missing = [f"--{name.replace('_', '-')}" for name in REQUIRED if not given.get(name, "").strip()]
    if missing:
        raise ConfigError(f"these flags are missing: {', '.join(missing)}; `sonde rlms --help` shows them all")
    if not Path(given["repo"]).is_dir():
        raise ConfigError(f"--repo {given['repo']!r} is not a folder; give the root of the repository")
    repo = str(Path(given["repo"]).absolute())
    root, subcall = _runners(given, repo)
    if given.get("format", "json") != "json":
        raise ConfigError(f"--format is {given['format']!r}; the only format is json")
    iteration = _number("iteration", given["iteration"], least=0)
    steps = _number("max_steps", given["max_steps"], least=1)
    subcalls = _number("max_subcalls", given.get("max_subcalls", "0"), least=0)
    limits = LoopLimits(
        max_steps=steps,
        max_depth=_number("max_depth", given["max_depth"], least=0),
        timeout_seconds=_number("timeout_seconds", given["timeout_seconds"], least=1),
        max_subcalls=subcalls or 2 * steps,
    )
    standalone = given.get("standalone") == "true"
    output_dir = str(Path(given["output_dir"]).absolute())
    runs_dir = given.get("runs_dir") or (str(Path(output_dir, RUNS)) if standalone else "")
    cited = given.get("require_citations", "true")
    if cited.strip().lower() not in _TRUE + _FALSE:
        raise ConfigError(f"--require-citations is {cited!r}; write true or false")
    return Request(
        repo=repo,
        loop_id=given["loop_id"],
        role=given["role"],
        iteration=iteration,
        context_file_list=str(Path(given["context_file_list"]).absolute()),
        output_dir=output_dir,
        limits=limits,
        root=root,
        subcall=subcall,
        require_citations=cited.strip().lower() in _TRUE,
        metadata=read_metadata(given.get("metadata_file")),
        standalone=standalone,
        runs_dir=runs_dir and str(Path(runs_dir).absolute()),
    )


def _number(name: str, text: str, *, least: int) -> int:
    digits = text.strip()
    number = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) <= len(str(MOST)) else -1
    if not least <= number <= MOST:
        flag = f"--{name.replace('_', '-')}"
        raise ConfigError(f"{flag} is {text!r}; it must be a whole number from {least} to {MOST:,}, as in {flag} 40")
    return number


def _runners(given: Mapping[str, str], repo: str) -> tuple[Runner, Runner]:
    """The root's program and that of sub-calls: the same, unless another command or other args are named.

    Another command takes nothing from the root: its args and mode are its own.
    """
    command = _words("root_command_json", given.get("root_command_json"))
    if not command:
        raise MissingRootCommand(
            "no root command: pass --root-command-json '[\"my-model\"]' or set SUPERLOOP_RLMS_ROOT_COMMAND_JSON"
        )
    args = _words("root_args_json", given.get("root_args_json")) or []
    root = _runner([*command, *args], given.get("root_prompt_mode"), repo)
    own_command = _words("subcall_command_json", given.get("subcall_command_json"))
    own_args = _words("subcall_args_json", given.get("subcall_args_json"))
    mode = given.get("subcall_prompt_mode")
    if own_command:
        return root, _runner([*own_command, *(own_args or [])], mode, repo)
    return root, _runner([*command, *(args if own_args is None else own_args)], mode or root.prompt_mode, repo)


def _runner(words: list[str], mode: str | None, repo: str) -> Runner:
    argv = tuple(word.replace("{repo}", repo) for word in words)
    return Runner(argv=argv, prompt_mode="file" if mode == "file" else "stdin")


def _words(name: str, text: str | None) -> list[str] | None:
    """A JSON array of text; None when it was not given. `null` and an empty text count as not given."""
    if text is None or not text.strip():
        return None
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        found = text
    if found is None:
        return None
    words = cast("list[Any]", found if isinstance(found, list) else [found, None])
    try:
        for word in words:
            os.fsencode(word)  # JSON can write characters that no argument of a program can have
    except (TypeError, UnicodeEncodeError):
        flag, example = f"--{name.replace('_', '-')}", '["exec", "-"]' if "args" in name else '["codex"]'
        reason = f"it must be a JSON array of strings, as in {flag} '{example}'"
        raise ConfigError(f"{flag} is {text[:200]!r}; {reason}") from None
    return words


def read_json(place: str | Path) -> Any:
    """The JSON value in a file, which may be a pipe; OSError or ValueError if it is none, or too large to be a loop's."""
    return json_value(read_named(place, MAX_JSON_BYTES))


def read_metadata(place: str | None) -> Mapping[str, Any]:
    """The JSON object in this file, numbers that JSON does not have as text; an empty one when no file is named."""
    if not place:
        return {}
    try:
        found: Any = jsonable(read_json(place))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--metadata-file {place!r} cannot be read as JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f'--metadata-file {place!r} must hold a JSON object, as in {{"objective": "…"}}')
    return cast("dict[str, Any]", found)
