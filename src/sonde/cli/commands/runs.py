"""`sonde runs`: list, filter, show, prune and import run folders."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sonde.cli.options import PlaceOptions, RunName, filled, settings_of, spread
from sonde.cli.text import one_line, printable
from sonde.core.budget import shown_cost
from sonde.core.plurals import plural

if TYPE_CHECKING:
    from datetime import datetime

    from sonde.runs.catalog import RunSummary

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Status = Annotated[
    Literal["succeeded", "partial", "failed", "running", "interrupted", "unreadable"] | None,
    typer.Option(metavar="S", help="succeeded, partial, failed, running, interrupted, unreadable."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which runs are listed, and how."""

    status: Status = None
    type_: Annotated[str | None, typer.Option("--type", metavar="T", help="ask, rca, edit, …")] = None
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="In the id, question or model.")] = None
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The newest N.")] = 30
    json: AsJson = False


def register(app: typer.Typer) -> None:
    group = typer.Typer(rich_markup_mode=None)
    group.callback(invoke_without_command=True)(spread(runs))
    group.command("list")(spread(list_))
    group.command()(spread(show))
    group.command()(spread(prune))
    group.command("import")(spread(import_))
    app.add_typer(group, name="runs")


def runs(context: typer.Context, *, wanted: Filter, place: PlaceOptions) -> int | None:
    """List, show, prune and import runs; alone it lists."""
    return list_(wanted=wanted, place=place) if context.invoked_subcommand is None else None


def list_(*, wanted: Filter, place: PlaceOptions) -> int:
    """List runs, the newest first."""
    from sonde.runs.catalog import list_runs

    runs_dir = settings_of(place).runs_dir
    found = list_runs(runs_dir, status=wanted.status, run_type=wanted.type_, text=wanted.text, limit=wanted.limit)
    if wanted.json:
        _print_json({"runs": [_plain(summary) for summary in found]})
        return 0
    for summary in found:
        print(_line(summary))
    if not found:
        print(f"no runs in {runs_dir} that fit; `sonde ask` makes one", file=sys.stderr)
    return 0


def _line(summary: RunSummary) -> str:
    spent = shown_cost(summary.cost_usd, summary.tokens)
    turns = f"{summary.iterations:3} {'turn ' if summary.iterations == 1 else 'turns'}"
    return (
        f"{printable(summary.run_id)}  {one_line(summary.status, 11):11} {one_line(summary.run_type, 17):17} {turns} "
        f"{summary.tokens:>9,} {'token ' if summary.tokens == 1 else 'tokens'} {spent:>12}  {one_line(summary.objective, 60)}"
    )


def show(run: RunName, *, json: AsJson = False, place: PlaceOptions) -> int:
    """Show one run: its page of summary, or its record with --json."""
    from sonde.runs.rundir import SUMMARY, find_run

    found = find_run(settings_of(place).runs_dir, run)
    if json:
        _print_json(found.record().model_dump(mode="json"))
        return 0
    page = found.path / SUMMARY
    print(printable(page.read_text("utf-8", "replace")) if page.is_file() else _unfinished(found.path))
    print(printable(f"folder: {found.path}"), file=sys.stderr)
    return 0


def _unfinished(path: Path) -> str:
    from sonde.runs.catalog import summarise

    summary = summarise(path)
    hint = f"\nIt goes on with: sonde resume {summary.run_id}" if summary.status == "interrupted" else ""
    return f"{_line(summary)}{hint}"


def prune(
    *,
    keep: Annotated[int | None, typer.Option(metavar="N", min=0, help="Keep the newest N.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", parser=filled, help="Only runs older than 12h, 7d, 4w.")
    ] = None,
    status: Status = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: AsJson = False,
    place: PlaceOptions,
) -> int:
    """Delete run folders; those that are being written stay."""
    from sonde.runs.catalog import prune as prune_runs

    if keep is None and older_than is None:
        from sonde.errors import ConfigError

        raise ConfigError("say what to prune: --keep 20 keeps the newest twenty, --older-than 7d deletes what is older")
    runs_dir, before = settings_of(place).runs_dir, _moment(older_than) if older_than else None
    doomed = prune_runs(runs_dir, keep=keep, before=before, status=status, dry_run=True)
    if (
        not dry_run
        and doomed
        and (yes or json or typer.confirm(f"Delete {plural(len(doomed), 'run')} in {runs_dir}?", err=True))
    ):
        doomed = prune_runs(runs_dir, keep=keep, before=before, status=status)
    elif not dry_run and doomed:
        return 0
    if json:
        _print_json({"pruned": [summary.run_id for summary in doomed], "dry_run": dry_run})
    else:
        print(
            "\n".join(
                [
                    *(_line(summary) for summary in doomed),
                    f"{plural(len(doomed), 'run')} {'would go' if dry_run else 'gone'}",
                ]
            )
        )
    return 0


def _moment(age: str) -> datetime:
    from datetime import UTC, datetime, timedelta

    from sonde.errors import ConfigError

    match = re.fullmatch(r"(\d{1,4})([hdw])", age)
    if match is None:
        raise ConfigError(f"--older-than {age}: write a number up to 9999 and h, d or w, e.g. 7d")
    unit = {"h": "hours", "d": "days", "w": "weeks"}[match[2]]
    return datetime.now(UTC) - timedelta(**{unit: int(match[1])})


def import_(file: Annotated[Path, typer.Argument(metavar="FILE")], *, place: PlaceOptions) -> None:
    """Unpack what `sonde export` wrote into a run folder."""
    from sonde.runs.export import unpack_run

    print(unpack_run(file, settings_of(place).runs_dir).path)


def _plain(summary: RunSummary) -> dict[str, Any]:
    return asdict(summary) | {"path": str(summary.path)}


def _print_json(value: Any) -> None:
    from sonde.runs.rundir import pretty_json

    sys.stdout.write(pretty_json(value).decode())
