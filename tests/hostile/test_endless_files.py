"""A stranger's file may be all but endless, and so may one line of it: holes take no room on a disk. Reading it ends with the run's
time and on a stop, and never takes more memory than what is shown of it.
"""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from sonde.contexts.code import CodeContext
from sonde.contexts.files import FilesContext
from sonde.core.deadline import GRACE_S, Deadline, SystemClock
from sonde.core.evidence import EvidenceKind, Excerpt
from sonde.errors import ToolFault

CITED = Excerpt.of_lines("app.log", 1, 1, "")
LOOKS: dict[str, Callable[[FilesContext], object]] = {
    "read_file": lambda files: files.read_file("app.log", 1, 2),
    "file_info": lambda files: files.file_info("app.log"),
    "context_slice": lambda files: files.context_slice(0, 100, "app.log"),
    "search": lambda files: files.search("error"),
    "grep": lambda files: files.grep("nothing like it"),
    "reread": lambda files: files.reread(CITED),
    "nav_info": lambda _: CodeContext("app.log").nav_info(),
    "nav_read": lambda _: CodeContext("app.log").nav_read("app.log"),
}


def with_hole(folder: Path, size: int) -> FilesContext:
    with (folder / "app.log").open("wb") as file:
        file.write(b"error: disk full\n" * 5000)
        file.truncate(size)
    return FilesContext(folder)


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_reading_an_endless_file_ends_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[FilesContext], object]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = with_hole(tmp_path, 1 << 40)
    run = Deadline(SystemClock(), None)
    run.stop.set()
    run.overtime = GRACE_S + 1

    with run.in_force(), suppress(ToolFault):
        look(files)  # without the limit this would take hours


def test_a_file_that_was_still_being_read_is_named_and_a_short_one_is_read_for_the_report(tmp_path: Path) -> None:
    files = with_hole(tmp_path, 1 << 40)
    (tmp_path / "short.log").write_text("error: the fan stands still\n")
    run = Deadline(SystemClock(), None)
    run.stop.set()
    run.overtime = GRACE_S + 1

    with run.in_force():
        assert files.file_info("app.log").value["lines"] is None
        assert files.reread(Excerpt.of_lines("short.log", 1, 1, "")) == "error: the fan stands still"
    assert files.left_out == {"app.log": "was still being read when the run had to end"}


def test_a_search_reads_no_more_of_one_long_line_than_it_ranks_and_shows(tmp_path: Path) -> None:
    size = 40 << 20
    with (tmp_path / "app.log").open("wb") as file:
        file.write(b"the disk of host 7 is full, " * 3000)
        file.truncate(size)
    files = FilesContext(tmp_path)

    tracemalloc.start()
    try:
        rows = files.search("disk of host 7").value
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert "disk of host 7" in rows[0]["text"]
    assert most < size


def test_nothing_reads_a_line_whole_that_is_longer_than_any_citation(tmp_path: Path) -> None:
    files = with_hole(tmp_path, 20 << 20)
    last = files.file_info("app.log").value["lines"]
    ref = "app.log:bytes=0-20000000"

    assert files.reread(Excerpt.of_lines("app.log", last, last, "")) is None
    assert files.reread(Excerpt(kind=EvidenceKind.FILE, ref=ref, hash="", path="app.log")) is None
    with pytest.raises(ToolFault, match="context_slice reads parts"):
        CodeContext(str(tmp_path)).nav_read("app.log")


@pytest.mark.hostile_long
def test_compressed_files_that_hold_far_more_than_they_say_are_not_indexed_whole(tmp_path: Path) -> None:
    packed = gzip.compress(b"- - - - - - - -\n" * 999_000 + b"the fan stands still\n", 9)
    for at in range(5):
        (tmp_path / f"{at}.log.gz").write_bytes(packed)
    files = FilesContext(tmp_path)
    assert files.library.listing.text_bytes < 2_000_000

    found = files.search("fan stands still, lamp")

    assert "fan stands still" in found.value[0]["text"]
    assert found.value[0]["start_line"] % 16 == 0  # a block of lines around a hit, as in large data
