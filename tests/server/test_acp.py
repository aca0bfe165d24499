"""The ACP agent, driven by the client of the official SDK over the pipes of a real process."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import acp
import pytest
from acp.schema import AllowedOutcome, DeniedOutcome

import sonde
from sonde.contexts.workspace import accept

ROOT = Path(__file__).parents[2]
DEMO = "Add a function that normalizes whitespace in sample.ts and update its test"
MODEL = f"command:{sys.executable} {Path(__file__).parent / 'scripted_model.py'}"


class Editor:
    """A client that keeps what it is told and answers questions as it was told to."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer
        self.updates: list[Any] = []
        self.seen = asyncio.Event()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        self.updates.append(update)
        if getattr(update, "kind", None) == "think":
            self.seen.set()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        return acp.RequestPermissionResponse(outcome=self.answer())

    @property
    def text(self) -> str:
        return "".join(u.content.text for u in self.updates if u.session_update == "agent_message_chunk")

    @property
    def thoughts(self) -> str:
        return "".join(u.content.text for u in self.updates if u.session_update == "agent_thought_chunk")

    def titles(self, kind: str) -> list[str]:
        return [u.title for u in self.updates if u.session_update == "tool_call" and u.kind == kind]


def choose(option: str) -> Callable[[], Any]:
    return lambda: AllowedOutcome(outcome="selected", option_id=option)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shutil.copytree(ROOT / "examples/demo-workspace", tmp_path / "demo")


def talk(
    folder: Path,
    answer: Callable[[], Any],
    *,
    prompt: str = DEMO,
    cancel: bool = False,
    model: str = MODEL,
    flags: Sequence[str] = (),
    then: str | None = None,
) -> tuple[Editor, str]:
    """One prompt to a real agent, or two of one session; what the client saw, and why the agent stopped."""
    arguments = ["-m", "sonde", "serve", "--acp", "--model", model, "--runs-dir", str(folder.parent / "runs"), *flags]

    async def go() -> tuple[Editor, str]:
        editor = Editor(answer)
        async with acp.spawn_agent_process(cast("acp.Client", editor), sys.executable, *arguments, cwd=folder) as (
            agent,
            _,
        ):
            await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
            session = (await agent.new_session(cwd=str(folder), mcp_servers=[])).session_id
            prompting = asyncio.create_task(agent.prompt(session_id=session, prompt=[acp.text_block(prompt)]))
            if cancel:
                await asyncio.wait_for(editor.seen.wait(), 60)
                await agent.cancel(session_id=session)
            done = await asyncio.wait_for(prompting, 90)
            if then is not None:
                done = await agent.prompt(session_id=session, prompt=[acp.text_block(then)])
            return editor, done.stop_reason

    return asyncio.run(go())


def test_a_prompt_is_done_with_permission_and_told_with_citations(folder: Path) -> None:
    editor, reason = talk(folder, choose("accept"))

    assert reason == "end_turn"
    assert "normalizeWhitespace" in (folder / "sample.ts").read_text()
    assert "sample.ts:9-12" in editor.text
    assert "read sample.ts:1-7" in editor.titles("read")
    assert editor.titles("think")
    edit = next(u for u in editor.updates if u.session_update == "tool_call" and u.kind == "edit")
    assert [Path(diff.path).name for diff in edit.content] == ["sample.ts", "sample.test.ts"]

    (run,) = (folder.parent / "runs").iterdir()
    assert "Changed: sample.ts, sample.test.ts." in editor.text
    assert f"`sonde undo {run.name} {folder}`" in editor.text
    with pytest.MonkeyPatch.context() as here:
        here.delenv("XDG_STATE_HOME", raising=False)  # the SDK does not pass it on
        assert sonde.undo("last", folder, approve=accept, runs_dir=run.parent).applied
    assert "normalizeWhitespace" not in (folder / "sample.ts").read_text()


@pytest.mark.long
def test_a_task_has_limits_that_fit_it_and_the_editor_shows_them(folder: Path) -> None:
    editor, _ = talk(folder, choose("accept"))

    assert "Limits of this task: 200,000 tokens, 600 s, 30 sub-calls." in editor.thoughts
    assert "A limit ended" not in editor.text


@pytest.mark.long
def test_a_reached_limit_names_the_flag_and_how_to_go_on(folder: Path) -> None:
    editor, _ = talk(folder, choose("accept"), flags=("--max-tokens-total", "900"))

    assert "Limits of this task: 900 tokens" in editor.thoughts
    assert "Send “go on”, or the task again, to go on from there" in editor.text
    assert "`sonde serve --acp --max-tokens-total N`" in editor.text


@pytest.mark.long
def test_after_a_limit_the_next_prompt_goes_on_from_that_run(folder: Path) -> None:
    talk(folder, choose("accept"), flags=("--max-tokens-total", "900"), then="go on")

    first, second = sorted((folder.parent / "runs").iterdir())
    (started, *_) = (second / "events.jsonl").read_text().splitlines()
    assert json.loads(started)["settings"]["continues"] == str(first)


@pytest.mark.long
@pytest.mark.parametrize("answer", [choose("reject"), lambda: DeniedOutcome(outcome="cancelled")])
def test_a_refused_permission_changes_nothing(folder: Path, answer: Callable[[], Any]) -> None:
    editor, reason = talk(folder, answer)

    assert reason == "end_turn"
    assert "normalizeWhitespace" not in (folder / "sample.ts").read_text()
    assert "Not done" in editor.text


@pytest.mark.long
def test_nothing_that_an_editor_shows_calls_elsewhere_or_is_hidden(folder: Path) -> None:
    picture, reversed_text = "![x](https&colon;//evil.example/p.png)", "\\u202e"
    patch = f"*** Begin Patch\\n*** Add File: new.txt\\n+safe{reversed_text} = 1\\n*** End Patch"
    code = f'read_file("sample.ts", rationale="{picture}")\napply_patch("{patch}")\nFINAL("Done. {picture}")'
    program = folder.parent / "model.py"
    program.write_text(f"print({f'{picture}{chr(10)}```python{chr(10)}{code}{chr(10)}```'!r})")

    editor, _ = talk(folder, choose("accept"), model=f"command:{sys.executable} {program}")

    assert (folder / "new.txt").read_text() == "safe\u202e = 1\n"
    edit = next(u for u in editor.updates if u.session_update == "tool_call" and u.kind == "edit")
    assert [(diff.old_text, diff.new_text) for diff in edit.content] == [(None, "safe<U+202E> = 1\n")]
    assert "evil.example" in editor.text
    shown = [editor.text, *editor.titles("read")]
    assert not [text for text in shown if "![" in text.replace("\\!", "")]


@pytest.mark.long
def test_a_place_that_the_guard_refuses_is_not_announced_to_the_editor(folder: Path) -> None:
    named = (".env", "/etc/shadow", "../..", "../../etc/passwd", "out", "hidden.txt", "a.txt")
    code = f"for path in {named!r}:\n    try:\n        read_file(path)\n    except Exception:\n        pass\nFINAL('Done.')"
    program = folder.parent / "model.py"
    program.write_text(f"print({f'```python{chr(10)}{code}{chr(10)}```'!r})")
    (folder / ".env").write_text("TOKEN=1\n")
    (folder / "a.txt").write_text("one\n")
    (folder / "out").symlink_to("/etc/hostname")
    (folder / "hidden.txt").symlink_to(".env")

    editor, _ = talk(folder, choose("accept"), model=f"command:{sys.executable} {program}")

    read = [u for u in editor.updates if u.session_update == "tool_call" and u.kind == "read"]
    assert {u.title for u in read} == {f"read {path}" for path in named}
    assert {place.path for u in read for place in u.locations or ()} == {str(folder / "a.txt")}


@pytest.mark.long
def test_the_words_of_a_sub_call_are_as_safe_as_the_rest_and_a_refused_read_has_failed(folder: Path) -> None:
    code = "try:\n    read_file('.env')\nexcept Exception:\n    pass\nprint(llm_query('tell me'))\nFINAL('Done.')"
    words = "![x](https://evil.example/p.png)\u202e"
    program = folder.parent / "model.py"
    program.write_text(
        f"import sys\nprint({words!r} if 'tell me' in sys.stdin.read()[-400:] else {f'```python{chr(10)}{code}{chr(10)}```'!r})"
    )
    (folder / ".env").write_text("TOKEN=1\n")

    editor, _ = talk(folder, choose("accept"), model=f"command:{sys.executable} {program}")

    refused = next(u.tool_call_id for u in editor.updates if u.session_update == "tool_call" and u.kind == "read")
    changed = [u for u in editor.updates if u.session_update == "tool_call_update"]
    assert [u.status for u in changed if u.tool_call_id == refused] == ["failed"]
    said = [u.raw_output for u in changed if u.raw_output]
    assert said and not [text for text in said if "![" in text.replace("\\!", "") or "\u202e" in text]


@pytest.mark.long
def test_a_prompt_can_be_cancelled(folder: Path) -> None:
    _, reason = talk(folder, choose("accept"), prompt=f"wait: {DEMO}", cancel=True)

    assert reason == "cancelled"
    assert "normalizeWhitespace" not in (folder / "sample.ts").read_text()


@pytest.mark.long
def test_a_session_needs_a_folder(folder: Path) -> None:
    with pytest.raises(acp.RequestError):
        begin(folder / "nope", folder)


def begin(nowhere: Path, folder: Path) -> None:
    arguments = ["-m", "sonde", "serve", "--acp", "--model", MODEL]

    async def go() -> None:
        editor = Editor(choose("accept"))
        async with acp.spawn_agent_process(cast("acp.Client", editor), sys.executable, *arguments, cwd=folder) as (
            agent,
            _,
        ):
            await agent.initialize(protocol_version=acp.PROTOCOL_VERSION)
            await agent.new_session(cwd=str(nowhere), mcp_servers=[])

    asyncio.run(go())
