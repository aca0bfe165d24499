"""One conversation with an editor: lines in, messages out, tasks in threads of their own. Knows nothing of pipes.

Every line that cannot be understood is answered by one recoverable error. Every task ends with exactly one completion, whatever
happens in it; after its completion nothing more is sent about it. A cancel interrupts the model calls of a task. One that does not end
all the same, because its code runs on or a tool does not return, is given up after a few seconds: its completion is sent, and what its
thread still does reaches nobody.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from sonde.contexts.workspace import WireWorkspace
from sonde.core.cancellation import Stop
from sonde.core.canonical import clip
from sonde.errors import SondeError
from sonde.server.messages import (
    HOST,
    SHOWN,
    Cancel,
    Completion,
    ErrorMessage,
    Hello,
    Message,
    NewTask,
    ToolResult,
    encode,
)
from sonde.server.requests import Requests
from sonde.server.runner import TaskRunner

MAX_TASKS = 4
GIVE_UP_S = 3.0
KNOWN_TYPES = ("new_task", "cancel", "tool.result")


class _Task:
    """A task that is under way."""

    def __init__(self, task: NewTask, requests: Requests) -> None:
        self.task = task
        self.requests = requests
        self.cancelled = Stop()
        self.thread: threading.Thread | None = None

    def cancel(self) -> None:
        """Ask the runner to stop and let go of what it waits for."""
        self.cancelled.set()
        self.requests.close()


class Connection:
    """`feed` takes each line of the editor; `write` gets each line for it, one at a time."""

    def __init__(
        self,
        runner: TaskRunner,
        write: Callable[[bytes], None],
        *,
        hello: Hello,
        timeout_s: float = 60.0,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self._runner = runner
        self._write = write
        self._timeout_s = timeout_s
        self._give_up_s = give_up_s
        self._tasks: dict[str, _Task] = {}
        self._seen: set[str] = set()
        self._seq = itertools.count(1)
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self.send(hello)

    def send(self, message: Message) -> None:
        """One line, numbered in the order in which lines leave."""
        with self._writing:
            self._write(encode(message.model_copy(update={"seq": next(self._seq)})))

    def feed(self, line: bytes) -> None:
        """Act on one line; never raises for what the line says."""
        message = self._understood(line)
        match message:
            case NewTask():
                self._start(message)
            case Cancel():
                self._cancel(message)
            case ToolResult():
                self._answer(message)
            case None:
                pass

    def close(self, wait_s: float = 5.0) -> bool:
        """Cancel every task and wait for them, all together this long; False when one did not end in time and was given up."""
        with self._lock:
            tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        until = time.monotonic() + wait_s
        for task in tasks:
            if task.thread is not None:
                task.thread.join(max(0.0, until - time.monotonic()))
        late = [task for task in tasks if task.thread is not None and task.thread.is_alive()]
        for task in late:
            self._give_up(task)
        return not late

    def refuse(self, reason: str, about: str | None = None, code: str = "BAD_LINE") -> None:
        """Answer a line that led to nothing."""
        self.send(ErrorMessage(id=about, error=reason, recoverable=True, code=code))

    def _understood(self, line: bytes) -> NewTask | Cancel | ToolResult | None:
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            self.refuse('the line is not JSON; each line is one JSON object such as {"type":"cancel","id":"t1"}')
            return None
        if not isinstance(value, dict):
            self.refuse("the line is JSON but not an object")
            return None
        return self._validated(value)  # pyright: ignore[reportUnknownArgumentType] - any JSON object

    def _validated(self, value: dict[str, Any]) -> NewTask | Cancel | ToolResult | None:
        kind = value.get("type")
        if kind not in KNOWN_TYPES:
            self.refuse(
                f"type {str(kind)[:60]!r} is not one that a host sends; known: {', '.join(KNOWN_TYPES)}",
                code="UNKNOWN_TYPE",
            )
            return None
        try:
            return HOST.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            self.refuse(f"{kind}: {where or 'the message'}: {first['msg']}", code="BAD_FIELD")
            return None

    def _start(self, task: NewTask) -> None:
        with self._lock:
            problem = self._why_not(task)
            if problem is None:
                self._seen.add(task.id)
                self._tasks[task.id] = job = _Task(task, Requests(task.id, self.send, timeout_s=self._timeout_s))
                job.thread = threading.Thread(target=self._work, args=(job,), name=f"task {task.id}", daemon=True)
                job.thread.start()
        if problem is not None:
            self.refuse(problem, code="REFUSED_TASK")

    def _why_not(self, task: NewTask) -> str | None:
        if task.id in self._seen:
            return f"the id {task.id!r} was used before; ids of tasks are used once"
        if len(self._tasks) >= MAX_TASKS:
            return f"{MAX_TASKS} tasks are under way; wait for one to end or cancel it"
        return None

    def _work(self, job: _Task) -> None:
        self._finish(job, self._completion(job))

    def _finish(self, job: _Task, completion: Completion) -> None:
        """Send the completion, unless somebody else has."""
        with self._lock:
            first = self._tasks.pop(job.task.id, None) is not None
        if first:
            job.requests.close()
            job.requests.mute()
            self.send(completion)

    def _give_up(self, job: _Task) -> None:
        summary = "cancelled; a call that was under way could not be stopped, its result is dropped"
        self._finish(job, Completion(id=job.task.id, task_id=job.task.id, status="cancelled", summary=summary))

    def _completion(self, job: _Task) -> Completion:
        task_id = job.task.id
        try:
            done = self._runner.run(job.task, WireWorkspace(job.requests.ask), job.requests.emit, job.cancelled)
        except SondeError as error:
            done = self._failed(job, error.message, error.code)
        except Exception as error:  # noqa: BLE001 - the top of a request: whatever happens, the task gets its completion
            done = self._failed(job, f"{type(error).__name__}: {error}", "UNEXPECTED_RUNTIME_ERROR")
        if job.cancelled.is_set():
            done = done.model_copy(update={"status": "cancelled"})
        elif done.status == "succeeded" and not done.citations:
            note = "(nothing was cited, so this is not counted as succeeded)"
            done = done.model_copy(update={"status": "partial", "summary": f"{done.summary}\n{note}"})
        return done.model_copy(update={"id": task_id, "task_id": task_id})

    def _failed(self, job: _Task, message: str, code: str) -> Completion:
        # Half a character, or a text without end, would make it no message at all.
        message = clip(message.encode("utf-8", "backslashreplace").decode(), SHOWN)
        if not job.cancelled.is_set():
            job.requests.emit(ErrorMessage(id=job.task.id, error=message, recoverable=False, code=code))
        return Completion(id=job.task.id, status="failed", summary=message)

    def _cancel(self, message: Cancel) -> None:
        with self._lock:
            job = self._tasks.get(message.id)
        if job is not None:
            job.cancel()
            later = threading.Timer(self._give_up_s, self._give_up, (job,))
            later.daemon = True
            later.start()
        elif message.id not in self._seen:
            self.refuse(f"there is no task {message.id!r} to cancel", code="UNKNOWN_TASK")

    def _answer(self, result: ToolResult) -> None:
        with self._lock:
            jobs = list(self._tasks.values())
        if any(job.requests.answer(result) for job in jobs):
            return
        if not any(result.id.startswith(f"{task_id}.r") for task_id in self._seen):
            self.refuse(f"no request {result.id!r} was made", code="UNKNOWN_REQUEST")
