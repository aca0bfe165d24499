"""Values as numbered nodes of plain JSON: data of known types, whole, with shared references and cycles kept.

Promises to call no method that generated code defined: only exact types are taken apart, by the getters of the C types. What it
does not know it refuses with `NotCarried`, and leaves nothing of the refused value behind.

    node   [number, kind, head, [item, ...]]      listed when its parts are
    item   null, true, 1, 1.5, "text" · [number] a node · {"i": "0x.."} · {"f": "nan"} · {"s": "hex of surrogatepass"}
"""

from __future__ import annotations

import collections
import datetime as dt
import decimal
import fractions
import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from .clock import real_date, real_datetime, replaced
from .report import type_name, type_of

SHORT = 64
"""A longer text is a node: it may be referred to a million times and is written once."""
SAFE_INT = 1 << 53
LABEL_CHARS = 60

Parts = tuple[str, Any, Sequence[Any]]
"""(kind, head, children): the head is plain JSON, the children are values."""
Split = Callable[[Any], "Parts | None"]


class NotCarried(Exception):
    """Why a value stays behind; `trail` says where in it, as code would write it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.trail = ""


class TooLarge(NotCarried):
    """There is no room for it; where in it that showed is of no interest."""


class Frame:
    """A value being taken apart."""

    __slots__ = ("at", "children", "guess", "head", "items", "kind", "number")

    def __init__(self, number: int, parts: Parts) -> None:
        self.number = number
        self.kind, self.head, self.children = parts
        self.items: list[Any] = []
        self.at = 0
        self.guess = 0


class Graph:
    """Nodes so far, and the room that is left for them. `others` takes apart what is not plain data."""

    def __init__(self, room: int, others: Split) -> None:
        self.nodes: list[bytes] = []
        self.size = 0
        self.room = room
        self._others = others
        self._numbers: dict[int, int] = {}
        self._kept: list[Any] = []  # so that no number is given to two objects with the same address

    def add(self, value: Any) -> Any:
        """The value as an item, its nodes added; NotCarried, and nothing added, when a part of it cannot be."""
        before = len(self.nodes), self.size, len(self._numbers)
        try:
            return self._walk(value)
        except NotCarried:
            del self.nodes[before[0] :]
            self.size = before[1]
            self._numbers = {at: number for at, number in self._numbers.items() if number < before[2]}
            raise

    def take_room(self, size: int) -> None:
        """Something else of the state takes this many bytes."""
        self.room -= size
        if self.size > self.room:
            self.room += size
            raise TooLarge("it is too large: nothing of this size is left to be saved")

    def text(self) -> bytes:
        """All nodes as JSON."""
        return b"[" + b",".join(self.nodes) + b"]"

    def _walk(self, root: Any) -> Any:
        top = Frame(-1, ("", None, [root]))
        stack = [top]
        try:
            while not top.items:
                self._step(stack)
        except TooLarge:
            raise
        except NotCarried as error:
            error.trail = "".join(map(_label, stack[1:]))
            raise
        return top.items[0]

    def _step(self, stack: list[Frame]) -> None:
        frame = stack[-1]
        children, items, at = frame.children, frame.items, frame.at
        while at < len(children):
            child = children[at]
            item = self._item(child)
            frame.at = at
            if item is UNKNOWN:
                stack.append(self._open(child))
                return
            self._count(frame, len(item) if type(item) is str else 3)
            items.append(item)
            at += 1
        frame.at = at
        if len(stack) > 1:
            self._close(stack.pop())

    def _open(self, value: Any) -> Frame:
        parts = _split_of(value, self._others)(value)
        if parts is None:
            raise NotCarried(why_not(value))
        number = len(self._numbers)
        self._numbers[id(value)] = number
        self._kept.append((value, parts[2]))
        return Frame(number, parts)

    def _close(self, frame: Frame) -> None:
        node = json.dumps([frame.number, frame.kind, frame.head, frame.items], ensure_ascii=False, allow_nan=False)
        text = node.encode()
        self.nodes.append(text)
        self.size -= frame.guess
        frame.guess = 0
        self._count(frame, len(text) + 1)

    def _count(self, frame: Frame, size: int) -> None:
        frame.guess += size
        self.size += size
        if self.size > self.room:
            raise TooLarge(f"it is too large: no more than {self.room} bytes are saved in all")

    def _item(self, value: Any) -> Any:
        kind = type_of(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -SAFE_INT < value < SAFE_INT else {"i": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"f": repr(value)}
        if kind is str and len(value) <= SHORT:
            return text_item(value)
        number = self._numbers.get(id(value))
        return UNKNOWN if number is None else [number]


UNKNOWN = object()


def text_item(text: str) -> Any:
    """A text, also one that UTF-8 cannot hold."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return {"s": text.encode("utf-8", "surrogatepass").hex()}
    return text


ITERATORS = frozenset(
    {
        "map",
        "zip",
        "filter",
        "enumerate",
        "reversed",
        "async_generator",
        "coroutine",
        "islice",
        "chain",
        "count",
        "cycle",
    }
    | {
        "accumulate",
        "groupby",
        "pairwise",
        "product",
        "permutations",
        "combinations",
        "starmap",
        "takewhile",
        "dropwhile",
    }
)
VIEWS = frozenset({"dict_keys", "dict_values", "dict_items", "odict_keys", "odict_values", "odict_items"})


def why_not(value: Any) -> str:
    """In words for the model: what it is and what to keep instead."""
    name = type_name(value)
    if name == "generator":
        return "a generator stands in the middle of its code; keep list(it), or make it again"
    if name in ITERATORS or name.endswith("iterator"):
        return f"an open iterator ({name}) cannot be carried; keep list(it)"
    if name in VIEWS or name == "memoryview":
        return f"a view ({name}) belongs to another object; keep list(view) or bytes(view)"
    if name in ("SharedText", "SharedTexts"):
        return "it is the shared context, which is given again and never saved"
    return f"a {name} is not plain data, nor made by a class of this session's code"


def _label(frame: Frame) -> str:
    """The way from a value to the part of it that is being looked at."""
    at, kind = frame.at, frame.kind
    if kind in ("list", "tuple", "deque"):
        return f"[{at}]"
    if kind in ("dict", "OrderedDict", "Counter", "defaultdict"):
        at -= kind == "defaultdict"
        key = frame.children[at - at % 2 + (kind == "defaultdict")] if at >= 0 else ""
        return f"[{key!r}]"[:LABEL_CHARS] if type(key) is str or type(key) is int else "[...]"
    if kind == "instance" and at:
        return f".{(frame.head[0] + frame.head[1])[at - 1]}"[:LABEL_CHARS]
    return "{...}" if kind in ("set", "frozenset") else ""


def _flat(pairs: Any) -> list[Any]:
    return [part for pair in pairs for part in pair]


def _fields(kind: type, *names: str) -> Callable[[Any], list[Any]]:
    """Read attributes by the getters of the C type, which generated code cannot replace."""
    getters = [kind.__dict__[name].__get__ for name in names]
    return lambda value: [get(value) for get in getters]


_date = _fields(real_date, "year", "month", "day")
_moment = _fields(real_datetime, "hour", "minute", "second", "microsecond", "fold")
_zone = _fields(real_datetime, "tzinfo")
_time = _fields(dt.time, "hour", "minute", "second", "microsecond", "fold")
_time_zone = _fields(dt.time, "tzinfo")
_delta = _fields(dt.timedelta, "days", "seconds", "microseconds")
_range = _fields(range, "start", "stop", "step")
_slice = _fields(slice, "start", "stop", "step")
_pattern = _fields(re.Pattern, "pattern", "flags")
_partial = _fields(functools.partial, "func", "args", "keywords")
_maxlen = _fields(collections.deque, "maxlen")
_factory = _fields(collections.defaultdict, "default_factory")
_complex = _fields(complex, "real", "imag")
_fraction = _fields(fractions.Fraction, "_numerator", "_denominator")


def _timezone(value: Any) -> Parts:
    """Its arguments: the offset, and the name where one was given."""
    arguments: Any = dt.timezone.__dict__["__getinitargs__"]
    return "timezone", None, arguments(value)


def _constant(value: Any) -> Parts:
    return "constant", repr(value), ()


def _datetime(value: Any) -> Parts:
    return "datetime", _date(value) + _moment(value), _zone(value)


PLAIN: dict[type, Split] = {
    str: lambda value: ("str", text_item(value), ()),
    bytes: lambda value: ("bytes", value.decode("latin-1"), ()),
    bytearray: lambda value: ("bytearray", value.decode("latin-1"), ()),
    list: lambda value: ("list", None, value),
    tuple: lambda value: ("tuple", None, value),
    set: lambda value: ("set", None, list(value)),
    frozenset: lambda value: ("frozenset", None, list(value)),
    dict: lambda value: ("dict", None, _flat(value.items())),
    collections.OrderedDict: lambda value: ("OrderedDict", None, _flat(collections.OrderedDict[Any, Any].items(value))),
    collections.Counter: lambda value: ("Counter", None, _flat(dict[Any, Any].items(value))),
    collections.defaultdict: lambda value: ("defaultdict", None, _factory(value) + _flat(dict[Any, Any].items(value))),
    collections.deque: lambda value: ("deque", _maxlen(value)[0], list(value)),
    complex: lambda value: ("complex", None, _complex(value)),
    decimal.Decimal: lambda value: ("Decimal", decimal.Decimal.__str__(value), ()),
    fractions.Fraction: lambda value: ("Fraction", None, _fraction(value)),
    range: lambda value: ("range", None, _range(value)),
    slice: lambda value: ("slice", None, _slice(value)),
    real_date: lambda value: ("date", _date(value), ()),
    real_datetime: _datetime,
    dt.time: lambda value: ("time", _time(value), _time_zone(value)),
    dt.timedelta: lambda value: ("timedelta", _delta(value), ()),
    dt.timezone: _timezone,
    re.Pattern: lambda value: ("pattern", _pattern(value)[1], _pattern(value)[:1]),
    functools.partial: lambda value: ("partial", None, _partial(value)),
    type(...): _constant,
    type(NotImplemented): _constant,
}
"""The exact types that are data."""
_PLAIN = {id(kind): split for kind, split in PLAIN.items()}
_DATA = frozenset(map(id, (*PLAIN, bool, int, float, type(None))))


def is_data(value: Any) -> bool:
    """Is it of a type that is data? By identity: a metaclass of the code may define == and hash()."""
    return id(type_of(value)) in _DATA


def _split_of(value: Any, others: Split) -> Split:
    kind = type_of(value)
    real = next((real for shown, real in replaced.items() if shown is kind), kind)
    return _PLAIN.get(id(real), others)
