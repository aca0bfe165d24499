"""A run as one file: the same bytes each time, whole or redacted, and back again."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from runs.streams import write_story
from sonde.core.events import RunStarted
from sonde.core.redaction import redact_text
from sonde.errors import ConfigError
from sonde.runs.compare import compare
from sonde.runs.export import MANIFEST, export_run, is_replayable, unpack_run
from sonde.runs.journal import read_journal
from sonde.runs.rundir import ANSWER

PLANTED = {
    "openai": "sk-proj-abcdefghijklmnop1234",
    "github": "ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    "aws": "AKIAABCDEFGHIJKLMNOP",
    "google": "AIzaSyA1234567890abcdefghijklmnopqrstuv",
    "slack": "xoxb-1234567890-abcdef",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmn",
    "bearer": "Authorization: Bearer abcdefghijklmnop",
    "url": "postgres://admin:hunter22@db.example/x",
    "named": 'password = "correct-horse"',
    "pem": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}
GIVEAWAYS = [
    "abcdefghijklmnop1234",
    "qrstuvwxyz0123",
    "AKIAABCDEFGHIJKLMNOP",
    "AIzaSyA",
    "1234567890-abcdef",
    "eyJzdWIi",
    "hunter22",
    "correct-horse",
    "MIIEow",
    "Bearer abcd",
]


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        return {Path(m.name).name: archive.extractfile(m).read() for m in archive}  # pyright: ignore[reportOptionalMemberAccess]  # all are files


def test_an_export_is_one_file_that_gives_the_run_back(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")

    packed = export_run(run, tmp_path / "shared")
    back = unpack_run(packed, tmp_path / "other")

    assert packed.name == "shared.tar.gz"
    assert compare(run.events(), back.events()).equal
    assert back.record() == run.record()


def test_exports_of_one_run_are_the_same_bytes(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")

    first, second = (export_run(run, tmp_path / name).read_bytes() for name in ("a.tar.gz", "b.tar.gz"))

    assert first == second


@pytest.mark.parametrize("kind", sorted(PLANTED))
def test_redaction_takes_each_kind_of_secret_out_of_every_file(tmp_path: Path, kind: str) -> None:
    run = write_story(tmp_path / "runs", remark=PLANTED[kind])
    run.write_text(ANSWER, PLANTED[kind])
    plain = b"".join(contents(export_run(run, tmp_path / "plain")).values()).decode()
    assert any(giveaway in plain for giveaway in GIVEAWAYS)

    redacted = b"".join(contents(export_run(run, tmp_path / "redacted", redact=True)).values()).decode()

    assert not any(giveaway in redacted for giveaway in GIVEAWAYS)


def test_a_redacted_export_says_that_it_cannot_be_replayed(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")

    packed = export_run(run, tmp_path / "a", redact=True)
    manifest = json.loads(contents(packed)[MANIFEST])
    back = unpack_run(packed, tmp_path / "other")

    assert manifest["redacted"] and not manifest["replayable"]
    assert not is_replayable(back.events()) and is_replayable(run.events())
    assert read_journal(back.journal_path).tampered_line is None


def test_redaction_leaves_ordinary_text_and_numbers_alone() -> None:
    text = "tokens_in: 300, the tokenizer, a password field, task-oriented, https://example.org/a@b"

    assert redact_text(text) == text


@pytest.mark.timeout(200)
def test_redaction_of_a_text_that_is_made_to_be_slow_takes_its_length_and_not_its_square() -> None:
    text = "-eyJ" * 100_000

    assert redact_text(text) == text


def test_fields_with_telling_names_are_redacted(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")
    journal = run.journal()
    settings: dict[str, Any] = {"api_key": "anything at all", "max_tokens": 5, "nested": [{"client_secret": "x y z"}]}
    started = run.events()[0]
    assert isinstance(started, RunStarted)
    journal.append(msgspec.structs.replace(started, settings=settings))
    journal.close()

    text = contents(export_run(run, tmp_path / "a", redact=True))["events.jsonl"].decode()

    assert "anything at all" not in text and "x y z" not in text and '"max_tokens":5' in text


def test_a_changed_export_is_refused(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")
    packed = export_run(run, tmp_path / "a")
    folder = tmp_path / "unpacked"
    with tarfile.open(packed) as archive:
        archive.extractall(folder, filter="data")
    (folder / "run-1" / "result.json").write_text('"forged"')
    with tarfile.open(tmp_path / "forged.tar.gz", "w:gz") as archive:
        archive.add(folder / "run-1", "run-1")

    with pytest.raises(ConfigError, match=r"result\.json"):
        unpack_run(tmp_path / "forged.tar.gz", tmp_path / "other")


def test_a_file_that_the_manifest_does_not_know_is_refused(tmp_path: Path) -> None:
    packed = export_run(write_story(tmp_path / "runs"), tmp_path / "a")
    parts = contents(packed)
    parts[MANIFEST] = json.dumps(json.loads(parts[MANIFEST]) | {"files": {}}).encode()
    (tmp_path / "forged").mkdir()
    with tarfile.open(tmp_path / "forged.tar.gz", "w:gz") as archive:
        for name, data in parts.items():
            (tmp_path / "forged" / name).write_bytes(data)
            archive.add(tmp_path / "forged" / name, f"run-1/{name}")

    with pytest.raises(ConfigError, match="manifest"):
        unpack_run(tmp_path / "forged.tar.gz", tmp_path / "other")


def test_an_export_that_was_damaged_on_its_way_is_refused_or_gives_the_same_run(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")
    sound = export_run(run, tmp_path / "a").read_bytes()
    damaged = tmp_path / "damaged.tar.gz"
    refused = 0
    for place in range(16, len(sound) - 8, 11):
        damaged.write_bytes(sound[:place] + bytes([sound[place] ^ 0x55]) + sound[place + 1 :])
        try:
            back = unpack_run(damaged, tmp_path / f"at-{place}")
        except ConfigError:
            refused += 1
        else:  # the damage was in the padding of the archive
            assert back.events() == run.events()
    assert refused > 20


def test_an_archive_writes_only_our_names_into_its_own_folder(tmp_path: Path) -> None:
    run = write_story(tmp_path / "runs")
    packed = export_run(run, tmp_path / "a")
    parts = contents(packed)
    manifest = json.loads(parts[MANIFEST]) | {"run_id": "../../evil"}
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    (tmp_path / "hosts").write_text("x")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / MANIFEST, MANIFEST)
        archive.add(tmp_path / "hosts", "../../etc/hosts")
        for name in manifest["files"]:
            archive.add(run.path / name, f"../{name}")

    back = unpack_run(tmp_path / "evil.tar.gz", tmp_path / "deep" / "runs")

    assert back.path == tmp_path / "deep" / "runs" / "evil"
    assert sorted(each.name for each in back.path.iterdir()) == sorted(manifest["files"])


@pytest.mark.parametrize("content", [b"", b"not a tar", b"\x1f\x8b\x08\x00"])
def test_what_is_no_export_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.tar.gz").write_bytes(content)

    with pytest.raises(ConfigError, match="not an exported run"):
        unpack_run(tmp_path / "x.tar.gz", tmp_path)
