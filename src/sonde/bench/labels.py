"""The seeded traces as a benchmark: the primary label of each trace against the manifest. The majority label is the least to beat.

The folder holds `traces.jsonl` and `manifest.json`, as `sonde.bench.seeded` writes them. Healthy traces have no failure to label and do
not count for accuracy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.bench.metrics import category_rows
from sonde.bench.seeded import HEALTHY
from sonde.bench.suite import BenchCase, fits, json_in
from sonde.contexts.traces.rules import LABELS
from sonde.engines.submission import fields_of
from sonde.errors import ConfigError

PLAIN = """Below are the spans of a failed LLM trace, one JSON object a line. Name the root cause with one of these labels: {labels}.
Answer with JSON only: {{"label": "...", "why": "..."}}

{trace}"""


class Seeded:
    """The benchmark over one folder."""

    name = "seeded"
    taxonomy: str | None = None

    def __init__(self, data: Path) -> None:
        self.data = data
        self.traces = data / "traces.jsonl"
        if not self.traces.is_file():
            raise ConfigError(f"{data} has no traces.jsonl; make one with `sonde bench seeded --data DIR --make 100`")

    def cases(self) -> list[BenchCase]:
        """One per trace with a fault."""
        gold = self._gold()
        return [
            BenchCase(key=trace_id, source=self.traces, trace_id=trace_id)
            for trace_id in gold
            if gold[trace_id] != HEALTHY
        ]

    def predicted(self, report: Mapping[str, Any]) -> str:
        """The primary label."""
        return str(report.get("primary_label", ""))

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> str:
        """The rule's label."""
        del case
        return self.predicted(report)

    def plain_prompt(self, case: BenchCase) -> str | None:
        """The labels and all spans of the trace."""
        lines = [line for line in self.traces.read_text("utf-8").splitlines() if case.trace_id in line]
        return fits(PLAIN.format(labels=", ".join(sorted(LABELS)), trace="\n".join(lines)))

    def read_plain(self, text: str) -> str:
        """The label in the answer."""
        return str(fields_of(json_in(text, "{")).get("label", ""))

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """Whether the label is right."""
        return {"accuracy": float(predicted == self._gold()[case.key])}

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """What always naming the commonest label would have got."""
        gold = self._gold()
        counts = Counter(gold[case.key] for case, _ in predictions)
        return {"majority": max(counts.values(), default=0) / max(len(predictions), 1)}

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """How well each label was named."""
        gold = self._gold()
        rows = category_rows([([predicted], [gold[case.key]]) for case, predicted in predictions], sorted(LABELS))
        lines = [f"| {row.category} | {row.gold} | {row.named} | {row.right} | {row.f1:.2f} |" for row in rows]
        return "| label | gold | named | right | F1 |\n|---|---|---|---|---|\n" + "\n".join(lines)

    def _gold(self) -> dict[str, str]:
        manifest = json.loads((self.data / "manifest.json").read_text("utf-8"))
        return {each["trace_id"]: each["label"] for each in manifest}
