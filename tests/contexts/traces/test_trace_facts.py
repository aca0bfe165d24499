"""Facts: what code finds in the steps of a trace, each with the steps and spans to cite."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import pytest

from sonde.contexts.traces.facts import Fact, facts_of, listed
from sonde.contexts.traces.span import Micros, Span, build_span
from sonde.contexts.traces.transcript import transcript_of
from sonde.core.deadline import Deadline
from sonde.testing import FrozenClock

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
        f"steps 0, 1 (spans {2:016x}, {3:016x}): the call or code that it wrote failed: TypeError: unexpected keyword 'x'; "
        f"told to step 1 (span {3:016x})"
    )


def test_a_call_with_arguments_that_the_tool_does_not_have_or_of_an_unknown_tool_is_named() -> None:
    found = facts(calls(2, "page_down", {"": {}}), calls(3, "fly", {"to": "Mars"}))

    assert f"step 0 (span {2:016x}): it calls page_down with ''; the tool takes no arguments" in found
    assert f"step 1 (span {3:016x}): it calls 'fly', which is not among the declared tools" in found


def test_a_refused_argument_is_told_once_and_apart_where_the_agent_had_just_been_told() -> None:
    failed = {"status": "ERROR", "status_message": "TypeError: unexpected keyword argument ''"}

    found = facts(
        calls(2, "page_down", {"": {}}, **failed),
        ran(3, "page_down", {"": {}}),
        calls(4, "page_down", {"": {}, "arguments": {}}, **failed),
        ran(5, "page_down", {"": {}, "arguments": {}}),
    )

    ending = f"the tool takes no arguments; the last of these calls ran in step 3 (span {5:016x})"
    again = "it was just told that such a call failed, and "
    assert found == [
        f"step 0 (span {2:016x}): it calls page_down with ''; {ending}",
        f"step 2 (span {4:016x}): {again}it calls page_down with '', 'arguments'; {ending}",
    ]


def test_whoever_reads_some_spans_gets_what_a_fact_says_of_them() -> None:
    fact = Fact(text="they end alike", steps=(1, 2), span_ids=("a", "b"))

    assert fact.within({"b", "c"}) == Fact(text="they end alike", steps=(2,), span_ids=("b",))
    assert fact.within({"c"}) is None
    assert Fact(text="two calls failed", steps=(), span_ids=()).within({"c"}) is not None


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
        "its run answers here; it called no tool or team member before, only code of its own or none",
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
        "```python\n" + '\\"' * 9_900,
        "```python\nprint(" + "\\'" * 9_900,
        "- a:\n" * 40_000,
        "- a:\n    Takes inputs: {" * 10_000,
        "write '" * 30_000,
    ],
)
def test_texts_made_to_be_slow_are_read_and_quoted_in_short(text: str) -> None:
    found = facts(says(2, text, text + TOOLS), ran(3, "visit", {"page": text}, text), says(4, text[::-1], text))

    assert all(len(line) < 1000 for line in found)


def in_seconds(*spans: Span) -> list[str]:
    """The facts, found in little processor time; quadratic code took more than ten times as much."""
    given = [agent(), *spans]
    transcript = transcript_of(given)
    began = time.process_time()
    found = [fact.line() for fact in facts_of(given, transcript)]
    assert time.process_time() - began < 5
    return found


def test_quotes_that_nothing_closes_are_read_once() -> None:
    code = "I ask search_agent.\n```python\nprint(request) " + '\\"' * 9_900

    found = in_seconds(*(says(at, code, TOOLS) for at in range(2, 22)))

    assert any("search_agent, but its code only prints" in line for line in found)


@pytest.mark.parametrize(
    "code",
    [
        "print('ask') or \"it's\" + search_agent(1)",
        "print(\"isn't\"); x = 'a\\'b'; search_agent (1)",
        'print(1)\n"""search_agent"""\n# don\'t\nsearch_agent(1)',
        "print('\\\ntask')\nsearch_agent(1)",
    ],
)
def test_a_call_between_strings_is_a_call(code: str) -> None:
    assert not any("only prints" in line for line in facts(says(2, f"```py\n{code}\n```")))
    assert any(
        "only prints" in line for line in facts(says(2, f"```py\n{code.replace('search_agent', 'search_agents')}\n```"))
    )


def test_a_list_of_very_many_tools_is_read_once() -> None:
    assert in_seconds(says(2, "done", TOOLS + "- a:\n" * 250_000)) == []


def test_long_calls_of_one_tool_are_compared_by_their_first_words() -> None:
    begin = " ".join(f"same{word}" for word in range(400))
    rest = [" ".join(f"w{at}x{word}" for word in range(1_000)) for at in range(3)]

    found = facts(*(ran(at, "find", {"t": t}) for at, t in enumerate((begin + rest[0], begin + rest[1], rest[2]), 2)))

    assert [line.partition(" (")[0] for line in found] == ["steps 0, 1"]


def test_a_trace_with_very_many_steps_is_looked_at_at_both_ends_and_a_fact_says_so() -> None:
    failed = {"status": "ERROR", "status_message": "TypeError: x"}
    wrong = {2: failed, 1_050: failed, 2_101: failed}

    found = facts(*(says(at, f"said {at}", "go on", **wrong.get(at, {})) for at in range(2, 2_102)))

    assert [line.partition(" (")[0] for line in found] == ["steps 0, 2099", "steps 1000, 1099"]
    assert found[-1].endswith("code looked at none of the 100 steps from here to the other")


def test_nothing_more_is_looked_at_when_the_time_of_the_run_is_up() -> None:
    given = [agent(), *(says(at, "```py\nprint('search_agent, a request')\n```") for at in range(2, 5))]
    transcript = transcript_of(given)

    with Deadline(FrozenClock(), 0).in_force():
        assert facts_of(given, transcript) == []
    with Deadline(FrozenClock(), 1).in_force():
        assert len(facts_of(given, transcript)) == 1


def test_arguments_of_millions_of_values_stay_text() -> None:
    bomb = '{"a": [' + "[]," * 400_000 + "0]}"
    table = {"tool.name": "look", "input.value": bomb}
    spans = [agent(), *(span(number, "TOOL", attributes=table) for number in range(2, 5))]
    transcript = transcript_of(spans)

    tracemalloc.start()
    try:
        facts_of(spans, transcript)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert most < 20 * len(bomb)  # decoded, one of them takes 80 MB
