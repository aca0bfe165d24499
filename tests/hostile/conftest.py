"""Every test here is marked `hostile`.

The assertion of a probe is what did not happen, seen from outside: a marker file that a planted program would have made, a request on
loopback, a file that changed, a secret in an output, a program that never ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from victim import Listener, Victim

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.hostile)
            item.add_marker(pytest.mark.timeout(600))  # the limit of processor time speaks first, on a busy machine too


@pytest.fixture
def victim(tmp_path: Path) -> Victim:
    for name in ("home", "strange"):
        (tmp_path / name).mkdir()
    return Victim(home=tmp_path / "home", folder=tmp_path / "strange", seconds=250)


@pytest.fixture
def listener() -> Iterator[Listener]:
    ears = Listener()
    yield ears
    ears.close()
