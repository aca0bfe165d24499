"""A loop's view of the worker: a repository, programs that are models (real processes), and one call of `sonde rlms`."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.cli_program import call
from sonde.rlms.request import read_request
from sonde.rlms.result import exit_code
from sonde.rlms.worker import work
from sonde.rlms.wrapper import invoke

IN_ORDER = """\
cat > "$0.prompt"
n=$(( $(cat "$0.count" 2>/dev/null || echo 0) + 1 ))
echo $n > "$0.count"
cp "$0.prompt" "$0.prompt-$n"
if [ -f "$0.reply-$n" ]; then cat "$0.reply-$n"; else cat "$0.reply-last"; fi
"""
SOURCE = "def pay(n):\n    return retry(n)\n\n\nclass Shop:\n    pass  # TODO: error handling\n"
CITED = 'read_file("src/a.py", 1, 2)\nadd_citation("src/a.py", 1, 2, "retry")\nset_final("pay retries")'


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is a model; what it was sent is beside it."""

    path: Path

    @property
    def command(self) -> str:
        return json.dumps(["sh", str(self.path)])

    @property
    def calls(self) -> int:
        count = Path(f"{self.path}.count")
        return int(count.read_text()) if count.exists() else 0

    def prompt(self, number: int) -> str:
        return Path(f"{self.path}.prompt-{number}").read_text()


@dataclass(frozen=True, slots=True)
class Called:
    """How one call of `sonde rlms` ended."""

    code: int
    stdout: str
    stderr: str
    output: Path

    @property
    def result(self) -> dict[str, Any]:
        return json.loads((self.output / "result.json").read_text())


class Loop:
    """A repository with two files and everything the worker needs; `usual` flags go with every call."""

    def __init__(self, tmp: Path, **usual: Any) -> None:
        self.tmp = tmp
        self.usual = usual
        self.repo = tmp / "repo"
        (self.repo / "src").mkdir(parents=True)
        (self.repo / "src" / "a.py").write_text(SOURCE)
        (self.repo / "b.txt").write_text("one\ntwo\n")
        self.files = tmp / "files.txt"
        self.list("src/a.py", "b.txt")
        self.output = tmp / "loops" / "demo" / "rlms" / "iter-1" / "planner"

    def list(self, *names: str) -> None:
        self.files.write_text("".join(f"{name}\n" for name in names))

    def replies(self, name: str, replies: Sequence[str]) -> Program:
        """A program that prints these in order, and the last one for ever."""
        path = self.program(name, IN_ORDER).path
        for number, reply in enumerate(replies, 1):
            Path(f"{path}.reply-{number}").write_text(reply)
        Path(f"{path}.reply-last").write_text(replies[-1])
        return Program(path)

    def program(self, name: str, shell: str) -> Program:
        path = self.tmp / f"{name}.sh"
        path.write_text(shell)
        return Program(path)

    def flags(self, root: Program | None, **more: Any) -> dict[str, str]:
        flags = {
            "repo": self.repo,
            "loop_id": "demo",
            "role": "planner",
            "iteration": 1,
            "context_file_list": self.files,
            "output_dir": self.output,
            "max_steps": 4,
            "max_depth": 2,
            "timeout_seconds": 60,
            **({} if root is None else {"root_command_json": root.command}),
            **self.usual,
            **more,
        }
        return {name: str(value) for name, value in flags.items() if value is not None}

    def work(self, root: Program | None, **more: Any) -> dict[str, Any]:
        """The worker in this process; the programs are real ones all the same."""
        self.output.mkdir(parents=True, exist_ok=True)
        flags = {"runs_dir": self.tmp / "runs", **more}
        return work(read_request(self.flags(root, **flags), {}), self.environment())

    def call(self, root: Program | None, **more: Any) -> Called:
        """The wrapper in this process; its worker and the programs are real ones."""
        result = invoke(self.flags(root, **more), self.environment())
        return Called(exit_code(result), json.dumps(result), "", self.output)

    def shell(self, root: Program | None, *, env: dict[str, str] | None = None, **more: Any) -> Called:
        """`sonde rlms` as a loop calls it."""
        return self.sonde("rlms", *self.words(root, **more), env=env)

    def words(self, root: Program | None, **more: Any) -> list[str]:
        flags = self.flags(root, **more)
        switches = [f"--{name}" for name in ("standalone", "json") if flags.pop(name, None)]
        return [*switches, *(part for name, value in flags.items() for part in (f"--{name.replace('_', '-')}", value))]

    def sonde(self, *words: str, env: dict[str, str] | None = None) -> Called:
        done = call(*words, cwd=self.tmp, env=self.environment() | (env or {}))
        return Called(done.returncode, done.stdout, done.stderr, self.output)

    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.tmp), "TERM": "dumb"}


def fenced(code: str) -> str:
    return f"Thinking.\n```python\n{code}\n```\n"


def has_ended(pid: str, seconds: float = 60.0) -> bool:
    """Whether a process ends within this time; one that nobody has reaped yet has ended."""
    try:
        watched = os.pidfd_open(int(pid))
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], seconds)[0])
    finally:
        os.close(watched)
