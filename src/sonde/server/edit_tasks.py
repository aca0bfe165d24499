"""An editor's tasks, done by the `edit` engine, and their events in the protocol's words.

`EventTranslator` is a view of the event stream that counts nothing itself: sub-calls as a tree, the model's replies, progress with what
was spent. The workspace reports reads, searches and patches.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Sequence
from typing import Literal, cast

from sonde.api.edit_run import edit
from sonde.api.settings import Settings
from sonde.contexts.workspace import Workspace
from sonde.core.budget import Budget
from sonde.core.canonical import clip
from sonde.core.events import Event, ModelAsked, ModelReplied, Noted, SubcallEnded, SubcallStarted, TurnStarted
from sonde.core.evidence import Citation
from sonde.core.markdown_safety import quiet
from sonde.core.redaction import secret_forms
from sonde.core.usage import Usage, used_by
from sonde.engines.edit import EDIT_MAXIMA, PROTOCOL_BUDGET
from sonde.server.connection import Emit
from sonde.server.messages import (
    SHOWN,
    AssistantMessage,
    Completion,
    NewTask,
    SubcallEnd,
    SubcallStart,
    WireCitation,
    WireLimits,
    WireProgress,
    WireUsage,
)

Status = Literal["succeeded", "partial", "failed", "terminated_budget", "cancelled"]


class EventTranslator:
    """Listens to one run and emits for one task; safe to call from threads."""

    def __init__(self, task_id: str, emit: Emit, limits: WireLimits | None = None, secrets: Sequence[str] = ()) -> None:
        self._task_id = task_id
        self._emit = emit
        self._limits = limits
        self._secrets = secrets
        self._keys = secret_forms(secrets)
        self._used = Usage()
        self._began: float | None = None
        self._speaking: dict[str, str] = {}
        self._held: dict[str, str] = {}  # the end of a piece that may be the start of a secret, by session
        self._first: dict[str, str | None] = {}  # the first piece of a reply; None once it is sent
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """Translate one event of the run."""
        with self._lock:
            self._used += used_by(event)
            self._began = self._began if self._began is not None else event.at
        where = self._id(event.session)
        match event:
            case SubcallStarted():
                parent = self._id(event.parent_call_id)
                scope = "its prompt only" if event.mode == "query" else ", ".join(event.scope) or "the workspace"
                if shared := [name for name in event.shared if name != "paths"]:
                    scope += f"; given: {', '.join(shared)}"
                self._emit(SubcallStart(id=where, parent_id=parent, intent=self.shown(event.objective), scope=scope))
            case SubcallEnded():
                used = Usage(
                    tokens_in=event.tokens_in,
                    tokens_out=event.tokens_out,
                    cost_usd=event.cost_usd,
                    unpriced=event.unpriced,
                )
                cited = [Citation.model_validate(ref) for ref in event.evidence_refs if ref.get("path")]
                citations = tuple(citation_of(each) for each in cited)
                summary = self.shown(event.summary)
                self._emit(SubcallEnd(id=where, summary=summary, citations=citations, usage=wire_usage(used)))
            case ModelAsked():
                self._held.pop(event.session, None)
                self._first.pop(event.session, None)
                self._speaking[event.session] = f"{where}.m{event.turn}.{event.ordinal}"
            case ModelReplied():
                known = self._speaking.get(event.session, f"{where}.m{event.turn}.{event.ordinal}")
                self._emit(AssistantMessage(id=known, parent_id=where, content=self.shown(event.text) or "(no text)"))
            case TurnStarted():
                self._progress(f"turn {event.turn}", event)
            case Noted():
                self._progress(event.text, event)
            case _:
                pass

    def on_text(self, session: str, text: str) -> None:
        """Pass on a piece of a reply as it streams in. An end that may be the start of a secret waits for the next piece, and so does
        the first piece: a reply that comes in one piece is sent once, as a whole.
        """
        if session not in self._speaking:
            return
        text = self._keys.remove(self._held.get(session, "") + text)
        begun = (n for secret in self._secrets for n in range(len(secret) - 1, 0, -1) if text.endswith(secret[:n]))
        end = len(text) - max(begun, default=0)
        self._held[session] = text[end:]
        if not end:
            return
        if session not in self._first:
            self._first[session] = text[:end]
            return
        for part in filter(None, (self._first[session], text[:end])):
            where, content = self._id(session), clip(part, SHOWN)
            self._emit(AssistantMessage(id=self._speaking[session], parent_id=where, content=content, partial=True))
        self._first[session] = None

    def usage(self, at: float | None = None) -> WireUsage:
        """What was spent so far."""
        with self._lock:
            used, began = self._used, self._began
        return wire_usage(used, 0.0 if at is None or began is None else max(0.0, at - began))

    def shown(self, text: str) -> str:
        """The text as others may see it: without secrets, and cut to size."""
        return clip(self._keys.remove(text), SHOWN)

    def _id(self, session: str) -> str:
        return self._task_id if session == "root" else f"{self._task_id}.{session.removeprefix('root/')}"

    def _progress(self, note: str, event: Event) -> None:
        if event.session == "root":
            note, usage = clip(self.shown(note), 200), self.usage(event.at)
            self._emit(WireProgress(id=self._task_id, note=note, usage=usage, limits=self._limits))


def wire_usage(used: Usage, seconds: float = 0.0) -> WireUsage:
    """What was used, as the wire carries it."""
    return WireUsage(
        iterations=used.iterations,
        tool_calls=used.tool_calls,
        subcalls=used.llm_subcalls,
        tokens=used.tokens_total,
        cost_usd=used.cost,
        seconds=round(seconds, 2),
    )


def citation_of(proved: Citation) -> WireCitation:
    """A proved citation as the wire carries it."""
    return WireCitation(
        path=proved.path,
        start_line=proved.start_line,
        end_line=proved.end_line,
        hash=proved.excerpt_hash,
        snippet=clip(proved.snippet, 300) or None,
    )


class EditRunner:
    """See `TaskRunner`. `settings` name the model and the run folder; a task may name another model and its limits.

    `default` holds for what neither the task nor the settings limit.
    """

    def __init__(self, settings: Settings, commands: Sequence[str] = (), *, default: Budget = PROTOCOL_BUDGET) -> None:
        self._settings = settings
        self._budget = settings.budget(default, EDIT_MAXIMA)
        self._commands = tuple(commands)

    def run(self, task: NewTask, workspace: Workspace, emit: Emit, cancelled: threading.Event) -> Completion:
        """Run the task to its end. A reached limit is named, so that a host can offer a larger budget."""
        given = task.limits or WireLimits()
        budget = self._budget.override(
            EDIT_MAXIMA,
            max_depth=given.max_depth,
            max_subcalls=given.max_subcalls,
            max_tokens_per_subcall=given.max_tokens_per_subcall,
            max_tokens_total=given.max_total_tokens,
            max_wall_time_sec=given.timeout_seconds,
        )
        in_force = WireLimits(
            max_depth=budget.max_depth,
            max_subcalls=budget.max_subcalls,
            max_tokens_per_subcall=budget.max_tokens_per_subcall,
            max_total_tokens=budget.max_tokens_total,
            timeout_seconds=budget.max_wall_time_sec if math.isfinite(budget.max_wall_time_sec) else None,
        )
        translator = EventTranslator(task.id, emit, in_force, self._settings.secrets())
        done = edit(
            task.prompt,
            workspace,
            model=task.model,
            settings=self._settings,
            budget=budget,
            commands=self._commands,
            continue_from=task.continue_from,
            on_event=translator.on_event,
            on_text=translator.on_text,
            cancel=cancelled,
        )
        error = done.record.error
        limited = error is not None and error.code in ("RECURSION_LIMIT_REACHED", "WALL_TIME_LIMIT_REACHED")
        summary = done.summary.strip() or (error.message if error else "nothing was done")
        if error is not None and error.message not in summary:  # a host may read no other field
            summary = f"{summary}\n({done.status.value}: {error.message})"
        return Completion(
            id=task.id,
            status=cast("Status", done.status.value),
            summary=quiet(translator.shown(summary)),
            citations=tuple(citation_of(each) for each in done.citations),
            usage=translator.usage(time.time()),
            run_dir=str(done.run_dir) if done.run_dir else None,
            limit=error.message if error is not None and limited and not cancelled.is_set() else None,
        )
