"""`sonde exec`: run a program in the sandbox."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sonde.cli.options import Without, spread
from sonde.cli.text import escaped_json, indented, printable_lines

if TYPE_CHECKING:
    from sonde.sandbox import ExecResult

Share = Annotated[list[str] | None, typer.Option(metavar="NAME=PATH", help="A file as the variable NAME; repeatable.")]
Profile = Annotated[
    str | None, typer.Option(metavar="P", help="open, general, analysis (default), strict, assign-only.")
]


def register(app: typer.Typer) -> None:
    app.command("exec")(spread(exec_))


def exec_(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="The program; - is standard input.")],
    *,
    profile: Profile = None,
    share: Share = None,
    wall: Annotated[float, typer.Option(metavar="S", help="Seconds it may run.")] = 30.0,
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Memory it may use, e.g. 512MiB.")] = "1GiB",
    backend: Annotated[
        str | None,
        typer.Option(metavar="kernel|monty", help="What runs it; monty is an interpreter without kernel layers."),
    ] = None,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Run it even if the kernel cannot confine it.")] = False,
    without: Without = "",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Run a Python program in the sandbox.

    It has no files, no network and no processes.

    Example: echo 'print(sum(range(10)))' | sonde exec -
    """
    from sonde.api.settings import load_settings
    from sonde.cli.inputs import named_file, read_program
    from sonde.sandbox import Limits, open_box

    code = read_program(file)
    shares = [named_file(word) for word in share or []]
    limits = Limits(wall_s=wall, memory=memory)
    chosen = load_settings(sandbox_profile=profile, backend=backend)
    profile = chosen.sandbox_profile or "analysis"
    box = open_box(chosen.backend, profile=profile, limits=limits, unsafe=unsafe, without=without)
    with contextlib.closing(box):
        for name, path in shares:
            box.share(name, path)
        result = box.execute(code)
    if json:
        from sonde.runs.rundir import pretty_json

        shown: dict[str, Any] = asdict(result) | {
            "final": result.final and result.final.value,
            "finished": bool(result.final),
            "fault": result.fault and asdict(result.fault) | {"code": result.fault.code},
        }
        sys.stdout.write(escaped_json(pretty_json(shown).decode()))
    else:
        _print_plainly(result)
    return 0 if result.ok else 1


def _print_plainly(result: ExecResult) -> None:
    """The program's output to stdout and stderr, then its final value; what stopped it goes to stderr."""
    from sonde.core.canonical import canonical_json, jsonable

    for text, stream in ((result.stdout, sys.stdout), (result.stderr, sys.stderr)):
        stream.write(printable_lines(text) if stream.isatty() else text)
        stream.flush()
    if result.final is not None:
        value = result.final.value
        print(printable_lines(value if isinstance(value, str) else canonical_json(jsonable(value))))
    lines = list(result.warnings)
    if fault := result.fault:
        place = f" (line {fault.line})" if fault.line else ""
        code = f" [{fault.code}]" if fault.kind == "violation" else ""
        hint = fault.hint or ""
        told = hint.partition("\n")[0] in fault.message  # a refusal already carries its example
        lines += [f"{fault.kind}{place}: {fault.message}{code}", *([] if told else [hint])]
    for line in lines:
        print(f"sonde: {indented(line)}", file=sys.stderr)
