"""An editor's tasks, done by the `edit` engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Literal, cast

from sonde.api.edit_run import edit
from sonde.api.settings import Settings
from sonde.contexts.workspace import Workspace
from sonde.server.connection import Emit
from sonde.server.event_translator import EventTranslator, citation_of
from sonde.server.messages import Completion, NewTask, WireLimits

Status = Literal["succeeded", "partial", "failed", "terminated_budget", "cancelled"]


class EditRunner:
    """See `TaskRunner`. `settings` name the model and the run folder; a task may name another model and its limits."""

    def __init__(self, settings: Settings, commands: Sequence[str] = ()) -> None:
        self._settings = settings
        self._commands = tuple(commands)

    def run(self, task: NewTask, workspace: Workspace, emit: Emit, cancelled: threading.Event) -> Completion:
        """Run the task to its end. A reached limit is named, so that a host can offer a larger budget."""
        translator = EventTranslator(task.id, emit, task.limits, self._settings.secrets())
        limits = task.limits or WireLimits()
        done = edit(
            task.prompt,
            workspace,
            model=task.model,
            settings=self._settings,
            commands=self._commands,
            on_event=translator.on_event,
            on_text=translator.on_text,
            cancel=cancelled,
            max_depth=limits.max_depth,
            max_subcalls=limits.max_subcalls,
            max_tokens_per_subcall=limits.max_tokens_per_subcall,
            max_tokens_total=limits.max_total_tokens,
            max_wall_time_sec=limits.timeout_seconds,
        )
        error = done.record.error
        limited = error is not None and error.code in ("RECURSION_LIMIT_REACHED", "WALL_TIME_LIMIT_REACHED")
        return Completion(
            id=task.id,
            status=cast("Status", done.status.value),
            summary=translator.shown(done.summary.strip() or (error.message if error else "nothing was done")),
            citations=tuple(citation_of(each) for each in done.citations),
            usage=translator.usage(time.time()),
            run_dir=str(done.run_dir) if done.run_dir else None,
            limit=error.message if error is not None and limited and not cancelled.is_set() else None,
        )
