"""Reports as annotations: names, labels, weights and fields of the contract; written back, refused, and tried again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phoenix_double import PhoenixDouble
from trace_cases import IO, LOOK, ROOT, SPAN, TOOL, TRACE, failed_trace, model, options, ref, write

import sonde
from sonde.api.trace_source import Source, source_of
from sonde.contexts.traces.filestore import FileStore
from sonde.errors import ConfigError
from sonde.models.base import ModelRequest
from sonde.testing import ScriptedModel

SUBMIT = (
    f"SUBMIT(primary_label='tool_failure', summary='timed out', confidence=0.8, evidence_refs=[{SPAN}, {IO}, {ref('SPAN', ROOT)}], "
    "alternatives=[{'hypothesis': 'the prompt drifted', 'why_rejected': 'it did not'}], remediation=['retry it'])"
)
SEE = f"{LOOK}\nprint(get_span('{ROOT}')['summary']['name'])"


@pytest.fixture
def server() -> Iterator[PhoenixDouble]:
    with PhoenixDouble(failed_trace()) as double:
        yield double


def rca(server: PhoenixDouble, tmp_path: Path, **more: Any) -> sonde.Investigation:
    return sonde.rca(TRACE, server.url, project="shop", **options(model(SEE, SUBMIT), runs_dir=tmp_path), **more)


def by_name(server: PhoenixDouble) -> dict[str, dict[str, dict[str, Any]]]:
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for (name, target, _), row in server.written.items():
        found.setdefault(name, {})[target] = row
    return found


@pytest.mark.requirement(104, 105)
@pytest.mark.requirement("O1")
def test_a_root_cause_is_one_note_on_the_trace_and_one_on_each_span_of_evidence(
    server: PhoenixDouble, tmp_path: Path
) -> None:
    found = rca(server, tmp_path)

    notes = by_name(server)
    assert set(notes) == {"rca.primary", "rca.evidence"}
    primary = notes["rca.primary"][TRACE]
    assert (primary["level"], primary["annotator_kind"]) == ("trace", "LLM")
    assert (primary["result"]["label"], primary["result"]["score"]) == ("tool_failure", 0.8)
    assert primary["result"]["explanation"] == f"timed out. To do: retry it. More: sonde view {found.record.run_id}"
    assert primary["metadata"] == {
        "run_id": found.record.run_id,
        "engine_type": "rca",
        "schema_version": "1.3.0",
        "name": "rca.primary",
        "annotator_kind": "LLM",
        "confidence": 0.8,
        "report": found.report,
    }
    root = notes["rca.primary"][ROOT]
    assert (root["level"], root["identifier"], root["result"]) == ("span", primary["identifier"], primary["result"])
    evidence = {span: (row["result"]["label"], row["result"]["score"]) for span, row in notes["rca.evidence"].items()}
    assert evidence == {TOOL: ("tool_error", 0.95), ROOT: ("hot_span", 0.8)}
    assert {row["annotator_kind"] for row in notes["rca.evidence"].values()} == {"CODE"}
    assert set(notes["rca.evidence"][TOOL]["metadata"]) >= {"annotator_kind", "evidence_ref", "evidence_refs", "run_id"}
    assert notes["rca.evidence"][TOOL]["result"]["explanation"].startswith("timed out.")


@pytest.mark.requirement(103, 104)
def test_what_was_written_is_in_the_record_and_in_the_folder(server: PhoenixDouble, tmp_path: Path) -> None:
    found = rca(server, tmp_path)

    wrote = found.record.writeback_ref
    assert (found.status, wrote.writeback_status, len(wrote.phoenix_annotation_ids)) == ("succeeded", "succeeded", 4)
    assert (wrote.annotation_names, wrote.annotator_kinds) == (["rca.evidence", "rca.primary"], ["CODE", "LLM"])
    assert found.record.metrics.writeback_succeeded == 4
    assert found.run_dir is not None
    page = (found.run_dir / "report.md").read_text()
    assert f"[`{TOOL}`]({server.url}/redirects/spans/{TOOL})" in page
    lines = [json.loads(line) for line in (found.run_dir / "annotations.jsonl").read_text().splitlines()]
    assert {line["engine_type"] for line in lines} == {"rca"} and len(lines) == 4


@pytest.mark.requirement(113, 115)
def test_what_is_kept_of_a_server_for_the_page_is_masked_like_the_journal(tmp_path: Path) -> None:
    rows = failed_trace()
    rows[-1] |= {"status_message": "TimeoutError: no answer to ann@example.com"}
    with PhoenixDouble(rows) as double:
        found = sonde.rca(TRACE, double.url, project="shop", **options(runs_dir=tmp_path, mask=True))

    assert found.run_dir is not None
    kept = (found.run_dir / "trace.json").read_text()
    assert "no answer to <email-1>" in kept and "ann@example.com" not in kept


def test_a_server_that_refuses_makes_the_run_partial_and_publish_mends_it(
    server: PhoenixDouble, tmp_path: Path
) -> None:
    server.refuse = 403
    found = rca(server, tmp_path)

    error = found.record.error
    assert (found.status, found.record.status) == ("partial", "partial")
    assert error is not None
    assert (error.code, error.stage, error.retryable) == ("WRITEBACK_FAILED", "rca_writeback", True)
    assert found.report is not None, "the report stands"
    assert found.run_dir is not None
    settings = sonde.Settings(source=server.url)
    again = sonde.publish_run(found.run_dir, settings=settings)
    assert (again.status, again.record.status) == ("failed", "partial")
    server.refuse = None
    done = sonde.publish_run(found.run_dir, settings=settings)
    assert (done.status, done.written, done.record.status, done.record.error) == ("succeeded", 4, "succeeded", None)
    written = dict(server.written)
    assert sonde.publish_run(found.run_dir, settings=settings).written == 4
    assert server.written == written, "writing twice is writing once"
    for name in ("run_record.json", "result.json"):
        assert json.loads((found.run_dir / name).read_text())["status"] == "succeeded"
    assert sonde.replay(found.run_dir, settings=settings).equal


def test_targets_that_do_not_exist_are_told_and_everything_else_is_written(
    server: PhoenixDouble, tmp_path: Path
) -> None:
    server.lost = {ROOT}
    found = rca(server, tmp_path)

    assert (found.status, found.record.writeback_ref.writeback_status) == ("partial", "partial")
    assert found.record.error is not None and ROOT in found.record.error.message
    assert set(by_name(server)["rca.evidence"]) == {TOOL}
    assert (found.record.metrics.writeback_succeeded, found.record.metrics.writeback_failed) == (2, 2)


def test_a_second_run_replaces_the_first_and_no_writeback_writes_nothing(server: PhoenixDouble, tmp_path: Path) -> None:
    silent = rca(server, tmp_path, writeback=False)
    assert server.written == {} and silent.record.writeback_ref.writeback_status is None
    rca(server, tmp_path)
    second = rca(server, tmp_path)

    assert len(server.written) == 4
    assert {row["metadata"]["run_id"] for row in server.written.values()} == {second.record.run_id}


def test_a_rule_replaces_no_judgement_of_a_model_unless_asked(server: PhoenixDouble, tmp_path: Path) -> None:
    judged = rca(server, tmp_path)
    before = dict(server.written)
    keyless = sonde.rca(TRACE, server.url, project="shop", **options(runs_dir=tmp_path))

    assert server.written == before
    assert keyless.record.writeback_ref.writeback_status == "succeeded"
    assert keyless.run_dir is not None
    again = sonde.publish_run(keyless.run_dir, settings=sonde.Settings(source=server.url))
    assert (again.written, again.kept) == (0, 3)
    asked = sonde.publish_run(keyless.run_dir, replace_judgements=True, settings=sonde.Settings(source=server.url))
    assert asked.kept == 0
    primary = by_name(server)["rca.primary"][TRACE]
    assert (primary["annotator_kind"], primary["metadata"]["run_id"]) == ("CODE", keyless.record.run_id)
    assert judged.record.run_id != keyless.record.run_id


def test_evidence_that_a_newer_run_does_not_repeat_is_marked_superseded(server: PhoenixDouble, tmp_path: Path) -> None:
    older = rca(server, tmp_path)
    fewer = SUBMIT.replace(f", {ref('SPAN', ROOT)}", "")
    newer = sonde.rca(TRACE, server.url, project="shop", **options(model(SEE, fewer), runs_dir=tmp_path))

    evidence = by_name(server)["rca.evidence"]
    assert evidence[TOOL]["result"]["label"] == "tool_error"
    gone = evidence[ROOT]
    assert (gone["result"]["label"], gone["result"]["score"]) == ("superseded", None)
    assert gone["metadata"]["superseded_run_id"] == older.record.run_id
    assert gone["result"]["explanation"].endswith(f"sonde view {newer.record.run_id}")


def test_for_files_the_annotations_lie_beside_the_report(tmp_path: Path, server: PhoenixDouble) -> None:
    source = write(tmp_path, failed_trace())
    found = sonde.rca(TRACE, source, **options(runs_dir=tmp_path / "runs"))

    assert found.run_dir is not None
    lines = [json.loads(line) for line in (found.run_dir / "annotations.jsonl").read_text().splitlines()]
    assert {line["annotator_kind"] for line in lines} == {"CODE"}
    assert [(line["name"], line["target_trace_id"], line["target_span_id"]) for line in lines] == [
        ("rca.primary", TRACE, None),
        ("rca.primary", None, ROOT),
        ("rca.evidence", None, TOOL),
    ]
    assert all(
        {"run_id", "engine_type", "schema_version", "label", "score", "explanation", "explanation_json"} <= set(line)
        for line in lines
    )
    with pytest.raises(ConfigError, match=r"annotations\.jsonl"):
        sonde.publish_run(found.run_dir, settings=sonde.Settings())
    assert sonde.publish_run(found.run_dir, source=server.url, settings=sonde.Settings()).status == "succeeded"
    assert by_name(server)["rca.primary"][TRACE]["annotator_kind"] == "CODE"


@pytest.mark.requirement("O1")
def test_compliance_is_noted_on_the_trace_and_on_the_spans_of_each_control(
    server: PhoenixDouble, tmp_path: Path
) -> None:
    found = sonde.comply(TRACE, server.url, project="shop", **options(runs_dir=tmp_path))

    notes = by_name(server)
    overall = notes["compliance.overall"][TRACE]
    assert (overall["result"]["label"], overall["result"]["score"]) == ("non_compliant", 0.0)
    assert overall["identifier"] == "sonde:policy_compliance:v1"
    assert set(overall["metadata"]) >= {"annotator_kind", "controls_version", "report", "run_id"}
    assert notes["compliance.overall"][ROOT]["result"] == overall["result"]
    violated = notes["compliance.control.execution.hard_failures.evidence"][TOOL]
    assert (violated["result"]["label"], violated["result"]["score"]) == ("control_violation", 0.0)
    told = violated["metadata"]
    assert set(told) >= {"control_id", "controls_version", "evidence_ref", "missing_evidence", "pass_fail", "run_id"}
    assert told["confidence"] == 0.78
    assert "compliance.control.output.format.review.evidence" not in notes, "nothing is written for a pass"
    assert {row["annotator_kind"] for row in server.written.values()} == {"CODE"}
    assert found.record.writeback_ref.writeback_status == "succeeded"


@pytest.mark.requirement("O1")
def test_a_dossier_is_noted_on_root_spans_and_its_evidence_on_the_spans(server: PhoenixDouble, tmp_path: Path) -> None:
    for tag, day in (("one", "01"), ("two", "02")):
        folder = tmp_path / "configs" / tag
        folder.mkdir(parents=True)
        (folder / "prompt.txt").write_text(tag)
        (folder / "metadata.json").write_text(json.dumps({"created_at": f"2025-12-{day}T00:00:00Z"}))
    sonde.incident(server.url, project="shop", configs=tmp_path / "configs", **options(runs_dir=tmp_path / "runs"))

    notes = by_name(server)
    assert set(notes) == {"incident.dossier", "incident.timeline.evidence"}
    assert notes["incident.dossier"][ROOT]["result"]["label"] == "incident_dossier"
    labels = {span: row["result"]["label"] for span, row in notes["incident.timeline.evidence"].items()}
    assert labels == {TOOL: "timeline_event", ROOT: "change_evidence"}


def test_keys_and_headers_of_the_environment_are_sent_and_stay_out_of_every_file(
    server: PhoenixDouble, tmp_path: Path
) -> None:
    environ = {
        "PHOENIX_API_KEY": "px-secret-key-1",
        "PHOENIX_CLIENT_HEADERS": "X-Tenant=tenant%20secret,X-B=b-secret-value",
    }
    settings = sonde.Settings(environ=environ)
    found = sonde.rca(TRACE, server.url, project="shop", settings=settings, runs_dir=tmp_path)

    sent = server.headers[0]
    assert (sent["authorization"], sent["x-tenant"], sent["x-b"]) == (
        "Bearer px-secret-key-1",
        "tenant secret",
        "b-secret-value",
    )
    assert found.run_dir is not None
    held = "".join(path.read_text() for path in found.run_dir.iterdir())
    assert not any(secret in held for secret in ("px-secret-key-1", "tenant secret", "b-secret-value"))
    with pytest.raises(ConfigError) as refused:
        source_of(server.url, None, {"PHOENIX_CLIENT_HEADERS": "a-secret-without-a-name"})
    assert "a-secret" not in refused.value.message


@pytest.mark.requirement(106)
def test_a_server_that_dies_under_a_tool_ends_the_run_with_the_rules_report(server: PhoenixDouble) -> None:
    def dying(_request: ModelRequest) -> str:
        server.dead = True
        return json.dumps({"reasoning": "", "code": "get_span('feedfacefeedface')"})

    found = sonde.rca(TRACE, server.url, project="shop", writeback=False, **options(ScriptedModel(dying)))

    assert (found.status, found.annotator_kind) == ("partial", "CODE")
    error = found.record.error
    assert error is not None and (error.code, error.retryable) == ("TOOL_CALL_FAILED", False)
    assert found.report is not None and found.report["primary_label"] == "tool_failure"


class FaultyStore(FileStore):
    """A store with a fault of its own."""

    def gaps(self, trace_id: str) -> list[str]:
        raise RuntimeError("a bug")


class FaultySource(Source):
    """Opens it."""

    def open(self, *, still: bool = False) -> FileStore:
        del still
        return FaultyStore(Path(self.source))


@pytest.mark.requirement(114)
def test_a_fault_of_ours_ends_in_the_record_and_not_in_silence(tmp_path: Path) -> None:
    source = FaultySource(source=write(tmp_path, failed_trace()))
    found = sonde.rca(TRACE, source, **options(runs_dir=tmp_path / "runs"))

    assert (found.status, found.report) == ("failed", None)
    assert found.run_dir is not None
    error = json.loads((found.run_dir / "run_record.json").read_text())["error"]
    assert error == {
        "code": "UNEXPECTED_RUNTIME_ERROR",
        "message": "RuntimeError: a bug",
        "stage": "run_engine",
        "retryable": False,
    }


@pytest.mark.slow
@pytest.mark.requirement(106)
def test_a_server_that_is_not_there_fails_the_run_with_a_record(tmp_path: Path) -> None:
    with PhoenixDouble([]) as gone:
        address = gone.url
    found = sonde.rca(TRACE, address, **options(runs_dir=tmp_path))

    assert (found.status, found.report) == ("failed", None)
    assert found.run_dir is not None
    recorded = json.loads((found.run_dir / "run_record.json").read_text())["error"]
    assert (recorded["code"], recorded["retryable"]) == ("TOOL_CALL_FAILED", False)
