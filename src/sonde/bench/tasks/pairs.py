"""OOLONG-Pairs-style questions: all pairs of users with a property that needs the labels of all their lines."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations, permutations

from sonde.bench.questions import Material, Question
from sonde.bench.tasks.records import EXPLAINED, LABELS, Record, records, text_of

USERS, LABELS_A_USER = 16, 3
ASKED = 3
Seen = dict[str, set[str]]


def make(seed: int, length: int) -> Material:
    """Records of about `length` characters and questions about pairs of their users."""
    dice = random.Random(f"pairs {seed} {length}")  # noqa: S311 - reproducible, not secret
    made = records(dice, length, USERS, LABELS_A_USER)
    return Material(context=text_of(made), questions=[_question(dice, made, number) for number in range(ASKED)])


def _question(dice: random.Random, made: list[Record], number: int) -> Question:
    seen: Seen = {}
    for record in made:
        seen.setdefault(record.user, set()).add(record.label)
    text, gold = _telling(dice, seen, number)
    form = "Answer with a list of pairs of user numbers (as text), each pair once, in any order."
    return Question(text=f"{EXPLAINED}\nList all pairs of users such that {text}. {form}", kind="pairs", gold=gold)


def _telling(dice: random.Random, seen: Seen, number: int) -> tuple[str, list[list[str]]]:
    """A condition that holds for some pairs and not for all, where two labels can give one."""
    every = list(combinations(sorted(seen), 2))
    text, gold = "", list[list[str]]()
    for one, other in dice.sample(list(permutations(LABELS, 2)), len(LABELS) * (len(LABELS) - 1)):
        text, holds = _conditions(one, other)[number % ASKED]
        gold = [list(pair) for pair in every if holds(seen[pair[0]], seen[pair[1]])]
        if 0 < len(gold) < len(every):
            break
    return text, gold


def _conditions(one: str, other: str) -> list[tuple[str, Callable[[set[str], set[str]], bool]]]:
    return [
        (
            f"both have at least one line of '{one}' or of '{other}'",
            lambda a, b: bool(a & {one, other}) and bool(b & {one, other}),
        ),
        (
            f"one of them has a line of '{one}' but none of '{other}', and the other one the reverse",
            lambda a, b: (
                (_only(a, one, other) and _only(b, other, one)) or (_only(b, one, other) and _only(a, other, one))
            ),
        ),
        (
            f"both have a line of '{one}' and exactly one of the two has a line of '{other}'",
            lambda a, b: one in a and one in b and (other in a) != (other in b),
        ),
    ]


def _only(labels: set[str], wanted: str, unwanted: str) -> bool:
    return wanted in labels and unwanted not in labels
