"""Attempts of a model that failed cost the same when a run goes on elsewhere: after a crash, as a branch, by its words only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from recorded_runs import FINISH, asked, one_fact

from sonde.api.ask_run import ask
from sonde.api.rerun import branch, replay, resume
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.cancellation import Stop
from sonde.core.status import RunStatus
from sonde.errors import ModelCallFailed
from sonde.models.base import ModelRequest
from sonde.runs.rundir import JOURNAL, RECORD, SUMMARY
from sonde.testing import ScriptedModel

LOOK = "print(read_file('a.txt'))"
COUNT = "print(budget_counters)"
LONG = "print('x' * 7000)"
BATCH = "print(llm_batch([f'ask {i}' for i in range(3)]))"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return one_fact(tmp_path)


def passing() -> ModelCallFailed:
    return ModelCallFailed("busy", retryable=True, retry_after=0.0, tokens_in=900)


def too_long() -> ModelCallFailed:
    return ModelCallFailed("the prompt is too long", too_long=True, tokens_in=5)


def succeeded(data: Path, model: ScriptedModel) -> tuple[Answer, Path]:
    answer, run_dir = asked(data, model)
    assert answer.status is RunStatus.SUCCEEDED
    return answer, run_dir


def killed(run_dir: Path, *, after: bytes | None = None, before: bytes | None = None) -> None:
    """The folder as a kill after the first, or before the last, event of a kind leaves it."""
    lines = (run_dir / JOURNAL).read_bytes().splitlines(keepends=True)
    if after is not None:
        kept = next(at for at, line in enumerate(lines) if after in line) + 1
    else:
        kept = max(at for at, line in enumerate(lines) if before is not None and before in line)
    (run_dir / JOURNAL).write_bytes(b"".join(lines[:kept]))
    (run_dir / RECORD).unlink()
    (run_dir / SUMMARY).unlink()


def test_an_attempt_that_failed_before_a_crash_counts_after_it(data: Path) -> None:
    before, run_dir = succeeded(data, ScriptedModel([LOOK, passing(), COUNT, FINISH]))
    killed(run_dir, after=b'"model_failed"')

    model = ScriptedModel([COUNT, FINISH])
    finished = resume(run_dir, model=model, settings=Settings())

    counted = before.record.runtime_ref.usage.tokens_in
    assert finished.record.runtime_ref.usage.tokens_in == counted
    assert f"'tokens_in': {counted - len_in(model.requests[-1])}" in model.requests[-1].messages[-1].content
    assert replay(run_dir, settings=Settings()).equal


def len_in(request: ModelRequest) -> int:
    return -(-sum(len(each.content) for each in request.messages) // 4)


def test_a_branch_takes_the_failed_attempts_of_its_turns_along_and_replays(data: Path) -> None:
    before, run_dir = succeeded(data, ScriptedModel([passing(), LOOK, COUNT, FINISH]))

    tried = branch(run_dir, 2, runs_dir=data.parent / "runs", model=ScriptedModel([COUNT, FINISH]), settings=Settings())

    assert tried.run_dir is not None
    assert tried.record.runtime_ref.usage == before.record.runtime_ref.usage
    assert replay(tried.run_dir, settings=Settings()).equal


def folding() -> Callable[[ModelRequest], str | Exception]:
    script = iter([*[LONG] * 6, too_long(), LOOK, FINISH])
    return lambda _request: next(script)


def test_after_a_crash_a_folded_conversation_is_not_sent_whole_again(data: Path) -> None:
    _, run_dir = succeeded(data, ScriptedModel(folding()))
    killed(run_dir, before=b'"model_replied"')

    model = ScriptedModel([FINISH])
    finished = resume(run_dir, model=model, settings=Settings())

    assert finished.record.status is RunStatus.SUCCEEDED
    assert len(model.requests) == 1
    assert replay(run_dir, settings=Settings()).equal


def test_a_folded_conversation_replays_by_its_words_and_in_a_branch(data: Path) -> None:
    _, run_dir = succeeded(data, ScriptedModel(folding()))

    assert replay(run_dir, settings=Settings(), words_only=True).equal
    tried = branch(run_dir, 8, runs_dir=data.parent / "runs", model=ScriptedModel([FINISH]), settings=Settings())
    assert tried.record.status is RunStatus.SUCCEEDED
    assert tried.run_dir is not None
    assert replay(tried.run_dir, settings=Settings()).equal


def test_a_sub_call_that_failed_for_good_before_a_crash_is_not_asked_again(data: Path) -> None:
    def one_fails(request: ModelRequest) -> str | Exception:
        text = request.messages[-1].content
        if text.startswith("ask"):
            return ModelCallFailed("refused") if text == "ask 1" else "yes"
        return [BATCH, LOOK, FINISH][len(request.messages) // 2 - 1]

    _, run_dir = succeeded(data, ScriptedModel(one_fails))
    killed(run_dir, before=b'"model_replied"')

    model = ScriptedModel([FINISH])
    finished = resume(run_dir, model=model, settings=Settings())

    assert finished.record.status is RunStatus.SUCCEEDED
    assert len(model.requests) == 1


def test_a_sub_call_that_was_cancelled_before_a_crash_is_asked_again(data: Path) -> None:
    stop = Stop()

    def stopped(request: ModelRequest) -> str | Exception:
        if not request.messages[-1].content.startswith("ask"):
            return "print(llm_query('ask it'))"
        stop.set()
        return ModelCallFailed("interrupted")

    model = ScriptedModel(stopped)
    answer = ask("?", data, model=model, settings=Settings(), runs_dir=data.parent / "runs", cancel=stop)
    assert answer.run_dir is not None
    killed(answer.run_dir, after=b'"subcall_ended"')

    again = ScriptedModel(["yes", LOOK, FINISH])
    finished = resume(answer.run_dir, model=again, settings=Settings())

    assert finished.record.status is RunStatus.SUCCEEDED
    assert "yes" in again.requests[1].messages[-1].content


def test_a_run_that_was_killed_while_it_was_delegating_goes_on_and_replays(data: Path) -> None:
    steps = ["print(llm_query('ask it'))", "yes", LOOK, FINISH]
    answer, run_dir = succeeded(data, ScriptedModel(steps))
    killed(run_dir, after=b'"delegating"')

    finished = resume(run_dir, model=ScriptedModel(steps[1:]), settings=Settings())

    assert finished.record.runtime_ref.state_trajectory == answer.record.runtime_ref.state_trajectory
    assert replay(run_dir, settings=Settings()).equal
