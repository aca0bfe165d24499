"""What a model is told holds in the form of replies that it has: code, typed actions, a child of either."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.core.status import RunStatus
from sonde.models.base import ModelRequest
from sonde.testing import ScriptedModel, run_in_memory

READ = {"type": "tool_call", "tool_name": "read_file", "args": {"path": "context.txt"}}
BARE = {"type": "finalize", "output": {"answer": "one line"}}
CITED = {"type": "finalize", "output": {"answer": "one line [context.txt:1]"}}
CHILD = {"type": "delegate_subcall", "objective": "look", "use_planner": True, "context": {"focus": "a"}}
TRACE = "a" * 32


def acting(*actions: Any, **options: Any) -> tuple[sonde.Answer, ScriptedModel]:
    model = ScriptedModel([each if isinstance(each, str) else json.dumps(each) for each in actions])
    return run_in_memory(model, mode="actions", **options), model


def heard(model: ScriptedModel) -> str:
    return "\n".join(message.content for request in model.requests for message in request.messages[1:])


def speaks_of_code(request: ModelRequest) -> list[str]:
    told = request.messages[0].content
    return [word for word in ("Python session", "```python", "{{", "add_citation") if word in told]


def test_a_session_of_actions_is_not_told_to_write_python() -> None:
    _, model = acting(CHILD, BARE, READ, CITED)

    assert [speaks_of_code(request) for request in model.requests] == [[]] * 4
    assert "You answer a question" in model.requests[0].messages[0].content
    assert "You are a sub-call" in model.requests[1].messages[0].content
    assert "as the variable" not in model.requests[1].messages[1].content


def test_a_final_action_that_came_back_may_be_sent_again_as_an_action() -> None:
    answer, model = acting(READ, BARE, CITED, max_iterations=3)

    assert answer.status is RunStatus.SUCCEEDED
    assert "the answer has no citation" in heard(model)
    assert "FINAL(" not in heard(model)
    assert '{"type": "finalize", "output": {...}}' in heard(model)


@pytest.mark.requirement("O6")
def test_a_child_that_can_have_no_children_is_not_told_of_them() -> None:
    _, model = acting(CHILD, BARE, READ, CITED, max_depth=1)

    told = ["delegate_subcall" in request.messages[0].content for request in model.requests]
    assert told == [True, False, True, True]
    assert ["delegate_subcall" in json.dumps(request.schema) for request in model.requests] == told


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    row = {
        "trace_id": TRACE,
        "span_id": "1" * 16,
        "parent_id": None,
        "name": "run",
        "start_time": 1_767_225_600_000_000_000,
        "end_time": 1_767_225_601_000_000_000,
        "status_code": "ERROR",
        "status_message": "TimeoutError",
        "attributes": {"openinference.span.kind": "TOOL"},
    }
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


def test_the_example_for_a_reply_that_was_no_action_is_allowed_where_it_is_given(traces: Path) -> None:
    def obedient(request: ModelRequest) -> str:
        told = request.messages[-1].content
        return told.splitlines()[1] if told.startswith("The reply was not") else "I think it was the tool."

    options = sonde.RunOptions(model=ScriptedModel(obedient), settings=Settings(), in_memory=True, mode="actions")
    found = sonde.rca(TRACE, traces, **options)

    assert found.record.error is not None
    assert found.record.error.code.value != "SANDBOX_VIOLATION"


def test_the_example_for_a_reply_without_code_names_a_function_that_is_there(traces: Path) -> None:
    model = ScriptedModel(["I think it was the tool."] * 2)
    sonde.rca(TRACE, traces, **sonde.RunOptions(model=model, settings=Settings(), in_memory=True))

    assert "had no Python code" in model.requests[1].messages[-1].content
    assert "list_files" not in model.requests[1].messages[-1].content


def test_a_child_is_told_to_finish_with_its_own_fields(traces: Path) -> None:
    def answer(request: ModelRequest) -> str:
        child = "and only that one" in request.messages[0].content
        code = (
            "print(1)" if child else "print(delegate_subcall('test it', context={'candidate_label': 'tool_failure'}))"
        )
        return json.dumps({"reasoning": "", "code": code})

    model = ScriptedModel(answer)
    sonde.rca(TRACE, traces, model=model, settings=Settings(), in_memory=True, max_iterations=8)

    children = [each for each in model.requests if "and only that one" in each.messages[0].content]
    told = "\n".join(message.content for each in children for message in each.messages[1:])
    assert "Finish with SUBMIT(label=" in told
    assert "primary_label" not in told


def test_texts_by_name_are_not_called_the_text_of_a_file() -> None:
    model = ScriptedModel(["FINAL('x')"] * 3)
    run_in_memory(model, context={"one": "first\n", "two": "second\n"})

    assert "context holds the file's text" not in model.requests[0].messages[1].content


def test_a_follow_up_hears_of_variables_only_where_it_has_them_and_of_empty_ones_only_where_they_are(
    tmp_path: Path,
) -> None:
    def follow(script: list[str], **options: Any) -> tuple[sonde.Answer, str]:
        model = ScriptedModel(script)
        answer = ask("?", tmp_path / "a.txt", model=model, settings=Settings(), runs_dir=tmp_path / "runs", **options)
        return answer, model.requests[0].messages[1].content

    (tmp_path / "a.txt").write_text("beta is 42\n")
    first, fresh = follow(["evidence_refs.append('a')\nprint(read_file('a.txt'))", "FINAL('42 [a.txt:1]')"])
    assert first.run_dir is not None
    _, code = follow(["FINAL('42 [a.txt:1]')"], continue_from=first.run_dir)
    _, actions = follow([json.dumps(BARE)], continue_from=first.run_dir, mode="actions", max_iterations=1)

    assert "evidence_refs" not in fresh
    assert "evidence_refs: list (1)" in code
    assert "variables" not in actions
    assert "Answer (succeeded): 42" in actions
