"""`--continue RUN`: a follow-up question that knows what an earlier run asked, did and answered, and has its variables."""

from __future__ import annotations

import shlex
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from sonde.api.consent import ANYWHERE, is_made_here, readable_places
from sonde.api.recorded_run import Recorded, changed_sources, check_recipe, open_run, recorded_mask, unmasked
from sonde.api.settings import BY_DEFAULT, Settings
from sonde.api.sources import reopened
from sonde.contexts import Context
from sonde.core.canonical import clip
from sonde.core.events import ROOT, AnyEvent, CodeRan, CodeStarted, RunEnded, RunStarted
from sonde.core.evidence import EvidenceKind, Excerpt
from sonde.engines.submission import fields_of, items_of
from sonde.errors import ConfigError
from sonde.runs.export import is_replayable
from sonde.runs.recording import EarlierRuns, Recording
from sonde.runs.rundir import RunDir, run_ids
from sonde.runtime.memory import Exchange
from sonde.runtime.prompts import CARRIED
from sonde.runtime.run import RunSpec
from sonde.sandbox.policy import profile_named

if TYPE_CHECKING:
    from sonde.core.mask import Mask

EARLIER_CHARS, TURN_CHARS = 12_000, 1_200
BEFORE, BEFORE_CHARS = 12, 400
"""How many questions before the last one are told, the newest of them, and how much of each question and answer."""
CITED_CHARS = 6_000
MOST_CHANGED = 10
MOST_NAMES = 60
EMPTY = frozenset({"variables", "evidence_refs", "hypothesis_candidates"})
"""What every session starts with: not worth a word while nothing is in it."""
CHANGED = ". What tools returned is in them as it was then; changed since: {}"


@contextmanager
def continued(
    spec: RunSpec,
    run: str | Path,
    settings: Settings,
    runs_dir: str | Path | None = None,
    *,
    trust_run: bool = False,
) -> Generator[RunSpec]:
    """The spec with the earlier run's history, and its sources when none are given; those are open until the end of the block."""
    recorded = open_run(settings.find_run(run, runs_dir))
    started = unmasked(recorded.started, spec.mask)
    recipe = dict(spec.recipe)
    given = spec.context
    with ExitStack() as stack:
        sources: dict[str, Any] = started.settings.get("sources") or {}
        if spec.engine.answers and not recipe.get("given") and (sources.get("paths") or sources.get("traces")):
            within = readable_places(recorded.run_dir, settings.environ, trust_run=trust_run)
            opened = stack.enter_context(reopened(sources, settings, within, without=spec.without))
            recipe["sources"] = opened.recipe
            spec = replace(opened.given_to(spec), own=within is ANYWHERE)
        beside = recorded.beside(runs_dir or settings.run_places())
        yield _with_history(replace(spec, recipe=recipe), recorded, beside, same=spec.context is not given)


def _with_history(spec: RunSpec, recorded: Recorded, beside: Sequence[Path], *, same: bool) -> RunSpec:
    """The spec with what the earlier run asked, did and left; `same`: it reads the sources of that run, opened again."""
    events, started, context = recorded.events, recorded.started, spec.context
    recipe: dict[str, Any] = {**spec.recipe, "continues": str(recorded.run_dir.path.resolve())}
    runs = earlier_runs(recipe["continues"], beside)
    allowed = max(spec.budget.max_iterations, spec.engine.budget.max_iterations)
    turns = max((block.started.turn for each in runs.recordings for block in each.blocks), default=0)
    if turns > allowed:
        raise ConfigError(
            f"the earlier run has {turns} turns, more than the {allowed} that you allow. If it is yours, say --max-iterations {turns}"
        )
    read: list[AnyEvent] = []
    elsewhere: list[AnyEvent] = []
    dropped: list[str] = []
    sources: dict[str, Any] = recipe.get("sources") or {}
    for recording in runs.recordings:
        begun = recording.at(RunStarted)
        had: dict[str, Any] = (unmasked(begun, spec.mask).settings.get("sources") or {}) if begun is not None else {}
        if begun is not None and had.get("traces") and not sources.get("traces"):
            dropped.append(begun.run_id)
        (read if had == sources or (same and recording is runs.recordings[-1]) else elsewhere).extend(recording.events)
    left = {  # the variables that these runs left, with type and size
        each["name"]: f"{each['name']}: {each['type']}" + (f" ({each['size']})" if each["size"] is not None else "")
        for recording in runs.recordings
        for block in recording.blocks
        for each in block.ran.variables
        if not each["name"].startswith("_") and (each["size"] or each["name"] not in EMPTY)
    }
    variables = "; ".join(list(left.values())[:MOST_NAMES])
    changed = changed_sources(read, context, elsewhere, spec.mask) if variables or same else ()
    if dropped:
        names = f"run {dropped[0]}" if len(dropped) == 1 else f"runs {', '.join(dropped)}"
        note = f"the traces of {names} are not part of this follow-up; --source adds them"
        spec = replace(spec, notes=(*spec.notes, note))
    if changed and same:
        note = f"changed since run {recorded.run_dir.run_id}: {', '.join(changed[:MOST_CHANGED])}; what it read then stays as it was"
        spec = replace(spec, notes=(*spec.notes, note))
    told = asked_before(runs.recordings[:-1]) + story(events, variables, changed) + cited_lines(events, context)
    recipe["earlier"] = told
    imported: list[str] = started.settings.get("packages", [])
    packages = profile_named(spec.profile).having({*spec.packages, *imported}).extra
    return replace(spec, recipe=recipe, earlier=told, played=runs, packages=packages)


def continued_mask(
    run: str | Path | None, mask: Mask | None, settings: Settings, runs_dir: str | Path | None = None
) -> Mask | Literal[False]:
    """What hides people's data in a run that may continue another: the placeholders and the patterns of that one. ConfigError for
    a pattern that it did not have: its history and its variables hold what the pattern should hide.
    """
    if run is None:
        return mask or False
    recorded = open_run(settings.find_run(run, runs_dir))
    earlier = recorded_mask(recorded, settings)
    if earlier is None and mask is not None:
        raise ConfigError(
            f"run {recorded.run_dir.run_id} was not masked, so its history and its variables hold the real values; ask anew with --mask"
        )
    if earlier is None:
        return False
    for name, pattern in (mask.patterns if mask is not None else {}).items():
        if earlier.patterns.get(name) != pattern:
            raise ConfigError(
                f"run {recorded.run_dir.run_id} was masked without the pattern {name}={pattern}, so its history and its variables may "
                "hold what it hides; ask anew, or continue without this pattern"
            )
    return earlier


def with_earlier_models(settings: Settings, run: str | Path) -> Settings:
    """The settings with the models of the run that is continued, if the user names none and has set up what they need.

    Its folder may be a stranger's: a program is started, and weights are loaded from a path, only for a run that was made here.
    """
    chosen = settings.model is not None or "model" in settings.sources  # also that there be none
    if chosen and not settings.sources.get("model", "").startswith(BY_DEFAULT):
        return settings
    recorded = open_run(settings.find_run(run))
    made_here = is_made_here(recorded.run_dir, settings)  # the folder may hold imported runs, and branches of them
    models = {name: recorded.started.settings.get(name) for name in ("model", "sub_model")}
    source = f"as in run {recorded.run_dir.run_id}"
    for name in filter(None, models.values()):
        choice = settings.choose(name)
        kind, _, what = choice.spec.partition(":")
        local = kind == "local" and not what.endswith(".gguf")
        reached = local or choice.settings.api_key is not None or choice.settings.base_url is not None
        if not (
            reached or (made_here and kind in ("command", "local")) or (kind == "command" and name in settings.models)
        ):
            more = " with --base-url or a key" if kind == "openai" else ""
            note = f"run {recorded.run_dir.run_id} used {name}; to use it again, name it: --model {shlex.quote(name)}{more}"
            return replace(settings, notes=(*settings.notes, note))
    if models["model"] is None:
        return settings
    return replace(settings, **models, sources={**settings.sources, "model": source, "sub_model": source})


def earlier_runs(run: str | None, beside: Sequence[Path]) -> EarlierRuns:
    """A run and those it continues: their code leads to its last state.

    The path of each was recorded, perhaps by a stranger on another machine. Only its name counts: it is looked for in these folders.
    """
    chain: dict[str, Recording] = {}
    while run is not None:
        name = Path(run).name
        found = next((folder / name for folder in beside if name in run_ids(folder)), None)
        if found is None or str(found) in chain:
            missing = () if found else (name,)
            return EarlierRuns(recordings=tuple(reversed(chain.values())), missing=missing)
        events = RunDir(found).events()
        if not is_replayable(events):
            return EarlierRuns(recordings=tuple(reversed(chain.values())), missing=(name,))
        chain[str(found)] = Recording(events, strict=True)
        started = chain[str(found)].at(RunStarted)
        if started is not None:
            check_recipe(started)
        run = started.settings.get("continues") if started is not None else None
    return EarlierRuns(recordings=tuple(reversed(chain.values())))


class _CitedLines(msgspec.Struct):
    path: str
    kind: EvidenceKind
    start_line: int
    end_line: int
    excerpt_hash: str


def cited_lines(events: Sequence[AnyEvent], context: Context) -> str:
    """The lines that the answer cited, as they are now, so that the model can cite them again without reading them again."""
    ended = next((event for event in events if isinstance(event, RunEnded)), None)
    shown: list[str] = []
    for each in items_of(fields_of(ended.output if ended is not None else None).get("citations")):
        try:
            cited = msgspec.convert(each, _CitedLines)
        except msgspec.ValidationError:
            continue  # the folder may be a stranger's, or the run may have ended without proving it
        path, start, end = cited.path, cited.start_line, cited.end_line
        pointer = Excerpt(
            kind=cited.kind,
            ref=f"{path}:{start}-{end}",
            path=path,
            start_line=start,
            end_line=end,
            hash=cited.excerpt_hash,
        )
        text = context.reread(pointer) if pointer.start_line > 0 else None
        if text and len(text) <= CITED_CHARS - sum(map(len, shown)):
            shown.append(f"[{pointer.ref}]\n{text}")
    return "\nLines that it cited, as they are now:\n" + "\n".join(shown) if shown else ""


def asked_before(recordings: Sequence[Recording]) -> str:
    """What runs before the last one asked and answered, in short: the conversation that the last one is a part of."""
    lines: list[str] = []
    for recording in recordings[-BEFORE:]:
        started = recording.at(RunStarted)
        ended = next((event for event in recording.events if isinstance(event, RunEnded)), None)
        if started is None:
            continue
        lines.append(f"Question: {clip(started.objective, BEFORE_CHARS)}")
        if ended is not None:
            answer = clip(str(fields_of(ended.output).get("answer", "")), BEFORE_CHARS)
            lines.append(f"Answer ({ended.status}): {answer}")
    return "".join(f"{line}\n" for line in lines)


def story(events: Sequence[AnyEvent], variables: str, changed: Sequence[str]) -> str:
    """A run in words: question, what the root session ran and saw, shortened to what came up again later, and the answer."""
    lines: list[str] = []
    ended = next((event for event in events if isinstance(event, RunEnded)), None)
    code = [event.code for event in events if isinstance(event, CodeStarted) and event.session == ROOT]
    later = [*code, str(fields_of(ended.output).get("answer", "")) if ended is not None else ""]
    ran = ""
    for event in events:
        match event:
            case RunStarted():
                lines.append(f"Question: {event.objective}")
            case CodeStarted(session=session) if session == ROOT:
                ran, later = f"```python\n{event.code}\n```", later[1:]
            case CodeRan(session=session) if session == ROOT and (
                event.stdout or not event.final
            ):  # the answer is told anyway
                printed = (event.stdout if event.ok else f"failed\n{event.stderr}") or "ok"
                turn = Exchange(number=event.turn, reply=ran, outcome=printed, observation="")
                lines.append(clip(turn.shortened("\n".join(later)), TURN_CHARS))
            case RunEnded():
                if variables:
                    lines.append(
                        f"{CARRIED}{variables}{CHANGED.format(', '.join(changed[:MOST_CHANGED])) if changed else ''}"
                    )
                answer = str(fields_of(event.output).get("answer", ""))
                lines.append(f"Answer ({event.status}): {clip(answer, 3000)}")
            case _:
                continue
    return clip("\n".join(lines), EARLIER_CHARS)
