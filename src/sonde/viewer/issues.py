"""The issues of a watch for the page: a list, one issue with its rate and what changed around its onset, and what people do about it.

It has a connection of its own to the state and believes what that says about issues; nothing in it is opened or asked. The
trace of an issue that nobody has investigated is read only where the watch itself runs, from the source that its user named.
"""

from __future__ import annotations

import getpass
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sonde.api.trace_source import Source, project_in
from sonde.contexts.traces.groups import AttributeTable, facts_of
from sonde.contexts.traces.shape import picture_of
from sonde.contexts.traces.span import time_text
from sonde.contexts.traces.store import TraceQuery, TraceStore
from sonde.contexts.traces.window import spread
from sonde.errors import ConfigError, SondeError, UsageError
from sonde.watch import lifecycle
from sonde.watch.issues import KnownIssue, at_rest, known_issues, watch_view
from sonde.watch.state import WatchState
from sonde.watch.vitals import Vitals

if TYPE_CHECKING:
    from sonde.core.mask import Mask

BARS = 60
LEAD = 5  # bars before the onset
HOUR_US = 3_600_000_000
TOGETHER = 3  # windows
RELEASES = 20
COMPARED, BEFORE, FEWEST = (
    60,
    20,
    3,
)  # traces of an issue, and of the hour before its onset, whose attributes are compared
REMEMBERED = 10_000
MOSTLY, APART = 0.8, 0.5
SHOWN = 8
LOOKED = 64  # issues whose looks at the source are kept until their traces change
MOST_BYTES = 64 * 1024
Json = dict[str, Any]


class IssueBoard:
    """The issues in the folder of a watch. `key`: whoever has it may change them."""

    def __init__(
        self,
        folder: Path,
        *,
        source: Source | None = None,
        spans: Callable[[], Mapping[str, int]] | None = None,
        now: Callable[[], float] = time.time,
        mask: Mask | None = None,
    ) -> None:
        """`source` is that of the watch, if its user has named it; `spans` counts those of its listener; `mask` hides people's data."""
        self._state = WatchState(folder)
        self._source = source
        self._looked: dict[tuple[str, ...], Json] = {}
        self._now = now
        self._hidden: Callable[[Json], Json] = (lambda value: value) if mask is None else mask.lasting
        self._changes = 0
        self._kept: tuple[tuple[int, int], bytes] | None = None
        self.key = secrets.token_urlsafe(24)
        self.runs = self._state.folder.items
        self.vitals = Vitals(self._state, spans, now, now())

    def close(self) -> None:
        """Let go of the state."""
        self._state.close()

    def listed(self) -> Json:
        """All issues and how the watch is doing; the list is made anew only if something changed."""
        version = (int(self._state.one("PRAGMA data_version")), self._changes)
        if self._kept is None or self._kept[0] != version:
            view = watch_view(self._state, now=self._now())
            rows = [
                {
                    **each.row(),
                    "trend": each.trend,
                    "since": time_text(each.since_us),
                    "investigated": each.judge == "LLM",
                }
                for each in view.issues
            ]
            told = {**asdict(view), "happenings": None, "issues": rows, "read_up_to": time_text(view.cursor_us)}
            self._kept = version, msgspec.json.encode(self._hidden(told))
        rest = at_rest(self._state, self._now())
        return {
            "watch": msgspec.Raw(self._kept[1]),
            "problem": "" if self._state.figure("ended_at") else self.vitals.problem(),
            "rest": rest,
        }

    def issue(self, number: int) -> Json:
        """One issue with all that the page shows of it."""
        (found,) = known_issues(self._state, number=number)
        times = [{**asdict(each), "at": time_text(each.at_us)} for each in found.happenings]
        notes = [{**asdict(each), "at": time_text(int(each.at * 1e6))} for each in found.notes]
        shown: Json = {
            **asdict(found),
            **found.row(),
            "trace_ids": found.traces,
            "since": time_text(found.since_us),
            "happenings": times,
            "notes": notes,
            "rate_over_time": self._rate(found),
            "changes": self._changed(found),
            "together": self._together(found),
        }
        return self._hidden(shown)

    def looked(self, number: int) -> Json | None:
        """What the source says about an issue: the latest trace that shows it, and the attributes that set its traces apart. None where
        the source may not be asked.
        """
        (found,) = known_issues(self._state, number=number)
        if self._source is None:
            return None
        # The few traces that stand for an issue say nothing about shares; those that the watch remembers do.
        signatures = "signature IN (SELECT id FROM signatures WHERE issue = ?)"
        remembered = self._state.rows(
            f"SELECT trace_id FROM traces WHERE {signatures} UNION SELECT trace_id FROM recoveries WHERE {signatures} LIMIT ?",  # noqa: S608 - a constant
            *(number, number, REMEMBERED),
        )
        mine = tuple(dict.fromkeys([*found.traces, *(trace_id for (trace_id,) in remembered)]))
        known = self._looked.get(mine)
        if known is None:
            with closing(self._source.open()) as store:
                apart = self._apart(store, self._source, found, mine)
                known = self._hidden({"trace": _picture(store, found), "apart": apart})
            if len(self._looked) >= LOOKED:
                self._looked.clear()
            self._looked[mine] = known
        return known

    def _apart(self, store: TraceStore, source: Source, found: KnownIssue, trace_ids: Sequence[str]) -> list[Json]:
        """Attributes that nearly all of its traces have and few of those that began in the hour before its onset, and of how many each
        time.
        """
        table = AttributeTable()

        def attributes_of(trace_ids: Iterable[str]) -> list[frozenset[tuple[str, str]]]:
            read: list[frozenset[tuple[str, str]]] = []
            for trace_id in trace_ids:
                with suppress(SondeError):
                    read.append(frozenset(facts_of(trace_id, store.spans(trace_id), table).attributes))
            return read

        own = frozenset(trace_ids)
        before: list[str] = []
        with suppress(SondeError):
            project = project_in(source, store)
            query = TraceQuery(project=project, start_us=found.first_us - HOUR_US, end_us=found.first_us, counted=False)
            before = [row.trace_id for row in store.traces(query).rows if row.trace_id not in own]
        mine = attributes_of(spread(trace_ids, COMPARED))
        others = attributes_of(before[-BEFORE:])
        if len(mine) < FEWEST or len(others) < FEWEST:
            return []
        counted = Counter(pair for each in mine for pair in each)
        shares = [
            (count / len(mine), sum(pair in each for each in others) / len(others), pair)
            for pair, count in counted.items()
            if table.values.get(pair[0], {}).get(pair[1])  # else a key with too many values
        ]
        shares = [each for each in shares if each[0] >= MOSTLY and each[0] - each[1] >= APART]
        return [
            {
                "key": key,
                "value": value,
                "share": round(share, 2),
                "of": len(mine),
                "before": round(before_, 2),
                "of_before": len(others),
            }
            for share, before_, (key, value) in sorted(shares, key=lambda each: (each[1] - each[0], each[2]))[:SHOWN]
        ]

    def act(self, number: int, action: str, given: Json) -> Json:
        """What a person does about an issue; the issue afterwards, or the one that it was merged into."""
        state = self._state

        def text(name: str) -> str:
            value = given.get(name, "")
            if not isinstance(value, str):
                raise UsageError(f"{name} must be a text")
            return value

        def whole(name: str) -> int:
            value = given.get(name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 1 << 62:
                raise UsageError(f"{name} must be a number")
            return value

        match action:
            case "merge":
                lifecycle.merge(state, number, whole("into"))
            case "split":
                lifecycle.split(state, number, whole("group"))
            case "mute":
                lifecycle.mute(state, number, muted=given.get("off") is not True)
            case "assign":
                lifecycle.assign(state, number, text("who"))
            case "note":
                author = ""
                with suppress(OSError, KeyError):  # a user without a name
                    author = getpass.getuser()
                lifecycle.note(state, number, text("text"), author=author, at=self._now())
            case "resolve":
                lifecycle.resolve(state, number, release=text("release"))
            case "reopen":
                lifecycle.reopen(state, number)
            case _:
                raise ConfigError(f"an issue cannot be {action[:40]!r}")
        self._changes += 1
        return self.issue(whole("into") if action == "merge" else number)

    def _rate(self, found: KnownIssue) -> list[Json]:
        """Its traces and all traces, from a little before its onset until now."""
        state, every_us = self._state, int((self._state.figure("every_s") or 60) * 1e6)
        mine = "signature IN (SELECT id FROM signatures WHERE issue = ?)"
        first = state.one(f"SELECT min(window) FROM hits WHERE count > 0 AND {mine}", found.number)  # noqa: S608 - a constant
        last = state.number("window")
        if first is None:
            return []
        step = max(1, -(-(last - first + 1) // (BARS - LEAD)))
        low = first - LEAD * step
        hits = dict(
            state.rows(
                f"SELECT (window - ?) / ?, sum(count) FROM hits WHERE {mine} GROUP BY 1",  # noqa: S608 - a constant
                *(low, step, found.number),
            )
        )
        every = dict(
            state.rows("SELECT (window - ?) / ?, sum(traces) FROM windows WHERE window >= ? GROUP BY 1", low, step, low)
        )
        return [
            {"from": time_text((low + at * step) * every_us), "traces": every.get(at, 0), "hit": hits.get(at, 0)}
            for at in range(max(2, min(BARS, -(-(last - low + 1) // step))))
        ]

    def _changed(self, found: KnownIssue) -> list[Json]:
        """Releases, the newest first, and whether they show the issue. Those that came within the hour before its onset are suspects."""
        rows = self._state.rows("SELECT release, first_us FROM releases ORDER BY first_us DESC LIMIT ?", RELEASES)
        began = int(self._state.one("SELECT coalesce(min(first_us), 0) FROM releases"))
        return [
            {
                "release": release,
                "at": time_text(first_us),
                "shows_it": release in found.releases,
                "suspect": first_us > began and 0 <= found.first_us - first_us <= HOUR_US,
            }
            for release, first_us in rows
        ]

    def _together(self, found: KnownIssue) -> list[Json]:
        """Other issues that began within a few windows of it."""
        near = TOGETHER * int((self._state.figure("every_s") or 60) * 1e6)
        rows = self._state.rows(
            "SELECT issue, min(first_us) FROM signatures JOIN issues ON number = issue WHERE merged_into IS NULL AND issue != ? "
            "GROUP BY issue HAVING abs(min(first_us) - ?) <= ? ORDER BY 2 LIMIT 10",
            *(found.number, found.first_us, near),
        )
        return [
            {
                "number": number,
                "at": time_text(first_us),
                "title": known_issues(self._state, number=number)[0].title,
            }
            for number, first_us in rows
        ]


def _picture(store: TraceStore, found: KnownIssue) -> Json | None:
    for trace_id in reversed(found.traces):
        with suppress(SondeError):
            picture = picture_of(trace_id, store.summaries(trace_id), set())
            if picture.spans:
                return {"state": "read", **msgspec.to_builtins(picture)}
    return None
