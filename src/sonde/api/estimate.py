"""What a run would read and about what it would cost, before any model is called.

The run is started in memory with a model that counts its first prompt and answers nothing, so the figure is that of the real prompt.
How many turns follow is a guess that nobody has measured, and the budget bounds it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sonde.api.launch import launch
from sonde.api.settings import Settings
from sonde.contexts.traces.context import TracesContext
from sonde.core.budget import Budget
from sonde.core.deadline import Deadline
from sonde.core.events import Event, RunStarted
from sonde.errors import ConfigError, ModelCallFailed
from sonde.models.base import ModelReply, ModelRequest, OnText, TokenUsage, cost_of, prompt_tokens
from sonde.runtime.run import RunSpec

TURNS = (3, 12)
"""How many turns a run is assumed to take."""
TURN_TOKENS_IN, TURN_TOKENS_OUT = 1_000, 300
"""What one turn is assumed to add to the prompt of the next, and what a model writes in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One run: what it reads, the size of its first prompt, and its typical range of tokens and dollars (None: no price is known)."""

    reads: str
    first_prompt: int
    turns: tuple[int, int]
    tokens: tuple[int, int]
    cost_usd: tuple[float, float] | None
    masked: Mapping[str, int] | None = None
    """How many different values of each kind would be hidden; None: nothing is masked."""


class PromptCounter:
    """A model that counts the prompt and answers nothing."""

    def __init__(self, name: str, *, guided: bool) -> None:
        self.name = name
        self.guided = guided
        self.tokens: int | None = None

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Count; never a reply."""
        del deadline, on_text
        self.tokens = self.tokens or prompt_tokens(request)
        raise ModelCallFailed("a dry run calls no model")


def estimate(spec: RunSpec, settings: Settings) -> Estimate:
    """Estimate this run. It calls no model and leaves no folder; ConfigError if it could not even start."""
    choice = settings.choose(spec.model) if isinstance(spec.model, str) else None
    named, own = ("none", None) if choice is None else (choice.spec, choice.settings.price)
    counter = PromptCounter(named, guided=named.startswith("local:"))
    heard: list[RunStarted] = []

    def hear(event: Event) -> None:
        if isinstance(event, RunStarted):
            heard.append(event)

    alone = replace(
        spec, model=counter, sub_model=None, in_memory=True, run_dir=None, writeback=None, on_event=hear, on_text=None
    )
    result = launch(alone, replace(settings, otel_endpoint=None))
    if spec.mask is not None:  # reads what a run may read: all files, all spans of the named traces
        spec.context.shared()
        if isinstance(spec.context, TracesContext):
            for trace_id in spec.input_ref.get("trace_ids", ()):
                deque(spec.context.store.spans(trace_id), maxlen=0)
    if counter.tokens is None:
        raise ConfigError(result.error.message if result.error else "the run would end before it asks a model")
    turns = (min(TURNS[0], spec.budget.max_iterations), min(TURNS[1], spec.budget.max_iterations))
    fewest, most = (_usage(counter.tokens, count, spec.budget) for count in turns)
    costs = [0.0 if choice is None else cost_of(named, usage, own) for usage in (fewest, most)]
    low, high = costs
    # What the model is told about the data, without its list of names and its advice to the model.
    told = " ".join(line for line in heard[0].context.splitlines()[:2] if not line.endswith(":"))
    if told.startswith("1 files"):  # prompts stay as they are, so that recorded runs replay
        told = told.replace("1 files", "1 file", 1)
    return Estimate(
        reads=told.partition(" Text inside traces")[0] or "nothing but the question",
        first_prompt=counter.tokens,
        turns=turns,
        tokens=(fewest.tokens_in + fewest.tokens_out, most.tokens_in + most.tokens_out),
        cost_usd=None if low is None or high is None else (low, high),
        masked=None if spec.mask is None else spec.mask.counts(),
    )


def _usage(first: int, turns: int, budget: Budget) -> TokenUsage:
    """What so many turns use: each sends everything before it again. The budget cuts it."""
    sent = turns * first + TURN_TOKENS_IN * turns * (turns - 1) // 2
    written = TURN_TOKENS_OUT * turns
    share = min(1.0, (budget.max_tokens_total or sent + written) / (sent + written))
    return TokenUsage(int(sent * share), int(written * share))
