"""Issues over time: which failures are one issue, what state it is in, and what people say about it.

    new        first seen just now; ongoing from the next window in which it is seen
    resolved   quiet for some windows that had traces, or a person says so, or that it is fixed in a release
    regressed  seen again after it was resolved; where a release is named, in that release or a later one
    reopened   a person says that it is not resolved

An issue is one or more groups of the shared grouper (the same component, and the same message apart from ids and numbers). Groups whose
investigations prove the same cause are one issue; `merge` and `split` correct both. Errors that traces recovered from are issues of their
own kind, if the watch counts them: no issue is about both, and what makes traces fail belongs to the failures. Nothing here asks a
model. Texts of traces and of people are data: whoever prints them makes them harmless.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from sonde.batch.result import FoundFailure, ItemResult
from sonde.contexts.traces.failure_words import folded, overlap, telling_words
from sonde.contexts.traces.groups import BLAST_KEYS, FORM_CHARS, RELEASE_KEYS, Failure, TraceFacts, error_groups_of
from sonde.contexts.traces.rules import NO_FAILURE
from sonde.contexts.traces.span import Row, time_text
from sonde.contexts.traces.store import TraceRow
from sonde.core.canonical import hash_value, lapse, plural
from sonde.core.markdown_safety import words
from sonde.core.redaction import redact_text
from sonde.engines.pages import BY_RULE
from sonde.errors import ConfigError
from sonde.watch.state import WatchState

IssueState = Literal["new", "ongoing", "regressed", "reopened", "resolved"]
SAMPLES = 5  # failures of a group that later ones are grouped with, and traces that stand for it
MAX_SIGNATURES = 2_000
MAX_AFFECTED = 1_000
MAX_RELEASES = 10_000
ONE_IN = 200  # traces of an hour must fail alike to be an issue,
MOST_NEEDED = 20  # but no more than these are needed
KEPT_WINDOWS = 10_000  # for which counts are kept one by one
LONG_AGO = -(1 << 62)  # the window under which older counts are summed up
MAX_NOTE = 4_000
HEADLINE = 80
LONGEST_PAUSE_S = 3_600.0  # of an investigation that is tried again
TREND = 24  # windows
SAME_CAUSE = 0.5
OTHERS = "others"
_ENDS = r"(?i)(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.;!?](?:\s|$)|\s[–—]\s"  # a sentence, not an abbreviation
_KINDS = {"users": BLAST_KEYS["users"], "sessions": BLAST_KEYS["sessions"], "releases": RELEASE_KEYS}


def _texts(text: str) -> list[str]:
    """A list of texts from the state, which somebody else may have written."""
    try:
        found: Any = json.loads(text)
    except (ValueError, RecursionError):
        return []
    return [each for each in cast("list[Any]", found) if isinstance(each, str)] if isinstance(found, list) else []


def affected_text(users: int, sessions: int) -> str:
    """Users and sessions in words; traces that name neither leave it open."""
    named = [plural(count, word) for count, word in ((users, "user"), (sessions, "session")) if count]
    return ", ".join(named) or "unknown (no trace names a user or session)"


def headline(text: str) -> str:
    """What fits into a title of a model's sentences: the first of them, or its first clause."""
    line = " ".join(text.split())
    said = re.split(_ENDS, line, maxsplit=1)[0]
    if len(said) > HEADLINE:
        said = said[:HEADLINE].rpartition(", ")[0] or said
    cut = said[: HEADLINE - 1]
    return said if len(said) <= HEADLINE else f"{cut.rpartition(' ')[0] or cut}…"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceLook:
    """One complete trace after the pre-filter. A quiet failure, which only a rule sees, is a failure of its facts too."""

    row: TraceRow
    facts: TraceFacts
    label: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    """What the rule says of mended failures, by their spans."""

    def recoveries(self) -> list[TraceLook]:
        """This trace once for each error that a later try mended, with nothing else. What made the trace fail is none."""
        return [
            replace(self, facts=replace(self.facts, failures=(each,)), label=self.labels.get(each.span_id, self.label))
            for each in self.facts.failures[self.failed :]
            if each.mended
        ]

    @property
    def failed(self) -> bool:
        """Whether it shows an issue. A failure that a later try mended does not."""
        return self.facts.outcome == "failed" and bool(self.facts.failures)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueSignature:
    """One group of failures of an issue."""

    id: int
    component: str
    form: str
    message: str
    label: str
    judge: str
    count: int
    traces: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueProof:
    """The best investigation of an issue: what it found, and the name of its run below the folder of the watch."""

    trace_id: str
    run: str
    judge: str
    label: str
    confidence: float | None
    summary: str
    component: str
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueNote:
    """What a person or a program said about an issue. `at` is in seconds since 1970."""

    at: float
    author: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """A change of an issue. `at_us` is in the traces' own time, and by our clock for what people do; `id` rises by time."""

    id: int
    issue: int
    kind: str
    at_us: int
    window: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownIssue:
    """One issue as people see it. `trend` counts its traces in the last windows, the newest last; `rate` is per window with traces."""

    number: int
    state: IssueState
    recovered: bool
    """Traces recovered from it; none of those that count here failed because of it."""
    since_us: int
    component: str
    message: str
    label: str
    judge: str
    count: int
    rate: float
    trend: tuple[int, ...]
    first_us: int
    last_us: int
    releases: tuple[str, ...]
    users: int
    sessions: int
    muted: bool
    assignee: str
    fixed_in: str
    traces: tuple[str, ...]
    signatures: tuple[IssueSignature, ...]
    proof: IssueProof | None
    notes: tuple[IssueNote, ...]
    happenings: tuple[Happening, ...]

    def row(self) -> Row:
        """The issue in a few fields, for lists."""
        return {
            "number": self.number,
            "title": self.title,
            "state": self.state,
            "recovered": self.recovered,
            "cause": self.label,
            "judge": self.judge,
            "traces": self.count,
            "rate": round(self.rate, 2),
            "first_seen": time_text(self.first_us),
            "last_seen": time_text(self.last_us),
            "users": self.users,
            "sessions": self.sessions,
            "releases": list(self.releases[:20]),
            "muted": self.muted,
            "assignee": self.assignee,
        }

    @property
    def title(self) -> str:
        """Component and message on one line."""
        return f"{self.component}: {' '.join(self.message.split()) or self.label}"[:200]

    @property
    def standing(self) -> str:
        """The state, and what else people should know at first sight."""
        return ", ".join([self.state, *["recovered"] * self.recovered, *["muted"] * self.muted])

    @property
    def affected(self) -> str:
        """Who is affected, as far as the traces say."""
        return affected_text(self.users, self.sessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchView:
    """All that a page shows of a watch."""

    source: str
    project: str
    every_s: float
    cursor_us: int
    """Up to where traces were read, in their own time."""
    behind_s: float
    """How much time of the traces waits unread; while the source is away, for how long it was not read."""
    turned_at: float
    """When the watch last looked at its source, in seconds since 1970."""
    ended_at: float
    """When it ended; 0 while it runs, and if it was killed."""
    traces: int
    failed: int
    recovered: bool
    """Whether errors that traces recovered from are counted."""
    spent_day_usd: float
    spent_hour_usd: float
    investigated: int
    waiting: int
    rare: int
    """Groups with too few traces in an hour to be an issue."""
    outage: str
    gaps: tuple[str, ...]
    """What of the source cannot be read."""
    issues: tuple[KnownIssue, ...]
    happenings: tuple[Happening, ...]


def at_rest(state: WatchState, now: float) -> str:
    """That a watch does not run, or has not turned for longer than usual; empty for one that turns."""
    ended, turned = state.figure("ended_at"), state.figure("turned_at")
    if ended:
        return f"the watch is not running: it ended {lapse(max(0.0, now - ended))} ago"
    silent = now - turned
    return f"the watch last turned {lapse(silent)} ago" if turned and silent > 60 + 2 * state.figure("every_s") else ""


# --- a window of traces ---------------------------------------------------------------------------------------------------------------


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
    pairs = _signatures(state, window, failed)
    signatures = {look.row.trace_id: signature for look, signature in pairs}
    for look in looks:
        row = look.row
        state.change(
            "INSERT OR REPLACE INTO traces VALUES (?, ?, ?, ?, ?)",
            *(row.trace_id, row.end_us, row.span_count, window, signatures.get(row.trace_id)),
        )
    if int(state.one("SELECT count(*) FROM releases")) < MAX_RELEASES:
        released = [(release, look.facts.start_us) for look in looks for release in _values(look, "releases")]
        state.change_many("INSERT OR IGNORE INTO releases VALUES (?, ?)", sorted(released, key=lambda one: one[1]))
    _show(state, window, pairs, rules)
    if rules.recovered:  # after the failures: what makes traces fail is no issue of this kind as well
        take_in_recovered(state, window, looks, rules)
    for signature in mended:
        _drop_empty(state, signature, None)
    for trace_id, found in old.items():
        for _, signature in found:
            _drop_empty(state, signature, signatures.get(trace_id))
    at_us = max((look.row.end_us for look in looks), default=0)
    _resolve_quiet(state, window, at_us, rules)


def take_in_recovered(state: WatchState, window: int, looks: Sequence[TraceLook], rules: IssueRules) -> None:
    """What traces of one window recovered from, of which none is counted yet, within a transaction of the caller."""
    errors = [each for look in looks for each in look.recoveries()]
    pairs = _signatures(state, window, errors, recovered=True, beside=[look for look in looks if look.failed])
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
        _count(state, signature, window, members)
        _advance(state, signature, window, members, rules)


def _drop_empty(state: WatchState, signature: int | None, now: int | None) -> None:
    """A group whose only trace was not complete and belongs to another group now, or to none, was no group."""
    if signature is None or signature == now or state.one("SELECT sum(count) FROM hits WHERE signature = ?", signature):
        return
    issue = state.one("SELECT issue FROM signatures WHERE id = ?", signature)
    home = state.one("SELECT issue FROM signatures WHERE id = ?", now)
    for table in ("hits", "affected", "recovered"):
        state.change(f"DELETE FROM {table} WHERE signature = ?", signature)  # noqa: S608 - constants only
    state.change("DELETE FROM signatures WHERE id = ?", signature)
    if issue is not None and issue != home and not state.one("SELECT count(*) FROM signatures WHERE issue = ?", issue):
        state.change("UPDATE issues SET merged_into = ?, state = 'resolved' WHERE number = ?", home or issue, issue)


def _signatures(
    state: WatchState,
    window: int,
    looks: Sequence[TraceLook],
    *,
    recovered: bool = False,
    beside: Sequence[TraceLook] = (),
) -> list[tuple[TraceLook, int]]:
    """These failures with their groups. Known groups take part with samples, so that a group keeps its identity over windows. Errors that
    traces recovered from have groups of their own; what makes traces fail, by an open issue, is left out. `beside` failed just now.
    """
    components = {failure.component for look in (*looks, *beside) for failure in look.facts.failures}
    context: list[TraceFacts] = []
    owners: list[int] = []
    exact: dict[tuple[str, str], int] = {}
    failing: dict[int, int] = {}  # groups that make traces fail, and their open issues
    for number, component, samples, mended, issue in state.rows(
        "SELECT id, component, samples, id IN (SELECT signature FROM recovered) AS mended, number FROM signatures "
        "LEFT JOIN issues ON number = issue AND state != 'resolved' WHERE mended = ? OR (? AND number IS NOT NULL) ORDER BY mended, id",
        *(recovered, recovered),
    ):
        if mended != recovered:
            failing[number] = issue
        for form in _texts(samples) if component in components else ():
            context.append(_sample(component, form))
            owners.append(number)
            first = exact.setdefault((component, form.lower()), number)
            if mended and first in failing:
                _hand_over(state, number, failing[first])
    kinds = "FROM signatures WHERE (id IN (SELECT signature FROM recovered)) = ?"
    total = int(state.one(f"SELECT count(*) {kinds}", recovered))
    found: list[tuple[TraceLook, int]] = []
    for kind in error_groups_of([*context, *(look.facts for look in looks)]):
        members = [looks[at - len(context)] for at in sorted(kind.members) if at >= len(context)]
        homes = [owners[at] for at in kind.members if at < len(context)]
        home = min(failing.keys() & homes or homes, default=None)
        for look in members:
            failure = cast("Failure", look.facts.failure)
            known = exact.get((failure.component, failure.form.lower()), home)
            if known is None:
                component, form = kind.component, kind.form
                if total >= MAX_SIGNATURES:  # a stranger's messages must not fill the disk
                    component = form = OTHERS
                    home = state.one(f"SELECT id {kinds} AND component = ? AND form = ?", recovered, component, form)
                label = Counter(each.label for each in members).most_common(1)[0][0]
                home = known = home or state.change(
                    "INSERT INTO signatures VALUES (NULL, NULL, ?, ?, ?, ?, 'CODE', '[]', '[]', ?, ?, ?)",
                    *(component, form, failure.message[:500], label, look.row.start_us, look.row.end_us, window),
                )
                if recovered:
                    state.change("INSERT OR IGNORE INTO recovered VALUES (?)", known)
                total += 1
            if known not in failing:
                found.append((look, known))
    return found


def _hand_over(state: WatchState, signature: int, failing: int) -> None:
    """What traces recovered from makes others fail now: an open issue that is about these alone is over."""
    issue = state.one(
        "SELECT issue FROM signatures JOIN issues ON number = issue WHERE id = ? AND state != 'resolved'", signature
    )
    if issue is not None and state.one("SELECT count(*) FROM signatures WHERE issue = ?", issue) == 1:
        at_us = state.one("SELECT max(last_us) FROM signatures WHERE issue = ?", failing)
        state.change("UPDATE issues SET state = 'resolved', since_us = ? WHERE number = ?", at_us, issue)
        happened(state, issue, "resolved", at_us, f"it makes traces fail now: issue {failing}")


def _sample(component: str, form: str) -> TraceFacts:
    failure = Failure(span_id="", component=component, kind="", message=form, form=form, at_us=0)
    nothing: dict[str, int] = {}
    return TraceFacts(
        trace_id="",
        root_span_id="",
        root_name="",
        first_tool="",
        start_us=0,
        latency_ms=0.0,
        spans=0,
        error_spans=0,
        outcome="failed",
        failures=(failure,),
        attributes=(),
        steps=(),
        retries=nothing,
    )


def _values(look: TraceLook, kind: str) -> set[str]:
    """The users, sessions or releases that a trace names."""
    return {value for key, value in look.facts.attributes if key in _KINDS[kind]}


def _count(state: WatchState, signature: int, window: int, members: Sequence[TraceLook]) -> None:
    """These traces of this window show the group."""
    state.change(
        "INSERT INTO hits VALUES (?, ?, ?) ON CONFLICT (signature, window) DO UPDATE SET count = count + excluded.count",
        *(signature, window, len(members)),
    )
    ((samples, traces),) = state.rows("SELECT samples, traces FROM signatures WHERE id = ?", signature)
    forms: dict[str, None] = dict.fromkeys(_texts(samples))
    forms |= dict.fromkeys(cast("Failure", look.facts.failure).form for look in members)
    # A model looks at the last one: of this window the trace in which the failure went furthest. For an error that traces recovered from
    # that is none that failed because of something else.
    furthest = sorted(members, key=lambda look: (not look.failed, look.facts.error_spans, look.row.end_us))
    kept: dict[str, None] = dict.fromkeys([*_texts(traces), *(look.row.trace_id for look in furthest)])
    few = [*list(kept)[:1], *list(kept)[1:][1 - SAMPLES :]]  # the first one and the latest
    label = Counter(look.label for look in members).most_common(1)[0][0]
    state.change(
        "UPDATE signatures SET samples = ?, traces = ?, first_us = min(first_us, ?), last_us = max(last_us, ?), "
        "last_window = max(last_window, ?), label = CASE WHEN judge = 'LLM' THEN label ELSE ? END WHERE id = ?",
        *(json.dumps(list(forms)[:SAMPLES]), json.dumps(few)),
        *(min(look.row.start_us for look in members), max(look.row.end_us for look in members)),
        *(window, label, signature),
    )
    for kind in _KINDS:
        room = MAX_AFFECTED - int(
            state.one("SELECT count(*) FROM affected WHERE signature = ? AND kind = ?", signature, kind)
        )
        values = sorted({value for look in members for value in _values(look, kind)})
        state.change_many(
            "INSERT OR IGNORE INTO affected VALUES (?, ?, ?)",
            [(signature, kind, value) for value in values[: max(0, room)]],
        )


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
    ((then, first, fixed_in),) = state.rows("SELECT state, first_window, fixed_in FROM issues WHERE number = ?", issue)
    if then == "resolved":
        if fixed_in and not any(_has_fix(state, look, fixed_in) for look in members):
            return  # still the old release
        state.change(
            "UPDATE issues SET state = 'regressed', since_us = ?, fixed_in = '' WHERE number = ?", at_us, issue
        )
        happened(state, issue, "regressed", at_us)
    elif then == "new" and window > first:
        state.change("UPDATE issues SET state = 'ongoing', since_us = ? WHERE number = ?", at_us, issue)


def _has_fix(state: WatchState, look: TraceLook, release: str) -> bool:
    """Whether a trace ran in the release that should have mended it, or in one first seen later. Without a release nobody knows, and
    it counts.
    """
    ran = _values(look, "releases")
    fixed_us = state.one("SELECT first_us FROM releases WHERE release = ?", release)
    if not ran or release in ran:
        return True
    if fixed_us is None:
        return False
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


def happened(state: WatchState, issue: int, kind: str, at_us: int, text: str = "") -> None:
    """Write down a change, within the transaction that makes it."""
    sql = "INSERT INTO happenings (issue, kind, at_us, window, text) VALUES (?, ?, ?, ?, ?)"
    state.change(sql, issue, kind, at_us, state.number("window"), text)


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


# --- what to investigate --------------------------------------------------------------------------------------------------------------


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
        ids = _texts(traces)
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
        *(label, first.component, issue, _is_recovered(state, issue)),
    )
    apart = state.one("SELECT apart FROM issues WHERE number = ?", issue)
    for other, said in others:
        if not apart and overlap(telling_words(said), words) >= SAME_CAUSE:
            merge(state, max(issue, other), min(issue, other), why=f"the same cause: {label} in {first.component}")
            return


# --- what people do -------------------------------------------------------------------------------------------------------------------


def _existing(state: WatchState, number: int) -> tuple[str, str]:
    """State and release of an issue; NoSuchIssue says where a merged one went."""
    small = abs(number) < 1 << 63  # SQLite knows no larger ones
    found = state.rows("SELECT state, fixed_in, merged_into FROM issues WHERE number = ?", number) if small else []
    if not found:
        raise NoSuchIssue(f"there is no issue {number}; `sonde issues` lists them")
    if found[0][2] is not None:
        raise NoSuchIssue(f"issue {number} was merged into {found[0][2]}")
    return found[0][0], found[0][1]


def _is_recovered(state: WatchState, issue: int) -> bool:
    """Whether it is about errors that traces recovered from. No issue is about both."""
    sql = "SELECT count(*) FROM signatures JOIN recovered ON id = signature WHERE issue = ?"
    return bool(state.one(sql, issue))


def _by_hand(state: WatchState, number: int, kind: str, text: str = "") -> None:
    happened(state, number, kind, time.time_ns() // 1000, text)


def merge(state: WatchState, number: int, into: int, *, why: str = "") -> None:
    """All groups of an issue belong to another one from now on."""
    with state.transaction():
        then, _ = _existing(state, number)
        now, _ = _existing(state, into)
        if number == into:
            raise ConfigError(f"issue {number} cannot be merged into itself")
        if _is_recovered(state, number) != _is_recovered(state, into):
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
        then, _ = _existing(state, number)
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
        _existing(state, number)
        state.change("UPDATE issues SET muted = ? WHERE number = ?", muted, number)
        _by_hand(state, number, "muted" if muted else "unmuted")


def assign(state: WatchState, number: int, who: str) -> None:
    """Somebody looks after it; an empty name: nobody."""
    with state.transaction():
        _existing(state, number)
        state.change("UPDATE issues SET assignee = ? WHERE number = ?", who[:200], number)
        _by_hand(state, number, "assigned", who[:200])


def note(state: WatchState, number: int, text: str, *, author: str, at: float) -> None:
    """Add a remark. `at` is in seconds since 1970."""
    if not text.strip():
        raise ConfigError("the note is empty")
    with state.transaction():
        _existing(state, number)
        state.change(
            "INSERT INTO notes (issue, at, author, text) VALUES (?, ?, ?, ?)", number, at, author[:100], text[:MAX_NOTE]
        )


def resolve(state: WatchState, number: int, *, release: str = "") -> None:
    """It is over; with a release, it counts as regressed only if that release or a later one shows it."""
    with state.transaction():
        _existing(state, number)
        state.change(
            "UPDATE issues SET state = 'resolved', since_us = ?, fixed_in = ? WHERE number = ?",
            time.time_ns() // 1000,
            release[:200],
            number,
        )
        _by_hand(state, number, "resolved", f"fixed in {release[:200]}" if release else "by hand")


def reopen(state: WatchState, number: int) -> None:
    """It is not over."""
    with state.transaction():
        then, _ = _existing(state, number)
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


# --- what people see ------------------------------------------------------------------------------------------------------------------


def known_issues(state: WatchState, *, number: int | None = None) -> list[KnownIssue]:
    """Every issue, or one: open ones first, failures before recovered errors, those with most traces lately before the others."""
    if number is not None:
        _existing(state, number)
    found = state.rows(
        "SELECT number, state, since_us, fixed_in, muted, assignee FROM issues WHERE merged_into IS NULL AND (? IS NULL OR number = ?)",
        *(number, number),
    )
    window = state.number("window")
    issues = [_issue(state, window, row) for row in found]
    return sorted(
        issues,
        key=lambda each: (
            each.state == "resolved",
            each.muted,
            each.recovered,
            -sum(each.trend),
            -each.last_us,
            each.number,
        ),
    )


def _issue(state: WatchState, window: int, row: Sequence[Any]) -> KnownIssue:
    number, now, since_us, fixed_in, muted, assignee = row
    counts: dict[int, int] = dict(
        state.rows(
            "SELECT signature, sum(count) FROM hits WHERE signature IN (SELECT id FROM signatures WHERE issue = ?) GROUP BY 1",
            number,
        )
    )
    groups = state.rows(
        "SELECT id, component, form, message, label, judge, traces, first_us, last_us, samples FROM signatures WHERE issue = ? ORDER BY id",
        number,
    )
    parts = [
        IssueSignature(
            id=each[0],
            component=each[1],
            form=redact_text(each[2]),  # older versions stored it as it came
            message=redact_text(each[3]),
            label=each[4],
            judge=each[5],
            count=counts.get(each[0], 0),
            traces=tuple(_texts(each[6])),
        )
        for each in groups
    ]
    lately: Mapping[int, int] = dict(
        state.rows(
            "SELECT window, sum(count) FROM hits WHERE window > ? AND signature IN (SELECT id FROM signatures WHERE issue = ?) GROUP BY 1",
            *(window - TREND, number),
        )
    )
    busy = int(state.one("SELECT count(*) FROM windows WHERE window > ? AND traces > 0", window - TREND))
    affected = {
        kind: [value for (value,) in state.rows(
            "SELECT DISTINCT value FROM affected WHERE kind = ? AND signature IN (SELECT id FROM signatures WHERE issue = ?) ORDER BY 1",
            *(kind, number),
        )]
        for kind in _KINDS
    }  # fmt: skip
    largest = max(parts, key=lambda each: (each.count, -each.id), default=None)
    message = largest.message if largest else ""
    if largest is not None and largest.judge == "LLM":
        message = headline(message)
    elif largest is not None:  # quoted words that vary are of one trace only
        forms = {form.lower() for each in groups if each[0] == largest.id for form in _texts(each[9])}
        bare = folded(message, quotes=True)
        if sum(folded(form, quotes=True) == bare.lower() for form in forms) > 1:
            message = bare
    proof = _proof(state, number)
    judged = proof if proof is not None and proof.judge == "LLM" else None
    return KnownIssue(
        number=number,
        state=now,
        recovered=_is_recovered(state, number),
        since_us=since_us,
        component=largest.component if largest else "",
        message=message,
        label=judged.label if judged else largest.label if largest else "",
        judge=judged.judge if judged else largest.judge if largest else "CODE",
        count=sum(counts.values()),
        rate=sum(lately.values()) / max(1, busy),
        trend=tuple(lately.get(each, 0) for each in range(window - TREND + 1, window + 1)),
        first_us=min((each[7] for each in groups), default=0),
        last_us=max((each[8] for each in groups), default=0),
        releases=tuple(affected["releases"]),
        users=len(affected["users"]),
        sessions=len(affected["sessions"]),
        muted=bool(muted),
        assignee=assignee,
        fixed_in=fixed_in,
        traces=tuple(trace for each in parts for trace in each.traces),
        signatures=tuple(parts),
        proof=proof,
        notes=tuple(
            IssueNote(at=at, author=author, text=text)
            for at, author, text in state.rows("SELECT at, author, text FROM notes WHERE issue = ? ORDER BY id", number)
        ),
        happenings=tuple(happenings(state, issue=number)),
    )


def _proof(state: WatchState, number: int) -> IssueProof | None:
    """The investigation by a model with the highest confidence; else any that ended."""
    found = state.rows(
        "SELECT fingerprint, trace_id, run, judge, label, confidence, summary, component FROM investigations WHERE state = 'done' AND "
        "signature IN (SELECT id FROM signatures WHERE issue = ?) ORDER BY judge != 'LLM', confidence IS NULL, -confidence, began LIMIT 1",
        number,
    )
    for name, trace_id, run, judge, label, confidence, summary, component in found:
        return IssueProof(
            trace_id=trace_id,
            run=run,
            judge=judge,
            label=label,
            confidence=confidence,
            summary=redact_text(summary),
            component=component,
            cost_usd=state.spent_on(name),
        )
    return None


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


def watch_view(state: WatchState, *, now: float) -> WatchView:
    """Everything a page shows, as plain values."""
    issues = known_issues(state)
    ((traces, failed),) = state.rows("SELECT coalesce(sum(traces), 0), coalesce(sum(failed), 0) FROM windows")
    last = int(state.one("SELECT coalesce(max(id), 0) FROM happenings"))
    return WatchView(
        source=state.recall("source"),
        project=state.recall("project"),
        every_s=state.figure("every_s"),
        cursor_us=state.number("cursor_us"),
        behind_s=state.figure("behind_s"),
        turned_at=state.figure("turned_at"),
        ended_at=state.figure("ended_at"),
        traces=traces,
        failed=failed,
        recovered=state.counts_recovered,
        spent_day_usd=state.spent(now - 86_400),
        spent_hour_usd=state.spent(now - 3_600),
        investigated=int(state.one("SELECT count(*) FROM investigations WHERE state = 'done'")),
        waiting=len(candidates(state, now)),
        rare=int(state.one("SELECT count(*) FROM signatures WHERE issue IS NULL")),
        outage=state.recall("outage"),
        gaps=tuple(_texts(state.recall("gaps"))),
        issues=tuple(issues),
        happenings=tuple(happenings(state, after=max(0, last - 100))),
    )


def issue_markdown(issue: KnownIssue) -> str:
    """One issue as Markdown in which nothing of a trace or a person is markup."""
    seen = [time_text(us)[:19].replace("T", " ") for us in (issue.first_us, issue.last_us)]
    lines = [
        f"# Issue {issue.number}: {words(issue.title)}",
        "",
        f"- state: {issue.state}{', muted' if issue.muted else ''}",
        *["- kind: recovered errors; none of these traces failed because of it"] * issue.recovered,
        f"- cause: {words(issue.label)} (by {issue.judge})",
        f"- seen: {plural(issue.count, 'trace')} from {seen[0]} to {seen[1]}",
        f"- affected: {issue.affected}",
    ]
    lines += [f"- releases: {words(', '.join(issue.releases))}"] if issue.releases else []
    lines += [f"- assigned to: {words(issue.assignee)}"] if issue.assignee else []
    lines += [f"- fixed in: {words(issue.fixed_in)}"] if issue.fixed_in else []
    lines += [f"- trace: {words(each)}" for each in issue.traces[:SAMPLES]]
    if issue.proof is not None:
        lines += [
            "",
            "## Investigation",
            "",
            words(issue.proof.summary),
            "",
            f"- label: {words(issue.proof.label)} (by {issue.proof.judge})",
        ]
        lines += [f"- run: {words(issue.proof.run)}"]
    lines += [
        "",
        "## Groups",
        "",
        *(f"- {each.id}: {each.count} × {words(f'{each.component}: {each.form}')}" for each in issue.signatures),
    ]
    if issue.notes:
        lines += ["", "## Notes", ""]
        lines += [
            f"- {time_text(int(each.at * 1e6))[:19].replace('T', ' ')} {words(f'{each.author}: {each.text}')}"
            for each in issue.notes
        ]
    return "\n".join(lines) + "\n"
