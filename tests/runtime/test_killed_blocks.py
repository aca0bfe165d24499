"""Blocks that were stopped from outside: what they had printed by then is shown, and is no reason for a replay to differ."""

from __future__ import annotations

from pathlib import Path

from sonde.api.ask_run import ask
from sonde.api.rerun import replay
from sonde.api.settings import Settings
from sonde.testing import ScriptedModel

CRASH = """
import os
for number in range(20_000):
    print("a line of the flood, number", number)
os._exit(1)
"""


def test_a_run_whose_block_died_in_a_flood_of_output_replays(tmp_path: Path) -> None:
    model = ScriptedModel([f"```python\n{CRASH}\n```", "```python\nFINAL('done')\n```"])
    answer = ask("?", "some text", model=model, profile="open", settings=Settings(), runs_dir=tmp_path)

    assert answer.value == "done" and answer.run_dir is not None
    seen = model.requests[1].messages[-1].content
    assert "crash" in seen and "characters in all" in seen
    assert replay(answer.run_dir, context="some text", settings=Settings()).equal
