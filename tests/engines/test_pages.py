"""The report of an investigation as a person reads it: the verdict first, then what was read again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from trace_cases import IO, LLM, LOOK, SPAN, TOOL, TRACE, failed_trace, model, options, span, write

import sonde
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filestore import FileStore
from sonde.engines.pages import folded, rca_page
from sonde.engines.reports import RCAReport

SUBMIT = (
    f"SUBMIT(primary_label='tool_failure', summary='the booking tool timed out', confidence=0.8, evidence_refs=[{SPAN}, {IO}], "
    "remediation=['retry'], alternatives=[{'hypothesis': 'the search found nothing', 'why_rejected': 'it found one text'}])"
)


def titles(page: str) -> list[str]:
    return re.findall(r"^## (.+)$", page, re.MULTILINE)


def test_a_root_cause_says_the_verdict_then_the_evidence_with_its_text_then_the_rest(tmp_path: Path) -> None:
    page = sonde.rca(TRACE, write(tmp_path, failed_trace()), **options(model(LOOK, SUBMIT))).text

    assert page.split("\n")[2] == "**Tool failure** (confidence 0.80, judged by a model): the booking tool timed out"
    assert titles(page) == ["What to do", "Evidence", "Other explanations", "More"]
    assert (
        "- **book.table** (TOOL) failed after 1.0 s, begun 2026-01-01T00:00:03Z: TimeoutError: no answer in 30 s"
        in page
    )
    assert "  - book got: table for two\n  - book returned: timed out\n" in page
    assert "- the search found nothing: it found one text" in page
    assert "sha256" not in page.partition("## More")[0]


def test_failed_spans_stand_in_order_of_time_after_the_evidence(tmp_path: Path) -> None:
    later = span("00000000000000aa", "answer", 5, status_code="ERROR", status_message="no table", kind="CHAIN")
    page = sonde.rca(TRACE, write(tmp_path, [*failed_trace(), later]), **options(model(LOOK, SUBMIT))).text

    assert titles(page)[1:3] == ["Evidence", "Timeline"]
    first, second = page.partition("## Timeline\n\n")[2].split("\n")[:2]
    assert first == "- +3.000 s **book.table** began, failed after 1.0 s: TimeoutError: no answer in 30 s"
    assert second == "- +5.000 s **answer** began, failed after 1.0 s: no table"


def test_a_text_that_changed_since_it_was_proved_is_not_shown(tmp_path: Path) -> None:
    found = sonde.rca(TRACE, write(tmp_path, failed_trace()), **options(model(LOOK, SUBMIT)))
    rows = failed_trace()
    rows[-1]["attributes"]["output.value"] = "all is well"
    with FileStore(write(tmp_path, rows, "changed.jsonl"), cache=None) as store:
        page = rca_page(RCAReport.model_validate(found.report), TracesContext(store))

    assert "its text could not be read again" in page
    assert "all is well" not in page


def test_a_compliance_report_counts_what_failed_and_shows_why_before_the_table(tmp_path: Path) -> None:
    page = sonde.comply(TRACE, write(tmp_path, failed_trace()), **options()).text

    assert (
        page.split("\n")[2] == "**Not compliant** (confidence 0.78): 1 of 6 controls failed and 2 could not be judged."
    )
    assert titles(page)[:3] == ["execution.hard_failures failed", "Could not be judged", "All controls"]
    assert page.index("  - output.value: timed out") < page.index("| control |")


def test_an_incident_shows_the_diff_of_the_suspected_change(tmp_path: Path) -> None:
    for tag, when, pool in (("v1", "2025-12-31T23:00:00Z", 20), ("v2", "2026-01-01T00:00:00Z", 2)):
        folder = tmp_path / "configs" / tag
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps({"created_at": when}))
        (folder / "app.yaml").write_text(f"pool: {pool}\n```\n")
    source = write(tmp_path, failed_trace())

    found = sonde.incident(source, project="shop", configs=tmp_path / "configs", **options(runs_dir=tmp_path / "runs"))

    assert found.run_dir is not None
    for page in (found.text, (found.run_dir / "report.md").read_text(), (found.run_dir / "answer.md").read_text()):
        blocks = [token for token in MarkdownIt("commonmark").parse(page) if token.type == "fence"]
        assert [(each.info, each.content.split("\n")[3:6]) for each in blocks] == [
            ("diff", ["-pool: 20", "+pool: 2", " ```"])
        ]


@pytest.mark.parametrize("held", ["output.value", "tool.name", "service.name"])
def test_words_of_a_trace_that_are_shown_again_stay_words(tmp_path: Path, held: str) -> None:
    rows = failed_trace()
    rows[-1]["attributes"][held] = (
        "x\n\n# Title\n\n- item ![a](https://evil.example) [b](https://evil.example) <b>c</b>\n```\n"
    )
    page = sonde.rca(TRACE, write(tmp_path, rows), **options(model(LOOK, SUBMIT))).text

    assert "evil.example" in page
    kinds = {token.type for block in MarkdownIt("commonmark").parse(page) for token in (block, *(block.children or ()))}
    assert kinds.isdisjoint({"image", "link_open", "html_inline", "html_block", "fence"})
    assert "Title" not in titles(page)


def test_gaps_that_differ_only_in_ids_and_numbers_are_one_sentence() -> None:
    branches = [f"branch of {number:016x}: {70 + number} spans left out" for number in range(5)]
    clocks = [f"{LLM}: starts before its parent", f"{TOOL}: starts before its parent"]

    assert folded([*branches, *clocks, "no model"]) == [
        "the first look left out up to 74 spans around 5 slow spans or spans with errors",
        f"{LLM}: starts before its parent (and 1 more like it)",
        "no model",
    ]
