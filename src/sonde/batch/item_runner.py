"""A worker's station: the settings, the models and the sandbox's fork server, with which it does items in several threads.

`work` gives a result, or raises what stops more than this item: `Paused` (the batch stops; the run is resumed later), `DiskFull`, or
SandboxUnavailable. A started item is resumed; a finished one is only read.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from sonde.api.ask_run import ask_spec
from sonde.api.consent import is_chosen_server
from sonde.api.investigations import case_spec
from sonde.api.launch import launch
from sonde.api.rerun import resume
from sonde.api.settings import Settings
from sonde.api.sources import open_context
from sonde.api.trace_source import ENGINES, Case, Source, source_of
from sonde.batch.folder import BatchFolder, DiskFull, ended_of, started_of
from sonde.batch.gate import Flights, Gate, LimitedModel
from sonde.batch.manifest import Item
from sonde.batch.result import Component, FinishedRun, ItemResult, refused, result_of
from sonde.contexts.files.exclusion import Exclusion
from sonde.contexts.traces.catalog import is_server
from sonde.contexts.traces.span import time_text
from sonde.core.canonical import clip
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.events import AnyEvent, Event, RunEnded
from sonde.disk import TOO_LONG, below, is_too_long, root_of
from sonde.engines.ask import ASK
from sonde.engines.submission import fields_of
from sonde.errors import ConfigError, SandboxUnavailable, UnexpectedRuntimeError, UsageError
from sonde.models import open_model
from sonde.models.base import Model
from sonde.runs.journal import JournalBusy, JournalFailed
from sonde.runs.rundir import RECORD, RESULT, RunDir, fold
from sonde.runtime.run import RunSpec
from sonde.sandbox.forkserver import shared_server
from sonde.sandbox.policy import profile_named

BUSY_S = 60.0  # how long to wait for a run that another process is just leaving
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker needs to know once: settings (with keys), the batch folder, whether annotations are written back, and below which
    folders items read (none: anywhere): that of the manifest, and then those that the user names.
    """

    settings: Settings
    folder: Path
    writeback: bool = True
    roots: tuple[Path, ...] = ()

    def refusal(self, item: Item) -> str | None:
        """Why a manifest may not name what this item names: a server that is not the user's would get their key, and files outside the
        roots are nobody's business. A manifest may be a stranger's. Controls must be the user's own wherever they lie: their patterns are
        matched against what a mask hides.
        """
        long = next(filter(is_too_long, (*item.places, *item.fields.get("controls_files", ()))), None)
        if long is not None:
            return f"names {clip(long, 200)}, which is not read: {TOO_LONG}"
        tops = [os.path.realpath(root) for root in self.roots]
        for place in item.fields.get("controls_files", ()) if self.roots else ():
            if not any(Path(os.path.normpath(place)).is_relative_to(each) for each in (*self.roots[1:], *tops[1:])):
                return (
                    f"is judged by {place}, and a manifest may not choose controls by itself. "
                    f"If you mean it: --controls-file {os.path.normpath(place)}"
                )
        for place in item.places if self.roots else ():
            if is_server(place):
                if not is_chosen_server(place, self.settings):
                    return (
                        f"names {place}, which is not your server ({self.settings.source}) and would get your key; a manifest may "
                        f"not choose it by itself. If you mean it: --source {place}"
                    )
            elif not any(Path(os.path.normpath(place)).is_relative_to(each) for each in (*self.roots, *tops)):
                return (
                    f"reads {place}, outside the folder of the manifest, which a manifest may not do by itself. "
                    f"If you mean it: --allow-path {os.path.normpath(place)}"
                )
        return None

    def question(self, item: Item) -> RunSpec:
        """The run of an item that asks."""
        code, paths = bool(item.fields.get("code", False)), [Path(path) for path in item.fields.get("paths", [])]
        exclusion = Exclusion(tuple(item.fields.get("exclude", ())), bool(item.fields.get("gitignore", True)))
        loading = Deadline(SystemClock(), self.settings.budget(ASK.budget, ASK.maxima).max_wall_time_sec)
        opened = open_context(paths, code=code, within=self.roots, exclusion=exclusion, loading=loading)
        return ask_spec(
            item.fields["question"],
            opened,
            self.settings,
            code=code,
            schema=item.fields.get("schema"),
            citations=item.fields.get("citations", True),
        )

    def case(self, item: Item) -> Case:
        """The investigation of an item about traces."""
        fields, settings = item.fields, self.settings
        return Case(
            engine=item.engine,  # pyright: ignore[reportArgumentType]  # the manifest knows only engines
            place=source_of(
                self._place(fields.get("source")) or settings.source,
                fields.get("project") or settings.project,
                settings.environ,
                cache_gb=settings.trace_cache_gb,
            ),
            trace_ids=tuple(fields.get("trace_ids", ())),
            taxonomy=self._place(fields.get("taxonomy")),
            controls_version=fields.get("controls"),
            controls_files=tuple(filter(None, map(self._place, fields.get("controls_files", ())))),
            start=fields.get("start"),
            end=fields.get("end"),
            filter_expr=fields.get("filter"),
            configs=self._place(fields.get("configs")),
            writeback=self.writeback,
        )

    def _place(self, named: str | None) -> str | None:
        """Where a file or folder of the item is; ConfigError when a link leads out of the roots. Names and addresses stay."""
        roots = self.roots
        if named is None or not roots or "/" not in named or is_server(named):
            return named
        try:
            return below(root_of(named, roots), named)
        except OSError as error:
            raise ConfigError(f"{named} is not read: {error.strerror}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One item for a worker; `attempt` is above 1 when a failed run is tried again."""

    item: Item
    attempt: int = 1


@dataclass(slots=True)
class Station:
    """A worker's models and folder. Used by several threads at once."""

    order: Order
    gate: Gate
    _models: dict[str, Model] = field(default_factory=dict[str, Model])
    _warmed: set[str] = field(default_factory=set[str])
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: ExitStack = field(default_factory=ExitStack)

    def work(self, job: Job) -> ItemResult:
        """Do one item, from wherever it stands."""
        self._warm(job.item.engine)
        try:
            return self._done(job)
        except SandboxUnavailable:
            raise
        except UsageError as error:
            return refused(job.item, error.message)
        except JournalFailed as error:
            raise DiskFull(error.message) from None
        except OSError as error:
            if error.errno not in _FULL:
                return refused(job.item, f"{type(error).__name__}: {error}")
            raise DiskFull(f"the disk takes nothing more: {error.strerror}") from None

    def _warm(self, engine: str) -> None:
        """Start the sandbox's fork server while the first reply for this engine is on its way."""
        settings = self.order.settings
        chosen = settings.sandbox_profile or (ASK if engine == "ask" else ENGINES[engine]).profile

        def start_server() -> None:
            with suppress(SandboxUnavailable):  # the first item says what is missing
                shared_server(profile_named(chosen).having(settings.packages if engine == "ask" else ()))

        with self._lock:
            cold = chosen not in self._warmed
            self._warmed.add(chosen)
        if cold and settings.model is not None and settings.backend == "kernel":
            threading.Thread(target=start_server, daemon=True).start()

    def close(self) -> None:
        """Let go of the models."""
        self._open.close()

    def _done(self, job: Job) -> ItemResult:
        item, settings = job.item, self.order.settings
        if (why := self.order.refusal(item)) is not None:
            raise ConfigError(why)
        run_dir = BatchFolder(self.order.folder).run_dir(item, job.attempt)
        place = run_dir.path
        if place.is_symlink() or (place.exists() and not place.is_dir()):  # the folder may be a stranger's
            raise ConfigError(
                f"{place} is a link or no folder, and a run is only written to a folder of its own; move it away"
            )
        give_up = time.monotonic() + BUSY_S
        while run_dir.is_running():  # a worker of a driver that died is still writing down its last reply
            if time.monotonic() > give_up:
                raise JournalBusy(f"{run_dir.path} is being worked on by another process")
            time.sleep(0.1)
        events = run_dir.events() if run_dir.journal_path.is_file() else []
        if item.engine == "ask":
            run = self._run(run_dir, events, lambda: self.order.question(item))
            return result_of(item, run, resumed=bool(events))
        case = self.order.case(item)
        context = case.open()
        with closing(context.store):
            run = self._run(run_dir, events, lambda: case_spec(case, context, settings), case.place)
            return result_of(
                item,
                run,
                resumed=bool(events),
                spans=lambda trace_id: {
                    span.span_id: Component(name=span.name, message=span.status_message, start=time_text(span.start_us))
                    for span in context.store.summaries(trace_id)
                },
            )

    def _run(
        self, run_dir: RunDir, events: Sequence[AnyEvent], spec: Callable[[], RunSpec], place: Source | None = None
    ) -> FinishedRun:
        """The run, finished: read, resumed or started."""
        ended = ended_of(events)
        if ended is not None:
            return mended(run_dir, events, ended)
        ending = Ending()
        settings, flights = self.order.settings, Flights()
        main, helper = self._model(settings.model), self._model(settings.sub_model)
        model = LimitedModel(main, self.gate, flights) if main else None
        sub_model = LimitedModel(helper, self.gate, flights) if helper and helper is not main else None
        if started_of(events) is not None:
            finished = resume(
                run_dir.path,
                model=model,
                sub_model=sub_model,
                context=place.source if place else spec().context,  # what the item says, not the recording
                go_live=True,
                settings=settings,
                on_event=ending,
                writeback=self.order.writeback,
            )
        else:
            run_dir.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            wired = {"model": model, "sub_model": sub_model, "run_dir": run_dir, "on_event": ending}
            finished = launch(replace(spec(), **wired, needs_files=True), settings)
        return FinishedRun(record=finished.record, ended=ending.of(run_dir))

    def _model(self, name: str | None) -> Model | None:
        if name is None:
            return None
        with self._lock:
            if name not in self._models:
                choice = self.order.settings.choose(name)
                self._models[name] = open_model(choice.spec, choice.settings)
                self._open.callback(getattr(self._models[name], "close", lambda: None))
            return self._models[name]


def check_models(settings: Settings) -> None:
    """ConfigError when the models cannot be opened here: otherwise every item would be refused with the same message."""
    if settings.model is None and settings.sub_model is not None:
        raise ConfigError("a sub-model is set but no model: pass --model as well")
    for name in {settings.model, settings.sub_model} - {None}:
        choice = settings.choose(cast("str", name))
        getattr(open_model(choice.spec, choice.settings), "close", lambda: None)()


class Ending:
    """Listens to a run for its last word."""

    def __init__(self) -> None:
        self._ended: RunEnded | None = None

    def __call__(self, event: Event) -> None:
        """Keep the end."""
        if isinstance(event, RunEnded):
            self._ended = event

    def of(self, run_dir: RunDir) -> RunEnded:
        """The end; every run that returns has reported one."""
        if self._ended is None:
            raise UnexpectedRuntimeError(f"{run_dir.path} came back without an end")
        return self._ended


def mended(run_dir: RunDir, events: Sequence[AnyEvent], ended: RunEnded) -> FinishedRun:
    """A run that has already ended; views that a full disk or a kill prevented are written now, as the run would have."""
    record = fold(events)
    if not (run_dir.path / RESULT).is_file():
        output = fields_of(ended.output)
        result = {
            "run_id": run_dir.run_id,
            "status": record.status.value,
            "annotator_kind": ended.annotator_kind,
            "output": ended.output,
            "output_hash": ended.output_hash or None,
            "citations": output.get("citations", record.citations),
            "evidence_refs": output.get("evidence_refs", []),
            "gaps": ended.gaps,
            "error": None if record.error is None else record.error.model_dump(mode="json"),
        }
        run_dir.write_result(result)
    if not (run_dir.path / RECORD).is_file():
        run_dir.write_record(record)
    return FinishedRun(record=record, ended=ended)
