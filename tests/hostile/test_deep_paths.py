"""A path of thousands of folders, in whatever a stranger can write one into: it is refused by its length, before anybody follows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonde.api.consent import ANYWHERE, require_sources
from sonde.api.settings import Settings, resolve
from sonde.batch.item_runner import Order
from sonde.batch.manifest import Item
from sonde.contexts.files.file_list import list_sources
from sonde.contexts.workspace.paths import Root, clean
from sonde.contexts.workspace.reach import outer_git
from sonde.core.canonical import sha256_text
from sonde.disk import below
from sonde.errors import SondeError
from sonde.viewer import excerpts
from sonde.viewer.excerpts import shown_excerpts

SECONDS = 5
"""Of processor time, for what takes milliseconds; without the limit each of these takes longer."""
FOLDERS = 250_000
"""One look at such a path takes a quarter of a minute."""
DEEP = "a/" * FOLDERS + "b"


def batch_item(folder: Path) -> None:
    refused = Order(settings=Settings(), folder=folder, roots=(folder,)).refusal(
        Item(id="one", engine="ask", fields={"paths": [DEEP]})
    )
    raise SondeError(refused or "read")


DOORS: dict[str, Callable[[Path], Any]] = {
    "a recorded run": lambda folder: require_sources([f"/{DEEP}"], [folder]),
    "a batch item": batch_item,
    "an MCP client": lambda folder: Root(folder).real(DEEP),
    "a model's code": lambda _: clean(DEEP),
    "a source": lambda folder: list_sources([folder / DEEP], within=[folder]),
    "a link": lambda folder: below(folder, folder / DEEP),
}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_deep_path_is_refused_in_few_words(tmp_path: Path, door: Callable[[Path], Any]) -> None:
    began = time.process_time()

    with pytest.raises((SondeError, OSError), match="more than 4,096 characters or 100 folders") as refused:
        door(tmp_path)

    assert len(str(refused.value)) < 1000
    assert time.process_time() - began < SECONDS


def cards(root: str, **places: Any) -> list[str]:
    citation = {"path": "a.txt", "start_line": 1, "end_line": 1, "excerpt_hash": sha256_text("one")}
    start = {"type": "run_started", "input_ref": {}, "settings": {"sources": {"paths": [root]}}}
    return [each.state for each in shown_excerpts([start, {"type": "cited", "citation": citation}], **places)]


def test_a_page_follows_no_deep_path_of_a_strangers_run(tmp_path: Path) -> None:
    began = time.process_time()

    assert cards(f"{tmp_path}/{'a/' * 2_000}b", within=[tmp_path]) == ["missing"]

    assert time.process_time() - began < SECONDS


def test_a_page_looks_for_the_sources_of_a_strangers_run_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    monkeypatch.setattr(excerpts, "STRANGERS_S", -1)

    assert cards(str(tmp_path), within=[tmp_path]) == ["missing"]
    assert cards(str(tmp_path), within=ANYWHERE) == ["verified"]


def test_packages_within_packages_are_read(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["node_modules", "package"] * 20)
    folder.mkdir(parents=True)
    (folder / "a.txt").write_text("one\n")

    assert below(tmp_path, folder / "a.txt") == str(folder / "a.txt")
    assert cards(str(folder), within=[tmp_path]) == ["verified"]


def test_files_that_git_and_we_find_lead_nowhere_by_a_deep_path(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(f"gitdir: {DEEP}")
    (tmp_path / "sonde.toml").write_text(f'runs_dir = "{DEEP[-90_000:]}"')
    began = time.process_time()

    found = resolve({}, {"HOME": str(tmp_path / "home")}, tmp_path)

    assert outer_git(tmp_path) == []
    assert found.runs_dir is None
    assert time.process_time() - began < SECONDS
