"""A run with tools of the user's own is done again only with these tools at hand, and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.rerun import branch, replay
from sonde.api.settings import Settings
from sonde.errors import ConfigError
from sonde.testing import ScriptedModel

LOOK = "print(price('apple'))"
END = "FINAL('30 cents [context.txt:1-1]')"


def price(fruit: str) -> int:
    """What a fruit costs, in cents.

    Example: cents = price("apple")
    """
    return len(fruit) * 6


@pytest.fixture
def run(tmp_path: Path) -> Path:
    answer = ask(
        "What do they cost?",
        "three apples\n",
        tools=[price],
        model=ScriptedModel([LOOK, END, END]),
        runs_dir=tmp_path / "runs",
        settings=Settings(),
    )
    assert answer.run_dir is not None
    return answer.run_dir


def test_the_tools_that_are_missing_are_named_with_the_way_to_give_them(run: Path) -> None:
    with pytest.raises(ConfigError, match=r"\(price\).*tools=\[price\]"):
        replay(run, context="three apples\n", settings=Settings())
    with pytest.raises(ConfigError, match=r"\(price\)"):
        branch(run, 2, context="three apples\n", model=ScriptedModel([END]), settings=Settings())


def test_with_the_tools_given_again_it_replays(run: Path) -> None:
    assert replay(run, context="three apples\n", tools=[price], settings=Settings()).equal
