"""Search tasks: one needle in a haystack of sentences, and facts that lead from one small document to the next."""

from __future__ import annotations

import random

from sonde.bench.questions import GoldQuestion, Material

DOCUMENTS = 1000
ASKED = 5
_FIRST = ("Mara", "Ilja", "Tomas", "Nuria", "Oskar", "Petra", "Kenji", "Amina", "Lars", "Vera", "Dario", "Sanna")
_LAST = ("Ilves", "Brandt", "Okoye", "Sato", "Novak", "Lindqvist", "Moreau", "Castelo", "Haugen", "Petrov", "Adeyemi")
_FIRMS = ("Tornlake", "Quillon", "Vesper", "Marrow", "Solvane", "Harrow", "Petrel", "Onyx", "Larkin", "Drumlin")
_TRADES = ("Labs", "Shipping", "Instruments", "Foods", "Optics", "Timber", "Glass", "Textiles")
_TOWNS = ("Arvika", "Ostrava", "Setubal", "Nelson", "Kotka", "Cuenca", "Tartu", "Bergen", "Girona", "Linz", "Varna")
_RIVERS = ("Morava", "Tisza", "Duero", "Kymi", "Emajogi", "Sava", "Ebro", "Glomma", "Inn", "Kamchiya", "Avon")
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


def niah(seed: int, length: int) -> Material:
    """One haystack of about `length` characters, with one needle at a depth that the seed chooses."""
    dice = random.Random(f"niah {seed} {length}")  # noqa: S311 - reproducible, not secret
    key = f"{dice.choice(_KEYS)}-{dice.choice(_KEYS)}-{dice.randrange(100, 1000)}"
    number = dice.randrange(1_000_000, 10_000_000)
    lines: list[str] = []
    size = 0
    while size < length:
        sentences = [
            f"{dice.choice(_WHO)} {dice.choice(_DID)} {dice.choice(_WHAT)} {dice.choice(_WHEN)}." for _ in range(3)
        ]
        lines.append(" ".join(sentences))
        size += len(lines[-1]) + 1
    lines.insert(dice.randrange(len(lines) + 1), f"One of the special magic numbers for {key} is: {number}.")
    text = f"What is the special magic number for {key} that the text mentions?"
    return Material(context="\n".join(lines) + "\n", questions=[GoldQuestion(text=text, kind="number", gold=number)])


def hops(seed: int, length: int) -> Material:
    """`DOCUMENTS` documents of together about `length` characters, and questions of two, three and four steps."""
    dice = random.Random(f"hops {seed} {length}")  # noqa: S311 - reproducible, not secret
    world = _World(dice)
    documents = world.documents(dice, length // DOCUMENTS)
    return Material(context=documents, questions=[world.question(dice, number) for number in range(ASKED)])


class _World:
    """People, firms, towns and rivers, and who belongs to what."""

    def __init__(self, dice: random.Random) -> None:
        people = dice.sample([f"{a} {b} {c}." for a in _FIRST for b in _LAST for c in "ABCDEFGH"], 450)
        self.firms = dice.sample([f"{a} {b} {n}" for a in _FIRMS for b in _TRADES for n in range(1, 6)], 300)
        self.towns = dice.sample([f"{a} {b}" for a in ("Upper", "Lower", "New", "Old", "East") for b in _TOWNS], 50)
        self.works = {person: dice.choice(self.firms) for person in people}
        self.boss = {person: dice.choice(people) for person in people}
        self.seat = {firm: dice.choice(self.towns) for firm in self.firms}
        self.river = {town: dice.choice(_RIVERS) for town in self.towns}

    def documents(self, dice: random.Random, size: int) -> dict[str, str]:
        """One or two facts per document, padded to a size, under file names that say nothing."""
        facts = [f"{who} works for {firm}. Reports go to {self.boss[who]}" for who, firm in self.works.items()]
        facts += [f"The head office of {firm} is in {town}." for firm, town in self.seat.items()]
        facts += [f"The town of {town} lies on the river {river}." for town, river in self.river.items()]
        facts += [f"Notice {number}: nothing to report." for number in range(DOCUMENTS - len(facts))]
        dice.shuffle(facts)
        found: dict[str, str] = {}
        for number, fact in enumerate(facts):
            lines = [fact]
            while sum(map(len, lines)) < size:
                remark = f"Filed under {dice.randrange(10**6):06d}; no further remarks."
                lines.insert(dice.randrange(len(lines) + 1), remark)
            found[f"doc{number:04d}.txt"] = "\n".join(lines) + "\n"
        return found

    def question(self, dice: random.Random, number: int) -> GoldQuestion:
        """A chain of two, three or four steps."""
        who = dice.choice(sorted(self.works))
        firm = self.works[who]
        if number % 3 == 0:
            text, gold = f"In which town is the head office of the firm that {who} works for?", self.seat[firm]
        elif number % 3 == 1:
            text = f"On which river lies the town with the head office of the firm that {who} works for?"
            gold = self.river[self.seat[firm]]
        else:
            text = f"On which river lies the town with the head office of the firm that the person to whom {who} reports works for?"
            gold = self.river[self.seat[self.works[self.boss[who]]]]
        return GoldQuestion(text=text, kind="text", gold=gold)
