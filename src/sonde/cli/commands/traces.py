"""`sonde traces`: import, list, show, search, overview and export traces, from files or a server."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from sonde.cli.options import CommandList, SourceOptions, WindowOptions, filled, settings_of, spread
from sonde.cli.text import escaped_json, one_line, outcome_text, printable, table
from sonde.core.canonical import plural
from sonde.errors import ConfigError, ToolFault

if TYPE_CHECKING:
    from sonde.api.trace_source import Source
    from sonde.contexts.traces.store import TraceQuery, TraceStore

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
OVERVIEW_GROUPS = 20
TraceId = Annotated[str, typer.Argument(metavar="TRACE_ID")]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceListOptions(WindowOptions):
    """Which traces, how many, and in which form."""

    after: Annotated[str | None, typer.Option(metavar="ID", parser=filled, help="Continue after this trace.")] = None
    json: AsJson = False


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=CommandList,
        rich_markup_mode=None,
        no_args_is_help=True,
        help="Look at traces in files or on a server of Phoenix, Langfuse or LangSmith.",
    )
    group.command("import")(spread(import_))
    for command in (ls, show, search, overview, export, clear):
        group.command()(spread(command))
    app.add_typer(group, name="traces")


@contextlib.contextmanager
def _opened(where: SourceOptions) -> Generator[tuple[TraceStore, Source]]:
    """The store behind --source, and where that is, with the project to look in. What the store cannot find is the caller's mistake."""
    from sonde.api.trace_source import project_in, source_of
    from sonde.contexts.traces.store import UnknownTrace

    settings = settings_of(where)
    place = source_of(settings.source, settings.project, settings.environ, cache_gb=settings.trace_cache_gb)
    store = place.open()
    try:
        yield store, replace(place, project=project_in(place, store))
    except UnknownTrace as unknown:
        raise ConfigError(f"{unknown.message.partition(';')[0]}; `sonde traces ls` lists them") from None
    except ToolFault as fault:
        raise ConfigError(fault.message) from None
    finally:
        store.close()


def _whole(trace_ids: Sequence[str], place: Source, store: TraceStore) -> Sequence[str]:
    """The ids of traces of which the caller may have given only the beginning."""
    from sonde.api.trace_source import WHOLE_ID, known_ids, whole_ids

    short = any(len(each) < WHOLE_ID for each in trace_ids)
    return whole_ids(trace_ids, known_ids(place, store)) if short else trace_ids


def _query(project: str | None, wanted: TraceListOptions, limit: int) -> TraceQuery:
    from sonde.contexts.traces.catalog import query_of

    words = {"start": wanted.begin, "end": wanted.end, "filter_expr": wanted.filter, "after": wanted.after}
    return query_of(project, limit=limit, **words)


def import_(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A trace file or a folder of them.")],
    *,
    json: AsJson = False,
) -> int:
    """Index a file or folder once, so that later commands start at once. Malformed records are counted, named and skipped."""
    from sonde.api.trace_source import cache_folder
    from sonde.contexts.traces.catalog import import_traces

    folder = cache_folder(os.environ)
    if folder is None:
        raise ConfigError("no folder for the index: set HOME or XDG_CACHE_HOME")
    found = import_traces(path, folder, settings_of().trace_cache_gb)
    if json:
        _print_json(found)
        return 0
    print(printable(f"{found['description']} The index was {found['index']}."))
    for row in found["malformed"]:
        print(printable(f"skipped {row['file']}:{row['line']}: {one_line(row['reason'], 200)}"), file=sys.stderr)
    return 0


def clear() -> int:
    """Remove the indexes of trace files, except those in use. They are built again when they are needed."""
    from sonde.api.trace_source import cache_folder
    from sonde.contexts.traces.cache import cached_bytes, remove_unused

    folder = cache_folder(os.environ)
    before = cached_bytes(folder) if folder else 0
    removed = remove_unused(folder, 0) if folder else 0
    freed = before - cached_bytes(folder) if folder else 0
    print(printable(f"{plural(removed, 'index', 'indexes')} removed from {folder}, {freed / 1e9:.2f} GB"))
    return 0


def ls(
    *,
    where: SourceOptions,
    wanted: TraceListOptions,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="At most this many.")] = 50,
    failed: Annotated[
        bool, typer.Option("--failed", help="Only those that failed; each trace is read for it.")
    ] = False,
) -> int:
    """List traces in order of their start, with how they ended: a trace failed if no later try mended what a span or a tool's result
    reports. Traces on a server are judged with --failed only.

    Example: sonde traces ls --source traces.jsonl --failed --limit 5

    Example: sonde traces ls --source langfuse:https://cloud.langfuse.com --last 24h

    Example: sonde traces ls --source langsmith:https://api.smith.langchain.com --project checkout
    """
    from sonde.contexts.traces.catalog import failed_traces, outcomes_of
    from sonde.contexts.traces.store import TraceQuery

    with _opened(where) as (store, place):
        query = _query(place.project, wanted, limit)
        page, gaps = failed_traces(store, query) if failed else store.traces(query), store.skipped()
        outcomes = {} if failed or place.server else outcomes_of(store, page.rows)
        every = TraceQuery(project=place.project, limit=1000, counted=False)
        others = () if page.rows or wanted.after else store.traces(every).rows
    known = "failed" if failed else None
    if wanted.json:
        listed = [
            {**row.row(), "error_spans": row.error_spans, "outcome": outcomes.get(row.trace_id, known)}
            for row in page.rows
        ]
        _print_json({"traces": listed, "more": page.more, "gaps": gaps})
        return 0
    if page.rows:
        rows = [
            (
                row.trace_id,
                f"{row.row()['start_time'][:19]}Z",
                row.span_count,
                "-" if row.error_spans is None else row.error_spans,
                outcomes.get(row.trace_id, known or "-"),
                row.latency_ms,
            )
            for row in page.rows
        ]
        print(table(("TRACE", "STARTED", "SPANS", "ERRORS", "OUTCOME", "MS"), rows))
    began = [row.row()["start_time"][:19] for row in others]
    outside = f"; traces began between {began[0]}Z and {began[-1]}Z" if began else ""
    print(_way_on(page.more) or f"{plural(len(page.rows), 'trace')}{outside}", file=sys.stderr)
    for gap in gaps:
        print(f"gap: {one_line(gap, 300)}", file=sys.stderr)
    return 0


def _way_on(more: str | None) -> str:
    """What a store says about the rest of a list, with the flag for it."""
    return printable(re.sub(r"after=(\S+)", r"--after \1", more or ""))


def show(trace_id: TraceId, *, where: SourceOptions, json: AsJson = False) -> int:
    """Show a trace as a tree of spans."""
    from sonde.contexts.traces.catalog import show_trace

    with _opened(where) as (store, place):
        (trace_id,) = _whole([trace_id], place, store)
        found = show_trace(store, trace_id)
        link = store.link(trace_id)
    if json:
        _print_json(found)
        return 0
    for span in found["spans"]:
        failed = f"  {one_line(span['status_message'], 100)}" if span["status_code"] == "ERROR" else ""
        sign = "x" if span["status_code"] == "ERROR" else " "
        name = one_line(f"{span['span_kind']} {span['name']}", 80)
        place = f"{span['latency_ms']:,.0f} ms  {printable(span['span_id'])}"
        print(f"{sign} {'  ' * min(span['depth'], 40)}{name}  {place}{failed}")
    for gap in found["overview"].get("gaps", ()):
        print(f"gap: {one_line(gap, 200)}", file=sys.stderr)
    if link:
        print(printable(link), file=sys.stderr)
    return 0


def search(
    pattern: Annotated[
        str,
        typer.Argument(metavar="PATTERN", parser=filled, help="A regular expression with --trace; words otherwise."),
    ],
    *,
    trace: Annotated[
        str | None, typer.Option(metavar="ID", parser=filled, help="Search this trace; needed on a server.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Also read attributes beyond the indexed 4 kB.")] = False,
    where: SourceOptions,
    json: AsJson = False,
) -> int:
    """Find text in one trace, or words in all traces of a file."""
    from sonde.contexts.traces.catalog import search_trace, search_words

    with _opened(where) as (store, place):
        if trace:
            (trace,) = _whole([trace], place, store)
        found = search_trace(store, trace, pattern) if trace else search_words(store, pattern, deep=deep)
    if json:
        _print_json(found)
        return 0
    for hit in found["hits"]:
        place = printable(f"{hit['trace_id']} {hit['span_id']} {hit['field']}")
        print(f"{place}: {one_line(hit['value_snippet'], 160)}")
    note = found.get("more") or found.get("not_searched")
    print(printable(note or "") or plural(len(found["hits"]), "hit"), file=sys.stderr)
    return 0


def overview(
    *,
    where: SourceOptions,
    wanted: TraceListOptions,
    limit: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=1000, help="At most this many; by default 1000, of a server 50."),
    ] = None,
) -> int:
    """Traces at a glance: kinds, error groups, latency."""
    from sonde.contexts.traces.catalog import OVERVIEW_TRACES, overview as look

    with _opened(where) as (store, place):
        found = look(store, _query(place.project, wanted, limit or (50 if place.server else OVERVIEW_TRACES)))
    if wanted.json:
        _print_json(found)
        return 0
    traces, spans = plural(found["trace_count"], "trace"), plural(found["span_count"], "span")
    failed = outcome_text(found["failed_traces"], found["recovered_traces"])
    print(f"{'the first ' if found['more'] else ''}{traces}, {failed}; {spans}")
    for gap in found["gaps"]:
        print(f"gap: {one_line(gap, 300)}", file=sys.stderr)
    if not found["span_count"]:
        return 0
    print("\n" + table([f"MS {name}" for name in found["latency_ms"]], [list(found["latency_ms"].values())]))
    for head, name in (("KIND", "kinds"), ("STATUS", "statuses")):
        print("\n" + table((head, "SPANS"), found[name].items()))
    groups = found["error_groups"][:OVERVIEW_GROUPS]
    if groups:
        rows = [
            (each["count"], each["name"], f"{each['first_time'][:19]}Z", each["trace_ids"][0], each["message"])
            for each in groups
        ]
        print("\n" + table(("ERRORS", "SPAN", "FIRST", "IN TRACE", "MESSAGE"), rows))
    left = len(found["error_groups"]) - len(groups)
    notes = [f"{plural(left, 'more group')} of errors: --json has them" if left else "", _way_on(found["more"])]
    for note in filter(None, notes):
        print(printable(note), file=sys.stderr)
    return 0


def export(
    trace_ids: Annotated[list[str], typer.Argument(metavar="TRACE_ID")],
    *,
    where: SourceOptions,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="By default stdout.")] = None,
) -> int:
    """Write traces as OTel JSON Lines, which every command here reads back with the same hashes."""
    from sonde.contexts.traces.catalog import export_traces

    target = contextlib.nullcontext(sys.stdout) if output is None else _new_file(output)
    with _opened(where) as (store, place), target as stream:
        count = export_traces(store, _whole(trace_ids, place, store), stream)
    print(plural(count, "span"), file=sys.stderr)
    return 0


@contextlib.contextmanager
def _new_file(path: Path) -> Generator[TextIO]:
    """A new file; it is removed again if writing fails."""
    try:
        stream = path.open("x", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be created: {error.strerror}; choose another place with -o FILE") from None
    try:
        with stream:
            yield stream
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _print_json(value: Any) -> None:
    from sonde.runs.rundir import pretty_json

    sys.stdout.write(escaped_json(pretty_json(value).decode()))
