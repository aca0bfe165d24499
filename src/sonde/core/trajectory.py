"""What the code did, turn by turn, as the record carries it (contracts 2.2): clipped, bounded, with a count of what was left out.

The record must not grow with the context or the length of a run. Each text is clipped, each step keeps its first tool calls, and a long
run keeps its first and last steps. Every omission is counted. The journal holds everything; this is for reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, Literal, TypeVar, cast

import msgspec
from pydantic import BaseModel, ConfigDict

from sonde.core.canonical import clip
from sonde.core.events import CodeRan, CodeStarted, Event, HostReturned, ModelReplied, SubcallEnded, SubcallStarted

TEXT_LIMIT = 2_000
CODE_LIMIT = 8_192
CALLS_LIMIT = 20
BYTES_LIMIT = 450_000

T = TypeVar("T")
_frozen = ConfigDict(frozen=True)


class ToolTrace(BaseModel):
    """One host call of a step."""

    model_config = _frozen

    call_id: str
    tool_name: str
    args: Any
    args_hash: str
    response_hash: str = ""
    status: Literal["ok", "error"]
    result_preview: str | None = None
    result_keys: list[str] | None = None
    error: str | None = None


class SubqueryTrace(BaseModel):
    """One sub-call of a step."""

    model_config = _frozen

    subcall_id: str
    mode: str
    prompt: str
    answer: str
    tokens_in: int
    tokens_out: int
    cost_usd: float


class ReplStep(BaseModel):
    """One block of code, or one typed action, and what came of it."""

    model_config = _frozen

    session: str
    turn: int
    block: int
    reasoning: str = ""
    code: str = ""
    output: str = ""
    fault: str | None = None
    tool_trace: list[ToolTrace] = []
    tool_trace_omitted: int = 0
    subquery_trace: list[SubqueryTrace] = []
    subquery_trace_omitted: int = 0


class Bounded:
    """A list of bounded size in bytes as written: the first half of what fits, then the newest, and a count of the rest."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head: list[dict[str, Any]] = []
        self._tail: deque[tuple[int, dict[str, Any]]] = deque()
        self._head_bytes = self._tail_bytes = 0
        self.omitted = 0

    def add(self, item: dict[str, Any]) -> None:
        """Keep it; an item between the first and the last may be dropped."""
        size = written_bytes(item)
        if not self._tail and self._head_bytes + size <= self._half:
            self._head.append(item)
            self._head_bytes += size
            return
        self._tail.append((size, item))
        self._tail_bytes += size
        while self._tail_bytes > self._half and len(self._tail) > 1:
            self._tail_bytes -= self._tail.popleft()[0]
            self.omitted += 1

    def items(self) -> list[dict[str, Any]]:
        """What was kept, in order."""
        return self._head + [item for _, item in self._tail]

    def copy(self) -> Bounded:
        """A copy that can grow without changing this one."""
        other = copy(self)
        other._head, other._tail = list(self._head), deque(self._tail)
        return other


def that_fit(items: Iterable[T], limit: int) -> list[T]:
    """As many of the first items as fit into `limit` bytes; one that is too large is skipped."""
    found: list[T] = []
    for item in items:
        size = written_bytes(item)
        if size <= limit:
            found.append(item)
            limit -= size
    return found


def written_bytes(item: Any) -> int:
    """How many bytes this takes in an indented file, at the depth where the record has its lists."""
    text = msgspec.json.format(msgspec.json.encode(item), indent=2)
    return len(text) + 6 * text.count(b"\n")


class Trajectory:
    """Folds the events of all sessions into steps. A step is done when its session's next one starts, or the session ends."""

    def __init__(self) -> None:
        self._steps = Bounded(BYTES_LIMIT)
        self._open: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, SubcallStarted] = {}
        self._answers: dict[str, str] = {}

    def add(self, event: Event) -> None:
        """Take one event in; most do not belong to a step."""
        match event:
            case CodeStarted():
                held = self._open.get(event.session)
                if held is None or held["turn"] != event.turn or held["code"]:
                    held = self._fresh(event.session, event.turn, event.block)
                held |= {"block": event.block, "code": clip(event.code, CODE_LIMIT)}
                held["reasoning"] = clip(event.reasoning, TEXT_LIMIT)
            case CodeRan():
                step = self._step(event.session, event.turn)
                both = event.stdout + (f"\n[stderr]\n{event.stderr}" if event.stderr else "")
                step["output"] = clip(both, CODE_LIMIT)
                if event.fault is not None:
                    fault = f"{event.fault.get('kind', 'error')}: {event.fault.get('message', '')}"
                    step["fault"] = clip(fault, TEXT_LIMIT)
            case HostReturned():
                step = self._step(event.session, event.turn)
                _keep(step, "tool_trace", lambda: tool_trace(event))
            case SubcallStarted():
                self._asked[event.session] = event
            case ModelReplied() if event.session in self._asked:
                self._answers[event.session] = clip(event.text, TEXT_LIMIT)
            case SubcallEnded():
                self._close(event.session)
                asked, answer = self._asked.pop(event.session, None), self._answers.pop(event.session, "")
                above = parent_of(event.session)
                if asked is None or above is None:
                    return
                trace = SubqueryTrace(
                    subcall_id=event.call_id,
                    mode=asked.mode,
                    prompt=clip(asked.objective, TEXT_LIMIT),
                    answer=clip(event.summary, TEXT_LIMIT) or answer,
                    tokens_in=event.tokens_in,
                    tokens_out=event.tokens_out,
                    cost_usd=event.cost_usd,
                )
                _keep(self._step(*above), "subquery_trace", lambda: trace.model_dump(mode="json"))
            case _:
                pass

    def _step(self, session: str, turn: int) -> dict[str, Any]:
        held = self._open.get(session)
        return held if held is not None and held["turn"] == turn else self._fresh(session, turn, 0)

    def _close(self, session: str) -> None:
        done = self._open.pop(session, None)
        if done is not None:
            self._steps.add(done)

    def _fresh(self, session: str, turn: int, block: int) -> dict[str, Any]:
        self._close(session)
        step = ReplStep(session=session, turn=turn, block=block).model_dump(mode="json")
        self._open[session] = step
        return step

    def steps(self) -> Bounded:
        """The steps so far, those still open last."""
        kept = self._steps.copy()
        for step in self._open.values():
            kept.add(step)
        return kept


def _keep(step: dict[str, Any], name: str, item: Callable[[], dict[str, Any]]) -> None:
    if len(step[name]) < CALLS_LIMIT:
        step[name].append(item())
    else:
        step[f"{name}_omitted"] += 1


def tool_trace(event: HostReturned) -> dict[str, Any]:
    """A host call as the record shows it. `result_keys` are those of the result, or of its first item."""
    result: Any = event.result if event.ok else None
    first: Any = cast("list[Any]", result)[0] if isinstance(result, list) and result else cast("Any", result)
    keys = sorted(cast("dict[str, Any]", first))[:40] if isinstance(first, dict) else None
    args = msgspec.json.encode(event.args).decode()
    return ToolTrace(
        call_id=f"{event.session}:{event.turn}.{event.ordinal}",
        tool_name=event.name,
        args=event.args if len(args) <= TEXT_LIMIT else {"clipped": clip(args, TEXT_LIMIT)},
        args_hash=event.args_hash,
        response_hash=event.response_hash,
        status="ok" if event.ok else "error",
        result_preview=preview(event.result) if event.ok else None,
        result_keys=None if keys is None else [clip(str(key), 80) for key in keys],
        error=None if event.error is None else clip(event.error, TEXT_LIMIT),
    ).model_dump(mode="json")


def preview(value: Any) -> str:
    """A value as text, clipped."""
    return clip(value if isinstance(value, str) else msgspec.json.encode(value).decode(), TEXT_LIMIT)


def parent_of(session: str) -> tuple[str, int] | None:
    """The parent's path and the turn in which it made this child; None for the root. `root/3.1` -> (`root`, 3)."""
    path, slash, call = session.rpartition("/")
    number = call.split(".")[0]
    return (path, int(number)) if slash and number.isdigit() else None
