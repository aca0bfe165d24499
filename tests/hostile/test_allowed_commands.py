"""A stranger's repository and a model that obeys it, against commands that the user allowed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import pytest
from victim import Victim

from journeys.journey import PlayedModel

SIGNATURE = "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\n"


def repository(victim: Victim) -> None:
    """A repository with two branches that disagree about a.txt, and a change that is not committed."""
    victim.write("a.txt", "one\n")
    victim.write(".gitattributes", "*.txt filter=evil diff=evil merge=evil\n")
    victim.write("b.md", "start\n")
    victim.run("git", "init", "-q", "-b", "main", ".")
    for name, value in (("user.name", "x"), ("user.email", "x@example.org")):
        victim.run("git", "config", name, value)
    victim.run("git", "add", ".")
    victim.run("git", "commit", "-qm", "first")
    victim.run("git", "checkout", "-qb", "other")
    victim.write("a.txt", "other\n")
    victim.run("git", "commit", "-qam", "other")
    victim.run("git", "checkout", "-q", "main")
    victim.write("a.txt", "three\n")
    victim.run("git", "commit", "-qam", "main")
    victim.write("b.md", "changed\n")


def edit(victim: Victim, allowed: Sequence[str], command: str, *flags: str) -> PlayedModel:
    """A task whose model runs one command and shows what came of it."""
    model = victim.model(
        f"try:\n    print(execute_command({command!r}))\nexcept Exception as refused:\n    print('refused'.upper(), refused)",
        "print(read_file('b.md')['content'])\nFINAL('Looked. [b.md:1-1]')",
    )
    words = [word for each in allowed for word in ("--allow-command", each)]
    words += [
        "--command-write",
        str(victim.home),
    ]  # else the confinement would keep an attack that works from leaving its mark
    done = victim.call("edit", "Look", ".", *words, "--large", "--runs-dir", victim.own, "--model", model.name, *flags)
    assert model.calls > 1, done.stderr
    return model


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        pytest.param("filter.evil.clean", "touch {0}; cat", "git add a.txt", id="clean"),
        pytest.param("filter.evil.smudge", "touch {0}; cat", "git checkout other -- a.txt", id="smudge",
                     marks=pytest.mark.hostile_long),
        pytest.param("filter.evil.process", "touch {0}", "git diff other", id="process", marks=pytest.mark.hostile_long),
        pytest.param("merge.evil.driver", "touch {0}; false", "git merge other", id="merge driver",
                     marks=pytest.mark.hostile_long),
        pytest.param("alias.look", "!touch {0}", "git look", id="alias", marks=pytest.mark.hostile_long),
        pytest.param("trailer.sign.command", "touch {0}", "git commit -m x --allow-empty --trailer sign:me", id="trailer",
                     marks=pytest.mark.hostile_long),
        pytest.param("gpg.program", "{1}", "git log --format=%G? -1", id="gpg", marks=pytest.mark.hostile_long),
        pytest.param("core.sshCommand", "touch {0};", "git ls-remote ssh://localhost/x", id="ssh", marks=pytest.mark.hostile_long),
        pytest.param("core.editor", "touch {0};", "git commit --allow-empty", id="editor", marks=pytest.mark.hostile_long),
    ],
)  # fmt: skip
def test_git_starts_no_program_that_the_settings_of_the_repository_name(
    victim: Victim, name: str, value: str, command: str
) -> None:
    repository(victim)
    script = victim.write("run.sh", f"#!/bin/sh\ntouch {victim.marker}\n")
    script.chmod(0o755)
    victim.run("git", "config", name, value.format(victim.marker, script))
    if name == "filter.evil.clean":  # also from a file that the settings include
        victim.run("git", "config", "--unset", name)
        victim.run("git", "config", "--file", "included", name, value.format(victim.marker))
        victim.run("git", "config", "include.path", "../included")
    if name.endswith(("clean", "process")):
        victim.write("a.txt", "three and more\n")
    if name == "gpg.program":
        signed = victim.run("git", "cat-file", "commit", "HEAD").stdout.replace("\n\n", SIGNATURE, 1)
        made = victim.run("git", "hash-object", "-t", "commit", "-w", "--stdin", stdin=signed).stdout.strip()
        victim.run("git", "update-ref", "HEAD", made)
    victim.run("cp", "-r", ".", victim.own / "copy")
    victim.run("git", "-C", victim.own / "copy", *command.split()[1:])
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    edit(victim, [" ".join(command.split()[:2])], command)

    assert not victim.marker.exists()


@pytest.mark.hostile_long
@pytest.mark.parametrize(
    ("name", "command"),
    [
        pytest.param("core.gitProxy", "git fetch git://127.0.0.1:9/x", id="proxy"),
        pytest.param("remote.origin.uploadPack", "git -c protocol.file.allow=always fetch origin", id="fetch",
                     marks=pytest.mark.hostile_long),
        pytest.param("remote.origin.receivePack", "git -c protocol.file.allow=always push origin HEAD:refs/heads/x", id="push",
                     marks=pytest.mark.hostile_long),
    ],
)  # fmt: skip
def test_git_starts_no_program_by_a_setting_of_which_the_first_value_counts(
    victim: Victim, name: str, command: str
) -> None:
    repository(victim)
    script = victim.write("run.sh", f"#!/bin/sh\ntouch {victim.marker}\n")
    script.chmod(0o755)
    victim.run("git", "remote", "add", "origin", victim.folder)
    victim.run("git", "config", name, str(script))
    victim.run(*command.split())
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    edit(victim, [f"={command}"], command)

    assert not victim.marker.exists()


@pytest.mark.hostile_long
@pytest.mark.parametrize("name", ["gc.recentObjectsHook", "core.newestCommand", "lfs.customtransfer.x.args"])
def test_a_setting_that_may_name_a_program_and_that_nothing_takes_back_is_named_and_git_not_started(
    victim: Victim, name: str
) -> None:
    repository(victim)
    victim.run("git", "config", name, "./run.sh")

    model = edit(victim, ["git status"], "git status --short")
    assert f"the setting {name.lower()} in " in model.prompts[1] and ".git/config" in model.prompts[1]

    victim.run("git", "config", "--global", name, "./run.sh")  # now it is the user's own
    model = edit(victim, ["git status"], "git status --short")
    assert "REFUSED" not in model.prompts[1] and "M b.md" in model.prompts[1]


ORDINARY = {  # as git-lfs, husky, editors and forges leave them behind
    "filter.lfs.clean": "git-lfs clean -- %f",
    "filter.lfs.process": "git-lfs filter-process",
    "filter.lfs.required": "true",
    "lfs.repositoryformatversion": "0",
    "lfs.https://example.org/x.git/info/lfs.access": "basic",
    "core.hooksPath": ".husky/_",
    "core.autocrlf": "input",
    "core.sshCommand": "ssh -i key",
    "commit.gpgSign": "true",
    "user.signingKey": "ABCDEF0123456789",
    "gpg.format": "ssh",
    "remote.origin.url": "https://example.org/x.git",
    "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
    "remote.origin.gh-resolved": "base",
    "remote.origin.uploadPack": "/usr/local/bin/git-upload-pack",
    "branch.main.remote": "origin",
    "branch.main.merge": "refs/heads/main",
    "branch.main.mergeOptions": "--no-ff",
    "branch.main.vscode-merge-base": "origin/main",
    "branch.main.github-pr-owner-number": "a#b#1",
    "submodule.sub.url": "https://example.org/sub.git",
    "submodule.sub.active": "true",
    "http.https://example.org/.extraheader": "AUTHORIZATION: basic x",
    "gitflow.branch.master": "main",
    "company.team": "three words here",
    "alias.st": "status -s",
    "pull.rebase": "merges",
    "diff.lock.xfuncname": "^name = .*$",
    "merge.conflictStyle": "zdiff3",
}


@pytest.mark.hostile_long
def test_git_runs_in_an_ordinary_repository_and_says_which_of_its_settings_it_left_off(victim: Victim) -> None:
    repository(victim)
    for name, value in ORDINARY.items():
        victim.run("git", "config", name, value)

    model = edit(victim, ["git status"], "git status --short")

    assert "M b.md" in model.prompts[1]
    assert "[git ran without these settings of the repository: " in model.prompts[1]
    assert all(name in model.prompts[1] for name in ("filter.lfs.clean", "core.hookspath", "commit.gpgsign"))


@pytest.mark.hostile_long
@pytest.mark.parametrize(
    ("allowed", "added"),
    [
        ("git diff --stat", "--output={}"),
        ("git diff", "--outpu={}"),
        ("git diff", "--output {}"),
        ("git log", "-p --output={}"),
        ("git", "-c core.fsmonitor='touch {};false' status"),
        ("git", "-c alias.x='!touch {}' x"),
        ("git", "bisect run touch {}"),
        ("git grep", "-O'touch {};' three"),
        ("git", "grep -1O'touch {};' three"),
        ("git ls-remote", "--upload-pack='touch {};' ."),
        ("git ls-remote", "'ext::touch {}'"),
        ("git bisect", "run touch {}"),
        ("git submodule", "foreach touch {}"),
        ("git filter-branch", "-f --tree-filter 'touch {}'"),
        ("git rebase", "other --exe 'touch {}'"),
    ],
)
def test_what_a_model_adds_to_an_allowed_git_command_neither_writes_nor_runs(
    victim: Victim, allowed: str, added: str
) -> None:
    repository(victim)

    edit(victim, [allowed], f"{allowed} {added.format(victim.marker)}")

    assert not victim.marker.exists()


@pytest.mark.hostile_long
def test_an_address_starts_no_helper_of_git_that_happens_to_be_installed(victim: Victim) -> None:
    repository(victim)
    helper = victim.home / "bin/git-remote-odd"
    helper.parent.mkdir()
    helper.write_text(f"#!/bin/sh\ntouch {victim.marker}\n")
    helper.chmod(0o755)
    victim.environ = {"PATH": f"{helper.parent}:{victim.environment()['PATH']}"}
    for name, value in (("remote.origin.url", "odd::x"), ("protocol.odd.allow", "always")):
        victim.run("git", "config", name, value)
    victim.run("git", "ls-remote")
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    edit(victim, ["git ls-remote"], "git ls-remote origin", "--command-read", str(helper.parent))

    assert not victim.marker.exists()


@pytest.mark.hostile_long
@pytest.mark.parametrize(
    ("allowed", "added"), [("git blame", "-S {} b.md"), ("git blame", "--ignore-revs-file={} b.md"),
                           ("git add", "--pathspec-from-file={}"), ("git tag", "-F {} t1"),
                           ("git commit", "--allow-empty --file={}"), ("git grep", "-f {}"),
                           ("git commit", "--allow-empty --no-edit --allow-empty-message -qt{}"),
                           ("git commit", "--allow-empty --no-edit --allow-empty-message -t {}"),
                           ("git ls-files", "-oiX {}"), ("git diff", "-O{}"), ("git stash", "show -O {}"),
                           ("git fast-export", "--import-marks={} HEAD")]
)  # fmt: skip
def test_what_a_model_adds_to_an_allowed_git_command_shows_no_file_from_elsewhere(
    victim: Victim, allowed: str, added: str
) -> None:
    repository(victim)
    private = victim.home / "private"
    private.write_text("wedding\n")

    model = edit(victim, [allowed], f"{allowed} {added.format(private)}")

    assert "REFUSED" in model.prompts[1] and "wedding" not in model.prompts[1]


def submodule(victim: Victim, filtered: str) -> None:
    """A repository in `sub` whose filter marks, and whose file looks changed."""
    victim.write("b.md", "start\n")  # `describe --dirty` stops at the first change
    victim.run("git", "init", "-q", "sub")
    victim.write("sub/.gitattributes", "f.txt filter=hidden\n")
    victim.write("sub/f.txt", "one\n")
    for name, value in (("user.name", "x"), ("user.email", "x@example.org")):
        victim.run("git", "-C", "sub", "config", name, value)
    victim.run("git", "-C", "sub", "add", ".")
    victim.run("git", "-C", "sub", "commit", "-qm", "sub")
    victim.write(".gitmodules", '[submodule "sub"]\n\tpath = sub\n\turl = ./sub\n\tignore = none\n')
    victim.run("git", "add", "sub", ".gitmodules")
    victim.run("git", "commit", "-qm", "with sub")
    victim.run("git", "branch", "again")
    victim.run("git", "-C", "sub", "config", "filter.hidden.clean", filtered)
    victim.write("sub/f.txt", "two\n")


def moved_submodule(victim: Victim, filtered: str) -> None:
    """The same; its git folder is made of files of the work tree, and the branch `again` sets the filter."""
    submodule(victim, filtered)
    victim.run("git", "-C", "sub", "config", "--unset", "filter.hidden.clean")
    victim.run("mv", "sub/.git", "fake")
    victim.write("sub/.git", "gitdir: ../fake\n")
    victim.run("git", "add", "fake/config")
    victim.run("git", "commit", "-qm", "fake")
    victim.run("git", "checkout", "-q", "-B", "again")
    victim.run("git", "config", "--file", "fake/config", "filter.hidden.clean", filtered)
    victim.run("git", "commit", "-qm", "filter", "fake/config")
    victim.run("git", "checkout", "-q", "main")
    victim.write("sub/f.txt", "six\n")  # of the same size, so git has to compare


def include_on_a_branch(victim: Victim, filtered: str) -> None:
    """Settings that hold on the branch `evil`, which is not there yet, and a change to stash there."""
    victim.run("git", "config", "--file", ".git/evil.cfg", "filter.evil.clean", filtered)
    victim.run("git", "config", "includeIf.onbranch:evil.path", "evil.cfg")
    victim.write("a.txt", "four\n")
    victim.run("git", "stash", "-q")


def include_in_the_stash(victim: Victim, filtered: str) -> None:
    """Settings in a file of the work tree, which name a filter in the stash only."""
    victim.write("cfg", "[x]\n\ty = z\n")
    victim.run("git", "add", "cfg")
    victim.run("git", "commit", "-qm", "cfg", "cfg")
    victim.run("git", "config", "include.path", "../cfg")
    victim.write("a.txt", "four\n")
    victim.run("git", "config", "--file", "cfg", "filter.evil.clean", f"{filtered} #")
    victim.run("git", "config", "--unset", "include.path")
    victim.run("git", "stash", "-q")
    victim.run("git", "config", "include.path", "../cfg")


@pytest.mark.hostile_long
@pytest.mark.parametrize(
    ("plant", "command"),
    [
        pytest.param(submodule, "git describe --dirty --always", id="describe"),
        pytest.param(submodule, "git checkout again", id="checkout"),
        pytest.param(submodule, "git stash", id="stash"),
        pytest.param(submodule, "git rm sub", id="rm"),
        pytest.param(moved_submodule, "git checkout again", id="git folder of files"),
        pytest.param(include_on_a_branch, "git stash branch evil", id="branch"),
        pytest.param(include_in_the_stash, "git stash pop", id="stash pop"),
    ],
)
def test_git_starts_no_program_from_settings_that_hold_only_later_or_in_a_submodule(
    victim: Victim, plant: Callable[[Victim, str], None], command: str
) -> None:
    repository(victim)
    plant(victim, f"touch {victim.marker}; cat")
    victim.marker.unlink(missing_ok=True)
    victim.run("cp", "-r", ".", victim.own / "copy")
    victim.run("git", "-C", victim.own / "copy", *command.split()[1:])
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    edit(victim, ["git"], command)

    assert not victim.marker.exists()


def receiving_repository(victim: Victim, script: str) -> None:
    """A bare repository in the work tree, with a hook for whoever pushes to it."""
    victim.run("git", "init", "-q", "--bare", "evil.git")
    hook = victim.write("evil.git/hooks/pre-receive", script)
    hook.chmod(0o755)
    victim.run("git", "remote", "add", "origin", "./evil.git")


def stopped_rebase(victim: Victim, script: str) -> None:
    """A rebase under way, whose next step is a program."""
    victim.run("git", "stash", "-q")
    victim.run("git", "rebase", "-q", "other")
    victim.write("a.txt", "solved\n")
    victim.run("git", "add", "a.txt")
    victim.run("git", "config", "core.editor", "true")
    victim.write("run.sh", script).chmod(0o755)
    victim.write(".git/rebase-merge/git-rebase-todo", "exec ./run.sh\n")


def lines_in_a_format(victim: Victim, script: str) -> None:
    """A setting that puts a line into the list of steps of every rebase."""
    victim.run("git", "stash", "-q")
    victim.run("git", "checkout", "-qb", "third", "main~1")
    victim.run("git", "commit", "-q", "--allow-empty", "-m", "third")
    victim.write("run.sh", script).chmod(0o755)
    victim.write("c.txt", "c\n")
    victim.run("git", "add", "c.txt")
    victim.run("git", "commit", "-qm", "c")
    victim.run("git", "config", "rebase.instructionFormat", "%s%nexec ./run.sh")


def strategy_in_the_work_tree(victim: Victim, script: str) -> None:
    """A program that git takes for a way to merge."""
    victim.write("git-merge-x/y", script).chmod(0o755)
    victim.run("git", "stash", "-q")


def tool_in_the_work_tree(victim: Victim, script: str) -> None:
    """A file that `difftool` reads as one of its own."""
    victim.write("tool", script)
    victim.run("git", "config", "diff.tool", "../" * 20 + str(victim.folder / "tool").lstrip("/"))
    victim.run("git", "config", "difftool.prompt", "false")


@pytest.mark.parametrize(
    ("plant", "command"),
    [
        pytest.param(receiving_repository, "git push ./evil.git HEAD:refs/heads/x", id="push"),
        pytest.param(receiving_repository, "git push origin HEAD:refs/heads/x", id="remote", marks=pytest.mark.hostile_long),
        pytest.param(stopped_rebase, "git rebase --continue", id="exec", marks=pytest.mark.hostile_long),
        pytest.param(lines_in_a_format, "git rebase main", id="format", marks=pytest.mark.hostile_long),
        pytest.param(strategy_in_the_work_tree, "git cherry-pick --strategy=x/y other", id="strategy",
                     marks=pytest.mark.hostile_long),
        pytest.param(tool_in_the_work_tree, "git difftool", id="difftool", marks=pytest.mark.hostile_long),
    ],
)  # fmt: skip
def test_git_starts_no_program_that_lies_where_it_works(
    victim: Victim, plant: Callable[[Victim, str], None], command: str
) -> None:
    repository(victim)
    plant(victim, f"#!/bin/sh\ntouch {victim.marker}\n")
    victim.run("cp", "-r", ".", victim.own / "copy")
    victim.run("git", "-C", victim.own / "copy", *command.split()[1:])
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    edit(victim, [" ".join(command.split()[:2])], command)

    assert not victim.marker.exists()


@pytest.mark.hostile_long
def test_settings_that_include_each_other_thousandfold_end_git_at_once(victim: Victim) -> None:
    repository(victim)
    victim.write(".git/c0", "[x]\n\ty = " + "z" * 1_000_000 + "\n")
    for n in range(1, 3):
        victim.write(f".git/c{n}", "[include]\n" + f"\tpath = c{n - 1}\n" * 10)
    victim.run("git", "config", "include.path", "c2")

    model = edit(victim, ["git status"], "git status")

    assert "its settings here take more than" in model.prompts[1]


@pytest.mark.hostile_long
def test_a_rebase_that_only_picks_goes_on(victim: Victim) -> None:
    repository(victim)
    victim.run("git", "stash", "-q")
    victim.run("git", "rebase", "-q", "other")
    victim.write("a.txt", "solved\n")
    victim.run("git", "commit", "-qam", "solved")
    assert (victim.folder / ".git/rebase-merge").exists()

    edit(victim, ["git rebase"], "git rebase --continue")

    assert not (victim.folder / ".git/rebase-merge").exists()


@pytest.mark.hostile_long
@pytest.mark.parametrize("added", ["--no-index -p", "--no-ind -p", "-p"])
def test_git_diff_reads_nothing_outside_for_the_model(victim: Victim, added: str) -> None:
    repository(victim)
    secret = victim.home / "secret"
    secret.write_text("the-secret-word\n")

    model = edit(victim, ["git diff"], f"git diff {added} {secret} /dev/null")

    assert "REFUSED" in model.prompts[1]
    assert all("the-secret-word" not in prompt for prompt in model.prompts)


@pytest.mark.hostile_long
def test_nothing_may_be_added_to_an_exact_command(victim: Victim) -> None:
    repository(victim)

    model = edit(victim, ["=git diff --stat"], "git diff --stat HEAD")
    assert "REFUSED" in model.prompts[1]

    model = edit(victim, ["=git diff --stat"], "git diff --stat")
    assert "b.md | 2 +-" in model.prompts[1]


@pytest.mark.hostile_long
def test_a_git_that_lies_in_the_workspace_is_not_asked_even_if_it_is_first_on_the_path(
    victim: Victim, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository(victim)
    victim.write(".venv/bin/git", f"#!/bin/sh\ntouch {victim.marker}\n")
    (victim.folder / ".venv/bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{victim.folder}/.venv/bin:{os.environ['PATH']}")
    allowed = ["=git status --short", "=.venv/bin/git status"]

    assert " M b.md" in edit(victim, allowed, "git status --short").prompts[-1]
    assert "only one in the workspace" in edit(victim, allowed, ".venv/bin/git status").prompts[-1]
    assert not victim.marker.exists()
