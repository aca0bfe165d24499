"""What a user is promised about answers: provenance, proof, and the pre-filter inside the loop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.contexts.files import FilesContext
from sonde.core.canonical import sha256_text
from sonde.core.status import RunStatus
from sonde.testing import ScriptedModel, run_in_memory

READ = "text = read_file('a.txt')"


def files() -> FilesContext:
    return FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n"})


@pytest.mark.requirement("O3")
@pytest.mark.requirement(13)
@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ([READ, "FINAL('beta is 42 [a.txt:2]')"], "LLM"),
        (["FINAL('beta is 42')"] * 2, "LLM"),
        ([READ] * 9, "CODE"),
        (None, "CODE"),
    ],
    ids=["a model's cited answer", "a model's uncited answer", "nothing but turns", "no model"],
)
def test_the_annotator_is_llm_only_where_a_models_judgement_is_in_the_answer(
    script: list[str] | None, kind: str
) -> None:
    answer = run_in_memory(ScriptedModel(script) if script else None, "beta?", files(), max_iterations=4)

    assert answer.annotator_kind == kind
    assert answer.record.annotator_kind == kind


@pytest.mark.requirement("O2")
@pytest.mark.requirement(117)
def test_hashes_are_computed_from_the_text_and_the_record_holds_no_snippet(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha\nbeta is 42\n")
    forged = "FINAL({'answer': 'x', 'citations': [{'path': 'a.txt', 'start_line': 2, 'excerpt_hash': 'f' * 64}]})"
    answer = run_in_memory(ScriptedModel([READ, forged]), "?", tmp_path)

    assert [citation.excerpt_hash for citation in answer.citations] == [sha256_text("beta is 42")]
    assert "beta is 42" not in json.dumps(answer.record.model_dump(mode="json")["citations"])


@pytest.mark.requirement(102)
def test_a_file_that_changes_after_it_was_cited_is_no_proof_any_more(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("alpha\nbeta is 42\n")

    def answer_as(request: Any) -> str:
        if len(request.messages) == 2:
            return f"{READ}\nadd_citation('a.txt', 2, 2)"
        path.write_text("alpha\nbeta is 43!\n")
        return "FINAL('beta is 42')"

    answer = run_in_memory(ScriptedModel(answer_as), "?", tmp_path)

    assert answer.status is RunStatus.PARTIAL
    assert answer.citations == ()


@pytest.mark.requirement("O2")
@pytest.mark.parametrize(
    ("ref", "why"),
    [
        ("b.txt:2", "b.txt:2-2: there is no file 'b.txt' here. list_files() shows what there is."),
        ("a.txt:3", "a.txt:3-3: a.txt has 2 lines; start_line is 3."),
    ],
)
def test_the_gap_of_a_citation_that_points_nowhere_says_why_and_nothing_about_calls(ref: str, why: str) -> None:
    answer = run_in_memory(ScriptedModel([READ, *[f"FINAL('beta is 42 [{ref}]')"] * 2]), "beta?", files())

    assert answer.status is RunStatus.PARTIAL
    assert answer.gaps == (why,)


@pytest.mark.requirement(103)
@pytest.mark.requirement(115)
@pytest.mark.parametrize(
    ("script", "status"),
    [
        ([READ, "FINAL('42 [a.txt:2]')"], "succeeded"),
        ([READ] * 9, "partial"),
        ([], "failed"),
        (["import ctypes\nctypes.CDLL(None).syscall(57)"], "failed"),
    ],
    ids=["succeeded", "out of turns", "no reply", "violation"],
)
def test_every_ending_leaves_a_complete_folder(tmp_path: Path, script: list[str], status: str) -> None:
    answer = ask(
        "beta?",
        files(),
        model=ScriptedModel(script),
        settings=Settings(),
        runs_dir=tmp_path,
        max_iterations=4,
        profile="open",
    )

    assert answer.run_dir is not None
    names = {path.name for path in answer.run_dir.iterdir()}
    assert names >= {"run_record.json", "events.jsonl", "result.json", "summary.md", "answer.md"}
    record = json.loads((answer.run_dir / "run_record.json").read_text())
    assert record["status"] == status
    assert (record["error"] is None) == (status == "succeeded")
    assert record["error"] is None or set(record["error"]) >= {"code", "message", "stage", "retryable"}


def test_the_size_of_the_folder_does_not_depend_on_the_size_of_the_context(tmp_path: Path) -> None:
    def size(lines: int) -> int:
        context = FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n" + "filler line\n" * lines})
        script = ScriptedModel(
            ["print(len(CONTEXT['a.txt']))\nx = CONTEXT['a.txt'] * 2", READ[:-1] + ", 1, 2)", "FINAL('42 [a.txt:2]')"]
        )
        answer = ask("beta?", context, model=script, settings=Settings(), runs_dir=tmp_path)
        assert answer.run_dir is not None
        return sum(path.stat().st_size for path in answer.run_dir.rglob("*") if path.is_file())

    assert size(500_000) < 1.05 * size(10)
