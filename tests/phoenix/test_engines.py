"""The three engines with a scripted model against a real Phoenix server (`make test-phoenix`): every annotation is read back by REST
and seen in Phoenix's own page.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest
from phoenix_loading import protobuf, send, wait_for

import sonde
from sonde.contexts.traces.catalog import export_traces, open_store
from sonde.testing import ScriptedModel

pytestmark = [pytest.mark.phoenix, pytest.mark.timeout(600)]
REPOSITORY = Path(__file__).parents[2]
BROWSER = REPOSITORY / ".tools" / "browser"
PROJECT = "engines"
TRACE = "e" * 32
ROOT, TOOL, LLM = (f"e{number:015x}" for number in (1, 2, 3))
EVIDENCE = f"[{{'kind': 'SPAN', 'ref': '{TOOL}'}}, {{'kind': 'TOOL_IO', 'ref': 'tool:{TOOL}'}}]"
LOOK = f"print(get_span('{TOOL}')['summary']['status_message'], get_tool_io('{TOOL}')['tool_name'])"
Json = dict[str, Any]


def raw(span_id: str, name: str, second: int, kind: str, **more: Any) -> Json:
    """A span in the form that the loader takes."""
    start = datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
    return {
        "trace_id": TRACE,
        "span_id": span_id,
        "parent_span_id": None if span_id == ROOT else ROOT,
        "span_name": name,
        "timestamp": start.isoformat(),
        "duration": "PT1S",
        "status_code": more.get("status", "Ok"),
        "status_message": more.get("message", ""),
        "span_attributes": {"openinference.span.kind": kind, **more.get("attributes", {})},
        "events": [],
    }


SPANS = [
    raw(ROOT, "checkout", 0, "AGENT"),
    raw(LLM, "plan", 1, "LLM", attributes={"output.value": "call the tool", "llm.model_name": "m"}),
    raw(TOOL, "book", 2, "TOOL", status="Error", message="TimeoutError: no answer", attributes={"tool.name": "book"}),
]


@pytest.fixture(scope="module")
def url() -> str:
    address = os.environ["PHOENIX_URL"]
    send(address, PROJECT, [protobuf(span) for span in SPANS])
    wait_for(len(SPANS), address, PROJECT)
    return address


def scripted(submit: str) -> ScriptedModel:
    return ScriptedModel([json.dumps({"reasoning": "as scripted", "code": code}) for code in (LOOK, submit)])


def options(submit: str, runs_dir: Path) -> sonde.RunOptions:
    return sonde.RunOptions(model=scripted(submit), settings=sonde.Settings(), runs_dir=runs_dir)


def rca(url: str, runs_dir: Path, confidence: float = 0.8) -> sonde.Investigation:
    other = "alternatives=[{'hypothesis': 'the prompt drifted', 'why_rejected': 'the plan names the right tool'}]"
    judged = f"primary_label='tool_failure', summary='book timed out', confidence={confidence}"
    submit = f"SUBMIT({judged}, evidence_refs={EVIDENCE}, {other})"
    return sonde.rca(TRACE, url, project=PROJECT, **options(submit, runs_dir))


def comply(url: str, runs_dir: Path) -> sonde.Investigation:
    finding = (
        f"{{'control_id': 'output.format.review', 'pass_fail': 'fail', 'confidence': 0.9, 'evidence_refs': {EVIDENCE}}}"
    )
    return sonde.comply(TRACE, url, project=PROJECT, **options(f"SUBMIT(findings=[{finding}])", runs_dir))


def incident(url: str, runs_dir: Path) -> sonde.Investigation:
    submit = "SUBMIT(incident_summary='checkout failed', timeline=timeline, confidence=0.6)"
    return sonde.incident(url, project=PROJECT, start="2025-12-31T00:00Z", **options(submit, runs_dir))


def on_server(url: str, level: str, target: str) -> dict[str, Json]:
    """Annotations of one target by name, straight from the server."""
    reply = httpx2.get(f"{url}/v1/projects/{PROJECT}/{level}_annotations", params={f"{level}_ids": target}, timeout=60)
    return {row["name"]: row for row in reply.json()["data"]} if reply.status_code == 200 else {}


def check_all_are_there(url: str, found: sonde.Investigation) -> set[str]:
    """Every annotation of the run is on the server, word for word; their names."""
    assert (found.status, found.annotator_kind) == ("succeeded", "LLM"), found.gaps
    assert found.record.writeback_ref.writeback_status == "succeeded"
    assert found.run_dir is not None
    sent = [json.loads(line) for line in (found.run_dir / "annotations.jsonl").read_text().splitlines()]
    assert len(found.record.writeback_ref.phoenix_annotation_ids) == len(sent)
    for each in sent:
        about = ("span", each["target_span_id"]) if each["target_span_id"] else ("trace", each["target_trace_id"])
        there = on_server(url, *about)[each["name"]]
        assert there["annotator_kind"] == each["annotator_kind"]
        said = {"label": each["label"], "score": each["score"], "explanation": each["explanation"]}
        assert {key: there["result"][key] for key in said} == said
        fields = ("run_id", "engine_type", "schema_version", "name", "annotator_kind")
        assert {key: there["metadata"][key] for key in fields} == {key: each[key] for key in fields}
        assert there["identifier"] == each["identifier"]
        assert json.loads(each["explanation_json"]).items() <= there["metadata"].items(), "the data is in the metadata"
    return {each["name"] for each in sent}


@pytest.mark.requirement(104, 105)
def test_each_engines_annotations_are_on_the_server_as_they_were_written(url: str, tmp_path: Path) -> None:
    assert check_all_are_there(url, rca(url, tmp_path)) == {"rca.primary", "rca.evidence"}
    names = check_all_are_there(url, comply(url, tmp_path))
    assert {"compliance.overall", "compliance.control.output.format.review.evidence"} <= names
    assert check_all_are_there(url, incident(url, tmp_path)) == {"incident.dossier", "incident.timeline.evidence"}


def test_a_second_run_replaces_and_publishing_again_changes_nothing(url: str, tmp_path: Path) -> None:
    rca(url, tmp_path, 0.7)
    second = rca(url, tmp_path, 0.9)

    primary = on_server(url, "trace", TRACE)["rca.primary"]
    assert (primary["result"]["score"], primary["metadata"]["run_id"]) == (0.9, second.record.run_id)
    assert second.run_dir is not None
    done = sonde.publish_run(second.run_dir, source=url, settings=sonde.Settings())
    assert (done.status, done.record.status) == ("succeeded", "succeeded")
    assert on_server(url, "trace", TRACE)["rca.primary"]["id"] == primary["id"]


def test_the_same_trace_from_a_file_gives_the_same_report(url: str, tmp_path: Path) -> None:
    exported = tmp_path / "traces.jsonl"
    with exported.open("w") as stream:
        export_traces(open_store(url, project=PROJECT), [TRACE], stream)
    quiet = sonde.RunOptions(settings=sonde.Settings(), in_memory=True)
    here = sonde.rca(TRACE, exported, **quiet)
    there = sonde.rca(TRACE, url, project=PROJECT, writeback=False, **quiet)

    assert here.report == there.report
    assert here.record.dataset_ref.dataset_hash == there.record.dataset_ref.dataset_hash
    assert here.record.dataset_ref.dataset_id == "traces.jsonl"
    assert there.record.dataset_ref.dataset_id == f"{url.partition('://')[2]}/{PROJECT}"


@pytest.mark.skipif(
    not (BROWSER / "node_modules").exists() or shutil.which("chromium") is None, reason="run scripts/browser.sh first"
)
def test_the_links_of_the_report_open_the_annotations_in_phoenix_own_page(url: str, tmp_path: Path) -> None:
    found = rca(url, tmp_path)
    assert found.run_dir is not None
    link = f"{url}/redirects/spans/{TOOL}"
    assert link in (found.run_dir / "report.md").read_text()
    shots = REPOSITORY / ".tools" / "shots" / "phoenix"
    shots.mkdir(parents=True, exist_ok=True)
    wanted = json.dumps([[link, ["rca.evidence", "tool_error"]], [f"{url}/redirects/traces/{TRACE}", ["rca.primary"]]])
    command = ["node", str(Path(__file__).with_name("page.mjs")), str(BROWSER), str(shots), wanted]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)

    assert shown.returncode == 0, shown.stderr
    span_page, trace_page = json.loads(shown.stdout)
    assert span_page["found"] == ["rca.evidence", "tool_error"]
    assert trace_page["found"] == ["rca.primary"]


def test_a_free_question_is_answered_from_the_spans_of_the_server(url: str, tmp_path: Path) -> None:
    look = f"print(sql('SELECT name, status FROM spans ORDER BY start_time'), get_span('{TOOL}')['summary'], groups[0]['id'])"
    finish = f"FINAL(f\"book timed out. [span:{TOOL}] [group:{{groups[0]['id']}}]\")"
    model = ScriptedModel([f"```python\n{look}\n```", f"```python\n{finish}\n```"])
    question: Json = {"source": url, "project": PROJECT, "settings": sonde.Settings(source=url), "runs_dir": tmp_path}

    answer = sonde.ask("Why do checkouts fail?", **question, model=model)
    counted = sonde.ask("Why do checkouts fail?", **question)
    assert answer.run_dir is not None
    again = sonde.replay(answer.run_dir, settings=sonde.Settings(source=url), trust_run=True)

    assert answer.status == "succeeded", answer.gaps
    assert [each.kind for each in answer.citations] == ["SPAN", "TOOL_IO"]
    assert "Loaded: 1 trace, 3 spans, 1 with errors" in model.requests[0].messages[1].content
    assert "1 trace begun from 2026-01-01T00:00:00Z" in counted.text and "TimeoutError: no answer" in counted.text
    assert again.differences == ()
