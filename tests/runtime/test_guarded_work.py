"""Work on a stranger's data that never looks at the clock ends all the same, soon after its run is over."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from sonde.contexts.files import FilesContext
from sonde.core import deadline as time_of
from sonde.core.cancellation import Stop
from sonde.core.deadline import Deadline, Overrun, ReadingGuard, SystemClock, guarded
from sonde.core.evidence import Excerpt
from sonde.core.status import RunStatus
from sonde.testing import ScriptedModel, run_in_memory
from sonde.tools import Tool, tool

TEXTS = {"a.txt": "one\ntwo\n"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_of, "LATE_S", 0.05)
    monkeypatch.setattr(time_of, "TICK_S", 0.03)


def forever() -> None:
    while True:
        try:
            sum(range(100))
        except Exception:  # noqa: BLE001  # as careless work does
            pass


class Careless(FilesContext):
    """Has a tool that never ends, and citations that can be read again only while `prompt` is true."""

    prompt = True

    def tools(self) -> Sequence[Tool]:
        def dig() -> str:
            """Dig."""
            forever()
            return ""

        return [*super().tools(), tool(dig)]

    def reread(self, excerpt: Excerpt) -> str | None:
        if not self.prompt:
            forever()
        return super().reread(excerpt)


def test_a_tool_that_never_ends_is_ended_and_the_run_keeps_its_answer() -> None:
    model = ScriptedModel(["answer = read_file('a.txt', 1, 1)\nprint(answer)", "dig()", "FINAL('one [a.txt:1]')"])

    answer = run_in_memory(model, "What is first?", Careless((), texts=TEXTS), max_wall_time_sec=1)

    assert answer.status is RunStatus.PARTIAL
    assert answer.record.error is not None and "max_wall_time_sec" in answer.record.error.message


def test_citations_that_take_for_ever_are_not_proved() -> None:
    context = Careless((), texts=TEXTS)
    context.prompt = False
    model = ScriptedModel(["print(read_file('a.txt', 1, 1))", "FINAL('one [a.txt:1]')"])

    answer = run_in_memory(model, "What is first?", context, max_wall_time_sec=1)

    assert answer.status is RunStatus.PARTIAL
    assert not answer.record.citations


@pytest.mark.parametrize("stopped", [True, False])
def test_guarded_work_ends_after_the_limit_and_after_a_stop(stopped: bool) -> None:
    stop = Stop()
    run = Deadline(SystemClock(), None if stopped else 0.0, stop=stop)
    if stopped:
        stop.set()

    with run.in_force():
        with pytest.raises(Overrun, match="digging was ended"), guarded("digging"):
            forever()
        with pytest.raises(Overrun), guarded("digging"):  # its time is used up: it does not even begin
            raise AssertionError


def test_work_of_a_run_that_goes_on_is_left_alone_beside_one_that_is_over() -> None:
    over, runs_on = Deadline(SystemClock(), 0.0), Deadline(SystemClock(), None)
    ended = threading.Event()

    def other() -> None:
        with pytest.raises(Overrun), ReadingGuard(over, "digging"):
            forever()
        ended.set()

    with ReadingGuard(runs_on, "reading"):
        threading.Thread(target=other).start()
        assert ended.wait(60)


def test_an_error_of_the_work_itself_comes_through() -> None:
    with pytest.raises(KeyError), ReadingGuard(Deadline(SystemClock(), 0.0), "reading"):
        raise KeyError
