"""The text behind a citation: from the given folders only, and only with the recorded hash."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from sonde.api.consent import ANYWHERE
from sonde.core.canonical import sha256_text
from sonde.viewer.excerpts import Shown, shown_excerpts


def shown(root: Path | str, **citation: Any) -> Shown:
    fields = {
        "path": "a.txt",
        "start_line": 1,
        "end_line": 2,
        "excerpt_hash": sha256_text("one\ntwo"),
        "snippet": "snip",
    }
    start = {"type": "run_started", "input_ref": {}, "settings": {"sources": {"paths": [str(root)]}}}
    (found,) = shown_excerpts([start, {"type": "cited", "citation": fields | citation}], within=ANYWHERE)
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "outside.txt").write_text("one\ntwo\n")
    return folder


def test_lines_are_read_from_a_given_folder(root: Path) -> None:
    found = shown(root)

    assert (found.state, found.text, found.ref) == ("verified", "one\ntwo", "a.txt:1-2")


def test_a_given_file_may_be_cited_by_its_name(root: Path) -> None:
    assert shown(root / "a.txt").state == "verified"


@pytest.mark.parametrize("given", ["{}/given/*.txt", "{}/./given/*.txt", "{}/./given", "{}/**/*.txt"])
def test_a_relative_source_is_found_by_the_name_that_it_had(root: Path, given: str) -> None:
    assert shown(given.format(root.parent), path="given/a.txt").state == "verified"


def test_windows_line_ends_do_not_matter(root: Path) -> None:
    (root / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")

    assert shown(root).state == "verified"


def test_a_text_with_another_hash_is_not_shown(root: Path) -> None:
    found = shown(root, excerpt_hash="0" * 64)

    assert (found.state, found.text, found.snippet) == ("changed", "", "snip")


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/hostname", "link.txt", "nothing.txt", "folder"])
def test_nothing_outside_the_folder_is_read_even_with_the_right_hash(root: Path, path: str) -> None:
    (root / "link.txt").symlink_to(root.parent / "outside.txt")
    (root / "folder").mkdir()

    assert shown(root, path=path).state == "missing"


def test_a_relative_root_or_none_gives_what_was_recorded() -> None:
    assert shown("relative").state == "missing"


def test_a_file_in_another_encoding_is_read_again_as_the_run_read_it(root: Path) -> None:
    (root / "a.txt").write_bytes("eins\nzwei\n".encode("utf-16"))

    assert shown(root, excerpt_hash=sha256_text("eins\nzwei")).state == "verified"


def test_a_member_of_an_archive_is_read_again_but_no_secret_in_it(root: Path) -> None:
    with zipfile.ZipFile(root / "logs.zip", "w") as archive:
        archive.writestr("day/app.log", "one\ntwo\n")
        archive.writestr(".env", "one\ntwo\n")

    assert shown(root, path="logs.zip/day/app.log").state == "verified"
    assert shown(root / "logs.zip", path="logs.zip/day/app.log").state == "verified"
    assert not shown(root, path="logs.zip/.env").text


def test_a_file_that_a_glob_brought_is_read_again(root: Path) -> None:
    assert shown(root / "*.txt").state == "verified"
    assert shown(root / "*.log").state == "missing"


def test_lines_of_a_file_that_is_gone_come_from_the_recording_if_they_have_the_hash(root: Path) -> None:
    citation = {"path": "b.txt", "start_line": 2, "end_line": 3, "excerpt_hash": sha256_text("two\nthree")}
    seen = [{"path": "b.txt", "start_line": 1, "end_line": 4, "ref": "b.txt:1-4"}]
    events = [
        {"type": "run_started", "settings": {"sources": {"paths": [str(root)]}}},
        {"type": "host_returned", "n": 1, "excerpts": seen},
        {"type": "cited", "citation": citation},
    ]

    (plain,) = shown_excerpts(events, lambda _number: "one\ntwo\nthree\nfour", within=ANYWHERE)
    (numbered,) = shown_excerpts(events, lambda _number: "1: one\n2: two\n3: three\n4: four", within=ANYWHERE)
    (other,) = shown_excerpts(events, lambda _number: "one\nTWO\nthree\nfour", within=ANYWHERE)

    assert (plain.state, plain.text) == (numbered.state, numbered.text) == ("recorded", "two\nthree")
    assert (other.state, other.text) == ("missing", "")


def test_a_recorded_result_with_another_hash_is_not_shown() -> None:
    ref = {"kind": "TOOL_IO", "ref": "tool:s1", "excerpt_hash": "h", "span_id": "s1", "trace_id": "t"}
    output = {"hypotheses": [{"evidence_refs": [ref]}], "evidence_refs": [ref]}
    call = {"type": "host_returned", "n": 7, "excerpts": [{"ref": "tool:s1", "path": ""}]}

    events = [call, {"type": "run_ended", "output": output}]
    (found,) = shown_excerpts(events, lambda number: {"call": number, "output": "timeout"}, within=ANYWHERE)

    assert (found.ref, found.state, found.seen_at, found.text) == ("tool:s1", "missing", 7, "")


def test_what_a_model_writes_under_the_names_of_a_citation_gets_no_card() -> None:
    forged = {"path": "a.txt", "start_line": 1, "end_line": 1, "excerpt_hash": "0" * 64, "snippet": "all is well"}

    assert not shown_excerpts(
        [{"type": "run_ended", "output": {"answer": "", "value": [forged], "citations": []}}], within=ANYWHERE
    )


@pytest.mark.parametrize("source", ["http://127.0.0.1:9/", "relative.jsonl", "/dev/zero", "/proc", "/nowhere"])
def test_a_source_that_is_no_trace_file_here_is_not_read(source: str) -> None:
    ref = {"kind": "SPAN", "ref": "s1", "excerpt_hash": "h", "span_id": "s1", "trace_id": "t"}
    start = {"type": "run_started", "settings": {"source": source}}

    (found,) = shown_excerpts([start, {"type": "run_ended", "output": {"evidence_refs": [ref]}}], within=ANYWHERE)

    assert (found.state, found.text) == ("missing", "")
