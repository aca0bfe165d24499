"""Notes of a result: what the tool left out and what the registry cut are both said."""

from __future__ import annotations

from sonde.core.evidence import Observed
from sonde.tools import ToolRegistry


def test_a_cut_does_not_silence_what_the_tool_said_was_left_out() -> None:
    def rows() -> Observed:
        """Rows."""
        return Observed(["x" * 100] * 50, truncated="7 more rows follow")

    found = ToolRegistry([rows], max_result_bytes=1000).call("rows", {})

    assert len(found.result) == 9
    assert "the first 9 of 50 items" in str(found.truncated)
    assert "7 more rows follow" in str(found.truncated)
