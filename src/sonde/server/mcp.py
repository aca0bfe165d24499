"""Sonde for MCP clients: tools ask, rca, comply, incident and runs over standard input and output.

Each returns the cited result and the path of the run, reports progress turn by turn, and stops if the client cancels. Files are
read only inside the folder in which the server was started, and traces also from the configured Phoenix server: the arguments come from
a model, which may have been talked into something. The official SDK speaks the protocol and claims descriptors 0 and 1.
Needs the extra `mcp`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel, ConfigDict

from sonde.api.ask_run import ask
from sonde.api.consent import is_chosen_server
from sonde.api.investigations import comply, incident, rca
from sonde.api.launch import sonde_version
from sonde.api.result import Investigation, Result
from sonde.api.settings import Settings
from sonde.contexts.traces.catalog import is_server
from sonde.contexts.workspace.paths import Root
from sonde.contexts.workspace.policy import Policy
from sonde.core.cancellation import Stop
from sonde.core.events import Event, HostReturned, ModelReplied, SubcallStarted, TurnStarted
from sonde.errors import ConfigError, SondeError
from sonde.models.base import Model
from sonde.runs.catalog import list_runs
from sonde.runs.rundir import SUMMARY, find_run
from sonde.server.stdio import leave, leave_on_sigterm, watch_parent

INSTRUCTIONS = """Sonde answers questions over data that does not fit in a prompt and finds root causes in traces.
Every claim is cited and proved. `ask` takes a question and paths inside the working folder. `rca`, `comply` and `incident`
take trace ids and a source (a file, folder or Phoenix address). `runs` lists earlier runs or shows one."""

T = TypeVar("T")


class ToolReply(BaseModel):
    """What a tool returns: the result, its evidence, and where the run is."""

    model_config = ConfigDict(title="Result")

    status: str
    text: str
    report: dict[str, Any] | None = None
    citations: list[dict[str, Any]] = []
    gaps: list[str] = []
    annotator_kind: str = "CODE"
    usage: dict[str, Any] = {}
    run_dir: str | None = None
    error: dict[str, Any] | None = None


class RunList(BaseModel):
    """Earlier runs, newest first, or one of them with its summary."""

    runs: list[dict[str, Any]]
    summary: str | None = None


class Tools:
    """The tools; their docstrings are what the client's model reads."""

    def __init__(self, settings: Settings, folder: Path, model: Model | None = None) -> None:
        self._settings = settings
        self._model = model
        self._root = Root(folder)

    async def ask(self, question: str, paths: list[str], context: Context) -> ToolReply:
        """Answer a question over files and folders, however large, with citations that are proved."""
        inside = [self._inside(path) for path in paths]
        answer = await watched(context, partial(ask, question, *inside, model=self._model, settings=self._settings))
        return _reply(answer, [each.model_dump(mode="json") for each in answer.citations])

    async def rca(
        self, trace_id: str, source: str, context: Context, project: str | None = None, writeback: bool = False
    ) -> ToolReply:
        """Find the root cause of a failed trace. The source is a file, a folder or the address of a Phoenix server."""
        work = partial(rca, trace_id, self._source(source), project=project, writeback=writeback)
        return await self._investigate(context, work)

    async def comply(
        self,
        trace_id: str,
        source: str,
        context: Context,
        *,
        project: str | None = None,
        controls: str | None = None,
        writeback: bool = False,
    ) -> ToolReply:
        """Judge a trace against the controls library (`controls` is its version): verdict, findings and evidence."""
        work = partial(comply, trace_id, self._source(source), project=project, controls=controls, writeback=writeback)
        return await self._investigate(context, work)

    async def incident(
        self,
        source: str,
        context: Context,
        *,
        project: str | None = None,
        start: str | None = None,
        end: str | None = None,
        trace_ids: list[str] | None = None,
        writeback: bool = False,
    ) -> ToolReply:
        """Write the dossier of an incident in a window of time (RFC 3339): timeline, representatives, hypotheses, actions."""
        window = {"project": project, "start": start, "end": end, "trace_ids": trace_ids or [], "writeback": writeback}
        return await self._investigate(context, partial(incident, self._source(source), **window))

    async def _investigate(self, context: Context, work: Callable[..., Investigation]) -> ToolReply:
        found = await watched(context, partial(work, model=self._model, settings=self._settings))
        return _reply(found, list(_refs(found.report).values()), found.report)

    async def runs(self, run: str | None = None, limit: int = 20) -> RunList:
        """List earlier runs, or show one by its id (or `last`)."""
        if run is None:
            found = list_runs(self._settings.runs_dir, limit=max(1, min(limit, 200)))
            return RunList(runs=[{**asdict(each), "path": str(each.path)} for each in found])
        if "/" in run:
            raise ConfigError("name a run by its id; folders elsewhere are not shown here")
        folder = find_run(self._settings.runs_dir, run)
        record = folder.record()
        row = {
            "run_id": record.run_id,
            "run_type": record.run_type,
            "status": record.status,
            "run_dir": str(folder.path),
        }
        return RunList(runs=[row], summary=folder.text(SUMMARY))

    def _inside(self, path: str) -> Path:
        """A path inside the working folder, relative or absolute; secrets are refused by name."""
        given = Path(path)
        relative = given.relative_to(self._root.path).as_posix() if given.is_relative_to(self._root.path) else path
        if Path(relative).is_absolute() or relative.startswith("~"):
            raise ConfigError(f"{path} is outside {self._root.path}; start the server in a folder that holds it")
        real = self._root.real(relative)
        Policy().check_read(real)
        return self._root.path / real

    def _source(self, source: str) -> str | Path:
        """A file inside, or the user's own server: a model names it here, and the user's key would go along."""
        if not is_server(source):
            return self._inside(source)
        if not is_chosen_server(source, self._settings):
            raise ConfigError(
                f"{source} is not the configured server; start `sonde serve --mcp` with SONDE_SOURCE={source}"
            )
        return source


async def watched(context: Context, work: Callable[..., T]) -> T:
    """Run the work in a thread, with the keywords `on_event` and `cancel`. Reports progress to the client; stops if the client cancels."""
    loop = asyncio.get_running_loop()
    cancel = Stop()
    count = itertools.count(1)

    def on_event(event: Event) -> None:
        match event:
            case TurnStarted():
                text = f"{event.session}: turn {event.turn}"
            case SubcallStarted():
                text = f"sub-call: {event.objective[:120]}"
            case HostReturned() if event.tool:
                text = f"{event.name}: {'ok' if event.ok else event.error}"
            case ModelReplied():
                text = f"{event.session}: {event.tokens_in + event.tokens_out} tokens"
            case _:
                text = ""
        if text:
            asyncio.run_coroutine_threadsafe(context.report_progress(next(count), None, text), loop)

    try:
        return await asyncio.shield(loop.run_in_executor(None, partial(work, on_event=on_event, cancel=cancel)))
    except asyncio.CancelledError:
        cancel.set()
        raise


def _refs(value: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """Every evidence reference anywhere in a report, each once."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            found |= _refs(item)
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for ref in fields.get("evidence_refs", []):
            found[(ref["kind"], ref["ref"])] = ref
        for item in fields.values():
            found |= _refs(item)
    return found


def _reply(done: Result, citations: list[dict[str, Any]], report: dict[str, Any] | None = None) -> ToolReply:
    record = done.record
    return ToolReply(
        status=done.status.value,
        text=done.text,
        report=report,
        citations=citations,
        gaps=list(done.gaps),
        annotator_kind=done.annotator_kind,
        usage=record.runtime_ref.usage.model_dump(mode="json"),
        run_dir=str(done.run_dir) if done.run_dir else None,
        error=None if record.error is None else record.error.model_dump(mode="json"),
    )


def build(settings: Settings, folder: Path, model: Model | None = None) -> MCPServer:
    """The server with its tools; `model` replaces the one that the settings name."""
    server = MCPServer("sonde", version=sonde_version(), instructions=INSTRUCTIONS)
    tools = Tools(settings, folder, model)
    for function in (tools.ask, tools.rca, tools.comply, tools.incident, tools.runs):
        server.add_tool(_explained(function))
    return server


def _explained(function: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """The tool, with errors that tell the client what was wrong: the SDK passes on the message of a ToolError only."""

    @wraps(function)
    async def call(*args: Any, **named: Any) -> T:
        try:
            return await function(*args, **named)
        except SondeError as error:
            raise ToolError(error.message) from error

    return call


def serve_mcp(settings: Settings) -> int:
    """Serve until the client hangs up."""
    watch_parent(os.getppid(), lambda: leave(1))
    leave_on_sigterm()
    build(settings, Path.cwd()).run("stdio")
    leave(0)
