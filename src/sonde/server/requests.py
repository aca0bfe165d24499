"""Requests of one task to the editor: each is sent once and answered once, by the editor, by a timeout, or by the end of the task."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from typing import Any

from sonde.contexts.workspace import Reply
from sonde.server.messages import (
    MAX_LINE_BYTES,
    ContextRead,
    ContextSearch,
    Message,
    SubcallEnd,
    SubcallStart,
    ToolRequest,
    ToolResult,
    encode,
)

CANCELLED = Reply(False, code="CANCELLED", message="the task was cancelled")
TOO_LONG = Reply(
    False,
    code="LINE_TOO_LONG",
    message=f"the request is longer than a line of the protocol may be ({MAX_LINE_BYTES:,} bytes); change less at once",
)
ROOM = 10_000  # for what a message gets on its way: the task, its number, where it happened
APPROVED_BY_A_PERSON = "apply_patch"  # waits for as long as the person does


class Requests:
    """The open requests of one task; also knows which sub-call a thread is in, to say where a request came from."""

    def __init__(self, task_id: str, send: Callable[[Message], None], *, timeout_s: float = 60.0) -> None:
        self._task_id = task_id
        self._send = send
        self._timeout_s = timeout_s
        self._open: dict[str, _Slot] = {}
        self._numbers = itertools.count(1)
        self._closed = False
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._muted = False
        self._here = threading.local()

    def emit(self, event: Message) -> None:
        """Send an event of the task, with the sub-call that it happened in."""
        parent = event.parent_id or self._parent()
        if isinstance(event, SubcallStart):
            self._here.stack = [*self._stack(), event.id]
        elif isinstance(event, SubcallEnd):
            self._here.stack = [known for known in self._stack() if known != event.id]
            parent = event.parent_id or self._parent()
        with self._sending:
            if not self._muted:
                self._send(event.model_copy(update={"task_id": self._task_id, "parent_id": parent}))

    def mute(self) -> None:
        """Send nothing any more; when this returns, nothing is on its way."""
        with self._sending:
            self._muted = True

    def ask(self, kind: str, fields: Mapping[str, Any]) -> Reply:
        """Send a request and wait for its answer."""
        slot = _Slot()
        request_id = f"{self._task_id}.r{next(self._numbers)}"
        request = _request(request_id, kind, fields)
        if len(encode(request)) > MAX_LINE_BYTES - ROOM:
            return TOO_LONG
        with self._lock:
            if self._closed:
                return CANCELLED
            self._open[request_id] = slot
        self.emit(request)
        answered = slot.done.wait(None if kind == APPROVED_BY_A_PERSON else self._timeout_s)
        with self._lock:
            self._open.pop(request_id, None)
        if not answered:
            return Reply(
                False, code="TIMEOUT", message=f"the editor did not answer {kind} within {self._timeout_s:g} s"
            )
        return slot.reply

    def answer(self, result: ToolResult) -> bool:
        """Hand an answer to whoever waits for it; False when nobody does, or it was answered before."""
        with self._lock:
            slot = self._open.pop(result.id, None)
        if slot is None:
            return False
        slot.fill(_reply(result))
        return True

    def close(self) -> None:
        """Answer everything that is open with CANCELLED and refuse what comes later."""
        with self._lock:
            self._closed = True
            slots, self._open = list(self._open.values()), {}
        for slot in slots:
            slot.fill(CANCELLED)

    def _stack(self) -> list[str]:
        return getattr(self._here, "stack", [])

    def _parent(self) -> str:
        stack = self._stack()
        return stack[-1] if stack else self._task_id


class _Slot:
    """Where one answer arrives."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.reply = CANCELLED

    def fill(self, reply: Reply) -> None:
        self.reply = reply
        self.done.set()


def _request(request_id: str, kind: str, fields: Mapping[str, Any]) -> Message:
    match kind:
        case "context.read":
            return ContextRead.model_validate({**fields, "id": request_id})
        case "context.search":
            return ContextSearch.model_validate({**fields, "id": request_id})
        case _:
            approval = True if kind == APPROVED_BY_A_PERSON else None
            return ToolRequest(id=request_id, name=kind, params=dict(fields), approval=approval)


def _reply(result: ToolResult) -> Reply:
    problem = result.error
    return Reply(result.ok, result.output or {}, problem.code if problem else "", problem.message if problem else "")
