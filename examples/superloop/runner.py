#!/usr/bin/env python3
"""Turn a role's runner into the JSON arrays that `sonde rlms` takes.

    runner.py loop.json demo planner command      ["codex"]
    runner.py loop.json demo planner args         ["exec", "-", "--model", "gpt-5.2", "-c", "model_reasoning_effort=high"]
    runner.py loop.json demo planner prompt_mode  stdin
    runner.py loop.json demo planner run PROMPT   runs the role itself with the prompt of this file

A role names a runner, a model and a level of thinking. `models` maps a model's name to what each runner calls it; `thinking_args` are
the words a runner needs for a level. A role with `fast` takes `fast_args` instead of `args`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def resolve(config: dict[str, Any], loop_id: str, role: str) -> dict[str, Any]:
    """The role's command, arguments and prompt mode."""
    loop = next(each for each in config["loops"] if each["id"] == loop_id)
    wanted = loop["roles"][role]
    runner = config["runners"][wanted["runner"]]
    args = list(runner.get("fast_args" if wanted.get("fast") else "args", []))
    model = config.get("models", {}).get(wanted.get("model"), {}).get(wanted["runner"], wanted.get("model"))
    if model:
        args += [word.replace("{model}", model) for word in runner.get("model_args", [])]
    args += runner.get("thinking_args", {}).get(wanted.get("thinking"), [])
    return {"command": runner["command"], "args": args, "prompt_mode": runner.get("prompt_mode", "stdin")}


def run(runner: dict[str, Any], prompt: Path) -> int:
    """Run the role; its report goes to standard output."""
    with tempfile.TemporaryDirectory() as folder:
        values = {"{prompt_file}": str(prompt), "{last_message_file}": f"{folder}/last.md", "{repo}": str(Path.cwd())}
        words = [*runner["command"], *runner["args"]]
        for placeholder, value in values.items():
            words = [word.replace(placeholder, value) for word in words]
        by_file = runner["prompt_mode"] == "file"
        done = subprocess.run(words, input=b"" if by_file else prompt.read_bytes(), check=False)
    return done.returncode


def main() -> int:
    config, loop_id, role, what, *more = sys.argv[1:]
    runner = resolve(json.loads(Path(config).read_text()), loop_id, role)
    if what == "run":
        return run(runner, Path(more[0]))
    print(runner[what] if what == "prompt_mode" else json.dumps(runner[what]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
