"""S-NIAH: one needle in a haystack of sentences, at a depth that the seed chooses."""

from __future__ import annotations

import random

from sonde.bench.questions import Material, Question

_WHO = (
    "The keeper",
    "A courier",
    "The surveyor",
    "Her neighbour",
    "The old pilot",
    "A visitor",
    "The clerk",
    "My uncle",
)
_DID = ("measured", "repaired", "described", "forgot", "painted", "counted", "returned", "questioned", "sold")
_WHAT = ("the northern gate", "a crate of lamps", "the second ledger", "an empty harbour", "the tide tables", "a map")
_WHEN = ("before the rain", "at first light", "without a word", "for the third time", "in late autumn", "by mistake")
_KEYS = (
    "amber",
    "basalt",
    "cobalt",
    "dahlia",
    "ember",
    "fjord",
    "garnet",
    "heron",
    "indigo",
    "juniper",
    "krill",
    "lotus",
)


def make(seed: int, length: int) -> Material:
    """One haystack of about `length` characters and one question."""
    dice = random.Random(f"niah {seed} {length}")  # noqa: S311 - reproducible, not secret
    key = f"{dice.choice(_KEYS)}-{dice.choice(_KEYS)}-{dice.randrange(100, 1000)}"
    number = dice.randrange(1_000_000, 10_000_000)
    lines = _haystack(dice, length)
    lines.insert(dice.randrange(len(lines) + 1), f"One of the special magic numbers for {key} is: {number}.")
    text = f"What is the special magic number for {key} that the text mentions?"
    return Material(context="\n".join(lines) + "\n", questions=[Question(text=text, kind="number", gold=number)])


def _haystack(dice: random.Random, length: int) -> list[str]:
    lines: list[str] = []
    size = 0
    while size < length:
        sentences = [
            f"{dice.choice(_WHO)} {dice.choice(_DID)} {dice.choice(_WHAT)} {dice.choice(_WHEN)}." for _ in range(3)
        ]
        lines.append(" ".join(sentences))
        size += len(lines[-1]) + 1
    return lines
