"""An embedded store of traces: a folder with one SQLite file, which one process fills and any number read at the same time.

    STORE/spans.sqlite   the index of traces (see `contexts.traces.index`), in WAL mode
    STORE/lock           held by the process that writes

A delivery is settled when its spans are on the disk: a kill or a power cut after that loses none of them. A span that comes again is
kept once. When the writer is behind, spans are refused at once: nothing is queued without bound. What the retention no longer covers is
removed, whole traces at a time, those first whose first span came first. The clock that counts is ours, not the sender's.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, Self

import msgspec

from sonde.contexts.traces.index import (
    INDEXES,
    SCHEMA,
    STORE_FILE,
    STORE_MARK,
    STORE_TABLES,
    SUMMARY_COLUMNS,
    VERSION,
    SpanBatch,
    decode_body,
    store_fingerprint,
    summary_of,
    words_of,
)
from sonde.contexts.traces.span import Span
from sonde.disk import PRIVATE, lock, open_database
from sonde.errors import ConfigError, SondeError

QUEUED_BYTES = 64 * 1024 * 1024
COMMIT_SPANS = 4000
EXPIRED_SPANS = 6000  # more than are stored at once, so that the room suffices however much comes
ARRIVAL_S = 60
LOST_TRACES = 5000
REFUSED = "spans of this trace were refused by the listener and were not read: "
PATIENCE_S = 60.0
FULLEST = 0.95
"""Of the room that the retention gives: the rest is for what comes while old spans are removed."""


class NotKept(SondeError):
    """The spans were not stored, and the sender should try again later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long spans are kept, and how many bytes of them."""

    days: float | None = None
    gb: float | None = None


@dataclass(slots=True, kw_only=True)
class Delivery:
    """Spans on their way to the disk, and what became of them."""

    batch: SpanBatch
    numbers: range
    """Those that its spans have in the store."""
    lost: Counter[str]
    """How many of its spans are not stored, by trace."""
    done: threading.Event = field(default_factory=threading.Event)
    refused: list[str] = field(default_factory=list[str])
    failure: Exception | None = None

    def settled(self) -> list[str]:
        """Returns when the spans are durable, with the reasons why some were not taken. NotKept if none of them was."""
        if not self.done.wait(PATIENCE_S):
            raise NotKept("the disk has not answered for a minute: send it again")
        if self.failure is not None:
            raise NotKept(f"the store could not be written: {self.failure}") from self.failure
        return self.refused


class Intake:
    """The writer of a store, inside a `with`. Opening makes the folder if it is missing."""

    def __init__(
        self,
        folder: Path,
        *,
        retention: Retention = Retention(),  # noqa: B008 - a frozen value
        queued_bytes: int = QUEUED_BYTES,
        clock: Callable[[], float] = time.time,
        on_expired: Callable[[list[int]], object] | None = None,
    ) -> None:
        """`on_expired` hears the numbers of the spans that the retention removed."""
        self.folder = folder
        self.kept = self.expired = 0
        """Spans stored and removed since the start."""
        self._retention = retention
        self._most_queued = queued_bytes
        self._clock = clock
        self._on_expired = on_expired
        self._lock = _locked(folder)
        try:
            self._connection = _opened(folder / STORE_FILE)
        except BaseException:
            self._lock.close()
            raise
        (last,) = self._connection.execute("SELECT value FROM meta WHERE key = 'last'").fetchone()
        self._last = int(last)
        self._unswept = 0  # gaps of refused spans since those without a trace were removed
        (self._arrival,) = self._connection.execute("SELECT coalesce(max(at), 0) FROM arrivals").fetchone()
        self._turn = threading.Lock()
        self._changed = threading.Condition()
        self._queue: deque[Delivery] = deque()
        self._queued = 0
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="sonde-intake", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Store what is queued and let go of the folder."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._connection.close()
        self._lock.close()

    @property
    def behind(self) -> bool:
        """Whether the queue is full, so that a request need not even be read."""
        return self._queued >= self._most_queued

    def accept(self, spans: Iterable[Span], lost: Mapping[str, int] = MappingProxyType({})) -> Delivery:
        """Queue spans for the writer, and how many others were refused, by trace; they are stored when the delivery is settled.
        NotKept if the writer is too far behind.
        """
        batch = SpanBatch()
        with self._turn:  # numbers grow in the order of the queue
            first = self._last + 1
            for span in spans:
                self._last += 1
                batch.add(self._last, span, span.project)
            if lost and not batch.spans:
                self._last += 1  # the store changes
            delivery = Delivery(batch=batch, numbers=range(first, self._last + 1), lost=Counter(lost))
            if not delivery.numbers:
                delivery.done.set()
                return delivery
            with self._changed:
                if self._closing or (self._queue and self._queued + delivery.batch.size > self._most_queued):
                    raise NotKept("the store is behind: send it again in a few seconds")
                self._queue.append(delivery)
                self._queued += delivery.batch.size
                self._changed.notify_all()
        return delivery

    def _work(self) -> None:
        more = True  # to remove
        while True:
            with self._changed:
                while not self._queue and not self._closing and not more:
                    more = not self._changed.wait(ARRIVAL_S)
                if self._closing and not self._queue:
                    return
                deliveries: list[Delivery] = []
                spans = 0
                while self._queue and spans < COMMIT_SPANS:
                    spans += len(self._queue[0].batch.spans)
                    deliveries.append(self._queue.popleft())
            if deliveries:
                self._store(deliveries)
                with self._changed:
                    self._queued -= sum(delivery.batch.size for delivery in deliveries)
                for delivery in deliveries:
                    delivery.done.set()
            try:
                more = self._expire()
            except Exception:  # noqa: BLE001  # the top of a worker: a full disk, say; the next round tries again
                self._roll_back()
                more = False

    def _store(self, deliveries: list[Delivery]) -> None:
        """All of them in one transaction: one wait for the disk."""
        run = self._connection.execute
        try:
            run("BEGIN IMMEDIATE")
            now = max(int(self._clock()), self._arrival)
            if now - self._arrival >= ARRIVAL_S:
                run("INSERT INTO arrivals VALUES (?, ?)", (deliveries[0].numbers[0], now))
            last = deliveries[-1].numbers[-1]
            for delivery in deliveries:
                self._leave_out_known(delivery)
                delivery.batch.write(self._connection)
                self._note_lost(delivery.lost)
            run("UPDATE meta SET value = ? WHERE key = 'last'", (str(last),))
            run("COMMIT")
        except Exception as failure:  # noqa: BLE001  # the top of a worker: whoever waits must hear of it, and the next be served
            self._roll_back()
            for delivery in deliveries:
                delivery.failure = failure
            return
        if now - self._arrival >= ARRIVAL_S:
            self._arrival = now
        self.kept += sum(len(delivery.batch.spans) for delivery in deliveries)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _leave_out_known(self, delivery: Delivery) -> None:
        """A span that came before stays as it came first. It is refused if its id belongs to a span of another trace."""
        batch, run = delivery.batch, self._connection.execute
        taken = batch.owners(self._connection)
        known: set[int] = set()
        firsts: dict[str, Any] = {}
        for position, row in enumerate(batch.spans):
            trace_id, span_id, content = row[1], row[2], (row[4], row[7], batch.bodies[position][1])
            owner = taken.get(span_id)
            if owner is None:
                taken[span_id], firsts[span_id] = trace_id, content
                continue
            known.add(position)
            if owner != trace_id:
                delivery.refused.append(f"span {span_id} of trace {trace_id}: trace {owner} has a span of that id")
                delivery.lost[trace_id] += 1
                continue
            if span_id not in firsts:
                kept = "SELECT name, status_message, body FROM spans JOIN bodies USING (id) WHERE span_id = ?"
                firsts[span_id] = run(kept, (span_id,)).fetchone()
            if firsts[span_id] != content:
                gap = f"span id {span_id} came again with other content; the first one was kept"
                once = "INSERT INTO gaps SELECT ?1, ?2 WHERE NOT EXISTS (SELECT 1 FROM gaps WHERE trace_id = ?1 AND gap = ?2)"
                run(once, (trace_id, gap))
        if known:
            batch.leave_out(known)

    def _note_lost(self, lost: Mapping[str, int]) -> None:
        """One gap for each trace that says how many of its spans were refused. Of traces that have no span, only the newest are kept."""
        run = self._connection.execute
        for trace_id, count in lost.items():
            known = run("SELECT rowid, gap FROM gaps WHERE trace_id = ? AND gap GLOB ?", (trace_id, f"{REFUSED}*"))
            number, told = known.fetchone() or (None, "0")
            gap = f"{REFUSED}{int(told.removeprefix(REFUSED)) + count}"
            run("INSERT OR REPLACE INTO gaps(rowid, trace_id, gap) VALUES (?, ?, ?)", (number, trace_id, gap))
            self._unswept += number is None
        if self._unswept >= LOST_TRACES:
            self._unswept = 0
            run(
                """DELETE FROM gaps WHERE rowid IN (SELECT rowid FROM gaps WHERE trace_id NOT IN (SELECT trace_id FROM traces)
                   ORDER BY rowid DESC LIMIT -1 OFFSET ?)""",
                (LOST_TRACES,),
            )

    def _expire(self) -> bool:
        """Remove a few of the spans that the retention no longer covers; True when there may be more."""
        run = self._connection.execute
        before = self._too_old() if self._retention.days is not None else 0
        if self._retention.gb is not None and self._used() > FULLEST * self._retention.gb * 1e9:
            before = self._last + 1
        if not before:
            return self._shrink()
        oldest = "SELECT DISTINCT trace_id FROM (SELECT trace_id FROM spans WHERE id < ? ORDER BY id LIMIT ?)"
        traces = _listed(run(oldest, (before, EXPIRED_SPANS)).fetchall())
        # The newest span of a trace goes first, so that one that is cut off here is found again by its oldest one.
        doomed = """SELECT spans.id FROM json_each(?) AS doomed JOIN spans ON trace_id = doomed.value
                    ORDER BY doomed.key, spans.id DESC LIMIT ?"""
        numbers = run(doomed, (traces, EXPIRED_SPANS)).fetchall()
        if not numbers:
            return self._shrink()
        content = f"""SELECT spans.id, {SUMMARY_COLUMNS}, body FROM json_each(?) AS doomed
                      JOIN spans ON spans.id = doomed.value JOIN bodies ON bodies.id = spans.id"""  # noqa: S608 - constants only
        words: list[tuple[int, str]] = []
        counts: dict[str, list[int]] = {}
        for row in run(content, (_listed(numbers),)):
            span = _span_of(row)
            words.append((row[0], words_of(span)[0]))
            count = counts.setdefault(span.summary.trace_id, [0, 0])
            count[0] += 1
            count[1] += span.summary.status == "ERROR"
        run("BEGIN IMMEDIATE")
        each = self._connection.executemany
        each("INSERT INTO words(words, rowid, text) VALUES ('delete', ?, ?)", words)
        each("DELETE FROM bodies WHERE id = ?", numbers)
        each("DELETE FROM spans WHERE id = ?", numbers)
        less = [(spans, failed, trace_id) for trace_id, (spans, failed) in counts.items()]
        each("UPDATE traces SET spans = spans - ?, errors = errors - ? WHERE trace_id = ?", less)
        gone = [(trace_id,) for trace_id in counts]
        each("DELETE FROM gaps WHERE trace_id = ?1 AND (SELECT spans <= 0 FROM traces WHERE trace_id = ?1)", gone)
        each("DELETE FROM traces WHERE trace_id = ? AND spans <= 0", gone)
        run("COMMIT")
        self.expired += len(numbers)
        if self._on_expired is not None:
            self._on_expired([number for (number,) in numbers])
        return True

    def _shrink(self) -> bool:
        """Give some of the free room in the file back, if the file is larger than it may be; True when there is more."""
        most = self._retention.gb
        if most is None or self._pages("page_count") <= most * 1e9 or not self._pages("freelist_count"):
            return False
        self._connection.execute("PRAGMA incremental_vacuum(1000)").fetchall()
        return True

    def _too_old(self) -> int:
        """The number of the first span that is not too old."""
        run = self._connection.execute
        # A row of `arrivals` stands for a minute of spans, all of which must be too old.
        cutoff = int(self._clock() - (self._retention.days or 0) * 86_400) - ARRIVAL_S
        (before,) = run("SELECT coalesce(min(id), ?) FROM arrivals WHERE at > ?", (self._last + 1, cutoff)).fetchone()
        run("DELETE FROM arrivals WHERE id < ?", (before,))
        return before

    def _used(self) -> int:
        return self._pages("page_count") - self._pages("freelist_count")

    def _pages(self, which: str) -> int:
        """Bytes in pages of this kind."""
        run = self._connection.execute
        return run(f"PRAGMA {which}").fetchone()[0] * run("PRAGMA page_size").fetchone()[0]


def _listed(rows: list[tuple[Any, ...]]) -> str:
    """The first column, for json_each."""
    return msgspec.json.encode([row[0] for row in rows]).decode()


def _span_of(row: tuple[Any, ...]) -> Span:
    """The span behind a row of the query of `_expire`: to leave the index of words, its words must be told again."""
    attributes, events, resource = decode_body(row[-1])
    return Span(summary=summary_of(row[1:-1]), attributes=attributes, events=events, resource=resource)


def _locked(folder: Path) -> BinaryIO:
    """The lock of a folder's only writer."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # traces hold what people wrote
        handle = os.fdopen(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | PRIVATE, 0o600), "r+b")
    except OSError as error:
        raise ConfigError(f"traces cannot be stored in {folder}: {error.strerror}") from None
    try:
        lock(handle.fileno())
    except BlockingIOError:
        handle.close()
        raise ConfigError(f"another process stores traces in {folder}: stop it, or give another folder") from None
    return handle


def _opened(file: Path) -> sqlite3.Connection:
    """The store, made if it is missing."""
    try:
        connection = open_database(file, "rwc", timeout=PATIENCE_S / 2)
        run = connection.execute
        empty = not run("SELECT 1 FROM sqlite_master LIMIT 1").fetchall()  # new, or killed while it was made
        if not empty:
            store_fingerprint(file.resolve())
        else:
            run("PRAGMA page_size = 8192")
            run("PRAGMA auto_vacuum = INCREMENTAL")
            run(f"PRAGMA application_id = {STORE_MARK}")  # before WAL, so that it is in the file itself
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = FULL")
        run("PRAGMA cache_size = -65536")
        run("PRAGMA journal_size_limit = 67108864")
        if empty:
            run("BEGIN IMMEDIATE")
            for statement in filter(str.strip, (SCHEMA + INDEXES + STORE_TABLES).split(";")):
                run(statement)
            meta = {"store": uuid.uuid4().hex, "last": "0", "malformed": "0", "version": str(VERSION)}
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
            run("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise ConfigError(f"traces cannot be stored in {file.parent}: {error}") from None
    return connection
