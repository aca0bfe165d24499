"""`sonde undo`: what an edit wrote is taken back, all of it or nothing, and only after a yes."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_program import Shown, call, environment, kept_runs

import sonde
from sonde.contexts.workspace import accept
from sonde.core.events import Event, RunStarted
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
    done = edited('print(read_file("kept.txt")["content"])', PATCH, CHECK, FINISH)
    assert done.changed == ("kept.txt", "new/made.txt", "gone.txt")
    return work


def edited(*codes: str, **how: Any) -> sonde.Edited:
    """An edit of the working folder with these blocks of code."""
    return sonde.edit(
        "Shout", ".", approve=accept, model=ScriptedModel([f"```python\n{each}\n```" for each in codes]), **how
    )


def patch(*lines: str) -> str:
    """The code that applies a patch of these lines."""
    return f"apply_patch({chr(10).join(('*** Begin Patch', *lines, '*** End Patch'))!r})"


def run_of(folder: Path) -> Path:
    """The newest run."""
    return max(path for path in (folder.parent / "runs").iterdir() if path.is_dir())


def undo(folder: Path, *words: str | Path) -> Shown:
    return call("undo", *words, "--runs-dir", folder.parent / "runs", cwd=folder, env=environment(folder.parent))


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_last_edit_of_this_folder_is_taken_back_byte_for_byte(folder: Path) -> None:
    done = undo(folder, "--yes")

    assert done.returncode == 0 and files(folder) == BEFORE
    assert not (folder / "new").exists()
    assert "\n-TWO\n+two\n" in done.stderr  # the change, though nobody is asked
    assert "kept.txt: updated +1 -1\n" in done.stderr and "updated" not in done.stdout
    assert "is taken back: kept.txt, new/made.txt, gone.txt\nto redo it: git -C " in done.stdout


def test_without_a_terminal_and_yes_it_is_shown_and_nothing_is_written(folder: Path) -> None:
    after = files(folder)

    done = undo(folder)

    assert done.returncode == 1 and files(folder) == after
    assert "nothing was written: there is no terminal to ask at; use --yes" in done.stderr


def test_a_no_at_the_terminal_is_not_told_as_to_a_model(folder: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "undo", "--runs-dir", str(folder.parent / "runs")],
        cwd=folder,
        env=environment(folder.parent),
        stdin=theirs,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    os.close(ours)
    os.close(theirs)

    assert done.returncode == 1
    assert done.stderr.endswith("sonde: nothing was written: you said no\n")


def test_lines_that_have_changed_since_refuse_all_of_it_and_are_named(folder: Path) -> None:
    (folder / "kept.txt").write_text("one\nmine\nthree\n")
    after = files(folder)

    done = undo(folder, "--yes")

    assert done.returncode == 1 and files(folder) == after
    assert "kept.txt has changed since: the edit left 'TWO' in line 2, which is now 'mine'" in done.stderr
    assert f"git -C {folder} apply --reject {run_of(folder).resolve()}/undo.patch" in done.stderr
    assert "Read the file" not in done.stderr and "***" not in done.stderr


def test_a_new_file_that_has_changed_since_is_kept_and_its_line_ends_are_shown(folder: Path) -> None:
    (folder / "new/made.txt").write_bytes(b"made\r\n")

    done = undo(folder, "--yes")

    assert done.returncode == 1 and (folder / "gone.txt").exists() is False
    assert r"the edit left 'made\n' in line 1, which is now 'made\r\n'" in done.stderr


def test_other_lines_that_the_user_changed_since_are_kept(folder: Path) -> None:
    (folder / "kept.txt").write_bytes(b"zero\r\none\r\nTWO\r\nthree")

    assert undo(folder, "--yes").returncode == 0
    assert (folder / "kept.txt").read_bytes() == b"zero\r\none\r\ntwo\r\nthree"


def test_a_second_undo_goes_one_edit_further_back_and_then_says_that_none_is_left(folder: Path) -> None:
    edited('print(read_file("kept.txt"))', patch("*** Update File: kept.txt", "@@", "-TWO", "+Two"), CHECK, FINISH)

    assert undo(folder, "--yes").returncode == 0
    assert (folder / "kept.txt").read_bytes() == b"one\r\nTWO\r\nthree"
    assert undo(folder, "--yes").returncode == 0
    assert files(folder) == BEFORE
    third = undo(folder, "--yes")
    assert third.returncode == 2 and "is left to take back" in third.stderr
    named = undo(folder, run_of(folder).name, "--yes")
    assert named.returncode == 1 and "kept.txt has changed since" in named.stderr


def test_an_edit_made_elsewhere_is_taken_back_only_where_the_user_says(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "below").mkdir()
    for place in (tmp_path, folder / "below"):
        monkeypatch.chdir(place)
        for run in ("last", run_of(folder).name):
            with pytest.raises(ConfigError, match=f"sonde undo {run_of(folder).name} {folder}"):
                sonde.undo(run, approve=accept)

    monkeypatch.chdir(tmp_path)
    assert sonde.undo("last", "work", approve=accept).applied
    assert files(folder) == BEFORE


def test_a_run_that_wrote_nothing_says_so(folder: Path) -> None:
    run = sonde.ask("what?", folder / "kept.txt").run_dir

    done = undo(folder, str(run), "--yes")

    assert done.returncode == 2 and "wrote nothing" in done.stderr


def test_a_masked_edit_is_neither_skipped_nor_kept_in_the_clear(folder: Path) -> None:
    (folder / "kept.txt").write_text("write to ann@example.org\n")
    done = edited(
        'text = read_file("kept.txt")["content"]\nprint(text)',
        'apply_patch("*** Begin Patch\\n*** Update File: kept.txt\\n@@\\n " + text + "\\n+more\\n*** End Patch")',
        'print(read_file("kept.txt")["content"])',
        'FINAL("Done. [kept.txt:2]")',
        mask=True,
    )
    assert done.changed == ("kept.txt",) and done.run_dir is not None

    again = undo(folder, "--yes")

    assert again.returncode == 2 and "the run was masked" in again.stderr and done.run_dir.name in again.stderr
    assert "ann@" not in (done.run_dir / "writes.jsonl").read_text()
    assert not (done.run_dir / "undo.patch").exists()


def test_a_key_in_an_edited_file_is_not_kept_in_the_run_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key := "sk-test-0123456789abcdef")
    (folder / "kept.txt").write_text(f"{key}\ntwo\n")
    done = edited('print(read_file("kept.txt"))', patch("*** Update File: kept.txt", "@@", "-two", "+2"), CHECK, FINISH)
    assert done.run_dir is not None and (folder / "kept.txt").read_text() == f"{key}\n2\n"

    again = undo(folder, "--yes")

    assert again.returncode == 2 and "a key of yours" in again.stderr and "kept.txt" in again.stderr
    assert all(key.encode() not in path.read_bytes() for path in done.run_dir.iterdir())


def test_the_patches_fit_git_whatever_the_files_are_made_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {
        "crlf.txt": b"a\r\nb\r\n",
        "bom.txt": b"\xef\xbb\xbfa\nb",
        "latin.txt": b"caf\xe9\nb\n",
        "run me.sh": b"#!/bin/sh\n",
        "empty.txt": b"",
    }
    work = folder.parent / "odd"
    work.mkdir()
    monkeypatch.chdir(work)
    for name, data in before.items():
        (work / name).write_bytes(data)
    (work / "run me.sh").chmod(0o755)
    changes = [
        line for name in ("crlf.txt", "bom.txt", "latin.txt") for line in (f"*** Update File: {name}", "@@", "-b", "+c")
    ]
    moved = (
        "*** Update File: run me.sh",
        "*** Move to: bin/run.sh",
        "*** Delete File: empty.txt",
        "*** Add File: none.txt",
    )
    done = edited(
        "print(list_files())", patch(*changes, *moved), 'print(read_file("crlf.txt"))', 'FINAL("Done. [crlf.txt:2]")'
    )
    assert len(done.changed) == 7, done.gaps
    after = files(work)
    run = run_of(folder).resolve()

    def git(name: str) -> None:
        subprocess.run(["git", "apply", str(run / name)], cwd=work, check=True, capture_output=True)

    assert b"deleted file mode 100755" in (run / "edit.patch").read_bytes()
    git("undo.patch")
    assert files(work) == before and (work / "run me.sh").stat().st_mode & 0o777 == 0o755
    git("edit.patch")
    assert files(work) == after and (work / "bin/run.sh").stat().st_mode & 0o100
    assert undo(folder, run, work, "--yes").returncode == 0
    assert files(work) == before and (work / "run me.sh").stat().st_mode & 0o777 == 0o755
    assert not (work / "bin").exists()


def test_nothing_is_written_where_the_way_back_cannot_be_kept(folder: Path) -> None:
    def full(event: Event) -> None:
        if isinstance(event, RunStarted):
            (run_of(folder) / "writes.jsonl").mkdir()

    before = files(folder)
    change = patch("*** Update File: kept.txt", "@@", "-TWO", "+Two")
    done = edited('print(read_file("kept.txt"))', change, FINISH, FINISH, on_event=full)

    assert done.changed == () and files(folder) == before
    assert "the way back could not be kept" in " ".join(done.gaps)


def test_what_commands_change_is_named_and_not_taken_back(folder: Path) -> None:
    (folder / "fmt.sh").write_text("echo formatted > other.txt\n")
    done = edited(
        'print(read_file("kept.txt"))',
        patch("*** Update File: kept.txt", "@@", "-TWO", "+Two"),
        'print(execute_command("sh fmt.sh"), read_file("kept.txt"))',
        FINISH,
        commands=["=sh fmt.sh"],
    )
    assert done.changed == ("kept.txt",) and done.changed_by_commands == ("other.txt",)

    back = undo(folder, "--yes")

    assert back.returncode == 0 and (folder / "other.txt").exists()
    assert "note: changed by commands and not taken back: other.txt" in back.stderr
    shown = call("runs", "show", run_of(folder), cwd=folder, env=environment(folder.parent)).stdout
    assert "changed by commands: other.txt" in shown


@pytest.mark.long
def test_a_killed_edit_is_taken_back_or_resumed_with_its_new_file(folder: Path, tmp_path: Path) -> None:
    replies = tmp_path / "replies"
    replies.mkdir()
    for turn, code in enumerate(
        ('print(read_file("kept.txt"))', patch("*** Add File: mine.txt", "+mine", "*** Delete File: new/made.txt"))
    ):
        (replies / str(turn)).write_text(f"```python\n{code}\n```\n")
    os.mkfifo(replies / "2")
    for turn, code in enumerate(('print(read_file("mine.txt"))', 'FINAL("Done. [mine.txt:1]")'), 3):
        (replies / str(turn)).write_text(f"```python\n{code}\n```\n")
    (replies / "turn").write_text("0")
    player = tmp_path / "player"
    player.write_text(f"#!/bin/sh\ncat > /dev/null\ncd {replies}; t=$(cat turn); echo $((t + 1)) > turn; cat $t\n")
    player.chmod(0o755)
    words = ["--model", f"command:{player}"]
    env = environment(tmp_path)
    with (
        subprocess.Popen(
            [sys.executable, "-m", "sonde", "edit", "Add it", "--yes", *words],
            cwd=folder,
            env=env,
            stderr=subprocess.DEVNULL,
        ) as process,
        (replies / "2").open("w"),
    ):  # opened when the model is asked after the patch
        process.send_signal(signal.SIGKILL)
    assert (folder / "mine.txt").exists()

    killed = call("undo", cwd=folder, env=env)
    assert "mine.txt: deleted +0 -1" in killed.stderr and "kept.txt" not in killed.stderr
    (folder / "alien.txt").write_text("")
    other = call("resume", "last", *words, cwd=folder, env=env)
    assert other.returncode == 1 and "new: alien.txt" in other.stderr and "--live" in other.stderr
    assert "mine.txt" not in other.stderr
    (folder / "alien.txt").unlink()
    resumed = call("resume", "last", *words, cwd=folder, env=env)
    assert resumed.returncode == 0, resumed.stderr
    assert "changed: mine.txt, new/made.txt" in resumed.stderr
    assert f"to take it back: sonde undo {kept_runs(tmp_path)[-1].name} {folder}" in resumed.stderr
    back = call("undo", "--yes", cwd=folder, env=env)
    assert back.returncode == 0, back.stderr
    assert not (folder / "mine.txt").exists() and (folder / "new/made.txt").read_text() == "made\n"


@pytest.mark.hostile
@pytest.mark.parametrize("place", ["../outside.txt", ".git/hooks/pre-commit", "/etc/motd", ".vscode/tasks.json"])
@pytest.mark.parametrize("marked", [False, True])
def test_a_changed_run_folder_takes_nothing_back_even_with_yes(
    folder: Path, tmp_path: Path, place: str, marked: bool
) -> None:
    run = run_of(folder)
    change = {"path": place, "action": "delete", "old_text": "touch /tmp/owned\n"}
    written = json.dumps({"plan": {"changes": [change]}}).encode()
    mark = ""
    if marked:  # even with the user's key no protected place is written
        key = (tmp_path / ".local/state/sonde/seal.key").read_bytes()
        mark = hmac.new(key, (run / "seal").read_bytes().strip() + written, hashlib.sha256).hexdigest()
    with (run / "writes.jsonl").open("ab") as file:
        file.write(b'{"written":' + written + b',"mark":"' + mark.encode() + b'"}\n')
    (run / "undo.patch").unlink()
    after = files(tmp_path)

    done = undo(folder, run, folder, "--yes")

    assert done.returncode == (1 if marked else 2)
    assert (place if marked else "does not have your seal") in done.stderr
    assert {name: data for name, data in files(tmp_path).items() if not name.endswith(".patch")} == {
        name: data for name, data in after.items() if not name.endswith(".patch")
    }


def test_prune_says_how_many_edits_can_no_longer_be_taken_back(folder: Path) -> None:
    words, env = ("runs", "prune", "--keep", "0", "--runs-dir", folder.parent / "runs"), environment(folder.parent)
    lost = "1 of 1 run wrote files, which `sonde undo` cannot take back without the run\n"

    assert lost in call(*words, "--dry-run", cwd=folder, env=env).stdout
    asked = call(*words, cwd=folder, env=env, stdin="n\n").stderr
    assert asked.startswith(lost) and "Delete 1 run" in asked
    assert call(*words, "--yes", cwd=folder, env=env).stderr == lost
    assert not any((folder.parent / "runs").iterdir())
