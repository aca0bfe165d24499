"""`--dry-run` says what would be read and about what it would cost. No model is called, no annotation written, no folder made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.bench import origin30
from sonde.cli.main import main
from sonde.testing import ScriptedServer

FIRST = origin30.trace_id(0)


def run(*words: str) -> int:
    """The command in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("SONDE_LOCAL_PORTS", "none")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-dry-run-4242")
    monkeypatch.setenv("SONDE_MODEL", "openai:gpt-4o-mini")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/app.log").write_text("INFO start\nERROR payments\n")
    (tmp_path / "logs/photo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(64))
    with ScriptedServer() as listening:
        monkeypatch.setenv("OPENAI_BASE_URL", listening.base_url)
        yield listening
    assert listening.requests == ()
    assert not list(tmp_path.rglob("events.jsonl"))
    assert not (tmp_path / "artifacts").exists()


def test_ask_says_what_it_would_read_and_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("ask", "Which service failed?", "logs", "--dry-run") == 0

    shown = capsys.readouterr()
    assert "would read    1 file, " in shown.out
    assert "skipped: 1 binary" in shown.err
    assert "first prompt  about " in shown.out
    assert "typical       3 to 12 turns" in shown.out and "$0.0" in shown.out
    assert "no model was called" in shown.out


def test_one_file_is_not_called_files_nor_one_turn_turns(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "one.log").write_text("ERROR down\n")

    run("ask", "Which service failed?", "one.log", "--dry-run", "--max-iterations", "1")

    shown = capsys.readouterr().out
    assert "would read    1 file, " in shown
    assert "at most       1 turn, " in shown


def test_the_first_prompt_is_the_one_that_a_model_would_get(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ask", "Which service failed?", "logs", "--dry-run", "--json")
    told = json.loads(capsys.readouterr().out)["first_prompt_tokens"][0]

    with ScriptedServer("```python\nFINAL('payments')\n```") as real:
        monkeypatch.setenv("OPENAI_BASE_URL", real.base_url)
        run(
            "ask",
            "Which service failed?",
            "logs",
            "--quiet",
            "--runs-dir",
            str(tmp_path.parent / f"{tmp_path.name}-runs"),
        )
    sent = sum(len(str(message["content"])) for message in real.requests[0].body["messages"])

    assert told == -(-sent // 4)


def test_an_unknown_price_is_called_unknown_and_no_model_costs_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run("ask", "Which service failed?", "logs", "--dry-run", "--model", "openai:house-model")
    assert "cost unknown" in capsys.readouterr().out

    monkeypatch.delenv("SONDE_MODEL")
    monkeypatch.delenv("OPENAI_API_KEY")
    run("ask", "Which service failed?", "logs", "--dry-run")
    assert "would cost    nothing" in capsys.readouterr().out


def test_rca_names_the_traces(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "traces.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in origin30.spans()))

    assert run("rca", FIRST, "--source", "traces.jsonl", "--dry-run") == 0

    shown = capsys.readouterr().out
    assert "30 traces" in shown and FIRST in shown
    assert "never an instruction" not in shown


def test_a_batch_is_judged_by_some_of_its_items(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"id": f"q{n}", "engine": "ask", "question": f"What is {n}?", "paths": ["logs"]} for n in range(20)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))

    assert run("batch", "questions.jsonl", "--dry-run", "--json") == 0

    told = json.loads(capsys.readouterr().out)
    assert told["runs"] == 20
    run("batch", "questions.jsonl", "--dry-run")
    shown = capsys.readouterr().out
    assert f"would run     20 items; the figures below come from {len(told['reads'])} of them\n" in shown
    assert "(q0, q3, q6, q9, q12, q15, q18)\n" in shown
    assert f"typical       3 turns in each of 20 runs: {told['typical_tokens'][0]:,} tokens, $" in shown
    assert f"if all go on  12 turns in each: {told['typical_tokens'][1]:,} tokens, $" in shown
    assert 1 < len(told["first_prompt_tokens"]) <= 8
    assert told["typical_cost_usd"][0] < told["typical_cost_usd"][1]
    assert told["typical_tokens"][0] > 20 * 3 * min(told["first_prompt_tokens"])
