"""A person for each journey, material for all, and the rule that `make test` runs at most twelve of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from journey import Person

from sonde.bench.seeded import Dataset, generate

HERE = Path(__file__).parent
MOST_IN_MAKE_TEST = 12


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.parent == HERE and item.get_closest_marker("journey") is None]
    if len(ours) > MOST_IN_MAKE_TEST:
        raise pytest.UsageError(
            f"{len(ours)} journeys run in `make test`; {MOST_IN_MAKE_TEST} is the limit: mark some with @pytest.mark.journey"
        )


@pytest.fixture(params=["kernel", pytest.param("monty", marks=[pytest.mark.monty, pytest.mark.journey])])
def person(request: pytest.FixtureRequest, tmp_path: Path) -> Person:
    """Once as on Linux, and once as with the portable backend (scripts/test_monty.sh)."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    environ: dict[str, str] = {}
    if request.param == "monty":
        pytest.importorskip("pydantic_monty", reason="pydantic-monty is not installed: scripts/test_monty.sh")
        environ = {name: value for name, value in os.environ.items() if name in ("PYTHONPATH", "MONTY_BIN")}
        environ["SONDE_BACKEND"] = "monty"
    return Person(home=tmp_path / "home", folder=tmp_path / "work", environ=environ)


@pytest.fixture(scope="session")
def log_text() -> str:
    """A day of a quiet service, in which one payment fails: 5,000 lines."""
    lines = [f"09:{n // 60 % 60:02}:{n % 60:02} web INFO request {n} served in {n * 7 % 90} ms" for n in range(5000)]
    lines[3210] = "09:53:30 payments ERROR ledger refused the connection"
    return "".join(f"{line}\n" for line in lines)


@pytest.fixture(scope="session")
def traces() -> Dataset:
    """Forty agent runs with known faults; some of them are healthy."""
    return generate(40, seed=7)
