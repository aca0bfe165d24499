"""`edit`: a task in a workspace, done in patches that somebody approved, with a cited summary."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from sonde.api.consent import is_own, seal_key
from sonde.api.follow_up import continued, continued_mask
from sonde.api.launch import RunOptions, launch, mask_of, model_names, spec_of
from sonde.api.recorded_run import open_run, recorded_mask, unmasked
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
    WireWorkspace,
    Workspace,
    WorkspaceContext,
    reject,
)
from sonde.contexts.workspace.history import PATCH, UNDO, UNDONE, WRITES, WriteLog, by_commands, net, way_back
from sonde.contexts.workspace.paths import clean_folder
from sonde.contexts.workspace.reach import NOT_CONFINED, confinable
from sonde.core.deadline import PatientClock, SystemClock
from sonde.engines.edit import EDIT
from sonde.errors import ConfigError, SondeError, ToolFault
from sonde.runs.rundir import RunDir, places_of, run_ids
from sonde.runtime.run import NO_MODEL

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

        if not callable(approve):
            raise ConfigError("approve is a function that gets each plan and says yes or no: approve=lambda plan: True")

        def asked(plan: Plan) -> Approval | bool:
            try:
                with patient.waiting():
                    said: Any = approve(plan)
            except SondeError:
                raise
            except Exception as error:  # noqa: BLE001  # foreign code: whatever it raises is no approval
                return Approval(accepted=False, reason=f"`approve` failed with {error!r:.200}", asked=False)
            if isinstance(said, Approval | bool):
                return said
            return Approval(accepted=False, reason=f"`approve` returned {said!r:.100}, not True or False", asked=False)

        workspace = LocalWorkspace(
            root, approve=asked, policy=policy, environment=command_environment(), without=without
        )
    options["mask"] = continued_mask(continue_from, mask_of(settings, options), settings, options.get("runs_dir"))
    context = WorkspaceContext(workspace, commands=commands, waiting=waiting)
    real = context.real
    local = str(root.absolute() if root else real.root.path) if isinstance(real, LocalWorkspace) else None
    recipe: dict[str, Any] = {"engine": "edit", "workspace": local, "commands": list(commands)}
    recipe |= {"folder": real.folder} if isinstance(real, WireWorkspace) else {}
    recipe |= {"judges_commands": True} if commands else {}
    recipe |= {"gitignore": gitignore, "exclude": list(Exclusion.of(exclude).globs)} if root else {}
    notes = (NOT_CONFINED,) if commands and not confinable() else ()
    spec = spec_of(EDIT, task, context, settings, options)
    if spec.model is None:
        raise ConfigError(f"nothing was edited: {NO_MODEL}")
    spec = replace(spec, recipe={**recipe, **model_names(spec)}, notes=notes)
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

    run        the edit: an id or its beginning, a folder, or "last", your newest edit of the folder that is not taken back yet
    workspace  the folder to put right; without one, the working folder, if the edit was made there
    approve    called with the plan before it is written; the default says no
    """
    settings = settings or load_settings()
    folder = Path(workspace or Path.cwd()).resolve()
    found = _last_edit(folder, settings, runs_dir) if run == "last" else settings.find_run(run, runs_dir)
    run_id, made_in = found.run_id, _made_in(found, settings)
    log = WriteLog(found.path, seal_key(settings.environ))
    if not is_own(found, settings.environ) or not log.is_own():
        raise ConfigError(
            f"run {run_id} does not have your seal, or was changed since: nothing is taken back by it. If you trust it, look at "
            f"{found.path / UNDO}, which git can apply"
        )
    if found.is_running():
        raise ConfigError(f"run {run_id} is still running; stop it first")
    written = log.read()
    touched, commands = net(written).changes, ", ".join(by_commands(written))
    withheld = next((each.withheld for each in written if each.withheld), "")
    if withheld:
        names = ", ".join(change.path for change in touched)
        raise ConfigError(f"run {run_id} cannot be taken back here: {withheld}. It wrote {names}")
    if not touched:
        only = "" if (found.path / WRITES).exists() else ", or an older Sonde made it"
        only = f"; only its commands changed files, which are not taken back: {commands}" if commands else only
        raise ConfigError(f"run {run_id} wrote nothing{only}. `sonde runs --type edit` lists edits, to name one")
    if workspace is None and folder != made_in:
        raise ConfigError(f"run {run_id} was made in {made_in}, not here; to take it back: {undo_command(found)}")
    target = LocalWorkspace(folder, approve=approve)
    try:
        plan = way_back(written, target.text)
        if not plan.changes:
            raise PatchRefused("its files are as it found them: it was taken back already, or stopped before it wrote")
        if commands:
            plan = replace(plan, notes=(*plan.notes, f"changed by commands and not taken back: {commands}"))
        done = target.apply(plan)
    except ToolFault as refused:
        reason = refused.message.removeprefix("patch refused, nothing was changed: ")
        log.write_patches()
        raise ToolFault(
            f"run {run_id} is not taken back: {reason}. What still fits: {git_command(found, UNDO, folder, '--reject')}"
        ) from None
    if not done.applied:
        return replace(done, summary=done.summary.partition(": ")[2])
    with suppress(OSError):  # then the files themselves say that it was taken back
        found.write_text(UNDONE, "")
    log.write_patches()
    names = ", ".join(change.path for change in plan.changes)
    return replace(
        done, summary=f"run {run_id} is taken back: {names}\nto redo it: {git_command(found, PATCH, folder)}"
    )


def _made_in(run: RunDir, settings: Settings) -> Path | None:
    """The folder that an edit worked in."""
    told = run.settings()
    if told.get("mask"):
        with suppress(ConfigError):
            recorded = open_run(run)
            told = unmasked(recorded.started, recorded_mask(recorded, settings)).settings
    place = told.get("workspace") or told.get("folder")
    return Path(place).resolve() if isinstance(place, str) and place else None


def _last_edit(folder: Path, settings: Settings, runs_dir: str | Path | None) -> RunDir:
    """The user's newest edit in this folder that wrote something and is not taken back, wherever its run lies."""
    places = places_of(runs_dir or settings.all_run_places())
    paths = [place / run_id for place in places for run_id in run_ids(place)]
    elsewhere: list[RunDir] = []
    for path in sorted(paths, key=lambda path: path.name, reverse=True):
        run = RunDir(path)
        if not (path / WRITES).is_file() or (path / UNDONE).exists() or not is_own(run, settings.environ):
            continue
        written = WriteLog(path, seal_key(settings.environ)).read()
        if written and not net(written).changes and not by_commands(written):
            continue  # all of it was refused
        if _made_in(run, settings) == folder:
            return run
        elsewhere.append(run)
    around = {folder, *folder.parents}
    near = (
        each
        for each in elsewhere
        if (place := _made_in(each, settings)) and (place in around or folder in place.parents)
    )
    other = f"; the last one elsewhere: {undo_command(next(near, elsewhere[0]))}" if elsewhere else ""
    raise ConfigError(f"no edit of yours in {folder} is left to take back{other}")


def undo_command(run: RunDir, folder: str | Path | None = None) -> str:
    """The command that takes an edit back, with the folder that it was made in, or the name that the user gave it."""
    told = run.settings()
    place = str(folder or told.get("workspace") or told.get("folder") or "")
    return shlex.join(["sonde", "undo", run.run_id, *([place] if place else [])])


def git_command(run: RunDir, patch: str, folder: Path, *options: str) -> str:
    """The command that applies a patch of a run in a folder. Git takes the names from the top of the repository, if there is one."""
    top = next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)
    inside = [f"--directory={folder.relative_to(top)}"] if top != folder else []
    return shlex.join(["git", "-C", str(folder), "apply", *options, *inside, str(run.path.resolve() / patch)])
