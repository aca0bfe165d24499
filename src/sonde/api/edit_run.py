"""`edit`: a task in a workspace, done in patches that somebody approved, with a cited summary."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from sonde.api.consent import is_own
from sonde.api.follow_up import continued, continued_mask
from sonde.api.launch import RunOptions, launch, mask_of, model_names, spec_of
from sonde.api.recorded_run import open_run
from sonde.api.result import Edited
from sonde.api.settings import Settings, load_settings
from sonde.api.sources import parsed_without
from sonde.contexts.files.exclusion import Exclusion
from sonde.contexts.workspace import (
    PLAIN,
    Applied,
    Approval,
    Approve,
    LocalWorkspace,
    PatchRefused,
    Plan,
    Policy,
    Workspace,
    WorkspaceContext,
    plan_patch,
    reject,
)
from sonde.contexts.workspace.paths import clean_folder
from sonde.contexts.workspace.reach import NOT_CONFINED, confinable
from sonde.core.deadline import PatientClock, SystemClock
from sonde.engines.edit import EDIT
from sonde.errors import ConfigError, ToolFault
from sonde.runs.catalog import list_runs
from sonde.runs.rundir import RunDir
from sonde.runtime.finish import Outcome
from sonde.runtime.run import NO_MODEL

PATCH, UNDO = "edit.patch", "undo.patch"
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "VIRTUAL_ENV")


def command_environment() -> dict[str, str]:
    """What allowed commands see of the caller's environment: where programs are, and nothing that could be a key."""
    found = {name: value for name in PASSED_ON if (value := os.environ.get(name))}
    return {**PLAIN, **found}


def command_policy(settings: Settings, commands: Sequence[str], folders: Sequence[str] = ()) -> Policy:
    """What may be run in a workspace, and what that may reach; ConfigError names a place that is not there."""
    for name in ("command_read", "command_write"):
        for missing in (each for each in getattr(settings, name) if not Path(each).exists()):
            raise ConfigError(
                f"{missing} (from {settings.sources.get(name, name)}) is not there; give a folder that is"
            )
    return Policy(
        commands=tuple(commands),
        command_folders=tuple(map(clean_folder, folders)),
        command_read=tuple(str(Path(each).absolute()) for each in settings.command_read),
        command_write=tuple(str(Path(each).absolute()) for each in settings.command_write),
    )


def edit(
    task: str,
    workspace: str | Path | Workspace = ".",
    *,
    approve: Approve = reject,
    commands: Sequence[str] = (),
    command_folders: Sequence[str] = (),
    command_read: Sequence[str | Path] = (),
    command_write: Sequence[str | Path] = (),
    exclude: Sequence[str] = (),
    gitignore: bool = True,
    continue_from: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> Edited:
    """Do a task in a workspace. Nothing is written unless `approve` says yes to the plan; the default says no.

    task       what to do
    workspace  the folder to work in, or a Workspace such as an editor's
    approve    called with each plan of changes before it is written
    commands   commands that the task may run: "=npm test" exactly, "npm test" with any words after it
    command_folders  folders below the root in which those commands may also run
    command_read, command_write  places outside of the workspace that they may also read or write
    exclude    globs of files and folders that are neither read nor written, as in .gitignore; of a folder, not of a Workspace
    gitignore  False: list what .gitignore files name, too; by name it can be read in any case
    continue_from  a run (id, folder or "last") to go on from, for example one that a limit has ended

    The other keywords are those of `ask`: model, budget, runs_dir and so on.
    """
    if not task.strip():
        raise ConfigError("the task is empty; say what to change, for example: sonde edit 'Rename load to read' src/")
    settings = options.get("settings") or load_settings()
    settings = replace(
        settings,
        command_read=(*settings.command_read, *map(str, command_read)),
        command_write=(*settings.command_write, *map(str, command_write)),
    )
    options["clock"] = patient = PatientClock(options.get("clock") or SystemClock())
    root, waiting = None, patient.waiting
    if isinstance(workspace, str | Path):
        root = Path(workspace)
        if not root.is_dir():
            raise ConfigError(
                f"{workspace} is not a folder; give the folder to work in, for example: sonde edit 'TASK' src/"
            )
        exclusion = Exclusion.of(exclude, gitignore=gitignore).below(str(root.absolute()))
        policy = replace(command_policy(settings, commands, command_folders), exclusion=exclusion)
        without = parsed_without("kernel", unsafe=options.get("unsafe", False), without=options.get("without", ""))
        waiting = nullcontext  # only while the user is asked; the work on a plan is the run's time

        def asked(plan: Plan) -> Approval | bool:
            with patient.waiting():
                return approve(plan)

        workspace = LocalWorkspace(
            root, approve=asked, policy=policy, environment=command_environment(), without=without
        )
    options["mask"] = continued_mask(continue_from, mask_of(settings, options), settings, options.get("runs_dir"))
    context = WorkspaceContext(workspace, commands=commands, waiting=waiting)
    recipe = {"engine": "edit", "workspace": str(root.absolute()) if root else None, "commands": list(commands)}
    recipe |= {"judges_commands": True} if commands else {}
    recipe |= {"gitignore": gitignore, "exclude": list(Exclusion.of(exclude).globs)} if root else {}
    notes = (NOT_CONFINED,) if commands and not confinable() else ()
    spec = spec_of(EDIT, task, context, settings, options)
    if spec.model is None:
        raise ConfigError(f"nothing was edited: {NO_MODEL}")
    spec = replace(spec, recipe={**recipe, **model_names(spec)}, notes=notes)
    if isinstance(workspace, LocalWorkspace) and spec.mask is None:  # it would hold what a mask hides
        changed = workspace

        def files(_outcome: Outcome, _run_id: str) -> dict[str, str]:
            plan = changed.changes()
            return {PATCH: plan.diff(), UNDO: plan.inverse().diff()} if plan.changes else {}

        spec = replace(spec, files=files)
    with ExitStack() as stack:
        if continue_from is not None:
            spec = stack.enter_context(continued(spec, continue_from, settings, options.get("runs_dir")))
        edited = launch(spec, settings)
    assert isinstance(edited, Edited)
    return edited


def undo(
    run: str | Path = "last",
    workspace: str | Path | None = None,
    *,
    approve: Approve = reject,
    settings: Settings | None = None,
    runs_dir: str | Path | None = None,
) -> Applied:
    """Take back what an edit wrote, all of it or nothing. Lines that have changed since refuse it (ToolFault).

    run        the edit: an id or its beginning, a folder, or "last", your newest edit that wrote something
    workspace  the folder to put right; without one, the working folder, if the edit was made there
    approve    called with the plan before it is written; the default says no
    """
    settings = settings or load_settings()
    if run == "last":
        edits = list_runs(runs_dir or settings.run_places(), run_type="edit")
        written = (each.path for each in edits if (each.path / UNDO).is_file())
        found = next((path for path in written if is_own(RunDir(path), settings.environ)), None)
        if found is None:
            raise ConfigError("no edit of yours here wrote anything; `sonde runs --type edit` lists edits, to name one")
        run = found
    recorded = open_run(settings.find_run(run, runs_dir))
    run_id, patch = recorded.run_dir.run_id, recorded.run_dir.text(UNDO)
    if patch is None:
        raise ConfigError(
            f"run {run_id} has no {UNDO}: it wrote nothing, was masked, or is of an older version. `sonde runs --type edit` lists edits"
        )
    made_in = recorded.started.settings.get("workspace")
    if workspace is None and str(Path.cwd()) != made_in:
        raise ConfigError(f"run {run_id} was made in {made_in}, not here; say where: sonde undo {run_id} FOLDER")
    target = LocalWorkspace(workspace or Path.cwd(), approve=approve)
    try:
        return target.apply(plan_patch(patch, target.text))
    except PatchRefused as refused:
        reason = refused.message.split("Example:")[0].strip()
        raise ToolFault(f"run {run_id} was taken back already, or these files have changed since: {reason}") from None
