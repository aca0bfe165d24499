"""A manifest: one item per line, each an ask or an investigation (contracts 2.13).

    {"id": "q1", "engine": "ask", "question": "Which service failed first?", "paths": ["logs/"]}
    {"id": "t1", "engine": "rca", "trace_ids": ["4f1c…"], "source": "traces.jsonl", "project": "shop"}

A broken line is named and the others run. A manifest that uses an id twice is refused, since nobody can know which item is meant.
Relative paths are relative to the manifest. Nothing here looks at the files or traces that the items name.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from sonde.contexts.files.exclusion import Exclusion
from sonde.core.canonical import MOST_LEVELS, canonical_json, hash_value, is_deep
from sonde.errors import ConfigError

MAX_BYTES = 1 << 30  # millions of items
ENGINES = ("ask", "rca", "compliance", "incident")
SYNONYMS = {"comply": "compliance"}  # the command's name
_TEXTS = ("id", "engine", "question", "source", "project", "taxonomy", "controls", "start", "end", "filter", "configs")
_LISTS = ("paths", "exclude", "trace_ids", "controls_files")
_PLACES = ("paths", "source", "configs", "taxonomy", "controls_files")
_FLAGS = ("code", "gitignore", "citations")
_KNOWN = {
    "ask": {"id", "engine", "question", "paths", *_FLAGS, "exclude", "schema"},
    "rca": {"id", "engine", "trace_ids", "source", "project", "taxonomy"},
    "compliance": {"id", "engine", "trace_ids", "source", "project", "controls", "controls_files"},
    "incident": {"id", "engine", "trace_ids", "source", "project", "start", "end", "filter", "configs"},
}
_HALF = re.compile("[\ud800-\udfff]")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_EXAMPLE = '{"id": "q1", "engine": "ask", "question": "What is this?", "paths": ["README.md"]}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One entry of a batch: its id, its engine, and the references that say what it is about."""

    id: str
    engine: str
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def key(self) -> str:
        """The name of its run folder: readable, and different when the content changes."""
        digest = hash_value({"id": self.id, "engine": self.engine, "fields": dict(self.fields)})[:16]
        return f"{_UNSAFE.sub('-', self.id)[:60].strip('.-') or 'item'}-{digest}"

    @property
    def places(self) -> list[str]:
        """The files, folders, globs and addresses that it names."""
        single = [self.fields[name] for name in _PLACES if isinstance(self.fields.get(name), str)]
        return [*self.fields.get("paths", []), *(each for each in single if "/" in each)]

    def line(self) -> str:
        """The item as a line of a manifest."""
        whole = {"id": self.id, "engine": self.engine, **self.fields}
        text = canonical_json(whole)
        return text if _is_sound(text) else json.dumps(whole, sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenLine:
    """A line that is not an item, and why."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The items of a batch and the lines that are not items. `folder` is where its file lies; None if it was not read from one."""

    items: tuple[Item, ...]
    broken: tuple[BrokenLine, ...] = ()
    folder: Path | None = None


class _NoItem(ValueError):
    """Why a line is not an item."""


def read_manifest(path: Path) -> Manifest:
    """The manifest in a file or a pipe; ConfigError when it cannot be read, holds no item, or names an id twice."""
    try:
        with path.open("rb") as file:
            if stat.S_ISCHR(os.fstat(file.fileno()).st_mode):
                raise ConfigError(f"{path} is a device; give a file with one item per line, or a pipe")
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"the manifest {path} cannot be read: {error.strerror}") from None
    if len(text) > MAX_BYTES:
        raise ConfigError(f"the manifest {path} is larger than {MAX_BYTES:,} bytes; make several batches of it")
    try:
        lines = {".csv": _rows, ".txt": _questions}.get(path.suffix.lower(), bytes.splitlines)(text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"the manifest {path} cannot be read as {path.suffix[1:]}: {error}") from None
    manifest = parse_manifest(lines, path.absolute().parent)
    if not manifest.items:
        first = f"; line {manifest.broken[0].number}: {manifest.broken[0].reason}" if manifest.broken else ""
        raise ConfigError(f"{path} holds no item{first}. A line reads {_EXAMPLE}")
    return replace(manifest, folder=path.absolute().parent)


def _questions(text: bytes) -> list[bytes]:
    """A line of a manifest for each line of text, which is a question."""
    asked = text.decode("utf-8-sig").splitlines()
    rows = (
        {"id": f"q{number}", "question": line.strip()} if line.strip() else None for number, line in enumerate(asked, 1)
    )
    return [json.dumps(row).encode() if row else b"" for row in rows]


def _rows(text: bytes) -> list[bytes]:
    """A line of a manifest for each row of a CSV file: columns are fields, empty cells say nothing, lists are separated by `;`."""
    lines = [b""]  # the names of the columns
    table = csv.DictReader(io.StringIO(text.decode("utf-8-sig"), newline=""), strict=True)
    columns = list(table.fieldnames or ())
    if columns and (len(set(columns)) < len(columns) or not {"question", "engine"}.intersection(columns)):
        raise csv.Error(f"its first row must name each column once, such as id,question,paths; it is {columns!r:.200}")
    for number, row in enumerate(table, 1):
        item: dict[str, Any] = {"id": f"q{number}"}
        for name, cell in row.items():
            if name is None or not (cell or "").strip():
                if cell and name is None:
                    item["a column without a name"] = cell
            elif name in _LISTS:
                item[name] = [part.strip() for part in cell.split(";") if part.strip()]
            elif name in _FLAGS:
                item[name] = {"true": True, "false": False}.get(cell.strip().lower(), cell)
            else:
                item[name] = cell
        lines.append(json.dumps(item).encode())
    return lines


def parse_manifest(lines: Iterable[bytes], folder: Path) -> Manifest:
    """Items and broken lines, in order."""
    items: list[Item] = []
    broken: list[BrokenLine] = []
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = _items(line, folder)
        except _NoItem as reason:
            broken.append(BrokenLine(number=number, reason=str(reason)))
            continue
        items += found
        for item in found:
            places.setdefault(item.id, []).append(number)
    twice = [f"{name!r} (lines {', '.join(map(str, at))})" for name, at in places.items() if len(at) > 1]
    if twice:
        more = f" and {len(twice) - 5} more" if len(twice) > 5 else ""
        raise ConfigError(f"ids must be unique in a manifest; used more than once: {', '.join(twice[:5])}{more}")
    return Manifest(items=tuple(items), broken=tuple(broken))


def _items(line: bytes, folder: Path) -> list[Item]:
    """The item of a line; an rca or compliance line with several traces is one item per trace."""
    try:
        found: Any = json.loads(line, parse_constant=_refuse_constant, parse_float=_finite)
    except UnicodeDecodeError:
        raise _NoItem("it is not UTF-8") from None
    except ValueError as error:
        raise _NoItem(f"it is not JSON ({error})") from None
    except RecursionError:
        raise _NoItem("it is nested too deeply") from None
    if is_deep(line):
        raise _NoItem(f"it is nested more than {MOST_LEVELS} levels deep")
    if not isinstance(found, dict):
        raise _NoItem(f"it is not an object; a line reads {_EXAMPLE}")
    given = cast("dict[str, Any]", found)
    data: dict[str, Any] = {"engine": "ask" if "question" in given else "", **given}
    data["engine"] = SYNONYMS.get(data["engine"], data["engine"]) if isinstance(data["engine"], str) else data["engine"]
    _check(data)
    fields = {key: value for key, value in data.items() if key not in ("id", "engine")}
    for name in ("paths", "controls_files"):
        if name in fields:
            fields[name] = [_placed(path, folder) for path in fields[name]]
    if "exclude" in fields:
        try:
            fields["exclude"] = list(Exclusion.of(fields["exclude"], here=folder).globs)
        except ConfigError as error:
            raise _NoItem(error.message) from None
    for name in ("source", "configs", "taxonomy"):
        if name in fields and not (
            name == "taxonomy" and re.fullmatch(r"\w+", fields[name])
        ):  # the name of a shipped one
            fields[name] = _placed(fields[name], folder)
    traces = fields.get("trace_ids", [])
    item = Item(id=data["id"], engine=data["engine"], fields=fields)
    if data["engine"] in ("rca", "compliance") and len(traces) > 1:
        return [
            Item(id=f"{item.id}:{trace}", engine=item.engine, fields={**fields, "trace_ids": [trace]})
            for trace in dict.fromkeys(traces)
        ]
    return [item]


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refuse_constant(digits)


def _is_sound(text: str) -> bool:
    """Whether UTF-8 can hold it. Only names of files may contain half a character (a lone surrogate)."""
    return _HALF.search(text) is None


def _check(data: Mapping[str, Any]) -> None:
    engine = data["engine"]
    if engine not in ENGINES:
        raise _NoItem(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    unknown = sorted(set(data) - _KNOWN[engine])
    if unknown:
        raise _NoItem(f"{engine} knows no field {unknown[0]!r}; it knows {', '.join(sorted(_KNOWN[engine]))}")
    for name in _TEXTS:
        if name in data and not (isinstance(data[name], str) and data[name].strip()):
            raise _NoItem(f"{name} must be text that is not empty")
    for name in _LISTS:
        value = data.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) and each for each in cast("list[Any]", value)):
            raise _NoItem(f"{name} must be a list of texts")
    if not _is_sound(canonical_json({name: value for name, value in data.items() if name not in _PLACES})):
        raise _NoItem("it holds half a character, such as \\ud800, which is no text")
    if "id" not in data:
        raise _NoItem("it has no id")
    if not all(isinstance(data.get(name, False), bool) for name in _FLAGS):
        raise _NoItem(f"{', '.join(_FLAGS)} must be true or false")
    if not isinstance(data.get("schema", {}), dict):
        raise _NoItem("schema must be an object")
    if engine == "ask" and "question" not in data:
        raise _NoItem("an ask needs a question")
    if engine in ("rca", "compliance") and not data.get("trace_ids"):
        raise _NoItem(f'{engine} needs trace_ids, such as ["4f1c…"]')


def _placed(path: str, folder: Path) -> str:
    """Absolute, so that every worker means the same file; addresses stay."""
    return path if "://" in path else str(folder / path)
