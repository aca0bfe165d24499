"""What a hostile folder, a hostile patch or an allowed command that misbehaves can do to us: nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sonde.contexts.workspace import LocalWorkspace, PathRefused, Policy, WorkspaceContext, accept, plan_patch
from sonde.contexts.workspace.text import MAX_BYTES
from sonde.errors import ToolFault


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("one\n")
    return tmp_path / "work"


def opened(folder: Path, *commands: str, seconds: float = 60) -> LocalWorkspace:
    return LocalWorkspace(folder, approve=accept, policy=Policy(commands=commands, command_timeout_s=seconds))


def alive(pid_file: Path) -> bool:
    """Whether the process still runs; a zombie that nobody has waited for yet does not."""
    try:
        return Path(f"/proc/{int(pid_file.read_text())}/stat").read_text().split(") ")[1][0] not in "ZX"
    except FileNotFoundError:
        return False


def test_what_a_command_leaves_in_the_background_ends_with_it(folder: Path) -> None:
    result = opened(folder, "sh").execute("sh -c 'sleep 60 >/dev/null 2>&1 & echo $! > pid; echo done'")

    assert result.stdout == "done\n"
    deadline = time.monotonic() + 60
    while alive(folder / "pid") and time.monotonic() < deadline:
        threading.Event().wait(0.02)
    assert not alive(folder / "pid")


def test_a_child_in_a_session_of_its_own_cannot_keep_us_waiting(folder: Path) -> None:
    started = time.monotonic()

    result = opened(folder, "sh").execute("sh -c 'setsid sleep 300 & echo done'")

    assert result.stdout == "done\n"
    assert time.monotonic() - started < 200


@pytest.mark.parametrize("command", ["sh -c '{}'", "sh -c '{} sleep 60'"], ids=["ended", "out of time"])
def test_a_child_that_left_the_group_ends_with_the_command_too(folder: Path, command: str) -> None:
    leaving = (
        '(setsid sh -c "echo \\$\\$ > pid; exec sleep 60" >/dev/null 2>&1 &) ; while [ ! -s pid ]; do sleep 0.01; done;'
    )
    workspace = opened(folder, "sh", seconds=10)

    with suppress(ToolFault):
        workspace.execute(command.format(leaving))

    assert (folder / "pid").read_text().strip()
    assert not alive(folder / "pid")


def test_how_a_command_ended_is_told_as_it_was(folder: Path) -> None:
    workspace = opened(folder, "sh")

    assert workspace.execute("sh -c 'exit 7'").exit_code == 7
    assert workspace.execute("sh -c 'kill -9 $$'").exit_code == -9
    quiet = workspace.execute("sh -c 'yes | head -1'")  # a closed pipe ends a program quietly, as in a shell
    assert quiet.stderr == ""


def test_a_flood_of_output_ends_the_command_and_does_not_fill_our_memory(folder: Path) -> None:
    workspace = opened(folder, "yes")
    result = workspace.execute("yes")
    shown = WorkspaceContext(workspace, commands=["yes"]).execute_command("yes")

    assert len(result.stdout) <= 8 << 20
    assert len(shown["stdout"]) <= 20_000
    assert "printed too much" in result.stderr


def test_a_program_of_the_folder_is_meant_from_its_root_whatever_folder_the_model_names(folder: Path) -> None:
    for place, word in ((folder, "mine"), (folder / "sub", "other")):
        place.mkdir(exist_ok=True)
        (place / "t.sh").write_text(f"#!/bin/sh\necho {word} $PWD\n")
        (place / "t.sh").chmod(0o755)

    workspace = LocalWorkspace(folder, policy=Policy(commands=("./t.sh",), command_folders=("sub",)))

    assert workspace.execute("./t.sh", "sub").stdout == f"mine {folder.resolve()}/sub\n"
    with pytest.raises(ToolFault, match="run in the root"):
        opened(folder, "./t.sh").execute("./t.sh", "sub")


@pytest.mark.parametrize("command", ["sh -c 'a\0b'", "sh \ud800"])
def test_a_command_that_no_program_could_get_is_a_fault_in_words(folder: Path, command: str) -> None:
    with pytest.raises(ToolFault, match="could not be started"):
        opened(folder, "sh").execute(command)


@pytest.mark.parametrize(
    "path",
    [".exrc", ".nvim.lua", ".dir-locals.el", ".cursor/mcp.json", ".MCP.json", ".claude/settings.json", ".zed/tasks.json",
     ".husky/pre-commit", ".devcontainer.json", "git~1/hooks/post-commit", ".clinerules/hooks/PreToolUse", "env/bin/activate",
     ".envrc.local", ".autoenv.zsh", "sub/.tool-versions", "mise/config.local.toml", ".luarc.json", "eslint.config.mjs",
     "renv/activate.R", "rust-toolchain.toml", ".claude-plugin/hooks.json"],
)  # fmt: skip
def test_files_that_make_an_editor_an_assistant_or_git_start_programs_are_not_written(folder: Path, path: str) -> None:
    box = opened(folder)

    with pytest.raises(PathRefused):
        box.apply(plan_patch(f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch", box.text))


@pytest.mark.parametrize(
    "path", ["justfile", "Makefile", "env/notes.md", "mise/README.md", "CLAUDE.md", "src/config.toml"]
)
def test_what_only_a_further_act_of_the_user_starts_may_be_written(folder: Path, path: str) -> None:
    box = opened(folder)

    assert box.apply(plan_patch(f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch", box.text)).applied


@pytest.mark.parametrize("path", ["x" * 300, "/".join(["d" * 200] * 30), "loop", "loop/x"])
def test_names_that_cannot_be_are_refused_in_words_by_every_tool(folder: Path, path: str) -> None:
    (folder / "loop").symlink_to("loop")
    box = opened(folder)

    for attempt in (box.text, box.list_files):
        with pytest.raises(PathRefused):
            attempt(path)
    with pytest.raises(PathRefused):
        box.search("one", path)
    with pytest.raises(PathRefused):
        box.apply(plan_patch(f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch", box.text))


def test_a_link_to_version_control_does_not_list_it(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git/config").write_text("x")
    (folder / "innocent").symlink_to(".git")

    with pytest.raises(PathRefused, match="protected"):
        opened(folder).list_files("innocent")


def test_a_file_that_grows_while_it_is_read_is_refused(folder: Path) -> None:
    grown = folder / "grown.txt"
    grown.write_bytes(b"x" * MAX_BYTES)
    stop = threading.Event()

    def grow() -> None:
        with grown.open("r+b") as file:
            while not stop.is_set():
                file.truncate(MAX_BYTES)
                os.pwrite(file.fileno(), b"x" * (4 << 20), MAX_BYTES)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        for _ in range(20):
            try:
                text = opened(folder).text("grown.txt")
            except PathRefused:
                continue
            assert text is not None and len(text) <= MAX_BYTES
    finally:
        stop.set()
        writer.join()


def test_an_empty_prefix_allows_nothing(folder: Path) -> None:
    with pytest.raises(ToolFault, match="not an allowed command"):
        opened(folder, "", " ").execute("touch x")


def test_a_child_that_hops_from_process_to_process_ends_with_the_command(folder: Path) -> None:
    (folder / "hop.py").write_text(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    for _ in range(20_000):\n"
        "        os.setsid() if os.getsid(0) != os.getpid() else None\n"
        "        with open('hops', 'a') as file:\n"
        "            print(os.getpid(), file=file, flush=True)\n"
        "        if os.fork():\n"
        "            os._exit(0)\n"
        "while not os.path.exists('hops'):\n"
        "    time.sleep(0.01)\n"
        "print('done', flush=True)\n"
    )

    result = opened(folder, sys.executable).execute(f"{sys.executable} hop.py")

    assert result.exit_code == 0
    last = (folder / "hops").read_text().split()[-1]
    (folder / "last").write_text(last)
    assert not alive(folder / "last")
    assert (folder / "hops").read_text().split()[-1] == last


def test_git_is_refused_before_a_walk_through_a_work_tree_elsewhere_and_a_walk_has_an_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.contexts.workspace.git.MAX_WALKED", 0)
    workspace = opened(folder, "git")
    for command in ("init -q", "-c user.name=x -c user.email=x@example.org commit -q --allow-empty -m first"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)

    with pytest.raises(ToolFault, match="too many files"):
        workspace.execute("git status")
    assert "first" in workspace.execute("git log").stdout

    subprocess.run(["git", "config", "core.worktree", "/"], cwd=folder, check=True)
    with pytest.raises(ToolFault, match=r"core\.worktree of this repository points out of it"):
        workspace.execute("git status")


@pytest.mark.parametrize(
    "command",
    [
        "git commit -qt.env",
        "git commit --templ=.env",
        "git ls-files -oX/etc/passwd",
        "git log -pO /etc/passwd",
        "git tag -s v1",
        "git tag -u key v1",
        "git merge -S other",
        "git merge -sx/y other",
        "git revert -S HEAD",
        "git push --signed",
        "git archive --add-file=/etc/passwd HEAD",
        "git fast-export --import-marks=/etc/passwd HEAD",
        "git send-email -smtp-server=./run.sh HEAD",
    ],
)
def test_a_model_adds_no_option_to_git_that_names_a_file_a_key_or_a_program(command: str) -> None:
    with pytest.raises(ToolFault, match="may not be added"):
        Policy(commands=(" ".join(command.split()[:2]),)).check_command(command)


@pytest.mark.parametrize(
    "command",
    [
        "git commit -amFirst",
        "git log -SOrder --exclude=x --all",
        "git rev-parse --verify HEAD",
        "git blame -L/Some/,+3 --ignore-rev HEAD a.txt",
        "git merge -Xours other",
        "git revert --reference HEAD",
        "git archive --prefix=x/ HEAD",
    ],
)
def test_a_model_may_add_options_to_git_that_only_look_like_those(command: str) -> None:
    assert Policy(commands=(" ".join(command.split()[:2]),)).check_command(command)
