"""Typed actions: the same session without code (R128-137)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.events import Event, HostReturned, StateChanged, SubcallEnded
from sonde.core.status import RunStatus
from sonde.errors import ErrorCode, SandboxViolation
from sonde.runtime import RecursiveLoop, SandboxGuard, SubcallResult, ToolRegistry
from sonde.testing import ScriptedModel, run_in_memory

READ = {"type": "tool_call", "tool_name": "read_file", "args": {"path": "a.txt"}}
DONE = {
    "type": "finalize",
    "output": {"answer": "beta is 42", "citations": [{"path": "a.txt", "start_line": 2, "end_line": 2}]},
}


def files() -> FilesContext:
    return FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n"})


def act(*actions: Any, **options: Any) -> tuple[Any, list[Event], ScriptedModel]:
    events: list[Event] = []
    model = ScriptedModel([each if isinstance(each, str | Exception) else json.dumps(each) for each in actions])
    answer = run_in_memory(model, "?", files(), mode="actions", on_event=events.append, **options)
    return answer, events, model


@pytest.mark.requirement(128)
@pytest.mark.requirement(131)
def test_tool_calls_synthesis_and_finalize_lead_to_a_cited_answer() -> None:
    answer, events, model = act(READ, {"type": "synthesize", "output": {"answer": "42?"}}, DONE)

    assert answer.status is RunStatus.SUCCEEDED
    assert answer.text == "beta is 42"
    assert [event.name for event in events if isinstance(event, HostReturned)] == ["read_file"]
    assert "beta is 42" in model.requests[1].messages[-1].content
    assert model.requests[0].schema is not None


@pytest.mark.requirement(129)
@pytest.mark.requirement(137)
@pytest.mark.parametrize(
    "action",
    [
        {"type": "shell", "command": "ls"},
        {"type": "tool_call", "tool_name": "write_file", "args": {}},
        {"type": "tool_call", "tool_name": "read_file", "args": ["a.txt"]},
        {"type": "delegate_subcall", "objective": "", "use_planner": True},
        {"type": "delegate_subcall", "objective": "x", "use_planner": "yes"},
        {"type": "delegate_subcall", "objective": "x", "use_planner": False},
        {"type": "finalize", "output": "text"},
    ],
)
def test_a_forbidden_action_ends_the_run_at_once_without_output(action: dict[str, Any]) -> None:
    answer, _, model = act(action, DONE)

    assert answer.status is RunStatus.FAILED
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.SANDBOX_VIOLATION
    assert answer.text == ""
    assert len(model.requests) == 1


@pytest.mark.requirement(128)
def test_finalize_without_an_output_ends_with_the_draft() -> None:
    answer, _, _ = act(READ, {"type": "synthesize", "output": DONE["output"]}, {"type": "finalize"})

    assert answer.status is RunStatus.SUCCEEDED
    assert answer.text == "beta is 42"


def test_text_that_is_no_action_gets_one_nudge() -> None:
    answer, _, model = act("I would read the file first.", READ, DONE)

    assert answer.status is RunStatus.SUCCEEDED
    assert "exactly one action" in model.requests[1].messages[-1].content


@pytest.mark.requirement(132)
def test_a_delegation_with_given_actions_needs_no_model_and_is_merged() -> None:
    errand = {"type": "delegate_subcall", "objective": "look", "use_planner": False, "actions": [READ]}
    answer, events, model = act(errand, READ, DONE)

    ended = next(event for event in events if isinstance(event, SubcallEnded))
    assert ended.status == "succeeded"
    assert answer.status is RunStatus.SUCCEEDED
    assert len(model.requests) == 3
    assert [e.state for e in events if isinstance(e, StateChanged) and e.session == "root"][:3] == [
        "planning",
        "delegating",
        "planning",
    ]


def test_a_delegation_with_a_planner_is_a_child_session() -> None:
    errand = {"type": "delegate_subcall", "objective": "look", "use_planner": True}
    child = {"type": "finalize", "output": {"summary": "it is in a.txt"}}
    _, events, model = act(errand, child, READ, DONE)

    assert "it is in a.txt" in model.requests[2].messages[-1].content
    assert any(isinstance(event, SubcallEnded) for event in events)


@pytest.mark.requirement(137)
@pytest.mark.requirement(96)
def test_depth_beyond_the_limit_ends_partial_with_the_contract_code() -> None:
    errand = {"type": "delegate_subcall", "objective": "look", "use_planner": True}
    answer, _, _ = act(errand, DONE, budget=Budget(max_depth=0))

    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.RECURSION_LIMIT_REACHED


@pytest.mark.requirement(134)
@pytest.mark.requirement(137)
@pytest.mark.parametrize(
    ("budget", "code"),
    [
        (Budget(max_tool_calls=1), ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_iterations=2), ErrorCode.RECURSION_LIMIT_REACHED),
        (Budget(max_tokens_total=2500), ErrorCode.RECURSION_LIMIT_REACHED),
    ],
)
def test_each_limit_ends_partial_never_hangs(budget: Budget, code: ErrorCode) -> None:
    answer, _, _ = act(*[READ] * 9, budget=budget)

    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None
    assert answer.record.error.code is code


@pytest.mark.requirement(137)
def test_the_same_script_gives_the_same_order_of_actions() -> None:
    def order() -> list[tuple[str, str]]:
        _, events, _ = act(READ, READ, DONE, sampling_seed=7)
        return [(event.name, event.args_hash) for event in events if isinstance(event, HostReturned)]

    assert order() == order()


def test_the_public_names_exist() -> None:
    guard = SandboxGuard({"read_file"})
    guard.validate(READ)
    with pytest.raises(SandboxViolation):
        guard.validate(["not an object"])
    assert SubcallResult(call_id="x", status="succeeded", summary="s").as_dict()["gaps"] == []
    assert callable(RecursiveLoop.run)
    assert ToolRegistry([]).names == ()
