"""`sonde rlms`: the drop-in worker for agent loops, its trigger policy and its canary gate."""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from sonde.cli.options import CommandList, spread
from sonde.cli.text import printable
from sonde.errors import ConfigError

Text = str | None
Role = Annotated[str, typer.Option(metavar="NAME", help="The role that is about to run.")]
LoopId = Annotated[str, typer.Option(metavar="ID", help="The loop.")]
OutputDir = Annotated[Path | None, typer.Option(metavar="DIR", help="The role's folder, …/rlms/iter-N/<role>.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """Every flag of the worker. All are text here, so that mistakes in them also go into result.json."""

    repo: Annotated[Text, typer.Option(metavar="DIR", help="The repository; programs run there. Required.")] = None
    loop_id: Annotated[Text, typer.Option(metavar="ID", help="The loop. Required.")] = None
    role: Annotated[Text, typer.Option(metavar="NAME", help="The role that is about to run. Required.")] = None
    iteration: Annotated[Text, typer.Option(metavar="N", help="The loop's iteration. Required.")] = None
    context_file_list: Annotated[Text, typer.Option(metavar="FILE", help="Paths, one per line. Required.")] = None
    output_dir: Annotated[Text, typer.Option(metavar="DIR", help="…/rlms/iter-N/<role>. Required.")] = None
    max_steps: Annotated[Text, typer.Option(metavar="N", help="Steps of the root model. Required.")] = None
    max_depth: Annotated[Text, typer.Option(metavar="N", help="Deepest declared sub-call. Required.")] = None
    timeout_seconds: Annotated[Text, typer.Option(metavar="S", help="Hard wall-clock limit. Required.")] = None
    max_subcalls: Annotated[Text, typer.Option(metavar="N", help="0 means twice the steps.")] = None
    root_command_json: Annotated[Text, typer.Option(metavar="JSON", help="The root model, as in '[\"codex\"]'.")] = None
    root_args_json: Annotated[Text, typer.Option(metavar="JSON", help="Its arguments, a JSON array.")] = None
    root_prompt_mode: Annotated[Text, typer.Option(metavar="stdin|file", help="How it gets its prompt.")] = None
    subcall_command_json: Annotated[
        Text, typer.Option(metavar="JSON", help="The sub-call model; by default the root.")
    ] = None
    subcall_args_json: Annotated[Text, typer.Option(metavar="JSON", help="Its arguments, a JSON array.")] = None
    subcall_prompt_mode: Annotated[Text, typer.Option(metavar="stdin|file", help="How it gets its prompt.")] = None
    require_citations: Annotated[Text, typer.Option(metavar="BOOL", help="true (default) or false.")] = None
    format: Annotated[Text, typer.Option(metavar="json", help="The only format.")] = None
    metadata_file: Annotated[Text, typer.Option(metavar="FILE", help="A JSON object for prompt and result.")] = None
    runs_dir: Annotated[Text, typer.Option(metavar="DIR", help="Keep the journal of the run there.")] = None


def register(app: typer.Typer) -> None:
    group = typer.Typer(cls=CommandList, rich_markup_mode=None, help=rlms.__doc__)
    group.callback(invoke_without_command=True)(_alone(spread(rlms)))
    group.command()(spread(decide))
    group.command()(spread(gate))
    app.add_typer(group, name="rlms")


def _alone(command: Callable[..., None]) -> Callable[..., None]:
    """The command of the group itself: it runs only if no sub-command was typed."""

    @functools.wraps(command)
    def run(context: typer.Context, **given: Any) -> None:
        if context.invoked_subcommand is None:
            command(**given)

    shown = inspect.signature(command)
    first = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    run.__annotations__ = {"context": typer.Context, **command.__annotations__}
    run.__signature__ = shown.replace(parameters=[first, *shown.parameters.values()])  # type: ignore[attr-defined]  # where inspect looks first
    return run


def rlms(
    *,
    fail_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="On failure: warn_and_continue warns and exits with 0, fail_role exits with its code."
        ),
    ] = None,
    standalone: Annotated[
        bool,
        typer.Option(
            "--standalone", help="No loop is around: also write status.json, latest/, index.json, events and runs/."
        ),
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Also print the result.")] = False,
    flags: Flags,
) -> int:
    """Look into a role's files before it runs: highlights and proved citations in result.json and summary.md.

    Exit codes: 0 ok; 2 missing_root_command, invalid_config, limit_exceeded; 1 sandbox_violation,
    model_invocation_failed, worker_failure, missing_python, invalid_worker_output. SUPERLOOP_RLMS_ROOT_COMMAND_JSON
    and the other SUPERLOOP_RLMS_* variables override their flags.
    """
    from sonde.rlms.policy import role_goes_on
    from sonde.rlms.wrapper import invoke_from_shell

    if fail_mode not in (None, "warn_and_continue", "fail_role"):
        raise ConfigError(f"--fail-mode {fail_mode!r}: write warn_and_continue or fail_role")
    code, result = invoke_from_shell({**asdict(flags), "standalone": str(standalone).lower()}, os.environ)
    if json_:
        print(json.dumps(result))
    if code:
        print(printable(f"sonde: rlms failed: {result['error_code']}: {result['error']}"), file=sys.stderr)
    if code and fail_mode is not None and role_goes_on(fail_mode, ok=False):
        print("sonde: warn_and_continue: the role continues without it", file=sys.stderr)
        return 0
    return code


def decide(
    *,
    config: Annotated[str, typer.Option(metavar="FILE", help="The loop's configuration, or its rlms section.")],
    role: Role,
    context_file_list: Annotated[str, typer.Option(metavar="FILE", help="Paths, one per line.")],
    repo: Annotated[str, typer.Option(metavar="DIR", help="The repository.")] = ".",
    loop_id: LoopId = "",
    iteration: Annotated[int, typer.Option(metavar="N", help="The loop's iteration.")] = 0,
    request_file: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="Where to look for the request keyword; by default in the listed files."),
    ] = None,
    metadata_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="Metadata to store with the decision.")
    ] = None,
    output_dir: OutputDir = None,
) -> int:
    """Say whether the worker should run for a role, and why; exit code 0 either way.

    With --output-dir the decision is kept: in metadata.json, as an event, and as a skipped status.json if nothing
    should run.

    Example: sonde rlms decide --config loop.json --role planner --context-file-list files.txt --output-dir DIR
    """
    from sonde.rlms.policy import RoleFiles, answer

    asked = RoleFiles(
        config=config,
        role=role,
        context_file_list=context_file_list,
        repo=repo,
        loop_id=loop_id,
        iteration=iteration,
        request_files=tuple(request_file or ()),
        metadata_file=metadata_file,
        output_dir=output_dir,
    )
    print(json.dumps(answer(asked)))
    return 0


def gate(
    *,
    output_dir: OutputDir = None,
    status_file: Annotated[Path | None, typer.Option(metavar="FILE", help="status.json, if not in DIR.")] = None,
    result_file: Annotated[Path | None, typer.Option(metavar="FILE", help="result.json, if not in DIR.")] = None,
    highlight_pattern: Annotated[
        str | None, typer.Option(metavar="REGEX", help="One of the highlights must match this (RE2).")
    ] = None,
) -> int:
    """Check the canary gate: status ok, meant to run, result ok, a citation that is not a fallback. Exit code 0 or 1.

    Example: sonde rlms gate --output-dir .superloop/loops/demo/rlms/iter-1/planner
    """
    from sonde.rlms.canary import judge, read_object
    from sonde.rlms.layout import RESULT, STATUS

    if output_dir is None and (status_file is None or result_file is None):
        raise ConfigError("give --output-dir, or both --status-file and --result-file")
    folder = output_dir or Path()
    places = status_file or folder / STATUS, result_file or folder / RESULT
    status, result = map(read_object, places)
    verdict = judge(status, result, highlight_pattern)
    reasons = [
        f"{place} is not there or holds no JSON object{writer}"
        for place, found, writer in zip(
            places, (status, result), ("; a loop or `rlms --standalone` writes it", ""), strict=True
        )
        if not found
    ]
    print(json.dumps({**verdict.as_dict(), **({"reasons": reasons} if reasons else {})}))
    return 0 if verdict.ok else 1
