"""Running a reply's code: blocks in order until one fails or finishes, each on the stream with its clock, output and faults."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sonde.core.canonical import canonical_json, clip, hash_value, jsonable, sha256_text
from sonde.core.events import CodeRan, CodeStarted, Noted, ToolExecError, ToolIntercepted
from sonde.errors import ConfigError, SandboxLost, SandboxViolation
from sonde.runs.redaction import is_same_but_for_keys
from sonde.runtime import feedback
from sonde.runtime.actions import RunCode
from sonde.runtime.functions import SHARING
from sonde.runtime.host import Host
from sonde.runtime.playing import OffTheRecord, Playback, play
from sonde.runtime.wiring import Wiring
from sonde.sandbox import (
    Args,
    Box,
    CodeClock,
    ExecFault,
    ExecResult,
    Final,
    StateNotSaved,
    StateRefused,
    load_box,
    open_box,
)
from sonde.sandbox.intercept import extract_tool_calls

STATE_BYTES = 8 << 20
"""Most that a run folder holds of its root session's state."""
SAVING_S = 10.0
LOST_CHARS = 1500
_SIGNAL = re.compile(r"\b(?:FINAL|FINAL_VAR|set_final|SUBMIT)\s*\(|\"type\"\s*:\s*\"finalize\"")


def has_final_signal(text: str) -> bool:
    """Whether a reply tries to finish."""
    return _SIGNAL.search(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a reply's code."""

    texts: tuple[str, ...]
    final: Final | None = None
    printed: str = ""


class Coder:
    """The sandbox of one session, started when the first code comes."""

    def __init__(self, wiring: Wiring, host: Host, session: str, variables: Mapping[str, Any]) -> None:
        self.wiring = wiring
        self.host = host
        self.session = session
        self.variables = variables
        self._box: Box | None = None
        self._lost = ""
        self.printed = host.shown
        self._playing: Playback | None = None
        self._given: set[str] = set()

    def run(self, action: RunCode, turn: int) -> Ran:
        """Blocks in order, until one fails or finishes."""
        texts: list[str] = []
        printed: list[str] = []
        for number, code in enumerate(action.blocks, 1):
            result = self._block(code, action.reasoning, turn, number)
            texts += self._told()
            texts.append(feedback.block_text(result, number=number, count=len(action.blocks)))
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
        recorded = None if self.wiring.tape.words_only else self.wiring.tape.code_started(self.session, turn, number)
        clock = recorded.clock if recorded is not None else self.wiring.clock.utc().timestamp()
        self.wiring.emit(
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
        started = self.wiring.clock.now()
        result = box.execute(code, wall_s=self._wall())
        self._note_interception(code, result, turn, number)
        self.printed.append(result.stdout)  # whole: citations are proved by it
        ran = self._ran(result, turn, number, self.wiring.clock.now() - started)
        result = replace(result, stdout=ran.stdout, stderr=ran.stderr, fault=_without_keys(result.fault, ran.fault))
        if result.fault is not None and result.fault.kind == "violation":
            raise SandboxViolation(result.fault.message)
        return result

    def _wall(self) -> float:
        return max(0.05, min(self.wiring.limits.wall_s, self.host.scope.deadline.remaining()))

    def _ran(self, result: ExecResult, turn: int, number: int, duration: float) -> CodeRan:
        """What came of a block, as it is recorded: without the values of keys, and that is what the model sees."""
        output_hash = sha256_text(f"{result.stdout}\0{result.stderr}")
        final = None if result.final is None else hash_value(jsonable(result.final.value))
        tape = self.wiring.tape
        stopped = result.fault is not None and not result.fault.keeps_state  # what it had printed by then is chance
        known = None if tape.words_only else tape.code_ran(self.session, turn, number, None if stopped else output_hash)
        ran = self.wiring.emit(
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
        if self.wiring.profile != "assign-only":
            return
        sites, errors = extract_tool_calls(code, self.host.names)
        if sites and not errors:
            self.wiring.emit(
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
            self.wiring.emit(
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
        if self._box is None:
            self._box = self._open()
        return self._box

    def _open(self) -> Box:
        wiring = self.wiring
        box = self._start(
            profile=wiring.profile,
            limits=wiring.limits,
            host=self._serve,
            functions=self.host.names,
            sharing=SHARING,
            session_id=wiring.run_id.rpartition("-")[2] or wiring.run_id,
            unsafe=wiring.unsafe,
            seed=wiring.seed,
        )
        box.watch = wiring.check_cancel
        try:
            if self.session == "root":
                for name, source in wiring.task.context.shared().items():
                    box.share(name, source)
                    self._given.add(name)
            for name, value in self.variables.items():
                if name in wiring.task.variables or name not in box.restored.names:
                    box.inject(name, value)
            if self.session == "root":
                self._play(box)
        except BaseException:
            box.close()
            raise
        return box

    def _start(self, **options: Any) -> Box:
        """A new sandbox, with the saved state of the run that this one continues where there is one."""
        carried = self.wiring.task.carried
        if carried is None or self.session != "root":
            return open_box(self.wiring.backend, **options)
        try:
            box = load_box(self.wiring.backend, carried.path, **options)
        except StateRefused as error:
            self._miss(f"The variables of the earlier run are not there: {error.message}")
            return open_box(self.wiring.backend, **options)
        lost = [str(each) for each in box.restored.left_out if each not in carried.left_out]
        if lost:
            self._miss(f"Not restored from the earlier run: {clip('; '.join(lost), LOST_CHARS)}")
        return box

    def _miss(self, text: str) -> None:
        self._lost = text
        self.wiring.note(text)

    def _told(self) -> list[str]:
        """What the model has to hear about its state, once."""
        lost, self._lost = self._lost, ""
        return [lost] if lost else []

    def keep(self) -> None:
        """Save the root session's state for a follow-up. What is given again, context above all, is not saved."""
        keep = self.wiring.keep
        if keep is None or self._box is None or self.session != "root":
            return
        without = {*self._given, *self.wiring.task.variables, *self.host.counters()}
        try:
            saved = self._box.save(
                keep.path,
                max_bytes=STATE_BYTES,
                without=without,
                clean=keep.clean,
                wall_s=min(SAVING_S, self.wiring.limits.wall_s),
            )
        except (StateNotSaved, SandboxLost) as error:
            self.wiring.note(f"{error.message}; a follow-up runs this run's code again instead")
            return
        if saved.left_out:
            lost = clip("; ".join(map(str, saved.left_out)), LOST_CHARS)
            self.wiring.emit(Noted(text=f"not kept for a follow-up: {lost}"))

    def _serve(self, name: str, args: Args) -> Any:
        return self.host(name, args) if self._playing is None else self._playing(name, args)

    def _play(self, box: Box) -> None:
        """The variables of the run that this one continues."""
        for name, value in self.host.counters().items():
            box.inject(name, value)
        try:
            for block in self.wiring.task.played:
                self._playing = Playback(block)
                play(box, block, self._wall())
        except OffTheRecord as error:
            self.wiring.note(f"some variables of the earlier run are missing: {error.message}")
        finally:
            self._playing = None

    def close(self) -> None:
        """End the worker."""
        if self._box is not None:
            self._box.close()
            self._box = None


def _without_keys(fault: ExecFault | None, recorded: Mapping[str, Any] | None) -> ExecFault | None:
    """The fault as recorded, if it is this one but for the values of keys; a replay in which the code fails otherwise shows that."""
    if fault is None or recorded is None:
        return fault
    same = is_same_but_for_keys(canonical_json(asdict(fault)), canonical_json(recorded))
    return ExecFault(**recorded) if same else fault
