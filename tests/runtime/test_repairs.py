"""What a final value goes through at the gates: one complaint about everything, two repairs per gate, and words for each reader."""

from __future__ import annotations

from pathlib import Path

import pytest

import sonde
from sonde.contexts.files import FilesContext
from sonde.core.status import RunStatus
from sonde.errors import ErrorCode
from sonde.testing import ScriptedModel, run_in_memory

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}, "answer": {"type": "string"}}, "required": ["n"]}
CITED = "{'n': 42, 'answer': 'beta [a.txt:2-2]'}"


def files() -> FilesContext:
    return FilesContext((), texts={"a.txt": "alpha\nbeta is 42\ngamma\n"})


def heard(model: ScriptedModel, reply: int) -> str:
    """The last message that the model read before its reply of this number, counted from 1."""
    return model.requests[reply - 1].messages[-1].content


def test_all_gates_complain_at_once() -> None:
    model = ScriptedModel(["print(read_file('a.txt'))", "FINAL({'n': 'x'})", f"FINAL({CITED})"])

    answer = run_in_memory(model, "?", files(), schema=SCHEMA)

    assert "does not fit the schema" in heard(model, 3)
    assert "no citation: write [path:start-end]" in heard(model, 3)
    assert (answer.status, answer.value["n"]) == (RunStatus.SUCCEEDED, 42)


def test_each_gate_has_two_repairs_of_its_own() -> None:
    model = ScriptedModel(
        [
            "print(read_file('a.txt'))",
            "FINAL({'n': 'x', 'answer': '[a.txt:2-2]'})",
            "FINAL({'n': 'y', 'answer': '[a.txt:2-2]'})",
            "FINAL({'n': 1})",
            "FINAL({'n': 2})",
            f"FINAL({CITED})",
        ]
    )

    answer = run_in_memory(model, "?", files(), schema=SCHEMA)

    assert len(model.requests) == 6
    assert (answer.status, answer.gaps) == (RunStatus.SUCCEEDED, ())


def test_a_gate_that_refuses_a_third_value_ends_the_run() -> None:
    model = ScriptedModel([f"FINAL({{'n': 'wrong {at}'}})" for at in range(9)])

    answer = run_in_memory(model, "?", files(), schema=SCHEMA)

    assert len(model.requests) == 3
    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None
    assert answer.record.error.code is ErrorCode.SCHEMA_VALIDATION_FAILED


@pytest.mark.parametrize("again", ["FINAL('beta is 42')", "FINAL(held_final)"])
def test_the_same_value_again_ends_the_run_if_it_still_does_not_hold(again: str) -> None:
    model = ScriptedModel(["FINAL('beta is 42')", again, "FINAL('never asked')"])

    answer = run_in_memory(model, "?", files())

    assert len(model.requests) == 2
    assert (answer.status, answer.text) == (RunStatus.PARTIAL, "beta is 42")


def test_people_do_not_read_what_was_said_to_the_model() -> None:
    for final in ("beta is 42", "beta is 42 [a.txt:9-9]", "beta is 42 [a.txt:2-2] and [b.txt:1-1]"):
        model = ScriptedModel([f"FINAL('{final}')", f"FINAL('{final} [c.txt:1-1]')", f"FINAL('{final} [d.txt:1-1]')"])

        answer = run_in_memory(model, "?", files())

        assert answer.status is RunStatus.PARTIAL
        assert answer.record.error is not None
        for text in (*answer.gaps, answer.record.error.message):
            assert "you" not in text.split()
            assert "write [" not in text
            assert "read_file(" not in text


@pytest.mark.parametrize("turns", [2, 9])
def test_a_run_that_ended_at_a_gate_or_at_its_limit_after_one_replays_as_it_was(tmp_path: Path, turns: int) -> None:
    (tmp_path / "a.txt").write_text("alpha\n")
    model = ScriptedModel([f"FINAL('wrong {at}')" for at in range(turns)])
    answer = sonde.ask("?", tmp_path / "a.txt", model=model, runs_dir=tmp_path / "runs", max_iterations=turns)
    assert answer.run_dir is not None

    replayed = sonde.replay(answer.run_dir)

    assert replayed.differences == ()
