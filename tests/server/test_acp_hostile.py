"""An ACP client that answers late, oddly or not at all: as raw lines to a real process, so that no SDK tidies them up."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long


PATCH = "*** Begin Patch\\n*** Update File: a.txt\\n@@\\n-one\\n+ONE\\n*** End Patch"
REPLY = f'''print(r"""```python
apply_patch("{PATCH}")
```""")'''
SLEEPER = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
REPEATER = "import sys\nopen(sys.argv[1], 'w').write(sys.stdin.read())\nprint('nothing')\n"
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
            if wanted(message):
                return message
        raise AssertionError("the stream ended")

    def answer(self, number: int) -> Message:
        return self.until(lambda message: message.get("id") == number and "method" not in message)

    def permission(self) -> int:
        return self.until(lambda message: message.get("method") == "session/request_permission")["id"]

    def permit(self, number: int, option: str) -> None:
        self.say(id=number, result={"outcome": {"outcome": "selected", "optionId": option}})

    def session(self) -> str:
        self.ask(1, "initialize", protocolVersion=1)
        self.answer(1)
        self.ask(2, "session/new", cwd=str(self.folder), mcpServers=[])
        return self.answer(2)["result"]["sessionId"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("one\n")
    return tmp_path / "work"


@pytest.fixture
def agent(folder: Path) -> Iterator[Agent]:
    agent = Agent(folder, REPLY)
    yield agent
    closed(agent)


def closed(agent: Agent) -> int:
    """The exit code after the end of the input."""
    assert agent.process.stdin
    assert agent.process.stdout
    agent.process.stdin.close()
    code = agent.process.wait(60)
    agent.process.stdout.close()
    return code


def test_a_yes_that_comes_after_the_cancel_changes_nothing(agent: Agent) -> None:
    session = agent.session()
    agent.prompt(3, session)
    asked = agent.permission()

    agent.cancel(session)
    assert agent.answer(3)["result"]["stopReason"] == "cancelled"
    agent.permit(asked, "accept_all")
    agent.ask(4, "initialize", protocolVersion=1)
    agent.answer(4)

    assert (agent.folder / "a.txt").read_text() == "one\n"
    agent.prompt(5, session)
    agent.permission()  # the next prompt asks anew
    agent.cancel(session)
    agent.answer(5)


def test_an_option_that_was_not_offered_is_no_yes(agent: Agent) -> None:
    session = agent.session()
    agent.prompt(3, session)

    agent.permit(agent.permission(), "accept-everything")
    agent.permission()  # the refused model tries again
    agent.cancel(session)
    agent.answer(3)

    assert (agent.folder / "a.txt").read_text() == "one\n"


def test_a_second_prompt_of_a_session_is_refused_and_the_first_can_still_be_cancelled(agent: Agent) -> None:
    session = agent.session()
    agent.prompt(3, session)
    agent.permission()

    agent.prompt(4, session)
    assert "under way" in json.dumps(agent.answer(4)["error"])
    agent.cancel(session)

    assert agent.answer(3)["result"]["stopReason"] == "cancelled"


NO_MESSAGES = (
    b"junk", b"[]", b"null", b"5", b'"text"', b"{}", b"\xff", b"[" * 100_000, b'{"jsonrpc":"2.0","id":[1],"result":{}}',
    b'[{"jsonrpc":"2.0","id":9,"method":"initialize","params":{}}]', b'{"id":9,"x":"' + b"x" * 34_000_000 + b'"}',
)  # fmt: skip


def test_lines_that_are_no_messages_do_not_end_the_agent(agent: Agent) -> None:
    for number, line in enumerate(NO_MESSAGES, 1):
        agent.write(line)
        agent.ask(number, "initialize", protocolVersion=0)

        assert agent.answer(number)["result"]["protocolVersion"] == 1


def test_a_linked_file_is_named_in_the_task(folder: Path) -> None:
    seen = folder.parent / "seen.txt"
    agent = Agent(folder, REPEATER, str(seen))
    inside = {"type": "resource_link", "name": "a.txt", "uri": f"file://{folder}/some%20folder/a.txt"}
    outside = {"type": "resource_link", "name": "b.txt", "uri": "https://example.org/b.txt"}

    agent.prompt(3, agent.session(), {"type": "text", "text": "explain"}, inside, outside)
    agent.answer(3)
    closed(agent)

    assert "explain\nsome folder/a.txt\nhttps://example.org/b.txt" in seen.read_text()


@pytest.mark.requirement("O17")
@pytest.mark.parametrize("end", ["input", "signal"])
def test_the_end_ends_the_agent_and_its_model_although_a_task_is_under_way(folder: Path, end: str) -> None:
    told = folder.parent / "told"
    os.mkfifo(told)
    agent = Agent(folder, SLEEPER, str(told))
    pids: list[int] = []
    waiting = threading.Thread(target=lambda: pids.append(int(told.read_text())))
    waiting.start()
    agent.prompt(3, agent.session())
    waiting.join(60)
    assert pids
    model = os.pidfd_open(pids[0])

    if end == "signal":
        agent.process.terminate()
    closed(agent)

    assert select.select([model], [], [], 60)[0]  # readable once the process has ended
    os.close(model)
