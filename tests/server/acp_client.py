"""A client of `sonde serve --acp` that writes raw lines to a real process, so that no SDK tidies them up."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

PATIENCE_S = 200.0
Message = dict[str, Any]


class Agent:
    """`sonde serve --acp` and a client that writes whatever it likes."""

    def __init__(self, folder: Path, program: str, *arguments: str) -> None:
        (folder.parent / "model.py").write_text(program)
        model = " ".join([f"command:{sys.executable}", str(folder.parent / "model.py"), *arguments])
        command = [sys.executable, "-m", "sonde", "serve", "--acp", "--model", model]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, "--runs-dir", str(folder.parent / "runs")], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )
        self.folder = folder
        self.seen: list[Message] = []
        self.buffers: dict[str, str] = {}
        """Unsaved text by path below the folder."""
        self.file: Callable[[str, Message], Message] = self.serve_file
        self._too_late = threading.Timer(PATIENCE_S, self.process.kill)  # so that a test that waits in vain fails
        self._too_late.daemon = True
        self._too_late.start()

    def write(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def say(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def ask(self, number: int, method: str, **params: Any) -> None:
        self.say(id=number, method=method, params=params)

    def prompt(self, number: int, session: str, *blocks: Message) -> None:
        self.ask(number, "session/prompt", sessionId=session, prompt=list(blocks or [{"type": "text", "text": "go"}]))

    def cancel(self, session: str) -> None:
        self.say(method="session/cancel", params={"sessionId": session})

    def until(self, wanted: Callable[[Message], bool]) -> Message:
        assert self.process.stdout
        for line in self.process.stdout:
            message = json.loads(line)
            self.seen.append(message)
            if message.get("method", "").startswith("fs/"):
                self.say(id=message["id"], **self.file(message["method"], message["params"]))
            if wanted(message):
                return message
        raise AssertionError("the stream ended")

    def answer(self, number: int) -> Message:
        return self.until(lambda message: message.get("id") == number and "method" not in message)

    def permission(self) -> int:
        return self.until(lambda message: message.get("method") == "session/request_permission")["id"]

    def permit(self, number: int, option: str) -> None:
        self.say(id=number, result={"outcome": {"outcome": "selected", "optionId": option}})

    def serve_file(self, method: str, params: Message) -> Message:
        """As an editor does that saves what it writes."""
        path = Path(params["path"])
        name = path.relative_to(self.folder).as_posix()
        if method == "fs/write_text_file":
            self.buffers.pop(name, None)
            path.write_bytes(params["content"].encode())
            return {"result": None}
        if name not in self.buffers and not path.is_file():
            return {"error": {"code": -32603, "message": "ENOENT"}}
        return {"result": {"content": self.buffers.get(name) or path.read_text()}}

    def files(self, method: str) -> list[str]:
        """The paths that the agent asked for."""
        return [each["params"]["path"] for each in self.seen if each.get("method") == f"fs/{method}_text_file"]

    @property
    def said(self) -> str:
        """The messages to the user so far."""
        updates = [each["params"]["update"] for each in self.seen if each.get("method") == "session/update"]
        return "".join(each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk")

    def session(self, *mcp: Message, **capabilities: Any) -> str:
        self.ask(1, "initialize", protocolVersion=1, clientCapabilities=capabilities)
        self.answer(1)
        self.ask(2, "session/new", cwd=str(self.folder), mcpServers=list(mcp))
        return self.answer(2)["result"]["sessionId"]


def closed(agent: Agent) -> int:
    """The exit code after the end of the input."""
    assert agent.process.stdin
    assert agent.process.stdout
    agent.process.stdin.close()
    code = agent.process.wait(60)
    agent.process.stdout.close()
    return code
