"""Whatever a failure says, the editor hears of it."""

from __future__ import annotations

import json
import queue
import threading
from typing import Any

import pytest

from sonde.contexts.workspace import Workspace
from sonde.errors import ConfigError
from sonde.server.connection import EditorConnection
from sonde.server.messages import Completion, Hello, NewTask


class Failing:
    """A runner that fails with this."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run(self, task: NewTask, workspace: Workspace, emit: Any, cancelled: threading.Event) -> Completion:
        del task, workspace, emit, cancelled
        raise self.error


@pytest.mark.parametrize(
    "error",
    [RuntimeError("half a character: \ud800"), ConfigError("half: \udcff"), ConfigError("half " + "x" * 2_000_000)],
    ids=["code", "user", "endless"],
)
def test_a_failure_with_half_a_character_or_endless_words_in_it_still_ends_the_task_with_its_completion(
    error: Exception,
) -> None:
    lines: queue.Queue[bytes] = queue.Queue()
    connection = EditorConnection(Failing(error), lines.put, hello=Hello(version="1"))

    connection.feed(b'{"type":"new_task","id":"t","prompt":"p","workspace":"/"}')
    told = [json.loads(lines.get(timeout=60)) for _ in range(3)]

    assert [each["type"] for each in told] == ["hello", "error", "completion"]
    assert "half" in told[-1]["summary"]
