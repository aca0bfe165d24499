"""One filter language for both stores: the part of Phoenix's span filters that needs no model, no database and no trust.

    span_kind == 'LLM' and latency_ms > 1000
    status_code == 'ERROR' or 'timeout' in output.value
    attributes['llm.token_count.total'] >= 4000 and name not in ['ping', 'health']
    parent_id is None and not (metadata['tier'] == 'free')

The text is parsed as a Python expression and never run; whatever is not in the list above is refused with its position. A missing value
makes a comparison neither true nor false, as in SQL, so `not` does not turn it into a match.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

from sonde.contexts.traces.span import Span, time_text, us_of_text
from sonde.errors import ToolFault

MAX_FILTER_CHARS = 4000
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FIELDS: dict[str, Callable[[Span], Any]] = {
    "name": lambda span: span.summary.name,
    "span_kind": lambda span: span.summary.kind,
    "status_code": lambda span: span.summary.status,
    "status_message": lambda span: span.summary.status_message,
    "latency_ms": lambda span: span.summary.latency_ms,
    "parent_id": lambda span: span.summary.parent_id,
    "span_id": lambda span: span.summary.span_id,
    "trace_id": lambda span: span.summary.trace_id,
    "context.span_id": lambda span: span.summary.span_id,
    "context.trace_id": lambda span: span.summary.trace_id,
    "start_time": lambda span: time_text(span.summary.start_us),
    "end_time": lambda span: None if span.summary.end_us is None else time_text(span.summary.end_us),
}
_ELSEWHERE = frozenset({"evals", "annotations", "parent_span"})
_TIMES = frozenset({"start_time", "end_time"})
_COLUMNS = frozenset({"name", "span_kind", "status_code"})
_EXAMPLE = "for example: span_kind == 'TOOL' and status_code == 'ERROR'"
Term = Callable[[Span], Any]


class FilterRefused(ToolFault):
    """The filter cannot be read; `position` is the 0-based column."""

    def __init__(self, what: str, position: int) -> None:
        self.what = what
        self.position = position
        super().__init__(f"filter refused at column {position + 1}: {what}; {_EXAMPLE}")


@dataclass(frozen=True, slots=True)
class SpanFilter:
    """A parsed filter. `required` are equalities on columns that every match must meet: stores may use them to read less."""

    text: str
    test: Callable[[Span], bool | None]
    required: dict[str, str]

    def matches(self, span: Span) -> bool:
        """True when the span certainly fits."""
        return self.test(span) is True


def parse_filter(text: str) -> SpanFilter:
    """The filter behind a text; FilterRefused with the position of what is not understood."""
    if len(text) > MAX_FILTER_CHARS:
        raise FilterRefused(f"longer than {MAX_FILTER_CHARS} characters", MAX_FILTER_CHARS)
    line = " ".join(text.splitlines())
    parsed = line.lstrip()
    blanks = len(line) - len(parsed)
    try:
        tree = ast.parse(parsed, mode="eval")
        return SpanFilter(text, _condition(tree.body), _required(tree.body))
    except FilterRefused as refused:
        before = parsed.encode()[: refused.position]  # the parser counts bytes
        raise FilterRefused(refused.what, blanks + len(before.decode(errors="ignore"))) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as broken:
        offset = getattr(broken, "offset", None) or len(parsed) + 1
        raise FilterRefused(f"not an expression ({getattr(broken, 'msg', broken)})", blanks + offset - 1) from None


def _condition(node: ast.expr) -> Callable[[Span], bool | None]:
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            return _joined([_condition(value) for value in values], decisive=False)
        case ast.BoolOp(op=ast.Or(), values=values):
            return _joined([_condition(value) for value in values], decisive=True)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _not(_condition(operand))
        case ast.Compare():
            terms = [node.left, *node.comparators]
            parts = [_comparison(op, *sides) for op, sides in zip(node.ops, pairwise(terms), strict=True)]
            return parts[0] if len(parts) == 1 else _joined(parts, decisive=False)
        case _:
            raise FilterRefused("a condition is a comparison, or several joined by and, or, not", node.col_offset)


def _comparison(op: ast.cmpop, left: ast.expr, right: ast.expr) -> Callable[[Span], bool | None]:
    moments = any(isinstance(side, ast.Name) and side.id in _TIMES for side in (left, right))
    first, second = _term(left, moments=moments), _term(right, moments=moments)
    match op:
        case ast.Is() | ast.IsNot():
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise FilterRefused("`is` takes None only", right.col_offset)
            wanted = isinstance(op, ast.Is)
            return lambda span: (first(span) is None) is wanted
        case ast.In():
            return _compared(_contained, first, second)
        case ast.NotIn():
            return _not(_compared(_contained, first, second))
        case _:
            return _compared(_COMPARE[type(op)], first, second)


def _compared(compare: Callable[[Any, Any], bool], first: Term, second: Term) -> Callable[[Span], bool | None]:
    def test(span: Span) -> bool | None:
        left, right = first(span), second(span)
        if left is None or right is None:
            return None
        try:
            return compare(left, right)
        except TypeError:
            return None

    return test


def _contained(item: Any, container: Any) -> bool:
    return item in container


def _joined(parts: list[Callable[[Span], bool | None]], *, decisive: bool) -> Callable[[Span], bool | None]:
    """One `decisive` result decides: False for `and`, True for `or`."""

    def test(span: Span) -> bool | None:
        results = [part(span) for part in parts]
        return decisive if decisive in results else None if None in results else not decisive

    return test


def _not(part: Callable[[Span], bool | None]) -> Callable[[Span], bool | None]:
    def test(span: Span) -> bool | None:
        result = part(span)
        return None if result is None else not result

    return test


def _term(node: ast.expr, *, moments: bool) -> Term:
    constant = _constant(node)
    if constant is not _NO_CONSTANT:
        value = _moment(constant, node) if moments else constant
        return lambda _: value
    key = _key(node)
    if key in _FIELDS:
        return _FIELDS[key]
    attribute = key.removeprefix("attributes.")
    return lambda span: span.attributes.get(attribute)


_NO_CONSTANT = object()


def _moment(value: Any, node: ast.expr) -> Any:
    """A time, or a list of them, in the spelling of spans: sorted as texts they are sorted as times."""
    if isinstance(value, list):
        return [_moment(item, node) for item in cast("list[Any]", value)]
    if not isinstance(value, str):
        return value
    try:
        return time_text(us_of_text(value))
    except (ValueError, OverflowError):
        raise FilterRefused(f"{value!r} is not a time such as 2026-11-01T12:00:00Z", node.col_offset) from None


def _constant(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            values: list[Any] = []
            for item in items:
                value = _constant(item)
                if value is _NO_CONSTANT or isinstance(value, list):
                    raise FilterRefused("a list may hold texts and numbers only", item.col_offset)
                values.append(value)
            return values
        case _:
            return _NO_CONSTANT


def _key(node: ast.expr) -> str:
    """The dotted key of `llm.token_count.total`, `attributes['a.b']` or `metadata['tier']`."""
    match node:
        case ast.Name(id=name):
            if name in _FIELDS:
                return name
            fields = ", ".join(sorted(field for field in _FIELDS if "." not in field))
            what = f"{name} is no field (fields: {fields}; attributes as attributes['a.b'])"
            raise FilterRefused(what, node.col_offset)
        case ast.Attribute(value=value, attr=name):
            return f"{_prefix(value)}.{name}"
        case ast.Subscript(value=value, slice=ast.Constant(value=str() | int() as name)):
            return f"{_prefix(value)}.{name}"
        case _:
            raise FilterRefused("not a field, an attribute or a plain value", node.col_offset)


def _prefix(node: ast.expr) -> str:
    if not isinstance(node, ast.Name):
        return _key(node)
    if node.id in _ELSEWHERE:
        raise FilterRefused(f"{node.id} is not part of this language", node.col_offset)
    return node.id


def _required(node: ast.expr) -> dict[str, str]:
    """Equalities on columns that hold for every match: those at the top, or joined to it by `and`."""
    match node:
        case ast.BoolOp(op=ast.And(), values=values):
            found: dict[str, str] = {}
            for value in values:
                found = {**_required(value), **found}
            return found
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            for field, value in ((left, right), (right, left)):
                if isinstance(field, ast.Name) and field.id in _COLUMNS and isinstance(value, ast.Constant):
                    return {field.id: value.value} if isinstance(value.value, str) else {}
            return {}
        case _:
            return {}
