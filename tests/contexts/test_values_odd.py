"""Odd values: what cannot be kept apart or is too deep is refused with its place, never lost."""

from __future__ import annotations

from typing import Any

import pytest

from sonde.contexts.values import ValuesContext
from sonde.errors import ConfigError


def test_two_keys_that_would_be_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"context\['rows'\] has several keys that read '1'"):
        ValuesContext({"rows": {1: "a", "1": "b", 2: "c"}})


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]

    with pytest.raises(ConfigError, match="nested too deeply"):
        ValuesContext(deep)
