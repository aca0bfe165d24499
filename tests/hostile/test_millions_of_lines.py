"""A stranger's file in a workspace has millions of lines. What reads it costs about as much as its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.contexts.workspace import LocalWorkspace, WorkspaceContext
from sonde.contexts.workspace.base import PatchRefused
from sonde.contexts.workspace.planner import plan_patch
from sonde.core.deadline import GRACE_S, Deadline, SystemClock
from sonde.core.evidence import Excerpt

LINES = 4_000_000


@pytest.fixture
def workspace(tmp_path: Path) -> LocalWorkspace:
    (tmp_path / "n.txt").write_bytes(b"\n" * (LINES - 1) + b"last")
    return LocalWorkspace(tmp_path)


def megabytes(work: Callable[[], object]) -> int:
    """How much memory the work takes at once."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] >> 20
    finally:
        tracemalloc.stop()


def test_a_few_lines_are_read_without_cutting_all_of_them_apart(workspace: LocalWorkspace) -> None:
    found = workspace.read("n.txt", LINES - 1, LINES)

    assert (found.content, found.start_line, found.total_lines) == ("\nlast", LINES - 1, LINES)
    assert megabytes(lambda: workspace.read("n.txt", 1, 2)) < 30


def test_they_are_searched_without_cutting_them_apart(workspace: LocalWorkspace) -> None:
    assert [(each.line, each.text) for each in workspace.search("las").matches] == [(LINES, "last")]
    assert megabytes(lambda: workspace.search("las")) < 30


def test_such_a_file_is_not_changed(workspace: LocalWorkspace) -> None:
    patch = "*** Begin Patch\n*** Update File: n.txt\n@@\n-last\n+least\n*** End Patch"

    with pytest.raises(PatchRefused, match="lines; only files"):
        plan_patch(patch, workspace.text)


def test_no_further_file_is_searched_patched_or_read_again_when_the_run_is_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    workspace = LocalWorkspace(tmp_path)
    deadline = Deadline(SystemClock(), 0.0)
    deadline.overtime = GRACE_S + 1
    cited = Excerpt.of_lines("a.txt", 1, 1, "one")

    with deadline.in_force():
        found = workspace.search("one")
        assert found.matches == () and found.truncated is not None
        assert WorkspaceContext(workspace).reread(cited) is None
        with pytest.raises(PatchRefused):
            plan_patch("*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** End Patch", workspace.text)
    assert WorkspaceContext(workspace).reread(cited) == "one"
