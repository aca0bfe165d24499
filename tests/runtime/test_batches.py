"""Parallel sub-calls: what is shared with them, what they may spend together, and how a batch is left."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget, Scope
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.events import Event, HostReturned, SubcallStarted
from sonde.core.status import RunStatus
from sonde.core.usage import Usage
from sonde.errors import RecursionLimitReached
from sonde.models.base import ModelReply, ModelRequest, TokenUsage
from sonde.testing import ScriptedModel, run_in_memory

FINISH = "FINAL('beta is 42 [a.txt:2]')"
LOOK = "text = read_file('a.txt')"


def files() -> FilesContext:
    return FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n"})


def told(model: ScriptedModel) -> str:
    return "\n".join(message.content for request in model.requests for message in request.messages[2:])


@pytest.mark.requirement(10)
@pytest.mark.parametrize(
    "call",
    [
        "delegate_subcall('child', share=['rows', 'n'])['shown']",
        "sub_rlm('child', share=['rows', 'n'])['shown']",
        "rlm_batch(['child'], share=['rows', 'n'])[0]['shown']",
    ],
)
def test_variables_reach_a_child_only_when_they_are_shared_by_name(call: str) -> None:
    def answer_as(request: ModelRequest) -> str:
        if request.messages[1].content.startswith("Task: child"):
            return "FINAL({'shown': [rows, n, 'secret' in dir()]})"
        turn = len(request.messages) // 2
        return [f"rows = [1, 2]\nn = {{'a': 3}}\nsecret = 4\nprint({call})", LOOK, FINISH][turn - 1]

    events: list[Event] = []
    model = ScriptedModel(answer_as)
    run_in_memory(model, "root", files(), on_event=events.append)

    assert "[[1, 2], {'a': 3}, False]" in told(model)
    assert next(event for event in events if isinstance(event, SubcallStarted)).shared == ["n", "rows"]


def test_a_child_is_told_only_of_what_it_has() -> None:
    def answer_as(request: ModelRequest) -> str:
        if request.messages[1].content.startswith("Task: child"):
            return "FINAL('done')"
        return [f"print({call})", FINISH][len(request.messages) // 2 - 1]

    call = "delegate_subcall('child')"
    model = ScriptedModel(answer_as)
    run_in_memory(model, "root", files(), budget=Budget(max_depth=1))

    root, child = (
        next(r for r in model.requests if f"Task: {who}" in r.messages[1].content) for who in ("root", "child")
    )
    assert "CONTEXT holds each file's text by path" in root.messages[1].content
    assert "sub_rlm" in root.messages[0].content
    assert "CONTEXT" not in child.messages[1].content
    assert "sub_rlm" not in child.messages[0].content


def test_sharing_a_name_that_is_not_there_is_a_fault_of_the_code() -> None:
    model = ScriptedModel(["delegate_subcall('child', share=['rows'])", LOOK, FINISH])
    answer = run_in_memory(model, "root", files())

    assert "there is no variable named 'rows'" in told(model)
    assert answer.record.runtime_ref.usage.llm_subcalls == 0


def test_a_tool_of_the_user_may_have_a_list_called_share() -> None:
    def buy(share: list[str]) -> list[str]:
        """Buy.

        Example: buy(share=["X"])
        """
        return [each.lower() for each in share]

    model = ScriptedModel(["print(buy(share=['ACME']))", LOOK, FINISH])
    run_in_memory(model, "?", files(), tools=[buy])

    assert "['acme']" in told(model)


def test_a_cancel_does_not_wait_for_the_calls_in_flight() -> None:
    cancel, release = threading.Event(), threading.Event()
    asked: list[str] = []

    def answer_as(request: ModelRequest) -> str:
        if request.messages[-1].content.startswith("ask"):
            return "ok"
        return LOOK if len(request.messages) == 2 else "llm_batch([f'ask {i}' for i in range(40)])"

    class Slow(ScriptedModel):
        def complete(self, request: ModelRequest, **options: Any) -> ModelReply:
            if request.messages[-1].content.startswith("ask"):
                asked.append(request.messages[-1].content)
                cancel.set()
                release.wait(110)
            return super().complete(request, **options)

    started = time.monotonic()
    answer = run_in_memory(Slow(answer_as), "?", files(), cancel=cancel)
    release.set()

    assert time.monotonic() - started < 60
    assert answer.status is RunStatus.PARTIAL
    assert "cancelled by the user" in answer.gaps
    assert len(asked) <= 16


def scope(**knobs: Any) -> Scope:
    return Scope(Budget(**knobs), Deadline(SystemClock(), 60))


@pytest.mark.requirement("O8")
def test_a_call_that_fits_once_others_have_landed_waits_for_them() -> None:
    one = scope(max_cost_usd=1.0, max_tokens_total=1000)
    first = one.reserve(100, 500, cost_usd=0.8)
    got: list[int] = []
    waiting = threading.Thread(target=lambda: got.append(one.reserve(100, 500, cost_usd=0.8).max_output_tokens))
    waiting.start()
    waiting.join(0.2)
    assert got == []

    one.spend(Usage(tokens_in=100, tokens_out=10, cost_usd=0.01))
    one.release(first)
    waiting.join(60)

    assert got == [500]


def test_a_call_that_never_fits_is_refused_at_once_though_others_are_in_flight() -> None:
    one = scope(max_cost_usd=1.0, max_tokens_total=1000)
    one.reserve(100, 500, cost_usd=0.5)

    with pytest.raises(RecursionLimitReached):
        one.reserve(10, 10, cost_usd=1.5)
    with pytest.raises(RecursionLimitReached):
        one.reserve(2000, 10)


def test_a_batch_of_dear_calls_under_a_small_cap_goes_through_although_all_at_once_could_not_pay() -> None:
    def answer_as(request: ModelRequest) -> Any:
        text = request.messages[-1].content
        if text.startswith("ask"):
            return ModelReply(text="ok", usage=TokenUsage(20, 1), model="gpt-4o", cost_usd=0.0001)
        return ["print(llm_batch([f'ask {i}' for i in range(30)]).count('ok'))", LOOK, FINISH][
            len(request.messages) // 2 - 1
        ]

    model = ScriptedModel(answer_as, name="openai:gpt-4o")
    answer = run_in_memory(model, "?", files(), max_cost_usd=0.1)

    assert "30" in told(model)
    assert answer.status is RunStatus.SUCCEEDED


def test_prompts_of_sub_calls_are_on_the_stream_once_in_full() -> None:
    events: list[Event] = []
    model = ScriptedModel(["llm_query('x' * 9000)", "an answer", LOOK, FINISH])
    run_in_memory(model, "?", files(), on_event=events.append)

    returned = next(event for event in events if isinstance(event, HostReturned) and event.name == "llm_query")
    assert len(str(returned.args)) < 3000


@pytest.mark.requirement(3)
def test_the_state_that_the_runtime_keeps_is_there_by_name() -> None:
    model = ScriptedModel(
        [
            LOOK,
            "print(tool_trace[0]['tool_name'], budget_counters['tool_calls'], budget_counters['iterations'])",
            FINISH,
        ]
    )
    run_in_memory(model, "?", files())

    assert "read_file 1 2" in told(model)
