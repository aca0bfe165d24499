"""A run that a limit or a tool has ended is done again as it was: replayed, and resumed after a kill."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec import structs
from recorded_runs import FINISH, asked, one_fact

from sonde.api.recorded_run import check_recipe
from sonde.api.rerun import replay, resume
from sonde.api.settings import Settings
from sonde.core.cancellation import Stop
from sonde.core.events import Event, ModelFailed, RunStarted
from sonde.errors import ConfigError, ModelCallFailed
from sonde.models.base import ModelRequest
from sonde.runs.rundir import JOURNAL, RECORD, SUMMARY, RunDir
from sonde.sandbox import Limits
from sonde.testing import FrozenClock, ScriptedModel

LOOK = "print(read_file('a.txt'))"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return one_fact(tmp_path)


@pytest.mark.requirement(124)
def test_a_run_whose_next_prompt_was_more_than_its_tokens_replays(data: Path) -> None:
    answer, run_dir = asked(data, ScriptedModel([LOOK] * 9), max_tokens_total=5_000)
    assert answer.record.error is not None and "the prompt alone needs" in answer.record.error.message

    again = replay(run_dir, settings=Settings())

    assert again.equal, again.differences
    assert again.record is not None and again.record.error == answer.record.error


def test_a_run_that_was_ended_by_what_a_tool_returned_replays(data: Path) -> None:
    def odd() -> object:
        """Something that is no data."""
        return object()

    answer, run_dir = asked(data, ScriptedModel(["odd()", FINISH]), tools=[odd])

    again = replay(run_dir, settings=Settings(), tools=[odd])

    assert again.equal, again.differences
    assert again.record is not None and again.record.error == answer.record.error


def small_batch(request: ModelRequest) -> str:
    """Three questions, of which the tokens are enough for some."""
    text = request.messages[-1].content
    if text.startswith("ask"):
        return "yes " * 100
    batch = "print(llm_batch([f'ask {i} ' + 'y' * 3000 for i in range(3)]))"
    return [batch, LOOK, FINISH][len(request.messages) // 2 - 1]


def test_sub_calls_that_got_no_tokens_get_none_when_the_run_is_resumed(data: Path) -> None:
    answer, run_dir = asked(data, ScriptedModel(small_batch), max_tokens_total=2_900)
    assert 0 < (run_dir / JOURNAL).read_bytes().count(b'"terminated_budget","summary"') < 3, answer.gaps
    assert replay(run_dir, settings=Settings()).equal

    for name in (RECORD, SUMMARY):  # a kill between the last event and the files
        (run_dir / name).unlink()
    model = ScriptedModel(small_batch)
    finished = resume(run_dir, model=model, settings=Settings())

    assert model.requests == []
    assert finished.record.runtime_ref.usage == answer.record.runtime_ref.usage
    assert (run_dir / JOURNAL).read_bytes().count(b'"run_ended"') == 1


def test_a_cancelled_run_whose_files_are_missing_gets_them_and_asks_nobody(data: Path) -> None:
    stop = Stop()

    def stopping(request: ModelRequest) -> str:
        if len(request.messages) > 2:
            stop.set()
        return LOOK

    answer, run_dir = asked(data, ScriptedModel(stopping), cancel=stop)
    journal = (run_dir / JOURNAL).read_bytes()
    for name in (RECORD, SUMMARY):  # a kill between the last event and the files
        (run_dir / name).unlink()

    model = ScriptedModel([FINISH])
    finished = resume(run_dir, model=model, settings=Settings())

    assert model.requests == []
    assert finished.record.status is answer.status
    assert finished.text == answer.text
    assert (run_dir / JOURNAL).read_bytes().startswith(journal)
    assert replay(run_dir, settings=Settings()).equal


def test_a_loop_of_calls_with_wrong_arguments_stops_at_the_quota(data: Path) -> None:
    loop = "for i in range(50):\n    try:\n        read_file()\n    except Exception:\n        pass"

    answer, run_dir = asked(data, ScriptedModel([loop, FINISH]), max_tool_calls=7)

    assert answer.record.runtime_ref.usage.tool_calls == 7
    assert "max_tool_calls" in answer.gaps[0]
    assert replay(run_dir, settings=Settings()).equal


def test_a_query_whose_reply_came_after_the_time_of_its_parent_replays(data: Path) -> None:
    clock = FrozenClock()

    def slow(request: ModelRequest) -> str:
        text = "".join(message.content for message in request.messages[1:])
        if text == "ask":
            clock.advance(95)  # more than a child has of 100 seconds, less than the root
            return "yes"
        return "print(llm_batch(['ask']))" if len(request.messages) == 2 else FINISH

    def root(request: ModelRequest) -> str:
        return "print(sub_rlm('look closer', depth=2))" if len(request.messages) == 2 else FINISH

    answer, run_dir = asked(
        data, ScriptedModel(root), sub_model=ScriptedModel(slow, name="s:small"), clock=clock, max_wall_time_sec=100
    )
    assert "[error] max_wall_time_sec" in (run_dir / JOURNAL).read_text()

    again = replay(run_dir, settings=Settings())

    assert again.equal, again.differences
    assert again.record is not None and again.record.runtime_ref.usage == answer.record.runtime_ref.usage


def test_a_run_whose_time_ended_in_the_middle_of_an_attempt_replays_with_that_reason(data: Path) -> None:
    clock = FrozenClock()

    def stalls(_request: ModelRequest) -> Exception:
        clock.advance(200)
        return ModelCallFailed("did not finish in time", retryable=True, tokens_in=5)

    answer, run_dir = asked(data, ScriptedModel(stalls), clock=clock, max_wall_time_sec=100)

    again = replay(run_dir, settings=Settings())

    assert again.record is not None and again.record.error == answer.record.error
    assert again.equal, again.differences


def test_a_model_that_refuses_again_after_a_kill_replays_with_its_last_words(data: Path) -> None:
    _, run_dir = asked(data, ScriptedModel([LOOK, ModelCallFailed("refused at first")]))
    lines = (run_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    kept = next(at for at, line in enumerate(lines) if b'"model_failed"' in line) + 1
    (run_dir / JOURNAL).write_bytes(b"".join(lines[:kept]))
    for name in (RECORD, SUMMARY):
        (run_dir / name).unlink()

    finished = resume(run_dir, model=ScriptedModel([ModelCallFailed("refused again")]), settings=Settings())
    again = replay(run_dir, settings=Settings())

    assert again.record is not None and again.record.error == finished.record.error
    assert again.equal, again.differences


def test_a_child_that_was_cancelled_before_a_kill_gives_its_result_to_the_code_after_it(data: Path) -> None:
    stop = Stop()

    def child(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            stop.set()
            return LOOK
        return "FINAL('found it')"

    def root(request: ModelRequest) -> str:
        return "print(sub_rlm('look closer'))" if len(request.messages) == 2 else FINISH

    small = ScriptedModel(child, name="s:small")
    _, run_dir = asked(data, ScriptedModel(root), sub_model=small, cancel=stop)
    lines = (run_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    (run_dir / JOURNAL).write_bytes(b"".join(lines[:-1]))  # killed in front of its last event
    for name in (RECORD, SUMMARY):
        (run_dir / name).unlink()

    model = ScriptedModel(root)
    finished = resume(run_dir, model=model, sub_model=small, settings=Settings())

    assert "found it" in model.requests[0].messages[-1].content
    assert finished.record.runtime_ref.subcall_metadata[0].status == "succeeded"
    assert replay(run_dir, settings=Settings()).equal


def test_an_attempt_that_failed_before_the_user_stopped_the_run_counts_in_its_replay(data: Path) -> None:
    stop = Stop()
    busy = ModelCallFailed("busy", retryable=True, tokens_in=900)

    def watch(event: Event) -> None:
        if isinstance(event, ModelFailed):
            stop.set()

    answer, run_dir = asked(data, ScriptedModel([LOOK, busy]), cancel=stop, on_event=watch)
    again = replay(run_dir, settings=Settings())

    assert again.equal, again.differences
    assert again.record is not None and again.record.runtime_ref.usage == answer.record.runtime_ref.usage


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (Limits(wall_s=1.0), "while True: pass"),
        (Limits(output_chars=1000), "print('x\\n' * 3000)"),
        (Limits(host_calls=2), "for _ in range(3): list_files()"),
    ],
)
def test_the_limits_of_a_turn_hold_when_the_run_is_done_again(data: Path, limits: Limits, code: str) -> None:
    _, run_dir = asked(data, [LOOK, code, FINISH], limits=limits)

    again = replay(run_dir, settings=Settings())

    assert again.equal, again.differences


def test_a_recorded_limit_that_this_version_does_not_know_is_named(data: Path) -> None:
    _, run_dir = asked(data, [LOOK, FINISH])
    first = RunDir(run_dir).events()[0]
    assert isinstance(first, RunStarted)

    with pytest.raises(ConfigError, match="no limit wings"):
        check_recipe(structs.replace(first, settings={**first.settings, "limits": {"wings": 2}}))
