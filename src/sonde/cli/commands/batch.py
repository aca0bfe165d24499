"""`sonde batch`: thousands of asks or investigations from a manifest or a query over traces, here or on Ray."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    DryRun,
    EndOptions,
    FailOnVerdict,
    ModelOptions,
    PlaceOptions,
    filled,
    settings_of,
    spread,
)
from sonde.cli.text import escaped_json, link, links_shown, one_line, printable, printable_lines
from sonde.core.canonical import plural
from sonde.core.markdown_safety import unescaped
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.batch.driver import OnProgress
    from sonde.batch.folder import BatchFolder
    from sonde.batch.manifest import Manifest
    from sonde.batch.progress import BatchProgress

ManifestFile = Annotated[
    Path | None, typer.Argument(metavar="MANIFEST", help="One item per line: JSON Lines, .csv, or .txt with questions.")
]
SAMPLED = 8  # items that a dry run starts
TELL_S = 10.0  # between two lines of progress without a terminal


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryOptions:
    """Which traces, if no manifest is given."""

    all_errors: Annotated[
        bool,
        typer.Option(
            "--all-errors",
            help="Every trace that failed, as `incident` counts: also if a tool returned its error, not if a retry mended all.",
        ),
    ] = False
    since: Annotated[
        str | None,
        typer.Option("--since", "--last", metavar="24h|TIME", parser=filled, help="Traces that began since then."),
    ] = None
    filter: Annotated[str | None, typer.Option(metavar="EXPR", parser=filled, help="Traces with a matching span.")] = (
        None
    )
    engine: Annotated[str, typer.Option(metavar="E", help="What to do with each: rca or comply.")] = "rca"
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="At most this many traces.")] = None
    source: Annotated[str | None, typer.Option(metavar="PATH|URL", help="Trace files, or a Phoenix server.")] = None
    project: Annotated[str | None, typer.Option(metavar="P", help="The project on the server.")] = None

    @property
    def asked(self) -> bool:
        """Whether this is a query for traces."""
        return self.all_errors or self.since is not None or self.filter is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFlags:
    """Where and how fast."""

    on: Annotated[str, typer.Option(metavar="local|ray|ray://HOST:PORT", help="Where the work runs.")] = "local"
    concurrency: Annotated[int, typer.Option(metavar="N", min=1, max=10_000, help="Items at once.")] = 8
    requests_per_minute: Annotated[float | None, typer.Option(metavar="N", help="For all workers together.")] = None
    tokens_per_minute: Annotated[float | None, typer.Option(metavar="N", help="For all workers together.")] = None
    name: Annotated[str | None, typer.Option(metavar="NAME", parser=filled, help="The folder is batch-NAME.")] = None
    compare: Annotated[Path | None, typer.Option(metavar="BATCH", help="Compare issues with this earlier batch.")] = (
        None
    )
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed items again.")] = False
    path: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="What questions without paths are about; repeatable."),
    ] = None
    allow_path: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Items may also read here, outside the manifest's folder; repeatable."),
    ] = None
    controls: Annotated[
        str | None,
        typer.Option(metavar="VERSION", parser=filled, help="The version of the controls for items that name none."),
    ] = None
    controls_file: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Your own controls, for items of comply that name none; repeatable."),
    ] = None
    no_citations: Annotated[
        bool,
        typer.Option("--no-citations", help="Accept answers without proof; they are shown as unproved."),
    ] = False
    no_writeback: Annotated[bool, typer.Option("--no-writeback", help="Write no annotations to the server.")] = False
    dry_run: DryRun = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemBudget(BudgetOptions):
    """The limits of each item, except money: that limit is for the whole batch."""

    max_cost_usd: Annotated[float | None, typer.Option(metavar="USD", help="Money for the whole batch.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchEnd(EndOptions):
    """What is printed, and what counts as a failure."""

    fail_on: FailOnVerdict = None


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
    output: BatchEnd,
) -> int:
    """Run many asks or investigations, and pay for no recorded reply twice.

    The same command again continues where the last one stopped. A query searches again and makes a new batch, unless --name
    names one; `sonde batch FOLDER/manifest.jsonl` continues with what it found. Exit code 1 if an item failed or is left over,
    or a line is not an item.

    Example: sonde batch questions.jsonl --concurrency 16 --max-cost-usd 5

    Example: sonde batch --all-errors --since 24h --source http://localhost:6006 --project checkout

    Example: sonde batch --last 24h --engine comply --controls-file mine.yaml --fail-on fail --source traces.jsonl
    """
    from sonde.batch.driver import BatchOptions, run_batch
    from sonde.batch.issues import compare, group, read_issues
    from sonde.batch.limits import NO_MONEY, SharedLimits
    from sonde.batch.report import markdown, write_report
    from sonde.cli.interrupt import soft_stop
    from sonde.runs.rundir import ARTIFACTS, artifacts_folder, pretty_json

    knobs = {field.name: getattr(budget, field.name) for field in fields(budget) if field.name != "max_cost_usd"}
    settings = settings_of(model, place, source=query.source, project=query.project, **knobs)
    earlier = read_issues(how.compare) if how.compare else []
    folder, items = _items(manifest, query, how, settings)
    for name, value in (
        ("--requests-per-minute", how.requests_per_minute),
        ("--tokens-per-minute", how.tokens_per_minute),
        ("--max-cost-usd", budget.max_cost_usd),
    ):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} {value} lets nothing through; give a number above 0, or leave it out")
    limits = SharedLimits(
        requests_per_minute=how.requests_per_minute,
        tokens_per_minute=how.tokens_per_minute,
        max_cost_usd=budget.max_cost_usd,
        concurrency=how.concurrency,
    )
    items = _completed(items, how)
    allowed = [
        *(how.allow_path or ()),
        *(how.path or ()),
        *(how.controls_file or ()),
        *([Path(query.source)] if query.source and "://" not in query.source else ()),
    ]
    options = BatchOptions(
        on=how.on,
        limits=limits,
        writeback=not how.no_writeback,
        retry_failed=how.retry_failed,
        allowed=tuple(path.absolute() for path in allowed),
    )
    silent = output.json or output.quiet
    if how.dry_run:
        return _estimate(items, folder, settings, options.allowed, as_json=output.json)
    _announce(settings, folder, items, silent=silent, capped=budget.max_cost_usd is not None)
    if folder.path.parent == ARTIFACTS.absolute():
        artifacts_folder(named=settings.runs_dir is not None)
        if folder.path.is_symlink():
            raise ConfigError(
                f"{folder.path} is a link, and nothing is written through it: --name NAME gives another folder"
            )
    stopping = "sonde: stopping; running items are paused (Ctrl-C again kills)\n"
    with soft_stop(stopping) as cancel, _progress_line(silent) as show:
        outcome = run_batch(items, folder, settings, options, cancel=cancel, on_progress=show)
    issues = compare(group(outcome.results), earlier, complete=not outcome.left)
    report, skipped = write_report(outcome, issues)
    verdicts = [each.label for each in outcome.results if each.engine == "compliance"]
    ended = output.exit_code([each.status for each in outcome.results], verdicts) if outcome.complete else 1
    if output.json:
        sys.stdout.write(
            escaped_json(pretty_json({**report, "folder": str(outcome.folder.path), "skipped": skipped}).decode())
        )
        return cancel.exit_code(ended)
    # As in report.md; on a terminal without the signs that keep foreign text from being markup.
    said = markdown({**report, "answers": []} if output.quiet else report)
    sys.stdout.write(printable_lines(unescaped(said) if sys.stdout.isatty() else said))
    if outcome.stopped:
        again = "the same command"
        if query.asked and not how.name:
            again = f"sonde batch {folder.path / 'manifest.jsonl'} --source {settings.source}"
        higher = "with a higher --max-cost-usd " if outcome.stopped.startswith(NO_MONEY) else ""
        reason = one_line(outcome.stopped, 300)
        print(f"sonde: stopped: {reason}; {higher}{printable(again)} continues from here", file=sys.stderr)
    if not output.quiet:
        for note in skipped:
            print(printable(f"note: {note}"), file=sys.stderr)
        page = outcome.folder.path / "report.html"
        shown = printable(str(page))
        print(f"report: {link(shown, page, 0) if links_shown(sys.stderr) else shown}", file=sys.stderr)
    return cancel.exit_code(ended)


def _items(
    manifest: Path | None, query: QueryOptions, how: BatchFlags, settings: Settings
) -> tuple[BatchFolder, Manifest]:
    """The batch folder and the items, from the manifest or from a query."""
    from sonde.api.trace_source import cache_folder, source_of
    from sonde.batch.folder import folder_for, named_folder
    from sonde.batch.manifest import SYNONYMS, read_manifest
    from sonde.batch.query import TraceSelection, query_manifest
    from sonde.runs.rundir import ARTIFACTS

    home = settings.runs_dir or ARTIFACTS  # also of questions: a batch has a report to pick up
    if (manifest is None) == (not query.asked):
        raise ConfigError("give a MANIFEST, or a query such as --all-errors --since 24h; see `sonde batch --help`")
    if manifest is not None:
        for name, given in (("--limit", query.limit is not None), ("--engine", query.engine != "rca")):
            if given:
                raise ConfigError(f"{name} belongs to a query such as --all-errors; a manifest says this itself")
        folder = named_folder(how.name, home) if how.name else folder_for(manifest, home)
        return folder, read_manifest(manifest)
    engine = SYNONYMS.get(query.engine, query.engine)
    if engine not in ("rca", "compliance"):
        raise ConfigError(f"--engine {query.engine}: a query makes one item per trace, for rca or comply")
    now = datetime.now(UTC)
    folder = named_folder(how.name or f"{engine}-{now:%Y%m%d-%H%M%S}", home)
    wanted = TraceSelection(
        place=source_of(
            settings.source,
            settings.project,
            settings.environ,
            cache_folder(settings.environ),
            cache_gb=settings.trace_cache_gb,
        ),
        engine=engine,
        all_errors=query.all_errors,
        since=query.since,
        filter_expr=query.filter,
        limit=query.limit,
        may_be_none=how.compare is not None,  # then every earlier issue is gone
    )
    return folder, query_manifest(wanted, now)


def _completed(manifest: Manifest, how: BatchFlags) -> Manifest:
    """The items with what the flags say, where they say nothing themselves."""
    paths, controls_files = ([str(path.absolute()) for path in each or ()] for each in (how.path, how.controls_file))
    controls = {
        **({"controls": how.controls} if how.controls else {}),
        **({"controls_files": controls_files} if controls_files else {}),
    }
    if controls and not any(each.engine == "compliance" for each in manifest.items):
        raise ConfigError(
            "--controls and --controls-file are for items of comply, and there are none (--engine comply)"
        )
    asked = {**({"paths": paths} if paths else {}), **({"citations": False} if how.no_citations else {})}
    more = {"ask": asked, "compliance": controls}
    items = (replace(each, fields={**more.get(each.engine, {}), **each.fields}) for each in manifest.items)
    return replace(manifest, items=tuple(items))


def _estimate(
    manifest: Manifest, folder: BatchFolder, settings: Settings, allowed: tuple[Path, ...], *, as_json: bool
) -> int:
    """What the whole batch would read and cost, judged by a few items spread over it; the exit code."""
    from contextlib import closing

    from sonde.api.estimate import Estimate, estimate
    from sonde.api.investigations import case_spec
    from sonde.batch.driver import check_places
    from sonde.batch.item_runner import Order
    from sonde.cli.foreground_run import print_estimate

    for line in manifest.broken[:20]:
        print(f"sonde: line {line.number} is not an item: {one_line(line.reason, 300)}", file=sys.stderr)
    roots = () if manifest.folder is None else (manifest.folder, *allowed)
    refused = check_places(manifest.items, settings, roots) if roots else {}
    for why in list(refused.values())[:20]:
        print(f"sonde: {one_line(why, 400)}", file=sys.stderr)
    items = [item for item in manifest.items if item.key not in refused]
    if not items:
        raise ConfigError("there are no items, so nothing would be read")
    order = Order(settings=settings, folder=folder.path, writeback=False, roots=roots)
    step = max(1, -(-len(items) // SAMPLED))
    found: list[Estimate] = []
    budget = settings.budget()
    sampled = items[::step]
    for item in sampled:
        if item.engine == "ask":
            spec = order.question(item)
            found.append(estimate(spec, settings))
        else:
            case = order.case(item)
            context = case.open()
            with closing(context.store):
                spec = case_spec(case, context, settings)
                found.append(estimate(spec, settings))
        budget = spec.budget
    return print_estimate(
        found, settings, budget, as_json=as_json, runs=len(items), names=[each.id for each in sampled]
    )


def _announce(settings: Settings, folder: BatchFolder, items: Manifest, *, silent: bool, capped: bool) -> None:
    """Say on stderr what will run, which lines are no items, and that a cost limit without a price cannot hold."""
    from sonde.cli.foreground_run import print_model_line
    from sonde.models.base import price_source

    for line in items.broken[:20]:
        reason = one_line(line.reason, 300)
        print(f"sonde: line {line.number} is not an item and was skipped: {reason}", file=sys.stderr)
    if len(items.broken) > 20:
        print(f"sonde: {len(items.broken) - 20} more lines are not items; report.md lists them", file=sys.stderr)
    if silent:
        return
    print_model_line(settings)
    print(printable(f"batch: {plural(len(items.items), 'item')} in {folder.path}"), file=sys.stderr)
    for name in dict.fromkeys((settings.model, settings.sub_model)) if capped else ():
        choice = settings.choose(name) if name is not None else None
        if choice is not None and price_source(choice.spec, choice.settings.price) == "unknown":
            print(
                printable(f"warning: the price of {name} is unknown: the cost limit cannot hold (--price gives one)"),
                file=sys.stderr,
            )


@contextmanager
def _progress_line(silent: bool) -> Generator[OnProgress | None]:
    """A line that is redrawn on a terminal, or one every ten seconds elsewhere."""
    if silent:
        yield None
        return
    terminal, last = links_shown(sys.stderr), [time.monotonic()]

    def show(progress: BatchProgress) -> None:
        now = time.monotonic()
        if now - last[0] < (0.2 if terminal else TELL_S):
            return
        last[0] = now
        line = one_line(progress.line(now), 160)
        if terminal:  # a line that wraps could not be redrawn, so it is cut to the terminal's present width
            from rich.text import Text

            fitted, width = Text(line), os.get_terminal_size(sys.stderr.fileno()).columns or 80
            fitted.truncate(width - 1, overflow="ellipsis")
            sys.stderr.write(f"\r\x1b[K{fitted.plain}")
        else:
            sys.stderr.write(f"{line}\n")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K" if terminal else "")
