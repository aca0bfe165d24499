"""One turn of a Monty session: feed the code, answer every suspension (host calls, names, clock, sleep, imports) until it ends.

FINAL ends the block by an exception that `except Exception` does not catch; a bare `except` can, but then nothing the code prints or
calls afterwards has any effect, and the first final value stands. Values on their way out are checked and made JSON-like, as the
frames of the kernel backend are.
"""

from __future__ import annotations

import builtins
import datetime as dt
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, cast, get_args

from sonde.errors import Fault, RunError
from sonde.sandbox import frames
from sonde.sandbox.base import Args, CodeClock, Final, Host, Limits, OverQuota, host_error
from sonde.sandbox.policy import FINISH_NAMES, Profile
from sonde.sandbox.portable.guard import Guard
from sonde.sandbox.portable.language import Language, no_module

BUILTINS = frozenset(dir(builtins))
Print = Callable[[str, str], None]
Answer = dict[str, Any]
LEAVE: Answer = {"exc_type": "SystemExit", "message": "the block has finished"}
MAX_DEPTH = 100


class Stuck(Exception):
    """The code waits for something that will never come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What holds for every turn of a session."""

    monty: Any
    language: Language
    profile: Profile
    limits: Limits
    host: Host | None
    functions: frozenset[str] | None
    sharing: Collection[str]

    def serves(self, name: str) -> bool:
        """Whether a call of this name goes to the host."""
        if self.host is None or self.profile.lifts_tool_calls:
            return False
        return name in self.functions if self.functions is not None else name not in BUILTINS


class Dialogue:
    """The suspensions of one feed, answered one after the other."""

    def __init__(self, rules: Rules, guard: Guard, clock: CodeClock | None, names: Collection[str]) -> None:
        self._rules = rules
        self.guard = guard
        self._clock = clock
        self._readings = 0
        self._names = names
        self.calls = 0
        self.final: Final | None = None
        self.wanted: str | None = None
        """The variable that FINAL_VAR named; its value is read when the block has ended."""

    def run(self, session: Any, code: str, inputs: dict[str, Any], tell: Print) -> None:
        """Feed the code and see it through; what it raises is Monty's error, or the host's RunError."""

        def printed(stream: str, text: str) -> None:
            if not self.finished:
                tell(stream, text)

        self._see_through(session.feed_start(code, inputs=inputs, print_callback=printed))

    def ask(self, session: Any, expression: str) -> Any:
        """The value of an expression; what it prints is thrown away."""
        return self._see_through(session.feed_start(expression, print_callback=_unheard)).output

    @property
    def finished(self) -> bool:
        return self.final is not None or self.wanted is not None

    def _see_through(self, step: Any) -> Any:
        monty = self._rules.monty
        while not isinstance(step, monty.MontyComplete):
            if isinstance(step, monty.NameLookupSnapshot):
                name: str = step.variable_name
                known = name in FINISH_NAMES or self._rules.serves(name)
                step = step.resume(value=_stub(name)) if known else step.resume()
            elif not isinstance(step, monty.FunctionSnapshot):
                raise Stuck("the code awaits something that nobody will deliver")
            elif step.is_os_function:
                step = self._system(step)
            else:
                step = step.resume(self._call(str(step.function_name), list(step.args), dict(step.kwargs)))
        return step

    def _call(self, name: str, args: list[Any], named: dict[str, Any]) -> Answer:
        if self.finished:
            return LEAVE
        if name in FINISH_NAMES:
            return self._finish(name, args, named)
        if self._rules.serves(name):
            return self._serve(name, args, named)
        if name in BUILTINS:
            return _error("NameError", f"the builtin `{name}` does not exist in the monty backend")
        return _error("NameError", f"name '{name}' is not defined")

    def _finish(self, name: str, args: list[Any], named: dict[str, Any]) -> Answer:
        if name == "SUBMIT":
            if args:
                return _error("TypeError", "SUBMIT takes named fields only: SUBMIT(answer=42)")
            self.final = Final(final_value(named))
            return LEAVE
        given = [*args, *(named[key] for key in named if key in {"value", "name"})]
        if len(given) != 1 or len(args) + len(named) != 1:
            return _error("TypeError", f"{name} takes exactly one value: {name}(answer)")
        value = given[0]
        if name != "FINAL_VAR":
            self.final = Final(final_value(value))
            return LEAVE
        if not isinstance(value, str):
            return _error("TypeError", 'FINAL_VAR takes the name of a variable: FINAL_VAR("answer")')
        if value not in self._names:
            return _error("NameError", f"FINAL_VAR: there is no variable named {value!r}; assign it first")
        self.wanted = value
        return LEAVE

    def _serve(self, name: str, args: list[Any], named: dict[str, Any]) -> Answer:
        """One host call, if the code may make it."""
        self.calls += 1
        limits, host = self._rules.limits, self._rules.host
        if self.calls > limits.host_calls:
            raise OverQuota
        if name in self._rules.sharing and isinstance(named.get("share"), list):
            return _error("TypeError", f"in the monty backend share= of {name} must be a list of names as literal text")
        try:
            given = Args.of([argument(each) for each in args], {key: argument(each) for key, each in named.items()})
        except (TypeError, ValueError) as error:
            return _error(type(error).__name__, str(error))
        assert host is not None, "serves() said so"
        with self.guard.host():
            try:
                value = host(name, given)
            except RunError:
                raise
            except Fault as fault:
                return _error("RuntimeError", fault.message)
            except Exception as error:  # noqa: BLE001 - the top of a host call: whatever it raises belongs to the code
                kind, message = host_error(error)
                known = kind in get_args(self._rules.monty.ExcType)
                return _error(kind, message) if known else _error("RuntimeError", f"{kind}: {message}")
            try:
                size = len(frames.encode(value))
            except (ValueError, TypeError):
                return _error("TypeError", f"{name}() returned a {type(value).__name__}, which is not JSON-like")
        if size > limits.frame_bytes:
            return _error(
                "ValueError", f"{name}() returned {size} bytes; at most {limits.frame_bytes} fit. Ask for less."
            )
        return {"return_value": value}

    def _system(self, step: Any) -> Any:
        """What code asks of the machine: the clock and sleep are ours, everything else does not exist."""
        if self.finished:
            return step.resume(LEAVE)
        match str(step.function_name):
            case "time.time":
                return step.resume({"return_value": self._now()})
            case "datetime.now":
                return step.resume({"return_value": self._datetime(step.args[0] if step.args else None)})
            case "date.today":
                return step.resume({"return_value": self._datetime(None).date()})
            case "time.sleep" | "asyncio.sleep" | "system.sleep":
                self.guard.sleep(float(step.args[0]))
                return step.resume({"return_value": None})
            case "import":
                reason = no_module(str(step.args[0]), self._rules.language, self._rules.profile)
                return step.resume(_error("ImportError", reason))
            case _:
                return step.resume_not_handled()

    def _now(self) -> float:
        if self._clock is None:
            return dt.datetime.now(dt.UTC).timestamp()
        self._readings += 1
        return self._clock.start + (self._readings - 1) * self._clock.step

    def _datetime(self, zone: dt.tzinfo | None) -> dt.datetime:
        now = dt.datetime.fromtimestamp(self._now(), dt.UTC)
        return now.replace(tzinfo=None) if zone is None else now.astimezone(zone)


def _unheard(_stream: str, _text: str) -> None:
    """Where output goes that nobody asked for."""


def _stub(name: str) -> Callable[..., None]:
    """A function of this name, for code that passes it on: Monty needs only the name."""

    def stub(*_args: Any, **_named: Any) -> None:
        raise AssertionError("never called on this side")

    stub.__name__ = stub.__qualname__ = name
    return stub


def _error(kind: str, message: str) -> Answer:
    return {"exc_type": kind, "message": message}


def argument(value: Any, depth: int = 0) -> Any:
    """An argument of a host call; TypeError for what is not JSON-like."""
    if depth > MAX_DEPTH:
        raise ValueError("the value is nested too deeply for a host call")
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [argument(each, depth + 1) for each in cast("list[Any]", value)]
    if isinstance(value, dict):
        fields: dict[str, Any] = {}
        for key, each in cast("dict[Any, Any]", value).items():
            if key is None or isinstance(key, bool):
                name = {None: "null", True: "true", False: "false"}[key]
            elif isinstance(key, str | int | float):
                name = str(key)
            else:
                raise TypeError(f"keys must be str, not {type(key).__name__}")
            fields[name] = argument(each, depth + 1)
        return fields
    raise TypeError(f"a {type(value).__name__} is not JSON-like: pass str, numbers, lists, dicts or bytes")


def final_value(value: Any, depth: int = 0) -> Any:
    """The nearest JSON-like value: an answer should not be lost for its type."""
    if depth > MAX_DEPTH:
        return str(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, list | tuple):
        return [final_value(each, depth + 1) for each in cast("list[Any]", value)]
    if isinstance(value, set | frozenset):
        return sorted((final_value(each, depth + 1) for each in cast("set[Any]", value)), key=repr)
    if isinstance(value, dict):
        return {str(key): final_value(each, depth + 1) for key, each in cast("dict[Any, Any]", value).items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if getattr(value, "is_dataclass", False):  # an instance of a class of the code, as a stand-in
        return final_value(dict(value.attributes), depth + 1)
    return str(value)
