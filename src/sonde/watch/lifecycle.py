"""The life of an issue, as windows of traces show it and as people correct it.

    new        first seen just now; ongoing from the next window in which it is seen
    resolved   quiet for some windows that had traces, or a person says so, or that it is fixed in a release
    regressed  seen again in traces that ended after it was resolved; where a release is named, in that release or a later one
    reopened   a person says that it is not resolved

Errors that traces recovered from are issues of their own kind, if the watch counts them: no issue is about both, and what makes traces
fail belongs to the failures. Nothing here asks a model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sonde.errors import ConfigError
from sonde.watch.groups import TraceLook, count_traces, drop_empty, grouped
from sonde.watch.state import WatchState, happened

MAX_RELEASES = 10_000
ONE_IN = 200  # traces of an hour must fail alike to be an issue,
MOST_NEEDED = 20  # but no more than these are needed
KEPT_WINDOWS = 10_000  # for which counts are kept one by one
LONG_AGO = -(1 << 62)  # the window under which older counts are summed up
MAX_NOTE = 4_000


class NoSuchIssue(ConfigError):
    """No issue has this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueRules:
    """When a group becomes an issue, and when an issue is over. All in windows of the traces' own time."""

    every_s: float = 60.0
    min_traces: int | None = None
    """Traces within an hour that make a group an issue; None: as many as the traffic of that hour asks for."""
    quiet_windows: int = 60
    """Windows with traces, none of which shows the issue, after which it is resolved."""
    recovered: bool = False
    """Whether errors that traces recovered from are issues, too, of their own kind."""

    @property
    def hour(self) -> int:
        """How many windows an hour has."""
        return max(1, round(3600 / self.every_s))

    def needed(self, traffic: int) -> int:
        """Traces of a group that make it an issue in an hour with so much traffic: the more there is, the more strays meet by chance."""
        return min(MOST_NEEDED, max(3, -(-traffic // ONE_IN))) if self.min_traces is None else self.min_traces


def take_in(state: WatchState, window: int, looks: Sequence[TraceLook], rules: IssueRules) -> None:
    """One window of complete traces, within a transaction of the caller. A trace that was read before is replaced, not counted twice."""
    old = {
        look.row.trace_id: state.rows("SELECT window, signature FROM traces WHERE trace_id = ?", look.row.trace_id)
        for look in looks
    }
    mended: set[int] = set()
    less = "UPDATE hits SET count = count - 1 WHERE signature = ? AND window = ?"
    for trace_id, found in old.items():
        for then, signature in found:
            state.change(
                "UPDATE windows SET traces = traces - 1, failed = failed - ? WHERE window = ?",
                signature is not None,
                then,
            )
            state.change(less, signature, then)
        for signature, then in state.rows("SELECT signature, window FROM recoveries WHERE trace_id = ?", trace_id):
            state.change(less, signature, then)
            mended.add(signature)
        state.change("DELETE FROM recoveries WHERE trace_id = ?", trace_id)
    failed = [look for look in looks if look.failed]
    state.change(
        "INSERT INTO windows VALUES (?, ?, ?) ON CONFLICT (window) DO UPDATE SET traces = traces + excluded.traces, "
        "failed = failed + excluded.failed",
        *(window, len(looks), len(failed)),
    )
    pairs = grouped(state, window, failed)
    signatures = {look.row.trace_id: signature for look, signature in pairs}
    for look in looks:
        row = look.row
        state.change(
            "INSERT OR REPLACE INTO traces VALUES (?, ?, ?, ?, ?)",
            *(row.trace_id, row.end_us, row.span_count, window, signatures.get(row.trace_id)),
        )
    if int(state.one("SELECT count(*) FROM releases")) < MAX_RELEASES:
        released = [(release, look.facts.start_us) for look in looks for release in look.named("releases")]
        state.change_many("INSERT OR IGNORE INTO releases VALUES (?, ?)", sorted(released, key=lambda one: one[1]))
    _show(state, window, pairs, rules)
    if rules.recovered:  # after the failures: what makes traces fail is no issue of this kind as well
        take_in_recovered(state, window, looks, rules)
    for signature in mended:
        drop_empty(state, signature, None)
    for trace_id, found in old.items():
        for _, signature in found:
            drop_empty(state, signature, signatures.get(trace_id))
    at_us = max((look.row.end_us for look in looks), default=0)
    _resolve_quiet(state, window, at_us, rules)


def take_in_recovered(state: WatchState, window: int, looks: Sequence[TraceLook], rules: IssueRules) -> None:
    """What traces of one window recovered from, of which none is counted yet, within a transaction of the caller."""
    errors = [each for look in looks for each in look.recoveries()]
    pairs = grouped(state, window, errors, recovered=True, beside=[look for look in looks if look.failed])
    once = {(look.row.trace_id, signature): (look, signature) for look, signature in reversed(pairs)}
    state.change_many("INSERT INTO recoveries VALUES (?, ?, ?)", [(*each, window) for each in once])
    _show(state, window, list(once.values()), rules)
    _resolve_quiet(state, window, max((look.row.end_us for look in looks), default=0), rules)


def _show(state: WatchState, window: int, pairs: Sequence[tuple[TraceLook, int]], rules: IssueRules) -> None:
    """Count traces in their groups, and advance the issues of these."""
    shown: dict[int, list[TraceLook]] = {}
    for look, signature in pairs:
        shown.setdefault(signature, []).append(look)
    for signature, members in shown.items():
        count_traces(state, signature, window, members)
        _advance(state, signature, window, members, rules)


def _advance(state: WatchState, signature: int, window: int, members: Sequence[TraceLook], rules: IssueRules) -> None:
    """The issue of a group that was seen: made, carried on or come back."""
    at_us = min(look.row.start_us for look in members)
    issue = state.one("SELECT issue FROM signatures WHERE id = ?", signature)
    if issue is None:
        hour = (window - rules.hour, window)
        lately = state.one(
            "SELECT sum(count) FROM hits WHERE signature = ? AND window > ? AND window <= ?", signature, *hour
        )
        traffic = state.one("SELECT coalesce(sum(traces), 0) FROM windows WHERE window > ? AND window <= ?", *hour)
        if lately >= rules.needed(traffic):
            issue = state.change(
                "INSERT INTO issues (state, since_us, first_window) VALUES ('new', ?, ?)", at_us, window
            )
            state.change("UPDATE signatures SET issue = ? WHERE id = ?", issue, signature)
            happened(state, issue, "new", at_us)
        return
    ((then, since_us, first, fixed_in),) = state.rows(
        "SELECT state, since_us, first_window, fixed_in FROM issues WHERE number = ?", issue
    )
    if then == "resolved":
        back = [look for look in members if _came_back(state, look, since_us, fixed_in)]
        if not back:
            return
        at_us = min(look.row.end_us for look in back)
        state.change(
            "UPDATE issues SET state = 'regressed', since_us = ?, fixed_in = '' WHERE number = ?", at_us, issue
        )
        happened(state, issue, "regressed", at_us)
    elif then == "new" and window > first:
        state.change("UPDATE issues SET state = 'ongoing', since_us = ? WHERE number = ?", at_us, issue)


def _came_back(state: WatchState, look: TraceLook, resolved_us: int, release: str) -> bool:
    """Whether a trace shows an issue that is over. If it is fixed in a release, what ran in that one or in one first seen later does.
    Otherwise, and if the trace names no release, it must have ended after the issue was resolved: windows are read some time later.
    """
    ran = look.named("releases")
    if not release or not ran:
        return look.row.end_us > resolved_us
    fixed_us = state.one("SELECT first_us FROM releases WHERE release = ?", release)
    if release in ran or fixed_us is None:
        return release in ran
    return any((state.one("SELECT first_us FROM releases WHERE release = ?", each) or 0) > fixed_us for each in ran)


def _resolve_quiet(state: WatchState, window: int, at_us: int, rules: IssueRules) -> None:
    """Issues that enough windows with traces have not shown are resolved. Windows without traces say nothing."""
    for issue, last in state.rows(
        "SELECT number, max(last_window) FROM issues JOIN signatures ON issue = number WHERE state != 'resolved' "
        "AND (? OR id NOT IN (SELECT signature FROM recovered)) GROUP BY number",  # what nobody counts is not quiet
        rules.recovered,
    ):
        quiet = int(
            state.one("SELECT count(*) FROM windows WHERE window > ? AND window <= ? AND traces > 0", last, window)
        )
        if quiet >= rules.quiet_windows:
            state.change("UPDATE issues SET state = 'resolved', since_us = ? WHERE number = ?", at_us, issue)
            happened(state, issue, "resolved", at_us, f"not seen in {quiet} windows")


def forget(state: WatchState, before_us: int, window: int, rules: IssueRules) -> None:
    """Drop what only served to recognise traces that come again, and groups that never became an issue and went quiet."""
    state.change("DELETE FROM traces WHERE end_us < ?", before_us)
    state.change("DELETE FROM recoveries WHERE window < ?", before_us // int(rules.every_s * 1_000_000))
    old = "SELECT id FROM signatures WHERE issue IS NULL AND last_window < ?"
    for table in ("hits", "affected", "recovered"):
        state.change(f"DELETE FROM {table} WHERE signature IN ({old})", window - 24 * rules.hour)  # noqa: S608 - constants only
    state.change("DELETE FROM signatures WHERE issue IS NULL AND last_window < ?", window - 24 * rules.hour)
    oldest = window - max(KEPT_WINDOWS, 10 * rules.quiet_windows)
    if state.rows("SELECT 1 FROM windows WHERE window < ? LIMIT 1", oldest):
        state.change("DELETE FROM windows WHERE window < ?", oldest)
        state.change(
            "INSERT INTO hits SELECT signature, ?, sum(count) FROM hits WHERE window < ? AND window > ? GROUP BY signature "
            "ON CONFLICT (signature, window) DO UPDATE SET count = count + excluded.count",
            *(LONG_AGO, oldest, LONG_AGO),
        )
        state.change("DELETE FROM hits WHERE window < ? AND window > ?", oldest, LONG_AGO)


# --- what people do -------------------------------------------------------------------------------------------------------------------


def existing(state: WatchState, number: int) -> tuple[str, str]:
    """State and release of an issue; NoSuchIssue says where a merged one went."""
    small = abs(number) < 1 << 63  # SQLite knows no larger ones
    found = state.rows("SELECT state, fixed_in, merged_into FROM issues WHERE number = ?", number) if small else []
    if not found:
        raise NoSuchIssue(f"there is no issue {number}; `sonde issues` lists them")
    if found[0][2] is not None:
        raise NoSuchIssue(f"issue {number} was merged into {found[0][2]}")
    return found[0][0], found[0][1]


def is_recovered(state: WatchState, issue: int) -> bool:
    """Whether it is about errors that traces recovered from. No issue is about both."""
    sql = "SELECT count(*) FROM signatures JOIN recovered ON id = signature WHERE issue = ?"
    return bool(state.one(sql, issue))


def _by_hand(state: WatchState, number: int, kind: str, text: str = "") -> None:
    happened(state, number, kind, time.time_ns() // 1000, text)


def merge(state: WatchState, number: int, into: int, *, why: str = "") -> None:
    """All groups of an issue belong to another one from now on."""
    with state.transaction():
        then, _ = existing(state, number)
        now, _ = existing(state, into)
        if number == into:
            raise ConfigError(f"issue {number} cannot be merged into itself")
        if is_recovered(state, number) != is_recovered(state, into):
            raise ConfigError(
                f"of issue {number} and issue {into} one is about recovered errors, the other about failures"
            )
        for table in ("signatures", "notes"):
            state.change(f"UPDATE {table} SET issue = ? WHERE issue = ?", into, number)  # noqa: S608 - constants only
        state.change("UPDATE issues SET merged_into = ?, state = 'resolved' WHERE number = ?", into, number)
        if now == "resolved" and then != "resolved":
            state.change("UPDATE issues SET state = 'ongoing', fixed_in = '' WHERE number = ?", into)
        _by_hand(state, into, "merged", why or f"with {number}")


def split(state: WatchState, number: int, signature: int) -> int:
    """One group of an issue becomes an issue of its own; its number. Neither is joined by its cause again."""
    with state.transaction():
        then, _ = existing(state, number)
        groups = [row[0] for row in state.rows("SELECT id FROM signatures WHERE issue = ? ORDER BY id", number)]
        if signature not in groups:
            raise ConfigError(f"issue {number} has no group {signature}; its groups: {', '.join(map(str, groups))}")
        if len(groups) == 1:
            raise ConfigError(f"issue {number} has one group only; there is nothing to split")
        fresh = state.change(
            "INSERT INTO issues (state, since_us, first_window, apart) SELECT ?, since_us, first_window, 1 FROM issues WHERE number = ?",
            *(then, number),
        )
        state.change("UPDATE issues SET apart = 1 WHERE number = ?", number)
        state.change("UPDATE signatures SET issue = ? WHERE id = ?", fresh, signature)
        _by_hand(state, fresh, "split", f"from {number}")
        return fresh


def mute(state: WatchState, number: int, *, muted: bool = True) -> None:
    """Nobody is told about a muted issue, and no model looks at it; it is still counted."""
    with state.transaction():
        existing(state, number)
        state.change("UPDATE issues SET muted = ? WHERE number = ?", muted, number)
        _by_hand(state, number, "muted" if muted else "unmuted")


def assign(state: WatchState, number: int, who: str) -> None:
    """Somebody looks after it; an empty name: nobody."""
    with state.transaction():
        existing(state, number)
        state.change("UPDATE issues SET assignee = ? WHERE number = ?", who[:200], number)
        _by_hand(state, number, "assigned", who[:200])


def note(state: WatchState, number: int, text: str, *, author: str, at: float) -> None:
    """Add a remark. `at` is in seconds since 1970."""
    if not text.strip():
        raise ConfigError("the note is empty")
    with state.transaction():
        existing(state, number)
        state.change(
            "INSERT INTO notes (issue, at, author, text) VALUES (?, ?, ?, ?)", number, at, author[:100], text[:MAX_NOTE]
        )


def resolve(state: WatchState, number: int, *, release: str = "") -> str:
    """It is over; with a release, it counts as regressed only if that release or a later one shows it. Said again without a release,
    the one that was named before still holds; the release that holds now.
    """
    with state.transaction():
        then, known = existing(state, number)
        release = release[:200] or (known if then == "resolved" else "")
        state.change(
            "UPDATE issues SET state = 'resolved', since_us = ?, fixed_in = ? WHERE number = ?",
            time.time_ns() // 1000,
            release,
            number,
        )
        _by_hand(state, number, "resolved", f"fixed in {release}" if release else "by hand")
    return release


def reopen(state: WatchState, number: int) -> None:
    """It is not over."""
    with state.transaction():
        then, _ = existing(state, number)
        if then != "resolved":
            raise ConfigError(f"issue {number} is {then}, not resolved")
        window = state.number("window")
        state.change(
            "UPDATE issues SET state = 'reopened', since_us = ?, fixed_in = '' WHERE number = ?",
            time.time_ns() // 1000,
            number,
        )
        state.change(
            "UPDATE signatures SET last_window = ? WHERE issue = ?", window, number
        )  # its quiet windows begin anew
        _by_hand(state, number, "reopened")
