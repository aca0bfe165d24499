"""The report's files: honest numbers, one page that holds no script and nothing from elsewhere, a table."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import msgspec
import pytest
from pyarrow import parquet

from sonde.batch.driver import BatchOutcome
from sonde.batch.folder import BatchFolder, DiskFull
from sonde.batch.issues import group
from sonde.batch.manifest import BrokenLine
from sonde.batch.progress import BatchProgress, duration
from sonde.batch.report import markdown, report_of, write_parquet, write_report
from sonde.batch.result import FoundFailure, ItemResult, Status

EVIL = "<script>alert('x')</script>"


def result(number: int, status: Status = "succeeded", **more: object) -> ItemResult:
    fields = {"cost_usd": 0.01 * number, "latency_s": 1.0 * number, "label": "tool_failure", **more}
    return ItemResult(id=f"i{number}", key=f"k{number}", engine="rca", status=status, **fields)  # pyright: ignore[reportArgumentType]  # fields by name


def rows_of(path: Path) -> list[dict[str, Any]]:
    read: Any = parquet
    return read.read_table(path).to_pylist()


def outcome(folder: Path, *results: ItemResult) -> BatchOutcome:
    return BatchOutcome(
        folder=BatchFolder(folder),
        results=results,
        left=2,
        stopped=f"the cost limit {EVIL}",
        broken=(BrokenLine(number=7, reason=f"it is not JSON {EVIL}"),),
        elapsed_s=2.0,
        fresh=len(results),
    )


def some(folder: Path) -> BatchOutcome:
    finding = FoundFailure(label="tool_failure", component=EVIL, words="timed out")
    failed = result(3, "failed", code="MODEL_OUTPUT_INVALID", message=EVIL, label=None)
    return outcome(folder, result(1, findings=[finding], trace_ids=["t1"]), result(2), failed)


def test_95_percent_of_the_items_are_within_the_95th_percentile_and_no_more_need_be(tmp_path: Path) -> None:
    report = report_of(outcome(tmp_path, *(result(number) for number in range(1, 21))))

    assert report["latency_s"]["p95"] == 19.0
    assert report["latency_s"]["max"] == 20.0


def test_the_report_counts_what_is_there(tmp_path: Path) -> None:
    batch = some(tmp_path)

    report, skipped = write_report(batch, group(batch.results))

    assert not skipped
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert report["items"] == 5
    assert report["statuses"] == {"succeeded": 2, "failed": 1}
    assert sum(report["judges"].values()) == 2  # nobody judged what failed
    assert report["labels"] == {"tool_failure": 2}
    assert report["cost_usd"] == {"total": 0.06, "median": 0.02, "p95": 0.03, "max": 0.03}
    failure = {"code": "MODEL_OUTPUT_INVALID", "count": 1, "message": EVIL, "items": ["i3"], "messages": [EVIL]}
    assert report["failures"] == [failure]
    assert report["issues"]["states"] == {"new": 1}
    text = markdown(report)
    assert "3 of 5 items finished; 2 left" in text
    assert "line 7" in text


def test_a_report_that_the_disk_does_not_take_is_said_and_leaves_no_halves(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in (100, 6_000):  # not even the first file; all but the table
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            with pytest.raises(DiskFull) as said:
                write_report(some(tmp_path))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        assert "make room" in said.value.message
    assert not list(tmp_path.glob(".*"))
    assert not (tmp_path / "results.parquet").exists()


def test_the_page_is_whole_without_scripts_and_shows_hostile_text_as_text(tmp_path: Path) -> None:
    batch = some(tmp_path)
    write_report(batch, group(batch.results))
    page = (tmp_path / "report.html").read_text()

    assert EVIL not in page
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http-equiv", "")
    for drawing in page.split("<svg")[1:]:
        ET.fromstring("<svg" + drawing.split("</svg>")[0] + "</svg>")


def test_what_turns_text_around_is_written_out_on_both_pages(tmp_path: Path) -> None:
    write_report(outcome(tmp_path, result(1, summary="It is \u202epay\u200bments.")))

    text, page = (tmp_path / "report.md").read_text(), (tmp_path / "report.html").read_text()

    assert "It is <U+202E>pay<U+200B>ments." in text
    assert "It is &lt;U+202E&gt;pay&lt;U+200B&gt;ments." in page


def test_answers_are_listed_with_links_to_their_runs(tmp_path: Path) -> None:
    done = outcome(tmp_path, result(1, summary="Payments failed first."), result(2, summary=EVIL, attempt=3))

    report, _ = write_report(done)

    text, page = markdown(report), (tmp_path / "report.html").read_text()
    assert "- [i1](items/k1/summary.md) (succeeded): Payments failed first." in text
    assert '<a href="items/k1/summary.md">i1</a>' in page and "Payments failed first." in page
    assert "items/k2.3/summary.md" in text and "items/k2.3/summary.md" in page
    assert "<script" not in text + page


def test_a_batch_of_compliance_has_a_matrix_of_controls_and_traces_the_worst_first(tmp_path: Path) -> None:
    calm = result(1, label="compliant", trace_ids=["a" * 32], verdicts={"hard.failures": "pass", EVIL: "pass"})
    open_ = result(2, label="needs_review", trace_ids=["b" * 32], verdicts={"hard.failures": "insufficient_evidence"})
    bad = result(3, label="non_compliant", trace_ids=["c" * 32], verdicts={"hard.failures": "fail", EVIL: "pass"})

    report, _ = write_report(outcome(tmp_path, calm, open_, bad, result(4)))

    assert report["controls"]["counts"]["hard.failures"] == {"pass": 1, "insufficient_evidence": 1, "fail": 1}
    assert (report["controls"]["judged"], len(report["controls"]["traces"])) == (3, 3)
    text, page = markdown(report), (tmp_path / "report.html").read_text()
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| trace | verdict | hard.failures |"
    assert rows[2:] == [
        f"| {'c' * 12} | not compliant | ✕ |",
        f"| {'b' * 12} | needs review | ? |",
        f"| {'a' * 12} | compliant | ✓ |",
        "| of 3 traces | | 1 failed |",
    ]
    assert page.index("cccccccc") < page.index("bbbbbbbb") < page.index("aaaaaaaa")
    assert page.count('class="v fail"') == 1 and '<a href="items/k3/summary.md"' in page
    assert "<script" not in text + page
    assert dict(rows_of(tmp_path / "results.parquet")[2]["verdicts"]) == bad.verdicts


def test_words_of_traces_and_manifests_are_no_markdown_of_the_report(tmp_path: Path) -> None:
    evil = "boom ![x](http://evil.example/p.png) <img src=//evil.example>\n# Forged\n[y]: http://evil.example"
    finding = FoundFailure(label=evil, component=evil, words=evil)
    failed = msgspec.structs.replace(
        result(2, "failed", code="MODEL_OUTPUT_INVALID", message=evil, label=evil), id=evil
    )
    batch = replace(
        outcome(tmp_path, result(1, findings=[finding], trace_ids=[evil]), failed),
        stopped=evil,
        broken=(BrokenLine(number=7, reason=evil),),
    )
    write_report(batch, group(batch.results))
    text = (tmp_path / "report.md").read_text()

    assert text.count("Forged") >= 7
    assert "![x](" not in text
    assert "<img" not in text
    assert not [line for line in text.splitlines() if line.startswith(("# Forged", "[y]"))]


def test_a_batch_of_nothing_has_a_report_too(tmp_path: Path) -> None:
    report, _ = write_report(outcome(tmp_path))

    assert report["finished"] == 0
    assert rows_of(tmp_path / "results.parquet") == []


def test_the_table_holds_every_result_with_its_types(tmp_path: Path) -> None:
    batch = some(tmp_path)
    write_parquet(tmp_path / "r.parquet", batch.results)

    rows = rows_of(tmp_path / "r.parquet")
    assert [row["id"] for row in rows] == ["i1", "i2", "i3"]
    assert rows[0]["findings"][0]["words"] == "timed out"
    assert rows[2]["code"] == "MODEL_OUTPUT_INVALID"
    assert [path.name for path in tmp_path.iterdir()] == ["r.parquet"]
    assert (tmp_path / "r.parquet").stat().st_mode & 0o777 == 0o600


def test_without_the_extra_the_table_is_skipped_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    said = write_parquet(tmp_path / "r.parquet", [])

    assert said is not None
    assert "data" in said
    assert not (tmp_path / "r.parquet").exists()


def test_progress_tells_rate_cost_failures_and_time_left() -> None:
    progress = BatchProgress(total=100, before=20, cost_usd=0.5)
    progress.begin(0.0)
    for number in range(10):
        failed = number == 9
        progress.add(
            result(number, "failed" if failed else "succeeded", code="TOOL_CALL_FAILED" if failed else None), 5.0
        )

    line = progress.line(10.0)

    assert line == "30/100 · 1.0/s · $0.5000 · failed: TOOL_CALL_FAILED 1 · 1 min 10 s left"
    progress.stopping, progress.running = "asked to stop", 3
    assert "3 in flight" in progress.line(10.0)


@pytest.mark.parametrize(("seconds", "shown"), [(41.7, "42 s"), (190, "3 min 10 s"), (7500, "2 h 05 min")])
def test_durations_are_read_at_a_glance(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
