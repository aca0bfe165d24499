"""The shape of src, held against what is recorded in scripts/shape.json: `make check` fails when a figure has become worse.

    python scripts/shape.py            # prints every figure beside the recorded one; exit code 1 when one is worse
    python scripts/shape.py --record   # records the figures as they are now
    python scripts/shape.py --names    # also names what was counted

Smaller is better for each of them. They show what a stranger pays: jumps to helpers that are used once, one name with several meanings,
modules too small to hold an idea, layers between a question and the model (scripts/walk.py).
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

from walk import walk

SRC = Path(__file__).parent.parent / "src"
RECORDED = Path(__file__).with_suffix(".json")
SMALL = 60
Function = ast.FunctionDef | ast.AsyncFunctionDef


def figures() -> tuple[dict[str, float], dict[str, list[str]]]:
    """The figures, and by figure the names behind them."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SRC.rglob("*.py"))}
    lines = {path: path.read_text(encoding="utf-8").count("\n") for path in trees}
    functions, private, public = used_once(trees)
    homes: defaultdict[str, set[Path]] = defaultdict(set)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(path)
    walked = walk()
    names = {
        "private functions used once, %": private,
        "functions used once, %": private + public,
        "class names with several meanings": [
            f"{name} ({len(where)})" for name, where in homes.items() if len(where) > 1
        ],
        "modules named by a gerund": [str(path.relative_to(SRC)) for path in trees if path.stem.endswith("ing")],
        f"modules under {SMALL} lines": [str(path.relative_to(SRC)) for path in trees if lines[path] < SMALL],
        "classes before the first model call": [name for name in walked.counted if walked.classes[name]],
        "classes on the whole walk": walked.counted,
        "frames on the walk": walked.frames,
    }
    counts: dict[str, float] = {"lines": sum(lines.values())} | {name: len(found) for name, found in names.items()}
    counts |= {name: round(100 * count / functions, 1) for name, count in counts.items() if name.endswith("%")}
    return counts, names


def used_once(trees: dict[Path, ast.Module]) -> tuple[int, list[str], list[str]]:
    """How many functions there are, and those that are named exactly once beside their definition, in a call: private ones in their
    module, public ones in the whole package. Imports do not count as uses, and a name with two definitions is left alone. What is handed
    on as a value (a tool of the model, an entry of a table, a callback) could not be written where it is used.
    """
    defined: Counter[str] = Counter()
    used: Counter[str] = Counter()
    called: Counter[str] = Counter()
    private: list[str] = []
    public: list[tuple[str, str]] = []
    for path, tree in trees.items():
        here: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        own: list[tuple[str, str]] = []
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef() if not is_dunder(node.name):
                    own.append((node.name, f"{path.relative_to(SRC)}:{node.lineno} {node.name}"))
                case ast.Name(id=name) | ast.Attribute(attr=name) if isinstance(node.ctx, ast.Load):
                    here[name] += 1
                case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
                    calls[name] += 1
                case _:
                    pass
        mine = Counter(name for name, _ in own)
        private += [
            where for name, where in own if name.startswith("_") and mine[name] == here[name] == calls[name] == 1
        ]
        public += [(name, where) for name, where in own if not name.startswith("_")]
        defined += mine
        used += here
        called += calls
    once = [where for name, where in public if defined[name] == used[name] == called[name] == 1]
    return defined.total(), private, once


def is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def main(arguments: list[str]) -> int:
    now, names = figures()
    if "--record" in arguments:
        RECORDED.write_text(json.dumps(now, indent=2) + "\n")
    recorded: dict[str, float] = json.loads(RECORDED.read_text())
    worse = [name for name, figure in now.items() if figure > recorded.get(name, 0)]
    for name, figure in now.items():
        print(f"{figure:8g}  {name}  (recorded: {recorded.get(name, 0):g}){'  WORSE' if name in worse else ''}")
        if "--names" in arguments:
            print("".join(f"{'':12}{each}\n" for each in names.get(name, [])), end="")
    if worse:
        print("\nThe shape has become worse; --names says what was counted. Make it better elsewhere,")
        print("or record the new figures with --record and say why in the commit.")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
