"""Benchmarks from end to end with scripted models: predictions, scores, resuming, the page, the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sonde.api.settings import Settings
from sonde.bench import seeded
from sonde.bench.harness import Bench, BenchPlan
from sonde.bench.joined import Joined
from sonde.bench.labels import Seeded
from sonde.bench.suite import Suite, Trial, append_result, read_results
from sonde.bench.summary import compared, markdown, summarise
from sonde.bench.trail import Trail
from sonde.bench.whowhen import WhoWhen
from sonde.errors import ConfigError
from sonde.models import ModelRequest
from sonde.testing import ScriptedModel

ROOT, CALL = "1" * 16, "2" * 16
NAMES = ("Planner", "Coder", "Computer_terminal")


@pytest.fixture
def trail(tmp_path: Path) -> Path:
    """Two traces of one model call each; gold in a folder of its own, with an odd spelling."""
    for number in range(2):
        trace_id = f"{number + 1:032x}"
        call: dict[str, Any] = {
            "span_id": CALL,
            "span_name": "chat",
            "timestamp": "2026-01-01T00:00:01Z",
            "duration": "PT1S",
            "status_code": "Ok",
            "span_attributes": {"openinference.span.kind": "LLM", "output.value": "no tag"},
            "child_spans": [],
        }
        root: dict[str, Any] = {
            **call,
            "span_id": ROOT,
            "timestamp": "2026-01-01T00:00:00Z",
            "span_attributes": {"openinference.span.kind": "AGENT", "input.value": "task"},
            "child_spans": [call],
        }
        _write(tmp_path / "gaia" / "traces" / f"{trace_id}.json", {"trace_id": trace_id, "spans": [root]})
        errors = [
            {"location": CALL, "category": " Formatting errors"},
            {"location": ROOT, "category": "Goal Deviation"},
        ]
        _write(tmp_path / "gaia" / "annotations" / f"{trace_id}.json", {"errors": errors})
    return tmp_path


@pytest.fixture
def whowhen(tmp_path: Path) -> Path:
    history = [{"role": "user", "name": name, "content": f"{name} speaks"} for name in NAMES]
    for number in (2, 10):
        _write(tmp_path / "algorithm" / f"{number}.json", {"question": f"Q{number}", "history": history})
    label = {"mistake_agent": "Coder", "mistake_step": "1", "mistake_reason": "r"}
    _write(tmp_path / "labels.json", {"algorithm/2": label, "algorithm/10": {**label, "mistake_step": "0"}})
    return tmp_path


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")


def bench(suite: Suite, out: Path, model: ScriptedModel | None, **more: Any) -> list[Trial]:
    plan = BenchPlan(suite=suite, out=out, **more)
    return Bench(plan, Settings(), model, lambda line: None).run()


def test_the_logs_that_carry_the_true_answers_are_not_in_the_plain_prompt(trail: Path) -> None:
    path = trail / "gaia" / "traces" / f"{1:032x}.json"
    document = json.loads(path.read_text("utf-8"))
    document["spans"][0]["logs"] = [{"body": {"function.output": "the true answer is Paris"}}]
    _write(path, document)
    suite = Trail(trail)

    prompt = suite.plain_prompt(suite.cases()[0])

    assert prompt is not None
    assert "no tag" in prompt and "Paris" not in prompt


def finder(request: ModelRequest) -> str:
    """Finds one thing, as an engine's model or for a plain prompt."""
    if len(request.messages) == 1:
        return json.dumps([{"location": CALL, "category": "Resource Abuse"}])
    claim = {"category": "Formatting Errors", "span_id": CALL, "why": "no tag"}
    given = f"primary_label='instruction_failure', summary='s', confidence=0.8, findings=[{claim!r}]"
    return f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"


def test_trail_scores_spans_and_pairs_whatever_the_gold_spelling(trail: Path, tmp_path: Path) -> None:
    suite = Trail(trail)

    results = bench(suite, tmp_path / "out", ScriptedModel(finder), methods=("sonde", "plain"))

    sonde, plain = summarise(suite, results)
    assert {name: value.mean for name, value in sonde.metrics.items()} == {
        "location_recall": 0.5,
        "location_precision": 1.0,
        "joint_recall": 0.5,
        "joint_precision": 1.0,
        "findings": 1.0,
        "category_f1": 0.5,
    }
    assert plain.metrics["location_recall"].mean == 0.5
    assert plain.metrics["joint_recall"].mean == 0.0
    assert "| Formatting Errors | 2 | 2 | 2 | 1.00 | 1.00 | 1.00 |" in sonde.tables


def test_sonde_stands_beside_a_baseline_on_the_cases_that_both_had(trail: Path, tmp_path: Path) -> None:
    suite = Trail(trail)
    results = bench(suite, tmp_path / "out", ScriptedModel(finder), methods=("sonde", "plain"))
    only = [each for each in results if each.method == "sonde" or each.case.endswith("1")]

    page = compared(suite, only)

    assert "## sonde beside plain on the 1 cases of both" in page
    assert "| joint_recall | 0.00 | 0.50 | +0.50 |" in page
    assert "| location_recall | 0.50 | 0.50 | +0.00 |" in page
    assert "findings" not in page
    assert compared(suite, [each for each in results if each.method == "plain"]) == ""


def test_traces_can_be_joined_to_longer_ones_and_each_is_scored_by_its_own_spans(trail: Path, tmp_path: Path) -> None:
    for path in trail.glob("gaia/*/*2.json"):  # the second trace gets span ids of its own
        path.write_text(path.read_text("utf-8").replace(CALL, "c2" * 8).replace(ROOT, "d2" * 8), "utf-8")
    suite = Joined(trail, 2, tmp_path / "joined")

    results = bench(suite, tmp_path / "out", ScriptedModel(finder))

    assert [(each.case, each.predicted) for each in results] == [("gaia/0", [[CALL, "Formatting Errors"]])]
    (sonde,) = summarise(suite, results)
    found = {name: value.mean for name, value in sonde.metrics.items()}
    assert (found["location_recall"], found["location_precision"]) == (
        0.25,
        0.5,
    )  # half of the first trace, nothing of the second
    assert "| Formatting Errors | 1 | 1 | 1 |" in sonde.tables


def test_whowhen_scores_agent_and_step_apart(whowhen: Path, tmp_path: Path) -> None:
    def answer(request: ModelRequest) -> str:
        if len(request.messages) == 1:
            return '{"agent": "coder", "step": "1"}'
        given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive={'agent': 'Coder', 'step': 1}"
        return f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"

    suite = WhoWhen(whowhen)
    results = bench(suite, tmp_path / "out", ScriptedModel(answer), methods=("sonde", "plain", "rule"))

    scored = {
        each.method: (each.metrics["agent"].mean, each.metrics["step"].mean) for each in summarise(suite, results)
    }
    assert scored == {"sonde": (1.0, 0.5), "plain": (1.0, 0.5), "rule": (0.0, 0.5)}
    assert [case.key for case in suite.cases()] == ["algorithm/2", "algorithm/10"]


@pytest.mark.long
def test_seeded_labels_by_rule_beat_the_majority_by_a_quarter(tmp_path: Path) -> None:
    seeded.generate(60, seed=3).write(tmp_path / "traces.jsonl", tmp_path / "manifest.json")
    suite = Seeded(tmp_path)

    [rule] = summarise(suite, bench(suite, tmp_path / "out", None, methods=("rule",)))

    assert rule.metrics["accuracy"].mean >= rule.metrics["majority"].mean + 0.25


def test_what_is_done_is_not_run_again(trail: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bench(Trail(trail), out, ScriptedModel(finder), limit=1)
    with (out / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"case": "gaia/')  # a line that a crash cut off
    model = ScriptedModel(finder)

    results = bench(Trail(trail), out, model)

    assert len(results) == 2
    assert [result.case[-1] for result in read_results(out / "results.jsonl")] == ["1", "2"]


def test_a_failed_run_counts_as_wrong(trail: Path, tmp_path: Path) -> None:
    suite = Trail(trail)
    failed = Trial(case=suite.cases()[0].key, method="sonde", repeat=0, status="failed: x")

    [summary] = summarise(suite, [failed])

    assert summary.failed == 1
    assert summary.metrics["location_recall"].mean == 0.0


def test_repeats_show_their_spread_on_the_page(trail: Path) -> None:
    suite = Trail(trail)
    key = suite.cases()[0].key
    right = [[CALL, "Formatting Errors"], [ROOT, "Goal Deviation"]]
    results = [
        Trial(case=key, method="sonde", repeat=0, predicted=right, cost_usd=0.5, seconds=3, tokens=100, cached=40),
        Trial(case=key, method="sonde", repeat=1, predicted=right[:1], cost_usd=0.5, seconds=5, tokens=100, cached=60),
    ]

    page = markdown(suite, summarise(suite, results))

    assert "| sonde | 1 | 0 | 0 | 0.75 ± 0.35 |" in page
    assert "| 4.0 ± 1.4 | 100 ± 0 | 50% | 0.5000 ± 0.0000 |" in page


def test_a_case_that_does_not_fit_one_prompt_is_left_out_of_that_baseline_and_told(trail: Path, tmp_path: Path) -> None:
    big = next((trail / "gaia" / "traces").glob("*1.json"))
    record = json.loads(big.read_text("utf-8"))
    record["spans"][0]["span_attributes"]["input.value"] = "x" * 500_000
    big.write_text(json.dumps(record), "utf-8")
    suite = Trail(trail)

    [plain] = summarise(suite, bench(suite, tmp_path / "out", ScriptedModel(finder), methods=("plain",)))

    assert (plain.cases, plain.left_out) == (1, 1)


def test_gold_is_not_in_what_a_model_is_shown(trail: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def watch(request: ModelRequest) -> str:
        seen.extend(message.content for message in request.messages)
        return finder(request)

    bench(Trail(trail), tmp_path / "out", ScriptedModel(watch), methods=("sonde", "plain"))

    assert seen
    assert not any("Formatting errors" in text for text in seen)


@pytest.mark.parametrize("suite", [Trail, WhoWhen])
def test_a_folder_without_the_data_is_refused(suite: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        suite(tmp_path / "nothing").cases()


def test_an_unknown_method_and_a_missing_model_are_refused(trail: Path, tmp_path: Path) -> None:
    for methods in (("guess",), ("sonde",)):
        with pytest.raises(ConfigError):
            bench(Trail(trail), tmp_path, None, methods=methods)


def test_results_survive_a_round_trip(tmp_path: Path) -> None:
    result = Trial(case="a", method="sonde", repeat=1, predicted=[["s", "c"]], tokens=3)
    append_result(tmp_path / "r.jsonl", result)

    assert read_results(tmp_path / "r.jsonl") == [result]
