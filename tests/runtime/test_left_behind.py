"""Sub-calls that something odd happens to: each has an end in the record, and the run replays."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import replay
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.cancellation import Stop
from sonde.core.deadline import Deadline
from sonde.core.events import GateChecked, SubcallEnded
from sonde.core.status import RunStatus
from sonde.models.base import ModelReply, ModelRequest, OnText, estimate_usage
from sonde.runs.rundir import RunDir

FINISH = "FINAL('42 [a.txt:1]')"
BATCH = "print(read_file('a.txt'), llm_batch(['ask 1', 'ask 2', 'ask 3']))"


class OwnModel:
    """A model of the user's own, which keeps to no rules; the first turn of the root is `code`."""

    name = "own:model"

    def __init__(self, code: str, answer: Callable[[str], str]) -> None:
        self.code, self.answer = code, answer

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        del deadline, on_text
        said = request.messages[1].content
        text = self.answer(said) if said.startswith("ask") else FINISH if len(request.messages) > 2 else self.code
        return ModelReply(text=text, usage=estimate_usage(request, text), model=self.name, latency_s=0.0)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("beta is 42\n")
    return tmp_path / "data"


def asked(data: Path, model: OwnModel, stop: Stop | None = None) -> tuple[Answer, RunDir]:
    answer = ask("?", data, model=model, cancel=stop, settings=Settings(), runs_dir=data.parent / "runs")
    assert answer.run_dir is not None
    return answer, RunDir(answer.run_dir)


@pytest.mark.requirement(126)
@pytest.mark.parametrize("code", [BATCH, BATCH.replace("llm_batch(['ask 1', 'ask 2', 'ask 3'])", "llm_query('ask 2')")])
def test_a_model_of_ones_own_that_raises_anything_has_given_no_reply(data: Path, code: str) -> None:
    def answer(prompt: str) -> str:
        if prompt == "ask 2":
            raise ValueError("out of paper")
        return "yes"

    found, run = asked(data, OwnModel(code, answer))

    ends = {event.session: event for event in run.events() if isinstance(event, SubcallEnded)}
    assert sorted(ends) == sorted(each.session for each in found.record.runtime_ref.subcall_metadata)
    assert [each.summary for each in ends.values() if each.status == "failed"] == [
        "own:model raised ValueError: out of paper"
    ]
    assert found.record.metrics.model_failures == 1
    assert replay(run.path, settings=Settings()).equal


@pytest.mark.requirement(126)
def test_a_sub_call_that_does_not_hear_of_a_stop_has_an_end_in_the_record(data: Path) -> None:
    stop, deaf, let_go = Stop(), threading.Event(), threading.Event()

    def answer(prompt: str) -> str:
        if prompt == "ask 3":
            deaf.set()
            let_go.wait(60)
        if prompt == "ask 2" and deaf.wait(60):
            stop.set()
        return "yes"

    found, run = asked(data, OwnModel(BATCH, answer), stop)
    let_go.set()

    assert found.status is RunStatus.PARTIAL
    assert {each.status for each in found.record.runtime_ref.subcall_metadata} == {"succeeded", "terminated_budget"}
    assert all(each.completed_at for each in found.record.runtime_ref.subcall_metadata)
    assert replay(run.path, settings=Settings()).equal


def test_parallel_children_may_not_cite_what_only_another_of_them_has_seen(data: Path) -> None:
    read = threading.Event()
    for number in range(4):  # too much to be shown to the root, and so to its children
        (data / f"filler{number}.txt").write_text("nothing here\n" * 900)

    def answer(prompt: str) -> str:
        raise AssertionError(prompt)

    class Children(OwnModel):
        def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
            task, turn = request.messages[1].content, len(request.messages)
            if "reader" in task:
                text = "print(read_file('a.txt'))" if turn == 2 else FINISH
                if turn > 2:
                    read.set()
            elif "guesser" in task:
                assert read.wait(60)
                text = "FINAL('surely so [a.txt:1]')"
            else:
                return super().complete(request, deadline=deadline, on_text=on_text)
            return ModelReply(text=text, usage=estimate_usage(request, text), model=self.name, latency_s=0.0)

    _, run = asked(data, Children("print(rlm_batch(['the reader', 'the guesser']))", answer))

    judged = [event for event in run.events() if isinstance(event, GateChecked) and event.gate == "evidence"]
    first = {event.session: event for event in reversed(judged)}
    assert first["root/1.1.0"].ok
    assert "without having read it" in first["root/1.1.1"].reason
    assert first["root"].ok  # it has the reader's result
    assert replay(run.path, settings=Settings()).equal
