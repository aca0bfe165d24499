"""Interception: tool calls are lifted out of the code by its syntax tree and served by the parent before the code runs.

Promises that only `name = tool(literals)` at the top level of the code is lifted, that sites are keyed by position (two calls on one
line are two sites), that every other use of a tool's name is an error with the line and a correct example, and that the rewritten
code keeps its line numbers and holds no tool call. Nothing is evaluated: arguments are literals. Does not promise that a lifted call
is reached by the code: all of them run, in source order, before its first line.
"""

from __future__ import annotations

import ast
import contextlib
import marshal
import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from sonde.core.canonical import canonical_json
from sonde.core.source import Refusal, parse, plain_text
from sonde.errors import ToolFault
from sonde.sandbox.frames import as_data

Literal: TypeAlias = str | int | float | bool | None

MAX_RESULT_BYTES = 1_000_000
INJECTED_PREFIX = "__rlm_icpt_"
_DEEPEST_CUT = 8
_NOT_LITERAL = (ValueError, TypeError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackSite:
    """One tool call in the code. `col_offset` counts UTF-8 bytes, as `ast` does."""

    lineno: int
    col_offset: int
    target_name: str
    tool_name: str
    args: tuple[Literal, ...]
    kwargs: dict[str, Literal]

    @property
    def key(self) -> tuple[int, int]:
        return self.lineno, self.col_offset


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """Code without tool calls; `injected[i]` is the variable that must hold the result of site i."""

    code: str
    injected: tuple[str, ...]


@dataclass(slots=True)
class InjectedNames:
    """The names of one session's lifted results, counted from 0 over all its turns."""

    session_id: str
    counter: int = 0

    def take(self) -> str:
        name = f"{INJECTED_PREFIX}{re.sub(r'[^0-9A-Za-z_]', '_', self.session_id[:8])}_{self.counter}"
        self.counter += 1
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """A name in the code with what is around it: the call it heads, the statement, the innermost block."""

    node: ast.AST
    name: str
    call: ast.Call | None
    statement: ast.AST
    block: str | None


def extract_tool_calls(code: str, allowed: Collection[str]) -> tuple[list[CallbackSite], list[Refusal]]:
    """The tool calls of `code` in source order, and every use of a tool that cannot be lifted."""
    tree = parse(code)
    if isinstance(tree, Refusal):
        return [], [tree]
    calls = list(_liftable(tree, allowed))
    found = [_site(target, call) for target, call in calls]
    errors = [one for one in found if isinstance(one, Refusal)]
    lifted = {id(call) for _, call in calls}
    errors += [
        _explain(use, allowed)
        for use in _uses(tree)
        if (use.name in allowed or use.name.startswith(INJECTED_PREFIX)) and id(use.call) not in lifted
    ]
    sites = [one for one in found if isinstance(one, CallbackSite)]
    return sites, sorted(errors, key=lambda error: (error.line, error.rule))


def as_lifted(example: str, tool: str) -> str:
    """An example of a tool's use in the one form that is lifted: its result assigned, stand-ins for arguments that are no literals."""
    _, errors = extract_tool_calls(example, {tool})
    shown = errors[0].example.partition("\n")[0] if errors else ""
    return shown if shown.startswith("result = ") else example


def rewrite(code: str, sites: Sequence[CallbackSite], names: InjectedNames) -> Rewritten:
    """`code` with each site's call replaced by an injected variable, line for line."""
    tree = parse(code)
    assert not isinstance(tree, Refusal), "sites come from code that was parsed"
    lines = [line.encode() for line in plain_text(code).split("\n")]
    calls = {(call.lineno, call.col_offset): call for _, call in _liftable(tree, {s.tool_name for s in sites})}
    injected = tuple(names.take() for _ in sites)
    for site, name in sorted(zip(sites, injected, strict=True), key=lambda pair: pair[0].key, reverse=True):
        call = calls[site.key]
        first, last = call.lineno - 1, (call.end_lineno or call.lineno) - 1
        head, tail = lines[first][: call.col_offset], lines[last][call.end_col_offset :]
        if first == last:
            lines[first] = head + name.encode() + tail
        else:  # a call over several lines keeps them, inside parentheses
            lines[first : last + 1] = [head + b"(" + name.encode(), *[b""] * (last - first - 1), b")" + tail]
    return Rewritten(code=b"\n".join(lines).decode(), injected=injected)


def cut_result(value: Any, limit: int = MAX_RESULT_BYTES) -> tuple[Any, str | None]:
    """`value` as it is when its serialised form fits in `limit` bytes, otherwise the part that fits, and a warning. A host that has cut
    its results by their JSON is not corrected.
    """
    with contextlib.suppress(TypeError, ValueError, RecursionError):
        if len(canonical_json(value).encode("utf-8", "surrogatepass")) <= limit:
            return value, None
    try:
        size = _size(value)
    except ValueError:  # marshal knows plain types only
        try:
            value = as_data(value)
            size = _size(value)
        except (ValueError, TypeError) as error:
            raise ToolFault(
                f"a tool returned a value that is not plain data ({type(value).__name__}: {error}); "
                "return text, bytes, numbers, lists or dicts"
            ) from error
    if size <= limit:
        return value, None
    kept = _fit(value, limit, depth=0)
    return (
        kept,
        f"the result was {size:,} bytes; only the part that fits in {limit:,} bytes was kept. Ask for less at a time.",
    )


def _liftable(tree: ast.Module, allowed: Collection[str]) -> Iterator[tuple[str, ast.Call]]:
    for statement in tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call(func=ast.Name(id=tool)) as call):
                if tool in allowed:
                    yield target, call
            case _:
                continue


def _site(target: str, call: ast.Call) -> CallbackSite | Refusal:
    tool = call.func.id if isinstance(call.func, ast.Name) else ""
    if any(isinstance(arg, ast.Starred) for arg in call.args) or any(word.arg is None for word in call.keywords):
        return _refuse(
            call, "unpacked", f"`*` and `**` cannot be used in a call of `{tool}`: write each argument", tool
        )
    if len({word.arg for word in call.keywords}) < len(call.keywords):
        return _refuse(call, "repeated", f"a keyword is given twice in a call of `{tool}`", tool)
    try:
        args = tuple(_literal(arg) for arg in call.args)
        kwargs = {str(word.arg): _literal(word.value) for word in call.keywords}
    except _NOT_LITERAL:
        reason = (
            f"arguments of `{tool}` must be literals (text, numbers, True, False or None), not variables or expressions"
        )
        return _refuse(call, "not-literal", reason, tool)
    return CallbackSite(
        lineno=call.lineno, col_offset=call.col_offset, target_name=target, tool_name=tool, args=args, kwargs=kwargs
    )


def _literal(node: ast.expr) -> Literal:
    value: object = ast.literal_eval(node)
    if isinstance(value, str):
        value.encode()  # a lone surrogate could be neither hashed nor recorded
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    raise ValueError(f"{type(value).__name__} is not a plain literal")


_BLOCKS: dict[type[ast.AST], str] = {
    ast.If: "if",
    ast.For: "for",
    ast.AsyncFor: "for",
    ast.While: "while",
    ast.FunctionDef: "def",
    ast.AsyncFunctionDef: "def",
    ast.ClassDef: "class",
    ast.Lambda: "lambda",
    ast.ListComp: "a comprehension",
    ast.SetComp: "a comprehension",
    ast.DictComp: "a comprehension",
    ast.GeneratorExp: "a comprehension",
    ast.Try: "try",
    ast.TryStar: "try",
    ast.With: "with",
    ast.AsyncWith: "with",
    ast.Match: "match",
}


def _uses(tree: ast.Module) -> Iterator[_Use]:
    """Every identifier of the tree. A loop with its own stack: the depth of hostile code must not become ours."""
    stack: list[tuple[ast.AST, ast.Call | None, ast.AST, str | None]] = [(tree, None, tree, None)]
    while stack:
        node, call, statement, block = stack.pop()
        names: list[str] = []
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                names = [name]
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names = [name]
            case ast.alias(name=name, asname=given):
                names = [(given or name).partition(".")[0]]
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names = [name]
            case ast.MatchMapping(rest=str(name)):
                names = [name]
            case ast.Global(names=names) | ast.Nonlocal(names=names):
                pass
            case _:
                pass
        for name in names:
            yield _Use(node=node, name=name, call=call, statement=statement, block=block)
        block = f"`{kind}`" if (kind := _BLOCKS.get(type(node))) and " " not in kind else kind or block
        for child in ast.iter_child_nodes(node):
            heads = node if isinstance(node, ast.Call) and child is node.func else None
            inner = child if isinstance(child, ast.stmt) else statement
            stack.append((child, heads, inner, block))


def _explain(use: _Use, allowed: Collection[str]) -> Refusal:
    name = use.name
    if name not in allowed:
        return _refuse(use.node, "reserved", f"names that begin with `{INJECTED_PREFIX}` are reserved", "nav_info")
    if not (isinstance(use.node, ast.Name) and isinstance(use.node.ctx, ast.Load)):
        return _refuse(use.node, "shadow", f"`{name}` is a tool; choose another name", name)
    if use.call is None:
        return _refuse(use.node, "not-a-value", f"`{name}` is a tool and can only be called", name)
    if use.block is not None:
        reason = f"`{name}` is called under {use.block}: it would run once, whatever happens there. Call it above, at the top level"
        return _refuse(use.call, "nested-block", reason, name)
    rest = "Tool calls must be assigned to variables, one call to one name"
    match use.statement:
        case ast.Expr(value=value) if value is use.call:
            rule, reason = "bare", f"the result of `{name}` is thrown away. {rest}"
        case ast.Assign(targets=[_, _, *_], value=value) if value is use.call:
            rule, reason = "chained", f"the result of `{name}` is assigned to several targets. {rest}"
        case ast.Assign(targets=[ast.Tuple() | ast.List()], value=value) if value is use.call:
            rule, reason = "unpacking", f"the result of `{name}` is unpacked. {rest}"
        case ast.Assign(value=value) | ast.AnnAssign(value=value) | ast.AugAssign(value=value) if value is use.call:
            rule, reason = "target", f"the result of `{name}` does not go to a plain name. {rest}"
        case _:
            rule, reason = "nested", f"`{name}` is called inside another expression. {rest}"
    return _refuse(use.call, rule, reason, name)


def _refuse(node: ast.AST, rule: str, reason: str, tool: str) -> Refusal:
    """The example is the call as it could have been written: its own literals, a stand-in where there was something else."""
    shown: list[str] = []
    if isinstance(node, ast.Call):
        keywords = {word.arg: f"{word.arg}={_shown(word.value)}" for word in node.keywords if word.arg}
        shown = [*map(_shown, node.args), *keywords.values()]
        if node.keywords and not shown:
            shown = ['"text"']
    example = f"result = {tool}({', '.join(shown)})\nprint(result)"
    return Refusal(line=getattr(node, "lineno", 1), rule=rule, reason=f"{reason}.", example=example)


def _shown(arg: ast.expr) -> str:
    try:
        text = repr(_literal(arg))
    except _NOT_LITERAL:
        text = ""
    return text if 0 < len(text) <= 80 else '"text"'


def _size(value: Any) -> int:
    """Bytes on the way to the worker. Version 2 of marshal repeats shared objects, as they will be in the worker's memory."""
    return len(marshal.dumps(value, 2))


def _fit(value: Any, room: int, depth: int) -> Any:
    """The largest leading part of `value` that serialises into about `room` bytes."""
    if _size(value) <= room:
        return value
    match value:
        case str():
            return value.encode("utf-8", "surrogatepass")[: max(room - 64, 0)].decode("utf-8", "ignore")
        case bytes():
            return value[: max(room - 64, 0)]
        case list() | tuple() if depth < _DEEPEST_CUT:
            return [item for _, item in _leading(enumerate(cast("Iterable[Any]", value)), room, depth)]
        case dict() if depth < _DEEPEST_CUT:
            return dict(_leading(cast("dict[Any, Any]", value).items(), room, depth))
        case _:
            return f"<{type(value).__name__} too large to show>"


def _leading(items: Iterable[tuple[Any, Any]], room: int, depth: int) -> Iterator[tuple[Any, Any]]:
    for key, item in items:
        cost = _size(key) + _size(item)
        if cost > room:
            if room > 256:
                yield key, _fit(item, room - _size(key), depth + 1)
            return
        room -= cost
        yield key, item
