"""Investigations again: replayed, resumed after a cut, branched; whatever the engine."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from trace_cases import IO, LOOK, SPAN, TRACE, failed_trace, model, options, write

import sonde
from sonde.core.events import Event, RunEnded, RunStarted
from sonde.runs.rundir import RunDir

SETTINGS = sonde.Settings()
RCA = f"SUBMIT(primary_label='tool_failure', summary='it timed out', confidence=0.8, evidence_refs=[{SPAN}, {IO}])"
COMPLY = f"SUBMIT(findings=[{{'control_id': 'output.format.review', 'pass_fail': 'fail', 'evidence_refs': [{SPAN}]}}])"
DOSSIER = "SUBMIT(incident_summary='the tool timed out', timeline=timeline, confidence=0.5)"
Start = Callable[[Path, sonde.RunOptions], sonde.Investigation]
ENGINES: dict[str, tuple[Start, str]] = {
    "rca": (lambda source, how: sonde.rca(TRACE, source, **how), RCA),
    "compliance": (lambda source, how: sonde.comply(TRACE, source, **how), COMPLY),
    "incident": (lambda source, how: sonde.incident(source, project="shop", **how), DOSSIER),
}


@pytest.fixture(params=ENGINES)
def finished(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[sonde.Investigation, str]:
    start, submit = ENGINES[request.param]
    source = write(tmp_path, failed_trace())
    found = start(source, options(model(LOOK, submit), runs_dir=tmp_path / "runs"))
    assert found.status == "succeeded", found.gaps
    return found, submit


@pytest.mark.requirement(100, 124)
def test_a_replay_reproduces_every_hash(finished: tuple[sonde.Investigation, str]) -> None:
    found, _ = finished
    assert found.run_dir is not None

    again = sonde.replay(found.run_dir, settings=SETTINGS)

    assert again.differences == ()
    assert again.record is not None and again.record.output_ref.sha256 == found.record.output_ref.sha256


def test_a_replay_against_changed_traces_says_where_it_differs(
    finished: tuple[sonde.Investigation, str], tmp_path: Path
) -> None:
    found, _ = finished
    assert found.run_dir is not None
    write(tmp_path, [{**row, "status_message": "something else"} for row in failed_trace()])

    assert not sonde.replay(found.run_dir, settings=SETTINGS).equal


@pytest.mark.requirement(136)
def test_a_run_that_was_cut_off_goes_on_without_asking_again(finished: tuple[sonde.Investigation, str]) -> None:
    found, submit = finished
    assert found.run_dir is not None
    cut = found.run_dir.parent / "20260101-000000-cut"
    shutil.copytree(found.run_dir, cut)
    kept = (cut / "events.jsonl").read_bytes().splitlines(keepends=True)
    turn = next(at for at, line in enumerate(kept) if b'"type":"turn_started"' in line and b'"turn":2' in line)
    (cut / "events.jsonl").write_bytes(b"".join(kept[:turn]))
    scripted = model(submit)

    done = sonde.resume(cut, model=scripted, settings=SETTINGS)

    assert len(scripted.requests) == 1, "the first reply is on disk"
    assert done.value == found.report
    assert (cut / "report.md").read_text() == (found.run_dir / "report.md").read_text()
    assert any(isinstance(event, RunEnded) for event in RunDir(cut).events())


def test_a_branch_is_a_new_run_that_shares_the_turns_before(finished: tuple[sonde.Investigation, str]) -> None:
    found, submit = finished
    assert found.run_dir is not None
    scripted = model(submit)

    other = sonde.branch(found.run_dir, 2, model=scripted, runs_dir=found.run_dir.parent, settings=SETTINGS)

    assert len(scripted.requests) == 1
    assert other.record.run_id != found.record.run_id
    assert other.value == found.report


def test_annotations_that_could_not_be_written_are_written_by_a_resume(tmp_path: Path) -> None:
    def in_the_way(event: Event) -> None:
        if isinstance(event, RunStarted):
            (tmp_path / "runs" / event.run_id / "annotations.jsonl").mkdir()

    source = write(tmp_path, failed_trace())
    how = options(model(LOOK, RCA), runs_dir=tmp_path / "runs", on_event=in_the_way)
    found = sonde.rca(TRACE, source, **how)
    assert found.run_dir is not None
    stone = found.run_dir / "annotations.jsonl"
    stone.rmdir()

    sonde.resume(found.run_dir, model=model(), settings=SETTINGS)

    assert "rca.primary" in stone.read_text()


def open_indexes() -> list[str]:
    """The indexes of traces that this process holds open."""
    shown = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [name for name in shown if "sonde-traces-" in name]


@pytest.mark.parametrize(
    "again", ["replay", *(pytest.param(each, marks=pytest.mark.long) for each in ("branch", "resume"))]
)
def test_a_rerun_closes_the_traces_that_it_opened(again: str, finished: tuple[sonde.Investigation, str]) -> None:
    found, submit = finished
    assert found.run_dir is not None
    gc.collect()
    before = open_indexes()
    gc.disable()  # the collector would close them some day; whoever opened them shall not wait for it
    try:
        match again:
            case "replay":
                sonde.replay(found.run_dir, settings=SETTINGS)
            case "branch":
                runs = found.run_dir.parent
                sonde.branch(found.run_dir, 2, model=model(submit), runs_dir=runs, settings=SETTINGS)
            case _:
                (found.run_dir / "summary.md").unlink()
                sonde.resume(found.run_dir, settings=SETTINGS)
        assert open_indexes() == before
    finally:
        gc.enable()
