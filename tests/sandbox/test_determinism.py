"""What code can see of chance and time is the caller's to set, so that a run can be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import run

from sonde.sandbox import CodeClock, ForkServer, Sandbox
from sonde.sandbox.policy import PROFILES
from sonde.sandbox.worker.kernel import NO_RANDOM_ADDRESSES

CHANCE = """
import random, uuid, os
print({str(i) for i in range(20)})
print(random.random(), random.Random().random(), random.SystemRandom().random() >= 0)
print(uuid.uuid4(), os.urandom(4), hash("text"))
import secrets
print(secrets.token_hex(4))
"""


def output(code: str, seed: int = 0, clock: CodeClock | None = None, turns: int = 1) -> list[str]:
    with Sandbox("open", seed=seed, clock=clock) as box:
        return [run(box, code) for _ in range(turns)]


def test_the_same_seed_gives_the_same_run() -> None:
    first, again, other = output(CHANCE, 1, turns=3), output(CHANCE, 1, turns=3), output(CHANCE, 2, turns=3)

    assert first == again
    assert first != other
    assert len(set(first)) == 3


def test_addresses_repeat_where_the_kernel_allows_it() -> None:
    code = "class C: pass\nprint(repr(C()), id(C))"
    runs: list[str] = []
    for _ in range(2):
        server = ForkServer(PROFILES["open"].preload)
        if not int(Path(f"/proc/{server.pid}/personality").read_text(), 16) & NO_RANDOM_ADDRESSES:
            pytest.skip("this kernel, or the container's filter, does not let a process fix its addresses")
        with Sandbox("open", server=server) as box:
            runs.append(run(box, code))
        server.close()

    assert runs[0] == runs[1]


def test_a_rollback_takes_chance_back_too() -> None:
    code = "import random\nprint(random.random())"
    with Sandbox("open") as box:
        run(box, "import random")
        once = run(box, code)
        box.rollback(1)

        assert run(box, code) == once


READ = """
import time, datetime
print(time.time(), time.time_ns(), datetime.datetime.now(datetime.UTC).isoformat(), datetime.date.today())
print(time.strftime('%Y', time.gmtime()), datetime.datetime.utcnow().year)
"""


def test_a_fixed_clock_stands_still() -> None:
    assert output(READ, clock=CodeClock(start=1_000_000_000.5))[0] == (
        "1000000000.5 1000000000500000000 2001-09-09T01:46:40.500000+00:00 2001-09-09\n2001 2001\n"
    )


def test_an_advancing_clock_moves_by_its_step_at_each_reading() -> None:
    code = "import time\nprint(time.time(), time.time(), time.monotonic() < time.monotonic())"

    assert output(code, clock=CodeClock(start=100, step=2))[0] == "102.0 104.0 True\n"


def test_the_clock_can_be_set_for_each_turn() -> None:
    with Sandbox("open", clock=CodeClock(start=10)) as box:
        first = run(box, "import time\nprint(time.time())")
        box.clock = CodeClock(start=20)

        assert (first, run(box, "print(time.time())")) == ("10.0\n", "20.0\n")


def test_sleep_passes_time_without_waiting() -> None:
    code = "import time\na = time.time()\ntime.sleep(3600)\nprint(time.time() - a)"

    assert output(code, clock=CodeClock(start=0)) == ["3600.0\n"]


@pytest.mark.parametrize(
    "code",
    [
        "from datetime import datetime, timedelta\nprint(isinstance(datetime.now() + timedelta(1), datetime))",
        "import datetime as d\nprint(isinstance(d.datetime.strptime('2024', '%Y'), d.datetime))",
        "import datetime as d\nprint(isinstance(d.datetime.now(), d.date), d.datetime(2024, 1, 2).date() == d.date(2024, 1, 2))",
        "import datetime as d\nprint(d.datetime.fromisoformat('2024-01-02') < d.datetime(2025, 1, 1))",
    ],
)
def test_dates_work_as_usual_under_a_set_clock(code: str) -> None:
    assert set(output(code, clock=CodeClock(start=0))[0].split()) == {"True"}


def test_without_a_clock_time_is_real() -> None:
    with Sandbox("open") as box:
        assert float(run(box, "import time\nprint(time.time())")) > 1_700_000_000


def test_every_way_to_read_the_clock_and_the_dice_is_the_callers() -> None:
    code = (
        "import os, time\n"
        "print(time.strftime('%Y'), time.asctime()[-4:], time.clock_gettime(time.CLOCK_REALTIME))\n"
        "print(time.clock_gettime_ns(time.CLOCK_REALTIME), time.clock_gettime(time.CLOCK_MONOTONIC), os.getrandom(8))\n"
        "print(time.strftime('%Y', (2031, *[1] * 8)), time.asctime((2032, *[1] * 8))[-4:])"
    )
    first = output(code, clock=CodeClock(start=1e9))

    assert first == output(code, clock=CodeClock(start=1e9))
    assert first[0].startswith("2001 2001 1000000000.0\n1000000000000000000 0.0 b")
    assert first[0].endswith("\n2031 2032\n")
