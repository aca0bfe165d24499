"""A recorded run: found by its name, checked, and compared with what its data are now.

Its folder may be a stranger's or damaged, so `check_recipe` checks the form of what the first event says before anything is built from
it. What the values may bring about is decided in consent.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from sonde.api.config_file import state_folder
from sonde.api.consent import is_own, seal_key
from sonde.api.keys import KEYS
from sonde.api.settings import Settings
from sonde.contexts import Context
from sonde.core.budget import Budget
from sonde.core.calls import CallRef
from sonde.core.canonical import sha256_text
from sonde.core.events import AnyEvent, Cited, CodeRan, HostReturned, ModelAsked, RunEnded, RunStarted
from sonde.core.evidence import Citation, Excerpt
from sonde.errors import ConfigError, RunError
from sonde.runs.export import is_replayable
from sonde.runs.placeholders import PlaceholderFile
from sonde.runs.rundir import RECORD, SUMMARY, Places, RunDir, fold, places_of
from sonde.sandbox import Limits

if TYPE_CHECKING:
    from sonde.core.mask import Mask

NAMES = "RUN is a run's id, the unique beginning of one, `last`, or its folder"
ALL_OF_IT = "the data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded run: its folder, its events, how it began."""

    run_dir: RunDir
    events: Sequence[AnyEvent]
    started: RunStarted

    @property
    def ended(self) -> RunEnded | None:
        """How it ended; None when it was cut off."""
        return next((event for event in reversed(self.events) if isinstance(event, RunEnded)), None)

    def beside(self, places: Places) -> tuple[Path, ...]:
        """Where the runs may lie that this one continues: an imported one has them in its own folder of runs."""
        return self.run_dir.path.resolve().parent, *places_of(places)

    @property
    def complete(self) -> bool:
        """Whether the folder's files were written too: a kill may come between the last event and them."""
        return (self.run_dir.path / RECORD).is_file() and (self.run_dir.path / SUMMARY).is_file()


def open_run(run_dir: RunDir) -> Recorded:
    """A recorded run that can be run again, continued or published."""
    events = run_dir.events()
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        raise ConfigError(f"{run_dir.path} was cut off before its first event: it holds nothing to continue; {NAMES}")
    if not is_replayable(events):
        raise ConfigError(f"{run_dir.path} is a redacted export: what was removed cannot run again; look at it instead")
    check_recipe(started)
    check_events(events)
    return Recorded(run_dir=run_dir, events=events, started=started)


def recorded_mask(recorded: Recorded, settings: Settings) -> Mask | None:
    """The mask of a recorded run, with its placeholders; None for a run that was not masked. ConfigError if their values are not here."""
    told: dict[str, Any] | None = recorded.started.settings.get("mask")
    if told is None:
        return None
    if settings.sources.get("mask") == KEYS["mask"].option and not settings.mask:
        raise ConfigError(
            f"run {recorded.run_dir.run_id} is masked, and what goes on from it stays so: leave out --no-mask"
        )
    from sonde.core.mask import Mask  # noqa: PLC0415  # loaded only for those who mask

    kept = state_folder(settings.environ or os.environ)
    own = kept is not None and is_own(recorded.run_dir, settings.environ)
    pairs = PlaceholderFile(kept, told["id"]).read() if kept is not None and own else None
    if pairs is None:
        raise ConfigError(
            f"run {recorded.run_dir.run_id} is masked, and the values behind its placeholders are not on this machine: it can be "
            "looked at, but not run again"
        )
    return Mask(told["patterns"], pairs, seal_key(settings.environ))


def own_values(run: Path, settings: Settings) -> Path | None:
    """The file of the values behind the placeholders of a run that the user made here; None for any other run."""
    folder, kept = RunDir(run), state_folder(settings.environ or os.environ)
    told = folder.mask()
    if told is None or kept is None or not is_own(folder, settings.environ):
        return None
    return PlaceholderFile(kept, str(told.get("id"))).path


def unmasked(started: RunStarted, mask: Mask | None) -> RunStarted:
    """The first event with the real paths and words, from which a run is built again."""
    if mask is None:
        return started
    told = {name: value for name, value in started.settings.items() if name != "mask"}
    return msgspec.structs.replace(
        started, settings=mask.restored_value(told), input_ref=mask.restored_value(started.input_ref)
    )


class _Traces(msgspec.Struct):
    sources: list[str]
    project: str | None = None
    start: str | None = None
    end: str | None = None
    filter_expr: str | None = None


class _Sources(msgspec.Struct):
    paths: list[str] = []
    code: bool = False
    traces: _Traces | None = None


class _MaskRecipe(msgspec.Struct):
    id: str
    patterns: dict[str, str] = {}


class _Recipe(msgspec.Struct):
    engine: str | None = None
    model: str | None = None
    sub_model: str | None = None
    sources: _Sources | None = None
    code: bool = False
    schema: dict[str, Any] | None = None
    earlier: str = ""
    continues: str | None = None
    workspace: str | None = None
    commands: list[str] = []
    judges_commands: bool = False
    packages: list[str] = []
    source: str | None = None
    project: str | None = None
    trace_ids: list[str] = []
    taxonomy: str | None = None
    controls_version: str | None = None
    controls_files: list[str] = []
    overrides: list[str] = []
    verdicts: dict[str, str] = {}
    reason: str = ""
    start: str | None = None
    end: str | None = None
    filter_expr: str | None = None
    configs: str | None = None
    changes: list[str] = []
    writeback: bool = False
    mask: _MaskRecipe | None = None
    limits: dict[str, float | int | str | None] = {}


class _Variable(msgspec.Struct):
    name: str
    type: str
    size: int | None = None


class _Message(msgspec.Struct):
    role: str
    content: str


def check_recipe(started: RunStarted) -> None:
    """ConfigError if a field that a run is built from does not have the form that Sonde writes."""
    try:
        msgspec.convert(started.settings, _Recipe)
    except msgspec.ValidationError as error:
        raise ConfigError(f"this run cannot be continued: its settings were changed or damaged ({error})") from None
    for what, given, known in (
        ("budget", started.budget, Budget),
        ("limit", started.settings.get("limits", {}), Limits),
    ):
        unknown = sorted(set(given) - set(known.__dataclass_fields__))
        if unknown:
            raise ConfigError(f"this run cannot be continued: this version has no {what} {', '.join(unknown)}")


def check_events(events: Sequence[AnyEvent]) -> None:
    """ConfigError if what the events tell of has no shape that a run could have: the record, evidence, variables, messages."""
    fold(events)
    try:
        for event in events:
            if isinstance(event, HostReturned):
                msgspec.convert(event.excerpts, list[Excerpt])
            elif isinstance(event, Cited):
                Citation.model_validate(event.citation)
            elif isinstance(event, CodeRan):
                msgspec.convert(event.variables, list[_Variable])
            elif isinstance(event, ModelAsked):
                msgspec.convert(event.messages, list[_Message])
    except ValueError as error:  # of msgspec and of pydantic
        reason = " ".join(str(error).split())
        raise ConfigError(f"this run cannot be continued: its events were changed or damaged ({reason})") from None


def changed_sources(
    events: Sequence[AnyEvent], context: Context, elsewhere: Sequence[AnyEvent] = (), mask: Mask | None = None
) -> tuple[str, ...]:
    """The files (or refs) that a run read and that read differently now: the usual reason why a replay differs.

    "the data" when the whole differs and none of what was read. It does not say what has changed in a file: the run recorded hashes of
    what it read, and the text only where code printed it. `elsewhere` are events of runs over other sources: what they read and is not in
    this context has not changed.
    """
    own = _read_by(events)
    read = {**_read_by(elsewhere), **own}
    with suppress(RunError):  # the data cannot be reached: the replay says so itself
        changed: dict[str, None] = {}
        for excerpt in read.values():
            if CallRef.read(excerpt.ref) is not None:
                continue  # the result of a user's tool is in the record itself
            text = context.reread(excerpt)
            if text is None and excerpt.ref not in own:
                continue
            if text is None or sha256_text(text) != excerpt.hash:
                changed[excerpt.path or excerpt.ref] = None
        started = next((event for event in events if isinstance(event, RunStarted)), None)
        recorded = "" if started is None else started.dataset_ref.get("dataset_hash")
        if not changed and recorded:
            now = context.fingerprint()
            return () if recorded == (now if mask is None else mask.keyed(now)) else (ALL_OF_IT,)
        return tuple(changed)
    return ()


def _read_by(events: Sequence[AnyEvent]) -> dict[str, Excerpt]:
    """What these events read or cited, by its ref; the last reading counts."""
    read: dict[str, Excerpt] = {}
    for event in events:
        if isinstance(event, HostReturned):
            read.update((each["ref"], msgspec.convert(each, Excerpt)) for each in event.excerpts)
        elif isinstance(event, Cited):
            cited = Citation.model_validate(event.citation)
            read[cited.ref] = Excerpt(
                kind=cited.kind,
                ref=cited.ref,
                hash=cited.excerpt_hash,
                path=cited.path,
                start_line=cited.start_line,
                end_line=cited.end_line,
            )
    return read
