"""The kept states of one box: where it stands, and how far back it can go."""

from __future__ import annotations

from dataclasses import dataclass, field

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox.snapshots import Family, State

FEWEST = 2
"""The newest state has not proved that it can fork: the one before it stays until then."""


@dataclass(slots=True, eq=False)
class History:
    """States by the turn that left them, oldest first. The last one is where the next turn starts."""

    family: Family
    keep: int
    memory: int
    turn: int
    entries: list[tuple[int, State]] = field(default_factory=list[tuple[int, State]])

    @property
    def state(self) -> State:
        if not self.entries:
            raise SandboxLost("no state of this sandbox is left; open a new Sandbox")
        return self.entries[-1][1]

    def commit(self, state: State) -> None:
        """The turn left this state; forget the oldest beyond what may be kept."""
        self.entries.append((self.turn, state))
        while len(self.entries) > FEWEST and (len(self.entries) > self.keep or self._bytes() > self.memory):
            self.family.release(self.entries.pop(0)[1])

    def drop_newest(self) -> State | None:
        """The newest state is of no use: go back to the one before, if there is one."""
        self.family.release(self.entries.pop()[1])
        return self.entries[-1][1] if self.entries else None

    def rollback(self, turn: int) -> None:
        kept = [left for left, _ in self.entries]
        if not kept or turn < kept[0] or turn > self.turn:
            raise ConfigError(f"there is no kept state after turn {turn}; kept are the states after turns {kept}")
        while self.entries[-1][0] > turn:
            self.family.release(self.entries.pop()[1])
        self.turn = turn

    def _bytes(self) -> int:
        return sum(state.private_bytes for _, state in self.entries)

    def clear(self) -> list[State]:
        """Forget all states; who calls gives them back."""
        states = [state for _, state in self.entries]
        self.entries.clear()
        return states
