"""Every evidence card shows exactly the text that its hash is of, whatever kind of evidence it is."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sonde
from engines.trace_cases import IO, LLM, SEARCH, SPAN, TOOL, TRACE, failed_trace, model, options, ref, write
from sonde.core.canonical import sha256_text
from sonde.models.base import ModelRequest
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel
from sonde.viewer import export_html
from sonde.viewer.server import Shelf

Cards = Callable[[Path], list[dict[str, Any]]]


def served(run: Path) -> list[dict[str, Any]]:
    return Shelf(run.parent).excerpts(run.name)


def exported(run: Path) -> list[dict[str, Any]]:
    page = export_html(RunDir(run), run.parent.parent / "page.html").read_text()
    found = re.search(r'id="sonde-data">(.*?)</script>', page)
    assert found is not None
    return json.loads(found.group(1))["excerpts"][run.name]


@pytest.fixture(params=[served, exported])
def cards(request: pytest.FixtureRequest) -> Cards:
    """The cards of a run, as the local page gets them and as an exported one holds them."""
    return request.param


def folder(found: sonde.Investigation | sonde.Answer) -> Path:
    assert found.run_dir is not None
    return found.run_dir


def texts(found: list[dict[str, Any]], state: str) -> list[str]:
    """The texts of the cards, all of this state and all with the hash that they claim."""
    assert found
    assert [each["state"] for each in found] == [state] * len(found)
    assert [sha256_text(each["text"]) for each in found] == [each["excerpt_hash"] for each in found]
    return [each["text"] for each in found]


@pytest.fixture
def rca(tmp_path: Path) -> sonde.Investigation:
    """A report that cites a span, its attributes, a tool call, a retrieved chunk and a message."""
    look = (
        f"o = overview('{TRACE}')\ns = get_span('{TOOL}')\nt = get_tool_io('{TOOL}')\n"
        f"c = get_retrieval_chunks('{SEARCH}')\nm = get_messages('{LLM}')\nprint(s, t, c, m)"
    )
    refs = (
        f"[{SPAN}, {ref('SPAN', f'{TOOL}:attributes')}, {IO}, {ref('SPAN', LLM)},"
        " {'kind': 'RETRIEVAL_CHUNK', 'ref': c[0]['artifact_id']},"
        " {'kind': 'MESSAGE', 'ref': m[0]['metadata']['ref']}]"
    )
    judged = "primary_label='tool_failure', summary='it timed out', confidence=0.8, remediation=['x'], gaps=[]"
    submit = f"SUBMIT({judged}, evidence_refs={refs})"
    rows = failed_trace()
    found = sonde.rca(
        TRACE,
        write(tmp_path, rows),
        **options(model(f"{look}\nlist_spans('{TRACE}')", submit), runs_dir=tmp_path / "runs"),
    )
    assert found.status == "succeeded", found.gaps
    return found


def test_evidence_in_traces_is_read_again_from_the_trace_file(rca: sonde.Investigation, cards: Cards) -> None:
    shown = texts(cards(folder(rca)), "verified")

    assert [json.loads(text).get("name") for text in shown[:1]] == ["book.table"]
    assert "tool.name" in json.loads(shown[1])["attributes"]
    assert json.loads(shown[2])["output"] == "timed out"
    assert json.loads(shown[3])["name"] == "plan"
    assert json.loads(shown[4])["content"] == "opening hours"
    assert json.loads(shown[5])["content"] == "calling"


def test_without_the_trace_file_the_same_texts_come_from_the_recording(
    rca: sonde.Investigation, cards: Cards, tmp_path: Path
) -> None:
    before = texts(cards(folder(rca)), "verified")
    (tmp_path / "traces.jsonl").unlink()

    assert texts(cards(folder(rca)), "recorded") == before


def test_a_trace_file_that_changed_shows_only_what_was_cited(
    rca: sonde.Investigation, cards: Cards, tmp_path: Path
) -> None:
    write(tmp_path, [{**row, "name": "renamed", "attributes": {}} for row in failed_trace()])

    assert "renamed" not in "".join(texts(cards(folder(rca)), "changed"))


def test_evidence_that_only_rules_saw_is_read_again_too(tmp_path: Path, cards: Cards) -> None:
    traces = write(tmp_path, failed_trace())
    run = folder(sonde.rca(TRACE, traces, **options(runs_dir=tmp_path / "runs")))

    texts(cards(run), "verified")
    traces.unlink()

    assert [(each["state"], each["text"]) for each in cards(run)] == [("missing", "")] * len(cards(run))


def test_a_config_diff_is_made_again_from_the_snapshots(tmp_path: Path, cards: Cards) -> None:
    for tag, created, text in (
        ("one", "2025-12-31T00:00:00Z", "retries: 3\n"),
        ("two", "2025-12-31T23:59:00Z", "retries: 0\n"),
    ):
        snapshot = tmp_path / "configs" / tag
        snapshot.mkdir(parents=True)
        (snapshot / "app.yaml").write_text(text)
        (snapshot / "metadata.json").write_text(json.dumps({"created_at": created, "git_commit": tag, "tag": tag}))
    found = sonde.incident(
        write(tmp_path, failed_trace()),
        project="shop",
        configs=tmp_path / "configs",
        **options(runs_dir=tmp_path / "runs"),
    )

    diff = [each for each in cards(folder(found)) if each["kind"] == "CONFIG_DIFF"]

    assert "+retries: 0" in texts(diff, "verified")[0]
    texts(cards(folder(found)), "verified")


def test_lines_of_files_and_results_of_a_users_tools_show_their_text(tmp_path: Path, cards: Cards) -> None:
    def price(fruit: str) -> dict[str, Any]:
        """What a fruit costs."""
        return {"fruit": fruit, "cents": 30}

    def notice(topic: str) -> str:
        """A notice of three lines."""
        return f"first\nabout {topic}\nlast"

    def reply(request: ModelRequest) -> str:
        if len(request.messages) == 2:
            return "print(read_file('order.txt'), price('apple'), notice('hours'))"
        said = re.findall(r"\[(tool:\w+:[0-9a-f]{8}-[0-9a-f]{8})\]", request.messages[-1].content)
        return f"FINAL('30 [{said[0]}] [{said[1]}:2] [order.txt:2-3]')"

    (tmp_path / "order.txt").write_text("one\n  two\n\tthree\nfour\n")
    answer = sonde.ask(
        "?",
        tmp_path / "order.txt",
        model=ScriptedModel(reply),
        tools=[price, notice],
        runs_dir=tmp_path / "runs",
        settings=sonde.Settings(),
    )

    assert sorted(texts(cards(folder(answer)), "verified")) == [
        "  two\n\tthree",
        "about hours",
        '{"cents":30,"fruit":"apple"}',
    ]


def test_a_redacted_page_says_where_a_card_no_longer_has_its_hash(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("key sk-proj-abcdefghijklmnop1234\nplain\n")
    script = ["print(read_file('a.txt'))", "FINAL('both [a.txt:1] [a.txt:2]')"]
    answer = sonde.ask(
        "?", tmp_path / "a.txt", model=ScriptedModel(script), runs_dir=tmp_path / "runs", settings=sonde.Settings()
    )

    page = export_html(RunDir(folder(answer)), tmp_path / "page.html", redact=True).read_text()

    found = re.search(r'id="sonde-data">(.*?)</script>', page)
    assert found is not None
    shown = json.loads(found.group(1))["excerpts"][folder(answer).name]
    assert [(each["text"], each["redacted"]) for each in shown] == [("key [redacted]", True), ("plain", False)]
