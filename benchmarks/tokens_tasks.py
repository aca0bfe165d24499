"""The tasks of tokens.py: data that is the same on every machine, a question, and a fixed policy in plain Python.

In the code of a policy TEXT stands for one file's text and TEXTS for several by path; `ask_all` for the system's own function that puts
many prompts to a model. Each step is what a careful model would do anyway: look, compute or search.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

LETTERS = {
    "A": ("How many", "What is the speed of", "How tall is"),
    "D": ("What does the word", "What is the meaning of", "Why do people fear"),
    "E": ("What animal eats", "What sport needs", "What instrument sounds like"),
    "H": ("Who founded", "Who painted", "Which king ruled"),
    "L": ("Where is", "What city is near", "Which country borders"),
    "N": ("When did they build", "In what year began", "How long ago was"),
}
NOUNS = (
    "bridge river press bicycle tunnel harbour tower village festival engine garden ship market lighthouse opera ferry"
)
THINGS = [f"{kind} {noun}" for noun in NOUNS.split() for kind in ("an old", "the longest")]
PLACES = ("in Norway", "of the coast", "for children", "before the war", "in winter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One question over data, the steps that answer it, and words that a right answer has."""

    question: str
    write: Callable[[Path], Path]
    """Puts the data into a folder and says what to hand over: a file or a folder."""
    steps: str
    """Blocks of code, each below a comment with the thought that leads to it."""
    answer: str
    needs: tuple[str, ...]
    file: str = ""
    """The name of the data's one file."""


def _log(folder: Path) -> Path:
    dice = random.Random(1)
    services = ("gateway", "checkout", "payments", "catalog", "search", "mail")
    lines: list[str] = []
    for number in range(30_000):
        second = 36_000 + number // 4
        at = f"2026-03-04T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}.{dice.randrange(1000):03}Z"
        service = dice.choice(services)
        text = f"INFO {service} request {number:06} handled in {dice.randrange(5, 90)} ms, user u{dice.randrange(9000)}"
        if number == 18_230:
            text = "WARN payments connection pool at 50 of 50, 112 waiting"
        elif number == 18_302:
            text = "ERROR payments connection pool exhausted: no connection within 5000 ms (db-2:5432)"
        elif 18_302 < number < 21_000 and number % 9 == 0:
            caller, called = (("checkout", "payments"), ("gateway", "checkout"))[number % 2]
            text = f"ERROR {caller} upstream {called} timed out after 5000 ms, request {number:06}"
        elif number == 21_004:
            text = "INFO payments connection pool resized to 200 by deploy 4711"
        lines.append(f"{at} {text}\n")
    path = folder / "app.log"
    path.write_text("".join(lines))
    return path


def _source(folder: Path) -> Path:
    dice = random.Random(2)
    nouns = ("order", "user", "invoice", "upload", "report", "session", "ticket", "image", "search", "mail")
    verbs = ("load", "store", "check", "merge", "render", "parse", "queue", "retry", "close", "count")
    for number in range(240):
        noun, place = nouns[number % 10], folder / "shop" / nouns[number // 24]
        place.mkdir(parents=True, exist_ok=True)
        parts = [f'"""Part {number} of the {noun} service."""\n\nimport logging\n\nlog = logging.getLogger(__name__)\n']
        parts += [
            f"\n\ndef {verb}_{noun}_{number}(items, limit={dice.randrange(5, 500)}):\n"
            f'    """{verb.title()} at most `limit` of the {noun}s."""\n'
            f"    kept = []\n    for item in items:\n        if item.size > {dice.randrange(10, 9000)}:\n"
            f'            log.debug("{noun} %s is too large", item.id)\n            continue\n'
            f"        kept.append(item)\n    return kept[:limit]\n"
            for verb in dice.sample(verbs, 6)
        ]
        if number == 83:
            parts.append(
                "\n\ndef pause_before_attempt(attempt, base_s=0.4, most_s=27.0):\n"
                '    """How long an upload waits before it is tried again."""\n'
                "    pause = base_s * 2 ** attempt\n    return min(pause, most_s)\n"
            )
        (place / f"{noun}_{number:03}.py").write_text("".join(parts))
    return folder / "shop"


def _questions(folder: Path) -> Path:
    dice = random.Random(3)
    asked: dict[str, None] = {}
    while len(asked) < 480:
        begin = dice.choice(LETTERS[dice.choice(sorted(LETTERS))])
        asked[f"{begin} {dice.choice(THINGS)} {dice.choice(PLACES)}?"] = None
    path = folder / "questions.txt"
    path.write_text("".join(f"{line}\n" for line in asked))
    return path


def _notes(folder: Path) -> Path:
    dice = random.Random(4)
    names = ("Alma", "Bruno", "Clara", "Dario", "Elsa", "Fabian", "Greta", "Hugo", "Ines", "Jonas")
    sites = ("Oslo", "Porto", "Gdansk", "Lisbon", "Turin", "Bergen", "Split", "Lyon", "Ghent", "Graz")
    notes = folder / "notes"
    notes.mkdir()
    for number in range(120):
        site, team, name = sites[number % 10], f"team-{number % 30:02}", names[dice.randrange(10)]
        said = [
            f"# Note {number}\n\nMeeting about {site}, {number % 28 + 1} February. Present: {name}, {names[number % 10]}.\n"
        ]
        said += [
            f"The {dice.choice(('roof', 'dock', 'forklift', 'lease', 'alarm'))} in {dice.choice(sites)} was discussed; "
            f"{dice.choice(names)} will report in {dice.randrange(2, 9)} weeks.\n"
            for _ in range(12)
        ]
        if number == 47:
            said.append("Since January the warehouse in Lisbon is run by team-17.\n")
        if number == 101:
            said.append("Purchases of team-17 are approved by Greta Lindqvist, above 10,000 EUR by the board.\n")
        (notes / f"note-{number:03}-{team}.md").write_text("\n".join(said))
    return notes


def _orders(folder: Path) -> Path:
    dice = random.Random(5)
    lines = ["order,day,region,product,amount,returned\n"]
    for number in range(20_000):
        region = dice.choice(("north", "south", "east", "west"))
        lines.append(
            f"{number:06},2026-{number // 1700 + 1:02}-{number % 28 + 1:02},{region},p{dice.randrange(400):03},"
            f"{dice.randrange(500, 90000) / 100:.2f},{'yes' if dice.random() < (0.09 if region == 'east' else 0.05) else 'no'}\n"
        )
    path = folder / "orders.csv"
    path.write_text("".join(lines))
    return path


LABEL = "Label these questions, one letter each (A amount, D description, E entity, H human, L location, N number of a year):"


def labels(prompt: str) -> str:
    """What a good model says to a prompt of the batch: one letter for each line."""
    begins = {begin: letter for letter, listed in LETTERS.items() for begin in listed}
    lines = prompt.partition(f"{LABEL}\n")[2].splitlines()
    return "".join(letter for line in lines for begin, letter in begins.items() if line.startswith(begin))


LOG_STEPS = """
# I look at the form of the log first.
print(len(TEXT))
print(TEXT[:400])

# Lines of a level are easy to find; I list the first errors with their numbers.
lines = TEXT.splitlines()
errors = [(n, line) for n, line in enumerate(lines, 1) if " ERROR " in line]
print(len(errors))
for n, line in errors[:12]:
    print(n, line)
"""
LOG_ANSWER = (
    "payments logged the first error: its connection pool to db-2 was exhausted [app.log:18303]; "
    "checkout and gateway timed out after it"
)
TASKS = {
    "log": Task(
        question="Which service logged the first error, and why?",
        write=_log,
        file="app.log",
        steps=LOG_STEPS,
        answer=f"{LOG_ANSWER}.",
        needs=("payments", "pool"),
    ),
    "source": Task(
        question="Where is the pause before an upload is tried again computed, and what is the longest?",
        write=_source,
        steps="""
# I see how the tree is laid out.
print(len(TEXTS))
print(sorted(TEXTS)[:12])

# I search definitions for words of waiting, and print the code of the hits.
import re
for path, text in TEXTS.items():
    lines = text.splitlines()
    for n, line in enumerate(lines, 1):
        if re.search(r"def .*(pause|backoff|delay|wait)", line):
            for k in range(n, n + 4):
                print(path, k, lines[k - 1])
""",
        answer="pause_before_attempt computes it: 0.4 s doubled with each attempt, at most 27 s [upload/upload_083.py:74-77].",
        needs=("pause_before_attempt", "27"),
    ),
    "batch": Task(
        question="How many of these questions ask for a person, and how many for a place?",
        write=_questions,
        file="questions.txt",
        steps=f'''
# I look at some lines.
lines = TEXT.splitlines()
print(len(lines))
print(lines[:5])

# What a question asks for needs judgement: sixty to a prompt, letters as answers.
parts = [lines[k:k + 60] for k in range(0, len(lines), 60)]
label = """{LABEL}"""
replies = ask_all([label + "\\n" + "\\n".join(part) for part in parts])
letters = "".join(replies)
print(len(letters), {{c: letters.count(c) for c in "ADEHLN"}})
for n in range(1, 12):
    print(n, letters[n - 1], lines[n - 1])
''',
        answer="90 ask for a person and 76 for a place, by labels of a model, such as [questions.txt:2,5].",
        needs=("90", "76"),
    ),
    "notes": Task(
        question="Who approves purchases of the team that runs the warehouse in Lisbon?",
        write=_notes,
        steps="""
# I see what the notes look like.
print(len(TEXTS))
print(TEXTS[sorted(TEXTS)[0]][:400])

# First who runs the warehouse, then what is said of approvals.
import re
for path, text in TEXTS.items():
    for n, line in enumerate(text.splitlines(), 1):
        if re.search("warehouse in Lisbon|approved", line):
            print(path, n, line)
""",
        answer="Greta Lindqvist [note-101-team-11.md:29]; the team is team-17, which runs the warehouse [note-047-team-17.md:29].",
        needs=("Lindqvist",),
    ),
    "orders": Task(
        question="Which region had the most returns in March by amount, and how much was it?",
        write=_orders,
        file="orders.csv",
        steps="""
# The columns first.
print(len(TEXT))
print(TEXT[:200])

# I add up what came back in March, and print some of it.
back = {}
shown = []
for n, line in enumerate(TEXT.splitlines(), 1):
    order, day, region, product, amount, returned = line.split(",")
    if day.startswith("2026-03") and returned == "yes":
        back[region] = back.get(region, 0) + float(amount)
        shown.append((n, line))
print({region: round(total, 2) for region, total in back.items()})
for n, line in shown[:3]:
    print(n, line)
""",
        answer="east, with 17464.12 of returned orders in March, summed over all rows such as [orders.csv:3413].",
        needs=("east", "17464.12"),
    ),
    "long": Task(
        question="Which service logged the first error, why, how long did it last, and what ended it?",
        write=_log,
        file="app.log",
        steps=f"""{LOG_STEPS}
# How many errors are there of each service?
count = {{}}
for n, line in errors:
    service = line.split()[2]
    count[service] = count.get(service, 0) + 1
print(count)

# What came just before the first one?
for n in range(18283, 18310):
    print(n, lines[n - 1])

# Were there warnings?
warnings = [(n, line) for n, line in enumerate(lines, 1) if " WARN " in line]
print(len(warnings))
for n, line in warnings[:20]:
    print(n, line)

# What surrounds that warning?
for n in range(18221, 18241):
    print(n, lines[n - 1])

# When did the errors end?
for n, line in errors[-15:]:
    print(n, line)

# What came after the last one?
for n in range(20990, 21016):
    print(n, lines[n - 1])

# How many errors fell into each minute?
minutes = {{}}
for n, line in errors:
    minutes[line[11:16]] = minutes.get(line[11:16], 0) + 1
print(minutes)

# Does anything else speak of the pool or of a deploy?
said = [(n, line) for n, line in enumerate(lines, 1) if " pool " in line or "deploy" in line]
for n, line in said[:20]:
    print(n, line)

# Was the machine slow before?
slow = {{}}
for line in lines[17000:22000]:
    if "handled in" in line:
        slow.setdefault(line[11:16], []).append(int(line.split()[7]))
for minute, taken in slow.items():
    print(minute, len(taken), max(taken), round(sum(taken) / len(taken), 1))
""",
        answer=f"{LOG_ANSWER}, until deploy 4711 resized the pool at 11:27:31 [app.log:21005].",
        needs=("payments", "pool", "4711"),
    ),
}
FIVE = ("log", "source", "batch", "notes", "orders")
"""The tasks that the ratio is about; `long` shows how a history grows."""


def steps_of(task: Task) -> list[tuple[str, str]]:
    """The thoughts and the blocks of code of a policy."""
    blocks = [block.strip() for block in f"\n{task.steps.strip()}".split("\n# ")[1:]]
    return [(block.partition("\n")[0], block.partition("\n")[2].strip()) for block in blocks]
