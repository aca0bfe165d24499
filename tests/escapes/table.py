"""Prints the escape table: families, payloads, how many got out of plain CPython, and of the sandbox, by user and profile.

Usage: PYTHONPATH=tests python tests/escapes/table.py [--markdown]; with pydantic-monty on the path there is a column for that backend too.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from corpus import families, payloads
from ordinary import can_be_ordinary, free_uid
from stage import Verdict, confined, control, interpreted


def main(arguments: Sequence[str]) -> None:
    columns = {"plain CPython": control(), f"open, {_whoever()}": confined("open", None, payloads())}
    if os.geteuid() == 0 and can_be_ordinary():
        columns["open, ordinary user"] = confined("open", free_uid(), payloads())
    columns["language rules alone"] = confined("analysis", None, payloads(), without=["landlock", "seccomp"])
    columns["general"] = confined("general", None, payloads())
    columns["analysis"] = confined("analysis", None, payloads())
    columns["strict"] = confined("strict", None, payloads())
    if find_spec("pydantic_monty") is not None:
        columns["monty, open"] = interpreted("open", payloads())
    rows = [["family", "payloads", *columns], *_rows(columns)]
    print(_markdown(rows) if "--markdown" in arguments else _aligned(rows))
    print(f"\nGot out, by column: {', '.join(f'{name} {_wins(found)}' for name, found in columns.items())}.")
    print(f"What stopped them in the open profile: {_reasons(columns[f'open, {_whoever()}'])}.")


def _whoever() -> str:
    return "root" if os.geteuid() == 0 else "ordinary user"


def _rows(columns: dict[str, list[Verdict]]) -> list[list[str]]:
    count = Counter(payload.family for payload in payloads())
    return [
        [
            family,
            str(count[family]),
            *(str(_wins(one for one in found if one.payload.family == family)) for found in columns.values()),
        ]
        for family in families()
    ]


def _wins(verdicts: Iterable[Verdict]) -> int:
    return sum(bool(verdict.won) for verdict in verdicts)


def _reasons(verdicts: list[Verdict]) -> str:
    names = {
        "error": "a refused system call",
        "violation": "SIGSYS",
        "import": "no file to import",
        "crash": "a crash of its own",
    }
    names |= {"memory": "the memory limit", "timeout": "the time limit", "none": "nothing to be found"}
    found = Counter(names.get(verdict.fault or "none", str(verdict.fault)) for verdict in verdicts)
    return ", ".join(f"{reason} {number}" for reason, number in found.most_common())


def _markdown(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


if __name__ == "__main__":
    main(sys.argv[1:])
