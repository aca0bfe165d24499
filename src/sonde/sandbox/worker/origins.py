"""Where functions, classes and modules come from: the source that made them, or the module that offers them.

A definition is carried by its source. Functions that close over local variables, and what no source of this session made, are
not. Like `graph`, it looks at objects by the getters of the C types only.
"""

from __future__ import annotations
import __future__

import ast
import functools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import Any, cast

from .graph import NotCarried, Parts, is_data, why_not
from .report import type_of

LINE_END = re.compile(r"\r\n|\r|\n")
FUTURE_ANNOTATIONS = __future__.annotations.compiler_flag
CACHED: type = type(functools.lru_cache(lambda: None))

_type_dict = type.__dict__["__dict__"].__get__
_type_name = type.__dict__["__name__"].__get__
_type_qualname = type.__dict__["__qualname__"].__get__
_type_mro = type.__dict__["__mro__"].__get__

Found = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda


@dataclass
class Definition:
    """A function or class by its source; `order` is where it stood."""

    value: Any
    name: str
    source: str
    order: tuple[int, int]
    future: bool


class Origins:
    """What is known of this session's definitions and of the modules it may import."""

    def __init__(self, sources: Mapping[str, str], namespace: dict[str, Any], fixed: Mapping[str, Any]) -> None:
        self.definitions: list[Definition] = []
        self._known: dict[int, int] = {}
        self._sources = sources
        self._files = {filename: at for at, filename in enumerate(sources)}
        self._namespace = namespace
        self._trees: dict[str, ast.Module | None] = {}
        self._fixed = {id(value): name for name, value in fixed.items()}
        self._offered: dict[int, tuple[str, str]] = {}

    def offer(self, modules: Iterable[str], names: Mapping[str, Any]) -> None:
        """What `from module import name` would give, so that it can be carried by name."""
        for module in sorted(modules):
            offered = vars(sys.modules[module]) if module in sys.modules else {}
            for name, value in offered.items():
                if type(name) is str and name[:1] != "_" and not is_data(value):
                    self._offered.setdefault(id(value), (module, name))
        self._offered |= {id(value): ("builtins", name) for name, value in names.items() if name[0] != "_"}

    def parts(self, value: Any) -> Parts | None:
        """For the graph: everything that is not plain data."""
        if id(value) in self._fixed:
            return "host", self._fixed[id(value)], ()
        if type(value) is ModuleType:
            return "module", str(vars(value).get("__name__")), ()
        if type(value) is FunctionType and value.__globals__ is self._namespace:
            return "definition", self._function(value), ()
        if id(value) in self._offered:
            return "import", self._offered[id(value)], ()
        if type(value) is CACHED:
            return "definition", self._decorated(value), ()
        if issubclass(type(value), type):
            return self._class_parts(cast("type", value))
        return self._instance(value)

    def forget(self, count: int) -> None:
        """Only the first `count` definitions are wanted after all."""
        del self.definitions[count:]
        self._known = {at: number for at, number in self._known.items() if number < count}

    def _function(self, function: FunctionType) -> int:
        if id(function) in self._known:
            return self._known[id(function)]
        if function.__closure__:
            if type(vars(function).get("__wrapped__")) is FunctionType:
                return self._decorated(function)
            kept = ", ".join(function.__code__.co_freevars)[:80]
            raise NotCarried(
                f"a function that closes over local variables ({kept}) cannot be carried; define it at the top"
            )
        node, filename = self._function_node(function)
        return self._note(function, node, filename, bool(function.__code__.co_flags & FUTURE_ANNOTATIONS), bare=True)

    def _decorated(self, value: Any) -> int:
        """A function behind decorators that keep it in `__wrapped__`: the decorators are applied again."""
        if id(value) in self._known:
            return self._known[id(value)]
        inner = _unwrapped(value)
        if type(inner) is not FunctionType or inner.__closure__ or inner.__globals__ is not self._namespace:
            raise NotCarried("a decorated function whose own source was not found cannot be carried")
        node, filename = self._function_node(inner)
        if not isinstance(node, ast.FunctionDef) or not node.decorator_list:
            raise NotCarried("a function wrapped by a call, not by a decorator, cannot be carried; use @decorator")
        return self._note(value, node, filename, bool(inner.__code__.co_flags & FUTURE_ANNOTATIONS), bare=False)

    def _function_node(self, function: FunctionType) -> tuple[Found, str]:
        code = function.__code__
        tree = self._tree(code.co_filename)
        if tree is None:
            raise NotCarried("a function whose source is not a turn of this session cannot be carried")
        found = [node for node, inside in _definitions(tree) if not inside and _stands_at(node, code)]
        if len({ast.dump(node) for node in found}) != 1:
            raise NotCarried("a method taken from its class, or one of several functions on a line, cannot be carried")
        return found[0], code.co_filename

    def _class_parts(self, cls: type) -> Parts:
        if id(cls) in self._known:
            return "definition", self._known[id(cls)], ()
        body = _type_dict(cls)
        if not _is_own(cls):
            raise NotCarried(f"the class {_type_name(cls)} is not defined by this session's code")
        for filename in self._candidates(cls):
            nodes = [node for node, _ in _definitions(self._tree(filename)) if _makes(node, cls)]
            if nodes:
                self._refuse_closures(body)
                return "definition", self._note(cls, nodes[-1], filename, _future(self._tree(filename)), bare=False), ()
        if _is_namedtuple(cls):
            return "namedtuple class", [_type_name(cls), list(body["_fields"])], [body.get("_field_defaults")]
        raise NotCarried(f"the source of the class {_type_name(cls)} was not found")

    def _candidates(self, cls: type) -> list[str]:
        """The turns that may have made it: those that made its methods, or else all, newest first."""
        made = [each.__code__.co_filename for each in _type_dict(cls).values() if type(each) is FunctionType]
        known = [filename for filename in made if filename in self._sources]
        return known[:1] or [*self._sources][::-1]

    def _refuse_closures(self, body: Mapping[str, Any]) -> None:
        for each in body.values():
            if type(each) is FunctionType and each.__code__.co_filename in self._sources:
                kept = {*each.__code__.co_freevars} - {"__class__"}
                if kept:
                    raise NotCarried(
                        f"a class whose methods use local variables ({', '.join(sorted(kept))[:80]}) cannot be carried"
                    )

    def _note(self, value: Any, node: Found, filename: str, future: bool, *, bare: bool) -> int:
        source = _text(self._sources[filename], node, bare=bare)
        order = (self._files[filename], node.lineno)
        self._known[id(value)] = number = len(self.definitions)
        name = "" if isinstance(node, ast.Lambda) else node.name
        self.definitions.append(Definition(value, name, source, order, future))
        return number

    def _instance(self, value: Any) -> Parts | None:
        cls = type_of(value)
        if not _is_own(cls):
            return None
        if _is_namedtuple(cls):
            return "namedtuple", None, [cls, *tuple[Any, ...].__iter__(value)]
        if not all(base is object or _is_own(base) for base in _type_mro(cls)):
            raise NotCarried(
                f"an object of the class {_type_name(cls)}, which derives from a class of Python, cannot be carried"
            )
        state, slots = _state(value)
        return "instance", [[*state], [*slots]], [cls, *state.values(), *slots.values()]

    def _tree(self, filename: str) -> ast.Module | None:
        if filename not in self._trees:
            source = self._sources.get(filename)
            self._trees[filename] = None if source is None else _parsed(source)
        return self._trees[filename]


def _unwrapped(value: Any) -> Any:
    """The function behind all wrappers."""
    while type(value) is FunctionType or type(value) is CACHED:
        held = vars(value)
        if "__wrapped__" not in held:
            break
        value = held["__wrapped__"]
    return value


def _parsed(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a turn that never ran
        return None


def _is_own(cls: type) -> bool:
    """Was it made by generated code? Asked without comparing anything that such code could have made."""
    module = _type_dict(cls).get("__module__")
    return type(module) is str and module == "__main__"


def _is_namedtuple(cls: type) -> bool:
    fields: Any = _type_dict(cls).get("_fields")
    mro = _type_mro(cls)
    return (
        len(mro) == 3
        and mro[1] is tuple
        and type(fields) is tuple
        and all(type(name) is str for name in cast("tuple[Any, ...]", fields))
    )


def _state(value: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """({name: value} of its dict, of its slots), without asking the class."""
    state: dict[str, Any] = {}
    slots: dict[str, Any] = {}
    for base in _type_mro(type(value)):
        for name, getter in _type_dict(base).items():
            if type(name) is not str:
                continue
            if type(getter) is MemberDescriptorType and name not in slots:
                try:
                    slots[name] = getter.__get__(value)
                except AttributeError:
                    continue  # declared and not set
            elif type(getter) is GetSetDescriptorType and name == "__dict__" and not state:
                state = getter.__get__(value)
    if not all(type(name) is str for name in state):
        raise NotCarried(why_not(value))
    return state, slots


def _definitions(tree: ast.Module | None) -> Iterator[tuple[Found, bool]]:
    """(definition, is it directly in a class), in source order."""
    stack: list[tuple[ast.AST, bool]] = [(tree, False)] if tree is not None else []
    while stack:
        node, inside = stack.pop()
        if isinstance(node, Found):
            yield node, inside
        inside = isinstance(node, ast.ClassDef)
        stack += [(child, inside) for child in reversed([*ast.iter_child_nodes(node)])]


def _stands_at(node: Found, code: Any) -> bool:
    if isinstance(node, ast.ClassDef):
        return False
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = node.decorator_list[0].lineno if node.decorator_list else node.lineno
    return node.name == code.co_name and first == code.co_firstlineno


def _makes(node: Found, cls: type) -> bool:
    """Could this statement have made the class? Its name, and everything it binds is there."""
    if not isinstance(node, ast.ClassDef) or node.name != _type_qualname(cls).rpartition(".")[2]:
        return False
    bound = {part.name for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {
        each.id
        for part in node.body
        if isinstance(part, ast.Assign)
        for each in part.targets
        if isinstance(each, ast.Name)
    }
    return (
        bound <= {name for name in _type_dict(cls) if type(name) is str} | {"__slots__"} or _type_mro(cls)[1] is tuple
    )


def _future(tree: ast.Module | None) -> bool:
    imports = (part for part in tree.body if isinstance(part, ast.ImportFrom)) if tree is not None else ()
    return any(
        part.module == "__future__" and any(name.name == "annotations" for name in part.names) for part in imports
    )


def _text(source: str, node: Found, *, bare: bool) -> str:
    """The statement as it was written where it stands at the top; rewritten where it was indented."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    if not isinstance(node, ast.Lambda) and node.col_offset == 0:
        first = node.lineno if bare or not decorators else decorators[0].lineno
        return "\n".join(LINE_END.split(source)[first - 1 : node.end_lineno])
    if not isinstance(node, ast.Lambda) and bare:
        node.decorator_list = []
    try:
        return ast.unparse(node)
    except RecursionError:
        raise NotCarried("its source is nested too deeply to be written again") from None
    finally:
        if not isinstance(node, ast.Lambda):
            node.decorator_list = decorators
