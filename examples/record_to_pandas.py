"""Run folders as tables: what ran, what it cost, where the time went.

    python examples/record_to_pandas.py ~/.local/state/sonde/runs/PROJECT        (needs: pip install pandas)

Everything is in two files of a run: run_record.json is the fold of the run, events.jsonl the stream it was folded from.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd


def runs(folder: Path) -> pd.DataFrame:
    """One row a run. A run that is still going on, or was killed, has no record yet and no row."""
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("*/run_record.json"))]
    return pd.json_normalize(records)


def events(run: Path) -> pd.DataFrame:
    """One row an event. A torn last line is no error: a killed run has one."""
    lines = (run / "events.jsonl").read_text().splitlines(keepends=True)
    return pd.DataFrame([json.loads(line) for line in lines if line.endswith("\n")])


def main(folder: Path) -> None:
    table = runs(folder)
    shown = ["run_type", "status", "runtime_ref.usage.iterations", "metrics.tokens_in", "metrics.total_latency_s"]
    print(table[shown].to_string(index=False))
    last = events(folder / str(table["run_id"].iloc[-1]))
    print(last["type"].value_counts().to_string())


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
