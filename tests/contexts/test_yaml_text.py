"""Taxonomies and control packs that others wrote: no bombs, no programs, no patterns that never end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonde.contexts.controls import ControlsLibrary
from sonde.engines.taxonomies import load_taxonomy
from sonde.errors import ConfigError


def _levels(first: str, following: Callable[[str], str]) -> str:
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {following(','.join([f'*a{n - 1}'] * 9))}" for n in range(1, 12)]
    return "\n".join(lines)


ALIASES = _levels("[x, x]", lambda inner: f"[{inner}]")
MERGES = _levels("{k: v}", lambda inner: f"{{<<: [{inner}]}}")
CONTROL = "- control_id: C\n  controls_version: v1\n  title: t\n  description: "


@pytest.mark.parametrize("load", [load_taxonomy, ControlsLibrary.load])
@pytest.mark.parametrize(
    "text",
    [
        f"{ALIASES}\nname: x\ncategories: [*a11]",
        f"{ALIASES}\nname: x\nguide: *a11\ncategories:\n- {{name: a, definition: b}}",
        f"{MERGES}\nname: x\ncategories:\n- {{name: a, definition: b}}",
        "name: x\ncategories: &a\n- *a",
        pytest.param("[" * 20_000, marks=pytest.mark.long),
        "name: 2026-99-99\ncategories: []",
        "name: !!python/object/apply:os.getcwd []\ncategories: []",
        "",
    ],
    ids=["aliases", "guide", "merges", "itself", "deep", "date", "program", "empty"],
)
def test_a_hostile_file_is_refused_at_once(tmp_path: Path, load: Callable[[Path], Any], text: str) -> None:
    (tmp_path / "hostile.yaml").write_text(text)
    started = time.process_time()

    with pytest.raises(ConfigError, match=r"hostile\.yaml"):
        load(tmp_path / "hostile.yaml")

    assert time.process_time() - started < 20


def test_aliases_that_people_write_are_fine(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "words: &w ['timed? ?out']\nname: mine\ncategories:\n- &a {name: A, definition: d, patterns: *w}\n- {<<: *a, name: B}"
    )

    assert [each.name for each in load_taxonomy(tmp_path / "mine.yaml").categories] == ["A", "B"]


def test_a_pattern_of_a_taxonomy_ends_whatever_the_error_says(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text("name: x\ncategories:\n- {name: A, definition: d, patterns: ['(A+)+$']}")
    taxonomy = load_taxonomy(tmp_path / "slow.yaml")
    started = time.process_time()

    assert taxonomy.category_of("a" * 5_000 + "!") is None
    assert taxonomy.category_of("b aaa") == "A"
    assert time.process_time() - started < 20
