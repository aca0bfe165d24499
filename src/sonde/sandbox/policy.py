"""The profiles: which language rules a sandbox adds on top of the kernel boundary, as data in one place.

Promises that a profile is plain data: `Profile.to_wire` gives only strings, lists, booleans and None, for the worker,
which cannot import this package. Does not promise safety: the kernel layers are the boundary in every profile, and these rules
exist so that a model hears early, and in words, what it cannot do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec

from sonde.errors import ConfigError

ALLOWED_MODULES = frozenset(
    {"collections", "copy", "dataclasses", "datetime", "functools", "hashlib", "itertools", "json", "math"}
    | {"operator", "re", "statistics", "textwrap", "typing"}
)
BLOCKED_MODULES = frozenset(
    {"ctypes", "http", "importlib", "multiprocessing", "os", "pathlib", "shutil", "signal", "socket"}
    | {"subprocess", "sys", "threading", "urllib"}
)
NEWER_MODULES, NEWER_SINCE = frozenset({"errno", "ntpath", "posixpath", "stat", "token"}), 3
"""General modules that code may import in runs since this journal format; what was recorded before fails as it did then."""
GENERAL_MODULES = ALLOWED_MODULES | frozenset(
    {"__future__", "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "colorsys"}
    | {"configparser", "contextlib", "csv", "decimal", "difflib", "email", "enum", "fnmatch", "fractions", "graphlib"}
    | {"gzip", "heapq", "hmac", "html", "io", "ipaddress", "keyword", "numbers", "pprint", "random", "reprlib"}
    | {"shlex", "string", "struct", "time", "tokenize", "tomllib", "traceback", "types", "unicodedata"}
    | {"urllib.parse", "uuid", "warnings", "weakref", "xml.etree", "zlib", "zoneinfo"}
    | NEWER_MODULES
)
"""What of the standard library needs no files, network or processes. A dotted name stands for that part of its package alone."""
GENERAL_HELD = (GENERAL_MODULES - ALLOWED_MODULES) | frozenset(
    {"email.generator", "email.message", "email.parser", "email.policy", "email.utils", "html.parser"}
    | {"xml.etree.ElementTree"}
)
OPEN_PRELOAD = (
    ALLOWED_MODULES
    | BLOCKED_MODULES
    | frozenset(
        {"array", "ast", "asyncio", "base64", "bisect", "builtins", "cmath", "code", "codecs", "contextlib", "csv"}
        | {"decimal", "difflib", "enum", "errno", "faulthandler", "fcntl", "fractions", "gc", "glob", "heapq"}
        | {"inspect", "io"}
        | {"linecache", "locale", "marshal", "mmap", "numbers", "pickle", "platform", "posix", "pprint", "pty", "queue"}
        | {"random", "resource", "runpy", "select", "selectors", "sqlite3", "ssl", "stat", "string", "struct"}
        | {"tempfile"}
        | {"time", "timeit", "traceback", "types", "unicodedata", "uuid", "warnings", "weakref", "zlib", "zipfile"}
        | {"collections.abc", "concurrent.futures", "ctypes.util", "http.client", "importlib.util", "json.decoder"}
        | {"multiprocessing.connection", "multiprocessing.shared_memory", "os.path", "urllib.parse", "urllib.request"}
        | {"xml.etree.ElementTree"}
    )
)
"""Loaded before lockdown in `open`, so that a payload meets the kernel and not a missing file."""

READY_NAMES = {
    **{name: name for name in ("collections", "csv", "functools", "hashlib", "io", "itertools", "json", "math")},
    **{name: name for name in ("random", "re", "statistics", "textwrap")},
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("datetime", "timedelta", "timezone"), "datetime"),
    **dict.fromkeys(("Any", "Dict", "List", "Optional", "Tuple"), "typing"),
    "dataclass": "dataclasses",
}
"""Names that mean what a model expects also if its code forgets the import, each with its module: a turn costs more than a guess.

None that could be a forgotten variable: no `copy`, `date` or `time`. A name that code has bound itself always wins.
"""
IO_NAMES = frozenset(
    {"BytesIO", "StringIO", "TextIOWrapper", "IOBase", "RawIOBase", "BufferedIOBase", "TextIOBase"}
    | {"SEEK_SET", "SEEK_CUR", "SEEK_END", "DEFAULT_BUFFER_SIZE", "UnsupportedOperation"}
)
PATH_NAMES = frozenset(
    {"altsep", "basename", "commonpath", "commonprefix", "curdir", "dirname", "extsep", "isabs", "join", "normcase"}
    | {"normpath", "pardir", "pathsep", "sep", "split", "splitdrive", "splitext"}
)
"""What works on the text of a path. `exists` would be False for every file, because none can be seen."""
PACKAGES = ("numpy", "pandas")
"""Packages that code may have on request. Their time and chance are known, so that a run with them can be replayed."""
SAFE_METHODS = frozenset(
    # lists and sets
    {"append", "extend", "insert", "pop", "clear", "copy", "count", "index", "sort", "reverse", "remove"}
    | {"add", "discard", "union", "intersection", "difference", "issubset", "issuperset"}
    # mappings
    | {"get", "keys", "values", "items", "update", "setdefault"}
    # shared texts
    | {"lines", "view", "size"}
    # text; never `format` or `format_map`, whose fields walk attributes: "{0.__class__}"
    | {"strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "join", "replace", "lower", "upper", "title"}
    | {"startswith", "endswith", "find", "rfind", "partition", "rpartition", "removeprefix", "removesuffix"}
    | {"isdigit", "isalpha", "isalnum", "isspace", "islower", "isupper", "zfill", "ljust", "rjust"}
)
SAFE_EXCEPTIONS = frozenset(
    {"ArithmeticError", "AttributeError", "Exception", "IndexError", "KeyError", "LookupError", "NameError"}
    | {"RuntimeError", "ToolError", "TypeError", "ValueError", "ZeroDivisionError"}
)
SAFE_BUILTINS = frozenset(
    {"abs", "all", "any", "bool", "dict", "enumerate", "filter", "float", "hasattr", "int", "isinstance", "len", "list"}
    | {"map", "max", "min", "print", "range", "repr", "reversed", "round", "set", "sorted", "str", "sum"}
    | {"tuple", "zip"}
)
FINISH_NAMES = frozenset({"FINAL", "FINAL_VAR", "set_final", "SUBMIT"})

SAFE_NODES = frozenset(
    {"Module", "Expr", "Assign", "AnnAssign", "AugAssign", "If", "For", "While", "Break", "Continue", "Pass"}
    | {"FunctionDef", "Return", "arguments", "arg", "keyword", "Call", "Try", "ExceptHandler"}
    | {"BoolOp", "NamedExpr", "BinOp", "UnaryOp", "IfExp", "Compare", "Constant", "Name", "Attribute"}
    | {"Subscript", "Slice"}
    | {"List", "Tuple", "Set", "Dict", "Starred", "ListComp", "SetComp", "DictComp", "GeneratorExp", "comprehension"}
    | {"JoinedStr", "FormattedValue", "Load", "Store"}
    | {"Add", "Sub", "Mult", "Div", "FloorDiv", "Mod", "Pow", "LShift", "RShift", "BitOr", "BitXor", "BitAnd"}
    | {"MatMult"}
    | {"And", "Or", "Not", "Invert", "UAdd", "USub"}
    | {"Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "Is", "IsNot", "In", "NotIn"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One set of language rules. None means no rule of that kind."""

    name: str
    modules: frozenset[str] | None = None
    """Top-level modules that code may import; others raise ImportError in the worker."""
    preload: frozenset[str] = ALLOWED_MODULES
    """Modules that the fork server loads before lockdown."""
    held: frozenset[str] = frozenset()
    """Modules whose code it keeps in memory and runs when they are imported: they cost little until then."""
    names: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """What code sees of a module, for those of which it does not see all."""
    extra: tuple[str, ...] = ()
    """Installed packages that it loads as well."""
    builtins: frozenset[str] | None = None
    """Names that stay in the worker's builtins, exceptions included."""
    nodes: frozenset[str] | None = None
    """Kinds of syntax the gate lets through, by their name in `ast`."""
    methods: frozenset[str] | None = None
    """Attributes that code may use, and only to call them."""
    exceptions: frozenset[str] | None = None
    """Classes that an `except` may name."""
    lifts_tool_calls: bool = False
    """Tool calls are taken out of the code and served before it runs."""

    def to_wire(self) -> dict[str, str | list[str] | dict[str, list[str]] | dict[str, str] | bool | None]:
        """What the worker needs of this, as plain data."""
        return {
            "name": self.name,
            "modules": _listed(self.modules),
            "extra": list(self.extra),
            "names": {module: sorted(names) for module, names in self.names.items()},
            "preload": sorted(self.preload),
            "ready": {name: m for name, m in READY_NAMES.items() if self.modules is None or m in self.modules},
            "builtins": _listed(self.builtins),
            "import_message": import_message(self),
            "host_calls": not self.lifts_tool_calls,
        }

    def having(self, packages: Collection[str]) -> Profile:
        """These rules, and packages that code may import besides; ConfigError for one that is not offered or not installed."""
        for name in packages:
            if name not in PACKAGES:
                raise ConfigError(f"{name!r} is not offered to code; choose from: {', '.join(PACKAGES)}")
            if find_spec(name) is None:
                raise ConfigError(f"{name} is not installed beside Sonde: pip install {name}")
        if packages and self.builtins is not None:
            raise ConfigError(f"the profile {self.name} has no imports, so it cannot have {', '.join(packages)}")
        extra = tuple(name for name in PACKAGES if name in packages)
        return replace(self, extra=extra, modules=None if self.modules is None else self.modules | set(extra))

    def as_of(self, journal_format: int) -> Profile:
        """These rules as they were for runs of that format."""
        if self.modules is None or journal_format >= NEWER_SINCE:
            return self
        return replace(self, modules=self.modules - NEWER_MODULES)

    @property
    def gated(self) -> bool:
        """Does the gate have rules beyond valid syntax?"""
        return self.nodes is not None or self.lifts_tool_calls


PROFILES = {
    profile.name: profile
    for profile in (
        Profile(name="open", preload=OPEN_PRELOAD),
        Profile(
            name="general",
            modules=GENERAL_MODULES,
            held=GENERAL_HELD,
            names={"io": IO_NAMES, "ntpath": PATH_NAMES, "posixpath": PATH_NAMES},
        ),
        Profile(name="analysis", modules=ALLOWED_MODULES),
        Profile(
            name="strict",
            modules=frozenset(),
            builtins=SAFE_BUILTINS | SAFE_EXCEPTIONS,
            nodes=SAFE_NODES,
            methods=SAFE_METHODS,
            exceptions=SAFE_EXCEPTIONS,
        ),
        Profile(name="assign-only", modules=ALLOWED_MODULES, lifts_tool_calls=True),
    )
}


def profile_named(name: str) -> Profile:
    """The profile, or a ConfigError that lists the ones there are."""
    if name not in PROFILES:
        raise ConfigError(f"unknown sandbox profile {name!r}; choose one of: {', '.join(PROFILES)}")
    return PROFILES[name]


def import_message(profile: Profile) -> str:
    """The text of the worker's ImportError; `{module}` stands for the name that was asked for."""
    if not profile.modules:
        return "`{module}` cannot be imported: this sandbox runs code without imports. Use the builtins and the tools."
    allowed = ", ".join(sorted(profile.modules))
    return f"`{{module}}` cannot be imported in this sandbox. Allowed modules: {allowed}. For example: import json"


def _listed(names: frozenset[str] | None) -> list[str] | None:
    return None if names is None else sorted(names)
