"""`sonde undo`: what an edit wrote is taken back, all of it or nothing, and only after a yes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_program import Shown, call, environment

import sonde
from sonde.contexts.workspace import accept
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel

PATCH = r'''apply_patch("""*** Begin Patch
*** Update File: kept.txt
@@
-two
+TWO
*** Add File: new/made.txt
+made
*** Delete File: gone.txt
*** End Patch""")'''
CHECK = 'print(read_file("kept.txt")["content"], read_file("new/made.txt")["content"])'
FINISH = 'FINAL("Done. [kept.txt:2]")'
BEFORE = {"kept.txt": b"one\r\ntwo\r\nthree", "gone.txt": b"gone\n"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which an edit was made; it is the working folder."""
    work = tmp_path / "work"
    work.mkdir()
    for name, data in BEFORE.items():
        (work / name).write_bytes(data)
    monkeypatch.chdir(work)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("SONDE_RUNS_DIR", str(tmp_path / "runs"))
    replies = [f"```python\n{code}\n```" for code in ('print(read_file("kept.txt")["content"])', PATCH, CHECK, FINISH)]
    done = sonde.edit("Shout", ".", approve=accept, model=ScriptedModel(replies))
    assert done.changed == ("kept.txt", "new/made.txt", "gone.txt")
    return work


def undo(folder: Path, *words: str | Path) -> Shown:
    return call("undo", *words, "--runs-dir", folder.parent / "runs", cwd=folder, env=environment(folder.parent))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_last_edit_of_this_folder_is_taken_back_byte_for_byte(folder: Path) -> None:
    done = undo(folder, "--yes")

    assert done.returncode == 0 and files(folder) == BEFORE
    assert done.stdout == "gone.txt: added +1 -0\nnew/made.txt: deleted +0 -1\nkept.txt: updated +1 -1\n"
    assert "\n-TWO\n+two\n" in done.stderr  # the change, though nobody is asked
    assert done.stderr.endswith(done.stdout)


def test_without_a_terminal_and_yes_it_is_shown_and_nothing_is_written(folder: Path) -> None:
    after = files(folder)

    done = undo(folder)

    assert done.returncode == 1 and files(folder) == after
    assert "nothing was written" in done.stderr and "--yes" in done.stderr


def test_lines_that_have_changed_since_refuse_all_of_it(folder: Path) -> None:
    (folder / "kept.txt").write_text("one\nmine\nthree\n")
    after = files(folder)

    done = undo(folder, "--yes")

    assert done.returncode == 1 and files(folder) == after
    assert "have changed since" in done.stderr and "kept.txt" in done.stderr


def test_a_second_undo_finds_nothing_to_take_back(folder: Path) -> None:
    assert undo(folder, "--yes").returncode == 0
    again = undo(folder, "--yes")

    assert again.returncode == 1 and files(folder) == BEFORE
    assert "was taken back already" in again.stderr


def test_an_edit_made_elsewhere_is_taken_back_only_where_the_user_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"say where: sonde undo .* FOLDER"):
        sonde.undo(approve=accept)

    assert sonde.undo("last", "work", approve=accept).applied
    assert files(folder) == BEFORE


def test_a_run_that_wrote_nothing_says_so(folder: Path) -> None:
    run = sonde.ask("what?", folder / "kept.txt").run_dir

    done = undo(folder, str(run), "--yes")

    assert done.returncode == 2 and "has no undo.patch" in done.stderr


@pytest.mark.hostile
@pytest.mark.parametrize("place", ["../outside.txt", ".git/hooks/pre-commit", "/etc/motd", ".vscode/tasks.json"])
def test_a_strangers_run_folder_writes_no_protected_place_even_with_yes(
    folder: Path, tmp_path: Path, place: str
) -> None:
    (run,) = (path for path in (tmp_path / "runs").iterdir() if path.is_dir())
    (run / "undo.patch").write_text(f"--- /dev/null\n+++ b/{place}\n@@ -0,0 +1 @@\n+touch /tmp/owned\n")
    after = files(tmp_path)

    done = undo(folder, run, folder, "--yes")

    assert done.returncode == 1 and files(tmp_path) == after
    assert place in done.stderr


def test_prune_says_how_many_edits_can_no_longer_be_taken_back(folder: Path) -> None:
    words, env = ("runs", "prune", "--keep", "0", "--runs-dir", folder.parent / "runs"), environment(folder.parent)
    lost = "1 of 1 run wrote files, which `sonde undo` cannot take back without the run\n"

    assert lost in call(*words, "--dry-run", cwd=folder, env=env).stdout
    asked = call(*words, cwd=folder, env=env, stdin="n\n").stderr
    assert asked.startswith(lost) and "Delete 1 run" in asked
    assert call(*words, "--yes", cwd=folder, env=env).stderr == lost
    assert not any((folder.parent / "runs").iterdir())
