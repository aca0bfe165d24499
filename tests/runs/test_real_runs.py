"""Real runs through the public door: what they leave in their folder is sound, small, comparable and free of keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from runs.streams import SOURCE
from sonde import Answer, Settings, ask, replay
from sonde.core.events import HostReturned, ModelAsked, ModelReplied, SubcallStarted
from sonde.core.status import LOOP_TRANSITIONS, LoopState
from sonde.models.base import ModelRequest
from sonde.runs.catalog import list_runs
from sonde.runs.compare import compare
from sonde.runs.export import export_run, unpack_run
from sonde.runs.rundir import RECORD, RunDir, fold
from sonde.testing import ScriptedModel
from sonde.viewer.excerpts import shown_excerpts
from sonde.viewer.stream import RunStream

ROOT_REPLIES = [
    "Look around.\n```python\nprint(list_files())\nprint(read_file('src/fetch.py'))\n```",
    "```python\nprint(llm_batch(['first?', 'second?']))\nprint(sub_rlm('how long?'))\n```",
    "```python\nadd_citation('src/fetch.py', 3, 4)\nprint('cited')\n```",
    "```python\nFINAL('Three times [src/fetch.py:3-4].')\n```",
]
CHILD_REPLIES = ["```python\nprint(grep('BACKOFF'))\n```", "```python\nFINAL('it doubles')\n```"]


def answer(request: ModelRequest) -> str:
    """The root's, the child's, or a plain query's next reply, by what has been said before."""
    said = sum(message.role == "assistant" for message in request.messages)
    if request.messages[-1].content in ("first?", "second?"):
        return f"yes to {request.messages[-1].content}"
    replies: Sequence[str] = CHILD_REPLIES if "how long?" in request.messages[1].content else ROOT_REPLIES
    return replies[min(said, len(replies) - 1)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "fetch.py").write_text(SOURCE)
    return folder


def run(source: Path, runs_dir: Path, settings: Settings | None = None) -> tuple[Answer, RunDir]:
    found = ask(
        "How often is a fetch retried?",
        str(source),
        model=ScriptedModel(answer),
        runs_dir=runs_dir,
        settings=settings or Settings(),
    )
    assert found.run_dir is not None
    return found, RunDir(Path(found.run_dir))


@pytest.mark.requirement(126)
def test_a_run_leaves_a_sound_journal_and_a_record_that_is_its_fold(source: Path, tmp_path: Path) -> None:
    found, folder = run(source, tmp_path / "runs")

    events = folder.events()
    written = json.loads((folder.path / RECORD).read_text())
    assert found.status == "succeeded"
    assert folder.record() == fold(events)
    assert [event.seq for event in events] == list(range(len(events)))
    assert written["runtime_ref"]["usage"]["llm_subcalls"] == sum(isinstance(e, SubcallStarted) for e in events) == 3


@pytest.mark.requirement(135)
def test_the_trajectory_of_a_real_run_follows_the_machine(source: Path, tmp_path: Path) -> None:
    runtime = run(source, tmp_path / "runs")[1].record().runtime_ref
    child = next(sub for sub in runtime.subcall_metadata if sub.mode == "rlm")

    for path in (runtime.state_trajectory, child.state_trajectory):
        states = [LoopState(state) for state in path]
        assert states[0] is LoopState.INITIALIZED and states[-1] is LoopState.COMPLETED
        assert all(after in LOOP_TRANSITIONS[before] for before, after in pairwise(states))


@pytest.mark.requirement(124)
def test_two_runs_on_the_same_data_are_equal_but_for_ids_and_times(source: Path, tmp_path: Path) -> None:
    first, second = (run(source, tmp_path / name)[1] for name in ("a", "b"))

    found = compare(first.events(), second.events())

    assert found.equal, found.first_difference
    assert found.same_answer


@pytest.mark.requirement(124)
def test_a_run_on_other_data_differs_where_it_first_shows(source: Path, tmp_path: Path) -> None:
    first = run(source, tmp_path / "a")[1]
    (source / "src" / "fetch.py").write_text(SOURCE.replace("RETRIES = 3", "RETRIES = 5"))
    second = run(source, tmp_path / "b")[1]

    difference = compare(first.events(), second.events()).first_difference

    assert difference is not None
    assert difference.field in ("dataset_ref", "context")


def test_a_key_that_a_tool_returns_reaches_no_file_of_the_run(source: Path, tmp_path: Path) -> None:
    key = "sk-live-0123456789abcdef"
    (source / "src" / "fetch.py").write_text(f"KEY = '{key}'\n{SOURCE}")
    settings = Settings(environ={"OPENAI_API_KEY": key})

    folder = run(source, tmp_path / "runs", settings)[1]

    for file in folder.path.iterdir():
        assert key not in file.read_text(), file.name
    assert replay(folder.path, settings=settings, trust_run=True).equal


def test_a_run_is_listed_exported_and_shown(source: Path, tmp_path: Path) -> None:
    folder = run(source, tmp_path / "runs")[1]

    (line,) = list_runs(tmp_path / "runs")
    back = unpack_run(export_run(folder, tmp_path / "shared"), tmp_path / "other")
    stream = RunStream(folder.path)
    shown = shown_excerpts(stream.full(range(stream.news()["total"])), within=["/"])

    assert (line.status, line.citations) == ("succeeded", 1)
    assert compare(folder.events(), back.events()).equal
    assert [(each.ref, each.state) for each in shown] == [("src/fetch.py:3-4", "verified")]
    assert shown[0].seen_at is not None


def test_prompts_can_be_put_together_again_from_the_journal(source: Path, tmp_path: Path) -> None:
    model = ScriptedModel(answer)
    found = ask("How often?", str(source), model=model, runs_dir=tmp_path / "runs", settings=Settings())
    assert found.run_dir is not None
    asked = [e for e in RunDir(Path(found.run_dir)).events() if isinstance(e, ModelAsked) and e.session == "root"]

    messages: list[dict[str, str]] = []
    for event in asked:
        messages = [*messages[: event.kept], *event.messages]

    last = [request for request in model.requests if len(request.messages) == len(messages)][-1]
    assert messages == [{"role": message.role, "content": message.content} for message in last.messages]


@pytest.mark.long
def test_the_record_of_a_run_over_a_large_context_stays_small(tmp_path: Path) -> None:
    big = tmp_path / "big.log"
    with big.open("w") as file:
        for number in range(100):
            file.write(f"block {number} " + "all is well\n" * 87_000)
    replies = ["```python\nprint(read_file('big.log', 1, 150))\nprint(grep('block'))\n```"] * 8
    model = ScriptedModel([*replies, "```python\nFINAL('fine [big.log:1-2]')\n```"])

    found = ask("Is all well?", str(big), model=model, runs_dir=tmp_path / "runs", settings=Settings())

    assert big.stat().st_size > 100_000_000
    assert found.run_dir is not None
    folder = RunDir(Path(found.run_dir))
    assert (folder.path / RECORD).stat().st_size < 1_000_000
    assert any(isinstance(event, HostReturned) for event in folder.events())
    assert all(event.tokens_in < 100_000 for event in folder.events() if isinstance(event, ModelReplied))
