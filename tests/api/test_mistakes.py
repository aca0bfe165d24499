"""Mistakes of whoever embeds Sonde are named in a sentence, and a callback that fails does no harm."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.errors import ConfigError
from sonde.models import Model, ModelReply, ModelRequest
from sonde.testing import ScriptedModel

PATCH = """patch = '''*** Begin Patch
*** Update File: a.txt
@@
-old
+new
*** End Patch'''
apply_patch(patch)
FINAL("changed a.txt")"""


@dataclass
class Point:
    x: int


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"schema": object()}, "schema is a JSON schema"),
    ({"budget": {"max_iterations": 2}}, "budget is a sonde.Budget"),
    ({"model": print}, "is no model"),
    ({"tools": len}, "tools is a list of functions"),
]


@pytest.mark.parametrize(("given", "said"), MISTAKES, ids=[next(iter(given)) for given, _ in MISTAKES])
def test_a_wrong_argument_is_named(given: dict[str, Any], said: str) -> None:
    whole: dict[str, Any] = {"model": ScriptedModel(["```python\nFINAL(1)\n```"]), "in_memory": True} | given

    with pytest.raises(ConfigError, match=said):
        sonde.ask("Which?", {"a": 1}, **whole)


@pytest.mark.parametrize(
    ("schema", "value", "typed"),
    [(int, 3, 3), (list[int], [1, 2], [1, 2]), (Point, {"x": 1}, Point(1))],
    ids=["int", "list", "dataclass"],
)
def test_any_type_that_pydantic_knows_is_a_schema(schema: Any, value: Any, typed: Any) -> None:
    model = ScriptedModel([f"```python\nFINAL({value!r})\n```"])

    answer = sonde.ask("Which?", {"a": 1}, schema=schema, model=model, citations=False, in_memory=True)

    assert answer.value == typed


def test_a_model_that_returns_a_text_is_told_what_to_return() -> None:
    class Careless:
        name = "careless"

        def complete(self, request: ModelRequest, **_: Any) -> Any:
            return "42"

    with pytest.raises(ConfigError, match="returned a str; `complete` returns a"):
        sonde.ask("Which?", {"a": 1}, model=Careless(), in_memory=True)


def test_a_callback_that_raises_ends_no_run_and_is_noted() -> None:
    class Talking(ScriptedModel):
        def complete(self, request: ModelRequest, **given: Any) -> ModelReply:
            given["on_text"]("a piece")
            given["on_text"]("another")
            return super().complete(request, deadline=given["deadline"])

    heard: list[str] = []
    seen: list[str] = []

    def on_text(session: str, piece: str) -> None:
        heard.append(piece)
        raise ZeroDivisionError

    answer = sonde.ask(
        "Which?",
        {"a": 1},
        model=Talking(["```python\nFINAL(1)\n```"]),
        citations=False,
        in_memory=True,
        on_text=on_text,
        on_event=lambda event: seen.append(str(getattr(event, "text", ""))),
    )

    assert answer.status == "succeeded" and heard == ["a piece"]
    assert any("on_text failed and is not called again: ZeroDivisionError" in text for text in seen)


def _nothing(plan: object) -> None:
    del plan


def _text(plan: object) -> str:
    del plan
    return "no"


def _raises(plan: object) -> bool:
    raise ZeroDivisionError(plan)


@pytest.mark.parametrize(
    ("approve", "said"),
    [(_nothing, "returned None"), (_text, "returned 'no'"), (_raises, "ZeroDivisionError")],
    ids=["nothing", "a text", "raises"],
)
def test_an_approve_that_does_not_work_is_no_success(tmp_path: Path, approve: Any, said: str) -> None:
    (tmp_path / "a.txt").write_text("old\n")

    done = sonde.edit("Change it", tmp_path, approve=approve, model=_editor(), in_memory=True)

    assert done.status == "partial" and not done.changed and (tmp_path / "a.txt").read_text() == "old\n"
    assert any(said in gap for gap in done.gaps), done.gaps


def test_an_approve_that_is_no_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="approve is a function"):
        sonde.edit("Change it", tmp_path, approve=True, model=_editor(), in_memory=True)  # type: ignore[arg-type]


def _editor() -> Model:
    return ScriptedModel([f"```python\n{PATCH}\n```"] * 3)


def test_questions_of_an_asynchronous_program_leave_the_threads_of_its_loop_alone() -> None:
    asking = threading.Barrier(9)

    class Waiting(ScriptedModel):
        def complete(self, request: ModelRequest, **given: Any) -> ModelReply:
            asking.wait(60)  # all eight at once, and the ninth is a thread of the loop
            return super().complete(request, deadline=given["deadline"])

    async def program() -> list[Any]:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        replies = ["```python\nFINAL(1)\n```"]
        tasks = [
            sonde.aask("Which?", {"a": 1}, model=Waiting(replies), citations=False, in_memory=True) for _ in range(8)
        ]
        return await asyncio.gather(*tasks, asyncio.to_thread(asking.wait, 60))

    assert all(answer.status == "succeeded" for answer in asyncio.run(program())[:8])
