"""Denial of service: every bomb is bounded in time and memory, the supervisor goes on working, and nothing is left running."""

from __future__ import annotations

import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from siege import members_after, open_server

from patience import SLOWNESS
from sonde.sandbox import Args, ForkServer, Limits, Sandbox

pytestmark = pytest.mark.timeout(300)

SHORT_S, LONG_S = 0.2, 60.0 * SLOWNESS
"""For bombs that only time ends, and for those that must meet another limit first, however busy the machine."""
SLACK_S = 60.0 * SLOWNESS
"""A busy machine may be slow to start and to kill; a turn without a bound would take for ever."""
BOMBS: dict[str, dict[str, str]] = tomllib.loads((Path(__file__).parent / "bombs.toml").read_text())["bomb"]


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    server = open_server()
    yield server
    server.close()


def resident_kib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4


def answer_nothing(name: str, args: Args) -> None:
    """A host with nothing to say."""


@pytest.mark.requirement(80)
@pytest.mark.requirement(121)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.hostile_long] * (name in {"hash_collisions", "hoard_in_small_pieces"}))
        for name in sorted(BOMBS)
    ],
)
def test_a_bomb_is_bounded_and_leaves_nothing_running(name: str, server: ForkServer) -> None:
    ends = BOMBS[name]["ends"].split(",")
    wall_s = SHORT_S if "timeout" in ends else LONG_S
    limits = Limits(wall_s=wall_s, memory="128MiB", host_calls=200)
    before = resident_kib()
    with Sandbox(profile="open", limits=limits, host=answer_nothing, functions=["ask"], server=server) as box:
        box.execute("kept = 41", wall_s=60.0)
        start = time.monotonic()
        result = box.execute(BOMBS[name]["code"])
        seconds = time.monotonic() - start
        after = box.execute("print(kept + 1)", wall_s=60.0)
        group = box._family.group

    assert ("" if result.fault is None else result.fault.kind) in ends
    assert seconds < wall_s + SLACK_S
    assert after.stdout.strip() == "42"
    assert len(result.stdout) + len(result.stderr) <= 8192
    assert resident_kib() - before < 200 * 1024
    assert members_after(group, 60.0) == 0


def test_other_boxes_go_on_while_bombs_go_off(server: ForkServer) -> None:
    lit, enough = threading.Barrier(4), threading.Event()

    def explode(code: str) -> None:
        with Sandbox(profile="open", limits=Limits(wall_s=SHORT_S, memory="128MiB"), server=server) as box:
            lit.wait(60)
            while not enough.is_set():
                box.execute(code)

    threads = [threading.Thread(target=explode, args=(BOMBS[name]["code"],)) for name in ("spin", "output", "hoard")]
    for thread in threads:
        thread.start()
    with Sandbox(profile="open", limits=Limits(wall_s=LONG_S), server=server) as quiet:
        lit.wait(60)
        turns = [quiet.execute("x = 1") for _ in range(10)]
    enough.set()
    for thread in threads:
        thread.join(60)

    assert all(turn.ok for turn in turns), turns
    assert not any(thread.is_alive() for thread in threads)
