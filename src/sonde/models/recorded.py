"""A model that says what was said before. It knows no journal: somebody hands it the replies in order."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sonde.core.deadline import Deadline
from sonde.errors import ModelCallFailed
from sonde.models.base import ModelReply, ModelRequest, OnText


class RecordedModel:
    """Gives each recorded reply once, in order, also to several threads; a recorded failure is raised again."""

    def __init__(self, name: str, replies: Iterable[ModelReply | ModelCallFailed]) -> None:
        self.name = name
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
