"""Benchmarks that ask questions about data too large for a prompt: cases on disk, gold apart from them.

A set of questions is a folder, made from a seed by a family of `bench.task_family` and never changed:

    NAME/context.txt or context/     what may be looked at
    NAME/questions.json              {key: {"question": ..., "kind": ...}}
    NAME/gold.json                   {key: answer}, opened by `score` only
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sonde.bench import answers
from sonde.bench.answers import Kind
from sonde.bench.metrics import mean_of
from sonde.bench.suite import BenchCase, fits
from sonde.errors import ConfigError

PLAIN = """{question}

The data:
{context}

Answer with JSON only, in this form: {example}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldQuestion:
    """One question whose answer is known by construction."""

    text: str
    kind: Kind
    gold: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """A context (one text, or texts by path) and the questions about it."""

    context: str | Mapping[str, str]
    questions: Sequence[GoldQuestion]

    @property
    def size(self) -> int:
        """Characters of the context."""
        texts = [self.context] if isinstance(self.context, str) else self.context.values()
        return sum(map(len, texts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """One folder of questions: how it is named and how it is made."""

    name: str
    make: Callable[[], Material]


class Questions:
    """A benchmark of questions: sheets that are made when they are first needed."""

    taxonomy: str | None = None

    def __init__(self, name: str, data: Path, sheets: Sequence[Sheet]) -> None:
        self.name = name
        self.data = data
        self.sheets = sheets

    def cases(self) -> list[BenchCase]:
        """Every question of every sheet."""
        found: list[BenchCase] = []
        for sheet in self.sheets:
            folder = self.data / sheet.name
            if not (folder / "questions.json").is_file():
                write_material(folder, sheet.make())
            asked = cast("dict[str, dict[str, Any]]", json.loads((folder / "questions.json").read_text("utf-8")))
            source = folder / "context.txt" if (folder / "context.txt").is_file() else folder / "context"
            found += [BenchCase(key=f"{sheet.name}/{key}", source=source, **each) for key, each in asked.items()]
        return found

    def predicted(self, report: Mapping[str, Any]) -> Any:
        """The answer in the final value of a run; None when there is none."""
        value: Any = report  # a model may give something else than the object that was asked for
        return cast("dict[str, Any]", value).get("answer") if isinstance(value, dict) else value

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> Any:
        """Always refused: questions have no deterministic baseline."""
        del case, report
        raise ConfigError("a benchmark of questions has no method `rule`; use plain, no-subcalls or retrieval")

    def plain_prompt(self, case: BenchCase) -> str | None:
        """The question with everything; None when it does not fit."""
        if case.size > MOST_READ:
            return None
        return fits(self.prompt(case, context_text(case.source)))

    def prompt(self, case: BenchCase, context: str) -> str:
        """The question with some of the data."""
        return PLAIN.format(question=case.question, context=context, example=answers.EXAMPLES[kind_of(case)])

    def read_plain(self, text: str) -> Any:
        """The answer in a model's text."""
        return answers.read_answer(text)

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """One number, by the kind of the question."""
        sheet, _, key = case.key.rpartition("/")
        gold = json.loads((self.data / sheet / "gold.json").read_text("utf-8"))[key]
        return {"score": answers.score(kind_of(case), predicted, gold)}

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """Nothing beyond the mean."""
        del predictions
        return {}

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """The mean score at each size of the context."""
        lines = ["| characters | questions | score |", "| --- | --- | --- |"]
        for size in sorted({case.size for case, _ in predictions}):
            scores = [self.score(case, predicted) for case, predicted in predictions if case.size == size]
            lines.append(f"| {size:,} | {len(scores)} | {mean_of(scores)['score']:.2f} |")
        return "\n".join(lines)


MOST_READ = 2_000_000
"""A context above this many characters is not even read to see whether it fits into a prompt."""


def kind_of(case: BenchCase) -> Kind:
    """The kind of answer that a case wants."""
    if case.kind not in answers.EXAMPLES:
        raise ConfigError(f"{case.key} wants an answer of the unknown kind {case.kind!r}")
    return case.kind


def context_text(source: Path) -> str:
    """All of a context as one text, each file under its name."""
    if source.is_file():
        return source.read_text("utf-8")
    files = sorted(path for path in source.rglob("*") if path.is_file())
    return "\n".join(f"=== {path.relative_to(source)} ===\n{path.read_text('utf-8')}" for path in files)


def write_material(folder: Path, material: Material) -> None:
    """Write a sheet, whole or not at all: it appears under its name when it is complete."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    if isinstance(material.context, str):
        (partial / "context.txt").write_text(material.context, "utf-8")
    else:
        for name, text in material.context.items():
            path = partial / "context" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    keyed = {f"q{number:03d}": each for number, each in enumerate(material.questions)}
    asked = {key: {"question": q.text, "kind": q.kind, "size": material.size} for key, q in keyed.items()}
    (partial / "questions.json").write_text(json.dumps(asked, indent=1), "utf-8")
    (partial / "gold.json").write_text(json.dumps({key: q.gold for key, q in keyed.items()}, indent=1), "utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
