"""Nothing is read or written outside the root, and no patch is ever written in part, whoever meddles with the folder meanwhile."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from sonde.cli.approval import approval
from sonde.contexts.workspace import (
    Approval,
    LocalWorkspace,
    PatchRefused,
    PathRefused,
    Plan,
    WorkspaceContext,
    accept,
    plan_patch,
)
from sonde.contexts.workspace.base import Action, FileChange, NothingToChange
from sonde.contexts.workspace.paths import Root
from sonde.contexts.workspace.policy import Policy
from sonde.contexts.workspace.text import WRITTEN_OUT, visible

PATCH = "*** Begin Patch\n*** Update File: a\n-1\n+one\n*** Update File: b\n-2\n+two\n*** Add File: new/c\n+3\n*** End Patch"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    (folder / "b").write_text("2\n")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("top\n")
    return folder


def meanwhile(act: Callable[[], object]) -> Callable[[Plan], Approval]:
    """An approval during which something happens to the folder."""

    def approve(plan: Plan) -> Approval:
        act()
        return Approval(accepted=True)

    return approve


def apply(workspace: LocalWorkspace, patch: str) -> dict[str, object]:
    return WorkspaceContext(workspace).apply_patch(patch)


def names(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


def test_a_file_changed_during_approval_stops_the_whole_patch(root: Path) -> None:
    workspace = LocalWorkspace(root, approve=meanwhile(lambda: (root / "b").write_text("2 changed\n")))

    with pytest.raises(PatchRefused):
        apply(workspace, PATCH)

    assert (root / "a").read_text() == "1\n"
    assert (root / "b").read_text() == "2 changed\n"
    assert names(root) == ["a", "b"]


def test_a_file_that_appears_during_approval_is_not_replaced(root: Path) -> None:
    def appear() -> None:
        (root / "new").mkdir()
        (root / "new/c").write_text("mine\n")

    with pytest.raises(PatchRefused):
        apply(LocalWorkspace(root, approve=meanwhile(appear)), PATCH)

    assert (root / "new/c").read_text() == "mine\n"
    assert (root / "a").read_text() == "1\n"


def test_a_file_that_goes_during_approval_stops_the_whole_patch(root: Path) -> None:
    with pytest.raises(PatchRefused):
        apply(LocalWorkspace(root, approve=meanwhile((root / "b").unlink)), PATCH)

    assert (root / "a").read_text() == "1\n"


def test_a_folder_swapped_for_a_link_during_approval_leads_nowhere(root: Path) -> None:
    (root / "src").mkdir()
    (root / "src/secret").write_text("top\n")

    def swap() -> None:
        shutil.rmtree(root / "src")
        (root / "src").symlink_to(root.parent / "outside")

    with pytest.raises((PatchRefused, PathRefused)):
        apply(
            LocalWorkspace(root, approve=meanwhile(swap)),
            "*** Begin Patch\n*** Update File: src/secret\n-top\n+taken\n*** End Patch",
        )

    assert (root.parent / "outside/secret").read_text() == "top\n"


class Meddled(Root):
    """A folder in which someone acts when a file is read for the nth time."""

    def __init__(self, folder: Path, path: str, nth: int, act: Callable[[], object]) -> None:
        super().__init__(folder)
        self.watched, self.left, self.act = path, nth, act

    def read(self, path: str, check: Callable[[str], None] | None = None) -> tuple[bytes, int] | None:
        if path == self.watched:
            self.left -= 1
            if self.left == 0:
                self.act()
        return super().read(path, check)


def test_a_change_after_the_first_rename_puts_the_first_file_back(root: Path) -> None:
    workspace = LocalWorkspace(root, approve=accept)
    seen: list[str] = []

    def meddle() -> None:
        seen.append((root / "a").read_text())
        (root / "b").write_text("late\n")

    workspace.root = Meddled(root, "b", 3, meddle)  # planned, staged, and now the last check

    with pytest.raises(PatchRefused):
        apply(workspace, PATCH)

    assert seen == ["one\n"], "the first file had been renamed into place when the second one changed"
    assert (root / "a").read_text() == "1\n"
    assert (root / "b").read_text() == "late\n"
    assert names(root) == ["a", "b"]


def test_a_folder_swapped_for_a_link_after_the_last_check_leads_nowhere(root: Path) -> None:
    (root / "src").mkdir()
    (root / "src/secret").write_text("top\n")
    workspace = LocalWorkspace(root, approve=accept)

    def swap() -> None:
        (root / "src").rename(root / "aside")
        (root / "src").symlink_to(root.parent / "outside")

    workspace.root = Meddled(root, "src/secret", 3, swap)

    with pytest.raises((PatchRefused, PathRefused)):
        apply(workspace, "*** Begin Patch\n*** Update File: src/secret\n-top\n+taken\n*** End Patch")

    assert (root.parent / "outside/secret").read_text() == "top\n"
    assert names(root.parent / "outside") == ["secret"]


def replaced(root: Path) -> None:
    """Put a link to the folder outside in the root's place, with files of the same names behind it."""
    root.rename(root.parent / "aside")
    root.symlink_to(root.parent / "outside")
    (root.parent / "outside/a").write_text("1\n")
    (root.parent / "outside/b").write_text("2\n")


def test_a_root_replaced_during_approval_is_not_written_to(root: Path) -> None:
    with pytest.raises((PatchRefused, PathRefused)):
        apply(LocalWorkspace(root, approve=meanwhile(lambda: replaced(root))), PATCH)

    assert names(root.parent / "outside") == ["a", "b", "secret"]
    assert (root.parent / "outside/a").read_text() == "1\n"
    assert (root.parent / "aside/a").read_text() == "1\n"


def test_nothing_is_read_listed_or_run_in_a_root_that_was_replaced(root: Path) -> None:
    workspace = LocalWorkspace(root, approve=accept, policy=Policy(commands=("ls",)))
    apply(workspace, PATCH)
    replaced(root)

    for act in (
        workspace.list_files,
        lambda: workspace.read("secret"),
        lambda: workspace.text("secret"),
        lambda: workspace.search("top"),
        lambda: workspace.execute("ls"),
        workspace.undo,
    ):
        with pytest.raises((PatchRefused, PathRefused)):
            act()


class Overtaken(Root):
    """A root that is replaced right after it was looked at for the nth time."""

    left = 0

    def check_place(self) -> None:
        super().check_place()
        self.left -= 1
        if self.left == 0:
            replaced(self.path)


@pytest.mark.parametrize("nth", range(1, 24))
def test_a_root_replaced_at_any_moment_of_a_write_leads_nowhere(root: Path, nth: int) -> None:
    workspace = LocalWorkspace(root, approve=accept)
    workspace.root = overtaken = Overtaken(root)
    overtaken.left = nth

    with suppress(PatchRefused, PathRefused):
        apply(workspace, PATCH)

    assert names(root.parent / "outside") == ["a", "b", "secret"]
    assert [(root.parent / "outside" / name).read_text() for name in ("a", "b", "secret")] == ["1\n", "2\n", "top\n"]
    assert not [name for name in names(root.parent / "aside") if "sonde" in name], "no hidden file is left"


@pytest.mark.parametrize(
    "first", ["*** Update File: src/x\n-1\n+one", "*** Delete File: src/x", "*** Add File: src/new\n+1",
              "*** Update File: src/x\n*** Move to: src/y"],
)  # fmt: skip
def test_a_file_is_put_back_although_its_folder_was_moved_meanwhile(root: Path, first: str) -> None:
    (root / "src").mkdir()
    (root / "src/x").write_text("1\n")
    workspace = LocalWorkspace(root, approve=accept)

    def swap() -> None:
        (root / "src").rename(root / "aside")
        (root / "src").symlink_to(root.parent / "outside")
        (root / "b").write_text("late\n")

    workspace.root = Meddled(root, "b", 3, swap)

    with pytest.raises(PatchRefused):
        apply(workspace, f"*** Begin Patch\n{first}\n*** Update File: b\n-2\n+two\n*** End Patch")

    assert (root / "aside/x").read_text() == "1\n"
    assert names(root / "aside") == ["x"]
    assert names(root.parent / "outside") == ["secret"]


@pytest.mark.parametrize("verb", ["Update", "Delete", "Add"])
def test_a_patch_does_not_go_through_a_linked_folder(root: Path, verb: str) -> None:
    (root / "link").symlink_to(root.parent / "outside")
    body = {"Update": "-top\n+taken\n", "Delete": "", "Add": "+x\n"}[verb]
    name = "new" if verb == "Add" else "secret"

    with pytest.raises((PathRefused, PatchRefused)):
        apply(
            LocalWorkspace(root, approve=accept),
            f"*** Begin Patch\n*** {verb} File: link/{name}\n{body}*** End Patch",
        )

    assert names(root.parent / "outside") == ["secret"]


def test_a_link_to_a_file_inside_is_read_but_not_written_through(root: Path) -> None:
    (root / "link").symlink_to("a")
    workspace = LocalWorkspace(root, approve=accept)

    assert workspace.read("link").content == "1"
    with pytest.raises(PathRefused):
        apply(workspace, "*** Begin Patch\n*** Update File: link\n-1\n+one\n*** End Patch")
    assert (root / "link").is_symlink()


def test_a_link_that_leads_out_is_not_read(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside/secret")

    with pytest.raises(PathRefused):
        LocalWorkspace(root).read("link")
    assert LocalWorkspace(root).list_files() == ("a", "b")


def test_a_link_to_a_secret_is_judged_by_where_it_ends(root: Path) -> None:
    (root / ".env").write_text("KEY=1\n")
    (root / "harmless.txt").symlink_to(".env")

    with pytest.raises(PathRefused):
        LocalWorkspace(root).read("harmless.txt")


def test_a_dangling_link_is_not_written_through(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "outside/made")

    with pytest.raises(PathRefused):
        apply(LocalWorkspace(root, approve=accept), "*** Begin Patch\n*** Add File: link\n+x\n*** End Patch")
    assert not (root.parent / "outside/made").exists()


def test_a_pipe_is_neither_read_nor_written(root: Path) -> None:
    os.mkfifo(root / "pipe")
    workspace = LocalWorkspace(root, approve=accept)

    with pytest.raises(PathRefused):
        workspace.read("pipe")
    with pytest.raises(PathRefused):
        apply(workspace, "*** Begin Patch\n*** Update File: pipe\n-1\n+one\n*** End Patch")


def test_asking_for_a_folder_as_a_file_leaves_nothing_open(root: Path) -> None:
    (root / "folder").mkdir()
    before = len(list(Path("/proc/self/fd").iterdir()))

    for _ in range(100):
        with pytest.raises(PathRefused):
            Root(root).read("folder")

    assert len(list(Path("/proc/self/fd").iterdir())) < before + 50


def test_a_hard_link_shared_with_the_outside_is_left_alone(root: Path) -> None:
    os.link(root.parent / "outside/secret", root / "shared")

    apply(
        LocalWorkspace(root, approve=accept),
        "*** Begin Patch\n*** Update File: shared\n-top\n+mine\n*** End Patch",
    )

    assert (root / "shared").read_text() == "mine\n"
    assert (root.parent / "outside/secret").read_text() == "top\n"


def test_the_mode_of_a_file_is_kept(root: Path) -> None:
    (root / "a").chmod(0o755)

    apply(LocalWorkspace(root, approve=accept), PATCH)

    assert (root / "a").stat().st_mode & 0o777 == 0o755


def test_a_file_that_is_too_large_is_refused(root: Path) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(17 * 1024 * 1024)

    with pytest.raises(PathRefused):
        LocalWorkspace(root).read("huge")


def test_the_editor_shows_the_same_hidden_characters_as_the_terminal() -> None:
    source = (Path(__file__).parents[3] / "vscode/src/plain.ts").read_text()
    literal = re.search(r"WRITTEN_OUT =\s(?:\s+//.+\n)*\s+/(.+)/gu;", source)

    assert literal is not None
    theirs = re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)), literal[1])
    assert theirs == WRITTEN_OUT.pattern.encode().decode("unicode_escape")


def test_a_lone_carriage_return_is_no_line_of_a_change_that_somebody_judges() -> None:
    plan = plan_patch("*** Begin Patch\n*** Add File: a.sh\n+check # \rexit 1\n*** End Patch", lambda path: None)

    assert "\n+check # <U+000D>exit 1\n" in visible(plan.diff())
    assert plan.summary() == "a.sh: added +1 -0"


def test_no_added_line_brings_a_carriage_return_at_its_end() -> None:
    patch = "*** Begin Patch\n*** Update File: a.sh\n@@\n-set -e\n+set -e\r\r\n*** End Patch"

    with pytest.raises(NothingToChange):
        plan_patch(patch, lambda path: "set -e\nls\n")


def test_a_line_that_is_removed_and_added_again_keeps_its_end() -> None:
    patch = "*** Begin Patch\n*** Update File: a.sh\n@@\n one\n+set -e\n+new\n-set -e\n*** End Patch"

    (change,) = plan_patch(patch, lambda path: "one\r\nset -e\nls\n").changes

    assert change.new_text == "one\r\nset -e\nnew\r\nls\n"


@given(old=st.text("a\r\n", max_size=8), new=st.text("a\r\n", max_size=8))
@example(old="a\nb\n", new="a\r\nb\n")
def test_texts_that_differ_are_never_shown_as_equal(old: str, new: str) -> None:
    plan = Plan(changes=(FileChange(path="a.sh", action=Action.UPDATE, old_text=old, new_text=new),))
    told = io.StringIO()
    approval(yes=True, stderr=told)(plan)
    shown = told.getvalue()

    assert ("@@" in shown) == (old != new)
    assert "\r" not in shown


def test_nothing_hidden_stays_hidden_and_emoji_stay_whole() -> None:
    ignorable = [
        *range(0xE0000, 0xE0200),
        *range(0xFE00, 0xFE10),
        *range(0x180B, 0x1810),
        0x115F,
        0x1160,
        0x3164,
        0xFFA0,
        0x2800,
    ]
    formats = [code for code in range(sys.maxunicode) if unicodedata.category(chr(code)) in ("Cf", "Zl", "Zp")]
    shown = [code for code in (*ignorable, *formats) if chr(code) in visible(f"key{chr(code)}")]

    assert [
        hex(code) for code in shown if not 0x600 <= code <= 0x8E2 and code not in (0x110BD, 0x110CD)
    ] == []  # these are drawn
    assert visible("\u2714\ufe0f 1\ufe0f\u20e3 \u2714\ufe0f\ufe0f") == "\u2714\ufe0f 1\ufe0f\u20e3 \u2714\ufe0f<U+FE0F>"
