"""A small JSON Schema validator for the schemas that people give with a question.

It knows type, enum, const, properties, required, additionalProperties, items, prefixItems, minItems, maxItems,
uniqueItems, minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf, minLength, maxLength, pattern, anyOf,
oneOf, allOf, not, and local $ref. A keyword it does not know, a rule that makes no sense (a type that is none, a pattern
that cannot be read) and a $ref that leads nowhere or in a circle are refused when the schema is loaded, rather than passed
over when a value is judged. Patterns are RE2's, so that no value takes long to judge. Words that only describe
(title, format, …) are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from sonde.core.canonical import canonical_json, clip
from sonde.core.patterns import compiled
from sonde.errors import ConfigError

Schema = Mapping[str, Any]

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


def load_schema(schema: Any) -> dict[str, Any]:
    """The schema, if every part of it is understood; ConfigError names the place and the keyword otherwise."""
    if not isinstance(schema, dict):
        raise ConfigError(f"a JSON schema is an object, not {type(schema).__name__}")
    found = cast("dict[str, Any]", schema)
    _check_keywords(found, "#")
    _check_refs(found, found)
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


def _check_refs(schema: Any, root: Schema) -> None:
    """Every $ref, wherever it stands, leads to a schema and not back to itself."""
    if isinstance(schema, dict):
        _follow(schema, root, ())
        for key, value in cast("dict[str, Any]", schema).items():
            for _, part in _subschemas(key, value):
                _check_refs(part, root)


def _follow(schema: Any, root: Schema, above: tuple[str, ...]) -> None:
    """Go on to whatever judges the same value; who goes deeper into the value comes to an end with it."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise ConfigError(f"$ref {above[-1]!r} leads to no schema")
    parts = cast("dict[str, Any]", schema)
    ref = parts.get("$ref")
    if ref is not None:
        if ref in above:
            raise ConfigError(f"$ref {ref!r} leads in a circle: that schema means itself and nothing else")
        _follow(_resolve(ref, root), root, (*above, ref))
    for key in ("anyOf", "oneOf", "allOf", "not"):
        for _, part in _subschemas(key, parts.get(key)) if key in parts else ():
            _follow(part, root, above)


def _subschemas(key: str, value: Any) -> list[tuple[str, Any]]:
    if key in ("properties", "$defs", "definitions") and isinstance(value, dict):
        return [(f"/{name}", part) for name, part in cast("dict[str, Any]", value).items()]
    if key in ("anyOf", "oneOf", "allOf", "prefixItems") and isinstance(value, list):
        return [(f"/{index}", part) for index, part in enumerate(cast("list[Any]", value))]
    if key in ("items", "additionalProperties", "not"):
        return [("", value)]
    return []


def violations(value: Any, schema: Schema, limit: int = 8) -> list[str]:
    """What is wrong with a value, each with its place; empty when it fits."""
    return _judge(value, schema, schema, "value")[:limit]


def _judge(value: Any, schema: Any, root: Schema, where: str) -> list[str]:
    if schema is True:
        return []
    if schema is False:
        return [f"{where} is not allowed"]
    found = _judge(value, _resolve(schema["$ref"], root), root, where) if "$ref" in schema else list[str]()
    for key, rule in schema.items():
        check = _KEYWORDS.get(key)
        if check is not None:
            found.extend(check(value, rule, schema, root, where))
    return found


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


def _type(value: Any, rule: Any, _schema: Any, _root: Schema, where: str) -> list[str]:
    wanted = cast("list[str]", rule) if isinstance(rule, list) else [cast("str", rule)]
    if any(name in _TYPES and _TYPES[name](value) for name in wanted):
        return []
    return [f"{where} must be {' or '.join(wanted)}, not {clip(repr(value), 80)}"]


def _enum(value: Any, rule: Any, _schema: Any, _root: Schema, where: str) -> list[str]:
    same = [each for each in rule if canonical_json(each) == canonical_json(value)]
    return [] if same else [f"{where} must be one of {canonical_json(rule)}, not {clip(repr(value), 80)}"]


def _const(value: Any, rule: Any, schema: Any, root: Schema, where: str) -> list[str]:
    return _enum(value, [rule], schema, root, where)


def _properties(value: Any, rule: Any, _schema: Any, root: Schema, where: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    known = cast("dict[str, Any]", value)
    return [line for name in rule if name in known for line in _judge(known[name], rule[name], root, f"{where}.{name}")]


def _required(value: Any, rule: Any, _schema: Any, _root: Schema, where: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [f"{where} lacks the field {name!r}" for name in rule if name not in value]


def _additional(value: Any, rule: Any, schema: Any, root: Schema, where: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    extra = [name for name in cast("dict[str, Any]", value) if name not in schema.get("properties", {})]
    if rule is False:
        return [f"{where} has a field {name!r} that the schema does not have" for name in extra]
    return [line for name in extra for line in _judge(value[name], rule, root, f"{where}.{name}")]


def _items(value: Any, rule: Any, schema: Any, root: Schema, where: str) -> list[str]:
    if not isinstance(value, list):
        return []
    first = len(schema.get("prefixItems", ()))
    rest = cast("list[Any]", value)[first:]
    return [line for index, each in enumerate(rest, first) for line in _judge(each, rule, root, f"{where}[{index}]")]


def _prefix(value: Any, rule: Any, _schema: Any, root: Schema, where: str) -> list[str]:
    if not isinstance(value, list):
        return []
    pairs = zip(cast("list[Any]", value), rule, strict=False)
    return [line for index, (each, part) in enumerate(pairs) for line in _judge(each, part, root, f"{where}[{index}]")]


def _bound(kind: type, measure: Callable[[Any], float], fits: Callable[[float, float], bool], words: str) -> Any:
    def check(value: Any, rule: Any, _schema: Any, _root: Schema, where: str) -> list[str]:
        numeric = kind is float and isinstance(value, int | float) and not isinstance(value, bool)
        if not numeric and not isinstance(value, kind):
            return []
        return [] if fits(measure(value), rule) else [f"{where} must be {words} {rule}"]

    return check


def _itself(number: float) -> float:
    """Not as a float: there are integers that none can hold."""
    return number


def _is_multiple(number: float, of: float) -> bool:
    if isinstance(number, int) and isinstance(of, int):
        return number % of == 0
    try:
        return math.isclose(number / of, round(number / of))
    except OverflowError:
        return False  # beyond all floats, where nobody can tell


def _unique(value: Any, rule: Any, _schema: Any, _root: Schema, where: str) -> list[str]:
    if not rule or not isinstance(value, list):
        return []
    texts = [canonical_json(each) for each in cast("list[Any]", value)]
    return [] if len(set(texts)) == len(texts) else [f"{where} has the same item twice"]


def _pattern(value: Any, rule: Any, _schema: Any, _root: Schema, where: str) -> list[str]:
    if not isinstance(value, str) or compiled(rule).search(value.encode("utf-8", "replace").decode()):
        return []
    return [f"{where} does not match {rule!r}"]


def _any_of(value: Any, rule: Sequence[Any], _schema: Any, root: Schema, where: str) -> list[str]:
    tries = [_judge(value, part, root, where) for part in rule]
    return [] if any(not lines for lines in tries) else min(tries, key=len)


def _one_of(value: Any, rule: Sequence[Any], _schema: Any, root: Schema, where: str) -> list[str]:
    fitting = sum(not _judge(value, part, root, where) for part in rule)
    return [] if fitting == 1 else [f"{where} fits {fitting} of the alternatives, it must fit exactly one"]


def _all_of(value: Any, rule: Sequence[Any], _schema: Any, root: Schema, where: str) -> list[str]:
    return [line for part in rule for line in _judge(value, part, root, where)]


def _not(value: Any, rule: Any, _schema: Any, root: Schema, where: str) -> list[str]:
    return [] if _judge(value, rule, root, where) else [f"{where} is of a form that the schema excludes"]


_KEYWORDS: dict[str, Callable[..., list[str]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "prefixItems": _prefix,
    "minItems": _bound(list, len, lambda n, rule: n >= rule, "of a length of at least"),
    "maxItems": _bound(list, len, lambda n, rule: n <= rule, "of a length of at most"),
    "uniqueItems": _unique,
    "minimum": _bound(float, _itself, lambda n, rule: n >= rule, "at least"),
    "maximum": _bound(float, _itself, lambda n, rule: n <= rule, "at most"),
    "exclusiveMinimum": _bound(float, _itself, lambda n, rule: n > rule, "above"),
    "exclusiveMaximum": _bound(float, _itself, lambda n, rule: n < rule, "below"),
    "multipleOf": _bound(float, _itself, _is_multiple, "a multiple of"),
    "minLength": _bound(str, len, lambda n, rule: n >= rule, "of a length of at least"),
    "maxLength": _bound(str, len, lambda n, rule: n <= rule, "of a length of at most"),
    "pattern": _pattern,
    "anyOf": _any_of,
    "oneOf": _one_of,
    "allOf": _all_of,
    "not": _not,
}


def _is_number(rule: Any) -> bool:
    return isinstance(rule, int | float) and not isinstance(rule, bool) and math.isfinite(rule)


def _is_count(rule: Any) -> bool:
    return isinstance(rule, int) and not isinstance(rule, bool) and rule >= 0


def _is_texts(rule: Any) -> bool:
    return isinstance(rule, list) and all(isinstance(each, str) for each in cast("list[Any]", rule))


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
_COUNT: _Rule = (_is_count, "a whole number from 0 on")
_PARTS: _Rule = (lambda rule: isinstance(rule, list) and bool(cast("list[Any]", rule)), "a list of schemas, not empty")
_NAMED: _Rule = (lambda rule: isinstance(rule, dict), "an object of schemas")
_RULES: dict[str, _Rule] = {
    "$ref": (lambda rule: isinstance(rule, str), "text, such as #/$defs/Item"),
    "type": (_is_type, f"one of {', '.join(_TYPES)}, or a list of them"),
    "enum": (lambda rule: isinstance(rule, list), "a list of values"),
    "required": (_is_texts, "a list of names"),
    "pattern": (_is_pattern, "a regular expression that RE2 reads (no look-around, no back-references)"),
    "uniqueItems": (lambda rule: isinstance(rule, bool), "true or false"),
    "multipleOf": (lambda rule: _is_number(rule) and rule > 0, "a number above 0"),
    **dict.fromkeys(("properties", "$defs", "definitions"), _NAMED),
    **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), _PARTS),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _NUMBER),
    **dict.fromkeys(("minItems", "maxItems", "minLength", "maxLength"), _COUNT),
}
"""What the value of a keyword must be."""
