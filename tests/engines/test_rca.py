"""The `rca` engine: rules first, hypotheses by sub-calls, one proved report; and an honest one without a model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from trace_cases import (
    IO,
    LOOK,
    ROOT,
    SPAN,
    START_NS,
    TOOL,
    TRACE,
    calm_trace,
    failed_trace,
    limits_of,
    model,
    options,
    ref,
    says,
    span,
    write,
)

import sonde
from sonde.bench import origin30
from sonde.contexts.traces.rules import LABELS
from sonde.core.markdown_safety import unescaped
from sonde.engines.rca import RCA, winner
from sonde.engines.reports import RCAReport
from sonde.errors import ConfigError, ModelCallFailed
from sonde.testing import ScriptedModel, ScriptedServer

PYTHON_STACK = """\
Traceback (most recent call last):
  File "app.py", line 7, in run
    price()
  File "pricing.py", line 42, in price
    rates[order]
KeyError: 'currency'
"""
CONTRACT = {
    "schema_version",
    "trace_id",
    "primary_label",
    "summary",
    "confidence",
    "evidence_refs",
    "remediation",
    "gaps",
}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write(tmp_path, failed_trace())


def submit(label: str = "tool_failure", confidence: float = 0.8, refs: str = f"[{SPAN}, {IO}]") -> str:
    judged = f"primary_label='{label}', summary='the booking tool timed out', confidence={confidence}"
    other = "alternatives=[{'hypothesis': 'the prompt drifted', 'why_rejected': 'the call has the right arguments'}]"
    return f"SUBMIT({judged}, evidence_refs={refs}, {other}, remediation=['retry'], gaps=[])"


def report(found: sonde.Investigation) -> dict[str, Any]:
    assert found.report is not None, found.record.error
    return found.report


@pytest.mark.requirement(74, 101)
@pytest.mark.requirement("O1")
def test_a_submission_becomes_a_report_with_the_contracts_fields_and_the_runtimes_hashes(traces: Path) -> None:
    forged = f"[{{**{SPAN}, 'excerpt_hash': 'f' * 64}}, {IO}]"
    found = sonde.rca(TRACE, traces, **options(model(LOOK, submit(refs=forged))))

    made = report(found)
    assert (found.status, found.annotator_kind) == ("succeeded", "LLM")
    assert set(made) >= CONTRACT
    assert RCAReport.model_validate(made).primary_label == "tool_failure"
    assert [(r["kind"], r["ref"]) for r in made["evidence_refs"]] == [("SPAN", TOOL), ("TOOL_IO", f"tool:{TOOL}")]
    assert all(len(r["excerpt_hash"]) == 64 and r["excerpt_hash"] != "f" * 64 for r in made["evidence_refs"])
    assert "table for two" not in json.dumps(found.report)


@pytest.mark.requirement("O3")
def test_without_a_model_the_rule_speaks_and_says_that_it_is_code(traces: Path) -> None:
    found = sonde.rca(TRACE, traces, **options())

    made = report(found)
    assert (found.status, found.annotator_kind) == ("partial", "CODE")
    assert (made["primary_label"], made["confidence"]) == ("tool_failure", 0.76)
    assert any("no model is set" in gap for gap in made["gaps"])


@pytest.mark.requirement("O3")
@pytest.mark.parametrize(
    ("stack", "place"),
    [
        (PYTHON_STACK, 'File "pricing.py", line 42, in price'),
        ("File pricing.py line 42", "File pricing.py line 42"),
        (
            "java.lang.Error: x\n\tat shop.Pricing.price(Pricing.java:42)\n\tat shop.App.run(App.java:7)",
            "at shop.Pricing.price(Pricing.java:42)",
        ),
    ],
)
def test_without_a_model_the_report_says_once_what_was_raised_and_where(tmp_path: Path, stack: str, place: str) -> None:
    said = {"exception.type": "KeyError", "exception.message": "'currency'", "exception.stacktrace": stack}
    event = {"name": "exception", "timestamp": START_NS, "attributes": said}
    failed = span(TOOL, "price", 1, status_code="ERROR", status_message="KeyError: 'currency'", events=[event])

    found = sonde.rca(TRACE, write(tmp_path, [span(ROOT, "agent", 0, parent=None, lasted=9), failed]), **options())

    assert found.report is not None
    assert found.report["summary"].endswith(f": KeyError: 'currency', raised at {place}.")
    assert f"raised at: {place}" in unescaped(found.text.partition("## Evidence")[2])


def test_without_a_model_and_without_a_failure_none_is_invented(tmp_path: Path) -> None:
    made = report(sonde.rca(TRACE, write(tmp_path, calm_trace()), **options()))

    assert (made["primary_label"], made["confidence"], made["remediation"]) == ("no_failure_found", 0.35, [])
    assert "nothing failed" in made["summary"]
    assert "no model read the content" in made["gaps"]
    assert (made["schema_version"], made["annotator_kind"]) == ("1.3.0", "CODE")


HEALTHY = "SUBMIT(primary_label='no_failure_found', summary='The table was booked.', confidence=0.9)"


def test_a_model_that_finds_no_failure_needs_no_evidence_and_is_as_sure_as_it_has_looked(tmp_path: Path) -> None:
    found = sonde.rca(TRACE, write(tmp_path, calm_trace()), **options(model(f"print(get_span('{TOOL}'))", HEALTHY)))

    made = report(found)
    assert (found.status, made["primary_label"], made["evidence_refs"]) == ("succeeded", "no_failure_found", [])
    looked, spans = made["coverage"]["looked_at"], made["coverage"]["spans"]
    assert made["confidence"] == min(0.9, looked / spans)


def test_a_model_cannot_call_a_failed_trace_healthy(traces: Path) -> None:
    found = sonde.rca(TRACE, traces, **options(model(LOOK, HEALTHY, HEALTHY)))

    assert (found.status, found.annotator_kind) == ("partial", "CODE")
    assert report(found)["primary_label"] == "tool_failure"
    assert any("found no failure, although a span failed" in gap for gap in found.gaps)


SURE = f"primary_label='tool_failure', summary='timed out', confidence=0.9, evidence_refs=[{SPAN}, {IO}]"


def test_a_model_is_not_surer_than_a_half_without_another_explanation(traces: Path) -> None:
    found = sonde.rca(TRACE, traces, **options(model(LOOK, f"SUBMIT({SURE})")))

    assert (found.status, report(found)["confidence"], report(found)["alternatives"]) == ("succeeded", 0.5, [])
    assert any("no other explanation was tested" in gap for gap in report(found)["gaps"])


def test_a_rejected_explanation_is_in_the_report_with_its_reason(traces: Path) -> None:
    made = report(sonde.rca(TRACE, traces, **options(model(LOOK, submit()))))

    assert [(each["hypothesis"], each["why_rejected"]) for each in made["alternatives"]] == [
        ("the prompt drifted", "the call has the right arguments")
    ]
    assert "the prompt drifted" in sonde.rca(TRACE, traces, **options(model(LOOK, submit()))).text


def test_whoever_read_little_of_the_failing_branch_is_not_sure(tmp_path: Path) -> None:
    rows = [span(f"{number:016x}", f"step {number}", number, parent=TOOL) for number in range(10, 20)]
    traces = write(tmp_path, [*failed_trace(), *rows])
    made = report(sonde.rca(TRACE, traces, **options(model(LOOK, submit(confidence=0.9)))))

    assert made["confidence"] == 0.5
    (told,) = [gap for gap in made["gaps"] if "of the failing branch were opened" in gap]
    opened, branch, named = map(int, re.findall(r" (\d+) (?:of the|spans|others)", told))
    assert (branch, made["coverage"]["looked_at"] - opened - named) == (11, 3)  # the others are outside the branch


def test_all_that_was_read_of_a_large_failing_branch_counts(tmp_path: Path) -> None:
    step = f"{9:016x}"
    more = [
        span(
            f"{n:016x}", f"look {n}", 4, parent=step, kind="TOOL", attributes={"input.value": "x", "output.value": "y"}
        )
        for n in range(20, 80)
    ]
    inside = [{**row, "parent_id": step} if row["span_id"] != ROOT else row for row in failed_trace()]
    source = write(tmp_path, [*inside, span(step, "step", 1, lasted=20), *more])
    pages = f"read_trace('{TRACE}', chars=100_000)"

    made = report(sonde.rca(TRACE, source, **options(model(pages, submit(confidence=0.8)))))

    assert made["confidence"] == 0.8


@pytest.mark.parametrize(
    "reply", ["SUBMIT(summary='I do not feel like it.')", "SUBMIT(label='bad luck', confidence=0.9)"]
)
def test_a_sub_call_that_judged_nothing_did_not_succeed_and_has_no_label_of_its_own(traces: Path, reply: str) -> None:
    scripted = model(DELEGATE, submit(), child=lambda _task: [reply] * 3)
    found = sonde.rca(TRACE, traces, **options(scripted))

    calls = found.record.runtime_ref.subcall_metadata
    assert {call.status for call in calls} == {"failed"}
    assert not any("tool_failure" in call.summary for call in calls)


def test_a_limit_below_shows_in_the_status_and_the_gaps_of_the_run(traces: Path) -> None:
    scripted = model(DELEGATE, submit(), child=lambda _task: ["print('looking')"] * 30)
    found = sonde.rca(TRACE, traces, **options(scripted, max_iterations=12))

    assert found.status == "partial"
    assert any("reached a limit" in gap for gap in found.gaps)
    assert found.record.error is not None and found.record.error.code == "RECURSION_LIMIT_REACHED"


def test_a_model_that_never_answers_leaves_the_rules_report_marked_code(traces: Path) -> None:
    found = sonde.rca(TRACE, traces, **options(ScriptedModel([ModelCallFailed("down")] * 9)))

    assert (found.status, found.annotator_kind) == ("partial", "CODE")
    assert report(found)["primary_label"] == "tool_failure"
    assert found.record.error is not None and found.record.error.code == "MODEL_OUTPUT_INVALID"


@pytest.mark.requirement(111)
@pytest.mark.requirement("O2")
def test_evidence_that_no_tool_returned_is_refused_and_in_the_end_named_as_a_gap(traces: Path) -> None:
    invented = f"[{SPAN}, {ref('SPAN', 'feedfacefeedface')}]"
    scripted = model(LOOK, *(submit(refs=invented, confidence=each) for each in (0.9, 0.4, 0.3)))
    found = sonde.rca(TRACE, traces, **options(scripted))

    assert found.status == "partial"
    assert found.record.error is not None and found.record.error.code == "EVIDENCE_VALIDATION_FAILED"
    assert (
        "was not returned by any tool in this run; look at it first, for example get_span('feedfacefeedface')"
        in scripted.requests[2].messages[-1].content
    )
    assert [r["ref"] for r in report(found)["evidence_refs"]] == [TOOL]
    assert any("feedfacefeedface" in gap for gap in found.gaps)
    assert not any("get_span(" in gap for gap in found.gaps)


def test_a_refused_submission_can_be_mended(traces: Path) -> None:
    scripted = model(LOOK, submit(refs="[]"), submit())

    assert sonde.rca(TRACE, traces, **options(scripted)).status == "succeeded"


@pytest.mark.requirement("O1")
def test_a_confidence_of_a_half_needs_two_independent_references(traces: Path) -> None:
    lonely = submit(confidence=0.9, refs=f"[{SPAN}, {SPAN}]")
    found = sonde.rca(TRACE, traces, **options(model(LOOK, lonely, lonely)))

    assert (found.status, report(found)["confidence"]) == ("partial", 0.49)
    low = sonde.rca(TRACE, traces, **options(model(LOOK, submit(confidence=0.4, refs=f"[{SPAN}]"))))
    assert (low.status, report(low)["confidence"]) == ("succeeded", 0.4)


@pytest.mark.requirement(110, 125)
@pytest.mark.parametrize("label", ["bad_luck", ""])
def test_a_label_outside_the_five_fails_the_schema_gate_and_the_rule_speaks(traces: Path, label: str) -> None:
    found = sonde.rca(TRACE, traces, **options(model(LOOK, submit(label), submit(label))))

    assert (found.status, found.annotator_kind) == ("partial", "CODE")
    assert found.record.error is not None and found.record.error.code == "SCHEMA_VALIDATION_FAILED"
    assert report(found)["primary_label"] == "tool_failure"


@pytest.mark.requirement(125)
@pytest.mark.parametrize("confidence", [7.0, -0.1])
def test_a_confidence_outside_nought_and_one_is_told_and_not_clamped_in_silence(
    traces: Path, confidence: float
) -> None:
    odd = submit(confidence=confidence)

    mended = sonde.rca(TRACE, traces, **options(model(LOOK, odd, submit())))
    stubborn = sonde.rca(TRACE, traces, **options(model(LOOK, odd, odd)))

    assert (mended.status, report(mended)["confidence"]) == ("succeeded", 0.8)
    assert stubborn.record.error is not None
    assert (stubborn.status, stubborn.record.error.code) == ("partial", "SCHEMA_VALIDATION_FAILED")


def hypotheses(task: str) -> list[str]:
    """The tool hypothesis is proved by two references and two facts, the other by one."""
    if "the tool failed" in task:
        judged = f"label='tool_failure', confidence=0.7, evidence_refs=[{SPAN}, {IO}]"
        return [LOOK, f"SUBMIT({judged}, supporting_facts=['a', 'b'], gaps=['no logs'], summary='it timed out')"]
    judged = f"label='instruction_failure', confidence=0.7, evidence_refs=[{ref('SPAN', ROOT)}]"
    return [f"span = get_span('{ROOT}')", f"SUBMIT({judged}, supporting_facts=[], gaps=[])"]


DELEGATE = """
where = {'trace_id': trace_id, 'candidate_label': 'tool_failure'}
results = delegate_batch([
    {'objective': 'Test: the tool failed', 'context': where},
    {'objective': 'Test: the prompt drifted', 'context': {**where, 'candidate_label': 'instruction_failure'}},
])
print([r['label'] for r in results])
"""


@pytest.mark.requirement(94, 98, 99)
def test_hypotheses_are_tested_by_sub_calls_that_share_one_count(traces: Path) -> None:
    scripted = model(DELEGATE, submit(refs="[]"), child=hypotheses)
    found = sonde.rca(TRACE, traces, **options(scripted))

    made, usage = report(found), found.record.runtime_ref.usage
    assert found.status == "succeeded"
    assert [r["ref"] for r in made["evidence_refs"]] == [TOOL, f"tool:{TOOL}"], (
        "what its sub-calls proved for the chosen label"
    )
    assert any(gap.startswith("subcall:root/1.") and gap.endswith("no logs") for gap in made["gaps"])
    assert (usage.llm_subcalls, usage.depth_reached) == (2, 1)
    calls = found.record.runtime_ref.subcall_metadata
    assert {call.objective for call in calls} == {"Test: the tool failed", "Test: the prompt drifted"}
    assert all(call.parent_call_id == "root" and call.depth == 1 and call.input_ref_hash for call in calls)


@pytest.mark.requirement(96)
@pytest.mark.requirement("O3")
def test_when_the_root_runs_out_of_turns_the_best_sub_call_speaks_and_a_model_judged(traces: Path) -> None:
    scripted = model(DELEGATE, "print('still looking')", "print('on and on')", child=hypotheses)
    found = sonde.rca(TRACE, traces, **options(scripted, max_iterations=4))

    assert (found.status, found.annotator_kind) == ("partial", "LLM")
    assert (report(found)["primary_label"], report(found)["confidence"]) == ("tool_failure", 0.7)
    assert found.record.error is not None and found.record.error.code == "RECURSION_LIMIT_REACHED"


def hypothesis(
    label: str, *, status: str = "succeeded", confidence: float = 0.5, refs: int = 1, facts: int = 0
) -> dict[str, Any]:
    pointers = [{"kind": "SPAN", "ref": str(number)} for number in range(refs)]
    return {
        "label": label,
        "status": status,
        "confidence": confidence,
        "evidence_refs": pointers,
        "supporting_facts": ["f"] * facts,
    }


@pytest.mark.requirement("O1")
def test_the_winner_is_the_one_that_succeeded_then_confidence_then_references_then_facts() -> None:
    ladder = [
        hypothesis("tool_failure", status="failed", confidence=0.99, refs=9, facts=9),
        hypothesis("retrieval_failure", confidence=0.4, refs=9, facts=9),
        hypothesis("instruction_failure", confidence=0.6, refs=1, facts=9),
        hypothesis("data_schema_mismatch", confidence=0.6, refs=2, facts=1),
        hypothesis("upstream_dependency_failure", confidence=0.6, refs=2, facts=2),
    ]
    for length in range(1, len(ladder) + 1):
        best = winner(list(reversed(ladder[:length])))
        assert best is not None and best["label"] == ladder[length - 1]["label"]
    assert winner([hypothesis("tool_failure", refs=0), hypothesis("no such label")]) is None


@pytest.mark.requirement(86, 87, 88, 89, 90, 92, 93)
def test_the_budget_is_the_contracts_and_nothing_goes_above_its_maximum(traces: Path) -> None:
    assert limits_of(RCA.budget) == (2, 40, 120, 40, 200_000, 180)
    for knob, above in {"max_depth": 4, "max_iterations": 61, "max_tool_calls": 221, "max_subcalls": 91}.items():
        with pytest.raises(ConfigError, match=f"maximum of {above - 1}"):
            sonde.rca(TRACE, traces, **options(None, **{knob: above}))
    found = sonde.rca(TRACE, traces, settings=sonde.Settings(), in_memory=True, max_iterations=60, sampling_seed=7)
    recorded = found.record.runtime_ref.budget
    assert (recorded["max_iterations"], recorded["sampling_seed"], recorded["max_tool_calls"]) == (60, 7, 120)


@pytest.mark.requirement(85, 127)
def test_every_look_goes_through_the_registry_and_is_counted_and_hashed(traces: Path) -> None:
    found = sonde.rca(TRACE, traces, **options(model(LOOK, "delete_span('x')", submit())))

    steps = found.record.runtime_ref.repl_trajectory
    assert [call.tool_name for call in steps[0].tool_trace] == ["get_span", "get_tool_io"]
    assert found.record.runtime_ref.usage.tool_calls == 2
    assert "delete_span" in str(steps[1].fault)


@pytest.mark.requirement(128)
def test_models_that_cannot_write_code_investigate_by_typed_actions(traces: Path) -> None:
    output = {
        "primary_label": "tool_failure",
        "summary": "timed out",
        "confidence": 0.8,
        "evidence_refs": [TOOL, f"tool:{TOOL}"],
    }
    actions = [
        {"type": "tool_call", "tool_name": "get_span", "args": {"span_id": TOOL}},
        {"type": "tool_call", "tool_name": "get_tool_io", "args": {"span_id": TOOL}},
        {"type": "finalize", "output": output},
    ]
    scripted = ScriptedModel([json.dumps(action) for action in actions])
    found = sonde.rca(TRACE, traces, **options(scripted, mode="actions"))

    assert (found.status, found.annotator_kind) == ("succeeded", "LLM")
    assert [r["ref"] for r in report(found)["evidence_refs"]] == [TOOL, f"tool:{TOOL}"]
    told = scripted.requests[0].messages[0].content
    assert all(label in told for label in (*LABELS, "no_failure_found"))
    assert '{"type": "finalize", "output": {"primary_label"' in told
    steps = found.record.runtime_ref.repl_trajectory
    assert [[call.tool_name for call in step.tool_trace] for step in steps] == [["get_span"], ["get_tool_io"]]


@pytest.mark.requirement(124)
def test_two_runs_on_the_same_data_and_replies_give_equal_reports(traces: Path) -> None:
    runs = [sonde.rca(TRACE, traces, **options(model(DELEGATE, submit(), child=hypotheses))) for _ in range(2)]

    assert runs[0].report == runs[1].report
    assert runs[0].record.dataset_ref == runs[1].record.dataset_ref
    assert runs[0].record.runtime_ref.prompt_template_hash == runs[1].record.runtime_ref.prompt_template_hash


def test_a_run_with_sub_calls_replays(traces: Path, tmp_path: Path) -> None:
    scripted = model(DELEGATE, submit(), child=hypotheses)
    found = sonde.rca(TRACE, traces, **options(scripted, runs_dir=tmp_path / "runs"))

    assert found.run_dir is not None
    assert sonde.replay(found.run_dir, settings=sonde.Settings()).differences == ()


def test_an_unknown_trace_is_the_callers_mistake_and_names_some(traces: Path) -> None:
    with pytest.raises(ConfigError, match=f"it begins with: {TRACE}"):
        sonde.rca("nope", traces, **options())
    with pytest.raises(ConfigError, match="empty"):
        sonde.rca(" ", traces, **options())


@pytest.mark.long
@pytest.mark.parametrize("kinds", [True, False])
def test_the_origins_thirty_traces_are_labelled_well_without_a_model(tmp_path: Path, kinds: bool) -> None:
    source = write(tmp_path, origin30.spans(kinds=kinds))
    gold = origin30.labels()
    right = sum(
        report(sonde.rca(origin30.trace_id(n), source, **options()))["primary_label"] == label
        for n, label in enumerate(gold)
    )
    assert right / len(gold) >= 0.6


@pytest.mark.requirement(75)
def test_an_investigation_thinks_as_little_as_the_model_can_unless_it_is_told_otherwise(traces: Path) -> None:
    def sent(name: str, **more: Any) -> dict[str, Any]:
        with ScriptedServer(says(submit())) as server:
            settings = sonde.load_settings(base_url=server.base_url, api_key="sk-none")
            sonde.rca(TRACE, traces, model=name, settings=settings, in_memory=True, max_iterations=1, **more)
        body = server.requests[0].body
        return {key: body[key] for key in ("reasoning_effort", "temperature") if key in body}

    assert sent("openai:gpt-5") == {"reasoning_effort": "minimal"}
    assert sent("openai:gpt-4o") == {"temperature": 0.0}
    assert sent("openai:gpt-5", reasoning_effort="high") == {"reasoning_effort": "high"}


def test_the_beginning_of_an_id_names_a_trace_unless_several_begin_so(tmp_path: Path) -> None:
    other = "ab" * 16
    rows = [*failed_trace(), span("f" * 16, "agent.run", 90, trace_id=other, parent=None)]
    traces = write(tmp_path, rows)

    assert report(sonde.rca(TRACE[:6], traces, **options()))["trace_id"] == TRACE
    with pytest.raises(ConfigError, match=f"2 traces begin with a: {TRACE}, {other}"):
        sonde.rca("a", traces, **options())
