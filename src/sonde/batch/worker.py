"""A worker process of a local batch: `python -m sonde.batch.worker FD`, started by `local.LocalCrew`.

It takes jobs from the driver over a socket and does them in a few threads, because runs mostly wait for models. When the driver is
gone it waits for requests in flight, so that paid replies get into their journals, and leaves.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from msgspec.structs import replace

from sonde.batch.crew import Done, Halted, Left
from sonde.batch.folder import DiskFull
from sonde.batch.gate import Paused
from sonde.batch.item_runner import Job, Order, Station
from sonde.batch.limits import Answer, Ask, Closed, Slot, Told
from sonde.batch.result import given_up
from sonde.core.deadline import SystemClock
from sonde.errors import RunError, SandboxUnavailable

STOPS = "the batch stops"
LANDING_S = 60.0  # for replies in flight when the driver died


@dataclass(frozen=True, slots=True, kw_only=True)
class Hired:
    """The driver's first word."""

    order: Order
    threads: int
    counts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Booking:
    """A worker's question to the limiter, by number."""

    number: int
    ask: Ask


@dataclass(frozen=True, slots=True, kw_only=True)
class Booked:
    """The limiter's answer."""

    number: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Ready:
    """A worker's first word: it has everything it needs."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Stop before the next request."""


@dataclass(slots=True)
class Wire:
    """The socket to the driver: many threads send; what is sent to a dead driver is dropped."""

    connection: Connection[Any, Any]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, message: Any) -> None:
        """Tell the driver."""
        with self._lock:
            try:
                self.connection.send(message)
            except OSError:
                return  # the reader notices too, and ends this process


class WireGate:
    """The limits, asked over the wire. If nothing is limited it reports only failures, and the success that ends a row of them."""

    def __init__(self, wire: Wire, *, counts: bool) -> None:
        self.counts = counts
        self.stopping = threading.Event()
        self._wire = wire
        self._failing = False
        self._lock = threading.Lock()
        self._asked = 0
        self._answers: dict[int, queue.SimpleQueue[Answer]] = {}

    def book(self, ask: Ask) -> Answer:
        """Ask the driver."""
        if not self.counts:
            return Slot(delay_s=0.0)
        answer: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        with self._lock:
            if self.stopping.is_set():  # nobody may be there any more to answer
                return Closed(reason=STOPS)
            self._asked += 1
            number = self._asked
            self._answers[number] = answer
        self._wire.send(Booking(number=number, ask=ask))
        return answer.get()

    def tell(self, told: Told) -> None:
        """Tell the driver."""
        if self.counts or self._failing or told.failure is not None:
            self._failing = told.failure is not None
            self._wire.send(told)

    def hear(self, booked: Booked) -> None:
        """Hand an answer to the thread that asked."""
        with self._lock:
            answer = self._answers.pop(booked.number, None)
        if answer is not None:
            answer.put(booked.answer)

    def stop(self) -> None:
        """Let no request out, and end every wait for an answer."""
        self.stopping.set()
        with self._lock:
            waiting, self._answers = self._answers, {}
        for answer in waiting.values():
            answer.put(Closed(reason=STOPS))


def attempt(station: Station, job: Job) -> Done | Left | Halted:
    """Do one job, and give its end as a message that can be sent."""
    try:
        return Done(job=job, result=replace(station.work(job), attempt=job.attempt))
    except Paused as paused:
        return Left(job=job, reason=paused.reason)
    except SandboxUnavailable as error:
        return Halted(job=job, reason=error.message, usage=True)
    except DiskFull as error:
        return Halted(job=job, reason=f"{error.message}; make room and start the batch again")
    except RunError as error:
        return Done(job=job, result=given_up(job.item, error.message))
    except Exception as error:  # noqa: BLE001  # the top of a worker: a fault of ours costs this item, not the batch
        return Done(job=job, result=given_up(job.item, f"{type(error).__name__}: {error}"))


def main(fd: int) -> None:
    """Work until the driver says so or is gone."""
    connection: Connection[Any, Any] = Connection(fd)
    wire = Wire(connection)
    hired: Hired = connection.recv()
    gate = WireGate(wire, counts=hired.counts)
    station = Station(hired.order, gate)
    jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()

    def serve() -> None:
        while (job := jobs.get()) is not None:
            wire.send(attempt(station, job))

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(hired.threads)]
    for thread in threads:
        thread.start()
    wire.send(Ready())
    with suppress(EOFError, OSError):  # the driver is gone
        while True:
            match connection.recv():
                case Job() as job:
                    jobs.put(job)
                case Booked() as booked:
                    gate.hear(booked)
                case Pause():
                    gate.stop()
                case _:
                    break
    gate.stop()
    for _ in threads:
        jobs.put(None)
    clock = SystemClock()
    give_up = clock.now() + LANDING_S
    for thread in threads:
        thread.join(max(0.0, give_up - clock.now()))
    if any(thread.is_alive() for thread in threads):
        os._exit(1)  # one that did not land in time must not keep the process
    station.close()


if __name__ == "__main__":
    from sonde.batch.worker import main as work  # under its own name: what it sends must not be pickled as __main__'s

    work(int(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # a thread that did not land in time must not keep the process
