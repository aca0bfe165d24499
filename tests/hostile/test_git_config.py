"""A stranger's repository hides a bare repository whose settings name a program. An allowed git command does not start it."""

from __future__ import annotations

import pytest
from victim import Victim

GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")


@pytest.mark.hostile_long
def test_an_allowed_git_command_starts_no_program_of_the_repository(victim: Victim) -> None:
    victim.write("a.txt", "one\n")
    planted = victim.folder / "vendor/docs"
    planted.mkdir(parents=True)
    victim.run("git", "init", "-q", "--bare", planted)
    config = "[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = .\n"
    (planted / "config").write_text(config)
    victim.run("git", "-C", planted, "add", "description")
    (planted / "config").write_text(f'{config}\tfsmonitor = "touch {victim.marker}; false"\n')
    victim.run("git", "-C", planted, "status", "--short")
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()
    victim.run("git", "init", "-q", ".")
    victim.run(*GIT, "add", "a.txt")
    victim.run(*GIT, "commit", "-qm", "first")
    command = "git status --short"
    model = victim.model(
        f"try:\n    print(execute_command({command!r}, cwd='vendor/docs'))\nexcept Exception as refused:\n    print(refused)",
        f"print(execute_command({command!r})['exitCode'])\nprint(read_file('a.txt')['content'])",
        "FINAL('Looked. [a.txt:1-1]')",
    )

    flags = (
        "--allow-command",
        command,
        "--large",
        "--command-write",
        victim.home,
        "--runs-dir",
        victim.own,
        "--model",
        model.name,
    )
    done = victim.sonde("edit", "Look", ".", *flags)

    assert done.returncode == 0, done.stderr
    assert "commands run in the root of the workspace" in model.prompts[1]
    assert not victim.marker.exists()

    victim.sonde("edit", "Look", ".", *flags[:-1], victim.model(*MEANT).name, "--command-cwd", "vendor/docs")
    assert not victim.marker.exists()


MEANT = (
    "print(execute_command('git status --short', cwd='vendor/docs'))\nprint(read_file('a.txt')['content'])",
    "FINAL('Looked. [a.txt:1-1]')",
)


@pytest.mark.hostile_long
@pytest.mark.parametrize("command", ["git diff", "git log -p"])
def test_git_compares_without_the_programs_that_the_repository_names(victim: Victim, command: str) -> None:
    victim.write("a.txt", "one\n")
    victim.write(".gitattributes", "*.txt diff=evil\n")
    victim.run("git", "init", "-q", ".")
    victim.run(*GIT, "add", ".")
    victim.run(*GIT, "commit", "-qm", "first")
    for name, program in (("diff.evil.textconv", "touch"), ("diff.evil.command", "touch"), ("diff.external", "touch")):
        victim.run("git", "config", name, f"{program} {victim.marker};")
    victim.write("a.txt", "two\n")
    model = victim.model(
        f"print(execute_command({command!r}))\nprint(read_file('a.txt')['content'])", "FINAL('Looked. [a.txt:1-1]')"
    )
    flags = (
        "--allow-command",
        command,
        "--large",
        "--command-write",
        victim.home,
        "--runs-dir",
        victim.own,
        "--model",
        model.name,
    )

    done = victim.sonde("edit", "Look", ".", *flags)

    assert done.returncode == 0, done.stderr
    assert "+one" in model.prompts[1] or "-one" in model.prompts[1]
    assert not victim.marker.exists()
