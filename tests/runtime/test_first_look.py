"""The first prompt of `ask`: short, with an outline and a sample, and small data whole."""

from __future__ import annotations

import re
from inspect import signature
from pathlib import Path

import pytest

from sonde import ask
from sonde.contexts.code import CodeContext
from sonde.contexts.files import FilesContext
from sonde.core.status import RunStatus
from sonde.engines.ask import BRIEF
from sonde.runtime.functions import Functions
from sonde.testing import ScriptedModel, run_in_memory

LOG = "".join(f"{n:05} payments order {n} took {n % 70} ms and was fine\n" for n in range(1, 4001))
PROSE = "".join(f"  Chapter {n} tells how the ship sailed on and what was eaten that day.\n" for n in range(1, 350))


def first(model: ScriptedModel) -> str:
    return "\n".join(message.content for message in model.requests[0].messages)


def test_the_first_prompt_is_short() -> None:
    model = ScriptedModel(["FINAL('order 1 was fine [app.log:1]')"])

    run_in_memory(model, "Which order was first?", FilesContext((), texts={"app.log": LOG}))

    assert len(first(model)) < 2300


def test_a_sample_of_large_data_is_shown_and_may_be_cited_in_the_first_reply() -> None:
    model = ScriptedModel(["FINAL('It begins with the first order [app.log:1]')"])

    answer = run_in_memory(model, "How does it begin?", FilesContext((), texts={"app.log": LOG}))

    assert "1: 00001 payments order 1 took 1 ms" in first(model)
    assert "00004" not in first(model)
    assert answer.status is RunStatus.SUCCEEDED
    assert len(model.requests) == 1


def test_a_line_that_the_sample_cuts_is_not_seen() -> None:
    long = "start " + "x" * 500 + " end"
    model = ScriptedModel(["FINAL('it ends well [a.txt:1]')", "no"])

    answer = run_in_memory(model, "?", FilesContext((), texts={"a.txt": f"{long}\n{LOG}"}), max_iterations=1)

    assert len(model.requests) == 2
    assert answer.status is RunStatus.PARTIAL


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("rows.csv", "day,amount\n1,2\n" + "3,4\n" * 9000, "1: day,amount"),
        ("rows.json", '[{"day": 1, "amount": 2}' + ', {"day": 3}' * 9000 + "]", "9,001 items, keys day, amount"),
        ("odd.json", "[" * 100_000, "odd.json begins"),
    ],
)
def test_columns_and_keys_are_in_the_sample(name: str, text: str, shown: str) -> None:
    model = ScriptedModel([f"FINAL('see [{name}:1]')", "yes"])

    run_in_memory(model, "?", FilesContext((), texts={name: text}))

    assert shown in first(model)


def test_small_data_is_shown_whole_and_a_cited_answer_in_the_first_reply_counts() -> None:
    model = ScriptedModel(["FINAL('Chapter 7 is where they eat [book.txt:7]')"])

    answer = run_in_memory(model, "?", FilesContext((), texts={"book.txt": PROSE}))

    assert "349:   Chapter 349 tells" in first(model)
    assert answer.status is RunStatus.SUCCEEDED
    assert len(model.requests) == 1


def test_what_was_shown_whole_leaves_the_prompt_after_the_first_reply_but_may_still_be_cited() -> None:
    model = ScriptedModel(["print(len(CONTEXT['book.txt']))", "FINAL('Chapter 300 has the ship [book.txt:300]')"])

    answer = run_in_memory(model, "?", FilesContext((), texts={"book.txt": PROSE}))

    later = "\n".join(message.content for message in model.requests[1].messages)
    assert "Chapter 300 tells" in first(model)
    assert "Chapter 300 tells" not in later
    assert "Chapter 1 tells" in later
    assert model.requests[1].messages[0] == model.requests[0].messages[0]
    assert answer.status is RunStatus.SUCCEEDED


def test_a_long_list_of_records_is_left_to_code() -> None:
    records = "".join(f"Who wrote book {n}?\n" for n in range(500))
    model = ScriptedModel(["FINAL('see [q.txt:1]')", "yes"])

    run_in_memory(model, "?", FilesContext((), texts={"q.txt": records}))

    assert "Who wrote book 1?" in first(model)
    assert "Who wrote book 200?" not in first(model)


def test_a_budget_of_few_tokens_is_not_spent_on_the_first_look() -> None:
    model = ScriptedModel(["FINAL('see [book.txt:1]')"])

    run_in_memory(model, "?", FilesContext((), texts={"book.txt": PROSE}), max_tokens_total=9000)

    assert len(first(model)) < 3000


@pytest.mark.requirement(28)
def test_rare_functions_are_named_and_help_explains_them() -> None:
    model = ScriptedModel(
        ["help('sub_rlm')\nhelp('delegate_batch')", "help(name='nothing')", "FINAL('one line [context.txt:1]')"]
    )

    answer = run_in_memory(model)

    assert re.search(r"More, .*sub_rlm", first(model))
    assert "sub_rlm(prompt: str" not in first(model)
    assert "delegate" not in first(model)
    assert "sub_rlm(prompt: str" in model.requests[1].messages[-1].content
    assert "delegate_batch(errands" in model.requests[1].messages[-1].content
    assert "there is no function 'nothing'" in model.requests[2].messages[-1].content
    assert answer.status is RunStatus.SUCCEEDED


def test_the_short_signatures_are_true() -> None:
    tools = {each.name: each.function for each in CodeContext(texts={"a.py": "x = 1\n"}).tools()}
    for name, line in BRIEF.items():
        function = tools.get(name) or getattr(Functions, name, None)
        listed = re.match(rf"{name}\((.*?)\) ->", line or "")
        if not line or function is None or listed is None:
            assert not line, line
            continue
        real = signature(function).parameters
        for part in filter(None, listed[1].split(", ")):
            argument, _, default = part.partition("=")
            assert not default or real[argument].default == eval(default), line


def test_the_convention_of_assign_only_keeps_the_whole_documentation() -> None:
    model = ScriptedModel(["x = grep('line')", "FINAL('one line [context.txt:1]')"])

    run_in_memory(model, profile="assign-only")

    assert "grep(pattern: str" in first(model)
    assert "one line of text" not in first(model)


@pytest.mark.parametrize(("depth", "told"), [(1, True), (0, False)])
def test_a_size_for_the_prompts_of_sub_calls_is_recommended_where_there_are_any(depth: int, told: bool) -> None:
    model = ScriptedModel(["print(1)", "FINAL('one line [context.txt:1]')"])

    run_in_memory(model, max_depth=depth)

    words = "\n".join(message.content for message in model.requests[1].messages)
    assert words.count("30,000 characters to a prompt") == told


@pytest.mark.parametrize(("tokens", "told"), [(1_000_000, False), (150_000, True)])
def test_the_tokens_that_are_left_are_told_when_they_are_scarce(tokens: int, told: bool) -> None:
    model = ScriptedModel(["FINAL('one line [context.txt:1]')"])

    run_in_memory(model, max_tokens_total=tokens)

    assert ("150,000 tokens" in first(model)) is told


@pytest.mark.parametrize(
    ("folders", "outlined"),
    [
        ([""], "50 files, 250 bytes (.md 50)."),
        (["a/"], "50 files, 250 bytes (.md 50): a/ 50."),
        (["", "a/"], "100 files, 500 bytes (.md 100): a/ 50, 50 in no folder."),
    ],
)
def test_many_files_are_outlined_by_folder(folders: list[str], outlined: str) -> None:
    texts = {f"{folder}{n}.md": "text\n" for folder in folders for n in range(50)}

    assert FilesContext((), texts=texts).outline() == outlined


def test_the_kinds_of_files_add_up_and_binary_files_are_named_as_not_read(tmp_path: Path) -> None:
    for n, suffix in enumerate([".py"] * 40 + [".md", ".md", ".c", ".c", ".h", ".h", ".toml", ".ini", ".so", ".png"]):
        (tmp_path / f"{n}{suffix}").write_text("text\n")
    model = ScriptedModel(["FINAL('x [0.py:1]')"])

    ask("?", tmp_path, model=model, in_memory=True)

    assert "Data: 48 files, 240 bytes (.py 40, .md 2, .c 2, .h 2, others 2). Not read: 2 (binary)." in first(model)
