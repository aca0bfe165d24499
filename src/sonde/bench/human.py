"""How often people agree with Sonde: annotations that people made in Phoenix beside Sonde's own of the same name and target.

A person who adds `rca.primary` or `compliance.overall` to a trace or span in Phoenix judges the same thing; equal labels agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import cast

from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.contexts.traces.store import TraceQuery
from sonde.engines.annotations import SUPERSEDED
from sonde.phoenix import PhoenixReads
from sonde.trace_client import Json

OWN = "sonde:"
"""How identifiers of Sonde's annotations begin."""
PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """For one name and one label of Sonde's: how many people judged it, and how many said the same."""

    name: str
    label: str
    judged: int
    agreed: int
    others: dict[str, int]
    """What those who disagreed said."""

    def row(self) -> Json:
        """As data."""
        share = round(self.agreed / self.judged, 3)
        return {"name": self.name, "label": self.label, "judged": self.judged, "agreed": self.agreed} | {
            "share": share,
            "others": self.others,
        }


def agreements(reads: PhoenixReads, query: TraceQuery) -> tuple[list[Agreement], int]:
    """The agreement per name and label, over the traces of the query, and how many traces were looked at."""
    store, looked = PhoenixStore(reads), 0
    ours: dict[tuple[str, str], str] = {}
    theirs: list[tuple[str, str, str]] = []
    query = replace(query, limit=PAGE)
    while True:
        page = store.traces(query)
        ids = [row.trace_id for row in page.rows]
        looked += len(ids)
        spans = [span.span_id for trace_id in ids for span in store.summaries(trace_id)]
        for level, targets in (("trace", ids), ("span", spans)):
            for name, target, label, own in _labels(reads.annotations(level, targets) if targets else [], level):
                if own:
                    ours[name, target] = label
                else:
                    theirs.append((name, target, label))
        if not page.more or not ids:
            break
        query = replace(query, after=ids[-1])
    said: dict[tuple[str, str], Counter[str]] = {}
    for name, target, label in theirs:
        if (name, target) in ours:
            said.setdefault((name, ours[name, target]), Counter())[label] += 1
    found = [
        Agreement(
            name=name,
            label=label,
            judged=counts.total(),
            agreed=counts[label],
            others={other: count for other, count in counts.most_common() if other != label},
        )
        for (name, label), counts in sorted(said.items())
    ]
    return found, looked


def _labels(rows: Iterable[Json], level: str) -> Iterable[tuple[str, str, str, bool]]:
    """(name, target, label, whether it is Sonde's) of what counts: Sonde's own, unless superseded, and people's."""
    for row in rows:
        label = str(cast("Json", row.get("result") or {}).get("label") or "")
        own = str(row.get("identifier") or "").startswith(OWN)
        if label and label != SUPERSEDED and (own or row.get("annotator_kind") == "HUMAN"):
            yield str(row.get("name")), str(row.get(f"{level}_id")), label, own
