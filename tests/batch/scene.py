"""A folder with a manifest, a model server that counts, and the command line to run them with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cli.cli_program import Shown, call, sonde
from sonde.api.settings import Settings, resolve
from sonde.batch.folder import BatchFolder, ended_of, folder_for, started_of
from sonde.batch.result import ItemResult
from sonde.core.events import ModelReplied
from sonde.runs.rundir import JOURNAL, RunDir
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

PATIENCE_S = 200.0
LOOK = "```python\nprint(read_file('note.txt'))\n```"
FINISH = "```python\nFINAL('it says so [note.txt:1-1]')\n```"


@dataclass(slots=True)
class Server:
    """The counting server: it answers in two turns and knows who asked what, and when."""

    base_url: str = ""
    asked: Counter[str] = field(default_factory=Counter[str])
    times: list[float] = field(default_factory=list[float])
    go: threading.Event = field(default_factory=threading.Event)
    """Set when replies that were held back may go."""

    def reply(self, seen: SeenRequest) -> str:
        """Look, then finish; asked by one request at a time."""
        messages = seen.body["messages"]
        question = next(part for message in messages for part in message["content"].split() if part.startswith("#"))
        self.asked[f"{question} {len(messages)}"] += 1
        self.times.append(time.monotonic())
        return reply(seen)

    def counts(self) -> dict[str, int]:
        """How often each turn of each question was asked."""
        return dict(self.asked)

    def by_question(self) -> dict[str, list[int]]:
        """How often each turn was asked, in the order of turns, by the question's number."""
        found: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for turn, count in self.counts().items():
            question, length = turn.split()
            found[question].append((int(length), count))
        return {question: [count for _, count in sorted(turns)] for question, turns in found.items()}

    def extra(self) -> int:
        """How many requests were made more than once."""
        return sum(count - 1 for count in self.counts().values())

    @property
    def port(self) -> int:
        return int(self.base_url.split(":")[2].split("/")[0])


@contextmanager
def counting_server(delay_s: float = 0.02, port: int = 0, hold_after: int | None = None) -> Generator[Server]:
    """After `hold_after` requests no reply goes out until `go` is set: so much is done by then, and no more."""
    server = Server()

    class Holding(ScriptedServer):
        def answer(self, seen: SeenRequest) -> ScriptedReply:
            said = super().answer(seen)
            if hold_after is not None and sum(server.asked.values()) > hold_after:
                while not (server.go.is_set() or self.closing.is_set()):
                    server.go.wait(0.05)
            return said

    with Holding(server.reply, delay_s=delay_s, port=port) as scripted:
        server.base_url = scripted.base_url
        yield server


def reply(seen: SeenRequest) -> str:
    """Look, then finish."""
    return LOOK if len(seen.body["messages"]) < 3 else FINISH


@dataclass(frozen=True, slots=True)
class Scene:
    """One folder in which a batch is run."""

    path: Path

    def write(self, count: int, extra_lines: Sequence[str] = ()) -> Path:
        """A manifest of so many asks."""
        (self.path / "note.txt").write_text("the note says so\n")
        lines = [json.dumps(self.line(number)) for number in range(count)]
        self.manifest.write_text("\n".join([*lines, *extra_lines]) + "\n")
        return self.manifest

    def line(self, number: int) -> dict[str, Any]:
        question = f"What does the note say? #{number}"
        return {"id": f"q{number}", "engine": "ask", "question": question, "paths": ["note.txt"]}

    @property
    def manifest(self) -> Path:
        return self.path / "items.jsonl"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def folder(self) -> BatchFolder:
        return folder_for(self.manifest, self.runs)

    def settings(self, base_url: str | None = None, model: str = "openai:gpt-4o-mini") -> Settings:
        flags = {"model": model, "base_url": base_url, "runs_dir": str(self.runs)}
        return resolve(flags, {"PATH": os.environ["PATH"]}, self.path)

    def command(self, base_url: str, *more: str, python: str = sys.executable) -> list[str]:
        model = ["--model", "openai:gpt-4o-mini", "--base-url", base_url]
        return [python, "-m", "sonde", "batch", str(self.manifest), "--runs-dir", str(self.runs), *model, *more]

    def start(self, base_url: str, *more: str, **options: Any) -> subprocess.Popen[str]:
        """`sonde batch` as a process of its own."""
        return subprocess.Popen(
            self.command(base_url, *more),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.path,
            **options,
        )

    def run(self, base_url: str, *more: str, env: Mapping[str, str] = os.environ) -> Shown:
        """The same to its end, in this process; its workers have their own."""
        return call(*self.command(base_url, *one_worker(more))[3:], cwd=self.path, env=env)

    def query(self, *flags: str) -> Shown:
        """`sonde batch` without a manifest and without a model."""
        return sonde("batch", "--runs-dir", self.runs, *one_worker(flags), cwd=self.path)

    def results(self) -> dict[str, ItemResult]:
        """By id; fails when an item has more than one line."""
        lines = self.folder.results.read_text().splitlines() if self.folder.results.exists() else []
        ids = [json.loads(line)["id"] for line in lines]
        assert len(ids) == len(set(ids)), "an item has two results"
        return {result.id: result for result in self.folder.finished().values()}

    def replies_on_disk(self) -> dict[str, int]:
        """How many replies are recorded, by the question's number; a run that was killed before its first one is not among them."""
        found: dict[str, int] = {}
        for folder in self.folder.items.iterdir():
            events = RunDir(folder).read().events if (folder / JOURNAL).exists() else []
            if started := started_of(events):
                number = next(word for word in started.objective.split() if word.startswith("#"))
                found[number] = sum(isinstance(event, ModelReplied) for event in events)
        return {number: replies for number, replies in found.items() if replies}

    def runs_ended(self) -> int:
        """How many run folders hold a run with an end."""
        folders = list(self.folder.items.iterdir()) if self.folder.items.is_dir() else []
        return sum(ended_of(RunDir(folder).read().events) is not None for folder in folders)


def one_worker(flags: Sequence[str]) -> Sequence[str]:
    """The flags of a batch, for one worker unless they say otherwise: each one costs a process."""
    return flags if "--concurrency" in flags else (*flags, "--concurrency", "4")


def eventually(true: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    """Wait for something that a process of its own will do."""
    give_up = time.monotonic() + patience_s
    while not true():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    """The workers of a driver."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if "sonde.batch.worker" in line]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def asked_again(server: Server, before: dict[str, list[int]], recorded: dict[str, int]) -> list[str]:
    """Questions of which a reply was asked for again that was on disk already; `before` is `by_question` of then."""
    now = server.by_question()
    return [question for question, turns in recorded.items() if now[question][:turns] != before[question][:turns]]
