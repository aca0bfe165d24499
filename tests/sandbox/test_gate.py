from __future__ import annotations

import ast
import threading

import pytest
from hypothesis import given, settings, strategies as st
from inline_snapshot import snapshot
from soup import FRAGMENTS

from sonde.core.source import MAX_SOURCE_CHARS, Refusal
from sonde.sandbox import Sandbox
from sonde.sandbox.gate import MAX_REFUSALS, check
from sonde.sandbox.policy import PROFILES, SAFE_NODES

TOOLS = ("grep", "read_file")


def rules_broken(code: str, profile: str = "strict") -> set[str]:
    return {refusal.rule for refusal in check(code, profile, TOOLS)}


USEFUL = """
rows = [{"name": "a", "n": 1}, {"name": "b", "n": 2}]
def weight(row):
    return row["n"] * 2
total: int = 0
for index, row in enumerate(sorted(rows, key=weight)):
    if isinstance(row, dict) and row.get("n", 0) > 1:
        total += row["n"]
    else:
        continue
try:
    n = int("x")
except (ValueError, KeyError) as error:
    print(repr(error))
finally:
    n = 0
names = {row["name"].upper() for row in rows}
pairs = list(zip(*[[1, 2], [3, 4]]))
text = f"{total:>{5}} {names!r} {'yes' if total else 'no'}"
while (n := n + 1) < 3:
    pass
hits = grep("def ", max_results=20)
FINAL({"text": text, "hits": hits})
"""


@pytest.mark.requirement(38)
def test_ordinary_analysis_code_passes_strict() -> None:
    assert check(USEFUL, "strict", TOOLS) == []


REFUSED = [
    ("import os", "syntax:Import"),
    ("from os import environ", "syntax:ImportFrom"),
    ("class A:\n    pass", "syntax:ClassDef"),
    ("with f() as g:\n    pass", "syntax:With"),
    ("async def f():\n    pass", "syntax:AsyncFunctionDef"),
    ("f = lambda: 1", "syntax:Lambda"),
    ("def f():\n    global x", "syntax:Global"),
    ("def f():\n    x = 1\n    def g():\n        nonlocal x", "syntax:Nonlocal"),
    ("del x", "syntax:Delete"),
    ("raise ValueError", "syntax:Raise"),
    ("assert x", "syntax:Assert"),
    ("def f():\n    yield 1", "syntax:Yield"),
    ("def f():\n    yield from x", "syntax:YieldFrom"),
    ("match x:\n    case str(__class__=c):\n        pass", "syntax:Match"),
    ("try:\n    pass\nexcept* ValueError:\n    pass", "syntax:TryStar"),
    ("x.__class__", "dunder"),
    ("__import__('os')", "dunder"),
    ("ｘ = _＿class_＿", "dunder"),
    ("def f(__a): pass", "dunder"),
    ("f = 1\nf(__class__=1)", "dunder"),
    ("try:\n    pass\nexcept ValueError as __e:\n    pass", "dunder"),
    ("'{0.__class__}'.format(1)", "format"),
    ("'{a.__class__}'.format_map(d)", "format"),
    ("f'{print.__self__}'", "dunder"),
    ("f'{x.gi_frame}'", "attribute"),
    ("x.y = 1", "attribute"),
    ("x.mro()", "attribute"),
    ("k = text.join", "method-value"),
    ("sorted(words, key=text.index)", "method-value"),
    ("eval('1')", "call"),
    ("open('/etc/passwd')", "call"),
    ("unheard_of(1)", "call"),
    ("fs[0](1)", "call-by-name"),
    ("print(1)(2)", "call-by-name"),
    ("try:\n    pass\nexcept:\n    pass", "except"),
    ("try:\n    pass\nexcept BaseException:\n    pass", "except"),
    ("try:\n    pass\nexcept (ValueError, SystemExit):\n    pass", "except"),
    ("try:\n    pass\nexcept errors[0]:\n    pass", "except"),
    ("try:\n    pass\nexcept ():\n    pass", "except"),
    ("for i in x:\n    try:\n        FINAL(1)\n    finally:\n        continue", "finally"),
    ("def f():\n    try:\n        FINAL(1)\n    finally:\n        return 1", "finally"),
    ("@print\ndef f(): pass", "decorator"),
    ("FINAL = print", "shadow"),
    ("def grep(x): return x", "shadow"),
    ("for read_file in x:\n    pass", "shadow"),
    ("def f():\n    return [x async for x in y]", "syntax:AsyncFor"),
    ("try:\n    pass\nexcept ValueError as grep:\n    pass", "shadow"),
]


@pytest.mark.requirement(38)
@pytest.mark.parametrize(("code", "rule"), REFUSED)
def test_strict_refuses_what_is_not_on_a_list(code: str, rule: str) -> None:
    assert rule in rules_broken(code)


def test_open_and_analysis_have_no_rules_but_valid_python() -> None:
    code = "import os\nprint(os.environ.__class__)"

    assert check(code, "open", TOOLS) == []
    assert check(code, "analysis", TOOLS) == []
    assert rules_broken("x = = 1", "open") == {"syntax"}


def test_assign_only_reports_what_interception_refuses() -> None:
    assert check("hits = grep('x')", "assign-only", TOOLS) == []
    assert rules_broken("print(grep('x'))", "assign-only") == {"nested"}


def test_functions_of_earlier_turns_may_be_called_when_they_are_named() -> None:
    assert rules_broken("helper(1)") == {"call"}
    assert check("helper(1)", "strict", TOOLS, defined=["helper"]) == []


def test_without_a_list_of_functions_an_unknown_call_goes_to_the_host_but_a_builtin_does_not() -> None:
    assert check("llm_query('hi')", "strict", None) == []
    assert [refusal.rule for refusal in check("eval('hi')", "strict", None)] == ["call"]


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("x" * (MAX_SOURCE_CHARS + 1), "too-long"),
        ("x = 1\ny = '\ud800'", "bad-text"),
        ("-" * 100_000 + "1", "too-deep"),
        ("x" + ".a" * 100_000, "too-deep"),
        ("(" * 1_000, "syntax"),
        ("x = f'" + "{a}" * 150_000 + "'", "too-long"),
        ("x = f'''" + "{a}\n" * 100_000 + "'''", "too-long"),
        ("x = f'" + "{a}\\\n" * 90_000 + "'", "too-long"),
        ("x = 'abc", "syntax"),
    ],
)
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_unreadable_code_is_one_clear_refusal_in_every_profile(code: str, rule: str, profile: str) -> None:
    [refusal] = check(code, profile, TOOLS)

    assert refusal.rule == rule
    assert refusal.reason and refusal.example


def test_null_bytes_are_refused_with_their_line() -> None:
    [refusal] = check("x = 1\ny = '\0'", "open", TOOLS)

    assert refusal.rule in {"bad-text", "syntax"}  # CPython changed its mind about which error this is


def test_a_text_that_lies_about_itself_is_read_as_what_it_is() -> None:
    class Liar(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "x = 1"

        def replace(self, *_: object) -> str:
            return "x = 1"

        def __len__(self) -> int:
            return 1

    assert rules_broken(Liar("import os")) == {"syntax:Import"}


def test_refusals_come_in_the_order_of_the_lines_and_not_too_many() -> None:
    found = check("\n".join(["import os", "x.y"] * 50), "strict", TOOLS)

    assert [refusal.line for refusal in found] == list(range(1, MAX_REFUSALS + 1))


@pytest.mark.requirement(38)
def test_every_example_is_itself_accepted_and_runs_without_any_tool() -> None:
    data = {
        "text": "5",
        "s": "5",
        "name": "a",
        "count": 1,
        "kind": "error",
        "value": [1],
        "values": [1],
        "lines": ["a"],
    }
    data |= {"row": {"name": "a", "key": 1}, "rows": [], "pairs": [("a", 1)]}
    examples = {refusal.example for code, _ in REFUSED for refusal in check(code, "strict", TOOLS)}

    with Sandbox(profile="strict", functions=()) as box:
        for example in sorted(examples):
            for name, value in data.items():
                box.inject(name, value)
            assert (box.execute(example).fault, example) == (None, example)


def test_warnings_of_the_parser_do_not_reach_the_parent(recwarn: pytest.WarningsRecorder) -> None:
    threads = [threading.Thread(target=check, args=(r'x = "\d"; y = 1 is 1', "strict", TOOLS)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert not recwarn.list


def test_the_texts_for_the_model() -> None:
    code = "import os\nx = row.name\nprint('{}'.format(x))\ntry:\n    n = int(x)\nexcept:\n    n = 0\nexec('n')"
    assert "\n".join(map(str, check(code, "strict", TOOLS))) == snapshot("""\
line 1: imports are not allowed; the builtins and the tools are all there is.
Instead, for example:
    total = sum(values)
line 2: `.name` is not allowed; only these methods are, as calls: add, append, clear, copy, count, difference, discard, endswith, extend, find, get, index, insert, intersection, isalnum, isalpha, isdigit, islower, isspace, issubset, issuperset, isupper, items, join, keys, lines, ljust, lower, lstrip, partition, pop, remove, removeprefix, removesuffix, replace, reverse, rfind, rjust, rpartition, rsplit, rstrip, setdefault, size, sort, split, splitlines, startswith, strip, title, union, update, upper, values, view, zfill.
Instead, for example:
    value = row["name"]
    parts = text.split(",")
line 3: `.format()` is not allowed; use an f-string.
Instead, for example:
    line = f"{name}: {count}"
line 6: `except` must name one of: ArithmeticError, AttributeError, Exception, IndexError, KeyError, LookupError, NameError, RuntimeError, ToolError, TypeError, ValueError, ZeroDivisionError.
Instead, for example:
    try:
        n = int(text)
    except ValueError:
        n = 0
line 8: `exec` is not available here; you can call FINAL, FINAL_VAR, SUBMIT, abs, all, any, bool, dict, enumerate, filter, float, grep, hasattr, int, isinstance, len, list, map, max, min, print, range, read_file, repr, reversed, round, set, set_final, sorted, str, sum, tuple, zip.
Instead, for example:
    print(len(values))\
""")  # noqa: E501 # the model reads whole lists


@settings(max_examples=200, deadline=None)
@given(st.text(), st.sampled_from(sorted(PROFILES)))
def test_any_text_gets_an_answer(code: str, profile: str) -> None:
    assert all(isinstance(one, Refusal) and str(one) for one in check(code, profile, TOOLS))


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join), st.sampled_from(sorted(PROFILES)))
def test_any_soup_of_python_gets_an_answer(code: str, profile: str) -> None:
    found = check(code, profile, TOOLS)

    assert len(found) <= MAX_REFUSALS
    if not found and profile == "strict":
        assert {type(node).__name__ for node in ast.walk(ast.parse(code))} <= SAFE_NODES
