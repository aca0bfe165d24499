"""What every test gets: requirement marks that are checked, and written down when asked for.

`@pytest.mark.requirement(38)` or `@pytest.mark.requirement("O5")` names a row of the requirements. With `--requirements FILE` the
outcome of each marked test goes there, one JSON object a line; scripts/requirements.py reads it.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from patience import SLOWNESS

# Machines are shared: a slow example is no failure. CI draws the same examples each time, so that a change is judged by what it changed;
# everywhere else fewer examples are enough: they are new in every run, and what they find is pinned with @example.
settings.register_profile("everywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40)
settings.register_profile("ci", settings.get_profile("everywhere"), derandomize=True, max_examples=100)
settings.load_profile("ci" if os.environ.get("CI") else "everywhere")

NUMBERS = frozenset([str(number) for number in range(1, 138)] + [f"O{number}" for number in range(1, 18)])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--requirements", metavar="FILE", help="write the outcome of every marked test to FILE")


def pytest_configure(config: pytest.Config) -> None:
    # A shell that starts the suite in the background ignores these signals for it, and programs under test would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Runs that a test makes without a place of their own do not go to the developer's.
    os.environ["XDG_STATE_HOME"] = state = tempfile.mkdtemp(prefix="sonde-tests-state-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    target = config.getoption("--requirements")
    if target and not hasattr(config, "workerinput"):  # with xdist every report reaches the controller
        config.pluginmanager.register(Witness(Path(target)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made here and stay until the end: the collector of garbage need not look at them again and again."""
    gc.disable()
    found = yield
    gc.enable()
    gc.freeze()
    return found


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SLOWNESS > 1 and (limit := item.get_closest_marker("timeout")) and limit.args:
            item.add_marker(pytest.mark.timeout(limit.args[0] * SLOWNESS), append=False)  # the first one counts
        if numbers := _marked(item):
            item.user_properties.append(("requirements", numbers))


def _marked(item: pytest.Item) -> list[str]:
    numbers = [str(number) for mark in item.iter_markers("requirement") for number in mark.args]
    for number in numbers:
        if number not in NUMBERS:
            raise pytest.UsageError(f"{item.nodeid}: there is no requirement {number}; 1 to 137 and O1 to O17 exist")
    return numbers


class Witness:
    """Keeps the outcome of marked tests; one passed when its call passed and neither setup nor teardown failed."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self._seen: dict[str, tuple[object, set[str]]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        numbers = dict(report.user_properties).get("requirements")
        quiet = report.when != "call" and report.outcome == "passed"
        if numbers and not quiet:
            self._seen.setdefault(report.nodeid, (numbers, set()))[1].add(report.outcome)

    def pytest_sessionfinish(self) -> None:
        self._target.write_text("".join(f"{line}\n" for line in self._lines()))

    def _lines(self) -> Iterator[str]:
        for nodeid, (numbers, seen) in sorted(self._seen.items()):
            outcome = next(word for word in ("failed", "passed", "skipped") if word in seen)
            yield json.dumps({"test": nodeid, "requirements": numbers, "outcome": outcome})
