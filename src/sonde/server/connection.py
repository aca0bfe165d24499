"""One conversation with an editor: lines in, messages out, each task in its own thread. Knows nothing about pipes.

Every line that cannot be understood is answered with one recoverable error, which carries the id of the line; if it was a new_task, a
failed completion follows. Every task ends with exactly one completion, whatever happens in it; nothing is sent about it afterwards. A
cancel interrupts the model calls of a task. If the task still does not end, because its code keeps running or a tool does not return,
it is abandoned after a few seconds: its completion is sent, and whatever its thread still does reaches nobody.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, cast

from pydantic import ValidationError

from sonde.contexts.workspace import WireWorkspace, Workspace
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
    NewTask,
    TaskEvent,
    WireMessage,
    WireToolResult,
    encode,
)
from sonde.server.requests import Requests

MAX_TASKS = 4
GIVE_UP_S = 3.0
KNOWN_TYPES = ("new_task", "cancel", "tool.result")
LONGEST_ID = 1000
_HEAD = re.compile(rb'\s*\{\s*(?:"type"\s*:\s*"([\w.]*)"\s*,\s*)?"id"\s*:\s*"([^"\\]{1,1000})"')

Emit = Callable[[TaskEvent], None]


class TaskRunner(Protocol):
    """The seam between the protocols and the runtime. Does one task at a time in each thread that calls it."""

    def run(self, task: NewTask, workspace: Workspace, emit: Emit, cancelled: threading.Event) -> Completion:
        """Do the task. Sub-calls, messages and progress go to `emit` as they happen; `cancelled` asks to stop soon.

        The workspace itself emits reads, searches and patches. Any exception becomes a failed completion.
        """
        ...


class _Task:
    """A task in progress."""

    def __init__(self, task: NewTask, requests: Requests) -> None:
        self.task = task
        self.requests = requests
        self.cancelled = Stop()
        self.thread: threading.Thread | None = None

    def cancel(self) -> None:
        """Ask the runner to stop and release what it waits for."""
        self.cancelled.set()
        self.requests.close()


class EditorConnection:
    """`feed` takes each line from the editor; `write` gets each line for it, one at a time."""

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

    def send(self, message: WireMessage) -> None:
        """Send one line, numbered in the order in which lines leave."""
        with self._writing:
            self._write(encode(message.model_copy(update={"seq": next(self._seq)})))

    def refuse(self, reason: str, about: str | None = None, code: str = "BAD_LINE", *, task: bool = False) -> None:
        """Answer a line that led to nothing. A task gets its completion too, unless one with the same id is running: that one's end
        answers both.
        """
        self.send(ErrorMessage(id=about, error=reason, recoverable=True, code=code))
        if about is None:
            return
        with self._lock:
            running = about in self._tasks
            jobs = list(self._tasks.values())
        if task and not running:
            self.send(Completion(id=about, task_id=about, status="failed", summary=reason))
        for job in jobs:
            job.requests.fail(about, reason)

    def refuse_long(self, start: bytes, limit: int) -> None:
        """Answer a line that is too long to be read; its id is known if it stands at the start."""
        head = _HEAD.match(start)
        about = head[2].decode("utf-8", "replace") if head else None
        task = head is not None and head[1] == b"new_task"
        self.refuse(f"the line is longer than {limit:,} bytes", about, "LINE_TOO_LONG", task=task)

    def feed(self, line: bytes) -> None:
        """Act on one line; never raises because of what the line says."""
        message = self._understood(line)
        match message:
            case NewTask():
                self._start(message)
            case Cancel():
                with self._lock:
                    job = self._tasks.get(message.id)
                if job is not None:
                    job.cancel()
                    later = threading.Timer(self._give_up_s, self._give_up, (job,))
                    later.daemon = True
                    later.start()
                elif message.id not in self._seen:
                    self.refuse(f"there is no task {message.id!r} to cancel", message.id, "UNKNOWN_TASK")
            case WireToolResult():
                with self._lock:
                    jobs = list(self._tasks.values())
                answered = any(job.requests.answer(message) for job in jobs)
                if not answered and not any(message.id.startswith(f"{task_id}.r") for task_id in self._seen):
                    self.refuse(f"no request {message.id!r} was made", message.id, "UNKNOWN_REQUEST")
            case None:
                pass

    def _understood(self, line: bytes) -> NewTask | Cancel | WireToolResult | None:
        """The message in a line; None if the line was refused."""
        try:
            value: Any = json.loads(line)
        except (ValueError, RecursionError):
            self.refuse('the line is not JSON; each line is one JSON object such as {"type":"cancel","id":"t1"}')
            return None
        if not isinstance(value, dict):
            self.refuse("the line is JSON but not an object")
            return None
        fields = cast("dict[str, Any]", value)
        kind, about = fields.get("type"), _id_of(fields.get("id"))
        if kind not in KNOWN_TYPES:
            known = ", ".join(KNOWN_TYPES)
            self.refuse(f"a host does not send type {str(kind)[:60]!r}; known types: {known}", about, "UNKNOWN_TYPE")
            return None
        try:
            return HOST.validate_python(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"][1:])
            reason = f"{kind}: {where or 'the message'}: {first['msg']}"
            self.refuse(reason, about, "BAD_FIELD", task=kind == "new_task")
            return None
        except RecursionError:
            self.refuse(f"{kind}: the message is nested too deeply", about, "BAD_FIELD", task=kind == "new_task")
            return None

    def _start(self, task: NewTask) -> None:
        problem = None
        with self._lock:
            if task.id in self._seen:
                problem = f"the id {task.id!r} was used before; use each task id once"
            elif len(self._tasks) >= MAX_TASKS:
                problem = f"{MAX_TASKS} tasks are running; wait for one to end or cancel it"
            else:
                self._seen.add(task.id)
                self._tasks[task.id] = job = _Task(task, Requests(task.id, self.send, timeout_s=self._timeout_s))
                job.thread = threading.Thread(target=self._work, args=(job,), name=f"task {task.id}", daemon=True)
                job.thread.start()
        if problem is not None:
            self.refuse(problem, task.id, "REFUSED_TASK", task=True)

    def _work(self, job: _Task) -> None:
        """Do the task in this thread and send its completion."""
        try:
            done = self._runner.run(
                job.task, WireWorkspace(job.requests.ask, job.task.workspace), job.requests.emit, job.cancelled
            )
        except SondeError as error:
            done = self._failed(job, error.message, error.code)
        except Exception as error:  # noqa: BLE001 - the top of a request: whatever happens, the task gets its completion
            done = self._failed(job, f"{type(error).__name__}: {error}", "UNEXPECTED_RUNTIME_ERROR")
        if job.cancelled.is_set():
            done = done.model_copy(update={"status": "cancelled"})
        elif done.status == "succeeded" and not done.citations:
            note = "(nothing was cited, so this does not count as succeeded)"
            done = done.model_copy(update={"status": "partial", "summary": f"{done.summary}\n{note}"})
        self._finish(job, done.model_copy(update={"id": job.task.id, "task_id": job.task.id}))

    def _failed(self, job: _Task, message: str, code: str) -> Completion:
        # Half a surrogate pair or an endless text would not fit in a message.
        message = clip(message.encode("utf-8", "backslashreplace").decode(), SHOWN)
        if not job.cancelled.is_set():
            job.requests.emit(ErrorMessage(id=job.task.id, error=message, recoverable=False, code=code))
        return Completion(id=job.task.id, status="failed", summary=message)

    def _finish(self, job: _Task, completion: Completion) -> None:
        """Send the completion, unless another thread already has."""
        with self._lock:
            first = self._tasks.pop(job.task.id, None) is not None
        if first:
            job.requests.close()
            job.requests.mute()
            self.send(completion)

    def _give_up(self, job: _Task) -> None:
        summary = "cancelled; a running call could not be stopped, its result is dropped"
        self._finish(job, Completion(id=job.task.id, task_id=job.task.id, status="cancelled", summary=summary))

    def close(self, wait_s: float = 5.0) -> bool:
        """Cancel all tasks and wait this long for all of them together; False if one did not end in time and was abandoned."""
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


def _id_of(given: Any) -> str | None:
    """The id of a line that is not understood, as text that a message can carry; None for what is no id."""
    if isinstance(given, bool) or not isinstance(given, str | int):
        return None
    text = str(given).encode("utf-8", "backslashreplace").decode()
    return text if 0 < len(text) <= LONGEST_ID else None
