"""A person's time is not the run's time: while somebody looks at a proposed change, the run's clock stands still."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime

from sonde.contexts.workspace.base import Applied, CommandResult, FileSlice, Matches, Plan, Workspace
from sonde.core.deadline import Clock


class PatientClock:
    """Another clock, less the time that was spent waiting; waits at the same time count once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waited = 0.0
        self._waiting = 0
        self._since = 0.0

    def now(self) -> float:
        """Seconds that only go forward, and not at all while somebody is waited for."""
        with self._lock:
            return (self._since if self._waiting else self._clock.now()) - self._waited

    def utc(self) -> datetime:
        """The time of day, which nobody can stop."""
        return self._clock.utc()

    @contextmanager
    def waiting(self) -> Generator[None]:
        """Stand still inside."""
        with self._lock:
            if not self._waiting:
                self._since = self._clock.now()
            self._waiting += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting:
                    self._waited += self._clock.now() - self._since


class PatientWorkspace:
    """A workspace whose approvals do not cost the run its time."""

    def __init__(self, workspace: Workspace, clock: PatientClock) -> None:
        self._workspace = workspace
        self._clock = clock

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """As the workspace does."""
        return self._workspace.list_files(root)

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """As the workspace does."""
        return self._workspace.read(path, start_line, end_line, rationale=rationale)

    def search(self, query: str, path: str | None = None) -> Matches:
        """As the workspace does."""
        return self._workspace.search(query, path)

    def text(self, path: str) -> str | None:
        """As the workspace does."""
        return self._workspace.text(path)

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """As the workspace does."""
        return self._workspace.execute(command, cwd)

    def apply(self, plan: Plan) -> Applied:
        """Ask, and let the person take their time."""
        with self._clock.waiting():
            return self._workspace.apply(plan)

    def undo(self) -> str:
        """Likewise: over the wire a way back is proposed like any change."""
        with self._clock.waiting():
            return self._workspace.undo()
