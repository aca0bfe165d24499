"""Runs again: `resume` after a crash, `replay` to prove, `branch` to try something else from a turn on.

All three build the spec from the recorded run and run the one loop over its recording. Resume appends to the same
journal and asks a model only for what is not recorded. Replay asks nobody. Branch makes a new run that shares the
turns before K.

The folder may be a stranger's: its budget, limits and backend hold only within the caller's own settings (`**knobs`, `limits`),
and nothing is written to a server without the caller's word. What a run that was not made here names is read only in its own folder and
the working folder; `trust_run` is the caller's word for the rest. A layer is left off only if `without` says so in this call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sonde.api.consent import (
    is_made_here,
    is_own,
    readable_places,
    require_caps,
    require_model,
    require_writeback,
    seal_key,
)
from sonde.api.keys import KEYS
from sonde.api.launch import launch, model_names
from sonde.api.recorded_run import Recorded, changed_sources, open_run, recorded_mask
from sonde.api.recorded_spec import rebuilt
from sonde.api.result import Result
from sonde.api.settings import Settings, load_settings
from sonde.contexts.workspace import WorkspaceContext
from sonde.contexts.workspace.history import WriteLog
from sonde.core.budget import Budget
from sonde.core.cancellation import Stop
from sonde.core.canonical import hash_value
from sonde.core.deadline import Clock, RepeatTime, SystemClock
from sonde.core.events import (
    ROOT,
    AnyEvent,
    CodeRan,
    HostReturned,
    ModelReplied,
    RunEnded,
    RunStarted,
    StatusChanged,
    SubcallEnded,
    TurnStarted,
)
from sonde.core.record import RunRecord
from sonde.core.redaction import REDACTED
from sonde.errors import Cancelled, ConfigError, reached_before
from sonde.models.base import Model, RecordedModel
from sonde.runs.recording import Difference, Diverged, Recording, before_turn
from sonde.runtime.code_runner import SLOWER
from sonde.runtime.run import OnEvent, OnText, RunSpec
from sonde.sandbox import Limits

if TYPE_CHECKING:
    from sonde.core.mask import Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found: no differences means that every hash was reproduced. `changed` names what the run read and has changed since."""

    run_id: str
    differences: tuple[Difference, ...]
    record: RunRecord | None
    replies: int
    host_calls: int
    changed: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether everything came out the same."""
        return not self.differences


def resume(
    run: str | Path,
    *,
    runs_dir: str | Path | None = None,
    model: str | Model | None = None,
    sub_model: str | Model | None = None,
    context: Any = None,
    tools: Sequence[Callable[..., Any]] = (),
    go_live: bool = False,
    on_event: OnEvent | None = None,
    on_text: OnText | None = None,
    cancel: threading.Event | None = None,
    settings: Settings | None = None,
    trust_run: bool = False,
    without: str = "",
    clock: Clock | None = None,
    limits: Limits | None = None,
    writeback: bool | None = None,
    **knobs: float | None,
) -> Result:
    """Continue a run that was cut off. `go_live`: where the code takes another path than recorded, continue live from there."""
    chosen = _allowing(settings, knobs)
    recorded = open_run(chosen.find_run(run, runs_dir))
    if recorded.ended is not None and recorded.complete:
        raise ConfigError(
            f"run {recorded.run_dir.run_id} has ended ({recorded.ended.status}); ask on with --continue, or look with `sonde view`"
        )
    if recorded.run_dir.is_running():
        raise ConfigError(f"run {recorded.run_dir.run_id} is still running in another process")
    mask = _same_mask(recorded, chosen)
    writes = require_writeback(recorded.started, context, writeback)
    with _within_caps(
        recorded,
        chosen,
        runs_dir=runs_dir,
        trust_run=trust_run,
        limits=limits,
        context=context,
        tools=tools,
        mask=mask,
        without=without,
        clock=clock,
    ) as built:
        spec = replace(
            _asking(built, model, sub_model, chosen, own=is_made_here(recorded.run_dir, chosen)),
            writeback=built.writeback if writes else None,
            on_event=on_event,
            on_text=on_text,
            cancel=cancel or Stop(),
            clock=clock or SystemClock(),
            run_dir=recorded.run_dir,
            needs_files=True,
        )
        return _resumed(spec, chosen, recorded.events, go_live=go_live)


def _allowing(settings: Settings | None, knobs: Mapping[str, float | None]) -> Settings:
    """The caller's settings with the budget that they allow for this call."""
    chosen = settings or load_settings()
    unknown = [name for name in knobs if name not in Budget.__dataclass_fields__]
    if unknown:
        raise ConfigError(f"unknown argument {unknown[0]!r}; budget knobs are {', '.join(Budget.__dataclass_fields__)}")
    given = {name: value for name, value in knobs.items() if value is not None}
    return replace(chosen, knobs={**chosen.knobs, **given})


@contextmanager
def _within_caps(
    recorded: Recorded,
    settings: Settings,
    *,
    runs_dir: str | Path | None,
    trust_run: bool,
    limits: Limits | None,
    context: Any,
    tools: Sequence[Callable[..., Any]],
    mask: Mask | None,
    without: str,
    clock: Clock | None = None,
) -> Generator[RunSpec]:
    """The recorded run, if the user allows what it may use. Its code runs again for no longer, in all, than a run may take."""
    with rebuilt(
        recorded.started,
        settings,
        within=readable_places(recorded.run_dir, settings.environ, trust_run=trust_run),
        context=context,
        tools=tools,
        beside=recorded.beside(runs_dir or settings.run_places()),
        mask=mask,
        without=without,
        clock=clock,
    ) as built:
        require_caps(built, settings, limits or Limits())
        if isinstance(built.context, WorkspaceContext):
            built.context.written_before = WriteLog(recorded.run_dir.path, seal_key(settings.environ)).read(
                strangers=True
            )
        seconds = settings.budget(built.engine.budget, built.engine.maxima).max_wall_time_sec
        if is_own(recorded.run_dir, settings.environ):  # it took this long here: a busier machine is not a failure
            took = sum(event.duration_s for event in recorded.events if isinstance(event, CodeRan))
            seconds = max(seconds, SLOWER * min(took, seconds))
        yield replace(built, again=RepeatTime(SystemClock(), seconds))


def _same_mask(recorded: Recorded, settings: Settings) -> Mask | None:
    """The mask that the run began with; ConfigError if it has none and the user's settings want one."""
    mask = recorded_mask(recorded, settings)
    if mask is not None and settings.sources.get("mask_patterns") == KEYS["mask_patterns"].option:
        raise ConfigError("a masked run goes on with the patterns it began with; leave out --mask-pattern, or ask anew")
    if mask is None and (settings.mask or settings.mask_patterns):
        raise ConfigError(
            f"run {recorded.run_dir.run_id} was not masked, and your settings say mask = true; start it anew, or set SONDE_MASK=false"
        )
    return mask


def _asking(
    spec: RunSpec, model: str | Model | None, sub_model: str | Model | None, settings: Settings, *, own: bool
) -> RunSpec:
    """The spec with the given models, else with the recorded ones if the user's settings allow them or the run is their own; its recipe
    names the same.
    """
    for given, recorded, flag in ((model, spec.model, "--model"), (sub_model, spec.sub_model, "--sub-model")):
        if not given and not own:
            require_model(recorded, settings, flag)
    asking = replace(spec, model=model or spec.model, sub_model=sub_model or spec.sub_model)
    return replace(asking, recipe={**spec.recipe, **model_names(asking)})


def _resumed(spec: RunSpec, settings: Settings, events: Sequence[AnyEvent], *, go_live: bool) -> Result:
    over = any(isinstance(event, RunEnded) for event in events)  # only its files are missing: nobody is asked
    known = list(events)
    if not over:  # who resumes a run that they stopped has changed their mind
        known = [
            event
            for event in events
            if not isinstance(event, StatusChanged | SubcallEnded)
            or not isinstance(reached_before(event.error), Cancelled)
        ]
    while True:
        try:
            recording = Recording(known, strict=over, resumed=True, live=spec.clock)
            return launch(replace(spec, recording=recording), settings)
        except Diverged as diverged:
            if not go_live or diverged.place is None:
                then = next((event.context for event in events if isinstance(event, RunStarted)), "")
                now = spec.context.describe() if isinstance(spec.context, WorkspaceContext) else then
                if diverged.place == (ROOT, 1) and then != now and spec.run_dir is not None:
                    before, after = (each.partition(": ") for each in (then, now))
                    files: list[str] = []
                    for word, here, there in (("new", after[2], before[2]), ("gone", before[2], after[2])):
                        names, others = (each.removesuffix(", …").split(", ") for each in (here, there))
                        last = others[-1] if there.endswith("…") else chr(0x10FFFF)  # what follows is not told
                        files += [f"{word}: {name}" for name in names if name not in others and name < last]
                    run_id = spec.run_dir.run_id
                    diverged.message = (
                        f"the workspace has changed since run {run_id} began: it was a {before[0]} and is now a {after[0]}; "
                        f"{'; '.join(files[:10])}. Put it back as it was, or go on with it as it is: `sonde resume {run_id} --live` "
                        f"asks the model anew and writes nothing more, `sonde edit TASK --continue {run_id}` may write"
                    )
                raise
            session, turn = diverged.place
            kept = before_turn(known, turn, session)
            if len(kept) == len(known):
                raise
            known, over = kept, False


def replay(
    run: str | Path,
    *,
    runs_dir: str | Path | None = None,
    words_only: bool = False,
    context: Any = None,
    tools: Sequence[Callable[..., Any]] = (),
    on_event: OnEvent | None = None,
    cancel: threading.Event | None = None,
    settings: Settings | None = None,
    trust_run: bool = False,
    without: str = "",
    limits: Limits | None = None,
    **knobs: float | None,
) -> Replayed:
    """Run everything again against the recording, without a model and without the network, and compare every hash."""
    chosen = _allowing(settings, knobs)
    recorded = open_run(chosen.find_run(run, runs_dir))
    if recorded.ended is None and not words_only:
        raise ConfigError(f"run {recorded.run_dir.run_id} has not ended; `sonde resume` continues it")
    live = None if words_only else SystemClock()
    recording = Recording(recorded.events, strict=not words_only, words_only=words_only, live=live)
    mask = recorded_mask(recorded, chosen)
    model, sub_model = recorded.started.model, recorded.started.sub_model
    record: RunRecord | None = None
    with _within_caps(
        recorded,
        chosen,
        runs_dir=runs_dir,
        trust_run=trust_run,
        limits=limits,
        context=context,
        tools=tools,
        mask=mask,
        without=without,
    ) as built:
        if isinstance(built.context, WorkspaceContext):
            built.context.rehearsal = words_only
        spec = replace(
            built,
            model=RecordedModel(model, []) if model else None,
            sub_model=None if sub_model in (None, model) else RecordedModel(sub_model or "none", []),
            writeback=None,
            on_event=on_event,
            cancel=cancel or Stop(),
            in_memory=True,
            recording=recording,
        )
        try:
            record = launch(spec, chosen).record
            differences, then = list(recording.differences), recorded.ended
            if then is not None and then.status != record.status:
                differences.append(Difference("the status", then.status, record.status.value))
            output = record.output_ref.sha256 or hash_value(None)
            if then is not None and then.output_hash and then.output_hash != output:
                differences.append(Difference("the final value", then.output_hash, output))
            kept = hash_value(then.output) if then is not None else output
            if then is not None and then.output_hash and kept != then.output_hash and REDACTED not in str(then.output):
                differences.append(Difference("the recorded answer, by its hash", kept, then.output_hash))
        except Diverged as diverged:
            differences = [*recording.differences, Difference(diverged.where, diverged.recorded, diverged.now)]
        changed = changed_sources(recorded.events, spec.context, mask=spec.mask) if differences else ()
    return Replayed(
        run_id=recorded.run_dir.run_id,
        differences=tuple(differences),
        record=record,
        replies=sum(isinstance(event, ModelReplied) for event in recorded.events),
        host_calls=sum(isinstance(event, HostReturned) for event in recorded.events),
        changed=changed,
    )


def branch(
    run: str | Path,
    turn: int,
    *,
    runs_dir: str | Path | None = None,
    model: str | Model | None = None,
    sub_model: str | Model | None = None,
    context: Any = None,
    tools: Sequence[Callable[..., Any]] = (),
    on_event: OnEvent | None = None,
    on_text: OnText | None = None,
    cancel: threading.Event | None = None,
    settings: Settings | None = None,
    trust_run: bool = False,
    without: str = "",
    limits: Limits | None = None,
    **knobs: float | None,
) -> Result:
    """A new run that shares the turns before `turn` with a recorded one and goes on live from there."""
    chosen = _allowing(settings, knobs)
    recorded = open_run(chosen.find_run(run, runs_dir))
    turns = [event.turn for event in recorded.events if isinstance(event, TurnStarted) and event.session == ROOT]
    if turn < 1 or turn > max(turns, default=0) + 1:
        which = f"has turns 1 to {max(turns)}" if turns else "has no turns: no model was asked"
        raise ConfigError(f"the run {which}; it cannot be branched at --turn {turn}")
    kept, mask = before_turn(recorded.events, turn), _same_mask(recorded, chosen)
    with _within_caps(
        recorded,
        chosen,
        runs_dir=runs_dir,
        trust_run=trust_run,
        limits=limits,
        context=context,
        tools=tools,
        mask=mask,
        without=without,
    ) as built:
        asking = _asking(built, model, sub_model, chosen, own=is_made_here(recorded.run_dir, chosen))
        spec = replace(
            asking,
            recipe={**asking.recipe, "branched_from": recorded.run_dir.run_id, "branched_at": turn, "writeback": False},
            writeback=None,  # trying something else must not replace what the run said; `publish` does when wanted
            runs_dir=Path(runs_dir or chosen.runs_home(built.engine.name)),
            on_event=on_event,
            on_text=on_text,
            cancel=cancel or Stop(),
            recording=Recording(kept),
            own=trust_run or is_own(recorded.run_dir, chosen.environ),
        )
        return launch(spec, chosen)
