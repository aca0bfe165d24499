"""How many prompts and tokens it takes to read traces with a taxonomy, without asking anybody: canned replies stand in for the model.

    python benchmarks/reading.py DIR [KEY ...]      # DIR holds <split>/traces/*.json, as for `sonde bench trail`

The root claims as many failures as a usual trace of the length has, the readers of parts claim two each, and the sceptic agrees. Tokens are
estimated from the texts, as everywhere where a model does not report them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import fmean

from sonde.api.investigations import rca
from sonde.bench.trail import Trail
from sonde.models import ModelRequest
from sonde.testing import ScriptedModel

SPAN = re.compile(r"\bspan ([0-9a-f]{16})\b")
WHY = "it says so in words that are about as long as the reason that a reader would give for such a claim, with a quote"


def canned(request: ModelRequest) -> str:
    """A reply of the form that the prompt asks for."""
    text = request.messages[-1].content
    spans = list(dict.fromkeys(SPAN.findall(text)))
    claims = [{"id": at, "category": "Goal Deviation", "span_id": span, "why": WHY} for at, span in enumerate(spans)]
    if "You doubt every claim" in text:
        return json.dumps([{"claim": at, "odds": 0.7, "why": "the words are there"} for at in range(12)])
    if "The steps of this part:" in text:
        return json.dumps(claims[:2])
    usual = 4 if len(spans) < 8 else 8
    fields = {"first_failure": 0, "primary_label": "instruction_failure", "summary": WHY, "confidence": 0.8}
    return json.dumps({"claims": claims[:usual], **fields})


def main() -> None:
    """Print a row per trace, and the means."""
    folder, *keys = sys.argv[1:]
    rows: list[tuple[bool, int, int]] = []
    print(f"{'trace':22}{'kB':>7}{'steps':>7}{'readers':>9}{'prompts':>9}{'tokens':>9}")
    for case in Trail(Path(folder)).cases():
        if keys and not any(case.key.startswith(key) or case.trace_id.startswith(key) for key in keys):
            continue
        model = ScriptedModel(canned)
        found = rca(case.trace_id, case.source, model=model, taxonomy="trail", in_memory=True)
        assert found.report is not None, found.gaps
        covered, used = found.report["coverage"], found.record.runtime_ref.usage
        readers = [each for each in covered["readers"] if not each.startswith("root:")]
        prompts = len(model.requests)
        rows.append((bool(readers), prompts, used.tokens_total))
        size = case.source.stat().st_size // 1000
        print(f"{case.key[:21]:22}{size:7}{covered['steps']:7}{len(readers):9}{prompts:9}{used.tokens_total:9,}")
    for name, long in (("whole in one prompt", False), ("read in parts", True)):
        some = [row for row in rows if row[0] is long]
        if some:
            mean = fmean(tokens for _, _, tokens in some)
            print(
                f"{name}: {len(some)} traces, {fmean(count for _, count, _ in some):.1f} prompts, {mean:,.0f} tokens each"
            )


if __name__ == "__main__":
    main()
