"""Kept states: going back, branching, and many boxes at once."""

from __future__ import annotations

import ast
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from watching import eventually, group_of, kept_pids, kind, members, no_strays, run

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox import Args, Limits, Sandbox


def test_rollback_goes_back_to_the_state_after_a_turn() -> None:
    with Sandbox() as box:
        for turn in range(1, 6):
            run(box, f"x = {turn}")
        box.rollback(2)

        assert run(box, "print(x)") == "2\n"
        assert box.turn == 3
        box.rollback(0)
        assert kind(box.execute("x")) == "error"


def test_rollback_to_a_killed_turn_is_the_state_it_left() -> None:
    with Sandbox() as box:
        run(box, "x = 1")
        box.execute("x = 2\nwhile True: pass", wall_s=0.2)
        run(box, "x = 3")
        box.rollback(2)

        assert run(box, "print(x)") == "1\n"


def test_the_number_of_kept_states_is_bounded() -> None:
    with Sandbox(keep_states=4) as box:
        for turn in range(1, 21):
            run(box, f"x = {turn}")

        assert eventually(lambda: len(members(group_of(box))) == 4)
        box.rollback(17)
        assert run(box, "print(x)") == "17\n"
        with pytest.raises(ConfigError, match="kept"):
            box.rollback(3)
        assert run(box, "print(x)") == "17\n"


def test_kept_states_are_bounded_by_memory_too() -> None:
    with Sandbox(limits=Limits(memory="200MiB")) as box:
        for turn in range(1, 11):
            run(box, f"x = bytes({turn}) + b'x' * 50_000_000")

        assert 2 <= len(kept_pids(box)) <= 5
        assert run(box, "print(len(x))") == "50000010\n"


SCATTER = """
import ctypes
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
PRIVATE_FIXED, DROP = 0x100022, 4

def scatter(gigabytes):
    for place in gigabytes:
        if libc.mmap(place << 30, 4096, 3, PRIVATE_FIXED, -1, 0) == place << 30:
            ctypes.memset(place << 30, 1, 1)
            libc.madvise(place << 30, 4096, DROP)
"""
"""One page in every gigabyte, written and dropped: nothing is resident, but the page tables stay."""


def test_page_tables_count_as_memory_and_a_state_that_holds_too_much_is_not_kept() -> None:
    with Sandbox(profile="open", limits=Limits(wall_s=60, memory="64MiB")) as box:
        run(box, SCATTER + "x = 1")
        stopped = box.execute("x = 2\nscatter(range(100, 30_100))")

        assert kind(stopped) == "memory"
        assert stopped.usage.memory_bytes > 64 << 20
        assert run(box, "print(x)") == "1\n"


def test_finalizers_that_run_after_the_report_are_held_to_the_limit_too() -> None:
    late = "class Late:\n    def __del__(self):\n        scatter(range(100, 30_100))\n"
    cycle = "late = Late()\nlate.itself = late\ndel late\n"
    with Sandbox(profile="open", limits=Limits(wall_s=60, memory="64MiB")) as box:
        run(box, SCATTER + late + "import gc\ngc.disable()\nx = 1")
        stopped = box.execute("x = 2\n" + cycle)

        assert not stopped.ok
        assert run(box, "print(x)") == "1\n"


def test_kept_states_are_bounded_by_their_page_tables_too() -> None:
    with Sandbox(profile="open", limits=Limits(wall_s=60, memory="64MiB")) as box:
        run(box, SCATTER)
        for turn in range(1, 6):
            run(box, f"scatter(range({turn * 10_000}, {turn * 10_000 + 1_500}))")

        assert len(kept_pids(box)) <= 5


def test_nothing_that_code_does_to_a_descriptor_survives_a_rollback() -> None:
    places = "[os.lseek(fd, 0, 2) for fd in range(300) if is_open(fd)]"
    look = (
        "import fcntl, os\ndef is_open(fd):\n    try:\n        os.lseek(fd, 0, 1)\n    except OSError:\n        return False\n"
        "    return True\n"
    )
    with Sandbox(profile="open") as box:
        box.share("text", "a shared text")
        run(box, look)

        assert set(ast.literal_eval(run(box, f"print({places})"))) == {0}  # only /dev/null, which has no offset
        assert run(box, "print(text[2:8])") == "shared\n"
        for fd in (0, 1, 2, 3):
            assert kind(box.execute(f"fcntl.fcntl({fd}, fcntl.F_SETFL, os.O_NONBLOCK)")) == "error"


@pytest.mark.parametrize("turn", [-1, 99])
def test_rollback_to_a_turn_that_never_was_is_refused(turn: int) -> None:
    with Sandbox() as box:
        run(box, "x = 1")
        with pytest.raises(ConfigError):
            box.rollback(turn)

        assert run(box, "print(x)") == "1\n"


def test_a_branch_and_its_origin_go_separate_ways() -> None:
    with Sandbox() as box:
        box.share("context", "both see it")
        run(box, "x = [1]")
        with box.branch() as twin:
            run(twin, "x.append('twin')")
            run(box, "x.append('box')")

            assert run(twin, "print(x, context[:4])") == "[1, 'twin'] both\n"
            assert run(box, "print(x, context[:4])") == "[1, 'box'] both\n"
            assert no_strays(box, twin)
        assert run(box, "print(x)") == "[1, 'box']\n"


def test_a_branch_outlives_its_origin() -> None:
    box = Sandbox()
    run(box, "x = 1")
    twin = box.branch()
    box.close()

    assert run(twin, "print(x)") == "1\n"
    group = group_of(twin)
    twin.close()
    assert eventually(lambda: not members(group))


def test_a_branch_from_the_middle_of_a_turn_starts_from_the_state_before_it() -> None:
    seen: list[str] = []

    def host(name: str, args: Args) -> None:
        with box.branch() as twin:
            seen.append(run(twin, "print(x)"))

    with Sandbox(host=host) as box:
        run(box, "x = 'before'")
        run(box, "x = 'during'\nlook()")

        assert seen == ["before\n"]
        assert run(box, "print(x)") == "during\n"


def test_many_boxes_work_at_once_from_many_threads() -> None:
    def work(number: int) -> list[str]:
        with Sandbox(host=lambda name, args: number) as box:
            return [run(box, f"x = {number}; y = ask()\nprint(x + y)") for _ in range(6)]

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(work, range(10)))

    assert results == [[f"{2 * number}\n"] * 6 for number in range(10)]


def test_branches_of_one_box_work_at_once_from_many_threads() -> None:
    with Sandbox() as box:
        run(box, "x = 1")
        twins = [box.branch() for _ in range(6)]

        def work(number: int) -> str:
            for _ in range(8):
                run(twins[number], f"x += {number}")
            killed = twins[number].execute("while True: pass", wall_s=0.1)
            assert kind(killed) == "timeout"
            return run(twins[number], "print(x)")

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(work, range(6))) == [f"{1 + 8 * number}\n" for number in range(6)]
        assert no_strays(box, *twins)
        for twin in twins:
            twin.close()


def wander(origin: Sandbox, seed: int) -> None:
    """Random turns, kills, rollbacks and branches, held against a plain list."""
    dice = random.Random(seed)
    box, values = origin.branch(), list[int]()
    left = {box.turn: values}
    for step in range(25):
        match dice.choice(["append", "append", "kill", "rollback", "branch", "look"]):
            case "append":
                run(box, f"values.append({step})")
                values = [*values, step]
            case "kill":
                assert kind(box.execute("values.clear()\nwhile True: pass", wall_s=0.02)) == "timeout"
            case "rollback":
                box.rollback(dice.choice([turn for turn, _ in box._history.entries]))
                values = left[box.turn]
            case "branch":
                twin = box.branch()
                box.close()
                box, left = twin, {}
            case _:
                assert run(box, "print(values)") == f"{values}\n"
        left[box.turn] = values
    box.close()


def test_any_mix_of_turns_kills_rollbacks_and_branches_at_once_is_kept_apart() -> None:
    with Sandbox() as origin, ThreadPoolExecutor(4) as pool:
        run(origin, "values = []")
        list(pool.map(wander, [origin] * 8, range(8)))

        assert run(origin, "print(values)") == "[]\n"
        assert no_strays(origin)


def test_a_box_serves_one_turn_at_a_time() -> None:
    entered, leave = threading.Event(), threading.Event()

    def host(name: str, args: Args) -> None:
        entered.set()
        leave.wait(60)

    with Sandbox(host=host) as box, ThreadPoolExecutor(1) as pool:
        running = pool.submit(box.execute, "wait()")
        assert entered.wait(60)
        with pytest.raises(ConfigError, match="middle of a turn"):
            box.execute("1")
        leave.set()

        assert running.result(60).ok


def test_a_closed_box_says_so_and_leaves_nothing() -> None:
    box = Sandbox()
    group = group_of(box)
    box.close()
    box.close()

    assert eventually(lambda: not members(group))
    with pytest.raises(SandboxLost):
        box.execute("1")


def test_a_forgotten_box_ends_its_processes() -> None:
    box = Sandbox()
    group = group_of(box)
    del box

    assert eventually(lambda: not members(group))


def test_a_state_that_was_killed_behind_our_back_costs_one_turn_only() -> None:
    with Sandbox() as box:
        run(box, "x = 1")
        run(box, "x = 2")
        box._history.state.kill()
        lost = box.execute("x = 3")

        assert kind(lost) == "crash"
        assert run(box, "print(x)") == "1\n"


def test_when_every_state_is_gone_the_sandbox_is_lost() -> None:
    with Sandbox() as box:
        box._history.state.kill()
        with pytest.raises(SandboxLost):
            box.execute("x = 1")
        with pytest.raises(SandboxLost):
            box.execute("x = 1")
