"""The gate: reads code before it runs and says, line by line, what its profile does not allow and what to write instead.

Promises to refuse, in `strict`, every construct that is not on a list (syntax, methods, callable names, exception classes), and never
to raise or to run anything. Does not promise confinement: that is the kernel's work. A refusal happens before the code starts, so
no handler in the code can catch it.
"""

from __future__ import annotations

import ast
import builtins
import unicodedata
from collections.abc import Collection, Iterable, Iterator

from sonde.core.source import Refusal, parse
from sonde.sandbox.intercept import extract_tool_calls
from sonde.sandbox.policy import FINISH_NAMES, Profile, profile_named

__all__ = ["Refusal", "check"]

MAX_REFUSALS = 20
"""A longer list helps no reader."""

PYTHON_BUILTINS = frozenset(dir(builtins))
_PARTS = (ast.alias, ast.pattern)  # their statement is refused already
_LEAVES = (ast.Return, ast.Break, ast.Continue)

_SYNTAX_ADVICE = {
    "Import": ("imports are not allowed; the builtins and the tools are all there is", "total = sum(values)"),
    "ImportFrom": ("imports are not allowed; the builtins and the tools are all there is", "total = sum(values)"),
    "ClassDef": ("classes are not allowed; use a dict", 'point = {"x": 1, "y": 2}'),
    "Lambda": (
        "`lambda` is not allowed; define a function",
        "def second(pair):\n    return pair[1]\nsorted(pairs, key=second)",
    ),
    "With": ("`with` is not allowed; there is nothing to open or to close here", "lines = text.splitlines()"),
    "Raise": ("`raise` is not allowed; print what went wrong, or return it", 'print("no rows found")'),
    "Assert": ("`assert` is not allowed; use `if`", 'if not rows:\n    print("no rows")'),
    "Delete": ("`del` is not allowed; assign None, or use pop", 'row.pop("key", None)'),
    "Global": (
        "`global` is not allowed; pass values in and return them",
        "def add(total, row):\n    return total + row",
    ),
    "Nonlocal": (
        "`nonlocal` is not allowed; pass values in and return them",
        "def add(total, row):\n    return total + row",
    ),
    "Yield": ("generators are not allowed; build a list", "squares = [n * n for n in range(10)]"),
    "YieldFrom": ("generators are not allowed; build a list", "squares = [n * n for n in range(10)]"),
    "Match": ("`match` is not allowed; use `if` and `elif`", 'if kind == "error":\n    print(row)'),
    "TryStar": (
        "`except*` is not allowed; use `except` with a named exception",
        "try:\n    n = int(s)\nexcept ValueError:\n    n = 0",
    ),
    "AsyncFunctionDef": ("`async` is not allowed; write a plain function", "def work(row):\n    return row"),
    "AsyncFor": ("`async for` is not allowed; use `for`", "for row in rows:\n    print(row)"),
    "AsyncWith": (
        "`async with` is not allowed; there is nothing to open or to close here",
        "lines = text.splitlines()",
    ),
    "Await": ("`await` is not allowed; call the function and use its result", "longest = max(lines, key=len)"),
}
_PLAIN_FUNCTION = "def work(row):\n    return len(row)\nresult = work(row)"
_OTHER_SYNTAX = ("this kind of statement or expression ({kind}) is not allowed", "total = sum(values)\nprint(total)")


def check(
    code: str,
    profile: Profile | str,
    host_functions: Collection[str] | None = (),
    *,
    defined: Collection[str] = (),
) -> list[Refusal]:
    """What `profile` refuses in `code`; an empty list means run it.

    `host_functions` None means that any unknown name may be called and goes to the host. `defined` are names left by earlier turns.
    """
    rules = profile_named(profile) if isinstance(profile, str) else profile
    tree = parse(code)
    if isinstance(tree, Refusal):
        return [tree]
    found: list[Refusal] = []
    if rules.lifts_tool_calls:
        found += extract_tool_calls(code, host_functions or ())[1]
    if rules.nodes is not None:
        nodes = list(ast.walk(tree))
        found += _syntax(nodes, rules.nodes)
        found += _names(nodes, FINISH_NAMES | set(host_functions or ()))
        found += _attributes(nodes, rules.methods or frozenset())
        found += _calls(nodes, rules.builtins or frozenset(), host_functions, defined)
        found += _handlers(nodes, rules.exceptions or frozenset())
    unique = {(refusal.line, refusal.rule): refusal for refusal in found}  # one of a kind per line
    return [unique[key] for key in sorted(unique)][:MAX_REFUSALS]


def _syntax(nodes: Iterable[ast.AST], allowed: frozenset[str]) -> Iterator[Refusal]:
    for node in nodes:
        kind = type(node).__name__
        if kind not in allowed and not isinstance(node, _PARTS) and hasattr(node, "lineno"):
            reason, example = _SYNTAX_ADVICE.get(kind, _OTHER_SYNTAX)
            yield _refuse(node, f"syntax:{kind}", reason.format(kind=kind), example)
        if isinstance(node, ast.FunctionDef) and node.decorator_list:
            yield _refuse(node, "decorator", "decorators are not allowed; call the function instead", _PLAIN_FUNCTION)
        if isinstance(node, ast.comprehension) and node.is_async:
            reason, example = _SYNTAX_ADVICE["AsyncFor"]
            yield _refuse(node.target, "syntax:AsyncFor", reason, example)


def _names(nodes: Iterable[ast.AST], taken: Collection[str]) -> Iterator[Refusal]:
    """Dunder names, and names of the sandbox's own functions that the code binds."""
    for node in nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.FunctionDef(name=name):
                pass
            case ast.keyword(arg=str(name)) | ast.ExceptHandler(name=str(name)):
                pass
            case _:
                continue
        plain = unicodedata.normalize("NFKC", name)  # full-width letters and low lines are the same name to Python
        if plain.startswith("__"):
            yield _refuse(
                node,
                "dunder",
                f"names that begin with two underscores are not allowed (`{plain}`)",
                'kind = "list" if isinstance(value, list) else "other"',
            )
        if name in taken and name in _bound_names([node]):
            yield _refuse(
                node, "shadow", f"`{name}` is a function of the sandbox; choose another name", f"my_{name} = 1"
            )


def _attributes(nodes: Collection[ast.AST], methods: frozenset[str]) -> Iterator[Refusal]:
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    for node in nodes:
        if not isinstance(node, ast.Attribute):
            continue
        if node.attr in {"format", "format_map"}:
            yield _refuse(
                node, "format", f"`.{node.attr}()` is not allowed; use an f-string", 'line = f"{name}: {count}"'
            )
        elif node.attr not in methods:
            yield _refuse(
                node,
                "attribute",
                f"`.{node.attr}` is not allowed; only these methods are, as calls: {', '.join(sorted(methods))}",
                'value = row["name"]\nparts = text.split(",")',
            )
        elif id(node) not in called:
            yield _refuse(
                node,
                "method-value",
                f"`.{node.attr}` may only be called, not kept or passed on",
                "lines = [line.strip() for line in lines]",
            )


def _calls(
    nodes: Collection[ast.AST],
    safe: frozenset[str],
    host_functions: Collection[str] | None,
    defined: Collection[str],
) -> Iterator[Refusal]:
    offered = safe | FINISH_NAMES | set(host_functions or ())
    callable_names = [name for name in sorted(offered) if not name.endswith(("Error", "Exception"))]
    known = offered | set(defined) | set(_bound_names(nodes))
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute()):
                continue
            case ast.Call(func=ast.Name(id=name)):
                unknown = name in PYTHON_BUILTINS or host_functions is not None
                if name not in known and unknown:
                    yield _refuse(
                        node,
                        "call",
                        f"`{name}` is not available here; you can call {', '.join(callable_names)}",
                        "print(len(values))",
                    )
            case ast.Call():
                yield _refuse(
                    node,
                    "call-by-name",
                    "call functions by their name only",
                    _PLAIN_FUNCTION,
                )
            case _:
                continue


def _bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.ExceptHandler(name=str(name)):
                yield name
            case _:
                continue


def _handlers(nodes: Iterable[ast.AST], allowed: frozenset[str]) -> Iterator[Refusal]:
    for node in nodes:
        if isinstance(node, ast.ExceptHandler):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if not kinds or not all(isinstance(kind, ast.Name) and kind.id in allowed for kind in kinds):
                yield _refuse(
                    node,
                    "except",
                    f"`except` must name one of: {', '.join(sorted(allowed))}",
                    "try:\n    n = int(text)\nexcept ValueError:\n    n = 0",
                )
        if isinstance(node, ast.Try):
            inside = (inner for statement in node.finalbody for inner in ast.walk(statement))
            for leave in (inner for inner in inside if isinstance(inner, _LEAVES)):
                yield _refuse(
                    leave,
                    "finally",
                    "`return`, `break` and `continue` are not allowed in `finally`: they would swallow the error",
                    "try:\n    n = int(text)\nfinally:\n    print(text)",
                )


def _refuse(node: ast.AST, rule: str, reason: str, example: str) -> Refusal:
    return Refusal(line=getattr(node, "lineno", 1), rule=rule, reason=f"{reason}.", example=example)
