"""What a run has used is counted once; the budget, the record, the list of runs, the live view and the wire say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from runs.streams import told
from sonde import ask
from sonde.cli.live import RunProgress
from sonde.core.usage import Usage, used_by
from sonde.runs.catalog import list_runs
from sonde.runs.rundir import find_run
from sonde.server.edit_tasks import EventTranslator
from sonde.testing import ScriptedModel


def test_everyone_who_reads_the_usage_of_a_run_reads_the_same(tmp_path: Path) -> None:
    progress, translator = RunProgress(), EventTranslator("task", lambda _message: None)
    replies = ["print(len(llm_query('what is in it?')))", "nothing", "FINAL(1)", "FINAL(1)"]

    answer = ask("q", model=ScriptedModel(replies, cost_usd=0.125), runs_dir=tmp_path)
    events = find_run(tmp_path, "last").events()
    for event in events:
        progress.add(event)
        translator.on_event(event)

    used, (line,), wire = answer.usage, list_runs(tmp_path), translator.usage()
    assert (used.iterations, used.llm_subcalls, used.depth_reached, used.cost_usd) == (3, 1, 1, 0.5)
    assert used == progress.used == sum(map(used_by, events), Usage())
    assert (line.iterations, line.subcalls, line.tokens, line.cost_usd) == (3, 1, used.tokens_total, 0.5)
    assert (wire.iterations, wire.subcalls, wire.tokens, wire.cost_usd) == (3, 1, used.tokens_total, 0.5)
    assert answer.record.metrics.tokens_in == used.tokens_in
    assert answer.record.state.counters.tokens_total == used.tokens_total


def test_usage_of_two_parts_of_a_run_adds_up_to_the_whole() -> None:
    events = told()
    whole = sum(map(used_by, events), Usage())

    for cut in range(len(events)):
        before, after = (sum(map(used_by, part), Usage()) for part in (events[:cut], events[cut:]))
        assert (before + after).model_dump() == pytest.approx(
            whole.model_dump()
        )  # sums of floats depend on their order


def test_a_field_of_a_newer_version_is_kept_in_a_record() -> None:
    assert Usage.model_validate({"iterations": 2, "watt_hours": 7}).model_dump()["watt_hours"] == 7
