"""YAML from files that others wrote: composed by the safe loader, and refused when its aliases unfold to more than anybody writes.

A few lines of aliases of aliases stand for billions of values; they cost nothing until somebody walks over them. So they are counted first.
"""

from __future__ import annotations

import json
import re
from typing import Any, cast

import yaml

MOST_NODES = 200_000
_HALVES = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def composed(text: str) -> Any:
    """The tree of nodes. Raises yaml.YAMLError for what is no YAML, nests too deep, holds itself, or unfolds without end."""
    try:
        root = cast("Any", yaml).compose(_as_yaml(text), Loader=yaml.SafeLoader)
        _unfolded(root, {})
    except RecursionError:
        raise yaml.YAMLError("it nests too deep") from None
    return root


def _as_yaml(text: str) -> str:
    """JSON as YAML takes it, line by line the same: blanks for tabs, of which its texts hold none, and characters for their halves."""
    if "\t" not in text and "\\u" not in text:
        return text
    try:
        json.loads(text.removeprefix("\ufeff"))
    except ValueError:
        return text
    return _HALVES.sub(_character, text.replace("\t", " "))


def _character(halves: re.Match[str]) -> str:
    return halves[1] + bytes.fromhex(halves[2] + halves[3]).decode("utf-16-be")


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """How many nodes it stands for when every alias is replaced by what it means."""
    if id(node) in known:
        size = known[id(node)]
        if not size:
            raise yaml.YAMLError("a value holds itself")
        return size
    known[id(node)] = 0  # on the way
    size = 1 + sum(_unfolded(child, known) for child in _children(node))
    if size > MOST_NODES:
        raise yaml.YAMLError(f"its aliases unfold to more than {MOST_NODES:,} values")
    known[id(node)] = size
    return size


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in cast("list[tuple[Any, Any]]", node.value) for part in pair]
    return cast("list[Any]", node.value) if isinstance(node, yaml.SequenceNode) else []


def plain(node: Any) -> Any:
    """The plain value of a composed node, by the safe loader only; yaml.YAMLError where there is none."""
    if node is None:  # an empty file
        return None
    loader = yaml.SafeLoader("")
    try:
        return cast("Any", loader).construct_document(node)
    except ValueError as error:  # a date such as 2026-99-99
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None
    finally:
        cast("Any", loader).dispose()
