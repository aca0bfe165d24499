"""What is measured, once for every engine: turns, kills, host calls, loops, shares, sessions. Standard library only.

An engine opens sessions; a session runs code. Where an engine cannot do a thing it raises `NotImplementedError` with the reason,
and the table shows that.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any, Protocol

CONTEXT_BYTES = 100_000_000
OBJECTS = "rows = [{'id': i, 'name': 'item %d' % i, 'tags': [i, i + 1, 'x']} for i in range(110_000)]"
LOOP = "total = 0\nfor i in range({count}):\n    total += i\n"
LOOP_COUNT = 5_000_000
WALL_S = 0.3

Host = Callable[..., Any]
Figure = tuple[float, float]
"""Median and best of several."""
Rows = dict[str, Figure | str]


class Session(Protocol):
    """One namespace that lasts from turn to turn."""

    def run(self, code: str) -> None: ...

    def share(self, text: bytes) -> None:
        """Make `context` hold the text."""
        ...

    def close(self) -> None: ...


class Engine(Protocol):
    """A way to run generated Python. `loop_part` says what part of the loop is run, where the whole would take minutes."""

    name: str
    loop_part: int

    def open(self, hosts: dict[str, Host], wall_s: float | None) -> Session: ...


def measure(engine: Engine, turns: int) -> Rows:
    """Every row for one engine: median and best."""
    rows: Rows = {}
    for step in (_sessions, _small_turns, _context, _objects, _kills, _host_calls, _big_result, _loop):
        try:
            rows |= step(engine, turns)
        except NotImplementedError as reason:
            rows[LABELS[step]] = str(reason)
    return rows


def _sessions(engine: Engine, turns: int) -> Rows:
    def once() -> None:
        with contextlib.closing(engine.open({}, None)):
            pass

    once()  # the fork server, the pool or the import is warm
    return {"new session, ms": _timed(once, max(5, turns // 4))}


def _small_turns(engine: Engine, turns: int) -> Rows:
    with contextlib.closing(engine.open({}, None)) as session:
        return {"turn, small heap, ms": _timed(lambda: session.run("x = 1"), turns)}


def _context(engine: Engine, turns: int) -> Rows:
    text = (b"The quick brown fox jumps over the lazy dog, and so on and on.\n" * (CONTEXT_BYTES // 63 + 1))[
        :CONTEXT_BYTES
    ]
    shared: list[float] = []
    turn: Figure = (0.0, 0.0)
    for _ in range(3):
        with contextlib.closing(engine.open({}, None)) as session:
            start = time.perf_counter()
            session.share(text)
            session.run("x = len(context)")
            shared.append(time.perf_counter() - start)
            turn = _timed(lambda: session.run("x = context[5000:5010]"), max(3, turns // 3))
    return {"sharing 100 MB and first use, s": _figure(shared), "turn, 100 MB shared, ms": turn}


def _objects(engine: Engine, turns: int) -> Rows:
    with contextlib.closing(engine.open({}, None)) as session:
        session.run(OBJECTS)
        return {"turn, 50 MB of objects, ms": _timed(lambda: session.run("x = len(rows)"), turns)}


def _kills(engine: Engine, turns: int) -> Rows:
    over: list[float] = []
    for _ in range(max(5, turns // 10)):
        with contextlib.closing(engine.open({}, WALL_S)) as session:
            session.run("x = 1")
            start = time.perf_counter()
            session.run("while True:\n    pass")
            over.append((time.perf_counter() - start - WALL_S) * 1000)
    return {"kill overshoot, ms": _figure(over)}


def _host_calls(engine: Engine, turns: int) -> Rows:
    count = 300
    code = f"for _ in range({count}):\n    ask(1)\n"
    wall: list[float] = []
    processor: list[float] = []
    with contextlib.closing(engine.open({"ask": _echo}, None)) as session:
        for _ in range(max(5, turns // 10)):
            start, used = time.perf_counter(), time.process_time()
            session.run(code)
            wall.append((time.perf_counter() - start) / count * 1e6)
            processor.append((time.process_time() - used) / count * 1e6)
    return {"host call, µs": _figure(wall), "host call, µs CPU in the parent": _figure(processor)}


def _echo(number: int) -> int:
    return number


def _big_result(engine: Engine, turns: int) -> Rows:
    text = "x" * 1_000_000
    with contextlib.closing(engine.open({"big": lambda: text}, None)) as session:
        return {"1 MB host result, ms": _timed(lambda: session.run("s = big()"), max(10, turns // 4))}


def _loop(engine: Engine, _: int) -> Rows:
    """Beside the same loop in this interpreter, turn and turn about, so that both meet the same load."""
    source = LOOP.format(count=LOOP_COUNT // engine.loop_part)
    code = compile(source, "<loop>", "exec")
    ratios: list[float] = []
    with contextlib.closing(engine.open({}, None)) as session:
        for _ in range(5):
            plain = _timed(lambda: exec(code, {}), 1)[0]
            ratios.append(_timed(lambda: session.run(source), 1)[0] / plain)
    return {"5M-iteration loop, x plain CPython": _figure(ratios)}


def _timed(action: Callable[[], None], times: int) -> Figure:
    """Milliseconds."""
    taken: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append((time.perf_counter() - start) * 1000)
    return _figure(taken)


def _figure(values: list[float]) -> Figure:
    return statistics.median(values), min(values)


LABELS: dict[Callable[[Engine, int], Rows], str] = {
    _sessions: "new session, ms",
    _small_turns: "turn, small heap, ms",
    _context: "turn, 100 MB shared, ms",
    _objects: "turn, 50 MB of objects, ms",
    _kills: "kill overshoot, ms",
    _host_calls: "host call, µs",
    _big_result: "1 MB host result, ms",
    _loop: "5M-iteration loop, x plain CPython",
}
