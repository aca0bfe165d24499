"""The sandbox on systems without landlock and seccomp: the same turns in Monty, an interpreter of a subset of Python.

    with MontyBox(limits=Limits(wall_s=30), host=serve, functions=["search"]) as box:
        box.share("context", Path("logs.txt"))
        result = box.execute("FINAL(len(context))")

Promises the interface of `Sandbox`: a turn that times out, runs out of memory or crashes leaves the state before it, taken from the
interpreter's own snapshot. The boundary is an interpreter in a process of its own, NOT the kernel: a fault in that interpreter is
a hole, and `layers` says so. Does not save states to files, and a snapshot copies everything, so contexts above some 50 MB are slow.
"""

from __future__ import annotations

import ast
import contextlib
import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, Self

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox import frames
from sonde.sandbox.base import CodeClock, ExecFault, ExecResult, ExecUsage, Final, Host, Limits, Watch
from sonde.sandbox.box import checked_functions
from sonde.sandbox.exclusive_use import Seat, check_name
from sonde.sandbox.output import cut_output
from sonde.sandbox.policy import FINISH_NAMES, profile_named
from sonde.sandbox.portable.capture import Printed
from sonde.sandbox.portable.dialogue import Dialogue, OverQuota, Rules, Stuck
from sonde.sandbox.portable.faults import fault_of
from sonde.sandbox.portable.guard import Guard, OutOfTime
from sonde.sandbox.portable.language import language, load_monty, refusals
from sonde.sandbox.portable.rewrite import with_shared_values
from sonde.sandbox.portable.survey import Marks, survey
from sonde.sandbox.portable.values import final_value
from sonde.sandbox.prepare import Preparation, Prepared
from sonde.sandbox.share import Shareable, read_share
from sonde.sandbox.source import Refusal, parse

PRELUDE = "ToolError = RuntimeError"
SUSPENSIONS = 2**31 - 1
"""Monty's own cap on host calls is out of the way: `Limits.host_calls` counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The state after a turn: Monty's snapshot (None: nothing has run), what is bound in it, and its variables."""

    turn: int
    snapshot: bytes | None = None
    bound: frozenset[str] = frozenset()
    marks: Marks = field(default_factory=dict[str, tuple[int, int]])


class MontyBox:
    """Runs Python that nobody has read, in an interpreter. One turn at a time; several boxes at once are fine."""

    def __init__(
        self,
        profile: str = "analysis",
        *,
        limits: Limits | None = None,
        host: Host | None = None,
        functions: Collection[str] | None = None,
        sharing: Collection[str] = (),
        session_id: str = "",
        unsafe: bool = False,
        seed: int = 0,
        clock: CodeClock | None = None,
        keep_states: int = 16,
        first_turn: int = 0,
    ) -> None:
        if unsafe:
            raise ConfigError("unsafe is for the kernel backend; leave it out with the monty backend")
        if keep_states < 1:
            raise ConfigError(f"keep_states must be at least 1, not {keep_states}")
        self.profile = profile_named(profile)
        self.limits = limits or Limits()
        self.clock = clock
        self.watch: Watch | None = None
        named = checked_functions(functions, host)
        self._rules = Rules(
            monty=load_monty(),
            language=language(),
            profile=self.profile,
            limits=self.limits,
            host=host,
            functions=named,
            sharing=frozenset(sharing),
        )
        self._preparation = Preparation(self.profile, named, session_id, self.limits, host)
        self._seed = seed
        self._keep = keep_states
        self._shares: dict[str, Any] = {}
        self._shared_bytes = 0
        self._pending: dict[str, Any] = {}
        self._history: list[Kept] = [Kept(turn=first_turn)]
        self._turn = first_turn
        self._seat = Seat()
        self._open: contextlib.ExitStack | None = None
        self._session: Any = None

    @property
    def layers(self) -> tuple[str, ...]:
        """What stands between the code and the machine: no kernel layer is among it."""
        return (f"interpreter: monty {self._rules.language.version}", "process", "NO KERNEL LAYERS")

    @property
    def turn(self) -> int:
        return self._turn

    def share(self, name: str, content: Shareable) -> None:
        """Give code a text, or a dict of texts; a str is text, a Path is a file to read."""
        with self._seat.taken():
            check_name(name, self._rules.functions, self._shares)
            value, size = read_share(name, content, self.limits.shared_bytes - self._shared_bytes)
            self._shared_bytes += size
            self._shares[name] = value

    def inject(self, name: str, value: Any) -> None:
        """Set a variable to a plain value (JSON-like or bytes) from the next turn on."""
        with self._seat.taken():
            check_name(name, self._rules.functions, self._shares)
            try:
                frames.encode(value)
            except (ValueError, TypeError):
                raise ConfigError(
                    f"{name!r} holds a {type(value).__name__} that is not JSON-like; inject str, numbers, lists, dicts or bytes"
                ) from None
            self._pending[name] = value

    def execute(self, code: str, wall_s: float | None = None) -> ExecResult:
        """Run one turn. Whatever the code does, the answer is a result; see `ExecFault` for what can be wrong."""
        wall = self.limits.wall_s if wall_s is None else wall_s
        if not 0 < wall <= self.limits.cpu_seconds:
            raise ConfigError(f"wall_s must be above zero and at most {self.limits.cpu_seconds}, not {wall}")
        if not isinstance(code, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise ConfigError(f"code must be a str, not {type(code).__name__}")
        with self._seat.taken():
            self._turn += 1
            prepared = self._prepare(code)
            if isinstance(prepared, ExecFault):
                result = ExecResult(ok=False, turn=self.turn, fault=prepared, layers=self.layers)
            else:
                result = self._run(prepared, wall)
            return self._preparation.charged(result)

    def rollback(self, turn: int) -> None:
        """Go back to the state after that turn (0 is the beginning); later turns are forgotten."""
        with self._seat.taken():
            kept = [each.turn for each in self._history]
            if turn < kept[0] or turn > self._turn:
                raise ConfigError(f"there is no kept state after turn {turn}; kept are the states after turns {kept}")
            while self._history[-1].turn > turn:
                self._history.pop()
            self._turn = turn
            self._drop_session()

    def branch(self) -> MontyBox:
        """A second box that starts from this one's state. Allowed in the middle of a turn too: then from before the turn."""
        self._seat.check_open()
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._seat = Seat()
        twin._pending = dict(self._pending)
        twin._shares = dict(self._shares)
        twin._preparation = self._preparation.copy()
        twin._history = self._history[-1:]
        twin._open = twin._session = None
        return twin

    def close(self) -> None:
        """End the interpreter's process. A second call does nothing."""
        self._seat.closed = True
        self._drop_session()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _prepare(self, code: str) -> Prepared | ExecFault:
        prepared = self._preparation.prepare(code, self._history[-1].marks.keys())
        if isinstance(prepared, ExecFault):
            return prepared
        tree = parse(prepared.code)
        if isinstance(tree, Refusal):
            return ExecFault(kind="syntax", message=str(tree), line=tree.line, hint=tree.example)
        reserved = FINISH_NAMES | (self._rules.functions or frozenset())
        found = refusals(tree, self._rules.language, self.profile, reserved)
        if found:
            kind = "import" if found[0].rule == "import" else "gate"
            message = "\n".join(map(str, found))
            return ExecFault(kind=kind, message=message, line=found[0].line, hint=found[0].example)
        rewritten = with_shared_values(prepared.code, tree, self._rules.sharing)
        return Prepared(code=rewritten, injected=prepared.injected, warnings=prepared.warnings)

    def _run(self, prepared: Prepared, wall: float) -> ExecResult:
        session = self._opened()
        before = self._history[-1]
        printed = Printed(self.limits.output_chars)
        inputs = {name: value for name, value in self._shares.items() if name not in before.bound} | self._pending
        names = {*before.marks, *inputs, *_stored(prepared.code)}
        started = time.monotonic()
        with Guard(session.worker_pid, wall, self.watch) as guard:
            dialogue = Dialogue(self._rules, guard, self.clock, names)
            fault = self._converse(dialogue, prepared.code, inputs | prepared.injected, printed)
            lost = fault is not None and not fault.keeps_state
            marks, variables = ({}, ()) if lost else survey(self._rules, guard, session, before.marks)
        usage = ExecUsage(wall_s=time.monotonic() - started, host_s=guard.host_s, host_calls=dialogue.calls)
        if guard.fired and fault is None:
            fault = _too_long(guard)
        if lost or guard.fired or not self._commit(session, marks):
            fault = fault if fault is not None and not fault.keeps_state else _too_large(fault)
            self._drop_session()
        final = dialogue.final if fault is None else None
        result = ExecResult(
            ok=fault is None, turn=self.turn, fault=fault, final=final, variables=variables, usage=usage
        )
        return self._shown(result, printed, prepared.warnings)

    def _converse(self, dialogue: Dialogue, code: str, inputs: dict[str, Any], printed: Printed) -> ExecFault | None:
        monty, guard, session = self._rules.monty, dialogue.guard, self._session
        try:
            dialogue.run(session, code, inputs, printed.add)
        except OutOfTime:
            return _too_long(guard)
        except OverQuota:
            most = self.limits.host_calls
            return ExecFault(kind="quota", message=f"the code made more than {most} host calls and was stopped")
        except Stuck as stuck:
            return ExecFault(kind="crash", message=str(stuck), hint="Call host functions without await.")
        except monty.MontyError as error:
            if guard.stopped is not None:
                self._drop_session()
                raise guard.stopped from None
            fault = _too_long(guard) if guard.fired else fault_of(monty, error)
            if not (dialogue.finished and fault.message.startswith("SystemExit")):
                return fault
        except BaseException:  # the host's RunError, or an interrupt: the turn is void, the state before it stands
            self._drop_session()
            raise
        return self._read_wanted(dialogue, session)

    def _read_wanted(self, dialogue: Dialogue, session: Any) -> ExecFault | None:
        """The value of the variable that FINAL_VAR named."""
        if dialogue.wanted is None:
            return None
        try:
            dialogue.final = Final(final_value(session.feed_run(dialogue.wanted)))
        except self._rules.monty.MontyError as error:
            return fault_of(self._rules.monty, error)
        return None

    def _commit(self, session: Any, marks: Marks) -> bool:
        """Keep the state that the turn has left; False when it is too large for a snapshot."""
        try:
            snapshot = session.dump()
        except self._rules.monty.MontyError:
            return False
        self._pending.clear()
        kept = Kept(turn=self._turn, snapshot=snapshot, bound=frozenset(self._shares), marks=marks)
        self._history.append(kept)
        while len(self._history) > 1 and (len(self._history) > self._keep + 1 or self._too_much()):
            self._history.pop(0)
        return True

    def _too_much(self) -> bool:
        held = sum(len(each.snapshot or b"") for each in self._history[:-1])
        return held > self.limits.memory_bytes

    def _shown(self, result: ExecResult, printed: Printed, warnings: tuple[str, ...]) -> ExecResult:
        """The result with what was printed, cut to the limit."""
        out, err = printed.captured()
        stdout, stderr = cut_output(out, err, self.limits.output_chars)
        total = out.total + err.total
        return replace(result, stdout=stdout, stderr=stderr, output_chars=total, layers=self.layers, warnings=warnings)

    def _opened(self) -> Any:
        """The session that stands where the newest kept state is."""
        if self._session is not None:
            return self._session
        monty = self._rules.monty
        self._open = contextlib.ExitStack()
        try:
            pool = self._open.enter_context(monty.Monty(max_processes=1))
            session = self._open.enter_context(pool.checkout(limits=self._monty_limits(), os_policy=self._policy()))
            snapshot = self._history[-1].snapshot
            if snapshot is None:
                session.feed_run(PRELUDE)
            else:
                session.load_session(snapshot)
        except (OSError, RuntimeError, monty.MontyError) as error:
            self._drop_session()
            raise SandboxLost(f"the monty backend could not start a session ({error}); open a new one") from None
        self._session = session
        return session

    def _monty_limits(self) -> dict[str, Any]:
        return {
            "max_memory": self.limits.memory_bytes + self._shared_bytes,
            "max_feed_duration_secs": float(self.limits.cpu_seconds),
            "max_suspensions": SUSPENSIONS,
        }

    def _policy(self) -> dict[str, Any]:
        return {"datetime": "call_host", "sleep": "call_host", "random_start": {"seed": self._seed}}

    def _drop_session(self) -> None:
        """Forget the live session; the next turn starts from the newest kept state."""
        stack, self._open, self._session = self._open, None, None
        if stack is not None:
            with contextlib.suppress(OSError, RuntimeError, self._rules.monty.MontyError):  # it may be dead already
                stack.close()


def _too_long(guard: Guard) -> ExecFault:
    return ExecFault(kind="timeout", message=f"the code ran longer than {guard.wall_s:g} s and was stopped")


def _too_large(fault: ExecFault | None) -> ExecFault:
    after = "" if fault is None else f" (after {fault.message})"
    message = f"the code left more in its variables than fits into memory, and the turn was undone{after}"
    return ExecFault(kind="memory", message=message, hint="Keep less: work on slices, and keep results only.")


def _stored(code: str) -> set[str]:
    """Names that the code binds somewhere."""
    tree = parse(code)
    if isinstance(tree, Refusal):
        return set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
