from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import pytest

from sonde.core.evidence import Observed
from sonde.errors import ConfigError, ErrorCode, ToolFault
from sonde.tools import tool


def lookup(name: str, limit: int = 10, order: Literal["up", "down"] = "up", *, near: float | None = None) -> list[str]:
    """Names like this one.

    Example: names = lookup("anna", limit=3)
    """
    return [name] * limit


class Place(TypedDict):
    city: str


@dataclass
class Point:
    x: int


def test_a_tool_takes_its_schema_from_the_annotations() -> None:
    assert tool(lookup).schema == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "limit": {"type": "integer"},
            "order": {"enum": ["down", "up"]},
            "near": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        },
        "required": ["name"],
        "additionalProperties": False,
    }


def test_the_prompt_is_the_signature_and_the_docstring() -> None:
    assert tool(lookup).prompt == (
        "lookup(name: str, limit: int = 10, order: Literal['up', 'down'] = 'up', *, near: float | None = None) -> list[str]\n"
        "    Names like this one.\n"
        '    Example: names = lookup("anna", limit=3)'
    )


def test_checked_arguments_are_sorted_and_complete() -> None:
    checked = tool(lookup).check({"name": "anna", "near": 1})

    assert list(checked.items()) == [("limit", 10), ("name", "anna"), ("near", 1.0), ("order", "up")]


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"name": 3},
        {"name": "anna", "limit": "3"},
        {"name": "anna", "limit": True},
        {"name": "anna", "limit": 3.0},
        {"name": "anna", "limit": None},
        {"name": "anna", "order": "sideways"},
        {"name": "anna", "near": "close"},
        {"name": "anna", "colour": "red"},
    ],
)
@pytest.mark.requirement(6)
def test_nothing_is_coerced_and_the_fault_shows_how_to_call(args: dict[str, Any]) -> None:
    with pytest.raises(ToolFault) as caught:
        tool(lookup).check(args)

    assert caught.value.code is ErrorCode.TOOL_CALL_FAILED
    assert tool(lookup).signature in caught.value.message
    assert 'Example: names = lookup("anna", limit=3)' in caught.value.message


def test_nested_types_are_checked_inside() -> None:
    def visit(places: list[Place], point: Point, tags: dict[str, int]) -> None: ...

    good: dict[str, Any] = {"places": [{"city": "Kyiv"}], "point": {"x": 1}, "tags": {"a": 1}}
    assert tool(visit).check(good)["point"] == Point(1)
    for bad in ({"places": [{"city": 1}]}, {"point": {"x": "1"}}, {"tags": {"a": "b"}}):
        with pytest.raises(ToolFault):
            tool(visit).check({**good, **bad})


def test_annotations_that_nobody_can_see_are_the_callers_mistake() -> None:
    class Hidden: ...

    def visit(place: Hidden) -> None: ...

    with pytest.raises(ConfigError):
        tool(visit)


def test_an_example_is_made_from_the_types_when_the_docstring_has_none() -> None:
    def pick(text: str, count: int, kind: Literal["a", "b"], *, exact: bool, limit: int = 3) -> None: ...

    assert tool(pick).example == "result = pick('text', 1, 'a', exact=True)"


def test_a_tool_may_be_renamed_and_a_tool_stays_itself() -> None:
    renamed = tool(lookup, name="find_names")

    assert renamed.signature.startswith("find_names(")
    assert tool(renamed) is renamed


def test_a_tool_that_cites_shows_what_code_gets() -> None:
    def read() -> Annotated[Observed, "list[str]"]: ...
    def peek() -> Observed: ...

    assert tool(read).signature == "read() -> list[str]"
    assert tool(peek).signature == "peek() -> Any"


def test_forms_that_leave_the_call_open_are_refused_at_once() -> None:
    def many(*names: str) -> None: ...
    def named(**names: str) -> None: ...
    async def later() -> None: ...
    def odd(thing: pytest.Config) -> None: ...

    for function in (many, named, later, odd, lambda: 1):
        with pytest.raises(ConfigError):
            tool(function)
