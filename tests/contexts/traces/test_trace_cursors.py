"""Cursors: going on where a page said never skips a span, and a cursor that leads nowhere is said."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from trace_samples import TRACE, raw_span, store_of

from sonde.contexts.traces.filestore import SCANNED_SPANS, FileStore
from sonde.contexts.traces.inspection import SCANNED_CHARS, Inspection
from sonde.contexts.traces.span import Micros, Span, build_span
from sonde.contexts.traces.store import UnknownSpan, UnknownTrace

SIZE = 8_000_000


class LongTrace(FileStore):
    """A store with one trace whose spans share one long text, so that it costs no memory; the last one has a needle."""

    def spans(self, trace_id: str) -> Iterator[Span]:
        hay = "x" * SIZE
        for number in range(SCANNED_CHARS // SIZE + 3):
            table = {"output.value": hay, "note": "needle" if number >= SCANNED_CHARS // SIZE else ""}
            yield build_span(
                trace_id=trace_id, span_id=f"{number:016x}", start=Micros(number), attributes=table, name="s"
            )


def test_a_search_that_ran_into_its_limit_goes_on_without_skipping_a_span(tmp_path: Path) -> None:
    store = LongTrace(store_of(tmp_path, [raw_span(1)]).source)
    search = Inspection(store).search_trace
    found: list[str] = []
    after: str | None = None
    for _ in range(5):
        seen = search(TRACE, "needle", after=after)
        found += [row["span_id"] for row in seen.value]
        if seen.truncated is None:
            break
        after = seen.truncated.rpartition("after=")[2].strip("'")

    assert found == [f"{number:016x}" for number in range(SCANNED_CHARS // SIZE, SCANNED_CHARS // SIZE + 3)]


def test_a_cursor_that_is_not_there_is_a_fault_and_not_an_empty_page(tmp_path: Path) -> None:
    look = Inspection(store_of(tmp_path, [raw_span(1, name="needle")]))

    with pytest.raises(UnknownSpan):
        look.search_trace(TRACE, "needle", after="nowhere")
    with pytest.raises(UnknownTrace):
        look.list_traces("default", after="nowhere")
    assert look.search_trace(TRACE, "needle", after=f"{1:016x}").value == []
    assert look.list_traces("default", after=TRACE).value == []


def test_a_filter_that_ran_into_its_limit_goes_on_without_skipping_a_trace(tmp_path: Path) -> None:
    rows = [raw_span(n, trace_id=f"{n:032x}", parent_id=None, name="needle" if n > 1 else "hay") for n in (1, 2, 3)]
    store = store_of(tmp_path, rows, cache=tmp_path / "cache")
    with closing(sqlite3.connect(store.indexed.path)) as index:  # as if the first trace had that many spans
        index.execute("UPDATE traces SET spans = ? WHERE trace_id = ?", (SCANNED_SPANS, f"{1:032x}"))
        index.commit()
    look = Inspection(store)

    first = look.list_traces("default", filter_expr="name == 'needle'")
    after = str(first.truncated).rpartition("after=")[2].strip("'")
    second = look.list_traces("default", filter_expr="name == 'needle'", after=after)

    assert first.value == []
    assert [row["trace_id"] for row in second.value] == [f"{2:032x}", f"{3:032x}"]
