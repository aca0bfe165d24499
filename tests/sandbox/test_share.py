"""Shared text: one sealed copy, seen by code as a str-like view or a mapping."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from watching import kind, run

from sonde.errors import ConfigError
from sonde.sandbox import Limits, Sandbox
from sonde.sandbox.share import make_share
from sonde.sandbox.worker.views import Region, SharedText, SharedTexts


def view_of(text: str) -> SharedText:
    share = make_share("text", text, 1 << 30)
    return SharedText(Region(share.descriptor, share.size), *share.entries[""])


def test_code_reads_a_shared_text_without_copying_it() -> None:
    with Sandbox(limits=Limits(memory="64MiB")) as box:
        box.share("context", "needle in line one\n" + ("hay and straw " * 100 + "\n") * 100_000)
        result = box.execute(
            "print(len(context), context.find('straw'), context[0:6], context.count('needle'), 'pin' in context)\n"
            "n = sum(1 for line in context.lines() if line.startswith('hay and straw'))\nprint(n)",
            wall_s=60,
        )

        assert result.stdout == "140100019 27 needle 1 False\n100000\n"
        assert result.usage.memory_bytes < 60_000_000


def test_a_file_is_copied_when_it_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text("first")
    with Sandbox() as box:
        box.share("log", path)
        path.unlink()

        assert run(box, "print(str(log))") == "first\n"


def test_a_mapping_decodes_one_text_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("déjà vu")
    with Sandbox() as box:
        box.share("docs", {"a": tmp_path / "a.txt", "b": "plain", "empty": ""})

        assert run(box, "print(docs['a'], len(docs), sorted(docs), docs.get('zzz'), docs['empty'] == '')") == (
            "déjà vu 3 ['a', 'b', 'empty'] None True\n"
        )
        assert run(box, "print([k for k, v in docs.items() if 'vu' in v], docs.size('a'), docs.view('b')[1:3])") == (
            "['a'] 9 la\n"
        )


def test_code_that_takes_the_view_for_a_str_mostly_works() -> None:
    with Sandbox() as box:
        box.share("context", '{"a": [1, 22]}')
        code = (
            "import re, json\nprint(isinstance(context, str), re.findall(r'\\d+', context), json.loads(context)['a'])\n"
            "print(re.sub('[^a]', '', string=context), context.split(':')[0], json.dumps(str(context))[:4])\n"
            "print([m.start() for m in re.finditer('2', context)], f'{context}'[:3], ''.join(context)[:3])"
        )

        assert run(box, code) == 'True [\'1\', \'22\'] [1, 22]\na {"a" "{\\"\n[10, 11] {"a {"a\n'


def test_re_works_on_a_slice_and_on_str() -> None:
    with Sandbox() as box:
        box.share("context", "a1 b22 c333")

        assert run(box, "import re\nprint(re.findall(r'\\d+', str(context)), re.search('b', context[2:]).start())") == (
            "['1', '22', '333'] 1\n"
        )


def test_a_share_added_later_is_there_in_the_next_turn_and_after_a_rollback() -> None:
    with Sandbox() as box:
        run(box, "x = 1")
        box.share("context", "late")
        run(box, "print(context[:2])")
        box.rollback(1)

        assert run(box, "print(str(context), x)") == "late 1\n"


def test_a_share_survives_a_killed_turn() -> None:
    with Sandbox() as box:
        box.share("context", "here")
        box.execute("while True: pass", wall_s=0.2)

        assert run(box, "print(str(context))") == "here\n"


def test_writing_to_the_shared_memory_is_not_possible() -> None:
    with Sandbox("open") as box:
        box.share("context", "sealed")
        attack = "import os, mmap\nfor fd in range(4, 120):\n    try: os.pwrite(fd, b'X', 0)\n    except OSError: pass"
        box.execute(attack)
        box.execute("context._map[0] = 88")

        assert run(box, "print(str(context))") == "sealed\n"


def test_a_shared_text_can_be_passed_to_the_host_and_be_final() -> None:
    with Sandbox(host=lambda name, args: len(args[0])) as box:
        box.share("context", "twelve chars")

        assert run(box, "print(ask(context))") == "12\n"
        final = box.execute("FINAL(context)").final
        assert final is not None and final.value == "twelve chars"


def test_an_injected_value_is_an_ordinary_variable() -> None:
    with Sandbox() as box:
        box.inject("rows", [{"id": 1, "raw": b"\x00"}])
        box.execute("while True: pass", wall_s=0.2)

        assert run(box, "rows[0]['id'] += 1\nprint(rows)") == "[{'id': 2, 'raw': b'\\x00'}]\n"
        assert run(box, "print(rows[0]['id'])") == "2\n"


def test_a_big_injected_value_arrives() -> None:
    with Sandbox() as box:
        box.inject("rows", [{"n": n, "s": str(n)} for n in range(200_000)])

        assert run(box, "print(len(rows), rows[-1])") == "200000 {'n': 199999, 's': '199999'}\n"


def test_a_context_over_the_limit_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(b"x" * 2_000_000)
    with Sandbox(limits=Limits(shared_bytes=1_000_000)) as box:
        run(box, "x = 1")
        for content in (path, "x" * 2_000_000, {"a": "x" * 600_000, "b": "x" * 600_000}):
            with pytest.raises(ConfigError, match="shared_bytes"):
                box.share("context", content)
        box.share("context", "fits")

        assert run(box, "print(x, str(context))") == "1 fits\n"


@pytest.mark.parametrize(
    "content", [b"caf\xe9", b"ok \xc3", b"x" * 65535 + b"\xc3\x28", "\ud800", {"a": b"\xff"}, 3, {"a": 3}, {1: "a"}]
)
def test_what_is_not_utf8_text_is_refused(content: Any) -> None:
    with Sandbox() as box, pytest.raises(ConfigError):
        box.share("context", content)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with Sandbox() as box:
        with pytest.raises(ConfigError, match="No such file"):
            box.share("context", tmp_path / "gone")
        with pytest.raises(ConfigError, match="Is a directory"):
            box.share("context", tmp_path)


def test_refused_shares_leave_no_descriptor_open(tmp_path: Path) -> None:
    with Sandbox() as box:
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(5):
            with pytest.raises(ConfigError):
                box.share("context", b"\xff")

        assert len(list(Path("/proc/self/fd").iterdir())) == before


wide = st.text(alphabet="ab\né€\N{GRINNING FACE}", max_size=30)
OPERATIONS: dict[str, Callable[[Any, str, int, int], object]] = {
    "len": lambda t, part, a, b: len(t),
    "slice": lambda t, part, a, b: t[a:b],
    "step": lambda t, part, a, b: t[a:b:3],
    "find": lambda t, part, a, b: t.find(part, a, b),
    "rfind": lambda t, part, a, b: t.rfind(part, a, b),
    "count": lambda t, part, a, b: t.count(part, a, b),
    "in": lambda t, part, a, b: part in t,
    "starts": lambda t, part, a, b: t.startswith(part),
    "ends": lambda t, part, a, b: t.endswith(part),
    "str": lambda t, part, a, b: str(t),
    "chars": lambda t, part, a, b: list(t)[:50],
    "upper": lambda t, part, a, b: t.upper(),
    "equal": lambda t, part, a, b: t == part,
    "plus": lambda t, part, a, b: t + part,
    "hash": lambda t, part, a, b: hash(t),
}


positions = st.integers(-5000, 200_000)
long_texts = st.tuples(st.integers(0, 6), wide, st.integers(0, 4) | st.just(4500)).map(
    lambda parts: "x" * parts[0] + parts[1] * parts[2]
)


@settings(max_examples=150, deadline=None)
@given(long_texts, wide, positions, positions)
def test_a_view_answers_as_str_does(text: str, part: str, a: int, b: int) -> None:
    view = view_of(text)
    for name, operation in OPERATIONS.items():
        assert operation(view, part, a, b) == operation(text, part, a, b), name


@settings(max_examples=50, deadline=None)
@given(st.integers(65520, 65552), st.integers(0, 70_000))
def test_characters_across_a_block_boundary_are_whole(lead: int, at: int) -> None:
    text = "x" * lead + "€\N{GRINNING FACE}é" * 30_000
    view = view_of(text)

    assert view[at : at + 9] == text[at : at + 9]
    assert view.find("é", at) == text.find("é", at)


@given(st.text(alphabet="ab\r\né", max_size=60))
def test_lines_are_those_of_the_text(text: str) -> None:
    expected = [line.rstrip("\r") for line in text.split("\n")]
    if expected[-1] == "" and not text.endswith("\r"):
        expected.pop()

    assert list(view_of(text).lines()) == expected


@given(st.dictionaries(wide, wide, max_size=6))
def test_a_mapping_answers_as_dict_does(texts: dict[str, str]) -> None:
    share = make_share("texts", texts, 1 << 20)
    view = SharedTexts(Region(share.descriptor, share.size), share.entries)

    assert dict(view) == texts and list(view) == list(texts)


@pytest.mark.parametrize("index", [0, -1, 2])
def test_a_single_character_is_found_by_index(index: int) -> None:
    assert view_of("aé€")[index] == "aé€"[index]


def test_an_index_beyond_the_text_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        view_of("abc")[3]


def test_a_view_says_what_it_cannot_do() -> None:
    with Sandbox() as box:
        box.share("context", "abc")

        assert kind(box.execute("context.read()")) == "error"
        assert "shared text of 3 characters" in run(box, "print(repr(context))")


@pytest.mark.parametrize(
    "text", ["a\n" * 900_000 + "end", "x" * 3_000_000, ("y" * 1_500_000 + "\n") * 2, "\n" * 2_000_000]
)
def test_lines_of_a_long_text_are_read_in_pieces_and_come_out_whole(text: str) -> None:
    assert list(view_of(text).lines()) == text.removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    "expression",
    [
        "text.startswith('wö', 6)",
        "text.startswith('hé', 0, 1)",
        "text.startswith('', 10**6)",
        "text.endswith('end', 5)",
        "text.endswith('d', 0, 11)",
        "text.endswith(('x', 'd'), -3)",
        "text.endswith('', 10**6)",
        "text < 'z', text >= 'a', 'z' > text, text <= text, sorted([text, 'a'])[0]",
        "len(text * 3)",
    ],
)
def test_a_shared_text_answers_as_a_str_does(expression: str) -> None:
    whole = "héllo wörld\n" * 3000 + "end"
    with Sandbox() as box:
        box.share("text", whole)

        assert run(box, f"print(({expression}))") == f"{eval(expression, {'text': whole})}\n"


def test_where_only_a_plain_str_will_do_the_code_is_told_how_to_get_one() -> None:
    with Sandbox() as box:
        box.share("text", "a1b2")
        fault = box.execute("import re\nre.compile('[0-9]').findall(text)").fault

        assert fault is not None and fault.hint is not None and "str(text)" in fault.hint
        assert run(box, "import re\nprint(re.compile('[0-9]').findall(str(text)))") == "['1', '2']\n"
