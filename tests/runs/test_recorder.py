"""The recorder: stamps, writes, folds, tells; and after a resume, writes nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.streams import Teller, TickingClock, story, told, write_story
from sonde.core.canonical import canonical_json
from sonde.core.events import Event, ModelFailed, ModelReplied, Noted, TurnStarted
from sonde.runs.journal import read_journal
from sonde.runs.recorder import Recorder
from sonde.runs.recording import Recording
from sonde.runs.rundir import fold


def test_events_get_their_place_and_time() -> None:
    recorder = Recorder(TickingClock())

    first, second = recorder.emit(Noted(text="a")), recorder.emit(Noted(text="b"))

    assert (first.seq, second.seq) == (0, 1)
    assert 0 < first.at < second.at


def test_listeners_hear_every_event_in_order() -> None:
    heard: list[Event] = []
    teller = Teller(Recorder(TickingClock(), listeners=[heard.append]))

    story(teller)

    assert heard == teller.events


def test_a_listener_that_raises_is_dropped_with_a_note_and_hurts_nobody() -> None:
    heard: list[Event] = []
    calls: list[Event] = []

    def broken(event: Event) -> None:
        calls.append(event)
        raise RuntimeError("no screen")

    recorder = Recorder(TickingClock(), listeners=[broken, heard.append])
    recorder.emit(Noted(text="one"))
    recorder.emit(Noted(text="two"))

    assert len(calls) == 1
    texts = [event.text for event in heard if isinstance(event, Noted)]
    assert sorted(texts)[1:] == ["one", "two"] and "no screen" in min(texts)


def test_listeners_that_all_raise_are_all_dropped_and_the_run_goes_on() -> None:
    def fail(_: Event) -> None:
        raise RuntimeError("first")

    def fail_too(_: Event) -> None:
        raise RuntimeError("second")

    heard: list[Event] = []
    recorder = Recorder(TickingClock(), listeners=[fail, fail_too, heard.append])

    recorder.emit(TurnStarted(turn=1, elapsed_s=0.0))
    recorder.emit(TurnStarted(turn=2, elapsed_s=0.0))

    assert [event.turn for event in heard if isinstance(event, TurnStarted)] == [1, 2]
    assert sum(isinstance(event, Noted) for event in heard) == 2


def test_a_resumed_run_writes_no_recorded_step_again(tmp_path: Path) -> None:
    run = write_story(tmp_path)
    recorded = run.events()
    cut = recorded[:40]
    run.journal_path.write_bytes(b"".join(run.journal_path.read_bytes().splitlines(keepends=True)[:40]))
    journal = run.journal()

    resumed = Recorder(TickingClock(), journal, recording=Recording(cut))
    story(Teller(resumed))
    journal.close()

    held = read_journal(run.journal_path)
    assert held.tampered_line is None
    assert [event.seq for event in held.events] == list(range(len(held.events)))
    again = [event.key for event in held.events if event.key is not None]
    assert len(again) == len(set(again))


def test_the_recorded_event_is_given_back_on_resume() -> None:
    recorded = told()
    reply = next(event for event in recorded if isinstance(event, ModelReplied))
    resumed = Recorder(TickingClock(), recording=Recording(recorded))

    other = ModelReplied(
        turn=reply.turn, ordinal=0, request_hash="", text="another", model="", tokens_in=0, tokens_out=0
    )

    assert resumed.emit(other) == reply


def test_recorded_events_count_once_failed_attempts_included() -> None:
    recorded = told()
    assert any(isinstance(event, ModelFailed) for event in recorded)

    resumed = Recorder(TickingClock(), recording=Recording(recorded))
    for event in recorded:
        if event.key is not None:
            resumed.emit(event)

    whole = fold(recorded).runtime_ref.usage
    assert resumed.fold.usage == whole


@pytest.mark.requirement(124)
def test_two_runs_of_the_same_data_give_the_same_record_but_for_ids() -> None:
    first, second = fold(told(run_id="a")), fold(told(run_id="b"))

    def without_ids(text: str) -> str:
        return text.replace('"run_id":"a"', "").replace('"run_id":"b"', "")

    assert without_ids(canonical_json(first.model_dump(mode="json"))) == without_ids(
        canonical_json(second.model_dump(mode="json"))
    )
