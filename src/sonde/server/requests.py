"""Requests of one task to the editor: each is sent once and answered once, by the editor, by a timeout, or by the end of the task."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from sonde.contexts.workspace import Reply
from sonde.core.canonical import clip
from sonde.server.messages import (
    MAX_LINE_BYTES,
    SHOWN,
    ContextRead,
    ContextSearch,
    SubcallEnd,
    SubcallStart,
    ToolRequest,
    WireMessage,
    WireToolResult,
    encode,
)

CANCELLED = Reply(False, code="CANCELLED", message="the task was cancelled")
TOO_LONG = Reply(
    False,
    code="LINE_TOO_LONG",
    message=f"the request is longer than a line of the protocol may be ({MAX_LINE_BYTES:,} bytes); change less at once",
)
ROOM = 10_000  # for the fields that a message gets on its way out: taskId, seq, parentId
APPROVED_BY_A_PERSON = "apply_patch"  # waits as long as the person does


class Requests:
    """The open requests of one task. Knows which sub-call each thread is in, so that a request can say where it came from."""

    def __init__(self, task_id: str, send: Callable[[WireMessage], None], *, timeout_s: float = 60.0) -> None:
        self._task_id = task_id
        self._send = send
        self._timeout_s = timeout_s
        self._open: dict[str, Future[Reply]] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._muted = False
        self._here = threading.local()

    def emit(self, event: WireMessage) -> None:
        """Send an event of the task, with the sub-call that it happened in."""
        stack: list[str] = getattr(self._here, "stack", [])
        if isinstance(event, SubcallEnd):
            stack = [known for known in stack if known != event.id]
        parent = event.parent_id or (stack[-1] if stack else self._task_id)
        self._here.stack = [*stack, event.id] if isinstance(event, SubcallStart) else stack
        with self._sending:
            if not self._muted:
                self._send(event.model_copy(update={"task_id": self._task_id, "parent_id": parent}))

    def mute(self) -> None:
        """Stop sending; when this returns, nothing is on its way."""
        with self._sending:
            self._muted = True

    def ask(self, kind: str, fields: Mapping[str, Any]) -> Reply:
        """Send a request and wait for its answer."""
        request_id = f"{self._task_id}.r{next(self._numbers)}"
        match kind:
            case "context.read":
                request = ContextRead.model_validate({**fields, "id": request_id})
            case "context.search":
                request = ContextSearch.model_validate({**fields, "id": request_id})
            case _:
                approval = True if kind == APPROVED_BY_A_PERSON else None
                request = ToolRequest(id=request_id, name=kind, params=dict(fields), approval=approval)
        if len(encode(request)) > MAX_LINE_BYTES - ROOM:
            return TOO_LONG
        reply: Future[Reply] = Future()
        with self._lock:
            if self._closed:
                return CANCELLED
            self._open[request_id] = reply
        self.emit(request)
        try:
            return reply.result(None if kind == APPROVED_BY_A_PERSON else self._timeout_s)
        except TimeoutError:
            message = f"the editor did not answer {kind} within {self._timeout_s:g} s"
            return Reply(False, code="TIMEOUT", message=message)
        finally:
            with self._lock:
                self._open.pop(request_id, None)

    def answer(self, result: WireToolResult) -> bool:
        """Hand an answer to whoever waits for it; False if nobody does, or it was answered before."""
        with self._lock:
            reply = self._open.pop(result.id, None)
        if reply is None:
            return False
        code, message = (result.error.code, result.error.message) if result.error else ("", "")
        reply.set_result(Reply(result.ok, result.output or {}, code, clip(message, SHOWN)))
        return True

    def fail(self, request_id: str, why: str) -> None:
        """Answer a request whose answer came but could not be understood, so that nobody waits for another one."""
        with self._lock:
            reply = self._open.pop(request_id, None)
        if reply is not None:
            reply.set_result(Reply(False, code="BAD_RESULT", message=f"the host's answer was not understood: {why}"))

    def close(self) -> None:
        """Answer every open request with CANCELLED and refuse later ones."""
        with self._lock:
            self._closed = True
            replies, self._open = list(self._open.values()), {}
        for reply in replies:
            reply.set_result(CANCELLED)
