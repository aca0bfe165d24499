"""Sub-calls of `ask`: equal ones are asked once per run, and prompts that begin alike share a cache."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from recorded_runs import FINISH, asked, one_fact

from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.models.base import Message, ModelRequest
from sonde.runtime.delegate import BRIEF_SYSTEM
from sonde.testing import ScriptedModel

LOOK = "text = read_file('a.txt')"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return one_fact(tmp_path)


def playing(*turns: str) -> ScriptedModel:
    """Answers sub-calls with how many of them there were and the end of the prompt, and plays its turns to the root."""
    left, heard = iter(turns), iter(range(1000))

    def reply(request: ModelRequest) -> str:
        if request.messages[0].content != BRIEF_SYSTEM:
            return next(left)
        return f"{next(heard)} to {request.messages[1].content[-5:]}"

    return ScriptedModel(reply)


def sub_calls(model: ScriptedModel) -> list[ModelRequest]:
    return [request for request in model.requests if request.messages[0].content == BRIEF_SYSTEM]


def test_equal_prompts_are_asked_and_counted_once_and_the_run_replays(data: Path) -> None:
    model = playing(
        "a = llm_batch(['same', 'other', 'same', 'same'])\nprint(a)",
        "b = llm_query('same')\nc = llm_batch(['other', 'third'])\nprint(b, c)",
        LOOK,
        FINISH,
    )
    answer, run_dir = asked(data, model)
    *_, seen = model.requests
    printed = [re.sub(r"\d to", "to", message.content) for message in seen.messages]
    again = replay(run_dir, settings=Settings())

    assert sorted(request.messages[1].content for request in sub_calls(model)) == ["other", "same", "third"]
    assert answer.record.runtime_ref.usage.llm_subcalls == 3
    assert any("['to same', 'to other', 'to same', 'to same']" in each for each in printed)
    assert any("to same ['to other', 'to third']" in each for each in printed)
    assert again.equal, again.differences


def test_children_hear_the_same_reply_to_an_equal_prompt_and_the_run_replays(data: Path) -> None:
    def reply(request: ModelRequest) -> str:
        match request.messages:
            case [Message(content=system), Message(content=prompt)] if system == BRIEF_SYSTEM:
                return f"to {prompt}"
            case [_, Message(content=task), *_] if task.startswith("Task: child"):
                return "FINAL(llm_query('same'))"
            case messages:
                turns = ["print([sub_rlm(f'child {n}', depth=2) for n in (1, 2)], llm_query('same'))", LOOK, FINISH]
                return turns[len(messages) // 2 - 1]

    model = ScriptedModel(reply)
    answer, run_dir = asked(data, model, max_depth=3)
    again = replay(run_dir, settings=Settings())

    assert answer.status == "succeeded"
    assert len(sub_calls(model)) == 1
    assert "['to same', 'to same'] to same" in model.requests[-2].messages[-1].content
    assert again.equal, again.differences


def test_a_failed_prompt_is_asked_again(data: Path) -> None:
    model = playing("print(llm_batch(['', 'one']))\nprint(llm_query('one'))", LOOK, FINISH)
    _, run_dir = asked(data, model)

    assert len(sub_calls(model)) == 1
    assert replay(run_dir, settings=Settings()).equal


def test_prompts_that_begin_alike_share_a_conversation_and_one_goes_ahead(data: Path) -> None:
    long = "The same text. " * 400
    model = playing(
        f"print(llm_batch([{long!r} + each for each in 'abcd']))", "print(llm_query('alone'))", LOOK, FINISH
    )
    asked(data, model)
    *batch, alone = sub_calls(model)

    assert batch[0].messages[1].content.endswith("a")
    assert len({request.conversation for request in batch}) == 1
    assert {request.shared_chars for request in batch} == {len(long)}
    assert batch[0].conversation is not None
    assert alone.conversation is None
