"""The shipped recordings still lead where they led when a real model spoke them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.api.result import Result
from sonde.api.settings import Settings
from sonde.bench.demo import load, names, play, without_model
from sonde.core.events import CodeRan, Event, GateChecked, ModelFailed, RunStarted, SubcallEnded, SubcallStarted
from sonde.errors import ConfigError
from sonde.viewer.server import Shelf

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One place for all: the 20 MB log is made once."""
    return tmp_path_factory.mktemp("demo")


def states(folder: Path, finished: Result) -> set[str]:
    """What the page says of the run's citations."""
    assert finished.run_dir is not None
    return {each["state"] for each in Shelf(folder / "runs").excerpts(finished.run_dir.name)}


@pytest.mark.parametrize("name", names())
def test_a_recording_ends_as_it_did_with_every_citation_proved_again_and_verified_by_its_page(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = load(name)

    with monkeypatch.context() as there:
        there.chdir(folder.parent)  # as `sonde demo` does, which names a relative folder
        finished = play(recording, Path(folder.name), settings=Settings())

    assert finished.status.value == recording.status == "succeeded"
    assert finished.annotator_kind == "LLM"
    assert finished.run_dir is not None
    assert (folder / "runs" / finished.run_dir.name / "run_record.json").is_file()
    assert states(folder, finished) == {"verified"}
    proved = (*finished.citations, *finished.evidence)
    assert proved
    assert recording.answer[:80] in finished.text


def test_one_recording_has_parallel_sub_calls_and_one_survives_a_fault_of_its_own_code(folder: Path) -> None:
    events: list[Event] = []
    for name in names():
        play(load(name), folder, settings=Settings(), on_event=events.append)

    assert sum(isinstance(event, SubcallStarted) for event in events) >= 4
    assert any(isinstance(event, CodeRan) and not event.ok for event in events)


@pytest.mark.parametrize("name", names())
def test_a_recording_plays_without_a_failed_call_or_a_refused_answer_and_costs_nothing_from_its_first_turn(
    name: str, folder: Path
) -> None:
    events: list[Event] = []

    play(load(name), folder, settings=Settings(), on_event=events.append)

    assert not [event for event in events if isinstance(event, ModelFailed)]
    assert not [event for event in events if isinstance(event, SubcallEnded) and event.status != "succeeded"]
    assert not [event.reason for event in events if isinstance(event, GateChecked) and not event.ok]
    started = next(event for event in events if isinstance(event, RunStarted))
    assert started.price_source == "free: it is a recording"


def test_the_families_are_covered_and_the_model_is_named() -> None:
    recordings = [load(name) for name in names()]

    assert {recording.started["run_type"] for recording in recordings} >= {"ask", "rca", "edit"}
    assert all(recording.model not in ("", "none") for recording in recordings)


def test_without_a_model_the_same_question_gets_a_report_marked_code(folder: Path) -> None:
    finished = without_model(load("renamed"), folder, settings=Settings())

    assert finished.annotator_kind == "CODE"
    assert finished.value is not None
    assert states(folder, finished) == {"verified"}


def test_an_unknown_recording_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="outage"):
        load("nothing")
