"""What `import sonde` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sonde


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
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert shown.stdout.strip() == "['sonde']"
