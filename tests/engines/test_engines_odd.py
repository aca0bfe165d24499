"""Odd taxonomies, control packs, answers and configurations: refused with a reason or read right, and never a false statement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from trace_cases import LLM, ROOT, TRACE, calm_trace, model, options, span, write

import sonde
from sonde.contexts.configs import ConfigSnapshots
from sonde.contexts.controls import ControlsLibrary, TraceScope
from sonde.contexts.files import FilesContext
from sonde.engines.pages import incident_page
from sonde.engines.reports import IncidentDossier
from sonde.engines.sceptic import judged, listed
from sonde.engines.taxonomies import load_taxonomy
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel, run_in_memory

CONTROL = """
  control_id: {name}
  controls_version: mine
  title: t
  description: d
  severity: {severity}
  required_evidence: [required_span_attributes]
  remediation_template: r
"""


def control(name: str, severity: str = "low", more: str = "") -> str:
    return f"-{CONTROL.format(name=name, severity=severity)[2:]}{more}"


def test_patterns_that_are_no_list_are_refused_and_not_taken_letter_by_letter(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("name: mine\ncategories: [{name: Slow, definition: d, patterns: timeout}]\n")

    with pytest.raises(ConfigError, match="list of regular expressions"):
        load_taxonomy(path)


@pytest.mark.parametrize(
    ("patterns", "said"),
    [
        ([rf"\pL{{200}}{number}" for number in range(100)], r"pattern '\\pL{200}0' is too large"),
        ([rf"\pL{{20}}{number}" for number in range(100)], "is too large, with those before it"),
        ([f"word {number}" for number in range(201)], "pattern 'word 200' is one too many"),
        (["ok", "[^x]|" * 10_000], "is too long"),
        ([rf"\pL{{1000}}{number}" for number in range(100)], r"pattern '\\pL{1000}0' is not RE2"),
    ],
)
def test_patterns_that_take_too_much_together_are_refused_in_one_line(
    tmp_path: Path, patterns: list[str], said: str
) -> None:
    taxonomy, controls = tmp_path / "t.yaml", tmp_path / "c.yaml"
    two = [{"name": "A", "patterns": patterns[:50]}, {"name": "B", "patterns": patterns[50:]}]
    taxonomy.write_text(json.dumps({"name": "mine", "categories": [{"definition": "d", **each} for each in two]}))
    controls.write_text(control("A", more=f"  violation_patterns: {json.dumps(patterns)}\n"))

    for load in (lambda: load_taxonomy(taxonomy), lambda: ControlsLibrary.load(controls)):
        with pytest.raises(ConfigError) as raised:
            load()
        assert said in raised.value.message
        assert "\n" not in raised.value.message
        assert len(raised.value.message) < 400


def test_a_file_of_many_ordinary_patterns_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    patterns = [rf"\bword{number}\b.{{0,40}}(secret|token)\s*[:=]" for number in range(200)]
    path.write_text(control("A", more=f"  violation_patterns: {json.dumps(patterns)}\n"))

    (found,) = ControlsLibrary.load(path).select("mine", TraceScope())
    assert found.violations("Word199 has the Token: x") == ["Word199 has the Token:"]


def test_categories_in_any_script_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    names = ("超时", "工具错误", "Ошибка формата", "!!!")
    path.write_text("name: mine\ncategories:\n" + "".join(f"- {{name: '{n}', definition: d}}\n" for n in names))
    taxonomy = load_taxonomy(path)

    assert [taxonomy.find(name) for name in names] == list(names)
    assert taxonomy.find("ОШИБКА_формата") == "Ошибка формата"
    assert [taxonomy.find(name) for name in ("", "???", "别的")] == [None, None, None]


@pytest.mark.parametrize(
    "text",
    [control("a\x07"), "[" * 500, control("a", more="  1: x\n"), control("a", more="  true: x\n")],
)
def test_a_control_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"c\.yaml"):
        ControlsLibrary.load(path)


def test_a_control_may_take_over_the_fields_of_another(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        f"- &base{CONTROL.format(name='a', severity='low')}- <<: *base\n  control_id: b\n  severity: high\n"
    )

    found = ControlsLibrary.load(path)

    assert (found.get("a", "mine").severity, found.get("b", "mine").severity) == ("low", "high")


def test_more_controls_than_are_judged_are_told_and_one_that_was_asked_for_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("".join(control(f"c{n:02}", "high") for n in range(60)) + control("wanted", "low"))
    source = write(tmp_path, calm_trace())

    found = sonde.comply(TRACE, source, controls_files=[path], overrides=["wanted"], **options())

    assert found.report is not None
    judged_ones = [each["control_id"] for each in found.report["controls_evaluated"]]
    assert judged_ones == [*(f"c{n:02}" for n in range(49)), "wanted"]
    assert "11 of 61 controls that apply were not judged: at most 50 are" in found.report["gaps"]


def test_text_that_rules_did_not_read_is_a_gap_and_no_pass(tmp_path: Path) -> None:
    long = "…[cut: 20000 of 1 characters]" + "x" * 30_000 + " the secret"
    long = span(LLM, "plan", 1, attributes={"output.value": long})
    path = tmp_path / "c.yaml"
    path.write_text(control("secret", more="  violation_patterns: [the secret]\n"))
    source = write(tmp_path, [span(ROOT, "agent.run", 0, parent=None), long])

    found = sonde.comply(TRACE, source, controls_files=[path], **options())

    assert found.report is not None
    assert [each["pass_fail"] for each in found.report["controls_evaluated"]] == ["insufficient_evidence"]
    assert (
        f"of 1 spans only the first 20000 characters of each text were read by the rules: {LLM}" in found.report["gaps"]
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('As [0] says, and [1, 2]: [{"claim": 0, "odds": 0.9}]', [{"claim": 0, "odds": 0.9}]),
        ("[" * 20_000, []),
        ("nothing []", []),
    ],
)
def test_the_sceptics_list_is_found_whatever_stands_before_it(answer: str, expected: list[object]) -> None:
    assert listed(answer) == expected
    assert judged([{"span_id": "s"}], [answer])[0]["verified"] is bool(expected)


def test_a_snapshot_with_a_time_that_is_none_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "metadata.json").write_text('{"created_at": "yesterday"}')

    with pytest.raises(ConfigError, match=r"metadata\.json"):
        ConfigSnapshots(tmp_path)


def test_the_last_change_before_the_first_error_is_found_behind_many_later_ones(tmp_path: Path) -> None:
    for number, created in enumerate(("2025-12-30", "2025-12-31", *(f"2026-01-0{day}" for day in range(2, 9)))):
        folder = tmp_path / "configs" / f"v{number}"
        folder.mkdir(parents=True)
        (folder / "app.yaml").write_text(f"retries: {number}\n")
        (folder / "metadata.json").write_text(json.dumps({"created_at": f"{created}T00:00:00Z"}))
    error = {"status_code": "ERROR", "status_message": "down"}
    source = write(tmp_path, [span(ROOT, "agent.run", 0, parent=None, **error)])

    found = sonde.incident(source, project="shop", configs=tmp_path / "configs", **options())

    assert found.report is not None
    assert found.report["suspected_change"]["change_ref"] == "v1"


def test_numbers_that_no_line_has_are_no_citation_and_end_no_run(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    code = f'print(read_file("a.txt"))\nFINAL("hello [a.txt:1] [a.txt:{"1" * 5000}]")'
    scripted = ScriptedModel([f"```python\n{code}\n```"] * 4)

    answer = run_in_memory(scripted, context=FilesContext(tmp_path))

    assert answer.status == "partial"
    assert any("cannot be read as a citation" in gap and len(gap) < 200 for gap in answer.gaps)
    assert [(c.start_line, c.end_line) for c in answer.citations] == [(1, 1)]


def test_passages_found_without_a_model_are_cited_by_the_lines_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\x0ctwo\u2028three\x0cfour\nfive\nthe zebra is here\nsix\n")

    answer = run_in_memory(None, "where is the zebra?", FilesContext(tmp_path))

    assert [(c.start_line, c.end_line) for c in answer.citations] == [(3, 4)]


def test_a_dossier_without_a_timeline_does_not_say_that_nothing_failed(tmp_path: Path) -> None:
    error = {"status_code": "ERROR", "status_message": "down"}
    source = write(tmp_path, [span(ROOT, "agent.run", 0, parent=None, **error)])
    said = (
        "SUBMIT(incident_summary='down', impacted_components=[], timeline=[], hypotheses=[], confidence=0.4, gaps=[])"
    )

    found = sonde.incident(source, project="shop", **options(model(said)))

    assert found.report is not None
    assert found.report["timeline"] == []
    assert "nothing is in error" not in incident_page(IncidentDossier.model_validate(found.report))
