"""`sonde incident --changes` reads a stranger's git repository and a stranger's file of deploys: nothing in them is started, obeyed or
believed beyond its words, and what is broken is said in one line.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from victim import Victim, one_in_make_test

GIT = ("git", "-c", "user.name=x", "-c", "user.email=x@example.org")
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e<script>alert(1)</script> | # x"
START = 1_780_000_000


def traces(victim: Victim) -> None:
    """Twenty traces, the last eight of which fail."""
    rows: list[dict[str, Any]] = [
        {
            "trace_id": f"{number + 1:032x}",
            "span_id": f"{number + 1:016x}",
            "name": "pay",
            "start_time": (START + number * 60) * 1_000_000_000,
            "end_time": (START + number * 60 + 1) * 1_000_000_000,
            "status_code": "ERROR" if number >= 12 else "OK",
            "status_message": "no currency" if number >= 12 else "",
        }
        for number in range(20)
    ]
    (victim.home / "traces.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def asked(victim: Victim, changes: str) -> tuple[str | Path, ...]:
    traces(victim)
    return ("incident", "--source", victim.home / "traces.jsonl", "--changes", changes, "--runs-dir", victim.own)


def repository(victim: Victim, subject: str = "first") -> None:
    victim.write("src/pay.py", "one\n")
    victim.run("git", "init", "-q", "-b", "main", ".")
    victim.run(*GIT, "add", ".")
    date = f"{START + 11 * 60 + 30} +0000"
    victim.run("env", f"GIT_COMMITTER_DATE={date}", *GIT, "commit", "-qm", subject)


def planted_signature(victim: Victim) -> None:
    """`git log` shows who signed, with a program of the repository's choice."""
    program = victim.write("check.sh", f"#!/bin/sh\ntouch {victim.marker}\n")
    program.chmod(0o755)
    people = "author x <x@x> 1780000700 +0000\ncommitter x <x@x> 1780000700 +0000"
    seal = "gpgsig -----BEGIN PGP SIGNATURE-----\n x\n -----END PGP SIGNATURE-----"
    signed = f"tree {{}}\n{people}\n{seal}\n\nsigned\n"
    tree = victim.run("git", "write-tree").stdout.strip()
    commit = victim.run("git", "hash-object", "-t", "commit", "-w", "--stdin", stdin=signed.format(tree)).stdout.strip()
    victim.run("git", "reset", "-q", commit)
    for name, value in (("log.showSignature", "true"), ("gpg.program", str(program))):
        victim.run("git", "config", name, value)


def planted_remote(victim: Victim) -> None:
    """A part of the history is missing, and the place from which git would fetch it is a program."""
    tree = victim.run("git", "rev-parse", "HEAD^{tree}").stdout.strip()
    lost = victim.folder / ".git/objects" / tree[:2] / tree[2:]
    os.chmod(lost, 0o644)  # noqa: PTH101 - git makes its objects read-only
    lost.unlink()
    for name, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::touch {victim.marker}"),
        ("protocol.ext.allow", "always"),
    ):
        victim.run("git", "config", name, value)


@pytest.mark.parametrize("planted", one_in_make_test({"remote": planted_remote, "signature": planted_signature}))
def test_the_history_of_a_strangers_repository_is_read_without_its_programs(victim: Victim, planted: Any) -> None:
    repository(victim)
    planted(victim)
    victim.run("git", "log", "--name-only")
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    done = victim.sonde(*asked(victim, "git:."))

    assert done.returncode in {0, 2}, done.stderr
    assert "Traceback" not in done.stderr
    assert not victim.marker.exists()


@pytest.mark.parametrize(
    "text",
    one_in_make_test(
        {
            "deep": "[" * 100_000,
            "no list": '{"a": 1}',
            "no time": '[{"name": "x"}]',
            "no name": '[{"at": "2026-05-28T20:26:40Z"}]',
            "odd time": '[{"at": "noon", "name": "x"}]',
            "far time": '[{"at": "9e400", "name": "x"}]',
            "nested": '[{"at": "2026-05-28T20:26:40Z", "name": {"a": []}}]',
            "unknown field": '[{"at": "2026-05-28T20:26:40Z", "name": "x", "\x1b[2J": 1}]',
            "many": "[" + ",".join(["{}"] * 20_000) + "]",
            "not utf-8": "\udcff\udcfe",
            "a number that takes minutes": "[" + "9" * 3_000_000 + "]",
        }
    ),
)
def test_a_file_of_deploys_that_is_none_is_refused_in_one_line(victim: Victim, text: str) -> None:
    (victim.folder / "deploys.json").write_bytes(text.encode("utf-8", "surrogateescape"))

    done = victim.sonde(*asked(victim, "deploys.json"))

    assert done.returncode == 2
    assert "Traceback" not in done.stderr and "\x1b" not in done.stderr
    assert "deploys.json" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2


@pytest.mark.hostile_long
def test_a_hole_a_link_and_a_pipe_are_no_files_of_deploys(victim: Victim) -> None:
    with (victim.folder / "hole.json").open("ab") as file:
        file.truncate(1 << 40)
    (victim.home / "secret.json").write_text("[]")
    (victim.folder / "link.json").symlink_to(victim.home / "secret.json")
    os.mkfifo(victim.folder / "pipe.json")

    for name in ("hole.json", "link.json", "pipe.json", "gone.json", "git:nowhere", "deploys.txt"):
        done = victim.sonde(*asked(victim, name))
        assert (done.returncode, "Traceback" in done.stderr) == (2, False), name


def test_words_of_commits_and_deploys_stay_words_in_the_report(victim: Victim) -> None:
    repository(victim, subject=f"currency {ESCAPES}")
    entry = {"at": START + 11 * 60 + 40, "name": f"currency {ESCAPES}", "summary": ESCAPES}
    victim.write("deploys.json", json.dumps([entry]))

    told = victim.call(*asked(victim, "git:."), "--changes", "deploys.json")

    assert told.returncode == 0, told.stderr
    assert "currency" in told.stdout.partition("## Timeline")[0]
    for sign in ("\x1b", "\x07", "\u202e", "<script>"):
        assert sign not in told.stdout


def by_file(victim: Victim, private: Path) -> None:
    (victim.folder / ".git").write_text(f"gitdir: {private / '.git'}\n")


def by_link(victim: Victim, private: Path) -> None:
    (victim.folder / ".git").symlink_to(private / ".git")


def by_commondir(victim: Victim, private: Path) -> None:
    repository(victim)
    (victim.folder / ".git/commondir").write_text(str(private / ".git"))


def by_a_worktree_of_its_own(victim: Victim, private: Path) -> None:
    tree = victim.folder / "worktrees/x"
    tree.mkdir(parents=True)
    for name, text in {"gitdir": victim.folder / ".git", "commondir": private / ".git", "HEAD": "ref: x"}.items():
        (tree / name).write_text(f"{text}\n")
    (victim.folder / ".git").write_text(f"gitdir: {tree}\n")


def by_alternates(victim: Victim, private: Path) -> None:
    repository(victim)
    (victim.folder / ".git/objects/info/alternates").write_text(f"{private / '.git/objects'}\n")
    shutil.copy(private / ".git/refs/heads/main", victim.folder / ".git/refs/heads/main")


def by_linked_objects(victim: Victim, private: Path) -> None:
    repository(victim)
    shutil.rmtree(victim.folder / ".git/objects")
    (victim.folder / ".git/objects").symlink_to(private / ".git/objects")
    shutil.copy(private / ".git/refs/heads/main", victim.folder / ".git/refs/heads/main")


@pytest.mark.parametrize(
    "planted",
    one_in_make_test(
        {
            each.__name__: each
            for each in (
                by_alternates,
                by_file,
                by_link,
                by_commondir,
                by_a_worktree_of_its_own,
                by_linked_objects,
            )
        }
    ),
)
def test_a_strangers_repository_leads_to_no_history_of_another(victim: Victim, planted: Any) -> None:
    private = victim.home / "private"
    private.mkdir()
    (private / "plan.py").write_text("x\n")
    for words in (("init", "-q", "-b", "main", "."), ("add", "."), ("commit", "-qm", "the wedding is on the ninth")):
        victim.run(*GIT, "-C", str(private), *words)
    planted(victim, private)

    done = victim.call(*asked(victim, "git:."))

    assert done.returncode == 2 and "it is not read, because" in done.stderr, done.stderr
    assert "wedding" not in done.stdout + done.stderr


def test_a_worktree_of_the_user_is_read(victim: Victim) -> None:
    repository(victim, subject="currency")
    victim.run("git", "worktree", "add", "-q", str(victim.home / "tree"))

    done = victim.call(*asked(victim, f"git:{victim.home / 'tree'}"))

    assert done.returncode == 0, done.stderr
    assert "currency" in done.stdout
