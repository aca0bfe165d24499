"""Transcripts: steps in order, nothing said twice, bounded in size however long the trace."""

from __future__ import annotations

from typing import Any

import pytest

from sonde.contexts.traces.span import Micros, Span, build_span
from sonde.contexts.traces.transcript import shortened, transcript_of

TRACE = "a" * 32


def span(number: int, kind: str, parent: int | None = None, **more: Any) -> Span:
    return build_span(
        trace_id=TRACE,
        span_id=f"{number:016x}",
        parent_id=None if parent is None else f"{parent:016x}",
        name=more.pop("name", f"s{number}"),
        kind=kind,
        start=Micros(number * 1000),
        end=Micros(number * 1000 + 500),
        **more,
    )


def chat(number: int, asked: list[str], said: str, parent: int = 1, **more: Any) -> Span:
    attributes: dict[str, Any] = {"llm.output_messages.0.message.content": said}
    for at, text in enumerate(asked):
        attributes[f"llm.input_messages.{at}.message.role"] = "user"
        attributes[f"llm.input_messages.{at}.message.content"] = text
    return span(number, "LLM", parent, attributes=attributes, **more)


def test_a_step_shows_only_the_messages_that_no_earlier_step_had() -> None:
    found = transcript_of(
        [
            span(1, "AGENT", name="planner", attributes={"input.value": "the task"}),
            chat(2, ["rules"], "first"),
            chat(3, ["rules", "first", "news"], "second"),
        ]
    )

    assert [step.given for step in found.steps] == [("(user) rules",), ("(user) news",)]
    assert [step.agent for step in found.steps] == ["planner", "planner"]
    assert found.task == "the task"


def test_a_long_output_that_a_later_message_quotes_is_named_instead_of_repeated() -> None:
    plan = "do this and then that; " * 20
    found = transcript_of([chat(2, ["plan!"], plan), chat(3, [f"Your plan was:\n{plan}\nGo on."], "done")])

    assert "[here the output of step 0 is repeated]" in found.steps[1].given[0]
    assert found.text().count("do this and then that") == 20


def test_wrappers_are_no_steps_but_their_error_goes_to_the_model_call_inside() -> None:
    found = transcript_of(
        [
            span(1, "CHAIN", status="ERROR", status_message="SyntaxError: line 1", attributes={"input.value": "x"}),
            chat(2, ["go"], "final_answer(", parent=1),
            span(3, "TOOL", 1, attributes={"tool.name": "search", "input.value": "q", "output.value": "hit"}),
        ]
    )

    assert [step.kind for step in found.steps] == ["LLM", "TOOL"]
    assert found.steps[0].around == "SyntaxError: line 1"
    assert "it ended in an error" in found.steps[0].text(1000)
    assert (found.steps[1].given, found.steps[1].came) == (("q",), "hit")


def test_the_next_call_of_the_same_agent_is_marked_as_told_of_an_error() -> None:
    found = transcript_of(
        [
            span(1, "AGENT", name="coder", attributes={"input.value": "task"}),
            span(2, "CHAIN", 1, status="ERROR", status_message="NameError: x"),
            chat(3, ["go"], "print(x)", parent=2),
            chat(4, ["Error: NameError: x"], "x = 1", parent=1),
            chat(5, ["done?"], "yes", parent=1),
        ]
    )

    assert [step.reports for step in found.steps] == [None, 0, None]
    assert "reports the error of step 0" in found.steps[1].text(100)
    assert "is told the error of 0" in found.outline()


def test_a_failed_leaf_of_any_kind_is_a_step() -> None:
    found = transcript_of(
        [span(1, "CHAIN", attributes={}), span(2, "UNKNOWN", 1, status="ERROR", status_message="503")]
    )

    assert [(step.span_id, step.around) for step in found.steps] == [(f"{2:016x}", "503")]


@pytest.mark.long
def test_a_trace_a_hundred_times_longer_makes_a_text_of_the_same_order() -> None:
    texts = [f"{number} " + "word " * 900 for number in range(400)]
    found = transcript_of([chat(number + 2, [text], text[::-1]) for number, text in enumerate(texts)], most=100_000)

    assert len(found.steps) == 400
    assert len(found.text()) <= 174_000
    assert [span_id for part in found.parts() for span_id in part.span_ids] == [step.span_id for step in found.steps]


def test_parts_hold_every_step_once_and_keep_to_their_size() -> None:
    found = transcript_of([chat(number, [f"q{number} " * 100], f"a{number} " * 100) for number in range(2, 30)])

    parts = found.parts(4000)

    assert sum(len(part.span_ids) for part in parts) == 28
    assert all(len(part.text) < 4500 for part in parts)
    assert (parts[0].first, parts[-1].last) == (0, 27)


def test_a_cut_text_keeps_its_head_and_its_tail_and_says_so() -> None:
    cut = shortened("a" * 500 + "z" * 500, 100)

    assert cut.startswith("aaa")
    assert cut.endswith("zzz")
    assert "[... 900 characters cut ...]" in cut


def test_rules_and_tasks_that_a_later_prompt_repeats_are_named_instead_of_shown() -> None:
    rules = "\n".join(f"Rule {number}: always do the thing that is called number {number}." for number in range(12))
    found = transcript_of(
        [chat(2, [f"Plan by these.\n{rules}"], "a plan"), chat(3, [f"Act by these.\n{rules}\nGo!"], "done")]
    )

    second = found.steps[1].given[0]
    assert "Act by these." in second
    assert "Go!" in second
    assert "characters that were shown before: Rule 0: always" in second
    assert found.text().count("called number 7.") == 1


def test_a_quote_in_another_form_is_recognised_as_a_repeat() -> None:
    report = "I looked at nine pages about the moons of Mars\nand found neither a number nor a name in any of them " * 4
    found = transcript_of([chat(2, ["go"], report), chat(3, ["seen"], "x"), chat(4, [f"It said: {report!r}"], "fine")])

    assert found.steps[2].given[0].count("nine pages") == 1  # the head of what is left out
    assert "shown before: It said: 'I looked at nine" in found.steps[2].given[0]


def test_an_output_is_never_left_out_however_often_it_is_said() -> None:
    said = "The answer is that Mars has two moons, whatever the pages say about it. " * 5

    found = transcript_of([chat(2, ["go"], said), chat(3, ["again"], said)])

    assert found.text().count("whatever the pages say") == 10


def test_pages_are_shown_as_their_words() -> None:
    page = "<html><head><title>x</title></head><body><script>var a = 1;</script><p>Two moons.</p>" + "<i>a</i>" * 200
    call = span(2, "TOOL", 1, attributes={"tool.name": "visit", "input.value": "u", "output.value": page})

    (step,) = transcript_of([span(1, "AGENT"), call]).steps

    assert "Two moons." in step.came
    assert "var a" not in step.came
    assert "<i>" not in step.came
    assert "[markup left out]" in step.came


def test_what_a_model_says_is_cut_after_what_it_was_given() -> None:
    texts = [" ".join(f"w{number}x{at}" for at in range(900)) for number in range(60)]

    found = transcript_of([chat(number + 2, [text], text[::-1]) for number, text in enumerate(texts)])

    assert all(text[::-1] in found.text() for text in texts)
    assert not any(text in found.text() for text in texts)
