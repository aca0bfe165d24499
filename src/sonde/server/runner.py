"""The seam between the protocols and the runtime: something that does a task in a workspace and tells what it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from sonde.contexts.workspace import Workspace
from sonde.server.messages import Completion, Event, NewTask

Emit = Callable[[Event], None]


class TaskRunner(Protocol):
    """Does one task at a time in each thread it is called from."""

    def run(self, task: NewTask, workspace: Workspace, emit: Emit, cancelled: threading.Event) -> Completion:
        """Do the task. Sub-calls, messages and progress go to `emit` as they happen; `cancelled` asks to stop soon.

        Reads, searches and patches are emitted by the workspace itself. Whatever is raised becomes a failed completion.
        """
        ...
