"""Issues as people see them: which there are, what is known of each, and how a watch is doing.

An issue is one or more groups of failures (`groups`), with a state of its own (`lifecycle`) and with what models found out about it
(`investigations`). Nothing here changes any of it. Texts of traces and of people are data: whoever prints them makes them harmless.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sonde.contexts.traces.failure_words import folded
from sonde.contexts.traces.span import Row, time_text
from sonde.core.canonical import lapse, plural
from sonde.core.markdown_safety import words
from sonde.core.redaction import redact_text
from sonde.watch.groups import KINDS, SAMPLES
from sonde.watch.investigations import candidates
from sonde.watch.lifecycle import LONG_AGO, existing, is_recovered
from sonde.watch.state import Happening, WatchState, happenings, stored_texts

IssueState = Literal["new", "ongoing", "regressed", "reopened", "resolved"]
HEADLINE = 80
TREND = 24  # windows
MOST_RELEASES = 20
JUDGES = {"LLM": "a model", "CODE": "rule", "HUMAN": "a person"}
_ENDS = r"(?i)(?<!\be\.g)(?<!\bi\.e)(?<!\bcf)(?<!\bvs)[.;!?](?:\s|$)|\s[–—]\s"  # a sentence, not an abbreviation


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
    lost_usd: float
    """What was set aside for requests that a kill cut off; limits count it as spent, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueNote:
    """What a person or a program said about an issue. `at` is in seconds since 1970."""

    at: float
    author: str
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
    among: int
    """Traces that were read since the window that first showed it; 0 if that is too long ago to know."""
    releases: tuple[str, ...]
    other_releases: tuple[str, ...]
    """Releases that were seen and do not show it, the latest first."""
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
            "among": self.among,
            "rate": round(self.rate, 2),
            "first_seen": time_text(self.first_us),
            "last_seen": time_text(self.last_us),
            "users": self.users,
            "sessions": self.sessions,
            "releases": list(self.releases[:20]),
            "other_releases": list(self.other_releases[:20]),
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
    def cause(self) -> str:
        """What a model found out, with how sure it was, or what the rule calls it."""
        proof = self.proof
        if proof is None or proof.judge != "LLM" or not proof.summary:
            return f"{self.label} (by {JUDGES.get(self.judge, self.judge)})"
        sure = "" if proof.confidence is None else f", confidence {proof.confidence:.2f}"
        return f"{proof.summary} ({self.label}{sure}, by {JUDGES['LLM']})"

    @property
    def extent(self) -> str:
        """How many traces show it, of how many, and since when."""
        return (
            f"{self.count:,} of {plural(self.among, 'trace')}"
            if self.among >= self.count
            else plural(self.count, "trace")
        )

    @property
    def set_apart(self) -> str:
        """The releases that show it, and if others do not, that it is only these; empty if no trace names one."""
        shown, others = ", ".join(self.releases[:10]), ", ".join(self.other_releases[:3])
        return f"only {shown}, not {others}" if shown and others else shown

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


def known_issues(state: WatchState, *, number: int | None = None) -> list[KnownIssue]:
    """Every issue, or one: open ones first, failures before recovered errors, those with most traces lately before the others."""
    if number is not None:
        existing(state, number)
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
            traces=tuple(stored_texts(each[6])),
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
        for kind in KINDS
    }  # fmt: skip
    began = state.one(
        "SELECT coalesce(min(window), ?) FROM hits WHERE count > 0 AND signature IN (SELECT id FROM signatures WHERE issue = ?)",
        *(LONG_AGO, number),
    )
    largest = max(parts, key=lambda each: (each.count, -each.id), default=None)
    message = largest.message if largest else ""
    if largest is not None and largest.judge == "LLM":
        message = headline(message)
    elif largest is not None:  # quoted words that vary are of one trace only
        forms = {form.lower() for each in groups if each[0] == largest.id for form in stored_texts(each[9])}
        bare = folded(message, quotes=True)
        if sum(folded(form, quotes=True) == bare.lower() for form in forms) > 1:
            message = bare
    proof = _proof(state, number)
    judged = proof if proof is not None and proof.judge == "LLM" else None
    return KnownIssue(
        number=number,
        state=now,
        recovered=is_recovered(state, number),
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
        among=0
        if began <= LONG_AGO
        else int(state.one("SELECT coalesce(sum(traces), 0) FROM windows WHERE window >= ?", began)),
        releases=tuple(affected["releases"]),
        other_releases=tuple(
            each
            for (each,) in state.rows("SELECT release FROM releases ORDER BY first_us DESC, release")
            if each not in affected["releases"]
        )[:MOST_RELEASES],
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
            cost_usd=max(0.0, state.spent_on(name) - state.lost_on(name)),
            lost_usd=state.lost_on(name),
        )
    return None


def moment(us: int) -> str:
    """A time for people, with its zone."""
    return f"{time_text(us)[:19].replace('T', ' ')} UTC"


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
        gaps=tuple(stored_texts(state.recall("gaps"))),
        issues=tuple(issues),
        happenings=tuple(happenings(state, after=max(0, last - 100))),
    )


def at_rest(state: WatchState, now: float) -> str:
    """That a watch does not run, or has not turned for longer than usual; empty for one that turns."""
    ended, turned = state.figure("ended_at"), state.figure("turned_at")
    if ended:
        return f"the watch is not running: it ended {lapse(max(0.0, now - ended))} ago"
    silent = now - turned
    return f"the watch last turned {lapse(silent)} ago" if turned and silent > 60 + 2 * state.figure("every_s") else ""


def issue_markdown(issue: KnownIssue) -> str:
    """One issue as Markdown in which nothing of a trace or a person is markup."""
    lines = [
        f"# Issue {issue.number}: {words(issue.title)}",
        "",
        f"- state: {issue.state}{', muted' if issue.muted else ''}",
        *["- kind: recovered errors; none of these traces failed because of it"] * issue.recovered,
        f"- cause: {words(issue.cause)}",
        f"- seen: {issue.extent} from {moment(issue.first_us)} to {moment(issue.last_us)}",
        f"- affected: {issue.affected}",
    ]
    lines += [f"- releases: {words(issue.set_apart)}"] if issue.releases else []
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
            f"- run: {words(issue.proof.run)}",
        ]
    lines += [
        "",
        "## Groups",
        "",
        *(f"- {each.id}: {each.count} × {words(f'{each.component}: {each.form}')}" for each in issue.signatures),
    ]
    if issue.notes:
        lines += ["", "## Notes", ""]
        lines += [f"- {moment(int(each.at * 1e6))} {words(f'{each.author}: {each.text}')}" for each in issue.notes]
    return "\n".join(lines) + "\n"
