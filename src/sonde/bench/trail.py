"""TRAIL (arXiv 2505.08638): which errors of 21 categories lie in which spans of an agent's trace.

The folder holds `<split>/traces/*.json` and `<split>/annotations/*.json`. Published are location accuracy (gold spans found), joint
accuracy (gold pairs of span and category found), both per trace and averaged, and category F1. Gold files spell categories in several ways.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.bench.metrics import Pair, Row, category_rows, overlap, plain_name, weighted_f1
from sonde.bench.suite import BenchCase, fits, json_in
from sonde.engines.submission import fields_of, items_of
from sonde.engines.taxonomies import Taxonomy, load_taxonomy
from sonde.errors import ConfigError

PLAIN = """Below is the trace of an LLM agent as JSON. List every error in it. Categories:
{categories}

Answer with a JSON list only: [{{"category": "one of the categories", "location": "span_id", "evidence": "...", "description": "..."}}]

{trace}"""


class Trail:
    """The benchmark over one folder."""

    name = "trail"
    taxonomy: str | None = "trail"

    def __init__(self, data: Path) -> None:
        self.data = data
        self.categories: Taxonomy = load_taxonomy("trail")
        self._names = {plain_name(each.name): each.name for each in self.categories.categories}

    def cases(self) -> list[BenchCase]:
        """One per trace file, ordered by split and id."""
        found = [
            BenchCase(key=f"{path.parent.parent.name}/{path.stem}", source=path, trace_id=path.stem)
            for path in sorted(self.data.glob("*/traces/*.json"))
        ]
        if not found:
            raise ConfigError(f"{self.data} has no <split>/traces/*.json; give the folder of the TRAIL data")
        return found

    def predicted(self, report: Mapping[str, Any]) -> list[list[str]]:
        """Span and category of each finding."""
        return [[each["span_id"], each["category"]] for each in report.get("findings", [])]

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> list[list[str]]:
        """The steps whose errors the rule knows; otherwise the spans it points at, without a category."""
        del case
        return self.predicted(report) or [[ref["span_id"], ""] for ref in report.get("evidence_refs", [])]

    def plain_prompt(self, case: BenchCase) -> str | None:
        """The categories and the whole trace file, without the `logs` that carry the true answers."""
        text = case.source.read_text("utf-8")
        if '"logs"' in text:
            without = json.loads(text, object_hook=lambda found: {k: v for k, v in found.items() if k != "logs"})
            text = json.dumps(without, ensure_ascii=False)
        return fits(PLAIN.format(categories=self.categories.listed(), trace=text))

    def read_plain(self, text: str) -> list[list[str]]:
        """The list in the answer."""
        listed = [fields_of(each) for each in items_of(json_in(text, "["))]
        return [[str(each["location"]), str(each.get("category", ""))] for each in listed if "location" in each]

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """Location and joint recall, with precision."""
        named, gold = self._pairs(predicted), self.gold(case)
        places = overlap([span for span, _ in named], [span for span, _ in gold])
        joint = overlap(named, gold)
        return {
            "location_recall": places.recall,
            "location_precision": places.precision,
            "joint_recall": joint.recall,
            "joint_precision": joint.precision,
            "findings": float(len(named)),
        }

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """Category F1 over the 21 classes."""
        return {"category_f1": weighted_f1(self._rows(predictions))}

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """How well each category was named, by traces."""
        rows = [row for row in self._rows(predictions) if row.gold or row.named]
        lines = [
            f"| {row.category} | {row.gold} | {row.named} | {row.right} | {row.precision:.2f} | {row.recall:.2f} | {row.f1:.2f} |"
            for row in rows
        ]
        head = "| category | gold traces | named | right | precision | recall | F1 |\n|---|---|---|---|---|---|---|\n"
        return head + "\n".join(lines)

    def gold(self, case: BenchCase) -> set[Pair]:
        """The gold pairs of a case."""
        path = case.source.parent.parent / "annotations" / case.source.name
        errors = json.loads(path.read_text("utf-8"))["errors"]
        return self._pairs([each["location"], each["category"]] for each in errors)

    def _pairs(self, items: Any) -> set[Pair]:
        return {(str(span), self._names.get(plain_name(str(category)), str(category))) for span, category in items}

    def _rows(self, predictions: Sequence[tuple[BenchCase, Any]]) -> list[Row]:
        traces = [
            ([category for _, category in self._pairs(predicted)], [category for _, category in self.gold(case)])
            for case, predicted in predictions
        ]
        return category_rows(traces, list(self._names.values()))
