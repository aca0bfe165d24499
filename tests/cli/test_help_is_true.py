"""A flag in the help of a command does something: none is shown that is passed over."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from sonde.cli.program import build


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
