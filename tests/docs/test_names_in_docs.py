"""What pages name exists: modules, classes and functions in docs/concepts.md and its picture, targets of make in CONTRIBUTING.md."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from doc_blocks import ROOT

SRC = ROOT / "src" / "sonde"
Read = Callable[[], tuple[list[str], list[tuple[str, str]]]]
NOT_OURS = {"FINAL"}  # what generated code calls


@cache
def definitions() -> dict[str, set[Path]]:
    """Where each class, function and method is defined; a method also as `Class.method`."""
    found: defaultdict[str, set[Path]] = defaultdict(set)
    for path in SRC.rglob("*.py"):
        owner = ""
        for indent, kind, name in re.findall(r"^( *)(class|def) (\w+)", path.read_text("utf-8"), re.MULTILINE):
            found[name].add(path)
            if not indent:
                owner = name if kind == "class" else ""
            elif owner and len(indent) == 4:
                found[f"{owner}.{name}"].add(path)
    return found


def in_page() -> tuple[list[str], list[tuple[str, str]]]:
    """What the page's section about the code has in code font, and the pairs of a name and its place: `launch` (`api/launch.py`)."""
    text = (ROOT / "docs" / "concepts.md").read_text("utf-8").partition("## In the code")[2]
    return re.findall(r"`([^`]+)`", text), re.findall(r"`([\w.]+)`\s+\(`([\w/.]+)`\)", text)


def in_picture() -> tuple[list[str], list[tuple[str, str]]]:
    """The same of the picture: a name stands above its place."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (ROOT / "docs" / "walk.svg").read_text("utf-8"))
    places = [place for text in texts for place in re.findall(r"[a-z_]+/[\w/]*(?:\.py)?", text)]
    pairs = [(name, place) for name, place in pairwise(texts) if place in places]
    classes = [word for text in texts for word in re.findall(r"\b[A-Z]\w*[a-z][A-Z]\w*(?:\.\w+)?", text)]
    return [*places, *classes], [(name, place) for name, place in pairs if re.fullmatch(r"[\w.]+", name)]


@pytest.mark.parametrize("read", [in_page, in_picture])
def test_every_module_class_and_function_that_the_concepts_name_exists(read: Read) -> None:
    known = definitions()
    words, pairs = read()
    places = {word.rstrip("/") for word in words if "/" in word and " " not in word}
    names = {word.removeprefix("sonde.") for word in words if re.fullmatch(r"[A-Za-z_][\w.]*", word)} - NOT_OURS

    assert len(places) > 10 and len(names) + len(pairs) > 20, "the page or the picture is read wrongly"
    assert [place for place in places if not (SRC / place).exists() and not (ROOT / place).exists()] == []
    assert [name for name in names if name not in known] == []
    assert [
        (name, place)
        for name, place in pairs
        if not any(path.is_relative_to(SRC / place) for path in known[name.removeprefix("sonde.")])
    ] == []


def test_the_table_of_targets_has_each_one_of_the_makefile() -> None:
    offered = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)) - {"help"}
    page = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Every target")[2]
    listed = [
        name for cell in re.findall(r"^\| (`.+?`) \|", page, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    ]

    assert sorted(listed) == sorted(offered)
