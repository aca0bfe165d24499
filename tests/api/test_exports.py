"""What `import sonde` offers, and what it costs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Unpack, get_type_hints

import pytest

import sonde
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel


def test_the_public_names_are_these() -> None:
    assert sonde.__all__ == [
        "Answer",
        "Budget",
        "Edited",
        "Investigation",
        "Publication",
        "Replayed",
        "Result",
        "RunOptions",
        "Settings",
        "Source",
        "aask",
        "ask",
        "branch",
        "comply",
        "edit",
        "incident",
        "load_settings",
        "publish_run",
        "rca",
        "replay",
        "resume",
        "run",
        "undo",
    ]


@pytest.mark.parametrize("name", sonde.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sonde, name) is not None
    assert name in dir(sonde)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        getattr(sonde, "nonsense")  # noqa: B009  # pyright would refuse the attribute itself


def test_importing_sonde_imports_nothing_else() -> None:
    code = "import sys, sonde; print(sorted(name for name in sys.modules if name.startswith('sonde')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250, check=True)

    assert shown.stdout.strip() == "['sonde']"


STARTERS = (sonde.ask, sonde.edit, sonde.rca, sonde.comply, sonde.incident, sonde.run)


@pytest.mark.parametrize("function", STARTERS, ids=lambda each: each.__name__)
def test_everything_that_starts_a_run_takes_the_same_keywords(function: Callable[..., sonde.Result]) -> None:
    hints = get_type_hints(function)

    assert hints["options"] == Unpack[sonde.RunOptions]
    assert issubclass(hints["return"], sonde.Result)


def test_the_help_of_ask_explains_every_argument_of_its_own_and_of_every_run() -> None:
    shown = inspect.getdoc(sonde.ask) or ""
    own = [name for name in inspect.signature(sonde.ask).parameters if name != "options"]

    unexplained = [name for name in (*own, *sonde.RunOptions.__annotations__) if not re.search(rf"\b{name}\b", shown)]

    assert unexplained == []


@pytest.mark.parametrize("function", STARTERS[1:], ids=lambda each: each.__name__)
def test_the_help_of_its_siblings_explains_their_own_arguments_and_names_ask_for_the_others(
    function: Callable[..., sonde.Result],
) -> None:
    shown = inspect.getdoc(function) or ""
    own = [name for name in inspect.signature(function).parameters if name != "options"]

    assert [name for name in own if not re.search(rf"\b{name}\b", shown)] == []
    assert "those of `ask`" in shown


def test_a_keyword_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ConfigError, match=r"'max_iteration'.*max_iterations"):
        sonde.ask("q", in_memory=True, max_iteration=3)  # pyright: ignore[reportCallIssue]  # the mistake itself


def test_a_budget_and_single_limits_by_name_are_one_rule_for_every_run(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    model = ScriptedModel(["FINAL('done')"] * 9)
    budget = sonde.Budget(max_iterations=5, max_tool_calls=7, max_tokens_total=9000, max_wall_time_sec=50)
    how = sonde.RunOptions(model=model, budget=budget, max_iterations=3, settings=sonde.Settings(), in_memory=True)

    budgets = [
        done.record.runtime_ref.budget for done in (sonde.ask("q", tmp_path, **how), sonde.edit("t", tmp_path, **how))
    ]

    assert [(each["max_iterations"], each["max_tool_calls"]) for each in budgets] == [(3, 7), (3, 7)]


def test_a_result_has_its_usage_and_its_cost_which_is_none_for_an_unknown_price() -> None:
    known = sonde.ask("q", model=ScriptedModel(["FINAL(1)"] * 2, cost_usd=0.25), in_memory=True)
    unknown = sonde.ask("q", model=ScriptedModel(["FINAL(1)"] * 2, cost_usd=None), in_memory=True)
    nobody = sonde.ask("q", settings=sonde.Settings(), in_memory=True)

    assert known.cost == 0.25 * known.usage.iterations > 0
    assert unknown.cost is None
    assert nobody.cost == 0
