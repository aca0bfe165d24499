"""A saved state built again inside a fresh, confined worker: definitions run, values made, names bound.

What it is given may have been written by anybody. It runs under the rules of this worker's profile: imports go through its
import hook, builtins are its builtins, names that are fixed here stay. A definition that fails costs itself and what needs it.
"""

from __future__ import annotations
import __future__

import json
from collections.abc import Callable
from typing import Any

from .making import SHELLS, fill, make, scalar, shell
from .report import remember_source
from .saving import Place

OWN = frozenset({"module", "import", "host", "definition"})

Node = tuple[int, str, Any, list[Any]]


class Restoring:
    """One restore. `problems` says of each name that is missing why."""

    def __init__(
        self, place: Place, definitions: list[tuple[int, str, str, bool]], refused: dict[int, str], graph: bytes
    ) -> None:
        self._place = place
        self._graph: dict[str, Any] = json.loads(graph)
        self._nodes: list[Node] = [(n, kind, head, items) for n, kind, head, items in self._graph["nodes"]]
        self._users = _users(self._nodes)
        self._built: dict[int, Any] = {}
        self._done: set[int] = set()
        self._failed: dict[int, str] = {}
        self._waiting = {n: (name, source, future) for n, name, source, future in definitions if n not in refused}
        self._defined: dict[int, Any] = {}
        self._refused = dict(refused)

    def run(self) -> dict[str, Any]:
        """Build what can be built, as often as another definition has become possible by it."""
        left = -1
        self._build()
        while left != len(self._waiting):
            left = len(self._waiting)
            for number in [*self._waiting]:
                self._define(number)
            self._build()
        return self._bind()

    def _define(self, number: int) -> None:
        name, source, future = self._waiting[number]
        filename = f"<turn 0.{number}: {name or 'lambda'}>"
        flags = __future__.annotations.compiler_flag if future else 0
        namespace = self._place.namespace
        remember_source(filename, source)
        self._place.sources[filename] = source
        try:
            code = compile(source, filename, "exec" if name else "eval", flags, dont_inherit=True)
            value = eval(code, namespace)  # noqa: S307 - what this process is for
            self._defined[number] = namespace[name] if name else value
            del self._waiting[number]
        except NameError as error:  # perhaps it comes with another definition
            self._refused[number] = f"NameError: {error}"
        except BaseException as error:
            self._refused[number] = f"{type(error).__name__}: {error}"[:500]
            del self._waiting[number]

    def _build(self) -> None:
        """Every node whose parts are there: first the empty containers, then all in their order, then what waited for a cycle."""
        blocked = self._blocked()
        todo = [node for node in self._nodes if node[0] not in self._done and node[0] not in blocked]
        for node in todo:
            if not node[3] and node[1] not in SHELLS:  # the class of an object among them
                self._attempt(node, self._finish)
        for node in todo:
            if node[1] in SHELLS:
                self._attempt(node, self._shell)
        while todo:
            waiting = [node for node in todo if not self._attempt(node, self._finish)]
            if len(waiting) == len(todo):
                break
            todo = waiting
        self._expose()

    def _expose(self) -> None:
        """Bind what is there, for definitions that use it while they run: `def f(x=LIMIT)`."""
        for name, item in self._graph["names"]:
            if self._is_free(name) and (type(item) is not list or item[0] in self._done):
                self._place.namespace[name] = self._value(item)

    def _is_free(self, name: Any) -> bool:
        usable = type(name) is str and name.isidentifier() and not name.startswith("__")
        return usable and name not in self._place.fixed

    def _blocked(self) -> set[int]:
        start = [n for n, kind, head, _ in self._nodes if kind == "definition" and head not in self._defined]
        return _closure(start, self._users) | self._failed.keys()

    def _attempt(self, node: Node, work: Callable[[Node], None]) -> bool:
        if node[0] in self._failed or node[0] in self._done:
            return True
        try:
            work(node)
        except Later:
            return False
        except Exception as error:
            for number in _closure([node[0]], self._users):
                self._failed.setdefault(number, f"{type(error).__name__}: {error}"[:500])
        return True

    def _shell(self, node: Node) -> None:
        number, kind, head, items = node
        self._built[number] = shell(kind, head, self._value(items[0]) if kind == "instance" else None)

    def _finish(self, node: Node) -> None:
        number, kind, head, items = node
        values = [self._value(item) for item in items]
        if kind in SHELLS:
            fill(kind, self._built[number], head, values)
        else:
            self._built[number] = self._own(kind, head) if kind in OWN else make(kind, head, values)
        self._done.add(number)

    def _value(self, item: Any) -> Any:
        if type(item) is list:
            if item[0] not in self._built:
                raise Later
            return self._built[item[0]]
        return scalar(item)

    def _own(self, kind: str, head: Any) -> Any:
        """What is not data: it is looked up here, under the rules of this place."""
        match kind:
            case "module":
                return self._module(head)
            case "import":
                return self._imported(head)
            case "host":
                return self._host(head)
            case _:
                return self._defined[head]

    def _module(self, name: str) -> Any:
        return self._place.builtins["__import__"](name, None, None, ("*",) if "." in name else (), 0)

    def _imported(self, origin: list[str]) -> Any:
        module, name = origin
        if module == "builtins":
            if name.startswith("_") or name not in self._place.builtins:
                raise NameError(f"{name} is not available here")
            return self._place.builtins[name]
        return getattr(self._place.builtins["__import__"](module, None, None, (name,), 0), name)

    def _host(self, name: str) -> Any:
        if name.startswith("__") or name not in self._place.fixed:
            raise NameError(f"the function {name} is not offered here")
        return self._place.fixed[name]

    def _bind(self) -> dict[str, Any]:
        namespace, fixed = self._place.namespace, self._place.fixed
        for name in [each for each in namespace if each not in fixed]:
            del namespace[name]
        bound: list[str] = []
        problems: list[tuple[str, str]] = []
        for name, item in self._graph["names"]:
            if not self._is_free(name):
                problems.append((str(name)[:200], "the name is taken or is no name"))
            elif (reason := self._missing(item)) is not None:
                problems.append((name, reason))
            else:
                namespace[name] = self._value(item)
                bound.append(name)
        self._hold()
        self._throw()
        return {"names": bound, "problems": problems}

    def _missing(self, item: Any) -> str | None:
        if type(item) is not list or item[0] in self._done:
            return None
        if item[0] in self._failed:
            return self._failed[item[0]]
        needed = [
            head for n, kind, head, _ in self._nodes if kind == "definition" and item[0] in _closure([n], self._users)
        ]
        reasons = [self._refused[number] for number in needed if number in self._refused]
        return reasons[0] if reasons else "a part of it is missing"

    def _hold(self) -> None:
        """Defaults of functions and variables of classes, as they were."""
        for number, where, item in self._graph["attributes"]:
            if number in self._defined and self._missing(item) is None:
                owner = self._defined[number]
                put = type.__setattr__ if isinstance(owner, type) else object.__setattr__
                put(owner, where, self._value(item))

    def _throw(self) -> None:
        for dice, item in zip(self._place.dice, self._graph["dice"], strict=True):
            if item is not None:
                dice.setstate(self._value(item))


class Later(Exception):
    """A part is not there yet: it is on the other side of a cycle."""


def _users(nodes: list[Node]) -> dict[int, list[int]]:
    users: dict[int, list[int]] = {}
    for number, _, _, items in nodes:
        for item in items:
            if isinstance(item, list):
                users.setdefault(item[0], []).append(number)  # pyright: ignore[reportUnknownArgumentType] - plain JSON
    return users


def _closure(start: list[int], users: dict[int, list[int]]) -> set[int]:
    """These nodes and all that are made of them."""
    reached: set[int] = set()
    stack = list(start)
    while stack:
        number = stack.pop()
        if number not in reached:
            reached.add(number)
            stack += users.get(number, ())
    return reached
