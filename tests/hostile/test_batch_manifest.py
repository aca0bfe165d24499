"""A stranger's manifest: it sends no key to a server of its own, and reads nothing outside its folder."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from victim import Listener, Victim

KEY = "phoenix-key-of-the-victim"
SECRET = "s3cr3t-words-of-the-victim"
TRACE = "c" * 32


def manifest(victim: Victim, **item: Any) -> Path:
    victim.write("notes.txt", "the service is payments\n")
    engine = {"engine": "rca", "trace_ids": [TRACE]} if "question" not in item else {}
    return victim.write("items.jsonl", json.dumps({"id": "i1", **engine, **item}) + "\n")


@pytest.mark.parametrize("engine", ["rca", "compliance", "incident"])
def test_the_key_goes_to_no_server_that_the_manifest_names(victim: Victim, listener: Listener, engine: str) -> None:
    victim.environ = {"PHOENIX_API_KEY": KEY, "PHOENIX_CLIENT_HEADERS": f"x-token={KEY}"}
    items = manifest(victim, engine=engine, source=listener.url)

    done = victim.call("batch", items, "--runs-dir", victim.own)

    assert done.returncode == 2 and f"--source {listener.url}" in done.stderr
    assert listener.heard == []
    assert KEY not in done.stdout + done.stderr


@pytest.mark.hostile_long
def test_the_server_that_the_user_names_is_asked(victim: Victim, listener: Listener) -> None:
    items = manifest(victim, source=listener.url)

    victim.sonde("batch", items, "--source", listener.url, "--runs-dir", victim.own)

    assert listener.heard


@pytest.mark.parametrize("field", ["paths", "source", "configs", "taxonomy"])
@pytest.mark.parametrize("spelled", ["{home}/private.txt", "../home/private.txt", "x/../../home/private.txt"])
def test_nothing_outside_the_folder_of_the_manifest_is_read(victim: Victim, field: str, spelled: str) -> None:
    (victim.home / "private.txt").write_text(SECRET)
    place = spelled.replace("{home}", str(victim.home))
    fields: dict[str, Any] = {"question": "?", "paths": [place]} if field == "paths" else {field: place}
    fields |= {"engine": "incident"} if field == "configs" else {}

    done = victim.call("batch", manifest(victim, **fields), "--runs-dir", victim.own)

    assert done.returncode == 2 and f"--allow-path {victim.home}" in done.stderr
    assert SECRET not in done.stdout + done.stderr
    assert list(victim.own.iterdir()) == []


@pytest.mark.parametrize("place", ["mine.yaml", "../home/mine.yaml"])
def test_a_manifest_does_not_choose_the_controls_whose_patterns_see_what_a_mask_hides(
    victim: Victim, place: str
) -> None:
    victim.write("mine.yaml", "controls: []\n")
    (victim.home / "mine.yaml").write_text(SECRET)

    items = manifest(victim, engine="compliance", controls_files=[place])
    done = victim.call("batch", items, "--mask", "--runs-dir", victim.own)

    assert done.returncode == 2 and "--controls-file " in done.stderr
    assert list(victim.own.iterdir()) == []


@pytest.mark.hostile_long
def test_an_item_that_reaches_out_is_refused_and_the_others_run(victim: Victim, listener: Listener) -> None:
    victim.environ = {"PHOENIX_API_KEY": KEY}
    (victim.home / "private.txt").write_text(SECRET)
    victim.write("notes.txt", "the token is not here\n")
    lines: list[dict[str, Any]] = [
        {"id": "out", "question": "What is the token?", "paths": [str(victim.home / "private.txt")]},
        {"id": "server", "engine": "rca", "trace_ids": [TRACE], "source": listener.url},
        {"id": "in", "question": "What is the token?", "paths": ["notes.txt"]},
    ]
    items = victim.write("items.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    done = victim.call("batch", items, "--runs-dir", victim.own, "--json")

    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["statuses"] == {"refused": 2, "partial": 1}
    assert listener.heard == []
    left = "".join(path.read_text(errors="replace") for path in victim.own.rglob("*") if path.is_file())
    assert SECRET not in left + done.stdout + done.stderr and KEY not in left + done.stdout + done.stderr
    assert f"--allow-path {victim.home}" in left and f"--source {listener.url}" in left


def test_links_secrets_and_pipes_in_the_folder_are_refused_item_by_item(victim: Victim) -> None:
    (victim.home / "private.txt").write_text(SECRET)
    (victim.folder / "link.txt").symlink_to(victim.home / "private.txt")
    (victim.folder / "folder").symlink_to(victim.home)
    (victim.folder / "zero").symlink_to("/dev/zero")
    victim.write(".env", f"TOKEN={SECRET}\n")
    os.mkfifo(victim.folder / "pipe")
    names = ["link.txt", "folder/private.txt", ".env", "pipe", "zero", "notes.txt"]
    lines = [{"id": name, "question": "What is the token?", "paths": [name]} for name in names]
    victim.write("notes.txt", "the token is not here\n")
    items = victim.write("items.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    done = victim.call("batch", items, "--runs-dir", victim.own, "--json")

    assert done.returncode == 1, done.stderr
    counts = json.loads(done.stdout)["statuses"]
    assert counts["refused"] == 5 and sum(counts.values()) == 6
    left = "".join(path.read_text(errors="replace") for path in victim.own.rglob("*") if path.is_file())
    assert SECRET not in left + done.stdout + done.stderr


@pytest.mark.hostile_long
def test_no_spelling_of_a_folder_of_secrets_gets_round_the_rule(victim: Victim) -> None:
    (victim.folder / ".kube").mkdir()
    victim.write(".kube/config", f"token: {SECRET}\n")
    (victim.folder / ".git").mkdir()
    victim.write(".git/config", f"url = https://{SECRET}@host/\n")
    spelled = [
        ".kube",
        ".kub?",
        ".kub?/conf*",
        ".kub?/config",
        ".[k]ube/*",
        ".k*/**",
        "x/../.kub?/*",
        ".gi?",
        ".gi?/config",
    ]
    lines = [{"id": f"i{at}", "question": "What is the token?", "paths": [each]} for at, each in enumerate(spelled)]
    items = victim.write("items.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    done = victim.call("batch", items, "--runs-dir", victim.own, "--json")

    assert json.loads(done.stdout)["statuses"]["refused"] == len(spelled), done.stdout
    left = "".join(path.read_text(errors="replace") for path in victim.own.rglob("*") if path.is_file())
    assert SECRET not in left + done.stdout + done.stderr


@pytest.mark.hostile_long
def test_what_the_user_allows_is_read(victim: Victim) -> None:
    (victim.home / "mine.txt").write_text("the service is payments\n")
    items = manifest(victim, question="Which service?", paths=[str(victim.home / "mine.txt")])

    done = victim.call("batch", items, "--allow-path", victim.home / "mine.txt", "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["results.jsonl", "items"])
def test_a_strangers_batch_folder_writes_nothing_elsewhere(victim: Victim, name: str) -> None:
    mine = victim.home / "mine"
    mine.mkdir()
    (mine / "precious.txt").write_text("without a newline at the end")
    target = mine if name == "items" else mine / "precious.txt"
    items = manifest(victim, question="Which service?", paths=["notes.txt"])
    folder = victim.folder / "batch-evil"
    folder.mkdir()
    (folder / "items").mkdir()
    items.rename(folder / "manifest.jsonl")
    victim.write("batch-evil/notes.txt", "the service is payments\n")
    if name == "items":
        (folder / "items").rmdir()
    (folder / name).symlink_to(target)

    done = victim.call("batch", folder / "manifest.jsonl", "--name", "evil", "--runs-dir", ".")

    assert done.returncode == 2
    assert [each.name for each in mine.iterdir()] == ["precious.txt"]
    assert (mine / "precious.txt").read_text() == "without a newline at the end"


@pytest.mark.hostile_long
@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_run_is_written_to_no_place_that_a_stranger_put_where_its_folder_should_be(victim: Victim, kind: str) -> None:
    mine = victim.home / "mine"
    mine.mkdir()
    items = manifest(victim, question="Which service?", paths=["notes.txt"])
    assert victim.call("batch", items, "--name", "evil", "--runs-dir", ".").returncode == 0
    (run,) = (victim.folder / "batch-evil/items").iterdir()
    shutil.rmtree(run)
    (victim.folder / "batch-evil/results.jsonl").unlink()
    if kind == "link":
        run.symlink_to(mine)
    else:
        os.mkfifo(run)

    done = victim.call("batch", items, "--name", "evil", "--runs-dir", ".", "--json")

    assert json.loads(done.stdout)["statuses"] == {"refused": 1}
    assert list(mine.iterdir()) == []
