"""The client of a Phoenix server, nothing else: reads in pages and by id, and writes of annotations. It deletes nothing.

An `Annotation` is what an investigation says; `Written` is what became of some. Writes are synchronous, so that an id that does not exist
is known; an identifier makes a second write replace the first. Phoenix refuses a whole batch for one unknown id. Such a batch is halved
until the unknown ones stand alone; everything else is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from sonde.core.canonical import canonical_json
from sonde.errors import ConfigError, ToolResponseInvalid
from sonde.phoenix.reads import PhoenixClient, PhoenixReads
from sonde.trace_client import Json, ServerRefused, ServerUnavailable

__all__ = [
    "Annotation",
    "Level",
    "PhoenixClient",
    "PhoenixReads",
    "ServerRefused",
    "ServerUnavailable",
    "Written",
    "write_annotations",
]

Level = Literal["trace", "span", "session"]
LEVELS: tuple[Level, ...] = ("trace", "span", "session")
KINDS = frozenset({"LLM", "HUMAN", "CODE"})
RESERVED = "note"
AT_ONCE = 100  # rows per request; when a request fails, nobody knows what became of so many at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """What an investigation says about one trace, span or session. Its key is (name, target, identifier): a second one of the same key
    replaces the first. One that Phoenix would silently take for something else is refused.
    """

    run_id: str
    engine_type: str
    schema_version: str
    name: str
    annotator_kind: Literal["LLM", "CODE", "HUMAN"]
    label: str
    score: float | None
    explanation: str
    """One sentence for people."""
    level: Level
    target: str
    identifier: str
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The data behind it."""

    def __post_init__(self) -> None:
        if not self.target:
            raise ConfigError(f"an annotation on a {self.level} needs {self.level}_id")
        if not self.name or self.name == RESERVED:
            raise ConfigError(
                f"an annotation needs a name other than {RESERVED!r}, which Phoenix keeps for people's notes"
            )
        if self.annotator_kind not in KINDS:
            raise ConfigError(f"annotator_kind must be one of {', '.join(sorted(KINDS))}; Phoenix would take HUMAN")
        if not self.identifier:
            raise ConfigError("an annotation needs an identifier: without one a second run would not replace the first")

    def as_dict(self) -> dict[str, Any]:
        """As a line of annotations.jsonl, the payload of the contract. An annotation of a whole trace has no span. In its JSON no text is
        a picture, a link or a tag for a page that shows it as Markdown; it reads back as the same value.
        """
        details = canonical_json(self.details)
        for sign in ("![", "](", "]:", "<"):
            details = details.replace(sign, f"{sign[:-1]}\\u{ord(sign[-1]):04x}")
        return {
            "run_id": self.run_id,
            "engine_type": self.engine_type,
            "schema_version": self.schema_version,
            "name": self.name,
            "annotator_kind": self.annotator_kind,
            "label": self.label,
            "score": self.score,
            "explanation": self.explanation,
            "explanation_json": details,
            "target_span_id": self.target if self.level == "span" else None,
            "target_trace_id": self.target if self.level == "trace" else None,
            "identifier": self.identifier,
        }

    def row(self) -> Json:
        """As Phoenix accepts it; run, engine, version and the data behind the explanation are in its metadata."""
        return {
            f"{self.level}_id": self.target,
            "name": self.name,
            "annotator_kind": self.annotator_kind,
            "result": {"label": self.label, "score": self.score, "explanation": self.explanation},
            "metadata": {
                "run_id": self.run_id,
                "engine_type": self.engine_type,
                "schema_version": self.schema_version,
                "name": self.name,
                "annotator_kind": self.annotator_kind,
                **self.details,
            },
            "identifier": self.identifier,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What became of some annotations: the server's ids of those it took, the targets that do not exist, and what ended the writing."""

    ids: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    error: str | None = None

    def __add__(self, more: Written) -> Written:
        return Written(ids=self.ids + more.ids, unknown=self.unknown + more.unknown, error=self.error or more.error)


def write_annotations(annotations: Sequence[Annotation], client: PhoenixClient) -> Written:
    """Write them level by level, a hundred at a time. A failure of the server ends it and keeps what was written before."""
    written = Written()
    for level in LEVELS:
        rows = [each.row() for each in annotations if each.level == level]
        for at in range(0, len(rows), AT_ONCE):
            try:
                written += _write(client, level, rows[at : at + AT_ONCE])
            except (ServerUnavailable, ServerRefused, ToolResponseInvalid) as error:
                return replace(written, error=str(error))
            except KeyboardInterrupt:  # the record still says what was written
                return replace(written, error="stopped while annotations were written")
    return written


def _write(client: PhoenixClient, level: Level, rows: list[Json]) -> Written:
    try:
        reply = client.post(f"/v1/{level}_annotations", {"data": rows}, {"sync": "true"})
    except ServerRefused as refused:
        if refused.status != 404:
            raise
        if len(rows) == 1:
            return Written(unknown=(str(rows[0][f"{level}_id"]),))
        middle = len(rows) // 2
        return _write(client, level, rows[:middle]) + _write(client, level, rows[middle:])
    taken: Any = reply.get("data") or []
    if not isinstance(taken, list) or len(cast("list[Any]", taken)) > len(rows):
        raise ToolResponseInvalid(f"Phoenix at {client.base_url} took annotations and did not say which")
    named = (cast("Json", row).get("id") for row in cast("list[Any]", taken) if isinstance(row, dict))
    return Written(ids=tuple(str(each) for each in named if each is not None))
