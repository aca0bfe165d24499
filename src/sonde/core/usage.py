"""What a run has used: one value, and the one rule by which events count.

The record, the live view, the servers and a replay add up `used_by(event)`. A budget's scope counts the same value, only earlier: turns
and calls before they happen, so that a limit binds before anything is spent.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer

from sonde.core.events import Event, HostReturned, ModelFailed, ModelReplied, SubcallStarted, TurnStarted

LATER = frozenset({"cached_in", "unpriced"})


class Usage(BaseModel):
    """What was used. Adding two of them adds the counts; the depth is the deeper of both."""

    model_config = ConfigDict(frozen=True, extra="allow")  # part of a record: fields of a newer version are kept

    iterations: int = 0
    depth_reached: int = 0
    tool_calls: int = 0
    llm_subcalls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    cached_in: int = 0
    """How many of the tokens sent a provider had in its cache."""
    unpriced: int = 0
    """How many replies came from a model whose price is not known; `cost_usd` is the sum of the others."""

    @model_serializer(mode="wrap")
    def _as_before(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Counts that came later are left out where they are zero, so that records look as they always did."""
        shown: dict[str, Any] = plain(self)
        return {name: value for name, value in shown.items() if value or name not in LATER}

    @property
    def cost(self) -> float | None:
        """US dollars; None when a part of it is not known."""
        return None if self.unpriced else self.cost_usd

    @property
    def tokens_total(self) -> int:
        """Both directions."""
        return self.tokens_in + self.tokens_out

    def __add__(self, more: Usage) -> Usage:
        if more is NOTHING_USED:  # most events
            return self
        return Usage(
            iterations=self.iterations + more.iterations,
            depth_reached=max(self.depth_reached, more.depth_reached),
            tool_calls=self.tool_calls + more.tool_calls,
            llm_subcalls=self.llm_subcalls + more.llm_subcalls,
            tokens_in=self.tokens_in + more.tokens_in,
            tokens_out=self.tokens_out + more.tokens_out,
            cost_usd=self.cost_usd + more.cost_usd,
            cached_in=self.cached_in + more.cached_in,
            unpriced=self.unpriced + more.unpriced,
        )

    def for_code(self) -> dict[str, Any]:
        """The counters by name, as generated code sees them."""
        return self.model_dump(exclude=set(LATER)) | {"cost_usd": round(self.cost_usd, 6)}


NOTHING_USED = Usage()


def used_by(event: Event) -> Usage:
    """What one event adds. A sub-call's turns and tokens count with its own events, not again when it ends."""
    match event:
        case TurnStarted():
            return Usage(iterations=1)
        case HostReturned(tool=True):
            return Usage(tool_calls=1)
        case SubcallStarted():
            return Usage(llm_subcalls=1, depth_reached=event.depth)
        case ModelReplied():
            return Usage(
                tokens_in=event.tokens_in,
                tokens_out=event.tokens_out,
                cost_usd=event.cost_usd or 0.0,
                cached_in=event.cached_in,
                unpriced=event.cost_usd is None,
            )
        case ModelFailed():
            return Usage(tokens_in=event.tokens_in, cost_usd=event.cost_usd or 0.0)
        case _:
            return NOTHING_USED
