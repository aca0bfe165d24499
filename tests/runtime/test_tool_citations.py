"""What a user's own tool returned can be cited, and is proved by the run's own record."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.api.rerun import replay, resume
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.calls import CallCitation, CallRef, call_text
from sonde.core.canonical import sha256_text
from sonde.core.events import HostReturned
from sonde.core.evidence import EvidenceKind
from sonde.core.status import RunStatus
from sonde.models.base import ModelRequest, Secret
from sonde.runs.rundir import JOURNAL, RunDir
from sonde.testing import ScriptedModel, run_in_memory
from sonde.viewer import export_html
from sonde.viewer.server import Shelf

NOTICE = "Dear staff,\nthe office closes at 17:00.\nThe canteen closes at 14:00."
REF = re.compile(r"\[(tool:\w+:[0-9a-f]{8}-[0-9a-f]{8})\]")
INVENTED = "tool:price:00000000-00000000"


def price(fruit: str, count: int = 1) -> dict[str, Any]:
    """What so many of a fruit cost."""
    return {"fruit": fruit, "cents": 30 * count}


def notice(topic: str) -> str:
    """The notice about a topic."""
    return NOTICE if topic == "hours" else "nothing"


def code(text: str) -> str:
    return f"```python\n{text}\n```"


def refs_in(request: ModelRequest) -> list[str]:
    return REF.findall(request.messages[-1].content)


def citing(call: str, answer: str = "It is so. [{ref}]") -> Callable[[ModelRequest], str]:
    """A model that prints a call and then cites it by the ref that it was told."""

    def reply(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            return code(f"print({call})")
        return code(f"FINAL({answer.format(ref=refs_in(request)[-1])!r})")

    return reply


def asked(script: Any, **options: Any) -> Answer:
    options.setdefault("tools", [price, notice])
    return run_in_memory(ScriptedModel(script), "What do they cost?", "three apples\n", **options)


def recorded(script: Any, tmp_path: Path, **options: Any) -> Answer:
    options.setdefault("tools", [price, notice])
    model = ScriptedModel(script)
    path = tmp_path / "order.txt"
    path.write_text("three apples\n")
    return sonde.ask(
        "What?", path, model=model, runs_dir=tmp_path / "runs", settings=options.pop("settings", Settings()), **options
    )


def test_a_call_is_cited_with_its_tool_its_arguments_and_the_hash_of_what_the_model_saw() -> None:
    answer = asked(citing("price('apple', 3)"))

    assert answer.status is RunStatus.SUCCEEDED
    (cited,) = answer.citations
    assert isinstance(cited, CallCitation)
    assert (cited.kind, cited.tool, cited.arguments) == (EvidenceKind.TOOL_IO, "price", {"fruit": "apple", "count": 3})
    assert cited.excerpt_hash == sha256_text('{"cents":90,"fruit":"apple"}')
    assert cited.snippet == '{"cents":90,"fruit":"apple"}'
    assert cited.ref in answer.text
    assert [each["ref"] for each in answer.record.citations] == [cited.ref]


def test_lines_of_a_long_text_are_cited_alone() -> None:
    (cited,) = asked(citing("notice('hours')", "At 17:00. [{ref}:2]")).citations

    assert (cited.start_line, cited.end_line) == (2, 2)
    assert cited.excerpt_hash == sha256_text("the office closes at 17:00.")
    assert cited.ref.endswith(":2-2")


def test_lines_that_the_text_does_not_have_are_refused_with_those_that_it_has() -> None:
    answer = asked(citing("notice('hours')", "At 17:00. [{ref}:3-9]"), max_iterations=4)

    assert (answer.status, answer.citations) == (RunStatus.PARTIAL, ())
    assert "returned lines 1-3" in answer.gaps[0]


@pytest.mark.parametrize(
    "final",
    [
        f"FINAL('90 cents [{INVENTED}]')",
        "FINAL('90 cents [tool:price]')",
        "FINAL('90 cents [tool:price:1.1]')",
        f"FINAL({{'answer': '90 cents', 'citations': [{{'ref': '{INVENTED}'}}]}})",
        "FINAL({'answer': '90 cents', 'citations': [{'path': 'price', 'start_line': 1}]})",
        "FINAL('90 cents')",
    ],
)
def test_an_invented_call_is_refused_and_the_model_is_told_how_to_cite(final: str) -> None:
    model = ScriptedModel([code("print(price('apple', 3))"), *[code(final)] * 3])

    answer = run_in_memory(model, "What?", "three apples\n", tools=[price], max_iterations=4)

    assert (answer.status, answer.citations) == (RunStatus.PARTIAL, ())
    (ref,) = refs_in(model.requests[1])
    assert f"write [{ref}]" in model.requests[2].messages[-1].content


def test_a_call_of_another_run_is_refused() -> None:
    (theirs,) = asked(citing("price('apple', 3)")).citations

    answer = asked([code("print(price('pear'))"), *[code(f"FINAL('90 [{theirs.ref}]')")] * 3], max_iterations=4)

    assert (answer.status, answer.citations) == (RunStatus.PARTIAL, ())


def test_the_same_call_with_another_result_is_another_call() -> None:
    seen = iter([1, 2])

    def count() -> int:
        """A number that changes."""
        return next(seen)

    def reply(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            return code("print(count(), count())")
        first, second = refs_in(request)
        return code(f"FINAL('1, then 2 [{first}] [{second}]')")

    assert [each.snippet for each in asked(reply, tools=[count]).citations] == ["1", "2"]


def test_the_proof_is_read_from_the_journal_so_a_changed_record_proves_nothing(tmp_path: Path) -> None:
    def reply(request: ModelRequest) -> str:
        if len(request.messages) > 2:
            (journal,) = tmp_path.glob(f"runs/*/{JOURNAL}")
            journal.write_bytes(journal.read_bytes().replace(b'"cents":90', b'"cents":10'))
        return citing("price('apple', 3)")(request)

    answer = recorded(reply, tmp_path, max_iterations=4)

    assert (answer.status, answer.citations) == (RunStatus.PARTIAL, ())
    assert answer.gaps[0].endswith("cannot be read again")


def test_code_may_cite_a_call_by_its_arguments_and_what_it_says_about_an_unseen_result_is_confirmed() -> None:
    called = "x = price('apple', 3)\ncite_tool('price', {'fruit': 'apple', 'count': 3})\nFINAL('under a euro')"
    model = ScriptedModel([code(called), "yes"])

    answer = run_in_memory(model, "What?", "three apples\n", tools=[price])

    assert '| {"cents":90' in model.requests[1].messages[-1].content
    assert answer.status is RunStatus.SUCCEEDED
    assert [each.snippet for each in answer.citations] == ['{"cents":90,"fruit":"apple"}']


@pytest.mark.parametrize("call", ["cite_tool('price', {'fruit': 'pear'})", "cite_tool('grep', {'pattern': 'a'})"])
def test_a_call_that_was_not_made_cannot_be_cited_by_its_arguments(call: str) -> None:
    model = ScriptedModel([code(f"print(price('apple'))\n{call}"), *[code("FINAL('30')")] * 3])

    run_in_memory(model, "What?", "three apples\n", tools=[price], max_iterations=4)

    assert "ToolError" in model.requests[1].messages[-1].content


def test_many_calls_in_one_turn_are_not_all_listed() -> None:
    model = ScriptedModel([code("x = [price('apple', n) for n in range(40)]"), *[code("FINAL('30')")] * 3])

    run_in_memory(model, "What?", "three apples\n", tools=[price], max_iterations=4)

    told = model.requests[1].messages[-1].content
    assert len(REF.findall(told)) == 12
    assert "cite_tool('price'" in told


def test_without_tools_of_the_user_nothing_is_said_about_them_and_brackets_are_prose() -> None:
    model = ScriptedModel([code("print(read_file('context.txt'))"), code("FINAL('[tool:box] [context.txt:1]')")])

    answer = run_in_memory(model, "What?", "three apples\n")

    assert answer.status is RunStatus.SUCCEEDED
    assert "cite_tool" not in model.requests[0].messages[0].content


def test_a_child_cites_and_its_parent_passes_that_on() -> None:
    def reply(request: ModelRequest) -> str:
        child = request.messages[1].content.startswith("Task: look it up")
        first = len(request.messages) == 2
        if child:
            then = "cite_tool('price', {'fruit': 'apple', 'count': 3})\nFINAL('90')"
            return code("print(price('apple', 3))" if first else then)
        return code("print(sub_rlm('look it up'))" if first else "FINAL('90 cents')")

    answer = asked(reply)

    assert answer.status is RunStatus.SUCCEEDED
    assert [type(each) for each in answer.citations] == [CallCitation]


def test_typed_actions_are_told_the_ref_and_may_list_it() -> None:
    def reply(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            return json.dumps({"type": "tool_call", "tool_name": "price", "args": {"fruit": "apple", "count": 3}})
        cited = [{"ref": refs_in(request)[-1]}]
        return json.dumps({"type": "finalize", "output": {"answer": "90 cents", "citations": cited}})

    assert [each.tool for each in calls(asked(reply, mode="actions"))] == ["price"]


def test_a_guided_answer_is_cited_by_the_line_of_the_tool_that_bears_it() -> None:
    call = json.dumps({"type": "tool_call", "tool_name": "notice", "args": {"topic": "hours"}})
    done = json.dumps({"type": "finalize", "output": {"answer": "The office closes at 17:00."}})
    model = ScriptedModel([call, done])

    answer = run_in_memory(model, "When does the office close?", "apples\n", tools=[notice], mode="guided")

    assert [(each.tool, each.start_line) for each in calls(answer)] == [("notice", 2)]


def test_a_key_in_a_result_is_neither_seen_nor_recorded_and_the_rest_can_be_cited(tmp_path: Path) -> None:
    def login() -> str:
        """How one logs in."""
        return "use key-0123456789 at the door"

    keyed = Settings(api_key=Secret("key-0123456789"))
    answer = recorded(citing("login()"), tmp_path, tools=[login], settings=keyed)

    assert [each.snippet for each in answer.citations] == ["use [key removed] at the door"]
    assert answer.run_dir is not None and "key-0123456789" not in (answer.run_dir / JOURNAL).read_text()


def calls(answer: Answer) -> list[CallCitation]:
    return [each for each in answer.citations if isinstance(each, CallCitation)]


def test_a_replay_proves_the_citation_again_without_calling_the_tool(tmp_path: Path) -> None:
    run = recorded(citing("price('apple', 3)"), tmp_path).run_dir
    assert run is not None

    def never(fruit: str, count: int = 1) -> dict[str, Any]:
        """What so many of a fruit cost."""
        raise AssertionError("the tool was called again")

    never.__name__ = "price"
    assert replay(run, tools=[never, notice]).equal


class Killed(BaseException):
    """The end of a process, as far as a run can tell."""


@dataclass
class Dying:
    """Dies the first time that it is asked to finish."""

    deaths: list[int] = field(default_factory=lambda: [1])

    def __call__(self, request: ModelRequest) -> str:
        if len(request.messages) > 2 and self.deaths:
            self.deaths.pop()
            raise Killed
        return citing("price('apple', 3)")(request)


def test_a_resumed_run_cites_what_was_returned_before_it_died(tmp_path: Path) -> None:
    script, called = Dying(), list[str]()

    def counted(fruit: str, count: int = 1) -> dict[str, Any]:
        """What so many of a fruit cost."""
        called.append(fruit)
        return price(fruit, count)

    counted.__name__ = "price"
    with pytest.raises(Killed):
        recorded(script, tmp_path, tools=[counted])
    (run,) = (tmp_path / "runs").iterdir()

    finished = resume(run, model=ScriptedModel(script), tools=[counted], settings=Settings())

    assert finished.status is RunStatus.SUCCEEDED
    assert called == ["apple"]


def test_the_page_shows_tool_arguments_and_text_read_again_from_the_record(tmp_path: Path) -> None:
    run = recorded(citing("notice('hours')", "At 17:00. [{ref}:2-3]"), tmp_path).run_dir
    assert run is not None

    (shown,) = Shelf(run.parent).excerpts(run.name)
    page = export_html(RunDir(run), tmp_path / "page").read_text()

    assert (shown["state"], shown["call"]) == ("verified", "notice(topic='hours') lines 2-3")
    assert shown["text"] == "the office closes at 17:00.\nThe canteen closes at 14:00."
    assert "notice(topic='hours') lines 2-3" in page
    assert "notice(topic='hours') lines 2-3 the office" in (run / "summary.md").read_text()


def test_a_ref_names_the_recorded_call(tmp_path: Path) -> None:
    answer = recorded(citing("price('apple', 3)"), tmp_path)
    assert answer.run_dir is not None
    (cited,) = answer.citations
    pointer = CallRef.read(cited.ref)
    assert pointer is not None

    events = [each for each in RunDir(answer.run_dir).events() if isinstance(each, HostReturned)]

    assert [each.name for each in events if pointer.base in [e["ref"] for e in each.excerpts]] == ["price"]


def test_one_line_of_a_result_is_no_range() -> None:
    assert call_text("notice", {"topic": "hours"}, 2, 2) == "notice(topic='hours') line 2"
    assert call_text("notice", {"topic": "hours"}, 2, 3) == "notice(topic='hours') lines 2-3"


def orders() -> list[dict[str, Any]]:
    """Every order of the day."""
    return [{"order": 5000 + n, "customer": f"ann{n % 7}@example.com", "paid": n % 3 > 0} for n in range(300)]


def counting(look: str, answer: str, *again: str) -> Callable[[ModelRequest], str]:
    """A model that loads the orders, prints `look`, and answers with the ref of the call."""
    replies = iter(again)

    def reply(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            return code(f"rows = orders()\nfailed = [row for row in rows if not row['paid']]\nprint({look})")
        if len(request.messages) == 4:
            return code(f"FINAL({answer.replace('REF', refs_in(request)[-1])})")
        return code(next(replies))

    return reply


@pytest.mark.parametrize(
    ("look", "final"),
    [
        ("len(failed), len(rows)", "'100 of 300 orders failed, the first was 5000 [REF]'"),
        ("rows[0]", "f'{len(failed)} of {len(rows)} orders are unpaid [REF]'"),
    ],
)
def test_what_code_counted_in_a_result_is_proved_by_its_call(look: str, final: str) -> None:
    answer = asked(counting(look, final), tools=[orders])

    assert answer.status is RunStatus.SUCCEEDED
    assert [each.place for each in answer.citations] == ["orders()"]
    assert answer.record.runtime_ref.usage.llm_subcalls == 0


def test_a_number_that_code_has_not_computed_is_named_and_printing_it_suffices() -> None:
    told: list[str] = []
    counts = counting("rows[0]", "f'{len(failed)} of 300 orders are unpaid [REF]'")

    def reply(request: ModelRequest) -> str:
        told.append(request.messages[-1].content)
        if len(told) == 3:
            return code("print(len(rows))")
        return counts(request) if len(told) < 3 else code("FINAL(held_final)")

    answer = asked(reply, tools=[orders])

    assert "Code has not computed 300: print it, and that suffices" in told[2]
    assert answer.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("look", "final"),
    [
        ("'77 of 300'", "'77 orders failed [REF]'"),
        ("len(rows)", "'77 of 300 orders failed [REF]'"),
        ("len(rows)", "'6 of 300 orders failed [REF]'"),  # there is an ann6
        ("len(failed)", "'100 orders failed and none was refunded [REF]'"),
        ("len(failed)", "'most orders failed [REF]'"),
    ],
)
def test_what_the_model_wrote_itself_about_a_result_that_it_did_not_read_is_no_count(look: str, final: str) -> None:
    answer = asked(counting(look, final, "FINAL(held_final)"), tools=[orders])

    assert answer.status is RunStatus.PARTIAL
    assert not answer.citations
    assert "the model cited orders() without having read it" in answer.gaps
