"""What every source of traces must do, with the same few traces in each: files of several forms, and servers of Phoenix, Langfuse (of
version 4 and 3) and LangSmith that answer as the products define it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest

from contexts.traces import trace_servers as servers
from contexts.traces.trace_samples import as_otlp, write_lines
from contexts.traces.trace_servers import PROJECT, STEPS, Answer, Asked, Step
from sonde.api.trace_source import known_ids, source_of, whole_ids
from sonde.contexts.traces.attributes import canonical_attributes
from sonde.contexts.traces.catalog import overview, query_of, show_trace
from sonde.contexts.traces.inspection import Inspection
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.span import us_of_text
from sonde.contexts.traces.store import TraceQuery, TraceStore, UnknownSpan, UnknownTrace

Json = dict[str, Any]
Ids = Callable[[Step | tuple[str, str]], tuple[str, str]]
Demand = Callable[[tuple[TraceStore, Ids]], None]
KEPT = (
    *("input.value", "output.value", "tool.name", "metadata.prompt_version", "llm.model_name"),
    *("llm.token_count.prompt", "llm.token_count.completion", "llm.token_count.total", "llm.cost.prompt"),
    *("llm.input_messages.0.message.content", "llm.output_messages.0.message.role"),
    "retrieval.documents.0.document.content",
)


@dataclass(frozen=True)
class Kept:
    """The traces in one source: how it names them, and how to open it."""

    name: str
    ids: Ids
    rows: Callable[[], list[Any]] | None = None
    answer: Answer | None = None


def _flat(step: Step) -> Json:
    span = servers.phoenix_span(step)
    return {**span, **span.pop("context")}


def _otlp() -> list[Any]:
    found: list[Any] = []
    for step in STEPS:
        span = servers.phoenix_span(step)
        times = {name: us_of_text(str(span[name])) * 1000 for name in ("start_time", "end_time")}
        table, _ = canonical_attributes(servers.attributes(step))
        found.append(as_otlp({**_flat(step), **times, "attributes": table}))
    return found


SOURCES = (
    Kept("a file of OpenInference spans", servers.hex_ids, rows=lambda: [_flat(step) for step in STEPS]),
    Kept("a file of OTLP requests", servers.hex_ids, rows=_otlp),
    Kept(
        "a file of Langfuse observations",
        servers.hex_ids,
        rows=lambda: [servers.langfuse_observation(step) for step in STEPS],
    ),
    Kept("a file of Langfuse traces", servers.hex_ids, rows=servers.langfuse_traces),
    Kept("a file of LangSmith runs", servers.uuids, rows=lambda: [servers.langsmith_run(step) for step in STEPS]),
    Kept("phoenix", servers.hex_ids, answer=servers.phoenix),
    Kept("langfuse", servers.hex_ids, answer=servers.langfuse),
    Kept("langfuse of version 3", servers.hex_ids, answer=servers.langfuse_v3),
    Kept("langsmith", servers.uuids, answer=servers.langsmith),
    Kept("langsmith with its second interface", servers.uuids, answer=servers.langsmith_v2),
)


@contextmanager
def opened(kept: Kept, folder: Path) -> Generator[tuple[TraceStore, Ids]]:
    nowhere = nullcontext(cast("tuple[str, list[Asked]]", ("", [])))
    with nowhere if kept.answer is None else servers.serving(kept.answer) as (url, _):
        where = f"{kept.name.split()[0]}:{url}"
        if kept.rows is not None:
            where = str(write_lines(folder / "traces.jsonl", kept.rows()))
        place = source_of(where, PROJECT if kept.answer else None, servers.KEYS, folder / "cache")
        with closing(place.open()) as store:
            yield store, kept.ids


MARKED = [pytest.param(kept, id=kept.name, marks=[pytest.mark.long] if kept.answer else []) for kept in SOURCES]
"""`make test` reads the files, `make test-long` asks the servers too."""


@pytest.fixture(scope="module", params=MARKED)
def source(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[TraceStore, Ids]]:
    with opened(request.param, tmp_path_factory.mktemp("source")) as found:
        yield found


def _time(text: str) -> int:
    return us_of_text(f"{servers.DAY}{text}Z")


def _trace_id(ids: Ids, trace: str) -> str:
    return next(ids(step)[0] for step in STEPS if step.trace == trace)


def test_traces_are_listed_by_start_with_their_spans_and_times(source: tuple[TraceStore, Ids]) -> None:
    store, ids = source

    page = store.traces(TraceQuery(limit=10))

    wanted = [
        ("good", 3, "10:00:00.000", "10:00:04.000"),
        ("bad", 4, "11:00:00.000", "11:00:05.000"),
        ("odd", 2, "12:00:00.000", "12:00:01.000"),
    ]
    assert page.more is None
    assert [(row.trace_id, row.span_count, row.start_us, row.end_us) for row in page.rows] == [
        (_trace_id(ids, trace), count, _time(start), _time(end)) for trace, count, start, end in wanted
    ]


def test_spans_have_the_same_times_parents_kinds_and_errors(source: tuple[TraceStore, Ids]) -> None:
    store, ids = source

    for trace in ("good", "bad", "odd"):
        steps = [step for step in STEPS if step.trace == trace]
        found = store.summaries(_trace_id(ids, trace))
        assert [(span.trace_id, span.span_id, span.parent_id, span.name) for span in found] == [
            (*ids(step), ids((trace, step.parent))[1] if step.parent else None, step.name) for step in steps
        ]
        assert [(span.kind, span.status, span.start_us, span.end_us) for span in found] == [
            (step.kind, "ERROR" if step.error else "OK", _time(step.start), _time(step.end)) for step in steps
        ]
        assert [span.status_message for span in found if span.status == "ERROR"] == [
            step.error for step in steps if step.error
        ]
        assert store.gaps(_trace_id(ids, trace)) == []


def test_contents_models_tokens_and_costs_are_the_same(source: tuple[TraceStore, Ids], tmp_path: Path) -> None:
    store, ids = source

    (tmp_path / "first").mkdir()
    with opened(SOURCES[0], tmp_path / "first") as (first, _):
        expected = {step: first.span(servers.hex_ids(step)[1]) for step in STEPS}
    for step, wanted in expected.items():
        span = store.span(ids(step)[1])
        assert {key: span.attributes.get(key) for key in KEPT} == {key: wanted.attributes.get(key) for key in KEPT}


def test_spans_come_whole_and_in_order_and_children_below_their_parent(source: tuple[TraceStore, Ids]) -> None:
    store, ids = source

    bad = _trace_id(ids, "bad")
    assert [span.summary.name for span in store.spans(bad)] == ["checkout", "ask the model", "reserve_stock", "connect"]
    assert [span.name for span in store.children(ids(("bad", "checkout"))[1])] == ["ask the model", "reserve_stock"]
    assert list(store.children(ids(("good", "find_order"))[1])) == []


def test_a_window_a_filter_and_a_place_to_go_on_choose_the_same_traces(source: tuple[TraceStore, Ids]) -> None:
    store, ids = source

    def chosen(**words: Any) -> list[str]:
        return [row.trace_id for row in store.traces(query_of(**words)).rows]

    good, bad, odd = (_trace_id(ids, trace) for trace in ("good", "bad", "odd"))
    assert chosen(start="2026-11-02T11:00:00Z") == [bad, odd]
    assert chosen(start="2026-11-02T10:00:00Z", end="2026-11-02T12:00:00Z") == [good, bad]
    assert chosen(end="2026-11-02T10:00:00Z") == []
    assert chosen(filter_expr="status_code == 'ERROR'") == [bad]
    assert chosen(filter_expr="name == 'find_order'") == [good]
    assert chosen(filter_expr="span_kind == 'RETRIEVER'") == [odd]
    assert chosen(after=good) == [bad, odd]
    first = store.traces(TraceQuery(limit=1))
    assert [row.trace_id for row in first.rows] == [good]
    assert first.more is not None and good in first.more


def test_the_tools_of_a_run_give_the_same_answers(source: tuple[TraceStore, Ids]) -> None:
    store, ids = source

    bad = _trace_id(ids, "bad")
    look = Inspection(store)
    said = look.get_messages(ids(("good", "ask the model"))[1]).value
    assert [(row["role"], row["content"]) for row in said] == [
        ("user", "Where is order 17?"),
        ("assistant", "I look it up."),
    ]
    (hit,) = look.search_trace(bad, "no stock for 18", limit=10).value[:1]
    assert hit["span_id"] == ids(("bad", "checkout"))[1]
    shown = show_trace(store, bad)
    assert [(span["name"], span["depth"]) for span in shown["spans"]] == [
        *(("checkout", 0), ("ask the model", 1), ("reserve_stock", 1), ("connect", 2))
    ]
    glance = overview(store, TraceQuery(limit=10))
    assert (glance["trace_count"], glance["span_count"], glance["failed_traces"]) == (3, 9, 1)
    assert [group["message"] for group in glance["error_groups"]] == [
        *("no stock for 18", "timeout after 3 s", "StockError: no stock for 18")
    ]


def test_what_is_not_there_is_unknown_whatever_its_id_looks_like(source: tuple[TraceStore, Ids]) -> None:
    store, _ = source

    for odd in (
        "f" * 32,
        "f0f0f0f0-0000-4000-8000-f0f0f0f0f0f0",
        "../projects",
        "..",
        "a/b?c#d",
        "%2e%2e",
        "x\r\ny: z",
        "é",
    ):
        with pytest.raises(UnknownTrace):
            store.summaries(odd)
        with pytest.raises(UnknownSpan):
            store.span(odd)


def test_the_beginning_of_an_id_is_enough(source: tuple[TraceStore, Ids]) -> None:
    store, ids = source

    bad = _trace_id(ids, "bad")
    assert whole_ids([bad[:6]], known_ids(source_of("traces.jsonl", None, {}), store)) == [bad]


@pytest.mark.long
def test_a_project_of_a_server_is_known_by_name(tmp_path: Path) -> None:
    for kept in SOURCES:
        if kept.answer is not None:
            with opened(kept, tmp_path) as (store, ids):
                assert PROJECT in store.projects()
                assert store.span(ids(STEPS[0])[1]).project == PROJECT
                assert store.traces(TraceQuery(project="other")).rows == ()


@pytest.mark.long
def test_a_list_of_traces_needs_no_further_request_for_their_outline(tmp_path: Path) -> None:
    for product, answer in (("langfuse", servers.langfuse), ("langsmith", servers.langsmith)):
        with servers.serving(answer) as (url, seen):
            store = source_of(f"{product}:{url}", PROJECT, servers.KEYS).open()
            page = store.traces(TraceQuery(limit=10))
            asked = len(seen)

            assert [len(store.summaries(row.trace_id)) for row in page.rows] == [3, 4, 2]
            assert len(seen) == asked


@pytest.mark.long
@pytest.mark.parametrize(("product", "answer"), [("langfuse", servers.langfuse), ("langsmith", servers.langsmith)])
def test_a_server_that_asks_for_a_pause_gets_it(product: str, answer: Answer) -> None:
    refused: list[Asked] = []

    def busy(asked: Asked) -> servers.Reply:
        if not refused:
            refused.append(asked)
            return 429, {"message": "Rate limit exceeded"}, {"retry-after": "17"}
        return answer(asked)

    with servers.serving(busy) as (url, _):
        store = source_of(f"{product}:{url}", PROJECT, servers.KEYS).open()
        assert isinstance(store, ServerStore)
        pauses: list[float] = []
        store.client._wait = pauses.append  # pyright: ignore[reportPrivateUsage]  # no test sleeps

        assert len(store.traces(TraceQuery(limit=10)).rows) == 3
        assert pauses == [17.0]


@pytest.mark.long
@pytest.mark.parametrize(("product", "answer"), [("langfuse", servers.langfuse), ("langsmith", servers.langsmith)])
def test_a_page_that_is_too_large_is_asked_for_with_fewer_spans(
    product: str, answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.trace_client.MAX_REPLY_BYTES", 100_000)

    def heavy(asked: Asked) -> servers.Reply:
        status, honest, *_ = answer(asked)
        limit = int(asked.one("limit", "0")) if asked.body is None else int(asked.body["limit"])
        padded: Any = honest if "sessions" in asked.path else {**honest, "padding": "x" * 10_000 * limit}
        return status, padded

    with (
        servers.serving(heavy) as (url, _),
        closing(source_of(f"{product}:{url}", PROJECT, servers.KEYS).open()) as store,
    ):
        ids = servers.uuids if product == "langsmith" else servers.hex_ids
        assert len(list(store.spans(_trace_id(ids, "bad")))) == 4


def test_levels_of_langfuse_and_a_trace_with_several_roots(tmp_path: Path) -> None:
    agent, tool = (servers.langfuse_observation(replace(step, parent=None)) for step in STEPS[:2])
    agent |= {"type": "AGENT", "level": "WARNING", "statusMessage": "slow", "traceId": "t1", "id": "a"}
    tool |= {"type": "EVENT", "level": "DEBUG", "traceId": "t1", "id": "b", "usageDetails": {}}
    cached = {"input": 10, "input_cached_tokens": 90, "output": 5, "output_reasoning_tokens": 2, "total": 107}
    spent = {
        **agent,
        "id": "c",
        "type": "GENERATION",
        "usageDetails": cached,
        "level": "DEFAULT",
        "parentObservationId": "a",
    }
    trace = {
        "id": "t1",
        "name": "whole",
        "timestamp": agent["startTime"],
        "release": "v7",
        "tags": ["eu"],
        "userId": "u",
    }
    place = write_lines(tmp_path / "t.jsonl", [{"trace": trace, "observations": [agent, tool, spent]}])

    with closing(source_of(place, None, {}).open()) as store:
        kinds = {span.span_id: (span.kind, span.status, span.parent_id) for span in store.summaries("t1")}
        root, warned, generation = (store.span(span_id).attributes for span_id in ("t-t1", "a", "c"))

    assert kinds == {
        "t-t1": ("CHAIN", "UNSET", None),
        "a": ("AGENT", "OK", "t-t1"),
        "b": ("CHAIN", "OK", "t-t1"),
        "c": ("LLM", "OK", "a"),
    }
    assert (root["release"], root["tag.tags"], root["user.id"]) == ("v7", ["eu"], "u")
    assert warned["langfuse.observation.level"] == "WARNING"
    assert (generation["llm.token_count.prompt"], generation["llm.token_count.completion"]) == (100, 7)


def test_a_run_of_langsmith_that_is_no_model_call_has_no_tokens_of_its_own(tmp_path: Path) -> None:
    place = write_lines(tmp_path / "runs.jsonl", [servers.langsmith_run(step) for step in STEPS])

    with closing(source_of(place, None, {}).open()) as store:
        root = store.span(servers.uuids(STEPS[0])[1])

    assert servers.langsmith_run(STEPS[0])["total_tokens"] == 150
    assert "llm.token_count.total" not in root.attributes
    assert json.loads(root.attributes["input.value"]) == {"order": 17}
