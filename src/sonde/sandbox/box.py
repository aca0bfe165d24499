"""The sandbox people use: a namespace of generated code behind the kernel boundary, one process a turn.

    with Sandbox(profile="analysis", limits=Limits(wall_s=30, memory="1GiB"), host=serve) as box:
        box.share("context", Path("logs.txt"))
        box.inject("rows", [{"id": 1}])
        result = box.execute("print(len(context)); FINAL(rows[0])")

Promises that a turn that times out, dies or breaks a rule leaves the state before it untouched, and that nothing the code does
reaches this process but frames of data. Does not promise to hide timing, nor to undo what a host function did.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Self

from sonde.errors import ConfigError, SandboxLost
from sonde.sandbox import frames
from sonde.sandbox.base import CodeClock, ExecFault, ExecResult, Host, Limits, Watch
from sonde.sandbox.exclusive_use import RESERVED, Seat, check_name, is_name
from sonde.sandbox.forkserver import ForkServer, shared_server
from sonde.sandbox.history import History
from sonde.sandbox.launch import launch
from sonde.sandbox.output import Recorder
from sonde.sandbox.policy import profile_named
from sonde.sandbox.prepare import Preparation, Prepared
from sonde.sandbox.result import finished, names_told, stopped
from sonde.sandbox.share import Share, Shareable, make_share
from sonde.sandbox.snapshots import Family, ForkFailed, ForkRefused, State
from sonde.sandbox.turn import Outcome, Turn, judge_death, private_bytes

FIRST_SHARE = 100
MOST_SHARES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A process that was just forked: our end of its socket, and the recorder of what it prints."""

    state: State
    wire: socket.socket
    printed: Recorder


class Sandbox:
    """Runs Python that nobody has read. One turn at a time; several boxes at once are fine, from any threads."""

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
        server: ForkServer | None = None,
    ) -> None:
        self.profile = profile_named(profile)
        self.limits = limits or Limits()
        self.clock = clock
        self.watch: Watch | None = None
        self._host = host
        self._functions = checked_functions(functions, host)
        self._sharing = tuple(sharing)  # functions that take `share=[names]` and get the variables of these names
        if not isinstance(keep_states, int) or keep_states < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise ConfigError(f"keep_states must be at least 1, not {keep_states!r}")
        if not isinstance(seed, int):  # pyright: ignore[reportUnnecessaryIsInstance] - as above
            raise ConfigError(f"seed must be an int, not {seed!r}")
        self._preparation = Preparation(self.profile, self._functions, session_id, self.limits, host)
        self._shares: dict[str, Share] = {}
        self._pending: dict[str, Any] = {}
        self._seat = Seat()
        server = server or shared_server(self.profile.preload)
        family, state = launch(server, self._config(seed, server), unsafe=unsafe)
        self._history = History(family, keep_states, self.limits.memory_bytes, first_turn, [(first_turn, state)])

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that are on, as the worker reported them before any code ran."""
        return self._family.layers

    @property
    def turn(self) -> int:
        return self._history.turn

    def share(self, name: str, content: Shareable) -> None:
        """Give code a text, or a mapping of texts, as one sealed copy; a str is text, a Path is a file to read."""
        with self._seat.taken():
            check_name(name, self._functions, {*self._shares, *self._pending})
            if len(self._shares) >= MOST_SHARES:
                raise ConfigError(f"at most {MOST_SHARES} shares; share one mapping of names to texts instead")
            taken = sum(share.size for share in self._shares.values())
            self._shares[name] = make_share(name, content, self.limits.shared_bytes - taken)

    def inject(self, name: str, value: Any) -> None:
        """Set a variable to a plain value (JSON-like or bytes) from the next turn on."""
        with self._seat.taken():
            check_name(name, self._functions, self._shares)
            try:
                size = len(frames.encode(value))
            except (ValueError, TypeError):
                raise ConfigError(
                    f"{name!r} holds a {type(value).__name__} that is not JSON-like; inject str, numbers, lists, dicts or bytes"
                ) from None
            if size > self.limits.memory_bytes // 2:
                raise ConfigError(
                    f"{name!r} takes {size} bytes, too much for {self.limits.memory}; use share() for text"
                )
            self._pending[name] = value

    def execute(self, code: str, wall_s: float | None = None) -> ExecResult:
        """Run one turn. Whatever the code does, the answer is a result; see `ExecFault` for what can be wrong."""
        wall = self._checked_wall(wall_s)
        if not isinstance(code, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers are not all typed
            raise ConfigError(f"code must be a str, not {type(code).__name__}")
        with self._seat.taken():
            self._history.turn += 1
            prepared = self._preparation.prepare(code, self._history.state.names)
            if isinstance(prepared, ExecFault):
                result = ExecResult(ok=False, turn=self.turn, fault=prepared, layers=self.layers)
            else:
                result = self._run(prepared, wall)
            return self._preparation.charged(result)

    def rollback(self, turn: int) -> None:
        """Go back to the state after that turn (0 is the beginning); later turns are forgotten."""
        with self._seat.taken():
            self._history.rollback(turn)

    def branch(self) -> Sandbox:
        """A second box that starts from this one's state, at copy-on-write cost. Allowed in the middle of a turn too."""
        self._seat.check_open()
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._seat = Seat()
        twin._pending = dict(self._pending)
        twin._shares = dict(self._shares)
        for share in twin._shares.values():
            share.holders += 1
        twin._preparation = self._preparation.copy()
        state = self._history.state
        self._family.join(state)
        twin._history = History(self._family, self._history.keep, self._history.memory, self.turn, [(self.turn, state)])
        return twin

    def close(self) -> None:
        """End every process of this box. A second call does nothing."""
        if self._seat.closed:
            return
        self._seat.closed = True
        self._family.leave(self._history.clear())
        for share in self._shares.values():
            share.release()
        self._shares.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError, OSError):  # never finished its __init__, or the interpreter is leaving
            self.close()

    @property
    def _family(self) -> Family:
        return self._history.family

    def _run(self, prepared: Prepared, wall: float) -> ExecResult:
        new = {name: share for name, share in self._shares.items() if name not in self._history.state.shares}
        request = frames.encode(self._request(prepared, new))
        host = self._host if self.profile.to_wire()["host_calls"] else None
        with contextlib.ExitStack() as stack:
            try:
                child = self._fork(stack, [share.descriptor for share in new.values()])
            except ForkRefused as failure:
                return self._not_run(
                    f"{failure}; the state is intact", "Wait until processes have ended and try again."
                )
            except ForkFailed as failure:
                return self._fall_back(failure)
            outcome = self._converse(child, request, wall, host, self.watch)
            if outcome.report is not None:
                return self._commit(child.state, outcome, prepared)
            return self._stop(child, outcome, prepared)

    def _fork(self, stack: contextlib.ExitStack, shares: Sequence[int]) -> Child:
        """A child of the newest state."""
        near, far = (stack.enter_context(end) for end in socket.socketpair())
        read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        stack.callback(os.close, read_end)
        descriptors = {3: far.fileno(), 1: write_end} | {FIRST_SHARE + at: each for at, each in enumerate(shares)}
        try:
            state = self._family.fork(self._history.state, descriptors, near)
        finally:
            os.close(write_end)
        far.close()
        return Child(state=state, wire=near, printed=Recorder(read_end, self.limits.output_chars))

    def _converse(
        self, child: Child, request: bytes, wall: float, host: Host | None, watch: Watch | None = None
    ) -> Outcome:
        channel = frames.Channel(child.wire, self.limits.frame_bytes)
        turn = Turn(
            child.state,
            channel,
            self.limits,
            host=host,
            functions=self._functions,
            wall_s=wall,
            printed=child.printed,
            watch=watch,
        )
        try:
            outcome = turn.run(request, self._family.await_parked)
        except BaseException:  # of the host, the watch, or an interrupt: the turn is void, the state before it stands
            self._family.discard(child.state)
            raise
        if not self._family.await_parked(self._history.state):
            self._history.state.kill()  # it spins instead of resting: the next turn will fall back
        return outcome

    def _commit(self, child: State, outcome: Outcome, prepared: Prepared) -> ExecResult:
        result = finished(outcome, prepared, turn=self.turn, layers=self.layers, limit=self.limits.output_chars)
        child.private_bytes = private_bytes(child.pid)
        child.shares = frozenset(self._shares)
        child.names = self._history.state.names | names_told(outcome)
        self._pending.clear()
        self._history.commit(child)
        return result

    def _stop(self, child: Child, outcome: Outcome, prepared: Prepared) -> ExecResult:
        assert outcome.fault is not None
        death = self._family.discard(child.state)
        fault = judge_death(outcome.fault, death, self.limits.cpu_seconds)
        return stopped(
            fault,
            outcome,
            child.printed.streams(),
            prepared,
            turn=self.turn,
            layers=self.layers,
            limit=self.limits.output_chars,
        )

    def _fall_back(self, failure: ForkFailed) -> ExecResult:
        """The newest state cannot be continued: drop it and go one back."""
        lost = self._history.entries[-1][0]
        self._history.drop_newest()
        if not self._history.entries or not self._family.server.alive:
            raise SandboxLost(f"no state of this sandbox is left ({failure}); open a new Sandbox")
        back = self._history.entries[-1][0]
        message = f"the state after turn {lost} could not be continued ({failure}); its variables are gone"
        return self._not_run(message, f"The state after turn {back} is in place: run the code again.")

    def _not_run(self, message: str, hint: str) -> ExecResult:
        fault = ExecFault(kind="crash", message=message, hint=hint)
        return ExecResult(ok=False, turn=self.turn, fault=fault, layers=self.layers)

    def _request(self, prepared: Prepared, new: dict[str, Share]) -> dict[str, Any]:
        return {
            "turn": self.turn,
            "code": prepared.code,
            "inject": self._pending | prepared.injected,
            "shares": [share.to_wire(FIRST_SHARE + at) for at, share in enumerate(new.values())],
            "clock": (self.clock.start, self.clock.step) if self.clock is not None else None,
        }

    def _config(self, seed: int, server: ForkServer) -> dict[str, Any]:
        calls = self._host is not None and bool(self.profile.to_wire()["host_calls"])
        return {
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
            "without": list(server.without),
        }

    def _checked_wall(self, wall_s: float | None) -> float:
        wall = self.limits.wall_s if wall_s is None else wall_s
        if not 0 < wall <= self.limits.cpu_seconds:
            raise ConfigError(
                f"wall_s must be above zero and at most {self.limits.cpu_seconds} (the CPU limit), not {wall}"
            )
        return wall


def checked_functions(functions: Collection[str] | None, host: Host | None) -> frozenset[str] | None:
    """The names that code may call; ConfigError for one that cannot be bound."""
    if functions is None:
        return None
    if isinstance(functions, str):
        raise ConfigError(f"functions must be a list of names, not the text {functions!r}")
    if host is None and functions:
        raise ConfigError("functions are named but there is no host to serve them; pass host=...")
    for name in functions:
        if not is_name(name) or name in RESERVED:
            raise ConfigError(f"{name!r} cannot be the name of a host function")
    return frozenset(functions)
