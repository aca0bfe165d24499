"""Facts: what code finds in the steps of a trace, each with the steps and spans to cite."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sonde.contexts.traces.facts import facts_of, listed
from sonde.contexts.traces.span import Micros, Span, build_span
from sonde.contexts.traces.transcript import transcript_of

TOOLS = """You can use these tools:
- web_search: Searches the web.
    Takes inputs: {'query': {'type': 'string'}}
- page_down: Scrolls.
    Takes inputs: {}
- final_answer: Answers.
    Takes inputs: {'answer': {'type': 'any'}}
Here is a list of the team members that you can call:
- search_agent: Searches the internet.
"""


def span(number: int, kind: str, parent: int | None = 1, **more: Any) -> Span:
    return build_span(
        trace_id="a" * 32,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=more.pop("name", f"s{number}"),
        kind=kind,
        start=Micros(number * 1000),
        end=Micros(number * 1000 + 500),
        **more,
    )


def agent() -> Span:
    return span(1, "AGENT", None, name="worker", attributes={"input.value": "the task"})


def says(number: int, text: str, asked: str = TOOLS, **more: Any) -> Span:
    table = {
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": asked,
        "llm.output_messages.0.message.content": text,
    }
    return span(number, "LLM", attributes={**table, **more.pop("attributes", {})}, **more)


def calls(number: int, tool: str, arguments: dict[str, Any], **more: Any) -> Span:
    prefix = "llm.output_messages.0.message.tool_calls.0.tool_call.function"
    return says(number, "", attributes={f"{prefix}.name": tool, f"{prefix}.arguments": json.dumps(arguments)}, **more)


def ran(number: int, tool: str, given: Any, came: str = "", **more: Any) -> Span:
    table = {"tool.name": tool, "input.value": json.dumps(given), "output.value": came}
    return span(number, "TOOL", attributes=table, **more)


def facts(*spans: Span) -> list[str]:
    given = [agent(), *spans]
    return [fact.line() for fact in facts_of(given, transcript_of(given))]


def test_equal_errors_are_one_fact_with_all_their_steps_and_spans() -> None:
    failed = {"status": "ERROR", "status_message": "TypeError: unexpected keyword 'x'"}

    found = facts(calls(2, "web_search", {"query": "a"}, **failed), calls(3, "web_search", {"query": "b"}, **failed))

    assert found[0] == (
        f"steps 0, 1 (spans {2:016x}, {3:016x}): the call or code that it wrote failed: TypeError: unexpected keyword 'x'; told to step 1"
    )


def test_a_call_with_arguments_that_the_tool_does_not_have_or_of_an_unknown_tool_is_named() -> None:
    found = facts(calls(2, "page_down", {"": {}}), calls(3, "fly", {"to": "Mars"}))

    assert f"step 0 (span {2:016x}): it calls page_down with ''; the tool takes no arguments" in found
    assert f"step 1 (span {3:016x}): it calls 'fly', which is not among the declared tools" in found


def test_searches_in_other_words_are_told_as_one_repeat_and_others_are_not() -> None:
    found = facts(
        ran(2, "web_search", {"query": "moons of Mars number"}),
        ran(3, "web_search", {"query": "number of moons Mars has"}),
        ran(4, "web_search", {"query": "who discovered Phobos"}),
    )

    assert [line.partition(": {")[0] for line in found] == [
        f"steps 0, 1 (spans {2:016x}, {3:016x}): web_search called 2 times in almost the same words"
    ]


def test_two_addresses_that_share_their_host_are_no_repeat_but_the_same_one_is() -> None:
    visits = [{"url": f"https://example.org/wiki/{page}"} for page in ("Mars", "Venus", "Mars")]

    found = facts(*(ran(at + 2, "visit", each) for at, each in enumerate(visits)))

    assert [line.partition(": {")[0] for line in found] == [
        f"steps 0, 2 (spans {2:016x}, {4:016x}): visit called 2 times with the same arguments"
    ]


def test_a_request_that_is_printed_and_not_sent_is_named() -> None:
    printed = 'I ask search_agent.\n```py\nrequest = "search_agent, please find it"\nprint(request)\n```'
    sent = 'I ask search_agent.\n```py\nprint(search_agent(task="find it"))\n```'

    found = [line for line in facts(says(2, printed), says(3, sent)) if "only prints" in line]

    assert [line.partition(" (")[0] for line in found] == ["step 0"]


def test_a_missing_end_tag_is_told_once_for_all_plans_that_lack_it() -> None:
    asked = "Write your plan, and after the last step write the '\\n<end_plan>' tag."

    found = facts(says(2, "1. look", asked), says(3, "1. look\n<end_plan>", asked), says(4, "2. look", asked))

    assert found == [
        f"steps 0, 2 (spans {2:016x}, {4:016x}): the prompt demands <end_plan> at the end, the output lacks it"
    ]


def test_an_answer_without_any_look_up_and_one_that_gives_up_are_named() -> None:
    found = facts(says(2, "I was unable to find the moons.\n```py\nfinal_answer(2)\n```"))

    assert [line.partition("): ")[2] for line in found] == [
        "the answer says: unable to find the moons",
        "its run answers here, and no tool or team member was called before",
    ]


def test_refusals_and_empty_look_ups_are_told_at_the_tool() -> None:
    found = facts(ran(2, "visit", {"page": "a"}, "Title: Error 403"), ran(3, "find", {"word": "b"}, "No results found"))

    assert [line.partition("): ")[2][:22] for line in found] == ["the tool reports 403: ", "the look-up came back "]


def test_the_same_output_of_a_tool_is_shown_once_and_told() -> None:
    page = "the same page " * 30
    given = [agent(), ran(2, "visit", {"page": "a"}, page), ran(3, "visit", {"page": "b"}, page)]

    transcript = transcript_of(given)

    assert transcript.text().count("the same page the same page") < 30
    assert any("had returned before" in fact.text for fact in facts_of(given, transcript))


def test_the_list_is_bounded_and_can_be_that_of_some_steps() -> None:
    given = [agent(), *(calls(at, f"tool{at}", {"x": 1}) for at in range(2, 60))]
    found = facts_of(given, transcript_of(given))

    assert len(listed(found, most=1000)) < 1300
    assert "more" in listed(found, most=1000)
    assert listed(found, [0]).count("\n") == 0
    assert listed([]) == "- nothing"


@pytest.mark.parametrize(
    "text",
    [
        "```py\n" * 20_000,
        "'" * 100_000,
        '"""' * 40_000,
        "<script" * 20_000,
        "- a: " * 30_000,
        "\\" * 100_000,
        "<html>" + " " * 100_000,
        "- a: \n" + "\n" * 100_000,
    ],
)
def test_texts_made_to_be_slow_are_read_and_quoted_in_short(text: str) -> None:
    found = facts(says(2, text, text + TOOLS), ran(3, "visit", {"page": text}, text), says(4, text[::-1], text))

    assert all(len(line) < 1000 for line in found)
