"""Issue 20: "an engine or a caller may also switch citations off (`--no-citations`, recorded as unproved)"."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_program import sonde as program

import sonde
from sonde.api.rerun import branch, replay
from sonde.api.settings import Settings
from sonde.contexts.files import FilesContext
from sonde.core.status import RunStatus
from sonde.engines.ask import ASK
from sonde.runs.catalog import summarise
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel, ScriptedServer, run_in_memory
from sonde.viewer import export_html

GAP = "citations are switched off: nothing proves this answer"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def hello(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


def test_an_answer_needs_no_citation_and_is_recorded_as_unproved() -> None:
    model = ScriptedModel(["FINAL('Hello.')"])

    answer = run_in_memory(model, "Say hello.", citations=False, tools=[hello])

    assert (answer.status, answer.text, answer.gaps) == (RunStatus.SUCCEEDED, "Hello.", (GAP,))
    assert answer.record.runtime_ref.unproved
    prompt = "\n".join(message.content for message in model.requests[0].messages)
    assert not [
        word
        for word in ("Prove each claim", "[path:", "[path/file", "add_citation", "cite_tool", "{{")
        if word in prompt
    ]


def test_the_schema_binds_all_the_same() -> None:
    model = ScriptedModel(["FINAL({'title': 'x'})", "FINAL({'name': 'x'})"])

    answer = run_in_memory(model, "Who?", citations=False, schema=SCHEMA)

    assert answer.value == {"name": "x"}
    assert answer.usage.iterations == 2


def test_what_is_cited_and_holds_is_kept_and_the_answer_is_not_called_unproved() -> None:
    look = "print(read_file('context.txt'))"
    model = ScriptedModel([look, "FINAL('One line. [context.txt:1] [context.txt:9]')"])

    answer = run_in_memory(model, citations=False)

    assert [cited.place for cited in answer.citations] == ["context.txt:1-1"]
    assert answer.gaps == ()
    assert "unproved" not in answer.record.model_dump(mode="json")["runtime_ref"]


def test_an_engine_may_switch_citations_off() -> None:
    engine = replace(ASK, name="greeter", cites=False)

    result = sonde.run(
        engine,
        "Say hello.",
        FilesContext(texts={"a.txt": "alpha"}),
        model=ScriptedModel(["FINAL('Hello.')"]),
        settings=Settings(),
        in_memory=True,
    )

    assert (result.status, result.gaps) == (RunStatus.SUCCEEDED, (GAP,))
    assert result.record.runtime_ref.unproved


def test_an_answer_with_citations_on_is_still_refused() -> None:
    answer = run_in_memory(ScriptedModel(["FINAL('Hello.')"] * 3), "Say hello.")

    assert answer.status is RunStatus.PARTIAL
    assert not answer.record.runtime_ref.unproved


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("alpha\n")
    return tmp_path


def test_terminal_list_page_and_record_call_it_unproved(folder: Path) -> None:
    with ScriptedServer("```python\nFINAL('Hello.')\n```") as server:
        words = ("--model", "openai:m", "--base-url", server.base_url, "--runs-dir", folder / "runs")
        asked = program("ask", "Say hello.", "a.txt", "--no-citations", *words, cwd=folder, OPENAI_API_KEY="k")
        as_json = program("ask", "Hi.", "a.txt", "--no-citations", "--json", *words, cwd=folder, OPENAI_API_KEY="k")
    listed = program("runs", "--runs-dir", folder / "runs", cwd=folder)
    place = Path(json.loads(as_json.stdout)["run_dir"])

    assert asked.returncode == 0
    assert GAP in asked.stdout
    assert json.loads(as_json.stdout)["unproved"] is True
    assert listed.stdout.count("unproved: ") == 2
    assert summarise(place).unproved
    assert GAP in (place / "summary.md").read_text()
    assert json.loads((place / "run_record.json").read_text())["runtime_ref"]["unproved"] is True
    assert '"unproved":true' in export_html(RunDir(place), folder / "page.html").read_text()


def test_it_stays_off_when_the_run_is_replayed_or_branched(folder: Path) -> None:
    settings = Settings(runs_dir=folder / "runs")
    model = ScriptedModel(["print(1)", "FINAL('Hello.')"])
    answer = sonde.ask("Say hello.", folder / "a.txt", model=model, citations=False, settings=settings)
    assert answer.run_dir is not None

    assert replay(answer.run_dir, settings=settings).equal
    branched = branch(answer.run_dir, 2, model=ScriptedModel(["FINAL('Hi.')"]), settings=settings)
    assert (branched.status, branched.record.runtime_ref.unproved) == (RunStatus.SUCCEEDED, True)
