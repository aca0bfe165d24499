"""The same corpus against the portable backend, which has an interpreter for a boundary. Run by scripts/test_monty.sh."""

from __future__ import annotations

import pytest
from corpus import payloads
from stage import interpreted

from sonde.errors import SandboxUnavailable
from sonde.sandbox import open_box

pytestmark = [pytest.mark.monty, pytest.mark.timeout(600)]


@pytest.mark.requirement(83)
@pytest.mark.parametrize("profile", ["open", "analysis"])
def test_none_gets_out_of_the_interpreter(profile: str) -> None:
    try:
        open_box("monty").close()
    except SandboxUnavailable as missing:
        pytest.skip(missing.message)
    verdicts = interpreted(profile, payloads())

    assert {verdict.payload.id: verdict.won for verdict in verdicts if verdict.won} == {}
    assert [verdict.payload.id for verdict in verdicts if not verdict.intact] == []
