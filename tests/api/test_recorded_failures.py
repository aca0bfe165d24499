"""Runs with failures in them replay, and a resumed run has no more time than it had left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from recorded_runs import FINISH, asked, one_fact

from sonde.api.rerun import replay, resume
from sonde.api.settings import Settings
from sonde.core.events import ModelReplied, RunResumed, RunStarted, TurnStarted
from sonde.core.status import RunStatus
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed
from sonde.models.base import ModelRequest
from sonde.runs.journal import Journal
from sonde.runs.recording import RecordedClock
from sonde.runs.rundir import JOURNAL, RECORD, SUMMARY, RunDir
from sonde.testing import FrozenClock, ScriptedModel

LOOK = "text = read_file('a.txt')"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return one_fact(tmp_path)


def in_a_batch(request: ModelRequest) -> str | Exception:
    text = request.messages[-1].content
    if text.startswith("ask"):
        return ModelCallFailed("no", tokens_in=7) if text == "ask 1" else "yes"
    return ["print(llm_batch([f'ask {i}' for i in range(3)]))", LOOK, FINISH][len(request.messages) // 2 - 1]


@pytest.mark.parametrize(
    "script",
    [
        in_a_batch,
        [LOOK, ModelCallFailed("gone")],
        [ModelCallFailed("429", retryable=True, retry_after=0.0, tokens_in=9), LOOK, FINISH],
        [ModelCallFailed("401")],
    ],
    ids=["one of a batch", "at the end", "passing", "at once"],
)
def test_a_run_with_failures_of_its_model_replays(data: Path, script: Any) -> None:
    answer, run_dir = asked(data, script)
    again = replay(run_dir, settings=Settings())

    assert again.equal, again.differences
    assert again.record is not None
    assert again.record.runtime_ref.usage == answer.record.runtime_ref.usage
    assert again.record.status == answer.record.status


def test_time_used_before_a_crash_counts_after_it(data: Path) -> None:
    clock = FrozenClock()

    def slow(_request: ModelRequest) -> str:
        clock.advance(30)
        return LOOK

    _, run_dir = asked(data, ScriptedModel(slow), clock=clock, max_wall_time_sec=100)
    lines = (run_dir / "events.jsonl").read_bytes().splitlines(keepends=True)
    second = next(i for i, line in enumerate(lines) if b'"turn_started"' in line and b'"turn":2' in line)
    (run_dir / "events.jsonl").write_bytes(b"".join(lines[: second + 1]))

    finished = resume(run_dir, model=ScriptedModel(slow), settings=Settings(), clock=clock)

    assert finished.record.error is not None
    assert finished.record.error.code is ErrorCode.WALL_TIME_LIMIT_REACHED
    assert finished.record.runtime_ref.usage.iterations == 3  # 30 s before, 30 after, and at 60 the last one


def test_waiting_and_pauses_are_left_out_of_the_time_used() -> None:
    start = RunStarted(
        session="root", seq=0, at=0.0, run_id="r", run_type="ask", objective="?", engine_version="", model=None,
        sub_model=None, provider="", temperature=0.0, prompt_template_hash="", mode="code", profile="analysis", budget={},
        seed=0, input_ref={}, dataset_ref={}, settings={}, variables=[], context="",
    )  # fmt: skip
    reply = ModelReplied(
        session="root", seq=2, at=90.0, turn=1, ordinal=0, request_hash="", text="", model="m", tokens_in=0,
        tokens_out=0, waited_s=60.0,
    )  # fmt: skip
    turn = TurnStarted(session="root", seq=1, at=10.0, turn=1, elapsed_s=10.0)
    resumed = RunResumed(session="root", seq=3, at=5000.0, elapsed_s=30.0, replayed=3)

    assert RecordedClock(FrozenClock(), []).used == 0
    assert RecordedClock(FrozenClock(), [start]).used == 0
    assert RecordedClock(FrozenClock(), [start, turn, reply]).used == pytest.approx(30)
    assert RecordedClock(FrozenClock(), [start, turn, reply, resumed]).used == pytest.approx(30)


def test_a_mistake_found_too_late_is_raised_and_the_folder_is_complete(data: Path) -> None:
    def tool() -> str:
        """Look."""
        return ""

    tool.__name__ = "ToolError"  # which only the sandbox knows to be taken
    with pytest.raises(ConfigError):
        asked(data, [LOOK, FINISH], tools=[tool])

    (run_dir,) = (data.parent / "runs").iterdir()
    record = RunDir(run_dir).record()
    assert record.status is RunStatus.FAILED
    assert record.error is not None


def test_a_mistake_found_in_time_leaves_no_folder(data: Path) -> None:
    def read_file() -> str:
        """Another one of that name."""
        return ""

    with pytest.raises(ConfigError, match="read_file"):
        asked(data, [LOOK, FINISH], tools=[read_file])

    assert not (data.parent / "runs").exists()


def begun(data: Path, journal_format: int) -> Path:
    """A run that a version with that journal format began, and no more."""
    _, run_dir = asked(data, [FINISH])
    started = RunDir(run_dir).events()[0]
    for name in (JOURNAL, RECORD, SUMMARY):
        (run_dir / name).unlink()
    journal = Journal(run_dir / JOURNAL)
    journal.append(msgspec.structs.replace(started, format=journal_format))
    journal.close()
    return run_dir


def test_a_run_begun_before_everyday_names_needed_no_import_goes_on_and_replays_without_them(data: Path) -> None:
    run_dir = begun(data, 1)
    model = ScriptedModel(["print(re.sub('a', 'b', read_file('a.txt')))", f"{LOOK}\n{FINISH}"])

    resume(run_dir, model=model, settings=Settings(), trust_run=True)

    assert "write `import re` first" in model.requests[1].messages[-1].content
    assert replay(run_dir, settings=Settings(), trust_run=True).equal


def test_a_run_begun_before_left_out_lines_were_numbered_goes_on_and_replays_as_it_began(data: Path) -> None:
    run_dir = begun(data, 2)
    turns = ["print('line\\n' * 9000)", "import posixpath", f"{LOOK}\n{FINISH}"]
    model = ScriptedModel(turns)

    resume(run_dir, model=model, settings=Settings(), trust_run=True)

    assert " first and " in model.requests[1].messages[-1].content
    assert "left out" not in model.requests[1].messages[-1].content
    refused = model.requests[2].messages[-1].content
    assert "`posixpath` cannot be imported" in refused and "ntpath" not in refused
    assert replay(run_dir, settings=Settings(), trust_run=True).equal


def test_code_that_forgets_an_import_runs_and_replays(data: Path) -> None:
    model = ScriptedModel(["print(re.sub('b', 'c', read_file('a.txt')))", FINISH])
    _, run_dir = asked(data, model)

    assert "ceta is 42" in model.requests[1].messages[-1].content
    assert replay(run_dir, settings=Settings()).equal
