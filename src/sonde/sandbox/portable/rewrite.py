"""`delegate(..., share=["rows"])` for an interpreter that cannot be looked into while it waits: the names become values in the source."""

from __future__ import annotations

import ast
from collections.abc import Collection


def with_shared_values(code: str, tree: ast.AST, sharing: Collection[str]) -> str:
    """The code with each literal `share=["a", "b"]` of these functions as `share={"a": a, "b": b}`; lines stay where they are."""
    lines = code.encode().split(b"\n")
    sites = [site for node in ast.walk(tree) for site in _sites(node, sharing)]
    for names in sorted(sites, key=lambda node: (node.lineno, node.col_offset), reverse=True):
        _replace(lines, names)
    return b"\n".join(lines).decode()


def _sites(node: ast.AST, sharing: Collection[str]) -> list[ast.List]:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in sharing):
        return []
    values = [keyword.value for keyword in node.keywords if keyword.arg == "share"]
    return [value for value in values if isinstance(value, ast.List) and _names(value) is not None]


def _names(node: ast.List) -> list[str] | None:
    found = [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return found if len(found) == len(node.elts) and all(name.isidentifier() for name in found) else None


def _replace(lines: list[bytes], node: ast.List) -> None:
    first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
    before, after = lines[first][: node.col_offset], lines[last][node.end_col_offset :]
    mapping = "{" + ", ".join(f"{name!r}: {name}" for name in _names(node) or ()) + "}"
    blank = [b""] * (last - first)  # the lines below keep their numbers
    if blank:
        lines[first : last + 1] = [before + mapping[:-1].encode(), *blank[:-1], b"}" + after]
    else:
        lines[first] = before + mapping.encode() + after
