"""`PROVIDER:NAME`: every provider that pydantic-ai knows (extra `models`), under the same one-method seam.

Promises: imported only when such a model is opened, one attempt per call (the SDKs' own retries are off), usage and
failures mapped to ours. Pieces of a stream arrive on another thread. Without a key, pydantic-ai looks for the
provider's credentials by the provider's own rules, which is the only way for clouds with credential chains.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import threading
from collections.abc import Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from types import ModuleType
from typing import Any

from sonde.core.canonical import clip
from sonde.core.deadline import Deadline
from sonde.core.redaction import secret_forms
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed, how_to_install
from sonde.models.base import (
    Message,
    ModelReply,
    ModelRequest,
    ModelSettings,
    OnText,
    TokenUsage,
    cost_of,
    cut_at_stop,
    estimate_usage,
    interrupted,
    mend,
    prompt_tokens,
    with_schema_note,
)
from sonde.models.completion import NAME_CHARS
from sonde.models.http_errors import advice, describe_error, error_code, is_retryable

ATTEMPT_S = 120.0
PROVIDERS = (
    "anthropic",
    "azure",
    "bedrock",
    "cerebras",
    "cohere",
    "deepseek",
    "fireworks",
    "google-gla",
    "google-vertex",
    "grok",
    "groq",
    "huggingface",
    "mistral",
    "moonshotai",
    "ollama",
    "openrouter",
    "together",
)
"""Those that a message names; pydantic-ai may know more."""


class ProviderModel:
    """One model of one provider. Calls from many threads share one event loop, and with it the connections."""

    def __init__(self, spec: str, settings: ModelSettings, *, forms: str = "") -> None:
        self.name = spec
        forms = f"{forms} Providers: {', '.join(PROVIDERS)}."
        self._settings = settings
        self.max_output_tokens = settings.max_output_tokens
        self.price = settings.price
        if settings.reasoning_effort is not None:
            raise ConfigError(
                f"reasoning_effort is for openai: models; for {spec} use extra_body in an entry of [models]"
            )
        try:
            models = importlib.import_module("pydantic_ai.models")
            providers = importlib.import_module("pydantic_ai.providers")
            errors = importlib.import_module("pydantic_ai.exceptions")
        except ImportError:
            kind = spec.partition(":")[0]
            if kind not in PROVIDERS:
                raise ConfigError(f"{kind!r} is no provider. {forms}") from None
            raise ConfigError(f"{spec} needs pydantic-ai: {how_to_install('models')}. {forms}") from None

        def provider(name: str) -> Any:
            kind = providers.infer_provider_class(name)
            takes = inspect.signature(kind.__init__).parameters
            given = {"api_key": settings.api_key.reveal() if settings.api_key else None, "base_url": settings.base_url}
            return kind(**{key: value for key, value in given.items() if value is not None and key in takes})

        try:
            self._model = models.infer_model(spec, provider)
        except ImportError as error:
            raise ConfigError(f"{spec} needs a package that is not installed: {error}") from None
        except (errors.UserError, ValueError) as error:
            raise ConfigError(f"{spec} cannot be used: {self._clean(str(error))}. {forms}") from None
        self._loop = _LoopThread()

    def __repr__(self) -> str:
        return f"ProviderModel({self.name!r})"

    def close(self) -> None:
        self._loop.close()

    def sampling(self, *, thinks: bool) -> dict[str, Any]:
        """What goes along with each prompt of a run."""
        del thinks  # the provider decides
        own = self._settings
        sent = {"temperature": 0.0 if own.temperature is None else own.temperature, "top_p": own.top_p}
        return {name: value for name, value in sent.items() if value is not None}

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Ask once; raises `ModelCallFailed`."""
        started = deadline.clock.now()
        attempt = deadline.sub(self._settings.timeout_s or ATTEMPT_S)
        if attempt.expired():
            raise ModelCallFailed(f"no time was left to ask {self.name}")
        errors = importlib.import_module("pydantic_ai.exceptions")
        remaining = attempt.remaining()
        call = self._loop.submit(self._request(request, on_text, remaining))
        try:
            with attempt.stop.cutting(call.cancel):
                response = call.result(None if math.isinf(remaining) else remaining)
        except CancelledError:
            raise interrupted(self.name, prompt_tokens(request)) from None
        except TimeoutError:
            call.cancel()
            late = f"{self.name} did not finish in time; raise the time limit or ask for less"
            spent, code = prompt_tokens(request), ErrorCode.MODEL_UNREACHABLE
            raise ModelCallFailed(late, code=code, retryable=True, tokens_in=spent) from None
        except (errors.AgentRunError, errors.UserError) as error:
            raise self._failure(error, errors, prompt_tokens(request)) from None
        text = cut_at_stop(mend(response.text or ""), request.stop)
        used = response.usage
        usage = (
            TokenUsage(
                used.input_tokens,
                used.output_tokens,
                cached_in=used.cache_read_tokens,
                written_in=used.cache_write_tokens,
            )
            if used.input_tokens
            else estimate_usage(request, text)
        )
        return ModelReply(
            text=text,
            usage=usage,
            model=clip(response.model_name or self.name, NAME_CHARS),
            cost_usd=cost_of(self.name, usage, self.price),
            latency_s=deadline.clock.now() - started,
            finish_reason=response.finish_reason,
            request_id=response.provider_response_id,
        )

    async def _request(self, request: ModelRequest, on_text: OnText | None, seconds: float) -> Any:
        direct = importlib.import_module("pydantic_ai.direct")
        native = bool(request.schema) and bool(self._model.profile.get("supports_json_schema_output"))
        messages = list(request.messages)
        if request.schema is not None and not native:
            messages = with_schema_note(messages, request.schema)
        own = self._settings
        options = {
            "max_retries": 0,  # retries are the runtime's, counted and recorded
            "timeout": None if math.isinf(seconds) else seconds,
            "temperature": request.temperature if own.temperature is None else own.temperature,
            "top_p": own.top_p,
            "max_tokens": request.max_output_tokens,
            "seed": request.seed,
            "stop_sequences": list(request.stop) or None,
            "extra_body": dict(self._settings.extra_body) or None,
        }
        if request.conversation is not None:  # each provider takes what is its own and leaves the rest
            options |= {f"{kind}_prompt_cache_key": request.conversation for kind in ("openai", "mistral")}
            options |= {
                f"{kind}_cache_{part}": True
                for kind in ("anthropic", "bedrock", "openrouter")
                for part in ("instructions", *(() if request.shared_chars else ("messages",)))
            }
        parameters = importlib.import_module("pydantic_ai.models").ModelRequestParameters
        form: dict[str, Any] = {}
        if native and request.schema is not None:  # ask for the schema by the provider's own means
            output = importlib.import_module("pydantic_ai.output")
            shape = output.OutputObjectDefinition(json_schema=dict(request.schema), name="reply")
            form = {"output_mode": "native", "output_object": shape, "allow_text_output": True}
        given: dict[str, Any] = {
            "model_settings": {name: value for name, value in options.items() if value is not None},
            "model_request_parameters": parameters(**form),
        }
        history = _history(messages, request.shared_chars)
        if on_text is None:
            return await direct.model_request(self._model, history, **given)
        async with direct.model_request_stream(self._model, history, **given) as stream:
            async for event in stream:
                match event.event_kind:
                    case "part_start" if event.part.part_kind == "text":
                        piece = str(event.part.content)
                    case "part_delta" if event.delta.part_delta_kind == "text":
                        piece = str(event.delta.content_delta)
                    case _:
                        piece = ""
                if piece:
                    on_text(piece)
            return stream.get()

    def _failure(self, error: Any, errors: ModuleType, spent: int) -> ModelCallFailed:
        if isinstance(error, errors.ModelHTTPError):
            detail = describe_error(error.body, self._clean)
            text = self._clean(f"{self.name} answered {error.status_code}: {detail}. ")
            variable = f"{self.name.partition(':')[0].upper().replace('-', '_')}_API_KEY"
            text += advice(error.status_code, self.name, detail, key=variable)
            retryable, code = is_retryable(error.status_code, detail), error_code(error.status_code)
            return ModelCallFailed(text, code=code, retryable=retryable, retry_after=error.retry_after)
        text = self._clean(f"{self.name} failed: {error}")
        if isinstance(error, errors.ModelAPIError):
            return ModelCallFailed(text, code=ErrorCode.MODEL_UNREACHABLE, retryable=True, tokens_in=spent)
        return ModelCallFailed(text, tokens_in=spent)

    def _clean(self, text: str) -> str:
        return secret_forms(self._settings.secrets()).remove(text)


class _LoopThread:
    """An event loop on a thread of its own: the SDKs' clients belong to one loop, our callers to many threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sonde-models", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Any]) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(2.0)
        if not self._thread.is_alive():  # an SDK that is busy with a server's reply ends with the process
            self._loop.close()


def _history(messages: Sequence[Message], shared_chars: int = 0) -> list[Any]:
    said = importlib.import_module("pydantic_ai.messages")
    history: list[Any] = []
    for message in messages:
        match message.role:
            case "user" if shared_chars and message is messages[-1] and shared_chars < len(message.content):
                parts = [message.content[:shared_chars], said.CachePoint(), message.content[shared_chars:]]
                history.append(said.ModelRequest(parts=[said.UserPromptPart(content=parts)]))
            case "system":
                history.append(said.ModelRequest(parts=[said.SystemPromptPart(content=message.content)]))
            case "user":
                history.append(said.ModelRequest(parts=[said.UserPromptPart(content=message.content)]))
            case "assistant":
                history.append(said.ModelResponse(parts=[said.TextPart(content=message.content)]))
    return history
