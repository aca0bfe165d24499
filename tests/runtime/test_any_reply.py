"""Whatever a model says, a run ends in an allowed state with a valid record."""

from __future__ import annotations

import random
import string

import pytest

from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.record import RunRecord
from sonde.core.status import RunStatus
from sonde.testing import ScriptedModel, run_in_memory

ENDS = {RunStatus.SUCCEEDED, RunStatus.PARTIAL, RunStatus.FAILED}
CONTEXT = FilesContext((), texts={"a.txt": "alpha\nbeta is 42\n"})
FRAGMENTS = [
    "```python\nx = 1\n```",
    "```python\nprint(list_files())",
    "```\nFINAL(",
    "FINAL('x')",
    "FINAL({'answer': 3, 'citations': [{'path': 'a.txt', 'start_line': 1}]})",
    "````python\n```python\nx\n```\n````",
    '{"reasoning": "r", "code": "x = 1"}',
    '{"type": "finalize"',
    "import os",
    "raise SystemExit",
    "1/0",
    "llm_query(5)",
    "add_citation('a.txt', 2, 2)",
    "\x00\x01",
    "é" * 50,
    "for i in range(3):\n  grep('[')",
    "~~~py\nSUBMIT(answer='x')\n~~~",
    "",
    " ",
    "def f(:\n",
    "```js\nconsole.log(1)\n```",
]


def reply(dice: random.Random) -> str:
    match dice.randrange(5):
        case 0:
            return "".join(dice.choices(string.printable, k=dice.randrange(200)))
        case 1:
            return dice.choice(FRAGMENTS)
        case 2:
            return "\n".join(dice.choices(FRAGMENTS, k=3))
        case 3:
            text = dice.choice(FRAGMENTS)
            return text[: dice.randrange(len(text) + 1)]
        case _:
            return dice.choice(FRAGMENTS) * dice.choice([1, 1, 1, 300])


@pytest.mark.requirement(122)
@pytest.mark.requirement(136)
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))])
def test_garbage_never_breaks_a_run(seed: int) -> None:
    """50 replies each, 2,000 in all."""
    dice = random.Random(seed)
    asked = 0
    while asked < 50:
        model = ScriptedModel(lambda _request: reply(dice))
        answer = run_in_memory(
            model,
            "?",
            CONTEXT,
            mode=dice.choice(["code", "code", "actions"]),
            profile=dice.choice(["analysis", "strict", "assign-only"]),
            budget=Budget(max_iterations=6, max_subcalls=3, max_tool_calls=20),
        )
        asked += len(model.requests)

        assert answer.status in ENDS
        assert RunRecord.model_validate(answer.record.model_dump(mode="json"))
        assert (answer.record.error is not None) or answer.status is RunStatus.SUCCEEDED
        assert answer.record.runtime_ref.usage.iterations <= 6
