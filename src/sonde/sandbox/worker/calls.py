"""Which names code calls: those it binds nowhere are for the host."""

from __future__ import annotations

import ast


def called_names(tree: ast.AST) -> set[str]:
    """Names that the code calls and nowhere binds."""
    called: set[str] = set()
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                called.add(name)
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) | ast.arg(arg=name):
                bound.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.partition(".")[0])
            case _:
                pass
    return called - bound
