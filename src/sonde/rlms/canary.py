"""The canary gate: is what a worker left good enough to rely on? Fallback citations never count as proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sonde.core.patterns import compiled
from sonde.errors import ConfigError
from sonde.rlms.request import read_json
from sonde.rlms.result import FALLBACK_SIGNAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The gate's checks by name, in order; the gate is open when all hold."""

    checks: Mapping[str, bool]

    @property
    def ok(self) -> bool:
        """Whether all hold."""
        return all(self.checks.values())

    def as_dict(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            "ok": self.ok,
            "checks": dict(self.checks),
            "failed": [name for name, held in self.checks.items() if not held],
        }


def judge(status: Mapping[str, Any], result: Mapping[str, Any], highlight_pattern: str | None = None) -> Verdict:
    """Whether a role may rely on this status and result; one of the highlights must match the pattern if given."""
    citations = [cast("dict[str, Any]", row) for row in _list(result, "citations") if isinstance(row, dict)]
    proved = [row for row in citations if isinstance(row.get("path"), str) and row.get("signal") != FALLBACK_SIGNAL]
    checks = {
        "status_ok": status.get("status") == "ok",
        "should_run": status.get("should_run") is True,
        "result_ok": result.get("ok") is True,
        "has_citations": len(citations) >= 1,
        "has_non_fallback_citations": len(proved) >= 1,
    }
    if highlight_pattern is not None:
        try:
            found = compiled(highlight_pattern)
        except ValueError as error:
            raise ConfigError(f"--highlight-pattern {highlight_pattern!r} cannot be used: {error}") from None
        texts = _list(result, "highlights")
        checks["highlight_matches"] = any(found.search(str(text).encode()) for text in texts)
    return Verdict(checks=checks)


def _list(result: Mapping[str, Any], name: str) -> list[Any]:
    found: Any = result.get(name)
    return cast("list[Any]", found) if isinstance(found, list) else []


def read_object(place: Path) -> Mapping[str, Any]:
    """A JSON object from a file; a missing or broken one counts as empty, and then no check on it holds."""
    try:
        found: Any = read_json(place)
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
