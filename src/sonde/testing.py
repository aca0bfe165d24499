"""Public doubles for tests and benchmarks; Sonde's own suite uses the same ones.

`ScriptedServer` is a real HTTP server on loopback that speaks Chat Completions and misbehaves on request:

    with ScriptedServer(["first reply", ScriptedReply(status=429, headers={"retry-after": "1"})]) as server:
        model = open_model("openai:gpt-4o-mini", ModelSettings(base_url=server.base_url))

`python -m sonde.testing --delay 0.2 --text hello` always serves the same reply, for benchmarks in other processes.
It promises the shape of the protocol, not the quality of a model.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from sonde.api.ask_run import ask
from sonde.api.result import Answer
from sonde.api.settings import Settings
from sonde.core.deadline import Deadline
from sonde.errors import ModelCallFailed
from sonde.models.base import Model, ModelReply, ModelRequest, OnText, estimate_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRequest:
    """What a client sent: the path, the headers with lower-case names, and the body parsed as JSON."""

    path: str
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    def prompt(self) -> str:
        """The text of the last message."""
        return str(self.body["messages"][-1]["content"])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One answer of the server, well-behaved by default.

    `raw` is sent instead of a body made from `text`. `pieces` are the parts of a streamed text; the connection breaks after
    `cut_after` of them. The server waits `delay_s` before the first byte, `pause_s` before each piece, and `pause_after_s`
    before it closes a complete stream; with `hang` it never answers. `usage=None` leaves the usage out.
    """

    text: str = ""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    raw: bytes | None = None
    usage: Mapping[str, Any] | Literal["counted"] | None = "counted"
    finish_reason: str | None = "stop"
    pieces: Sequence[str] | None = None
    cut_after: int | None = None
    delay_s: float = 0.0
    pause_s: float = 0.0
    pause_after_s: float = 0.0
    hang: bool = False


Scripted = str | ScriptedReply
Script = Scripted | Iterable[Scripted] | Callable[[SeenRequest], Scripted]


class ScriptedServer:
    """Answers POST /v1/chat/completions from a script: always the same reply, one after the other, or a function. With `parallel`,
    requests that come at once ask the function at once.
    """

    def __init__(self, script: Script = "ok", *, delay_s: float = 0.0, port: int = 0, parallel: bool = False) -> None:
        if isinstance(script, str | ScriptedReply):
            self._reply: Callable[[SeenRequest], Scripted] = lambda _seen: script
        elif callable(script):
            self._reply = script
        else:
            replies = iter(script)
            spent = ScriptedReply(status=400, raw=b'{"error": {"message": "the script has no reply left"}}')
            self._reply = lambda _seen: next(replies, spent)
        self._delay_s = delay_s
        self._lock = threading.Lock()
        self._choosing: AbstractContextManager[Any] = nullcontext() if parallel else threading.Lock()
        self._seen: list[SeenRequest] = []
        self.closing = threading.Event()
        self._http = _Listener(self, port)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    @property
    def requests(self) -> tuple[SeenRequest, ...]:
        """Everything asked so far, in order of arrival."""
        with self._lock:
            return tuple(self._seen)

    @property
    def connections(self) -> int:
        """How many connections were opened: fewer than requests when the client reuses them."""
        return self._http.connections

    def answer(self, seen: SeenRequest) -> ScriptedReply:
        """Note the request, choose its reply, and wait out the delay."""
        with self._choosing:
            with self._lock:
                self._seen.append(seen)
            reply = self._reply(seen)
        reply = ScriptedReply(text=reply) if isinstance(reply, str) else reply
        self.closing.wait(None if reply.hang else max(reply.delay_s, self._delay_s))
        return reply

    def start(self) -> Self:
        self._thread.start()
        return self

    def close(self) -> None:
        """Stop, and release connections that hang."""
        self.closing.set()
        if self._thread.is_alive():
            self._http.shutdown()
            self._thread.join()
        self._http.server_close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # a hundred clients connect in the same instant

    def __init__(self, script: ScriptedServer, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Exchange)
        self.script = script
        self.connections = 0

    def get_request(self) -> tuple[Any, Any]:
        self.connections += 1
        return super().get_request()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Silent: in many tests the client hangs up on purpose."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave in one packet
    server: _Listener  # pyright: ignore[reportIncompatibleVariableOverride]  # only a _Listener starts it

    def do_GET(self) -> None:
        self._send(200, {"content-type": "application/json"}, b'{"object": "list", "data": [{"id": "scripted"}]}')

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = SeenRequest(path=self.path, headers=headers, body=json.loads(body or b"{}"))
        reply = self.server.script.answer(seen)
        if reply.hang or self.server.script.closing.is_set():
            self.close_connection = True
        elif seen.body.get("stream") and reply.raw is None and reply.status == 200:
            self.send_response(reply.status)
            for name, value in {"content-type": "text/event-stream", **reply.headers}.items():
                self.send_header(name, value)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for number, event in enumerate(_events(seen, reply)):
                if reply.cut_after is not None and number >= reply.cut_after:
                    self.close_connection = True
                    return
                self.server.script.closing.wait(reply.pause_s)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
                self.wfile.flush()
            self.server.script.closing.wait(reply.pause_after_s)
            self.wfile.write(b"0\r\n\r\n")
        else:
            completion: dict[str, Any] = {"error": {"message": reply.text or "scripted failure", "code": reply.status}}
            if reply.status == 200:
                message = {"role": "assistant", "content": reply.text}
                choices = [{"index": 0, "message": message, "finish_reason": reply.finish_reason}]
                model = seen.body.get("model")
                completion = {"id": "scripted-1", "object": "chat.completion", "model": model, "choices": choices}
                if usage := _usage(seen, reply):
                    completion["usage"] = usage
            sent = json.dumps(completion).encode() if reply.raw is None else reply.raw
            self._send(reply.status, {"content-type": "application/json", **reply.headers}, sent)

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
        """Silent: the requests are in `ScriptedServer.requests`."""


def _usage(seen: SeenRequest, reply: ScriptedReply) -> Mapping[str, Any] | None:
    if reply.usage != "counted":
        return reply.usage
    sent = -(-sum(len(str(message.get("content"))) for message in seen.body.get("messages", [])) // 4)
    got = -(-len(reply.text) // 4)
    return {"prompt_tokens": sent, "completion_tokens": got, "total_tokens": sent + got}


def _events(seen: SeenRequest, reply: ScriptedReply) -> Iterator[bytes]:
    """The events of a stream, as real servers send them: the usage comes last, with no choices."""

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        chunk = {"id": "scripted-1", "object": "chat.completion.chunk", "model": seen.body.get("model"), **more}
        return b"data: " + json.dumps({**chunk, "choices": choices}).encode() + b"\n\n"

    for piece in reply.pieces if reply.pieces is not None else [reply.text]:
        yield event([{"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": None}])
    yield event([{"index": 0, "delta": {}, "finish_reason": reply.finish_reason}])
    if seen.body.get("stream_options", {}).get("include_usage") and (usage := _usage(seen, reply)):
        yield event([], usage=usage)
    yield b"data: [DONE]\n\n"


class FrozenClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, at: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._utc = at
        self._now = 0.0

    def now(self) -> float:
        """Seconds that only go forward."""
        return self._now

    def utc(self) -> datetime:
        """The time of day in UTC."""
        return self._utc

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds
        self._utc += timedelta(seconds=seconds)


Answering = Callable[[ModelRequest], str | ModelReply | Exception]


class ScriptedModel:
    """A model that follows a script: a list of replies in order, or a function of the request.

    An exception in the list is raised instead of a reply. `requests` holds what it was asked. A token counts as four characters.
    """

    def __init__(
        self,
        script: Sequence[str | ModelReply | Exception] | Answering,
        *,
        name: str = "scripted:model",
        cost_usd: float | None = 0.0,
    ) -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._cost_usd = cost_usd
        if callable(script):
            self._answering: Answering = script
        else:
            left = iter(script)
            self._answering = lambda _request: next(left, ModelCallFailed("the script of this model has no reply left"))
        self._lock = threading.Lock()

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """The next reply of the script."""
        del deadline  # it answers at once
        with self._lock:
            self.requests.append(request)
            answer = self._answering(request)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, ModelReply):
            return answer
        if on_text is not None:
            on_text(answer)
        usage = estimate_usage(request, answer)
        return ModelReply(text=answer, usage=usage, model=self.name, cost_usd=self._cost_usd)


def run_in_memory(
    model: Model | None,
    question: str = "What does it say?",
    context: Any = "one line of text\n",
    **options: Any,
) -> Answer:
    """`sonde.ask` without a run folder and without the environment, for tests of prompts, tools and engines."""
    options.setdefault("settings", Settings())
    return ask(question, context, model=model, in_memory=True, **options)


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve one reply until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m sonde.testing", description=main.__doc__)
    parser.add_argument("--text", default="ok")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before each reply")
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args(arguments)
    with ScriptedServer(chosen.text, delay_s=chosen.delay, port=chosen.port) as server:
        print(server.base_url, flush=True)  # noqa: T201  # the caller reads the address here
        sys.stdin.read()


if __name__ == "__main__":
    main()
