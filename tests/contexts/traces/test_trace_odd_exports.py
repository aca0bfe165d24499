"""Odd but legal exports: nothing that a file says is lost or turned into something else."""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from trace_samples import TRACE, raw_span

from sonde.contexts.traces.filestore import FileStore

FIRST, SECOND = "0000000000000001", "0000000000000002"


@pytest.mark.parametrize(
    "text",
    [
        "{0}\n{1}\n",
        "[{0},\n{1}]\n",
        "[ {0}\n, {1}\n]\n",
        '{{"spans":\n[{0}, {1}]}}\n',
        '{{"spans": [\n{0},\n{1}\n]}}',
        '{{"name": "x"\n, "spans": [{0}, {1}]}}',
    ],
)
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_document_is_read_wherever_its_lines_break_and_behind_a_byte_order_mark(
    tmp_path: Path, text: str, mark: bytes
) -> None:
    path = tmp_path / "traces.json"
    path.write_bytes(mark + text.format(json.dumps(raw_span(1)), json.dumps(raw_span(2))).encode())

    with FileStore(path) as store:
        assert [span.span_id for span in store.summaries(TRACE)] == [FIRST, SECOND]
        assert store.malformed() == []


@pytest.mark.parametrize("broken", ['{"trace_id": "x", ', '{"trace_id": "x', "garbage"])
def test_a_broken_first_line_costs_only_itself(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "traces.jsonl"
    path.write_text(f"{broken}\n{json.dumps(raw_span(1))}\n{json.dumps(raw_span(2))}\n")

    with FileStore(path) as store:
        assert [span.span_id for span in store.summaries(TRACE)] == [FIRST, SECOND]
        assert [bad["line"] for bad in store.malformed()] == [1]
