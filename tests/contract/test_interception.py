"""R15-31 end to end: with the assign-only profile, tool calls are lifted out of the code and served before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sonde.core.events import CodeRan, Event, HostReturned, ToolExecError, ToolIntercepted
from sonde.core.status import RunStatus
from sonde.testing import ScriptedModel, run_in_memory

SOURCE = '"""Shop."""\n\n\ndef total(prices):\n    return sum(prices)\n\n\nclass Cart:\n    def add(self, item):\n        pass\n'


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    return path


def lifted(shop: Path, *replies: str, **options: Any) -> tuple[Any, list[Event], ScriptedModel]:
    events: list[Event] = []
    model = ScriptedModel(list(replies))
    options = {"profile": "assign-only", "code": True, **options}
    return run_in_memory(model, "What is it?", shop, on_event=events.append, **options), events, model


def told(model: ScriptedModel, request: int) -> str:
    return model.requests[request].messages[-1].content


@pytest.mark.requirement(15)
@pytest.mark.requirement(31)
def test_info_is_read_by_the_parent_and_given_as_the_final_value(shop: Path) -> None:
    answer, events, _ = lifted(shop, "info = nav_info()\nFINAL(info)", "FINAL(info)")

    assert answer.value["language"] == "python"
    assert answer.value["total_lines"] == len(SOURCE.splitlines())
    assert [event.name for event in events if isinstance(event, HostReturned)] == ["nav_info"]
    assert answer.status in (RunStatus.SUCCEEDED, RunStatus.PARTIAL)


@pytest.mark.requirement(26)
def test_lifted_calls_are_on_the_stream_with_their_count_and_names(shop: Path) -> None:
    _, events, _ = lifted(shop, 'a = nav_ls()\nb = nav_read("total")\nprint(len(a), b)', "FINAL('x [shop.py:4]')")

    found = next(event for event in events if isinstance(event, ToolIntercepted))
    assert (found.count, found.names) == (2, ["nav_ls", "nav_read"])
    assert not [event for event in events if isinstance(event, ToolExecError)]


@pytest.mark.requirement(25)
@pytest.mark.requirement(26)
def test_a_lifted_call_that_fails_is_on_the_stream_and_told_with_its_line_tool_and_arguments(shop: Path) -> None:
    _, events, model = lifted(shop, "x = 1\nhits = nav_search(5)\nprint(hits)", "FINAL('none')", "FINAL('none')")

    failed = next(event for event in events if isinstance(event, ToolExecError))
    assert (failed.name, failed.lineno) == ("nav_search", 2)
    assert "line 2" in told(model, 1)
    assert "nav_search" in told(model, 1)
    assert "Example" in told(model, 1) or "example" in told(model, 1)


@pytest.mark.requirement(24)
@pytest.mark.requirement(17)
@pytest.mark.parametrize("code", ["nav_info()", "print(nav_info())", 'name = "total"\ncode = nav_read(name)'])
def test_a_call_of_another_form_is_a_failed_block_with_a_correct_example(shop: Path, code: str) -> None:
    answer, events, model = lifted(shop, code, "info = nav_info()\nFINAL(info)", "FINAL(info)")

    ran = next(event for event in events if isinstance(event, CodeRan))
    assert not ran.ok
    assert not any(isinstance(e, HostReturned) and e.turn == 1 for e in events)  # nothing was served
    assert " = nav_" in told(model, 1)
    assert answer.value["language"] == "python"


@pytest.mark.requirement(27)
def test_the_prompt_explains_the_convention_only_where_it_holds(shop: Path) -> None:
    _, _, strict = lifted(shop, "FINAL(1)", "FINAL(1)")
    _, _, free = lifted(shop, "FINAL(1)", "FINAL(1)", profile="analysis")

    sentence = "Tool calls must be assigned to variables"
    assert sentence in strict.requests[0].messages[0].content
    assert "Tool Calling Convention" in strict.requests[0].messages[0].content
    assert sentence not in free.requests[0].messages[0].content


@pytest.mark.requirement(28)
def test_the_convention_is_shown_with_tools_that_are_there(shop: Path) -> None:
    _, _, code = lifted(shop, "FINAL(1)", "FINAL(1)")
    model = ScriptedModel(["FINAL(1)", "FINAL(1)"])
    run_in_memory(model, profile="assign-only")

    over_code, over_text = (each.requests[0].messages[0].content for each in (code, model))
    assert "    info = nav_info()" in over_code
    assert "    paths = list_files(" in over_text
    assert "nav_" not in over_text
    assert "{{" not in over_code + over_text


@pytest.mark.requirement(28)
def test_the_prompt_of_a_profile_without_host_calls_names_no_sub_calls(shop: Path) -> None:
    _, _, model = lifted(shop, "FINAL(1)", "FINAL(1)")

    words = model.requests[0].messages[0].content
    assert "nav_read(" in words
    for absent in ("llm_query", "llm_batch", "sub_rlm", "delegate_subcall"):
        assert absent not in words


@pytest.mark.requirement(23)
@pytest.mark.requirement(30)
def test_calls_run_in_source_order_and_each_session_counts_its_own(shop: Path) -> None:
    code = "b = nav_ls()\na = nav_info()\nprint('__rlm_icpt_' in str(dir()))"
    _, events, _ = lifted(shop, code, code, "FINAL('x [shop.py:1]')")
    _, again, _ = lifted(shop, code, code, "FINAL('x [shop.py:1]')")

    order = [(e.turn, e.name) for e in events if isinstance(e, HostReturned)]
    assert order == [(1, "nav_ls"), (1, "nav_info"), (2, "nav_ls"), (2, "nav_info")]
    assert order == [(e.turn, e.name) for e in again if isinstance(e, HostReturned)]
