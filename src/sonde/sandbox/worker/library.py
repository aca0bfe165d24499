"""Modules that code may import after the lockdown, when no file can be opened any more: their code is kept in memory.

Promises that a held module costs only its compressed code until somebody imports it, and that its compiled parts are loaded before.
The data of time zones is kept the same way. Does not promise anything about modules that a held one imports inside a function.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import marshal
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder, SourceFileLoader
from opcode import EXTENDED_ARG, opmap
from types import CodeType, ModuleType
from typing import Any

ZONE_FOLDERS = ("/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo")
"""Where Python looks by default."""
NOT_ZONES = frozenset({"posix", "right", "localtime", "posixrules"})
"""Folders that repeat all zones, the second one with leap seconds, and names that mean another zone on each machine."""

STARTS_THREADS = ("pyarrow", "numexpr", "bottleneck")
"""What pandas imports if it is installed."""
NOT_NEEDED = frozenset({"tests", "f2py", "distutils", "testing"})
IMPORTS = frozenset({opmap["IMPORT_NAME"], opmap["IMPORT_FROM"]})

Held = dict[str, tuple[bytes, str, bool]]
"""By the module's name: its code, where it comes from, and whether it is a package."""


def load_packages(names: list[str], path: list[str]) -> list[str]:
    """Import packages of this Python, without threads of their own; the names of all their modules, and of those they need."""
    sys.path += path
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"))
    for name in STARTS_THREADS:
        sys.modules[name] = None  # pyright: ignore[reportArgumentType] - pandas does without what cannot be imported
    before = set(sys.modules)
    for name in names:
        importlib.import_module(name)
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError(f"{', '.join(names)} started a thread, which no fork keeps")
    found: list[str] = []
    for top in {name.partition(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names:
        homes: list[str] = list(getattr(sys.modules.get(top), "__path__", []))
        for home in homes:
            for place, folders, files in os.walk(home):
                folders[:] = [
                    each
                    for each in folders
                    if each not in NOT_NEEDED and os.path.exists(os.path.join(place, each, "__init__.py"))
                ]
                inside = ".".join([top, *os.path.relpath(place, home).split("/")]).removesuffix("..")
                stems = {file.partition(".")[0] for file in files if file.endswith((".py", ".so"))}
                found += [f"{inside}.{stem}" for stem in stems if stem != "__init__" and "tests" not in stem]
    return found


def hold(names: list[str], path: list[str]) -> None:
    """Make these modules importable for good, and all time zones: the system's, or those of the package tzdata on this path.

    A child reads them. What reading takes and gives back would stay with this process otherwise, and with all its forks.
    """
    come, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            packages = [os.path.join(each, "tzdata", "zoneinfo") for each in path]
            zones = zlib.compress(
                marshal.dumps(read_zones(next(filter(os.path.isdir, [*ZONE_FOLDERS, *packages]), "")))
            )
            with open(go, "wb") as pipe:
                marshal.dump((*_read_modules(names), zones), pipe)
        finally:
            os._exit(0)
    os.close(go)
    with open(come, "rb") as pipe:
        held, compiled, zones = marshal.loads(pipe.read())
    os.waitpid(pid, 0)
    nobody = os.uname_result(("Linux", "", "", "", ""))
    os.uname = lambda: nobody  # uuid asks for the system, and the kernel will not say it
    os.environ["PYTHONTZPATH"] = ""  # otherwise zoneinfo loads the settings of Python's build to find the default
    for name in compiled:
        with contextlib.suppress(ImportError):  # a part of a package that needs what is not installed
            importlib.import_module(name)
    _give_zones(zones)
    del os.environ["PYTHONTZPATH"]
    sys.meta_path.insert(0, HeldModules(held))  # pyright: ignore[reportArgumentType] - typeshed wants a loader of another kind


class HeldModules:
    """A finder, and the loader of what it finds."""

    def __init__(self, held: Held) -> None:
        self._held = held

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a held module."""
        del path, target
        if name not in self._held:
            return None
        _, origin, inside = self._held[name]
        return ModuleSpec(name, self, origin=origin, is_package=inside)  # pyright: ignore[reportArgumentType] - as above

    def create_module(self, spec: ModuleSpec) -> None:
        """None: the usual kind of module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code."""
        exec(marshal.loads(zlib.decompress(self._held[module.__name__][0])), vars(module))  # we wrote it ourselves


def _read_modules(names: Iterable[str]) -> tuple[Held, list[str]]:
    """These modules and those that they import when they are loaded; and apart from them, the compiled ones, which must be now.

    What is loaded already, or is not in this Python, is left out.
    """
    held: Held = {}
    compiled: list[str] = []
    waiting, seen = list(names), set(sys.modules)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        package, _, _ = name.rpartition(".")
        waiting += [package] if package else []
        spec = _find(name)
        if spec is None or spec.origin is None:
            continue
        if not isinstance(spec.loader, SourceFileLoader):
            compiled.append(name)
            continue
        code = spec.loader.get_code(name)
        assert code is not None
        inside = spec.submodule_search_locations is not None
        held[name] = zlib.compress(marshal.dumps(code)), spec.origin, inside
        home = name if inside else package
        beside = os.listdir(os.path.dirname(spec.origin)) if home else []
        siblings = {each.partition(".")[0] for each in beside}
        for each in _imported(code):
            waiting += [each] if each.partition(".")[0] in sys.stdlib_module_names else []
            waiting += [f"{home}.{each}"] if each in siblings else []
    return held, compiled


def _imported(code: CodeType) -> Iterator[str]:
    """What is imported, whole or from a package, by code that runs when a module is loaded: its top, and the bodies of its classes."""
    high = 0
    for operation, argument in zip(code.co_code[::2], code.co_code[1::2], strict=True):
        if operation in IMPORTS:
            yield code.co_names[high | argument]
        high = (high | argument) << 8 if operation == EXTENDED_ARG else 0
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and not inner.co_flags & inspect.CO_OPTIMIZED:
            yield from _imported(inner)


def _find(name: str) -> ModuleSpec | None:
    """The spec of a module, found without running the packages it lies in."""
    path = None
    spec = None
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        whole = ".".join(parts[:end])
        found = (finder.find_spec(whole, path) for finder in (BuiltinImporter, FrozenImporter, PathFinder))
        spec = next(filter(None, found), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def read_zones(folder: str) -> dict[str, bytes]:
    """The data of every zone by its name."""
    zones: dict[str, bytes] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in NOT_ZONES]
        for file in files:
            path = os.path.join(place, file)
            if file in NOT_ZONES or not os.path.isfile(path):  # images without /etc/localtime keep a link to it
                continue
            with open(path, "rb") as opened:
                data = opened.read()
            if data.startswith(b"TZif"):
                zones[os.path.relpath(path, folder)] = data
    return zones


def _give_zones(packed: bytes) -> None:
    """Let `zoneinfo` read its data here."""
    import zoneinfo
    from zoneinfo import _common, _tzpath  # pyright: ignore[reportAttributeAccessIssue] - private, and what its C code asks

    @functools.cache
    def zones() -> dict[str, bytes]:
        return marshal.loads(zlib.decompress(packed))  # we wrote it ourselves

    def load_tzdata(key: str) -> io.BytesIO:
        if key not in zones():
            raise zoneinfo.ZoneInfoNotFoundError(f"No time zone found with key {key}")
        return io.BytesIO(zones()[key])

    _common.load_tzdata = load_tzdata
    zoneinfo.available_timezones = _tzpath.available_timezones = lambda: set(zones())
