"""The text behind a citation: from the given folders only, and only with the recorded hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    (found,) = shown_excerpts([start, {"type": "cited", "citation": fields | citation}])
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

    assert (found.state, found.text) == ("changed", "snip")


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/hostname", "link.txt", "nothing.txt", "folder"])
def test_nothing_outside_the_folder_is_read_even_with_the_right_hash(root: Path, path: str) -> None:
    (root / "link.txt").symlink_to(root.parent / "outside.txt")
    (root / "folder").mkdir()

    assert shown(root, path=path).state == "missing"


def test_a_relative_root_or_none_gives_what_was_recorded() -> None:
    assert shown("relative").state == "missing"


def test_evidence_that_is_no_file_is_shown_as_recorded(root: Path) -> None:
    span = {"kind": "SPAN", "ref": "span-1", "path": "", "start_line": 0, "end_line": 0, "excerpt_hash": "h"}

    assert shown(root, **span).state == "recorded"


def test_references_of_a_report_are_found_wherever_they_stand(root: Path) -> None:
    ref = {"kind": "TOOL_IO", "ref": "tool:s1", "excerpt_hash": "h", "span_id": "s1", "trace_id": "t"}
    output = {"hypotheses": [{"evidence_refs": [ref]}], "evidence_refs": [ref]}
    call = {"type": "host_returned", "n": 7, "excerpts": [{"ref": "tool:s1", "path": ""}]}

    events = [call, {"type": "run_ended", "output": output}]
    (found,) = shown_excerpts(events, lambda number: {"call": number, "output": "timeout"})

    assert (found.ref, found.state, found.seen_at) == ("tool:s1", "recorded", 7)
    assert '"output": "timeout"' in found.text
