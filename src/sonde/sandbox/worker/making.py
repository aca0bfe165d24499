"""Plain values from the nodes of a saved state: the other half of `graph`, by the same kinds."""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import functools
import re
from typing import Any, cast

from .report import type_name

SHELLS = frozenset({"list", "dict", "set", "deque", "OrderedDict", "Counter", "defaultdict", "instance"})
"""What can be made empty and filled later, so that a cycle has a beginning."""

_type_dict = type.__dict__["__dict__"].__get__
_type_mro = type.__dict__["__mro__"].__get__


def scalar(item: Any) -> Any:
    """An item that is no node."""
    if type(item) is not dict:
        return item
    kind, text = next(iter(cast("dict[str, str]", item).items()))
    match kind:
        case "i":
            return int(text, 16)
        case "f":
            return float(text)
        case _:
            return bytes.fromhex(text).decode("utf-8", "surrogatepass")


def shell(kind: str, head: Any, cls: Any) -> Any:
    """A container or an object with nothing in it yet. No method of the object's class runs."""
    match kind:
        case "deque":
            return collections.deque[Any](maxlen=head)
        case "defaultdict":
            return collections.defaultdict[Any, Any](None)
        case "instance":
            return object.__new__(cls)
        case _:
            empty: dict[str, Any] = {"list": list, "dict": dict, "set": set} | _DICTS
            return empty[kind]()


_DICTS: dict[str, Any] = {"OrderedDict": collections.OrderedDict, "Counter": collections.Counter}


def fill(kind: str, value: Any, head: Any, values: list[Any]) -> None:
    """Put the parts into what `shell` made."""
    match kind:
        case "list" | "deque":
            value.extend(values)
        case "set":
            value.update(values)
        case "instance":
            _fill_instance(value, head, values[1:])
        case "defaultdict":
            value.default_factory = values[0]
            value.update(_pairs(values[1:]))
        case "Counter":
            dict[Any, Any].update(value, _pairs(values))  # its own update() would count
        case _:
            value.update(_pairs(values))


def make(kind: str, head: Any, values: list[Any]) -> Any:
    """A value that is complete when it is made."""
    match kind:
        case "str":
            return scalar(head)
        case "bytes":
            return head.encode("latin-1")
        case "bytearray":
            return bytearray(head.encode("latin-1"))
        case "pattern":
            return re.compile(values[0], head)
        case "partial":
            return functools.partial(values[0], *values[1], **values[2])
        case "constant":
            return {"Ellipsis": ..., "NotImplemented": NotImplemented}[head]
        case "namedtuple":
            return tuple.__new__(values[0], values[1:])  # pyright: ignore[reportUnknownMemberType] - a class of the code
        case "namedtuple class":
            return _namedtuple(head, values[0] or {})
        case "date" | "datetime" | "time" | "timedelta" | "timezone":
            return _moment(kind, head, values)
        case _:
            return _number(kind, head, values)


def _moment(kind: str, head: Any, values: list[Any]) -> Any:
    match kind:
        case "date":
            return dt.date(*head)
        case "datetime":
            return dt.datetime(*head[:7], tzinfo=values[0], fold=head[7])
        case "time":
            return dt.time(*head[:4], tzinfo=values[0], fold=head[4])
        case "timedelta":
            return dt.timedelta(*head)
        case _:
            return dt.timezone(*values)


def _number(kind: str, head: Any, values: list[Any]) -> Any:
    if kind == "Decimal":
        return decimal.Decimal(head)
    if kind in ("tuple", "frozenset"):
        return tuple(values) if kind == "tuple" else frozenset(values)
    return {"complex": complex, "Fraction": fractions.Fraction, "range": range, "slice": slice}[kind](*values)


def _pairs(values: list[Any]) -> Any:
    return zip(values[::2], values[1::2], strict=True)


def _fill_instance(value: Any, head: list[list[str]], values: list[Any]) -> None:
    names, slots = head
    for name, each in zip(names, values, strict=False):
        _own_dict(value)[name] = each
    for name, each in zip(slots, values[len(names) :], strict=True):
        holder = next(base for base in _type_mro(type(value)) if name in _type_dict(base))
        _type_dict(holder)[name].__set__(value, each)


def _own_dict(value: Any) -> dict[str, Any]:
    for base in _type_mro(type(value)):
        if "__dict__" in _type_dict(base):
            return _type_dict(base)["__dict__"].__get__(value)
    raise TypeError(f"objects of the class {type_name(value)} hold nothing")


def _namedtuple(head: list[Any], defaults: dict[str, Any]) -> Any:
    make_class: Any = collections.namedtuple  # noqa: PYI024 - its fields are known from data only
    return make_class(head[0], head[1], defaults=list(defaults.values()), module="__main__")
