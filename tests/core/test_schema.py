"""The schema of a question: judged as JSON Schema means it, and refused at the start when it makes no sense."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from sonde.core.schema import load_schema, violations
from sonde.errors import ConfigError

TREE = {
    "$defs": {
        "node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}
    },
    "$ref": "#/$defs/node",
}


class Leaf(BaseModel):
    """A value."""

    score: float = 0.0


class Branch(BaseModel):
    """Values in values."""

    leaf: Leaf | None = None
    below: list[Branch] = []


def test_no_pattern_takes_long_to_judge_whatever_the_value_is() -> None:
    schema = load_schema({"type": "string", "pattern": "^(a+)+$"})

    assert violations("a" * 40 + "!", schema) == ["value does not match '^(a+)+$'"]
    assert violations("a" * 40, schema) == []
    assert violations("a\udc80", schema) != []


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "strin"}, "#/type"),
        ({"type": []}, "#/type"),
        ({"properties": {"a": {"type": "int"}}}, "#/properties/a/type"),
        ({"properties": []}, "#/properties"),
        ({"required": "name"}, "#/required"),
        ({"enum": "abc"}, "#/enum"),
        ({"pattern": "("}, "#/pattern"),
        ({"pattern": "^(?=.*[0-9])"}, "#/pattern"),
        ({"minimum": "1"}, "#/minimum"),
        ({"maximum": float("inf")}, "#/maximum"),
        ({"minLength": -1}, "#/minLength"),
        ({"multipleOf": 0}, "#/multipleOf"),
        ({"anyOf": []}, "#/anyOf"),
        ({"oneOf": {}}, "#/oneOf"),
        ({"items": {"uniqueItems": "yes"}}, "#/items/uniqueItems"),
        ({"$ref": 3}, "#/$ref"),
        ({"$ref": "#/$defs/gone"}, "gone"),
        ({"title": "x", "properties": {"a": {"$ref": "#/title"}}}, "#/title"),
        ({"$ref": "#"}, "circle"),
        ({"items": {"anyOf": [{"type": "null"}, {"$ref": "#/items"}]}}, "circle"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused_by_its_place(schema: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_schema(schema)

    assert named in refused.value.message


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"$defs": {"n": {"type": "integer"}}, "$ref": "#/$defs/n", "minimum": 3}, 3, 1),
        ({"type": "number", "minimum": 1}, 10**400, -(10**400)),
        ({"type": "number", "exclusiveMaximum": 5}, -(10**400), 10**400),
        ({"multipleOf": 5}, 5 * 10**400, 5 * 10**400 + 1),
        ({"multipleOf": 0.1}, 0.3, 0.35),
        ({"multipleOf": 0.5}, 1, 10**400),
        (TREE, {"next": {"next": None}}, {"next": {"next": 3}}),
        (Branch.model_json_schema(), {"below": [{"leaf": {"score": 1}}]}, {"below": [{"leaf": {"score": "x"}}]}),
    ],
)
def test_a_value_is_judged_by_all_of_its_schema(schema: dict[str, Any], good: Any, bad: Any) -> None:
    loaded = load_schema(schema)

    assert violations(good, loaded) == []
    assert violations(bad, loaded)


def test_a_schema_that_says_the_same_thing_a_trillion_times_is_judged_once() -> None:
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}, {"$ref": f"#/$defs/d{n + 1}"}]} for n in range(40)}
    schema = load_schema({"$defs": {**twice, "d40": {"type": "string"}}, "$ref": "#/$defs/d0"})

    assert violations("x", schema) == []
    assert violations(3, schema) == ["value must be string, not 3"]


def test_a_value_that_takes_too_many_steps_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.core.schema.MOST_STEPS", 1_000)
    schema = load_schema({"items": {"enum": [str(number) for number in range(100)]}})

    assert violations(["1"], schema) == []
    assert "takes too long" in violations(["1"] * 50, schema)[0]


def test_a_chain_of_refs_without_end_is_refused() -> None:
    chain = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(5_000)}

    with pytest.raises(ConfigError):
        load_schema({"$defs": {**chain, "d5000": {}}, "$ref": "#/$defs/d0"})
