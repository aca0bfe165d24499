"""Sonde for editors that speak the Agent Client Protocol: Zed, JetBrains, Neovim.

A prompt is a task in the session's folder. Every look at a file is a tool call, every change is a diff that the user permits or refuses,
replies are thoughts, the result is a message with its citations. Files are read and written on disk, within the workspace's guard.
The official SDK speaks the protocol; descriptors 0 and 1 are claimed first. Needs the extra `acp`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from pathlib import Path
from typing import Any, cast

import acp
from acp.schema import AllowedOutcome, Implementation, PermissionOption, ToolCallLocation, ToolCallUpdate

from sonde.api.editing import command_environment
from sonde.api.launch import sonde_version
from sonde.contexts.workspace import Decision, LocalWorkspace, Plan, Policy
from sonde.core.stopping import Stop
from sonde.errors import SondeError
from sonde.server.announced import AnnouncedWorkspace, Kind
from sonde.server.messages import AssistantMessage, Completion, Event, NewTask, SubcallEnd, SubcallStart
from sonde.server.runner import TaskRunner
from sonde.server.stdio import claim, watch_parent

OPTIONS = (
    PermissionOption(option_id="accept", name="Accept", kind="allow_once"),
    PermissionOption(option_id="accept_all", name="Accept all for this task", kind="allow_always"),
    PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
)


class Conversation:
    """One session of the client: its folder, and the task that is under way."""

    def __init__(
        self, session_id: str, folder: Path, client: acp.Client, runner: TaskRunner, commands: tuple[str, ...]
    ) -> None:
        self.session_id = session_id
        self._folder = folder
        self._client = client
        self._runner = runner
        self._policy = Policy(commands=commands)
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._accept_all = False
        self.cancelled = Stop()

    async def run(self, prompt: str) -> Completion:
        """Do the task in a thread and wait for its end."""
        self.cancelled, self._accept_all = Stop(), False
        task = NewTask(id=f"{self.session_id}.{next(self._numbers)}", prompt=prompt, workspace=str(self._folder))
        workspace = LocalWorkspace(
            self._folder, policy=self._policy, approve=self._approve, environment=command_environment()
        )
        announced = AnnouncedWorkspace(workspace, self._announce)
        work = self._loop.run_in_executor(None, self._runner.run, task, announced, self._emit, self.cancelled)
        stopped = asyncio.ensure_future(asyncio.to_thread(self.cancelled.wait))
        await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        was_cancelled = self.cancelled.is_set()
        await asyncio.wait([work], timeout=3.0 if was_cancelled else None)
        self.cancelled.set()  # lets the thread that waits for it go
        if not work.done() or (was_cancelled and work.exception()):
            return Completion(id=task.id, status="cancelled", summary="cancelled; a call that was under way is dropped")
        return work.result().model_copy(update={"status": "cancelled"}) if was_cancelled else work.result()

    def _update(self, update: Any) -> None:
        """Send from the task's thread; the order of the updates is the order of the calls."""
        asyncio.run_coroutine_threadsafe(self._client.session_update(self.session_id, update), self._loop).result()

    def _announce(self, kind: Kind, title: str, path: str) -> None:
        call = f"call{next(self._numbers)}"
        places = [ToolCallLocation(path=str(self._folder / path))]
        self._update(acp.start_tool_call(call, title, kind=kind, status="completed", locations=places))

    def _emit(self, event: Event) -> None:
        match event:
            case SubcallStart():
                self._update(acp.start_tool_call(event.id, event.intent, kind="think", status="in_progress"))
            case SubcallEnd():
                self._update(acp.update_tool_call(event.id, status="completed", raw_output=event.summary))
            case AssistantMessage(partial=None):
                self._update(acp.update_agent_thought_text(event.content))
            case _:
                pass

    def _approve(self, plan: Plan) -> Decision:
        if self._accept_all:
            return Decision(accepted=True)
        call = f"call{next(self._numbers)}"
        diffs = [
            acp.tool_diff_content(str(self._folder / change.writes), change.new_text or "", change.old_text)
            for change in plan.changes
        ]
        self._update(acp.start_tool_call(call, plan.summary(), kind="edit", status="pending", content=diffs))
        decision = self._ask(ToolCallUpdate(tool_call_id=call, title=plan.summary(), kind="edit", content=list(diffs)))
        self._update(acp.update_tool_call(call, status="completed" if decision.accepted else "failed"))
        return decision

    def _ask(self, call: ToolCallUpdate) -> Decision:
        request = self._client.request_permission(session_id=self.session_id, tool_call=call, options=list(OPTIONS))
        answer = asyncio.run_coroutine_threadsafe(request, self._loop).result().outcome
        if not isinstance(answer, AllowedOutcome):
            return Decision(accepted=False, reason="the task was cancelled")
        self._accept_all = answer.option_id == "accept_all"
        return Decision(accepted=answer.option_id != "reject", reason="refused in the editor")


class SondeAgent:
    """The agent's side of the protocol: the methods of `acp.Agent` that an agent without modes, logins and saved sessions needs."""

    def __init__(self, runner: TaskRunner, commands: tuple[str, ...] = ()) -> None:
        self._runner = runner
        self._commands = commands
        self._sessions: dict[str, Conversation] = {}
        self._client: acp.Client | None = None

    def on_connect(self, conn: acp.Client) -> None:
        """Keep the client to talk to."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        """Say who we are."""
        version = min(protocol_version, acp.PROTOCOL_VERSION)
        info = Implementation(name="sonde", version=sonde_version())
        return acp.InitializeResponse(protocol_version=version, agent_info=info)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        """A conversation about a folder."""
        folder = Path(cwd)
        if self._client is None or not await asyncio.to_thread(folder.is_dir):
            raise acp.RequestError.invalid_params({"cwd": f"{cwd} is not a folder"})
        session = f"s{len(self._sessions) + 1}"
        self._sessions[session] = Conversation(session, folder, self._client, self._runner, self._commands)
        return acp.NewSessionResponse(session_id=session)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        """Do a task and tell its result."""
        conversation = self._sessions.get(session_id)
        if conversation is None or self._client is None:
            raise acp.RequestError.invalid_params({"sessionId": f"there is no session {session_id}"})
        text = "\n".join(block.text for block in prompt if getattr(block, "type", "") == "text")
        try:
            done = await conversation.run(text)
        except SondeError as error:
            done = Completion(id=session_id, status="failed", summary=error.message)
        await self._client.session_update(session_id, acp.update_agent_message_text(rendered(done)))
        return acp.PromptResponse(stop_reason="cancelled" if done.status == "cancelled" else "end_turn")

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the task of a session."""
        if session_id in self._sessions:
            self._sessions[session_id].cancelled.set()


def rendered(done: Completion) -> str:
    """The result as text: the summary, its status where it is not plain success, and the citations."""
    status = "" if done.status == "succeeded" else f"\n\n({done.status})"
    cited = "".join(f"\n- {each.path}:{each.start_line}-{each.end_line}" for each in done.citations)
    return done.summary + status + (f"\n\nSources:{cited}" if cited else "")


async def _serve(agent: SondeAgent) -> None:
    pipes = claim()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=32 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipes.lines)
    transport, flow = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(pipes.out, "wb")
    )
    writer = asyncio.StreamWriter(transport, flow, None, loop)
    await acp.run_agent(cast("acp.Agent", agent), input_stream=writer, output_stream=reader)


def serve_acp(runner: TaskRunner, commands: tuple[str, ...] = ()) -> int:
    """Serve until the client hangs up."""
    watch_parent(os.getppid(), lambda: os._exit(1))
    asyncio.run(_serve(SondeAgent(runner, commands)))
    os._exit(0)  # a task that is stuck in a model call must not keep the process
