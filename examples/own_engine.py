"""An engine of your own: which TODO comments hide a bug? Data and three pure functions; loop, budgets and proofs are the runtime's.

OPENAI_API_KEY=… python examples/own_engine.py src/
"""

from __future__ import annotations

import sys
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

import sonde
from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.evidence import Citation, Refuted
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter, Problem

# The runtime fills the places in braces: what code may call, the language rules, the form of replies, how to finish.
SYSTEM = """You judge TODO comments. The variable todos lists them as {path, line, text}. Your replies are Python that is run.
{{functions}}
{{profile}} {{form}}
Read around each one, then finish with {{final}}: those that hide a bug, the worst first."""


class Todo(BaseModel):
    path: str
    line: int
    why: str


def prefilter(gathered: Gathered) -> Prefilter:
    """Before the first turn: what code can find, code finds. Its excerpts may be cited without another look."""
    found = gathered.registry.call("grep", {"pattern": r"\b(TODO|FIXME)\b", "max_matches": 200})
    return Prefilter(variables={"todos": found.result}, excerpts=found.excerpts)


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """What a final value amounts to. A Problem goes back to the model, so say how to do it right."""
    try:
        todos = TypeAdapter(list[Todo]).validate_python(value)
    except ValidationError as error:
        return Conclusion(
            output=None, problems=(Problem(gate="schema", reason=f"want [{{path, line, why}}]: {error}"),)
        )
    proved = [gathered.prover.lines(todo.path, todo.line, todo.line, signal="todo") for todo in todos]
    return Conclusion(
        output=[todo.model_dump() for todo in todos],
        text="\n".join(f"{todo.path}:{todo.line} {todo.why}" for todo in todos),
        citations=tuple(each for each in proved if isinstance(each, Citation)),
        problems=tuple(Problem(gate="evidence", reason=each.reason) for each in proved if isinstance(each, Refuted)),
    )


def fallback(gathered: Gathered) -> Conclusion:
    """No model, or no budget left: the same rows, unjudged. The record will say CODE, not LLM."""
    rows = gathered.prefilter.variables["todos"]
    text = "\n".join(f"{row['path']}:{row['line']} {row['text'].strip()}" for row in rows)
    return Conclusion(output=rows, text=text or "There are none.", gaps=(gathered.reason,))


TODOS = Engine(
    name="todos",
    run_type="ask",  # the record knows six kinds of run; yours is one of them
    output_type="Todos",
    system=SYSTEM,
    child=SYSTEM,
    budget=Budget(max_iterations=10, max_cost_usd=0.20),
    prefilter=prefilter,
    conclude=conclude,
    fallback=fallback,
    final_example='FINAL([{"path": "a.py", "line": 3, "why": "…"}])',
)

if __name__ == "__main__":
    found = sonde.run(TODOS, "Which TODO comments hide a bug?", FilesContext(sys.argv[1:]))
    print(f"{found.text}\n{found.status.value}, judged by {found.annotator_kind}")
