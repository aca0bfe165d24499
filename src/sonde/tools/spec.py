"""A tool is a typed function with a docstring: its schema, its line in the prompt and its argument checks all come from
there.

Annotations may be `str`, `int`, `float`, `bool`, `None`, `list[...]`, `dict[...]`, `Literal[...]`, optional and union
types, typed dicts and dataclasses. Nothing is coerced, except that a whole number may stand for a float. A docstring
line `Example: x = name(...)` is shown whenever a call goes wrong; without one an example is made from the types. A tool
is called through `tools.registry` only.
"""

from __future__ import annotations

import inspect
import re
import types
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from sonde.core.evidence import Observed
from sonde.errors import ConfigError, ToolFault

_EXAMPLES: dict[Any, Any] = {str: "text", int: 1, float: 0.5, bool: True, list: [], dict: {}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One argument: `positional` is false for what must be named."""

    name: str
    type: Any
    required: bool
    default: Any = None
    positional: bool = True

    def __str__(self) -> str:
        text = f"{self.name}: {type_text(self.type)}"
        return text if self.required else f"{text} = {self.default!r}"

    def check(self, value: Any) -> Any:
        """The value as the function gets it; ValueError says what was expected."""
        try:
            return msgspec.convert(value, self.type, strict=True)
        except msgspec.ValidationError as error:
            raise ValueError(f"{error} (given: {_shorten(value)})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that code or actions may call by name. `read_only` is false for the tools of a workspace alone."""

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
        """What the model reads about it: the signature and the docstring, indented."""
        lines = [line.strip() for line in self.doc.splitlines() if line.strip()]
        return "\n".join([self.signature, *(f"    {line}" for line in lines)])

    def check(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """All arguments by name, sorted, defaults filled in; a ToolFault names the first that does not fit."""
        self._refuse_strangers(args)
        return {p.name: self._checked(p, args) for p in sorted(self.parameters, key=lambda p: p.name)}

    def fault(self, what: str) -> ToolFault:
        """What went wrong, with the signature and a correct call beside it."""
        return ToolFault(f"{self.name}: {what}\nSignature: {self.signature}\nExample: {self.example}")

    def _refuse_strangers(self, args: Mapping[str, Any]) -> None:
        known = [p.name for p in self.parameters]
        strangers = [name for name in args if name not in known]
        if strangers:
            takes = ", ".join(known) or "no arguments"
            raise self.fault(f"unknown argument {', '.join(map(repr, strangers))}; it takes {takes}.")

    def _checked(self, parameter: Parameter, args: Mapping[str, Any]) -> Any:
        if parameter.name not in args:
            if parameter.required:
                raise self.fault(f"argument {parameter.name!r} is missing.")
            return parameter.default
        try:
            return parameter.check(args[parameter.name])
        except ValueError as error:
            raise self.fault(f"argument {parameter.name!r} does not fit: {error}.") from None


def tool(function: Callable[..., Any] | Tool, name: str | None = None, *, read_only: bool = True) -> Tool:
    """The tool that a function is; ConfigError when its form leaves open how to call it."""
    if isinstance(function, Tool):
        return function
    chosen = name or getattr(function, "__name__", "")
    if not chosen.isidentifier():
        raise ConfigError(
            f"{chosen or function!r} cannot be a tool's name: use a def with a plain name, or tool(function, name='lookup')."
        )
    form = _form_of(function, chosen)
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


def _form_of(function: Callable[..., Any], name: str) -> _Form:
    """Read once for a method of a class, not again for every run: twenty tools take 5 ms."""
    if not isinstance(function, types.MethodType):
        return _form(function, name)
    known = _forms.setdefault(function.__func__, {})
    if name not in known:
        known[name] = _form(function, name)
    return known[name]


def _form(function: Callable[..., Any], name: str) -> _Form:
    parameters = _parameters(function, name)
    return _Form(
        doc=inspect.getdoc(function) or "",
        schema=_schema(name, parameters),
        parameters=parameters,
        returns=_returns(_hints(function, name).get("return", Any)),
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


def _returns(kind: Any) -> str:
    """What code gets back. A tool that cites says it beside the wrapper: `-> Annotated[Observed, "list[str]"]`."""
    if get_origin(kind) is Annotated:
        return str(get_args(kind)[1])
    return "Any" if kind is Observed else type_text(kind)


def _hints(function: Callable[..., Any], name: str) -> dict[str, Any]:
    annotated = function if inspect.isroutine(function) else type(function).__call__
    try:
        return get_type_hints(annotated, include_extras=True)
    except NameError as error:
        raise ConfigError(
            f"the annotations of tool {name} cannot be read: {error}. Use types that its module can see."
        ) from None


def _parameters(function: Callable[..., Any], name: str) -> tuple[Parameter, ...]:
    if inspect.iscoroutinefunction(function):
        raise ConfigError(
            f"tool {name} is async; give a plain function, for instance one that calls asyncio.run inside."
        )
    hints = _hints(function, name)
    return tuple(_parameter(p, hints.get(p.name, Any), name) for p in inspect.signature(function).parameters.values())


def _parameter(p: inspect.Parameter, kind: Any, name: str) -> Parameter:
    if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
        raise ConfigError(f"tool {name} takes {p}: name every argument, so that calls can be checked.")
    required = p.default is p.empty
    return Parameter(
        name=p.name,
        type=kind,
        required=required,
        default=None if required else p.default,
        positional=p.kind is not p.KEYWORD_ONLY,
    )


def _schema(name: str, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
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


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
