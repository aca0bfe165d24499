"""Sonde for editors that speak the Agent Client Protocol: Zed, JetBrains, Neovim.

A prompt is a task in the session's folder. Every look at a file is a tool call, every change is a diff that the user permits or refuses,
replies are thoughts, the result is a message with its citations. Files are read and written on disk, within the workspace's guard.
The official SDK speaks the protocol; descriptors 0 and 1 are claimed first. Needs the extra `acp`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import acp
from acp.schema import AllowedOutcome, Implementation, PermissionOption, ToolCallLocation, ToolCallUpdate

from sonde.api.edit_run import command_environment
from sonde.api.launch import sonde_version
from sonde.contexts.workspace import Approval, LocalWorkspace, Plan, Policy
from sonde.core.cancellation import Stop
from sonde.errors import SondeError
from sonde.server.announced import AnnouncedWorkspace, Kind
from sonde.server.messages import MAX_LINE_BYTES, AssistantMessage, Completion, Event, NewTask, SubcallEnd, SubcallStart
from sonde.server.runner import TaskRunner
from sonde.server.stdio import GRACE_S, claim, leave, leave_on_sigterm, watch_parent

OPTIONS = (
    PermissionOption(option_id="accept", name="Accept", kind="allow_once"),
    PermissionOption(option_id="accept_all", name="Accept all for this task", kind="allow_always"),
    PermissionOption(option_id="reject", name="Reject", kind="reject_once"),
)
CANCELLED = Approval(accepted=False, reason="the task was cancelled")


class Prompting:
    """One prompt of a session: the thread that does it, and what its user has said so far."""

    def __init__(self, session: Session, client: acp.Client, runner: TaskRunner) -> None:
        self.session = session
        self.cancelled = Stop()
        self._client = client
        self._runner = runner
        self._loop = asyncio.get_running_loop()
        self._accept_all = False
        self._over = False

    async def run(self, prompt: str) -> Completion:
        """Do the task in a thread and wait for its end; what a thread still does that did not end reaches nobody."""
        folder = self.session.folder
        task = NewTask(id=f"{self.session.id}.{self._number()}", prompt=prompt, workspace=str(folder))
        workspace = LocalWorkspace(
            folder, policy=self.session.policy, approve=self._approve, environment=command_environment()
        )
        announced = AnnouncedWorkspace(workspace, self._announce)
        work = self._loop.run_in_executor(None, self._runner.run, task, announced, self._emit, self.cancelled)
        self.session.works.add(work)
        work.add_done_callback(self.session.works.discard)
        try:
            await self._ended(work)
        finally:
            was_cancelled, self._over = self.cancelled.is_set(), True
            self.cancelled.set()  # also when nobody waits for it any more
        if not work.done() or (was_cancelled and work.exception()):
            return Completion(id=task.id, status="cancelled", summary="cancelled; a call that was under way is dropped")
        return work.result().model_copy(update={"status": "cancelled"}) if was_cancelled else work.result()

    async def _ended(self, work: asyncio.Future[Completion]) -> None:
        """Until the work has ended, or has had its time to end after a cancel."""
        asked = asyncio.Event()
        stopped = asyncio.ensure_future(asked.wait())
        with self.cancelled.cutting(lambda: self._loop.call_soon_threadsafe(asked.set)):
            await asyncio.wait([work, stopped], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        await asyncio.wait([work], timeout=GRACE_S)

    def _number(self) -> int:
        return next(self.session.numbers)

    def _update(self, update: Any) -> None:
        """Send from the task's thread; the order of the updates is the order of the calls."""
        if not self._over:
            sent = self._client.session_update(self.session.id, update)
            asyncio.run_coroutine_threadsafe(sent, self._loop).result()

    def _announce(self, kind: Kind, title: str, path: str) -> None:
        places = [ToolCallLocation(path=str(self.session.folder / path))]
        call = f"call{self._number()}"
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

    def _approve(self, plan: Plan) -> Approval:
        if self.cancelled.is_set():
            return CANCELLED
        if self._accept_all:
            return Approval(accepted=True)
        call = f"call{self._number()}"
        diffs = [
            acp.tool_diff_content(str(self.session.folder / change.writes), change.new_text or "", change.old_text)
            for change in plan.changes
        ]
        self._update(acp.start_tool_call(call, plan.summary(), kind="edit", status="pending", content=diffs))
        decision = self._ask(ToolCallUpdate(tool_call_id=call, title=plan.summary(), kind="edit", content=list(diffs)))
        self._update(acp.update_tool_call(call, status="completed" if decision.accepted else "failed"))
        return decision

    def _ask(self, call: ToolCallUpdate) -> Approval:
        """The user's word; only an option that we offered is a yes, and none that comes after a cancel."""
        request = self._client.request_permission(session_id=self.session.id, tool_call=call, options=list(OPTIONS))
        asking = asyncio.run_coroutine_threadsafe(request, self._loop)
        try:
            with self.cancelled.cutting(asking.cancel):
                answer = asking.result().outcome
        except CancelledError:
            return CANCELLED
        if self.cancelled.is_set() or not isinstance(answer, AllowedOutcome):
            return CANCELLED
        self._accept_all = answer.option_id == "accept_all"
        return Approval(accepted=answer.option_id in ("accept", "accept_all"), reason="refused in the editor")


@dataclass(slots=True, kw_only=True)
class Session:
    """A conversation of the client about a folder; it has one prompt at a time."""

    id: str
    folder: Path
    policy: Policy
    numbers: Iterator[int] = field(default_factory=itertools.count)
    prompting: Prompting | None = None
    works: set[asyncio.Future[Completion]] = field(default_factory=set[asyncio.Future[Completion]])


class SondeAgent:
    """The agent's side of the protocol: the methods of `acp.Agent` that an agent without modes, logins and saved sessions needs."""

    def __init__(self, runner: TaskRunner, commands: tuple[str, ...] = ()) -> None:
        self._runner = runner
        self._policy = Policy(commands=commands)
        self._sessions: dict[str, Session] = {}
        self._client: acp.Client | None = None

    def on_connect(self, conn: acp.Client) -> None:
        """Keep the client to talk to."""
        self._client = conn

    async def initialize(self, protocol_version: int, **_: Any) -> acp.InitializeResponse:
        """Say who we are, and the one version that we speak."""
        del protocol_version
        info = Implementation(name="sonde", version=sonde_version())
        return acp.InitializeResponse(protocol_version=acp.PROTOCOL_VERSION, agent_info=info)

    async def new_session(self, cwd: str, **_: Any) -> acp.NewSessionResponse:
        """A conversation about a folder."""
        folder = Path(cwd)
        if not await asyncio.to_thread(folder.is_dir):
            raise acp.RequestError.invalid_params({"cwd": f"{cwd} is not a folder"})
        session = Session(id=f"s{len(self._sessions) + 1}", folder=folder, policy=self._policy)
        self._sessions[session.id] = session
        return acp.NewSessionResponse(session_id=session.id)

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> acp.PromptResponse:
        """Do a task and tell its result."""
        session = self._sessions.get(session_id)
        if session is None or self._client is None:
            raise acp.RequestError.invalid_params({"sessionId": f"there is no session {session_id}"})
        if session.prompting is not None:
            raise acp.RequestError.invalid_params(
                {"sessionId": f"a prompt of {session_id} is under way; cancel it first"}
            )
        session.prompting = Prompting(session, self._client, self._runner)
        try:
            done = await session.prompting.run(words(prompt, session.folder))
        except SondeError as error:
            done = Completion(id=session_id, status="failed", summary=error.message)
        finally:
            session.prompting = None
        await self._client.session_update(session_id, acp.update_agent_message_text(rendered(done)))
        return acp.PromptResponse(stop_reason="cancelled" if done.status == "cancelled" else "end_turn")

    async def cancel(self, session_id: str, **_: Any) -> None:
        """Stop the task of a session."""
        session = self._sessions.get(session_id)
        if session is not None and session.prompting is not None:
            session.prompting.cancelled.set()

    async def close(self) -> None:
        """Stop every task and let it end in order: the client is gone."""
        for session in self._sessions:
            await self.cancel(session)
        works = [work for session in self._sessions.values() for work in session.works]
        if works:
            await asyncio.wait(works, timeout=GRACE_S)


def words(prompt: list[Any], folder: Path) -> str:
    """The text of a prompt; a file that it links to is named as tools name it."""
    return "\n".join(_words(block, folder) for block in prompt if block.type in ("text", "resource_link"))


def _words(block: Any, folder: Path) -> str:
    if block.type == "text":
        return block.text
    path = Path(unquote(urlsplit(str(block.uri)).path))
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else block.uri


def rendered(done: Completion) -> str:
    """The result as text: the summary, its status where it is not plain success, and the citations."""
    status = "" if done.status == "succeeded" else f"\n\n({done.status})"
    cited = "".join(f"\n- {each.path}:{each.start_line}-{each.end_line}" for each in done.citations)
    return done.summary + status + (f"\n\nSources:{cited}" if cited else "")


class ObjectLines(asyncio.StreamReader):
    """Gives the SDK only lines that may hold an object: another JSON value would end it, and it would keep a line of any length."""

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """The next such line that is not too long; IncompleteReadError at the end."""
        too_long = False
        while True:
            try:
                line = await super().readuntil(separator)
            except asyncio.LimitOverrunError as error:
                await self.readexactly(error.consumed)
                too_long = True
                continue
            if not too_long and line.lstrip().startswith(b"{"):
                return line
            too_long = False


async def _serve(agent: SondeAgent) -> None:
    pipes = claim()
    loop = asyncio.get_running_loop()
    reader = ObjectLines(limit=MAX_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipes.lines)
    transport, flow = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(pipes.out, "wb")
    )
    writer = asyncio.StreamWriter(transport, flow, None, loop)
    try:
        await acp.run_agent(cast("acp.Agent", agent), input_stream=writer, output_stream=reader)
    finally:
        await agent.close()
        leave(0)  # from inside: the loop would wait for threads that are stuck


def serve_acp(runner: TaskRunner, commands: tuple[str, ...] = ()) -> int:
    """Serve until the client hangs up."""
    watch_parent(os.getppid(), lambda: leave(1))
    leave_on_sigterm()
    asyncio.run(_serve(SondeAgent(runner, commands)))
    return 0
