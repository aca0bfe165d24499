"""The forms in which an answer cites lines: each is checked, and what only looks like one is left alone."""

from __future__ import annotations

import pytest

from sonde.contexts.files import FilesContext
from sonde.testing import ScriptedModel, run_in_memory

TEXTS = {
    "a.log": "".join(f"a said {n}\n" for n in range(1, 41)),
    "b.log": "b said 1\nb said 2\n",
    "Makefile": "all:\n\ttrue\n",
    "salt and pepper, v2": "salt\npepper\n",
}


def files() -> FilesContext:
    return FilesContext((), texts=TEXTS)


@pytest.mark.requirement(102)
def test_every_ordinary_form_of_a_citation_is_read() -> None:
    forms = {
        "[a.log:1, b.log:1]": ["a.log:1-1", "b.log:1-1"],
        "[a.log:3; b.log:2]": ["a.log:3-3", "b.log:2-2"],
        "[a.log:5 and Makefile:1]": ["a.log:5-5", "Makefile:1-1"],
        "[a.log:7, 9-10, and 12]": ["a.log:7-7", "a.log:9-10", "a.log:12-12"],
        "[a.log: 14]": ["a.log:14-14"],
        "[ a.log:16 ]": ["a.log:16-16"],
        "[a.log:18–19]": ["a.log:18-19"],
        "[a.log:L21-L22]": ["a.log:21-22"],
        "[a.log#L24]": ["a.log:24-24"],
        "[a.log: lines 26 to 27]": ["a.log:26-27"],
        "[**a.log:29**]": ["a.log:29-29"],
        "[Makefile:2]": ["Makefile:2-2"],
        "[salt and pepper, v2:1]": ["salt and pepper, v2:1-1"],
    }
    model = ScriptedModel([f"FINAL({'. '.join(forms)!r})"] * 4)

    answer = run_in_memory(model, "What was said?", files(), max_iterations=4)

    assert (answer.status, answer.gaps) == ("succeeded", ())
    assert {each.place for each in answer.citations} == {place for places in forms.values() for place in places}


@pytest.mark.requirement(102)
@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("[a.log:2, b.log:99]", "b.log has 2 lines"),
        ("[a.log:2; prod.log:9]", "there is no file 'prod.log'"),
        ("[Makefile:9]", "Makefile has 2 lines"),
        ("[salt and Makefile:9]", "Makefile has 2 lines"),
        ("[a.log:2-]", "[a.log:2-] cannot be read as a citation"),
        ("[see a.log:2 below]", "[see a.log:2 below] cannot be read as a citation"),
        ("[a.log, b.log:2]", "[a.log, b.log:2] cannot be read as a citation"),
    ],
)
def test_a_wrong_place_beside_a_right_one_goes_back_to_the_model(form: str, said: str) -> None:
    model = ScriptedModel([f"FINAL('Settled [a.log:1]. No errors {form}.')", "FINAL('Settled [a.log:1].')"])

    answer = run_in_memory(model, "What was said?", files(), max_iterations=3)

    assert said in model.requests[1].messages[-1].content
    assert (answer.status, [each.place for each in answer.citations]) == ("succeeded", ["a.log:1-1"])


@pytest.mark.requirement(102)
def test_brackets_of_prose_and_code_are_no_citations() -> None:
    prose = """Settled [a.log:1]. It began [12:30], [12:30, 13:45], [16/Nov/2026:12:30:05 +0000] and [2026-11-16T12:30:05.123Z],
    [see note 3], on [host:8080], [host:8080, other:9090] and [https://api.example.com:8080/x], in [a.log: 9 errors, b.log: 3 errors],
    [v1.5:2, v2.0:1], x[1:3, 2:4], ["a.log:91", "b.log:92"], [{"a.log": 93, "line": 94}],
    [the log of a.log:95, at last](https://example.com), `[lo:2, hi:3]`.
    ```yaml
    ports: [db.internal:5432, cache.internal:6379]
    seen: ["a.log:96", a.log:97-]
    ```
    """
    model = ScriptedModel([f"FINAL({prose!r})"] * 4)

    answer = run_in_memory(model, "What was said?", files(), max_iterations=4)

    assert (answer.status, answer.gaps) == ("succeeded", ())
    assert [each.place for each in answer.citations] == ["a.log:1-1"]


def test_huge_brackets_are_read_and_named_in_short() -> None:
    brackets = ("'a.a' * 20_000 + ':9-'", "'a :' * 20_000 + '9'", "'/' * 20_000 + ':9-'", "'x, ' * 20_000 + 'y:1'")
    final = "FINAL('Settled [a.log:1].'" + "".join(f" + '[' + {each} + ']'" for each in brackets) + ")"
    model = ScriptedModel([final, "FINAL('Settled [a.log:1].')"])

    answer = run_in_memory(model, "What was said?", files(), max_iterations=3)

    assert "cannot be read as a citation" in model.requests[1].messages[-1].content
    assert len(model.requests[1].messages[-1].content) < 2_000
    assert answer.status == "succeeded"
