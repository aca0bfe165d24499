"""A crew: the workers of a batch, processes here or actors on a cluster, and what may happen to a job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sonde.batch.item_runner import Job
from sonde.batch.result import ItemResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An item is done."""

    job: Job
    result: ItemResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An item was paused: its journal waits for the next start."""

    job: Job
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker died with these items."""

    jobs: tuple[Job, ...]
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """An item met what stops the whole batch: a full disk, a machine without a sandbox."""

    job: Job
    reason: str
    usage: bool = False


Happening = Done | Left | Lost | Halted


class Crew(Protocol):
    """Workers. Call `give` only while they have `room`; `alone` asks for a worker that does nothing else meanwhile."""

    def room(self, *, alone: bool = False) -> bool: ...

    def give(self, job: Job, *, alone: bool = False) -> None: ...

    def wait(self, timeout_s: float) -> Sequence[Happening]:
        """What has happened; empty after the timeout. Replaces dead workers."""
        ...

    def pause(self) -> None:
        """Every run stops before its next request."""
        ...

    def closed(self) -> str | None:
        """Why the limits let nothing more out, if so."""
        ...

    def spent(self, usd: float) -> None:
        """What the results say is spent."""
        ...

    def close(self) -> None: ...
