"""A flag in the help of a command does something: none is shown that is passed over."""

from __future__ import annotations

from dataclasses import fields

import pytest
from typer.testing import CliRunner

from sonde.api.keys import KEYS
from sonde.cli.options import BudgetOptions
from sonde.cli.program import build, command_names
from sonde.engines.ask import ASK
from sonde.engines.compliance import COMPLIANCE
from sonde.engines.edit import EDIT
from sonde.engines.incident import INCIDENT
from sonde.engines.rca import RCA
from sonde.runtime.engine import Engine


def help_of(*words: str) -> str:
    shown = CliRunner().invoke(build(command_names()), [*words, "--help"], terminal_width=400).output
    return " ".join(shown.split())


@pytest.mark.parametrize(
    ("command", "engine"),
    [("ask", ASK), ("edit", EDIT), ("rca", RCA), ("comply", COMPLIANCE), ("incident", INCIDENT)],
)
def test_every_limit_is_shown_with_the_default_of_its_engine(command: str, engine: Engine) -> None:
    shown = help_of(command)

    for name in (field.name for field in fields(BudgetOptions) if field.name != "sampling_seed"):
        default = getattr(engine.budget, name)
        about = shown.split(f"{KEYS[name].option} ")[1].split("--")[0]
        assert about.endswith("[no limit] " if default is None else f"[{default:,.10g}] "), name
    assert f"[{KEYS['max_parallel'].default}]" in shown
    assert f"[{KEYS['max_journal_mb'].default}]" in shown


def test_commands_stand_under_headings_and_no_summary_is_cut() -> None:
    shown = help_of()

    headings = ["Ask:", "Investigate:", "Runs:", "Serve:", "More:"]
    assert sorted(headings, key=shown.index) == headings
    assert "Commands:" not in shown
    assert "..." not in shown.split("Ask:")[1]
    assert "it is written only if you say yes." in shown


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        (("bench", "niah"), "--runs-dir"),  # its runs are in --out
        (("config",), "--quiet"),  # there is no answer
    ],
)
def test_a_flag_without_an_effect_is_not_offered(command: tuple[str, ...], flag: str) -> None:
    shown = CliRunner().invoke(build([command[0], "doctor"]), [*command, "--help"]).output

    assert "--use" in shown
    assert flag not in shown
