"""The sandbox people use: a namespace of generated code behind the kernel boundary, one process per turn.

    with Sandbox(profile="analysis", limits=Limits(wall_s=30, memory="1GiB"), host=serve) as box:
        box.share("context", Path("logs.txt"))
        box.inject("rows", [{"id": 1}])
        result = box.execute("print(len(context)); FINAL(rows[0])")

Promises that a turn that times out, dies or breaks a rule leaves the state before it untouched, and that nothing the code does
reaches this process except frames of data. Does not promise to hide timing, nor to undo what a host function did.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox import frames
from sonde.sandbox.base import ExecFault, ExecResult
from sonde.sandbox.box import Box
from sonde.sandbox.forkserver import ForkServer, shared_server
from sonde.sandbox.launch import launch
from sonde.sandbox.output import OutputReader
from sonde.sandbox.policy import NEWER_SINCE
from sonde.sandbox.prepare import Prepared
from sonde.sandbox.share import Share, Shareable, make_share
from sonde.sandbox.snapshots import ForkFailed, ForkRefused, History, State, StateFamily
from sonde.sandbox.turn import Turn, TurnEnd, finished, judge_death, names_told, private_bytes, stopped

FIRST_SHARE = 100
MOST_SHARES = 100


class Sandbox(Box):
    """The kernel backend: each turn is a process forked from the last good state."""

    _shares: dict[str, Share]
    _history: History

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that are on, as the worker reported them before any code ran."""
        return self._family.layers

    def share(self, name: str, content: Shareable) -> None:
        """Give code a text, or a mapping of texts, as one sealed copy; a str is text, a Path is a file to read."""
        with self._alone():
            self._check_name(name, {*self._shares, *self._pending})
            if len(self._shares) >= MOST_SHARES:
                raise ConfigError(f"at most {MOST_SHARES} shares; share one mapping of names to texts instead")
            taken = sum(share.size for share in self._shares.values())
            self._shares[name] = make_share(name, content, self.limits.shared_bytes - taken)

    def rollback(self, turn: int) -> None:
        with self._alone():
            self._history.rollback(turn, self.turn)
            self._turn = turn

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._family.leave(self._history.clear())
        for share in self._shares.values():
            share.release()
        self._shares.clear()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # never finished its __init__, or the interpreter is leaving
            self.close()

    @property
    def _family(self) -> StateFamily:
        return self._history.family

    def _start(self, *, seed: int, unsafe: bool, without: str, server: ForkServer | None) -> None:
        server = server or shared_server(self.profile)
        calls = self._host is not None and not self.profile.lifts_tool_calls
        config: dict[str, Any] = {
            "policy": self.profile.to_wire(),
            "functions": sorted(self._functions or ()) if calls else [],
            "sharing": self._sharing,
            "binds_unknown": calls and self._functions is None,
            "seed": seed,
            "memory": self.limits.memory_bytes,
            "shared": self.limits.shared_bytes,
            "cpu": self.limits.cpu_seconds,
            "frame_bytes": self.limits.frame_bytes,
            "output_chars": self.limits.output_chars,
            "without": [*server.without, *filter(None, [without])],
        }
        family, state = launch(server, config, unsafe=unsafe, without=without)
        self._history = History(family, self._keep_states, self.limits.memory_bytes, [(self.turn, state)])

    def _keep_newest_state(self) -> None:
        """At copy-on-write cost: both boxes hold the same process."""
        for share in self._shares.values():
            share.holders += 1
        state = self._history.state
        self._family.join(state)
        self._history = History(self._family, self._keep_states, self._history.memory, [(self.turn, state)])

    def _prepare(self, code: str) -> Prepared | ExecFault:
        return self._preparation.prepare(code, self._history.state.names)

    def _run(self, prepared: Prepared, wall: float) -> ExecResult:
        new = [share for name, share in self._shares.items() if name not in self._history.state.shares]
        request = frames.encode(
            {
                "turn": self.turn,
                "code": prepared.code,
                "inject": self._pending | prepared.injected,
                "shares": [share.to_wire(number) for number, share in enumerate(new, FIRST_SHARE)],
                "clock": (self.clock.start, self.clock.step) if self.clock is not None else None,
                "fatal_files": self.fatal_files,
                "ready_names": self.ready_names,
            }
        )
        with contextlib.ExitStack() as stack:
            near, far = (stack.enter_context(end) for end in socket.socketpair())
            read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
            stack.callback(os.close, read_end)
            shares = {number: share.descriptor for number, share in enumerate(new, FIRST_SHARE)}
            try:
                child = self._family.fork(self._history.state, {3: far.fileno(), 1: write_end} | shares, near)
            except ForkRefused as failure:
                return self._not_run(
                    f"{failure}; the state is intact", "Wait until processes have ended and try again."
                )
            except ForkFailed as failure:
                return self._fall_back(failure)
            finally:
                os.close(write_end)
            far.close()
            printed = OutputReader(read_end, self.limits.output_chars)
            conversation = Turn(
                child,
                frames.Channel(near, self.limits.frame_bytes),
                self.limits,
                host=None if self.profile.lifts_tool_calls else self._host,
                functions=self._functions,
                wall_s=wall,
                printed=printed,
                watch=self.watch,
            )
            try:
                end = conversation.run(request, self._family.await_parked)
            except BaseException:  # from the host, the watch or an interrupt: the turn is void
                self._family.discard(child)
                raise
            if not self._family.await_parked(self._history.state):
                self._history.state.kill()  # it spins instead of resting: the next turn will fall back
            return self._judge(child, end, printed, prepared)

    def _judge(self, child: State, end: TurnEnd, printed: OutputReader, prepared: Prepared) -> ExecResult:
        """Keep the state of a turn that reported, discard that of any other, and say what happened."""
        turn, layers, limit = self.turn, self.layers, self.limits.output_chars
        if end.report is None:
            assert end.fault is not None
            fault = judge_death(end.fault, self._family.discard(child), self.limits.cpu_seconds)
            return stopped(fault, end, printed.streams(), prepared, turn=turn, layers=layers, limit=limit)
        result = finished(end, prepared, turn=turn, layers=layers, limit=limit, counts=self.as_of >= NEWER_SINCE)
        child.private_bytes = private_bytes(child.pid)
        child.shares = frozenset(self._shares)
        child.names = self._history.state.names | names_told(end)
        self._pending.clear()
        self._history.commit(turn, child)
        return result

    def _fall_back(self, failure: ForkFailed) -> ExecResult:
        """The newest state cannot be continued: drop it and go one back."""
        lost, state = self._history.entries.pop()
        self._family.release(state)
        if not self._history.entries or not self._family.server.alive:
            raise SandboxLost(f"no state of this sandbox is left ({failure}); open a new Sandbox")
        back = self._history.entries[-1][0]
        message = f"the state after turn {lost} could not be continued ({failure}); its variables are gone"
        return self._not_run(message, f"The state after turn {back} is in place: run the code again.")

    def _not_run(self, message: str, hint: str) -> ExecResult:
        fault = ExecFault(kind="crash", message=message, hint=hint)
        return ExecResult(ok=False, turn=self.turn, fault=fault, layers=self.layers)
