"""A task in a workspace, replayed: what was written is not written again, and every hash is the same."""

from __future__ import annotations

from pathlib import Path

from sonde.api.edit_run import edit
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.contexts.workspace import accept
from sonde.testing import ScriptedModel

PATCH = '''apply_patch("""*** Begin Patch
*** Update File: a.txt
@@
 one
+two
*** Add File: b.txt
+new
*** End Patch""")'''


def test_an_edit_replays_without_touching_the_files(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    steps = [
        'print(read_file("a.txt")["content"])',
        PATCH,
        'print(read_file("a.txt"), read_file("b.txt"))',
        'FINAL("Added two. [a.txt:2]")',
    ]
    done = edit(
        "Add two", folder, approve=accept, model=ScriptedModel(steps), settings=Settings(), runs_dir=tmp_path / "runs"
    )
    assert done.status == "succeeded" and done.run_dir is not None
    stamp = (folder / "a.txt").stat().st_mtime_ns

    again = replay(done.run_dir, settings=Settings())

    assert again.differences == ()
    assert (folder / "a.txt").stat().st_mtime_ns == stamp


def test_an_edit_that_goes_on_after_a_limit_has_the_variables_and_replays(tmp_path: Path) -> None:
    folder, runs = tmp_path / "work", tmp_path / "runs"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    first = ScriptedModel(['seen = read_file("a.txt")["content"]\nprint(seen)', PATCH, *['print("more")'] * 2])
    stopped = edit("Add two", folder, approve=accept, model=first, settings=Settings(), runs_dir=runs, max_iterations=3)
    assert stopped.status == "partial" and stopped.changed == ("a.txt", "b.txt") and stopped.run_dir is not None
    second = ScriptedModel(
        ['print(seen, read_file("a.txt")["content"], read_file("b.txt"))', 'FINAL("Added two. [a.txt:2]")']
    )

    done = edit(
        "Add two",
        folder,
        approve=accept,
        model=second,
        settings=Settings(),
        runs_dir=runs,
        continue_from=stopped.run_dir,
    )

    assert done.status == "succeeded" and done.run_dir is not None
    assert (folder / "a.txt").read_text() == "one\ntwo\n"
    assert replay(done.run_dir, settings=Settings(), runs_dir=runs).differences == ()
