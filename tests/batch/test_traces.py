"""Batches of investigations: from a query over traces to issues, without a model and without a server."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch.scene import Scene
from sonde.api.settings import resolve
from sonde.api.trace_source import Source
from sonde.batch.driver import BatchOptions, run_batch
from sonde.batch.folder import named_folder
from sonde.batch.issues import group
from sonde.batch.limits import SharedLimits
from sonde.batch.manifest import read_manifest
from sonde.batch.query import TraceSelection, query_manifest, since_time
from sonde.errors import ConfigError
from sonde.runs.rundir import JOURNAL

pytestmark = pytest.mark.long

NOW = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)


def span(trace: str, number: int, **more: object) -> dict[str, object]:
    start = f"2026-11-15T{number:02d}:00:00Z"
    base = {
        "trace_id": trace,
        "span_id": f"{trace}{number:04x}",
        "parent_id": None,
        "name": "agent",
        "start_time": start,
    }
    return {**base, "end_time": start, "status_code": "OK", "span_kind": "AGENT", **more}


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Six traces, one an hour from 06:00; the even ones fail in a tool."""
    spans: list[dict[str, object]] = []
    for number in range(6, 12):
        trace = f"{number:032x}"
        root = span(trace, number)
        spans.append(root)
        if number % 2 == 0:
            failure = {"name": "charge_card", "span_kind": "TOOL", "status_code": "ERROR"}
            message = {"status_message": f"gateway timeout after {number}00 ms"}
            spans.append(
                {**span(trace, number), "span_id": f"{trace}ff", "parent_id": root["span_id"], **failure, **message}
            )
    path = tmp_path / "traces.jsonl"
    path.write_text("".join(f"{json.dumps(each)}\n" for each in spans))
    return path


def wanted(traces: Path, **more: object) -> TraceSelection:
    return TraceSelection(place=Source(source=traces), **more)  # pyright: ignore[reportArgumentType]  # fields by name


def hours(traces: Path, **more: object) -> list[int]:
    return [int(item.id, 16) for item in query_manifest(wanted(traces, **more), NOW).items]


def test_a_query_gives_one_item_for_each_trace_that_fits(traces: Path) -> None:
    assert hours(traces) == [6, 7, 8, 9, 10, 11]
    assert hours(traces, all_errors=True) == [6, 8, 10]
    assert hours(traces, all_errors=True, since="5h") == [8, 10]
    assert hours(traces, filter_expr="name == 'charge_card'", all_errors=True, limit=1) == [6]


def test_a_query_that_nothing_fits_or_nobody_understands_is_refused(traces: Path) -> None:
    for more in ({"since": "1m"}, {"filter_expr": "import os"}, {"since": "yesterday"}, {"since": "9999999999w"}):
        with pytest.raises(ConfigError):
            query_manifest(wanted(traces, **more), NOW)


def test_a_query_for_a_project_takes_its_traces_alone_and_refuses_one_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "two.jsonl"
    spans = [span(f"{n:032x}", n, resource={"openinference.project.name": name}) for n, name in ((1, "a"), (2, "b"))]
    path.write_text("".join(f"{json.dumps(each)}\n" for each in spans))

    found = query_manifest(TraceSelection(place=Source(source=path, project="b")), NOW)

    assert [item.id for item in found.items] == [f"{2:032x}"]
    with pytest.raises(ConfigError, match="no project 'c'; there are: a, b"):
        query_manifest(TraceSelection(place=Source(source=path, project="c")), NOW)


def test_since_is_a_span_of_time_or_a_time() -> None:
    assert since_time("24h", NOW) == "2026-11-14T12:00:00+00:00"
    assert since_time("90m", NOW) == "2026-11-15T10:30:00+00:00"
    for time in ("2026-11-01T00:00Z", "2026-11-01", "20261101", "2026-11-01T01:00+01:00"):
        assert since_time(time, NOW) == "2026-11-01T00:00:00.000000Z"


@pytest.mark.parametrize("text", ["24", "7days", "yesterday", "1762000000", "99999999999d", "-3h"])
def test_since_refuses_what_is_neither_with_both_forms_named(text: str) -> None:
    with pytest.raises(ConfigError, match=r"24h.*2026-11-01T00:00Z"):
        since_time(text, NOW)


def test_failed_traces_become_reports_and_one_issue_with_its_component(traces: Path, tmp_path: Path) -> None:
    settings = resolve({"runs_dir": str(tmp_path / "runs")}, {"XDG_CACHE_HOME": str(tmp_path / "cache")}, tmp_path)
    manifest = query_manifest(wanted(traces, all_errors=True), NOW)
    folder = named_folder("errors", tmp_path / "runs")

    outcome = run_batch(manifest, folder, settings, BatchOptions(limits=SharedLimits(concurrency=2)))

    assert not outcome.left
    assert {result.judge for result in outcome.results} == {"CODE"}
    assert all(result.label and not result.failed for result in outcome.results)
    (issue,) = group(outcome.results)
    assert issue.component == "charge_card"
    assert issue.count == 3
    assert (issue.first_seen or "").startswith("2026-11-15T06:00:00")
    assert read_manifest(folder.path / "manifest.jsonl").items == manifest.items


def test_a_trace_file_is_indexed_once_for_all_items_and_not_again_for_resumed_ones(
    traces: Path, tmp_path: Path
) -> None:
    settings = resolve({"runs_dir": str(tmp_path / "runs")}, {}, tmp_path)  # no home: the index is kept with the batch
    manifest = query_manifest(wanted(traces), NOW)
    folder = named_folder("all", tmp_path / "runs")

    def start() -> tuple[list[bool], os.stat_result]:
        outcome = run_batch(manifest, folder, settings, BatchOptions(limits=SharedLimits(concurrency=2)))
        (index,) = folder.path.glob("cache/**/*.sqlite")
        return [result.resumed for result in outcome.results], index.stat()

    fresh, before = start()
    for run in folder.items.iterdir():
        journal = run / JOURNAL
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-1]))  # cut off before its end
    folder.results.unlink()
    resumed, after = start()

    assert (fresh, resumed) == ([False] * 6, [True] * 6)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_command_line_runs_a_query_and_compares_with_an_earlier_batch(traces: Path, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(0)
    flags = ["--all-errors", "--since", "2026-11-01T00:00Z", "--source", str(traces), "--json", "--no-writeback"]
    both = scene.run("http://127.0.0.1:9/v1", *flags)
    assert both.returncode == 2
    assert "MANIFEST" in both.stderr
    for name, more, states in (
        ("monday", [], {"new": 1}),
        ("tuesday", ["--compare", str(tmp_path / "runs" / "batch-monday")], {"ongoing": 1}),
    ):
        done = scene.query(*flags, "--name", name, *more)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["issues"]["states"] == states
        assert report["statuses"] == {"partial": 3}


def test_a_batch_of_comply_says_for_each_trace_which_control_failed(traces: Path, tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    flags = ["--engine", "comply", "--source", str(traces), "--since", "2026-11-01T00:00Z", "--name", "audit"]
    done = scene.query(*flags)

    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if "(partial): not compliant: " in line]
    assert all("upstream.http.review failed" in line for line in told)
    assert sorted(line[3:35] for line in told) == [f"{number:032x}" for number in (6, 8, 10)]
    report = json.loads((tmp_path / "runs/batch-audit/report.json").read_text())
    assert report["engines"] == {"compliance": 6}
    assert [row["verdict"] for row in report["controls"]["traces"]] == ["non_compliant"] * 3 + ["needs_review"] * 3
    assert "| of 6 traces | | 3 failed |" in done.stdout


def test_a_batch_of_comply_takes_the_users_own_controls_and_fails_a_pipeline_if_asked(
    traces: Path, tmp_path: Path
) -> None:
    own = {
        "control_id": "own.gateway",
        "controls_version": "ours",
        "title": "No timeouts of the gateway",
        "description": "None",
        "severity": "high",
        "required_evidence": ["required_span_attributes"],
        "violation_patterns": ["gateway timeout"],
        "remediation_template": "Call another gateway",
    }
    (tmp_path / "own.json").write_text(json.dumps(own))
    line = {"id": "six", "engine": "comply", "trace_ids": [f"{6:032x}"], "source": str(traces)}
    (tmp_path / "items.jsonl").write_text(json.dumps(line))
    scene = Scene(tmp_path)
    controls = ["--controls-file", str(tmp_path / "own.json"), "--fail-on", "fail"]
    query = ["--engine", "comply", "--source", str(traces), "--since", "2026-11-01T00:00Z", "--name", "own"]
    done = scene.query(*query, *controls)
    again = scene.query(str(tmp_path / "runs/batch-own/manifest.jsonl"), "--source", str(traces), *controls)
    refused = scene.query(str(tmp_path / "runs/batch-own/manifest.jsonl"), "--source", str(traces))
    named = scene.query(str(tmp_path / "items.jsonl"), "--name", "named", *controls)

    for each, name in ((done, "own"), (again, "own"), (named, "named")):
        assert each.returncode == 3, each.stderr
        results = (tmp_path / f"runs/batch-{name}/results.jsonl").read_text().splitlines()
        verdicts = [json.loads(result)["verdicts"] for result in results]
        assert {"own.gateway": "fail"} in verdicts
        assert {control for each in verdicts for control in each} <= {"own.gateway"}
    assert refused.returncode == 2 and "--controls-file" in refused.stderr
    assert "there are none" in scene.query("--all-errors", "--source", str(traces), *controls).stderr


def test_when_no_trace_fails_any_more_every_earlier_issue_is_gone_and_the_night_after_may_compare_again(
    traces: Path, tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    nights = [("one", "2026-11-01T00:00Z", {"new": 1}), ("two", "2099-01-01T00:00Z", {"gone": 1})]
    nights.append(("three", "2026-11-01T00:00Z", {"reopened": 1}))
    compare: list[str] = []
    for name, since, states in nights:
        flags = ["--all-errors", "--since", since, "--source", str(traces), "--name", name, "--json", *compare]
        done = scene.query(*flags)

        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["issues"]["states"] == states
        compare = ["--compare", str(tmp_path / "runs" / f"batch-{name}")]


def test_a_budget_above_what_any_investigation_may_have_is_refused_once(traces: Path, tmp_path: Path) -> None:
    done = Scene(tmp_path).query("--all-errors", "--source", str(traces), "--max-iterations", "61", "--name", "night")

    assert done.returncode == 2
    assert "61 is above the contract's maximum of 60" in done.stderr
    assert not (tmp_path / "runs/batch-night/results.jsonl").exists()


def test_a_query_that_was_stopped_names_the_command_that_goes_on_with_the_same_items(
    traces: Path, tmp_path: Path
) -> None:
    scene = Scene(tmp_path)
    model = ["--model", "openai:gpt-4o-mini", "--base-url", "http://127.0.0.1:9/v1"]
    stopped = scene.query("--all-errors", "--source", str(traces), *model, "--max-cost-usd", "0.0000001", "--quiet")
    assert stopped.returncode == 1
    again = next(line for line in stopped.stderr.splitlines() if "continues from here" in line)
    words = again.partition(" sonde batch ")[2].removesuffix(" continues from here").split()

    done = scene.query(*words, "--json")

    assert json.loads(done.stdout)["finished"] == 3, done.stderr
    assert len([*(tmp_path / "runs").glob("batch-*")]) == 1
