"""What a model is to the rest of Sonde: one method that takes messages and gives one reply.

Promises: `complete` makes one attempt, returns within the deadline and soon after its `stop`, and fails only with
`ModelCallFailed`, whose message never holds a key. It does not promise that the reply has the asked form, and it
neither retries, counts nor records: that is the runtime's work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from sonde.core.deadline import Deadline
from sonde.errors import ModelCallFailed

Role = Literal["system", "user", "assistant"]
OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of a conversation."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """What is asked of a model. `schema` is a JSON Schema that the reply shall fit; the caller still checks it."""

    messages: Sequence[Message]
    schema: Mapping[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """What one attempt used. `cached_in` is part of `tokens_in`; `estimated` says that nobody counted exactly."""

    tokens_in: int
    tokens_out: int
    cached_in: int = 0
    estimated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One reply. `cost_usd` is None when no price is known; `waited_s` is the part of `latency_s` that is not
    to be counted as the run's time (a person or a slow tool behind the command).
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
    """The form of replies that suits a model: one that says so by an attribute `guided = True` is not left to write code."""
    return "guided" if getattr(model, "guided", False) else "code"


class Secret:
    """A key. It shows itself to nobody who does not ask by name: `reveal()`."""

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


def redact(text: str, secrets: Sequence[str]) -> str:
    """`text` without the known values of keys. Values under 6 characters are left: they would blank ordinary words."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 6:
            text = text.replace(secret, "***")
    return text


PromptMode = Literal["stdin", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What `open_model` needs beside the name. Read by api/ and cli/ from flags, environment and file, passed down.

    `timeout_s` bounds one attempt, below what the deadline leaves. `environ` is the caller's environment, of which
    a command gets PATH, HOME and LANG only; `env` is what it gets besides. `label` is what the record calls a command.
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

    def secrets(self) -> tuple[str, ...]:
        """Every value in here that must not be shown, written or recorded."""
        key = (self.api_key.reveal().strip(),) if self.api_key else ()  # as it is sent
        return (*key, *self.env.values(), *_passwords(self.base_url, self.proxy))


def _passwords(*urls: str | None) -> list[str]:
    found: list[str] = []
    for url in urls:
        with suppress(ValueError):  # no URL at all, which whoever opens it says
            found.append(urlsplit(url or "").password or "")
    return [password for password in found if password]


def mend(text: str) -> str:
    """`text` as it can be written: halves of characters that came in two pieces are joined, lone halves replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def estimate_tokens(text: str) -> int:
    """Four characters a token, rounded up; for models that do not count."""
    return -(-len(text) // 4)


def estimate_usage(request: ModelRequest, text: str) -> TokenUsage:
    """What the exchange used, when nobody said."""
    return TokenUsage(prompt_tokens(request), estimate_tokens(text), estimated=True)


def interrupted(name: str, tokens_in: int, waited_s: float = 0.0) -> ModelCallFailed:
    """The failure of an attempt that was broken off because the run was stopped; what was sent may have to be paid for."""
    text = f"{name} was interrupted before it had answered: the run was cancelled"
    return ModelCallFailed(text, retryable=False, tokens_in=tokens_in, waited_s=waited_s)


def prompt_tokens(request: ModelRequest) -> int:
    """The prompt's size, estimated."""
    return estimate_tokens("".join(message.content for message in request.messages))
