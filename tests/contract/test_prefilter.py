"""R12: the deterministic pre-filter is part of the loop: what it finds is in the code's variables and in the prompt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sonde
from sonde.testing import ScriptedModel

TRACE, AGENT, TOOL = "a" * 32, "1" * 16, "2" * 16


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    spans = [
        {"span_id": AGENT, "parent_id": None, "name": "agent.run", "status_code": "OK", "kind": "AGENT"},
        {"span_id": TOOL, "parent_id": AGENT, "name": "book.table", "status_code": "ERROR", "kind": "TOOL"},
    ]
    path = tmp_path / "traces.jsonl"
    common = {
        "trace_id": TRACE,
        "project_name": "shop",
        "start_time": "2026-01-01T00:00:00Z",
        "end_time": "2026-01-01T00:00:01Z",
    }
    rows = [{**common, **span, "attributes": {"openinference.span.kind": span.pop("kind")}} for span in spans]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.requirement(12)
def test_what_the_pre_filter_found_is_there_in_the_first_turn_and_costs_no_turn(traces: Path) -> None:
    look = "print('hot', [span['span_id'] for span in hot_spans], 'rule', rule['label'] if 'label' in rule else rule)"
    model = ScriptedModel([json.dumps({"reasoning": "", "code": code}) for code in (look, "SUBMIT()", "SUBMIT()")])
    options = sonde.RunOptions(model=model, in_memory=True, settings=sonde.Settings())

    found = sonde.rca(TRACE, traces, **options)

    assert f"hot ['{TOOL}'" in model.requests[1].messages[-1].content
    assert TOOL in model.requests[0].messages[1].content
    assert found.record.runtime_ref.usage.iterations <= 3
