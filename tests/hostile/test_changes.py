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
from victim import Listener, Victim, one_in_make_test

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


def test_the_history_of_a_strangers_repository_is_read_without_its_programs(victim: Victim) -> None:
    repository(victim)
    planted_signature(victim)
    victim.run("git", "log", "--name-only")
    assert victim.marker.exists(), "the attack works against plain git"
    victim.marker.unlink()

    done = victim.call(*asked(victim, "git:."))

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


def test_a_setting_of_the_repository_has_git_read_no_file(victim: Victim) -> None:
    repository(victim, subject="currency")
    for name in ("diff.orderFile", "mailmap.file", "core.attributesFile", "core.excludesFile", "blame.ignoreRevsFile"):
        victim.run("git", "config", name, str(victim.home / "none"))
    assert "none" in victim.run("git", "log", "--name-only").stderr, "git reads it, and it might have no end"

    done = victim.call(*asked(victim, "git:."))

    assert done.returncode == 0, done.stderr
    assert "currency" in done.stdout


@pytest.mark.hostile_long
@pytest.mark.parametrize("name", ["info/grafts", "shallow", "info/attributes", "packed-refs", "HEAD", "config"])
def test_a_file_of_the_repository_without_end_takes_little_memory(victim: Victim, name: str) -> None:
    repository(victim)
    (victim.folder / ".git" / name).unlink(missing_ok=True)
    (victim.folder / ".git" / name).symlink_to("/dev/zero")

    done = victim.call(*asked(victim, "git:."))

    assert done.returncode in {0, 2} and "Traceback" not in done.stderr, done.stderr


def test_git_has_limits_of_memory_and_of_processor_time(victim: Victim) -> None:
    repository(victim)
    notes = victim.home / "limits"
    wrapper = victim.home / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\necho "$(ulimit -d) $(ulimit -t)" >>{notes}\nexec {shutil.which("git")} "$@"\n')
    wrapper.chmod(0o755)
    victim.environ = {"PATH": f"{wrapper.parent}:{os.environ['PATH']}"}

    done = victim.call(*asked(victim, "git:."))

    assert done.returncode == 0, done.stderr
    assert {*notes.read_text().splitlines()} == {f"1048576 {30 * (os.cpu_count() or 1)}"}


@pytest.mark.parametrize(
    "settings",
    one_in_make_test(
        {
            "name": {"core.quotePath": "false"},
            "subject": {"i18n.logOutputEncoding": "latin1"},
            "both": {"core.quotePath": "false", "i18n.logOutputEncoding": "latin1"},
        }
    ),
)
def test_commits_in_another_encoding_are_read(victim: Victim, settings: dict[str, str]) -> None:
    (victim.folder / os.fsdecode(b"caf\xe9.py")).write_text("x\n")
    repository(victim, subject="currency \xe9t\xe9")
    for name, value in settings.items():
        victim.run("git", "config", name, value)

    done = victim.call(*asked(victim, "git:."))

    assert done.returncode == 0, done.stderr
    assert "currency \xe9t\xe9" in done.stdout


def test_commits_and_tags_that_are_no_text_are_shown_with_the_signs_that_are_missing(victim: Victim) -> None:
    repository(victim)
    tree = victim.run("git", "write-tree").stdout.strip()
    head = f"tree {tree}\nauthor \udce9ve <e@x> 1780000690 +0000\ncommitter \udce9ve <e@x> 1780000690 +0000\n"
    commit = victim.home / "commit"
    commit.write_bytes(f"{head}\ncurrency \udcff\udce9 changed\n".encode("utf-8", "surrogateescape"))
    made = victim.run("git", "hash-object", "-t", "commit", "-w", commit).stdout.strip()
    victim.run("git", "reset", "-q", made)
    entry = b'[{"at": 1780000695, "name": "currency \xe9 \\ud800 table"}]'
    (victim.folder / "deploys.json").write_bytes(entry)

    done = victim.call(*asked(victim, "git:."), "--changes", "deploys.json")

    assert done.returncode == 0, done.stderr
    assert "currency \ufffd\ufffd changed" in done.stdout and "currency \ufffd \ufffd table" in done.stdout


def test_the_history_is_not_fetched_from_elsewhere(victim: Victim, listener: Listener) -> None:
    repository(victim)
    listener.hides_history_of(".", victim)

    done = victim.call(*asked(victim, "git:."))

    assert done.returncode == 2 and not listener.heard, done.stderr


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
