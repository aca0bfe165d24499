"""A run shows in a real Phoenix (`make test-phoenix`): the tree, the kinds, tokens and cost. PHOENIX_URL is set by scripts/phoenix.sh."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from typing import Any

import pytest

from runs.streams import told
from sonde.publish.otel import otlp_exporter, send_trace
from sonde.publish.spans import spans_of

pytestmark = [pytest.mark.phoenix, pytest.mark.timeout(300)]
PROJECT = "sonde-runs"


def spans_at(url: str, wanted: int) -> list[dict[str, Any]]:
    """The project's spans, once all are visible: an answer of 200 means queued only."""
    pause = threading.Event()
    found: list[dict[str, Any]] = []
    for _ in range(120):
        try:
            with urllib.request.urlopen(f"{url}/v1/projects/{PROJECT}/spans?limit=1000", timeout=60) as answer:
                found = json.load(answer)["data"]
        except urllib.error.HTTPError:
            pass  # the project appears with its first span
        if len(found) >= wanted:
            return found
        pause.wait(1.0)
    raise AssertionError(f"only {len(found)} of {wanted} spans became visible")


def test_a_run_shows_in_phoenix_with_its_tree_kinds_and_counts() -> None:
    url = os.environ["PHOENIX_URL"]
    ours = {span.id: span for span in spans_of(told(), content=True)}

    sent = send_trace(told(), otlp_exporter(url), content=True, project=PROJECT)
    theirs = {span["context"]["span_id"]: span for span in spans_at(url, sent)}

    assert theirs.keys() == ours.keys()
    for span_id, span in ours.items():
        assert (theirs[span_id]["parent_id"] or None) == span.parent
        assert theirs[span_id]["span_kind"] == span.kind
        assert (theirs[span_id]["status_code"] == "ERROR") == (span.error is not None)
    tokens = sum(int(span["attributes"].get("llm.token_count.prompt", 0)) for span in theirs.values())
    assert tokens == sum(int(str(span.attributes.get("llm.token_count.prompt", 0))) for span in ours.values())
