"""Runs over traces while others come in: the same traces are read and shown again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.api.investigations import rca
from sonde.api.rerun import replay, resume
from sonde.api.result import Result
from sonde.api.settings import Settings
from sonde.contexts.traces.importers import Imported, read
from sonde.testing import ScriptedModel
from sonde.watch.intake import Intake
from watch.watch_scene import Fault, append, trace

FAULT = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)
LOOK = "seen = rule['span_id']\nprint(get_span(seen)['summary'])"
SUBMIT = "SUBMIT(primary_label=rule['label'], summary='no stock', confidence=0.4, evidence_refs=[{'kind': 'SPAN', 'ref': seen}])"
Grow = Callable[..., None]


@pytest.fixture(params=["file", "store"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Grow]:
    """A trace file, or the store of a listener; and how more comes in."""
    lines = tmp_path / "traces.jsonl"
    place = lines if request.param == "file" else tmp_path / "store"

    def grow(*numbers: int) -> None:
        told = [trace(number, 10.0 * number, FAULT if number % 2 else None) for number in numbers]
        append(lines, told)
        if request.param == "store":
            with Intake(place) as intake:
                intake.accept(each.span for each in read(lines) if isinstance(each, Imported)).settled()

    grow(*range(1, 7))
    return place, grow


def killed_after(turns: int, run_dir: Path) -> None:
    """Cut the journal as a kill does, after so many replies."""
    journal = run_dir / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    replies = [at for at, line in enumerate(lines) if json.loads(line)["type"] == "model_replied"]
    journal.write_text("".join(lines[: replies[turns - 1] + 1]))
    for left in run_dir.iterdir():
        if left.is_file() and left != journal and left.suffix in (".json", ".md"):
            left.unlink()


def run_of(found: Result) -> Path:
    assert found.run_dir is not None
    return found.run_dir


def test_a_run_over_one_trace_replays_and_resumes_while_others_come_in(
    source: tuple[Path, Grow], tmp_path: Path
) -> None:
    place, grow = source
    found = rca(
        f"{1:032x}", place, model=ScriptedModel([LOOK, SUBMIT]), settings=Settings(), runs_dir=tmp_path / "runs"
    )
    grow(7, 8, 9)

    assert replay(run_of(found), settings=Settings()).differences == ()

    killed_after(1, run_of(found))
    rest = ScriptedModel([SUBMIT])
    resumed = resume(run_of(found), model=rest, settings=Settings())

    assert (resumed.status, len(rest.requests)) == ("succeeded", 1)
