"""The user's own tools have names of their own: one that the runtime needs is refused before anything is asked."""

from __future__ import annotations

import pytest

from sonde.errors import ConfigError
from sonde.testing import ScriptedModel, run_in_memory
from sonde.tools import tool


def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


@pytest.mark.parametrize("name", ["FINAL", "SUBMIT", "llm_query", "budget", "add_citation", "context", "tool_trace"])
def test_a_tool_with_a_name_that_the_runtime_needs_is_refused_before_a_model_is_asked(name: str) -> None:
    model = ScriptedModel(["FINAL(1)"])

    with pytest.raises(ConfigError, match=f"cannot be called {name}"):
        run_in_memory(model, tools=[tool(double, name=name)])
    assert model.requests == []


def test_a_tool_of_another_name_is_called() -> None:
    model = ScriptedModel(["print(double(21))", "FINAL('42')", "FINAL('42')"])
    run_in_memory(model, tools=[double])

    assert "42" in model.requests[1].messages[-1].content
