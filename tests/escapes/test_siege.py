"""Attacks on the protocol itself: at worst the attacker's own turn is lost; the supervisor, its host and earlier turns are not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from siege import Siege, attacks, besiege, open_server

from patience import SLOWNESS
from sonde.sandbox import ForkServer

pytestmark = pytest.mark.timeout(600)  # spinners are given their grace of five seconds each


@pytest.fixture
def server() -> Iterator[ForkServer]:
    server = open_server()
    yield server
    server.close()


@pytest.mark.hostile_long
def test_no_attack_costs_more_than_its_own_turn(server: ForkServer) -> None:
    sieges = besiege(attacks(), server)

    assert len(sieges) >= 100
    assert [one.name for one in sieges.values() if not one.recovered] == []
    assert [one.name for one in sieges.values() if one.strays] == []
    assert [one.name for one in sieges.values() if one.seconds > 300 * SLOWNESS] == []
    assert server.alive
    # The host heard functions that it offered, in whole calls, and nothing else.
    heard = {one.name: set(one.called) for one in sieges.values() if one.called}
    assert heard == {"frames.call_flood": {"f"}, "frames.answers_never_read": {"big"}}


@pytest.mark.parametrize(
    "name", ["forks.fork", "forks.clone_thread", "frames.garbage", "frames.two_reports", "descriptors.send_descriptors"]
)
def test_crossing_the_boundary_is_called_a_violation(name: str, server: ForkServer) -> None:
    siege: Siege = besiege({name: attacks()[name]}, server, wall_s=30)[name]

    assert siege.fault == "violation"
    assert siege.later == ("83", "84", "85")
