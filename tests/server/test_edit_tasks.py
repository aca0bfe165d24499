"""The edit engine behind the protocol: what a run does as a host hears it."""

from __future__ import annotations

import json
import shutil
import sys
import threading
from pathlib import Path

import pytest

from sonde.api.settings import Settings
from sonde.contexts.workspace import LocalWorkspace, accept
from sonde.core.deadline import PatientClock
from sonde.core.events import ModelAsked, ModelReplied, SubcallEnded, SubcallStarted, TurnStarted
from sonde.models.base import Secret
from sonde.server.edit_tasks import EditRunner, EventTranslator
from sonde.server.messages import NewTask, TaskEvent, WireLimits

ROOT = Path(__file__).parents[2]
KEY = "sk-very-secret"


def told(*, secrets: tuple[str, ...] = ()) -> tuple[EventTranslator, list[TaskEvent]]:
    events: list[TaskEvent] = []
    return EventTranslator("t", events.append, None, secrets), events


def replied(session: str, text: str) -> ModelReplied:
    return ModelReplied(
        session=session, turn=1, ordinal=1, request_hash="h", text=text, model="m", tokens_in=3, tokens_out=4
    )


@pytest.mark.requirement(54)
@pytest.mark.requirement(55)
def test_children_are_told_as_a_tree_with_what_they_cost() -> None:
    telling, events = told()

    telling.on_event(TurnStarted(turn=1, elapsed_s=0.0))
    for path, parent in (("root/1.1", "root"), ("root/1.1/2.1", "root/1.1")):
        telling.on_event(
            SubcallStarted(
                session=path,
                call_id=path,
                parent_call_id=parent,
                depth=1,
                objective="look",
                input_ref_hash="",
                mode="rlm",
            )
        )
    telling.on_event(replied("root/1.1", "found"))
    telling.on_event(
        SubcallEnded(session="root/1.1", call_id="root/1.1", status="succeeded", summary="done", tokens_in=5)
    )

    kinds = [(event.type, event.parent_id) for event in events]
    assert kinds == [
        ("progress", None),
        ("subcall.start", "t"),
        ("subcall.start", "t.1.1"),
        ("assistant.message", "t.1.1"),
        ("subcall.end", None),
    ]
    assert telling.usage().tokens == 7


def test_a_streamed_reply_and_its_whole_share_one_id() -> None:
    telling, events = told()

    telling.on_event(ModelAsked(turn=1, ordinal=1, request_hash="h", model="m", kept=0, messages=[]))
    telling.on_text("root", "he")
    telling.on_text("root", "ll")
    telling.on_text("root", "o")
    telling.on_event(replied("root", "hello"))

    assert [(e.id, e.content, e.partial) for e in events if e.type == "assistant.message"] == [
        ("t.m1.1", "he", True),
        ("t.m1.1", "ll", True),
        ("t.m1.1", "o", True),
        ("t.m1.1", "hello", None),
    ]


@pytest.mark.requirement(58)
def test_a_reply_that_comes_in_one_piece_is_sent_once() -> None:
    """Source document: assistant.message: { id, content, partial? }."""
    telling, events = told()

    for turn in (1, 2):
        telling.on_event(ModelAsked(turn=turn, ordinal=1, request_hash="h", model="m", kept=0, messages=[]))
        telling.on_text("root", "hello")
        telling.on_event(replied("root", "hello"))

    assert [(e.content, e.partial) for e in events if e.type == "assistant.message"] == [("hello", None)] * 2


@pytest.mark.requirement("O17")
def test_the_values_of_keys_are_told_to_nobody() -> None:
    telling, events = told(secrets=(KEY,))

    telling.on_event(replied("root", f"the key is {KEY}"))

    assert KEY not in json.dumps([event.model_dump() for event in events])


def run(folder: Path, limits: WireLimits | None = None) -> tuple[str, str | None, list[TaskEvent]]:
    model = f"command:{sys.executable} {Path(__file__).parent / 'scripted_model.py'}"
    settings = Settings(model=model, runs_dir=folder.parent / "runs", api_key=Secret(KEY))
    events: list[TaskEvent] = []
    task = NewTask(id="t", prompt="Add normalizeWhitespace", workspace=str(folder), limits=limits)
    done = EditRunner(settings).run(task, LocalWorkspace(folder, approve=accept), events.append, threading.Event())
    return done.status, done.limit, events


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT / "examples/demo-workspace", tmp_path / "demo")


@pytest.mark.requirement(68)
@pytest.mark.requirement(72)
def test_the_demo_task_succeeds_within_the_default_limits(folder: Path) -> None:
    status, limit, events = run(folder)

    assert (status, limit) == ("succeeded", None)
    assert [event.type for event in events if event.type.startswith("subcall")] == ["subcall.start", "subcall.end"]
    assert "normalizeWhitespace" in (folder / "sample.ts").read_text()


@pytest.mark.requirement(68)
def test_a_limit_that_was_reached_is_named(folder: Path) -> None:
    status, limit, _ = run(folder, WireLimits(max_total_tokens=900))

    assert status in ("partial", "failed")
    assert limit


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 10.0

    def now(self) -> float:
        return self.time

    def utc(self) -> object:
        raise NotImplementedError


def test_a_patient_clock_stands_still_while_somebody_is_waited_for() -> None:
    hands = Hands()
    clock = PatientClock(hands)  # pyright: ignore[reportArgumentType]  # the time of day is not asked for

    with clock.waiting():
        hands.time = 20.0
        assert clock.now() == 10.0
        with clock.waiting():
            hands.time = 30.0
    assert clock.now() == 10.0
    hands.time = 31.0
    assert clock.now() == 11.0


def test_a_cancelled_task_names_no_limit(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    task = NewTask(id="t", prompt="p", workspace="/w")
    runner = EditRunner(Settings(model=f"command:{sys.executable} -c pass", runs_dir=tmp_path / "runs"))

    done = runner.run(task, LocalWorkspace(tmp_path), lambda event: None, cancelled)

    assert done.limit is None


@pytest.mark.requirement("O17")
def test_a_key_that_streams_in_piece_by_piece_is_not_told() -> None:
    telling, events = told(secrets=(KEY,))
    said = f"The key is {KEY}, not sk-very or sk-v."

    telling.on_event(ModelAsked(turn=1, ordinal=1, request_hash="h", model="m", kept=0, messages=[]))
    for character in said:
        telling.on_text("root", character)
    telling.on_event(replied("root", said))

    parts = [e.content for e in events if e.type == "assistant.message" and e.partial]
    assert "".join(parts) == "The key is [key removed], not sk-very or sk-v."
