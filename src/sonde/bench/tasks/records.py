"""Records for aggregation tasks, after OOLONG: questions that people asked, one a line, with a user and a date, but without a label.

The label (which kind of thing the question asks for, as in TREC) is known because the sentence was made for it. It must be understood
from the sentence: no single word gives it away in every template.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

LABELS = ("abbreviation", "description", "entity", "human being", "location", "numeric value")
EXPLAINED = (
    "Each line is one question that a user asked. Every question belongs to exactly one of these categories, by the kind of "
    f"answer it wants: {', '.join(LABELS)}. The categories are not written in the data; judge each question by its meaning."
)

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
class Record:
    """One line, with the label that is not written in it."""

    user: str
    date: str
    text: str
    label: str

    @property
    def line(self) -> str:
        """As the data shows it."""
        return f"Date: {self.date} || User: {self.user} || Question: {self.text}"


def records(dice: random.Random, length: int, users: int, labels_a_user: int = len(LABELS)) -> list[Record]:
    """Records of about `length` characters in all; each user asks for a few labels only, in uneven shares."""
    names = [str(number) for number in dice.sample(range(10_000, 100_000), users)]
    tastes = {name: dice.sample(LABELS, min(labels_a_user, len(LABELS))) for name in names}
    weights = [dice.uniform(0.3, 1.0) for _ in LABELS]
    made: list[Record] = []
    size = 0
    while size < length or len(made) < users:
        name = names[len(made)] if len(made) < users else dice.choice(names)
        label = dice.choices(tastes[name], [weights[LABELS.index(each)] for each in tastes[name]])[0]
        made.append(Record(name, _date(dice), _sentence(dice, label), label))
        size += len(made[-1].line) + 1
    dice.shuffle(made)
    return made


def _sentence(dice: random.Random, label: str) -> str:
    templates, fillers = _TEMPLATES[label]
    return dice.choice(templates).format(x=dice.choice(fillers))


def _date(dice: random.Random) -> str:
    return f"{dice.randrange(2019, 2026)}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}"


def text_of(made: list[Record]) -> str:
    """The data as a file."""
    return "\n".join(record.line for record in made) + "\n"
