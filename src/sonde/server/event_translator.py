"""What a run does, told in the protocol's words: sub-calls as a tree, the model's replies, progress with what was spent.

A view of the event stream; it counts nothing of its own. Reads, searches and patches are not told here: the workspace tells them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sonde.core.canonical import clip
from sonde.core.events import Event, ModelAsked, ModelReplied, Noted, SubcallEnded, SubcallStarted, TurnStarted
from sonde.core.evidence import Citation as ProvedCitation
from sonde.core.record import RecordFold
from sonde.core.redaction import secret_forms
from sonde.server.messages import SHOWN, AssistantMessage, Citation, Limits, Progress, SubcallEnd, SubcallStart, Usage
from sonde.server.runner import Emit


class Telling:
    """Listens to one run and emits for one task; safe to call from threads."""

    def __init__(self, task_id: str, emit: Emit, limits: Limits | None = None, secrets: Sequence[str] = ()) -> None:
        self._task_id = task_id
        self._emit = emit
        self._limits = limits
        self._secrets = secrets
        self._keys = secret_forms(secrets)
        self._fold = RecordFold()
        self._began: float | None = None
        self._speaking: dict[str, str] = {}
        self._held: dict[str, str] = {}  # ends of pieces that are not told yet
        self._lock = threading.Lock()

    def on_event(self, event: Event) -> None:
        """One event of the run."""
        with self._lock:
            self._fold.add(event)
            self._began = self._began if self._began is not None else event.at
        match event:
            case SubcallStarted():
                intent = self.shown(event.objective)
                scope = ", ".join(event.shared) or event.mode
                self._emit(
                    SubcallStart(
                        id=self._id(event.session), parent_id=self._id(event.parent_call_id), intent=intent, scope=scope
                    )
                )
            case SubcallEnded():
                self._emit(self._ended(event))
            case ModelAsked():
                self._held.pop(event.session, None)
                self._speaking[event.session] = f"{self._id(event.session)}.m{event.turn}.{event.ordinal}"
            case ModelReplied():
                self._emit(self._reply(event))
            case TurnStarted():
                self._progress(f"turn {event.turn}", event)
            case Noted():
                self._progress(event.text, event)
            case _:
                pass

    def on_text(self, session: str, text: str) -> None:
        """A piece of a reply as it streams in; what may be the beginning of a key waits for what follows."""
        if session not in self._speaking:
            return
        text = self._keys.remove(self._held.get(session, "") + text)
        end = len(text) - _begun(text, self._secrets)
        self._held[session] = text[end:]
        if end:
            content = clip(text[:end], SHOWN)
            message = AssistantMessage(
                id=self._speaking[session], parent_id=self._id(session), content=content, partial=True
            )
            self._emit(message)

    def usage(self, at: float | None = None) -> Usage:
        """What was spent so far."""
        with self._lock:
            used = self._fold.usage
        return Usage(
            iterations=used.iterations,
            tool_calls=used.tool_calls,
            subcalls=used.llm_subcalls,
            tokens=used.tokens_in + used.tokens_out,
            cost_usd=used.cost_usd,
            seconds=round(max(0.0, at - self._began), 2) if at is not None and self._began is not None else 0.0,
        )

    def shown(self, text: str) -> str:
        """The text as others may see it: without the values of keys, and not endless."""
        return clip(self._keys.remove(text), SHOWN)

    def _id(self, session: str) -> str:
        return self._task_id if session == "root" else f"{self._task_id}.{session.removeprefix('root/')}"

    def _ended(self, event: SubcallEnded) -> SubcallEnd:
        usage = Usage(tokens=event.tokens_in + event.tokens_out, cost_usd=event.cost_usd)
        cited = [ref for ref in event.evidence_refs if ref.get("path")]
        citations = tuple(citation_of(ProvedCitation.model_validate(ref)) for ref in cited)
        return SubcallEnd(
            id=self._id(event.session), summary=self.shown(event.summary), citations=citations, usage=usage
        )

    def _reply(self, event: ModelReplied) -> AssistantMessage:
        known = self._speaking.get(event.session, f"{self._id(event.session)}.m{event.turn}.{event.ordinal}")
        return AssistantMessage(
            id=known, parent_id=self._id(event.session), content=self.shown(event.text) or "(no text)"
        )

    def _progress(self, note: str, event: Event) -> None:
        if event.session == "root":
            self._emit(
                Progress(
                    id=self._task_id, note=clip(self.shown(note), 200), usage=self.usage(event.at), limits=self._limits
                )
            )


def _begun(text: str, secrets: Sequence[str]) -> int:
    """How many characters at the end of a text may be the beginning of a key."""
    lengths = (n for secret in secrets for n in range(len(secret) - 1, 0, -1) if text.endswith(secret[:n]))
    return max(lengths, default=0)


def citation_of(proved: ProvedCitation) -> Citation:
    """A proved citation as the wire carries it."""
    return Citation(
        path=proved.path,
        start_line=proved.start_line,
        end_line=proved.end_line,
        hash=proved.excerpt_hash,
        snippet=clip(proved.snippet, 300) or None,
    )
