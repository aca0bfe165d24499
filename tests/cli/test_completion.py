"""Completion scripts and the manual page know every command and flag, and Tab starts no Python."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_program import sonde
from typer.main import get_command

from sonde.cli.program import build, command_names

SHELLS = ("bash", "zsh", "fish")
TYPED = {
    "sonde rep": {"replay"},
    "sonde traces l": {"ls"},
    "sonde ask why --backend ": {"kernel", "monty"},
    "sonde traces ls --sourc": {"--source"},
    "sonde completion z": {"zsh"},
    "sonde runs --status inter": {"interrupted"},
}


def words_of(command: Any) -> Iterator[str]:
    for each in command.params:
        yield from (name for name in (*each.opts, *each.secondary_opts) if name.startswith("--"))
    for name, inner in getattr(command, "commands", {}).items():
        yield name
        yield from words_of(inner)


@pytest.fixture(scope="module")
def all_words() -> set[str]:
    return set(words_of(get_command(build(command_names()))))


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_names_every_command_and_flag(shell: str, all_words: set[str], tmp_path: Path) -> None:
    shown = sonde("completion", shell, cwd=tmp_path)

    assert shown.returncode == 0
    known = shown.stdout.replace(" -l ", " --") if shell == "fish" else shown.stdout
    assert {word for word in all_words if word not in known} == set()


def test_the_manual_page_describes_every_command_and_flag(all_words: set[str], tmp_path: Path) -> None:
    page = sonde("man", cwd=tmp_path).stdout

    assert page.startswith(".TH SONDE 1 ")
    text = page.replace("\\-", "-")
    assert {word for word in all_words if word not in text} == set()


def test_each_example_of_the_manual_page_is_a_line_of_its_own(tmp_path: Path) -> None:
    page = sonde("man", cwd=tmp_path).stdout.replace("\\-", "-")

    assert ".EX\nExample: sonde batch questions.jsonl --concurrency 16 --max-cost-usd 5\n.EE\n" in page
    assert ".EX\nExample: echo 'print(sum(range(10)))' | sonde exec -\n.EE\n" in page
    assert page.count("Example: ") == page.count("\nExample: ")


@pytest.mark.skipif(shutil.which("man") is None, reason="man-db is not installed")
@pytest.mark.long
def test_man_finds_nothing_wrong_with_the_page(tmp_path: Path) -> None:
    page = tmp_path / "sonde.1"
    page.write_text(sonde("man", cwd=tmp_path).stdout)

    shown = subprocess.run(["man", "--warnings", "-l", page], capture_output=True, text=True, timeout=60, check=True)

    assert shown.stderr == ""
    assert "EXIT STATUS" in shown.stdout


def test_an_unknown_shell_is_refused_with_those_there_are(tmp_path: Path) -> None:
    shown = sonde("completion", "tcsh", cwd=tmp_path)

    assert shown.returncode == 2
    assert all(shell in shown.stderr for shell in SHELLS)


def offered(shell: str, script: Path, typed: str) -> set[str]:
    """What the shell offers after these words. PATH is empty: nothing can be started for it."""
    if shell == "bash":
        ask = 'source "$1"; read -ra COMP_WORDS <<< "$2"; [[ $2 == *" " ]] && COMP_WORDS+=(""); '
        ask += 'COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _sonde; printf "%s\\n" "${COMPREPLY[@]}"'
        command = ["bash", "-c", ask, "-", str(script), typed]
    else:
        command = ["fish", "--no-config", "-c", 'source "$argv[1]"; complete -C "$argv[2]"', str(script), typed]
    program = shutil.which(command[0])
    assert program is not None
    home = {"HOME": str(script.parent), "PATH": ""}
    shown = subprocess.run(
        [program, *command[1:]], env=home, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    return {line.partition("\t")[0] for line in shown.splitlines()}


@pytest.mark.long
@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_tab_offers_commands_flags_and_values(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(sonde("completion", shell, cwd=tmp_path).stdout)

    assert {typed: offered(shell, script, typed) for typed in TYPED} == TYPED


@pytest.mark.long
@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_offers_commands_flags_and_values(tmp_path: Path) -> None:
    """Its completion needs a terminal, so what it would offer is caught where it hands it over."""
    (tmp_path / "_sonde").write_text(sonde("completion", "zsh", cwd=tmp_path).stdout)
    ask = (
        "compdef() {}; source $1; _describe() { print -l -- ${(P)@[-1]%%:*} }; compadd() { shift; print -l -- $@ }; "
        'words=(${(z)2}); [[ $2 == *" " ]] && words+=(""); CURRENT=$#words; PREFIX=$words[-1]; _sonde'
    )
    found: dict[str, set[str]] = {}
    for typed in TYPED:
        shown = subprocess.run(
            ["zsh", "-f", "-c", ask, "-", tmp_path / "_sonde", typed],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        found[typed] = {word for word in shown.stdout.split() if word.startswith(typed.rpartition(" ")[2])}

    assert {typed: words & TYPED[typed] for typed, words in found.items()} == TYPED
