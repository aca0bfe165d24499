"""Ratios that can be trusted on a busy machine, guarded in under three minutes: exit code 1 when one is broken.

    python benchmarks/quick.py [--only NAME,...] [--json]

Both sides of a ratio are measured in turn, several times, and the best of each counts; a ratio that looks broken is measured again, twice
at most, before it is called broken. Absolute times are for benchmarks/all.py on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tokens
from sandbox_measure import CONTEXT_BYTES, LOOP
from traces import write as write_spans

from sonde.contexts.files import FilesContext
from sonde.contexts.traces.filestore import FileStore
from sonde.sandbox import Args, Limits, Sandbox
from sonde.sandbox.policy import ALLOWED_MODULES
from sonde.testing import ScriptedModel, run_in_memory

ATTEMPTS = 3
LOOPS = 1_000_000
# rlms 0.1.3, the cheaper peer, over the five tasks of tokens.py and over one of them, by the stand-in tokenizer
TOKENS_OF_RLMS, BATCH_OF_RLMS = 29_898, 10_344
Sides = tuple[float, float]
"""Seconds (or tokens) of the upper and of the lower side of a ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Something that must stay below `most` times something else."""

    what: str
    most: float
    sides: Callable[[], Sides]


def best_of(times: int, *actions: Callable[[], object]) -> list[float]:
    """The best time of each, measured in turn so that a disturbance hits all alike."""
    found: list[list[float]] = [[] for _ in actions]
    for _ in range(times):
        for taken, action in zip(found, actions, strict=True):
            started = time.perf_counter()
            action()
            taken.append(time.perf_counter() - started)
    return [min(taken) for taken in found]


def turn_against_spawn() -> Sides:
    """Both have the same modules at hand."""
    program = f"import {', '.join(sorted(ALLOWED_MODULES))}\nx = 1"
    with Sandbox() as box:
        box.execute("x = 0")
        turn, spawn = best_of(
            30, lambda: box.execute("x += 1"), lambda: subprocess.run([sys.executable, "-I", "-c", program], check=True)
        )
    return turn, spawn


def loop_against_plain() -> Sides:
    code = f"def work():\n    {LOOP.format(count=LOOPS).replace(chr(10), chr(10) + '    ')}\nwork()"
    program = compile(code, "loop", "exec")
    with Sandbox(limits=Limits(wall_s=60)) as box:
        confined, plain = best_of(4, lambda: box.execute(code), lambda: exec(program, {}))
    return confined, plain


def turn_with_much_shared() -> Sides:
    with Sandbox() as small, Sandbox() as large:
        small.share("context", "x")
        large.share("context", b"x" * CONTEXT_BYTES)
        for box in (small, large):
            box.execute("n = len(context)")
        over, under = best_of(40, lambda: large.execute("n = len(context)"), lambda: small.execute("n = len(context)"))
    return over, under


def late_turn_against_early() -> Sides:
    with Sandbox() as box:
        (early,) = best_of(40, lambda: box.execute("x = 1"))
        for _ in range(100):
            box.execute("x = 1")
        (late,) = best_of(40, lambda: box.execute("x = 1"))
    return late, early


def host_call_against_turn() -> Sides:
    def answer(_name: str, _args: Args) -> int:
        return 1

    with Sandbox(host=answer, functions=["ask"]) as box:
        box.execute("x = 0")
        calls, turn = best_of(6, lambda: box.execute("for i in range(100): ask(i)"), lambda: box.execute("x = 1"))
    return (calls - turn) / 100, turn


def run_over_large_context() -> Sides:
    def ask(size: int) -> Callable[[], object]:
        text = "one line of text\n" * (size // 17)
        replies = ["print(len(CONTEXT), CONTEXT[1000:1100])"] * 8 + ["FINAL('done')"] * 2
        return lambda: run_in_memory(ScriptedModel(replies), "How long is it?", text)

    large, small = best_of(3, ask(20_000_000), ask(200_000))
    return large, small


def span_in_a_large_store() -> Sides:
    with tempfile.TemporaryDirectory() as folder:
        stores: list[FileStore] = []
        for count in (40_000, 4_000):
            path = Path(folder, f"{count}.jsonl")
            write_spans(path, count, 400, "flat")
            stores.append(FileStore(path, cache=Path(folder, "cache")))
        over, under = best_of(50, *(lambda store=store: store.span(f"{1234 + 1:016x}") for store in stores))
        for store in stores:
            store.close()
    return over, under


def search_grows_with_the_text() -> Sides:
    with tempfile.TemporaryDirectory() as folder:
        contexts: list[FilesContext] = []
        for size in (50, 5):
            path = Path(folder, f"{size}.log")
            path.write_text("INFO nothing to see here, move along\n" * (size * 1_000_000 // 37) + "FATAL zebra\n")
            contexts.append(FilesContext([path]))
        over, under = best_of(4, *(lambda context=context: context.grep("zebra") for context in contexts))
    return over, under


def tokens_against_peer() -> Sides:
    """The same on every machine: counts, not times."""
    return tokens.sent_by_sonde(tokens.FIVE), TOKENS_OF_RLMS


def judgements_against_peer() -> Sides:
    """Most of these tokens are the same for every system; 0.763 by this tokenizer is 0.747 by cl100k_base."""
    return tokens.sent_by_sonde(["batch"]), BATCH_OF_RLMS


RATIOS = {
    "turn": Ratio(what="a turn, against starting CPython", most=0.25, sides=turn_against_spawn),
    "loop": Ratio(what="a loop in the sandbox, against the same loop here", most=1.4, sides=loop_against_plain),
    "shared": Ratio(what="a turn with 100 MB shared, against one without", most=2.5, sides=turn_with_much_shared),
    "late": Ratio(what="turn 150, against turn 10", most=2.0, sides=late_turn_against_early),
    "call": Ratio(what="a host call, against a turn", most=0.5, sides=host_call_against_turn),
    "context": Ratio(what="a run over 20 MB, against one over 0.2 MB", most=4.0, sides=run_over_large_context),
    "span": Ratio(what="reading a span of 40,000, against one of 4,000", most=3.0, sides=span_in_a_large_store),
    "search": Ratio(what="searching 50 MB, against 5 MB", most=20.0, sides=search_grows_with_the_text),
    "tokens": Ratio(what="tokens sent over five tasks, against rlms 0.1.3", most=0.59, sides=tokens_against_peer),
    "judgements": Ratio(
        what="tokens sent over a batch of judgements, against rlms 0.1.3", most=0.77, sides=judgements_against_peer
    ),
}


def judged(ratio: Ratio) -> tuple[float, bool]:
    """The smallest ratio of some attempts, and whether it holds."""
    found = float("inf")
    for _ in range(ATTEMPTS):
        over, under = ratio.sides()
        found = min(found, over / under)
        if found <= ratio.most:
            return found, True
    return found, False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(RATIOS))
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    started = time.monotonic()
    rows = {name: judged(RATIOS[name]) for name in chosen.only.split(",")}
    broken = [name for name, (_, holds) in rows.items() if not holds]
    if chosen.json:
        print(json.dumps({name: {"ratio": found, "most": RATIOS[name].most} for name, (found, _) in rows.items()}))
    else:
        print("| ratio | measured | at most | holds |\n|---|---|---|---|")
        for name, (found, holds) in rows.items():
            print(f"| {RATIOS[name].what} | {found:.3g} | {RATIOS[name].most:g} | {'yes' if holds else 'NO'} |")
    print(f"\n{time.monotonic() - started:.0f} s; broken: {', '.join(broken) or 'none'}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
