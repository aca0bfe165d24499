"""YAML from files that others wrote: composed by the safe loader, and refused if its aliases unfold to more than anybody writes.

A few lines of aliases of aliases stand for billions of values; they cost nothing until somebody walks over them. So they are counted first.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any, cast

import yaml

MOST_NODES = 200_000
MOST_DIGITS = 400
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_PAIR = re.compile(r"(?<!\\)((?:\\\\)*)\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)


def composed(text: str) -> Any:
    """The tree of nodes. Raises yaml.YAMLError for text that is not YAML, nests too deep, contains itself, or unfolds without end."""
    if "\t" in text or "\\u" in text:
        with suppress(ValueError, RecursionError):
            json.loads(text.removeprefix("\ufeff"))
            # It is JSON. YAML reads it line by line the same, but for tabs, which JSON texts cannot contain, and surrogate pairs.
            text = _PAIR.sub(
                lambda pair: pair[1] + bytes.fromhex(pair[2] + pair[3]).decode("utf-16-be"), text.replace("\t", " ")
            )
    try:
        root = cast("Any", yaml).compose(text, Loader=yaml.SafeLoader)
        _unfolded(root, {})
    except RecursionError:
        raise yaml.YAMLError("it nests too deep") from None
    return root


def _unfolded(node: Any, known: dict[int, int]) -> int:
    """How many nodes it stands for if every alias is replaced by its meaning."""
    if id(node) in known:
        size = known[id(node)]
        if not size:
            raise yaml.YAMLError("a value holds itself")
        return size
    known[id(node)] = 0  # until it is counted: whoever meets it before is inside it
    children: list[Any] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in cast("list[tuple[Any, Any]]", node.value) for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = cast("list[Any]", node.value)
    elif node is not None and node.tag in _NUMBERS and len(node.value) > MOST_DIGITS:
        raise yaml.YAMLError(f"a number has {len(node.value):,} digits")  # making and showing it takes quadratic time
    size = 1 + sum(_unfolded(child, known) for child in children)
    if size > MOST_NODES:
        raise yaml.YAMLError(f"its aliases unfold to more than {MOST_NODES:,} values")
    known[id(node)] = size
    return size


def plain(node: Any) -> Any:
    """The plain value of a composed node, by the safe loader only; yaml.YAMLError if it has none."""
    if node is None:  # an empty file
        return None
    loader = yaml.SafeLoader("")
    try:
        return cast("Any", loader).construct_document(node)
    except (ValueError, ArithmeticError) as error:  # a date such as 2026-99-99, a number such as 1:1:…:1.5 (base 60)
        raise yaml.MarkedYAMLError(problem=str(error), problem_mark=node.start_mark) from None
    finally:
        cast("Any", loader).dispose()
