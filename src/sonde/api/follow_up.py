"""`--continue RUN`: a follow-up question that knows what an earlier run asked, did and answered, and has its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sonde.api.changed import changed_sources
from sonde.api.consent import require_sources
from sonde.api.launch import Job
from sonde.api.recipe import check_recipe
from sonde.api.settings import Settings
from sonde.api.sources import open_context
from sonde.contexts.base import Context
from sonde.core.canonical import clip
from sonde.core.events import ROOT, AnyEvent, CodeRan, CodeStarted, RunEnded, RunStarted
from sonde.core.evidence import EvidenceKind, Excerpt
from sonde.errors import ConfigError
from sonde.runs.rundir import NoSuchRun, RunDir, find_run
from sonde.runtime.playing import CARRIED, EarlierCode, played_blocks, variables_line

EARLIER_CHARS = 12_000
CITED_CHARS = 6_000
MOST_CHANGED = 10
CHANGED = ". What tools returned is in them as it was then; changed since: {}"


def continued(job: Job, settings: Settings, run: str | Path, runs_dir: str | Path | None) -> Job:
    """The job with the earlier run's history, and its sources when none are given."""
    run_dir = find_run(runs_dir or settings.runs_dir, run)
    events = run_dir.events()
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        raise ConfigError(f"{run_dir.path} holds no run that could be continued")
    check_recipe(started)
    context, recipe = job.context, dict(job.recipe)
    if not recipe.get("given"):
        sources: dict[str, Any] = started.settings.get("sources") or {}
        paths = sources.get("paths")
        if paths:
            require_sources(paths)
            opened = open_context(paths, code=bool(sources.get("code")))
            context, recipe["sources"] = opened.context, opened.recipe
    recipe["continues"] = str(run_dir.path.absolute())
    code, all_events = earlier_code(recipe["continues"])
    changed = changed_sources(all_events, context) if code.blocks else ()
    recipe["earlier"] = story(events, variables_line(code.blocks), changed) + cited_lines(events, context)
    return replace(job, context=context, recipe=recipe, earlier=recipe["earlier"], played=code)


def earlier_code(run: str | None) -> tuple[EarlierCode, tuple[AnyEvent, ...]]:
    """The code that leads to the last state of a run, through all that it continues; and the events of those runs, oldest first."""
    chain: list[tuple[str, list[AnyEvent]]] = []
    missing: list[str] = []
    while run is not None and run not in {path for path, _ in chain}:
        try:
            events = RunDir(Path(run)).events()
        except NoSuchRun:
            missing.append(Path(run).name)
            break
        chain.insert(0, (run, events))
        started = next((event for event in events if isinstance(event, RunStarted)), None)
        run = started.settings.get("continues") if started is not None else None
    blocks = tuple(block for path, events in chain for block in played_blocks(Path(path).name, events))
    all_events = tuple(event for _, events in chain for event in events)
    seed = next((event.seed for event in all_events if isinstance(event, RunStarted)), None)
    return EarlierCode(blocks=blocks, missing=tuple(missing), seed=seed), all_events


def cited_lines(events: Sequence[AnyEvent], context: Context) -> str:
    """The lines that the answer cited, as they are now: what was read once need not be read again to be cited again."""
    ended = next((event for event in events if isinstance(event, RunEnded)), None)
    output = cast("dict[str, Any]", (ended.output if ended is not None else None) or {})
    shown: list[str] = []
    for each in cast("list[dict[str, Any]]", output.get("citations") or []):
        pointer = _excerpt(each)
        text = context.reread(pointer) if pointer.start_line > 0 else None
        if text and len(text) <= CITED_CHARS - sum(map(len, shown)):
            shown.append(f"[{pointer.ref}]\n{text}")
    return "\nLines that it cited, as they are now:\n" + "\n".join(shown) if shown else ""


def _excerpt(citation: Mapping[str, Any]) -> Excerpt:
    path, start, end = str(citation["path"]), int(citation["start_line"]), int(citation["end_line"])
    kind, ref = EvidenceKind(citation["kind"]), f"{path}:{start}-{end}"
    return Excerpt(kind=kind, ref=ref, path=path, start_line=start, end_line=end, hash=citation["excerpt_hash"])


def story(events: Sequence[AnyEvent], variables: str, changed: Sequence[str]) -> str:
    """A run in words: question, what the root session ran and saw, answer."""
    lines: list[str] = []
    for event in events:
        match event:
            case RunStarted():
                lines.append(f"Question: {event.objective}")
            case CodeStarted(session=session) if session == ROOT:
                lines.append(f"turn {event.turn} ran:\n{clip(event.code, 600)}")
            case CodeRan(session=session) if session == ROOT:
                lines.append(f"-> {'ok' if event.ok else 'failed'}: {clip(event.stdout or event.stderr, 600)}")
            case RunEnded():
                if variables:
                    lines.append(
                        f"{CARRIED}{variables}{CHANGED.format(', '.join(changed[:MOST_CHANGED])) if changed else ''}"
                    )
                output = cast("dict[str, Any]", event.output or {})
                lines.append(f"Answer ({event.status}): {clip(str(output.get('answer', '')), 3000)}")
            case _:
                continue
    return clip("\n".join(lines), EARLIER_CHARS)
