"""The state of a session as plain data, made inside the worker: variables, definitions, random numbers, and what stays behind.

Promises to say of each variable that it is carried or why not. What it makes is the worker's word like everything else that
leaves it: the supervisor checks its form and stores it, and only another confined worker ever builds objects from it.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from .graph import Graph, NotCarried, is_data
from .origins import CACHED, Definition, Origins
from .report import sized, type_name

MOST_LEFT_OUT = 200
SMALL = 1000
"""Longer values come last: one that fills the room must not keep the small ones out."""


@dataclass
class Place:
    """What of a session is saved, or restored into: its namespace, what is fixed in it, and the sources of its turns."""

    namespace: dict[str, Any]
    fixed: dict[str, Any]
    builtins: Mapping[str, Any]
    modules: Collection[str]
    sources: dict[str, str]
    dice: tuple[random.Random, ...]
    """The sources of random numbers that code can reach."""
    thrown: tuple[Any, ...]
    """Their states before any code ran."""


class Saving:
    """One save: goes through the variables one by one, so that one that cannot be carried costs only itself."""

    def __init__(self, place: Place, room: int, without: Collection[str]) -> None:
        self._place = place
        self._without = frozenset(without) | place.fixed.keys()
        self._origins = Origins(place.sources, place.namespace, place.fixed)
        self._origins.offer(place.modules, place.builtins)
        self._graph = Graph(room, self._origins.parts)
        self._names: list[tuple[str, Any]] = []
        self._variables: list[tuple[str, str, int]] = []
        self._left_out: list[tuple[str, str, str]] = []

    def run(self) -> dict[str, Any]:
        """The whole state; `graph` is JSON text that nobody outside a worker needs to take apart."""
        gc.disable()  # a finaliser of the code's would run in the middle of it
        dice = self._dice()
        for name, value in sorted(self._place.namespace.items(), key=lambda each: sized(each[1]) > SMALL):
            if type(name) is str and name.isidentifier() and not name.startswith("__") and name not in self._without:
                self._variable(name, value)
        attributes = self._attributes()
        ordered = sorted(enumerate(self._origins.definitions), key=lambda each: each[1].order)
        return {
            "variables": self._variables,
            "left_out": self._left_out[:MOST_LEFT_OUT],
            "definitions": [(number, each.name, each.source, each.future) for number, each in ordered],
            "graph": b'{"nodes":%b,"names":%b,"attributes":%b,"dice":%b}'
            % (self._graph.text(), *(json.dumps(each).encode() for each in (self._names, attributes, dice))),
        }

    def _variable(self, name: str, value: Any) -> None:
        count = len(self._origins.definitions)
        try:
            item = self._add(value)
        except NotCarried as error:
            self._origins.forget(count)
            where = f"{name}{error.trail}: " if error.trail else ""
            self._left_out.append((name, type_name(value), f"{where}{error.reason}"))
            return
        self._names.append((name, item))
        if type(value) is not ModuleType:
            function = type(value) is FunctionType or type(value) is CACHED
            kind = "function" if function else type_name(value)
            self._variables.append((name, kind, sized(value)))

    def _add(self, value: Any) -> Any:
        known = len(self._origins.definitions)
        item = self._graph.add(value)
        self._graph.take_room(sum(len(each.source) + 64 for each in self._origins.definitions[known:]))
        return item

    def _attributes(self) -> list[tuple[int, str, Any]]:
        """(definition, where, value): what functions and classes hold besides their source."""
        found: list[tuple[int, str, Any]] = []
        at = 0
        while at < len(self._origins.definitions):  # each may lead to more of them
            for where, value in _held(self._origins.definitions[at]):
                count = len(self._origins.definitions)
                try:
                    found.append((at, where, self._add(value)))
                except NotCarried:
                    self._origins.forget(count)  # its source gives it, as well as it can
            at += 1
        return found

    def _dice(self) -> list[Any]:
        """The state of the random numbers, where code has drawn any."""
        states = [random.Random.getstate(each) for each in self._place.dice]
        return [
            None if state == before else self._graph.add(state)
            for state, before in zip(states, self._place.thrown, strict=True)
        ]


def _held(definition: Definition) -> list[tuple[str, Any]]:
    value = definition.value
    if type(value) is FunctionType:
        held = {"__defaults__": value.__defaults__, "__kwdefaults__": value.__kwdefaults__}
        own = {name: each for name, each in vars(value).items() if type(name) is str and name != "__wrapped__"}
        return [(name, each) for name, each in (*held.items(), *own.items()) if each is not None]
    if type(value) is not type:  # a metaclass of its own decides what its classes hold
        return []
    body = type.__dict__["__dict__"].__get__(value)
    return [
        (name, each) for name, each in body.items() if type(name) is str and not name.startswith("__") and is_data(each)
    ]
