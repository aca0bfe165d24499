"""The language rules inside the worker: the import hook and the trimmed builtins, from data the supervisor sends.

They give good error messages and are not the boundary: code that walks around them meets the kernel.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

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


def preload(names: list[str]) -> None:
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
        kept["__import__"] = _make_import(frozenset(policy["modules"]), policy["import_message"])
    return kept


def _make_import(allowed: frozenset[str], message: str) -> Any:
    """The `__import__` of generated code; a function of its own, so that its closure holds no more than it needs."""
    plain_import = builtins.__import__

    def checked_import(name: str, scope: Any = None, inner: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name in ASKED_BY_C and fromlist == []:
            return None  # C code takes the module from sys.modules itself; whoever imitates it gets nothing
        if level or name.partition(".")[0] not in allowed:
            raise ImportError(message.replace("{module}", "." * level + name), name=name)
        # `from json import codecs` is an import of `codecs`: a module reached through a module is not on the list.
        for attribute in fromlist or ():
            value = getattr(sys.modules.get(name), attribute, None)
            if isinstance(value, ModuleType) and not value.__name__.startswith(f"{name}."):
                raise ImportError(message.replace("{module}", value.__name__), name=value.__name__)
        return _facade(plain_import(name, scope, inner, fromlist, level))

    return checked_import


def _facade(real: ModuleType) -> ModuleType:
    """The module without the modules that it has imported itself: no `re.enum.sys`, no `json.codecs.open`.

    Made anew at each import and read through to the real module, so that a clock or a seed put there is seen.
    """
    shown = ModuleType(real.__name__, real.__doc__)
    public = [name for name, value in vars(real).items() if not (name.startswith("_") or isinstance(value, ModuleType))]

    def look_up(name: str) -> Any:
        value = getattr(real, "__all__", public) if name == "__all__" else getattr(real, name)
        if not isinstance(value, ModuleType):
            return value
        if not value.__name__.startswith(f"{real.__name__}."):
            raise AttributeError(
                f"module {real.__name__!r} has no attribute {name!r}; import {value.__name__} by itself"
            )
        return _facade(value)

    vars(shown).update(__getattr__=look_up, __dir__=lambda: public)
    return shown


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
