"""`sonde batch`: thousands of asks or investigations from a manifest or a query over traces, here or on Ray."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import BudgetOptions, ModelOptions, OutputOptions, PlaceOptions, filled, settings_of, spread
from sonde.cli.text import links_shown, one_line, printable
from sonde.core.plurals import plural
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.batch.driver import BatchOutcome, OnProgress
    from sonde.batch.folder import BatchFolder
    from sonde.batch.limits import SharedLimits
    from sonde.batch.manifest import Manifest
    from sonde.batch.progress import Progress

ManifestFile = Annotated[Path | None, typer.Argument(metavar="MANIFEST", help="A JSON Lines file, one item a line.")]
TELL_S = 10.0  # between two lines of progress where there is no terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Which traces, when there is no manifest."""

    all_errors: Annotated[bool, typer.Option("--all-errors", help="Every trace with a span in error.")] = False
    since: Annotated[str | None, typer.Option(metavar="24h|TIME", parser=filled, help="Traces begun since then.")] = (
        None
    )
    filter: Annotated[str | None, typer.Option(metavar="EXPR", parser=filled, help="Traces with a span that fits.")] = (
        None
    )
    engine: Annotated[str, typer.Option(metavar="E", help="What is done with each: rca or compliance.")] = "rca"
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most so many traces.")] = None
    source: Annotated[str | None, typer.Option(metavar="PATH|URL", help="Trace files, or a Phoenix server.")] = None
    project: Annotated[str | None, typer.Option(metavar="P", help="The project on the server.")] = None

    @property
    def asked(self) -> bool:
        """Whether traces are asked for."""
        return self.all_errors or self.since is not None or self.filter is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """Where and how fast."""

    on: Annotated[str, typer.Option(metavar="local|ray|ray://HOST:PORT", help="Where the work is done.")] = "local"
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Items at once.")] = 8
    requests_per_minute: Annotated[float | None, typer.Option(metavar="N", help="Of all workers together.")] = None
    tokens_per_minute: Annotated[float | None, typer.Option(metavar="N", help="Of all workers together.")] = None
    name: Annotated[str | None, typer.Option(metavar="NAME", parser=filled, help="The batch folder's name.")] = None
    compare: Annotated[Path | None, typer.Option(metavar="BATCH", help="Issues against this earlier batch.")] = None
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed items once more.")] = False
    no_writeback: Annotated[bool, typer.Option("--no-writeback", help="Write no annotations to the server.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemBudget(BudgetOptions):
    """The knobs of each item, but for money: that is the batch's."""

    max_cost_usd: Annotated[float | None, typer.Option(metavar="USD", help="Money of the whole batch.")] = None


def register(app: typer.Typer) -> None:
    app.command()(spread(batch))


def batch(
    manifest: ManifestFile = None,
    *,
    query: QueryOptions,
    how: BatchFlags,
    model: ModelOptions,
    budget: ItemBudget,
    place: PlaceOptions,
    output: OutputOptions,
) -> int:
    """Run many asks or investigations, and pay for no recorded reply twice.

    The same command again goes on where the last one stopped. A query looks anew and makes a new batch, unless --name names one;
    `sonde batch FOLDER/manifest.jsonl` goes on with what it has found. Exit code 1 when an item failed, is left, or a line was no item.

    Example: sonde batch questions.jsonl --concurrency 16 --max-cost-usd 5
    Example: sonde batch --all-errors --since 24h --source http://localhost:6006 --project checkout
    """
    from sonde.batch.issues import compare, group, read_issues
    from sonde.batch.launch import BatchOptions, run_batch
    from sonde.batch.report import write_report
    from sonde.cli.interrupt import soft_stop

    knobs = {field.name: getattr(budget, field.name) for field in fields(budget) if field.name != "max_cost_usd"}
    settings = settings_of(model, place, source=query.source, project=query.project, **knobs)
    earlier = read_issues(how.compare) if how.compare else []
    folder, items = _items(manifest, query, how, settings)
    options = BatchOptions(
        on=how.on,
        limits=_limits(how, budget.max_cost_usd),
        writeback=not how.no_writeback,
        retry_failed=how.retry_failed,
    )
    silent = output.json or output.quiet
    _begin(settings, folder, items, silent=silent)
    _warn_of_prices(settings, capped=budget.max_cost_usd is not None and not silent)
    with (
        soft_stop("sonde: stopping; items in flight are paused (Ctrl-C again kills)\n") as cancel,
        _shown(silent) as show,
    ):
        outcome = run_batch(items, folder, settings, options, cancel=cancel, on_progress=show)
    issues = compare(group(outcome.results), earlier, complete=not outcome.left)
    report, skipped = write_report(outcome, issues)
    again = f"sonde batch {folder.path / 'manifest.jsonl'}" if query.asked and not how.name else "the same command"
    _tell(outcome, report, skipped, output, again)
    return 0 if outcome.complete else 1


def _limits(how: BatchFlags, max_cost_usd: float | None) -> SharedLimits:
    from sonde.batch.limits import SharedLimits

    for name, value in (
        ("--requests-per-minute", how.requests_per_minute),
        ("--tokens-per-minute", how.tokens_per_minute),
        ("--max-cost-usd", max_cost_usd),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} {value} lets nothing through; give a number above 0, or leave it out")
    return SharedLimits(
        requests_per_minute=how.requests_per_minute,
        tokens_per_minute=how.tokens_per_minute,
        max_cost_usd=max_cost_usd,
        concurrency=how.concurrency,
    )


def _items(
    manifest: Path | None, query: QueryOptions, how: BatchFlags, settings: Settings
) -> tuple[BatchFolder, Manifest]:
    """The batch folder and what is in the batch."""
    from sonde.batch.folder import folder_for, named_folder
    from sonde.batch.manifest import read_manifest

    if (manifest is None) == (not query.asked):
        raise ConfigError("give a MANIFEST, or a query such as --all-errors --since 24h; `sonde batch --help`")
    if manifest is not None:
        _refuse_query_flags(query)
        folder = named_folder(how.name, settings.runs_dir) if how.name else folder_for(manifest, settings.runs_dir)
        return folder, read_manifest(manifest)
    now = datetime.now(UTC)
    name = how.name or f"{query.engine}-{now:%Y%m%d-%H%M%S}"
    return named_folder(name, settings.runs_dir), _queried(query, settings, now, compared=how.compare is not None)


def _refuse_query_flags(query: QueryOptions) -> None:
    for name, given in (("--limit", query.limit is not None), ("--engine", query.engine != "rca")):
        if given:
            raise ConfigError(f"{name} belongs to a query such as --all-errors; a manifest says itself what is done")


def _queried(query: QueryOptions, settings: Settings, now: datetime, *, compared: bool) -> Manifest:
    from sonde.api.trace_source import cache_folder, source_of
    from sonde.batch.query import Wanted, query_manifest

    if query.engine not in ("rca", "compliance"):
        raise ConfigError(f"--engine {query.engine}: a query gives one trace an item, for rca or compliance")
    place = source_of(settings.source, settings.project, settings.environ, cache_folder(settings.environ))
    wanted = Wanted(
        place=place,
        engine=query.engine,
        all_errors=query.all_errors,
        since=query.since,
        filter_expr=query.filter,
        limit=query.limit,
        may_be_none=compared,  # then every earlier issue is gone
    )
    return query_manifest(wanted, now)


def _begin(settings: Settings, folder: BatchFolder, items: Manifest, *, silent: bool) -> None:
    for line in items.broken[:20]:
        print(f"sonde: line {line.number} is no item and is left out: {one_line(line.reason, 300)}", file=sys.stderr)
    if len(items.broken) > 20:
        print(f"sonde: {len(items.broken) - 20} further lines are no items; report.md names them", file=sys.stderr)
    if not silent:
        print(printable(settings.model_line()), file=sys.stderr)
        print(f"batch: {plural(len(items.items), 'item')} in {folder.path}", file=sys.stderr)


def _warn_of_prices(settings: Settings, *, capped: bool) -> None:
    """A cap without a price holds nothing; said before ten thousand items are paid for."""
    from sonde.models.base import TokenUsage
    from sonde.models.prices import dearest

    for name in dict.fromkeys((settings.model, settings.sub_model)) if capped else ():
        if name is not None and dearest(settings.choose(name).spec, TokenUsage(1, 1)) is None:
            print(f"warning: no price is known for {name}: the cost limit cannot bind", file=sys.stderr)


@contextmanager
def _shown(silent: bool) -> Generator[OnProgress | None]:
    """A line that is drawn over on a terminal, and one every ten seconds elsewhere."""
    if silent:
        yield None
        return
    terminal, last = links_shown(sys.stderr), [time.monotonic()]

    def show(progress: Progress) -> None:
        now = time.monotonic()
        if now - last[0] < (0.2 if terminal else TELL_S):
            return
        last[0] = now
        line = one_line(progress.line(now), 160)
        sys.stderr.write(f"\r\x1b[K{_fitted(line)}" if terminal else f"{line}\n")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K" if terminal else "")


def _fitted(line: str) -> str:
    """Within the terminal as it is now: a line that wraps could not be drawn over."""
    from rich.text import Text

    shown = Text(line)
    shown.truncate((os.get_terminal_size(sys.stderr.fileno()).columns or 80) - 1, overflow="ellipsis")
    return shown.plain


def _tell(
    outcome: BatchOutcome, report: dict[str, object], skipped: list[str], output: OutputOptions, again: str
) -> None:
    from sonde.batch.report import markdown
    from sonde.runs.rundir import pretty_json

    if output.json:
        sys.stdout.write(pretty_json({**report, "folder": str(outcome.folder.path), "skipped": skipped}).decode())
        return
    sys.stdout.write(printable(markdown(report)))
    if outcome.stopped:
        print(f"sonde: stopped: {one_line(outcome.stopped, 300)}; {again} goes on from here", file=sys.stderr)
    if not output.quiet:
        for note in skipped:
            print(f"note: {note}", file=sys.stderr)
        print(f"report: {outcome.folder.path / 'report.html'}", file=sys.stderr)
