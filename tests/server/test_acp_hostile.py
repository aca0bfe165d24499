"""An ACP client that answers late, oddly or not at all."""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from .acp_client import Agent, closed

pytestmark = pytest.mark.long


PATCH = "*** Begin Patch\\n*** Update File: a.txt\\n@@\\n-one\\n+ONE\\n*** End Patch"
REPLY = f'''print(r"""```python
apply_patch("{PATCH}")
```""")'''
SLEEPER = "import os, sys, time\nopen(sys.argv[1], 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
REPEATER = "import sys\nopen(sys.argv[1], 'w').write(sys.stdin.read())\nprint('nothing')\n"


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
    agent.say(id=agent.permission(), error={"code": 1, "message": "no"})  # the refused model tries again
    agent.say(id=agent.permission(), result={"outcome": "accept"})
    agent.permission()
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
