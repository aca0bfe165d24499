"""What a child says that it could not find out is heard by its parent and told with the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sonde.models.base import ModelRequest
from sonde.testing import ScriptedModel, run_in_memory

GAP = "subcall:root/1.1:no year is given"


def action(kind: str, **fields: Any) -> str:
    return json.dumps({"type": kind, **fields})


@pytest.mark.requirement(132)
def test_the_gaps_that_a_child_names_reach_its_parent_and_the_answer() -> None:
    def reply(request: ModelRequest) -> str:
        if "find out" in request.messages[1].content:
            return "SUBMIT(summary='half of it', gaps=['no year is given'])"
        asked = len(request.messages) > 2
        return "FINAL('half of it [context.txt:1]')" if asked else "print(delegate_subcall('find out')['gaps'])"

    model = ScriptedModel(reply)
    answer = run_in_memory(model)

    assert GAP in answer.gaps
    assert GAP in model.requests[2].messages[-1].content
    assert answer.record.runtime_ref.subcall_metadata[0].gaps == [GAP]


@pytest.mark.requirement(132)
def test_so_do_those_of_a_typed_action() -> None:
    child = action("delegate_subcall", objective="find out", use_planner=True)
    found = action("finalize", output={"summary": "half of it", "gaps": ["no year is given"]})
    answer = action("finalize", output={"answer": "half of it [context.txt:1]"})
    model = ScriptedModel([child, found, answer, answer])

    assert GAP in run_in_memory(model, mode="actions").gaps
