"""What a session carries from turn to turn besides its history, and what a turn hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sonde.runtime.actions import Finalize


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What came of an action: words for the model, and the final value when there is one."""

    text: str
    final: Finalize | None = None
    unseen: str = ""


@dataclass(slots=True, kw_only=True)
class Memory:
    """What a session remembers between turns besides its history."""

    turn: int = 0
    prose: int = 0
    held_back: bool = False
    repaired: bool = False
    forced: str | None = None
    elapsed_s: float = 0.0
    draft: Any = None
    last_words: str = ""
    cut: bool = False
    states: int = 0
