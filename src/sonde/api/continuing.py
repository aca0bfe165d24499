"""`--continue RUN`: a follow-up question that knows what an earlier run asked, did and answered, and has its variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from sonde.api.launch import Job
from sonde.api.settings import Settings
from sonde.api.sources import open_context
from sonde.core.canonical import clip
from sonde.core.events import ROOT, AnyEvent, CodeRan, CodeStarted, RunEnded, RunStarted
from sonde.errors import ConfigError
from sonde.runs.rundir import RunDir, find_run
from sonde.runtime.playing import Played, played_blocks, variables_line

EARLIER_CHARS = 12_000
MOST_RUNS = 20


def continued(job: Job, settings: Settings, run: str | Path, runs_dir: str | Path | None) -> Job:
    """The job with the earlier run's history, and its sources when none are given."""
    run_dir = find_run(runs_dir or settings.runs_dir, run)
    events = run_dir.events()
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    if started is None:
        raise ConfigError(f"{run_dir.path} holds no run that could be continued")
    context, recipe = job.context, dict(job.recipe)
    if not recipe.get("given"):
        sources: dict[str, Any] = started.settings.get("sources") or {}
        paths = sources.get("paths")
        if paths:
            opened = open_context(paths, code=bool(sources.get("code")))
            context, recipe["sources"] = opened.context, opened.recipe
    recipe["continues"] = str(run_dir.path.absolute())
    recipe["earlier"] = story(events)
    return replace(job, context=context, recipe=recipe, earlier=recipe["earlier"], played=played(recipe["continues"]))


def played(run: str | None, depth: int = 0) -> tuple[Played, ...]:
    """The blocks that lead to a run's last state: those of the runs that it continues, then its own."""
    if run is None or depth >= MOST_RUNS or not (Path(run) / "events.jsonl").exists():
        return ()
    events = RunDir(Path(run)).events()
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    before = started.settings.get("continues") if started is not None else None
    return (*played(before, depth + 1), *played_blocks(events))


def story(events: Sequence[AnyEvent]) -> str:
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
                if names := variables_line(events):
                    lines.append(f"Its variables are in your session: {names}")
                output: dict[str, Any] = cast("dict[str, Any]", event.output) if isinstance(event.output, dict) else {}
                lines.append(f"Answer ({event.status}): {clip(str(output.get('answer', '')), 3000)}")
            case _:
                continue
    return clip("\n".join(lines), EARLIER_CHARS)
