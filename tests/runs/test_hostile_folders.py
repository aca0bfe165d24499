"""Run folders and exports that somebody else made: nothing leaves its place, nothing is taken along, nothing fills the memory."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sonde.api.ask_run import ask
from sonde.api.recorded_run import open_run
from sonde.api.settings import Settings
from sonde.core.events import RunStarted
from sonde.errors import ConfigError
from sonde.runs.export import export_run, journal_bytes, unpack_run
from sonde.runs.journal import MAX_ITEMS, JournalUnreadable, bounded, chain, ending, sum_of
from sonde.runs.rundir import RunDir, run_ids
from sonde.sandbox.worker.channel import MOST_PARTS
from sonde.testing import ScriptedModel
from sonde.viewer import export_html
from sonde.viewer.stream import RunStream


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    (tmp_path / "a.txt").write_text("one\n")
    answer = ask(
        "?", tmp_path / "a.txt", model=ScriptedModel(["FINAL('x')"]), settings=Settings(), runs_dir=tmp_path / "runs"
    )
    assert answer.run_dir is not None
    return RunDir(answer.run_dir)


def archive(path: Path, run_id: str) -> Path:
    journal = b"{}\n"
    manifest = {"run_id": run_id, "files": {"events.jsonl": hashlib.sha256(journal).hexdigest()}}
    with tarfile.open(path, "w:gz") as packed:
        for name, data in (("export.json", json.dumps(manifest).encode()), ("events.jsonl", journal)):
            member = tarfile.TarInfo(f"x/{name}")
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))
    return path


@pytest.mark.parametrize(
    "run_id", ["..", ".", "", "/", "a/..", "../../x", "\x1b[2J", ".hidden", "x" * 300, "a\0b", "-rf"]
)
def test_an_import_makes_one_plain_folder_in_its_place_whatever_the_run_calls_itself(
    tmp_path: Path, run_id: str
) -> None:
    made = unpack_run(archive(tmp_path / "e.tar.gz", run_id), tmp_path / "deep/runs").path

    assert made.parent == tmp_path / "deep/runs"
    assert made.name.isprintable() and not made.name.startswith((".", "-"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["deep", "e.tar.gz"]


@pytest.mark.parametrize(("size", "said"), [(7 << 30, "more than 1024 MiB"), (1 << 40, "makes no sense")])
def test_an_archive_that_swells_is_refused_before_it_fills_the_memory(tmp_path: Path, size: int, said: str) -> None:
    swelling = tarfile.TarInfo("x")
    swelling.type, swelling.size = tarfile.XHDTYPE, size  # the header is what swells, not a file
    (tmp_path / "bomb.tar.gz").write_bytes(gzip.compress(swelling.tobuf(tarfile.GNU_FORMAT)))

    with pytest.raises(ConfigError, match=said):
        unpack_run(tmp_path / "bomb.tar.gz", tmp_path / "runs")


@pytest.mark.parametrize("name", ["answer.md", "summary.md", "result.json", "events.jsonl"])
@pytest.mark.parametrize("redact", [True, False])
def test_an_export_does_not_take_along_what_a_link_in_the_folder_points_at(
    tmp_path: Path, run: RunDir, name: str, redact: bool
) -> None:
    private = tmp_path / "private"
    (run.path / name).rename(private)
    (run.path / name).symlink_to(private)

    with pytest.raises(ConfigError, match="is a link"):
        export_run(run, tmp_path / "out.tar.gz", redact=redact)
    assert not (tmp_path / "out.tar.gz").exists()


SWOLLEN = b"[" + b"[]," * MAX_ITEMS + b"[]]"


def test_a_journal_line_of_millions_of_values_is_refused_before_it_fills_the_memory(
    run: RunDir, tmp_path: Path
) -> None:
    events = run.events()
    said = msgspec.structs.replace(events[-1], output="SWOLLEN")
    body = msgspec.json.encode(said).replace(b'"SWOLLEN"', SWOLLEN)[:-1]
    before = journal_bytes(events[:-1])
    run.journal_path.write_bytes(before + body + ending(chain(sum_of(before.splitlines()[-1]), body)))

    with pytest.raises(JournalUnreadable, match="values; no run is so large"):
        run.events()
    with pytest.raises(ConfigError, match="values; no run is so large"):
        export_run(run, tmp_path / "out")
    assert RunStream(run.path).news()["tampered_line"] == len(events)


@pytest.mark.parametrize("name", ["events.jsonl", "result.json", "run_record.json"])
def test_an_import_with_millions_of_values_is_refused_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    contents = {"events.jsonl": b"{}\n", name: SWOLLEN}
    manifest = {"run_id": "x", "files": {each: hashlib.sha256(data).hexdigest() for each, data in contents.items()}}
    with tarfile.open(tmp_path / "one.tar.gz", "w:gz", compresslevel=1) as packed:
        for each, data in {"export.json": json.dumps(manifest).encode(), **contents}.items():
            member = tarfile.TarInfo(f"x/{each}")
            member.size = len(data)
            packed.addfile(member, io.BytesIO(data))

    with pytest.raises(ConfigError, match=f"{name} in .* holds more than"):
        unpack_run(tmp_path / "one.tar.gz", tmp_path / "runs")
    assert not run_ids(tmp_path / "runs")


def test_a_value_as_large_as_code_may_return_can_be_read_again_and_no_larger_one() -> None:
    assert bounded(b'{"output":[' + b"0," * MOST_PARTS + b"0]}")
    with pytest.raises(msgspec.DecodeError):
        bounded(b'{"output":[' + b"0," * (MOST_PARTS * 11 // 10) + b"0]}")


def test_a_record_of_millions_of_values_is_refused(run: RunDir) -> None:
    (run.path / "run_record.json").write_bytes(b'{"gaps":' + SWOLLEN + b"}")

    with pytest.raises(JournalUnreadable, match="holds more than"):
        run.record()


def test_a_summary_that_is_a_hole_of_terabytes_is_not_shown(run: RunDir) -> None:
    os.truncate(run.path / "summary.md", 3 << 40)

    assert run.text("summary.md") is None


def test_a_pipe_in_place_of_a_journal_is_no_run_and_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / "runs/odd").mkdir(parents=True)
    os.mkfifo(tmp_path / "runs/odd/events.jsonl")

    assert run_ids(tmp_path / "runs") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"sources": True},
        {"sources": {"paths": 3}},
        {"engine": [1]},
        {"continues": 1},
        {"workspace": True},
        {"model": ["sh"]},
        {"commands": "sh"},
    ],
)
def test_settings_of_a_wrong_form_are_refused_in_words(run: RunDir, changes: dict[str, Any]) -> None:
    first, *events = run.events()
    assert isinstance(first, RunStarted)
    forged = msgspec.structs.replace(first, settings={**first.settings, **changes})
    run.journal_path.write_bytes(journal_bytes([forged, *events]))

    with pytest.raises(ConfigError, match="changed or damaged"):
        open_run(run)
    with pytest.raises(ConfigError, match="changed or damaged"):
        ask("?", model=ScriptedModel(["FINAL(1)"]), settings=Settings(), continue_from=run.path)
    export_html(run, run.path / "page.html")


def test_a_budget_of_another_version_is_refused_in_words(run: RunDir) -> None:
    first, *events = run.events()
    assert isinstance(first, RunStarted)
    forged = msgspec.structs.replace(first, budget={**first.budget, "max_moons": 1})
    run.journal_path.write_bytes(journal_bytes([forged, *events]))

    with pytest.raises(ConfigError, match="max_moons"):
        open_run(run)
