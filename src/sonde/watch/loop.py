"""The loop of a watch: read complete traces window by window, let code judge all of them, spend the model's budget where it teaches most.

    watch = TraceWatch(state, place, settings, WatchOptions(every_s=60))
    turn = watch.turn()          # all windows that are over, or else one investigation
    keep_watch(watch, print)     # turns until it is stopped

Windows lie in the traces' own time; ours only says what is over by now, so neither a stopped watch, a source that was away nor a clock
that jumps loses or repeats a trace. A trace belongs to the window in which its last span ended, or to the next one if it comes late: up
to `late_s` after traces that were already read. What comes later than that is not seen. A trace that ends in the future by our clock
waits and moves nothing. A trace that grows after it was read is read again and counts once.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.api.estimate import Estimate, estimate
from sonde.api.investigations import case_spec
from sonde.api.launch import mask_of
from sonde.api.settings import Settings
from sonde.api.trace_source import Case, Source, project_in
from sonde.batch.folder import DiskFull
from sonde.batch.gate import Paused
from sonde.batch.item_runner import Job, Order, Station
from sonde.batch.limits import Limiter, SharedLimits
from sonde.batch.manifest import Item
from sonde.batch.result import ItemResult
from sonde.contexts.traces.cache import NothingYet
from sonde.contexts.traces.failure_words import folded
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.groups import FORM_CHARS, AttributeTable, TraceFacts, facts_of
from sonde.contexts.traces.prefilter import prefilter, shortened
from sonde.contexts.traces.rules import sign_of_failure
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, TraceStore, UnknownTrace
from sonde.core.canonical import lapse, plural
from sonde.core.deadline import Clock, SystemClock
from sonde.core.redaction import redact_text
from sonde.errors import ConfigError, RunError, ToolFault, ToolResponseInvalid
from sonde.watch.groups import KINDS, TraceLook
from sonde.watch.investigations import (
    LONGEST_PAUSE_S,
    Candidate,
    Ledger,
    begin,
    candidates,
    conclude,
    done_aside,
)
from sonde.watch.issues import KnownIssue, known_issues
from sonde.watch.lifecycle import LONG_AGO, IssueRules, forget, take_in, take_in_recovered
from sonde.watch.state import FILE, MOST_ATTEMPTS, ROOM, Happening, StateFull, StateUnusable, WatchState, happenings

if TYPE_CHECKING:
    from sonde.core.mask import Mask

SECOND_US = 1_000_000
AHEAD_S = 3_600.0  # for a trace that ends further ahead of our clock no look goes back to where it began
LONGEST_S = 6 * 3_600.0  # a trace that goes on for longer is read as it is
PAGE = 500
MOST_ROWS = 20_000  # of traces listed before the windows among them are read
MOST_LISTED = 1_000_000  # by a server in one look: 280 traces a second for an hour
LONGEST_LIST_S = 15 * 60.0
HELD_SPANS = 2_000
# What a stranger's trace may raise that nobody thought of: it costs this trace, never the watch.
UNREADABLE = (ValueError, TypeError, ArithmeticError, LookupError, RecursionError)
ATTEMPTS, UNANSWERED = 3, MOST_ATTEMPTS  # at an investigation that fails, and at one whose model does not answer
LATER_S = 300.0  # until a run that waits for money is tried again
REFUSED_S = 3_600.0  # until one is that could not be started, such as for a trace that is gone
LONGEST_WAIT_S = 600.0
NAMED = {"source": "--source", "project": "--project", "every_s": "--every"}
PLANNED = 8  # investigations that a dry run estimates


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """How a watch works. Limits of money come from the caller alone: no file sets them."""

    every_s: float = 60.0
    settle_s: float = 30.0
    late_s: float = 3_600.0
    since_us: int | None = None
    usd_per_day: float = 5.0
    usd_per_hour: float | None = None
    usd_per_issue: float | None = None
    per_day: int = 100
    """Investigations: what holds when nobody knows the price of a model."""
    control_share: float = 0.1
    """The part of a day's money for traces that look healthy."""
    min_traces: int | None = None
    quiet_windows: int = 60
    recovered: bool | None = None
    """Whether errors that traces recovered from are issues, too; None: as the state says, and at first not."""
    writeback: bool = True

    @property
    def rules(self) -> IssueRules:
        """What makes an issue and what ends it."""
        return IssueRules(
            every_s=self.every_s,
            min_traces=self.min_traces,
            quiet_windows=self.quiet_windows,
            recovered=bool(self.recovered),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTurn:
    """What one turn did. `outage` says why the source could not be read; `worked` that there may be more to do at once."""

    windows: int = 0
    traces: int = 0
    failed: int = 0
    recovered: int = 0
    """Traces that had errors, all of which a later try mended."""
    changed: str = ""
    """What the watch does otherwise than before its last start, in the first turn."""
    behind_s: float = 0.0
    outage: str = ""
    full: str = ""
    """What could not be written, for lack of room."""
    empty: str = ""
    """Why there is nothing to read yet, in the first turn that says so."""
    gaps: tuple[str, ...] = ()
    """What of the source cannot be read, in the first turn that says so."""
    money: str = ""
    """Why nothing more is investigated for now."""
    investigated: Candidate | None = None
    result: ItemResult | None = None
    postponed: str = ""
    """Why this was no investigation yet; it is tried again later."""
    happenings: tuple[Happening, ...] = ()

    @property
    def worked(self) -> bool:
        """Whether something was read or investigated."""
        return bool(self.windows or self.investigated)


@dataclass(slots=True, kw_only=True)
class TraceWatch:
    """A watch over one source. Whoever calls `turn` holds the folder of the state."""

    state: WatchState
    place: Source
    settings: Settings
    options: WatchOptions = field(default_factory=WatchOptions)
    clock: Clock = field(default_factory=SystemClock)
    stopping: threading.Event = field(default_factory=threading.Event)
    open_store: Callable[[], TraceStore] | None = None
    """Opens the traces if not `place` does."""
    patient: bool = False
    """Whether it waits for the first file of a folder that is empty; otherwise that is a mistake."""
    _begun: bool = False
    _told: int | None = None
    """The last happening that a turn has reported. A turn that a full disk has ended reports none; the next one does."""
    _refused: dict[str, float] = field(default_factory=dict[str, float])
    """Until when those that could not even be started wait. A new start tries them at once."""
    _outages: int = 0
    _waited: bool = False
    _ahead: bool = False
    """Whether the last look met a trace that ends in the future."""
    _money: str = ""
    _gaps: tuple[str, ...] = ()
    _mask: Mask | None = field(init=False)

    def __post_init__(self) -> None:
        """Settle what hides people's data."""
        self._mask = mask_of(self.settings)

    def start(self) -> str:
        """Check that this state belongs to this source, and count what a killed watch may have spent. What has changed."""
        state = self.state
        with state.transaction():
            read = state.recall("read_at") or state.recall("cursor_us")  # else a mistyped source may have come this far
            for key, value in self._identity().items() if read else ():
                known = state.recall(key, value)
                if known != value:
                    raise ConfigError(
                        f"{state.folder.path} belongs to a watch with {NAMED[key]} {known or '(none)'}, not {value or '(none)'}; "
                        "give this one its own: --state DIR"
                    )
            if not state.recall("cursor_us"):  # where the first start began holds for all
                state.remember("since_us", "" if self.options.since_us is None else self.options.since_us)
            changed = self._recovered_or_not(known=bool(read))
        state.remember("ended_at", "0")
        state.count_lost(self._now())
        self._begun = True
        return changed

    def _recovered_or_not(self, *, known: bool) -> str:
        """Settle whether errors that traces recovered from are issues; what that changes for a watch that has read traces."""
        before = self.state.counts_recovered
        wanted = before if self.options.recovered is None else self.options.recovered
        self.options = replace(self.options, recovered=wanted)
        self.state.remember("recovered", int(wanted))
        if wanted == before or not known:
            return ""
        if not wanted:
            return (
                "errors that traces recovered from are counted no more (--no-recovered); their issues stay as they are"
            )
        self.state.remember("again_after", LONG_AGO)
        self.state.remember("again_up_to", self.state.number("window"))
        kept = lapse(self.options.late_s + 2 * LONGEST_S)
        return f"errors that traces recovered from are issues, too (--recovered): from now on, and in the last {kept} that were read before"

    def end(self) -> None:
        """Write down that the watch does not run any more, if there is room for that."""
        with suppress(StateFull):
            self.state.remember("ended_at", self._now())

    def _identity(self) -> dict[str, str]:
        """What a state holds for: it takes no other source, project or length of windows once something was read."""
        return {
            "source": self.place.dataset if self.place.server else self.place.name,
            "project": self.place.project or "",
            "every_s": f"{self.options.every_s:g}",
        }

    def turn(self) -> WatchTurn:
        """Read every window that is over. If none is, investigate what teaches most, if a model and money are there."""
        changed = "" if self._begun else self.start()
        self.state.remember("turned_at", self._now())
        if self._told is None:
            self._told = int(self.state.one("SELECT coalesce(max(id), 0) FROM happenings"))
        try:
            done = self.read_windows()
            self._outages = 0
        except StateUnusable:
            raise
        except NothingYet as error:
            if self.state.recall("cursor_us"):
                done = self._out(error)
            elif self.patient:
                self._caught_up()
                done, self._waited = WatchTurn(empty="" if self._waited else error.message), True  # once
            else:
                raise
        except (RunError, ToolFault, ConfigError, OSError, sqlite3.DatabaseError) as error:
            if isinstance(error, ConfigError) and not self.state.recall("cursor_us"):
                raise  # the first look: a mistyped source, not one that is away
            done = self._out(error)
        done, self._gaps = (
            replace(done, gaps=() if done.gaps == self._gaps else done.gaps),
            self._gaps if done.outage else done.gaps,
        )  # once
        if not (self.stopping.is_set() or done.outage or done.windows):  # what was read is told before money is spent
            done = self._investigate(done)
            done, self._money = (
                replace(done, money="" if done.money == self._money else done.money),
                done.money,
            )  # once
        news = tuple(happenings(self.state, after=self._told))
        self._told = max([self._told, *(each.id for each in news)])
        return replace(done, changed=changed, happenings=news)

    def no_room(self, error: StateFull) -> WatchTurn:
        """The turn that a full disk has ended: the next one does again what was not written."""
        self._outages = min(self._outages + 1, 20)
        return WatchTurn(full=error.message)

    def wait_s(self) -> float:
        """How long to wait before the next turn: until the next window is over, or longer and longer while the source is away."""
        every, settle = self.options.every_s, self.options.settle_s
        if self._outages:
            return min(max(LONGEST_WAIT_S, every), every * 2**self._outages)
        return every - (self._now() - settle) % every

    def _now(self) -> float:
        return self.clock.utc().timestamp()

    def _hidden(self, value: Any) -> Any:
        """What the state may hold of a text or of texts."""
        return value if self._mask is None else self._mask.lasting(value)

    def _out(self, error: Exception) -> WatchTurn:
        self._outages = min(self._outages + 1, 20)
        said = self._hidden(str(error))[:300]
        behind = max(0.0, self._now() - (self.state.figure("read_at") or self._now()))
        with self.state.transaction():
            self.state.remember("outage", said)
            self.state.remember("behind_s", f"{behind:.0f}")
        return WatchTurn(outage=said, behind_s=behind)

    # --- reading --------------------------------------------------------------------------------------------------------------------

    def read_windows(self) -> WatchTurn:
        """Every window that is over, the oldest first, each in one transaction. `behind_s` is how much time of the traces waits unread."""
        done = WatchTurn()
        gaps: list[str] = []
        self._read_again()
        self._ahead, more = False, True
        while more and not self.stopping.is_set():
            # Opened for each stretch: a store over a server remembers every trace that it has listed.
            with closing(self.open_store() if self.open_store else self.place.open()) as store:
                project = project_in(self.place, store) if self.open_store is None else self.place.project
                rows, over_us, more = self._listed(store, project)
                self._claim()
                last = over_us / SECOND_US / self.options.every_s if more else max(rows, default=0)
                for window, ready in sorted(rows.items()):
                    if self.stopping.is_set():
                        break
                    behind = max(0.0, (last - window) * self.options.every_s)
                    outcomes = self._read(store, window, ready, behind)
                    done = replace(
                        done,
                        windows=done.windows + 1,
                        traces=done.traces + len(ready),
                        failed=done.failed + outcomes["failed"],
                        recovered=done.recovered + outcomes["recovered"],
                        behind_s=behind,
                    )
                gaps = self._hidden(store.skipped())
        if unread := self.state.number("unreadable"):
            gaps = [*gaps, f"{plural(unread, 'trace')} could not be read"]
        if late := self.state.number("late_traces"):
            gaps = [
                *gaps,
                f"{plural(late, 'trace')} came more than {lapse(self.options.late_s)} late and will not be judged (--late)",
            ]
        if expired := self.state.number("expired_unread"):
            gaps = [*gaps, f"{plural(expired, 'span')} of the store went before they were read ({ROOM})"]
        if self._turned_back():
            gaps = [*gaps, "the clock of this machine went back; traces that end ahead of it wait"]
        elif self._ahead:
            gaps = [*gaps, "some traces end in the future by the clock of this machine; they wait until then"]
        done = replace(done, gaps=tuple(gaps))
        self.state.remember("gaps", json.dumps(gaps))
        if not self.stopping.is_set():
            self._caught_up()
        return done

    def _read_again(self) -> None:
        """Count what traces recovered from that were read before this counted, as far as the state remembers them."""
        state, up_to = self.state, self.state.number("again_up_to", LONG_AGO)
        if not self.options.recovered or state.number("again_after", LONG_AGO) >= up_to:
            return
        rows = state.rows(
            "SELECT window, trace_id, end_us, spans FROM traces WHERE window > ? AND window <= ? "
            "AND trace_id NOT IN (SELECT trace_id FROM recoveries) ORDER BY window",
            *(state.number("again_after", LONG_AGO), up_to),
        )
        unreadable = state.number("unreadable")
        with closing(self.open_store() if self.open_store else self.place.open()) as store:
            for window, found in groupby(rows, key=lambda row: int(row[0])):
                if self.stopping.is_set():
                    return
                looks: list[TraceLook] = []
                for _, trace_id, end_us, spans in found:
                    row = TraceRow(project="", trace_id=trace_id, span_count=spans, start_us=0, end_us=end_us)
                    look = self._look(store, row, AttributeTable())
                    if look is not None:
                        looks.append(replace(look, row=replace(row, start_us=look.facts.start_us)))
                with state.transaction():
                    take_in_recovered(state, window, looks, self.options.rules)
                    state.remember("again_after", window)
        state.remember("unreadable", unreadable)  # these were counted when they were read first
        state.remember("again_after", up_to)

    def _claim(self) -> None:
        """The source could be read: from now on the state is about it."""
        with self.state.transaction():
            for key, value in self._identity().items():
                self.state.remember(key, value)

    def _caught_up(self) -> None:
        with self.state.transaction():
            self._claim()
            self.state.remember("outage", "")
            self.state.remember("behind_s", "0")
            self.state.remember("read_at", self._now())

    def _listed(self, store: TraceStore, project: str | None) -> tuple[dict[int, list[TraceRow]], int, bool]:
        """Complete traces that were not read yet or have grown, by window; up to when windows are over; whether there are more."""
        options, state = self.options, self.state
        every_us, settle_us = int(options.every_s * SECOND_US), int(options.settle_s * SECOND_US)
        now_us = int(self._now() * SECOND_US)
        low = state.number("since_us") if state.recall("since_us") else None
        turned_back = self._turned_back()
        if cursor := state.number("cursor_us"):
            # A root begins before its children, and often arrives after them.
            back = min(cursor, now_us, state.number("pending_us", cursor)) - int(options.late_s * SECOND_US)
            forgotten = state.number("forgotten_us", self._kept_from(cursor))
            if turned_back and back < forgotten:
                self._recognise(store, TraceQuery(project=project, start_us=back, limit=PAGE), forgotten)
                forgotten = back
            back = max(back, forgotten)
            low = back if low is None else max(low, back)
        self._count_late(store, (low or 0) if cursor else 0)
        query = TraceQuery(project=project, start_us=low, limit=PAGE)
        ready: dict[int, list[TraceRow]] = {}
        pending, listed = now_us, 0
        base = state.number("window", -(1 << 62)) + (not turned_back)
        waiting: list[TraceRow] = []
        over_us, more = now_us - settle_us, False
        for page in self._pages(store, query):
            known = "SELECT end_us, spans FROM traces WHERE trace_id = ?"
            fresh = [row for row in page.rows if state.rows(known, row.trace_id) != [(row.end_us, row.span_count)]]
            listed += len(fresh)
            waiting += [row for row in fresh if row.end_us <= now_us + AHEAD_S * SECOND_US]
            self._ahead = self._ahead or any(row.end_us > now_us + settle_us for row in fresh)
            over_us = now_us - settle_us
            more = page.more is not None and bool(page.rows)
            if more and listed >= MOST_ROWS:  # windows that end before the last listed start miss nothing
                over_us = min(over_us, page.rows[-1].start_us)
                if any(row.end_us // every_us < over_us // every_us for row in waiting):
                    break
        if self.stopping.is_set():  # the list may have ended early
            return {}, over_us, False
        for row in waiting:
            window = max(row.end_us // every_us, base)
            if row.end_us <= over_us and (turned_back or (window + 1) * every_us <= over_us):
                ready.setdefault(window, []).append(row)
            else:
                pending = min(pending, row.start_us)
        state.remember("pending_us", max(pending, now_us - int(LONGEST_S * SECOND_US)))
        return ready, over_us, more

    def _pages(self, store: TraceStore, query: TraceQuery) -> Iterator[Page]:
        """The list of traces until it ends or the watch is stopped. A file ends; a server may go on for ever, with new traces each time."""
        began, listed = self.clock.now(), 0
        while not self.stopping.is_set():
            page = store.traces(query)
            yield page
            if page.more is None or not page.rows:
                return
            listed += len(page.rows)
            if not isinstance(store, FileStore) and (listed > MOST_LISTED or self.clock.now() - began > LONGEST_LIST_S):
                raise ToolResponseInvalid(
                    f"the server listed {listed:,} traces in {lapse(self.clock.now() - began)} and its list does not end"
                )
            query = replace(query, after=page.rows[-1].trace_id)

    def _count_late(self, store: TraceStore, back: int) -> None:
        """Count the traces that came too late to be listed from `back` on, as far as the source says what came when."""
        if isinstance(store, FileStore):
            late, last = store.late(self.state.number("arrived"), back)
            with self.state.transaction():
                self.state.remember("late_traces", self.state.number("late_traces") + late)
                self.state.remember("arrived", last)

    def _turned_back(self) -> bool:
        """Whether our clock went back: no trace is read that is ahead of it. Until it is where it was, traces that end by now count in
        the last window.
        """
        return self.state.number("cursor_us") > self._now() * SECOND_US

    def _kept_from(self, cursor: int) -> int:
        """Traces that ended before that need not be known any more."""
        now_us = int(self._now() * SECOND_US)
        return min(cursor, now_us) - int((self.options.late_s + 2 * LONGEST_S) * SECOND_US)

    def _recognise(self, store: TraceStore, query: TraceQuery, forgotten: int) -> None:
        """Our clock went back to a time whose traces were read and forgotten: all but the latest are known again."""
        lately = int((self._now() - 2 * (self.options.every_s + self.options.settle_s)) * SECOND_US)
        every_us = int(self.options.every_s * SECOND_US)
        with self.state.transaction():
            for page in self._pages(store, query):
                self.state.change_many(
                    "INSERT OR IGNORE INTO traces VALUES (?, ?, ?, ?, NULL)",
                    [
                        (row.trace_id, row.end_us, row.span_count, row.end_us // every_us)
                        for row in page.rows
                        if row.end_us < forgotten and not lately <= row.end_us <= self._now() * SECOND_US
                    ],
                )
                if page.rows and page.rows[-1].start_us >= forgotten:
                    break
            if not self.stopping.is_set():
                self.state.remember("forgotten_us", query.start_us or 0)

    def _read(self, store: TraceStore, window: int, rows: list[TraceRow], behind_s: float) -> Counter[str]:
        """One window: read its traces, then write all of it at once; how many of them had which outcome."""
        table = AttributeTable()
        looks = [look for row in rows if (look := self._look(store, row, table)) is not None]
        state, rules = self.state, self.options.rules
        healthy = min(
            (look.row.trace_id for look in looks if look.facts.outcome == "healthy"), key=_drawn, default=None
        )
        with state.transaction():
            state.remember("window", max(window, state.number("window", window)))
            take_in(state, window, looks, rules)
            state.remember("traces_read", state.number("traces_read") + len(looks))
            for row in (
                rows if len(looks) < len(rows) else ()
            ):  # those that cannot be read are not tried again, unless they change
                state.change(
                    "INSERT OR IGNORE INTO traces VALUES (?, ?, ?, ?, NULL)",
                    row.trace_id,
                    row.end_us,
                    row.span_count,
                    window,
                )
            cursor = max(state.number("cursor_us"), *(row.end_us for row in rows))
            state.remember("cursor_us", cursor)
            state.remember("behind_s", f"{behind_s:.0f}")
            if (
                healthy is not None
                and self.options.control_share
                and window >= state.number("healthy_window", window - rules.hour) + rules.hour
            ):
                state.remember("healthy", healthy)
                state.remember("healthy_window", window)
            kept_from = self._kept_from(cursor)
            forget(state, kept_from, window, rules)
            state.remember("forgotten_us", max(kept_from, state.number("forgotten_us", kept_from)))
        return Counter(look.facts.outcome for look in looks)

    def _look(self, store: TraceStore, row: TraceRow, table: AttributeTable) -> TraceLook | None:
        """The pre-filter over one trace; None if it is gone or cannot be read."""
        held: dict[str, Span] = {}

        def spans() -> Iterator[Span]:
            for span in store.spans(row.trace_id):
                if len(held) < HELD_SPANS:
                    held[span.summary.span_id] = shortened(span)
                yield span

        try:
            facts = facts_of(row.trace_id, spans(), table)
            first = prefilter(
                row.trace_id, store.summaries(row.trace_id), lambda span_id: held.get(span_id) or store.span(span_id)
            )
            clean = self._clean(facts)
            mended = {each.span_id: held.get(each.span_id) for each in facts.failures if each.mended}
            labels = {
                name: sign_of_failure(span).label
                for name, span in mended.items()
                if span and span.summary.status == "ERROR"
            }
        except UnknownTrace:
            return None
        except (ToolResponseInvalid, *UNREADABLE):
            self.state.remember("unreadable", self.state.number("unreadable") + 1)
            return None
        return TraceLook(row=row, facts=clean, label=first.verdict.label, labels=labels)

    def _clean(self, facts: TraceFacts) -> TraceFacts:
        """What the state, its readers and people see of a trace: no secrets, and with --mask no values of people. Placeholders are the same
        after a restart, so that groups last; those of users, sessions and releases can be told apart.
        """
        failures = tuple(
            replace(each, message=redact_text(each.message), form=redact_text(each.form)) for each in facts.failures
        )
        if (mask := self._mask) is None:
            return replace(facts, failures=failures)
        shown = mask.lasting([(each.component, each.message) for each in failures])
        counted = frozenset(key for keys in KINDS.values() for key in keys)
        kept = [pair for pair in facts.attributes if pair[0] in counted]
        return replace(
            facts,
            failures=tuple(
                replace(each, component=component, message=said, form=folded(said)[:FORM_CHARS])
                for each, (component, said) in zip(failures, shown, strict=True)
            ),
            attributes=tuple(tuple(pair) for pair in mask.lasting(kept, apart=True)),
        )

    # --- investigating --------------------------------------------------------------------------------------------------------------

    def room_usd(self) -> tuple[float, str]:
        """What may be spent now, and which limit says so."""
        now = self._now()
        rooms = [
            (self.options.usd_per_day - self.state.spent(now - 86_400), f"{self.options.usd_per_day:g} USD in a day")
        ]
        if self.options.usd_per_hour is not None:
            rooms.append(
                (
                    self.options.usd_per_hour - self.state.spent(now - 3_600),
                    f"{self.options.usd_per_hour:g} USD in an hour",
                )
            )
        return min(rooms)

    def _investigate(self, done: WatchTurn) -> WatchTurn:
        """At most one investigation, so that windows are read in between."""
        if self.settings.model is None:
            return done
        one_request = max(0.0, self.state.figure(f"request_usd {self.settings.model}"))
        for chosen in candidates(self.state, self._now()):
            if self._refused.get(chosen.fingerprint, 0.0) > self._now():
                continue
            room, limit = self.room_usd()
            if chosen.kind == "control":
                spent = self.state.spent(self._now() - 86_400, control=True)
                room = min(room, self.options.usd_per_day * self.options.control_share - spent)
                if room <= one_request:
                    continue
            if room <= one_request:
                return replace(done, money=f"the limit of {limit} is reached")
            others = self.state.one(  # one that is taken up again counts once, and counts today
                "SELECT count(*) FROM investigations WHERE began > ? AND fingerprint != ?",
                *(self._now() - 86_400, chosen.fingerprint),
            )
            if others >= self.options.per_day:
                return replace(
                    done, money=f"the limit of {plural(self.options.per_day, 'investigation')} in a day is reached"
                )
            result, postponed = self._run(chosen, room)
            return replace(done, investigated=chosen, result=result, postponed=postponed)
        return done

    def _run(self, chosen: Candidate, room_usd: float) -> tuple[ItemResult | None, str]:
        """An ordinary rca in its own folder, begun or resumed, and why it is tried again later: for money, the model or the source."""
        state, settings = self.state, self.settings
        most = settings.knobs.get("max_cost_usd")
        if self.options.usd_per_issue is not None:
            left = max(1e-6, self.options.usd_per_issue - state.spent_on(chosen.fingerprint))
            most = min(most or left, left)
        if most is not None:
            settings = replace(settings, knobs={**settings.knobs, "max_cost_usd": most})
        fields = {"trace_ids": [chosen.trace_id], "source": self.place.name}
        fields |= {"project": self.place.project} if self.place.project else {}
        item = Item(id=f"{chosen.kind}-{chosen.fingerprint[:12]}", engine="rca", fields=fields)
        begin(state, chosen, state.folder.run_dir(item, chosen.attempt).run_id, self._now())
        limiter = Limiter(SharedLimits(max_cost_usd=room_usd, concurrency=1), clock=self.clock)
        order = Order(settings=settings, folder=state.folder.path, writeback=self.options.writeback)
        ledger = Ledger(state, limiter, chosen.fingerprint, self.clock, self.stopping)
        station = Station(order, ledger)
        try:
            result = done_aside(station, Job(item=item, attempt=chosen.attempt))
        except Paused as pause:
            if ledger.wanted_usd:
                state.remember(f"request_usd {self.settings.model}", ledger.wanted_usd)
            self._later(chosen, chosen.attempt, LATER_S)
            return None, pause.reason
        except DiskFull as error:
            raise StateFull(error.message) from None
        finally:
            station.close()
        if result.status == "refused":
            self._refused[chosen.fingerprint] = self._now() + REFUSED_S
            if not chosen.begun:
                state.change("DELETE FROM investigations WHERE fingerprint = ?", chosen.fingerprint)
            return result, result.message
        # A model that never answered is no investigation, even if the rule had something to say.
        if chosen.attempt < (UNANSWERED if not result.tokens_out else ATTEMPTS if result.failed else 0):
            self._later(chosen, chosen.attempt + 1, min(LATER_S * 2**chosen.attempt, LONGEST_PAUSE_S))
            return result, result.message or "the model did not answer"
        conclude(state, chosen, result)
        return result, ""

    def _later(self, chosen: Candidate, attempt: int, seconds: float) -> None:
        self.state.change(
            "UPDATE investigations SET attempt = ?, retry_at = ? WHERE fingerprint = ?",
            attempt,
            self._now() + seconds,
            chosen.fingerprint,
        )


def _drawn(trace_id: str) -> str:
    """An order that has nothing to do with time or names: a sample that is the same after a kill."""
    return hashlib.sha256(trace_id.encode("utf-8", "replace")).hexdigest()


def keep_watch(watch: TraceWatch, told: Callable[[WatchTurn], None], *, once: bool = False) -> WatchTurn:
    """Turns until the watch is stopped, or with `once` until everything there is has been read and investigated; the last turn."""
    while True:
        try:
            turn = watch.turn()
        except StateFull as error:
            if once:
                raise
            turn = watch.no_room(error)
        told(turn)
        if watch.stopping.is_set() or (once and not turn.worked):
            return turn
        if not turn.worked:
            watch.stopping.wait(watch.wait_s())
        if watch.stopping.is_set():
            return turn


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPlan:
    """What a watch would do now: what it would read, which issues there would be, and what it would investigate in which order."""

    read: WatchTurn
    candidates: tuple[Candidate, ...]
    estimates: tuple[Estimate, ...]
    """Of the first candidates."""
    room_usd: float
    limit: str
    issues: Mapping[int, KnownIssue]
    """By their numbers; new ones have a number in this plan only."""
    recovered: bool
    """Whether errors that traces recovered from are issues."""


def plan_watch(watch: TraceWatch) -> WatchPlan:
    """The plan, made over a copy of the state that is thrown away; no model is asked."""
    with tempfile.TemporaryDirectory(prefix="sonde-watch-") as folder:
        path = Path(folder)
        watch.state.copy_to(path / FILE)
        with WatchState(path, create=True) as copy:
            tried = replace(watch, state=copy)
            changed = tried.start()
            read = replace(tried.read_windows(), changed=changed)
            found = candidates(copy, watch.clock.utc().timestamp())
            estimates: list[Estimate] = []
            for chosen in found[:PLANNED] if watch.settings.model else ():
                case = Case(engine="rca", place=watch.place, trace_ids=(chosen.trace_id,), writeback=False)
                context = case.open()
                with closing(context.store), suppress(RunError):
                    estimates.append(estimate(case_spec(case, context, watch.settings), watch.settings))
            room, limit = tried.room_usd()
            events = tuple(happenings(copy, after=int(watch.state.one("SELECT coalesce(max(id), 0) FROM happenings"))))
            return WatchPlan(
                read=replace(read, happenings=events),
                candidates=tuple(found),
                estimates=tuple(estimates),
                room_usd=room,
                limit=limit,
                issues={each.number: each for each in known_issues(copy)},
                recovered=tried.options.rules.recovered,
            )
