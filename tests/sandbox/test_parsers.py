"""A process that reads documents: what a parser that was taken over cannot do, and what the next document notices of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sonde.core.deadline import Deadline
from sonde.sandbox.parser_process import (
    ANY_LAYER,
    GRACE_S,
    ParserKind,
    ParserLimits,
    ParserProcess,
    Parsers,
    ParserServer,
    ParserUnavailable,
    Refused,
    Unparsed,
)
from sonde.testing import FrozenClock

KIND = ParserKind(module="bad_parser", batch=10)
LIMITS = ParserLimits(cpu_s=30, memory=64 << 20, output_bytes=1 << 20)


@pytest.fixture(scope="module")
def parsers() -> Iterator[Parsers]:
    server = ParserServer()
    yield Parsers(server)
    server.close()


def read(parsers: Parsers, source: int | bytes, act: str = "read", limits: ParserLimits = LIMITS) -> list[Any]:
    records = parsers.read(KIND, source, {"act": act}, limits, without="")
    return [msgspec.msgpack.decode(record) for record in records]


def test_a_parser_reads_a_descriptor_and_leaves_its_offset_alone(parsers: Parsers, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    with (tmp_path / "a.txt").open("rb") as file:
        assert read(parsers, file.fileno()) == ["hello"]
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("open", "PermissionError"),
        ("thread", "died (SIGSYS)"),
        ("connect", "died (SIGSYS)"),
        ("fork", "died (SIGSYS)"),
        ("exec", "died (SIGSYS)"),
        ("subprocess", "died (SIGSYS)"),
        ("kill", "died (SIGSYS)"),
        ("die", "died (SIG"),
        ("memory", "needs more than 64 MiB of memory to read"),
        ("babble", "expands to more than 1 MiB"),
        ("forge", "has a part of more than 64 MiB"),
        ("anything else", "ValueError"),
    ],
)
def test_a_parser_that_was_taken_over_reaches_nothing_and_the_next_document_is_read(
    parsers: Parsers, act: str, message: str
) -> None:
    with pytest.raises(Unparsed) as caught:
        read(parsers, b"hostile", act)

    assert message in str(caught.value)
    assert read(parsers, b"honest") == ["honest"]


def test_a_document_that_takes_too_long_is_given_up(parsers: Parsers) -> None:
    for act in ("loop", "sleep"):
        with pytest.raises(Unparsed, match=r"took longer than 0\.1 s to read"):
            read(parsers, b"", act, ParserLimits(cpu_s=0.1))

    assert read(parsers, b"honest") == ["honest"]


def test_after_the_end_of_a_run_all_its_documents_share_one_grace_and_then_none_is_started(parsers: Parsers) -> None:
    run = Deadline(FrozenClock(), 0)
    with run.in_force():
        assert read(parsers, b"cited") == ["cited"]
        run.overtime = GRACE_S
        with pytest.raises(Unparsed, match="was still being read when the run had to end"):
            read(parsers, b"", "sleep")
        with pytest.raises(ParserUnavailable, match="was not read: the run had to end"):
            read(parsers, b"honest")

    assert read(parsers, b"honest") == ["honest"]


def test_a_broken_document_does_not_cost_the_process_and_a_batch_ends_it(parsers: Parsers) -> None:
    with pytest.raises(Refused, match=r"^ValueError$"):  # its own words may be the document's
        read(parsers, b"", "broken")
    assert [read(parsers, b"%d" % n) for n in range(25)] == [[str(n)] for n in range(25)]


def test_a_reader_who_wants_no_more_leaves_nothing_behind(parsers: Parsers) -> None:
    records = parsers.read(KIND, b"", {"act": "babble"}, LIMITS, without="")
    next(records)
    records.close()

    assert read(parsers, b"honest") == ["honest"]


def test_a_missing_parser_is_named(parsers: Parsers) -> None:
    with pytest.raises(ParserUnavailable, match="no_such_parser"):
        list(parsers.read(ParserKind(module="no_such_parser"), b"", {}, LIMITS, without=""))


def test_where_a_layer_is_missing_documents_are_refused_unless_the_user_allowed_it() -> None:
    server = ParserServer(without=("landlock",))
    try:
        parsers = Parsers(server)
        with pytest.raises(ParserUnavailable, match="lacks landlock"):
            read(parsers, b"honest")
        for without in ("landlock", ANY_LAYER):
            assert [bytes(each) for each in parsers.read(KIND, b"honest", {}, LIMITS, without=without)] == [
                b"\xa6honest"
            ]
        with pytest.raises(ParserUnavailable, match="lacks landlock"):  # none of those is kept warm for the others
            read(parsers, b"honest")
    finally:
        server.close()


def test_giving_up_landlock_gives_up_no_other_layer_of_a_parser() -> None:
    server = ParserServer(without=("seccomp",))
    try:
        with pytest.raises(ParserUnavailable, match="lacks seccomp"):
            list(Parsers(server).read(KIND, b"honest", {}, LIMITS, without="landlock"))
    finally:
        server.close()


def test_where_no_fork_server_runs_a_plain_process_still_has_limits(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("honest")
    with (tmp_path / "a.txt").open("rb") as file:
        process = ParserProcess(None, KIND.module, LIMITS.memory, without=ANY_LAYER)
        assert [bytes(each) for each in process.records(file.fileno(), 6, {}, LIMITS)] == [b"\xa6honest"]
        with pytest.raises(Unparsed, match="took longer than"):
            list(process.records(file.fileno(), 6, {"act": "loop"}, ParserLimits(cpu_s=0.1)))
        process.end()


def test_a_server_that_died_is_started_again(parsers: Parsers) -> None:
    fresh = Parsers()
    assert read(fresh, b"one") == ["one"]
    server = fresh._server
    assert server is not None
    os.kill(server.pid, 9)
    server._process.wait()

    assert read(fresh, b"two") == ["two"]
    assert fresh._server is not None
    fresh._server.close()
