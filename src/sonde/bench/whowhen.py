"""Who&When (arXiv 2505.00212): which agent at which step decided the failure of a multi-agent conversation.

The folder holds `algorithm/*.json`, `handcrafted/*.json` and `labels.json`. Published are agent accuracy and step accuracy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sonde.bench.suite import BenchCase, fits, json_in
from sonde.contexts.traces.importers.whowhen import agent_of, trace_id_of
from sonde.engines.submission import fields_of
from sonde.errors import ConfigError

PLAIN = """Below is a conversation of several agents that failed to solve a problem. Name the agent that made the mistake that is directly
responsible for the wrong solution, and the step (numbers are given) at which it was first made.

Problem: {question}

Conversation:
{history}

Answer with JSON only: {{"agent": "name", "step": 0, "why": "..."}}"""


class WhoWhen:
    """The benchmark over one folder."""

    name = "whowhen"
    taxonomy: str | None = None

    def __init__(self, data: Path) -> None:
        self.data = data

    def cases(self) -> list[BenchCase]:
        """One per conversation, ordered by split and number."""
        paths = sorted(
            self.data.glob("*/*.json"),
            key=lambda path: (path.parent.name, int(path.stem) if path.stem.isdigit() else 0, path.stem),
        )
        found = [
            BenchCase(key=f"{path.parent.name}/{path.stem}", source=path, trace_id=trace_id_of(_record(path)))
            for path in paths
        ]
        if not found:
            raise ConfigError(f"{self.data} has no <split>/*.json; give the folder of the Who&When data")
        return found

    def predicted(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """The decisive agent and step."""
        found = fields_of(report.get("decisive"))
        return {"agent": found.get("agent"), "step": found.get("step")}

    def by_rule(self, case: BenchCase, report: Mapping[str, Any]) -> dict[str, Any]:
        """Whoever spoke first: the simplest thing that could be right."""
        del report
        return {"agent": agent_of(_record(case.source)["history"][0]), "step": 0}

    def plain_prompt(self, case: BenchCase) -> str | None:
        """The question and the whole history."""
        record = _record(case.source)
        steps = (f"Step {at} - {agent_of(each)}: {each.get('content')}" for at, each in enumerate(record["history"]))
        return fits(PLAIN.format(question=record["question"], history="\n".join(steps)))

    def read_plain(self, text: str) -> dict[str, Any]:
        """The object in the answer."""
        answer = fields_of(json_in(text, "{"))
        return {"agent": answer.get("agent"), "step": answer.get("step")}

    def score(self, case: BenchCase, predicted: Any) -> dict[str, float]:
        """Whether agent and step are right."""
        gold = self.gold(case)
        named, right = (str(name or "").strip().casefold() for name in (predicted["agent"], gold["mistake_agent"]))
        return {
            "agent": float(named == right != ""),
            "step": float(str(predicted["step"]) == str(gold["mistake_step"])),
        }

    def overall(self, predictions: Sequence[tuple[BenchCase, Any]]) -> dict[str, float]:
        """Nothing beyond the means."""
        del predictions
        return {}

    def tables(self, predictions: Sequence[tuple[BenchCase, Any]]) -> str:
        """Right and wrong by split."""
        lines = ["| split | cases | agent | step |", "|---|---|---|---|"]
        for split in dict.fromkeys(case.key.partition("/")[0] for case, _ in predictions):
            scores = [self.score(case, predicted) for case, predicted in predictions if case.key.startswith(split)]
            agent, step = (sum(score[name] for score in scores) / len(scores) for name in ("agent", "step"))
            lines.append(f"| {split} | {len(scores)} | {agent:.2f} | {step:.2f} |")
        return "\n".join(lines)

    def gold(self, case: BenchCase) -> dict[str, str]:
        """The gold label of a case."""
        labels = json.loads((self.data / "labels.json").read_text("utf-8"))
        return labels[case.key]


def _record(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))
