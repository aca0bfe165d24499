"""`openai:NAME`: Chat Completions at any address that speaks them, in one small client on httpx2.

Promises: one attempt per call (if the server refuses an optional parameter, the request is sent again without it at
once; the refusal is free and is remembered), connections reused across threads, the deadline kept even when a server
drips, a stop that ends waiting for a reply at once (within ten seconds while a connection is being made), bodies capped,
and no key in any message. It does not promise that a reply fits the schema: servers cut JSON at the token limit.
"""

from __future__ import annotations

import difflib
import json
import math
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import httpx2

from sonde.core.canonical import has_too_many_items
from sonde.core.deadline import Deadline
from sonde.core.redaction import secret_forms
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed
from sonde.models.base import (
    SAMPLING,
    ModelReply,
    ModelRequest,
    ModelSettings,
    OnText,
    cost_of,
    cut_at_stop,
    estimate_tokens,
    estimate_usage,
    interrupted,
    prompt_tokens,
)
from sonde.models.completion import (
    MAX_BODY_BYTES,
    MAX_ERROR_BYTES,
    ChatCompletion,
    ErrorInBody,
    NotACompletion,
    read_completion,
    read_stream,
)
from sonde.models.connections import ConnectionStack, LineTimer
from sonde.models.families import request_body, sampling
from sonde.models.http_errors import (
    advice,
    describe_error,
    error_code,
    error_detail,
    error_status,
    is_retryable,
    is_too_long,
    refused_parameter,
    retry_after,
)
from sonde.trace_client import unpacked

OPENAI_URL = "https://api.openai.com/v1"
ATTEMPT_S = 120.0
CONNECT_S = 10.0
LISTING_S = 5.0
LISTED, NAME_CHARS = 8, 80
MOST_NAMES = 1_000  # of a list of models are compared with the wanted one
TAIL_S, TAIL_CHUNKS = 0.2, 4
"""How long and how much to read after the last event of a stream: servers end it at once, or keep the line open."""


class _ParameterRefused(Exception):
    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ChatModel:
    """One model of one server. Safe to call from many threads.

    A `local` model is free and keeps the name it was given: such servers report the path of a file.
    """

    def __init__(self, model_name: str, settings: ModelSettings, *, local: bool = False) -> None:
        self.name = model_name if local else f"openai:{model_name}"
        self._model_name = model_name
        self._settings = settings
        self._local = local
        try:
            self._url = httpx2.URL((settings.base_url or OPENAI_URL).rstrip("/") + "/chat/completions")
        except httpx2.InvalidURL:
            self._url = httpx2.URL("")
        if self._url.scheme not in {"http", "https"} or not self._url.host:
            raise ConfigError("the base URL must look like https://host/v1; check --base-url or OPENAI_BASE_URL")
        headers = {"content-type": "application/json", "accept-encoding": "identity", "user-agent": "sonde"}
        if settings.api_key is not None:
            key = settings.api_key.reveal().strip()
            if not key.isascii() or not key.isprintable():
                raise ConfigError(
                    "the API key holds characters that no key has; copy it again, without quotes or line ends"
                )
            headers["authorization"] = f"Bearer {key}"
        self._lines = ConnectionStack(self._url, headers, settings.proxy)
        self._rejected: frozenset[str] = frozenset()
        self.max_output_tokens = settings.max_output_tokens
        self.price = settings.price

    def __repr__(self) -> str:
        return f"ChatModel({self.name!r})"

    @property
    def refused(self) -> frozenset[str]:
        """The optional parameters that the server does not take."""
        return self._rejected

    def close(self) -> None:
        self._lines.close()

    def sampling(self, *, thinks: bool) -> dict[str, Any]:
        """What goes along with each prompt of a run."""
        return sampling(self._model_name, self._settings, temperature=0.0, thinks=thinks)

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Ask once; raises `ModelCallFailed`."""
        started = deadline.clock.now()
        attempt = deadline.sub(self._settings.timeout_s or ATTEMPT_S)
        if attempt.expired():
            raise ModelCallFailed(f"no time was left to ask {self.name}", retryable=False)
        completion: ChatCompletion | None = None
        while completion is None:
            body = request_body(
                self._model_name,
                request,
                rejected=self._rejected,
                stream=on_text is not None,
                settings=self._settings,
            )
            try:
                completion = self._exchange(body, request, attempt, on_text)
            except _ParameterRefused as refusal:
                self._rejected |= {refusal.name}  # never sent again, so the loop ends
        usage = completion.usage or estimate_usage(request, completion.text)
        return ModelReply(
            text=cut_at_stop(completion.text, request.stop),
            usage=usage,
            model=self._model_name if self._local else completion.model or self._model_name,
            cost_usd=cost_of("local:" if self._local else self.name, usage, self.price),
            latency_s=deadline.clock.now() - started,
            finish_reason=completion.finish_reason,
            request_id=completion.request_id,
        )

    def _exchange(
        self, body: dict[str, Any], request: ModelRequest, attempt: Deadline, on_text: OnText | None
    ) -> ChatCompletion:
        completion = ChatCompletion()
        watch = LineTimer(attempt)
        remaining = attempt.remaining()
        limit = None if math.isinf(remaining) else max(remaining, 0.001)
        timeout = httpx2.Timeout(limit, connect=min(CONNECT_S, remaining))
        # "replace": a lone surrogate cannot be encoded
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        try:
            with self._lines.post(content, timeout, attempt.stop) as response, watch.cutting(response):
                if response.status_code != 200:
                    raise self._refusal(response, body, request, attempt)
                chunks = _capped(response, attempt)
                if on_text is not None and "json" not in response.headers.get("content-type", ""):
                    read_stream(chunks, completion, on_text)
                    with watch.within(response, TAIL_S), suppress(httpx2.TransportError, NotACompletion):
                        deque(
                            islice(chunks, TAIL_CHUNKS), maxlen=0
                        )  # a connection can be used again once read to its end
                else:  # not asked to stream, or the server does not
                    read_completion(b"".join(chunks), completion)
                    if on_text is not None and completion.text:
                        on_text(completion.text)
        except (httpx2.TransportError, NotACompletion, ErrorInBody) as error:
            if completion.finish_reason and isinstance(error, httpx2.TransportError):
                return completion  # the line broke after the end of the reply, which was paid for
            received = estimate_tokens(completion.text)
            spent = prompt_tokens(request) + received
            late = watch.fired or attempt.expired()
            stopped = attempt.stop.is_set()
            failure = interrupted(self.name, spent) if stopped else self._failure(error, spent, late=late)
            failure.received = received
            raise failure from None
        return completion

    def _refusal(
        self, response: httpx2.Response, body: dict[str, Any], request: ModelRequest, attempt: Deadline
    ) -> Exception:
        content = b"".join(_capped(response, attempt))[:MAX_ERROR_BYTES]
        status = response.status_code
        chosen = {name for name in SAMPLING if getattr(self._settings, name) is not None}
        ours = body.keys() - self._settings.extra_body.keys() - chosen  # what the user wants is not dropped in silence
        if status in {400, 422} and (name := refused_parameter(content, ours)) is not None:
            return _ParameterRefused(name)
        wish = retry_after(response.headers, attempt.clock.utc())
        spent = prompt_tokens(request) if status >= 500 else 0  # a server that broke may have run the model first
        offered = self._offered(attempt) if status == 404 else ""
        return self._failed(status, error_detail(content, self._clean), wish=wish, spent=spent, offered=offered)

    def _offered(self, attempt: Deadline) -> str:
        """The models that the server has, those with similar names if there are any; "" when it does not say."""
        listing = self._url.copy_with(path=self._url.path.removesuffix("chat/completions") + "models")
        watch = LineTimer(attempt.sub(LISTING_S))
        try:
            with (
                self._lines.get(listing, httpx2.Timeout(LISTING_S), attempt.stop) as response,
                watch.cutting(response),
            ):
                listed = b"".join(_capped(response, attempt))
            rows: Any = [] if has_too_many_items(listed) else json.loads(listed)["data"]
            names = [self._clean(str(row["id"])[:NAME_CHARS]) for row in rows[:MOST_NAMES]]
        except (httpx2.TransportError, NotACompletion, ValueError, RecursionError, LookupError, TypeError):
            return ""
        if self._model_name in names:
            return ""
        near = difflib.get_close_matches(self._model_name, names, LISTED, 0.4) or names[:LISTED]
        more = f" and {len(names) - len(near)} more" if len(names) > len(near) else ""
        return f"The server has no such model; it has {', '.join(near)}{more}." if near else ""

    def _failure(self, error: Exception, spent: int, *, late: bool) -> ModelCallFailed:
        """The failure of an attempt that got no status, or a good one, and may have cost something."""
        if isinstance(error, ErrorInBody):
            return self._failed(error_status(error.error), describe_error(error.error, self._clean), spent=spent)
        if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout):
            text = f"the model could not be reached at {self._where}: {error or 'no answer in time'}; "
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                text += "its certificate is not trusted on this machine: add its authority to the system's certificates"
                return ModelCallFailed(text, code=ErrorCode.MODEL_UNREACHABLE)
            text += "check that the server is running and that the address is right (--base-url or OPENAI_BASE_URL)"
            return ModelCallFailed(text, code=ErrorCode.MODEL_UNREACHABLE, retryable=True)
        if late or isinstance(error, httpx2.TimeoutException):
            text = f"{self.name} at {self._where} did not finish in time; raise the time limit or ask for less"
            return ModelCallFailed(text, code=ErrorCode.MODEL_UNREACHABLE, retryable=True, tokens_in=spent)
        why = error.told(self._clean) if isinstance(error, NotACompletion) else str(error)
        if isinstance(error, NotACompletion) and not error.cut:
            text = f"{self._where} answered with something else than a chat completion; {why}. Check OPENAI_BASE_URL."
            return ModelCallFailed(self._clean(text), retryable=False, tokens_in=spent)
        text = f"the connection to {self._where} broke before the reply was complete: {why}"
        return ModelCallFailed(self._clean(text), code=ErrorCode.MODEL_UNREACHABLE, retryable=True, tokens_in=spent)

    def _failed(
        self, status: int, detail: str, *, wish: float | None = None, spent: int = 0, offered: str = ""
    ) -> ModelCallFailed:
        text = self._clean(f"{self.name} at {self._where} answered {status}: {detail or 'nothing'}. ")
        return ModelCallFailed(
            text + (offered or advice(status, self._model_name, detail)),
            code=error_code(status),
            retryable=is_retryable(status, detail),
            retry_after=wish,
            tokens_in=spent,
            too_long=is_too_long(status, detail),
        )

    @property
    def _where(self) -> str:
        """The address without user name and password."""
        return str(self._url.copy_with(username=None, password=None))

    def _clean(self, text: str) -> str:
        return secret_forms(self._settings.secrets()).remove(text)


def _capped(response: httpx2.Response, attempt: Deadline) -> Iterator[bytes]:
    size = 0
    try:
        for piece in unpacked(response):
            if attempt.expired():
                raise NotACompletion("time ran out in the middle of the reply", cut=True)
            size += len(piece)
            if size > MAX_BODY_BYTES:
                raise NotACompletion(f"the body is larger than {MAX_BODY_BYTES // 1024 // 1024} MiB")
            if piece:
                yield piece
    except httpx2.DecodingError as error:
        raise NotACompletion(str(error)) from None
