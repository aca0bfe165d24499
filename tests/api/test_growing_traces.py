"""Runs over traces while others come in: the same traces are read and shown again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.investigations import incident, rca
from sonde.api.rerun import replay, resume
from sonde.api.result import Result
from sonde.api.settings import Settings
from sonde.contexts.traces.importers import Imported, read
from sonde.models.base import ModelRequest
from sonde.testing import ScriptedModel
from sonde.watch.intake import Intake
from watch.watch_scene import Fault, Json, append, trace

pytestmark = pytest.mark.long

FAULT = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)
LOOK = "seen = rule['span_id']\nprint(get_span(seen)['summary'])"
SUBMIT = "SUBMIT(primary_label=rule['label'], summary='no stock', confidence=0.4, evidence_refs=[{'kind': 'SPAN', 'ref': seen}])"
COUNT = "rows = sql('SELECT trace_id, spans, latency_ms FROM traces')\nprint(rows, list_traces(), group_by('release'))"
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


@pytest.fixture
def store(tmp_path: Path) -> tuple[Path, Grow]:
    """The store of a listener that has five whole traces and a part of a sixth, and how the rest and more come in."""
    place = tmp_path / "store"

    def grow(told: Sequence[Json]) -> None:
        lines = tmp_path / "sent.jsonl"
        lines.write_text("".join(f"{json.dumps(each)}\n" for each in told))
        with Intake(place) as intake:
            intake.accept(each.span for each in read(lines) if isinstance(each, Imported)).settled()

    whole = [trace(number, 10.0 * number, FAULT if number % 2 else None) for number in range(1, 9)]
    grow([span for each in whole[:5] for span in each] + whole[5][2:4])
    return place, lambda: grow([span for each in whole[5:] for span in each])


def test_a_question_over_a_growing_store_reads_the_same_spans_again(store: tuple[Path, Grow], tmp_path: Path) -> None:
    place, grow = store
    script = [
        COUNT,
        COUNT.replace("rows", "more"),
        "print(group_by('release'))\nFINAL(f'{len(rows)} and {len(more)} traces')",
    ]

    def growing(request: ModelRequest) -> str:
        if len(request.messages) > 3:
            grow()  # while the run is under way
        return script[len(request.messages) // 2 - 1]

    found = ask(
        "How many?",
        source=place,
        model=ScriptedModel(growing),
        settings=Settings(),
        runs_dir=tmp_path / "runs",
        citations=False,
    )
    again = replay(run_of(found), settings=Settings())
    live = replay(run_of(found), settings=Settings(), words_only=True)

    assert "6 and 6 traces" in found.text
    assert again.differences == live.differences == ()
    assert "6 traces, 25 spans" in json.loads((run_of(found) / "events.jsonl").read_text().splitlines()[0])["context"]


def test_an_incident_over_a_growing_store_replays_and_resumes(store: tuple[Path, Grow], tmp_path: Path) -> None:
    place, grow = store
    first = ScriptedModel(["print(group_by('release'))", "x = 1", "x = 2"])
    found = incident(
        place,
        model=first,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
        max_iterations=2,
    )
    grow()

    assert replay(run_of(found), settings=Settings()).differences == ()

    killed_after(1, run_of(found))
    rest = ScriptedModel(["x = 1", "x = 2"])
    resume(run_of(found), model=rest, settings=Settings())

    assert len(rest.requests) == len(first.requests) - 1
