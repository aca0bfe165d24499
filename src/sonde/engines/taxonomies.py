"""Taxonomies of failures as data: ours of five labels, TRAIL's 21 categories, or a user's own YAML file.

A file has a name, categories with name and definition, and perhaps a guide that says how to label, with another one (`team_guide`) for
traces in which an agent gives tasks to others. Without a model, a rule recognises a
category by its patterns in the words of an error: {name: Slow, definition: Too slow, patterns: ["timed? ?out"]}.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, cast

import yaml

from sonde.contexts.yaml_text import composed, plain
from sonde.core.patterns import Pattern, PatternAllowance
from sonde.disk import open_exactly, read_whole
from sonde.errors import ConfigError

MAX_FILE_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of failure and when to use it; `patterns` are the words of errors by which a rule knows it."""

    name: str
    definition: str
    patterns: tuple[Pattern, ...] = ()  # RE2: they meet texts that anybody may have written


@dataclass(frozen=True, slots=True, kw_only=True)
class Taxonomy:
    """Categories under one name; `guide` says how to label with them, `team_guide` how where an agent gives tasks to others."""

    name: str
    categories: tuple[Category, ...]
    guide: str = ""
    team_guide: str = ""

    def find(self, name: str) -> str | None:
        """The category of this name in any spelling, or None."""
        wanted = _plain(name)
        return next(
            (n for each in self.categories if (n := each.name) == name or (wanted and _plain(n) == wanted)), None
        )

    def category_of(self, error: str) -> str | None:
        """The first category with a pattern that matches an error's words."""
        fits = (each.name for each in self.categories if any(pattern.search(error) for pattern in each.patterns))
        return next(fits, None)

    def listed(self) -> str:
        """The categories with their definitions, for a prompt."""
        return "\n".join(f"- {each.name}: {each.definition}" for each in self.categories)


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", " ", name.casefold()).strip()


def shipped_taxonomy(name: str | Path) -> Traversable | None:
    """The file of a shipped taxonomy; None if no shipped one has this name."""
    shipped = resources.files("sonde.engines") / "taxonomy_files" / f"{name}.yaml"
    return shipped if re.fullmatch(r"\w+", str(name)) and shipped.is_file() else None


def load_taxonomy(name: str | Path) -> Taxonomy:
    """A shipped taxonomy by name (`sonde`, `trail`), or one from a YAML file."""
    shipped = shipped_taxonomy(name)
    if shipped is not None:
        return _parse(shipped.read_text("utf-8"), f"{name}.yaml")
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"no taxonomy {str(name)!r}; use sonde, trail or a YAML file")
    try:
        with os.fdopen(open_exactly(os.path.realpath(path)), "rb") as file:
            return _parse(read_whole(file, MAX_FILE_BYTES).decode("utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the taxonomy {path} cannot be read as UTF-8 text: {error}") from error


def _parse(text: str, source: str) -> Taxonomy:
    try:
        data: Any = plain(composed(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"{source} is not YAML: {' '.join(str(error).split())}") from None
    match data:
        case {"name": str(name), "categories": [*items], **rest} if items:
            pass
        case _:
            raise ConfigError(
                f"{source}: a taxonomy has a name and a list of categories, each with name and definition"
            )
    categories: dict[str, Category] = {}
    allowance = PatternAllowance()
    for item in items:
        match item:
            case {"name": str(label), "definition": str(definition), **more} if label.strip():
                where = f"{source}: {label}"
            case _:
                raise ConfigError(f"{source}: a category has name and definition, not {item!r:.100}")
        if unknown := [field for field in more if field != "patterns"]:
            raise ConfigError(f"{where}: unknown field {unknown[0]}; a category may have patterns")
        given = more.get("patterns", [])
        if not isinstance(given, list):
            raise ConfigError(f"{where}: patterns is a list of regular expressions, not {given!r:.80}")
        try:
            patterns = tuple(allowance.compiled(str(each)) for each in cast("list[Any]", given))
        except ValueError as error:
            message = f"{where}: patterns is a list of regular expressions as RE2 takes them: {error}"
            raise ConfigError(message) from None
        spelt = _plain(label) or label  # names that differ only in spelling would be ambiguous
        if spelt in categories:
            first = categories[spelt].name
            raise ConfigError(f"{source}: {first!r} and {label!r} are the same name; give each category its own")
        categories[spelt] = Category(label, " ".join(definition.split()), patterns)
    guides = {field: str(rest.get(field, "")) for field in ("guide", "team_guide")}
    return Taxonomy(name=name, categories=tuple(categories.values()), **guides)
