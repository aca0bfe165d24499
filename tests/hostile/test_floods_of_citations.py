"""Final values that cite without end: what is proved is counted, and the run's time and stop hold for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from sonde.api.result import Answer
from sonde.contexts.files import FilesContext
from sonde.core.budget import Budget
from sonde.core.evidence import Excerpt
from sonde.core.status import RunStatus
from sonde.engines.ask import MAX_CITED
from sonde.runtime.finish import MAX_PROBLEMS
from sonde.testing import FrozenClock, ScriptedModel, run_in_memory

pytestmark = pytest.mark.hostile_long

LINES = 6_000
LOOKED = "for start in range(1, 2000, 200): print(read_file('big.txt', start, start + 199)[:20])"
UNREAD = "FINAL(' '.join(f'c [big.txt:{i}-{i + 2}]' for i in range(2500, 2900)))"
FLOOD = "FINAL(' '.join(f'c [big.txt:{i}-{i + 2}]' for i in range(1, 5000)))"


class Watched(FilesContext):
    """Files that count how often lines of them are read again for a proof."""

    def __init__(self, then: Callable[[], None] = lambda: None) -> None:
        super().__init__((), texts={"big.txt": "".join(f"line {n} of many\n" for n in range(1, LINES + 1))})
        self.reread_places: list[str] = []
        self.then = then

    def reread(self, excerpt: Excerpt) -> str | None:
        self.reread_places.append(excerpt.ref)
        self.then()
        return super().reread(excerpt)


def flooded(files: FilesContext, final: str = FLOOD, **options: object) -> Answer:
    model = ScriptedModel([LOOKED, *[final] * 4])
    return run_in_memory(model, "What is it?", files, **{"budget": Budget(max_iterations=6), **options})


def test_an_answer_with_thousands_of_citations_has_the_first_ones_proved() -> None:
    files = Watched()

    answer = flooded(files)

    assert answer.status is RunStatus.PARTIAL
    assert any(f"more than {MAX_CITED} places" in gap for gap in answer.gaps)
    assert len(answer.citations) <= MAX_CITED
    places = {place for place in files.reread_places if place.startswith("big.txt:")}
    assert len(places) <= 2 * MAX_CITED


def test_the_model_hears_that_it_cites_too_much() -> None:
    model = ScriptedModel([LOOKED, FLOOD, "FINAL('It counts. [big.txt:1-3]')"])

    answer = run_in_memory(model, "What is it?", Watched(), budget=Budget(max_iterations=6))

    told = str(model.requests[-1].messages[-1].content)
    assert f"more than {MAX_CITED} places" in told
    assert answer.status is RunStatus.SUCCEEDED


@pytest.mark.parametrize("ended_by", ["time", "stop"])
def test_proofs_end_with_the_time_of_the_run_and_with_its_stop(ended_by: str) -> None:
    clock, stop = FrozenClock(), threading.Event()

    def slow() -> None:
        clock.advance(1.0)
        if ended_by == "stop":
            stop.set()

    files = Watched(slow)
    seconds = 20 if ended_by == "time" else 100_000

    budget = Budget(max_iterations=6, max_wall_time_sec=seconds)
    answer = flooded(files, UNREAD, clock=clock, cancel=stop, budget=budget)

    assert answer.status is RunStatus.PARTIAL
    assert len(files.reread_places) < 60
    assert any("the time was up" in gap for gap in answer.gaps)


def test_citations_for_which_there_was_time_are_kept() -> None:
    clock = FrozenClock()
    files = Watched(lambda: clock.advance(30.0))
    model = ScriptedModel(["print(read_file('big.txt', 1, 3))", *["FINAL('a [big.txt:1-1] b [big.txt:2-2]')"] * 4])

    answer = run_in_memory(model, "What is it?", files, clock=clock, budget=Budget(max_wall_time_sec=20))

    assert answer.status is RunStatus.PARTIAL
    assert [each.place for each in answer.citations] == ["big.txt:1-1"]
    assert any("the time was up" in gap for gap in answer.gaps)


def test_citations_that_do_not_hold_are_not_all_listed() -> None:
    final = (
        "FINAL({'answer': 'x [big.txt:1-1]', 'citations': [{'path': f'{i}.txt', 'start_line': 1} for i in range(400)]})"
    )

    answer = flooded(Watched(), final)

    assert answer.status is RunStatus.PARTIAL
    assert len(answer.gaps) <= MAX_PROBLEMS + 10
    assert any("more problems like these" in gap for gap in answer.gaps)
