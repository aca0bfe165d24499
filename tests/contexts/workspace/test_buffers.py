"""A workspace that an editor has open, and what it makes of answers that it did not expect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde.contexts.workspace import BufferedWorkspace, PatchRefused, PathRefused, WorkspaceContext, accept
from sonde.errors import ToolFault


class Editor:
    """Shows unsaved text, LF only, and saves what it writes with the line endings of the file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unsaved: dict[str, str] = {}
        self.asked: list[str] = []
        self.sick = ""

    def read_buffer(self, path: str) -> str | None:
        self.asked.append(path)
        if path in self.unsaved:
            return self.unsaved[path]
        return (self.root / path).read_bytes().decode().replace("\r\n", "\n") if (self.root / path).exists() else None

    def write_buffer(self, path: str, text: str) -> None:
        if path == self.sick:
            raise ToolFault("the editor did not write it")
        file = self.root / path
        crlf = file.exists() and b"\r\n" in file.read_bytes()
        assert "\r" not in text
        file.write_bytes((text.replace("\n", "\r\n") if crlf else text).encode())
        self.unsaved.pop(path, None)


@pytest.fixture
def editor(tmp_path: Path) -> Editor:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\n")
    (tmp_path / "b.txt").write_text("needle\n")
    (tmp_path / "c.txt").write_text("hay\n")
    return Editor(tmp_path)


def opened(editor: Editor) -> WorkspaceContext:
    return WorkspaceContext(BufferedWorkspace(editor.root, editor, approve=accept))


UPDATE = "*** Update File: a.txt\n@@\n-two\n+2\n"
ADD = "*** Add File: new/d.txt\n+fresh\n"


def patch(*parts: str) -> str:
    return f"*** Begin Patch\n{''.join(parts)}*** End Patch"


def test_a_clean_buffer_is_the_file_with_its_own_line_endings_and_a_dirty_one_is_itself(editor: Editor) -> None:
    context = opened(editor)
    assert context.workspace.text("a.txt") == "one\r\ntwo\r\n"

    context.apply_patch(patch(UPDATE, ADD))
    assert (editor.root / "a.txt").read_bytes() == b"one\r\n2\r\n"
    assert (editor.root / "new/d.txt").read_text() == "fresh\n"
    editor.unsaved["a.txt"] = "one\nunsaved\n"

    assert context.read("a.txt").value["content"] == "one\nunsaved"
    with pytest.raises(PatchRefused):
        context.workspace.undo()
    del editor.unsaved["a.txt"]
    context.workspace.undo()
    assert (editor.root / "a.txt").read_bytes() == b"one\r\ntwo\r\n"
    assert not (editor.root / "new").exists()


def test_a_search_asks_for_no_file_that_was_not_read_before(editor: Editor) -> None:
    context = opened(editor)
    editor.unsaved = {"c.txt": "needle, too\n"}

    assert [row["path"] for row in context.search("needle").value] == ["b.txt"]
    assert editor.asked == []
    context.read("c.txt")
    assert [row["path"] for row in context.search("needle").value] == ["b.txt", "c.txt"]


def test_if_the_editor_cannot_write_one_file_the_others_are_put_back(editor: Editor) -> None:
    editor.sick = "c.txt"
    before = {path.name: path.read_bytes() for path in editor.root.iterdir()}

    with pytest.raises(PatchRefused, match="nothing was changed: the editor did not write it"):
        opened(editor).apply_patch(patch(UPDATE, ADD, "*** Update File: c.txt\n@@\n-hay\n+straw\n"))

    assert {path.name: path.read_bytes() for path in editor.root.iterdir()} == before


def test_a_file_with_unsaved_changes_is_not_deleted(editor: Editor) -> None:
    editor.unsaved = {"b.txt": "needle and thread\n"}

    with pytest.raises(PatchRefused, match="unsaved"):
        opened(editor).apply_patch(patch(UPDATE, "*** Delete File: b.txt\n"))
    editor.unsaved = {}
    opened(editor).apply_patch(patch(UPDATE, "*** Delete File: b.txt\n"))

    assert not (editor.root / "b.txt").exists()
    assert b"2\r\n" in (editor.root / "a.txt").read_bytes()


@pytest.mark.parametrize("lie", ["x" * (16 * 1024 * 1024 + 1), "\0", "half \ud800", "bad \ufffd byte"])
def test_what_is_no_text_of_a_bounded_size_is_refused(editor: Editor, lie: str) -> None:
    editor.unsaved = {"b.txt": lie}

    with pytest.raises(PathRefused):
        opened(editor).read("b.txt")


def test_the_editor_is_not_asked_for_what_the_guard_refuses(editor: Editor) -> None:
    (editor.root / ".env").write_text("TOKEN=1\n")
    (editor.root / "link.txt").symlink_to(".env")
    (editor.root / "out.txt").symlink_to(os.devnull)
    (editor.root / "in.txt").symlink_to("b.txt")
    context = opened(editor)

    for path in (".env", "link.txt", "out.txt", "../b.txt", "/etc/hostname"):
        with pytest.raises(ToolFault):
            context.read(path)
    context.read("in.txt")

    assert editor.asked == ["b.txt"]
