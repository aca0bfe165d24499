"""Investigations of a watch: what a model could look at next, what a request may cost, and what an answer changes.

Groups whose investigations prove the same cause become one issue.
"""

from __future__ import annotations

import json
import threading
from concurrent.futures import Future
from dataclasses import dataclass, replace

from sonde.batch.item_runner import Job, Station
from sonde.batch.limits import Answer, Ask, Closed, Limiter, Slot, Told
from sonde.batch.result import FoundFailure, ItemResult
from sonde.contexts.traces.failure_words import folded, overlap, telling_words
from sonde.contexts.traces.groups import FORM_CHARS
from sonde.contexts.traces.rules import NO_FAILURE
from sonde.core.canonical import hash_value
from sonde.core.deadline import Clock
from sonde.core.redaction import redact_text
from sonde.engines.pages import BY_RULE
from sonde.watch.lifecycle import is_recovered, merge
from sonde.watch.state import WatchState, happened, stored_texts

LONGEST_PAUSE_S = 3_600.0  # of an investigation that is tried again
SAME_CAUSE = 0.5
LOOK_S = 0.2  # how soon a stop is noticed


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Something that an investigation would teach: `new` groups first, then those that are `growing`, then the others that are `open`,
    then errors that traces `recovered` from, then a healthy trace as `control`. `begun` ones are paid for in part.
    """

    kind: str
    fingerprint: str
    trace_id: str
    signature: int | None = None
    issue: int | None = None
    attempt: int = 1
    hits: int = 0
    begun: bool = False

    @property
    def why(self) -> str:
        """The kind in words."""
        words = {"new": "just began", "growing": "grows", "open": "not looked at yet", "recovered": "recovered"}
        words["control"] = "healthy, as a check"
        return words.get(self.kind, "")


def candidates(state: WatchState, now: float) -> list[Candidate]:
    """What a model could look at, in the order in which it teaches most. Nothing twice, unless what a group says changes."""
    known = {
        name: (how, retry_at)
        for name, how, retry_at in state.rows("SELECT fingerprint, state, retry_at FROM investigations")
    }
    window = state.number("window")
    found: list[tuple[tuple[int, ...], Candidate]] = []
    begun = state.rows(
        "SELECT fingerprint, signature, kind, trace_id, attempt FROM investigations WHERE state = 'begun' AND retry_at NOT BETWEEN ? AND ?",
        *(now, now + LONGEST_PAUSE_S),  # later than that: our clock went back
    )
    for name, signature, kind, trace_id, attempt in begun:
        issue = state.one("SELECT issue FROM signatures WHERE id = ?", signature)
        candidate = Candidate(
            kind=kind,
            fingerprint=name,
            trace_id=trace_id,
            signature=signature,
            issue=issue,
            attempt=attempt,
            begun=True,
        )
        found.append(((4 if kind == "recovered" else 0,), candidate))
    for signature, issue, component, form, label, judge, traces, first, mended in state.rows(
        "SELECT id, issue, component, form, label, judge, traces, first_window, id IN (SELECT signature FROM recovered) AS mended "
        "FROM signatures JOIN issues ON issue = number WHERE state != 'resolved' AND NOT muted AND (NOT mended OR ?) ORDER BY id",
        state.counts_recovered,
    ):
        name = hash_value(["recovered", component, form, label] if mended else [component, form, label])
        ids = stored_texts(traces)
        if name in known or judge == "LLM" or not ids:  # a model found this group itself, in a healthy trace
            continue
        lately, before = (
            int(
                state.one(
                    "SELECT coalesce(sum(count), 0) FROM hits WHERE signature = ? AND window > ? AND window <= ?",
                    signature,
                    low,
                    low + 5,
                )
            )
            for low in (window - 5, window - 10)
        )
        kind = "recovered" if mended else "new" if first >= window - 1 else "growing" if lately > before else "open"
        total = int(state.one("SELECT coalesce(sum(count), 0) FROM hits WHERE signature = ?", signature))
        candidate = Candidate(
            kind=kind, fingerprint=name, trace_id=ids[-1], signature=signature, issue=issue, hits=total
        )
        rank = {"new": 1, "growing": 2, "open": 3, "recovered": 4}[kind]
        found.append(((rank, -lately, -total, signature), candidate))
    healthy = state.recall("healthy")
    if healthy and (name := hash_value(["control", healthy])) not in known:
        found.append(((5,), Candidate(kind="control", fingerprint=name, trace_id=healthy)))
    return [each for _, each in sorted(found, key=lambda one: one[0])]


def begin(state: WatchState, chosen: Candidate, run: str, now: float) -> None:
    """An investigation starts or is taken up again: from here on it is begun, whatever happens, and counts for this day."""
    state.change(
        "INSERT INTO investigations VALUES (?, ?, ?, ?, 'begun', ?, ?, ?, 0, 'CODE', '', NULL, '', '', '') "
        "ON CONFLICT (fingerprint) DO UPDATE SET attempt = excluded.attempt, run = excluded.run, "
        "began = excluded.began",
        *(chosen.fingerprint, chosen.signature, chosen.kind, chosen.trace_id, chosen.attempt, run, now),
    )


class Ledger:
    """The gate of one investigation: what a request may cost is set aside on disk before it goes out, what it did cost is written after."""

    counts = True

    def __init__(
        self, state: WatchState, limiter: Limiter, fingerprint: str, clock: Clock, stopping: threading.Event
    ) -> None:
        self.stopping = stopping
        self.wanted_usd = 0.0
        """What the last request might have cost that did not go out for lack of money."""
        self._state = state
        self._limiter = limiter
        self._fingerprint = fingerprint
        self._clock = clock

    def book(self, ask: Ask) -> Answer:
        """May this request go?"""
        ask = replace(ask, least_usd=None)  # there is new money tomorrow: no reply is cut for lack of it
        answer = self._limiter.book(ask)
        if isinstance(answer, Closed):
            self.wanted_usd = ask.cost_usd
        if isinstance(answer, Slot) and ask.cost_usd:
            self._state.change("INSERT INTO aside (usd, fingerprint) VALUES (?, ?)", ask.cost_usd, self._fingerprint)
        return answer

    def tell(self, told: Told) -> None:
        """What it used."""
        with self._state.transaction():
            self._state.change(
                "DELETE FROM aside WHERE id = (SELECT min(id) FROM aside WHERE usd = ? AND fingerprint = ?)",
                *(told.asked.cost_usd, self._fingerprint),
            )
            if told.cost_usd:
                now = self._clock.utc().timestamp()
                self._state.change(
                    "INSERT INTO spending (at, usd, fingerprint) VALUES (?, ?, ?)",
                    now,
                    told.cost_usd,
                    self._fingerprint,
                )
        self._limiter.tell(told)


def done_aside(station: Station, job: Job) -> ItemResult:
    """Do a job in a thread of its own, as a batch does: a signal then pauses the run before its next request instead of ending it."""
    done: Future[ItemResult] = Future()

    def work() -> None:
        try:
            done.set_result(station.work(job))
        except BaseException as error:  # noqa: BLE001  # it is raised in the thread that waits
            done.set_exception(error)

    thread = threading.Thread(target=work, name="investigation", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
    return done.result()


def conclude(state: WatchState, chosen: Candidate, result: ItemResult) -> None:
    """What an investigation found: for the issue, or a new issue if a healthy trace was none. Groups with one cause become one issue."""
    first = next((each for each in result.findings if each.first), next(iter(result.findings), None)) or FoundFailure(
        label=""
    )
    label = result.label or ""
    summary = redact_text(result.summary)
    if result.judge != "LLM" and summary.startswith(BY_RULE):  # a model was asked
        summary = f"By rule, since the model's answer could not be used: {summary.removeprefix(BY_RULE)}"
    with state.transaction():
        window, at_us = state.number("window"), state.number("cursor_us")
        signature = chosen.signature
        if chosen.kind == "control" and result.judge == "LLM" and label not in ("", NO_FAILURE) and not result.failed:
            form = redact_text(folded(first.words or summary))[:FORM_CHARS]
            signature = state.change(
                "INSERT INTO signatures VALUES (NULL, NULL, ?, ?, ?, ?, 'LLM', ?, ?, ?, ?, ?)",
                *(first.component or "trace", form, redact_text(result.summary)[:500], label),
                *(json.dumps([form]), json.dumps([chosen.trace_id]), at_us, at_us, window),
            )
            issue = state.change(
                "INSERT INTO issues (state, since_us, first_window) VALUES ('new', ?, ?)", at_us, window
            )
            state.change("UPDATE signatures SET issue = ? WHERE id = ?", issue, signature)
            state.change("INSERT INTO hits VALUES (?, ?, 1)", signature, window)
            happened(state, issue, "new", at_us, "found in a trace that looked healthy")
        state.change(
            "UPDATE investigations SET state = 'done', signature = ?, judge = ?, label = ?, confidence = ?, component = ?, words = ?, "
            "summary = ? WHERE fingerprint = ?",
            *(
                signature,
                result.judge,
                label,
                result.confidence,
                first.component,
                redact_text(first.words),
                summary,
                chosen.fingerprint,
            ),
        )
        issue = state.one("SELECT issue FROM signatures WHERE id = ?", signature)
        if issue is None:
            return
        happened(state, issue, "investigated", at_us, label)
        if result.judge == "LLM" and label != NO_FAILURE and first.component:
            _join_by_cause(state, issue, label, first)


def _join_by_cause(state: WatchState, issue: int, label: str, first: FoundFailure) -> None:
    """If another issue has the same proved cause, both are one, unless a person has split one of them."""
    words = telling_words(first.words)
    others = state.rows(
        "SELECT signatures.issue, investigations.words FROM investigations JOIN signatures ON signatures.id = investigations.signature "
        "JOIN issues ON issues.number = signatures.issue WHERE investigations.state = 'done' AND investigations.judge = 'LLM' "
        "AND investigations.label = ? AND investigations.component = ? AND signatures.issue != ? AND NOT issues.apart "
        "AND (signatures.id IN (SELECT signature FROM recovered)) = ? ORDER BY 1",
        *(label, first.component, issue, is_recovered(state, issue)),
    )
    apart = state.one("SELECT apart FROM issues WHERE number = ?", issue)
    for other, said in others:
        if not apart and overlap(telling_words(said), words) >= SAME_CAUSE:
            merge(state, max(issue, other), min(issue, other), why=f"the same cause: {label} in {first.component}")
            return
