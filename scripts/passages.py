"""Recall of the passages that `sonde ask` shows without a model, over the standard library of this Python.

    python scripts/passages.py        # the table
    python scripts/passages.py -v     # and the first place shown for each question that is not held out

tests/data/questions_stdlib.json holds forty questions. An answer is part of a line (`text = 'NaN'`) or a function (`def
Queue.join`), so it holds for every version of Python. A question counts if one of the eight passages has lines of an answer among
those shown. Twenty questions are held out: they were written before the ranking was tuned, and are only counted.
"""

from __future__ import annotations

import ast
import json
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from sonde.contexts.files import FilesContext
from sonde.contexts.files.bm25 import hearts

QUESTIONS = Path(__file__).parents[1] / "tests" / "data" / "questions_stdlib.json"
STDLIB = Path(sysconfig.get_path("stdlib"))
AT = 8
_Span = tuple[int, int]


class Question(NamedTuple):
    """What is asked, and the files and lines that answer it."""

    text: str
    spans: dict[str, list[_Span]]
    held_out: bool


class Recall(NamedTuple):
    """How many of the questions have an answer among the lines shown, and among the passages they are taken from."""

    asked: int
    shown: int
    passages: int


def questions() -> list[Question]:
    """The forty, with the lines that answer them in this Python."""
    found: list[Question] = []
    for row in json.loads(QUESTIONS.read_text()):
        files = [name for name in row["files"] if (STDLIB / name).is_file()]
        spans = {name: [span for answer in row["answers"] for span in _spans(name, answer)] for name in files}
        if not any(spans.values()):
            raise LookupError(f"nothing in this standard library answers {row['question']!r}")
        found.append(Question(row["question"], spans, row["held_out"]))
    return found


def standard_library(*, tests: bool) -> FilesContext:
    """The source of the standard library. With its tests it is too large to be indexed, so it is scanned."""
    aside = {"site-packages", "dist-packages", "__pycache__", "lib-dynload"} | (set[str]() if tests else {"test"})
    folders = [path for path in sorted(STDLIB.iterdir()) if path.name not in aside and "config-" not in path.name]
    return FilesContext(folders)


def measure(context: FilesContext, asked: list[Question], *, verbose: bool = False) -> Recall:
    """Ask all of them."""
    shown = held = 0
    for question in asked:
        rows = context.search(question.text, limit=AT).value
        chosen = zip(rows, hearts([(row["path"], row["text"]) for row in rows], question.text), strict=True)
        lines = [(row["path"], row["start_line"] + first, row["start_line"] + last) for row, (first, last) in chosen]
        wide = [(row["path"], row["start_line"], row["end_line"]) for row in rows]
        rank = next((n for n, place in enumerate(lines, 1) if _answers(question, *place)), 0)
        inside = next((n for n, place in enumerate(wide, 1) if _answers(question, *place)), 0)
        shown, held = shown + bool(rank), held + bool(inside)
        if verbose:
            print(f"  {rank or '-'}/{inside or '-'}  {question.text}  {lines[:1] if rank != 1 else ''}")
    return Recall(len(asked), shown, held)


def _answers(question: Question, path: str, start: int, end: int) -> bool:
    return any(start <= last and first <= end for first, last in question.spans.get(path, ()))


def _spans(name: str, answer: str) -> Iterator[_Span]:
    text = (STDLIB / name).read_text()
    if answer.startswith("def "):
        yield from _functions(ast.parse(text), answer.removeprefix("def "))
        return
    yield from ((number, number) for number, line in enumerate(text.split("\n"), 1) if answer in line)


def _functions(node: ast.AST, name: str) -> Iterator[_Span]:
    """Where a function is defined, by its name after those of its classes."""
    head, _, rest = name.partition(".")
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if child.name == head and rest:
                yield from _functions(child, rest)
            elif child.name == head and not isinstance(child, ast.ClassDef):
                yield child.lineno, child.end_lineno or child.lineno
        else:
            yield from _functions(child, name)


def main(words: list[str]) -> None:
    """Print the table."""
    every = questions()
    for title, tests in (("indexed, without its tests", False), ("scanned, with its tests", True)):
        context = standard_library(tests=tests)
        began = time.perf_counter()
        context.search("the first search builds the index", limit=AT)
        first = time.perf_counter() - began
        for half, held_out in (("tuned on", False), ("held out", True)):
            asked = [question for question in every if question.held_out is held_out]
            began = time.perf_counter()
            got = measure(context, asked, verbose="-v" in words and not held_out)
            each = (time.perf_counter() - began) / len(asked)
            print(
                f"{title:28}{half:10} recall at {AT}: shown lines {got.shown / got.asked:.2f}, "
                f"passages {got.passages / got.asked:.2f}; first search {first:.2f} s, each {each:.3f} s"
            )


if __name__ == "__main__":
    main(sys.argv[1:])
