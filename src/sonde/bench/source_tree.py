"""Questions about a real source tree, with answers that `ast` computes: nothing is labelled by hand or by a model."""

from __future__ import annotations

import ast
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from sonde.bench.questions import GoldQuestion, Material
from sonde.errors import ConfigError

MOST_BYTES = 20_000_000


@dataclass(frozen=True, slots=True)
class _SourceClass:
    module: str
    name: str
    bases: tuple[str, ...]
    methods: tuple[str, ...]


def make(tree: Path, seed: int) -> Material:
    """The Python files of a folder and questions about them."""
    paths = sorted(path for path in tree.rglob("*.py") if path.is_file())
    if not paths:
        raise ConfigError(f"{tree} has no Python files; give a folder that has some, for example --tree src")
    if sum(path.stat().st_size for path in paths) > MOST_BYTES:
        raise ConfigError(f"{tree} has more than {MOST_BYTES:,} bytes of Python; give a smaller folder")
    texts = {str(path.relative_to(tree)): path.read_text("utf-8", "replace") for path in paths}
    parsed = {name: ast.parse(text) for name, text in texts.items()}
    dice = random.Random(f"source {seed} {sorted(texts)}")  # noqa: S311 - reproducible, not secret

    classes: list[_SourceClass] = []
    functions: list[tuple[int, str, str]] = []  # minus its lines, module, name: the longest sorts first
    for module, root in parsed.items():
        for node in ast.walk(root):
            if isinstance(node, ast.ClassDef):
                methods = [each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
                bases = tuple(ast.unparse(base).rpartition(".")[2] for base in node.bases)
                classes.append(_SourceClass(module, node.name, bases, tuple(methods)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append((node.lineno - (node.end_lineno or node.lineno) - 1, module, node.name))
    if not classes or not functions:
        raise ConfigError(f"{tree} has no classes or functions to ask about; give a larger Python source tree")

    longest = GoldQuestion(
        text="Which function or method has the most lines, from its `def` line to its last one? Answer with its name.",
        kind="text",
        gold=min(functions)[2],
    )
    about_classes = _about_classes(dice, classes)
    imported = {
        name: {alias.name for node in ast.walk(root) if isinstance(node, ast.Import) for alias in node.names}
        for name, root in parsed.items()
    }
    module = _popular(dice, [each for names in imported.values() for each in names])
    importers = GoldQuestion(
        text=f"Which files have a statement `import {module}` (plain, also with `as`, anywhere in the file)? "
        "List the paths.",
        kind="list",
        gold=sorted(name for name, names in imported.items() if module in names),
    )
    asynchronous = GoldQuestion(
        text="How many `async def` functions and methods are there in all?",
        kind="number",
        gold=sum(isinstance(node, ast.AsyncFunctionDef) for root in parsed.values() for node in ast.walk(root)),
    )
    return Material(context=texts, questions=[*about_classes, longest, importers, asynchronous])


def _about_classes(dice: random.Random, classes: list[_SourceClass]) -> list[GoldQuestion]:
    names = Counter(each.name for each in classes)
    single = dice.choice(sorted(name for name, count in names.items() if count == 1) or sorted(names))
    home = next(each.module for each in classes if each.name == single)
    method = _popular(dice, [method for each in classes for method in set(each.methods)])
    base = _popular(dice, [base for each in classes for base in set(each.bases)])
    return [
        GoldQuestion(
            text=f"In which file is the class {single} defined? Answer with its path.", kind="text", gold=home
        ),
        GoldQuestion(
            text=f"How many class definitions have a method named `{method}` in their own body (async ones count)?",
            kind="number",
            gold=sum(method in each.methods for each in classes),
        ),
        GoldQuestion(
            text=f"Which classes name `{base}` directly among their bases "
            f"(also as an attribute such as mod.{base})? List the names.",
            kind="list",
            gold=sorted({each.name for each in classes if base in each.bases}),
        ),
    ]


def _popular(dice: random.Random, names: list[str]) -> str:
    """One of the names that occur more than once, so that one place is not enough to answer."""
    common = sorted(name for name, count in Counter(names).items() if count > 1)
    return dice.choice(common or sorted(set(names)) or ["close"])
