"""OOLONG-style aggregation: how often, which most, which user. Every line matters, and each must be understood."""

from __future__ import annotations

import random
from collections import Counter

from sonde.bench.questions import Material, Question
from sonde.bench.tasks.records import EXPLAINED, LABELS, Record, records, text_of

USERS = 12


def make(seed: int, length: int) -> Material:
    """Records of about `length` characters and six questions about them."""
    dice = random.Random(f"oolong {seed} {length}")  # noqa: S311 - reproducible, not secret
    made = records(dice, length, USERS)
    asked = [_most(made), _least(made), _count(dice, made), _count_of_user(dice, made), _compare(dice, made)]
    return Material(context=text_of(made), questions=[*asked, _busiest(dice, made)])


def _ask(text: str) -> str:
    return f"{EXPLAINED}\n{text}"


def _counts(made: list[Record]) -> Counter[str]:
    return Counter(record.label for record in made)


def _most(made: list[Record]) -> Question:
    ranked = sorted(_counts(made).items(), key=lambda item: (-item[1], item[0]))
    text = "Which category is the most frequent in the data? Ties go to the alphabetically first."
    return Question(text=_ask(text), kind="text", gold=ranked[0][0])


def _least(made: list[Record]) -> Question:
    counts = _counts(made)
    ranked = sorted((counts[label], label) for label in LABELS)
    text = "Which category is the least frequent in the data? Ties go to the alphabetically first."
    return Question(text=_ask(text), kind="text", gold=ranked[0][1])


def _count(dice: random.Random, made: list[Record]) -> Question:
    label = dice.choice(LABELS)
    text = f"How many lines belong to the category '{label}'?"
    return Question(text=_ask(text), kind="number", gold=sum(record.label == label for record in made))


def _count_of_user(dice: random.Random, made: list[Record]) -> Question:
    user = dice.choice(sorted({record.user for record in made}))
    label = dice.choice(LABELS)
    gold = sum(record.user == user and record.label == label for record in made)
    return Question(text=_ask(f"How many lines of user {user} belong to '{label}'?"), kind="number", gold=gold)


def _compare(dice: random.Random, made: list[Record]) -> Question:
    one, other = dice.sample(LABELS, 2)
    counts = _counts(made)
    gold = "more" if counts[one] > counts[other] else "less" if counts[one] < counts[other] else "same"
    text = f"Is '{one}' more common than '{other}', less common, or the same? Answer more, less or same."
    return Question(text=_ask(text), kind="text", gold=gold)


def _busiest(dice: random.Random, made: list[Record]) -> Question:
    label = dice.choice(LABELS)
    counts = Counter(record.user for record in made if record.label == label)
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    text = f"Which user asked the most questions of the category '{label}'? Ties go to the smallest number; none: 'nobody'."
    return Question(text=_ask(text), kind="text", gold=ranked[0][0] if ranked else "nobody")
