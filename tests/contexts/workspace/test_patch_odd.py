"""Odd patches: the order of insertions, the way back for any encoding, diffs that say what changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.contexts.workspace import LocalWorkspace, WorkspaceContext, accept
from sonde.contexts.workspace.base import PatchRefused
from sonde.contexts.workspace.local import MAX_FILES


def patch(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def context(folder: Path) -> tuple[LocalWorkspace, WorkspaceContext]:
    workspace = LocalWorkspace(folder, approve=accept)
    return workspace, WorkspaceContext(workspace)


def test_two_insertions_at_one_anchor_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    pass\n")
    _, tools = context(tmp_path)

    tools.apply_patch(
        patch("*** Update File: a.py", "@@ def f():", "+    one()", "@@ def f():", "+    two()", "+    three()")
    )

    assert (tmp_path / "a.py").read_text() == "def f():\n    one()\n    two()\n    three()\n    pass\n"


def test_taking_back_gives_the_bytes_back_also_when_the_new_text_was_plain(tmp_path: Path) -> None:
    before = "caf\xe9\r\nx\r\n".encode("latin-1")
    file = tmp_path / "a.txt"
    file.write_bytes(before)
    workspace, tools = context(tmp_path)

    tools.apply_patch(patch("*** Update File: a.txt", "@@", "-caf\xe9", "+cafe", " x"))
    assert file.read_bytes() == b"cafe\r\nx\r\n"
    workspace.undo()

    assert file.read_bytes() == before


def test_taking_a_move_back_gives_the_bytes_back_too(tmp_path: Path) -> None:
    before = b"caf\xe9\nx\n"
    (tmp_path / "a.txt").write_bytes(before)
    workspace, tools = context(tmp_path)

    tools.apply_patch(patch("*** Update File: a.txt", "*** Move to: b.txt", "@@", "-caf\xe9", "+cafe", " x"))
    workspace.undo()

    assert (tmp_path / "a.txt").read_bytes() == before
    assert not (tmp_path / "b.txt").exists()


def test_a_diff_counts_lines_as_the_patch_does_and_shows_a_lost_final_newline(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\x0ctwo\u2028three\nlast\n")
    _, tools = context(tmp_path)

    done = tools.apply_patch(
        "--- a/a.txt\n+++ b/a.txt\n@@ -1,2 +1,2 @@\n-one\x0ctwo\u2028three\n+one\n-last\n+last\n\\ No newline at end of file\n"
    )

    assert (tmp_path / "a.txt").read_text() == "one\nlast"
    assert done["summary"] == "a.txt: updated +2 -2"
    assert done["diff"].endswith("+one\n+last\n\\ No newline at end of file\n")


def test_a_diff_that_deletes_a_file_must_name_all_its_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    _, tools = context(tmp_path)
    head = "--- a/a.txt\n+++ /dev/null\n"

    with pytest.raises(PatchRefused, match=r"a\.txt would keep 1 line"):
        tools.apply_patch(f"{head}@@ -1,2 +0,0 @@\n-one\n-two\n")
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\nthree\n"
    tools.apply_patch(f"{head}@@ -1,3 +0,0 @@\n-one\n-two\n-three\n")
    assert not (tmp_path / "a.txt").exists()


@pytest.mark.long
def test_a_search_that_did_not_see_every_file_says_so(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 1):
        (tmp_path / f"{number:05}").touch()
    (tmp_path / f"{MAX_FILES:05}").write_text("needle\n")
    _, tools = context(tmp_path)

    found = tools.search("needle")

    assert found.value == []
    assert "only the first 20,000 files were searched" in str(found.truncated)
