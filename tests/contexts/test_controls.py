"""Control libraries: what is shipped, how they are chosen, and what is wrong with a file by line."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sonde.contexts.controls import (
    MAX_CONTROLS,
    NEEDS,
    SEVERITIES,
    ControlsLibrary,
    TraceScope,
    infer_scope,
    parse_controls,
)
from sonde.contexts.traces.context import PolicyTools
from sonde.errors import ConfigError, ToolFault

GOOD: dict[str, Any] = {
    "control_id": "a.b",
    "controls_version": "v9",
    "title": "T",
    "description": "D",
    "severity": "low",
    "required_evidence": ["required_messages"],
    "remediation_template": "R",
}


def control(**changes: Any) -> dict[str, Any]:
    merged = {**GOOD, **changes}
    return {key: value for key, value in merged.items() if value is not None}


@pytest.mark.requirement("O1")
def test_the_six_shipped_controls_are_complete() -> None:
    chosen = ControlsLibrary.shipped().select("v1", TraceScope())

    assert [(c.control_id, c.severity) for c in chosen] == [
        ("execution.hard_failures", "high"),
        ("schema.mismatch.review", "high"),
        ("upstream.http.review", "high"),
        ("instruction.format.review", "medium"),
        ("output.format.review", "medium"),
        ("retrieval.quality.review", "medium"),
    ]
    assert all(c.required_evidence and c.remediation_template for c in chosen)


def test_a_library_file_is_a_list_one_control_or_controls() -> None:
    one = control(version="v2", controls_version=None)
    for content in (one, [one], {"controls": [one]}):
        (found,) = parse_controls(json.dumps(content), "x.json")
        assert (found.control_id, found.controls_version) == ("a.b", "v2")


@pytest.mark.parametrize("written", [{}, {"indent": "\t"}, {"indent": 1, "ensure_ascii": False}])
def test_a_library_of_json_is_read_as_json_writes_it(written: dict[str, Any]) -> None:
    said = 'a tab\t, a slash \\\\ud83c\\udf89 / and "\N{PARTY POPPER}\N{PARTY POPPER}" \xfc'

    (found,) = parse_controls("\ufeff" + json.dumps([control(description=said)], **written), "x.json")

    assert found.description == said


@pytest.mark.parametrize(
    ("line", "text", "words"),
    [
        (5, "severity: urgent", "severity: Input should be 'critical', 'high', 'medium' or 'low', not 'urgent'"),
        (6, "required_evidence: []", "required_evidence: "),
        (6, "required_evidence: [required_luck]", "required_luck"),
        (8, "violation_patterns: ['ok', '(?=x)']", "not RE2"),
        (8, "max_error_spans: -1", "max_error_spans: Input should be greater than or equal to 0"),
        (8, "max_error_spans: yes", "max_error_spans: Input should be a valid integer"),
        (8, "applies_when: {planets: [mars]}", "planets"),
        (8, "applies_when: [mars]", "applies_when: Input should be a valid dictionary"),
        (8, "look_in: [attic]", "not 'attic'"),
        (8, "colour: red", "colour: unknown field; known: applies_when, "),
        (8, "violation_patterns: [1]", "violation_patterns.0: Input should be a valid string"),
        (3, "title: [a]", "title: Input should be a valid string"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(line: int, text: str, words: str) -> None:
    lines = [f"{key}: {json.dumps(value)}" for key, value in GOOD.items()]
    lines[line - 1 : line] = [text]

    with pytest.raises(ConfigError) as raised:
        parse_controls("\n".join(lines), "my.yaml")

    assert raised.value.message.startswith(f"my.yaml:{line}: ")
    assert words in raised.value.message


def test_text_that_is_no_yaml_names_its_line() -> None:
    with pytest.raises(ConfigError, match=r"^my\.yaml:2: "):
        parse_controls("a: 1\n  b: : 2\n", "my.yaml")
    with pytest.raises(ConfigError, match="a control file is"):
        parse_controls("just words", "my.yaml")


def test_yaml_that_would_build_objects_is_refused() -> None:
    with pytest.raises(ConfigError, match="not plain data"):
        parse_controls("control_id: !!python/object/apply:os.system ['true']", "my.yaml")


def test_the_same_control_twice_is_refused(tmp_path: Path) -> None:
    for name in ("a.yaml", "b.json"):
        (tmp_path / name).write_text(json.dumps(control()), "utf-8")

    with pytest.raises(ConfigError, match="defined twice"):
        ControlsLibrary.load(tmp_path)
    assert ControlsLibrary.load(tmp_path / "a.yaml").versions() == ["v9"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.yaml").write_bytes(b"\xff\xfe")

    for path in (tmp_path / "none.yaml", tmp_path / "empty", tmp_path / "bad.yaml"):
        with pytest.raises(ConfigError, match=path.name):
            ControlsLibrary.load(path)


def library(*controls: dict[str, Any]) -> ControlsLibrary:
    return ControlsLibrary(parse_controls(json.dumps(list(controls)), "x.json"))


def test_controls_apply_where_a_given_list_shares_a_member() -> None:
    found = library(
        control(control_id="always", applies_when={"app_types": []}),
        control(control_id="agentic", applies_when={"app_types": ["agentic"]}),
        control(control_id="search", applies_when={"tools": ["search", "fetch"]}),
        control(control_id="llm", applies_when={"span_kinds": ["LLM"]}),
    )

    def ids(scope: TraceScope) -> list[str]:
        return [c.control_id for c in found.select("v9", scope)]

    assert ids(TraceScope()) == ["agentic", "always", "llm", "search"]
    assert ids(infer_scope([("AGENT", "run"), ("TOOL", "fetch")])) == ["agentic", "always", "search"]
    assert ids(infer_scope([("LLM", "chat")])) == ["agentic", "always", "llm"]
    assert ids(TraceScope(app_type="batch", tools_used=frozenset(), span_kinds=frozenset())) == ["always"]


def test_overrides_come_in_anyway_and_order_is_severity_then_id() -> None:
    found = library(
        *(
            control(control_id=f"{severity}.{letter}", severity=severity)
            for severity in reversed(SEVERITIES)
            for letter in "ba"
        ),
        control(control_id="z.forced", severity="critical", applies_when={"tools": ["never"]}),
    )

    chosen = found.select("v9", TraceScope(tools_used=frozenset()), overrides=["z.forced"])

    assert [c.control_id for c in chosen][:3] == ["critical.a", "critical.b", "z.forced"]
    assert [c.severity for c in chosen] == sorted((c.severity for c in chosen), key=SEVERITIES.index)
    assert len(found.select("v9", TraceScope(), limit=4)) == 4
    for unknown in (
        lambda: found.select("v8", TraceScope()),
        lambda: found.select("v9", TraceScope(), overrides=["x"]),
        lambda: found.get("x", "v9"),
    ):
        with pytest.raises(ToolFault):
            unknown()


def test_scope_is_inferred_from_kinds_and_names() -> None:
    scope = infer_scope([("CHAIN", "run"), ("TOOL", "add"), ("UNKNOWN", "x"), ("RETRIEVER", "r"), ("EMBEDDING", "e")])

    assert scope.app_type == "agentic"
    assert scope.tools_used == {"add", "x", "r"}
    assert infer_scope([("LLM", "a")]).app_type is None


def test_patterns_ignore_case_and_take_linear_time() -> None:
    (found,) = parse_controls(json.dumps(control(violation_patterns=["rate.?limit", "(a+)+$"])), "x.json")
    started = time.process_time()

    assert found.violations("RATE LIMIT reached") == ["RATE LIMIT"]
    assert found.violations("a" * 50_000 + "!") == []
    assert time.process_time() - started < 10


@pytest.mark.requirement(85)
def test_policy_tools_list_and_explain_controls() -> None:
    tools = PolicyTools(ControlsLibrary.shipped())

    found = tools.list_controls("v1", app_type="agentic", tools_used=["x"])

    assert found.truncated is None
    assert {row["control_id"] for row in found.value} == {
        c.control_id for c in ControlsLibrary.shipped().select("v1", TraceScope())
    }
    assert tools.get_control("schema.mismatch.review", "v1")["severity"] == "high"
    assert set(tools.required_evidence("retrieval.quality.review", "v1")) <= set(NEEDS)
    assert ControlsLibrary.shipped().joined(library(control())).versions() == ["owasp-llm-2025", "v1", "v9"]


@pytest.mark.requirement(85)
def test_a_list_of_controls_that_is_cut_names_those_it_leaves_out() -> None:
    many = [control(control_id=f"c.{number:02}", severity="low") for number in range(MAX_CONTROLS + 2)]

    found = PolicyTools(library(*many)).list_controls("v9")

    assert len(found.value) == MAX_CONTROLS == 50
    assert found.truncated == "50 of 52 controls; get_control shows the others: c.50, c.51"
