"""`box.save` and `Sandbox.load`: what is carried to another process, what is named as left behind, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from watching import no_strays, run

from sonde.errors import ConfigError
from sonde.sandbox import Args, CodeClock, Limits, Sandbox, StateNotSaved, StateRefused, saved_state

RICH = """
import math, re, functools
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, timezone
LIMIT = 5

@dataclass(frozen=True, order=True)
class Point:
    x: int
    tags: tuple = ()

class Node:
    made = 0
    __slots__ = ("next", "value")

    def __init__(self, value):
        self.value, self.next = value, None
        Node.made += 1

class Leaf(Node):
    def double(self):
        return super().__repr__() and self.value * 2

def add(x, y=LIMIT, *, seen=[]):
    # the comment stays
    seen.append(x)
    return x + y + LIMIT

add(1)
LIMIT = 9

@functools.lru_cache(maxsize=None)
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

if True:
    def even(n):
        return n == 0 or odd(n - 1)
    def odd(n):
        return n != 0 and even(n - 1)

square = lambda v: v * v
Pair = namedtuple("Pair", "a b", defaults=[3])
ring = Leaf(1); ring.next = Node(2); ring.next.next = ring
points = {Point(2), Point(1, ("a",))}
pair = Pair(1)
shared = [1]
twice = [shared, shared, {"again": shared}]
loop = ([],); loop[0].append(loop)
groups = defaultdict(list, {"a": [1]})
words = Counter("aab")
line = deque([1, 2], maxlen=2)
order = OrderedDict(b=1, a=2)
pattern = re.compile("A+", re.I)
plus = functools.partial(add, 10, y=1)
when = [date(2024, 2, 29), datetime(2024, 1, 1, 2, 3, tzinfo=timezone(timedelta(hours=2), "here")), time(1, 2), timedelta(1)]
table = {"square": square, "sqrt": math.sqrt, "len": len, "kind": Point, "make": Counter}
"""
CHECK = """
assert ring.next.next is ring and type(ring) is Leaf and ring.double() == 2 and Node.made == 2, Node.made
assert points == {Point(2), Point(1, ("a",))} and max(points).x == 2
assert add(1) == 1 + 5 + 9 and add.__kwdefaults__["seen"] == [1, 1]
assert fib(20) == 6765 and even(10) and square(3) == 9
assert pair == (1, 3) and pair.b == 3 and isinstance(pair, Pair)
assert twice[0] is twice[1] is twice[2]["again"] is shared
assert loop[0][0] is loop
assert groups["new"] == [] and words["a"] == 2 and line.maxlen == 2 and list(order) == ["b", "a"]
assert pattern.findall("aAb") == ["aA"] and plus() == 10 + 1 + 9
assert str(when[1]) == "2024-01-01 02:03:00+02:00" and when[1].tzname() == "here" and when[0].day == 29
assert table["square"](2) == 4 and table["sqrt"](4) == 2 and table["kind"] is Point and table["make"] is Counter
assert math.floor(2.5) == 2 and table["len"]([1]) == 1
print("whole")
"""
AS_USER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "escapes")!r})
from ordinary import become_ordinary, free_uid
become_ordinary(free_uid(), [sys.executable, "-c", *sys.argv[1:]])
"""
IN_ANOTHER_PROCESS = """
import sys
from sonde.sandbox import Sandbox
with Sandbox.load(sys.argv[1], profile=sys.argv[2]) as box:
    result = box.execute(sys.argv[3])
    box.save(sys.argv[1] + ".again")
    print(result.stdout, result.fault or "", box.restored.left_out)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def carried(path: Path, code: str, check: str, profile: str = "analysis", **options: Any) -> str:
    with Sandbox(profile) as box:
        run(box, code)
        box.save(path)
    with Sandbox.load(path, profile, **options) as box:
        return run(box, check)


@pytest.mark.parametrize("profile", ["open", "analysis"])
def test_a_state_goes_on_in_another_process(path: Path, profile: str) -> None:
    with Sandbox(profile) as box:
        run(box, RICH)
        saved = box.save(path)

    shown = subprocess.run(
        [sys.executable, "-c", IN_ANOTHER_PROCESS, str(path), profile, CHECK],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert saved.left_out == ()
    assert shown.stdout == "whole\n  ()\n", shown.stderr


@pytest.mark.parametrize("profile", ["strict", "assign-only"])
def test_the_narrow_profiles_carry_data_and_functions(path: Path, profile: str) -> None:
    code = "rows = [{'a': (1, 2)}, {3: {4}}]\ndef total(row):\n    return sum(row)\n"

    assert carried(path, code, "print(total(rows[0]['a']), rows)", profile) == "3 [{'a': (1, 2)}, {3: {4}}]\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_an_ordinary_user_saves_and_loads_too() -> None:
    with tempfile.TemporaryDirectory() as folder:  # the folders of pytest are closed to others
        path = Path(folder, "state.json")
        with Sandbox() as box:
            run(box, RICH)
            box.save(path)
        for each in (path, path.parent):
            each.chmod(0o777)

        shown = subprocess.run(
            [sys.executable, "-c", AS_USER, IN_ANOTHER_PROCESS, str(path), "analysis", CHECK],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

        assert shown.stdout == "whole\n  ()\n", shown.stderr
        assert saved_state(f"{path}.again").left_out == ()


def test_a_loaded_state_can_be_saved_again_and_goes_back_to_its_beginning(path: Path) -> None:
    with Sandbox() as box:
        run(box, RICH)
        box.save(path)
    with Sandbox.load(path) as box:
        run(box, "square = None; more = 1")
        box.rollback(0)
        assert "more" in str(box.execute("more").fault)
        box.save(path)
    with Sandbox.load(path) as box, box.branch() as twin:
        assert run(twin, CHECK) == run(box, CHECK) == "whole\n"


def test_saving_changes_nothing_and_sees_what_was_injected(path: Path) -> None:
    with Sandbox() as box:
        run(box, "numbers = iter(range(9)); next(numbers)")
        box.inject("given", [1, b"2"])
        saved = box.save(path)

        assert run(box, "print(next(numbers), given)") == "1 [1, b'2']\n"
        assert box.turn == 2
    assert [each.name for each in saved.variables] == ["given"]


def test_what_is_not_carried_is_named_with_the_reason_and_the_place(path: Path) -> None:
    code = """
import hashlib
def count():
    yield 1
def outer():
    kept = 1
    def inner(): return kept
    return inner
class Words(dict): pass
numbers = count()
items = iter([1])
view = {1: 2}.keys()
digest = hashlib.sha256()
closed = outer()
words = Words()
deep = {"rows": [1, {"it": numbers}]}
"""
    with Sandbox() as box:
        box.share("context", "the context " * 1000)
        run(box, code + "alias = context\nfine = 1\n")
        saved = box.save(path, without=["fine"])
    with Sandbox.load(path) as box:
        assert box.restored.left_out == saved.left_out
        assert set(box.restored.names) == {"hashlib", "count", "outer", "Words"}

    why = {each.name: each.reason for each in saved.left_out}
    assert set(why) == {"numbers", "items", "view", "digest", "closed", "words", "deep", "context", "alias"}
    assert "generator" in why["numbers"] and "iterator" in why["items"] and "view" in why["view"]
    assert "kept" in why["closed"] and "Words" in why["words"] and "shared context" in why["alias"]
    assert why["deep"].startswith("deep['rows'][1]['it']: ")
    assert b"the context the context" not in path.read_bytes()


def test_random_numbers_and_the_clock_go_on_where_they_were(path: Path) -> None:
    draw = "print([random.random() for _ in range(3)], random.gauss(0, 1), uuid.uuid4(), dice.random())"
    with Sandbox("open", seed=7, clock=CodeClock(start=1e9)) as box:
        run(box, "import random, uuid, datetime\nrandom.gauss(0, 1); uuid.uuid4(); now = datetime.datetime.now()")
        run(box, "dice = random.Random(3) if False else random")
        box.save(path)
        then = run(box, draw)
    with Sandbox.load(path, "open", seed=99, clock=CodeClock(start=2e9)) as box:
        assert run(box, draw) == then
        assert run(box, "print(now.year, isinstance(now, datetime.datetime))") == "2001 True\n"


def test_functions_of_the_host_are_carried_by_name_where_they_are_offered(path: Path) -> None:
    def serve(name: str, args: Args) -> Any:
        return [name, *args]

    with Sandbox(host=serve, functions=["find", "gone"]) as box:
        run(box, "tools = {'find': find}\nother = gone\ndef look(x): return find(x)")
        box.save(path)
    with Sandbox.load(path, host=serve, functions=["find"]) as box:
        assert run(box, "print(tools['find'](1), look(2))") == "['find', 1] ['find', 2]\n"
        assert [(each.name, "gone" in each.reason) for each in box.restored.left_out] == [("other", True)]
    with Sandbox.load(path, host=serve) as box:
        assert run(box, "print(look(2))") == "['find', 2]\n"


def test_deep_and_wide_values_are_carried(path: Path) -> None:
    code = "deep = []\nfor _ in range(50_000): deep = [deep]\nwide = {n: str(n) for n in range(50_000)}\nmany = ['x' * 1000] * 50_000"
    check = (
        "n = 0\nwhile deep: deep = deep[0]; n += 1\nprint(n, len(wide), wide[49_999], len(many), many[0] is many[-1])"
    )

    assert carried(path, code, check) == "50000 50000 49999 50000 True\n"
    assert path.stat().st_size < 8_000_000


# --- any data ------------------------------------------------------------------------------------------------------

LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.complex_numbers(allow_nan=False, allow_infinity=False),
    st.text(st.characters(), max_size=80),
    st.binary(max_size=80),
    st.decimals(allow_nan=False),
    st.fractions(),
    st.datetimes(timezones=st.none() | st.just(__import__("datetime").UTC)),
    st.dates(),
    st.timedeltas(),
    st.builds(range, st.integers(-9, 9), st.integers(-9, 9), st.sampled_from([1, -2])),
)


KEYS = LEAVES | st.tuples(LEAVES, LEAVES)
DATA = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.sets(KEYS, max_size=4),
        st.frozensets(KEYS, max_size=4),
    ),
    max_leaves=12,
)
SHAPE = """
import datetime, decimal, fractions
from decimal import Decimal
from fractions import Fraction
inf = float("inf")
def shape(x):
    if isinstance(x, dict):
        return ("dict", [(shape(k), shape(v)) for k, v in x.items()])
    if isinstance(x, (set, frozenset)):
        return (type(x).__name__, sorted((shape(each) for each in x), key=repr))
    if isinstance(x, (list, tuple)):
        return (type(x).__name__, [shape(each) for each in x])
    return (type(x).__name__, repr(x))
"""


@given(value=DATA)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_data_comes_back_as_it_was(tmp_path: Path, value: Any) -> None:
    source = repr(value)
    with Sandbox("open") as box:
        run(box, f"{SHAPE}\nvalue = {source}")
        saved = box.save(tmp_path / "any.json")
        then = run(box, "print(ascii(shape(value)))")
    with Sandbox.load(tmp_path / "any.json", "open") as box:
        assert saved.left_out == box.restored.left_out == ()
        assert run(box, "print(ascii(shape(value)))") == then


# --- limits and files ----------------------------------------------------------------------------------------------


def test_what_is_too_large_stays_behind_alone(path: Path) -> None:
    with Sandbox() as box:
        run(
            box, "filling = 'y' * 200_000\nbig = 'x' * 1_000_000\nrows = [[n] for n in range(1_000_000)]\nsmall = [1]\n"
        )
        saved = box.save(path, max_bytes=300_000)

    assert {each.name: "too large" in each.reason for each in saved.left_out} == {"big": True, "rows": True}
    assert [each.name for each in saved.variables] == ["small", "filling"]
    assert all(each.reason.startswith("it is too large") for each in saved.left_out)
    assert path.stat().st_size < 300_000


def test_nothing_of_a_killed_or_refused_save_is_left(tmp_path: Path, path: Path) -> None:
    with Sandbox(limits=Limits(wall_s=30)) as box:
        run(box, "rows = [[n] for n in range(300_000)]")
        with pytest.raises(StateNotSaved, match="longer than"):
            box.save(path, wall_s=0.01)
        with pytest.raises(StateNotSaved, match="nowhere"):
            box.save(tmp_path / "nowhere" / "state.json")
        with pytest.raises(ConfigError):
            box.save(path, max_bytes=1)

        assert list(tmp_path.iterdir()) == []
        assert run(box, "print(len(rows))") == "300000\n"
        assert no_strays(box)


def test_words_can_be_taken_out_before_they_are_written(path: Path) -> None:
    with Sandbox() as box:
        run(box, "key = 'sk-secret-value'\ndef f(): return 'sk-secret-value'\nraw = b'sk-secret-value'")
        box.save(path, clean=lambda text: text.replace("sk-secret-value", "[removed]"))
    with Sandbox.load(path) as box:
        assert run(box, "print(key, f(), raw)") == "[removed] [removed] b'[removed]'\n"
    assert b"sk-secret" not in path.read_bytes()


BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "not JSON": lambda content: b"\x80\x04pickled",
    "another format": lambda content: content.replace(b'"sonde state"', b'"other state"'),
    "a newer version": lambda content: content.replace(b'"version":1', b'"version":2'),
    "a changed value": lambda content: content.replace(b"12345", b"54321"),
    "a changed checksum": lambda content: content.replace(b'"sha256":"', b'"sha256":"0', 1),
    "one byte more": lambda content: content + b"x",
    "a foreign field": lambda content: content.replace(b'"version":1', b'"version":1,"more":1'),
    "deep nesting": lambda content: b"[" * 100_000,
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=list(BROKEN))
def test_a_file_that_is_not_as_it_was_written_is_refused(path: Path, change: Callable[[bytes], bytes]) -> None:
    with Sandbox() as box:
        run(box, "value = 12345")
        box.save(path)
    content = path.read_bytes()
    path.write_bytes(change(content))
    assert path.read_bytes() != content

    with pytest.raises(StateRefused):
        Sandbox.load(path)
    with pytest.raises(StateRefused):
        saved_state(path)


def test_a_file_cut_off_anywhere_is_refused(path: Path) -> None:
    with Sandbox() as box:
        run(box, "value = [1, 'two']\ndef f(): return 1")
        box.save(path)
    content = path.read_bytes().rstrip()

    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(StateRefused):
            saved_state(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("nothing", "pipe", "."):
        with pytest.raises(StateRefused):
            Sandbox.load(tmp_path / name)


def test_the_message_of_a_newer_version_names_both(path: Path) -> None:
    path.write_bytes(b'{"format":"sonde state","version":7,"anything":{}}')

    with pytest.raises(StateRefused, match=r"version 7.*version 1"):
        saved_state(path)
