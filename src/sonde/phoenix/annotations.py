"""Annotation writes: synchronous, so that an id that does not exist is told; replaced by identifier, so that writing twice is writing once.

Phoenix refuses a whole batch for one unknown id. Such a batch is halved until the unknown ones stand alone; everything else is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sonde.errors import ConfigError
from sonde.phoenix.client import Json, PhoenixClient, PhoenixRefused

Level = Literal["span", "trace", "session"]
BATCH = 100
KINDS = frozenset({"LLM", "HUMAN", "CODE"})
RESERVED = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Ids of the annotations in the order of their rows, without those whose target does not exist."""

    ids: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def __add__(self, other: Written) -> Written:
        return Written(ids=self.ids + other.ids, unknown=self.unknown + other.unknown)


class AnnotationWriter:
    """Writes annotations on spans, traces and sessions.

    A row is what Phoenix takes: `{span_id | trace_id | session_id, name, annotator_kind, result: {label, score, explanation}, metadata,
    identifier}`.
    """

    def __init__(self, client: PhoenixClient) -> None:
        self._client = client

    def write(self, level: Level, rows: Sequence[Mapping[str, Any]]) -> Written:
        """Write all rows; targets that do not exist are returned, not raised. Raises PhoenixUnavailable or PhoenixRefused."""
        checked = [_checked(level, row) for row in rows]
        written = Written()
        for at in range(0, len(checked), BATCH):
            written += self._write(level, checked[at : at + BATCH])
        return written

    def _write(self, level: Level, rows: list[Json]) -> Written:
        try:
            reply = self._client.post(f"/v1/{level}_annotations", {"data": rows}, {"sync": "true"})
        except PhoenixRefused as refused:
            if refused.status != 404:
                raise
            if len(rows) == 1:
                return Written(unknown=(str(rows[0][f"{level}_id"]),))
            middle = len(rows) // 2
            return self._write(level, rows[:middle]) + self._write(level, rows[middle:])
        return Written(ids=tuple(str(row["id"]) for row in reply.get("data", ())))


def _checked(level: Level, row: Mapping[str, Any]) -> Json:
    """The row, refused where Phoenix would silently do something else."""
    if not row.get(f"{level}_id"):
        raise ConfigError(f"an annotation on a {level} needs {level}_id")
    if not row.get("name") or row["name"] == RESERVED:
        raise ConfigError(f"an annotation needs a name other than {RESERVED!r}, which Phoenix keeps for people's notes")
    if row.get("annotator_kind") not in KINDS:
        raise ConfigError(f"annotator_kind must be one of {', '.join(sorted(KINDS))}; Phoenix would take HUMAN")
    if not row.get("identifier"):
        raise ConfigError("an annotation needs an identifier: without one a second run would not replace the first")
    return dict(row)
