"""What a long run sends again: old outputs shrink to what tells something, in rare steps, and the run replays and resumes all the same."""

from __future__ import annotations

from itertools import pairwise
from os.path import commonprefix
from pathlib import Path

import pytest
from recorded_runs import asked

from sonde.api.rerun import replay, resume
from sonde.api.settings import Settings
from sonde.core.events import Compacted, ModelAsked
from sonde.models.base import ModelRequest
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel

LINES = [f"{n:05} INFO request {n * 7919 % 9973} handled by worker {n % 7}" for n in range(2000)]
LINES[1010] = "01010 WARN pool nearly full"
TURNS = 12


def part(number: int) -> str:
    """One turn: fifty lines of the log."""
    first = 40 * number
    return (
        f"Lines from {first} on.\n```python\nlines = CONTEXT['app.log'].splitlines()\nlast_seen = {first + 50}\n"
        f"for n in range({first}, {first + 50}):\n    print(lines[n])\n```"
    )


SCRIPT = [
    *(part(number) for number in (1, 2, 3, 25)),
    "Line 00137 is strange.\n```python\nprint(lines[137])\n```",
    *(part(number) for number in range(30, 30 + TURNS - 6)),
    "FINAL('The pool was nearly full. [app.log:1011]')",
]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "app.log").write_text("\n".join(LINES))
    return tmp_path / "data"


def text(request: ModelRequest) -> str:
    return "\0".join(message.content for message in request.messages)


def test_old_outputs_shrink_to_lines_that_tell_something(data: Path) -> None:
    model = ScriptedModel(SCRIPT)
    answer, _ = asked(data, model)
    sent = text(model.requests[-1])

    assert answer.status == "succeeded"
    assert LINES[1010] in sent  # unlike the lines around it
    assert LINES[137] in sent  # a later turn spoke of it
    assert LINES[1030] not in sent
    assert "Lines from 1000 on." in sent
    assert "set lines, last_seen" in sent
    assert len(sent) < sum(map(len, LINES)) / 4


def test_shrinking_is_rare_and_leaves_the_beginning_as_it_was(data: Path) -> None:
    model = ScriptedModel(SCRIPT)
    _, run_dir = asked(data, model)
    sent = [text(request) for request in model.requests]
    rewritten = [after for before, after in pairwise(sent) if not after.startswith(before)]
    kept = [
        len(commonprefix([before, after]))  # noqa: RUF071  # of texts, not of paths
        for before, after in pairwise(sent)
    ]
    steps = [event for event in RunDir(run_dir).events() if isinstance(event, Compacted)]

    assert 1 <= len(rewritten) == len(steps) <= TURNS // 3
    assert all(each.shortened and each.tokens_after < each.tokens_before for each in steps)
    assert min(kept[3:]) >= 4 * 1024


def test_a_run_whose_old_turns_shrank_replays_and_resumes_with_the_same_requests(data: Path) -> None:
    answer, run_dir = asked(data, SCRIPT)
    again = replay(run_dir, settings=Settings())
    events = RunDir(run_dir).events()
    hashes = [event.request_hash for event in events if isinstance(event, ModelAsked)]
    journal = run_dir / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    ninth = next(at for at, event in enumerate(events) if isinstance(event, ModelAsked) and event.turn == 9)
    journal.write_bytes(b"".join(lines[: ninth + 1]))
    finished = resume(run_dir, model=ScriptedModel(SCRIPT[8:]), settings=Settings())
    resumed = [event.request_hash for event in RunDir(run_dir).events() if isinstance(event, ModelAsked)]

    assert again.equal, again.differences
    assert finished.text == answer.text
    assert list(dict.fromkeys(resumed)) == hashes
    assert replay(run_dir, settings=Settings()).equal
