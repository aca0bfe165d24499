"""Traces of your own, or of anybody, with labels: which step failed first for good, and what kind of failure it was.

The folder holds `taxonomy.yaml` (see docs/findings.md), `<split>/traces/*.json` or `*.jsonl` with one trace each, in any form that Sonde
reads, and `labels.json`: {"<split>/<name>": [{"span_id": "...", "category": "...", "critical": true}]}. A label without a span counts for
its category only. The critical failure is the one from which the run did not recover; without a mark it is the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.bench.metrics import category_rows, overlap, plain_name
from sonde.bench.suite import BenchCase, fits, json_in
from sonde.contexts.traces.importers import whowhen
from sonde.engines.submission import fields_of, items_of
from sonde.engines.taxonomies import load_taxonomy
from sonde.errors import ConfigError

PLAIN = """Below is the trace of an LLM agent. List every failure in it, and mark as critical the first one from which the run did not
recover. Categories:
{categories}

Answer with a JSON list only: [{{"category": "one of the categories", "location": {place}, "critical": true, "why": "..."}}]

{trace}"""


class Labelled:
    """The benchmark over one folder."""

    name = "labelled"

    def __init__(self, data: Path) -> None:
        self.data = data
        if not (data / "taxonomy.yaml").is_file():
            raise ConfigError(f"{data} has no taxonomy.yaml; give a folder with taxonomy.yaml, labels.json and traces")
        self.taxonomy: str | None = str(data / "taxonomy.yaml")
        self.categories = load_taxonomy(data / "taxonomy.yaml")

    def cases(self) -> list[BenchCase]:
        """One per trace file, ordered by split and name."""
        found = [
            BenchCase(key=f"{path.parent.parent.name}/{path.stem}", source=path, trace_id=_trace_id(path))
            for path in sorted(self.data.glob("*/traces/*.json*"))
        ]
        if not found:
            raise ConfigError(f"{self.data} has no <split>/traces/*.json or *.jsonl")
        return found

    def predicted(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Span and category of each finding; the critical one is the report's first failure."""
        found = [fields_of(each) for each in items_of(report.get("findings"))]
        first = next((each for each in found if each.get("first_failure")), None)
        return {
            "critical": None if first is None else [first["span_id"], first["category"]],
            "findings": [[each["span_id"], each["category"]] for each in found],
        }

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> dict[str, Any]:
        """The steps whose errors the rule knows."""
        del case
        return self.predicted(report)

    def plain_prompt(self, case: BenchCase) -> str | None:
        """The categories and the whole trace; a conversation as numbered steps."""
        text, place = case.source.read_text("utf-8"), '"span_id"'
        record = _record(case.source)
        if whowhen.recognise(record):
            place = "step number"
            steps = [
                f"Step {at} - {each.get('name') or each['role']}: {each['content']}"
                for at, each in enumerate(record["history"])
            ]
            text = "\n".join([f"Task: {record['question']}", *steps])
        return fits(PLAIN.format(categories=self.categories.listed(), place=place, trace=text))

    def read_plain(self, text: str) -> dict[str, Any]:
        """The list in the answer; without a mark the first is critical."""
        found = [fields_of(each) for each in items_of(json_in(text, "["))]
        pairs = [[str(each.get("location")), str(each.get("category", ""))] for each in found]
        at = next((at for at, each in enumerate(found) if each.get("critical") is True), 0)
        return {"critical": pairs[at] if pairs else None, "findings": pairs}

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """Step and category of the critical failure, and all places with precision."""
        gold = self.gold(case)
        critical = next((each for each in gold if each.get("critical")), gold[0])
        span_id, category = predicted["critical"] or ("", "")
        right = plain_name(category) == plain_name(critical["category"]) and category != ""
        scores = {"category": float(right), "findings": float(len(predicted["findings"]))}
        if critical.get("span_id"):
            there = _span_id(case, span_id) == critical["span_id"]
            places = overlap(
                {_span_id(case, each) for each, _ in predicted["findings"]},
                {each["span_id"] for each in gold if each.get("span_id")},
            )
            scores |= {"step": float(there), "step_and_category": float(there and right)}
            scores |= {"location_recall": places.recall, "location_precision": places.precision}
        return scores

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """Nothing beyond the means."""
        del predictions
        return {}

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """How well the category of the critical failure was named."""
        names = {plain_name(each.name): each.name for each in self.categories.categories}
        pairs: list[tuple[list[str], list[str]]] = []
        for case, predicted in predictions:
            gold = self.gold(case)
            critical = next((each for each in gold if each.get("critical")), gold[0])
            named: list[str] = [str(predicted["critical"][1])] if predicted["critical"] else []
            pairs.append(
                (
                    [names.get(plain_name(each), each) for each in named],
                    [names.get(plain_name(critical["category"]), "")],
                )
            )
        rows = [row for row in category_rows(pairs, list(names.values())) if row.gold or row.named]
        lines = [f"| {row.category} | {row.gold} | {row.named} | {row.right} |" for row in rows]
        return "\n".join(["| critical failure | gold | named | right |", "|---|---|---|---|", *lines])

    def gold(self, case: BenchCase) -> list[dict[str, Any]]:
        """The labels of a case."""
        return json.loads((self.data / "labels.json").read_text("utf-8"))[case.key]


def _record(path: Path) -> dict[str, Any]:
    """The first JSON object of a file: a line, or all of it."""
    text = path.read_text("utf-8")
    try:
        return fields_of(json.loads(text.partition("\n")[0]))
    except ValueError:
        return fields_of(json.loads(text))


def _trace_id(path: Path) -> str:
    record = _record(path)
    return whowhen.trace_id_of(record) if whowhen.recognise(record) else str(record.get("trace_id", ""))


def _span_id(case: BenchCase, place: str) -> str:
    """A place as a span: plain prompts number the steps of a conversation from 0."""
    return whowhen.span_id_of(case.trace_id, int(place)) if place.isdecimal() and len(place) < 8 else place
