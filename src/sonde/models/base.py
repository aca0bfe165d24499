"""What a model is to the rest of Sonde: one method that takes messages and gives one reply.

Promises: `complete` makes one attempt, returns within the deadline and soon after its `stop`, and fails only with
`ModelCallFailed`, whose message never holds a key. It does not promise that the reply has the requested form, and it
neither retries, counts nor records: the runtime does. The pure functions below help implementations (token estimates,
prices, prompts as one text) and the runtime (when to ask again). `RecordedModel` is the smallest implementation.
"""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Literal, Protocol

from sonde.core.deadline import Deadline
from sonde.core.redaction import url_secrets
from sonde.errors import ModelCallFailed

Role = Literal["system", "user", "assistant"]
OnText = Callable[[str], None]

MAX_ATTEMPTS = 4
OUTPUT_TOKENS = 4096
"""How long a reply may be unless an engine or a setting says otherwise."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
_HEADINGS = {"system": "SYSTEM", "user": "USER", "assistant": "ASSISTANT (your earlier reply)"}
_HEADING_LIKE = re.compile(r"(?:^|(?<=[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]))[ \t\u200b\ufeff]*#{5}")


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What a model is asked. `schema` is a JSON Schema that the reply should fit; the caller still checks it. `thinks`: it may think
    before it replies, as much as its family usually does; otherwise as little as it can. A model's own settings come first.
    """

    messages: Sequence[Message]
    schema: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    thinks: bool = False
    conversation: str | None = None
    """The name of a conversation whose requests begin alike: a provider finds by it what it has cached. None: nothing to gain."""
    shared_chars: int = 0
    """How much of the last message other requests of the conversation have too; 0: later ones have all of it."""


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What one attempt used. `cached_in` was read from a provider's cache and `written_in` written to it, both part of `tokens_in`;
    `estimated` means that nobody counted exactly.
    """

    tokens_in: int
    tokens_out: int
    cached_in: int = 0
    estimated: bool = False
    written_in: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What a model costs by the user's word: US dollars per million tokens. Without `cached`, such tokens cost as much as others."""

    input: float
    output: float
    cached: float | None = None
    source: str = ""

    def of(self, usage: TokenUsage) -> float:
        """The cost of so many tokens."""
        cached = min(usage.cached_in, usage.tokens_in)
        dear = (usage.tokens_in - cached) * self.input + usage.tokens_out * self.output
        return (dear + cached * (self.input if self.cached is None else self.cached)) / 1_000_000

    def __str__(self) -> str:
        return "/".join(f"{each:g}" for each in (self.input, self.output, self.cached) if each is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One reply. `cost_usd` is None when no price is known; `waited_s` is the part of `latency_s` that does
    not count as the run's time (a person or a slow tool behind the command).
    """

    text: str
    usage: TokenUsage
    model: str
    cost_usd: float | None = None
    latency_s: float = 0.0
    waited_s: float = 0.0
    finish_reason: str | None = None
    request_id: str | None = None


class Model(Protocol):
    """The seam. Implementations may be called from many threads at once."""

    @property
    def name(self) -> str: ...

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Ask once. Pieces of the reply go to `on_text` as they come, where the model can stream."""
        ...


def suited_mode(model: Model | None) -> Literal["code", "guided"]:
    """The form of replies that suits a model; a model with `guided = True` is not trusted to write code."""
    return "guided" if getattr(model, "guided", False) else "code"


def output_limit(model: Model | None, usual: int) -> int:
    """How long a reply of this model may be, in tokens: what its settings say, else the usual."""
    return getattr(model, "max_output_tokens", None) or usual


def own_price(model: Model | None) -> Price | None:
    """What the user's settings say that this model costs."""
    return getattr(model, "price", None)


def sampling_of(model: Model | None, *, thinks: bool) -> dict[str, Any]:
    """What is sent to a model along with each prompt, for the record; empty for one that does not say."""
    said = getattr(model, "sampling", None)
    return {} if said is None else said(thinks=thinks)


class Secret:
    """A key. Only `reveal()` shows its value; `repr` and logs do not."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)


PromptMode = Literal["stdin", "file"]
SAMPLING = ("reasoning_effort", "max_output_tokens", "temperature", "top_p")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What `open_model` needs beside the name. Read by api/ and cli/ from flags, environment and file, passed down.

    `timeout_s` bounds one attempt, within what the deadline leaves. `environ` is the caller's environment, from which
    a command gets only PATH, HOME and LANG; `env` is what it gets in addition. `label` is the record's name for a command.
    What is set of the four in `SAMPLING` is sent as it is, instead of the engine's and the family's own. `price` goes before the list.
    """

    base_url: str | None = None
    api_key: Secret | None = None
    proxy: str | None = None
    timeout_s: float | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None
    prompt_mode: PromptMode = "stdin"
    count_wait: bool = True
    threads: int = 1
    label: str | None = None
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    price: Price | None = None

    def secrets(self) -> tuple[str, ...]:
        """Every value in here that must not be shown, written or recorded."""
        found = [self.api_key.reveal().strip()] if self.api_key else []  # as it is sent
        found += self.env.values()
        for url in (self.base_url, self.proxy):
            found += url_secrets(url)
        return tuple(filter(None, found))


class RecordedModel:
    """Gives each recorded reply once, in order, also to several threads; a recorded failure is raised again."""

    def __init__(
        self, name: str, replies: Iterable[ModelReply | ModelCallFailed], *, price: Price | None = None
    ) -> None:
        self.name = name
        self.price = price
        self._replies = iter(replies)
        self._lock = threading.Lock()

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:  # noqa: ARG002  # a recording does not look at the question
        with self._lock:
            reply = next(self._replies, None)
        if reply is None:
            raise ModelCallFailed(
                f"the recording of {self.name} has no reply left; the run asks more often than the recorded one did"
            )
        if isinstance(reply, ModelCallFailed):
            raise reply
        if on_text is not None:
            on_text(reply.text)
        return reply


def mend(text: str) -> str:
    """`text` in a form that can be written: surrogate pairs that came in two pieces are joined, lone ones replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def estimate_tokens(text: str) -> int:
    """Four characters per token, rounded up; for models that do not count."""
    return -(-len(text) // 4)


def estimate_usage(request: ModelRequest, text: str) -> TokenUsage:
    """An estimate of what the exchange used, for when the server does not say."""
    return TokenUsage(prompt_tokens(request), estimate_tokens(text), estimated=True)


def interrupted(name: str, tokens_in: int, waited_s: float = 0.0) -> ModelCallFailed:
    """The failure of an attempt cut short because the run was stopped; what was sent may still cost money."""
    text = f"{name} was interrupted before it had answered: the run was cancelled"
    return ModelCallFailed(text, retryable=False, tokens_in=tokens_in, waited_s=waited_s)


def prompt_tokens(request: ModelRequest) -> int:
    """The prompt's size, estimated."""
    return estimate_tokens("".join(message.content for message in request.messages))


def schema_note(schema: Mapping[str, Any]) -> str:
    """A request for JSON, for servers that cannot enforce it."""
    text = json.dumps(schema, ensure_ascii=False, sort_keys=True)
    return f"Reply with one JSON value that fits this JSON Schema, and with nothing before or after it:\n{text}"


def with_schema_note(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """The same conversation with the schema in the last message, where models heed it best."""
    if not messages:
        return [Message("user", schema_note(schema))]
    *earlier, last = messages
    return [*earlier, Message(last.role, f"{last.content}\n\n{schema_note(schema)}")]


def render_prompt(request: ModelRequest) -> str:
    """One text for programs that take one text. A single message goes without a heading.

    A line of the content that looks like one of our headings gets a backslash, so that data cannot pose as a turn.
    """
    messages = list(request.messages)
    if request.schema is not None:
        messages = with_schema_note(messages, request.schema)
    contents = [_HEADING_LIKE.sub(r"\\\g<0>", message.content) for message in messages]
    if len(contents) == 1:
        return contents[0]
    headings = [_HEADINGS[message.role] for message in messages]
    parts = [f"##### {heading}\n\n{content}\n" for heading, content in zip(headings, contents, strict=True)]
    return "\n".join([*parts, "##### ASSISTANT (your reply now)\n"])


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first stop string, for servers and programs that do not stop by themselves."""
    ends = [at for mark in stop if mark and (at := text.find(mark)) >= 0]
    return text[: min(ends)] if ends else text


def backoff(attempt: int, retry_after: float | None, seed: int) -> float:
    """Seconds to wait after failed attempt number `attempt` (1 is the first).

    Doubles from half a second to 30, shortened by up to half so that parallel callers do not return together; the
    seed decides by how much, so that a replay waits as long. What the server asks for is a minimum, however long: a
    caller whose deadline is nearer gives up instead.
    """
    spread = random.Random(f"{seed}:{attempt}").uniform(0.5, 1.0)  # noqa: S311  # spreads load, guards nothing
    pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)) * spread
    return max(pause, retry_after or 0.0)


def may_retry(attempt: int, *, retryable: bool) -> bool:
    """Whether another attempt may follow failed attempt number `attempt`."""
    return retryable and attempt < MAX_ATTEMPTS


def price(model_name: str, usage: TokenUsage) -> float | None:
    """US dollars, cached tokens at their own price; None when the price list does not know the model.

    The list comes with genai-prices; nothing is fetched. A gateway's name such as `openai/gpt-4o-mini` is looked up
    without its vendor if the whole is unknown.
    """
    from genai_prices import Usage, calc_price  # noqa: PLC0415  # 0.17 s to import, not for `sonde --help`

    tokens = Usage(
        input_tokens=usage.tokens_in,
        cache_read_tokens=min(usage.cached_in, usage.tokens_in),
        cache_write_tokens=min(usage.written_in, usage.tokens_in - min(usage.cached_in, usage.tokens_in)),
        output_tokens=usage.tokens_out,
    )
    for name in dict.fromkeys((model_name, model_name.rpartition("/")[2])):
        try:
            return float(calc_price(tokens, name).total_price)
        except LookupError:
            continue
    return None


def cost_of(model: str, usage: TokenUsage, own: Price | None = None) -> float | None:
    """What this use of `provider:name` costs, by its own price or the list; None when neither is known.

    A local model costs nothing. What a program costs, only its user can say, whatever its name looks like.
    """
    kind, _, name = model.partition(":")
    if own is not None:
        return own.of(usage)
    if kind == "local":
        return 0.0
    return None if kind == "command" else price(name or kind, usage)


def cost_of_failure(model: Model, failure: ModelCallFailed) -> float | None:
    """What an attempt without a reply costs: what was sent, and what came back before it broke off. None: nothing, or nobody knows."""
    if not failure.tokens_in:
        return None
    got = min(failure.received, failure.tokens_in)
    return cost_of(model.name, TokenUsage(failure.tokens_in - got, got), own_price(model))


def price_source(model: str, own: Price | None = None) -> str:
    """Who says what `provider:name` costs, for the record; `unknown` if nobody does."""
    if own is not None:
        return own.source
    if model.startswith("local:"):
        return "free: it runs on this machine"
    return "unknown" if cost_of(model, TokenUsage(1, 1)) is None else f"genai-prices {version('genai-prices')}"
