"""What generated code may call: the context's tools, sub-calls, the budget, and the evidence it wants to keep.

Every call is on the stream with the hashes of its arguments and its result before the code sees the result. Tools are
charged one by one, so a loop of ten thousand calls stops at the quota in the middle of a block. Tool results come
from the recording when it has them; sub-calls run again with their own recorded replies.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from sonde.contexts import Mindful
from sonde.core.calls import excerpt_of_call
from sonde.core.canonical import canonical_json, clip, hash_value, jsonable
from sonde.core.deadline import guarded
from sonde.core.events import HostReturned
from sonde.core.evidence import Excerpt
from sonde.core.redaction import rewrite_value
from sonde.errors import Fault, RunError, SandboxViolation, ToolFault, ToolResponseInvalid, reached_before
from sonde.runtime.citations import CallSite, Citations
from sonde.runtime.delegate import Delegation
from sonde.runtime.engine import Review
from sonde.runtime.functions import SUBCALLS, Functions
from sonde.runtime.prompts import brief_prompt, taught
from sonde.sandbox import Args
from sonde.sandbox.policy import NEWER_SINCE
from sonde.tools import CallResult, ToolRegistry

if TYPE_CHECKING:
    from sonde.core.mask import Mask

TRACED_CALLS = 200
MOST_HANDED = 1000
"""Different masked values in the arguments of one call; each is looked for in what comes back."""
RECORDED_CHARS = 2000
RECORDED_ARGS = 1_000_000
"""Characters of one call's arguments on the stream, as many as a result may have; a loop of longer ones would fill the disk."""
RECORDED_NAMES = 20
DONE_CHARS = 500
ERROR_CHARS = 20_000
"""A tool's complaint often quotes what it was given, however long that is."""
AT_ONCE = frozenset({"budget", "append_highlight", "add_citation", "cite_tool", "help"})
"""Functions that wait for nobody: if the recorded run continued, they had returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One host call: where it stands and what it asks for."""

    turn: int
    ordinal: int
    name: str
    args: Mapping[str, Any]


class Host:
    """Serves the code's calls, one at a time; everything here runs in the parent.

    A call names a tool of the registry or a function of the runtime itself; the latter are in `functions` and `citations`.
    """

    def __init__(self, delegation: Delegation, review: Review | None = None) -> None:
        self.delegation = delegation
        self.run = delegation.run
        self.scope = delegation.scope
        self.site = CallSite(session=delegation.session)
        self.citations = Citations(self.run, self.site)
        self.functions = Functions(delegation, self.citations, review)
        self.trace: deque[dict[str, Any]] = deque(maxlen=TRACED_CALLS)
        self.own = ToolRegistry(taught(self.functions.offered(), self.run.spec.profile))

    def counters(self) -> dict[str, Any]:
        """The state that the runtime keeps for the code (R3), as of the start of a block; it holds no time, so that it replays."""
        return {"tool_trace": list(self.trace), "budget_counters": self.scope.usage.for_code()}

    @property
    def names(self) -> tuple[str, ...]:
        """Everything the code may call; the prompt names these and no others."""
        return (*self.run.registry.names, *self.own.names)

    @property
    def prompt(self) -> str:
        """The documentation of these functions for the prompt."""
        tools = (*self.run.registry.tools, *self.own.tools)
        if self.functions.brief:
            return brief_prompt([each for each in tools if each.name != "help"], self.functions.brief)
        if self.run.spec.engine.terse:
            shown = [each for each in tools if not each.doc.startswith("The same as")]
            listed = "\n".join(each.brief for each in shown)
            return listed if self.run.format >= NEWER_SINCE else listed.replace(", numbered=False", "")
        return "\n\n".join(text for text in (self.run.registry.prompt, self.own.prompt) if text)

    def begin(self, turn: int) -> None:
        """A new turn: ordinals start anew."""
        self.site.turn, self.site.ordinal = turn, 0
        self.site.notes.clear()
        self.citations.begin_turn()

    def __call__(self, name: str, args: Args) -> Any:
        """Serve one call of the code; a Fault arrives there as an exception, a RunError ends the turn."""
        self.run.check_cancel()
        self.scope.check_time()  # our time does not count as the code's: a loop of slow calls would never end
        self.site.ordinal += 1
        try:
            registry = self.run.registry if name in self.run.registry.names else self.own
            bound = registry.bind(name, tuple(args), args.named)
        except ToolFault as fault:
            if name in self.run.registry.names:
                self.scope.charge(tool_calls=1)  # as the record counts it, so that a loop of wrong calls ends too
            raise self._failed(
                Call(turn=self.site.turn, ordinal=self.site.ordinal, name=name, args={}), fault
            ) from None
        return self.call(name, bound)

    def args_hash(self, name: str, args: Args) -> str | None:
        """The hash under which a call with these arguments is recorded; None for a function or arguments that are not known here."""
        try:
            registry = self.run.registry if name in self.run.registry.names else self.own
            return _args_hash(registry.bind(name, tuple(args), args.named))
        except ToolFault:
            return None

    def call(self, name: str, bound: Mapping[str, Any]) -> Any:
        """Serve a call whose arguments have names."""
        call = Call(turn=self.site.turn, ordinal=self.site.ordinal, name=name, args=bound)
        if name in self.run.registry.names:
            return self._tool(call)
        if name in AT_ONCE:
            # A replay goes no further than the recorded run.
            self.run.spec.recording.expect(HostReturned, self.site.session, call.turn, call.ordinal)
        try:
            with self.delegation.delegating() if name in SUBCALLS else nullcontext():
                result = self.own.call(name, bound)
        except Fault as fault:
            raise self._failed(call, fault) from None
        return self._record(call, result).result

    def tool_action(self, name: str, args: Mapping[str, Any]) -> Any:
        """Serve a typed `tool_call` action."""
        self.run.check_cancel()
        self.site.ordinal += 1
        return self.call(name, args)

    def _tool(self, call: Call) -> Any:
        place = (self.site.session, call.turn, call.ordinal)
        hashed = _args_hash(call.args)
        recorded = self.run.spec.recording.expect(HostReturned, *place, name=call.name, args_hash=hashed)
        self.scope.charge(tool_calls=1)
        if recorded is not None:
            self.run.log.note(msgspec.convert(each, Excerpt) for each in recorded.excerpts)
            if isinstance(self.run.spec.context, Mindful):
                self.run.spec.context.recall(recorded.name, call.args, recorded.result, recorded.error)
            self.trace.append({"tool_name": recorded.name, "args_hash": recorded.args_hash, "ok": recorded.ok})
            self.run.emit(recorded)
            self._told(recorded)
            if not recorded.ok:
                ended = reached_before(self.run.spec.recording.error_of(self.site.session))
                raise ended if ended and ended.message == recorded.error else ToolFault(recorded.error or "failed")
            return recorded.result
        started = self.run.clock.now()
        try:
            mask = self.run.spec.mask
            reads = call.name not in self.run.registry.given and self.run.registry.get(call.name).read_only
            with guarded(call.name) if reads else nullcontext():
                result = self.run.registry.call(call.name, call.args) if mask is None else self._masked(call, mask)
        except Fault as fault:
            raise self._failed(call, fault, self.run.clock.now() - started) from None
        except ToolResponseInvalid as error:
            if call.name not in self.run.registry.given:  # a server, not a tool of the user
                self._failed(call, ToolFault(error.message), self.run.clock.now() - started)
                raise
            told = ToolFault(f"{error.message} If other arguments do not help, do without this tool.")
            raise self._failed(call, told, self.run.clock.now() - started) from None
        except SandboxViolation as error:  # it ends the run, but the call was made
            self._failed(call, ToolFault(error.message), self.run.clock.now() - started)
            raise
        if result.citable and (call.name in self.run.registry.given or not result.excerpts):
            # Cited by its call: by the text that the record holds and the model sees.
            value = self.run.recorder.cleaned(result.result)
            own = excerpt_of_call(result.tool_name, result.args_hash, value)
            others = [each for each in result.excerpts if each.kind is not own.kind]
            result = replace(result, result=value, response_hash=hash_value(value), excerpts=(own, *others))
        self.run.log.note(result.excerpts)
        recorded = self._record(call, result)
        self._told(recorded)
        return recorded.result  # as recorded, without key values: what a replay will see

    def _masked(self, call: Call, mask: Mask) -> CallResult:
        """The call in a masked run. A tool of the user works with the real values of its arguments. It may quote them glued to other
        text, where no pattern finds them, or cut: what it returns does not bring them back, and what it complains of is not said at
        all, since any look at the words would answer the question whether a guess stands in them.
        """
        handed = mask.handed(jsonable(call.args))
        if len(handed) > MOST_HANDED:
            raise ToolFault(
                f"these arguments have {len(handed):,} different placeholders; at most {MOST_HANDED:,} in one call"
            )
        if call.name not in self.run.registry.given:  # masked by its context
            try:
                return self.run.registry.call(call.name, call.args)
            except RunError as error:
                error.message = mask.told(error.message, handed)
                raise
        try:
            result = self.run.registry.call(
                call.name,
                rewrite_value(jsonable(call.args), mask.filled),
                lambda value: mask.returned(value, handed),
            )
        except Fault as fault:
            if not handed:
                raise ToolFault(mask.hidden(fault.message)) from None
            self.run.registry.get(call.name).check(
                call.args
            )  # what is wrong with them as the code wrote them, it may hear
            raise ToolFault(f"{call.name}: {mask.NOT_SAID}") from None
        except RunError as error:
            error.message = mask.NOT_SAID if handed else mask.hidden(error.message)
            raise
        return replace(result, args_hash=_args_hash(call.args))

    def _told(self, recorded: HostReturned) -> None:
        """Remarks for the model about a call: what was cut, what it changed, and by which ref a user's tool is cited."""
        if recorded.truncated:
            self.site.notes.append(f"{recorded.name}: {recorded.truncated}")
        self.citations.remember(recorded)
        match recorded.result:
            case {"applied": True, "summary": str() as summary} if not self.run.registry.get(recorded.name).read_only:
                self.site.done.append(clip("; ".join(summary.splitlines()), DONE_CHARS))
            case _:
                pass

    def _failed(self, call: Call, fault: Fault, latency: float = 0.0) -> Fault:
        """The fault as recorded, without key values. The code hears exactly this, so that a replay hears it too."""
        said = clip(str(self.run.recorder.cleaned(fault.message)), ERROR_CHARS)
        return ToolFault(self._record(call, ToolFault(said), latency).error or "failed")

    def _record(self, call: Call, came: CallResult | Fault, latency: float = 0.0) -> HostReturned:
        tool = call.name in self.run.registry.names
        args: dict[str, Any] = jsonable(call.args)  # those of a tool whole, unless they are too long
        if not tool or len(canonical_json(args)) > RECORDED_ARGS:
            args = clipped(args)
        if len(canonical_json(args)) > RECORDED_ARGS:
            shown = list(args.items())[:RECORDED_NAMES]
            args = {clip(name, RECORDED_CHARS): clip(canonical_json(value), RECORDED_CHARS) for name, value in shown}
        event = HostReturned(
            session=self.site.session,
            turn=call.turn,
            ordinal=call.ordinal,
            name=call.name,
            args=args,
            args_hash=_args_hash(call.args),
            ok=isinstance(came, CallResult),
            tool=tool,
            latency_s=came.latency_s if isinstance(came, CallResult) else latency,
            error=None if isinstance(came, CallResult) else came.message,
        )
        if isinstance(came, CallResult):
            event = msgspec.structs.replace(
                event,
                result=came.result,
                response_hash=came.response_hash,
                excerpts=[msgspec.to_builtins(each) for each in came.excerpts] if event.tool else [],
                truncated=came.truncated,
            )
        self.trace.append({"tool_name": call.name, "args_hash": event.args_hash, "ok": event.ok})
        return self.run.emit(event)


def clipped(value: Any) -> Any:
    """Arguments with long texts cut: prompts are on the stream in full where the model is asked."""
    match value:
        case str():
            return clip(value, RECORDED_CHARS)
        case dict():
            return {key: clipped(item) for key, item in cast("dict[str, Any]", value).items()}
        case list():
            return [clipped(item) for item in cast("list[Any]", value)]
        case _:
            return value


def _args_hash(args: Mapping[str, Any]) -> str:
    return hash_value(jsonable(args))
