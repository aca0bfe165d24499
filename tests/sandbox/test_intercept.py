from __future__ import annotations

import ast
import marshal

import pytest
from hypothesis import given, settings, strategies as st
from inline_snapshot import snapshot
from soup import FRAGMENTS

from sonde.errors import ToolFault
from sonde.sandbox.intercept import (
    MAX_RESULT_BYTES,
    CallbackSite,
    InjectedNames,
    cut_result,
    extract_tool_calls,
    rewrite,
)

NAV = ("nav_outline", "nav_ls", "nav_read", "nav_search", "nav_info")


def rules_broken(code: str) -> list[str]:
    sites, errors = extract_tool_calls(code, NAV)
    assert sites == []
    return [error.rule for error in errors]


def rewritten(code: str, session_id: str = "0123456789") -> str:
    sites, errors = extract_tool_calls(code, NAV)
    assert errors == []
    return rewrite(code, sites, InjectedNames(session_id)).code


@pytest.mark.requirement(15)
@pytest.mark.requirement(31)
@pytest.mark.parametrize("tool", NAV)
def test_an_assigned_call_is_lifted(tool: str) -> None:
    sites, errors = extract_tool_calls(f"x = {tool}()", NAV)

    assert errors == []
    assert sites == [CallbackSite(lineno=1, col_offset=4, target_name="x", tool_name=tool, args=(), kwargs={})]


@pytest.mark.requirement(16)
@pytest.mark.requirement(19)
def test_literal_arguments_are_read_without_evaluation() -> None:
    [site], errors = extract_tool_calls('x = nav_read("A.b", -1, 2.5, True, None, chunk_index=3)', NAV)

    assert errors == []
    assert site.args == ("A.b", -1, 2.5, True, None)
    assert site.kwargs == {"chunk_index": 3}


@pytest.mark.requirement(17)
@pytest.mark.requirement(31)
@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("nav_info()", "bare"),
        ("print(nav_info())", "nested"),
        ("x = nav_info() + 1", "nested"),
        ("x = nav_info()['a']", "nested"),
        ("x = nav_info() if y else 0", "nested"),
        ("x = (y := nav_info())", "nested"),
        ("x = f'{nav_info()}'", "nested"),
        ("return_value = str(nav_info())", "nested"),
        ("x = y = nav_info()", "chained"),
        ("a, b = nav_info()", "unpacking"),
        ("[a, *b] = nav_info()", "unpacking"),
        ("x[0] = nav_info()", "target"),
        ("x.y = nav_info()", "target"),
        ("x: dict = nav_info()", "target"),
        ("x += nav_info()", "target"),
        ("x = [nav_read('a') for i in y]", "nested-block"),
        ("x = {nav_read('a') for i in y}", "nested-block"),
        ("x = {1: nav_read('a') for i in y}", "nested-block"),
        ("x = list(nav_read('a') for i in y)", "nested-block"),
        ("f = lambda: nav_info()", "nested-block"),
        ("def f():\n    x = nav_info()", "nested-block"),
        ("async def f():\n    x = nav_info()", "nested-block"),
        ("class A:\n    x = nav_info()", "nested-block"),
        ("if y:\n    x = nav_info()", "nested-block"),
        ("for i in y:\n    x = nav_info()", "nested-block"),
        ("while y:\n    x = nav_info()", "nested-block"),
        ("try:\n    x = nav_info()\nfinally:\n    pass", "nested-block"),
        ("with y:\n    x = nav_info()", "nested-block"),
        ("match y:\n    case 1:\n        x = nav_info()", "nested-block"),
        ("x = nav_read(name)", "not-literal"),
        ("x = nav_read('a' + 'b')", "not-literal"),
        ("x = nav_read(['a'])", "not-literal"),
        ("x = nav_read(b'a')", "not-literal"),
        ("x = nav_read(f'a')", "not-literal"),
        ("x = nav_read(1e999)", "not-literal"),
        ("x = nav_read('\\ud800')", "not-literal"),
        ("x = nav_read(chunk_index=n)", "not-literal"),
        ("x = nav_read(*names)", "unpacked"),
        ("x = nav_read(**options)", "unpacked"),
        ("x = nav_ls(scope='a', scope='b')", "repeated"),
        ("f = nav_info", "not-a-value"),
        ("x = list(map(nav_read, names))", "not-a-value"),
        ("nav_info = 1", "shadow"),
        ("def nav_info(): pass", "shadow"),
        ("import nav_info", "shadow"),
        ("import a as nav_info", "shadow"),
        ("def f(nav_info): pass", "shadow"),
        ("x = __rlm_icpt_01234567_0", "reserved"),
    ],
)
def test_every_other_use_of_a_tool_is_refused(code: str, rule: str) -> None:
    assert rules_broken(code) == [rule]


@pytest.mark.requirement(18)
def test_an_error_names_the_line_and_shows_a_call_that_works() -> None:
    _, [error] = extract_tool_calls("x = 1\n\nprint(nav_info())", NAV)

    assert error.line == 3
    assert extract_tool_calls(error.example, NAV)[1] == []


@pytest.mark.requirement(18)
def test_the_texts_for_the_model() -> None:
    code = "nav_info()\nif x:\n    y = nav_ls()\nz = nav_read(name)\nz = nav_read(**options)\nf = nav_ls"
    assert "\n".join(map(str, extract_tool_calls(code, NAV)[1])) == snapshot("""\
line 1: the result of `nav_info` is thrown away. Tool calls must be assigned to variables, one call to one name.
Instead, for example:
    result = nav_info()
    print(result)
line 3: `nav_ls` is called under `if`: it would run once, whatever happens there. Call it above, at the top level.
Instead, for example:
    result = nav_ls()
    print(result)
line 4: arguments of `nav_read` must be literals (text, numbers, True, False or None), not variables or expressions.
Instead, for example:
    result = nav_read("text")
    print(result)
line 5: `*` and `**` cannot be used in a call of `nav_read`: write each argument.
Instead, for example:
    result = nav_read("text")
    print(result)
line 6: `nav_ls` is a tool and can only be called.
Instead, for example:
    result = nav_ls()
    print(result)\
""")


@pytest.mark.requirement(23)
@pytest.mark.requirement("O12")
def test_two_calls_on_one_line_are_two_sites_in_source_order() -> None:
    code = "é = 'ü'; a = nav_read('x'); b = nav_read('y')\nc = nav_info()"
    sites, _ = extract_tool_calls(code, NAV)

    assert [(site.target_name, site.lineno) for site in sites] == [("a", 1), ("b", 1), ("c", 2)]
    assert len({site.key for site in sites}) == 3
    assert rewritten(code) == (
        "é = 'ü'; a = __rlm_icpt_01234567_0; b = __rlm_icpt_01234567_1\nc = __rlm_icpt_01234567_2"
    )


@pytest.mark.requirement(20)
def test_a_call_over_several_lines_keeps_the_lines_of_what_follows() -> None:
    code = rewritten("a = nav_read(\n    'x',\n    2,\n); b = 1\nc = missing")

    assert code.count("\n") == 4
    assert ast.parse(code).body[2].lineno == 5


@pytest.mark.requirement(21)
def test_names_count_from_zero_over_the_whole_session() -> None:
    names = InjectedNames("abcdef0123")
    sites, _ = extract_tool_calls("a = nav_info(); b = nav_info()", NAV)

    assert rewrite("a = nav_info(); b = nav_info()", sites, names).injected == (
        "__rlm_icpt_abcdef01_0",
        "__rlm_icpt_abcdef01_1",
    )
    assert names.take() == "__rlm_icpt_abcdef01_2"
    assert InjectedNames("run-1/x").take().isidentifier()


LINES = st.sampled_from(
    [
        "a = nav_info()",
        "b = nav_read('é', chunk_index=2)",
        "c = nav_ls(\n  'x'\n)",
        "d = 'nav_info()'",
        "if 1:\n    e = 'ü'",
    ]
)


@pytest.mark.requirement(20)
@given(st.lists(LINES, max_size=8), st.sampled_from(["\n", "\r\n", "\n\n# nav_info()\n"]))
def test_rewriting_round_trips_and_leaves_no_call(lines: list[str], newline: str) -> None:
    code = newline.join(lines)
    sites, errors = extract_tool_calls(code, NAV)
    result = rewrite(code, sites, InjectedNames("s"))
    tree = ast.parse(result.code)

    assert errors == []
    assert ast.dump(ast.parse(ast.unparse(tree))) == ast.dump(tree)
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    assert [n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in result.injected] == list(
        result.injected
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([*FRAGMENTS, "nav_info()", "x = nav_read('a')\n", "nav_ls", "__rlm_icpt_"]), max_size=12)
)
def test_any_soup_of_python_gets_an_answer(fragments: list[str]) -> None:
    code = "".join(fragments)
    sites, errors = extract_tool_calls(code, NAV)

    assert all(error.line >= 1 and str(error) for error in errors)
    if not errors:
        ast.parse(rewrite(code, sites, InjectedNames("s")).code)


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_any_text_gets_an_answer(code: str) -> None:
    extract_tool_calls(code, NAV)


@pytest.mark.requirement(22)
@pytest.mark.parametrize(
    "value", ["é" * 800_000, b"x" * 2_000_000, ["row " * 100] * 9_000, {"a": {"b": ["x" * 2_000_000]}}]
)
def test_a_result_over_a_megabyte_is_cut_with_a_warning(value: object) -> None:
    kept, warning = cut_result(value)

    assert MAX_RESULT_BYTES * 0.5 < len(marshal.dumps(kept, 2)) <= MAX_RESULT_BYTES
    assert type(kept) is type(value)
    assert warning is not None and "1,000,000" in warning


@pytest.mark.requirement(22)
def test_a_small_result_is_left_alone_and_one_that_is_no_data_is_refused() -> None:
    value = {"rows": [1, None, "x", b"y"]}

    assert cut_result(value) == (value, None)
    with pytest.raises(ToolFault):
        cut_result(lambda: 1)


@given(
    st.recursive(
        st.text() | st.integers() | st.binary(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_whatever_is_cut_fits(value: object) -> None:
    kept, warning = cut_result(value, 300)

    assert warning is None or len(marshal.dumps(kept, 2)) <= 400
    assert warning is not None or kept == value
