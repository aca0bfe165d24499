"""Guided sessions: weak models are held by schemas, have to end when they repeat themselves, and cannot make an answer up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.events import Event, HostReturned, RunStarted
from sonde.core.status import RunStatus
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed
from sonde.testing import ScriptedModel, run_in_memory

TEXTS = {
    "config.yaml": "server:\n  port: 8443\n  workers: 6\n",
    "team.md": "Maria Okafor leads the payments team.\nThe backup runs every night at 02:30.\n",
    "app.log": "INFO start\nFATAL one\nINFO go\nFATAL two\nFATAL three\n",
    "orders.py": "from tax import compute_vat\n\ndef total(a):\n    return compute_vat(a)\n",
    "tax.py": "RATE = 0.23\n\ndef compute_vat(a):\n    return a * RATE\n",
}
PORT = "Which port does the server listen on?"


def final(answer: str) -> str:
    return json.dumps({"type": "finalize", "output": {"answer": answer}})


def grep(pattern: str) -> str:
    return json.dumps({"type": "tool_call", "tool_name": "grep", "args": {"pattern": pattern}})


def guided(question: str, *replies: str | Exception, **options: Any) -> tuple[Any, list[Event], ScriptedModel]:
    events: list[Event] = []
    model = ScriptedModel(list(replies))
    options.setdefault("mode", "guided")
    answer = run_in_memory(model, question, FilesContext((), texts=TEXTS), on_event=events.append, **options)
    return answer, events, model


def calls(events: list[Event]) -> list[tuple[str, str]]:
    return [(e.name, str(e.args.get("pattern") or e.args.get("query"))) for e in events if isinstance(e, HostReturned)]


def types(schema: Any) -> set[str]:
    """The types of action that a schema lets through."""
    return {str(each["properties"]["type"]["const"]) for each in schema.get("anyOf", [schema])}


@pytest.mark.requirement(128)
def test_the_first_look_needs_no_model_and_the_answer_is_cited_by_the_runtime() -> None:
    answer, events, model = guided(PORT, final("The server listens on port 8443."))

    assert answer.status is RunStatus.SUCCEEDED
    assert [(c.path, c.start_line) for c in answer.citations] == [("config.yaml", 2)]
    assert calls(events) == [("search", PORT)]
    assert "config.yaml:2: port: 8443" in model.requests[0].messages[-1].content
    assert types(model.requests[0].schema) == {"tool_call", "finalize"}


@pytest.mark.requirement(4)
@pytest.mark.parametrize("again", ["server", " SERVER "])
def test_an_action_that_was_done_already_is_not_done_again_and_leaves_only_the_end(again: str) -> None:
    answer, events, model = guided(PORT, grep("server"), grep(again.strip()), final("port: 8443"))

    assert answer.status is RunStatus.SUCCEEDED
    assert calls(events)[1:] == [("grep", "server")]
    assert [types(request.schema) for request in model.requests][-1] == {"finalize"}
    assert "tool_call" in types(model.requests[1].schema)


def test_a_model_without_a_grammar_that_goes_on_repeating_ends_partial() -> None:
    answer, events, _ = guided(PORT, *[grep("server")] * 6)

    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.MODEL_OUTPUT_INVALID
    assert answer.annotator_kind == "CODE"
    assert len(calls(events)) == 2


@pytest.mark.requirement(96)
def test_the_last_turn_lets_only_the_end_through() -> None:
    answer, _, model = guided(PORT, final("port: 8443"), budget=Budget(max_iterations=2))

    assert answer.status is RunStatus.SUCCEEDED
    assert types(model.requests[0].schema) == {"finalize"}


def test_before_anything_was_seen_there_is_nothing_to_answer_with() -> None:
    answer, _, model = guided(
        "Who won the football match?", grep("football"), grep("football"), final("The Lions won.")
    )

    assert types(model.requests[0].schema) == {"tool_call"}
    assert answer.status is RunStatus.PARTIAL
    assert "Lions" not in answer.text
    assert any("found nothing" in gap for gap in answer.gaps)


def test_an_invented_answer_comes_back_once_and_may_then_only_be_copied() -> None:
    answer, _, model = guided(PORT, final("It has port 9999."), final("port: 8443"))

    again = model.requests[1].schema
    assert again is not None
    assert types(again) == {"finalize"}
    offered = again["properties"]["output"]["properties"]["answer"]["enum"]
    assert "port: 8443" in offered
    assert "server:" not in offered
    assert "does not occur" in model.requests[1].messages[-1].content
    assert answer.status is RunStatus.SUCCEEDED
    assert answer.text == "port: 8443"


def test_an_answer_that_cannot_be_made_to_hold_is_not_given() -> None:
    answer, _, model = guided(PORT, final("Port 9999."), final("Port 7777."))

    assert answer.status is RunStatus.PARTIAL
    assert answer.annotator_kind == "CODE"
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.EVIDENCE_VALIDATION_FAILED
    assert "9999" not in answer.text and "7777" not in answer.text
    assert answer.citations and all(citation.fallback for citation in answer.citations)
    assert any("7777" in gap and "does not occur" in gap for gap in answer.gaps)
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    ("question", "said", "given"),
    [
        ("When does the backup run?", "It RUNS every  night, at 02:30!", "It RUNS every  night, at 02:30!"),
        ("When does the backup run?", "It runs at 2:30.", None),
        ("When does the backup run?", "It runs at 02:30. Call Bob for more.", "It runs at 02:30."),
        ("Who leads the payments team?", "The payments team.", None),
        ("Who leads the payments team?", "Maria Okafor is the CEO.", None),
        ("Who leads the payments team?", "Maria Okafor", "Maria Okafor"),
        ("Which file defines the function compute_vat?", "It is in tax.py.", "It is in tax.py."),
        ("Which file defines the function compute_vat?", "It is in compute_vat.py.", None),
        ("What is RATE?", "RATE in tax.py is 1.", None),
        ("Which line defines RATE?", "It is line 1 of tax.py.", "It is line 1 of tax.py."),
        ("What is RATE?", "RATE is set to 0.23.", "RATE is set to 0.23."),
        ("What is RATE?", "RATE is 0.2", None),
        ("How many lines contain FATAL?", "There are 3 lines.", "There are 3 lines."),
        ("How many lines contain FATAL?", "2", None),
    ],
)
def test_only_what_occurs_in_the_evidence_is_an_answer(question: str, said: str, given: str | None) -> None:
    answer, _, _ = guided(question, final(said), final(said))

    assert (answer.text if answer.status is RunStatus.SUCCEEDED else None) == given


def test_a_count_is_answered_by_counting_and_cites_examples() -> None:
    answer, events, _ = guided("How many lines contain FATAL?", final("3 lines"))

    assert calls(events) == [("grep", "FATAL")]
    assert [(c.path, c.start_line) for c in answer.citations] == [("app.log", 2), ("app.log", 4), ("app.log", 5)]


def test_a_name_is_looked_up_where_it_is_defined() -> None:
    answer, _, model = guided("Which file defines the function compute_vat?", final("tax.py"))

    assert "tax.py:3: def compute_vat(a):" in model.requests[0].messages[-1].content
    assert "orders.py" not in model.requests[0].messages[-1].content
    assert [(c.path, c.start_line) for c in answer.citations] == [("tax.py", 3)]


class Weak(ScriptedModel):
    guided = True


def test_a_weak_model_is_guided_unless_something_else_is_asked_for() -> None:
    def started(model: ScriptedModel, **options: Any) -> str:
        events: list[Event] = []
        run_in_memory(model, PORT, FilesContext((), texts=TEXTS), on_event=events.append, **options)
        return next(event.mode for event in events if isinstance(event, RunStarted))

    assert started(Weak([final("port: 8443")])) == "guided"
    assert started(Weak(["FINAL('8443')"]), mode="code") == "code"
    assert started(Weak([final("8443")]), settings=Settings(mode="actions")) == "actions"
    assert started(ScriptedModel(["FINAL('8443')"])) == "code"


def test_a_weak_model_that_is_not_guided_may_not_talk_for_ever() -> None:
    weak, other = Weak(["FINAL('8443')"] * 3), ScriptedModel(["FINAL('8443')"] * 3)
    for model in (weak, other):
        run_in_memory(model, PORT, FilesContext((), texts=TEXTS), mode="code")

    assert weak.requests[0].max_output_tokens == 400
    assert other.requests[0].max_output_tokens == 4096


def test_only_questions_can_be_guided(tmp_path: Path) -> None:
    span = {"trace_id": "t1", "span_id": "s1", "name": "run", "start_time": "2026-01-01T00:00:00Z"}
    (tmp_path / "traces.jsonl").write_text(json.dumps(span) + "\n")
    runs = tmp_path / "runs"
    with pytest.raises(ConfigError):
        sonde.rca("t1", tmp_path / "traces.jsonl", model=Weak([]), mode="guided", runs_dir=runs, settings=Settings())

    assert not runs.exists()


def test_prompts_stay_small_whatever_the_tools_return() -> None:
    context = FilesContext((), texts={f"{n}.txt": ("server port " + "x" * 3000 + "\n") * 50 for n in range(20)})
    model = ScriptedModel([grep("server"), grep("port"), grep("listen"), grep("port"), final("no"), final("no")])
    run_in_memory(model, PORT + " please" * 2000, context, mode="guided")

    assert max(sum(len(m.content) for m in request.messages) for request in model.requests) < 16_000
    assert max(len(json.dumps(dict(request.schema or {}))) for request in model.requests) < 60_000


def test_a_conversation_that_is_too_long_for_the_window_is_folded() -> None:
    full = ModelCallFailed("400: context size", too_long=True)
    answer, _, model = guided(PORT, grep("server"), grep("port"), full, final("port: 8443"))

    assert answer.status is RunStatus.SUCCEEDED
    assert len(model.requests[-1].messages) < len(model.requests[-2].messages)


def test_a_schema_of_the_users_is_the_form_of_the_end_and_each_value_must_occur() -> None:
    schema = {"type": "object", "properties": {"port": {"type": "integer"}}, "required": ["port"]}

    def end(port: int) -> str:
        return json.dumps({"type": "finalize", "output": {"port": port}})

    answer, _, model = guided(PORT, end(9999), end(8443), schema=schema)

    assert model.requests[0].schema is not None
    assert answer.status is RunStatus.SUCCEEDED
    assert answer.value == {"port": 8443}
    assert [c.path for c in answer.citations] == ["config.yaml"]


def test_a_guided_run_replays(tmp_path: Path) -> None:
    (tmp_path / "team.md").write_text(TEXTS["team.md"])
    model = ScriptedModel([grep("team"), grep("team"), final("Bob"), final("Maria Okafor")])
    settings = Settings(runs_dir=tmp_path / "runs")
    answer = sonde.ask("Who leads the team?", tmp_path / "team.md", model=model, mode="guided", settings=settings)
    assert answer.run_dir is not None

    assert answer.text == "Maria Okafor"
    assert sonde.replay(answer.run_dir, settings=settings).equal
