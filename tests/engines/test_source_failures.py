"""A source that cannot serve an investigation: every attempt leaves a record that says why, and nobody sees a traceback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phoenix_double import PhoenixDouble
from trace_cases import TRACE, failed_trace, options, says, write

import sonde
from sonde.errors import ConfigError
from sonde.models.base import ModelRequest
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel


@pytest.fixture
def server() -> Iterator[PhoenixDouble]:
    with PhoenixDouble(failed_trace()) as double:
        yield double


def records(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in folder.glob("*/run_record.json")]


def broken(**changes: Any) -> bytes:
    row: dict[str, Any] = {"context": {"trace_id": TRACE, "span_id": "1" * 16}, "name": "n", "span_kind": "LLM"}
    row |= {"start_time": "2026-01-01T00:00:00Z", "end_time": "2026-01-01T00:00:01Z", "attributes": {}, **changes}
    return json.dumps({"data": [row], "next_cursor": None}).encode()


@pytest.mark.parametrize(
    ("answer", "code", "told"),
    [
        ((401, b'{"detail": "no key"}'), "TOOL_CALL_FAILED", "401"),
        ((200, b"<html><body>Sign in</body></html>"), "TOOL_RESPONSE_INVALID", "is not JSON"),
        ((200, b'{"data": {"rows": 3}}'), "TOOL_RESPONSE_INVALID", "holds no list"),
        ((200, broken(context={})), "TOOL_RESPONSE_INVALID", "a span that cannot be read"),
        ((200, broken(start_time="yesterday")), "TOOL_RESPONSE_INVALID", "a span that cannot be read"),
        ((200, broken(start_time=None)), "TOOL_RESPONSE_INVALID", "a span that cannot be read"),
    ],
)
def test_what_a_server_says_wrong_ends_in_the_record(
    server: PhoenixDouble, tmp_path: Path, answer: tuple[int, bytes], code: str, told: str
) -> None:
    server.answers = answer

    found = sonde.rca(TRACE, server.url, project="shop", **options(runs_dir=tmp_path))

    [record] = records(tmp_path)
    assert (found.status, record["status"], record["error"]["code"]) == ("failed", "failed", code)
    assert told in record["error"]["message"]


def test_a_server_that_breaks_under_the_code_ends_the_run_with_what_there_is(
    server: PhoenixDouble, tmp_path: Path
) -> None:
    def breaking(_request: ModelRequest) -> str:
        server.answers = (200, broken(start_time="yesterday"))
        return says(f"print(get_span('{'9' * 16}'))")

    scripted = ScriptedModel(breaking)
    found = sonde.rca(TRACE, server.url, project="shop", writeback=False, **options(scripted, runs_dir=tmp_path))

    assert found.record.error is not None
    assert (found.status, found.record.error.code) == ("partial", "TOOL_RESPONSE_INVALID")


@pytest.mark.parametrize(
    ("trace", "project", "told"), [("f" * 32, "shop", "no trace"), (TRACE, "bakery", "no project")]
)
def test_a_trace_or_project_that_is_not_there_is_the_callers_mistake_and_leaves_a_record(
    server: PhoenixDouble, tmp_path: Path, trace: str, project: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        sonde.rca(trace, server.url, project=project, **options(runs_dir=tmp_path))

    [record] = records(tmp_path)
    assert record["status"] == "failed" and told in record["error"]["message"]
    assert RunDir(next(path for path in tmp_path.iterdir() if path.is_dir())).text("run_record.json")


def test_the_same_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it begins with"):
        sonde.comply("f" * 32, write(tmp_path, failed_trace()), **options(runs_dir=tmp_path / "runs"))

    assert [record["status"] for record in records(tmp_path / "runs")] == ["failed"]


def test_the_record_names_the_data(server: PhoenixDouble, tmp_path: Path) -> None:
    source = write(tmp_path, failed_trace(), "checkout.jsonl")
    place = server.url.partition("://")[2].rstrip("/")

    for found in (
        sonde.rca(TRACE, source, **options()),
        sonde.comply(TRACE, source, **options()),
        sonde.incident(source, project="shop", **options()),
    ):
        assert found.record.dataset_ref.dataset_id == "checkout.jsonl"
    with pytest.raises(ConfigError):
        sonde.rca("f" * 32, server.url, project="shop", **options(runs_dir=tmp_path / "runs"))
    [record] = records(tmp_path / "runs")
    assert record["dataset_ref"]["dataset_id"] == f"{place}/shop"
