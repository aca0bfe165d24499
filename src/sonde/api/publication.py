"""`publish_run`: the annotations of a finished investigation, written again or for the first time.

A run whose annotations could not be written stands as partial, with WRITEBACK_FAILED. Trying again adds what came of it to
the journal and writes the record anew. Identifiers make a second write replace the first.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sonde.api.rerun import Recorded, open_run
from sonde.api.settings import Settings, load_settings
from sonde.api.trace_source import case_of
from sonde.api.writeback import ANNOTATIONS, Writeback
from sonde.core.deadline import SystemClock
from sonde.core.events import WroteBack
from sonde.core.record import RunRecord
from sonde.errors import ConfigError
from sonde.runs.recorder import Recorder
from sonde.runs.recording import Recording
from sonde.runs.rundir import RESULT, RunDir


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """What became of a run's annotations: the status after it, what was written, which targets do not exist."""

    status: Literal["succeeded", "partial", "failed"]
    written: int
    failed: int
    error: str | None
    record: RunRecord
    run_dir: Path


def publish_run(
    run: str | Path,
    *,
    runs_dir: str | Path | None = None,
    source: str | None = None,
    settings: Settings | None = None,
) -> Publication:
    """Write the annotations of a finished investigation, again or for the first time. `source` names another server."""
    chosen = settings or load_settings()
    recorded = open_run(run, runs_dir, chosen)
    ended = recorded.ended
    if ended is None:
        raise ConfigError(f"run {recorded.run_dir.run_id} has not ended; `sonde resume` goes on with it")
    case = case_of(recorded.started.settings, chosen, source)
    if ended.output is None:
        raise ConfigError(f"run {recorded.run_dir.run_id} ended without a report: there is nothing to write")
    if not case.place.server:
        raise ConfigError(
            f"the traces of this run are files, so its annotations are in {recorded.run_dir.path / ANNOTATIONS}; "
            "name a server that has the same traces: sonde publish RUN --source http://localhost:6006"
        )
    context = case.open()
    try:
        wrote = Writeback(case=case, context=context)(ended.output, ended.annotator_kind, recorded.run_dir.run_id)
    finally:
        context.store.close()
    record = _append(recorded, wrote, [*chosen.secrets(), *case.place.secrets()])
    return Publication(
        status=wrote.status,
        written=wrote.succeeded,
        failed=wrote.failed,
        error=(wrote.error or {}).get("message"),
        record=record,
        run_dir=recorded.run_dir.path,
    )


def _append(recorded: Recorded, wrote: WroteBack, secrets: list[str]) -> RunRecord:
    """The journal with the new event, and the files that are views of it."""
    journal = recorded.run_dir.journal(secrets)
    try:
        recorder = Recorder(SystemClock(), journal, (), Recording(recorded.events))
        recorder.emit(wrote)
        record = recorder.fold.record()
    finally:
        journal.close()
    recorded.run_dir.write_record(record)
    _update_result(recorded.run_dir, record)
    return record


def _update_result(run_dir: RunDir, record: RunRecord) -> None:
    path = run_dir.path / RESULT
    if path.is_file():
        error = None if record.error is None else record.error.model_dump(mode="json")
        run_dir.write_result({**json.loads(path.read_bytes()), "status": record.status.value, "error": error})
