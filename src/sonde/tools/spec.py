"""A tool is a typed function with a docstring, from which come its schema, its line in the prompt and its argument checks.

Annotations may be `str`, `int`, `float`, `bool`, `None`, `list[...]`, `dict[...]`, `Literal[...]`, optional and union
types, typed dicts and dataclasses. Nothing is coerced, except that a whole number may stand for a float. If a call goes
wrong, the model sees the docstring's line `Example: x = name(...)`, or an example made from the types. Only
`tools.registry` calls tools.
"""

from __future__ import annotations

import inspect
import re
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from sonde.core.evidence import Observed
from sonde.errors import ConfigError, ToolFault

_EXAMPLES: dict[Any, Any] = {str: "text", int: 1, float: 0.5, bool: True, list: [], dict: {}}

# To its dot; the dot of `a.py` ends nothing, and neither does one between quotes: a command is shown whole.
_SENTENCE = re.compile(r"""(?:(?<!\w)'(?:[^'\\\n]|\\.)*'|(?<!\w)"(?:[^"\\\n]|\\.)*"|[^.\n]|\.(?!\s|$))*""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument; `positional` is False if it must be named."""

    name: str
    type: Any
    required: bool
    default: Any = None
    positional: bool = True

    def __str__(self) -> str:
        text = f"{self.name}: {type_text(self.type)}"
        return text if self.required else f"{text} = {self.default!r}"

    def check(self, value: Any) -> Any:
        """The value as the function gets it; a ValueError says what was expected."""
        try:
            return msgspec.convert(value, self.type, strict=True)
        except msgspec.ValidationError as error:
            shown = repr(value)
            shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
            raise ValueError(f"{error} (given: {shown})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that code or actions may call by name. Only tools of a workspace are not `read_only`."""

    name: str
    function: Callable[..., Any]
    doc: str
    schema: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    returns: str
    read_only: bool = True

    @property
    def signature(self) -> str:
        """`name(argument: type = default, ...) -> type`."""
        shown = [str(p) for p in self.parameters if p.positional]
        named = [str(p) for p in self.parameters if not p.positional]
        listed = ", ".join([*shown, *(["*"] if named else []), *named])
        return f"{self.name}({listed}) -> {self.returns}"

    @property
    def brief(self) -> str:
        """In one line, for a small budget: the names of the arguments and the first sentence."""
        shown = [p.name if p.required else f"{p.name}={p.default!r}" for p in self.parameters if p.positional]
        named = [f"{p.name}={p.default!r}" for p in self.parameters if not p.positional]
        shown += ["*", *named] if named else []
        first = _SENTENCE.match(self.doc)
        return f"{self.name}({', '.join(shown)}): {first[0] if first else ''}."

    @property
    def example(self) -> str:
        """A correct call: the docstring's own, or one made from the types."""
        given = re.search(r"^\s*Example:\s*(.+)$", self.doc, re.MULTILINE)
        if given:
            return given[1].strip()
        needed = [p for p in self.parameters if p.required]
        listed = ", ".join(repr(_sample(p)) if p.positional else f"{p.name}={_sample(p)!r}" for p in needed)
        return f"result = {self.name}({listed})"

    @property
    def prompt(self) -> str:
        """What the model reads about it: the signature, then the docstring, indented."""
        lines = [line.strip() for line in self.doc.splitlines() if line.strip()]
        return "\n".join([self.signature, *(f"    {line}" for line in lines)])

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, sorted, with defaults filled in; a ToolFault names the first that does not fit."""
        known = [p.name for p in self.parameters]
        strangers = [name for name in args if name not in known]
        if strangers:
            takes = ", ".join(known) or "no arguments"
            raise self.fault(f"unknown argument {', '.join(map(repr, strangers))}; it takes {takes}.")
        checked: dict[str, Any] = {}
        for p in sorted(self.parameters, key=lambda p: p.name):
            if p.name not in args and p.required:
                raise self.fault(f"argument {p.name!r} is missing.")
            try:
                checked[p.name] = p.check(args[p.name]) if p.name in args else p.default
            except ValueError as error:
                raise self.fault(f"argument {p.name!r} does not fit: {error}.") from None
        return checked

    def fault(self, what: str) -> ToolFault:
        """What went wrong, with the signature and a correct call."""
        return ToolFault(f"{self.name}: {what}\nSignature: {self.signature}\nExample: {self.example}")


def tool(function: Callable[..., Any] | Tool, name: str | None = None, *, read_only: bool = True) -> Tool:
    """Make a tool of a function; ConfigError if its signature does not say how to call it."""
    if isinstance(function, Tool):
        return function
    chosen = name or getattr(function, "__name__", "")
    if not chosen.isidentifier():
        raise ConfigError(
            f"{chosen or function!r} cannot be a tool's name: use a def with a plain name, or tool(function, name='lookup')."
        )
    if isinstance(function, types.MethodType):
        known = _forms.setdefault(function.__func__, {})
        form = known[chosen] = known.get(chosen) or _form(function, chosen)
    else:
        form = _form(function, chosen)
    return Tool(
        name=chosen,
        function=function,
        doc=form.doc,
        schema=form.schema,
        parameters=form.parameters,
        returns=form.returns,
        read_only=read_only,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What a function's signature says."""

    doc: str
    schema: Mapping[str, Any]
    parameters: tuple[Parameter, ...]
    returns: str


_forms: weakref.WeakKeyDictionary[Any, dict[str, _Form]] = weakref.WeakKeyDictionary()
"""Forms of methods by function and tool name: to read those of twenty tools takes 5 ms, too much for every run."""


def _form(function: Callable[..., Any], name: str) -> _Form:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"tool {name} is async; give a plain function, for instance one that calls asyncio.run inside."
        )
    try:
        hints = get_type_hints(
            function if inspect.isroutine(function) else type(function).__call__, include_extras=True
        )
    except NameError as error:
        raise ConfigError(
            f"the annotations of tool {name} cannot be read: {error}. Use types that its module can see."
        ) from None
    parameters: list[Parameter] = []
    for p in inspect.signature(function).parameters.values():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise ConfigError(f"tool {name} takes {p}: name every argument, so that calls can be checked.")
        required = p.default is p.empty
        parameters.append(
            Parameter(
                name=p.name,
                type=hints.get(p.name, Any),
                required=required,
                default=None if required else p.default,
                positional=p.kind is not p.KEYWORD_ONLY,
            )
        )
    returned = hints.get("return", Any)
    returns = "Any" if returned is Observed else type_text(returned)
    if get_origin(returned) is Annotated:  # a tool that cites: `-> Annotated[Observed, "list[str]"]`
        returns = str(get_args(returned)[1])
    return _Form(
        doc=inspect.getdoc(function) or "",
        schema=_schema(name, parameters),
        parameters=tuple(parameters),
        returns=returns,
    )


def type_text(kind: Any) -> str:
    """A type as people write it: `str | None`, `list[int]`, `Literal['a', 'b']`."""
    if kind is None or kind is type(None):
        return "None"
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return " | ".join(type_text(part) for part in get_args(kind))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, get_args(kind)))}]"
    if origin is not None:
        inner = ", ".join("..." if part is Ellipsis else type_text(part) for part in get_args(kind))
        return f"{getattr(origin, '__name__', origin)}[{inner}]"
    return getattr(kind, "__name__", str(kind))


def _schema(name: str, parameters: Sequence[Parameter]) -> dict[str, Any]:
    try:
        described, definitions = msgspec.json.schema_components([p.type for p in parameters])
    except TypeError as error:
        raise ConfigError(
            f"tool {name} has an annotation that JSON cannot carry: {error}. Use str, int, float, bool, list or dict."
        ) from None
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {p.name: shape for p, shape in zip(parameters, described, strict=True)},
        "required": [p.name for p in parameters if p.required],
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema


def _sample(parameter: Parameter) -> Any:
    origin = get_origin(parameter.type) or parameter.type
    if origin is Literal:
        return get_args(parameter.type)[0]
    return _EXAMPLES.get(origin, "text")
