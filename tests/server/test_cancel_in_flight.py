"""A cancel over the wire while a model is being waited for: `sonde serve` as a process, a silent server, a command that sleeps."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from sonde.api.settings import Settings
from sonde.models import ModelSettings, open_model
from sonde.server.mcp import WORK, build
from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

SOON_S = 60.0
NEVER = ScriptedReply(hang=True)
SLEEPER = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)\n"


class Editor:
    """Speaks JSON Lines with `sonde serve --stdio`; has no file to show."""

    def __init__(self, folder: Path, model: str, **environ: str) -> None:
        command = [
            sys.executable,
            "-m",
            "sonde",
            "serve",
            "--stdio",
            "--model",
            model,
            "--runs-dir",
            str(folder / "runs"),
        ]
        env = {"PATH": os.environ["PATH"], "HOME": str(folder), **environ}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=folder, env=env, stdin=pipe, stdout=pipe, text=True)

    def say(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def until(self, kind: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            if message["type"] == kind:
                return message
            if message["type"] in ("context.read", "context.search", "tool.request"):
                self.say(type="tool.result", id=message["id"], ok=True, output={"files": [], "matches": []})
        raise AssertionError(f"the stream ended before a {kind}")


@contextmanager
def editor(folder: Path, model: str, **environ: str) -> Generator[Editor]:
    served = Editor(folder, model, **environ)
    try:
        served.until("hello")
        yield served
    finally:
        served.process.communicate(timeout=SOON_S)


def cancelled(served: Editor, folder: Path, begun: threading.Event) -> dict[str, Any]:
    """The record of a task that was cancelled while its model was being waited for."""
    served.say(type="new_task", id="t1", prompt="Say what this is.", workspace=str(folder))
    answering = threading.Thread(target=lambda: done.update(served.until("completion")))
    done: dict[str, Any] = {}
    answering.start()
    assert begun.wait(SOON_S)
    started = time.monotonic()
    served.say(type="cancel", id="t1")
    answering.join(SOON_S)
    assert time.monotonic() - started < SOON_S
    assert done["status"] == "cancelled"
    assert "could not be stopped" not in done["summary"]
    return json.loads((Path(done["runDir"]) / "run_record.json").read_text())


def test_a_task_ends_although_the_server_never_answers(tmp_path: Path) -> None:
    begun = threading.Event()

    def answer(_seen: SeenRequest) -> ScriptedReply:
        begun.set()
        return NEVER

    with (
        ScriptedServer(answer) as server,
        editor(tmp_path, "openai:silent", OPENAI_BASE_URL=server.base_url) as served,
    ):
        record = cancelled(served, tmp_path, begun)

    assert record["error"]["message"] == "cancelled by the user"
    assert record["runtime_ref"]["usage"]["tokens_in"] > 0


@pytest.mark.long
def test_a_task_ends_although_the_command_sleeps_and_the_command_is_gone(tmp_path: Path) -> None:
    begun, told, pids = threading.Event(), tmp_path / "told", list[int]()
    os.mkfifo(told)
    (tmp_path / "sleeper.py").write_text(SLEEPER)

    def wait_for_it() -> None:
        pids.append(int(told.read_text()))
        begun.set()

    waiting = threading.Thread(target=wait_for_it)
    waiting.start()
    with editor(tmp_path, f"command:{sys.executable} sleeper.py {told}") as served:
        record = cancelled(served, tmp_path, begun)
        waiting.join()
        assert not Path(f"/proc/{pids[0]}").exists()

    assert record["error"]["message"] == "cancelled by the user"


def test_a_run_for_an_mcp_client_ends_although_the_server_never_answers(tmp_path: Path) -> None:
    begun = asyncio.Event()
    (tmp_path / "notes.txt").write_text("alpha is 42\n")

    async def go() -> None:
        loop = asyncio.get_running_loop()

        def answer(_seen: SeenRequest) -> ScriptedReply:
            loop.call_soon_threadsafe(begun.set)
            return NEVER

        with ScriptedServer(answer) as server:
            model = open_model("openai:silent", ModelSettings(base_url=server.base_url, timeout_s=600))
            settings = Settings(runs_dir=tmp_path / "runs")
            async with Client(build(settings, tmp_path, model)) as client:
                task = asyncio.create_task(client.call_tool("ask", {"question": "?", "paths": ["notes.txt"]}))
                await asyncio.wait_for(begun.wait(), SOON_S)
                task.cancel()
                await asyncio.wait([task])
            for thread in threading.enumerate():
                if thread.name == WORK:
                    await asyncio.to_thread(thread.join, SOON_S)
                    assert not thread.is_alive(), "the run waits for the server"

    asyncio.run(go())

    (record,) = tmp_path.glob("runs/*/run_record.json")
    assert json.loads(record.read_text())["error"]["message"] == "cancelled by the user"
