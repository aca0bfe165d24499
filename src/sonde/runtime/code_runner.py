"""Running a reply's code: blocks in order until one fails or finishes, each on the stream with its clock, output and faults."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from sonde.core.canonical import canonical_json, clip, hash_value, jsonable, sha256_text
from sonde.core.deadline import RepeatTime
from sonde.core.events import (
    ROOT,
    CodeRan,
    CodeStarted,
    HostReturned,
    RunStarted,
    ToolExecError,
    ToolIntercepted,
    TurnStarted,
)
from sonde.core.redaction import is_same_but_for_keys
from sonde.errors import ConfigError, SandboxViolation, ToolFault
from sonde.runs.recording import NOT_RUN, Block, Diverged, EarlierRuns, Recording
from sonde.runtime import feedback
from sonde.runtime.actions import RunCode
from sonde.runtime.functions import SHARING
from sonde.runtime.host import Host
from sonde.sandbox import (
    Args,
    Box,
    CodeClock,
    ExecFault,
    ExecResult,
    Final,
    Limits,
    open_box,
)
from sonde.sandbox.intercept import extract_tool_calls
from sonde.sandbox.policy import NEWER_SINCE

if TYPE_CHECKING:
    from sonde.runtime.run import Run

SLOWER, STALLED_S = 10, 60
"""How much longer recorded code may take when it runs again on a slower or busier machine: a factor, and seconds on top."""
LOST_CHARS = 1500
MOST_BLOCKS = 50
"""Of one reply. A block takes milliseconds even if it does nothing."""
READY_SINCE = 2
"""The journal format since which code has names such as `re` without an import; what was recorded before runs as it did then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a reply's code."""

    texts: tuple[str, ...]
    final: Final | None = None
    printed: str = ""


class Coder:
    """The sandbox of one session, started when the first code comes."""

    def __init__(self, run: Run, host: Host, session: str, variables: Mapping[str, Any]) -> None:
        self.run = run
        self.host = host
        self.session = session
        self.variables = variables
        self._box: Box | None = None
        self._lost: list[str] = []
        self.gaps: list[str] = []
        self._earlier = run.spec.played if session == ROOT else EarlierRuns()
        self.printed = host.citations.shown
        self.code: list[str] = []
        self.outputs: list[str | None] = []
        """What each block of `code` printed; None for one that finished."""
        self._rebuilding: tuple[Recording, Block] | None = None
        self._calls = 0
        self._refused = 0

    def execute(self, action: RunCode, turn: int) -> Ran:
        """Blocks in order, until one fails or finishes."""
        texts: list[str] = []
        printed: list[str] = []
        recording = self.run.spec.recording
        for number, code in enumerate(action.blocks, 1):
            if number > 1 and not recording.words_only and not recording.at(CodeStarted, self.session, turn, number):
                if number > MOST_BLOCKS:  # what was recorded before there was a limit runs as it did then
                    texts.append(
                        feedback.TOO_MANY_BLOCKS.format(most=MOST_BLOCKS, rest=len(action.blocks) - MOST_BLOCKS)
                    )
                    break
                if not recording.strict:  # a replay ends where its recording does
                    self.host.scope.check_time()
            done = self.host.site.done
            done.clear()
            result = self._block(code, action.reasoning, turn, number)
            for lost in self._lost:  # the model hears once what its variables lack
                self.run.note(lost)
            texts += self._lost
            self._lost = []
            count, brief = len(action.blocks), bool(self.host.functions.brief)
            stays = done if self.run.format >= NEWER_SINCE else ()
            texts.append(feedback.block_text(result, number=number, count=count, brief=brief, done=stays))
            printed.append(result.stdout)
            if result.final is not None:
                return Ran(texts=tuple(texts), final=result.final, printed="".join(printed))
            if not result.ok:
                skipped = len(action.blocks) - number
                if skipped:
                    texts.append(f"The {skipped} blocks after it were not run.")
                break
        return Ran(texts=tuple(texts))

    def _block(self, code: str, reasoning: str, turn: int, number: int) -> ExecResult:
        box = self.box()
        self.code.append(code)
        recorded = self.run.spec.recording.expect(CodeStarted, self.session, turn, number)
        clock = recorded.clock if recorded is not None else self.run.clock.utc().timestamp()
        self.run.emit(
            CodeStarted(
                session=self.session,
                turn=turn,
                block=number,
                code=code,
                reasoning=clip(reasoning, 2000),
                clock=clock,
            )
        )
        box.clock = CodeClock(start=clock)
        for name, value in self.host.counters().items():
            box.inject(name, value)
        wall_s = max(0.05, min(self.run.spec.limits.wall_s, self.host.scope.deadline.remaining()))
        before = self.run.spec.recording.at(CodeRan, self.session, turn, number)
        if before is not None and (before.fault or {}).get("kind") != "timeout":
            wall_s = self._patience()  # it was in time when it was recorded: a slower machine is not a failure
        # Older versions handed a PermissionError to the code: a block that was recorded runs as it did then.
        recorded_otherwise = before is not None and (before.fault or {}).get("kind") != "violation"
        box.fatal_files = self.run.spec.engine.unforgiving and not recorded_otherwise
        started = self.run.clock.now()
        again = self.run.spec.again if before is not None else None
        result = box.execute(code, wall_s=wall_s) if again is None else _run_again(box, code, wall_s, again)
        self._note_interception(code, result, turn, number)
        self.printed.append(result.stdout)  # whole: citations are proved by it
        self.outputs.append(result.stdout if result.final is None else None)
        ran = self._ran(result, turn, number, self.run.clock.now() - started)
        fault = result.fault
        # Without the values of keys, if that is all that differs; a replay in which the code fails otherwise shows that.
        if fault is not None and ran.fault is not None:
            same = is_same_but_for_keys(canonical_json(asdict(fault)), canonical_json(ran.fault))
            fault = ExecFault(**ran.fault) if same else fault
        if fault is not None and fault.kind == "violation":
            raise SandboxViolation(fault.message)
        if fault is not None and fault.kind == "gate" and self.run.spec.engine.unforgiving:
            self._refused += 1
            went_on = self.run.spec.recording.at(TurnStarted, self.session, turn + 1) is not None
            if self._refused > 1 and not went_on:
                raise SandboxViolation(f"the gate refused code for the second time: {fault.message.splitlines()[0]}")
        return replace(result, stdout=ran.stdout, stderr=ran.stderr, fault=fault)

    def _ran(self, result: ExecResult, turn: int, number: int, duration: float) -> CodeRan:
        """What came of a block, as recorded: without the values of keys. That is what the model sees."""
        output_hash = sha256_text(f"{result.stdout}\0{result.stderr}")
        final = None if result.final is None else hash_value(jsonable(result.final.value))
        stopped = result.fault is not None and not result.fault.keeps_state  # what it had printed by then is chance
        known = self.run.spec.recording.expect(
            CodeRan, self.session, turn, number, output_hash=None if stopped else output_hash
        )
        ran = self.run.emit(
            CodeRan(
                session=self.session,
                turn=turn,
                block=number,
                ok=result.ok,
                stdout=result.stdout,
                stderr=result.stderr,
                output_hash=output_hash,
                fault=None if result.fault is None else asdict(result.fault),
                final=result.final is not None,
                final_hash=final,
                variables=[asdict(variable) for variable in result.variables],
                duration_s=duration,
                warnings=list(result.warnings),
            )
        )
        return known or ran

    def _note_interception(self, code: str, result: ExecResult, turn: int, number: int) -> None:
        if self.run.spec.profile != "assign-only":
            return
        sites, errors = extract_tool_calls(code, self.host.names)
        if sites and not errors:
            self.run.emit(
                ToolIntercepted(
                    session=self.session,
                    turn=turn,
                    block=number,
                    count=len(sites),
                    names=[site.tool_name for site in sites],
                )
            )
        fault = result.fault
        failed = next((site for site in sites if fault and site.lineno == fault.line), None)
        if fault is not None and failed is not None and fault.message.startswith("ToolError"):
            self.run.emit(
                ToolExecError(
                    session=self.session,
                    turn=turn,
                    block=number,
                    name=failed.tool_name,
                    lineno=failed.lineno,
                    message=fault.message,
                )
            )

    def offer(self, name: str, value: Any) -> None:
        """Put a value into a variable for the next turn, if it can be carried there."""
        with contextlib.suppress(ConfigError):
            self.box().inject(name, value)

    def box(self) -> Box:
        """The sandbox, with everything in it that the prompt has named."""
        if self._box is not None:
            return self._box
        run = self.run
        earlier = self._earlier
        events = [event for each in earlier.recordings for event in each.events]
        called = [each.name for each in events if isinstance(each, HostReturned) and each.session == ROOT]
        runs = [each for each in events if isinstance(each, RunStarted)]
        box = open_box(
            run.spec.backend,
            profile=run.spec.profile,
            packages=run.spec.packages,
            limits=self._limits(),
            host=self._serve,
            functions=tuple(dict.fromkeys((*self.host.names, *called))),
            sharing=SHARING,
            session_id=run.run_id.rpartition("-")[2] or run.run_id,
            unsafe=run.spec.unsafe,
            without=run.spec.without,
            seed=runs[0].seed if runs else run.seed,
            first_turn=-sum(len(each.blocks) for each in earlier.recordings),
            as_of=min([run.format, *(each.format for each in runs)]),
        )
        box.watch = run.check_cancel
        try:
            if self.session == ROOT:
                for name, source in run.spec.context.shared().items():
                    box.share(name, source)
            for name, value in self.variables.items():
                box.inject(name, value)
            self._rebuild(box)
        except BaseException:
            box.close()
            raise
        self._box = box
        return box

    def _limits(self) -> Limits:
        """The run's limits; where recorded code runs again, the backstop on processor time is out of the way."""
        limits = self.run.spec.limits
        if limits.cpu_s is None and (self._earlier.recordings or len(self.run.spec.recording)):
            return replace(limits, cpu_s=2 * (SLOWER * limits.wall_s + STALLED_S))
        return limits

    def _patience(self) -> float:
        """Seconds for a block that was in time when it was recorded."""
        return min(self._limits().cpu_seconds, SLOWER * self.run.spec.limits.wall_s + STALLED_S)

    def _rebuild(self, box: Box) -> None:
        """Rebuild the variables of the runs that this one continues. The time it takes does not count as the run's."""
        began, spec = self.run.clock.now(), self.run.spec
        again = RepeatTime(spec.clock, spec.budget.max_wall_time_sec if spec.again is None else spec.again.seconds)
        missing = [f"the variables of {run}, which is not there any more" for run in self._earlier.missing]
        differing: list[str] = []
        try:
            for recording, block in [(each, block) for each in self._earlier.recordings for block in each.blocks]:
                started = recording.at(RunStarted)
                place = f"turn {block.started.turn} of {started.run_id if started else 'the earlier run'}"
                box.ready_names = started is not None and started.format >= READY_SINCE
                stopped, otherwise = self._rebuild_block(box, recording, block, again)
                if stopped:
                    missing.append(f"what was made from {place} on: {stopped}")
                    break
                if otherwise:
                    differing.append(f"{otherwise} ({place})")
        finally:
            self._rebuilding = None
            box.ready_names = self.run.format >= READY_SINCE
            self.host.scope.deadline.add(self.run.clock.now() - began)
        if missing:
            self._lost.append(f"Not rebuilt from the earlier run: {clip('; '.join(missing), LOST_CHARS)}")
        if differing:
            what = clip("; ".join(differing), LOST_CHARS)
            self._lost.append(
                f"Not as in the earlier run, because what its code read has changed or is not given: {what}"
            )
        self.gaps += self._lost

    def _rebuild_block(self, box: Box, recording: Recording, block: Block, again: RepeatTime) -> tuple[str, str]:
        """Run one recorded block again. Returns why it could not run, and what came out different; "" for neither."""
        self._rebuilding, self._calls = (recording, block), block.calls
        for name, value in block.counters.items():
            box.inject(name, value)
        box.clock = CodeClock(start=block.started.clock)
        try:
            result = _run_again(box, block.started.code, self._patience(), again)
        except Diverged as diverged:
            return diverged.message, ""
        if result.fault is not None and (result.fault.kind in NOT_RUN or not result.fault.keeps_state):
            return result.fault.message, ""
        if result.final is not None and not block.last:
            box.inject("held_final", result.final.value)
        then = {each["name"]: (each["type"], each["size"]) for each in block.ran.variables}
        now = {each.name: (each.type, each.size) for each in result.variables}
        names = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
        if names:
            return "", ", ".join(names)
        same = sha256_text(f"{result.stdout}\0{result.stderr}") == block.ran.output_hash and result.ok == block.ran.ok
        return "", "" if same else "what it printed"

    def _serve(self, name: str, args: Args) -> Any:
        """Serve a call of the code; while recorded code runs again for a follow-up, with the recorded answer."""
        if self._rebuilding is None:
            return self.host(name, args)
        recording, block = self._rebuilding
        self._calls += 1
        place = (ROOT, block.started.turn, self._calls)
        recorded = recording.expect(HostReturned, *place, name=name, args_hash=self.host.args_hash(name, args))
        assert recorded is not None, "a strict recording has it or raises"
        if not recorded.ok:
            raise ToolFault(recorded.error or "failed")
        return recorded.result

    def close(self) -> None:
        """End the worker."""
        if self._box is not None:
            self._box.close()
            self._box = None


def _run_again(box: Box, code: str, wall_s: float, again: RepeatTime) -> ExecResult:
    """Run recorded code, which may be a stranger's. ConfigError if all of it together takes longer than the user allows."""
    left = again.left()
    if left > 0:
        with again.running():
            result = box.execute(code, wall_s=min(wall_s, left))
        if left >= wall_s or result.fault is None or result.fault.kind != "timeout":
            return result
    raise ConfigError(
        f"the recorded code has run again for {again.seconds:g} s and is not done, and a recorded run may not take longer by itself. "
        "If it is yours, allow more with --max-wall-time-sec"
    )
