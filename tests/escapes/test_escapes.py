"""The proof: every payload gets out of plain CPython, none gets out of the sandbox, whoever started it."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
from corpus import families, payloads
from ordinary import can_be_ordinary, free_uid
from stage import Verdict, confined, control

pytestmark = pytest.mark.timeout(600)  # hundreds of processes, on machines that may be busy


def got_out(verdicts: list[Verdict]) -> dict[str, tuple[str, ...]]:
    return {verdict.payload.id: verdict.won for verdict in verdicts if verdict.won}


def lost_state(verdicts: list[Verdict]) -> list[str]:
    return [verdict.payload.id for verdict in verdicts if not verdict.intact]


def test_the_corpus_is_as_large_as_promised() -> None:
    assert len(payloads()) >= 150
    assert len(families()) >= 25
    assert len({payload.id for payload in payloads()}) == len(payloads())


@pytest.mark.hostile_long
def test_every_payload_is_live_in_plain_python() -> None:
    assert [verdict.payload.id for verdict in control() if not verdict.won] == []


@pytest.mark.requirement(83)
@pytest.mark.requirement(118)
def test_none_gets_out_of_the_kernel_boundary_alone() -> None:
    verdicts = confined("open", None, payloads())

    assert got_out(verdicts) == {}
    assert lost_state(verdicts) == []


@pytest.mark.hostile_long
@pytest.mark.requirement(83)
@pytest.mark.skipif(os.geteuid() != 0, reason="the test above is run by an ordinary user already")
def test_none_gets_out_when_an_ordinary_user_starts_the_sandbox() -> None:
    if not can_be_ordinary():
        pytest.skip("this machine lets root make no ordinary user that can reach the interpreter")
    verdicts = confined("open", free_uid(), payloads())

    assert got_out(verdicts) == {}
    assert lost_state(verdicts) == []


@pytest.mark.hostile_long
@pytest.mark.requirement(83)
@pytest.mark.parametrize("user", ["whoever runs this", "an ordinary user"])
def test_none_gets_out_without_landlock(user: str) -> None:
    """The mode `--without landlock`, for kernels that have none: the other layers must hold alone."""
    ordinary = user == "an ordinary user"
    if ordinary and (os.geteuid() != 0 or not can_be_ordinary()):
        pytest.skip("only root can become another user, and not everywhere")
    verdicts = confined("open", free_uid() if ordinary else None, payloads(), without=["landlock"])

    assert got_out(verdicts) == {}
    assert lost_state(verdicts) == []


@pytest.mark.hostile_long
@pytest.mark.requirement(83)
@pytest.mark.requirement(119)
def test_none_gets_out_of_the_default_profile() -> None:
    verdicts = confined("analysis", None, payloads())

    assert got_out(verdicts) == {}
    assert lost_state(verdicts) == []


@pytest.mark.hostile_long
@pytest.mark.requirement(83)
@pytest.mark.parametrize("packages", ["", "+numpy+pandas"])
def test_none_gets_out_of_the_general_profile(packages: str) -> None:
    if packages and find_spec("pandas") is None:
        pytest.skip("pandas is not installed")
    verdicts = confined(f"general{packages}", None, payloads())

    assert got_out(verdicts) == {}
    assert lost_state(verdicts) == []


@pytest.mark.hostile_long
def test_a_hole_would_be_seen_because_without_the_layers_they_get_out() -> None:
    chosen = [payload for payload in payloads() if payload.family in {"file_reads", "file_writes", "metadata"}]

    assert len(got_out(confined("open", None, chosen, without=["landlock", "seccomp"]))) > len(chosen) // 2


@pytest.mark.hostile_long
@pytest.mark.requirement(38)
def test_strict_refuses_every_one_of_them_before_it_runs() -> None:
    verdicts = confined("strict", None, payloads())

    assert got_out(verdicts) == {}
    assert {verdict.fault for verdict in verdicts} == {"gate"}
