"""`edit`: a task in a workspace, done by patches that somebody approved, with a cited summary."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sonde.api.ask_run import check_knobs
from sonde.api.launch import Job, Launch, OnEvent, run_for_answer
from sonde.api.settings import Settings, load_settings
from sonde.contexts.workspace import (
    PLAIN,
    Approve,
    LocalWorkspace,
    PatientClock,
    PatientWorkspace,
    Policy,
    Workspace,
    WorkspaceContext,
    reject,
)
from sonde.contexts.workspace.paths import clean_folder
from sonde.core.budget import Budget
from sonde.core.cancellation import Stop
from sonde.core.deadline import Clock, SystemClock
from sonde.core.evidence import Citation
from sonde.core.record import RunRecord
from sonde.core.status import RunStatus
from sonde.engines.edit import EDIT
from sonde.errors import ConfigError
from sonde.models.base import Model

PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """What came of a task: summary, citations of the lines as they are now, and the files that were changed."""

    summary: str
    citations: tuple[Citation, ...]
    changed: tuple[str, ...]
    status: RunStatus
    record: RunRecord
    run_dir: Path | None
    gaps: tuple[str, ...]
    annotator_kind: Literal["LLM", "CODE"]


def command_environment() -> dict[str, str]:
    """What allowed commands see of the caller's environment: where programs are, and nothing that could be a key."""
    found = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
    return {**PLAIN, **found}


def edit(
    task: str,
    workspace: str | Path | Workspace = ".",
    *,
    approve: Approve = reject,
    commands: Sequence[str] = (),
    command_folders: Sequence[str] = (),
    model: str | Model | None = None,
    sub_model: str | Model | None = None,
    budget: Budget | None = None,
    profile: str | None = None,
    runs_dir: str | Path | None = None,
    on_event: OnEvent | None = None,
    on_text: Callable[[str, str], None] | None = None,
    cancel: threading.Event | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    in_memory: bool = False,
    unsafe: bool = False,
    **knobs: float | None,
) -> Edited:
    """Do a task in a workspace. Nothing is written unless `approve` says yes to the plan; the default says no."""
    if not task.strip():
        raise ConfigError("the task is empty; say what to change, for example: sonde edit 'Rename load to read' src/")
    chosen = settings or load_settings()
    policy = Policy(commands=tuple(commands), command_folders=tuple(map(clean_folder, command_folders)))
    is_folder = isinstance(workspace, str | Path)
    if is_folder and not Path(workspace).is_dir():
        raise ConfigError(
            f"{workspace} is not a folder; give the folder to work in, for example: sonde edit 'TASK' src/"
        )
    place = (
        LocalWorkspace(Path(workspace), approve=approve, policy=policy, environment=command_environment())
        if is_folder
        else workspace
    )
    patient = PatientClock(clock or SystemClock())
    context = WorkspaceContext(PatientWorkspace(place, patient), commands=commands)
    job = Job(
        engine=EDIT,
        objective=task,
        context=context,
        model=model,
        sub_model=sub_model,
        budget=budget,
        knobs=check_knobs(knobs),
        profile=profile or chosen.sandbox_profile,
        unsafe=unsafe,
        recipe=_recipe(workspace, commands),
    )
    launch = Launch(
        settings=chosen,
        runs_dir=Path(runs_dir) if runs_dir else None,
        on_event=on_event,
        on_text=on_text,
        cancel=cancel or Stop(),
        clock=patient,
        in_memory=in_memory,
    )
    finished = run_for_answer(job, launch)
    conclusion = finished.ended.conclusion
    return Edited(
        summary=conclusion.text,
        citations=conclusion.citations,
        changed=tuple(context.changed),
        status=finished.ended.status,
        record=finished.record,
        run_dir=finished.run_dir.path if finished.run_dir else None,
        gaps=conclusion.gaps,
        annotator_kind=finished.annotator,
    )


def _recipe(workspace: Any, commands: Sequence[str]) -> dict[str, Any]:
    root = str(Path(workspace).absolute()) if isinstance(workspace, str | Path) else None
    return {"engine": "edit", "workspace": root, "commands": list(commands)}
