"""Odd files and odd questions: long lines, empty lines, characters cut in two, names and globs that nobody expects."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.contexts.code import CodeContext
from sonde.contexts.files import SHARED_BYTES, FilesContext
from sonde.contexts.files.search import INDEXED_BYTES
from sonde.errors import ToolFault
from sonde.tools import CallResult, ToolRegistry


def call(context: FilesContext | CodeContext, name: str, **args: object) -> CallResult:
    return ToolRegistry(context.tools()).call(name, args)


def file_of(folder: Path, data: bytes, name: str = "a.txt") -> FilesContext:
    (folder / name).write_bytes(data)
    return FilesContext(folder)


def test_search_finds_a_word_deep_in_a_long_line_and_shows_it(tmp_path: Path) -> None:
    files = file_of(tmp_path, b"first line\n" + b"x" * 2_000_000 + b" zebra " + b"y " * 1_000_000 + b"\nlast\n")

    found = call(files, "search", query="zebra")

    assert [(row["start_line"], row["end_line"]) for row in found.result] == [(1, 2)]
    assert " zebra " in found.result[0]["text"]
    assert len(found.result[0]["text"]) < 20_000
    assert found.excerpts == ()  # what is shown is not what those lines hold


def test_search_in_large_data_says_that_long_lines_were_ranked_by_their_beginning(tmp_path: Path) -> None:
    files = file_of(tmp_path, b"zebra " + b"x" * INDEXED_BYTES + b"\nlast\n")

    found = call(files, "search", query="zebra")

    assert "zebra" in found.result[0]["text"]
    assert "only the beginning" in str(found.truncated)


def test_a_slice_shorter_than_a_character_is_that_character(tmp_path: Path) -> None:
    files = file_of(tmp_path, "€uro".encode())

    first = call(files, "context_slice", start=0, length=1, path="a.txt")
    second = call(files, "context_slice", start=3, length=1, path="a.txt")

    assert (first.result, first.truncated) == ("€", "3 bytes of a.txt follow: context_slice(3, path='a.txt').")
    assert second.result == "u"


def test_plain_text_with_a_backslash_and_an_n_is_no_line_break(tmp_path: Path) -> None:
    files = file_of(tmp_path, b"C:\\new\n")

    assert [row["line"] for row in call(files, "grep", pattern="C:\\new", flags="F").result] == [1]
    with pytest.raises(ToolFault):
        call(files, "grep", pattern="C:\nnew", flags="F")


def test_an_empty_line_has_a_number(tmp_path: Path) -> None:
    assert call(file_of(tmp_path, b"\n"), "read_file", path="a.txt", numbered=True).result == "1: "
    assert call(file_of(tmp_path, b""), "read_file", path="a.txt", numbered=True).result == ""


def test_globs_reach_every_name(tmp_path: Path) -> None:
    for name in ("a\nb.py", "c.js", "d.md"):
        (tmp_path / name).write_text("x")
    files = FilesContext(tmp_path)

    assert call(files, "list_files", glob="**").result == ["a\nb.py", "c.js", "d.md"]
    assert call(files, "list_files", glob="{*.py,*.js}").result == ["a\nb.py", "c.js"]


def test_a_list_cannot_start_before_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(ToolFault):
        call(file_of(tmp_path, b"x"), "list_files", start=-1)


def test_a_scope_that_two_files_define_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class S:\n    def x(self): pass\n")
    (tmp_path / "b.py").write_text("class S:\n    def y(self): pass\n")
    code = CodeContext(tmp_path)

    with pytest.raises(ToolFault, match=r"'S' is defined 2 times; name one: a.py:S, b.py:S"):
        call(code, "nav_ls", scope="S")
    assert call(code, "nav_ls", scope="b.py:S").result == ["def y(self)"]


def test_the_table_of_offsets_has_a_row_a_file_whatever_the_names(tmp_path: Path) -> None:
    with (tmp_path / "big.txt").open("wb") as file:
        file.truncate(SHARED_BYTES + 1)
    (tmp_path / "a\n0\t9\tfake.txt").write_text("x")

    table = FilesContext(tmp_path).shared()["CONTEXT_INDEX"]

    assert isinstance(table, str)
    assert table.splitlines() == ['0\t1\t"a\\n0\\t9\\tfake.txt"', f"1\t{SHARED_BYTES + 1}\tbig.txt"]
