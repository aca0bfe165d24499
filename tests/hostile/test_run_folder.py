"""A stranger sends a run folder: its beginning was rewritten and its sums chained anew. Going on with it costs nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from victim import Listener, Victim, one_in_make_test

from runs.streams import write_story
from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.core.budget import Budget
from sonde.core.events import RunEnded, RunStarted
from sonde.errors import ConfigError
from sonde.runs.export import journal_bytes
from sonde.runs.rundir import RunDir
from sonde.testing import FrozenClock, ScriptedModel

SECRET = "s3cr3t-words-of-the-victim"
KEY = "phoenix-key-of-the-victim"
SPAN = {
    "name": "llm",
    "context": {"trace_id": "a" * 32, "span_id": "b" * 16},
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "status_code": "ERROR",
    "status_message": "boom",
    "attributes": {},
}


def forged(run: Path, recipe: dict[str, Any], *, ended: bool = True, **fields: Any) -> None:
    events = [event for event in RunDir(run).events() if ended or not isinstance(event, RunEnded)]
    first = events[0]
    assert isinstance(first, RunStarted)
    events[0] = msgspec.structs.replace(first, settings={**first.settings, **recipe}, **fields)
    (run / "events.jsonl").write_bytes(journal_bytes(events))


def the_run(victim: Victim) -> Path:
    return next(path.parent for path in victim.folder.glob("runs/**/events.jsonl"))


FORGERIES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a budget of 1e9 USD": ({}, {"budget": {**Budget().as_dict(), "max_cost_usd": 1e9}}, "--max-cost-usd"),
    "a memory of 512 TB": ({"limits": {"memory": "524288GiB"}}, {}, "--limit memory=524288GiB"),
    "a package of its choice": ({"packages": ["antigravity"]}, {}, "choose from: numpy, pandas"),
    "another backend": ({}, {"layers": ["backend: monty"]}, "--backend monty"),
}


@pytest.mark.parametrize("forgery", one_in_make_test(FORGERIES))
def test_a_recording_raises_nothing(victim: Victim, forgery: tuple[dict[str, Any], dict[str, Any], str]) -> None:
    recipe, fields, flag = forgery
    victim.write("notes.txt", "the service is payments\n")
    model = victim.model("print(1)", "FINAL('payments')")
    victim.call("ask", "Which service?", "notes.txt", "--runs-dir", "runs", "--model", model.name)
    run = the_run(victim)
    forged(run, recipe, **fields)
    asked = model.calls

    for words in (("branch", run, "--turn", "1", "--model", model.name), ("replay", run)):
        done = victim.call(*words, "--runs-dir", victim.own)
        assert done.returncode == 2 and flag in done.stderr

    assert model.calls == asked
    assert list(victim.own.iterdir()) == []


RECORDED_PLACES = [".kube", ".kub?", ".kub?/conf*", ".kub?/config", ".[k]ube/*", "../home/.kub?/*"]


def test_a_recording_reads_no_folder_of_secrets_however_it_spells_it(victim: Victim) -> None:
    (victim.home / ".kube").mkdir()
    (victim.home / ".kube/config").write_text(f"token: {SECRET}\n")
    victim.write("notes.txt", "the service is payments\n")
    victim.call("ask", "What is the token?", "notes.txt", "--runs-dir", "runs")
    run = the_run(victim)

    for spelled in (*(f"{victim.home}/{each}" for each in RECORDED_PLACES), "/proc/self/environ", "/proc/self/env*"):
        forged(run, {"sources": {"paths": [spelled], "code": False}}, ended=False)
        (run / "run_record.json").unlink(missing_ok=True)
        done = [victim.call("resume", run), victim.call("ask", "?", "--continue", run, "--runs-dir", victim.own)]
        assert [each.returncode for each in done] == [2, 2], (spelled, done)

    left = [path for place in (run, victim.own) for path in place.rglob("*") if path.is_file()]
    assert not any(SECRET in path.read_text(errors="replace") for path in left)


@pytest.mark.hostile_long
def test_a_recorded_task_works_in_no_folder_of_secrets(victim: Victim) -> None:
    (victim.home / ".kube").mkdir()
    (victim.home / ".kube/config").write_text(f"token: {SECRET}\n")
    victim.write("notes.txt", "the service is payments\n")
    model = victim.model("print(list_files())", "print(read_file('config'))", "FINAL('done')")
    victim.sonde("edit", "Look.", ".", "--runs-dir", "runs", "--model", model.name)
    run = the_run(victim)
    forged(run, {"workspace": str(victim.home / ".kube")}, ended=False)
    (run / "run_record.json").unlink()

    done = victim.sonde("resume", run, "--model", model.name)

    assert done.returncode == 2 and f"--context {victim.home}/.kube" in done.stderr, done.stderr
    assert not any(SECRET in prompt for prompt in model.prompts)


@pytest.mark.hostile_long
def test_a_recording_writes_nothing_to_a_server_and_sends_no_key(victim: Victim, listener: Listener) -> None:
    victim.write("t.jsonl", json.dumps(SPAN) + "\n")
    victim.environ = {"PHOENIX_API_KEY": KEY}
    victim.sonde("rca", "a" * 32, "--source", "t.jsonl", "--runs-dir", "runs")
    run = the_run(victim)
    forged(run, {"source": listener.url, "writeback": True}, ended=False)
    (run / "run_record.json").unlink()

    words = (
        ("resume", run),
        ("resume", run, "--writeback"),
        ("replay", run, "--words-only"),
        ("branch", run, "--turn", "1"),
    )
    done = [victim.sonde(*each).returncode for each in words]

    assert listener.heard == []
    assert done == [2, 2, 2, 2]

    victim.environ = {"PHOENIX_API_KEY": KEY, "PHOENIX_COLLECTOR_ENDPOINT": listener.url}
    told = victim.sonde("resume", run)
    assert told.returncode == 2 and "--writeback" in told.stderr
    assert not any(request.startswith("POST") for request in listener.heard)


def test_an_import_from_the_future_is_not_the_last_run(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    victim.call("ask", "Which service?", "notes.txt", "--runs-dir", victim.own)
    (mine,) = (path.parent.name for path in victim.own.glob("*/events.jsonl"))
    theirs = write_story(victim.folder / "theirs", "20991231-235959-000000000")
    victim.call("export", theirs.path, "-o", "x.tar.gz")

    imported = victim.call("runs", "import", "x.tar.gz", "--runs-dir", victim.own)
    shown = victim.call("runs", "show", "last", "--json", "--runs-dir", victim.own)

    assert theirs.run_id in imported.stdout
    assert json.loads(shown.stdout)["run_id"] == mine


SPIN = "while 'wait' in str(CONTEXT['flag.txt']): pass"


def spinning(victim: Victim) -> Path:
    """A run whose code was quick, and never ends over the file that came with it. No seal says whose it is."""
    around = "a line of a log\n" * 3000  # so that no prompt shows the flag
    victim.write("data/flag.txt", f"{around}gone\n{around}")
    answer = ask(
        "Which service?",
        victim.folder / "data",
        model=ScriptedModel([SPIN, SPIN, "print(read_file('flag.txt', 1, 2))", "FINAL('gone [flag.txt:1]')"]),
        runs_dir=victim.folder / "runs",
        settings=Settings(environ={"HOME": str(victim.home)}),
        max_wall_time_sec=3,
        clock=FrozenClock(),
    )
    victim.write("data/flag.txt", f"{around}wait\n{around}")
    assert answer.run_dir is not None
    (answer.run_dir / "seal").unlink()
    return answer.run_dir


@pytest.mark.hostile_long
def test_code_that_spins_is_rebuilt_for_no_longer_than_the_run_may_take(victim: Victim) -> None:
    with pytest.raises(ConfigError, match="--max-wall-time-sec"):
        ask(
            "And then?",
            victim.folder / "data",
            model=ScriptedModel(["print(1)", "FINAL('gone [flag.txt:1]')"]),
            continue_from=spinning(victim),
            runs_dir=victim.own,
            settings=Settings(environ={"HOME": str(victim.home)}),
            max_wall_time_sec=1,
            clock=FrozenClock(),  # only the code that runs again uses time
        )


@pytest.mark.hostile_long
def test_a_replay_of_code_that_spins_ends_when_the_users_time_is_up(victim: Victim) -> None:
    run = spinning(victim)

    done = victim.call("replay", run, "--trust-run", "--max-wall-time-sec", "3")

    assert done.returncode == 2 and "--max-wall-time-sec" in done.stderr, done


@pytest.mark.hostile_long
@pytest.mark.parametrize("words", [("resume",), ("resume", "--live"), ("branch", "--turn", "3")], ids=" ".join)
def test_code_that_spins_holds_up_no_resume_and_no_branch(victim: Victim, words: tuple[str, ...]) -> None:
    run = spinning(victim)
    if words[0] == "resume":
        cut_off = [event for event in RunDir(run).events() if getattr(event, "turn", 0) < 3]
        ended = next(number for number, event in enumerate(cut_off) if isinstance(event, RunEnded))
        (run / "events.jsonl").write_bytes(journal_bytes(cut_off[:ended]))
    model = victim.model("FINAL('gone [flag.txt:1]')")

    done = victim.call(words[0], run, *words[1:], "--trust-run", "--max-wall-time-sec", "3", "--model", model.name)

    assert done.returncode == 2 and "--max-wall-time-sec" in done.stderr, done
    assert model.calls == 0


def test_a_follow_up_repeats_no_more_turns_than_the_user_allows(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    model = victim.model("print(1)", "FINAL('payments')")
    victim.call("ask", "Which service?", "notes.txt", "--runs-dir", "runs", "--model", model.name)
    run = the_run(victim)
    events = [
        msgspec.structs.replace(event, **({"turn": 1000} if getattr(event, "turn", 0) == 1 else {}))
        for event in RunDir(run).events()
    ]
    (run / "events.jsonl").write_bytes(journal_bytes(events))
    asked = model.calls

    done = victim.call("ask", "?", "--continue", run, "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 2 and "--max-iterations 1000" in done.stderr, done
    assert model.calls == asked
