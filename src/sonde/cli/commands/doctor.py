"""`sonde doctor`: can untrusted code run safely here?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import spread
from sonde.cli.text import escaped_json, one_line

if TYPE_CHECKING:
    from sonde.sandbox.doctor import Diagnosis

EXTRAS = {
    "models": "pydantic_ai",
    "otel": "opentelemetry.sdk",
    "code": "tree_sitter",
    "data": "duckdb",
    "pdf": "pypdf",
    "mcp": "mcp",
    "acp": "acp",
    "monty": "pydantic_monty",
    "cluster": "ray",
    "local": "xllamacpp",
}
"""Each extra and a module that it installs."""


def register(app: typer.Typer) -> None:
    app.command()(spread(doctor))


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Can untrusted code run safely here? Tries it for real.

    Prints layers, kernel, Python and versions.
    Exit code 1 if untrusted code cannot run safely.
    """
    from sonde.sandbox.doctor import examine

    return report(examine(), json=json)


def report(found: Diagnosis, *, json: bool) -> int:
    """Print it; the exit code."""
    if json:
        from sonde.runs.rundir import pretty_json

        more = {"extras": installed(), "mixed_up": mixed_up()}
        sys.stdout.write(escaped_json(pretty_json(asdict(found) | more).decode()))
    else:
        print(f"kernel    {found.kernel} on {found.machine}")
        print(f"python    {found.python}")
        print(f"versions  {', '.join(f'{name} {version}' for name, version in found.versions.items())}")
        print(f"extras    {', '.join(name for name, there in installed().items() if there) or 'none'}")
        print(f"layers    {', '.join(found.layers) or 'none'}")
        print(f"profiles  {', '.join(found.profiles)}")
        if warning := mixed_up():
            print(f"warning   {warning}")
        for check in found.checks:
            why = "" if check.ok else f": {one_line(check.detail, 200)}"
            print(f"  {'ok ' if check.ok else 'NO '} {check.name}{why}")
        verdict = "can run safely here" if found.safe else f"CANNOT run safely here: {found.problem}"
        print(f"untrusted code {verdict}")
    return 0 if found.safe else 1


def mixed_up() -> str | None:
    """A warning if the unrelated distribution `sonde` is installed too: its files and ours have the same names."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        other = distribution("sonde")
    except PackageNotFoundError:
        return None
    return (
        f"the distribution sonde {other.version}, which is not ours, is installed beside sonde-rlm and overwrites its files: "
        "pip uninstall sonde, then pip install --force-reinstall --no-deps sonde-rlm"
    )


def installed() -> dict[str, bool]:
    """Which extras are installed; they are looked up, not imported."""
    from importlib.util import find_spec

    found: dict[str, bool] = {}
    for name, module in EXTRAS.items():
        try:
            found[name] = find_spec(module) is not None
        except ModuleNotFoundError:  # its parent package is missing
            found[name] = False
    return found
