"""Replies and calls that are made to keep the runtime busy, to fill the disk or to end the run: each costs a turn at most."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.events import CodeStarted, Event, HostReturned
from sonde.core.status import RunStatus
from sonde.errors import ErrorCode
from sonde.runtime import code_runner
from sonde.testing import FrozenClock, ScriptedModel, run_in_memory

TEXTS = {"a.txt": "alpha\nbeta is 42\n"}
CITED = "add_citation('a.txt', 2, 2)\nFINAL('beta is 42')"
FINALIZED = """{"type": "finalize", "output": {"answer": "beta is 42", "citations": [{"path": "a.txt", "start_line": 2, "end_line": 2}]}}"""
READ = """{"type": "tool_call", "tool_name": "read_file", "args": {"path": "a.txt"}}"""
MEGABYTE = 1 << 20


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "reply",
    ["```" + "\n" * 200_000, "x```\n" * 60_000, "```json" + " \n" * 100_000, "  ```\n" * 60_000, '{"a":' * 50_000],
    ids=["newlines", "never opened", "spaces", "indented", "objects"],
)
def test_a_reply_of_fences_is_read_once(reply: str) -> None:
    budget = Budget(max_iterations=6, max_tokens_total=10_000_000)
    model = ScriptedModel([reply, READ, FINALIZED])

    answer = run_in_memory(model, "?", FilesContext((), texts=TEXTS), mode="actions", budget=budget)

    assert answer.status is RunStatus.SUCCEEDED


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("profile", "fence"), [("analysis", ""), ("strict", "```python\n"), ("assign-only", "```python\n")]
)
def test_a_reply_of_f_strings_is_not_parsed_for_minutes(profile: str, fence: str) -> None:
    budget = Budget(max_iterations=6, max_tokens_total=10_000_000)
    model = ScriptedModel([f"{fence}x = f'" + "{a}" * 150_000 + "'", "FINAL('beta')", "FINAL('beta')"])

    answer = run_in_memory(model, "?", FilesContext((), texts=TEXTS), profile=profile, budget=budget)

    assert answer.text == "beta"


def test_a_final_value_of_a_thousand_lists_is_an_error_of_the_code_and_not_the_end_of_the_run() -> None:
    deep = "```python\nvalue = []\nfor _ in range(900): value = [value]\nFINAL(value)\n```"
    model = ScriptedModel([deep, "print(grep('beta'))", CITED])

    answer = run_in_memory(model, "?", FilesContext((), texts=TEXTS))

    assert answer.status is RunStatus.SUCCEEDED
    assert "nested more than" in model.requests[1].messages[-1].content


def blocks(count: int) -> str:
    return "```python\nx = 1\n```\n" * count


def test_the_first_blocks_of_a_reply_run_and_the_model_hears_of_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text(TEXTS["a.txt"])
    script = [blocks(5), "print(grep('beta'))", CITED]
    asked = partial(ask, "?", tmp_path / "a.txt", settings=Settings(), runs_dir=tmp_path / "runs")
    then = asked(model=ScriptedModel(script))  # as before there was a limit
    monkeypatch.setattr(code_runner, "MOST_BLOCKS", 3)
    model = ScriptedModel(script)
    now = asked(model=model)

    assert "first 3 blocks of a reply ran; the 2 after them did not" in model.requests[1].messages[-1].content
    for run in (now, then):
        assert run.run_dir is not None and replay(run.run_dir, settings=Settings()).equal


def test_blocks_end_with_the_time_of_the_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(TEXTS["a.txt"])
    clock = FrozenClock()
    started: list[Event] = []

    def tick(event: Event) -> None:
        if isinstance(event, CodeStarted):
            started.append(event)
            clock.advance(2.0)

    budget = Budget(max_wall_time_sec=9)
    answer = ask(
        *("?", tmp_path / "a.txt"),
        model=ScriptedModel([blocks(40)]),
        settings=Settings(),
        runs_dir=tmp_path / "runs",
        budget=budget,
        clock=clock,
        on_event=tick,
    )

    assert answer.record.error is not None and answer.record.error.code == ErrorCode.WALL_TIME_LIMIT_REACHED
    assert len(started) == 5
    assert answer.run_dir is not None and replay(answer.run_dir, settings=Settings()).equal


def test_a_loop_of_slow_calls_that_cost_nothing_ends_with_the_time_of_the_run() -> None:
    clock = FrozenClock()
    served: list[Event] = []

    def tick(event: Event) -> None:
        if isinstance(event, HostReturned):
            served.append(event)
            clock.advance(2.0)

    model = ScriptedModel(["```python\nfor _ in range(500): append_highlight('x')\n```"])
    files, budget = FilesContext((), texts=TEXTS), Budget(max_wall_time_sec=20)

    answer = run_in_memory(model, "?", files, budget=budget, clock=clock, on_event=tick)

    assert answer.status is RunStatus.PARTIAL
    assert len(served) <= 11


LONG_CALLS = {
    "a path that is not there": f"read_file('x' * {3 * MEGABYTE})",
    "an argument that is not known": f"read_file('a.txt', nothing='x' * {3 * MEGABYTE})",
    "a name that is not known": f"read_file(**{{'x' * {3 * MEGABYTE}: 1}})",
    "many small things": f"read_file(list(range({180_000})))",
    "a citation": f"add_citation('x' * {3 * MEGABYTE}, 1, 1)",
    "many highlights": f"append_highlight(['x'] * {350_000})",
}


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(call, id=name, marks=[pytest.mark.long] * (number > 0))
        for number, (name, call) in enumerate(LONG_CALLS.items())
    ],
)
def test_calls_with_long_arguments_do_not_fill_the_disk_and_replay(tmp_path: Path, call: str) -> None:
    loop = f"for _ in range(2):\n    try: {call}\n    except Exception as error: print(type(error).__name__, len(str(error)) < 50_000)"
    model = ScriptedModel(
        [f"```python\n{loop}\n```", "```python\nprint(grep('beta'))\n```", f"```python\n{CITED}\n```"]
    )
    events: list[Event] = []

    answer = ask(
        "?",
        FilesContext((), texts=TEXTS),
        model=model,
        runs_dir=tmp_path,
        settings=Settings(),
        on_event=events.append,
    )

    assert answer.status is RunStatus.SUCCEEDED
    assert "ToolError True" in model.requests[1].messages[-1].content
    assert sum(isinstance(event, HostReturned) for event in events) >= 2
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < MEGABYTE
    assert (
        replay("last", runs_dir=tmp_path, context=FilesContext((), texts=TEXTS), settings=Settings()).differences == ()
    )
