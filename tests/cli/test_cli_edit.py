"""`sonde edit` in a terminal: the diff, the question, the answer, and what comes of it."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from cli_program import Shown, sonde

from sonde.cli.approval import AtTerminal, approval
from sonde.cli.interrupt import soft_stop
from sonde.contexts.workspace import plan_patch
from sonde.contexts.workspace.reach import confinable
from sonde.testing import ScriptedServer

ROOT = Path(__file__).parents[2]
MODEL = f"command:{sys.executable} {ROOT / 'tests/server/scripted_model.py'}"
PLAN = plan_patch("*** Begin Patch\n*** Update File: a\n-1\n+one\x1b[2J\n*** End Patch", {"a": "1\n"}.get)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT / "examples/demo-workspace", tmp_path / "demo")


def sonde_edit(folder: Path, *flags: str) -> Shown:
    words = ("edit", "Add normalizeWhitespace", folder, "--model", MODEL, "--runs-dir", folder.parent / "runs", *flags)
    return sonde(*words, cwd=folder.parent)


@pytest.mark.requirement(70)
@pytest.mark.requirement(71)
def test_with_yes_the_demo_task_is_done_and_told(folder: Path) -> None:
    done = sonde_edit(folder, "--yes")

    assert done.returncode == 0
    assert "normalizeWhitespace" in (folder / "sample.ts").read_text()
    assert "sample.ts:9-12" in done.stdout
    assert "changed: sample.ts, sample.test.ts" in done.stderr
    assert "+export function normalizeWhitespace" in done.stderr  # the diff, though nobody is asked
    assert "--yes" not in done.stderr


def test_a_task_without_a_model_is_a_mistake_that_leaves_no_run(folder: Path) -> None:
    done = sonde("edit", "Add it", folder, "--runs-dir", folder.parent / "runs", cwd=folder.parent)

    assert done.returncode == 2
    assert "--model" in done.stderr and done.stdout == ""
    assert not (folder.parent / "runs").exists()


def test_what_commands_may_reach_is_no_flag_where_the_editor_runs_them(tmp_path: Path) -> None:
    done = sonde("serve", "--stdio", "--command-write", tmp_path, cwd=tmp_path)

    assert (done.returncode, "--acp" in done.stderr) == (2, True)


def test_an_mcp_server_that_is_to_run_commands_is_refused(tmp_path: Path) -> None:
    done = sonde("serve", "--mcp", "--allow-command", "ls", cwd=tmp_path)

    assert done.returncode == 2
    assert "--allow-command" in done.stderr


@pytest.mark.requirement(68)
def test_a_limit_that_is_typed_holds_within_the_larger_budget(folder: Path) -> None:
    done = json.loads(sonde_edit(folder, "--yes", "--large", "--max-tokens-total", "700", "--json").stdout)

    assert done["status"] == "partial"
    assert "max_tokens_total" in done["error"]["message"]


def test_where_nobody_can_answer_it_says_so_before_it_begins_and_nothing_is_written(folder: Path) -> None:
    done = sonde_edit(folder)

    assert "--yes approves all of them" in done.stderr
    assert "normalizeWhitespace" not in (folder / "sample.ts").read_text()
    assert "changed: nothing" in done.stderr


def test_a_quiet_edit_that_nobody_approved_does_not_read_as_done(folder: Path) -> None:
    patch = "*** Begin Patch\\n*** Update File: sample.ts\\n@@\\n+// A note.\\n*** End Patch"
    steps = [f"print(read_file('sample.ts', 1, 4)['content'])\nprint(apply_patch('{patch}')['summary'])"]
    steps += ["FINAL('Added a note. [sample.ts:1-4]')"] * 2
    with ScriptedServer([f"```python\n{step}\n```" for step in steps]) as server:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": server.base_url}
        done = sonde("edit", "Add a note", folder, "-q", cwd=folder.parent, **env)

    assert done.stdout.startswith("Proposed, not written: Added a note.")
    why, said = done.stderr.splitlines()
    assert why.startswith("partial: no proposed change was applied")
    assert said == "sonde: nothing was written: nobody could be asked here; --yes approves all changes"
    assert "A note" not in (folder / "sample.ts").read_text()


@pytest.mark.long
def test_ctrl_c_at_the_question_ends_the_task_and_nothing_is_written(folder: Path) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sonde", "edit", "Add normalizeWhitespace", str(folder), "--model", MODEL]
    command += ["--runs-dir", str(folder.parent / "runs")]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, text=True) as process:
        os.close(theirs)
        shown = b""
        while b"Apply this change?" not in shown:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=250)
    os.close(ours)

    assert process.returncode == 130
    assert "cancelled by the user" in said
    assert "normalizeWhitespace" not in (folder / "sample.ts").read_text()


def test_ctrl_c_just_before_the_answer_is_awaited_is_heard() -> None:
    ours, theirs = pty.openpty()
    heard, slept = threading.Event(), threading.Event()

    def interrupt() -> None:
        shown = b""
        while b"Apply this change?" not in shown:
            shown += os.read(ours, 65536)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # no read of the main thread is interrupted by it
        if not heard.wait(60):
            slept.set()
            os.write(ours, b"y\n")

    helper = threading.Thread(target=interrupt)
    with os.fdopen(theirs) as asked, os.fdopen(os.dup(theirs), "w") as shown, soft_stop(said=None):
        helper.start()
        with pytest.raises(KeyboardInterrupt):
            approval(yes=False, stdin=asked, stderr=shown)(PLAN)
        heard.set()
        helper.join()
    os.close(ours)
    assert not slept.is_set()


def test_a_folder_that_is_none_is_a_usage_error(folder: Path) -> None:
    done = sonde_edit(folder / "sample.ts", "--yes")

    assert done.returncode == 2
    assert "is not a folder" in done.stderr


def answers(*lines: str) -> tuple[AtTerminal, io.StringIO]:
    given, out = iter([f"{line}\n" for line in lines]), io.StringIO()
    return AtTerminal(lambda: next(given, ""), out), out


def test_yes_applies_and_no_takes_a_reason() -> None:
    person, out = answers("y", "n", "use two")

    assert person(PLAN).accepted
    refused = person(PLAN)
    assert (refused.accepted, refused.reason) == (False, "use two")
    assert "-1" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    "hidden",
    [
        "\u2028",
        "\u2029",
        "\x85",
        "\x0b",
        "\x0c",
        "\x1c",
        "\u202e",
        "\u2066",
        "\u200b",
        "\u200d",
        "\ufeff",
        "\xad",
        "\U000e0041",
    ],
)
def test_hidden_characters_are_written_out_and_make_no_lines(hidden: str) -> None:
    line = f"+harmless{hidden} unchanged = True"
    plan = plan_patch(f"*** Begin Patch\n*** Add File: a\n{line}\n*** End Patch", lambda _path: None)
    person, out = answers("n", "no")

    person(plan)

    assert hidden not in out.getvalue()
    assert f"+harmless<U+{ord(hidden):04X}> unchanged = True" in out.getvalue().split("\n")


def test_a_line_that_looks_like_the_heading_of_another_file_is_marked_and_coloured_as_a_line() -> None:
    old = "--- a/unchanged\n-- a/README.md\n-- a comment\ny = 2\n"
    patch = """*** Begin Patch
*** Update File: build.lua
 --- a/unchanged
--- a/README.md
--- a comment
+++ b/README.md
+os.execute('evil')
 y = 2
*** End Patch"""
    out = io.StringIO()

    AtTerminal(lambda: "n\n", out, color=True)(plan_patch(patch, lambda _path: old))

    lines = out.getvalue().split("\n")
    assert [each for each in lines if each.startswith(("---", "+++"))] == ["--- a/build.lua", "+++ b/build.lua"]
    assert "(unchanged line)  --- a/unchanged" in lines
    assert "\x1b[31m(removed line) --- a/README.md\x1b[0m" in lines
    assert "\x1b[31m--- a comment\x1b[0m" in lines
    assert "\x1b[32m(added line) +++ b/README.md\x1b[0m" in lines


def test_all_is_asked_once() -> None:
    person, _ = answers("a")

    assert person(PLAN).accepted
    assert person(PLAN).accepted


def test_the_end_of_input_is_a_no() -> None:
    person, _ = answers()

    assert not person(PLAN).accepted


def test_without_a_terminal_nobody_is_asked() -> None:
    assert not approval(yes=False, stdin=io.StringIO("y\n"))(PLAN).accepted
    assert approval(yes=True, stdin=io.StringIO())(PLAN).accepted


def test_without_a_terminal_the_change_is_shown_and_the_reason_is_no_users_no(folder: Path) -> None:
    done = sonde_edit(folder)

    assert "+export function normalizeWhitespace" in done.stderr
    assert "not approved: there is no terminal to ask at; use --yes or run it in a terminal" in _journal(folder)
    assert "rejected" not in done.stdout + done.stderr + _journal(folder)


def _journal(folder: Path) -> str:
    return "".join(file.read_text() for file in (folder.parent / "runs").glob("*/events.jsonl"))


@pytest.mark.long
def test_what_was_written_is_kept_as_a_patch_that_takes_it_back(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert sonde_edit(folder, "--yes").returncode == 0
    assert (folder / "sample.ts").read_bytes() != before["sample.ts"]

    (patch,) = (folder.parent / "runs").glob("*/edit.patch")
    subprocess.run(["git", "apply", "-R", patch], cwd=folder, check=True)

    assert {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


CHECK = "=sh check.sh"


def edit_with_a_check(folder: Path, steps: list[str], *flags: str, check: str = "grep -q 'A note' sample.ts") -> Shown:
    """A task with a check, which passes only once sample.ts has a note."""
    (folder / "check.sh").write_text(f"{check}\n")
    with ScriptedServer([f"```python\n{step}\n```" for step in steps]) as server:
        env = {"OPENAI_API_KEY": "sk-test", "OPENAI_BASE_URL": server.base_url}
        words = ("edit", "Make the check pass", folder, "--allow-command", CHECK, "--yes", "--runs-dir", "runs", *flags)
        return sonde(*words, cwd=folder.parent, **env)


LOOK = "print(read_file('sample.ts', 1, 4)['content'])"
RUN = "print(execute_command('sh check.sh'))"
NOTE = "apply_patch('*** Begin Patch\\n*** Update File: sample.ts\\n@@\\n }\\n+// A note.\\n*** End Patch')"
DONE = "FINAL('The check passes. [sample.ts:1-4]')"


def test_who_says_that_all_is_well_after_a_command_failed_ends_partial_and_the_command_is_named(folder: Path) -> None:
    done = edit_with_a_check(folder, [LOOK, RUN, DONE, DONE])

    assert "ran: sh check.sh (exit 1)" in done.stderr.splitlines()
    assert "the last run of `sh check.sh` exited 1" in done.stdout
    assert "partial · 4 turns" in done.stderr
    shown = sonde("runs", "show", "last", "--runs-dir", "runs", cwd=folder.parent).stdout
    assert "# edit: partial" in shown and "- ran: sh check.sh (exit 1)" in shown
    replayed = sonde("replay", "last", "--runs-dir", "runs", cwd=folder.parent)
    assert replayed.returncode == 0, replayed.stdout


def test_the_last_run_of_a_command_counts_and_a_model_that_is_told_can_mend_it(folder: Path) -> None:
    done = edit_with_a_check(folder, [LOOK, RUN, DONE, f"{NOTE}\n{RUN}\n{LOOK}", DONE], "--json")

    told = json.loads(done.stdout)
    assert (told["status"], told["gaps"]) == ("succeeded", [])
    assert told["ran"] == [{"command": "sh check.sh", "exit_code": 0}]


def test_a_command_that_failed_is_named_when_a_limit_ends_the_task(folder: Path) -> None:
    done = edit_with_a_check(folder, [LOOK, RUN, LOOK, LOOK], "--max-iterations", "3", "--json")

    told = json.loads(done.stdout)
    assert told["status"] == "partial"
    assert "the last run of `sh check.sh` exited 1" in told["gaps"]


@pytest.mark.skipif(not confinable(), reason="this kernel has no landlock")
def test_a_command_to_which_a_place_was_closed_tells_the_user_the_flag_that_opens_it(folder: Path) -> None:
    (folder.parent / "beside").mkdir()
    (folder.parent / "beside/data").write_text("A note\n")
    done = edit_with_a_check(folder, [LOOK, RUN, DONE, DONE], check="cat ../beside/data")

    assert "exited 1; something was closed to it, and --command-read DIR" in done.stdout
