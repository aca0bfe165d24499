"""The sandbox on systems without landlock and seccomp: the same turns in Monty, an interpreter of a subset of Python.

    with MontyBox(limits=Limits(wall_s=30), host=serve, functions=["search"]) as box:
        box.share("context", Path("logs.txt"))
        result = box.execute("FINAL(len(context))")

Promises the interface of `Sandbox`: a turn that times out, runs out of memory or crashes leaves the state before it, taken from the
interpreter's own snapshot. The boundary is an interpreter in a process of its own, NOT the kernel: a fault in that interpreter is
a hole, and `layers` says so. A snapshot copies everything, so contexts above some 50 MB are slow.
"""

from __future__ import annotations

import ast
import contextlib
import time
from dataclasses import dataclass, field, replace
from typing import Any

from sonde.core.source import Refusal, parse
from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox.base import ExecFault, ExecResult, ExecUsage, Final, OutOfTime, OverQuota
from sonde.sandbox.box import Box
from sonde.sandbox.forkserver import ForkServer
from sonde.sandbox.output import cut_output
from sonde.sandbox.policy import FINISH_NAMES, NEWER_SINCE
from sonde.sandbox.portable.dialogue import Dialogue, Rules, Stuck, final_value
from sonde.sandbox.portable.guard import Guard
from sonde.sandbox.portable.language import language, load_monty, refusals, with_shared_values
from sonde.sandbox.portable.report import Marks, Printed, fault_of, survey
from sonde.sandbox.prepare import Prepared
from sonde.sandbox.share import Shareable, read_share

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


class MontyBox(Box):
    """The monty backend: each turn runs in an interpreter that stands where the last good state was."""

    def _start(self, *, seed: int, unsafe: bool, without: str, server: ForkServer | None) -> None:
        if unsafe or without or server is not None:
            option = "unsafe" if unsafe else "without" if without else "server"
            raise ConfigError(f"{option} is for the kernel backend; leave it out with the monty backend")
        if self.profile.extra:
            raise ConfigError(f"{', '.join(self.profile.extra)} cannot run in the monty backend; use --backend kernel")
        self._rules = Rules(
            monty=load_monty(),
            language=language(),
            profile=self.profile,
            limits=self.limits,
            host=self._host,
            functions=self._functions,
            sharing=self._sharing,
        )
        self._seed = seed
        self._shared_bytes = 0
        self._history: list[Kept] = [Kept(turn=self.turn)]
        self._open: contextlib.ExitStack | None = None
        self._session: Any = None

    @property
    def layers(self) -> tuple[str, ...]:
        """What stands between the code and the machine: no kernel layer is among it."""
        return (f"interpreter: monty {self._rules.language.version}", "process", "NO KERNEL LAYERS")

    def share(self, name: str, content: Shareable) -> None:
        """Give code a text, or a dict of texts; a str is text, a Path is a file to read."""
        with self._alone():
            self._check_name(name, {*self._shares, *self._pending})
            value, size = read_share(name, content, self.limits.shared_bytes - self._shared_bytes)
            self._shared_bytes += size
            self._shares[name] = value

    def rollback(self, turn: int) -> None:
        with self._alone():
            kept = [each.turn for each in self._history]
            if turn < kept[0] or turn > self.turn:
                raise ConfigError(f"there is no kept state after turn {turn}; kept are the states after turns {kept}")
            while self._history[-1].turn > turn:
                self._history.pop()
            self._turn = turn
            self._drop_session()

    def close(self) -> None:
        """End the interpreter's process. A second call does nothing."""
        self._closed = True
        self._drop_session()

    def _keep_newest_state(self) -> None:
        self._history = self._history[-1:]
        self._open = self._session = None

    def _prepare(self, code: str) -> Prepared | ExecFault:
        prepared = self._preparation.prepare(code, self._history[-1].marks.keys())
        if isinstance(prepared, ExecFault):
            return prepared
        tree = parse(prepared.code)
        if isinstance(tree, Refusal):
            return ExecFault(kind="syntax", message=str(tree), line=tree.line, hint=tree.example)
        reserved = FINISH_NAMES | (self._rules.functions or frozenset())
        if found := refusals(tree, self._rules.language, self.profile, reserved):
            kind = "import" if found[0].rule == "import" else "gate"
            message = "\n".join(map(str, found))
            return ExecFault(kind=kind, message=message, line=found[0].line, hint=found[0].example)
        rewritten = with_shared_values(prepared.code, tree, self._rules.sharing)
        return replace(prepared, code=rewritten)

    def _run(self, prepared: Prepared, wall: float) -> ExecResult:
        session = self._opened()
        before = self._history[-1]
        printed = Printed(self.limits.output_chars, counts=self.as_of >= NEWER_SINCE)
        inputs = {name: value for name, value in self._shares.items() if name not in before.bound} | self._pending
        tree = parse(prepared.code)
        nodes = () if isinstance(tree, Refusal) else ast.walk(tree)
        stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
        started = time.monotonic()
        with Guard(session.worker_pid, wall, self.watch) as guard:
            dialogue = Dialogue(self._rules, guard, self.clock, {*before.marks, *inputs, *stored})
            fault = self._converse(dialogue, prepared.code, inputs | prepared.injected, printed)
            lost = fault is not None and not fault.keeps_state
            marks, variables = ({}, ()) if lost else survey(self._rules, guard, session, before.marks)
        usage = ExecUsage(wall_s=time.monotonic() - started, host_s=guard.host_s, host_calls=dialogue.calls)
        if guard.fired and fault is None:
            fault = _too_long(guard)
        if lost or guard.fired or not self._commit(session, marks):
            if fault is None or fault.keeps_state:
                after = "" if fault is None else f" (after {fault.message})"
                message = f"the code left more in its variables than fits into memory, and the turn was undone{after}"
                hint = "Keep less: work on slices, and keep results only."
                fault = ExecFault(kind="memory", message=message, hint=hint)
            self._drop_session()
        out, err = printed.streams["stdout"], printed.streams["stderr"]
        stdout, stderr = cut_output(out, err, self.limits.output_chars)
        return ExecResult(
            ok=fault is None,
            turn=self.turn,
            stdout=stdout,
            stderr=stderr,
            fault=fault,
            final=dialogue.final if fault is None else None,
            variables=variables,
            usage=usage,
            layers=self.layers,
            output_chars=out.total + err.total,
            warnings=prepared.warnings,
        )

    def _converse(self, dialogue: Dialogue, code: str, inputs: dict[str, Any], printed: Printed) -> ExecFault | None:
        """Run the code to its end; what was wrong with it, if anything."""
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
        if dialogue.wanted is not None:  # the variable that FINAL_VAR named
            try:
                dialogue.final = Final(final_value(session.feed_run(dialogue.wanted)))
            except monty.MontyError as error:
                return fault_of(monty, error)
        return None

    def _commit(self, session: Any, marks: Marks) -> bool:
        """Keep the state that the turn has left; False when it is too large for a snapshot."""
        try:
            snapshot = session.dump()
        except self._rules.monty.MontyError:
            return False
        self._pending.clear()
        self._history.append(Kept(turn=self.turn, snapshot=snapshot, bound=frozenset(self._shares), marks=marks))
        while len(self._history) > 1:
            held = sum(len(each.snapshot or b"") for each in self._history[:-1])
            if len(self._history) <= self._keep_states + 1 and held <= self.limits.memory_bytes:
                break
            self._history.pop(0)
        return True

    def _opened(self) -> Any:
        """The session that stands where the newest kept state is."""
        if self._session is not None:
            return self._session
        monty = self._rules.monty
        limits = {
            "max_memory": self.limits.memory_bytes + self._shared_bytes,
            "max_feed_duration_secs": float(self.limits.cpu_seconds),
            "max_suspensions": SUSPENSIONS,
        }
        policy = {"datetime": "call_host", "sleep": "call_host", "random_start": {"seed": self._seed}}
        self._open = contextlib.ExitStack()
        try:
            pool = self._open.enter_context(monty.Monty(max_processes=1))
            session = self._open.enter_context(pool.checkout(limits=limits, os_policy=policy))
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

    def _drop_session(self) -> None:
        """Forget the live session; the next turn starts from the newest kept state."""
        stack, self._open, self._session = self._open, None, None
        if stack is not None:
            with contextlib.suppress(OSError, RuntimeError, self._rules.monty.MontyError):  # it may be dead already
                stack.close()


def _too_long(guard: Guard) -> ExecFault:
    return ExecFault(kind="timeout", message=f"the code ran longer than {guard.wall_s:g} s and was stopped")
