"""The variables of a Monty session after a turn: which are there, and which are new or changed.

Asked of the interpreter itself, so hostile code can lie here about its own variables; it can do nothing else with it.
"""

from __future__ import annotations

from typing import Any, cast

from sonde.sandbox.base import Variable
from sonde.sandbox.policy import FINISH_NAMES
from sonde.sandbox.portable.dialogue import Dialogue, OverQuota, Rules, Stuck
from sonde.sandbox.portable.guard import Guard, OutOfTime
from sonde.sandbox.worker.report import SHOWN_VARIABLES

Marks = dict[str, tuple[int, int]]
"""{name: (identity, length)} of the variables that were there."""

ASK = (
    "[(k, type(v).__name__, id(v), len(v) if isinstance(v, (str, bytes, list, tuple, dict, set, frozenset, range)) else -1)"
    " for k, v in locals().items()]"
)
HIDDEN = FINISH_NAMES | {"ToolError"}
NAME_CHARS = 200
_KINDS = (str, str, int, int)


def survey(rules: Rules, guard: Guard, session: Any, before: Marks) -> tuple[Marks, tuple[Variable, ...]]:
    """The marks of all variables now, and the variables that changed since `before`."""
    rows = _rows(rules, guard, session)
    if rows is None:
        return before, ()
    shown = [(name, kind, mark, size) for name, kind, mark, size in rows if not name.startswith("_")]
    hidden = HIDDEN | (rules.functions or frozenset())
    shown = [row for row in shown if row[0] not in hidden and row[1] != "module"]
    marks: Marks = {name: (mark, size) for name, _, mark, size in shown}
    changed = [
        Variable(name[:NAME_CHARS], kind[:NAME_CHARS], size if size >= 0 else None)
        for name, kind, mark, size in shown
        if before.get(name) != (mark, size)
    ]
    return marks, tuple(changed[:SHOWN_VARIABLES])


def _rows(rules: Rules, guard: Guard, session: Any) -> list[tuple[str, str, int, int]] | None:
    """None when the code has taken away the builtins that this needs."""
    silent = Dialogue(_without_host(rules), guard, None, ())
    try:
        answer = silent.ask(session, ASK)
    except (rules.monty.MontyError, OutOfTime, OverQuota, Stuck):
        return None
    found = cast("list[Any]", answer) if isinstance(answer, list) else []
    return [row for row in found if _well_formed(row)]


def _without_host(rules: Rules) -> Rules:
    return Rules(
        monty=rules.monty,
        language=rules.language,
        profile=rules.profile,
        limits=rules.limits,
        host=None,
        functions=None,
        sharing=frozenset(),
    )


def _well_formed(row: Any) -> bool:
    if not isinstance(row, tuple):
        return False
    fields = cast("tuple[Any, ...]", row)
    return len(fields) == 4 and all(isinstance(each, kind) for each, kind in zip(fields, _KINDS, strict=True))
