"""A small JSON Schema validator for the schemas that people give with a question.

It knows type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
uniqueItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, pattern, anyOf,
oneOf, allOf, not, and local $ref. Loading a schema refuses an unknown keyword, a rule that makes no sense (an unknown
type, a pattern that does not compile) and a $ref that leads nowhere or in a circle, so that nothing is ignored later when
a value is judged. A schema may be a stranger's: each $ref is followed once and judges a value once, patterns are RE2's, and a
value that would still take more than `MOST_STEPS` does not fit. Keywords that only describe (title, format, …) are allowed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from sonde.core.canonical import canonical_json, clip
from sonde.core.patterns import compiled
from sonde.errors import ConfigError

Schema = Mapping[str, Any]
MOST_STEPS = 2_000_000
"""Of judging one value: a few seconds."""
MOST_LINES = 100

_WORDS = frozenset(
    {"$schema", "$id", "$defs", "definitions", "$comment", "title", "description", "default", "examples", "format"}
    | {"deprecated", "readOnly", "writeOnly", "discriminator"}
)
_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, float) and v.is_integer()),
    "number": lambda v: (isinstance(v, int) and not isinstance(v, bool)) or (isinstance(v, float) and math.isfinite(v)),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def _is_multiple(number: float, of: float) -> bool:
    if isinstance(number, int) and isinstance(of, int):
        return number % of == 0
    try:
        return math.isclose(number / of, round(number / of))
    except OverflowError:
        return False  # beyond all floats, where nobody can tell


_BOUNDS: dict[str, tuple[Any, Callable[[Any, Any], bool], str]] = {
    "minItems": (list, operator.ge, "of a length of at least"),
    "maxItems": (list, operator.le, "of a length of at most"),
    "minLength": (str, operator.ge, "of a length of at least"),
    "maxLength": (str, operator.le, "of a length of at most"),
    "minimum": (int | float, operator.ge, "at least"),
    "maximum": (int | float, operator.le, "at most"),
    "exclusiveMinimum": (int | float, operator.gt, "above"),
    "exclusiveMaximum": (int | float, operator.lt, "below"),
    "multipleOf": (int | float, _is_multiple, "a multiple of"),
}
"""Keywords that bound a number or a length: what they apply to, when it fits, and what to say when it does not."""

_KEYWORDS = frozenset(
    {*_BOUNDS, "type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems"}
    | {"uniqueItems", "pattern", "anyOf", "oneOf", "allOf", "not"}
)


def _is_number(rule: Any) -> bool:
    return isinstance(rule, int | float) and not isinstance(rule, bool) and math.isfinite(rule)


def _is_type(rule: Any) -> bool:
    names = cast("list[Any]", rule) if isinstance(rule, list) else [rule]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_pattern(rule: Any) -> bool:
    try:
        return isinstance(rule, str) and bool(compiled(rule))
    except ValueError:
        return False


_Rule = tuple[Callable[[Any], bool], str]
_NUMBER: _Rule = (_is_number, "a number")
_COUNT: _Rule = (
    lambda rule: isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0,
    "a whole number from 0 on",
)
_PARTS: _Rule = (lambda rule: isinstance(rule, list) and bool(cast("list[Any]", rule)), "a list of schemas, not empty")
_NAMED: _Rule = (lambda rule: isinstance(rule, dict), "an object of schemas")
_TEXTS: _Rule = (
    lambda rule: isinstance(rule, list) and all(isinstance(each, str) for each in cast("list[Any]", rule)),
    "a list of names",
)
_RULES: dict[str, _Rule] = {
    "$ref": (lambda rule: isinstance(rule, str), "text, such as #/$defs/Item"),
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
    "enum": (lambda rule: isinstance(rule, list), "a list of values"),
    "required": _TEXTS,
    "pattern": (_is_pattern, "a regular expression that RE2 reads (no look-around, no back-references)"),
    "uniqueItems": (lambda rule: isinstance(rule, bool), "true or false"),
    "multipleOf": (lambda rule: _is_number(rule) and rule > 0, "a number above 0"),
    **dict.fromkeys(("properties", "$defs", "definitions"), _NAMED),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _PARTS),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
}
"""What the value of a keyword must be."""


def load_schema(schema: Any) -> dict[str, Any]:
    """The schema, if Sonde understands every part of it; otherwise a ConfigError names the place and the keyword."""
    if not isinstance(schema, dict):
        raise ConfigError(f"a JSON schema is an object, not {type(schema).__name__}")
    found = cast("dict[str, Any]", schema)
    try:
        _check_keywords(found, "#")
        _check_refs(found, found, set())
    except RecursionError:
        raise ConfigError("this JSON schema is nested too deeply, or its $refs lead through too many others") from None
    return found


def _check_keywords(schema: Any, where: str) -> None:
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ConfigError(f"{where}: a schema is an object or a boolean, not {schema!r}")
    for key, value in cast("dict[str, Any]", schema).items():
        if key not in _KEYWORDS and key not in _WORDS and key != "$ref":
            raise ConfigError(
                f"{where}: the keyword {key!r} is not supported; supported: {', '.join(sorted(_KEYWORDS))}"
            )
        if key in _RULES and not _RULES[key][0](value):
            raise ConfigError(f"{where}/{key} must be {_RULES[key][1]}, not {clip(repr(value), 80)}")
        for name, part in _subschemas(key, value):
            _check_keywords(part, f"{where}/{key}{name}")


def _check_refs(schema: Any, root: Schema, followed: set[str]) -> None:
    """Check that every $ref leads to a schema and not back to itself."""
    if isinstance(schema, dict):
        _follow(schema, root, (), followed)
        for key, value in cast("dict[str, Any]", schema).items():
            for _, part in _subschemas(key, value):
                _check_refs(part, root, followed)


def _follow(schema: Any, root: Schema, above: tuple[str, ...], followed: set[str]) -> None:
    """Follow all that judges the same value. Only there can a circle be endless: whatever goes deeper into a value ends with it."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ConfigError(f"$ref {above[-1]!r} leads to no schema")
    parts = cast("dict[str, Any]", schema)
    ref = parts.get("$ref")
    if ref is not None:
        if ref in above:
            raise ConfigError(f"$ref {ref!r} leads in a circle: that schema means itself and nothing else")
        if ref not in followed:
            _follow(_resolve(ref, root), root, (*above, ref), followed)
            followed.add(ref)
    for key in ("anyOf", "oneOf", "allOf", "not"):
        for _, part in _subschemas(key, parts.get(key)) if key in parts else ():
            _follow(part, root, above, followed)


def _subschemas(key: str, value: Any) -> list[tuple[str, Any]]:
    if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return [(f"/{name}", part) for name, part in cast("dict[str, Any]", value).items()]
    if key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
        return [(f"/{index}", part) for index, part in enumerate(cast("list[Any]", value))]
    if key in ("items", "additionalProperties", "not"):
        return [("", value)]
    return []


def violations(value: Any, schema: Schema, limit: int = 8, *, quote: bool = True) -> list[str]:
    """What is wrong with a value, each with its place; empty when it fits. The model reads these lines. Without `quote` they are in the
    words of the schema alone.
    """
    try:
        return _judge(value, schema, _Judging(schema, quote), "value")[:limit]
    except _TooManySteps:
        return ["value takes too long to check against the schema: give a smaller one"]


class _TooManySteps(Exception):
    pass


@dataclass(slots=True)
class _Judging:
    """One value and its schema: the steps so far, and what each $ref said about each place."""

    root: Schema
    quote: bool = True
    steps: int = 0
    said: dict[tuple[str, int, str], list[str]] = field(default_factory=dict[tuple[str, int, str], list[str]])

    def instead_of(self, value: Any) -> str:
        """What was found where the schema wants something else."""
        return f", not {clip(repr(value), 80)}" if self.quote else ""

    def named(self, field_name: str) -> str:
        """A field that the schema does not name."""
        return field_name if self.quote else "*"


def _judge(value: Any, schema: Any, judging: _Judging, where: str) -> list[str]:
    rules = [] if isinstance(schema, bool) else [*schema.values(), value]
    judging.steps += 1 + sum(len(cast("Any", each)) for each in rules if isinstance(each, list | dict))
    if judging.steps > MOST_STEPS:
        raise _TooManySteps
    if schema is True:
        return []
    if schema is False:
        return [f"{where} is not allowed"]
    found: list[str] = []
    if "$ref" in schema:
        known = (where, id(value), schema["$ref"])
        if known not in judging.said:
            judging.said[known] = _judge(value, _resolve(schema["$ref"], judging.root), judging, where)
        found += judging.said[known]
    for key, rule in schema.items():
        match key:
            case "type":
                wanted = cast("list[str]", rule) if isinstance(rule, list) else [cast("str", rule)]
                if not any(name in _TYPES and _TYPES[name](value) for name in wanted):
                    found.append(f"{where} must be {' or '.join(wanted)}{judging.instead_of(value)}")
            case "enum" | "const":
                allowed = rule if key == "enum" else [rule]
                given = canonical_json(value)
                if not any(canonical_json(each) == given for each in allowed):
                    found.append(f"{where} must be one of {canonical_json(allowed)}{judging.instead_of(value)}")
            case "pattern" if isinstance(value, str):
                if not compiled(rule).search(value.encode("utf-8", "replace").decode()):
                    found.append(f"{where} does not match {rule!r}")
            case "anyOf":
                tries = [_judge(value, part, judging, where) for part in rule]
                found.extend(min(tries, key=len))
            case "oneOf":
                fitting = sum(not _judge(value, part, judging, where) for part in rule)
                if fitting != 1:
                    found.append(f"{where} fits {fitting} of the alternatives, it must fit exactly one")
            case "allOf":
                found.extend(line for part in rule for line in _judge(value, part, judging, where))
            case "not":
                if not _judge(value, rule, judging, where):
                    found.append(f"{where} is of a form that the schema excludes")
            case _ if key in _BOUNDS:
                kind, fits, words = _BOUNDS[key]
                applies = isinstance(value, kind) and not isinstance(value, bool)
                if applies and not fits(len(cast("Any", value)) if isinstance(value, str | list) else value, rule):
                    found.append(f"{where} must be {words} {rule}")
            case _ if isinstance(value, dict):
                found.extend(_judge_fields(cast("dict[str, Any]", value), key, schema, judging, where))
            case _ if isinstance(value, list):
                found.extend(_judge_items(cast("list[Any]", value), key, schema, judging, where))
            case _:
                pass
    return list(dict.fromkeys(found))[:MOST_LINES]  # two $refs to one schema say everything twice


def _judge_fields(value: dict[str, Any], key: str, schema: Schema, judging: _Judging, where: str) -> list[str]:
    rule = schema[key]
    match key:
        case "properties":
            return [
                line
                for name in rule
                if name in value
                for line in _judge(value[name], rule[name], judging, f"{where}.{name}")
            ]
        case "required":
            return [f"{where} lacks the field {name!r}" for name in rule if name not in value]
        case "additionalProperties":
            extra = [name for name in value if name not in schema.get("properties", {})]
            if rule is False:
                return [f"{where} has a field {judging.named(name)!r} that the schema does not have" for name in extra]
            return [
                line for name in extra for line in _judge(value[name], rule, judging, f"{where}.{judging.named(name)}")
            ]
        case _:
            return []


def _judge_items(value: list[Any], key: str, schema: Schema, judging: _Judging, where: str) -> list[str]:
    rule = schema[key]
    match key:
        case "items":
            first = len(schema.get("prefixItems", ()))
            pairs = [(each, rule) for each in value[first:]]
        case "prefixItems":
            first, pairs = 0, list(zip(value, rule, strict=False))
        case "uniqueItems" if rule and len({canonical_json(each) for each in value}) < len(value):
            return [f"{where} has the same item twice"]
        case _:
            return []
    return [
        line
        for index, (each, part) in enumerate(pairs, first)
        for line in _judge(each, part, judging, f"{where}[{index}]")
    ]


def _resolve(ref: str, root: Schema) -> Any:
    if not ref.startswith("#"):
        raise ConfigError(f"$ref {ref!r} is not local")
    part: Any = root
    for step in ref[1:].strip("/").split("/"):
        if step:
            try:
                part = part[step.replace("~1", "/").replace("~0", "~")]
            except (KeyError, TypeError):
                raise ConfigError(f"$ref {ref!r} points nowhere") from None
    return part
