"""Record the golden runs of tests/data/runs, or what the tests expect of them.

    python scripts/record_golden.py             # all twelve folders anew, and what is expected of them
    python scripts/record_golden.py edit ask    # only these
    python scripts/record_golden.py --expect    # tests/data/runs/*.json from the folders as they are

The folders were recorded with commit 85a6808, before the code changed shape. They stand for the runs that users have on their disks,
so a change of the code is no reason to record them again, unless it changes a prompt on purpose: then only the runs whose prompts
changed are recorded anew, and docs/decisions.md says why. A scripted server is the model, each run is a process of its own in a
temporary folder, and what is kept names `/golden` instead of that folder.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "golden"))

from golden_runs import KEPT, NAMES, PLACEHOLDER, expect, moved
from golden_words import FOLLOWING_QUESTION, MODEL, RLMS, SAMPLE, SCHEMA, TRACE, WORDS

from sonde.testing import ScriptedServer, SeenRequest

RLMS_PROGRAM = """\
prompt=$(cat)
case "$prompt" in
"what is retried?") cat ../rlms-child.txt ;;
*"Step 2/"*) cat ../rlms-2.txt ;;
*) cat ../rlms-1.txt ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """A temporary folder with the data, in which runs are recorded."""

    place: Path

    def run(self, name: str, *words: str, killed_at: str | None = None) -> None:
        """Run one command with the words of `name`; kill it when a prompt holds `killed_at`. The run folder is called `name`."""
        started: list[subprocess.Popen[str]] = []

        def reply(seen: SeenRequest) -> str:
            if killed_at and killed_at in seen.prompt():
                os.kill(started[0].pid, signal.SIGKILL)
            return WORDS[name](seen)

        with ScriptedServer(reply) as server:
            started.append(
                self._sonde(*words, "--model", MODEL, "--base-url", server.base_url, "--runs-dir", "new", "--json")
            )
            said = started[0].communicate()
        if started[0].returncode != (-signal.SIGKILL if killed_at else 0):
            raise SystemExit(f"{name} ended with {started[0].returncode}: {said}")
        self._keep(name, next((self.place / "new").rglob("events.jsonl")).parent)

    def rlms(self) -> None:
        """A role of a loop, whose models are programs."""
        material = self.place / "material"
        for file, text in zip(("rlms-1.txt", "rlms-2.txt", "rlms-child.txt"), (*RLMS, "the payment"), strict=True):
            (material / file).write_text(text)
        (material / "rlms.sh").write_text(RLMS_PROGRAM)
        (self.place / "files.txt").write_text("src/pay.txt\nnotes.txt\n")
        loop = ["--loop-id", "demo", "--role", "planner", "--iteration", "1"]
        limits = ["--max-steps", "4", "--max-depth", "2", "--timeout-seconds", "60"]
        where = ["--repo", "material/repo", "--context-file-list", "files.txt", "--output-dir", "out", "--standalone"]
        started = self._sonde("rlms", *loop, *limits, *where, "--root-command-json", json.dumps(["sh", "../rlms.sh"]))
        said = started.communicate()
        if started.returncode != 0:
            raise SystemExit(f"rlms ended with {started.returncode}: {said}")
        self._keep("rlms", next((self.place / "out" / "runs").iterdir()))

    def _keep(self, name: str, folder: Path) -> None:
        (self.place / "runs").mkdir(exist_ok=True)
        folder.rename(self.place / "runs" / name)
        shutil.rmtree(self.place / "new", ignore_errors=True)

    def _sonde(self, *words: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.place),
            "TERM": "dumb",
            "OPENAI_API_KEY": "scripted",
        }
        return subprocess.Popen(
            [sys.executable, "-m", "sonde", *words],
            cwd=self.place,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def record(stage: Stage) -> None:
    shop, traces = "material/shop", ["--source", "material/traces.jsonl", "--project", "shop"]
    stage.run("ask", "ask", "Why did checkout fail?", shop)
    stage.run("follow-up", "ask", FOLLOWING_QUESTION, "--continue", "runs/ask")
    stage.run("actions", "ask", "How large was the pool?", shop, "--mode", "actions")
    stage.run("subcalls", "ask", "How often was it tried?", shop)
    stage.run("interrupted", "ask", "How often was it tried?", shop, killed_at="child 4")
    stage.run("limit", "ask", "What does the gateway say?", shop, "--max-iterations", "3")
    (stage.place / "material" / "workspace" / "sample.ts").write_text(SAMPLE)
    stage.run("edit", "edit", "Add a function that squeezes spaces", "material/workspace", "--yes")
    stage.run("rca", "rca", TRACE, *traces)
    stage.run("compliance", "comply", TRACE, *traces)
    stage.run("incident", "incident", *traces, "--configs", "material/configs", "--to", "2026-01-01T01:00:00Z")
    item = {"id": "order", "engine": "ask", "question": "Which order failed?", "paths": [shop], "schema": SCHEMA}
    (stage.place / "manifest.jsonl").write_text(f"{json.dumps(item)}\n")
    stage.run("batch-item", "batch", "manifest.jsonl", "--name", "golden")
    stage.rlms()


def main() -> None:
    if unknown := [each for each in sys.argv[1:] if each not in (*NAMES, "--expect")]:
        raise SystemExit(f"{unknown[0]} is no golden run; there are: {', '.join(NAMES)}")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder).resolve()
        if "--expect" not in sys.argv:
            shutil.copytree(KEPT / "material", place / "material")
            record(Stage(place))
            shutil.copytree(place / "material" / "workspace", KEPT / "material" / "workspace", dirs_exist_ok=True)
            for name in [each for each in NAMES if each in sys.argv] or NAMES:
                shutil.rmtree(KEPT / name, ignore_errors=True)
                moved(place / "runs" / name, KEPT / name, str(place), PLACEHOLDER)
                (KEPT / name / "seal").unlink(missing_ok=True)  # it holds for the machine that made the run
        for name in NAMES:
            expect(name, place / "expect")


if __name__ == "__main__":
    main()
