"""The pictures of investigations: the trace with findings on its spans, the controls, the events of an incident."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import sonde
from engines.phoenix_double import PhoenixDouble
from engines.trace_cases import IO, LOOK, ROOT, SPAN, TOOL, TRACE, failed_trace, model, options, span, write
from sonde.batch.driver import BatchOutcome
from sonde.batch.folder import BatchFolder
from sonde.batch.report import write_report
from sonde.batch.result import ItemResult
from sonde.contexts.traces.shape import SPANS
from sonde.runs.rundir import RunDir
from sonde.viewer import ViewerServer, export_html
from sonde.viewer.server import Shelf

HERE = Path(__file__).resolve()
TOOLS = HERE.parents[2] / ".tools" / "browser"
HOSTILE = "<img src=x onerror=alert(1)>"
FINDINGS = (
    f"[{{'category': 'tool_failure', 'span_id': '{TOOL}', 'why': 'it timed out', 'first_failure': True, 'evidence_refs': [{SPAN}, {IO}]}}, "
    f"{{'category': 'instruction_failure', 'span_id': '{ROOT}', 'why': 'it gave up', 'caused_by': 0, 'evidence_refs': ['{ROOT}']}}]"
)
SUBMIT = f"SUBMIT(primary_label='tool_failure', summary='it timed out', confidence=0.5, evidence_refs=[{SPAN}, {IO}], findings={FINDINGS})"


def outage() -> list[dict[str, Any]]:
    """Twenty-four traces, one every ten minutes from the day before on; from midnight on, one of two tools fails in each."""
    rows: list[dict[str, Any]] = []
    for number in range(24):
        trace, root = f"{number:032x}", f"{number:015x}a"
        begin, failed = (number - 12) * 600 + 60, number >= 12
        rows.append(span(root, "agent.run", begin, trace_id=trace, parent=None, kind="AGENT", lasted=30))
        for tool, message in (("book", "TimeoutError: no answer"), ("pay", "PoolExhausted: no connection")):
            bad = failed and tool == ("book", "pay")[number % 2]
            state = {"status_code": "ERROR", "status_message": message} if bad else {}
            rows.append(
                span(
                    f"{number:014x}{tool[0]}1".replace("p", "c"),
                    tool,
                    begin + 1,
                    trace_id=trace,
                    parent=root,
                    kind="TOOL",
                    **state,
                )
            )
    return rows


def investigated(folder: Path, *names: str) -> Path:
    """These of the runs `rca`, `comply` and `incident` over one failed trace."""
    rows = failed_trace()
    rows[0] |= {"status_code": "ERROR", "status_message": "no booking"}
    rows[2]["name"] = HOSTILE
    source, runs = write(folder, rows), folder / "runs"
    for tag, when, pool in (("v1", "2025-12-31T23:00:00Z", 20), ("v2", "2026-01-01T00:00:00Z", 2)):
        place = folder / "configs" / tag
        place.mkdir(parents=True)
        (place / "metadata.json").write_text(json.dumps({"created_at": when}))
        (place / "app.yaml").write_text(f"pool: {pool}\n")
    window = write(folder, outage(), "window.jsonl")
    look = f"{LOOK}\nprint(get_span('{ROOT}')['summary'], list_spans('{TRACE}'))"
    kinds = {
        "rca": lambda: sonde.rca(TRACE, source, **options(model(look, SUBMIT), runs_dir=runs)),
        "comply": lambda: sonde.comply(TRACE, source, **options(runs_dir=runs)),
        "incident": lambda: sonde.incident(
            source, project="shop", configs=folder / "configs", **options(runs_dir=runs)
        ),
        "window": lambda: sonde.incident(window, project="shop", configs=folder / "configs", **options(runs_dir=runs)),
    }
    for name in names:
        found = kinds[name]()
        assert found.report is not None and found.run_dir is not None, found.record.error
        found.run_dir.rename(runs / name)
    return runs


def test_the_investigated_trace_is_read_again_from_its_files(tmp_path: Path) -> None:
    trace = Shelf(investigated(tmp_path, "rca")).trace("rca")

    assert trace is not None
    assert (trace["state"], trace["left_out"]) == ("read", 0)
    assert [(row["name"], row["depth"], row["start_ms"]) for row in trace["spans"]] == [
        ("agent.run", 0, 0),
        ("plan", 1, 1000),
        (HOSTILE, 1, 2000),
        ("book.table", 1, 3000),
    ]


def test_without_its_files_the_trace_is_what_the_run_listed_and_an_incident_has_none(tmp_path: Path) -> None:
    shelf = Shelf(investigated(tmp_path, "rca", "incident"))
    (tmp_path / "traces.jsonl").unlink()

    trace = shelf.trace("rca")

    assert trace is not None
    assert (trace["state"], {row["span_id"] for row in trace["spans"]} >= {ROOT, TOOL}) == ("recorded", True)
    assert shelf.trace("incident") is None


def test_a_trace_on_a_server_is_drawn_as_the_run_read_it_also_without_a_model(tmp_path: Path) -> None:
    with PhoenixDouble(failed_trace()) as server:
        found = sonde.rca(TRACE, server.url, project="shop", **options(runs_dir=tmp_path / "runs"))
    assert found.run_dir is not None and found.record.metrics.model_calls == 0

    trace = Shelf(tmp_path / "runs").trace(found.record.run_id)

    assert trace is not None
    assert (trace["state"], trace["left_out"], len(trace["spans"])) == ("kept", 0, 4)
    assert [row["span_id"] for row in trace["spans"] if row["status"] == "ERROR"] == [TOOL]
    cards = Shelf(tmp_path / "runs").excerpts(found.record.run_id)
    assert {card["state"] for card in cards} == {"recorded"}
    assert any("TimeoutError: no answer" in card["text"] for card in cards)
    assert "TimeoutError: no answer" in export_html(RunDir(found.run_dir), tmp_path / "one").read_text()


def test_a_picture_that_is_none_is_not_drawn(tmp_path: Path) -> None:
    runs = investigated(tmp_path, "comply")
    (tmp_path / "traces.jsonl").unlink()
    bad: list[Any] = [{"picture": {"trace_id": each, "spans": [{}], "left_out": 0}} for each in (TRACE, "b")]
    for planted in ("", "no JSON", "[" * 100_000, '{"picture": 7}', '{"texts": ["forged"]}', *map(json.dumps, bad)):
        (runs / "comply" / "trace.json").write_text(planted)

        assert Shelf(runs).trace("comply") is None
        assert {card["state"] for card in Shelf(runs).excerpts("comply")} == {"missing"}


def test_of_a_large_trace_failed_and_cited_spans_are_drawn_with_those_above_them(tmp_path: Path) -> None:
    runs = investigated(tmp_path, "rca")
    many = [failed_trace()[1] | {"span_id": f"{number:016x}", "name": "step"} for number in range(100, 100 + 2 * SPANS)]
    write(tmp_path, [*many, *failed_trace()])

    trace = Shelf(runs).trace("rca")

    assert trace is not None
    assert len(trace["spans"]) == SPANS and trace["left_out"] == SPANS + 4
    assert {ROOT, TOOL} <= {row["span_id"] for row in trace["spans"]}


@pytest.mark.long
def test_a_trace_that_is_one_long_chain_is_drawn_in_part(tmp_path: Path) -> None:
    runs = investigated(tmp_path, "rca")
    ids = [ROOT, *(f"{number:016x}" for number in range(100, 2000)), TOOL]
    chain = [failed_trace()[-1] | {"span_id": own, "parent_id": above} for above, own in pairwise([None, *ids])]
    write(tmp_path, chain)

    trace = Shelf(runs).trace("rca")

    assert trace is not None
    assert len(trace["spans"]) == SPANS and trace["left_out"] == len(ids) - SPANS


def batch_report(folder: Path) -> Path:
    """The page of a compliance batch over forty traces: one breaks a control, one cannot be judged."""
    found = {1: ("non_compliant", "fail"), 2: ("needs_review", "insufficient_evidence")}
    results = [
        ItemResult(
            id=f"{number:032x}",
            key=f"k{number}",
            engine="compliance",
            status="succeeded",
            label=found.get(number, ("compliant", "pass"))[0],
            trace_ids=[f"{number:08x}".ljust(32, "0")],
            verdicts={"execution.hard_failures": found.get(number, ("", "pass"))[1], HOSTILE: "not_applicable"},
        )
        for number in reversed(range(1, 41))
    ]
    write_report(BatchOutcome(folder=BatchFolder(folder), results=tuple(results), left=0, stopped=None))
    return folder / "report.html"


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if not (TOOLS / "node_modules").exists() or shutil.which("chromium") is None:
        pytest.skip("run scripts/browser.sh first")
    base, shots = tmp_path_factory.mktemp("pictures"), HERE.parents[2] / ".tools" / "shots" / "pictures"
    shots.mkdir(parents=True, exist_ok=True)
    runs = investigated(base, "rca", "comply", "incident", "window")
    page = export_html(RunDir(runs / "rca"), base / "one.html")
    with ViewerServer(runs) as server:
        script = ["node", HERE.with_name("pictures.mjs"), server.url, page, shots, TOOLS, batch_report(base)]
        shown = subprocess.run(script, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout.splitlines()[-1])


@pytest.mark.browser
def test_pictures_show_failures_pins_arrows_controls_and_changes_in_every_look(seen: dict[str, Any]) -> None:
    assert len(seen["looks"]) == 4
    for look in seen["looks"]:
        assert len(look["names"]) == 4 and look["failed"][0].startswith("agent") and len(look["failed"]) == 2
        assert (look["pins"], look["arrows"], look["first"]) == (2, 1, ["tool failure"])
        assert look["headline"] == "Tool failure (confidence 0.50): it timed out"
        assert look["pointed"].endswith(TOOL)
        assert look["verdicts"].count("fail") == 1 and "insufficient evidence" in look["verdicts"]
        assert look["marks"] == 1 and look["changes"] == 1
        assert (look["groups"], look["hits"], look["dashed"]) == (["book", "pay"], 12, 1)
        assert look["fits"], look
        assert look["batch"]["signs"] == "✕?" + "✓" * 38 + "–" * 40
        assert (look["batch"]["first"], look["batch"]["fits"], look["batch"]["nameStays"]) == ("00000001", True, True)
        assert len(set(look["batch"]["colours"])) == 2
    light, dark = ({look["ink"] for look in seen["looks"] if look["scheme"] == each} for each in ("light", "dark"))
    assert not light & dark


@pytest.mark.browser
def test_an_exported_page_carries_the_picture_and_nothing_in_it_is_markup(seen: dict[str, Any]) -> None:
    assert len(seen["exported"]) == 4 and HOSTILE[:8] in seen["exported"][2]
    assert (seen["problems"], seen["foreign"]) == ([], [])
