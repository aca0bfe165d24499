"""The runs that a viewer may show: those below one folder, and any that were named. Nothing else can be asked for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sonde.runs.catalog import list_runs, summarise
from sonde.runs.compare import compare
from sonde.runs.rundir import NoSuchRun, RunDir, run_ids
from sonde.viewer.excerpts import shown_excerpts
from sonde.viewer.stream import RunStream

OPEN_RUNS = 32


class Shelf:
    """Runs by id. Ids are names of folders that exist, compared as text: a path cannot be smuggled in."""

    def __init__(self, runs_dir: str | Path, named: Sequence[RunDir] = (), *, cache: Path | None = None) -> None:
        self.runs_dir = Path(runs_dir)
        self._cache = cache
        self._named = {run.run_id: run for run in named}
        self._streams: dict[str, RunStream] = {}
        self._lock = threading.Lock()

    def runs(self) -> list[dict[str, Any]]:
        """All of them, newest first."""
        listed = {run.run_id: run for run in list_runs(self.runs_dir)}
        for run_id, run in self._named.items():
            listed.setdefault(run_id, summarise(run.path))
        return [asdict(run) | {"path": str(run.path)} for run in listed.values()]

    def find(self, run_id: str) -> RunDir:
        """The run of exactly this id."""
        if run_id in self._named:
            return self._named[run_id]
        if run_id not in run_ids(self.runs_dir):
            raise NoSuchRun(f"there is no run {run_id!r} here")
        return RunDir(self.runs_dir / run_id)

    def stream(self, run_id: str) -> RunStream:
        """The run's journal, followed; a few stay open."""
        path = self.find(run_id).path
        with self._lock:
            if len(self._streams) >= OPEN_RUNS and run_id not in self._streams:
                self._streams.pop(next(iter(self._streams)))
            return self._streams.setdefault(run_id, RunStream(path))

    def excerpts(self, run_id: str) -> list[dict[str, Any]]:
        """The source texts that the run cites."""
        stream = self.stream(run_id)
        found = shown_excerpts(stream.light(), lambda number: stream.full([number])[0].get("result"), cache=self._cache)
        return [each.as_dict() for each in found]

    def compare(self, left: str, right: str) -> dict[str, Any]:
        """Two runs side by side."""
        return compare(self.find(left), self.find(right)).as_dict()
