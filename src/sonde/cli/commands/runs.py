"""`sonde runs`, `view`, `export` and `publish`: what can be done with finished run folders."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from json import dumps
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sonde.cli.commands.watch import StateFolder
from sonde.cli.options import CommandList, PlaceOptions, RunName, TrustRun, filled, settings_of, spread
from sonde.cli.text import escaped_json, hyperlink, links_shown, middle_cut, one_line, printable, printable_lines
from sonde.core.canonical import plural, shown_cost
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.runs.catalog import RunSummary

NARROW_MODEL, NARROW_QUESTION, NARROW_OUTCOME = 24, 20, 12
"""What a narrow terminal shows of them at least."""
OUTCOME_WIDTH = 28
COMMAND_WIDTH = 40
TYPES = {
    **{name: name for name in ("ask", "rca", "edit", "rlms")},
    "comply": "policy_compliance",
    "incident": "incident_dossier",
}
"""What a record calls the runs of a command."""
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Status = Annotated[
    Literal["succeeded", "partial", "failed", "running", "interrupted", "unreadable"] | None,
    typer.Option(metavar="S", help="succeeded, partial, failed, running, interrupted, unreadable."),
]

Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="The file to write; by default artifacts/investigator_runs/RUN.tar.gz."
    ),
]
RunToShow = Annotated[str | None, typer.Argument(metavar="RUN", help="The run to open; by default the list of runs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """Which runs are listed, and how."""

    status: Status = None
    type_: Annotated[
        str | None, typer.Option("--type", metavar="T", help="ask, rca, comply, incident, edit, rlms.")
    ] = None
    text: Annotated[str | None, typer.Option(metavar="TEXT", help="In the id, question or model.")] = None
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="The newest N.")] = 30
    all_: Annotated[bool, typer.Option("--all", help="Of all projects, not only of this one.")] = False
    json: AsJson = False


def register(app: typer.Typer) -> None:
    group = typer.Typer(cls=CommandList, rich_markup_mode=None)
    group.callback(invoke_without_command=True)(spread(runs))
    group.command("list")(spread(list_))
    group.command()(spread(show))
    group.command()(spread(prune))
    group.command("import")(spread(import_))
    app.add_typer(group, name="runs")
    for command in (view, export, publish):
        app.command()(spread(command))


def runs(context: typer.Context, *, wanted: RunFilter, place: PlaceOptions) -> int | None:
    """List, show, prune and import runs; without a sub-command, list them."""
    return list_(wanted=wanted, place=place) if context.invoked_subcommand is None else None


def list_(*, wanted: RunFilter, place: PlaceOptions) -> int:
    """List the runs of this project, newest first; with --all, those of all projects."""
    from sonde.runs.catalog import list_runs
    from sonde.runs.rundir import places_of

    run_type = TYPES.get(wanted.type_ or "", wanted.type_)
    if run_type is not None and run_type not in TYPES.values():
        raise ConfigError(f"--type {wanted.type_}: one of {', '.join(TYPES)}")
    settings = settings_of(place)
    places = settings.all_run_places() if wanted.all_ else settings.run_places()
    found = list_runs(places, status=wanted.status, run_type=run_type, text=wanted.text, limit=wanted.limit)
    if wanted.json:
        _print_json({"runs": [asdict(summary) | {"path": str(summary.path)} for summary in found]})
        return 0
    width = get_terminal_size().columns if sys.stdout.isatty() else 0
    said = min(OUTCOME_WIDTH, max((len(summary.outcome) for summary in found), default=0))
    if found and width:
        print("run, status, kind, turns, tokens, cost, outcome, model, question:", file=sys.stderr)
    for summary in found:
        print(_line(summary, width, said))
    if not found:
        elsewhere = "" if wanted.all_ or settings.runs_dir else "; --all lists those of all projects"
        where = " or ".join(map(str, places_of(places)))
        print(printable(f"no matching runs in {where}; `sonde ask` makes one{elsewhere}"), file=sys.stderr)
    return 0


def _line(summary: RunSummary, width: int = 0, said: int = 0) -> str:
    """One run on one line; its outcome takes `said` columns. On a terminal of this width the outcome gets shorter, then the model's
    name loses its middle, then the question its end.
    """
    spent = shown_cost(summary.cost_usd)
    turns = f"{summary.iterations:3} {'turn ' if summary.iterations == 1 else 'turns'}"
    line = (
        f"{printable(summary.run_id)}  {one_line(summary.status, 11):11} {one_line(summary.run_type, 17):17} {turns} "
        f"{summary.tokens:>9,} {'token ' if summary.tokens == 1 else 'tokens'} {spent:>12}  "
    )
    model, asked = printable(summary.model or "no model"), one_line(summary.objective, 60)
    if model.startswith("command:"):  # a whole command line would push the question off the screen
        model = middle_cut(model, COMMAND_WIDTH)
    asked = f"unproved: {asked}" if summary.unproved else asked
    if said:
        room = width - len(line) - len(model) - len(asked) - 4 if width else said
        said = max(min(said, NARROW_OUTCOME), min(said, room))
        line += f"{one_line(summary.outcome, said):{said}}  "
    if width and len(line) + len(model) + 2 + len(asked) > width:
        model = middle_cut(model, max(NARROW_MODEL, width - len(line) - len(asked) - 2))
        asked = one_line(asked, max(NARROW_QUESTION, width - len(line) - len(model) - 2))
    return f"{line}{model}  {asked}"


def show(run: RunName, *, json: AsJson = False, place: PlaceOptions) -> int:
    """Show one run: its summary page, or its record with --json."""
    from sonde.cli.foreground_run import warn_of_stranger
    from sonde.core.markdown_safety import unescaped
    from sonde.runs.catalog import summarise
    from sonde.runs.rundir import REPORT, SUMMARY

    settings = settings_of(place)
    found = settings.find_run(run)
    warn_of_stranger(found, settings)
    if json:
        _print_json(found.record().model_dump(mode="json"))
        return 0
    if found.mask() is not None:
        print(f"masked: placeholders stand for people's data; {REPORT} in its folder has the values", file=sys.stderr)
    page = found.text(SUMMARY)
    if page is not None:
        print(printable_lines(unescaped(page)))
    else:
        summary = summarise(found.path)
        print(_line(summary))
        if summary.status == "interrupted":
            print(f"Continue it with: sonde resume {printable(summary.run_id)}")
    print(printable(f"folder: {found.path}"), file=sys.stderr)
    return 0


def prune(
    *,
    keep: Annotated[int | None, typer.Option(metavar="N", min=0, help="Keep the newest N.")] = None,
    older_than: Annotated[
        str | None, typer.Option(metavar="AGE", parser=filled, help="Only runs older than 12h, 7d, 4w.")
    ] = None,
    status: Status = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    json: AsJson = False,
    place: PlaceOptions,
) -> int:
    """Delete run folders, except those that are being written."""
    from sonde.api.recorded_run import own_values
    from sonde.contexts.workspace.history import WRITES
    from sonde.runs.catalog import prune as prune_runs

    if keep is None and older_than is None:
        raise ConfigError("say what to prune: --keep 20 keeps the newest twenty, --older-than 7d deletes older runs")
    before = None
    if older_than:
        age = re.fullmatch(r"(\d{1,4})([hdw])", older_than)
        if age is None:
            raise ConfigError(f"--older-than {older_than}: write a number up to 9999 and h, d or w, e.g. 7d")
        unit = {"h": "hours", "d": "days", "w": "weeks"}[age[2]]
        before = datetime.now(UTC) - timedelta(**{unit: int(age[1])})
    settings = settings_of(place)
    places = settings.run_places()
    doomed = prune_runs(places, keep=keep, before=before, status=status, dry_run=True)
    written = {summary.path for summary in doomed if (summary.path / WRITES).is_file()}
    lost = f"{len(written)} of {plural(len(doomed), 'run')} wrote files, which `sonde undo` cannot take back without the run"
    if doomed and not dry_run:
        where = " and ".join(map(str, dict.fromkeys(summary.path.parent for summary in doomed)))
        if written and not json:
            print(lost, file=sys.stderr)
        if not (yes or json or typer.confirm(f"Delete {plural(len(doomed), 'run')} in {printable(where)}?", err=True)):
            return 0
        values = {summary.path: own_values(summary.path, settings) for summary in doomed}
        doomed = prune_runs(places, keep=keep, before=before, status=status)
        for file in filter(None, (values.get(summary.path) for summary in doomed)):
            file.unlink(missing_ok=True)
    if json:
        edits = [summary.run_id for summary in doomed if summary.path in written]
        _print_json({"pruned": [summary.run_id for summary in doomed], "edits": edits, "dry_run": dry_run})
        return 0
    for summary in doomed:
        print(_line(summary))
    print(f"{plural(len(doomed), 'run')} {'would be deleted' if dry_run else 'deleted'}")
    if written and dry_run:
        print(lost)
    return 0


def import_(file: Annotated[Path, typer.Argument(metavar="FILE")], *, place: PlaceOptions) -> None:
    """Unpack what `sonde export` wrote into a run folder."""
    from sonde.runs.export import unpack_run
    from sonde.runs.rundir import artifacts_folder

    # Not into the state folder: what lies there was made here.
    print(printable(str(unpack_run(file, settings_of(place).runs_dir or artifacts_folder()).path)))


def view(
    run: RunToShow = None,
    *,
    port: Annotated[int, typer.Option(metavar="N", help="The port on loopback; 0 picks a free one.")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    state: StateFolder = None,
    trust_run: TrustRun = False,
    place: PlaceOptions,
) -> None:
    """Look at runs in a local page, live while they run. If `sonde watch` works here, its issues come first.

    It listens on this machine only, until Ctrl-C.
    """
    from sonde.api.consent import readable_places
    from sonde.api.launch import mask_of
    from sonde.api.trace_source import cache_folder
    from sonde.cli.foreground_run import warn_of_stranger
    from sonde.cli.interrupt import soft_stop
    from sonde.viewer.issues import IssueBoard
    from sonde.viewer.server import ViewerServer
    from sonde.watch.state import FILE, state_place

    if trust_run and run is None:
        raise ConfigError("--trust-run needs the run that you trust: sonde view RUN --trust-run")
    settings = settings_of(place)
    shown = settings.find_run(run) if run is not None else None
    if shown is not None:
        warn_of_stranger(shown, settings)
    named, cache = [shown] if shown else [], cache_folder(settings.environ)
    board = None
    if state is not None:
        board = IssueBoard(state.absolute(), mask=mask_of(settings))
    elif settings.state_runs is not None and (watched := state_place(settings, None) / FILE).exists():
        try:
            board = IssueBoard(watched.parent, mask=mask_of(settings))
        except ConfigError as error:  # nobody asked for issues
            print(f"sonde: without issues: {one_line(str(error), 300)}", file=sys.stderr)
    try:
        server = ViewerServer(
            settings.run_places(),
            within=lambda each: readable_places(
                each, settings.environ, trust_run=trust_run and shown is not None and each.path == shown.path
            ),
            port=port,
            named=named,
            cache=cache,
            board=board,
        )
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port} cannot be used: {error}; --port 0 picks a free one") from error
    with soft_stop(said=None) as stop, server:
        address = server.url_of(shown.run_id) if shown else server.own_url
        print(hyperlink(address, address) if links_shown(sys.stdout) else address, flush=True)
        print("Ctrl-C stops it", file=sys.stderr)
        if browser:
            typer.launch(address)
        stop.wait()


def export(
    run: RunName,
    *,
    output: Output = None,
    redact: Annotated[
        bool, typer.Option("--redact", help="Remove what looks like a secret; the run cannot be replayed then.")
    ] = False,
    html: Annotated[bool, typer.Option("--html", help="Write a page that shows the run in any browser.")] = False,
    trust_run: TrustRun = False,
    place: PlaceOptions,
) -> None:
    """Write a run as one file to share.

    The file is a .tar.gz that `sonde runs import` unpacks elsewhere. With --html, or -o NAME.html, it is a page to look at, and with
    -o NAME.md the report or the answer as Markdown.
    """
    from sonde.cli.foreground_run import warn_of_stranger
    from sonde.runs.export import export_page, export_run
    from sonde.runs.rundir import artifacts_folder

    html = html or (output is not None and output.suffix.lower() in (".html", ".htm"))
    if html and output is not None and output.name.lower().endswith((".gz", ".tgz", ".tar")):
        raise ConfigError(f"--html writes a page, and {output.name} is a name for an archive; end it with .html")
    if trust_run and not html:
        raise ConfigError("--trust-run is for --html; without it nothing is read but the run's own files")
    suffix = "" if output is None else output.suffix.lower()
    if suffix in (".json", ".jsonl", ".txt", ".pdf", ".csv"):
        raise ConfigError(f"a run is written as .tar.gz, .html or .md, and {output} ends with {suffix}")
    settings = settings_of(place)
    found = settings.find_run(run)
    warn_of_stranger(found, settings)
    found.record()  # a run that cannot be read leaves no folder behind
    target = output or artifacts_folder("--output") / f"{found.run_id}{'.html' if html else '.tar.gz'}"
    try:
        if html:
            from sonde.api.consent import readable_places
            from sonde.api.trace_source import cache_folder
            from sonde.viewer import export_html

            within = partial(readable_places, environ=settings.environ, trust_run=trust_run)
            cache = cache_folder(settings.environ)
            print(printable(str(export_html(found, target, within=within, redact=redact, cache=cache))))
        elif suffix == ".md":
            print(printable(str(export_page(found, target, redact=redact))))
        else:
            print(printable(str(export_run(found, target, redact=redact))))
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}; choose another place with -o FILE") from None
    if redact:
        print("secrets were removed by pattern, which misses some: check the file before you share it", file=sys.stderr)


def publish(
    run: RunName,
    *,
    source: Annotated[
        str | None, typer.Option(metavar="URL", help="Another Phoenix server that has the same traces.")
    ] = None,
    replace_judgements: Annotated[
        bool,
        typer.Option(
            "--replace-judgements", help="Let annotations of a rule replace a model's, and those of a model a person's."
        ),
    ] = False,
    trust_run: TrustRun = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    place: PlaceOptions,
) -> int:
    """Write a run's annotations to its Phoenix server; writing again replaces them. Exit code 1 if some could not be written.

    Example: sonde publish last
    """
    import sonde

    done = sonde.publish_run(
        run,
        source=source,
        replace_judgements=replace_judgements,
        trust_run=trust_run,
        settings=settings_of(place),
    )
    if as_json:
        figures = {
            "writeback_status": done.status,
            "written": done.written,
            "failed": done.failed,
            "kept": done.kept,
            "error": done.error,
        }
        print(dumps({**figures, "status": str(done.record.status), "run_dir": str(done.run_dir)}, indent=2))
    else:
        print(
            f"{done.status}: {plural(done.written, 'annotation')} written, {done.failed} not; the run is {done.record.status}"
        )
    if done.kept and not as_json:
        print(
            f"sonde: {plural(done.kept, 'annotation')} not written: a model's or a person's judgement stands there "
            "(--replace-judgements replaces it)",
            file=sys.stderr,
        )
    if done.error and not as_json:
        print(f"sonde: WRITEBACK_FAILED: {one_line(done.error, 600)}", file=sys.stderr)
    return 0 if done.status == "succeeded" else 1


def _print_json(value: Any) -> None:
    from sonde.runs.rundir import pretty_json

    sys.stdout.write(escaped_json(pretty_json(value).decode()))
