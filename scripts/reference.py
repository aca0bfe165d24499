"""Writes the reference: one page a public module, from signatures and docstrings.

    python scripts/reference.py build/docs/reference

A small generator instead of a plugin: our docstrings are plain sentences, and what is public is what stands in MODULES.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

MODULES = {
    "sonde": "the library: ask, investigate, run again",
    "sonde.sandbox": "untrusted Python behind a kernel boundary",
    "sonde.testing": "public doubles for tests",
    "sonde.errors": "every error, with code, stage and retryability",
    "sonde.core.budget": "budgets",
    "sonde.core.evidence": "excerpts, citations, proofs",
    "sonde.core.events": "the event stream",
    "sonde.core.run_record": "the run record",
    "sonde.tools.spec": "a tool from a typed function",
    "sonde.models.base": "what a model is",
    "sonde.contexts": "what a context is",
    "sonde.runtime.engine": "what an engine is",
    "sonde.api.launch": "jobs of your own engines",
    "sonde.api.edit_run": "edit",
    "sonde.engines.reports": "the three reports",
}


def main(folder: Path) -> None:
    rows = [f"| [`{name}`]({name}.md) | {what} |" for name, what in MODULES.items()]
    (folder / "index.md").write_text("\n".join(["# Reference", "", "| module | what |", "|---|---|", *rows, ""]))
    for name in MODULES:
        (folder / f"{name}.md").write_text("\n".join(page(importlib.import_module(name))))


def page(module: ModuleType) -> Iterator[str]:
    """The lines of a module's page."""
    yield from (f"# {module.__name__}", "", *prose(module), "")
    for name, value in public(module):
        yield from (f"## {name}", "", *_code(signature(name, value)), *prose(value), "")
        if inspect.isclass(value):
            yield from members(value)


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Names of `__all__`, or the classes and functions that were written in this module, in the order of the source."""
    listed = getattr(module, "__all__", None)
    names = listed or [
        name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
    ]
    for name in names:
        value = getattr(module, name)
        if not name.startswith("_") and (inspect.isclass(value) or inspect.isfunction(value)):
            yield name, value


def members(kind: type) -> Iterator[str]:
    """Public methods and properties that the class itself defines and explains."""
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
            continue
        yield from (f"### {kind.__name__}.{name}", "", *_code(signature(name, function)), *prose(function), "")


def signature(name: str, value: Any) -> str:
    """How it is called; for an enum, its values."""
    if inspect.isclass(value) and issubclass(value, BaseException):
        return f"class {name}({', '.join(base.__name__ for base in value.__bases__)})"
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return f"class {name}"
    given = list(_parameters(found))
    end = f") -> {_type(found.return_annotation)}" if inspect.isfunction(value) else ")"
    start = f"{'class ' if inspect.isclass(value) else ''}{name}("
    line = f"{start}{', '.join(given)}{end}"
    return line if len(line) < 100 else "\n".join([start, *(f"    {each}," for each in given), end])


def _parameters(found: inspect.Signature) -> Iterator[str]:
    """Each parameter as it is written in source: annotations without quotes, a bare star before keywords."""
    starred = False
    for each in found.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not starred:
            yield "*"
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        text = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "") + each.name
        text += "" if each.annotation is each.empty else f": {_type(each.annotation)}"
        yield text if each.default is each.empty else f"{text} = {_default(each.default)}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _default(value: Any) -> str:
    text = repr(value)
    return "…" if text.startswith("<") or len(text) > 60 else text  # an address or a whole object says nothing


def prose(value: Any) -> list[str]:
    """The docstring as Markdown: it already is, but for characters that would be taken for HTML."""
    if inspect.isclass(value) and value.__doc__ and value.__doc__.startswith(f"{value.__name__}("):
        return []  # what dataclasses make up when there is no docstring
    text = inspect.getdoc(value) if not inspect.isclass(value) or "__doc__" in vars(value) else None
    return (text or "").replace("<", "&lt;").splitlines()


def _code(text: str) -> list[str]:
    return ["```python", *text.splitlines(), "```", ""]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
