from __future__ import annotations

import os
from pathlib import Path

import pytest
from files_support import call, proved, write

from sonde.contexts.files import FilesContext
from sonde.core.canonical import sha256_text
from sonde.core.evidence import EvidenceLog, Excerpt
from sonde.errors import ConfigError, ToolFault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.mark.requirement(32)
@pytest.mark.requirement(33)
def test_files_are_listed_in_order_and_by_glob(root: Path) -> None:
    context = write(root, {"b.md": "", "a/x.py": "", "a/deep/y.py": "", "c.txt": ""})

    assert call(context, "list_files").result == ["a/deep/y.py", "a/x.py", "b.md", "c.txt"]
    assert call(context, "list_files", "*.py").result == ["a/deep/y.py", "a/x.py"]
    assert call(context, "list_files", "a/*.py").result == ["a/x.py"]
    assert call(context, "list_files", "a/**/*.py").result == ["a/deep/y.py", "a/x.py"]
    assert call(context, "list_files", "*.{md,txt}").result == ["b.md", "c.txt"]
    assert call(context, "list_files", "[!axy].*").result == ["b.md", "c.txt"]
    none = call(context, "list_files", "*.rs")
    assert none.result == []
    assert none.truncated == "no file matches '*.rs'; list_files() shows what there is."


@pytest.mark.requirement(33)
def test_lines_are_read_from_one_and_both_ends_included(root: Path) -> None:
    context = write(root, {"a.txt": "one\ntwo\nthree\n"})

    assert call(context, "read_file", "a.txt").result == "one\ntwo\nthree"
    assert call(context, "read_file", "a.txt", 2).result == "two\nthree"
    assert call(context, "read_file", "a.txt", 2, 2).result == "two"
    assert call(context, "read_file", "./a.txt", 3, 99).result == "three"
    assert call(context, "read_file", str(root / "a.txt"), 3).result == "three"
    for bad in [(0,), (4,), (2, 1), (-1, 2)]:
        with pytest.raises(ToolFault):
            call(context, "read_file", "a.txt", *bad)


@pytest.mark.requirement(1)
@pytest.mark.requirement("O2")
def test_what_is_read_can_be_cited_and_proved(root: Path) -> None:
    context = write(root, {"a.txt": "one\ntwö\nthree"})
    log = EvidenceLog()

    result = call(context, "read_file", "a.txt", 1, 3)
    log.note(result.excerpts)

    assert result.excerpts == (Excerpt.of_lines("a.txt", 1, 3, "one\ntwö\nthree"),)
    exact = log.prove_lines("a.txt", 2, 2, context.reread)
    assert isinstance(exact, Excerpt) and exact.hash == sha256_text("twö")


@pytest.mark.requirement("O14")
def test_a_file_that_changed_or_went_no_longer_proves(root: Path) -> None:
    context = write(root, {"a.txt": "one\ntwo\n", "b.txt": "one\n", "c.txt": "one\ntwo\n"})
    seen = [call(context, "read_file", name).excerpts[0] for name in ("a.txt", "b.txt", "c.txt")]

    (root / "a.txt").write_text("one\n2\n")
    (root / "b.txt").unlink()
    (root / "c.txt").write_text("one\n")

    changed = context.reread(seen[0])
    assert changed is not None and sha256_text(changed) != seen[0].hash
    assert context.reread(seen[1]) is None
    assert context.reread(seen[2]) is None
    with pytest.raises(ToolFault):
        call(context, "read_file", "b.txt")


def test_empty_files_and_files_without_a_final_newline_are_files(root: Path) -> None:
    context = write(root, {"empty": "", "open": "a", "blank": "\n"})

    assert call(context, "read_file", "empty").result == ""
    assert call(context, "read_file", "open").result == "a"
    assert [call(context, "file_info", name).result["lines"] for name in ("empty", "open", "blank")] == [0, 1, 1]


@pytest.mark.requirement(69)
def test_a_read_is_capped_at_whole_lines_and_says_how_to_go_on(root: Path) -> None:
    line = "x" * 99
    context = write(root, {"big.txt": f"{line}\n" * 12_000})

    first = call(context, "read_file", "big.txt")

    assert first.result == "\n".join([line] * 5_000)
    assert first.truncated is not None and "start_line=5001" in first.truncated
    assert proved(context, first)
    assert len(call(context, "read_file", "big.txt", 10_001).result) == 2_000 * 100 - 1


def test_a_line_too_long_for_one_call_is_read_in_slices_that_can_be_cited(root: Path) -> None:
    text = "é" * 400_000
    context = write(root, {"long.json": f"a\n{text}\nb"})

    first = call(context, "read_file", "long.json", 2)
    assert first.truncated is not None and "context_slice(500002" in first.truncated
    rest = call(context, "context_slice", 500_002, 400_000, path="long.json")

    assert first.result + rest.result == f"{text}\nb"
    assert proved(context, first) and proved(context, rest)


def test_a_slice_never_cuts_a_character(root: Path) -> None:
    context = write(root, {"a.txt": "añb€c😀d"})

    parts = [call(context, "context_slice", start, 1, path="a.txt").result for start in range(13)]

    assert set("".join(parts)) <= set("añb€c😀d")


@pytest.mark.requirement(69)
def test_a_long_read_needs_a_reason_where_the_engine_asks_for_one(root: Path) -> None:
    write(root, {"a.txt": "x\n" * 300})
    context = FilesContext(root, rationale_over=200)

    assert call(context, "read_file", "a.txt", 1, 200).result
    assert call(context, "read_file", "a.txt", rationale="the whole log is one incident").result
    with pytest.raises(ToolFault, match="rationale="):
        call(context, "read_file", "a.txt")


@pytest.mark.requirement(32)
def test_small_data_is_shared_whole(root: Path) -> None:
    context = write(root, {"a.txt": "one", "b.png": b"\x89PNG\0\0", "c.txt": "é".encode("latin-1") * 9})

    shared = context.shared()["CONTEXT"]

    assert isinstance(shared, dict)
    assert shared == {"a.txt": root / "a.txt", "c.txt": "é" * 9}


def test_large_data_is_shared_as_a_table_of_offsets(root: Path) -> None:
    context = write(root, {"a.txt": "one\n", "b.bin": "two\n"})
    with (root / "huge.txt").open("wb") as file:
        file.truncate(300_000_000)

    table = context.shared()["CONTEXT_INDEX"]

    assert table == "0\t4\ta.txt\n4\t4\tb.bin\n8\t300000000\thuge.txt\n"
    assert call(context, "context_slice", 4, 3).result == "two"
    with pytest.raises(ToolFault):
        call(context, "context_slice", 300_000_008)


def test_several_sources_keep_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"one/a.txt": "1", "two/a.txt": "2", "c.txt": "3", "logs/x.log": "4", "logs/y.txt": "5"})
    monkeypatch.chdir(tmp_path)

    context = FilesContext(["one", str(tmp_path / "two"), "c.txt", "logs/*.log"], texts={"stdin.txt": "6"})

    assert call(context, "list_files").result == ["c.txt", "logs/x.log", "one/a.txt", "stdin.txt", "two/a.txt"]
    assert call(context, "read_file", "two/a.txt").result == "2"
    assert call(context, "read_file", "stdin.txt").result == "6"
    assert context.locate("one/a.txt") == tmp_path / "one/a.txt"
    assert context.locate("stdin.txt") is None
    for missing in ("nothing", "no/*.log"):
        with pytest.raises(ConfigError):
            FilesContext(missing).describe()


def test_text_in_memory_is_a_file_like_others() -> None:
    context = FilesContext(texts={"stdin.txt": "one\ntwo ERROR\n"})

    found = call(context, "grep", "ERROR")

    assert found.result == [{"path": "stdin.txt", "line": 2, "text": "two ERROR"}]
    assert proved(context, found)
    assert context.shared()["CONTEXT"] == {"stdin.txt": "one\ntwo ERROR\n"}


def test_the_fingerprint_follows_the_content_not_the_clock(root: Path) -> None:
    first = write(root, {"a.txt": "one"}).fingerprint()
    os.utime(root / "a.txt", (1, 1))
    touched = FilesContext(root).fingerprint()
    (root / "a.txt").write_text("two")

    assert first == touched != FilesContext(root).fingerprint()


def test_an_unknown_name_is_answered_with_near_ones(root: Path) -> None:
    context = write(root, {"src/app/main.py": "x"})

    with pytest.raises(ToolFault, match=r"src/app/main\.py"):
        call(context, "read_file", "main.py")
