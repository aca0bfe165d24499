"""Attacks on saved states: hostile objects while saving, a hostile worker that answers, and forged files while loading."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from watching import RAW, no_strays, run

from sonde.sandbox import Args, Limits, Sandbox, StateNotSaved, StateRefused, saved_state

TOUCHY = """
touched = []
def touch(name):
    def method(self, *args, **named):
        touched.append(name)
        return object.__getattribute__(self, "__dict__") if name == "__getattribute__" else 1
    return method
SPECIAL = ["__reduce__", "__reduce_ex__", "__getstate__", "__getattribute__", "__getattr__", "__eq__", "__ne__", "__hash__",
           "__repr__", "__str__", "__len__", "__iter__", "__bool__", "__int__", "__index__", "__float__", "__copy__",
           "__deepcopy__", "__del__", "__getnewargs__", "__sizeof__", "__format__", "__contains__", "__fspath__"]
class Meta(type):
    def __getattribute__(cls, name):
        touched.append("Meta." + name)
        return type.__getattribute__(cls, name)
    def __instancecheck__(cls, value): touched.append("instancecheck")
    def __subclasscheck__(cls, value): touched.append("subclasscheck")
    def __eq__(cls, other): touched.append("Meta.__eq__"); return True
    def __hash__(cls): touched.append("Meta.__hash__"); return 1
def make(base, name):
    body = {each: touch(each) for each in SPECIAL if not (base is not object and each in ("__hash__", "__eq__", "__del__"))}
    body["__class__"] = property(touch("__class__"))
    body["__dict__"] = property(touch("__dict__"))
    return type.__new__(Meta, name, (base,), body)
things = [make(base, "T").__new__(make(base, "T")) for base in (object, dict, list, set, int, str, bytes, tuple, float)]
thing, words, items, group, number, text, raw, pair, real = things
class Own(metaclass=Meta):
    def __init__(self): self.x = 1
    def __getattribute__(self, name): touched.append(name); return 1
    def __reduce__(self): touched.append("reduce")
    def __eq__(self, other): touched.append("eq"); return True
    def __hash__(self): touched.append("hash"); return 1
own = Own()
keyed = {1: own}
touched.clear()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def test_saving_calls_no_method_that_the_code_defined(path: Path) -> None:
    with Sandbox("open") as box:
        assert box.execute(TOUCHY).ok
        run(box, "witness = touched; del touched; touched = witness; touched.clear()")  # saved last
        saved = box.save(path)
    with Sandbox.load(path, "open") as box:
        assert run(box, "print(witness)") == "[]\n"

    lost = {each.name for each in saved.left_out}
    assert {"thing", "words", "items", "group", "number", "text", "raw", "pair", "real"} <= lost


ANSWERS = {
    "nothing": "None",
    "text": "'x'",
    "a number for the graph": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': 1}",
    "no JSON": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'['}",
    "no UTF-8": '{"variables": [], "left_out": [], "definitions": [], "graph": b\'"\\xff"\'}',
    "two values": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'1 2'}",
    "deep": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'[' * 100_000}",
    "more than asked for": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'{}', 'path': '/etc/passwd'}",
    "larger than allowed": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'[' + b'1,' * 300_000 + b'1]'}",
    "larger than a frame": "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'1' * (70 << 20)}",
    "an exception": "1 / 0",
    "an exit": "os._exit(0)",
    "a hang": "[0 for _ in iter(int, 1)]",
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_a_hostile_worker_saves_nothing_and_loses_nothing(path: Path, answer: str) -> None:
    code = f"import sys, os\nsys.modules['worker.saving'].Saving.run = lambda self: {answer}\nkept = 1"
    with Sandbox("open", limits=Limits(wall_s=5)) as box:
        run(box, code)
        with pytest.raises(StateNotSaved):
            box.save(path, max_bytes=500_000, wall_s=1.0)

        assert not path.exists()
        assert run(box, "print(kept)") == "1\n"
        assert no_strays(box)


def test_a_forged_frame_instead_of_a_state_is_refused(path: Path) -> None:
    code = (
        f"{RAW}\nsys.modules['worker.saving'].Saving.run = lambda self: os.write(3, frame(2, 1, DONE)) and os._exit(0)"
    )
    with Sandbox("open") as box:
        run(box, code)
        with pytest.raises(StateNotSaved):
            box.save(path)

        assert run(box, "print('here')") == "here\n"


# --- forged files --------------------------------------------------------------------------------------------------


def forge(path: Path, *, definitions: Any = (), **graph: Any) -> Path:
    """A file whose checksum fits, whatever it holds."""
    whole = {"nodes": [], "names": [], "attributes": [], "dice": [None, None]} | graph
    body = json.dumps(
        {"variables": [], "left_out": [], "definitions": definitions, "graph": whole}, separators=(",", ":")
    )
    checksum = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"format":"sonde state","version":1,"sha256":"{checksum}","body":{body}}}')
    return path


def test_a_forged_name_does_not_replace_what_is_fixed(path: Path) -> None:
    def serve(name: str, args: Args) -> Any:
        return "served"

    names = [["__builtins__", 1], ["FINAL", 2], ["tool", 3], ["a b", 4], ["fine", 5], [6, 6]]
    forge(path, names=names)
    with Sandbox.load(path, host=serve, functions=["tool"]) as box:
        assert box.restored.names == ("fine",)
        assert run(box, "print(tool(), len([1]), fine)") == "served 1 5\n"
        assert box.execute("FINAL(9)").final is not None


@pytest.mark.parametrize("profile", ["strict", "analysis", "assign-only"])
def test_a_forged_import_meets_the_rules_of_the_profile(path: Path, profile: str) -> None:
    nodes: list[Any] = [
        [0, "module", "os", []],
        [1, "import", ["os", "system"], []],
        [2, "import", ["builtins", "__import__"], []],
        [3, "import", ["json", "codecs"], []],
        [4, "host", "__builtins__", []],
        [5, "definition", 9, []],
        [6, "list", None, [[1]]],
    ]
    forge(path, nodes=nodes, names=[[f"x{n}", [n]] for n in range(7)])
    with Sandbox.load(path, profile) as box:
        assert box.restored.names == ()
        assert len(box.restored.left_out) == 7


def test_a_flood_of_names_is_refused_before_it_is_taken_apart(path: Path) -> None:
    forge(path, definitions=[[n, "f", "x" * 80, False] for n in range(100_000)])

    with pytest.raises(StateRefused, match="names and sources"):
        saved_state(path)


@pytest.fixture
def deep_stack() -> Iterator[None]:
    """A program may allow itself more recursion than its stack has room for; a file must not be able to use that."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("deep_stack")
def test_a_deep_file_or_answer_does_not_take_the_stack_of_a_program_that_raised_its_limit(path: Path) -> None:
    deep = "[" * 400_000 + "]" * 400_000
    path.write_text(f'{{"format":"sonde state","version":1,"sha256":"","body":{deep}}}')
    with pytest.raises(StateRefused, match="nested"):
        saved_state(path)
    answer = "{'variables': [], 'left_out': [], 'definitions': [], 'graph': b'[' * 400_000 + b']' * 400_000}"
    with Sandbox("open") as box:
        run(box, f"import sys\nsys.modules['worker.saving'].Saving.run = lambda self: {answer}")
        with pytest.raises(StateNotSaved, match="nested"):
            box.save(path.with_name("other.json"))


def test_the_gate_reads_forged_definitions(path: Path) -> None:
    definitions = [
        [0, "escape", "def escape():\n    return ().__class__", False],
        [1, "fine", "def fine(n):\n    return n + 1", False],
    ]
    nodes: list[Any] = [[0, "definition", 0, []], [1, "definition", 1, []]]
    forge(path, definitions=definitions, nodes=nodes, names=[["escape", [0]], ["fine", [1]]])
    with Sandbox.load(path, "strict") as box:
        assert run(box, "print(fine(1))") == "2\n"
        assert [each.name for each in box.restored.left_out] == ["escape"]
        assert "`.__class__` is not allowed" in box.restored.left_out[0].reason


@pytest.mark.parametrize("profile", ["open", "analysis", "assign-only"])
def test_a_definition_calls_no_host_while_it_is_restored(path: Path, profile: str) -> None:
    called: list[str] = []

    def serve(name: str, args: Args) -> Any:
        called.append(name)

    sources = ["x = tool()", "class x:\n    y = tool()", "def x(y=tool()): pass"]
    definitions = [[n, "x", source, False] for n, source in enumerate(sources)]
    nodes: list[Any] = [[n, "definition", n, []] for n in range(3)]
    forge(path, definitions=definitions, nodes=nodes, names=[[f"x{n}", [n]] for n in range(3)])
    with Sandbox.load(path, profile, host=serve, functions=["tool"]) as box:
        assert box.restored.names == ()
        assert run(box, "print(1)") == "1\n"
    assert called == []


LETHAL = {
    "a loop": "class x:\n    while True: pass",
    "an exit": "class x:\n    import os\n    os._exit(0)",
    "a violation": "class x:\n    import ctypes\n    ctypes.CDLL(None).fork()",
    "memory": "class x:\n    y = b'1' * (1 << 34)\n    z = [y] * (1 << 34)",
    "a finish": "class x:\n    FINAL({'names': ['a'], 'problems': [['b', 'c']]})",
}


@pytest.mark.parametrize("source", LETHAL.values(), ids=list(LETHAL))
def test_a_lethal_definition_costs_the_load_at_most(path: Path, source: str) -> None:
    forge(path, definitions=[[0, "x", source, False]], nodes=[[0, "definition", 0, []]], names=[["x", [0]]])
    try:
        with Sandbox.load(path, "open", limits=Limits(wall_s=0.5, memory="128MiB")) as box:
            assert "x" not in box.restored.names
            assert run(box, "print(1)") == "1\n"
    except StateRefused:
        return


ITEM: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.integers(-3, 9), st.text(max_size=3), st.lists(st.integers(-1, 6), max_size=2), st.just({"i": "0xz"})
)
KINDS = st.sampled_from(
    (
        *("list", "dict", "set", "tuple", "frozenset", "deque", "defaultdict", "instance", "partial", "pattern"),
        *("datetime", "namedtuple", "namedtuple class", "definition", "import", "module", "host", "str", "bytes"),
        *("range", "no such kind"),
    )
)
NODE = st.tuples(st.integers(0, 6), KINDS, ITEM, st.lists(ITEM, max_size=4))


@given(
    nodes=st.lists(NODE | ITEM, max_size=6),
    names=st.lists(st.tuples(st.text(max_size=3), ITEM) | ITEM, max_size=4),
    attributes=st.lists(st.tuples(st.integers(0, 2), st.text(max_size=3), ITEM), max_size=2),
    dice=ITEM | st.just([None, None]),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_forged_graph_is_restored_in_part_or_refused(
    tmp_path: Path, nodes: Any, names: Any, attributes: Any, dice: Any
) -> None:
    path = forge(
        tmp_path / "forged.json",
        definitions=[[0, "f", "def f(): return 1", False], [1, "C", "class C: pass", False]],
        nodes=nodes,
        names=names,
        attributes=attributes,
        dice=dice,
    )
    try:
        with Sandbox.load(path) as box:
            assert run(box, "print(1)") == "1\n"
    except StateRefused:
        return


@given(content=st.binary(max_size=300) | st.text(max_size=300).map(lambda text: json.dumps(text).encode()))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_refused_as_a_state(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "any").write_bytes(content)

    with pytest.raises(StateRefused):
        saved_state(tmp_path / "any")
