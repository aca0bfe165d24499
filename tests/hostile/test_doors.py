"""A stranger's folder holds links that lead out, pipes that nobody writes to, devices and secrets. Whatever reads from it reads only what
lies in it, and never waits.
"""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from victim import Victim

from sonde.contexts.workspace import Policy
from sonde.contexts.workspace.base import PathRefused
from sonde.disk import secret_reason

SECRET = "s3cr3t-words-of-the-victim"
TRACE = "c" * 32
SPAN = {
    "name": "own",
    "context": {"trace_id": TRACE, "span_id": "d" * 16},
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "status_code": "ERROR",
    "attributes": {},
}
METADATA = json.dumps({"created_at": "2026-01-01T00:00:00Z"})


@pytest.fixture
def traces(victim: Victim) -> Path:
    (victim.home / "private").mkdir()
    (victim.home / "private/metadata.json").write_text(METADATA)
    (victim.home / "private/words.yaml").write_text(f"{SECRET}: [")
    (victim.home / "private/a.txt").write_text(SECRET)
    return victim.write("traces.jsonl", json.dumps(SPAN) + "\n")


def said(victim: Victim) -> str:
    """Everything that the program has left in the victim's own folder."""
    return "".join(path.read_text(errors="replace") for path in victim.own.rglob("*") if path.is_file())


def test_a_folder_of_files_with_links_pipes_and_secrets(victim: Victim, traces: Path) -> None:
    folder = victim.write("docs/a.txt", "the service is payments\n").parent
    os.mkfifo(folder / "pipe.txt")
    (folder / "zero.txt").symlink_to("/dev/zero")
    (folder / "link.txt").symlink_to(victim.home / "private/a.txt")
    (folder / "folder").symlink_to(victim.home / "private")
    (folder / ".env").write_text(f"TOKEN={SECRET}\n")
    (folder / "plain.txt").symlink_to(".env")
    model = victim.model("print([read_file(name) for name in list_files()])", "FINAL('payments [a.txt:1-1]')")

    done = victim.call("ask", "Which service?", "docs", "--model", model.name, "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    assert "payments" in model.prompts[1]
    assert SECRET not in "".join(model.prompts) + said(victim)


SPELLED = [
    *("terraform.tfvars", "prod.env.gz", "server.key.gz", ".netrc.gz", ".env~", "prod.env.bak", "server.key.old"),
    *("key.pem.bak", ".env ", "x/.ssh./k", "X/.SSH/k", ".Env.BAK.gz", ".server.key.swp", "#.env#", "a\n.env"),
    *(".en\u200bv", "id_rsa.orig", "service-account-1.json", "_netrc", "state.tfstate.backup", ".secrets/a", "w\\.env"),
    *(
        "service_account.json",
        "kubeconfig",
        "prod.kubeconfig",
        "kubeconfig.yaml",
        ".my.cnf",
        ".s3cfg",
        ".boto",
        "rclone.conf",
    ),
    *(".databrickscfg", ".dockerconfigjson", "ssh_host_rsa_key", ".vault_pass", "htpasswd", "pgpass.conf"),
]
FINE = [
    ".env.example",
    ".env.example.gz",
    "id_rsa.pub.bak",
    "secrets.py~",
    "keys.txt",
    "environment.gz",
    "shadow.css",
    "my.cnf",
    "kubeconfig.go",
    "ssh_host_rsa_key.pub",
]


def test_secrets_are_known_by_name_in_every_spelling_and_as_copies(victim: Victim) -> None:
    for name in SPELLED:
        victim.write(f"docs/{name}", SECRET)
    with zipfile.ZipFile(victim.folder / "docs/all.zip", "w") as archive:
        for name in SPELLED:
            archive.writestr(name, SECRET)
    model = victim.model("print(list_files(), grep('victim'))", "print(read_file('b.txt'))", "FINAL('done [b.txt:1]')")
    victim.write("docs/b.txt", "the service is payments\n")

    done = victim.call("ask", "Which words?", "docs", "--model", model.name, "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    assert SECRET not in said(victim) + done.stdout + done.stderr
    policy = Policy()
    for name in FINE:
        assert secret_reason(name) is None
    for name in SPELLED:
        with pytest.raises(PathRefused):
            policy.check_read(name.replace("\\", "/"))


@pytest.mark.parametrize("kind", ["link", "pipe", "zero"])
def test_a_folder_of_controls(victim: Victim, traces: Path, kind: str) -> None:
    place = victim.write("controls/note.txt", "x").with_name("own.yaml")
    plant(place, kind, victim.home / "private/words.yaml")

    flags = ("--source", traces, "--controls-file", "controls", "--runs-dir", victim.own)
    done = victim.call("comply", TRACE, *flags)

    assert done.returncode == 2 and "own.yaml" in done.stderr
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["link", "pipe", "zero"])
def test_a_snapshot_of_a_configuration(victim: Victim, traces: Path, kind: str) -> None:
    plant(victim.write("configs/v1/prompt.txt", "x").with_name("metadata.json"), kind, victim.home / "private/a.txt")

    done = victim.call("incident", "--source", traces, "--configs", "configs", "--runs-dir", victim.own)

    assert done.returncode == 2 and "metadata.json" in done.stderr
    assert SECRET not in done.stdout + done.stderr


def test_a_snapshot_that_is_a_link_to_a_folder_elsewhere(victim: Victim, traces: Path) -> None:
    victim.write("configs/v1/metadata.json", METADATA)
    (victim.folder / "configs/v2").symlink_to(victim.home / "private")

    done = victim.call("incident", "--source", traces, "--configs", "configs", "--runs-dir", victim.own)

    assert done.returncode == 2 and "leads out" in done.stderr
    assert SECRET not in done.stdout + done.stderr + said(victim)


def test_a_folder_of_traces_with_a_pipe_and_a_device_in_it(victim: Victim, traces: Path) -> None:
    folder = victim.folder / "traces"
    folder.mkdir()
    shutil.copy(traces, folder / "own.jsonl")
    os.mkfifo(folder / "pipe.jsonl")
    (folder / "zero.jsonl").symlink_to("/dev/zero")

    shown = victim.call("traces", "ls", "--source", "traces", "--json")

    assert shown.returncode == 0 and TRACE in shown.stdout


def test_a_folder_of_runs_does_not_show_runs_elsewhere(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    victim.call("ask", f"Which service, {SECRET}?", "notes.txt", "--runs-dir", victim.own)
    run = next(victim.own.iterdir())
    victim.write("runs/note.txt", "")
    (victim.folder / "runs/20260101-000000-000000000").symlink_to(run)

    shown = [
        victim.call(*words, "--runs-dir", "runs")
        for words in (("runs",), ("runs", "show", "last"), ("runs", "show", "20260101"), ("export", "last"))
    ]

    assert not any(SECRET in each.stdout + each.stderr for each in shown)
    assert [each.returncode for each in shown] == [0, 2, 2, 2]


def test_a_summary_that_is_a_link_is_not_shown(victim: Victim, traces: Path) -> None:
    victim.write("notes.txt", "the service is payments\n")
    victim.call("ask", "Which service?", "notes.txt", "--runs-dir", "runs")
    run = next((victim.folder / "runs").iterdir())
    for name in ("summary.md", "answer.md", "result.json"):
        plant(run / name, "link", victim.home / "private/a.txt")

    shown = [victim.call(*words, "--runs-dir", "runs") for words in (("runs", "show", "last"), ("export", "last"))]

    assert not any(SECRET in each.stdout + each.stderr for each in shown)
    assert not list(victim.folder.glob("*.tar.gz"))


def plant(place: Path, kind: str, target: Path) -> None:
    """A link to a private file, a pipe or a device where a file should be."""
    place.unlink(missing_ok=True)
    match kind:
        case "link":
            place.symlink_to(target)
        case "pipe":
            os.mkfifo(place)
        case _:
            place.symlink_to("/dev/zero")


WRITERS = {
    "rca": ("rca", TRACE, "--source", "t.jsonl"),
    "comply": ("comply", TRACE, "--source", "t.jsonl"),
    "incident": ("incident", "--trace", TRACE, "--source", "t.jsonl"),
    "batch": ("batch", "items.jsonl"),
}


@pytest.mark.parametrize("link", ["artifacts", "artifacts/investigator_runs"])
@pytest.mark.parametrize("words", WRITERS.values(), ids=WRITERS)
def test_no_run_is_written_through_a_link_of_the_repository(victim: Victim, words: tuple[str, ...], link: str) -> None:
    elsewhere = victim.home / "elsewhere"
    elsewhere.mkdir()
    (victim.folder / link).parent.mkdir(exist_ok=True)
    (victim.folder / link).symlink_to(elsewhere)
    victim.write("t.jsonl", json.dumps(SPAN) + "\n")
    item = {"id": "i1", "engine": "rca", "trace_ids": [TRACE], "source": "t.jsonl"}
    victim.write("items.jsonl", json.dumps(item) + "\n")

    done = victim.call(*words)

    assert done.returncode == 2 and "--runs-dir" in done.stderr, done.stderr
    assert list(elsewhere.iterdir()) == []
