"""`rca` with a taxonomy, and of conversations: what the model is shown, what becomes of its claims, who read what."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from sonde.api.investigations import rca
from sonde.api.result import Investigation
from sonde.contexts.traces.importers.whowhen import trace_id_of
from sonde.core.status import RunStatus
from sonde.errors import ConfigError
from sonde.models import ModelRequest
from sonde.testing import ScriptedModel

TRACE = "b" * 32
QUESTION = "How many moons has Mars?"


def write_trace(folder: Path, steps: int = 4, size: int = 40) -> Path:
    """An agent that plans, searches in vain and answers from memory."""
    spans: list[dict[str, Any]] = [_row(0, "AGENT", None, {"input.value": QUESTION})]
    for number in range(1, steps + 1):
        said = f"step {number}: " + f"word{number} " * size
        table = {
            "llm.input_messages.0.message.role": "user",
            "llm.input_messages.0.message.content": f"Observation {number}: " + f"seen{number} " * size,
            "llm.output_messages.0.message.role": "assistant",
            "llm.output_messages.0.message.content": said,
        }
        spans.append(_row(number, "LLM", 0, table))
    path = folder / "traces.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in spans), "utf-8")
    return path


def _row(number: int, kind: str, parent: int | None, attributes: dict[str, Any]) -> dict[str, Any]:
    return {
        "trace_id": TRACE,
        "span_id": span_id(number),
        "parent_id": None if parent is None else span_id(parent),
        "name": f"{kind.lower()}-{number}",
        "start_time": 1_772_000_000_000_000_000 + number * 1_000_000_000,
        "end_time": 1_772_000_000_500_000_000 + number * 1_000_000_000,
        "status_code": "OK",
        "attributes": {"openinference.span.kind": kind, **attributes},
    }


def span_id(number: int) -> str:
    return f"{number + 1:016x}"


def investigate(path: Path, model: ScriptedModel, trace_id: str = TRACE, **more: Any) -> Investigation:
    return rca(trace_id, path, model=model, in_memory=True, **more)


def finding(number: int, category: str = "Goal Deviation", **more: Any) -> dict[str, Any]:
    return {"category": category, "span_id": span_id(number), "why": "it says so", **more}


def submit(findings: list[dict[str, Any]], before: str = "") -> str:
    given = f"primary_label='instruction_failure', summary='s', confidence=0.8, findings={findings!r}"
    return f"```python\n{before}\nSUBMIT({given}, remediation=[], gaps=[])\n```"


def report_of(found: Investigation) -> dict[str, Any]:
    assert found.report is not None
    return found.report


def test_a_short_trace_is_shown_whole_and_its_findings_are_proved_by_their_spans(tmp_path: Path) -> None:
    claims = [finding(2, "goal deviation"), finding(1, "Formatting errors", first_failure=True)]
    model = ScriptedModel([submit(claims)])

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    report = report_of(found)
    assert found.status is RunStatus.SUCCEEDED
    assert [(each["category"], each["span_id"]) for each in report["findings"]] == [
        ("Goal Deviation", span_id(2)),
        ("Formatting Errors", span_id(1)),
    ]
    assert [each["first_failure"] for each in report["findings"]] == [False, True]
    assert {ref["ref"] for ref in report["findings"][0]["evidence_refs"]} == {span_id(2), f"{span_id(2)}:attributes"}
    assert report["coverage"]["readers"] == [f"root: 4 steps, {span_id(1)} to {span_id(4)}"]
    assert report["coverage"]["unread"] == []


def test_the_prompt_holds_the_categories_their_guide_and_the_steps(tmp_path: Path) -> None:
    seen: list[str] = []

    def answer(request: ModelRequest) -> str:
        seen.append("\n".join(message.content for message in request.messages))
        return submit([finding(1)])

    investigate(write_trace(tmp_path), ScriptedModel(answer), taxonomy="trail")

    assert "Poor Information Retrieval:" in seen[0]
    assert "How they are used:" in seen[0]
    assert f"### step 0 | span {span_id(1)} | LLM llm-1 | agent agent-0" in seen[0]
    assert QUESTION in seen[0]


def reply(claims: list[dict[str, Any]], **more: Any) -> str:
    """The JSON object that the prompt asks for."""
    fields: dict[str, Any] = {
        "primary_label": "instruction_failure",
        "summary": "s",
        "confidence": 0.8,
        "remediation": [],
        "gaps": [],
    }
    return json.dumps({"claims": claims, **fields, **more})


def words(request: ModelRequest) -> str:
    return request.messages[-1].content


READS, DOUBTS = "The steps of this part:", "You doubt every claim"


def test_a_reply_is_a_json_object_of_claims_that_the_runtime_has_checked_and_submits(tmp_path: Path) -> None:
    asked: list[ModelRequest] = []

    def answer(request: ModelRequest) -> str:
        asked.append(request)
        if DOUBTS in words(request):
            return '[{"claim": 0, "odds": 0.9}, {"claim": 1, "odds": 0.1}, {"claim": 2, "odds": 0.6}]'
        return reply([finding(1, caused_by=7), finding(2), finding(3, id=7)], first_failure=7)

    found = investigate(write_trace(tmp_path), ScriptedModel(answer), taxonomy="trail")

    listed = report_of(found)["findings"]
    assert [(each["span_id"], each["confidence"], each["verified"]) for each in listed] == [
        (span_id(1), 0.9, True),
        (span_id(3), 0.6, True),
    ]
    assert [(each["first_failure"], each["caused_by"]) for each in listed] == [(False, 1), (True, None)]
    assert found.status is RunStatus.SUCCEEDED
    root, check = asked
    assert root.messages[0] == check.messages[0]
    end = words(root).index("List the failures in this trace")
    assert words(check).startswith(words(root)[:end].strip())  # so that a provider finds it in its cache


@pytest.mark.parametrize("wrapped", ["{}", "```json\n{}\n```", "Here it is:\n{}\nThat is all."])
def test_claims_are_read_whatever_stands_around_them(tmp_path: Path, wrapped: str) -> None:
    model = ScriptedModel([wrapped.replace("{}", reply([finding(1)])), '[{"claim": 0, "odds": 0.8}]'])

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    assert [each["span_id"] for each in report_of(found)["findings"]] == [span_id(1)]


def test_if_no_claim_holds_the_surest_is_submitted(tmp_path: Path) -> None:
    verdicts = '[{"claim": 0, "odds": 0.1}, {"claim": 1, "odds": 0.3}]'

    found = investigate(
        write_trace(tmp_path), ScriptedModel([reply([finding(1), finding(2)]), verdicts]), taxonomy="trail"
    )

    assert [each["span_id"] for each in report_of(found)["findings"]] == [span_id(2)]


def test_a_reply_without_claims_is_asked_for_again(tmp_path: Path) -> None:
    model = ScriptedModel(["I see nothing of interest.", reply([finding(1)]), '[{"claim": 0, "odds": 0.8}]'])

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    assert "no JSON object with claims" in words(model.requests[1])
    assert found.status is RunStatus.SUCCEEDED


def test_no_claims_mean_a_healthy_trace_and_nobody_is_asked_to_check_them(tmp_path: Path) -> None:
    model = ScriptedModel([reply([], primary_label="no_failure_found", summary="Nothing failed.")])

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    assert (found.status, report_of(found)["findings"], len(model.requests)) == (RunStatus.SUCCEEDED, [], 1)


def test_the_prompt_of_a_short_trace_names_no_functions_and_says_what_code_found(tmp_path: Path) -> None:
    model = ScriptedModel([reply([finding(1)]), "[]"])

    investigate(write_trace(tmp_path), model, taxonomy="trail")

    said = "\n".join(message.content for message in model.requests[0].messages)
    assert not any(name in said for name in ("llm_batch", "label_prompts", "get_messages", "SUBMIT(", "```python"))
    assert "What code found." in said


def test_a_long_trace_is_read_in_parts_and_the_coverage_names_the_readers(tmp_path: Path) -> None:
    path = write_trace(tmp_path, steps=60, size=300)

    def answer(request: ModelRequest) -> str:
        return "[]" if READS in words(request) else reply([finding(1)])

    found = investigate(path, ScriptedModel(answer), taxonomy="trail", max_subcalls=4)

    covered = report_of(found)["coverage"]
    assert covered["steps"] == 60
    read = [int(reader.partition(": ")[2].partition(" ")[0]) for reader in covered["readers"]]
    assert len(read) == 4
    assert sum(read) + len(covered["unread"]) == 60
    assert all(reader.startswith("root/1.1.") for reader in covered["readers"])
    assert covered["unread"]
    assert covered["unread"][-1] == span_id(60)
    assert span_id(1) not in covered["unread"]


def write_team(folder: Path, looks: int = 30, size: int = 110) -> Path:
    """A manager who asks a searcher once; the searcher makes a new plan halfway, gives up, and the manager answers all the same."""

    def call(number: int, parent: int, asked: str, said: str) -> dict[str, Any]:
        return _row(
            number,
            "LLM",
            parent,
            {
                "llm.input_messages.0.message.role": "user",
                "llm.input_messages.0.message.content": asked,
                "llm.output_messages.0.message.content": said,
            },
        )

    spans = [
        _row(0, "CHAIN", None, {}),
        _row(1, "AGENT", 0, {"input.value": QUESTION}),
        call(2, 1, "Go!", "search_agent(task='count the moons')"),
        _row(3, "AGENT", 1, {"input.value": '{"task": "count the moons"}', "output.value": "I found none."}),
    ]
    for number in range(4, 4 + looks):
        planning = number in (4, 4 + looks // 2)
        asked = f"Write plan {number} below." if planning else f"page {number}: " + f"seen{number} " * size
        spans.append(call(number, 3, asked, f"look {number}: " + f"word{number} " * size))
    spans.append(call(4 + looks, 1, "search_agent says: I found none.", "final_answer(2)"))
    path = folder / "team.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in spans), "utf-8")
    return path


def test_each_agent_of_a_long_trace_has_its_own_readers_and_the_root_merges_what_they_claim(tmp_path: Path) -> None:
    read: list[str] = []

    def answer(request: ModelRequest) -> str:
        if READS in words(request):
            read.append(words(request))
            own = finding(34, "Language-only", odds=0.7) if "I found none." in words(request) else finding(9, odds=0.4)
            return json.dumps([own])
        return "[]" if DOUBTS in words(request) else reply([finding(34)])

    model = ScriptedModel(answer)
    found = investigate(write_team(tmp_path), model, taxonomy="trail")

    titles = sorted(part.partition("You read part ")[2].partition(".")[0] for part in read)
    assert titles == [
        "1 of 3: the run of agent-1, from step 0 to step 31",
        "2 of 3: the run of agent-3, part 1 of 2, from step 1 to step 15",
        "3 of 3: the run of agent-3, part 2 of 2, from step 16 to step 30",
    ]
    own = next(part for part in read if "1 of 3" in part).partition(READS)[2]
    assert "steps 1 to 30: here agent-3 worked" in own
    assert "[its task]\ncount the moons\n[its result]\nI found none." in own
    assert "look 5:" not in own
    merging = next(words(each) for each in model.requests if "3 others read a part each" in words(each))
    assert f"step 31, {span_id(34)} | Language-only | 0.70 | it says so" in merging
    assert (
        "look 9: word9 word9"
        in merging.partition("The steps that they name:")[2].partition("The steps that decided")[0]
    )
    assert "### step 31" in merging  # what decided the end, uncut
    assert report_of(found)["coverage"]["unread"] == []


def test_a_taxonomy_may_have_a_guide_of_its_own_for_traces_of_several_agents(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    category = "categories: [{name: Goal Deviation, definition: it drifts}]"
    mine.write_text(
        f"name: mine\nguide: how one agent is judged\nteam_guide: how a team is judged\n{category}\n", "utf-8"
    )
    alone, team = ScriptedModel([reply([finding(1)])]), ScriptedModel([reply([finding(34)])])

    investigate(write_trace(tmp_path), alone, taxonomy=str(mine), max_subcalls=0)
    investigate(write_team(tmp_path), team, taxonomy=str(mine), max_subcalls=0)

    assert "how one agent is judged" in words(alone.requests[0])
    assert "how a team is judged" in words(team.requests[0])
    assert "how one agent is judged" not in words(team.requests[0])
    assert "in the whole trace 0 calls or pieces of code failed" in words(team.requests[0])


def test_a_long_trace_without_sub_calls_is_judged_by_outline_and_facts(tmp_path: Path) -> None:
    model = ScriptedModel([reply([finding(34)])])

    found = investigate(write_team(tmp_path), model, taxonomy="trail", max_subcalls=0)

    assert [each["verified"] for each in report_of(found)["findings"]] == [False]
    assert "0 others read" in words(model.requests[0])


def claimed(request: ModelRequest) -> list[dict[str, Any]]:
    """The claims in a sceptic's prompt."""
    lines = request.messages[-1].content.splitlines()
    return json.loads(next(line for line in lines if line.startswith('[{"claim"') and '"category"' in line))


def checking(claims: list[dict[str, Any]], verdicts: str | None) -> tuple[ScriptedModel, list[ModelRequest]]:
    """A root that has its claims checked and keeps those that hold, and a sceptic."""
    asked: list[ModelRequest] = []
    before = f"checked = check({claims!r})\nkept = [each for each in checked if each['confidence'] >= 0.4]"

    def answer(request: ModelRequest) -> str:
        if "You doubt every claim" not in request.messages[-1].content:
            return submit([], before).replace("findings=[]", "findings=kept")
        asked.append(request)
        return verdicts if verdicts is not None else "I would rather not say."

    return ScriptedModel(answer), asked


def test_claims_are_checked_by_a_sceptic_who_does_not_see_how_sure_their_author_is(tmp_path: Path) -> None:
    claims = [finding(1, confidence=0.97, impact="high"), finding(2), finding(3, "goal deviation")]
    verdicts = 'Here they are:\n[{"claim": 0, "odds": 0.2, "why": "x [no]"}, {"claim": 2, "odds": 0.7, "why": "plain"}]'
    model, asked = checking(claims, verdicts)

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    kept = report_of(found)["findings"]
    assert [(each["span_id"], each["confidence"], each["verified"]) for each in kept] == [
        (span_id(2), 0.5, False),
        (span_id(3), 0.7, True),
    ]
    assert found.status is RunStatus.SUCCEEDED
    assert claimed(asked[0])[0] == {
        "claim": 0,
        "category": "Goal Deviation",
        "span_id": span_id(1),
        "why": "it says so",
    }
    assert "0.97" not in asked[0].messages[-1].content
    assert "(medium impact, checked, confidence 0.70)" in found.text
    assert (
        "### step 3" in asked[0].messages[-1].content
    )  # a short trace is shown whole, and not only where the claims are


def test_with_the_general_guide_only_claims_in_doubt_are_read_again_with_their_steps(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\ncategories:\n- name: Slow\n  definition: Too slow.\n", "utf-8")
    claims = [finding(2, "Slow", odds=0.8), finding(9, "Slow", odds=0.4), finding(8, "Slow", odds=0.45)]
    verdicts = '[{"claim": 1, "odds": 0.2, "why": "no"}, {"claim": 2, "odds": 0.3, "why": "yes"}]'
    model = ScriptedModel(lambda request: verdicts if DOUBTS in words(request) else reply(claims))

    found = investigate(write_trace(tmp_path, steps=9), model, taxonomy=mine)
    root, sceptic = model.requests

    assert '"odds"' in words(root)
    assert [each["claim"] for each in claimed(sceptic)] == [1, 2]
    assert [number for number in range(9) if f"### step {number} |" in words(sceptic)] == [0, 6, 7, 8]
    kept = report_of(found)["findings"]
    assert [(each["span_id"], each["confidence"], each["verified"]) for each in kept] == [
        (span_id(2), 0.8, False),
        (span_id(8), 0.3, True),
    ]


def test_a_model_cannot_call_its_own_claims_verified(tmp_path: Path) -> None:
    found = investigate(write_trace(tmp_path), ScriptedModel([submit([finding(1, verified=True)])]), taxonomy="trail")

    assert [each["verified"] for each in report_of(found)["findings"]] == [False]


@pytest.mark.parametrize("budget", [{"max_subcalls": 0}, {"max_depth": 0}])
def test_without_sub_calls_claims_come_back_unverified_and_the_run_goes_on(tmp_path: Path, budget: Any) -> None:
    model, asked = checking([finding(1, confidence=0.9)], "[]")

    found = investigate(write_trace(tmp_path), model, taxonomy="trail", **budget)

    assert asked == []
    assert [(each["confidence"], each["verified"]) for each in report_of(found)["findings"]] == [(0.9, False)]


def test_a_sceptic_who_answers_in_prose_leaves_the_claims_as_they_were(tmp_path: Path) -> None:
    model, asked = checking([finding(1, confidence=0.9)], None)

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    assert len(asked) == 1
    assert [(each["confidence"], each["verified"]) for each in report_of(found)["findings"]] == [(0.9, False)]


def test_many_claims_about_a_long_trace_go_to_the_sceptic_in_groups_with_their_steps(tmp_path: Path) -> None:
    model, asked = checking([finding(number) for number in range(3, 29)], "[]")

    investigate(write_trace(tmp_path, steps=30, size=300), model, taxonomy="trail")

    prompts = [words(request) for request in asked]
    assert sorted(len(claimed(request)) for request in asked) == [2, 24]
    last = next(text for text in prompts if '"claim": 25' in text)
    assert "The trace in outline, 30 steps:" in last
    assert f"### step 25 | span {span_id(26)}" in last  # the step before the first that is named
    assert f"### step 24 | span {span_id(25)}" not in last


def test_each_run_of_a_long_session_is_a_part_with_its_own_task(tmp_path: Path) -> None:
    path = write_trace(tmp_path, steps=60, size=300)
    spans = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    runs = [_row(100 + at, "AGENT", 0, {"input.value": f"errand {at}"}) for at in range(3)]
    for number, span in enumerate(spans[1:]):
        span["parent_id"] = runs[number // 20]["span_id"]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in (*spans, *runs)), "utf-8")
    parts: list[str] = []

    def answer(request: ModelRequest) -> str:
        if READS not in words(request):
            return reply([finding(1)])
        parts.append(words(request))
        return "[]"

    investigate(path, ScriptedModel(answer), taxonomy="trail")

    first = [part for part in parts if "## A new run begins." in part]
    assert sorted(part.partition("Its own task:\n")[2].splitlines()[0] for part in first) == [
        "errand 0",
        "errand 1",
        "errand 2",
    ]
    assert all(sum(f"errand {at}" in part for at in range(3)) == 1 for part in parts)
    assert not any("A manager gives tasks to team members" in part for part in parts)  # runs side by side are no team


def test_claims_outside_the_taxonomy_or_the_trace_are_told_and_then_left_out(tmp_path: Path) -> None:
    claims = [finding(1), finding(2, "Bad luck"), {**finding(3), "span_id": "f" * 16}]
    model = ScriptedModel([submit(claims), submit(claims)])

    found = investigate(write_trace(tmp_path), model, taxonomy="trail")

    assert found.status is RunStatus.PARTIAL
    assert [each["span_id"] for each in report_of(found)["findings"]] == [span_id(1)]
    assert any("Bad luck" in gap for gap in found.gaps)
    assert any("f" * 16 in gap for gap in found.gaps)


def test_a_healthy_trace_may_be_called_healthy_with_proof(tmp_path: Path) -> None:
    refs = [{"kind": "SPAN", "ref": span_id(1)}, {"kind": "SPAN", "ref": span_id(4)}]
    given = f"primary_label='instruction_failure', summary='Nothing failed.', confidence=0.2, findings=[], evidence_refs={refs}"

    found = investigate(
        write_trace(tmp_path), ScriptedModel([f"SUBMIT({given}, remediation=[], gaps=[])"]), taxonomy="trail"
    )

    assert found.status is RunStatus.SUCCEEDED
    assert (report_of(found)["findings"], report_of(found)["confidence"]) == ([], 0.2)


def test_reading_has_a_larger_budget_than_looking_and_a_maximum_of_its_own(tmp_path: Path) -> None:
    path = write_trace(tmp_path)

    read = investigate(path, ScriptedModel([submit([finding(1)])]), taxonomy="trail", max_wall_time_sec=7200)
    looked = rca(TRACE, path, in_memory=True)

    assert read.record.runtime_ref.budget["max_tokens_total"] == 600_000
    assert looked.record.runtime_ref.budget["max_tokens_total"] == 200_000
    with pytest.raises(ConfigError, match="maximum of 7200"):
        investigate(path, ScriptedModel([]), taxonomy="trail", max_wall_time_sec=7201)
    with pytest.raises(ConfigError, match="maximum of 300"):
        rca(TRACE, path, in_memory=True, max_wall_time_sec=301)


def test_causes_are_named_by_id_and_point_at_what_was_kept(tmp_path: Path) -> None:
    claims = [finding(3, id=7), finding(3, id=8), finding(2, id=5, caused_by=8), finding(1, id=9, caused_by=4)]

    found = investigate(write_trace(tmp_path), ScriptedModel([submit(claims)]), taxonomy="trail")

    assert [each["caused_by"] for each in report_of(found)["findings"]] == [None, 0, None]


def test_causes_make_no_circle_and_the_first_failure_has_none(tmp_path: Path) -> None:
    claims = [
        finding(1, caused_by=2),
        finding(2, first_failure=True, caused_by=0),
        finding(3, caused_by=0),
        finding(4, caused_by=3),
    ]

    found = investigate(write_trace(tmp_path), ScriptedModel([submit(claims)]), taxonomy="trail")

    listed = report_of(found)["findings"]
    assert [each["caused_by"] for each in listed] == [None, None, 0, None]
    assert [each["first_failure"] for each in listed] == [False, True, False, False]


def test_a_taxonomy_of_ones_own_is_a_yaml_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\ncategories:\n- name: Slow\n  definition: Too slow.\n", "utf-8")

    found = investigate(write_trace(tmp_path), ScriptedModel([submit([finding(1, "slow")])]), taxonomy=mine)

    assert report_of(found)["taxonomy"] == "mine"
    assert [each["category"] for each in report_of(found)["findings"]] == ["Slow"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("- name: SLOW\n  definition: y\n", "'Slow' and 'SLOW' are the same name"),
        ("- name: ''\n  definition: y\n", "a category has name and definition"),
        ("- name: Fast\n  definition: y\n  pattern: [x]\n", "Fast: unknown field pattern"),
    ],
)
def test_a_taxonomy_that_cannot_mean_what_it_says_is_refused(tmp_path: Path, more: str, words: str) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(f"name: mine\ncategories:\n- name: Slow\n  definition: Too slow.\n{more}", "utf-8")

    with pytest.raises(ConfigError, match=words):
        rca(TRACE, write_trace(tmp_path), taxonomy=mine, in_memory=True)


def test_a_taxonomy_lists_the_failures_of_a_conversation_too(tmp_path: Path) -> None:
    path, trace_id = conversation(tmp_path)
    claim = {"category": "Goal Deviation", "span_id": f"{trace_id[:8]}{2:08x}", "why": "it says so"}

    found = investigate(path, ScriptedModel([submit([claim])]), trace_id, taxonomy="trail")

    assert report_of(found)["taxonomy"] == "trail"
    assert [each["category"] for each in report_of(found)["findings"]] == ["Goal Deviation"]


def test_the_failures_of_a_conversation_are_found_in_one_prompt_if_cutting_its_texts_is_enough(tmp_path: Path) -> None:
    path, trace_id = conversation(tmp_path, steps=60, size=400)
    claim = {"category": "Goal Deviation", "span_id": f"{trace_id[:8]}{2:08x}", "why": "it says so"}
    model = ScriptedModel(lambda _request: reply([claim]))

    found = investigate(path, model, trace_id, taxonomy="trail")

    (request,) = (each for each in model.requests if DOUBTS not in words(each))
    assert all(f"### step {number} | " in words(request) for number in range(60))
    assert report_of(found)["coverage"]["unread"] == []


def test_the_failures_of_a_long_conversation_are_merged_with_its_last_words_uncut(tmp_path: Path) -> None:
    path, trace_id = conversation(tmp_path, steps=140, size=100)
    claim = {"category": "Goal Deviation", "span_id": f"{trace_id[:8]}{2:08x}", "why": "it says so"}
    model = ScriptedModel(lambda request: "[]" if READS in words(request) else reply([claim]))

    investigate(path, model, trace_id, taxonomy="trail")

    merging = next(words(each) for each in model.requests if "others read a part each" in words(each))
    assert "### step 139" in merging.partition("decided the end")[2]


def conversation(folder: Path, steps: int = 4, size: int = 1) -> tuple[Path, str]:
    names = ("Planner", "Coder", "Computer_terminal", "Verifier")
    history = [{"role": "user", "name": names[at % 4], "content": f"message {at} " * size} for at in range(steps)]
    record = {"question": QUESTION, "history": history}
    path = folder / "talk.json"
    path.write_text(json.dumps(record), "utf-8")
    return path, trace_id_of(record)


@pytest.mark.parametrize("step", [1, "1"])
def test_a_conversation_gets_its_decisive_step_and_the_agent_is_who_spoke_there(tmp_path: Path, step: object) -> None:
    path, trace_id = conversation(tmp_path)
    given = f"primary_label='tool_failure', summary='s', confidence=0.7, decisive={{'agent': 'x', 'step': {step!r}}}"
    model = ScriptedModel([f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"])

    found = investigate(path, model, trace_id)

    decisive = report_of(found)["decisive"]
    assert (decisive["agent"], decisive["step"]) == ("Coder", 1)
    assert found.status is RunStatus.SUCCEEDED
    assert report_of(found)["evidence_refs"][0]["span_id"] == decisive["span_id"]


def test_a_long_conversation_is_read_in_parts_that_know_the_question(tmp_path: Path) -> None:
    path, trace_id = conversation(tmp_path, steps=140, size=400)
    parts: list[str] = []

    def answer(request: ModelRequest) -> str:
        if "list the steps in this part" in request.messages[-1].content.lower():
            parts.append(request.messages[-1].content)
            return "[]"
        given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive={'step': 139}"
        return f"```python\nllm_batch(label_prompts)\nSUBMIT({given}, remediation=[], gaps=[])\n```"

    found = investigate(path, ScriptedModel(answer), trace_id)

    assert 3 <= len(parts) == len(report_of(found)["coverage"]["readers"]) <= 8
    assert all(QUESTION in part for part in parts)
    assert not any("A new run begins" in part for part in parts)  # what an agent says is a step, not a run of its own
    assert report_of(found)["coverage"]["unread"] == []
    assert report_of(found)["decisive"]["agent"] == "Verifier"
    parts.sort(key=lambda part: int(re.findall(r"Part (\d+) of", part)[0]))  # they are asked in parallel
    firsts = [int(re.findall(r"Part \d+ of \d+, steps (\d+)", part)[0]) for part in parts]
    assert len(set(firsts)) == len(parts)  # they are asked at the same time, so in any order
    assert f"### step {firsts[1] - 1} | " in parts[1]  # its first step stands beside the instruction before it


def test_a_conversation_that_fits_when_it_is_cut_is_shown_whole_and_one_reply_decides(tmp_path: Path) -> None:
    path, trace_id = conversation(tmp_path, steps=60, size=400)
    given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive={'step': 3, 'why': 'w'}"
    model = ScriptedModel([f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"])

    found = investigate(path, model, trace_id)

    shown = "".join(message.content for message in model.requests[0].messages)
    assert len(model.requests) == 1
    assert all(f"### step {number} | " in shown for number in range(60))
    assert len(shown) < 90_000
    assert "llm_batch" not in shown
    assert "get_span" not in shown
    assert report_of(found)["coverage"]["readers"] == [
        f"root: 60 steps, {trace_id[:8]}00000001 to {trace_id[:8]}0000003c"
    ]


def orchestrated(folder: Path) -> tuple[Path, str]:
    said = [
        ("human", QUESTION),
        ("Orchestrator (thought)", "The plan is to look it up."),
        ("Orchestrator (-> WebSurfer)", "Please open the page about Mars."),
        ("Orchestrator (thought)", "Next speaker WebSurfer"),
        ("WebSurfer", "I clicked on the page about Venus."),
        ("Orchestrator (thought)", "So Mars has no moons."),
        ("Orchestrator (termination condition)", "FINAL ANSWER: 0"),
    ]
    record = {"question": QUESTION, "history": [{"role": role, "content": text} for role, text in said]}
    path = folder / "talk.json"
    path.write_text(json.dumps(record), "utf-8")
    return path, trace_id_of(record)


@pytest.mark.parametrize(
    ("view", "step"),
    [
        ('[{"step": 5, "odds": 0.8, "why": "it concludes"}, {"step": 4, "odds": 0.2, "why": "harmless"}]', 5),
        ('[{"step": 4, "odds": 0.5, "why": "x"}, {"step": 5, "odds": 0.5, "why": "y"}]', 4),
        ("I would rather not say.", 4),
    ],
)
def test_steps_that_are_close_go_to_a_second_reader_who_is_blind(tmp_path: Path, view: str, step: int) -> None:
    path, trace_id = orchestrated(tmp_path)
    asked: list[str] = []
    close = [
        {"step": 4, "why": "MY REASON", "confidence": 0.6},
        {"step": 5, "why": "MY DOUBT", "confidence": 0.4},
    ]

    def answer(request: ModelRequest) -> str:
        if "odds that add up to 1" in request.messages[-1].content:
            asked.append(request.messages[-1].content)
            return view
        given = f"primary_label='tool_failure', summary='s', confidence=0.7, decisive=check({close!r})"
        return f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"

    found = investigate(path, ScriptedModel(answer), trace_id)

    assert report_of(found)["decisive"]["step"] == step
    assert [each["hypothesis"].partition(":")[0] for each in report_of(found)["alternatives"]] == [f"step {9 - step}"]
    (prompt,) = asked
    assert "MY REASON" not in prompt
    assert "MY DOUBT" not in prompt
    assert "0.6" not in prompt
    judged = prompt.partition("The steps to judge")[2]
    assert "Instruction: ### step 2 | Orchestrator (-> WebSurfer): Please open the page about Mars." in judged
    assert "What it heard last: ### step 4 | WebSurfer" in judged
    assert "FINAL ANSWER: 0" in prompt


def test_notes_in_json_lose_their_indentation_and_pages_their_heads_but_code_stays_as_it_is(tmp_path: Path) -> None:
    notes = json.dumps({"done": {"answer": False, "reason": "not yet"}}, indent=8)
    head = json.dumps({"meta_tags": {"og:image": "card.png"}, "jsonld": ["@graph"]}, indent=4)
    code = "if x:\n        y = {\n            1}"
    history = [{"role": "A", "content": f"Ledger:\n{notes}\n{notes}\n{head}"}, {"role": "B", "content": code}]
    record = {"question": QUESTION, "history": history}
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(record), "utf-8")
    given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive={'step': 1, 'why': 'w'}"
    model = ScriptedModel([f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"])

    investigate(path, model, trace_id_of(record))

    shown = model.requests[0].messages[-1].content
    line = '{"done": {"answer": false, "reason": "not yet"}}'
    assert f"Ledger:\n{line}\n{line}\n[the head of the page left out]" in shown
    assert code in shown


def test_a_conversation_with_an_orchestrator_has_rules_of_its_own_and_repeats_neither_pages_nor_instructions(
    tmp_path: Path,
) -> None:
    page = "\n".join(f"Line {at} of a page about the moons of Mars." for at in range(60))
    told = "Please open the page about the moons of Mars and read on."
    round_of_three = [
        ("Orchestrator (thought)", json.dumps({"instruction": {"answer": told}}, indent=2)),
        ("Orchestrator (-> WebSurfer)", told),
        ("WebSurfer", f"I scrolled down one page in the browser.\n\n{page}"),
    ]
    said = [("human", QUESTION), *round_of_three, *round_of_three, ("Orchestrator (thought)", "Request satisfied.")]
    record = {"question": QUESTION, "history": [{"role": role, "content": text} for role, text in said]}
    path = tmp_path / "talk.json"
    path.write_text(json.dumps(record), "utf-8")
    given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive={'step': 3, 'why': 'w'}"
    model = ScriptedModel([f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"] * 2)

    investigate(path, model, trace_id_of(record))
    other_path, other_id = conversation(tmp_path)
    investigate(other_path, model, other_id)

    (rules, shown), (other, _) = ([message.content for message in each.messages] for each in model.requests)
    assert "An orchestrator leads this run" in rules
    assert "An orchestrator leads this run" not in other
    assert shown.count("Line 30 of a page") == 1
    assert shown.count("I scrolled down one page") == 2
    assert shown.count(told) == 2
    assert shown.count("[the instruction that follows]") == 2
    assert "Replies of workers: 2, at steps 3, 6." in shown


def test_one_step_alone_needs_no_second_reader(tmp_path: Path) -> None:
    path, trace_id = orchestrated(tmp_path)
    given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive=check([{'step': 4, 'why': 'w'}])"
    model = ScriptedModel([f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"])

    found = investigate(path, model, trace_id)

    assert len(model.requests) == 1
    assert report_of(found)["decisive"]["agent"] == "WebSurfer"


def test_a_step_that_does_not_exist_is_told_and_the_report_says_what_is_missing(tmp_path: Path) -> None:
    path, trace_id = conversation(tmp_path)
    given = "primary_label='tool_failure', summary='s', confidence=0.7, decisive={'agent': 'x', 'step': 99}"
    reply = f"```python\nSUBMIT({given}, remediation=[], gaps=[])\n```"

    scripted = ScriptedModel([reply, reply])
    found = investigate(path, scripted, trace_id)

    assert found.status is RunStatus.PARTIAL
    assert "with a step 0 to 3" in scripted.requests[1].messages[-1].content
    assert any("no decisive step" in gap for gap in found.gaps)


def test_without_a_model_the_rule_speaks_and_says_so(tmp_path: Path) -> None:
    found = rca(TRACE, write_trace(tmp_path), taxonomy="trail", in_memory=True)

    assert found.annotator_kind == "CODE"
    assert report_of(found)["findings"] == []


def failing(folder: Path, messages: dict[int, tuple[str, str]]) -> Path:
    """The same agent, with steps of the given kind that end in the given errors."""
    path = write_trace(folder, steps=6)
    spans = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    for number, (kind, message) in messages.items():
        spans[number]["attributes"]["openinference.span.kind"] = kind
        spans[number] |= {"status_code": "ERROR", "status_message": message}
    path.write_text("".join(f"{json.dumps(each)}\n" for each in spans), "utf-8")
    return path


def test_without_a_model_errors_whose_words_a_category_knows_are_findings(tmp_path: Path) -> None:
    path = failing(
        tmp_path,
        {
            1: ("LLM", "Error when executing page_down: TypeError: unexpected keyword 'x'"),
            2: ("TOOL", "TypeError: unexpected keyword 'x'"),
            3: ("TOOL", "HTTPError: 429 Too Many Requests"),
            5: ("LLM", "something odd"),
        },
    )

    found = rca(TRACE, path, taxonomy="trail", in_memory=True)

    assert [(each["span_id"], each["category"]) for each in report_of(found)["findings"]] == [
        (span_id(1), "Formatting Errors"),
        (span_id(3), "Rate Limiting"),
    ]
    assert [each["verified"] for each in report_of(found)["findings"]] == [False, False]
    assert found.annotator_kind == "CODE"


def test_a_run_that_ends_before_it_submits_reports_what_the_sceptic_let_stand(tmp_path: Path) -> None:
    claims = [finding(1), finding(2)]
    verdicts = '[{"claim": 0, "odds": 0.8}, {"claim": 1, "odds": 0.1}]'

    def answer(request: ModelRequest) -> str:
        doubting = "You doubt every claim" in request.messages[-1].content
        return verdicts if doubting else f"```python\nchecked = check({claims!r})\n```"

    found = investigate(write_trace(tmp_path), ScriptedModel(answer), taxonomy="trail", max_iterations=2)

    assert found.status is RunStatus.PARTIAL
    assert [each["span_id"] for each in report_of(found)["findings"]] == [span_id(1)]
    assert found.annotator_kind == "LLM"


def test_a_pattern_that_is_no_regular_expression_is_told(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("name: mine\ncategories:\n- name: Slow\n  definition: x\n  patterns: ['(']\n", "utf-8")

    with pytest.raises(ConfigError, match="Slow: patterns is a list of regular expressions"):
        rca(TRACE, write_trace(tmp_path), taxonomy=mine, in_memory=True)
