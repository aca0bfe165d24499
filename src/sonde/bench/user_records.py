"""Aggregation tasks after OOLONG: questions that people asked, one per line, with a user and a date, but without a label.

The label (the kind of answer the question wants, as in TREC) is known because the sentence was made for it. It must be understood
from the sentence: no single word gives it away in every template. `oolong` asks how often and which most; `pairs` asks for all pairs
of users with a property. Both need the label of every line.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, permutations

from sonde.bench.answers import Kind
from sonde.bench.questions import GoldQuestion, Material

LABELS = ("abbreviation", "description", "entity", "human being", "location", "numeric value")
EXPLAINED = (
    "Each line is one question that a user asked. Every question belongs to exactly one of these categories, by the kind of "
    f"answer it wants: {', '.join(LABELS)}. The categories are not written in the data; judge each question by its meaning."
)

OOLONG_USERS = 12
PAIRS_USERS, PAIRS_LABELS, PAIRS_ASKED = 16, 3, 3

_PLACES = ("Lake Baikal", "Machu Picchu", "the Elbe", "Mount Erebus", "Zanzibar", "the Gobi", "Lisbon", "the Skagerrak")
_THINGS = (
    "a barometer",
    "the printing press",
    "penicillin",
    "the zip fastener",
    "a fuel cell",
    "the saxophone",
    "radar",
)
_SHORT = ("NATO", "SONAR", "HTML", "CERN", "UNESCO", "LASER", "DNA", "SCUBA")
_FACTS = ("the tides", "inflation", "a rainbow", "photosynthesis", "an eclipse", "hiccups", "rust", "the monsoon")
_TEMPLATES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "abbreviation": (
        ("What does {x} stand for ?", "What is {x} short for ?", "Which words hide behind the letters {x} ?",
         "How is {x} written out in full ?"),
        _SHORT,
    ),
    "description": (
        ("How does {x} come about ?", "Why do people speak of {x} ?", "What is the reason for {x} ?",
         "What does it mean when experts mention {x} ?"),
        _FACTS,
    ),
    "entity": (
        ("What metal is used most in making {x} ?", "Which musical work mentions {x} ?",
         "What colour was the first model of {x} ?", "Which animal gave its shape to {x} ?"),
        _THINGS,
    ),
    "human being": (
        ("Who invented {x} ?", "Name the engineer behind {x} .", "Which scientist is credited with {x} ?",
         "What was the name of the first owner of {x} ?"),
        _THINGS,
    ),
    "location": (
        ("Where is {x} ?", "What country does {x} belong to ?", "Which continent would you visit to see {x} ?",
         "What town lies closest to {x} ?"),
        _PLACES,
    ),
    "numeric value": (
        ("How far is {x} from Paris ?", "What year was {x} first mapped ?", "What is the average temperature at {x} ?",
         "How many people visit {x} ?"),
        _PLACES,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class LabelledLine:
    """One line, with the label that is not written in it."""

    user: str
    date: str
    text: str
    label: str

    @property
    def line(self) -> str:
        """The line as the data shows it."""
        return f"Date: {self.date} || User: {self.user} || Question: {self.text}"


def records(dice: random.Random, length: int, users: int, labels_a_user: int = len(LABELS)) -> list[LabelledLine]:
    """Records of about `length` characters in all; each user asks for a few labels only, in uneven shares."""
    names = [str(number) for number in dice.sample(range(10_000, 100_000), users)]
    tastes = {name: dice.sample(LABELS, min(labels_a_user, len(LABELS))) for name in names}
    weights = [dice.uniform(0.3, 1.0) for _ in LABELS]
    made: list[LabelledLine] = []
    size = 0
    while size < length or len(made) < users:
        name = names[len(made)] if len(made) < users else dice.choice(names)
        label = dice.choices(tastes[name], [weights[LABELS.index(each)] for each in tastes[name]])[0]
        date = f"{dice.randrange(2019, 2026)}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}"
        templates, fillers = _TEMPLATES[label]
        sentence = dice.choice(templates).format(x=dice.choice(fillers))
        made.append(LabelledLine(name, date, sentence, label))
        size += len(made[-1].line) + 1
    dice.shuffle(made)
    return made


def text_of(made: list[LabelledLine]) -> str:
    """The data as a file."""
    return "\n".join(record.line for record in made) + "\n"


def oolong(seed: int, length: int) -> Material:
    """Records of about `length` characters and six questions about them: how often, which most, which user."""
    dice = random.Random(f"oolong {seed} {length}")  # noqa: S311 - reproducible, not secret
    made = records(dice, length, OOLONG_USERS)
    counts = Counter(record.label for record in made)
    asked: list[GoldQuestion] = []

    def ask(text: str, kind: Kind, gold: object) -> None:
        asked.append(GoldQuestion(text=f"{EXPLAINED}\n{text}", kind=kind, gold=gold))

    most = min(counts, key=lambda label: (-counts[label], label))
    ask("Which category is the most frequent in the data? Ties go to the alphabetically first.", "text", most)
    least = min(LABELS, key=lambda label: (counts[label], label))
    ask("Which category is the least frequent in the data? Ties go to the alphabetically first.", "text", least)

    label = dice.choice(LABELS)
    ask(f"How many lines belong to the category '{label}'?", "number", counts[label])

    user = dice.choice(sorted({record.user for record in made}))
    label = dice.choice(LABELS)
    of_user = sum(record.user == user and record.label == label for record in made)
    ask(f"How many lines of user {user} belong to '{label}'?", "number", of_user)

    one, other = dice.sample(LABELS, 2)
    compared = "more" if counts[one] > counts[other] else "less" if counts[one] < counts[other] else "same"
    ask(
        f"Is '{one}' more common than '{other}', less common, or the same? Answer more, less or same.", "text", compared
    )

    label = dice.choice(LABELS)
    by_user = Counter(record.user for record in made if record.label == label)
    busiest = min(by_user, key=lambda user: (-by_user[user], user), default="nobody")
    ask(
        f"Which user asked the most questions of the category '{label}'? "
        "Ties go to the smallest number; none: 'nobody'.",
        "text",
        busiest,
    )
    return Material(context=text_of(made), questions=asked)


def pairs(seed: int, length: int) -> Material:
    """Records of about `length` characters and questions about pairs of their users."""
    dice = random.Random(f"pairs {seed} {length}")  # noqa: S311 - reproducible, not secret
    made = records(dice, length, PAIRS_USERS, PAIRS_LABELS)
    seen: dict[str, set[str]] = {}
    for record in made:
        seen.setdefault(record.user, set()).add(record.label)
    every = list(combinations(sorted(seen), 2))
    form = "Answer with a list of pairs of user numbers (as text), each pair once, in any order."
    asked: list[GoldQuestion] = []
    for number in range(PAIRS_ASKED):
        text, gold = "", list[list[str]]()
        # Look for two labels whose condition holds for some pairs and not for all.
        for one, other in dice.sample(list(permutations(LABELS, 2)), len(LABELS) * (len(LABELS) - 1)):
            text, holds = _conditions(one, other)[number % PAIRS_ASKED]
            gold = [list(pair) for pair in every if holds(seen[pair[0]], seen[pair[1]])]
            if 0 < len(gold) < len(every):
                break
        text = f"{EXPLAINED}\nList all pairs of users such that {text}. {form}"
        asked.append(GoldQuestion(text=text, kind="pairs", gold=gold))
    return Material(context=text_of(made), questions=asked)


def _conditions(one: str, other: str) -> list[tuple[str, Callable[[set[str], set[str]], bool]]]:
    def only(labels: set[str], wanted: str, unwanted: str) -> bool:
        return wanted in labels and unwanted not in labels

    return [
        (
            f"both have at least one line of '{one}' or of '{other}'",
            lambda a, b: bool(a & {one, other}) and bool(b & {one, other}),
        ),
        (
            f"one of them has a line of '{one}' but none of '{other}', and the other one the reverse",
            lambda a, b: (only(a, one, other) and only(b, other, one)) or (only(b, one, other) and only(a, other, one)),
        ),
        (
            f"both have a line of '{one}' and exactly one of the two has a line of '{other}'",
            lambda a, b: one in a and one in b and (other in a) != (other in b),
        ),
    ]
