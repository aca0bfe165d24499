"""The part of a workspace that a sub-call sees: never more than its places, whoever answers and however parts nest."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from sonde.contexts.workspace import LocalWorkspace, PathRefused, Reply, WireWorkspace, WorkspaceContext
from sonde.core.evidence import Excerpt
from sonde.errors import ToolFault

FILES = {"a.txt": 30, "sub/b.txt": 12, "sub/deep/c.txt": 5, "subway.txt": 3}
PATHS = st.sampled_from([*FILES, "sub", "nope", "./a.txt", "sub/../a.txt", ""])


def text(path: str) -> str:
    return "".join(f"{path} line {number}\n" for number in range(1, FILES[path] + 1))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scope")
    for path in FILES:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text(path))
    return folder


@pytest.fixture(scope="module")
def whole(root: Path) -> WorkspaceContext:
    return WorkspaceContext(LocalWorkspace(root), commands=["ls"])


def test_a_part_only_reads_and_says_what_it_may_see(whole: WorkspaceContext) -> None:
    part = whole.narrowed(["a.txt:10-20", "sub"])

    assert [tool.name for tool in part.tools()] == ["list_files", "read", "read_file", "search"]
    assert part.places == ("a.txt:10-20", "sub")
    assert part.list_files() == ["a.txt", "sub/b.txt", "sub/deep/c.txt"]
    assert part.read("a.txt").value == {
        "content": "\n".join(text("a.txt").splitlines()[9:20]),
        "startLine": 10,
        "endLine": 20,
    }
    assert {row["path"] for row in part.search("line").value} == {"a.txt", "sub/b.txt", "sub/deep/c.txt"}
    assert [row["line"] for row in part.search("line", "a.txt").value] == list(range(10, 21))


def test_without_places_a_part_sees_what_the_whole_sees(whole: WorkspaceContext) -> None:
    assert whole.narrowed([]).list_files() == whole.list_files()
    assert whole.narrowed(["sub"]).narrowed([]).list_files() == ["sub/b.txt", "sub/deep/c.txt"]


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a.txt:0-3", "a.txt:9-3", "~", "a\\b"])
def test_places_that_make_no_sense_are_refused(whole: WorkspaceContext, path: str) -> None:
    with pytest.raises(ToolFault):
        whole.narrowed([path])


def test_too_many_places_are_refused(whole: WorkspaceContext) -> None:
    with pytest.raises(ToolFault):
        whole.narrowed([f"f{number}" for number in range(100)])


@pytest.mark.requirement("O17")
@settings(deadline=None, max_examples=80)
@given(
    path=PATHS, lines=st.tuples(*[st.none() | st.integers(-2, 40)] * 2), query=st.sampled_from(["line", "b.txt", "1"])
)
def test_nothing_outside_the_places_is_ever_returned(
    whole: WorkspaceContext, path: str, lines: tuple[int | None, int | None], query: str
) -> None:
    part = whole.narrowed(["sub", "a.txt:1-25"]).narrowed(["a.txt:10-40", "sub/deep", "subway.txt"])
    allowed = {*text("a.txt").splitlines()[9:25], *text("sub/deep/c.txt").splitlines()}
    seen: list[str] = (part.reread(Excerpt.of_lines(path, lines[0] or 1, lines[1] or 1, "")) or "").splitlines()
    with suppress(ToolFault):
        seen += part.read(path, *lines).value["content"].splitlines()
    with suppress(ToolFault):
        seen += [row["text"] for row in part.search(query, path or None).value]

    assert set(seen) <= allowed


@pytest.mark.requirement("O17")
@settings(deadline=None, max_examples=80)
@given(
    first=st.integers(-5, 60), count=st.integers(0, 60), end=st.integers(-5, 90), matches=st.lists(st.integers(-3, 60))
)
def test_what_a_host_sends_beyond_the_places_is_dropped(first: int, count: int, end: int, matches: list[int]) -> None:
    content = "\n".join(f"line {number}" for number in range(max(first, 1), max(first, 1) + count))

    def host(kind: str, fields: Mapping[str, Any]) -> Reply:
        rows = [{"path": path, "line": line, "text": f"line {line}"} for path in ("a.txt", "b.txt") for line in matches]
        return Reply(True, {"content": content, "startLine": first, "endLine": end, "matches": rows})

    part = WorkspaceContext(WireWorkspace(host)).narrowed(["a.txt:10-20"])
    found = part.search("line").value
    read: list[str] = []
    with suppress(ToolFault):
        read += part.read("a.txt", 12, 15).value["content"].splitlines()

    assert all(row["path"] == "a.txt" and 10 <= row["line"] <= 20 for row in found)
    assert first < 1 or set(read) <= {f"line {number}" for number in range(10, 21)}


def test_a_refused_read_is_not_sent() -> None:
    asked: list[str] = []

    def host(kind: str, fields: Mapping[str, Any]) -> Reply:
        asked.append(kind)
        return Reply(True, {"content": "x"})

    part = WorkspaceContext(WireWorkspace(host)).narrowed(["a.txt:10-20"])
    for path, start, end in (("b.txt", 1, 2), ("a.txt", 1, 2), ("a.txt", 15, 21), ("a.txt", 30, 30)):
        with pytest.raises(PathRefused):
            part.read(path, start, end)

    assert asked == []
