"""`sonde diff`: two runs side by side, apart from ids and times."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import PlaceOptions, settings_of, spread
from sonde.cli.text import escaped_json, printable_lines, some_lines

if TYPE_CHECKING:
    from sonde.runs.compare import Comparison, Evidence, Pair


def register(app: typer.Typer) -> None:
    app.command()(spread(diff))


def diff(
    left: Annotated[str, typer.Argument(metavar="A")],
    right: Annotated[str, typer.Argument(metavar="B")],
    *,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 1 if they differ.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    place: PlaceOptions,
) -> int:
    """Compare two runs, apart from ids and times.

    Prints equal or the first difference, then cost, tokens, tools, evidence and answer.
    """
    from sonde.runs.compare import compare
    from sonde.runs.rundir import pretty_json

    settings = settings_of(place)
    result = compare(settings.find_run(left).events(), settings.find_run(right).events())
    if json:
        sys.stdout.write(escaped_json(pretty_json(result.as_dict()).decode()))
    else:
        print("\n".join(map(printable_lines, _page(result))))
    return 1 if exit_code and not result.equal else 0


def _page(result: Comparison) -> Iterable[str]:
    yield f"A {result.left}\nB {result.right}"
    yield "equal, apart from ids and times" if result.equal else "different"
    if result.first_difference is not None:
        first = result.first_difference
        yield f"\nfirst difference: {first.session}, {first.what}{', ' + first.field if first.field else ''}"
        for name, side in (("A", first.left), ("B", first.right)):
            yield from (f"  {name} {line}" for line in some_lines("(nothing)" if side is None else side, 12))
    yield from _table("numbers", result.numbers)
    yield from _table("tools", result.tools)
    yield from _sides("evidence", result.evidence)
    yield from _sides("citations", result.citations)
    yield "\nthe answers are the same" if result.same_answer else "\nthe answers differ:"
    yield from (f"  {line}" for line in result.answer_diff)


def _table(title: str, pairs: Sequence[Pair]) -> Iterable[str]:
    if pairs:
        yield f"\n{title:24} {'A':>14} {'B':>14}"
    for pair in pairs:
        yield f"  {pair.name:22} {_number(pair.left)} {_number(pair.right)}" + (
            "" if pair.left == pair.right else "  *"
        )


def _number(value: float | None) -> str:
    if value is None:
        return f"{'unknown':>14}"
    return f"{value:>14,}" if isinstance(value, int) else f"{value:>14,.4f}"


def _sides(title: str, evidence: Evidence) -> Iterable[str]:
    yield f"\n{title}: {evidence.both} in both, {len(evidence.only_left)} only in A, {len(evidence.only_right)} only in B"
    for name, refs in (("A", evidence.only_left), ("B", evidence.only_right)):
        yield from (f"  {name} {ref}" for ref in refs[:10])
