"""The Chat Completions client against a real HTTP server on loopback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed
from sonde.models import Message, ModelReply, ModelRequest, ModelSettings, Secret, TokenUsage, open_model
from sonde.models.base import Model
from sonde.models.completion import ChatCompletion, read_completion
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

KEY = "sk-very-secret-0123456789"
SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}


def soon(seconds: float | None = 100.0) -> Deadline:
    return Deadline(SystemClock(), seconds)


def model_of(server: ScriptedServer, name: str = "gpt-4o-mini", **settings: Any) -> Model:
    return open_model(f"openai:{name}", ModelSettings(base_url=server.base_url, api_key=Secret(KEY), **settings))


def request(text: str = "How many?", **options: Any) -> ModelRequest:
    return ModelRequest(messages=[Message("system", "Be brief."), Message("user", text)], **options)


def ignore(_piece: str) -> None:
    pass


def ask(server: ScriptedServer, name: str = "gpt-4o-mini", *, stream: bool = False, **options: Any) -> ModelReply:
    return model_of(server, name).complete(request(**options), deadline=soon(), on_text=ignore if stream else None)


def failure(server: ScriptedServer, *, stream: bool = False, seconds: float = 100.0) -> ModelCallFailed:
    on_text = ignore if stream else None
    with pytest.raises(ModelCallFailed) as caught:
        model_of(server).complete(request(), deadline=soon(seconds), on_text=on_text)
    return caught.value


def sse(*events: object) -> bytes:
    return b"".join(b"data: " + (e if isinstance(e, bytes) else json.dumps(e).encode()) + b"\n\n" for e in events)


def delta(content: object, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": content}, "finish_reason": finish}]}


STREAM = {"content-type": "text/event-stream"}


@pytest.mark.requirement(49)
def test_a_reply_carries_text_usage_and_cost() -> None:
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 400}}
    with ScriptedServer(ScriptedReply(text="seven", usage=usage)) as server:
        reply = ask(server)

    assert reply.text == "seven"
    assert reply.usage == TokenUsage(1000, 100, cached_in=400)
    assert reply.cost_usd == pytest.approx((600 * 0.15 + 400 * 0.075 + 100 * 0.60) / 1e6)
    assert (reply.finish_reason, reply.request_id) == ("stop", "scripted-1")
    assert reply.latency_s > 0


@pytest.mark.requirement(49)
@pytest.mark.requirement(75)
def test_the_request_says_temperature_zero_seed_limit_and_the_key_in_its_header_only() -> None:
    with ScriptedServer("ok") as server:
        ask(server, seed=7, max_output_tokens=50, stop=["END"])
        (seen,) = server.requests

    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body == {
        "model": "gpt-4o-mini",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}],
        "max_tokens": 50,
        "temperature": 0.0,
        "stop": ["END"],
        "seed": 7,
    }


@pytest.mark.requirement(75)
@pytest.mark.parametrize(
    ("name", "effort"),
    [
        ("gpt-5", "minimal"),
        ("gpt-5-mini", "minimal"),
        ("openai/gpt-5-nano", "minimal"),
        ("gpt-5.2", "none"),
        ("o3", None),
    ],
)
def test_reasoning_families_get_least_effort_and_nothing_they_reject(name: str, effort: str | None) -> None:
    with ScriptedServer("ok") as server:
        ask(server, name, max_output_tokens=50, stop=["END"])
        (seen,) = server.requests

    assert seen.body.get("reasoning_effort") == effort
    assert seen.body["max_completion_tokens"] == 50
    assert not {"temperature", "max_tokens", "stop"} & seen.body.keys()


def test_stop_strings_hold_also_where_the_server_ignores_them() -> None:
    with ScriptedServer("one END two") as server:
        assert ask(server, "o3", stop=["END"]).text == "one "


@pytest.mark.requirement(49)
def test_a_stream_tells_its_pieces_and_ends_with_usage_from_a_chunk_without_choices() -> None:
    pieces: list[str] = []
    with ScriptedServer(ScriptedReply(text="seven!", pieces=["se", "ven", "!"])) as server:
        reply = model_of(server).complete(request(), deadline=soon(), on_text=pieces.append)
        (seen,) = server.requests

    assert pieces == ["se", "ven", "!"]
    assert reply.text == "seven!"
    assert reply.usage == TokenUsage(5, 2)
    assert seen.body["stream_options"] == {"include_usage": True}


@pytest.mark.requirement("O8")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "usage",
    [
        None,
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": "many", "completion_tokens": None},
        {"prompt_tokens": True, "completion_tokens": False},
        {"prompt_tokens": 10**30, "completion_tokens": 1},
    ],
)
def test_omitted_or_impossible_usage_is_estimated_and_said_to_be(usage: dict[str, Any] | None, stream: bool) -> None:
    with ScriptedServer(ScriptedReply(text="x" * 41, usage=usage)) as server:
        reply = ask(server, text="y" * 31, stream=stream)

    assert reply.usage == TokenUsage(10, 11, estimated=True)


def test_odd_chunks_are_survived() -> None:
    raw = b": keep-alive\r\nevent: message\r\n\r\ndata:\n\ndata: ping\n\n" + sse(
        {"choices": None},
        {"choices": []},
        {"choices": [{"delta": None}]},
        {"choices": ["odd"]},
        delta(None),
        delta([{"type": "text", "text": "se"}]),
        delta("ven", "stop"),
    )
    with ScriptedServer(ScriptedReply(raw=raw, headers=STREAM)) as server:
        reply = ask(server, stream=True)

    assert (reply.text, reply.finish_reason) == ("seven", "stop")


def test_a_server_that_does_not_stream_is_read_as_a_whole() -> None:
    pieces: list[str] = []
    raw = json.dumps({"choices": [{"message": {"content": "seven"}}]}).encode()
    with ScriptedServer(ScriptedReply(raw=raw)) as server:
        reply = model_of(server).complete(request(), deadline=soon(), on_text=pieces.append)

    assert (reply.text, pieces) == ("seven", ["seven"])


@pytest.mark.requirement("O7")
@pytest.mark.parametrize(
    "reply",
    [
        ScriptedReply(text="seven", pieces=["se", "ven"], cut_after=1),
        ScriptedReply(raw=sse(delta("se")), headers=STREAM),
        ScriptedReply(raw=sse(delta("se")) + b'data: {"choices": [{"del', headers=STREAM),
    ],
    ids=["line cut", "end without a finish", "half an event"],
)
def test_a_stream_cut_in_the_middle_is_a_retryable_failure_that_counts_tokens(reply: ScriptedReply) -> None:
    with ScriptedServer(reply) as server:
        error = failure(server, stream=True)

    assert error.retryable
    assert error.tokens_in == 5 + 1
    assert error.code is ErrorCode.MODEL_UNREACHABLE


@pytest.mark.requirement("O7")
@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
def test_passing_troubles_are_retryable_and_tried_once(status: int) -> None:
    with ScriptedServer(ScriptedReply(status=status)) as server:
        error = failure(server)

        assert error.retryable
        assert error.tokens_in == (5 if status >= 500 else 0), "a server that broke may have run the model first"
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "advice"),
    [(400, "refused"), (401, "OPENAI_API_KEY"), (403, "permission"), (404, "/v1"), (307, "base URL")],
)
def test_lasting_troubles_are_not_retryable_and_say_what_to_do(status: int, advice: str) -> None:
    with ScriptedServer(ScriptedReply(status=status, headers={"location": "http://127.0.0.1:9/"})) as server:
        error = failure(server)

    assert not error.retryable
    assert advice in error.message


def test_a_used_up_quota_is_not_retried_although_it_is_a_429() -> None:
    raw = b'{"error": {"message": "You exceeded your quota", "code": "insufficient_quota"}}'
    with ScriptedServer(ScriptedReply(status=429, raw=raw)) as server:
        assert not failure(server).retryable


def test_the_wish_of_a_busy_server_is_passed_on() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    wishes: Sequence[dict[str, str]] = [
        {"retry-after": "7"},
        {"retry-after": date},
        {"retry-after-ms": "1500"},
        {"retry-after": "soon"},
        {"retry-after": "nan"},
        {},
    ]
    with ScriptedServer([ScriptedReply(status=429, headers=wish) for wish in wishes]) as server:
        got = [failure(server).retry_after for _ in wishes]

    assert got[0] == 7
    assert got[1] == pytest.approx(90, abs=5)
    assert got[2:] == [1.5, None, None, None]


def test_a_server_that_hangs_is_left_when_the_deadline_comes() -> None:
    with ScriptedServer(ScriptedReply(hang=True)) as server:
        started = time.monotonic()
        error = failure(server, seconds=2.0)

    assert error.retryable
    assert error.tokens_in == 5
    assert time.monotonic() - started < 60


@pytest.mark.parametrize("stream", [True, False])
def test_a_server_that_drips_does_not_outlive_the_deadline(stream: bool) -> None:
    dripping = ScriptedReply(pieces=["x"] * 1000, pause_s=0.15)
    with ScriptedServer(dripping) as server:
        model = model_of(server, extra_body={"stream": True})
        started = time.monotonic()
        with pytest.raises(ModelCallFailed) as caught:
            model.complete(request(), deadline=soon(0.4), on_text=ignore if stream else None)

    assert caught.value.retryable
    assert time.monotonic() - started < 60


def test_a_call_without_time_left_is_not_made() -> None:
    with ScriptedServer("ok") as server:
        failure(server, seconds=0)

        assert server.requests == ()


def test_nobody_at_the_address_is_retryable_and_names_it() -> None:
    with ScriptedServer("ok") as server:
        address = server.base_url
    with pytest.raises(ModelCallFailed) as caught:
        open_model("openai:x", ModelSettings(base_url=address)).complete(request(), deadline=soon())

    assert caught.value.retryable
    assert address in caught.value.message


@pytest.mark.parametrize("raw", [b"<html>Welcome</html>", b"[]", b"{}", b'{"choices": []}', b""])
def test_a_page_that_is_no_completion_is_refused_with_a_hint_at_the_address(raw: bytes) -> None:
    with ScriptedServer(ScriptedReply(raw=raw)) as server:
        error = failure(server)

    assert not error.retryable
    assert "OPENAI_BASE_URL" in error.message


@pytest.mark.parametrize(("code", "retryable"), [(429, True), (401, False), ("overloaded", True)])
def test_an_error_inside_a_reply_of_200_is_an_error(code: object, retryable: bool) -> None:
    raw = json.dumps({"error": {"message": "no", "code": code}}).encode()
    with ScriptedServer(
        [ScriptedReply(raw=raw), ScriptedReply(raw=b"data: " + raw + b"\n\n", headers=STREAM)]
    ) as server:
        assert failure(server).retryable is retryable
        assert failure(server, stream=True).retryable is retryable


def test_a_body_without_end_is_cut_off() -> None:
    with ScriptedServer(ScriptedReply(raw=b"x" * (33 * 1024 * 1024))) as server:
        error = failure(server)

    assert not error.retryable


def schema_echo(seen: Any) -> str:
    return json.dumps(seen.body["response_format"]["json_schema"])


@pytest.mark.requirement(75)
def test_a_schema_is_sent_as_response_format_and_strict_only_where_it_can_be() -> None:
    open_schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    with ScriptedServer(schema_echo) as server:
        strict = json.loads(ask(server, schema=SCHEMA).text)
        lax = json.loads(ask(server, schema=open_schema).text)

    assert strict == {"name": "reply", "schema": SCHEMA, "strict": True}
    assert lax["strict"] is False


def test_a_server_that_rejects_schemas_gets_them_in_words_and_is_not_asked_again() -> None:
    def without_schemas(seen: Any) -> ScriptedReply:
        if "response_format" in seen.body:
            return ScriptedReply(status=400, text="response_format of type json_schema is not supported")
        return ScriptedReply(text='{"answer": 7}')

    with ScriptedServer(without_schemas) as server:
        model = model_of(server)
        replies = [model.complete(request(schema=SCHEMA), deadline=soon()).text for _ in range(2)]
        bodies = [seen.body for seen in server.requests]

    assert replies == ['{"answer": 7}'] * 2
    assert ["response_format" in body for body in bodies] == [True, False, False]
    assert '"additionalProperties": false' in bodies[1]["messages"][-1]["content"]


def test_an_unknown_family_that_refuses_parameters_gets_the_request_without_them() -> None:
    def picky(seen: Any) -> ScriptedReply:
        if "temperature" in seen.body:
            raw = b'{"error": {"message": "Only the default is supported.", "param": "temperature"}}'
            return ScriptedReply(status=400, raw=raw)
        if "max_tokens" in seen.body:
            return ScriptedReply(status=400, text="Unsupported: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return ScriptedReply(text="fine")

    with ScriptedServer(picky) as server:
        reply = ask(server, "next-big-thing", max_output_tokens=9)
        last = server.requests[-1].body

    assert reply.text == "fine"
    assert last["max_completion_tokens"] == 9


def test_requests_of_a_conversation_carry_its_cache_key_unless_the_server_does_not_take_it() -> None:
    def picky(seen: Any) -> ScriptedReply:
        if "prompt_cache_key" in seen.body:
            return ScriptedReply(status=422, text="Extra inputs are not permitted: prompt_cache_key")
        return ScriptedReply(text="fine")

    with ScriptedServer(picky) as server:
        reply = ask(server, conversation="c")
        keys = [seen.body.get("prompt_cache_key") for seen in server.requests]

    assert (reply.text, keys) == ("fine", ["c", None])


def test_a_parameter_forced_by_the_caller_and_refused_is_a_plain_failure() -> None:
    with ScriptedServer(ScriptedReply(status=400, text="temperature must be 1")) as server:
        with pytest.raises(ModelCallFailed):
            model_of(server, extra_body={"temperature": 3}).complete(request(), deadline=soon())

        assert len(server.requests) == 1


def test_a_prompt_too_long_for_the_window_is_said_to_be() -> None:
    text = "This model's maximum context length is 8192 tokens, max_tokens included."
    with ScriptedServer(ScriptedReply(status=400, text=text)) as server:
        error = failure(server)

    assert not error.retryable
    assert "larger window" in error.message


def test_keys_are_in_no_message_and_no_repr() -> None:
    echo = ScriptedReply(status=401, text=f"Incorrect API key provided: {KEY}")
    with ScriptedServer(echo) as server:
        address = server.base_url.replace("127.0.0.1", "user:hunter2@127.0.0.1")
        settings = ModelSettings(base_url=address, api_key=Secret(KEY))
        model = open_model("openai:gpt-4o-mini", settings)
        with pytest.raises(ModelCallFailed) as caught:
            model.complete(request(), deadline=soon())

    shown = f"{caught.value} {caught.value!r} {model!r} {settings!r} {settings.api_key}"
    assert KEY not in shown
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("base_url", ["localhost:8000", "ftp://x/v1", "http://", "https://host:port/v1"])
def test_a_base_url_that_is_none_is_a_configuration_error(base_url: str) -> None:
    with pytest.raises(ConfigError):
        open_model("openai:x", ModelSettings(base_url=base_url, api_key=Secret(KEY)))


def test_a_key_with_a_line_end_inside_is_a_configuration_error_that_does_not_show_it() -> None:
    with pytest.raises(ConfigError) as caught:
        open_model("openai:x", ModelSettings(api_key=Secret("sk-abc\ndef")))

    assert "sk-abc" not in caught.value.message


def test_no_key_for_the_real_openai_is_said_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError) as caught:
        open_model("openai:gpt-4o-mini", ModelSettings())

    assert "OPENAI_API_KEY" in caught.value.message


def test_connections_are_reused() -> None:
    with ScriptedServer("ok") as server:
        model = model_of(server)
        for _ in range(10):
            model.complete(request(), deadline=soon())

        assert (len(server.requests), server.connections) == (10, 1)


def test_connections_are_reused_after_streams() -> None:
    with ScriptedServer("ok") as server:
        model = model_of(server)
        for _ in range(10):
            model.complete(request(), deadline=soon(), on_text=list[str]().append)

        assert server.connections < len(server.requests) == 10  # a line whose end comes late is not used again


def test_a_server_that_keeps_the_line_open_after_a_stream_keeps_nobody_waiting() -> None:
    stays = ScriptedReply(pieces=["ok"], usage=None, pause_after_s=3600.0)
    with ScriptedServer([stays, "ok"]) as server:
        model = model_of(server)
        texts = [model.complete(request(), deadline=soon(None), on_text=list[str]().append).text for _ in range(2)]

        assert texts == ["ok", "ok"]


def test_a_hundred_calls_run_at_once() -> None:
    together = threading.Barrier(100, timeout=100)

    class Meeting(ScriptedServer):
        def answer(self, seen: SeenRequest) -> ScriptedReply:
            together.wait()  # none is answered before all have asked
            return super().answer(seen)

    with Meeting(SeenRequest.prompt) as server, ThreadPoolExecutor(100) as pool:
        model = model_of(server)

        def call(number: int) -> str:
            return model.complete(request(str(number)), deadline=soon()).text

        texts = list(pool.map(call, range(100)))

    assert texts == [str(number) for number in range(100)]


def test_half_a_character_in_the_prompt_does_not_stop_the_call() -> None:
    with ScriptedServer("ok") as server:
        assert ask(server, text="broken \ud83d half").text == "ok"


def test_names_that_a_server_chooses_are_short() -> None:
    long = "x" * 1_000_000
    body = {"id": long, "model": long, "choices": [{"message": {"content": long}, "finish_reason": long}]}
    read = ChatCompletion()

    read_completion(json.dumps(body).encode(), read)

    assert [len(name or "") for name in (read.model, read.request_id, read.finish_reason)] == [200] * 3
    assert read.text == long
