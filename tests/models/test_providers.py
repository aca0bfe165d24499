"""Models through pydantic-ai. What needs it installed is skipped without it; `scripts/test_providers.sh` installs it."""

from __future__ import annotations

import importlib.util
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, cast

import pytest

from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError, ModelCallFailed
from sonde.models import Message, Model, ModelRequest, ModelSettings, Secret, TokenUsage, open_model
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

INSTALLED = importlib.util.find_spec("pydantic_ai") is not None
needs_it = pytest.mark.skipif(not INSTALLED, reason="needs the extra: pip install 'sonde-rlm[models]'")

KEY = "sk-very-secret-0123456789"
MESSAGES = [Message("system", "Be brief."), Message("user", "Hi"), Message("assistant", "Yo"), Message("user", "Many?")]


def model_of(server: ScriptedServer, name: str = "gpt-4o-mini") -> Model:
    return open_model(f"openai-chat:{name}", ModelSettings(base_url=server.base_url, api_key=Secret(KEY)))


def soon(seconds: float = 100) -> Deadline:
    return Deadline(SystemClock(), seconds)


def failure(server: ScriptedServer, seconds: float = 100) -> ModelCallFailed:
    with pytest.raises(ModelCallFailed) as caught:
        model_of(server).complete(ModelRequest(messages=MESSAGES), deadline=soon(seconds))
    return caught.value


@pytest.mark.skipif(INSTALLED, reason="only where the extra is missing")
def test_a_provider_without_its_extra_says_what_to_install_and_which_forms_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        open_model("anthropic:claude-sonnet-4-5", ModelSettings())

    assert "[models]'" in caught.value.message
    assert "command:PROGRAM" in caught.value.message


@needs_it
def test_a_reply_carries_text_usage_and_cost() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}
    usage["total_tokens"] = 1100
    with ScriptedServer(ScriptedReply(text="seven", usage=usage)) as server:
        reply = model_of(server).complete(ModelRequest(messages=MESSAGES, seed=3), deadline=soon())
        (seen,) = server.requests

    assert (reply.text, reply.finish_reason) == ("seven", "stop")
    assert reply.usage == TokenUsage(1000, 100, cached_in=400)
    assert reply.cost_usd == pytest.approx((600 * 0.15 + 400 * 0.075 + 100 * 0.60) / 1e6)
    assert [m["role"] for m in seen.body["messages"]] == ["system", "user", "assistant", "user"]
    assert (seen.body["temperature"], seen.body["seed"]) == (0.0, 3)


@needs_it
def test_a_stream_tells_its_pieces() -> None:
    pieces: list[str] = []
    with ScriptedServer(ScriptedReply(text="seven", pieces=["se", "ven"])) as server:
        reply = model_of(server).complete(ModelRequest(messages=MESSAGES), deadline=soon(), on_text=pieces.append)

    assert (reply.text, "".join(pieces)) == ("seven", "seven")
    assert not reply.usage.estimated


@needs_it
def test_a_schema_goes_by_the_providers_own_means() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    with ScriptedServer('{"a": 7}') as server:
        reply = model_of(server).complete(ModelRequest(messages=MESSAGES, schema=schema), deadline=soon())
        (seen,) = server.requests

    assert reply.text == '{"a": 7}'
    assert seen.body["response_format"]["type"] == "json_schema"


@needs_it
def test_trouble_is_tried_once_and_mapped() -> None:
    busy = ScriptedReply(status=429, headers={"retry-after": "7"})
    with ScriptedServer([busy, ScriptedReply(status=500), ScriptedReply(status=401, text=f"bad {KEY}")]) as server:
        errors = [failure(server) for _ in range(3)]

        assert len(server.requests) == 3
    assert [error.retryable for error in errors] == [True, True, False]
    assert errors[0].retry_after == 7
    assert KEY not in errors[2].message


@needs_it
def test_a_server_that_hangs_is_left_when_the_deadline_comes() -> None:
    with ScriptedServer(ScriptedReply(hang=True)) as server:
        started = time.monotonic()
        error = failure(server, seconds=1.0)

    assert error.retryable
    assert error.tokens_in > 0
    assert time.monotonic() - started < 60


@needs_it
def test_omitted_usage_is_estimated() -> None:
    with ScriptedServer(ScriptedReply(text="seven", usage=None)) as server:
        reply = model_of(server).complete(ModelRequest(messages=MESSAGES), deadline=soon())

    assert reply.usage.estimated


@needs_it
def test_calls_from_many_threads_share_the_model() -> None:
    together = threading.Barrier(20, timeout=60)

    def echo(seen: Any) -> str:
        return seen.prompt()

    with ScriptedServer(echo, delay_s=0.05) as server, ThreadPoolExecutor(20) as pool:
        model = model_of(server)

        def call(number: int) -> str:
            together.wait()
            return model.complete(ModelRequest(messages=[Message("user", str(number))]), deadline=soon()).text

        assert list(pool.map(call, range(20))) == [str(number) for number in range(20)]


@needs_it
@pytest.mark.parametrize("spec", ["nonsense:model", "groq:no-sdk-for-this"])
def test_an_unknown_provider_or_a_missing_sdk_is_a_configuration_error(spec: str) -> None:
    with pytest.raises(ConfigError):
        open_model(spec, ModelSettings(api_key=Secret(KEY)))


@needs_it
def test_a_missing_key_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError):
        open_model("anthropic:claude-sonnet-4-5", ModelSettings())


@needs_it
def test_a_stop_ends_the_waiting_at_once() -> None:
    deadline = soon(600)

    def answer(_seen: SeenRequest) -> ScriptedReply:
        deadline.stop.set()
        return ScriptedReply(hang=True)

    started = time.monotonic()
    with ScriptedServer(answer) as server, pytest.raises(ModelCallFailed) as caught:
        model_of(server).complete(ModelRequest(messages=MESSAGES), deadline=deadline)

    assert time.monotonic() - started < 60
    assert "interrupted" in caught.value.message and caught.value.tokens_in > 0


ANTHROPIC = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-sonnet-4-5",
    "content": [{"type": "text", "text": "seven"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 100,
        "output_tokens": 10,
        "cache_read_input_tokens": 2000,
        "cache_creation_input_tokens": 300,
    },
}


def cached_parts(body: Any) -> list[str]:
    """The texts of a request that end a part to be cached."""
    parts: list[Any] = [body["system"], *(message["content"] for message in body["messages"])]
    listed: list[dict[str, Any]] = [
        each for part in parts if isinstance(part, list) for each in cast("list[Any]", part)
    ]
    return [each["text"] for each in listed if "cache_control" in each]


@needs_it
def test_anthropic_is_told_where_its_cache_may_begin_and_what_it_read_and_wrote_costs_its_own_price() -> None:
    with ScriptedServer(ScriptedReply(raw=json.dumps(ANTHROPIC).encode())) as server:
        settings = ModelSettings(base_url=server.base_url.removesuffix("/v1"), api_key=Secret(KEY))
        model = open_model("anthropic:claude-sonnet-4-5", settings)
        shared = [MESSAGES[0], Message("user", "same other")]
        model.complete(ModelRequest(messages=MESSAGES, max_output_tokens=9), deadline=soon())
        asked = ModelRequest(messages=MESSAGES, max_output_tokens=9, conversation="c")
        reply = model.complete(asked, deadline=soon())
        model.complete(replace(asked, messages=shared, shared_chars=5), deadline=soon())
        alone, turn, batch = (cached_parts(seen.body) for seen in server.requests)

    assert (alone, turn, batch) == ([], ["Be brief.", "Many?"], ["Be brief.", "same "])
    assert reply.usage == TokenUsage(2400, 10, cached_in=2000, written_in=300)
    assert reply.cost_usd == pytest.approx((100 * 3 + 2000 * 0.3 + 300 * 3.75 + 10 * 15) / 1e6)


@needs_it
def test_openai_gets_the_key_of_its_cache() -> None:
    with ScriptedServer("seven") as server:
        model_of(server).complete(ModelRequest(messages=MESSAGES, conversation="c"), deadline=soon())
        (seen,) = server.requests

    assert seen.body["prompt_cache_key"] == "c"
