"""What Monty cannot run: found out by asking the installed version, and refused or rewritten before the code runs.

Promises that a refusal names the line, what is missing and what to write instead. Does not promise to foresee everything: a method
that Monty lacks fails when it is called, with Monty's own message.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

from sonde.core.source import Refusal
from sonde.errors import SandboxUnavailable, how_to_install
from sonde.sandbox.policy import ALLOWED_MODULES, Profile

MAX_REFUSALS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Lack:
    """One construct that a Monty may not know: code that tries it, how to find it, and what to write instead."""

    name: str
    probe: str
    example: str
    found: Callable[[ast.AST], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What the installed Monty understands."""

    version: str
    lacks: tuple[Lack, ...]
    modules: frozenset[str]

    def describe(self) -> str:
        """A paragraph for the prompt."""
        absent = ", ".join(sorted(ALLOWED_MODULES - self.modules))
        lacks = "; ".join(lack.name for lack in self.lacks)
        return (
            f"The code runs in Monty, an interpreter of a subset of Python. It does not support: {lacks}. "
            f"Modules that are missing here: {absent or 'none'}. Shared texts are plain str (splitlines, not lines)."
        )


_DICT = 'def area(shape):\n    return shape["w"] * shape["h"]\narea({"w": 2, "h": 3})'
LACKS = (
    Lack(
        name="classes with a base class or metaclass",
        probe="class A(list):\n    pass",
        example=_DICT,
        found=lambda node: isinstance(node, ast.ClassDef) and bool(node.bases or node.keywords),
    ),
    Lack(
        name="decorators of methods (property, staticmethod, classmethod)",
        probe="class A:\n    @staticmethod\n    def f():\n        return 1",
        example="def f():\n    return 1  # a plain function, or a plain method",
        found=lambda node: (
            isinstance(node, ast.ClassDef)
            and any(isinstance(each, ast.FunctionDef) and each.decorator_list for each in node.body)
        ),
    ),
    Lack(
        name="yield",
        probe="def f():\n    yield 1",
        example="def squares(n):\n    return [i * i for i in range(n)]",
        found=lambda node: isinstance(node, ast.Yield | ast.YieldFrom),
    ),
    Lack(
        name="del",
        probe="a = {1: 2}\ndel a[1]",
        example='row.pop("key", None)  # and assign None to a variable that is no longer needed',
        found=lambda node: isinstance(node, ast.Delete),
    ),
    Lack(
        name="except*",
        probe="try:\n    pass\nexcept* ValueError:\n    pass",
        example="try:\n    n = int(s)\nexcept ValueError:\n    n = 0",
        found=lambda node: isinstance(node, ast.TryStar),
    ),
    Lack(
        name="async for and async with",
        probe="async def f():\n    async for x in y:\n        pass",
        example="for row in rows:\n    print(row)",
        found=lambda node: isinstance(node, ast.AsyncFor | ast.AsyncWith),
    ),
)


def load_monty() -> Any:
    """The module pydantic_monty; SandboxUnavailable says how to get it."""
    try:
        return importlib.import_module("pydantic_monty")
    except ImportError as error:
        other = ", or use --backend kernel" if sys.platform == "linux" else ""
        raise SandboxUnavailable(
            f"the monty backend needs pydantic-monty, which cannot be imported ({error}): {how_to_install('monty')}{other}"
        ) from None


@cache
def language() -> Language:
    """Ask the installed Monty, once per process."""
    monty = load_monty()
    try:
        with monty.Monty(max_processes=1) as pool, pool.checkout() as session:
            return Language(
                version=monty.__version__,
                lacks=tuple(lack for lack in LACKS if not _runs(monty, session, lack.probe)),
                modules=frozenset(name for name in sys.stdlib_module_names if _runs(monty, session, f"import {name}")),
            )
    except (OSError, RuntimeError, monty.MontyError) as error:
        raise SandboxUnavailable(
            f"the monty backend cannot start its worker ({error}); reinstall it: pip install --force-reinstall pydantic-monty"
        ) from None


def _runs(monty: Any, session: Any, probe: str) -> bool:
    try:
        session.feed_run(probe)
    except monty.MontyError:
        return False
    return True


def refusals(tree: ast.AST, known: Language, profile: Profile, functions: Collection[str]) -> list[Refusal]:
    """What of this code the installed Monty, or the profile, will not run; and names of functions that it would lose."""
    found: list[Refusal] = []
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 1)
        for lack in known.lacks:
            if lack.found(node):
                reason = f"{lack.name}: the monty backend ({known.version}) cannot run this."
                found.append(Refusal(line=line, reason=reason, example=lack.example, rule="monty"))
        modules: list[str] = []
        match node:
            case ast.Import(names=names):
                modules = [alias.name.partition(".")[0] for alias in names]
            case ast.ImportFrom(module=str(module), level=0):
                modules = [module.partition(".")[0]]
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                if name in functions:
                    reason = f"`{name}` is a function of the host and would be lost; choose another name."
                    found.append(Refusal(line=line, reason=reason, example="result = 42", rule="rebound"))
            case _:
                pass
        for module in modules:
            if profile.modules is not None and module not in profile.modules and module in known.modules:
                reason = no_module(module, known, profile)
                found.append(Refusal(line=line, reason=reason, example="import json", rule="import"))
    found.sort(key=lambda refusal: (refusal.line, refusal.rule == "rebound"))
    return found[:MAX_REFUSALS]


def no_module(module: str, known: Language, profile: Profile) -> str:
    """Why an import fails, and what can be imported."""
    allowed = known.modules if profile.modules is None else known.modules & profile.modules
    there = ", ".join(sorted(allowed)) or "none"
    return f"`{module}` cannot be imported in the monty backend. Modules that can: {there}."


def with_shared_values(code: str, tree: ast.AST, sharing: Collection[str]) -> str:
    """The code with each literal `share=["a", "b"]` of these functions as `share={"a": a, "b": b}`; lines stay where they are.

    Monty cannot be looked into while it waits for `delegate(..., share=["rows"])`, so the names become values in the source.
    """
    sites: list[tuple[ast.List, list[str]]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in sharing:
            for value in (keyword.value for keyword in node.keywords if keyword.arg == "share"):
                elements = value.elts if isinstance(value, ast.List) else []
                names = [
                    each.value for each in elements if isinstance(each, ast.Constant) and isinstance(each.value, str)
                ]
                if isinstance(value, ast.List) and len(names) == len(elements) and all(map(str.isidentifier, names)):
                    sites.append((value, names))
    lines = code.encode().split(b"\n")
    for node, names in sorted(sites, key=lambda site: (site[0].lineno, site[0].col_offset), reverse=True):
        first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
        before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
        mapping = "{" + ", ".join(f"{name!r}: {name}" for name in names)
        if first == last:
            lines[first] = before + mapping.encode() + b"}" + after
        else:  # the lines below keep their numbers
            lines[first : last + 1] = [before + mapping.encode(), *[b""] * (last - first - 1), b"}" + after]
    return b"\n".join(lines).decode()
