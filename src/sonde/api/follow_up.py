"""`--continue RUN`: a follow-up question that knows what an earlier run asked, did and answered, and has its variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

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
from sonde.runs.rundir import JOURNAL, STATE, RunDir, find_run
from sonde.runtime.playing import CARRIED, Played, played_blocks, variables_line
from sonde.sandbox import Saved, saved_state

EARLIER_CHARS = 12_000
CITED_CHARS = 6_000
MOST_RUNS = 20
MOST_NAMES = 60
LOST_CHARS = 1500
EMPTY = frozenset({"variables", "evidence_refs", "hypothesis_candidates"})
"""What every session starts with: not worth a word while nothing is in it."""


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
    carried = state_of(recipe["continues"])
    recipe["state"] = {"path": str(carried.path), "sha256": carried.sha256} if carried is not None else None
    told = story(events, variables_line(events) if carried is None else carried_line(carried))
    recipe["earlier"] = told + cited_lines(events, context)
    job = replace(job, context=context, recipe=recipe, earlier=recipe["earlier"], carried=carried)
    return job if carried is not None else replace(job, played=played(recipe["continues"]))


def state_of(run: str, depth: int = 0) -> Saved | None:
    """The state that a run's root session ended with; None when none was saved, and its code has to run again."""
    path = Path(run) / STATE
    if path.exists():
        return saved_state(path)
    if depth >= MOST_RUNS or not (Path(run) / JOURNAL).exists():
        return None
    events = RunDir(Path(run)).events()
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    before = started.settings.get("continues") if started is not None else None
    ran = any(isinstance(event, CodeStarted) and event.session == ROOT for event in events)
    return state_of(before, depth + 1) if before and not ran else None


def same_state(recipe: Mapping[str, Any]) -> Saved | None:
    """The state that a recorded follow-up began with, as it was then."""
    recorded = recipe.get("state")
    if not recorded:
        return None
    saved = saved_state(recorded["path"])
    if saved.sha256 != recorded["sha256"]:
        raise ConfigError(f"this run began with the state in {saved.path}, which is another one now")
    return saved


def carried_line(saved: Saved) -> str:
    """The variables of a saved state for the model, and those that it lacks."""
    shown = [
        each for each in saved.variables if not each.name.startswith("_") and (each.size or each.name not in EMPTY)
    ]
    names = [f"{each.name}: {each.type}{'' if each.size is None else f' ({each.size})'}" for each in shown[:MOST_NAMES]]
    line = "; ".join(names) or "none"
    lost = "; ".join(str(each) for each in saved.left_out[:MOST_NAMES])
    return f"{line}. Not carried over: {clip(lost, LOST_CHARS)}" if lost else line


def played(run: str | None, depth: int = 0) -> tuple[Played, ...]:
    """The blocks that lead to a run's last state: those of the runs that it continues, then its own."""
    if run is None or depth >= MOST_RUNS or not (Path(run) / "events.jsonl").exists():
        return ()
    events = RunDir(Path(run)).events()
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    before = started.settings.get("continues") if started is not None else None
    return (*played(before, depth + 1), *played_blocks(events))


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


def story(events: Sequence[AnyEvent], variables: str) -> str:
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
                    lines.append(f"{CARRIED}{variables}")
                output = cast("dict[str, Any]", event.output or {})
                lines.append(f"Answer ({event.status}): {clip(str(output.get('answer', '')), 3000)}")
            case _:
                continue
    return clip("\n".join(lines), EARLIER_CHARS)
