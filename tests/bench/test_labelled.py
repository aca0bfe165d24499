"""`sonde bench labelled`: traces of anybody's, with labels of their own taxonomy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sonde.api.settings import Settings
from sonde.bench.harness import Bench, BenchPlan
from sonde.bench.labelled import Labelled
from sonde.bench.suite import Trial
from sonde.bench.summary import markdown, summarise
from sonde.cli.main import main
from sonde.contexts.traces.importers.whowhen import span_id_of, trace_id_of
from sonde.errors import ConfigError
from sonde.models import ModelRequest
from sonde.testing import ScriptedModel

TRACE = "a" * 32
CALL = "2" * 16
TALK: dict[str, Any] = {
    "question": "How many moons has Mars?",
    "history": [{"role": "user", "name": name, "content": f"{name} speaks"} for name in ("Planner", "Searcher")],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A trace of spans and a conversation; the second label has no place."""
    folder = tmp_path / "data"
    (folder / "dev" / "traces").mkdir(parents=True)
    rows = [
        _row("1" * 16, None, {"openinference.span.kind": "AGENT", "input.value": "task"}),
        _row(CALL, "1" * 16, {"openinference.span.kind": "LLM", "output.value": "I have cancelled it."}),
    ]
    (folder / "dev" / "traces" / "shop.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    (folder / "dev" / "traces" / "talk.json").write_text(json.dumps(TALK, indent=1), "utf-8")
    categories = "\n".join(f"- name: {name}\n  definition: It is so." for name in ("Slow Answer", "Wrong Goal"))
    (folder / "taxonomy.yaml").write_text(f"name: mine\ncategories:\n{categories}\n", "utf-8")
    labels = {
        "dev/shop": [
            {"span_id": "1" * 16, "category": "Slow Answer"},
            {"span_id": CALL, "category": "wrong goals", "critical": True},
        ],
        "dev/talk": [{"category": "Slow Answer"}],
    }
    (folder / "labels.json").write_text(json.dumps(labels), "utf-8")
    return folder


def _row(span_id: str, parent: str | None, attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": TRACE,
        "span_id": span_id,
        "parent_id": parent,
        "name": "span",
        "start_time": 1_772_000_000_000_000_000 + int(span_id[0]),
        "end_time": 1_772_000_000_500_000_000,
        "status_code": "OK",
        "attributes": attributes,
    }


def run(data: Path, out: Path, model: ScriptedModel, method: str) -> list[Trial]:
    plan = BenchPlan(suite=Labelled(data), out=out, methods=(method,))
    return Bench(plan, Settings(), model, lambda _line: None).run()


def test_the_first_failure_is_scored_by_step_and_category_and_all_places_by_recall_and_precision(
    data: Path, tmp_path: Path
) -> None:
    spoken = span_id_of(trace_id_of(TALK), 1)

    def answer(request: ModelRequest) -> str:
        place = CALL if CALL in request.messages[-1].content else spoken
        claims = [{"category": "Wrong Goal", "span_id": place, "why": "w", "first_failure": True}]
        given = f"primary_label='instruction_failure', summary='s', confidence=0.8, findings={claims!r}"
        return f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"

    results = run(data, tmp_path, ScriptedModel(answer), "sonde")

    suite = Labelled(data)
    scores = {each.case: suite.score(case, each.predicted) for case, each in zip(suite.cases(), results, strict=True)}
    assert scores["dev/shop"] == {
        "category": 1.0,
        "findings": 1.0,
        "step": 1.0,
        "step_and_category": 1.0,
        "location_recall": 0.5,
        "location_precision": 1.0,
    }
    assert scores["dev/talk"] == {"category": 0.0, "findings": 1.0}
    assert "| Wrong Goal | 1 | 2 | 1 |" in markdown(suite, summarise(suite, results))


def test_the_plain_prompt_has_the_categories_and_names_steps_of_a_conversation_by_number(
    data: Path, tmp_path: Path
) -> None:
    asked: list[str] = []

    def answer(request: ModelRequest) -> str:
        asked.append(request.messages[-1].content)
        place = '"' + CALL + '"' if "span_id" in asked[-1] else "1"
        return f'[{{"category": "Wrong Goal", "location": {place}, "critical": true}}]'

    results = run(data, tmp_path, ScriptedModel(answer), "plain")

    assert [each.predicted["critical"] for each in results] == [[CALL, "Wrong Goal"], ["1", "Wrong Goal"]]
    assert all("- Slow Answer: It is so." in prompt for prompt in asked)
    assert "Step 1 - Searcher: Searcher speaks" in asked[1]
    assert not any("critical" in line and "wrong goals" in line for prompt in asked for line in prompt.splitlines())
    suite = Labelled(data)
    assert suite.score(suite.cases()[0], results[0].predicted)["step"] == 1.0


def test_a_run_that_said_nothing_is_wrong(data: Path) -> None:
    suite = Labelled(data)

    score = suite.score(suite.cases()[0], suite.predicted({}))

    assert (score["step"], score["category"], score["location_recall"]) == (0.0, 0.0, 0.0)


def test_a_taxonomy_without_a_guide_gets_the_general_one(data: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: ModelRequest) -> str:
        seen.append("".join(message.content for message in request.messages))
        given = "primary_label='no_failure_found', summary='s', confidence=0.4, findings=[]"
        return f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"

    run(data, tmp_path, ScriptedModel(answer), "sonde")

    assert "the earliest from which the run did not recover" in seen[0]
    assert "TRAIL" not in seen[0]


def test_a_folder_without_a_taxonomy_or_traces_is_refused(data: Path) -> None:
    with pytest.raises(ConfigError, match=r"no taxonomy\.yaml"):
        Labelled(data / "dev")
    for path in (data / "dev" / "traces").iterdir():
        path.unlink()
    with pytest.raises(ConfigError, match="has no <split>/traces"):
        Labelled(data).cases()


@pytest.mark.long
def test_the_command_runs_the_rule_without_a_model(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as ended:
        main(["bench", "labelled", "--data", str(data), "--no-sonde", "--baseline", "rule", "--out", str(out)])

    assert ended.value.code == 0
    assert "| rule | 2 |" in capsys.readouterr().out
