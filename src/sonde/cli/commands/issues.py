"""`sonde issues`: what a watch found, and what people say about it."""

from __future__ import annotations

import getpass
import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.commands.watch import StateFolder
from sonde.cli.options import CommandList, UseOptions, filled, settings_of, spread
from sonde.cli.text import escaped_json, one_line, printable_lines, table
from sonde.core.canonical import lapse, plural, shown_cost
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from sonde.watch.issues import KnownIssue
    from sonde.watch.state import WatchState

Number = Annotated[int, typer.Argument(metavar="N", min=1, help="The number of the issue.")]
MOST_RESULT = 4 << 20
BARS = "·▁▂▃▄▅▆▇█"  # zero has a sign: a table drops blanks, and the rows would not align


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuePlace(UseOptions):
    """Which watch."""

    state: StateFolder = None

    def open(self) -> WatchState:
        """Its state, which must exist."""
        from sonde.watch.state import WatchState, state_place

        return WatchState(state_place(settings_of(UseOptions(use=self.use)), self.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueFormat:
    """How issues are printed."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueFilter:
    """Which issues."""

    all_: Annotated[bool, typer.Option("--all", help="Resolved and muted ones, too.")] = False


def register(app: typer.Typer) -> None:
    group = typer.Typer(cls=CommandList, rich_markup_mode=None)
    group.callback(invoke_without_command=True)(spread(issues))
    group.command("list")(spread(list_))
    for command in (show, merge, split, mute, assign, note, resolve, reopen):
        group.command()(spread(command))
    app.add_typer(group, name="issues")


def issues(context: typer.Context, *, wanted: IssueFilter, form: IssueFormat, place: IssuePlace) -> int | None:
    """List, show and change the issues of a watch; without a sub-command, list the open ones."""
    return list_(wanted=wanted, form=form, place=place) if context.invoked_subcommand is None else None


def list_(*, wanted: IssueFilter, form: IssueFormat, place: IssuePlace) -> int:
    """List open issues, those with most traces lately first."""
    from sonde.watch.issues import at_rest, watch_view

    _check_form(form)
    with place.open() as state:
        view = watch_view(state, now=time.time())
        rest = at_rest(state, time.time())
    shown = [each for each in view.issues if wanted.all_ or (each.state != "resolved" and not each.muted)]
    if form.json:
        said = {**asdict(view), "issues": [{**asdict(each), "title": each.title} for each in shown]}
        print(escaped_json(json.dumps(said, ensure_ascii=False, sort_keys=True)))
        return 0
    if form.markdown:
        from sonde.core.markdown_safety import words

        print("| # | state | issue | traces | last seen | cause |\n|---|---|---|---|---|---|")
        for each in shown:
            cells = (each.title, each.label)
            title, label = (one_line(words(cell), 160).replace("|", "\\|") for cell in cells)
            print(f"| {each.number} | {each.standing} | {title} | {each.count} | {_time(each.last_us)} | {label} |")
        return 0
    rows = [
        (
            each.number,
            each.standing,
            each.count,
            _bars(each.trend),
            _time(each.last_us),
            each.title,
        )
        for each in shown
    ]
    if rows:
        print(table(("#", "state", "traces", "trend", "last seen (UTC)", "issue"), rows))
    hidden = len(view.issues) - len(shown)
    active = sum(each.state != "resolved" and not each.muted for each in shown)
    more = f"; {hidden} resolved or muted (--all)" if hidden else ""
    more += f"; {len(shown) - active} resolved or muted" if len(shown) > active else ""
    more += f"; {plural(view.rare, 'group')} too rare to be one (`sonde watch --min-traces`)" if view.rare else ""
    print(
        f"{plural(active, 'open issue')}{more}; {plural(view.traces, 'trace')} read, {_spent(view.spent_day_usd)} in a day"
    )
    if not view.recovered and any(each.recovered for each in shown):
        print("errors that traces recovered from are not counted any more (`sonde watch --recovered`)")
    if view.outage:
        print(f"the watch could not read its source for {lapse(view.behind_s)}: {one_line(view.outage, 200)}")
    for gap in view.gaps:
        print(f"gap: {one_line(gap, 300)}")
    if rest:
        print(rest)
    return 0


def show(number: Number, *, form: IssueFormat, place: IssuePlace) -> int:
    """Show one issue: its traces, its groups, its best investigation and what was said."""
    from sonde.watch.issues import known_issues

    _check_form(form)
    with place.open() as state:
        (issue,) = known_issues(state, number=number)
        items = state.folder.items
    if form.json:
        print(escaped_json(json.dumps({**asdict(issue), "title": issue.title}, ensure_ascii=False, sort_keys=True)))
    elif form.markdown:
        from sonde.watch.issues import issue_markdown

        print(printable_lines(issue_markdown(issue)))
    else:
        print(_page(issue, items))
    return 0


def merge(number: Number, into: Annotated[int, typer.Argument(metavar="INTO", min=1)], *, place: IssuePlace) -> int:
    """Merge issue N into another one."""
    from sonde.watch.lifecycle import merge as merge_

    with place.open() as state:
        merge_(state, number, into)
    return _said(f"issue {number} is part of {into} now")


def split(
    number: Number,
    group: Annotated[int, typer.Argument(metavar="GROUP", help="Its number, from `show`.")],
    *,
    place: IssuePlace,
) -> int:
    """Make one group of failures of issue N an issue of its own."""
    from sonde.watch.lifecycle import split as split_

    with place.open() as state:
        fresh = split_(state, number, group)
    return _said(f"group {group} of issue {number} is issue {fresh} now")


def mute(
    number: Number,
    *,
    off: Annotated[bool, typer.Option("--off", help="Tell people about it again.")] = False,
    place: IssuePlace,
) -> int:
    """Tell nobody about issue N and spend nothing on it; it is still counted."""
    from sonde.watch.lifecycle import mute as mute_

    with place.open() as state:
        mute_(state, number, muted=not off)
    return _said(f"issue {number} is {'no longer ' * off}muted")


def assign(
    number: Number, who: Annotated[str, typer.Argument(metavar="WHO", help="Empty: nobody.")], *, place: IssuePlace
) -> int:
    """Say who looks after issue N."""
    from sonde.watch.lifecycle import assign as assign_

    with place.open() as state:
        assign_(state, number, who)
    return _said(f"issue {number} is assigned to {who or 'nobody'}")


def note(number: Number, text: Annotated[str, typer.Argument(metavar="TEXT")], *, place: IssuePlace) -> int:
    """Add a note to issue N."""
    from sonde.watch.lifecycle import note as note_

    author = ""
    with suppress(OSError, KeyError):  # a user without a name
        author = getpass.getuser()
    with place.open() as state:
        note_(state, number, text, author=author, at=time.time())
    return _said(f"noted at issue {number}")


def resolve(
    number: Number,
    *,
    release: Annotated[
        str | None, typer.Option(metavar="R", parser=filled, help="Fixed in this release: older ones do not count.")
    ] = None,
    place: IssuePlace,
) -> int:
    """Say that issue N is over; if it comes back, it has regressed."""
    from sonde.watch.lifecycle import resolve as resolve_

    with place.open() as state:
        fixed_in = resolve_(state, number, release=release or "")
    return _said(f"issue {number} is resolved" + (f", fixed in {fixed_in}" if fixed_in else ""))


def reopen(number: Number, *, place: IssuePlace) -> int:
    """Say that a resolved issue N is not over."""
    from sonde.watch.lifecycle import reopen as reopen_

    with place.open() as state:
        reopen_(state, number)
    return _said(f"issue {number} is open again")


def _check_form(form: IssueFormat) -> None:
    if form.json and form.markdown:
        raise ConfigError("--json and --markdown are two forms; give one of them")


def _said(text: str) -> int:
    print(one_line(text, 300))
    return 0


def _spent(usd: float) -> str:
    """Models without a known price add nothing to what a watch has spent."""
    return f"{shown_cost(usd)} spent" if usd else "no known cost"


def _time(us: int) -> str:
    from sonde.contexts.traces.span import time_text

    return time_text(us)[:19].replace("T", " ")


def _bars(counts: tuple[int, ...]) -> str:
    most = max(counts, default=0)
    return "".join(BARS[-(-each * (len(BARS) - 1) // most)] if most else BARS[0] for each in counts) or BARS[0]


def _page(issue: KnownIssue, items: Path) -> str:
    """One issue for a terminal; every foreign text is one harmless line."""
    from sonde.watch.issues import moment

    lines = [
        f"issue {issue.number}: {one_line(issue.title, 200)}",
        f"state: {issue.state} since {moment(issue.since_us)}{', muted' if issue.muted else ''}",
        *["kind: recovered errors; none of these traces failed because of it"] * issue.recovered,
        f"cause: {one_line(issue.cause, 500)}",
        *(f"what to do: {one_line(each, 300)}" for each in (_todo(items, issue.proof.run) if issue.proof else ())),
        f"seen: {issue.extent}, first {moment(issue.first_us)}, last {moment(issue.last_us)}, {issue.rate:.1f} per window",
        f"trend: {_bars(issue.trend)}",
        f"affected: {issue.affected}",
    ]
    lines += [f"releases: {one_line(issue.set_apart, 200)}"] if issue.releases else []
    lines += [f"assigned to: {one_line(issue.assignee, 100)}"] if issue.assignee else []
    lines += [f"fixed in: {one_line(issue.fixed_in, 100)}"] if issue.fixed_in else []
    lines += [
        f"group {each.id}: {each.count} × {one_line(each.component, 60)}: {one_line(each.form, 160)}"
        for each in issue.signatures
    ]
    lines += [f"trace: {one_line(each, 100)}" for each in issue.traces[:5]]
    if (proof := issue.proof) is not None:
        lost = f", and up to {shown_cost(proof.lost_usd)} for requests that a kill cut off" if proof.lost_usd else ""
        told = "" if proof.judge == "LLM" else f": {one_line(proof.summary, 300)}"
        lines += [
            f"investigated: {one_line(proof.label, 60)} by {proof.judge}, {_spent(proof.cost_usd)}{lost}{told}",
            f"proof: {one_line(f'{items}/{proof.run}/report.md', 300)}",
        ]
    history = [
        (int(each.at * 1e6), f"note by {one_line(each.author, 60)}: {one_line(each.text, 300)}") for each in issue.notes
    ]
    history += [(each.at_us, one_line(f"{each.kind} {each.text}", 200)) for each in issue.happenings]
    lines += [f"{moment(at)}  {said}" for at, said in sorted(history, key=lambda one: one[0])]
    return "\n".join(lines)


def _todo(items: Path, run: str) -> list[str]:
    """What an investigation says is to be done. The folder may be a stranger's."""
    from sonde.disk import below, read_plain
    from sonde.engines.submission import fields_of, texts

    try:
        found = json.loads(read_plain(below(items, items / run / "result.json"), MOST_RESULT))
    except (OSError, ValueError, RecursionError, ConfigError):
        return []
    return texts(fields_of(fields_of(found).get("output")).get("remediation"))[:3]
