"""Against a real Phoenix server (`make test-phoenix`): equal hashes and tool results in both stores, annotations there and back.

PHOENIX_URL is set by scripts/phoenix.sh. Twenty TRAIL traces are used when the development data is at hand, three otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from phoenix_loading import protobuf, send, wait_for, walk

from sonde.contexts.traces.catalog import open_store
from sonde.contexts.traces.context import TracesContext, trace_hash
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.inspection import Inspection
from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.contexts.traces.span import Row
from sonde.core.evidence import Observed
from sonde.errors import ConfigError
from sonde.phoenix import Annotation, Level, PhoenixClient, PhoenixReads, write_annotations
from sonde.tools import ToolRegistry

pytestmark = [pytest.mark.phoenix, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
DEVELOPMENT = ROOT.parent / "shared" / "data" / "trail"
SHIPPED = ROOT / "tests" / "data" / "trail"
SPAN_TOOLS = ("get_span", "get_children", "get_path", "get_messages", "get_tool_io", "get_retrieval_chunks")


def documents() -> list[Path]:
    """Twenty TRAIL documents: those with gaps in their message indices and small ones, or the three of the repository."""
    swe = sorted(DEVELOPMENT.glob("swe/traces/*.json"))[:2]
    gaia = sorted(DEVELOPMENT.glob("gaia/traces/*.json"), key=lambda path: (path.stat().st_size, path.name))[:18]
    return [*swe, *gaia] or sorted(SHIPPED.glob("*.json"))


@pytest.fixture(scope="module")
def url() -> str:
    return os.environ["PHOENIX_URL"]


@pytest.fixture(scope="module")
def stores(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FileStore, PhoenixStore, list[str]]]:
    """The same raw documents in a folder and, sent as OTLP protobuf, on the server."""
    folder = tmp_path_factory.mktemp("trail")
    project = "trail"
    ids: list[str] = []
    count = 0
    for path in documents():
        shutil.copy(path, folder)
        document = json.loads(path.read_text("utf-8"))
        ids.append(document["trace_id"])
        spans = [protobuf(raw) for raw in walk(document)]
        count += len(spans)
        send(url, project, spans)
    wait_for(count, url, project)
    files, server = FileStore(folder, project=project), open_store(url, project=project)
    assert isinstance(server, PhoenixStore)
    yield files, server, ids
    files.close()
    server.close()


def without_gap_marks(value: Any) -> Any:
    """A server renumbers lists and forgets that it did; only a file can tell that indices had gaps."""
    if isinstance(value, dict):
        items = cast("Row", value).items()
        return {key: without_gap_marks(item) for key, item in items if key not in {"index_gap", "gaps"}}
    if isinstance(value, list):
        return [without_gap_marks(item) for item in cast("list[Any]", value)]
    return value


@pytest.mark.requirement(100)
def test_the_same_traces_have_the_same_hashes_in_both_stores(stores: tuple[FileStore, PhoenixStore, list[str]]) -> None:
    files, server, ids = stores

    assert len(ids) == len(documents())
    for trace_id in ids:
        assert [span.text() for span in server.spans(trace_id)] == [span.text() for span in files.spans(trace_id)]
        assert trace_hash(server, trace_id) == trace_hash(files, trace_id)
    assert TracesContext(files, trace_ids=ids).fingerprint() == TracesContext(server, trace_ids=ids).fingerprint()


@pytest.mark.requirement(85)
def test_every_tool_gives_the_same_result_and_the_same_excerpts_in_both_stores(
    stores: tuple[FileStore, PhoenixStore, list[str]],
) -> None:
    files, server, ids = stores
    pair = [ToolRegistry(TracesContext(store).tools()) for store in (files, server)]

    def same(tool: str, **args: Any) -> Any:
        first, second = (tools.call(tool, args) for tools in pair)
        assert without_gap_marks(first.result) == without_gap_marks(second.result), (tool, args)
        assert first.excerpts == second.excerpts, (tool, args)
        return second.result

    project = server.projects() and files.projects()[0]
    listed = same("list_traces", project_name=project)
    assert len(listed) == len(ids)
    same("list_traces", project_name=project, filter_expr="status_code == 'ERROR' and span_kind == 'TOOL'")
    same("list_traces", project_name=project, filter_expr="'error' in output.value or latency_ms > 60000")
    same("list_traces", project_name=project, start_time=listed[2]["start_time"], end_time=listed[-1]["start_time"])
    same("list_traces", project_name=project, limit=1, after=listed[0]["trace_id"])
    for trace_id in ids:
        same("overview", trace_id=trace_id)
        same("search_trace", trace_id=trace_id, pattern="error|exception")
        same("get_spans", trace_id=trace_id, type="LLM")
        for row in same("list_spans", trace_id=trace_id):
            for tool in SPAN_TOOLS:
                same(tool, span_id=row["span_id"])


def test_genai_spans_arrive_equal_too(url: str, tmp_path: Path) -> None:
    project = f"genai-{os.getpid()}"
    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-x",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.id": "r1",
        "gen_ai.conversation.id": "session-1",
        "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "be brief"}]),
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]),
        "gen_ai.output.messages": json.dumps(
            [
                {
                    "role": "assistant",
                    "parts": [{"type": "tool_call", "id": "c", "name": "add", "arguments": {"a": 1}}],
                    "finish_reason": "tool_call",
                }
            ]
        ),
    }
    tool = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "add",
        "gen_ai.tool.call.id": "c",
        "gen_ai.tool.call.arguments": '{"a": 1}',
        "gen_ai.tool.call.result": '{"sum": 2}',
    }
    rows: list[Row] = []
    for number, table in enumerate((attributes, tool), start=1):
        rows.append(
            {
                "timestamp": "2026-01-01T00:00:01Z",
                "trace_id": f"{os.getpid():032x}",
                "span_id": f"{os.getpid() * 10 + number:016x}",
                "parent_span_id": None,
                "span_name": "chat",
                "span_attributes": table,
                "duration": "PT1S",
                "status_code": "Ok",
                "status_message": "",
                "events": [],
            }
        )
    send(url, project, [protobuf(row) for row in rows])
    wait_for(2, url, project)
    path = tmp_path / "genai.json"
    path.write_text(json.dumps({"trace_id": rows[0]["trace_id"], "spans": rows}), "utf-8")

    server = open_store(url, project=project)
    with FileStore(path) as files:
        for expected in files.spans(rows[0]["trace_id"]):
            assert server.span(expected.summary.span_id).text() == expected.text()
    server.close()


def annotation(label: str, level: Level, target: str) -> Annotation:
    return Annotation(
        run_id="r1",
        engine_type="rca",
        schema_version="1.0.0",
        name="rca.test",
        annotator_kind="CODE",
        label=label,
        score=0.76,
        explanation=json.dumps({"run_id": "r1"}),
        level=level,
        target=target,
        identifier="sonde-rca",
    )


@pytest.mark.requirement("O1")
def test_annotations_are_written_replaced_and_read_back_at_every_level(
    stores: tuple[FileStore, PhoenixStore, list[str]], url: str
) -> None:
    files, server, ids = stores
    trace_id = ids[0]
    span_ids = [span.span_id for span in files.summaries(trace_id)[:3]]
    client = PhoenixClient(url)

    for label in ("first", "second"):
        spans = [annotation(label, "span", span_id) for span_id in (*span_ids[:2], "ffffffffffffffff", span_ids[2])]
        written = write_annotations([annotation(label, "trace", trace_id), *spans], client)
        assert (len(written.ids), written.unknown, written.error) == (4, ("ffffffffffffffff",), None)
    for target in (span_ids[0], None):
        (found,) = server.annotations(trace_id, target)
        assert (found["label"], found["annotator_kind"], found["identifier"]) == ("second", "CODE", "sonde-rca")
        assert found["metadata"]["engine_type"] == "rca"
    assert Inspection(server).get_annotations(trace_id, span_ids[1])[0]["score"] == 0.76
    client.close()


def test_annotations_on_sessions_are_written_and_read_back(url: str) -> None:
    project, session = f"sessions-{os.getpid()}", f"session-{os.getpid()}"
    raw: Row = {
        "timestamp": "2026-01-01T00:00:01Z",
        "trace_id": f"{os.getpid() + 1:032x}",
        "span_id": f"{os.getpid() * 10 + 5:016x}",
        "parent_span_id": None,
        "span_name": "turn",
        "span_attributes": {"session.id": session},
        "duration": "PT1S",
        "status_code": "Ok",
        "status_message": "",
        "events": [],
    }
    send(url, project, [protobuf(raw)])
    wait_for(1, url, project)
    client = PhoenixClient(url)

    written = write_annotations([annotation("good", "session", target) for target in (session, "unknown")], client)
    found = PhoenixReads(client, project).annotations("session", [session])

    assert (len(written.ids), written.unknown) == (1, ("unknown",))
    assert [(item["name"], item["result"]["label"]) for item in found] == [("rca.test", "good")]
    client.close()


def test_a_project_that_is_not_there_is_told(url: str) -> None:
    store = open_store(url, project="no such project")

    with pytest.raises(ConfigError, match="no such project"):
        store.summaries("a" * 32)
    store.close()


def test_what_the_server_keeps_in_its_database_reads_like_what_it_serves(
    stores: tuple[FileStore, PhoenixStore, list[str]],
) -> None:
    _, server, ids = stores
    path = Path(os.environ["PHOENIX_DB"])

    with FileStore(path) as database:
        for trace_id in ids[:5]:
            assert trace_hash(database, trace_id) == trace_hash(server, trace_id)


def test_observed_values_are_plain_data(stores: tuple[FileStore, PhoenixStore, list[str]]) -> None:
    _, server, ids = stores

    found = Inspection(server).overview(ids[0])

    assert isinstance(found, Observed)
    assert json.loads(json.dumps(found.value)) == found.value
