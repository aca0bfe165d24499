"""The state of a watch: one SQLite file (WAL) in a folder of its own, beside the run folders of its investigations.

    DIR/watch.sqlite    cursor, traces of the last hours, groups of failures, issues, money
    DIR/items/          the run folders of investigations; `sonde runs --runs-dir DIR/items` lists them

A window of traces is one transaction, so a kill loses or repeats none. Money that a killed request may have cost counts as spent. The
folder may be a stranger's: a file with other tables, triggers or views than ours, or a link in its place, is refused. What it says about
issues is believed, and nothing in it is a path, an address or a command.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from sonde.api.settings import Settings
from sonde.batch.folder import BatchFolder
from sonde.disk import open_database
from sonde.errors import ConfigError

FILE = "watch.sqlite"
FORMAT = "1"
BUSY_S = 30.0
MOST_TEXT = 4 << 20
MOST_SECONDS = 9.2e12  # as microseconds, what SQLite and our times can hold
MOST_ATTEMPTS = 24  # at one investigation
ROOM = "give them more room: --retain-gb, --retain-days"
# `traces`: what was read and may still grow; one that comes again with more spans replaces itself.
# `signatures`: groups of failures as the grouper knows them; later failures are grouped with their `samples`.
# `happenings`: all that happened to issues, in order; whoever tells people about it remembers the last number it has told.
# `aside`: what requests that are under way may cost.
# `recovered`: which groups are errors that traces recovered from; `recoveries`: which trace counts in which of them, and in which window.
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE traces (trace_id TEXT PRIMARY KEY, end_us INTEGER NOT NULL, spans INTEGER NOT NULL, window INTEGER NOT NULL,
  signature INTEGER) WITHOUT ROWID;
CREATE INDEX traces_end ON traces (end_us);
CREATE TABLE windows (window INTEGER PRIMARY KEY, traces INTEGER NOT NULL, failed INTEGER NOT NULL);
CREATE TABLE signatures (id INTEGER PRIMARY KEY, issue INTEGER, component TEXT NOT NULL, form TEXT NOT NULL, message TEXT NOT NULL,
  label TEXT NOT NULL, judge TEXT NOT NULL, samples TEXT NOT NULL, traces TEXT NOT NULL, first_us INTEGER NOT NULL,
  last_us INTEGER NOT NULL, last_window INTEGER NOT NULL);
CREATE INDEX signatures_issue ON signatures (issue);
CREATE TABLE hits (signature INTEGER, window INTEGER, count INTEGER NOT NULL, PRIMARY KEY (signature, window)) WITHOUT ROWID;
CREATE TABLE affected (signature INTEGER, kind TEXT, value TEXT, PRIMARY KEY (signature, kind, value)) WITHOUT ROWID;
CREATE TABLE releases (release TEXT PRIMARY KEY, first_us INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE issues (number INTEGER PRIMARY KEY AUTOINCREMENT, state TEXT NOT NULL, since_us INTEGER NOT NULL,
  first_window INTEGER NOT NULL, fixed_in TEXT NOT NULL DEFAULT '', muted INTEGER NOT NULL DEFAULT 0,
  assignee TEXT NOT NULL DEFAULT '', apart INTEGER NOT NULL DEFAULT 0, merged_into INTEGER);
CREATE TABLE notes (id INTEGER PRIMARY KEY, issue INTEGER NOT NULL, at REAL NOT NULL, author TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE happenings (id INTEGER PRIMARY KEY AUTOINCREMENT, issue INTEGER NOT NULL, kind TEXT NOT NULL, at_us INTEGER NOT NULL,
  window INTEGER NOT NULL, text TEXT NOT NULL);
CREATE TABLE investigations (fingerprint TEXT PRIMARY KEY, signature INTEGER, kind TEXT NOT NULL, trace_id TEXT NOT NULL,
  state TEXT NOT NULL, attempt INTEGER NOT NULL, run TEXT NOT NULL, began REAL NOT NULL, retry_at REAL NOT NULL, judge TEXT NOT NULL,
  label TEXT NOT NULL, confidence REAL, component TEXT NOT NULL, words TEXT NOT NULL, summary TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE spending (id INTEGER PRIMARY KEY, at REAL NOT NULL, usd REAL NOT NULL, fingerprint TEXT NOT NULL);
CREATE TABLE aside (id INTEGER PRIMARY KEY, usd REAL NOT NULL, fingerprint TEXT NOT NULL);
CREATE TABLE recovered (signature INTEGER PRIMARY KEY);
CREATE TABLE recoveries (trace_id TEXT, signature INTEGER, window INTEGER NOT NULL, PRIMARY KEY (trace_id, signature)) WITHOUT ROWID
"""
TABLES = tuple(each.strip() for each in SCHEMA.split(";"))
ADDED = TABLES[-2:]  # states that an older version made lack them


class StateUnusable(ConfigError):
    """The file of a watch cannot be read or written, or is none of ours."""


class StateFull(StateUnusable):
    """There is no room for it now. What was written is sound."""


def state_place(settings: Settings, given: Path | None) -> Path:
    """Where the state of a watch is: the given folder, or that of this project in the user's state folder."""
    if given is not None:
        return given.absolute()
    runs = settings.state_runs
    if runs is None:
        raise ConfigError("there is no home for the state of a watch: give one with --state DIR")
    return runs.parent.parent / "watch" / runs.name


class WatchState:
    """The open file. Threads may share it; a transaction is held by one of them."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = BatchFolder(folder)
        path = folder / FILE
        if not create and not os.path.lexists(path):
            raise ConfigError(
                f"no watch has worked in {folder}: start `sonde watch`, or name its folder with --state DIR"
            )
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.path.lexists(folder / "items") and not stat.S_ISDIR((folder / "items").lstat().st_mode):
            raise ConfigError(
                f"{folder / 'items'} is a link or a device, not the runs of a watch; name another folder with --state DIR"
            )
        self._lock = threading.RLock()
        try:
            self._connection = open_database(path, "rwc" if create else "rw", timeout=BUSY_S, longest=MOST_TEXT)
            try:
                self._prepare(create=create)
            except BaseException:
                self._connection.close()
                raise
        except (sqlite3.Error, OSError) as error:
            raise ConfigError(
                f"the state of the watch in {folder} cannot be opened: {error}; name another folder with --state DIR"
            ) from None

    def _prepare(self, *, create: bool) -> None:
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute("PRAGMA synchronous = FULL")
        with self.transaction():
            found = {
                row[0]
                for row in self._connection.execute(
                    "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name != 'sqlite_sequence'"
                )
            }
            missing = TABLES if not found and create else ADDED if found == set(TABLES) - set(ADDED) else ()
            for table in missing:
                self._connection.execute(table)
            found.update(missing)
            if missing == TABLES:
                self.remember("format", FORMAT)
            elif found != set(TABLES) or self.recall("format") != FORMAT or not self._is_sound():
                raise StateUnusable(
                    f"{self.folder.path / FILE} is not the state of a watch of this version; name another folder with --state DIR"
                )

    def _is_sound(self) -> bool:
        """Whether every value has the type of its column (SQLite takes any) and money and attempts are possible ones: a stranger may have
        written them. Pages of a forged file may be used many times, so that a few kilobytes hold texts without end: `quick_check` finds it.
        """
        if self.rows("PRAGMA quick_check(1)") != [("ok",)]:
            return False
        kinds = {"INTEGER": "'integer'", "REAL": "'real', 'integer'", "TEXT": "'text'"}
        for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'sqlite_sequence'"):
            wrong: list[str] = []
            for _, column, kind, needed, _, key in self.rows(f"PRAGMA table_info({name})"):
                allowed = kinds[kind] if needed or key else f"{kinds[kind]}, 'null'"
                wrong.append(f"typeof({column}) NOT IN ({allowed})")
                wrong += [f"abs({column}) > {MOST_SECONDS}"] if kind == "REAL" else []
            if self.rows(f"SELECT 1 FROM {name} WHERE {' OR '.join(wrong)} LIMIT 1"):  # noqa: S608 - our own names
                return False
        impossible = """SELECT 1 FROM investigations WHERE attempt NOT BETWEEN 0 AND ?
                        UNION ALL SELECT 1 FROM (SELECT usd FROM spending UNION ALL SELECT usd FROM aside) WHERE abs(usd) > 1e12 LIMIT 1"""
        return not self.rows(impossible, MOST_ATTEMPTS)

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def copy_to(self, path: Path) -> None:
        """Write all of it to another file."""
        with self._lock, contextlib.closing(open_database(path, "rwc")) as other:
            self._connection.backup(other)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All of it or nothing; another process waits."""
        with self._lock:
            if self._connection.in_transaction:
                yield
                return
            with self._usable():
                self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                with suppress(sqlite3.Error):  # SQLite has rolled back by itself
                    self._connection.execute("ROLLBACK")
                raise
            with self._usable():
                self._connection.execute("COMMIT")

    @contextmanager
    def _usable(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeEncodeError, OverflowError) as error:
            full = getattr(error, "sqlite_errorcode", None) in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)
            kind = StateFull if full else StateUnusable
            raise kind(f"{self.folder.path / FILE} cannot be used: {error}") from None

    def rows(self, sql: str, *values: Any) -> list[Any]:
        """What a query finds."""
        with self._lock, self._usable():
            return self._connection.execute(sql, values).fetchall()

    def one(self, sql: str, *values: Any) -> Any:
        """The first column of the first row; None without one."""
        found = self.rows(sql, *values)
        return found[0][0] if found else None

    def change(self, sql: str, *values: Any) -> int:
        """Change something; the id of a new row."""
        with self._lock, self._usable():
            return self._connection.execute(sql, values).lastrowid or 0

    def change_many(self, sql: str, values: Sequence[tuple[Any, ...]]) -> None:
        """The same for many rows."""
        with self._lock, self._usable():
            self._connection.executemany(sql, values)

    def recall(self, key: str, default: str = "") -> str:
        """A remembered word."""
        found = self.one("SELECT value FROM meta WHERE key = ?", key)
        return default if found is None else str(found)

    def number(self, key: str, default: int = 0) -> int:
        """A remembered number."""
        with suppress(ValueError):
            found = int(self.recall(key))
            return found if abs(found) < 1 << 63 else default
        return default

    def figure(self, key: str) -> float:
        """A remembered amount; 0 if there is none."""
        with suppress(ValueError):
            found = float(self.recall(key, "0"))
            return found if abs(found) <= MOST_SECONDS else 0.0  # not a number is neither
        return 0.0

    def remember(self, key: str, value: str | float) -> None:
        """Remember a word or a number."""
        self.change(
            "INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, str(value)
        )

    @property
    def counts_recovered(self) -> bool:
        """Whether errors that traces recovered from are issues here."""
        return self.recall("recovered") == "1"

    def count_expired(self, numbers: Sequence[int], now: float) -> None:
        """Spans with these numbers went from the store of the listener: those that came after the last look were never seen."""
        if unread := sum(each > self.number("arrived") for each in numbers):
            with self.transaction():
                self.remember("expired_unread", self.number("expired_unread") + unread)
                self.remember("expired_unread_at", now)

    def spent(self, since: float, *, control: bool = False) -> float:
        """US dollars since this moment, with what is set aside; with `control`, on healthy traces only. Rows from a clock that was ahead
        count too.
        """
        kind = "control" if control else "%"
        # Nothing that stands there gives money back.
        sql = """SELECT coalesce(sum(max(usd, 0)), 0)
                 FROM (SELECT usd, fingerprint FROM spending WHERE at > ? UNION ALL SELECT usd, fingerprint FROM aside)
                 WHERE ? = '%' OR fingerprint IN (SELECT fingerprint FROM investigations WHERE kind = ?)"""
        return float(self.one(sql, since, kind, kind))

    def spent_on(self, fingerprint: str) -> float:
        """US dollars for one investigation."""
        sql = """SELECT coalesce(sum(max(usd, 0)), 0)
                 FROM (SELECT usd, fingerprint FROM spending UNION ALL SELECT usd, fingerprint FROM aside) WHERE fingerprint = ?"""
        return float(self.one(sql, fingerprint))

    def lost_on(self, fingerprint: str) -> float:
        """What of that was set aside for requests which a kill cut off: at most so much, and nobody knows how much."""
        return max(0.0, self.figure(f"lost_usd {fingerprint}"))

    def count_lost(self, now: float) -> float:
        """What was set aside when the last watch was killed counts as spent, since nobody knows; how much that was."""
        with self.transaction():
            lost = self.rows("SELECT max(usd, 0), fingerprint FROM aside")
            self.change_many(
                "INSERT INTO spending (at, usd, fingerprint) VALUES (?, ?, ?)", [(now, usd, name) for usd, name in lost]
            )
            for usd, name in lost:
                self.remember(f"lost_usd {name}", self.lost_on(name) + usd)
            self.change("DELETE FROM aside")
        return sum(usd for usd, _ in lost)


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """A change of an issue. `at_us` is in the traces' own time, and by our clock for what people do; `id` rises by time."""

    id: int
    issue: int
    kind: str
    at_us: int
    window: int
    text: str


def happened(state: WatchState, issue: int, kind: str, at_us: int, text: str = "") -> None:
    """Write down a change, within the transaction that makes it."""
    sql = "INSERT INTO happenings (issue, kind, at_us, window, text) VALUES (?, ?, ?, ?, ?)"
    state.change(sql, issue, kind, at_us, state.number("window"), text)


def happenings(state: WatchState, *, after: int = 0, issue: int | None = None, limit: int = 1_000) -> list[Happening]:
    """What happened since the happening with this number, in order."""
    rows = state.rows(
        "SELECT id, issue, kind, at_us, window, text FROM happenings WHERE id > ? AND (? IS NULL OR issue = ?) ORDER BY id LIMIT ?",
        *(after, issue, issue, limit),
    )
    return [
        Happening(id=number, issue=about, kind=kind, at_us=at_us, window=window, text=text)
        for number, about, kind, at_us, window, text in rows
    ]


def stored_texts(text: str) -> list[str]:
    """A list of texts from the state, which somebody else may have written."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [each for each in cast("list[Any]", found) if isinstance(each, str)] if isinstance(found, list) else []
