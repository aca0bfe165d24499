"""The inspection tools through the registry: names, fields, order, pages, caps, citations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from trace_samples import START_NS, TRACE, TRAIL, raw_span, store_of

from sonde.contexts.configs import ConfigSnapshots
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.inspection import Inspection
from sonde.contexts.traces.store import TraceQuery, UnknownSpan
from sonde.core.canonical import sha256_text
from sonde.core.evidence import EvidenceLog, Excerpt
from sonde.errors import ToolFault
from sonde.tools import ToolRegistry

SIXTEEN = {
    "list_traces",
    "list_spans",
    "get_spans",
    "get_span",
    "get_children",
    "get_messages",
    "get_tool_io",
    "get_retrieval_chunks",
    "search_trace",
    "search",
    "list_controls",
    "get_control",
    "required_evidence",
    "list_config_snapshots",
    "get_config_snapshot",
    "get_config_diff",
}
SUMMARY = {
    "trace_id",
    "span_id",
    "parent_id",
    "name",
    "span_kind",
    "status_code",
    "status_message",
    "start_time",
    "end_time",
    "latency_ms",
}


def registry(store: Any, **options: Any) -> ToolRegistry:
    return ToolRegistry(TracesContext(store, **options).tools())


def sample(folder: Path) -> FileStore:
    tool = {
        "openinference.span.kind": "TOOL",
        "tool.name": "add",
        "input.value": "1+1",
        "output.value": "Timeout while adding",
    }
    retriever = {
        "openinference.span.kind": "RETRIEVER",
        "retrieval.documents.0.document.id": "d",
        "retrieval.documents.0.document.content": "some text",
        "retrieval.documents.0.document.score": 0.75,
    }
    llm = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hello",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "ho",
    }
    rows = [
        raw_span(1),
        raw_span(2, attributes=tool, status_code="ERROR", status_message="it timed out"),
        raw_span(3, attributes=retriever),
        raw_span(4, attributes=llm, parent_id=f"{3:016x}"),
    ]
    return store_of(folder, rows)


@pytest.mark.requirement(85)
def test_the_sixteen_tools_of_the_contract_are_there_and_only_read(tmp_path: Path) -> None:
    tools = {tool.name: tool for tool in TracesContext(sample(tmp_path)).tools()}

    of_a_trace = {"overview", "read_trace", "get_path", "get_attribute", "get_annotations"}
    assert tools.keys() == SIXTEEN | of_a_trace | {"group_by", "rate_over_time", "compare_windows"}
    assert all(tool.read_only and tool.doc for tool in tools.values())


@pytest.mark.requirement(85)
def test_rows_have_the_fields_of_the_contract(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))
    span = {"span_id": "0000000000000002"}

    assert set(tools.call("list_traces", {"project_name": "default"}).result[0]) == {
        "project_name",
        "trace_id",
        "span_count",
        "start_time",
        "end_time",
        "latency_ms",
    }
    assert set(tools.call("list_spans", {"trace_id": TRACE}).result[0]) == SUMMARY
    whole = tools.call("get_span", span).result
    assert set(whole) == {"summary", "attributes", "events"}
    assert set(whole["summary"]) == SUMMARY
    io = {"trace_id", "span_id", "artifact_id", "tool_name", "input", "output", "status_code"}
    assert set(tools.call("get_tool_io", span).result) == io
    message = tools.call("get_messages", {"span_id": "0000000000000004"}).result[0]
    assert set(message) == {"trace_id", "span_id", "role", "content", "metadata"}
    chunk = tools.call("get_retrieval_chunks", {"span_id": "0000000000000003"}).result[0]
    assert set(chunk) == {
        "trace_id",
        "span_id",
        "artifact_id",
        "document_id",
        "chunk_id",
        "content",
        "score",
        "metadata",
    }
    hit = tools.call("search_trace", {"trace_id": TRACE, "pattern": "timed"}).result[0]
    assert set(hit) == {"trace_id", "span_id", "field", "value_snippet"}


@pytest.mark.requirement(100)
def test_spans_come_by_start_then_id_whatever_the_order_in_the_file(tmp_path: Path) -> None:
    rows = [raw_span(n, start_time=START_NS + (n % 2) * 10**6) for n in (5, 4, 3, 2, 1)]

    found = registry(store_of(tmp_path, rows)).call("list_spans", {"trace_id": TRACE}).result

    assert [row["span_id"][-1] for row in found] == ["2", "4", "1", "3", "5"]


def test_spans_can_be_had_by_kind_children_and_path(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    assert [row["name"] for row in tools.call("get_spans", {"trace_id": TRACE, "type": "tool"}).result] == ["step 2"]
    assert [row["name"] for row in tools.call("get_children", {"span_id": "0000000000000001"}).result] == [
        "step 2",
        "step 3",
    ]
    assert [row["name"] for row in tools.call("get_path", {"span_id": "0000000000000004"}).result] == [
        "step 1",
        "step 3",
        "step 4",
    ]
    assert tools.call("get_tool_io", {"span_id": "0000000000000001"}).result is None


@pytest.mark.parametrize(
    "tool", ["get_span", "get_children", "get_messages", "get_tool_io", "get_retrieval_chunks", "get_path"]
)
def test_an_unknown_span_is_a_fault_for_the_model_and_a_key_error_for_code(tool: str, tmp_path: Path) -> None:
    store = sample(tmp_path)

    with pytest.raises(ToolFault):
        registry(store).call(tool, {"span_id": "nope"})
    with pytest.raises(KeyError) as raised:
        getattr(Inspection(store), tool)("nope")
    assert isinstance(raised.value, UnknownSpan)


def test_an_unknown_trace_is_a_fault(tmp_path: Path) -> None:
    for tool in ("list_spans", "get_spans", "overview"):
        with pytest.raises(ToolFault):
            registry(sample(tmp_path)).call(tool, {"trace_id": "nope"})


def test_an_unknown_project_is_a_fault_that_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ToolFault, match="there are: default"):
        registry(sample(tmp_path)).call("list_traces", {"project_name": "nope"})
    late = {"project_name": "default", "start_time": "2030-01-01T00:00:00Z"}
    assert registry(sample(tmp_path)).call("list_traces", late).result == []


def every_excerpt(tools: ToolRegistry, trace_id: str) -> list[Excerpt]:
    found = [*tools.call("overview", {"trace_id": trace_id}).excerpts]
    found += tools.call("search_trace", {"trace_id": trace_id, "pattern": "e"}).excerpts
    for row in tools.call("list_spans", {"trace_id": trace_id}).result:
        for tool in ("get_span", "get_messages", "get_tool_io", "get_retrieval_chunks", "get_path", "get_children"):
            found += tools.call(tool, {"span_id": row["span_id"]}).excerpts
    return found


@pytest.mark.requirement("O2")
@pytest.mark.requirement(117)
def test_whatever_a_tool_shows_can_be_read_again_to_the_same_hash(tmp_path: Path) -> None:
    for store, trace_ids in (
        (sample(tmp_path), [TRACE]),
        (trail := FileStore(TRAIL), [r.trace_id for r in trail.traces(TraceQuery()).rows]),
    ):
        context = TracesContext(store)
        tools = ToolRegistry(context.tools())
        for trace_id in trace_ids:
            excerpts = every_excerpt(tools, trace_id)
            log = EvidenceLog()
            log.note(excerpts)
            assert {str(excerpt.kind) for excerpt in excerpts} >= {"SPAN", "MESSAGE", "TOOL_IO"}
            assert all(log.prove(excerpt, context.reread) is None for excerpt in excerpts)
            assert all(len(excerpt.hash) == 64 and excerpt.trace_id == trace_id for excerpt in excerpts)


@pytest.mark.requirement("O1")
def test_pointers_have_the_spelling_of_the_contract(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    refs = {(str(e.kind), e.ref) for e in every_excerpt(tools, TRACE)}

    assert ("SPAN", "0000000000000001") in refs
    assert ("SPAN", "0000000000000002:attributes") in refs
    assert ("TOOL_IO", "tool:0000000000000002") in refs
    assert ("RETRIEVAL_CHUNK", "retrieval:0000000000000003:0:d") in refs
    assert any(kind == "MESSAGE" and ref.startswith("message:0000000000000004:") for kind, ref in refs)


def test_a_pointer_to_something_else_is_not_proved(tmp_path: Path) -> None:
    context = TracesContext(sample(tmp_path))
    (excerpt, *_) = ToolRegistry(context.tools()).call("get_tool_io", {"span_id": "0000000000000002"}).excerpts
    elsewhere = Excerpt(kind=excerpt.kind, ref="tool:0000000000000009", hash=excerpt.hash, span_id="0000000000000009")
    other = Excerpt(kind=excerpt.kind, ref="tool:0000000000000001", hash=excerpt.hash, span_id="0000000000000001")

    assert context.reread(elsewhere) is None
    assert context.reread(other) is None
    assert sha256_text(context.reread(excerpt) or "") == excerpt.hash


def test_a_change_of_the_data_breaks_the_proof(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    before = TracesContext(sample(tmp_path / "a"))
    after = TracesContext(store_of(tmp_path / "b", [raw_span(1, name="renamed")]))
    (excerpt, *_) = ToolRegistry(before.tools()).call("get_span", {"span_id": "0000000000000001"}).excerpts
    log = EvidenceLog()
    log.note([excerpt])

    assert log.prove(excerpt, before.reread) is None
    assert log.prove(excerpt, after.reread) is not None


def test_long_texts_are_cut_and_can_be_read_on(tmp_path: Path) -> None:
    text = "".join(f"{number:08d}" for number in range(150_000))
    tools = registry(store_of(tmp_path, [raw_span(1, attributes={"output.value": text})]))

    shown = tools.call("get_span", {"span_id": "0000000000000001"})
    piece = tools.call(
        "get_attribute", {"span_id": "0000000000000001", "key": "output.value", "start": 65_536, "length": 8}
    )

    assert shown.truncated is not None and "get_attribute" in shown.truncated
    assert piece.result == {"text": text[65_536 : 65_536 + 8], "start": 65_536, "total": 1_200_000}
    with pytest.raises(ToolFault):
        tools.call("get_attribute", {"span_id": "0000000000000001", "key": "nothing"})


def test_search_finds_fields_and_says_when_it_stopped(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    def hits(**args: Any) -> list[tuple[str, str]]:
        result = tools.call("search_trace", {"trace_id": TRACE, **args}).result
        return [(row["span_id"][-1], row["field"]) for row in result]

    assert hits(pattern="TIMED? ?OUT") == [("2", "status_message"), ("2", "output.value")]
    assert hits(pattern="timed? ?out", fields=["output"]) == [("2", "output.value")]
    assert hits(pattern="step", limit=2) == [("1", "name"), ("2", "name")]
    assert hits(pattern="step", after="0000000000000002") == [("3", "name"), ("4", "name")]
    stopped = tools.call("search_trace", {"trace_id": TRACE, "pattern": "step", "limit": 2}).truncated
    assert stopped is not None and "after='0000000000000002'" in stopped
    with pytest.raises(ToolFault):
        tools.call("search_trace", {"trace_id": TRACE, "pattern": "(?=x)"})


def test_search_in_texts_gives_sorted_distinct_matches(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    assert tools.call("search", {"text_or_chunks": "b2 a1 B2", "pattern": "[ab][0-9]"}).result == ["B2", "a1", "b2"]
    chunks = tools.call("get_retrieval_chunks", {"span_id": "0000000000000003"}).result
    assert tools.call("search", {"text_or_chunks": chunks, "pattern": "t.xt"}).result == ["text"]
    assert tools.call("search", {"text_or_chunks": "é1 日本2 😀", "pattern": r"[^ ]*\d|."}).result == [
        " ",
        "é1",
        "日本2",
        "😀",
    ]
    assert tools.call("search", {"text_or_chunks": "ééxéx", "pattern": "x?"}).result == ["x"]
    with pytest.raises(ToolFault):
        tools.call("search", {"text_or_chunks": 5, "pattern": "x"})


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_search_that_finds_everything_takes_the_length_of_the_text_and_not_its_square(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    assert tools.call("search", {"text_or_chunks": "x" * 400_000, "pattern": "x"}).result == ["x"]


def test_an_overview_groups_errors_that_say_the_same(tmp_path: Path) -> None:
    failed = {"status_code": "ERROR", "name": "fetch"}
    rows = [raw_span(n, status_message=f"row {n} of table 'x{n}' is locked", **failed) for n in range(2, 6)]
    overview = registry(store_of(tmp_path, [raw_span(1), *rows])).call("overview", {"trace_id": TRACE}).result

    assert overview["span_count"] == 5
    assert [(group["name"], group["count"]) for group in overview["error_groups"]] == [("fetch", 4)]
    assert overview["kinds"] == {"CHAIN": 5}
    assert overview["statuses"] == {"ERROR": 4, "OK": 1}
    assert overview["latency_ms"] == {"p50": 5.0, "p90": 5.0, "p95": 5.0, "p99": 5.0, "max": 5.0}


def test_the_fingerprint_of_chosen_traces_does_not_depend_on_the_file_around_them(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    small = store_of(tmp_path / "a", [raw_span(1)])
    large = store_of(tmp_path / "b", [raw_span(9, trace_id="b" * 32), raw_span(1)])

    assert small.fingerprint() != large.fingerprint()
    assert (
        TracesContext(small, trace_ids=[TRACE]).fingerprint() == TracesContext(large, trace_ids=[TRACE]).fingerprint()
    )


def test_config_diffs_are_citable_beside_the_traces(tmp_path: Path) -> None:
    for tag, value in (("v1", "a: 1\n"), ("v2", "a: 2\n")):
        folder = tmp_path / "snapshots" / tag
        folder.mkdir(parents=True)
        (folder / "app.yaml").write_text(value, "utf-8")
        (folder / "metadata.json").write_text(
            f'{{"created_at": "2026-01-0{tag[1]}T00:00:00Z", "git_commit": "{tag}"}}', "utf-8"
        )
    context = TracesContext(sample(tmp_path), configs=ConfigSnapshots(tmp_path / "snapshots"))

    found = ToolRegistry(context.tools()).call(
        "get_config_diff", {"base_snapshot_id": "v1", "target_snapshot_id": "v2"}
    )

    assert found.excerpts[0].ref == found.result["diff_ref"]
    assert sha256_text(context.reread(found.excerpts[0]) or "") == found.excerpts[0].hash


@pytest.mark.requirement(85)
def test_a_trace_is_read_aloud_page_by_page_with_its_errors_and_every_shown_span_may_be_cited(tmp_path: Path) -> None:
    store = sample(tmp_path)
    context = TracesContext(store)
    tools = ToolRegistry(context.tools())

    whole = tools.call("read_trace", {"trace_id": TRACE, "chars": 5000})
    rest = tools.call("read_trace", {"trace_id": TRACE, "first_step": 1})

    assert "[it ended in an error] it timed out" in whole.result
    assert "document d (score 0.75): some text" in whole.result
    assert whole.result.endswith("[end of the trace]")
    assert [line for line in whole.result.splitlines() if line.startswith("### step")] == [
        "### step 0 | span 0000000000000002 | TOOL step 2 | agent - | ERROR",
        "### step 1 | span 0000000000000003 | RETRIEVER step 3 | agent -",
        "### step 2 | span 0000000000000004 | LLM step 4 | agent -",
    ]
    assert "### step 0" not in rest.result
    assert "### step 2" in rest.result
    refs = {excerpt.ref for excerpt in whole.excerpts}
    assert {"0000000000000002", "0000000000000002:attributes", "tool:0000000000000002", "0000000000000004"} <= refs
    for excerpt in whole.excerpts:
        again = context.reread(excerpt)
        assert again is not None
        assert sha256_text(again) == excerpt.hash


def test_what_is_out_of_the_ordinary_is_said(tmp_path: Path) -> None:
    model = {"openinference.span.kind": "LLM", "output.value": "it is", "llm.finish_reason": "length"}
    rows = [
        raw_span(1),
        raw_span(
            2,
            attributes={"openinference.span.kind": "RETRIEVER", "input.value": "seats"},
            end_time=START_NS + 70 * 10**9,
        ),
        raw_span(3, attributes=model),
    ]

    told = registry(store_of(tmp_path, rows)).call("read_trace", {"trace_id": TRACE}).result

    assert "| agent - | took 70 s\n[new input]\n(user) seats\n[output]\n(no documents came back)" in told
    assert "| agent - | cut off: length\n[output]\nit is" in told


def test_a_long_trace_comes_with_a_line_per_step_and_then_in_pages_of_whole_steps(tmp_path: Path) -> None:
    said = {"openinference.span.kind": "TOOL", "input.value": "ask"}
    looks = [raw_span(2 + n, attributes={**said, "output.value": f"wor{n} " * 100}) for n in range(8)]
    tools = registry(store_of(tmp_path, [raw_span(1), *looks]))

    first = tools.call("read_trace", {"trace_id": TRACE, "chars": 1400})
    second = tools.call("read_trace", {"trace_id": TRACE, "chars": 1400, "first_step": 2})

    assert first.result.startswith(f"[a line for each of 8 steps]\n0 {2:016x} TOOL step 2 (-): wor0")
    assert f"\n7 {9:016x} TOOL step 9 (-): wor7" in first.result
    assert first.result.endswith("[7 more steps: go on with first_step=1]")
    assert {excerpt.span_id for excerpt in first.excerpts} == {f"{n:016x}" for n in range(2, 10)}
    assert {excerpt.ref for excerpt in first.excerpts if ":" in excerpt.ref} >= {f"{2:016x}:attributes"}
    assert f"{9:016x}:attributes" not in {excerpt.ref for excerpt in first.excerpts}
    assert second.result.startswith("[steps 2 to 3 of a trace of 8 steps]\n\n### step 2 ")


def test_a_search_without_a_match_says_where_it_looked(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    nowhere = tools.call("search_trace", {"trace_id": TRACE, "pattern": "no such words"})
    in_names = tools.call("search_trace", {"trace_id": TRACE, "pattern": "zz", "fields": ["name", "events"]})

    assert (nowhere.result, in_names.result) == ([], [])
    assert nowhere.truncated == "nothing matches 'no such words' in any field of 4 spans"
    assert in_names.truncated == "nothing matches 'zz' in the fields name, events of 4 spans"


def test_the_prompt_says_what_each_tool_returns(tmp_path: Path) -> None:
    told = {each.name: each.prompt for each in TracesContext(sample(tmp_path)).tools()}

    assert not [name for name, text in told.items() if "-> Any" in text]
    assert told["read_trace"].splitlines()[0].endswith("-> str")
    assert "{role, content, metadata}" in told["get_messages"]


def test_a_step_or_trace_that_is_not_there_is_said(tmp_path: Path) -> None:
    tools = registry(sample(tmp_path))

    with pytest.raises(ToolFault, match="no step 9; the trace has 3 steps"):
        tools.call("read_trace", {"trace_id": TRACE, "first_step": 9})
    with pytest.raises(ToolFault, match="nosuch"):
        tools.call("read_trace", {"trace_id": "nosuch"})
