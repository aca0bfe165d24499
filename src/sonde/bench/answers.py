"""Answers to benchmark questions: their form, how to read one out of a model's text, and how to score it.

Pure functions: what was answered, what is gold, a number from 0 to 1. No model judges anything here. Numbers get OOLONG's partial credit
of 0.75 to the power of the distance; lists and pairs get F1; texts are compared without case, blanks and punctuation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable
from typing import Any, Literal, cast

from sonde.bench.metrics import overlap
from sonde.bench.suite import json_in

Kind = Literal["text", "number", "list", "pairs"]

_VALUES: dict[Kind, dict[str, Any]] = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "list": {"type": "array", "items": {"type": "string"}},
    "pairs": {"type": "array", "items": {"type": "array", "items": {"type": "string"}}},
}
_COUNTLESS = 10**300
EXAMPLES: dict[Kind, str] = {
    "text": '{"answer": "text"}',
    "number": '{"answer": 42}',
    "list": '{"answer": ["a", "b"]}',
    "pairs": '{"answer": [["a", "b"], ["a", "c"]]}',
}


def schema(kind: Kind) -> dict[str, Any]:
    """The JSON schema that an answer of this kind must fit."""
    return {"type": "object", "properties": {"answer": _VALUES[kind]}, "required": ["answer"]}


def read_answer(text: str) -> Any:
    """The answer in a model's text; the text itself when it holds no JSON of the form that was asked for."""
    found = json_in(text, "{")
    return cast("dict[str, Any]", found)["answer"] if isinstance(found, dict) and "answer" in found else text.strip()


def score(kind: Kind, predicted: Any, gold: Any) -> float:
    """How right an answer is."""
    match kind:
        case "text":
            return float(predicted is not None and plain(predicted) == plain(gold))
        case "number":
            number = _number(predicted)
            return 0.0 if number is None else 0.75 ** abs(number - int(gold))
        case "list":
            return f1(_names(predicted), _names(gold))
        case "pairs":
            return f1(_pairs(predicted), _pairs(gold))


def f1(predicted: Collection[Hashable], gold: Collection[Hashable]) -> float:
    """The harmonic mean of precision and recall of one set against another."""
    hits = overlap(predicted, gold)
    both = hits.recall + hits.precision
    return 2 * hits.recall * hits.precision / both if both else 0.0


def plain(value: Any) -> str:
    """A text without the accidents of writing."""
    return " ".join(re.sub(r"[^\w]+", " ", str(value).casefold()).split())


def _number(value: Any) -> float | None:
    """A number, or the only one in a text; with several, nobody knows which is meant."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < _COUNTLESS else None  # neither NaN nor more than a float holds
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", str(value))
    return float(found[0].replace(",", "")) if len(found) == 1 else None


def _names(value: Any) -> set[str]:
    listed = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return {plain(each) for each in listed}


def _pairs(value: Any) -> set[frozenset[str]]:
    """Pairs in no order; anything but two different names counts as a wrong pair."""
    listed = cast("list[Any]", value) if isinstance(value, list | tuple) else []
    return {frozenset(_names(each)) for each in listed}
