"""How a watch is doing, for machines: `/healthz` and `/metrics`, from its state alone.

Both say numbers and our own words, never a text of a trace, a path or an address.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from sonde.core.canonical import lapse, plural
from sonde.watch.state import ROOM, WatchState

STALLED_S = 1_800.0
"""Without a look at the source for so long it is stuck. An investigation, which comes between two looks, takes less."""
BEHIND_S = 1_800.0
LOST_S = 1_800.0
"""For so long after the retention removed what nobody had read."""
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vital:
    """One metric. A counter's samples get the suffix `_total`."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: Mapping[str, float]
    """By their labels, as they are written; an empty text for none."""


@dataclass(slots=True)
class Vitals:
    """Reads a state that nobody else uses: a watch that hangs within a transaction must not keep us waiting."""

    state: WatchState
    spans: Callable[[], Mapping[str, int]] | None = None
    """Spans that the listener has received, refused and removed, if there is one."""
    now: Callable[[], float] = time.time
    since: float = 0.0
    """When this process began: what an earlier one left undone is not held against it at once."""

    def answer(self, path: str) -> tuple[int, str, bytes] | None:
        """Status, content type and body for one of the two paths; None for any other."""
        if path == "/healthz":
            problem = self.problem()
            return 503 if problem else 200, "text/plain; charset=utf-8", f"{problem or 'ok'}\n".encode()
        return (200, OPEN_METRICS, self.metrics().encode()) if path == "/metrics" else None

    def problem(self) -> str:
        """Why the watch is not well; empty if it is."""
        state, every = self.state, self.state.figure("every_s")
        stalled = self.now() - max(self.since, state.figure("read_at"))
        behind = state.figure("behind_s")
        away = "; the source cannot be read" if state.recall("outage") else ""
        if stalled > max(STALLED_S, 3 * every):
            return f"stuck: the source was last read {lapse(stalled)} ago{away}"
        if behind > max(BEHIND_S, 10 * every):
            return f"{lapse(behind)} behind{away}"
        if 0 <= self.now() - state.figure("expired_unread_at") < LOST_S:
            return f"losing traces: {plural(state.number('expired_unread'), 'span')} went before they were read; {ROOM}"
        return ""

    def metrics(self) -> str:
        """All metrics in the form of OpenMetrics 1.0."""
        lines: list[str] = []
        for each in self._vitals():
            lines += [f"# HELP {each.name} {each.help}", f"# TYPE {each.name} {each.kind}"]
            suffix = "_total" if each.kind == "counter" else ""
            lines += [f"{each.name}{suffix}{labels} {value:.10g}" for labels, value in each.samples.items()]
        return "\n".join([*lines, "# EOF\n"])

    def _vitals(self) -> list[Vital]:
        state, now = self.state, self.now()
        states = dict.fromkeys(("new", "ongoing", "regressed", "reopened", "resolved"), 0)
        states |= dict(
            state.rows("SELECT state, count(*) FROM issues WHERE merged_into IS NULL AND NOT muted GROUP BY state")
        )
        muted = state.one("SELECT count(*) FROM issues WHERE merged_into IS NULL AND muted")
        found = [
            Vital(
                name="sonde_watch_healthy",
                kind="gauge",
                help="1 if /healthz says 200.",
                samples={"": not self.problem()},
            ),
            Vital(
                name="sonde_watch_behind_seconds",
                kind="gauge",
                help="How much time of complete traces waits unread; while the source is away, the time since it was last read.",
                samples={"": state.figure("behind_s")},
            ),
            Vital(
                name="sonde_watch_source_away",
                kind="gauge",
                help="1 while the source cannot be read.",
                samples={"": bool(state.recall("outage"))},
            ),
            Vital(
                name="sonde_watch_spent_usd",
                kind="gauge",
                help="US dollars that models cost within the last day and hour, with what is set aside.",
                samples={
                    '{period="day"}': state.spent(now - 86_400),
                    '{period="hour"}': state.spent(now - 3_600),
                },
            ),
            Vital(
                name="sonde_watch_investigations",
                kind="counter",
                help="Investigations that ended.",
                samples={"": state.one("SELECT count(*) FROM investigations WHERE state = 'done'")},
            ),
            Vital(
                name="sonde_watch_issues",
                kind="gauge",
                help="Issues by state, muted ones apart.",
                samples={f'{{state="{name}"}}': count for name, count in {**states, "muted": muted}.items()},
            ),
            Vital(
                name="sonde_watch_traces_read",
                kind="counter",
                help="Complete traces that were read.",
                samples={"": state.number("traces_read")},
            ),
            Vital(
                name="sonde_watch_late_traces",
                kind="counter",
                help="Traces that came to the listener later than --late, and are not judged.",
                samples={"": state.number("late_traces")},
            ),
            Vital(
                name="sonde_watch_spans_expired_unread",
                kind="counter",
                help="Spans that the retention removed before they were read.",
                samples={"": state.number("expired_unread")},
            ),
            Vital(
                name="sonde_watch_notices_given_up",
                kind="counter",
                help="Notices of --on-new that were not told and will not be.",
                samples={"": state.number("untold")},
            ),
        ]
        if self.spans is not None:
            counts = {f'{{outcome="{name}"}}': count for name, count in self.spans().items()}
            found.append(
                Vital(
                    name="sonde_watch_spans",
                    kind="counter",
                    help="Spans that the listener took or refused, or removed for their age, since the start.",
                    samples=counts,
                )
            )
        return found
