"""`sonde watch`: traces come in, issues come out, round the clock."""

from __future__ import annotations

import errno
import json
import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sonde.cli.options import (
    FAILING,
    DryRun,
    ModelOptions,
    OutputOptions,
    PlaceOptions,
    SourceOptions,
    filled,
    settings_of,
    spread,
)
from sonde.cli.text import escaped_json, one_line
from sonde.core.canonical import plural
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.core.cancellation import Stop
    from sonde.viewer.server import ViewerServer
    from sonde.watch.listener import OtlpListener
    from sonde.watch.loop import TraceWatch, WatchOptions, WatchTurn
    from sonde.watch.notices import Messenger
    from sonde.watch.state import WatchState

StateFolder = Annotated[
    Path | None,
    typer.Option("--state", metavar="DIR", help="The folder of the watch. [one per project, in the state folder]"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaceOptions:
    """How often, and what counts as over."""

    every: Annotated[str, typer.Option(metavar="SPAN", parser=filled, help="The length of a window.")] = "60s"
    settle: Annotated[
        str, typer.Option(metavar="SPAN", parser=filled, help="A trace without a new span for so long is complete.")
    ] = "30s"
    late: Annotated[
        str, typer.Option(metavar="SPAN", parser=filled, help="How late a trace may arrive and still be read.")
    ] = "1h"
    since: Annotated[
        str | None,
        typer.Option(
            metavar="24h|TIME", parser=filled, help="Where the first start begins. [files: all; servers: 24h]"
        ),
    ] = None
    min_traces: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Traces in an hour that make a group of failures an issue. [3, or 0.5 % of the hour's traces, up to 20]",
        ),
    ] = None
    resolve_after: Annotated[
        int, typer.Option(metavar="N", min=1, help="Windows without it, but with traces, that resolve an issue.")
    ] = 60
    recovered: Annotated[
        bool | None,
        typer.Option(
            "--recovered/--no-recovered",
            help="Errors that traces recovered from are issues, too, if they recur. [as at the last start; at first not]",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyOptions:
    """What models may cost. No file sets these."""

    max_cost_usd_per_day: Annotated[float, typer.Option(metavar="USD", help="Within any 24 hours.")] = 5.0
    max_cost_usd_per_hour: Annotated[float | None, typer.Option(metavar="USD", help="Within any hour.")] = None
    max_cost_usd_per_issue: Annotated[float | None, typer.Option(metavar="USD", help="For one investigation.")] = None
    max_investigations_per_day: Annotated[
        int, typer.Option(metavar="N", min=1, help="Within any 24 hours, whatever they cost.")
    ] = 100
    control_share: Annotated[
        float, typer.Option(metavar="SHARE", min=0, max=1, help="Of a day's money, for traces that look healthy.")
    ] = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFlags:
    """How it runs."""

    once: Annotated[bool, typer.Option("--once", help="Read and investigate what there is, then end.")] = False
    no_writeback: Annotated[bool, typer.Option("--no-writeback", help="Write no annotations to the server.")] = False
    dry_run: DryRun = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TellOptions:
    """Who hears of issues."""

    on_new: Annotated[
        str | None,
        typer.Option(
            metavar="CMD|URL",
            parser=filled,
            help="Tell this program (JSON on its standard input) or webhook of new issues. [SONDE_ON_NEW]",
        ),
    ] = None
    on_new_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds what --on-new would say: addresses are often secrets.")
    ] = None
    on_new_as: Annotated[
        Literal["json", "slack", "github"] | None,
        typer.Option(metavar="SHAPE", help="json, slack or github. [by the address]"),
    ] = None
    on_new_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the webhook's bearer token. [SONDE_ON_NEW_TOKEN]")
    ] = None
    tell: Annotated[
        str | None,
        typer.Option(
            metavar="KINDS",
            parser=filled,
            help="What is told: new, regressed, reopened, resolved, investigated. [new,regressed]",
        ),
    ] = None
    digest: Annotated[
        str | None, typer.Option(metavar="SPAN", parser=filled, help="Tell at most once in this time, all together.")
    ] = None
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="WHAT",
            parser=filled,
            help="With --once: exit code 3 if there are issues that are new or regressed since, or open: new,regressed,open.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Traces sent here, instead of a server that keeps them."""

    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Take OTLP over HTTP there, such as 127.0.0.1:4318, and store it in the folder --source. [traces, in --state]",
        ),
    ] = None
    listen_token_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Holds what senders give as their bearer token. [SONDE_LISTEN_TOKEN; none on loopback]"
        ),
    ] = None
    retain_days: Annotated[float | None, typer.Option(metavar="DAYS", help="How long --listen keeps traces. [14]")] = (
        None
    )
    retain_gb: Annotated[float | None, typer.Option(metavar="GB", help="How much --listen keeps. [10]")] = None
    page: Annotated[
        str | None,
        typer.Option(
            metavar="PORT",
            parser=filled,
            help="Show issues on a page at this port of 127.0.0.1, with /healthz and /metrics.",
        ),
    ] = None


def register(app: typer.Typer) -> None:
    app.command()(spread(watch))


def watch(
    *,
    source: SourceOptions,
    pace: PaceOptions,
    money: MoneyOptions,
    how: WatchFlags,
    tell: TellOptions,
    listening: ListenOptions,
    state: StateFolder = None,
    model: ModelOptions,
    place: PlaceOptions,
    output: OutputOptions,
) -> int:
    """Read traces as they come, group failures into issues, and investigate what is new. Works without a model too.

    Start it again after a kill or an outage: it continues where it was. `sonde issues` shows what it found.

    Example: sonde watch --source http://localhost:6006 --project checkout --max-cost-usd-per-day 5

    Example: sonde watch --source traces.jsonl --once --fail-on new

    Example: sonde watch --source http://localhost:6006 --on-new "./tell-the-team.sh"

    Example: sonde watch --listen 127.0.0.1:4318 --page 8080
    """
    from sonde.batch.item_runner import check_models
    from sonde.cli.interrupt import soft_stop
    from sonde.cli.watch_output import announce, print_plan, print_turn, summary
    from sonde.watch.loop import keep_watch, plan_watch
    from sonde.watch.state import FILE, WatchState, state_place

    settings = settings_of(source, model, place)
    folder = state_place(settings, state)
    if listening.listen is not None:
        settings = replace(settings, source=source.source or str(folder / "traces"))
    options = _options(pace, money, settings, writeback=not how.no_writeback)
    silent = output.json or output.quiet
    failing = _words("--fail-on", tell.fail_on, ("new", "regressed", "open"))
    if failing and not how.once:
        raise ConfigError("--fail-on is for --once: a watch that goes on has no exit code")
    _check_listening(listening, settings, how)
    if how.dry_run:
        with TemporaryDirectory(prefix="sonde-watch-") as empty:
            known = (folder / FILE).exists()  # a plan leaves nothing behind
            with WatchState(folder if known else Path(empty), create=not known) as opened:
                plan = plan_watch(_watch(opened, settings, options))
        return print_plan(plan, as_json=output.json)
    check_models(settings)
    with (
        WatchState(folder, create=True) as opened,
        opened.folder.held("sonde watch"),
        ExitStack() as up,
        soft_stop("sonde: stopping; a request under way is waited for (Ctrl-C again kills)\n") as cancel,
        _messenger(tell, opened, settings, cancel) as messenger,
        _listener(listening, settings, folder) as listener,
    ):
        watching = replace(_watch(opened, settings, options), stopping=cancel, patient=not how.once)
        page = (
            up.enter_context(_page(listening.page, watching, listener, messenger))
            if listening.page is not None
            else None
        )
        if listener is not None:
            watching.open_store = watching.place.open  # a project that has sent nothing yet is no mistake
        if not silent:
            announce(settings, folder, listener, page)
        seen: set[tuple[str, int]] = set()
        turns: list[WatchTurn] = []

        def told(turn: WatchTurn) -> None:
            seen.update((each.kind, each.issue) for each in turn.happenings)
            if how.once:
                turns.append(turn)
            if not (how.once and output.json):
                print_turn(turn, opened, output)

        up.callback(watching.end)
        last = keep_watch(watching, told, once=how.once)
        untold = how.once and messenger is not None and not messenger.flush()
        if untold:
            print("sonde: some changes were not told; the next start tells them", file=sys.stderr)
        counted = opened.rows("SELECT number, state FROM issues WHERE merged_into IS NULL AND NOT muted")
        seen |= {("open", number) for number, how_it_is in counted if how_it_is != "resolved"}
        found = any(kind in failing and number in dict(counted) for kind, number in seen)
        if how.once and output.json:
            print(escaped_json(json.dumps(summary(turns, opened), ensure_ascii=False, sort_keys=True)))
        elif how.once and not silent and not last.outage and not any(turn.windows or turn.happenings for turn in turns):
            active = sum(kind == "open" for kind, _ in seen)
            print(f"nothing new: 0 traces to read, {plural(active, 'open issue')}", file=sys.stderr)
    return cancel.exit_code(1 if last.outage or untold else FAILING if found else 0)


def _words(flag: str, text: str | None, known: tuple[str, ...]) -> set[str]:
    """The words of a list; ConfigError for one that is not known."""
    given = {word.strip() for word in (text or "").split(",") if word.strip()}
    for word in sorted(given - set(known)):
        raise ConfigError(f"{flag} {word}: one or more of {', '.join(known)}")
    return given


@contextmanager
def _messenger(tell: TellOptions, state: WatchState, settings: Settings, stop: Stop) -> Generator[Messenger | None]:
    """Who tells people while the watch runs, if somebody is to be told."""
    from sonde.api.launch import mask_of
    from sonde.batch.query import span_s
    from sonde.watch.notices import KINDS, TOLD, Messenger, NoticeTarget

    environ = settings.environ
    given = tell.on_new or (_content(tell.on_new_file) if tell.on_new_file else environ.get("SONDE_ON_NEW", "").strip())
    kinds = _words("--tell", tell.tell, KINDS) or set(TOLD)
    if not given:
        for name in ("on_new_as", "on_new_token_file", "tell", "digest"):
            if getattr(tell, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} is about --on-new, which is missing")
        yield None
        return
    if tell.on_new and tell.on_new_file:
        raise ConfigError("--on-new and --on-new-file say the same; give one of them")
    digest_s = span_s(tell.digest) if tell.digest is not None else None
    if tell.digest is not None and not digest_s:
        raise ConfigError(f"--digest {tell.digest} is no span of time such as 1h or 30m")
    token = _content(tell.on_new_token_file) if tell.on_new_token_file else environ.get("SONDE_ON_NEW_TOKEN", "")
    target = NoticeTarget.of(given, shape=tell.on_new_as, token=token.strip(), environ=environ)
    if tell.on_new and target.shape == "slack":
        print(
            "sonde: this address is a secret, and others on this machine see it in the list of processes: "
            "put it into SONDE_ON_NEW or --on-new-file FILE",
            file=sys.stderr,
        )
    mask = mask_of(settings)
    with Messenger(
        state,
        target,
        kinds=sorted(kinds),
        digest_s=digest_s,
        keys=settings.secrets(),
        hide=str if mask is None else mask.lasting,
        stop=stop,
        said=lambda text: print(f"sonde: {one_line(text, 300)}", file=sys.stderr, flush=True),
    ) as messenger:
        yield messenger


def _content(path: Path) -> str:
    """The one line of a file with a secret."""
    from sonde.disk import read_plain

    try:
        return read_plain(path, 4096).decode().strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None


def _check_listening(listening: ListenOptions, settings: Settings, how: WatchFlags) -> None:
    """ConfigError for flags that do not go together."""
    from sonde.contexts.traces.catalog import is_server

    if listening.listen is None:
        given = {
            "--listen-token-file": listening.listen_token_file,
            "--retain-days": listening.retain_days,
            "--retain-gb": listening.retain_gb,
        }
        for name, value in given.items():
            if value is not None:
                raise ConfigError(f"{name} is about --listen, which is missing: --listen 127.0.0.1:4318")
        return
    if how.once or how.dry_run:
        raise ConfigError(
            "--listen goes on until it is stopped; --once and --dry-run read what its store holds (--source)"
        )
    if is_server(settings.source):
        raise ConfigError(
            f"--listen stores traces in a folder: --source is {settings.source}, give a folder or leave it out"
        )
    for name, value in (("--retain-days", listening.retain_days), ("--retain-gb", listening.retain_gb)):
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} {value:g} keeps nothing; give a number above 0")


@contextmanager
def _listener(listening: ListenOptions, settings: Settings, folder: Path) -> Generator[OtlpListener | None]:
    """What takes traces while the watch runs, if that was asked for."""
    if listening.listen is None:
        yield None
        return
    from sonde.watch.intake import Intake, Retention
    from sonde.watch.listener import ListenAddress, OtlpListener
    from sonde.watch.state import StateUnusable, WatchState
    from sonde.watch.vitals import Vitals

    address = ListenAddress.of(listening.listen)
    token = settings.environ.get("SONDE_LISTEN_TOKEN") or None
    if listening.listen_token_file is not None:
        token = _content(listening.listen_token_file)
    days, gb = listening.retain_days, listening.retain_gb
    kept = Retention(days=14 if days is None else days, gb=10 if gb is None else gb)
    with WatchState(folder) as seen, WatchState(folder) as lost:

        def count_expired(numbers: list[int]) -> None:
            with suppress(StateUnusable):  # spans that come in must not wait for a count
                lost.count_expired(numbers, time.time())

        with Intake(Path(settings.source), retention=kept, on_expired=count_expired) as intake:
            vitals = Vitals(seen, since=time.time())
            with OtlpListener(intake, address, token=token, vitals=vitals) as listener:
                vitals.spans = listener.counts
                yield listener


@contextmanager
def _page(
    port: str, watching: TraceWatch, listener: OtlpListener | None, messenger: Messenger | None
) -> Generator[ViewerServer]:
    """The page of this watch, to which messages lead. It may read the source, which the user has named."""
    from sonde.api.consent import readable_places
    from sonde.api.launch import mask_of
    from sonde.api.trace_source import cache_folder
    from sonde.viewer.issues import IssueBoard
    from sonde.viewer.server import ViewerServer

    host, _, number = port.rpartition(":")
    valid = number.isascii() and number.isdigit() and len(number) <= 5 and int(number) <= 65_535
    if host not in ("", "127.0.0.1", "localhost") or not valid:
        raise ConfigError(
            f"--page {port}: give a port of 127.0.0.1 (0 to 65535), such as 8080; for other machines use a tunnel (ssh -L)"
        )
    settings = watching.settings
    board = IssueBoard(
        watching.state.folder.path,
        source=watching.place,
        spans=listener.counts if listener is not None else None,
        mask=mask_of(settings),
    )
    try:
        server = ViewerServer(
            (),
            within=lambda run: readable_places(run, settings.environ),
            port=int(number),
            cache=cache_folder(settings.environ),
            board=board,
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"--page {port}: another program uses this port; give another one, or 0 for any"
            ) from None
        raise ConfigError(f"--page {port} cannot be used: {error.strerror or error}") from None
    with closing(board), server:
        if messenger is not None:
            messenger.page = server.url
        yield server


def _options(pace: PaceOptions, money: MoneyOptions, settings: Settings, *, writeback: bool) -> WatchOptions:
    from sonde.batch.query import since_time, span_s
    from sonde.contexts.traces.catalog import is_server
    from sonde.contexts.traces.span import us_of_text
    from sonde.watch.loop import WatchOptions

    spans: dict[str, float] = {}
    for name in ("every", "settle", "late"):
        text = getattr(pace, name)
        seconds = span_s(text) if not text.strip().isdigit() else float(text)
        if seconds is None or not (0 if name != "every" else 1) <= seconds <= 7 * 86_400:
            raise ConfigError(f"--{name} {text} is no span of time such as 60s or 5m, of a week at most")
        spans[f"{name}_s"] = seconds
    limits = {
        "--max-cost-usd-per-day": money.max_cost_usd_per_day,
        "--max-cost-usd-per-hour": money.max_cost_usd_per_hour,
        "--max-cost-usd-per-issue": money.max_cost_usd_per_issue,
    }
    for name, value in limits.items():
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"{name} {value} lets nothing through; give a number above 0, or leave the model out")
    since = pace.since or ("24h" if is_server(settings.source) else None)
    return WatchOptions(
        **spans,
        since_us=us_of_text(since_time(since, datetime.now(UTC))) if since else None,
        usd_per_day=money.max_cost_usd_per_day,
        usd_per_hour=money.max_cost_usd_per_hour,
        usd_per_issue=money.max_cost_usd_per_issue,
        per_day=money.max_investigations_per_day,
        control_share=money.control_share,
        min_traces=pace.min_traces,
        quiet_windows=pace.resolve_after,
        recovered=pace.recovered,
        writeback=writeback,
    )


def _watch(state: WatchState, settings: Settings, options: WatchOptions) -> TraceWatch:
    from sonde.api.trace_source import cache_folder, source_of
    from sonde.watch.loop import TraceWatch

    traces = source_of(
        settings.source,
        settings.project,
        settings.environ,
        cache_folder(settings.environ),
        cache_gb=settings.trace_cache_gb,
    )
    return TraceWatch(state=state, place=traces, settings=settings, options=options)
