"""What is too large to show is counted: attributes, events and rows, each by its own name."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_samples import raw_span, store_of

from sonde.contexts.traces.caps import RESULT_BYTES
from sonde.contexts.traces.context import TracesContext
from sonde.core.canonical import canonical_json
from sonde.tools import CallResult, ToolRegistry

FIRST = "0000000000000001"


def shown(folder: Path, attributes: int, events: int) -> CallResult:
    event = {"name": "log", "timestamp": 1, "attributes": {"message": "y" * 400}}
    row = raw_span(1, attributes={f"key{n:05}": "x" * 300 for n in range(attributes)}, events=[event] * events)
    store = store_of(folder, [row])
    return ToolRegistry(TracesContext(store).tools()).call("get_span", {"span_id": FIRST})


@pytest.mark.long
def test_events_that_do_not_fit_are_counted_and_the_first_are_shown(tmp_path: Path) -> None:
    found = shown(tmp_path, attributes=3, events=9000)

    count = len(found.result["events"])
    assert 1000 < count < 9000
    assert f"3 of 3 attributes and {count} of 9000 events are shown" in str(found.truncated)
    assert len(canonical_json(found.result)) <= RESULT_BYTES


def test_attributes_that_do_not_fit_leave_room_for_events(tmp_path: Path) -> None:
    found = shown(tmp_path, attributes=9000, events=5)

    count = len(found.result["attributes"])
    assert 1000 < count < 9000
    assert f"{count} of 9000 attributes and 5 of 5 events are shown" in str(found.truncated)
    assert len(found.result["events"]) == 5
