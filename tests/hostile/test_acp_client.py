"""An ACP client that offers its file system and lies: about texts, about errors, about having written."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.acp_client import Agent, Message, closed

LIES: list[Message] = [
    {"result": {"content": 5}},
    {"result": None},
    {"result": {"content": "half \ud800 and \0"}},
    {"result": {"content": "x" * (17 << 20)}},
    {"error": "no object"},
    {"error": {"code": {}, "message": ["\x1b]0;title\x07" * 1000]}},
    {},
    {"error": {"code": -32002, "message": "not found"}},
]
MODEL = r'''import sys
code = """
for path in (".env", "link.txt", "out.txt", "../outside.txt", "/etc/hostname", "a.txt"):
    for turn in range(8 if path == "a.txt" else 1):
        try:
            print("READ", read_file(path)["content"][:80])
        except Exception as error:
            print("FAULT", str(error)[:300])
print(apply_patch("*** Begin Patch\\n*** Update File: a.txt\\n@@\\n-one\\n+two\\n*** Add File: b.txt\\n+new\\n*** End Patch"))
"""
text = sys.stdin.read()
open(sys.argv[1], "w").write(text)
print("```python\n" + (code if "FAULT" not in text else 'FINAL("Done.")') + "\n```")
'''


@pytest.mark.hostile_long
def test_a_client_that_lies_about_files_gets_no_path_outside_and_ends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    (folder / ".env").write_text("TOKEN=s3cr3t\n")
    (folder / "link.txt").symlink_to(".env")
    (folder / "out.txt").symlink_to("/etc/hostname")
    (tmp_path / "outside.txt").write_text("s3cr3t\n")
    agent = Agent(folder, MODEL, str(tmp_path / "seen.txt"))
    lies = iter(LIES)

    def lie(method: str, params: Message) -> Message:
        if method == "fs/write_text_file":  # the first is "written", the second is not
            return {"result": None} if params["path"].endswith("a.txt") else {"error": {"code": 1, "message": "no"}}
        told = next(lies, None)
        return agent.serve_file(method, params) if told is None else told

    agent.file = lie
    agent.prompt(3, agent.session(fs={"readTextFile": True, "writeTextFile": True}))
    agent.permit(agent.permission(), "accept")
    stopped = agent.answer(3)
    assert closed(agent) == 0

    assert stopped["result"]["stopReason"] == "end_turn"
    assert set(agent.files("read") + agent.files("write")) == {str(folder / "a.txt"), str(folder / "b.txt")}
    heard = (tmp_path / "seen.txt").read_text()
    assert "s3cr3t" not in heard
    assert "\x1b" not in heard
    assert "not the protocol's" in heard
    assert "is not text in the editor" in heard
    assert "patch refused, nothing was changed" in heard
    assert (folder / "a.txt").read_text() == "one\n"
    assert not (folder / "b.txt").exists()
