"""Workers as processes of this machine: started here, replaced when they die, each served over one socket.

Not the standard library's pool, which gives up as a whole when one of its processes is killed. The driver's thread serves the limiter
between two looks at the sockets; nothing else runs in this process.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, cast

from sonde.batch.crew import Done, Halted, Happening, Left, Lost
from sonde.batch.item_runner import Job, Order
from sonde.batch.limits import Limiter, Told
from sonde.batch.worker import Booked, Booking, Hired, Pause, Ready
from sonde.disk import open_to_write
from sonde.errors import ConfigError, UnexpectedRuntimeError

THREADS = 4
LEAVING_S = 10.0
STILLBORN = 5  # workers in a row that never came up


@dataclass(slots=True, eq=False)
class Worker:
    """One process and its jobs."""

    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    jobs: list[Job] = field(default_factory=list[Job])
    alone: bool = False
    ready: bool = False

    @property
    def pid(self) -> int:
        return self.process.pid


class LocalCrew:
    """A few processes with a few threads each."""

    def __init__(self, order: Order, limiter: Limiter, *, processes: int | None = None) -> None:
        if sys.platform == "win32":
            raise ConfigError("batches need Linux or macOS: use WSL2")
        at_once = limiter.limits.concurrency
        self._order = order
        self._limiter = limiter
        self._count = processes or max(1, min(os.cpu_count() or 1, -(-at_once // THREADS)))
        self._threads = -(-at_once // self._count)
        self._at_once = at_once
        self._pausing = False
        self._stillborn = 0
        self._workers = [self._hire() for _ in range(self._count)]

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are at work."""
        return tuple(worker.pid for worker in self._workers)

    def room(self, *, alone: bool = False) -> bool:
        """Whether a job could start at once."""
        return sum(len(worker.jobs) for worker in self._workers) < self._at_once and bool(self._free(alone=alone))

    def give(self, job: Job, *, alone: bool = False) -> None:
        """Start a job at the worker with the least to do."""
        worker = min(self._free(alone=alone), key=lambda worker: len(worker.jobs))
        worker.jobs.append(job)
        worker.alone = alone
        _send(worker, job)

    def _free(self, *, alone: bool) -> list[Worker]:
        most = 1 if alone else self._threads
        return [worker for worker in self._workers if len(worker.jobs) < most and not worker.alone]

    def wait(self, timeout_s: float) -> Sequence[Happening]:
        """Serve the sockets once."""
        by_connection = {worker.connection: worker for worker in self._workers}
        ready = cast("list[Connection[Any, Any]]", wait(list(by_connection), timeout_s))
        found: list[Happening] = []
        for worker in (by_connection[connection] for connection in ready):
            try:
                while worker.connection.poll():
                    happened = self._answer(worker, worker.connection.recv())
                    found += [happened] if happened else []
            except (EOFError, OSError):
                worker.connection.close()
            else:
                continue
            worker.process.kill()
            code = worker.process.wait()
            self._limiter.lost(str(worker.pid))
            self._workers.remove(worker)
            self._stillborn += not worker.ready
            if self._stillborn >= STILLBORN:
                log = self._order.folder / "workers.log"
                raise UnexpectedRuntimeError(f"workers end before they begin (exit code {code}); {log} says why")
            if not self._pausing:
                self._workers.append(self._hire())
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            found.append(Lost(jobs=tuple(worker.jobs), how=f"{how}; see workers.log"))
        return found

    def _answer(self, worker: Worker, message: Any) -> Happening | None:
        """Serve one message; what it means for the driver."""
        match message:
            case Booking(number=number, ask=ask):
                _send(worker, Booked(number=number, answer=self._limiter.book(ask, str(worker.pid))))
            case Told():
                self._limiter.tell(message, str(worker.pid))
            case Ready():
                worker.ready = True
                self._stillborn = 0
            case Done(job=job) | Left(job=job) | Halted(job=job):
                worker.jobs.remove(job)
                worker.alone = False
                return message
            case _:
                raise TypeError(f"a worker said {message!r}")
        return None

    def pause(self) -> None:
        """Tell every worker."""
        self._pausing = True
        for worker in self._workers:
            _send(worker, Pause())

    def closed(self) -> str | None:
        """Why the limiter lets nothing more out."""
        return self._limiter.closed

    def spent(self, usd: float) -> None:
        """Known here already: the limiter is in this process."""
        self._limiter.at_least(usd)

    def close(self) -> None:
        """Let every worker leave; kill those that stay."""
        for worker in self._workers:
            worker.connection.close()
        for worker in self._workers:
            try:
                worker.process.wait(LEAVING_S)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _hire(self) -> Worker:
        near, far = socket.socketpair()
        try:
            log = open_to_write(self._order.folder / "workers.log", append=True)
        except OSError:
            log = subprocess.DEVNULL
        with far:
            process = subprocess.Popen(
                # -P: a package of our name in the working folder is not ours
                [sys.executable, "-P", "-m", "sonde.batch.worker", str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(far.fileno(),),
                process_group=0,  # Ctrl-C is for the driver to judge
            )
        if log != subprocess.DEVNULL:
            os.close(log)
        worker = Worker(process, Connection(near.detach()))
        counts = self._limiter.limits.limited
        _send(worker, Hired(order=self._order, threads=self._threads, counts=counts))
        return worker


def _send(worker: Worker, message: Any) -> None:
    """To a worker that may have died just now: the next look at its socket says so."""
    try:
        worker.connection.send(message)
    except OSError:
        return
