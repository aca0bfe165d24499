"""The windows of `sonde bench incident`: the same for the same seed, without leaks, met often enough, and scored from the report alone."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from sonde.api.settings import Settings
from sonde.bench.harness import Bench, BenchPlan
from sonde.bench.incidents import Incidents
from sonde.bench.suite import BenchCase
from sonde.bench.windows import KINDS, Cause, WindowGold, make, windows
from sonde.testing import ScriptedModel

HEALTHY = {"nothing", "nothing_but_a_deploy", "nothing_but_retries"}
WORDS = "healthy gold guilty culprit herring incident regression outlier onset rollback suspect anomal"
TELLING = [
    *WORDS.split(),
    *(kind.__name__ for kind in KINDS if kind.__name__ != "nothing"),
    *(kind.__name__.replace("_", " ") for kind in KINDS if kind.__name__ != "nothing"),
]


def made(folder: Path, seed: int, *kinds: str) -> tuple[Path, list[WindowGold]]:
    make(seed, folder / "windows" / str(seed), folder / "gold" / f"{seed}.json", kinds)
    truths = json.loads((folder / "gold" / f"{seed}.json").read_text("utf-8"))
    return folder / "windows" / str(seed), [WindowGold.of(each) for each in truths]


def spans_of(window: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (window / "traces.jsonl").read_text("utf-8").splitlines()]


def texts_of(window: Path) -> dict[str, str]:
    """Every file of a window below its folder, without git's own."""
    paths = [path for path in sorted(window.rglob("*")) if path.is_file() and ".git" not in path.parts]
    return {str(path.relative_to(window)): path.read_text("utf-8") for path in paths}


def test_there_are_twenty_kinds_and_seeds_give_them_to_other_businesses() -> None:
    first, again, other = windows(1), windows(1), windows(2)

    assert len(KINDS) == len({each.kind for each in first}) == 20
    assert [(each.name, each.kind) for each in first] == [(each.name, each.kind) for each in again]
    assert {each.name for each in first}.isdisjoint(each.name for each in other)
    projects = [{each.kind: each.traffic.project for each in made} for made in (first, other)]
    assert sum(projects[0][kind] != projects[1][kind] for kind in projects[0]) >= 14


def test_the_same_seed_writes_the_same_files(tmp_path: Path) -> None:
    one, truth = made(tmp_path / "a", 3, "bad_commit")
    two, same = made(tmp_path / "b", 3, "bad_commit")

    assert truth == same
    assert texts_of(one) == texts_of(two)


def leaks(window: Path) -> list[str]:
    """Words that tell what is wrong, in paths or contents."""
    text = "\n".join(f"{path}\n{text}" for path, text in texts_of(window).items()).lower()
    return [word for word in TELLING if word in text]


def test_a_window_and_its_folder_do_not_tell_what_is_wrong(tmp_path: Path) -> None:
    folder, truths = made(tmp_path, 1, "partial_fix", "nothing")

    assert sorted(each.name for each in folder.iterdir()) == sorted(each.name for each in truths)
    assert {name: leaks(folder / name) for name in (each.name for each in truths)} == {each.name: [] for each in truths}
    assert not list(folder.rglob("gold*"))


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_cause_shows_from_its_onset_no_window_leaks_and_files_do_not_tell_healthy_ones(
    seed: int, tmp_path: Path
) -> None:
    folder, truths = made(tmp_path, seed)

    beside: dict[bool, set[str]] = {True: set(), False: set()}
    for truth in truths:
        spans = spans_of(folder / truth.name)
        roots = [span for span in spans if span["parent_id"] is None]
        failed = sum(span["status_code"] == "ERROR" for span in roots) / len(roots)
        assert 60 <= len(roots) <= 400
        assert leaks(folder / truth.name) == []
        assert bool(truth.causes) is (truth.kind not in HEALTHY)
        for cause in truth.causes:
            assert set(cause.marks) <= {*truth.changes, *(span["attributes"].get("llm.model_name") for span in spans)}
            assert shows(cause, [span for span in spans if cause.components[0] in span["name"]]), truth.kind
        assert failed < 0.06 or any(cause.kind == "error" for cause in truth.causes)
        beside[bool(truth.causes)] |= {path.name for path in (folder / truth.name).iterdir()}
    assert beside[False] == beside[True]


def shows(cause: Cause, spans: list[dict[str, Any]]) -> bool:
    """Whether these spans of the component fail, are slow or cost more from the onset on, and not before."""
    onset = datetime.fromisoformat(cause.onset).timestamp()
    if cause.kind == "error":
        said = {span["start_time"] / 1e9: span["status_message"] + json.dumps(span["events"]) for span in spans}
        moments = [at for at, text in said.items() if all(word in text.lower() for word in cause.words)]
        return len(moments) >= 8 and -1 <= min(moments) - onset <= 120
    figures: dict[bool, list[float]] = {False: [], True: []}
    for span in spans:
        took = span["end_time"] - span["start_time"]
        figure = took if cause.kind == "slow" else span["attributes"].get("llm.token_count.prompt")
        if figure is not None:
            figures[span["start_time"] / 1e9 > onset].append(figure)
    return median(figures[True]) > 1.5 * median(figures[False])


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Incidents:
    data = tmp_path_factory.mktemp("data")
    make(1, data / "windows" / "1", data / "gold" / "1.json", ["one_path", "nothing_but_a_deploy"])
    return Incidents(data, [1])


def case_of(suite: Incidents, kind: str) -> tuple[BenchCase, WindowGold]:
    return next((case, suite.truths[case.key]) for case in suite.cases() if suite.truths[case.key].kind == kind)


def report_of(truth: WindowGold, **other: Any) -> dict[str, Any]:
    """A report that says what is true, but for what is given."""
    cause = truth.causes[0]
    change = {"change_type": "deploy", "change_ref": cause.marks[0], "summary": f"deploy of {cause.marks[0]}"}
    group = {
        "component": cause.components[0],
        "message": " ".join(cause.words),
        "first_seen": "2020-01-01T00:00:00Z",
        "onset": {"at": cause.onset},
        "suspected_change": change,
    } | other
    return {"window": {"traces": 200, "failed": 20}, "groups": [group], "suspected_change": change}


def test_the_right_group_with_the_right_change_is_right(suite: Incidents) -> None:
    case, truth = case_of(suite, "one_path")

    score = suite.score(case, suite.by_rule(case, report_of(truth)))

    assert score == {"right": 1, "group": 1, "change": 1, "onset": 1}


def test_another_component_message_or_change_is_wrong(suite: Incidents) -> None:
    case, truth = case_of(suite, "one_path")
    innocent = next(each for each in truth.changes if each not in truth.causes[0].marks)
    guess = {"change_type": "deploy", "change_ref": innocent, "summary": f"after {truth.causes[0].marks[0]}"}

    def score(**other: Any) -> dict[str, float]:
        return suite.score(case, suite.by_rule(case, report_of(truth, **other)))

    assert score(component="somewhere else")["group"] == 0
    assert score(message="another thing")["right"] == 0
    assert score(suspected_change=guess) | {"onset": 1} == {"right": 0, "group": 1, "change": 0, "onset": 1}
    assert score(onset=None)["onset"] == 0


def test_a_change_or_an_outlier_in_a_healthy_window_is_invented(suite: Incidents) -> None:
    case, truth = case_of(suite, "nothing_but_a_deploy")
    stray = {"component": "x", "message": "no record", "first_seen": "", "suspected_change": {"change_type": "unknown"}}

    def score(**other: Any) -> dict[str, float]:
        report = {
            "window": {"traces": 9, "failed": 1},
            "groups": [stray],
            "suspected_change": {"change_type": "unknown"},
        }
        return suite.score(case, suite.by_rule(case, report | other))

    change = {"change_type": "deploy", "change_ref": truth.changes[0]}
    assert score() == {"right": 1, "invented": 0}
    assert score(suspected_change=change) == {"right": 0, "invented": 1}
    assert score(window={"traces": 9, "failed": 1, "verdict": "incident"}) == {"right": 0, "invented": 1}
    assert score(groups=[stray | {"kind": "slow"}]) == {"right": 0, "invented": 1}
    assert suite.score(case, suite.by_rule(case, {}))["right"] == 0  # a run that failed has not said that all is well


def test_an_answer_to_the_plain_prompt_is_scored_in_the_same_way(suite: Incidents) -> None:
    case, truth = case_of(suite, "one_path")
    cause = truth.causes[0]
    group = {"component": cause.components[0], "message": " ".join(cause.words), "suspected_change": cause.marks[0]}

    prompt = suite.plain_prompt(case)
    score = suite.score(case, suite.read_plain(f"Here: {json.dumps({'groups': [group]})}"))

    assert prompt is not None and cause.components[0] in prompt
    assert (score["right"], score["onset"]) == (1, 0)


def test_a_model_is_scored_by_its_own_words_and_change_not_by_the_groups_that_a_rule_counted(suite: Incidents) -> None:
    (case, truth), (calm, _) = case_of(suite, "one_path"), case_of(suite, "nothing_but_a_deploy")
    tables, cause = report_of(truth), truth.causes[0]
    blamed = {"incident_summary": "s", "hypotheses": [{"rank": 1, "statement": f"{cause.components[0]} lost a field"}]}
    urgent = {"recommended_actions": [{"priority": "P0", "action": "roll back", "type": "mitigation"}]}

    def score(about: BenchCase, **said: Any) -> dict[str, float]:
        return suite.score(about, suite.predicted(tables | {"incident_summary": "all is as ever"} | said))

    unknown = {"suspected_change": {"change_type": "unknown"}}
    assert score(case, **blamed)["right"] == 1
    assert score(case, **blamed, **unknown) | {"onset": 0} == {"right": 0, "group": 1, "change": 0, "onset": 0}
    assert score(case)["group"] == 0
    assert score(calm, **unknown) == {"right": 1, "invented": 0}
    assert score(calm)["invented"] == score(calm, **unknown, **urgent)["invented"] == 1


@pytest.mark.long
def test_a_benchmark_with_a_model_runs_the_model_and_the_rule(suite: Incidents, tmp_path: Path) -> None:
    case, _ = case_of(suite, "one_path")
    said = (
        "incident_summary='s', suspected_change={'change_type': 'unknown'}, timeline=[], hypotheses=[], confidence=0.3"
    )
    model = ScriptedModel([f"```python\nSUBMIT({said}, recommended_actions=[], gaps=[])\n```"] * 9)

    plan = BenchPlan(suite=suite, out=tmp_path, methods=("sonde", "rule"), chosen=[case.key])
    trials = {each.method: each for each in Bench(plan, Settings(), model, lambda line: None).run()}

    assert trials["sonde"].tokens > 0 == trials["rule"].tokens
    assert trials["sonde"].predicted["traces"] == trials["rule"].predicted["traces"] > 0
    assert [each["message"] for each in trials["sonde"].predicted["groups"]] == ["s"]


@pytest.mark.long
def test_by_rule_more_than_half_of_the_windows_are_right(tmp_path: Path) -> None:
    """A floor, not the bar: that is 16 of 20 (docs/benchmarks.md)."""
    suite = Incidents(tmp_path / "data", [1])

    trials = Bench(BenchPlan(suite=suite, out=tmp_path, methods=("rule",)), Settings(), None, lambda line: None).run()

    cases = {case.key: case for case in suite.cases()}
    assert len(trials) == 20
    assert sum(suite.score(cases[each.case], each.predicted)["right"] for each in trials) > 10
