"""Where annotations go: a server through whatever speaks to it, or a file beside the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec

from sonde.core.annotation import Annotation
from sonde.core.events import WroteBack

AT_ONCE = 100  # rows; what a failure leaves unknown is at most so many


class Written(Protocol):
    """What a server says after a write."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of what was written."""
        ...

    @property
    def unknown(self) -> tuple[str, ...]:
        """Targets that do not exist."""
        ...


class Writer(Protocol):
    """Writes rows of one level; raises when the server cannot be reached or refuses."""

    def write(self, level: Literal["span", "trace", "session"], rows: Sequence[Mapping[str, Any]]) -> Written:
        """Write all rows."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What became of some annotations."""

    ids: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    error: str | None = None


def publish(annotations: Sequence[Annotation], writer: Writer, failures: tuple[type[Exception], ...]) -> Published:
    """Write them level by level, a hundred at a time; a failure keeps what was written before it."""
    ids: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    for level in ("trace", "span"):
        rows = [each.row() for each in annotations if each.level == level]
        for at in range(0, len(rows), AT_ONCE):
            try:
                written = writer.write(level, rows[at : at + AT_ONCE])
            except failures as error:
                return Published(ids=ids, unknown=unknown, error=str(error))
            ids, unknown = ids + written.ids, unknown + written.unknown
    return Published(ids=ids, unknown=unknown)


def as_lines(annotations: Sequence[Annotation]) -> str:
    """annotations.jsonl: one annotation a line."""
    return "".join(f"{msgspec.json.encode(each.as_dict()).decode()}\n" for each in annotations)


def event_of(annotations: Sequence[Annotation], done: Published, error: dict[str, Any] | None) -> WroteBack:
    """What the stream says about a write-back."""
    failed = len(annotations) - len(done.ids)
    whole = failed == 0 and done.error is None
    status = "succeeded" if whole else "failed" if not done.ids else "partial"
    return WroteBack(
        status=status,
        annotation_ids=list(done.ids),
        names=sorted({each.name for each in annotations}),
        annotator_kinds=sorted({each.annotator_kind for each in annotations}),
        succeeded=len(done.ids),
        failed=failed,
        error=error,
    )
