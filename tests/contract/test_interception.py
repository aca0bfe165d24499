"""R15-31 end to end: with the assign-only profile, tool calls are lifted out of the code and served before it runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.core.calls import CallCitation
from sonde.core.canonical import canonical_json
from sonde.core.events import CodeRan, Event, HostReturned, ToolExecError, ToolIntercepted
from sonde.core.status import RunStatus
from sonde.errors import ConfigError
from sonde.models.base import ModelRequest
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel, run_in_memory
from sonde.viewer import export_html

SOURCE = '"""Shop."""\n\n\ndef total(prices):\n    return sum(prices)\n\n\nclass Cart:\n    def add(self, item):\n        pass\n'

REF = re.compile(r"\[tool:nav_info:[^\]]+\]")


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
    """000, task 3: "A code block containing `info = nav_info()`, `FINAL(info)` returns a successful session answer." """
    answer, events, model = lifted(shop, "info = nav_info()\nFINAL(info)")

    assert answer.value["language"] == "python"
    assert answer.value["total_lines"] == len(SOURCE.splitlines())
    assert [event.name for event in events if isinstance(event, HostReturned)] == ["nav_info"]
    assert (answer.status, answer.gaps, len(model.requests)) == (RunStatus.SUCCEEDED, (), 1)
    (cited,) = answer.citations
    assert isinstance(cited, CallCitation)
    assert (cited.tool, cited.place, cited.snippet) == ("nav_info", "nav_info()", canonical_json(answer.value))


@pytest.mark.parametrize(
    ("code", "places"),
    [
        ('names = nav_ls("Cart")\nFINAL(names)', ["nav_ls(scope='Cart')"]),
        ("skeleton = nav_outline()\nFINAL({'answer': skeleton})", ["nav_outline()"]),
        ('source = nav_read("total")\nFINAL(source)', ["shop.py:4-5"]),
        ('rows = nav_search("def ")\nFINAL(rows)', ["shop.py:4-4", "shop.py:9-9"]),
    ],
)
def test_an_answer_that_is_exactly_a_tools_result_is_proved_by_it(shop: Path, code: str, places: list[str]) -> None:
    """Issue 20: "an answer that is exactly a tool's result is proved by it" """
    answer, _, _ = lifted(shop, code)

    assert answer.status is RunStatus.SUCCEEDED
    assert [cited.place for cited in answer.citations] == places


def test_an_answer_that_is_almost_a_tools_result_is_not_proved_by_it(shop: Path) -> None:
    answer, _, _ = lifted(shop, "info = nav_info()\ninfo['total_lines'] = 7\nFINAL(info)", *["FINAL(info)"] * 2)

    assert (answer.status, answer.citations) == (RunStatus.PARTIAL, ())


def test_what_a_tool_returned_is_cited_by_its_call_in_words_of_the_model(shop: Path) -> None:
    """Issue 20: "what a tool returned can be cited by its call" """

    def reply(request: ModelRequest) -> str:
        if request.messages[-1].content.startswith("Somebody answered"):
            return "yes"
        if len(request.messages) == 2:
            return "info = nav_info()\nFINAL('It is Python.')"
        return f"FINAL('It is Python. {REF.findall(request.messages[-1].content)[-1]}')"

    model = ScriptedModel(reply)
    answer = run_in_memory(model, "What is it?", shop, profile="assign-only", code=True)

    assert "what a tool returned without lines is cited by its call: [tool:nav_info:" in told(model, 1)
    assert answer.record.runtime_ref.usage.iterations == 2
    assert answer.record.runtime_ref.usage.llm_subcalls == 1
    assert answer.status is RunStatus.SUCCEEDED
    assert [cited.place for cited in answer.citations] == ["nav_info()"]


def test_a_run_that_a_call_proves_replays_shows_it_and_exports_it(shop: Path, tmp_path: Path) -> None:
    settings = Settings(runs_dir=tmp_path / "runs")
    model = ScriptedModel(["info = nav_info()\nFINAL(info)"])
    answer = sonde.ask("What is it?", shop, model=model, code=True, profile="assign-only", settings=settings)
    assert answer.run_dir is not None
    (cited,) = answer.citations

    assert sonde.replay(answer.run_dir, settings=settings).equal
    assert "- nav_info() {" in (answer.run_dir / "summary.md").read_text()
    assert [each["ref"] for each in answer.record.citations] == [cited.ref]
    page = export_html(RunDir(answer.run_dir), tmp_path / "page.html").read_text()
    assert cited.ref in page


@pytest.mark.parametrize("given", [SOURCE, {"shop.py": SOURCE}], ids=["text", "dict"])
def test_source_code_in_memory_has_the_nav_tools_too(given: Any) -> None:
    model = ScriptedModel(['names = nav_ls("Cart")\nFINAL(names)'])

    answer = run_in_memory(model, "What is it?", given, profile="assign-only", code=True)

    assert (answer.status, answer.value) == (RunStatus.SUCCEEDED, ["def add(self, item)"])


def test_data_that_is_no_source_code_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="a dict of texts by file name"):
        run_in_memory(ScriptedModel([]), "What is it?", [1, 2], code=True)


@pytest.mark.requirement(25)
@pytest.mark.parametrize(
    ("call", "said"),
    [
        ('nav_read("Nope")', "Call nav_ls() first to list what is there, or use one of these symbols: total, Cart"),
        ('nav_ls("Nope")', "Call nav_ls() first to list what is there, or use one of these symbols: total, Cart"),
        ('nav_search("(")', "the pattern '(' cannot be used"),
    ],
)
@pytest.mark.parametrize("profile", ["assign-only", "general"])
def test_a_nav_tool_that_finds_nothing_fails_with_line_tool_arguments_and_hint(
    shop: Path, call: str, said: str, profile: str
) -> None:
    """000: "Tool execution exceptions are captured and returned as a failure with: line number, tool name, args preview, actionable
    hint (e.g., "call nav_ls() first to list symbols")." Issue 20: "not as values that begin with "Error:"."
    """
    _, events, model = lifted(shop, f"y = 1\nx = {call}\nprint('went on')", *["FINAL('no')"] * 3, profile=profile)

    ran = next(event for event in events if isinstance(event, CodeRan))
    assert not ran.ok
    assert ran.stdout == ""
    shown = told(model, 1)
    assert "line 2" in shown
    assert call.replace('"', "'") in shown.replace('"', "'")
    assert said in shown


def odd() -> object:
    """Nothing that can be written down."""
    return object()


@pytest.mark.parametrize("profile", ["assign-only", "general"])
def test_a_tool_that_returns_what_is_not_data_is_told_to_the_model(shop: Path, profile: str) -> None:
    """Issue 20: "A tool that returns what is not data is told to the model." """
    answer, events, model = lifted(shop, "x = odd()", "x = nav_info()\nFINAL(x)", tools=[odd], profile=profile)

    assert "tool odd returned what is not data: its result (object)" in told(model, 1)
    assert "A tool returns None, text, numbers, lists or dicts of them." in told(model, 1)
    assert ("odd", False) in [(event.name, event.ok) for event in events if isinstance(event, HostReturned)]
    assert answer.status is RunStatus.SUCCEEDED


def numbers() -> list[int]:
    """Many small numbers."""
    return [7] * 900_000


@pytest.mark.long
@pytest.mark.requirement(22)
@pytest.mark.parametrize("profile", ["assign-only", "general"])
def test_a_result_that_is_too_large_is_warned_about_once(shop: Path, profile: str) -> None:
    """Issue 20: "One size warning per call." """
    _, _, model = lifted(shop, "x = numbers()", *["FINAL('no')"] * 3, tools=[numbers], profile=profile)

    assert told(model, 1).count("the result was") == 1
    assert "the first 499,999 of 900,000 items" in told(model, 1)


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


def price(fruit: str) -> int:
    """What a fruit costs.

    Example: print(price("apple") + 1)
    """
    return len(fruit)


EXAMPLE = re.compile(r"^ *(?:Example: (.+)|    (\w+ = \w+\(.*))$", re.MULTILINE)


@pytest.mark.requirement(27)
def test_every_example_that_the_prompt_shows_passes_the_gate(shop: Path) -> None:
    """Issue 20: "The assign-only prompt teaches only forms that its gate accepts." """
    _, _, first = lifted(shop, "FINAL(1)", "FINAL(1)", tools=[price])
    prompt = first.requests[0].messages[0].content
    shown = [one or two for one, two in EXAMPLE.findall(prompt)]
    assert len(shown) >= 18
    assert "result = price('apple')" in shown
    assert "result = add_citation('src/app.py', 10, 12)" in shown
    assert "call them like any Python function" not in prompt
    assert "cite_tool" not in prompt

    _, events, _ = lifted(shop, *shown, "FINAL(1)", "FINAL(1)", "FINAL(1)", tools=[price])

    ran = [event for event in events if isinstance(event, CodeRan)]
    assert [event.fault for event in ran if (event.fault or {}).get("kind") in ("gate", "syntax")] == []
    assert sum(event.count for event in events if isinstance(event, ToolIntercepted)) == len(shown)


def test_what_a_model_is_shown_after_a_mistake_passes_the_gate_too(shop: Path) -> None:
    _, events, model = lifted(
        shop,
        'x = read_file("none.py")',  # a failed call shows the tool's example
        "Let me think.",  # a reply without code shows a block
        'result = read_file("README.md", start_line=1, end_line=40, numbered=True)',
        "seen = list_files()\nprint(seen)",
        *["FINAL(1)"] * 3,
    )

    assert "Example: result = read_file(" in told(model, 1)
    assert "```python\nseen = list_files()\nprint(seen)\n```" in told(model, 2)
    assert not [event for event in events if isinstance(event, CodeRan) and (event.fault or {}).get("kind") == "gate"]


@pytest.mark.requirement(23)
@pytest.mark.requirement(30)
def test_calls_run_in_source_order_and_each_session_counts_its_own(shop: Path) -> None:
    code = "b = nav_ls()\na = nav_info()\nprint('__rlm_icpt_' in str(dir()))"
    _, events, _ = lifted(shop, code, code, "FINAL('x [shop.py:1]')")
    _, again, _ = lifted(shop, code, code, "FINAL('x [shop.py:1]')")

    order = [(e.turn, e.name) for e in events if isinstance(e, HostReturned)]
    assert order == [(1, "nav_ls"), (1, "nav_info"), (2, "nav_ls"), (2, "nav_info")]
    assert order == [(e.turn, e.name) for e in again if isinstance(e, HostReturned)]
