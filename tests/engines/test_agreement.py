"""`sonde bench human`: what people said in Phoenix, beside what Sonde said of the same trace or span."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phoenix_double import PhoenixDouble
from trace_cases import ROOT, TRACE, failed_trace, options

import sonde
from sonde.cli.main import main


@pytest.fixture
def server() -> Iterator[PhoenixDouble]:
    with PhoenixDouble(failed_trace()) as double:
        yield double


def exit_code(*words: str) -> int:
    try:
        return main(list(words))
    except SystemExit as ended:
        return int(ended.code or 0)


def says(name: str, target: str, label: str, level: str) -> dict[str, Any]:
    return {
        "name": name,
        f"{level}_id": target,
        "annotator_kind": "HUMAN",
        "result": {"label": label},
        "identifier": "",
        "level": level,
    }


def test_agreement_is_counted_per_name_and_label(
    server: PhoenixDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sonde.rca(TRACE, server.url, project="shop", **options(runs_dir=tmp_path / "runs"))
    server.written["rca.primary", TRACE, ""] = says("rca.primary", TRACE, "tool_failure", "trace")
    server.written["rca.primary", ROOT, ""] = says("rca.primary", ROOT, "retrieval_failure", "span")
    server.written["mood", TRACE, ""] = says("mood", TRACE, "good", "trace")

    code = exit_code("bench", "human", "--source", server.url, "--project", "shop", "--json")

    told = json.loads(capsys.readouterr().out)
    assert (code, told["traces"]) == (0, 1)
    assert told["agreement"] == [
        {
            "name": "rca.primary",
            "label": "tool_failure",
            "judged": 2,
            "agreed": 1,
            "share": 0.5,
            "others": {"retrieval_failure": 1},
        }
    ]


def test_without_a_person_it_says_how_to_judge(
    server: PhoenixDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert exit_code("bench", "human", "--source", server.url, "--project", "shop") == 0
    assert "annotate a trace or a span with" in capsys.readouterr().out
    assert exit_code("bench", "human", "--source", "traces.jsonl") == 2
