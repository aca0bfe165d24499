"""The language rules inside the worker: the import hook and the trimmed builtins, from data the supervisor sends.

They give good error messages and are not the boundary: code that walks around them meets the kernel.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import sys
from collections.abc import Mapping
from types import CodeType, ModuleType
from typing import Any, NamedTuple

ALWAYS = (
    *("json", "marshal", "random", "traceback", "linecache", "_strptime", "unicodedata", "datetime", "time"),
    "calendar",
    *("encodings.ascii", "encodings.latin_1", "encodings.utf_16", "encodings.utf_32", "encodings.utf_8_sig"),
    *("encodings.cp1252", "encodings.idna", "encodings.unicode_escape", "encodings.raw_unicode_escape"),
    *("encodings.utf_16_le", "encodings.utf_16_be", "encodings.utf_32_le", "encodings.utf_32_be", "encodings.utf_7"),
    *("encodings.punycode", "encodings.cp437", "encodings.cp1251", "encodings.iso8859_15", "encodings.rot_13"),
    *("collections.abc", "json.decoder", "typing", "copyreg", "heapq", "bisect", "fractions", "decimal", "locale"),
)
"""What allowed modules import lazily, by themselves, after lockdown, when no file can be opened any more."""

ASKED_BY_C = frozenset({"_strptime", "time"})
"""What `datetime`, written in C, imports in the name of the code that calls it: for strptime, strftime, timetuple and today."""

MODULE_DATETIME = re.compile(r"\bdatetime\.(?:datetime|date|time|timedelta|timezone|UTC)\b")
"""Code that means the module: the class of that name has none of these, or only methods."""


def preload(names: list[str]) -> None:
    sys.modules["_uuid"] = None  # pyright: ignore[reportArgumentType] - it asks the kernel for time and dice; uuid does without it
    for name in (*ALWAYS, *names):
        try:
            importlib.import_module(name)
        except ImportError:
            continue  # not in this Python: code that imports it gets the ImportError


def make_builtins(policy: Mapping[str, Any]) -> dict[str, Any]:
    """The `__builtins__` of generated code under this policy."""
    kept = vars(builtins).copy()
    if policy["builtins"] is not None:
        names = {*policy["builtins"], "None", "True", "False", "__build_class__", "__name__"}
        kept = {name: value for name, value in kept.items() if name in names}
    if policy["modules"] is not None:
        rules = ImportRules(
            frozenset(policy["modules"]), policy["names"], frozenset(policy["extra"]), policy["import_message"]
        )
        kept["__import__"] = _make_import(rules)
    return kept


class ImportRules(NamedTuple):
    """What may be imported: modules, parts of packages by their dotted name, and of some modules only these names."""

    allowed: frozenset[str]
    names: Mapping[str, list[str]]
    extra: frozenset[str]
    message: str

    def allow(self, name: str) -> bool:
        """Is this module on the list, or in a package that is?"""
        while name and name not in self.allowed:
            name = name.rpartition(".")[0]
        return bool(name)

    def lead_to(self, name: str) -> bool:
        """Is this a package of which only a part is on the list?"""
        return any(each.startswith(f"{name}.") for each in self.allowed)

    def check(self, module: str, name: str, kind: type[Exception]) -> None:
        """Refuse a name that this module has, but not for code."""
        only = self.names.get(module)
        if only is not None and name not in only and not name.startswith("__") and name != "*":
            raise kind(f"`{module}.{name}` is not in this sandbox; of {module} there are {', '.join(only)}")

    def error(self, name: str) -> ImportError:
        return ImportError(self.message.replace("{module}", name), name=name)


def _make_import(rules: ImportRules) -> Any:
    """The `__import__` of generated code; a function of its own, so that its closure holds no more than it needs."""
    plain_import = builtins.__import__

    def checked_import(name: str, scope: Any = None, inner: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name in ASKED_BY_C and fromlist == []:
            return None  # C code takes the module from sys.modules itself; whoever imitates it gets nothing
        if rules.extra and fromlist == []:  # packages in C ask for more than datetime does
            plain_import(name)
            return None
        if level or not (rules.allow(name) or rules.lead_to(name)):
            raise rules.error("." * level + name)
        if name.partition(".")[0] in rules.extra:
            return plain_import(
                name, scope, inner, fromlist, level
            )  # as it is: a facade would be slow, and it is no boundary
        plain_import(name)
        # `from json import codecs` is an import of `codecs`: a module reached through a module is not on the list.
        for attribute in fromlist or ():
            rules.check(name, attribute, ImportError)
            value = getattr(sys.modules.get(name), attribute, None)
            if isinstance(value, ModuleType) and not value.__name__.startswith(f"{name}."):
                raise rules.error(value.__name__)
            if value is None and not (attribute == "*" or rules.allow(f"{name}.{attribute}")):
                raise rules.error(f"{name}.{attribute}")
        return _facade(plain_import(name, scope, inner, fromlist, level), rules)

    return checked_import


def _facade(real: ModuleType, rules: ImportRules) -> ModuleType:
    """The module without the modules that it has imported itself: no `re.enum.sys`, no `json.codecs.open`.

    Made anew at each import and read through to the real module, so that a clock or a seed put there is seen.
    """
    shown = ModuleType(real.__name__, real.__doc__)
    public = [name for name, value in vars(real).items() if not (name.startswith("_") or isinstance(value, ModuleType))]
    only = rules.names.get(real.__name__)

    def look_up(name: str) -> Any:
        if name == "__all__":
            return only or getattr(real, name, public)
        value = getattr(real, name)
        rules.check(real.__name__, name, AttributeError)
        if not isinstance(value, ModuleType):
            return value
        path = value.__name__
        if not path.startswith(f"{real.__name__}.") or not (rules.allow(path) or rules.lead_to(path)):
            raise AttributeError(f"module {real.__name__!r} has no attribute {name!r}; import {path} by itself")
        return _facade(value, rules)

    vars(shown).update(__getattr__=look_up, __dir__=lambda: only or public)
    return shown


def add_ready_names(names: dict[str, Any], ready: Mapping[str, str], code: CodeType, source: str) -> None:
    """Import the everyday names that this code mentions, into its builtins: there, whatever the code binds itself wins."""
    for name in _mentioned(code) & ready.keys():
        module = ready[name]
        if name == "datetime":  # the class or the module of the same name, as this block uses it
            names[name] = names["__import__"](module)
            if not MODULE_DATETIME.search(source):
                names[name] = names[name].datetime
        elif name not in names:
            found = names["__import__"](module)
            names[name] = found if name == module else getattr(found, name)


def _mentioned(code: CodeType) -> set[str]:
    """The names of globals and attributes in this code and its functions."""
    return set(code.co_names).union(*(_mentioned(each) for each in code.co_consts if isinstance(each, CodeType)))


def called_names(tree: ast.AST) -> set[str]:
    """Names that the code calls and binds nowhere: they are for the host."""
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
