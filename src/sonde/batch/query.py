"""A manifest from a query over traces: one item for each trace that fits, page by page, never a whole project at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sonde.api.trace_source import Source, project_in
from sonde.batch.manifest import Item, Manifest
from sonde.contexts.traces.catalog import AFTER, PAGE, outcomes_of, query_of
from sonde.contexts.traces.span import time_text, us_of_text
from sonde.contexts.traces.store import TraceRow
from sonde.errors import ConfigError, ToolFault

MAX_ROWS = 200_000  # of a server's traces in one batch
_SINCE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSelection:
    """Which traces, and what to do with each. `may_be_none`: finding nothing is an answer too."""

    place: Source
    engine: str = "rca"
    all_errors: bool = False
    since: str | None = None
    filter_expr: str | None = None
    limit: int | None = None
    may_be_none: bool = False


def span_s(text: str) -> float | None:
    """The seconds of `24h`, `30m`, `7d`; None if that is no span of time."""
    found = _SINCE.fullmatch(text.strip())
    return float(found[1]) * _SECONDS[found[2]] if found else None


def since_time(text: str, now: datetime) -> str:
    """`24h`, `30m`, `7d` before now, or a time as it is."""
    seconds = span_s(text)
    if seconds is None:
        try:
            return time_text(us_of_text(text))  # refuses a bare number: `24` would be a moment of 1970
        except (ValueError, OverflowError):
            raise ConfigError(
                f"--last (or --since) {text} is no span of time such as 24h or 7d, nor a time such as 2026-11-01T00:00Z"
            ) from None
    try:
        return (now - timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise ConfigError(
            f"--last (or --since) {text} goes back before the first date; write 24h, 7d or 2026-11-01T00:00Z"
        ) from None


def query_manifest(wanted: TraceSelection, now: datetime) -> Manifest:
    """The items of a query; ConfigError when nothing fits, unless it may."""
    place = wanted.place
    store = place.open()
    try:
        query = query_of(
            project_in(place, store),
            start=since_time(wanted.since, now) if wanted.since else None,
            filter_expr=wanted.filter_expr,
            limit=PAGE,
        )
        rows: list[TraceRow] = []
        passed: set[str] = set()
        listed = 0
        while True:
            page = store.traces(query)
            listed += len(page.rows)
            if wanted.all_errors:
                outcomes = outcomes_of(store, page.rows)
                rows += [row for row in page.rows if outcomes.get(row.trace_id) == "failed"]
            else:
                rows += page.rows
            more = AFTER.search(page.more or "")
            if more is None or (wanted.limit and len(rows) >= wanted.limit):
                break
            if place.server and (more[1] in passed or listed > MAX_ROWS):
                raise ConfigError(
                    f"{place.name} lists more than {MAX_ROWS:,} traces, or the same ones again and again; --limit N takes the first N"
                )
            passed.add(more[1])
            query = replace(query, after=more[1])
    except ToolFault as fault:
        raise ConfigError(fault.message) from None
    finally:
        store.close()
    if not rows and not wanted.may_be_none:
        raise ConfigError(f"no trace in {place.name} fits the query; `sonde traces ls` shows what it holds")
    items: list[Item] = []
    for row in rows[: wanted.limit or None]:
        project = place.project or row.project
        fields = {"trace_ids": [row.trace_id], "source": place.name, **({"project": project} if project else {})}
        items.append(Item(id=row.trace_id, engine=wanted.engine, fields=fields))
    return Manifest(items=tuple(items))
