"""A run's events as spans with OpenInference attributes; values only, nothing is sent from here.

A session is an AGENT, a plain completion a CHAIN with an LLM in it, a block of code a CHAIN, a host call a TOOL, a judged final value an
EVALUATOR. Ids follow from the run's id and the place in the tree, so that a run sent twice makes the same spans. Prompts, code, arguments,
results and answers are content: spans hold them only when `content` says so, and otherwise their hashes and sizes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sonde.core.canonical import clip, sha256_text
from sonde.core.events import (
    ROOT,
    CodeRan,
    CodeStarted,
    Event,
    GateChecked,
    HostReturned,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    RunEnded,
    RunStarted,
    SubcallEnded,
    SubcallStarted,
)
from sonde.core.trajectory import parent_of

TEXT = 32_000
Value = str | int | float | bool | list[str]


@dataclass(slots=True, kw_only=True)
class RunSpan:
    """One span; `parent` is the id of the span around it. Times are seconds since the epoch."""

    id: str
    parent: str | None
    name: str
    kind: str
    start: float
    end: float
    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    error: str | None = None


def spans_of(events: Iterable[Event], *, content: bool = False) -> list[RunSpan]:
    """The spans of a run, parents first; those that never ended end with the last event and say so."""
    fold = _Fold(content=content)
    for event in events:
        fold.add(event)
    return fold.spans()


def trace_id(run_id: str) -> str:
    """The trace of a run: 32 hex digits."""
    return sha256_text(f"sonde trace {run_id}")[:32]


@dataclass(slots=True, kw_only=True)
class _Fold:
    content: bool
    run_id: str = ""
    last: float = 0.0
    found: dict[str, RunSpan] = field(default_factory=dict[str, RunSpan])
    running: set[str] = field(default_factory=set[str])
    blocks: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    messages: dict[str, list[dict[str, str]]] = field(default_factory=dict[str, list[dict[str, str]]])

    def add(self, event: Event) -> None:
        """Open, fill or close the span that an event is about."""
        self.last = max(self.last, event.at)
        match event:
            case RunStarted() | RunEnded() | SubcallStarted() | SubcallEnded():
                self._add_session(event)
            case ModelAsked() | ModelReplied() | ModelFailed():
                self._add_model(event)
            case CodeStarted() | CodeRan() | HostReturned() | GateChecked():
                self._add_work(event)
            case _:
                pass

    def spans(self) -> list[RunSpan]:
        for key in self.running:
            span = self.found[key]
            span.end, span.error = max(span.end, self.last), span.error or "never ended: the run was cut off"
        return list(self.found.values())

    def _open(self, event: Event, key: str, name: str, kind: str) -> RunSpan:
        span_id = sha256_text(f"sonde span {self.run_id} {key}")[:16]
        # Around it is the block of code in which it happened, or else the session.
        if isinstance(event, SubcallStarted):
            above = parent_of(event.session)
            parent = self._inside(*above) if above else self._session(ROOT)
        elif isinstance(event, HostReturned):
            parent = self._inside(event.session, event.turn)
        else:
            parent = None if key == f"session {ROOT}" else self._session(event.session)
        span = RunSpan(id=span_id, parent=parent, name=name, kind=kind, start=event.at, end=event.at)
        span.attributes["openinference.span.kind"] = kind
        span.attributes["session.id"] = self.run_id
        span.attributes["sonde.session"] = event.session
        if hasattr(event, "turn"):
            span.attributes["sonde.turn"] = int(getattr(event, "turn"))  # noqa: B009  # not every event has one
        self.found[key] = span
        self.running.add(key)
        return span

    def _close(self, key: str, event: Event, error: str | None = None) -> RunSpan | None:
        span = self.found.get(key)
        if span is not None:
            span.end, span.error = event.at, error
            self.running.discard(key)
        return span

    def _inside(self, session: str, turn: int) -> str | None:
        return self.blocks.get((session, turn)) or self._session(session)

    def _session(self, session: str) -> str | None:
        span = self.found.get(f"session {session}")
        return span.id if span is not None else None

    def _say(self, span: RunSpan, side: str, value: Any) -> None:
        """The value when content is allowed, its hash and size otherwise."""
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=repr)
        if self.content:
            span.attributes[f"{side}.value"] = clip(text, TEXT)
            span.attributes[f"{side}.mime_type"] = "text/plain" if isinstance(value, str) else "application/json"
        else:
            span.attributes[f"sonde.{side}.sha256"] = sha256_text(text)
            span.attributes[f"sonde.{side}.chars"] = len(text)

    def _add_session(self, event: RunStarted | RunEnded | SubcallStarted | SubcallEnded) -> None:
        match event:
            case RunStarted():
                self.run_id = event.run_id
                span = self._open(event, f"session {ROOT}", f"sonde {event.run_type}", "AGENT")
                span.attributes |= {
                    "agent.name": f"sonde {event.run_type}",
                    "sonde.run_id": event.run_id,
                    "sonde.engine_version": event.engine_version,
                    "sonde.profile": event.profile,
                    "sonde.mode": event.mode,
                    "sonde.prompt_template_hash": event.prompt_template_hash,
                    "metadata": json.dumps(
                        {"run_id": event.run_id, "run_type": event.run_type, "budget": event.budget}
                    ),
                }
                self._say(span, "input", event.objective)
            case RunEnded():
                shown = "message" if self.content else "code"  # messages quote the answer that did not fit
                reason = str((event.error or {}).get(shown, event.status)) if event.status == "failed" else None
                if (span := self._close(f"session {ROOT}", event, reason)) is not None:
                    span.attributes |= {"sonde.status": event.status, "sonde.annotator_kind": event.annotator_kind}
                    self._say(span, "output", event.output)
            case SubcallStarted():
                kind, name = ("CHAIN", "llm_query") if event.mode == "query" else ("AGENT", "sub-call")
                span = self._open(event, f"session {event.session}", name, kind)
                span.attributes |= {"sonde.depth": event.depth, "sonde.call_id": event.call_id}
                if kind == "AGENT":
                    span.attributes["agent.name"] = name
                self._say(span, "input", event.objective)
            case SubcallEnded():
                reason = None if event.status == "succeeded" else event.status
                if (span := self._close(f"session {event.session}", event, reason)) is not None:
                    span.attributes["sonde.status"] = event.status
                    self._say(span, "output", event.summary)

    def _add_model(self, event: ModelAsked | ModelReplied | ModelFailed) -> None:
        key = f"model {event.session} {event.turn} {event.ordinal}"
        match event:
            case ModelAsked():
                span = self._open(event, key, "model", "LLM")
                name = event.model.partition(":")[2] or event.model  # `openai:gpt-4o-mini` -> `gpt-4o-mini`
                span.attributes |= {"llm.model_name": name, "sonde.request_hash": event.request_hash}
                before = self.messages.get(event.session, [])[: event.kept]
                listed = self.messages[event.session] = [*before, *event.messages]
                if event.max_output_tokens is not None:
                    span.attributes["llm.invocation_parameters"] = json.dumps({"max_tokens": event.max_output_tokens})
                self._say_messages(span, "llm.input_messages", listed)
                self._say(span, "input", listed)
            case ModelFailed():  # a failed attempt is a span of its own: it may have cost something
                attempt = f"{key} attempt {event.attempt}"
                span = self._open(event, attempt, f"model attempt {event.attempt}", "LLM")
                span.start = event.at - event.latency_s
                span.attributes |= {"llm.token_count.prompt": event.tokens_in, "sonde.retryable": event.retryable}
                if event.cost_usd is not None:
                    span.attributes["llm.cost.total"] = event.cost_usd
                self._close(attempt, event, event.message)
                if event.wait_s is None:
                    self._close(key, event, event.message)
            case ModelReplied():
                if (span := self._close(key, event)) is not None:
                    span.attributes |= {
                        "llm.token_count.prompt": event.tokens_in,
                        "llm.token_count.completion": event.tokens_out,
                        "llm.token_count.total": event.tokens_in + event.tokens_out,
                        "llm.token_count.prompt_details.cache_read": event.cached_in,
                        "sonde.attempts": event.attempts,
                        "sonde.estimated": event.estimated,
                    }
                    if event.cost_usd is not None:
                        span.attributes["llm.cost.total"] = event.cost_usd
                    if event.finish_reason:
                        span.attributes["llm.finish_reason"] = event.finish_reason
                    self._say_messages(span, "llm.output_messages", [{"role": "assistant", "content": event.text}])
                    self._say(span, "output", event.text)

    def _say_messages(self, span: RunSpan, name: str, messages: Sequence[dict[str, str]]) -> None:
        for place, message in enumerate(messages if self.content else ()):
            span.attributes[f"{name}.{place}.message.role"] = message["role"]
            span.attributes[f"{name}.{place}.message.content"] = clip(message["content"], TEXT)

    def _add_work(self, event: CodeStarted | CodeRan | HostReturned | GateChecked) -> None:
        match event:
            case CodeStarted():
                span = self._open(event, f"code {event.session} {event.turn} {event.block}", "python", "CHAIN")
                self.blocks[event.session, event.turn] = span.id
                self._say(span, "input", event.code)
            case CodeRan():
                fault = event.fault or {}
                reason = None if event.ok else str(fault.get("message") if self.content else fault.get("kind", "fault"))
                span = self._close(f"code {event.session} {event.turn} {event.block}", event, reason)
                if span is not None:
                    span.attributes["sonde.final"] = event.final
                    self._say(span, "output", event.stdout)
            case HostReturned():
                key = f"host {event.session} {event.turn} {event.ordinal}"
                span = self._open(event, key, event.name, "TOOL")
                span.start = event.at - event.latency_s
                span.attributes |= {"tool.name": event.name, "sonde.args_hash": event.args_hash}
                span.attributes |= {"sonde.response_hash": event.response_hash, "sonde.excerpts": len(event.excerpts)}
                if self.content:
                    arguments = json.dumps(event.args, ensure_ascii=False, default=repr)
                    span.attributes["tool.parameters"] = clip(arguments, TEXT)
                self._say(span, "input", event.args)
                self._say(span, "output", event.result if event.ok else event.error)
                self._close(key, event, None if event.ok else (event.error if self.content else "tool error"))
            case GateChecked():
                key = f"gate {event.session} {event.turn} {event.gate}"
                span = self._open(event, key, f"gate {event.gate}", "EVALUATOR")
                span.attributes |= {"sonde.gate": event.gate, "sonde.passed": event.ok}
                self._say(span, "output", event.reason or ("passed" if event.ok else "refused"))
                self._close(key, event)
