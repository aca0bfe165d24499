"""No trace is lost or counted twice: late traces, grown traces, clocks that jump, sources that go away."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from cli.cli_program import sonde
from sonde.api.trace_source import Source
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.groups import AttributeTable, facts_of
from sonde.contexts.traces.importers import Imported, read
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.store import Page, TraceQuery, TraceRow, TraceStore
from sonde.errors import ConfigError
from sonde.watch import loop
from sonde.watch.intake import Intake, Retention
from sonde.watch.state import WatchState
from sonde.watch.vitals import Vitals
from watch.watch_scene import Fault, HandClock, Json, Post, append, trace, traffic

STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=1e9)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


class StorePost(Post):
    """The same over the store of a listener."""

    @property
    def traces(self) -> Path:
        return self.path / "store"

    def sent(self, *traces: list[Json], **more: Any) -> None:
        """An app sends these."""
        lines = self.path / "sent.jsonl"
        lines.write_text("")
        append(lines, traces)
        with Intake(self.traces, **more) as intake:
            intake.accept(each.span for each in read(lines) if isinstance(each, Imported)).settled()


def test_traces_that_come_too_late_are_counted_and_told(tmp_path: Path) -> None:
    post = StorePost(tmp_path)
    post.sent(*(trace(number, 20_000 + number, STOCK) for number in range(3)))
    post.look(20_200)
    post.sent(
        trace(10, 20_000 - 6_000, STOCK), trace(11, 20_000 - 10_000), trace(12, 20_000 - 3_000), trace(13, 20_250)
    )
    post.look(20_500)
    post.look(20_600)
    said = sonde("issues", "--state", post.folder, cwd=tmp_path)
    with WatchState(post.folder) as state:
        figures = Vitals(state).metrics()

    assert post.traces_read() == 5
    assert "gap: 2 traces came more than 60 min late and will not be judged" in said.stdout
    assert "sonde_watch_late_traces_total 2\n" in figures


def test_spans_that_the_retention_removes_unread_are_told(tmp_path: Path) -> None:
    post = StorePost(tmp_path)
    post.sent(*(trace(number, number, STOCK) for number in range(3)))
    post.look(200)
    now = time.time()
    with WatchState(post.folder) as state:
        before = Vitals(state, since=now).problem()

        def gone(numbers: list[int]) -> None:
            state.count_expired(numbers, now)

        crowd = [trace(number, 210, STOCK) for number in range(10, 400)]
        post.sent(*crowd, retention=Retention(gb=0.0001), on_expired=gone)
        lost, after = state.number("expired_unread"), Vitals(state, since=now).problem()
        later = Vitals(state, since=now + 3_600, now=lambda: now + 3_600).problem()
    post.look(400)
    said = sonde("issues", "--state", post.folder, cwd=tmp_path)

    assert lost > 100
    assert (before, later) == ("", "")
    assert after.startswith(f"losing traces: {lost:,} spans went before they were read")
    assert f"gap: {lost:,} spans of the store went before they were read" in said.stdout


def test_a_trace_is_read_when_nothing_came_for_a_while(post: Post) -> None:
    append(post.traces, [trace(1, 0, STOCK)])

    assert post.look(5) == []
    assert post.look(65) == []
    assert post.look(71) == ["new 1"]


def test_a_trace_that_grows_after_it_was_read_counts_once(post: Post) -> None:
    whole = trace(1, 0, STOCK)
    append(post.traces, [whole[:2]])
    post.look(100)
    append(post.traces, [whole[2:]])
    post.look(200)
    post.look(300)

    assert post.traces_read() == 1
    assert [(each.component, each.count) for each in post.issues().values()] == [("search_stock", 1)]


def test_a_trace_that_comes_late_is_still_read_and_none_twice(post: Post) -> None:
    append(post.traces, traffic(30, 1800, [STOCK]))
    post.look(2000)
    append(post.traces, [trace(99, 600, STOCK)])
    post.look(2100)
    post.look(2200)

    assert post.traces_read() == 31


def test_a_long_trace_is_not_forgotten_while_it_runs(post: Post) -> None:
    post.options = replace(post.options, late_s=60.0)
    slow = trace(1, 0, STOCK)
    append(post.traces, [[slow[1]]])
    post.look(5)
    for minute in range(1, 5):  # other traces come and are read, and this one gets a span now and then
        begun = int(slow[1]["start_time"]) + minute * 60_000_000_000
        more = {**slow[1], "span_id": f"{minute:016x}", "start_time": begun, "end_time": begun + 1_000_000_000}
        append(post.traces, [[more], trace(100 + minute, minute * 60)])
        post.look(minute * 60 + 5)
    append(post.traces, [[{**slow[0], "end_time": int(slow[0]["start_time"]) + 300_000_000_000}, *slow[2:]]])
    post.look(900)

    assert post.traces_read() == 5
    assert post.issues()[1].count == 1


def test_a_clock_that_jumps_forth_and_back_loses_and_repeats_nothing(post: Post) -> None:
    for minute, ours in enumerate([60, 90_000_000, -5000]):
        append(post.traces, traffic(10, 60, [STOCK], begin=minute * 60, first=1 + minute * 10))
        post.look(ours)
    post.look(1000)

    assert post.traces_read() == 30
    assert post.issues()[1].count == 15


def test_a_clock_that_goes_back_further_than_traces_are_remembered_hides_and_repeats_none(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "LONGEST_S", 300.0)
    monkeypatch.setattr(loop, "AHEAD_S", 600.0)
    post.options = replace(post.options, late_s=60.0)
    append(post.traces, traffic(20, 7200, [STOCK]))
    post.look(7300)
    read = [post.traces_read()]
    for number, at, ours in ((100, 1010, 1060), (101, 1500, 1600), (102, 7500, 1700), (103, 7400, 7600)):
        append(post.traces, [trace(number, at, STOCK)])  # the third comes from a machine whose clock is right
        post.look(ours)
        read.append(post.traces_read())

    assert read == [20, 21, 22, 22, 24]
    assert post.issues()[1].count == 10 + 4


def test_a_trace_from_the_far_future_waits_and_does_not_hide_the_others(post: Post) -> None:
    append(post.traces, [trace(1, 40_000_000, STOCK), *traffic(10, 60, [STOCK], first=10)])
    post.look(200)
    append(post.traces, traffic(10, 60, [STOCK], first=30, begin=200))
    post.look(400)

    assert post.traces_read() == 20


def test_traces_from_the_near_future_wait_and_do_not_hide_the_others(post: Post) -> None:
    append(post.traces, [*traffic(3, 1, [], begin=3700, first=900), *traffic(10, 60, [STOCK], first=10)])
    read: list[int] = []
    for first, ours in ((30, 200), (50, 400), (70, 3920)):
        append(post.traces, traffic(10, 60, [STOCK], first=first, begin=ours - 100))
        post.look(ours)
        read.append(post.traces_read())
        with WatchState(post.folder) as state:
            assert ("in the future" in state.recall("gaps")) == (ours < 3700)
            assert state.number("window") < post.clock.utc().timestamp() / post.options.every_s

    assert read == [20, 30, 43]
    assert post.issues()[1].count == 20


def test_a_clock_that_goes_back_by_less_than_an_hour_hides_and_repeats_none(post: Post) -> None:
    for first, begin, ours in ((1, 3600, 3800), (20, 1800, 1900), (40, 3800, 4000)):
        append(post.traces, traffic(10, 60, [STOCK], first=first, begin=begin))
        post.look(ours)

        assert post.traces_read() == {1: 10, 20: 20, 40: 30}[first]


def test_a_source_that_goes_away_is_waited_for_longer_and_longer_and_caught_up_with(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(100)
    away = post.traces.rename(post.path / "away")
    with WatchState(post.folder) as state:
        watching = post.watch(state)
        post.clock.seconds = 700
        turns = [watching.turn() for _ in range(6)]
        waits = watching.wait_s()
        append(away, traffic(10, 60, [STOCK], begin=100, first=50))
        away.rename(post.traces)
        caught_up = watching.turn()

        assert all("does not exist" in turn.outage for turn in turns)
        assert turns[0].behind_s == 600
        assert waits == loop.LONGEST_WAIT_S
        assert (caught_up.traces, caught_up.outage) == (10, "")
        assert watching.wait_s() == 30, "the window of 660 s is over at 720 s and settled at 730 s"


def test_a_source_that_was_never_there_is_a_mistake(post: Post) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        post.look(0)


def test_a_running_watch_waits_for_the_first_file_of_an_empty_folder(post: Post) -> None:
    folder = post.path / "folder"
    folder.mkdir()
    post.clock.seconds = 1000
    with WatchState(post.folder, create=True) as state:
        watching = replace(post.watch(state), place=Source(source=folder, cache=post.path / "cache"), patient=True)
        first, second = watching.turn(), watching.turn()
        append(folder / "traces.jsonl", traffic(10, 60, [STOCK]))
        read = watching.turn()

    assert ("holds no trace files" in first.empty, second.empty, first.outage) == (True, "", "")
    assert read.traces == 10


def test_a_mistyped_source_does_not_claim_the_state(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    typo = sonde("watch", "--source", "tracs", "--once", "--state", post.folder, cwd=post.path)
    right = sonde("watch", "--source", post.traces, "--once", "--state", post.folder, cwd=post.path)
    other = sonde("watch", "--source", "tracs", "--once", "--state", post.folder, cwd=post.path)

    assert (typo.returncode, right.returncode, other.returncode) == (2, 0, 2), right.stderr
    assert "belongs to a watch" in other.stderr


def test_more_traces_than_are_listed_at_once_are_read_window_by_window(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "MOST_ROWS", 7)
    monkeypatch.setattr(loop, "PAGE", 5)
    append(post.traces, traffic(100, 600, [STOCK]))
    post.look(5000)

    assert post.traces_read() == 100
    assert post.issues()[1].count == 50


@pytest.mark.parametrize("end", ["rows", "time", "stop"])
def test_a_server_whose_list_of_traces_never_ends_holds_no_watch(
    post: Post, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    pages = 0

    class Endless:
        """A server that has new traces for whoever asks, none of which has ended yet."""

        def traces(self, query: TraceQuery) -> Page:
            nonlocal pages
            pages += 1
            at_us = int(post.clock.utc().timestamp() * 1e6)
            if end == "time":
                post.clock.seconds += 1
            if end == "stop" and pages == 3:
                watch.stopping.set()
            row = TraceRow(
                project="", trace_id=f"{pages:032x}", span_count=1, start_us=at_us + pages, end_us=at_us + 30_000_000
            )
            return Page((row,), f"more than {query.limit}")

        def skipped(self) -> list[str]:
            return []

        def close(self) -> None:
            """Nothing is open."""

    if end == "rows":
        monkeypatch.setattr(loop, "MOST_LISTED", 100)
    with WatchState(post.folder, create=True) as state:
        watch = post.watch(state)
        watch.open_store = lambda: cast("TraceStore", Endless())
        turn = watch.turn()

    assert (pages, bool(turn.outage)) == {"rows": (101, True), "time": (901, True), "stop": (3, False)}[end]
    assert turn.traces == 0


def test_a_trace_that_nothing_can_read_is_told_and_ends_no_watch(post: Post) -> None:
    @dataclass(slots=True)
    class Faulty:
        """A store whose traces raise what nobody thought of, one kind each."""

        inner: TraceStore
        faults: Iterator[Exception] = field(
            default_factory=lambda: iter([ValueError("1"), OverflowError("2"), KeyError("3"), RecursionError("4")])
        )

        def spans(self, trace_id: str) -> Iterator[Span]:
            fault = next(self.faults, None)
            if fault is not None:
                raise fault
            return self.inner.spans(trace_id)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    append(post.traces, traffic(10, 60, [STOCK]))
    post.clock.seconds = 200
    with WatchState(post.folder, create=True) as state:
        watch = post.watch(state)
        watch.open_store = lambda: cast("TraceStore", Faulty(watch.place.open()))
        turn = watch.turn()
        again = watch.turn()

    assert "4 traces could not be read" in turn.gaps
    assert (turn.traces, again.traces, post.traces_read()) == (10, 0, 6)


def test_token_counts_and_costs_beyond_all_measure_count_as_none(post: Post) -> None:
    boundless = {"gen_ai.usage.input_tokens": 1.7e308, "gen_ai.usage.output_tokens": 1.7e308, "llm.cost.total": 1.7e308}
    spans = trace(1, 0.0, STOCK)
    for span in spans:
        span["attributes"] |= boundless
    spans[1]["attributes"] |= {"llm.token_count.total": 70, "llm.cost.total": 0.5}
    append(post.traces, [spans])
    post.look(200)
    with FileStore(post.traces) as store:
        facts = facts_of(f"{1:032x}", store.spans(f"{1:032x}"), AttributeTable())

    assert post.traces_read() == 1
    assert (facts.tokens, facts.cost) == (70, 0.5)


def test_a_state_belongs_to_one_source(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(100)
    other = Post(post.path, options=replace(post.options, every_s=30), clock=HandClock())

    with pytest.raises(ConfigError, match="--every 60, not 30"):
        other.look(200)


def test_traces_from_before_the_first_start_stay_unread_after_later_starts(post: Post) -> None:
    append(post.traces, traffic(20, 1200, [STOCK]))
    since = int(post.clock.utc().timestamp() * 1e6) + 600_000_000
    post.options = replace(post.options, since_us=since)
    post.look(2000)
    post.options = replace(post.options, since_us=since + 5_000_000_000)
    append(post.traces, traffic(5, 60, [STOCK], begin=2000, first=100))
    post.look(3000)

    assert post.traces_read() == 10 + 5


class Hurried(threading.Event):
    """Waits for nothing."""

    def wait(self, timeout: float | None = None) -> bool:
        del timeout
        return self.is_set()


def test_a_watch_outlives_a_full_disk_and_loses_nothing(post: Post) -> None:
    append(post.traces, traffic(200, 600, [STOCK]))
    post.clock.seconds = 700
    turns: list[loop.WatchTurn] = []
    with WatchState(post.folder, create=True) as state:
        watching = replace(post.watch(state), stopping=Hurried())

        def told(turn: loop.WatchTurn) -> None:
            turns.append(turn)
            if len(turns) == 3:
                state.rows("PRAGMA max_page_count = 100000")
            elif not (turn.worked or turn.full):
                watching.stopping.set()

        watching.start()
        state.rows(f"PRAGMA max_page_count = {state.one('PRAGMA page_count')}")
        loop.keep_watch(watching, told)

    assert [bool(turn.full) for turn in turns[:4]] == [True, True, True, False]
    assert [f"{each.kind} {each.issue}" for turn in turns for each in turn.happenings] == ["new 1"]
    assert post.traces_read() == 200


def test_a_single_look_ends_at_a_full_disk(post: Post) -> None:
    append(post.traces, traffic(200, 600, [STOCK]))
    post.clock.seconds = 700
    with WatchState(post.folder, create=True) as state:
        watching = post.watch(state)
        watching.start()
        state.rows(f"PRAGMA max_page_count = {state.one('PRAGMA page_count')}")

        with pytest.raises(ConfigError):
            loop.keep_watch(watching, print, once=True)
