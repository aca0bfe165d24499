"""What `sonde watch` prints: its start, each turn, what `--once` did, and the plan of `--dry-run`.

Changes of issues go to stdout, one line each, and everything else to stderr. Texts of traces are made harmless here.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sonde.api.settings import Settings
from sonde.cli.foreground_run import print_model_line
from sonde.cli.options import OutputOptions
from sonde.cli.text import escaped_json, one_line, outcome_text, printable, table
from sonde.core.canonical import lapse, plural, shown_cost
from sonde.models.base import price_source
from sonde.viewer.server import ViewerServer
from sonde.watch.issues import KnownIssue, known_issues
from sonde.watch.listener import OtlpListener
from sonde.watch.loop import WatchPlan, WatchTurn
from sonde.watch.state import Happening, WatchState

HINT = " (--recovered makes issues of errors that recur)"


def announce(settings: Settings, folder: Path, listener: OtlpListener | None, page: ViewerServer | None) -> None:
    """Say what is watched, with which model, and where it listens."""
    print_model_line(settings)
    print(printable(f"watch: {settings.source}, state in {folder}"), file=sys.stderr)
    for name in dict.fromkeys((settings.model, settings.sub_model)):
        choice = settings.choose(name) if name is not None else None
        if choice is not None and price_source(choice.spec, choice.settings.price) == "unknown":
            print(
                printable(f"warning: the price of {name} is unknown: limits of money cannot hold (--price gives one)"),
                file=sys.stderr,
            )
    if listener is not None:
        print(f"listening: {listener.url} (OTEL_EXPORTER_OTLP_ENDPOINT)", file=sys.stderr, flush=True)
    if page is not None:  # a log is no place for the key
        print(f"page: {page.own_url if sys.stderr.isatty() else page.url}", file=sys.stderr, flush=True)


def summary(turns: list[WatchTurn], state: WatchState) -> dict[str, Any]:
    """All that `--once` did, as one object."""
    known = {each.number: each for each in known_issues(state)}
    tried = [turn for turn in turns if turn.investigated is not None]
    return {
        "summary": {
            "windows": sum(turn.windows for turn in turns),
            "traces": sum(turn.traces for turn in turns),
            "failed": sum(turn.failed for turn in turns),
            "behind_s": turns[-1].behind_s,
            "recovered": sum(turn.recovered for turn in turns),
            "changed": next((turn.changed for turn in turns if turn.changed), ""),
            "gaps": list(next((turn.gaps for turn in reversed(turns) if turn.gaps), ())),
            "investigated": sum(not turn.postponed for turn in tried),
            "postponed": [turn.postponed for turn in tried if turn.postponed],
            "outage": turns[-1].outage,
            "money": next((turn.money for turn in turns if turn.money), ""),
        },
        "happenings": [_happening(each, known.get(each.issue)) for turn in turns for each in turn.happenings],
    }


def _happening(happening: Happening, issue: KnownIssue | None) -> dict[str, Any]:
    """A change of an issue with what tells people which one that is."""
    return {
        **asdict(happening),
        "title": issue.title if issue else "",
        "recovered": issue is not None and issue.recovered,
    }


def print_turn(turn: WatchTurn, state: WatchState, output: OutputOptions) -> None:
    """What happened in a turn: changes of issues on stdout, the rest on stderr."""
    titles = {each.number: each for each in known_issues(state)} if turn.happenings else {}
    for each in turn.happenings:
        known = titles.get(each.issue)
        if output.json:
            print(escaped_json(json.dumps(_happening(each, known), ensure_ascii=False, sort_keys=True)), flush=True)
        else:
            more = f" ({each.text})" if each.text else ""
            kind = f"{each.kind}{', recovered' if known and known.recovered else ''}"
            print(one_line(f"{kind}: issue {each.issue}{more}: {known.title if known else ''}", 300), flush=True)
    if output.json:
        troubles = [("gap", gap) for gap in turn.gaps] + [
            ("changed", turn.changed),
            ("outage", turn.outage),
            ("full", turn.full),
            ("money", turn.money),
        ]
        for kind, text in troubles:
            if text:
                print(escaped_json(json.dumps({"kind": kind, "text": text}, ensure_ascii=False)), flush=True)
    if output.json or output.quiet:
        return
    if turn.changed:
        print(f"changed: {turn.changed}", file=sys.stderr)
    for gap in turn.gaps:
        print(f"gap: {one_line(gap, 300)}", file=sys.stderr)
    if turn.full:
        print(
            f"sonde: the disk is full, make room: {one_line(turn.full, 300)}; tried again later",
            file=sys.stderr,
            flush=True,
        )
    if turn.outage:
        since = f", last read {lapse(turn.behind_s)} ago" if turn.behind_s else ""  # never, at a first start
        print(
            f"sonde: the source cannot be read{since}: {one_line(turn.outage, 300)}",
            file=sys.stderr,
        )
    elif turn.empty:
        print(f"waiting for the first file: {one_line(turn.empty, 300)}", file=sys.stderr, flush=True)
    elif turn.windows:
        failed = outcome_text(turn.failed, turn.recovered)
        hint = HINT if turn.recovered and not state.counts_recovered else ""
        print(
            f"{plural(turn.windows, 'window')}, {plural(turn.traces, 'trace')}, {failed}{hint}"
            + (f", {lapse(turn.behind_s)} of traces wait" if turn.behind_s else ""),
            file=sys.stderr,
        )
    if turn.investigated is not None:
        which = f"trace {turn.investigated.trace_id} ({turn.investigated.why})"
        result = turn.result
        if turn.postponed or result is None:
            why = one_line(turn.postponed.partition("; ")[0].rstrip("."), 200)
            said = f"{which} not investigated: {why}; tried again later"
        else:
            cost = shown_cost(None if result.unpriced else result.cost_usd)
            said = f"investigated {which}: {result.status}: {result.label or result.message}, {cost}"
        print(one_line(said, 300), file=sys.stderr)
    if turn.money:
        print(f"sonde: {turn.money}; groups wait", file=sys.stderr)


def print_plan(plan: WatchPlan, *, as_json: bool) -> int:
    """What would be read, investigated and spent."""
    costs = [each.cost_usd for each in plan.estimates if each.cost_usd is not None]
    known = len(costs) == len(plan.estimates) and bool(costs)
    scale = len(plan.candidates) / max(1, len(plan.estimates))
    cost = [round(scale * sum(each[end] for each in costs), 6) for end in (0, 1)] if known else None
    # Numbers of issues that do not exist yet say nothing: the next call may give them to others.
    fresh = [each for each in plan.read.happenings if each.kind == "new" and each.issue in plan.issues]
    numbers = {each.issue for each in fresh}
    titles = {number: each.title for number, each in plan.issues.items()}
    if as_json:
        shown = {
            "windows": plan.read.windows,
            "traces": plan.read.traces,
            "failed": plan.read.failed,
            "recovered": plan.read.recovered,
            "changed": plan.read.changed,
            "gaps": list(plan.read.gaps),
            "issues": [
                {"title": plan.issues[each.issue].title, "new": True, "recovered": plan.issues[each.issue].recovered}
                for each in fresh
            ],
            "investigations": [
                {
                    **asdict(each),
                    "issue": None if each.issue in numbers else each.issue,
                    "new": each.issue in numbers,
                    "title": titles.get(each.issue or 0, ""),
                }
                for each in plan.candidates
            ],
            "typical_cost_usd": cost,
            "room_usd": plan.room_usd,
            "limit": plan.limit,
        }
        print(escaped_json(json.dumps(shown, ensure_ascii=False, sort_keys=True)))
        return 0
    print(
        f"would read {plural(plan.read.traces, 'trace')} in {plural(plan.read.windows, 'window')}, "
        f"{outcome_text(plan.read.failed, plan.read.recovered)}{HINT if plan.read.recovered and not plan.recovered else ''}: "
        f"{plural(len(fresh), 'new issue')}"
    )
    if plan.read.changed:
        print(f"changed: {plan.read.changed}")
    for each in fresh:
        kind = "new issue, recovered" if plan.issues[each.issue].recovered else "new issue"
        print(one_line(f"{kind}: {titles[each.issue]}", 200))
    if plan.candidates:
        rows = [
            (
                each.why,
                "new" if each.issue in numbers else each.issue or "-",
                each.trace_id,
                each.hits,
                one_line(titles.get(each.issue or 0, "looks healthy"), 100),
            )
            for each in plan.candidates[:20]
        ]
        print(table(("why", "issue", "trace", "traces", "title"), rows))
        if len(plan.candidates) > 20:
            print(f"and {len(plan.candidates) - 20} more")
    if not plan.estimates:
        print("would investigate nothing: " + ("no model is set" if plan.candidates else "there is nothing to learn"))
        return 0
    price = f"about ${cost[0]:.4f} to ${cost[1]:.4f}" if cost else "at a price that nobody knows"
    print(
        f"would investigate {plural(len(plan.candidates), 'trace')}, {price}; ${max(0.0, plan.room_usd):.4f} are left of {plan.limit}"
    )
    return 0
