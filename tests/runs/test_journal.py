"""The journal: exact, chained, and readable after whatever happened to the machine."""

from __future__ import annotations

import base64
import itertools
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from runs.streams import Teller, TickingClock, story, told, write_story
from sonde.core.events import CodeRan, Event, HostReturned, ModelReplied, Noted, RunStarted, encode
from sonde.core.redaction import REMOVED
from sonde.runs.journal import Journal, JournalBusy, JournalFailed, JournalUnreadable, is_being_written, read_journal
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import JOURNAL

KEY = 'sk-proj-"quoted"/+\\é-1234567890'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / JOURNAL


def write(path: Path, *events: Event, secrets: tuple[str, ...] = ()) -> None:
    journal = Journal(path, secrets)
    for event in events:
        journal.append(event)
    journal.close()


def notes(count: int) -> list[Event]:
    return [Noted(text=f"remark {number}", seq=number) for number in range(count)]


def test_what_is_written_is_read_back_in_order(path: Path) -> None:
    events = told()
    write(path, *events)

    held = read_journal(path)

    assert held.events == events
    assert not held.torn and held.tampered_line is None


def test_each_line_is_json_that_ends_in_its_sum(path: Path) -> None:
    write(path, *notes(3))

    sums = [json.loads(line)["sum"] for line in path.read_text().splitlines()]

    assert len(set(sums)) == 3 and all(len(each) == 16 for each in sums)


@pytest.mark.parametrize("cut", [1, 2, 20, 60])
def test_a_torn_last_line_is_dropped_and_never_fatal(path: Path, cut: int) -> None:
    write(path, *notes(3))
    os.truncate(path, path.stat().st_size - cut)

    held = read_journal(path)

    assert held.torn and held.tampered_line is None
    assert [event.seq for event in held.events] == [0, 1]


@settings(max_examples=40, deadline=None)
@given(keep=st.integers(min_value=0, max_value=10_000))
def test_cut_anywhere_a_journal_gives_the_whole_lines_before_the_cut(
    tmp_path_factory: pytest.TempPathFactory, keep: int
) -> None:
    path = tmp_path_factory.mktemp("cut") / JOURNAL
    write(path, *notes(40))
    data = path.read_bytes()[:keep]
    path.write_bytes(data)

    held = read_journal(path)

    assert len(held.events) == data.count(b"\n")
    assert held.torn == (bool(data) and not data.endswith(b"\n"))
    assert held.tampered_line is None


def test_blocks_of_zeros_after_a_power_loss_count_as_torn(path: Path) -> None:
    write(path, *notes(2))
    with path.open("ab") as file:
        file.write(b"\0" * 4096 + b"\n")

    assert read_journal(path).torn


def test_a_torn_journal_is_continued_after_its_last_sound_line(path: Path) -> None:
    write(path, *notes(3))
    os.truncate(path, path.stat().st_size - 9)

    write(path, Noted(text="after the crash", seq=2))

    held = read_journal(path)
    assert [event.seq for event in held.events] == [0, 1, 2]
    assert not held.torn and held.tampered_line is None


def test_a_changed_line_is_named(path: Path) -> None:
    write(path, *notes(5))
    path.write_bytes(path.read_bytes().replace(b"remark 2", b"remark 9"))

    held = read_journal(path)

    assert held.tampered_line == 3 and len(held.events) == 2


def test_a_changed_last_line_is_tampering_not_tearing(path: Path) -> None:
    write(path, *notes(2))
    path.write_bytes(path.read_bytes().replace(b"remark 1", b"remark X"))

    assert read_journal(path).tampered_line == 2


@pytest.mark.parametrize("change", ["drop", "swap", "repeat"])
def test_lines_that_were_moved_are_noticed(path: Path, change: str) -> None:
    write(path, *notes(4))
    a, b, c, d = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join({"drop": [a, c, d], "swap": [a, c, b, d], "repeat": [a, b, b, c, d]}[change]))

    assert read_journal(path).tampered_line in (2, 3)


def test_a_tampered_journal_is_not_continued(path: Path) -> None:
    write(path, *notes(3))
    path.write_bytes(path.read_bytes().replace(b"remark 1", b"remark 7"))

    with pytest.raises(JournalUnreadable, match="line 2"):
        Journal(path)


def test_a_newer_schema_is_refused_by_its_number(path: Path) -> None:
    started = next(event for event in told() if isinstance(event, RunStarted))
    write(path, msgspec.structs.replace(started, schema_version="2.0.0"))

    with pytest.raises(JournalUnreadable, match=r"2\.0\.0"):
        read_journal(path)


def test_a_newer_minor_schema_is_read(path: Path) -> None:
    started = next(event for event in told() if isinstance(event, RunStarted))
    write(path, msgspec.structs.replace(started, schema_version="1.9.0"))

    assert len(read_journal(path).events) == 1


def test_an_event_of_a_newer_sonde_is_refused_clearly(path: Path) -> None:
    class Teleported(Event, tag="teleported", frozen=True, kw_only=True):
        where: str

    write(path, *notes(1), Teleported(where="moon"))

    with pytest.raises(JournalUnreadable, match="newer"):
        read_journal(path)


def test_a_missing_journal_says_so(path: Path) -> None:
    with pytest.raises(JournalUnreadable, match="cannot be read"):
        read_journal(path)


SPELLINGS: list[Callable[[str], str]] = [
    str,
    lambda key: f"Authorization: Bearer {key}",
    lambda key: quote(key, safe=""),
    lambda key: base64.b64encode(key.encode()).decode(),
    lambda key: json.dumps({"key": key}, ensure_ascii=False),
    lambda key: key * 2,
]


@pytest.mark.requirement(100)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_key_values_planted_everywhere_never_reach_the_journal(tmp_path: Path, spelling: Callable[[str], str]) -> None:
    planted = spelling(KEY)

    run = write_story(tmp_path, secrets=[KEY], remark=planted)

    text = run.journal_path.read_text()
    assert not any(form in text for form in _traces(KEY))
    assert REMOVED in text
    assert not any(form in (run.path / "run_record.json").read_text() for form in _traces(KEY))


def _traces(key: str) -> list[str]:
    encoded = base64.b64encode(key.encode()).decode().rstrip("=")
    return [key, json.dumps(key, ensure_ascii=False)[1:-1], quote(key, safe=""), encoded, "1234567890"]


@pytest.mark.parametrize("key", ["wJalr/XUtn+FEMI=", "pässwort für alle", os.fsdecode(b"caf\xe9-and-more")])
@pytest.mark.parametrize("spelling", [str, quote, quote_plus, json.dumps])
def test_any_key_is_removed_as_python_programs_spell_it(path: Path, key: str, spelling: Callable[[Any], str]) -> None:
    planted = spelling(os.fsencode(key)) if spelling in (quote, quote_plus) else spelling(key)
    write(path, Noted(text=f"it is {planted}!"), secrets=(key,))

    (event,) = read_journal(path).events

    assert isinstance(event, Noted)
    assert event.text.replace('"', "") == f"it is {REMOVED}!"


def test_key_values_are_removed_from_keys_and_nested_values_too(path: Path) -> None:
    result = {"deep": [{KEY: [f"x{KEY}y"]}]}
    write(
        path,
        HostReturned(turn=1, ordinal=1, name="t", args=[KEY], args_hash="", ok=True, result=result),
        secrets=(KEY,),
    )

    (event,) = read_journal(path).events

    assert isinstance(event, HostReturned)
    assert event.result == {"deep": [{REMOVED: [f"x{REMOVED}y"]}]}
    assert event.args == [REMOVED]


def test_nothing_but_key_values_is_removed(path: Path) -> None:
    password = Noted(text="password=hunter2 and AKIAABCDEFGHIJKLMNOP", seq=0)
    write(path, password, secrets=(KEY, "none", "EMPTY"))

    assert read_journal(path).events == [password]


def test_the_writer_gets_back_what_was_written(path: Path) -> None:
    journal = Journal(path, [KEY])

    written = journal.append(Noted(text=f"the key is {KEY}"))
    journal.close()

    assert written == Noted(text=f"the key is {REMOVED}")


def test_text_that_utf_8_cannot_hold_is_written_escaped(path: Path) -> None:
    journal = Journal(path)

    written = journal.append(CodeRan(turn=1, block=0, ok=True, stdout="half a pair: \ud83d"))
    journal.close()

    assert read_journal(path).events == [written]


def test_only_one_process_writes_a_journal(path: Path) -> None:
    journal = Journal(path)
    assert is_being_written(path)

    with pytest.raises(JournalBusy):
        Journal(path)

    journal.close()
    assert not is_being_written(path)


def test_a_killed_writer_leaves_whole_lines_and_lets_go_of_the_journal(path: Path) -> None:
    program = (
        "import sys\nfrom sonde.runs.journal import Journal\nfrom sonde.core.events import Noted\n"
        "journal = Journal(sys.argv[1])\n"
        "for n in range(10**9):\n    journal.append(Noted(text='x' * 5000, seq=n))\n    n == 50 and print(flush=True)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        writer.kill()

    held = read_journal(path)

    assert len(held.events) >= 51 and held.tampered_line is None
    assert [event.seq for event in held.events] == list(range(len(held.events)))
    assert not is_being_written(path)


def test_threads_may_emit_at_once(path: Path) -> None:
    journal = Journal(path)
    recorder = Recorder(TickingClock(), journal)

    def emit(name: int) -> None:
        for number in range(50):
            recorder.emit(Noted(text=f"{name}.{number}"))

    threads = [threading.Thread(target=emit, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()

    held = read_journal(path)
    assert [event.seq for event in held.events] == list(range(400))
    assert held.tampered_line is None


def test_writing_a_megabyte_costs_little_more_than_encoding_it(path: Path) -> None:
    event = HostReturned(
        turn=1, ordinal=1, name="t", args={}, args_hash="", ok=True, result="a line of text\n" * 70_000
    )
    journal = Journal(path, [KEY])
    times: list[float] = []
    for _ in range(5):
        began = time.process_time()
        journal.append(event)
        times.append(time.process_time() - began)
    journal.close()

    assert len(encode(event)) > 1_000_000
    assert min(times) < 0.1  # processor time: about 5 ms; a turn at this size takes hundreds


def test_a_full_disk_leaves_no_half_line_and_says_so(path: Path) -> None:
    journal = Journal(path)
    journal.append(Noted(text="fits", seq=0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 700, hard))
    try:
        with pytest.raises(JournalFailed, match="cannot be written"):
            journal.append(Noted(text="x" * 5_000, seq=1))
        with pytest.raises(JournalFailed, match="cannot be written"):
            journal.append(Noted(text="would fit, but after a hole", seq=2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    journal.close()
    again = Journal(path)
    again.append(Noted(text="there is room again", seq=1))
    again.close()

    held = read_journal(path)
    assert [event.seq for event in held.events] == [0, 1] and not held.torn and held.tampered_line is None


def test_a_story_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = (write_story(tmp_path / name).journal_path.read_bytes() for name in ("a", "b"))

    assert first == second


def test_a_paid_reply_is_synced(path: Path) -> None:
    class Watched(Journal):
        syncs = 0

        def sync(self) -> None:
            super().sync()
            self.syncs += 1

    journal = Watched(path)
    recorder = Recorder(TickingClock(), journal)
    story(Teller(recorder))

    replies = sum(isinstance(event, ModelReplied) for event in read_journal(path).events)
    assert journal.syncs == replies > 5
    journal.close()


def test_sums_differ_for_equal_events_in_a_row(path: Path) -> None:
    write(path, *itertools.repeat(Noted(text="same"), 3))

    assert len(set(path.read_bytes().splitlines())) == 3
