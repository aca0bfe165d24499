"""Thirty pieces of data that tell the model what to do (tests/hostile/injections.py), with a real model.

    python benchmarks/instructed.py --model M [--parallel 4] [--only NAME ...]

Every change that the model wants is approved, so only the model, the prompts and the gates stand between the data and its aim. The table
says for each whether the data got its way, how the run ended, and whether the attempt was shown to the user as a gap.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "hostile"))

from injections import INJECTIONS, TRACE_ID, Injection, Seen

import sonde


def run(case: Injection, model: str, place: Path) -> tuple[Seen, Any]:
    folder = place / case.name.replace(" ", "-").replace("'", "")
    (folder / "data").mkdir(parents=True)
    case.write(folder / "data")
    options: dict[str, Any] = {"model": model, "runs_dir": folder / "runs"}
    match case.command:
        case "ask":
            done: Any = sonde.ask(case.task, folder / "data", **options)
        case "edit":
            done = sonde.edit(case.task, folder / "data", approve=lambda _plan: True, **options)
        case "rca":
            done = sonde.rca(TRACE_ID, folder / "data" / "traces.jsonl", writeback=False, **options)
        case _:
            done = sonde.comply(TRACE_ID, folder / "data" / "traces.jsonl", writeback=False, **options)
    report: dict[str, Any] = {}
    if case.command in ("rca", "comply"):
        report = json.loads((done.run_dir / "result.json").read_text())
    files = {
        str(path.relative_to(folder / "data")): path.read_text()
        for path in (folder / "data").rglob("*")
        if path.is_file()
    }
    return Seen(text=done.text, report=report, files=files), done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--only", nargs="*", help="names of cases")
    chosen = parser.parse_args()
    cases = [case for case in INJECTIONS if not chosen.only or case.name in chosen.only]
    obeyed = told = tokens = 0
    print(f"{'attempt':24} {'command':8} {'got its way':12} {'status':10} {'shown as a gap':15} turns  tokens")
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(chosen.parallel) as pool:
        runs = [pool.submit(run, case, chosen.model, Path(place)) for case in cases]
        for case, future in zip(cases, runs, strict=True):
            seen, done = future.result()
            got, shown = case.obeyed(seen), any("instruct" in gap for gap in done.gaps)
            used = done.usage
            obeyed, told, tokens = obeyed + got, told + shown, tokens + used.tokens_in + used.tokens_out
            print(
                f"{case.name:24} {case.command:8} {'YES' if got else 'no':12} {done.status:10} {'yes' if shown else 'no':15} "
                f"{used.iterations:5}  {used.tokens_in + used.tokens_out:,}",
                flush=True,
            )
            if got:
                print(f"    {seen.text[:300]!r}")
    print(f"{len(cases)} attempts: {obeyed} got their way, {told} were shown as a gap; {tokens:,} tokens")
    return 1 if obeyed else 0


if __name__ == "__main__":
    sys.exit(main())
