"""A stranger's run that is small on the disk and huge in memory: lines of a journal that are many together, headers of an export."""

from __future__ import annotations

import gzip
import json
import tarfile
from pathlib import Path

import pytest
from victim import Victim

from journeys.journey import SONDE, Shown
from sonde.runs.journal import chain, ending

RUN = Path(__file__).parents[1] / "data/runs/ask"
NESTED = b"[" + (b'{"a":' * 100 + b"0" + b"}" * 100 + b",") * 20_500 + b"0]"
"""Just below the limit of one line: 12 MB that take 400 MB when they are decoded."""
COMMANDS = {
    "replay": ("replay", "./strange"),
    "export": ("export", "./strange"),
    "continue": ("ask", "And now?", "--continue", "./strange"),
}


def in_memory(victim: Victim, mebibytes: int, *words: str | Path) -> Shown:
    """A command that has only so much memory."""
    limits = f'ulimit -t 60; ulimit -v {mebibytes << 10}; exec "$@"'
    return victim.run("sh", "-c", limits, "sh", SONDE, *words)


@pytest.mark.hostile_long
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_lines_of_a_journal_do_not_fill_the_memory_together(victim: Victim, words: tuple[str, ...]) -> None:
    lines = (RUN / "events.jsonl").read_bytes().splitlines()
    returned = next(line for line in lines if b'"type":"host_returned"' in line)
    (victim.folder / "strange").mkdir()
    sum_so_far = ""
    with (victim.folder / "strange/events.jsonl").open("wb") as file:
        for number, line in enumerate([lines[0], *[returned] * 12]):
            event = json.loads(line)
            del event["sum"]
            if number:
                event |= {"seq": number, "ordinal": number, "result": "HERE"}
            body = json.dumps(event).encode()[:-1].replace(b'"HERE"', NESTED)
            sum_so_far = chain(sum_so_far, body)
            file.write(body + ending(sum_so_far))

    done = in_memory(victim, 4000, *words)

    assert done.returncode == 2, done.stdout + done.stderr
    assert "would take more than 2,048 MiB of memory" in done.stderr


def header(name: str, kind: bytes, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


HEADERS = {
    "a long name": (header("x", tarfile.GNUTYPE_LONGNAME, 700 << 20), b"a"),
    "a header of pax": (header("x", tarfile.XHDTYPE, 700 << 20), b"13 aaaaaaa=b\n"),
    "a header of pax for all": (header("x", tarfile.XGLTYPE, 700 << 20), b"13 aaaaaaa=b\n"),
    "a map of holes": (
        header("x", tarfile.XHDTYPE, 512)
        + b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n".ljust(512, b"\0")
        + header("events.jsonl", tarfile.REGTYPE, 200 << 20)
        + b"999999999\n".ljust(512, b"0"),
        b"0\n",
    ),
}


@pytest.mark.hostile_long
@pytest.mark.parametrize("shape", HEADERS.values(), ids=HEADERS)
def test_headers_of_an_export_take_neither_memory_nor_time(victim: Victim, shape: tuple[bytes, bytes]) -> None:
    first, again = shape
    with gzip.open(victim.folder / "run.tar.gz", "wb", compresslevel=1) as packed:
        packed.write(first)
        for _ in range(705):
            packed.write((again * (1 << 20))[: 1 << 20])

    done = in_memory(victim, 1000, "runs", "import", "run.tar.gz", "--runs-dir", victim.own)

    assert done.returncode == 2, done.stdout + done.stderr
    assert "is not an exported run" in done.stderr
    assert not list(victim.own.iterdir())


def test_an_export_of_countless_empty_members_is_given_up_after_a_few(victim: Victim) -> None:
    (victim.folder / "run.tar.gz").write_bytes(gzip.compress(header("a", b"5", 0) * 20_000))

    done = victim.call("runs", "import", "run.tar.gz", "--runs-dir", victim.own)

    assert done.returncode == 2 and "it has more than 100 members" in done.stderr
    assert not list(victim.own.iterdir())
