"""What an allowed command can do where the kernel confines it: its work, with real programs, and nothing beyond."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import venv
from pathlib import Path

import pytest

from sonde.contexts.workspace import LocalWorkspace, Policy
from sonde.contexts.workspace.base import CommandResult
from sonde.contexts.workspace.reach import confinable, outer_git
from sonde.errors import ToolFault

pytestmark = [pytest.mark.long, pytest.mark.skipif(not confinable(), reason="this kernel has no landlock")]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id_rsa").write_text("the-secret-word\n")
    (home / ".gitconfig").write_text("[user]\n\tname = x\n\temail = x@example.org\n")
    return home


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def run(root: Path, home: Path, command: str, **policy: tuple[str, ...]) -> CommandResult:
    environment = {"PATH": PATH, "HOME": str(home), "LANG": "C.UTF-8"}
    allowed = Policy(commands=(f"={command}",), command_timeout_s=240, **policy)  # pyright: ignore[reportArgumentType]  # two of its fields
    return LocalWorkspace(root, policy=allowed, environment=environment).execute(command)


def needs(program: str) -> None:
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is not installed")


def test_pytest_works(root: Path, home: Path) -> None:
    (root / "test_it.py").write_text(
        "import subprocess, socket, threading\n"
        "def test_files(tmp_path):\n    (tmp_path / 'x').write_text('x')\n"
        "def test_process():\n    assert subprocess.run(['ls', '/usr'], capture_output=True).returncode == 0\n"
        "def test_loopback():\n"
        "    with socket.create_server(('127.0.0.1', 0)) as server, socket.create_connection(server.getsockname()): pass\n"
    )

    done = run(root, home, f"{sys.executable} -m pytest -q -p no:randomly -p no:socket")

    assert done.exit_code == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
    assert (root / ".pytest_cache").exists()


def test_a_python_that_the_user_names_by_its_path_reads_its_own_libraries_and_nothing_beside_them(
    root: Path, home: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    venv.create(elsewhere / "env", symlinks=True, with_pip=False)
    (elsewhere / "other").mkdir()
    (elsewhere / "other/key").write_text("the-secret-word\n")
    packages = next((elsewhere / "env/lib").glob("python*/site-packages"))
    (packages / "installed_there.py").write_text("WORD = 'found'\n")
    (root / "it.py").write_text(
        f"import installed_there\nprint(installed_there.WORD)\nprint(open('{elsewhere}/other/key').read())\n"
    )

    done = run(root, home, f"{elsewhere}/env/bin/python it.py")

    assert "found" in done.stdout, done.stderr
    assert "PermissionError" in done.stderr
    assert "the-secret-word" not in done.stdout


def test_a_program_of_the_workspace_opens_nothing_outside_by_a_link(root: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere/bin").mkdir(parents=True)
    (tmp_path / "elsewhere/lib").mkdir()
    (tmp_path / "elsewhere/lib/key").write_text("the-secret-word\n")
    (tmp_path / "elsewhere/bin/show").write_text(f"#!/bin/sh\ncat {tmp_path}/elsewhere/lib/key\n")
    (tmp_path / "elsewhere/bin/show").chmod(0o755)
    (root / "bin").symlink_to(tmp_path / "elsewhere/bin")
    (tmp_path / "also-work").symlink_to(root)

    for program in (f"{root}/bin/show", f"{tmp_path}/also-work/bin/show", "./bin/show"):
        assert "the-secret-word" not in run(root, home, program).stdout
    assert "the-secret-word" in run(root, home, f"{tmp_path}/elsewhere/bin/show").stdout


def test_npm_test_works(root: Path, home: Path) -> None:
    needs("npm")
    script = "node --test"
    (home / ".npmrc").write_text("//registry.example/:_authToken=the-secret-word\n")
    (root / "package.json").write_text(json.dumps({"name": "x", "version": "1.0.0", "scripts": {"test": script}}))
    (root / "it.test.mjs").write_text(
        "import test from 'node:test';\nimport { execFileSync } from 'node:child_process';\n"
        "test('child', () => { execFileSync('true'); });\n"
    )

    done = run(root, home, "npm test")

    assert done.exit_code == 0, done.stdout + done.stderr
    assert "pass 1" in done.stdout


def test_make_and_gcc_work(root: Path, home: Path) -> None:
    needs("gcc")
    (root / "a.c").write_text('#include <stdio.h>\nint main(void) { puts("built"); return 0; }\n')
    (root / "Makefile").write_text("all: a\n\t./a\na: a.c\n\tgcc -O1 -o a a.c\n")

    done = run(root, home, "make -j2")

    assert (done.exit_code, "built" in done.stdout) == (0, True), done.stderr


def test_cargo_works(root: Path, home: Path) -> None:
    needs("cargo")
    (root / "src").mkdir()
    (root / "Cargo.toml").write_text('[package]\nname = "x"\nversion = "0.1.0"\nedition = "2021"\n')
    (root / "src/lib.rs").write_text("#[test]\nfn adds() {\n    assert_eq!(1 + 1, 2);\n}\n")
    real = Path.home()
    environment = {"PATH": PATH, "HOME": str(real), "LANG": "C.UTF-8"}  # rustup finds its toolchain there
    policy = Policy(commands=("=cargo test --offline",), command_timeout_s=240)

    done = LocalWorkspace(root, policy=policy, environment=environment).execute("cargo test --offline")

    assert done.exit_code == 0, done.stderr
    assert "1 passed" in done.stdout


def test_git_works(root: Path, home: Path) -> None:
    (root / "a.txt").write_text("one\n")

    for command in (
        "git init -q -b main .",
        "git add a.txt",
        "git commit -qm first",
        "git status --short",
        "git log --oneline",
    ):
        done = run(root, home, command)
        assert done.exit_code == 0, (command, done)

    assert "first" in done.stdout
    (root / "a.txt").write_text("two\n")
    assert "+two" in run(root, home, "git diff").stdout
    (root / "sub").mkdir()
    assert "a.txt" in run(root / "sub", home, "git status --short").stdout  # the history lies above the workspace


TOKENS = """[user]
	name = "Jo \\"x\\" \\\\ Doe"
	email = jo@example.org
[url "https://oauth2:the-secret-word@example.org/"]
	insteadOf = https://example.org/
[http "https://example.org/"]
	extraheader = Authorization: the-secret-word
[filter "mine"]
	clean = sed s/the-secret-word//
"""


def test_a_command_has_the_users_name_for_git_and_no_token_of_their_settings(root: Path, home: Path) -> None:
    for name in (
        ".config/git/config",
        ".cargo/config.toml",
        ".nvm/versions/node/v1/etc/npmrc",
        ".pyenv/versions/3/pip.conf",
    ):
        (home / name).parent.mkdir(parents=True)
        (home / name).write_text("[core]\n\tabbrev = 12\n# the-secret-word\n")
    (home / ".gitconfig").write_text(TOKENS)
    attack = (
        f"git init -q . && git commit -q --allow-empty -m first && git log --format=%an:%ae:%h; find {home} -type f | xargs cat;"
        "env; cat $GIT_CONFIG_GLOBAL; git config --list; git config --global alias.x log && git x --format=%s"
    )

    done = run(root, home, f"sh -c '{attack}'")

    assert re.match(r'Jo "x" \\ Doe:jo@example.org:[0-9a-f]{12}\n', done.stdout), done
    assert done.stdout.endswith("\nfirst\n")
    assert "the-secret-word" not in done.stdout + done.stderr
    assert run(root, home, "git log --format=%an").stdout == 'Jo "x" \\ Doe\n'
    opened = run(root, home, "git config --list", command_read=(str(home / ".gitconfig"), str(home / ".config")))
    assert "the-secret-word" in opened.stdout


def test_the_settings_of_a_repository_overrule_those_of_the_user_and_the_users_filters_run(
    root: Path, home: Path
) -> None:
    with (home / ".gitconfig").open("a") as file:
        file.write('[filter "mine"]\n\tclean = tr a-z A-Z\n\trequired\n')
    (root / "a.txt").write_text("one\n")
    (root / ".gitattributes").write_text("a.txt filter=mine\n")

    for command in ("git init -q .", "git config user.email here@example.org", "git add a.txt", "git commit -qm first"):
        assert run(root, home, command).exit_code == 0

    assert run(root, home, "git log --format=%an:%ae").stdout == "x:here@example.org\n"
    assert run(root, home, "git cat-file -p HEAD:a.txt").stdout == "ONE\n"


def test_git_of_the_workspace_is_not_asked_for_the_users_settings(root: Path, home: Path, tmp_path: Path) -> None:
    (root / "bin").mkdir()
    (root / "bin/git").write_text(f"#!/bin/sh\ntouch {tmp_path}/outside\n")
    (root / "bin/git").chmod(0o755)
    environment = {"PATH": f"{root}/bin:{PATH}", "HOME": str(home)}

    LocalWorkspace(root, policy=Policy(commands=("=true",)), environment=environment).execute("true")

    assert not (tmp_path / "outside").exists()


def test_git_does_not_work_in_a_folder_that_only_the_repository_names(root: Path, home: Path) -> None:
    assert run(root, home, "git init -q -b main .").exit_code == 0

    assert run(root, home, f"git config core.worktree {root}").exit_code == 0
    assert run(root, home, "git status --short").exit_code == 0
    assert run(root, home, f"git config core.worktree {home}").exit_code == 0
    with pytest.raises(ToolFault, match=r"core\.worktree"):
        run(root, home, "git status --short")


def test_a_worktree_reads_the_history_that_names_it_and_no_other(root: Path, home: Path, tmp_path: Path) -> None:
    for command in ("git init -q -b main .", "git commit -q --allow-empty -m first"):
        assert run(root, home, command).exit_code == 0
    tree = tmp_path / "tree"
    tree.mkdir()
    assert run(root, home, f"git worktree add {tree}/x", command_write=(str(tree),)).exit_code == 0

    assert "first" in run(tree / "x", home, "git log --oneline").stdout

    part = root / "part"
    command = f"git -c protocol.file.allow=always submodule add -q {tree}/x part"
    done = run(root, home, command, command_read=(str(tree),))
    assert done.exit_code == 0, done.stderr
    assert "first" in run(part, home, "git log --oneline").stdout

    stranger = tmp_path / "stranger"
    stranger.mkdir()
    (stranger / ".git").write_text(f"gitdir: {home / '.ssh'}\n")
    assert outer_git(stranger) == []
    vouching = stranger / "worktrees/x"  # a folder of the stranger that names the workspace, and a history elsewhere
    vouching.mkdir(parents=True)
    (vouching / "gitdir").write_text(str(stranger / ".git"))
    (vouching / "commondir").write_text(str(home / ".ssh"))
    (stranger / ".git").write_text(f"gitdir: {vouching}\n")
    assert outer_git(stranger) == []


def test_a_strangers_git_leads_neither_through_a_link_nor_to_a_folder_around_the_workspace(tmp_path: Path) -> None:
    workspace = tmp_path / "home/unpacked/sub"
    workspace.mkdir(parents=True)
    private = tmp_path / "home/private/.git"
    private.mkdir(parents=True)
    place = workspace.parent / ".git"

    place.symlink_to(private)
    assert outer_git(workspace) == []
    place.unlink()
    forged = tmp_path / "home/worktrees/x"
    forged.mkdir(parents=True)
    (forged / "gitdir").write_text(str(place))
    place.write_text(f"gitdir: {forged}\n")
    assert outer_git(workspace) == []
    (tmp_path / "home/config").write_text(f"[core]\n worktree = {place.parent}\n")
    place.write_text(f"gitdir: {tmp_path / 'home'}\n")
    assert outer_git(workspace) == []


def test_an_allowed_git_worktree_takes_options_from_the_model(root: Path, home: Path) -> None:
    assert run(root, home, "git init -q -b main .").exit_code == 0
    policy, environment = Policy(commands=("git worktree",), command_timeout_s=240), {"PATH": PATH, "HOME": str(home)}

    done = LocalWorkspace(root, policy=policy, environment=environment).execute("git worktree list --porcelain")

    assert str(root) in done.stdout


def test_the_temporary_folder_is_its_own_and_is_gone_afterwards(root: Path, home: Path) -> None:
    done = run(root, home, "sh -c 'echo x > $TMPDIR/y && cat $TMPDIR/y && echo $TMPDIR'")

    assert done.exit_code == 0, done.stderr
    assert not Path(done.stdout.split()[-1]).exists()


@pytest.mark.parametrize(
    "command",
    [
        "cat {home}/.ssh/id_rsa",
        "sh -c 'cp {home}/.ssh/id_rsa . && cat id_rsa'",
        "sh -c 'ln {home}/.ssh/id_rsa here; cat here'",
        "sh -c 'ln -s {home}/.ssh/id_rsa here; cat here'",
        "sh -c 'cat < {home}/.ssh/id_rsa'",
        "cat /proc/{pid}/environ",
        "cat /proc/{pid}/root{home}/.ssh/id_rsa",
    ],
)
def test_a_command_reads_no_secret(root: Path, home: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "the-secret-word")

    done = run(root, home, command.format(home=home, pid=os.getpid()))

    assert done.exit_code != 0
    assert "the-secret-word" not in done.stdout
    assert "--command-read" in done.stderr  # says what the user can do


@pytest.mark.parametrize(
    "command", ["touch {0}/x", "sh -c 'mv in {0}/x'", "sh -c 'ln in {0}/x'", "mkdir {0}/x", "mkfifo {0}/x"]
)
def test_a_command_writes_outside_only_where_the_user_says(
    root: Path, home: Path, tmp_path: Path, command: str
) -> None:
    (root / "in").write_text("in\n")
    out = tmp_path / "out"
    out.mkdir()

    assert run(root, home, command.format(out)).exit_code != 0
    assert list(out.iterdir()) == []

    assert run(root, home, command.format(out), command_write=(str(out),)).exit_code == 0
    assert [each.name for each in out.iterdir()] == ["x"]


def test_a_command_reads_outside_where_the_user_says(root: Path, home: Path) -> None:
    done = run(root, home, f"cat {home}/.ssh/id_rsa", command_read=(str(home / ".ssh"),))

    assert done.stdout == "the-secret-word\n"


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("import socket; socket.socket(socket.AF_UNIX).connect('{home}/door')", "PermissionError"),
        ("import socket; socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)", "PermissionError"),
        ("import socket; socket.socket(socket.AF_VSOCK)", "PermissionError"),
        ("import os; os.kill({pid}, 0)", "PermissionError"),
        ("import ctypes; print('errno', ctypes.CDLL(None).mount(b'none', b'{root}', b'tmpfs', 0, None))", "errno -1"),
    ],
    ids=["socket of another program", "pair of datagrams", "socket of the machine below", "signal", "mount"],
)  # fmt: skip
def test_a_command_has_no_way_to_other_programs(root: Path, home: Path, code: str, error: str) -> None:
    (root / "attack.py").write_text(code.format(home=home, pid=os.getpid(), root=root))

    done = run(root, home, f"{sys.executable} attack.py")

    assert error in done.stdout + done.stderr
