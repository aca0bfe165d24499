"""What a batch needs of those who do the work, be they processes here or actors on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sonde.batch.item_runner import Errand
from sonde.batch.result import ItemResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """An item is done."""

    errand: Errand
    result: ItemResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """An item was paused: its journal waits for the next start."""

    errand: Errand
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """A worker died with these items."""

    errands: tuple[Errand, ...]
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """An item met what stops the whole batch: a full disk, a machine without a sandbox."""

    errand: Errand
    reason: str
    usage: bool = False


Happening = Done | Left | Lost | Halted


class Crew(Protocol):
    """Workers. `give` only while there is `room`; `alone` asks for a worker that does nothing else meanwhile."""

    def room(self, *, alone: bool = False) -> bool: ...

    def give(self, errand: Errand, *, alone: bool = False) -> None: ...

    def wait(self, timeout_s: float) -> Sequence[Happening]:
        """What has happened; empty after the timeout. Worker deaths are mended here."""
        ...

    def pause(self) -> None:
        """Every run stops before its next request."""
        ...

    def closed(self) -> str | None:
        """Why the limits let nothing more out, when they do."""
        ...

    def spent(self, usd: float) -> None:
        """The results say that so much is spent."""
        ...

    def close(self) -> None: ...
