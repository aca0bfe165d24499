"""Benchmarks of questions from end to end: material made from a seed, answers scored by code, methods side by side."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cli.cli_program import sonde
from sonde.api.settings import Settings
from sonde.bench import answers
from sonde.bench.answers import Kind
from sonde.bench.harness import Bench, BenchPlan
from sonde.bench.methods import pieces_of, top_pieces
from sonde.bench.page import page
from sonde.bench.questions import Questions, context_text
from sonde.bench.suite import BenchCase, read_results
from sonde.bench.summary import Summary, markdown, summarise
from sonde.bench.task_family import FAMILIES, questions, source_questions
from sonde.errors import ConfigError
from sonde.models import ModelRequest
from sonde.testing import ScriptedModel

SMALL_TREE = Path(answers.__file__).parent.parent / "tools"
METHODS = ("sonde", "no-subcalls", "retrieval", "plain")


def gold_of(suite: Questions, case: BenchCase) -> Any:
    sheet, _, key = case.key.rpartition("/")
    return json.loads((suite.data / sheet / "gold.json").read_text())[key]


def knowing(suite: Questions, answer: Callable[[BenchCase], Any]) -> ScriptedModel:
    """A model that finds the question in whatever it is asked and answers it in the form that is wanted."""
    cases = suite.cases()

    def reply(request: ModelRequest) -> str:
        asked = "\n".join(message.content for message in request.messages)
        value = next(answer(case) for case in cases if case.question in asked)
        if "Answer with JSON only" in asked:
            return json.dumps({"answer": value})
        return f"```python\nFINAL({{'answer': {value!r}}})\n```"

    return ScriptedModel(reply, cost_usd=0.01)


def run(suite: Questions, model: ScriptedModel, out: Path, **options: Any) -> dict[str, Summary]:
    options.setdefault("methods", METHODS)
    plan = BenchPlan(suite=suite, out=out, **options)
    results = Bench(plan, Settings(), model, lambda _line: None).run()
    return {each.method: each for each in summarise(suite, results)}


@pytest.mark.parametrize(
    ("kind", "predicted", "gold", "wanted"),
    [
        ("text", "  East-Kotka. ", "east kotka", 1.0),
        ("text", "East Kotka or Bergen", "East Kotka", 0.0),
        ("text", None, "None", 0.0),
        ("number", 42, 42, 1.0),
        ("number", "about 1,042 lines", 1042, 1.0),
        ("number", "41 or 42", 42, 0.0),
        ("number", 40, 42, 0.75**2),
        ("number", True, 1, 0.0),
        ("number", None, 0, 0.0),
        ("list", ["A", "b"], ["a", "B"], 1.0),
        ("list", ["a"], ["a", "b"], 2 / 3),
        ("list", "a, b", ["a", "b"], 0.0),
        ("list", [], [], 1.0),
        ("pairs", [["b", "a"]], [["a", "b"]], 1.0),
        ("pairs", [["a", "a"], ["a", "b"]], [["a", "b"]], 2 / 3),
        ("pairs", 7, [["a", "b"]], 0.0),
    ],
)
def test_an_answer_is_scored_by_its_kind(kind: Kind, predicted: Any, gold: Any, wanted: float) -> None:
    assert answers.score(kind, predicted, gold) == pytest.approx(wanted)


@given(
    kind=st.sampled_from(["text", "number", "list", "pairs"]), predicted=st.recursive(st.none() | st.text(), st.lists)
)
def test_any_answer_has_a_score_from_0_to_1(kind: Kind, predicted: Any) -> None:
    gold = {"text": "a", "number": 3, "list": ["a"], "pairs": [["a", "b"]]}[kind]

    assert 0.0 <= answers.score(kind, predicted, gold) <= 1.0


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_material_is_the_same_for_a_seed_and_another_for_another(name: str, tmp_path: Path) -> None:
    def made(folder: str, seed: int) -> tuple[list[str], str]:
        suite = questions(name, tmp_path / folder, lengths=[20_000], seeds=[seed])
        return [case.question for case in suite.cases()], context_text(suite.cases()[0].source)

    assert made("a", 1) == made("b", 1)
    assert made("a", 1) != made("c", 2)


def test_the_needle_is_there_once(tmp_path: Path) -> None:
    suite = questions("niah", tmp_path, lengths=[30_000])
    (case,) = suite.cases()
    found = re.findall(r"magic numbers for \S+ is: (\d+)", context_text(case.source))

    assert [int(number) for number in found] == [gold_of(suite, case)]
    assert 30_000 <= case.size < 31_000


@pytest.mark.long
def test_a_context_may_have_ten_million_characters(tmp_path: Path) -> None:
    (case,) = questions("niah", tmp_path, lengths=[10_000_000]).cases()

    assert case.size >= 10_000_000
    assert questions("niah", tmp_path, lengths=[10_000_000]).plain_prompt(case) is None
    assert any("magic" in piece for piece in top_pieces(case.question, context_text(case.source)))


@pytest.mark.parametrize("length", [10, 10_000_001])
def test_lengths_out_of_range_are_refused(length: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        questions("niah", tmp_path, lengths=[length])


def test_the_labels_of_records_are_nowhere_in_the_data(tmp_path: Path) -> None:
    text = context_text(questions("oolong", tmp_path, lengths=[20_000]).cases()[0].source)

    assert not re.search(r"abbreviation|human being|numeric value|location|entity", text)


def labelled(text: str) -> list[tuple[str, str]]:
    """(user, label) of each line, by reading: what a good classifier would find."""
    rules = {
        "abbreviation": r"stand for|short for|hide behind|written out",
        "description": r"come about|speak of|the reason|experts mention",
        "entity": r"metal|musical work|colour|animal",
        "human being": r"invented|engineer|scientist|first owner",
        "location": r"Where is|country does|continent|town lies",
        "numeric value": r"How far|What year|temperature|How many people",
    }
    rows = re.findall(r"User: (\d+) \|\| Question: (.*)", text)
    return [(user, next(label for label, rule in rules.items() if re.search(rule, line))) for user, line in rows]


def test_whoever_labels_every_line_right_has_the_gold_answers(tmp_path: Path) -> None:
    suite = questions("oolong", tmp_path, lengths=[20_000])
    cases = suite.cases()
    labels = labelled(context_text(cases[0].source))
    count = next(case for case in cases if "How many lines belong" in case.question)
    wanted = re.search(r"category '([^']+)'", count.question)
    assert wanted is not None

    assert gold_of(suite, count) == sum(label == wanted[1] for _, label in labels)
    assert sum(label == gold_of(suite, cases[0]) for _, label in labels) == max(
        sum(label == each for _, label in labels) for each in {label for _, label in labels}
    )


def test_pairs_are_neither_none_nor_all(tmp_path: Path) -> None:
    suite = questions("pairs", tmp_path, lengths=[20_000, 100_000])
    sizes = [len(gold_of(suite, case)) for case in suite.cases()]

    assert all(0 < size < 16 * 15 / 2 for size in sizes)


def test_a_chain_leads_through_the_documents_to_the_gold(tmp_path: Path) -> None:
    suite = questions("hops", tmp_path, lengths=[100_000])
    case = suite.cases()[0]
    documents = [path.read_text() for path in case.source.iterdir()]
    text = "\n".join(documents)
    who = re.search(r"firm that (.*) works for", case.question)
    assert who is not None
    firm = re.search(rf"^{re.escape(who[1])} works for ([^.]+)\.", text, re.MULTILINE)
    assert firm is not None
    town = re.search(rf"head office of {re.escape(firm[1])} is in ([^.]+)\.", text)

    assert len(documents) == 1000
    assert town is not None and town[1] == gold_of(suite, case)


def test_facts_about_code_are_computed_from_the_tree(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "a.py").write_text(
        "import json\nclass One(Base):\n    def run(self):\n        pass\nasync def go():\n    pass\n"
    )
    (tree / "sub" / "b.py").write_text(
        "import json\nclass Two(mod.Base):\n    async def run(self):\n        return (1,\n  2)\n"
    )
    suite = source_questions(tmp_path / "data", tree)
    home, methods, heirs, longest, importers, waiting = [gold_of(suite, case) for case in suite.cases()]

    assert home in {"a.py", "sub/b.py"}
    assert (methods, heirs, longest, waiting) == (2, ["One", "Two"], "run", 2)
    assert importers == ["a.py", "sub/b.py"]
    with pytest.raises(ConfigError):
        source_questions(tmp_path / "data", tmp_path / "nowhere")


@pytest.mark.long
def test_the_standard_library_is_the_tree_unless_told(tmp_path: Path) -> None:
    suite = source_questions(tmp_path, None)
    home = next(case for case in suite.cases() if "In which file" in case.question)
    name = re.search(r"class (\S+) defined", home.question)
    assert name is not None

    assert f"class {name[1]}" in (home.source / gold_of(suite, home)).read_text()


@given(text=st.text(alphabet="ab \n", max_size=300), size=st.integers(min_value=1, max_value=40))
def test_pieces_put_together_are_the_text(text: str, size: int) -> None:
    assert "".join(pieces_of(text, size)) == text


def test_retrieval_finds_the_telling_line_and_keeps_the_order() -> None:
    text = "".join(f"line {number} about nothing\n" for number in range(5000)) + "the zebra is here\nanother zebra\n"
    found = top_pieces("Where is the zebra?", text, count=2)

    assert "zebra" in found[-1]
    assert text.index(found[0]) < text.index(found[1])


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(name, marks=[pytest.mark.long] * (name == "hops")) for name in sorted(FAMILIES)), "code"],
)
def test_a_model_that_knows_has_full_score_by_every_method_and_one_that_does_not_has_none(
    name: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    suite = source_questions(data, SMALL_TREE) if name == "code" else questions(name, data, lengths=[20_000])
    right = run(suite, knowing(suite, lambda case: gold_of(suite, case)), tmp_path / "right", limit=2)
    wrong = run(
        suite, knowing(suite, lambda case: {"number": -999}.get(case.kind, "no idea")), tmp_path / "wrong", limit=2
    )

    assert {method: each.metrics["score"].mean for method, each in right.items()} == dict.fromkeys(METHODS, 1.0)
    assert all(each.metrics["score"].mean < 0.01 for each in wrong.values())
    assert all(each.cost_usd.mean > 0 and each.tokens.mean > 0 for each in right.values())


def test_what_does_not_fit_into_a_prompt_is_left_out_and_not_counted_as_wrong(tmp_path: Path) -> None:
    suite = questions("niah", tmp_path / "data", lengths=[10_000, 500_000])
    found = run(suite, knowing(suite, lambda case: gold_of(suite, case)), tmp_path / "out", methods=["plain"])

    assert (found["plain"].cases, found["plain"].left_out) == (1, 1)
    assert found["plain"].metrics["score"].mean == 1.0


def test_without_sub_calls_none_is_offered(tmp_path: Path) -> None:
    suite = questions("niah", tmp_path / "data", lengths=[10_000])
    model = knowing(suite, lambda case: gold_of(suite, case))
    run(suite, model, tmp_path / "out", methods=["no-subcalls"])

    assert "llm_batch" not in model.requests[0].messages[0].content


def test_a_stopped_benchmark_goes_on_and_pays_nothing_twice(tmp_path: Path) -> None:
    suite = questions("oolong", tmp_path / "data", lengths=[10_000])
    model = knowing(suite, lambda case: gold_of(suite, case))
    run(suite, model, tmp_path / "out", methods=["plain"], limit=2)
    run(suite, model, tmp_path / "out", methods=["plain"], limit=4)

    assert len(model.requests) == 4
    assert {each.model for each in read_results(tmp_path / "out" / "results.jsonl")} == {model.name}


def test_results_of_another_model_are_not_taken_for_this_one(tmp_path: Path) -> None:
    suite = questions("oolong", tmp_path / "data", lengths=[10_000])
    run(suite, knowing(suite, lambda _case: "wrong"), tmp_path / "out", methods=["plain"], limit=1)
    other = knowing(suite, lambda case: gold_of(suite, case))
    other.name = "scripted:other"

    assert run(suite, other, tmp_path / "out", methods=["plain"], limit=1)["plain"].metrics["score"].mean == 1.0


def test_repeats_give_a_spread(tmp_path: Path) -> None:
    suite = questions("niah", tmp_path / "data", lengths=[10_000])
    seen: list[int] = []

    def sometimes(case: BenchCase) -> Any:
        seen.append(1)
        return gold_of(suite, case) if len(seen) % 2 else 0

    found = run(suite, knowing(suite, sometimes), tmp_path / "out", methods=["plain"], repeats=2)["plain"]

    assert (found.metrics["score"].mean, found.metrics["score"].repeats) == (0.5, 2)
    assert "±" in markdown(suite, [found])


def test_the_page_holds_its_plots_and_fetches_nothing(tmp_path: Path) -> None:
    suite = questions("niah", tmp_path / "data", lengths=[10_000, 20_000])
    plan = BenchPlan(suite=suite, out=tmp_path / "out", methods=("retrieval", "plain"))
    results = Bench(plan, Settings(), knowing(suite, lambda case: gold_of(suite, case)), lambda _line: None).run()
    text = page(suite, summarise(suite, results), results, "niah <b>")

    assert text.count("<svg") == 3
    assert "niah &lt;b&gt;" in text
    assert not re.search(r"(?:src|href)=|@import|url\(|<script", text)


def test_a_method_of_another_kind_of_benchmark_is_refused(tmp_path: Path) -> None:
    suite = questions("niah", tmp_path / "data", lengths=[10_000])
    with pytest.raises(ConfigError, match="retrieval"):
        Bench(BenchPlan(suite=suite, out=tmp_path, methods=["rule"]), Settings(), None, lambda _line: None)


def test_the_command_makes_the_data_runs_and_writes_table_and_page(tmp_path: Path) -> None:
    model = tmp_path / "model.py"
    model.write_text(
        "import re, sys\n"
        "text = sys.stdin.read()\n"
        "found = re.search(r'is: (\\d+)', text)\n"
        "print('{\"answer\": %s}' % (found.group(1) if found else 0))\n"
    )
    words = [
        "niah",
        "--length",
        "20k",
        "--no-sonde",
        "--baseline",
        "plain",
        "--baseline",
        "retrieval",
        "--data-seed",
        "3",
    ]
    done = sonde("bench", *words, "--model", f"command:{sys.executable} {model}", cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    assert "| retrieval | 1 | 0 | 0 | 1.00 |" in done.stdout
    assert "<svg" in (tmp_path / "bench-results" / "niah" / "results.html").read_text()
