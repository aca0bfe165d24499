"""Groups of failures: how a failure of one window is recognised in the next.

A group has the same component and the same message apart from ids and numbers, by the shared grouper. Known groups take part in the
grouping with a few samples. Errors that traces recovered from have groups of their own, if the watch counts them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from sonde.contexts.traces.groups import BLAST_KEYS, RELEASE_KEYS, Failure, TraceFacts, error_groups_of
from sonde.contexts.traces.store import TraceRow
from sonde.watch.state import WatchState, happened, stored_texts

SAMPLES = 5  # failures of a group that later ones are grouped with, and traces that stand for it
MAX_SIGNATURES = 2_000
MAX_AFFECTED = 1_000
OTHERS = "others"
KINDS = {"users": BLAST_KEYS["users"], "sessions": BLAST_KEYS["sessions"], "releases": RELEASE_KEYS}


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

    def named(self, kind: str) -> set[str]:
        """The users, sessions or releases that it names."""
        return {value for key, value in self.facts.attributes if key in KINDS[kind]}


def grouped(
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
        for form in stored_texts(samples) if component in components else ():
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


def count_traces(state: WatchState, signature: int, window: int, members: Sequence[TraceLook]) -> None:
    """These traces of this window show the group."""
    state.change(
        "INSERT INTO hits VALUES (?, ?, ?) ON CONFLICT (signature, window) DO UPDATE SET count = count + excluded.count",
        *(signature, window, len(members)),
    )
    ((samples, traces),) = state.rows("SELECT samples, traces FROM signatures WHERE id = ?", signature)
    forms: dict[str, None] = dict.fromkeys(stored_texts(samples))
    forms |= dict.fromkeys(cast("Failure", look.facts.failure).form for look in members)
    # A model looks at the last one: of this window the trace in which the failure went furthest. For an error that traces recovered from
    # that is none that failed because of something else.
    furthest = sorted(members, key=lambda look: (not look.failed, look.facts.error_spans, look.row.end_us))
    kept: dict[str, None] = dict.fromkeys([*stored_texts(traces), *(look.row.trace_id for look in furthest)])
    few = [*list(kept)[:1], *list(kept)[1:][1 - SAMPLES :]]  # the first one and the latest
    label = Counter(look.label for look in members).most_common(1)[0][0]
    state.change(
        "UPDATE signatures SET samples = ?, traces = ?, first_us = min(first_us, ?), last_us = max(last_us, ?), "
        "last_window = max(last_window, ?), label = CASE WHEN judge = 'LLM' THEN label ELSE ? END WHERE id = ?",
        *(json.dumps(list(forms)[:SAMPLES]), json.dumps(few)),
        *(min(look.row.start_us for look in members), max(look.row.end_us for look in members)),
        *(window, label, signature),
    )
    for kind in KINDS:
        room = MAX_AFFECTED - int(
            state.one("SELECT count(*) FROM affected WHERE signature = ? AND kind = ?", signature, kind)
        )
        values = sorted({value for look in members for value in look.named(kind)})
        state.change_many(
            "INSERT OR IGNORE INTO affected VALUES (?, ?, ?)",
            [(signature, kind, value) for value in values[: max(0, room)]],
        )


def drop_empty(state: WatchState, signature: int | None, now: int | None) -> None:
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
