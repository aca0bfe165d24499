"""The worker's loop: park, wake as a child, run one block, report, park again.

A state waits inside the fork it will make. The supervisor lets the fork happen; the child takes the turn and the state parks
again, unchanged. FINAL ends a block by never returning: it reports and parks where it stands, so no handler can catch it.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any, cast

from . import channel
from .calls import called_names
from .channel import Encoded
from .clock import Clock, install, seed_everything
from .output import Capture
from .parked_state import park, park_without_gate, settle
from .report import Variables, describe, remember_source
from .views import Region, SharedText, SharedTexts

UNFREEZE_EVERY = 64
LIFTED = "__rlm_icpt_"
FINISH_NAMES = ("FINAL", "FINAL_VAR", "set_final", "SUBMIT")


class ToolError(RuntimeError):
    """A host function refused or failed."""


class Session:
    """One namespace of generated code and the way it talks to the supervisor."""

    def __init__(self, config: dict[str, Any], names: dict[str, Any]) -> None:
        """`names` are the `__builtins__` of its code, for this session alone."""
        self._config = config
        self._policy: dict[str, Any] = config["policy"]
        self._limit: int = config["frame_bytes"]
        self._out, self._err = (Capture(config["output_chars"], number) for number in (0, 1))
        self._variables = Variables()
        self._clock: Clock | None = None
        self._regions: list[Region] = []
        self._sequence = 0
        self._turns = 0
        self._mute = False
        self._filename = ""
        self._park = park
        self._builtins = names
        self._fixed: dict[str, Any] = {"__name__": "__main__", "__builtins__": self._builtins, "ToolError": ToolError}
        self._fixed |= self._finish_functions()
        self._fixed |= {name: self._host_function(name) for name in config["functions"] or ()}
        self._namespace: dict[str, Any] = dict(self._fixed)
        seed_everything(config["seed"])

    def start(self, *, gated: bool) -> None:
        """Begin to serve, with the fork gate or, in an unsafe sandbox that lacks it, without."""
        self._park = park if gated else park_without_gate
        self.serve()

    def serve(self) -> None:
        """Never returns: each round of the loop is another process."""
        while True:
            settle(unfreeze=self._turns % UNFREEZE_EVERY == UNFREEZE_EVERY - 1)
            self._park()
            self._turns += 1
            self._run(channel.receive())

    def _run(self, request: dict[str, Any]) -> None:
        self._sequence = 0
        self._mute = False
        self._filename = f"<turn {request['turn']}>"
        for stream in (self._out, self._err):
            stream.clear()
        sys.stdout, sys.stderr = self._out, self._err
        self._set_clock(request["clock"])
        self._attach(request["shares"])
        self._namespace.update(request["inject"])
        self._variables.changed(self._namespace, self._hidden())
        self._done(self._execute(request["code"]), None)

    def _execute(self, source: str) -> dict[str, Any] | None:
        compiled = False
        remember_source(self._filename, source)
        try:
            code = self._compile(source)
            compiled = True
            exec(code, self._namespace)
        except BaseException as error:
            return self._fault(error, compiled)
        return None

    def _modules(self) -> Collection[str]:
        return self._policy["modules"] if self._policy["modules"] is not None else self._policy["preload"]

    def _compile(self, source: str) -> Any:
        if not self._config["binds_unknown"]:
            return compile(source, self._filename, "exec", dont_inherit=True)
        tree = ast.parse(source, self._filename)
        self._bind_unknown(tree)
        return compile(tree, self._filename, "exec", dont_inherit=True)

    def _bind_unknown(self, tree: ast.AST) -> None:
        for name in called_names(tree) - self._namespace.keys() - self._builtins.keys():
            self._fixed[name] = self._namespace[name] = self._host_function(name)

    def _fault(self, error: BaseException, compiled: bool) -> dict[str, Any]:
        try:
            fault = describe(error, self._filename, compiled, self._modules())
        except MemoryError:
            fault = {"kind": "memory", "message": "MemoryError", "line": None, "hint": None, "traceback": ""}
        error.__traceback__ = None
        return fault

    def _done(self, fault: dict[str, Any] | None, final: Encoded | None) -> None:
        for name in [each for each in self._namespace if type(each) is str and each.startswith(LIFTED)]:
            del self._namespace[name]  # has served: it would keep a large result alive
        rebound = [name for name, value in self._fixed.items() if self._namespace.get(name) is not value]
        self._namespace.update(self._fixed)
        report = {
            "out": (self._out.head(), self._out.tail(), self._out.total),
            "err": (self._err.head(), self._err.tail(), self._err.total),
            "fault": fault,
            "variables": self._variables.changed(self._namespace, self._hidden()),
            "names": self._variables.new_names(self._namespace),
            "rebound": [name for name in rebound if not name.startswith("__")][:20],
        }
        fields = {"report": Encoded(report)}
        if final is not None:
            fields["final"] = final
        channel.send(channel.DONE, self._sequence + 1, fields, self._limit + channel.TEXT_BYTES)
        self._mute = True  # finalizers run when we come to rest: the turn is over, and they have nobody to talk to

    def _hidden(self) -> frozenset[str]:
        return frozenset(self._fixed)

    def _set_clock(self, setting: tuple[float, float] | None) -> None:
        if setting is None:
            return
        if self._clock is None:
            self._clock = Clock(*setting)
            install(self._clock)
        self._clock.set(*setting)

    def _attach(self, shares: list[dict[str, Any]]) -> None:
        for share in shares:
            region = Region(share["fd"], share["size"])
            entries: dict[str, tuple[int, int, bytes]] = share["entries"]
            whole = entries.get("") if share["single"] else None
            self._namespace[share["name"]] = (
                SharedText(region, *whole) if whole is not None else SharedTexts(region, entries)
            )

    def _host_function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            return self._call_host(name, args, named)

        call.__name__ = call.__qualname__ = name
        return call

    def _call_host(self, name: str, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if self._mute:
            raise ToolError(f"{name} cannot be called now: no code is being run")
        if name in self._config["sharing"] and type(named.get("share")) is list:
            named["share"] = self._values(named["share"])
        body = Encoded([name, args, named], _shared_to_str)
        channel.send(channel.CALL, self._sequence + 1, {"call": body}, self._limit)
        self._sequence += 1  # only now: a value that was too big has sent nothing
        ok, value = channel.receive()
        if ok:
            return value
        raise _host_exception(*value) from None

    def _values(self, names: list[str]) -> dict[str, Any]:
        """Variables by name, for a host function that passes them on: `share=["rows"]`."""
        for name in names:
            if name not in self._namespace:
                raise NameError(f"share: there is no variable named {name!r}; assign it first")
        return {name: self._namespace[name] for name in names}

    def _finish_functions(self) -> dict[str, Callable[..., Any]]:
        def FINAL(value: Any) -> None:  # noqa: N802 - the name that models are taught
            self._finish(value)

        def FINAL_VAR(name: str) -> None:  # noqa: N802 - as above
            if not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance] - code passes anything
                raise TypeError('FINAL_VAR takes the name of a variable: FINAL_VAR("answer")')
            if name not in self._namespace:
                raise NameError(f"FINAL_VAR: there is no variable named {name!r}; assign it first")
            self._finish(self._namespace[name])

        def SUBMIT(**fields: Any) -> None:  # noqa: N802 - as above
            self._finish(fields)

        def set_final(value: Any) -> None:
            self._finish(value)

        functions: tuple[Any, ...] = (FINAL, FINAL_VAR, set_final, SUBMIT)
        for function in functions:
            function.__qualname__ = function.__name__  # what a model reads when it calls one wrongly
        return {function.__name__: function for function in functions}

    def _finish(self, value: Any) -> None:
        """Report the value and go on serving from here: the block above is never returned to."""
        if self._mute:
            raise ToolError("there is nothing to finish now: no code is being run")
        final = _encode_final(value)
        final.check(self._limit)
        self._done(None, final)
        sys.setrecursionlimit(sys.getrecursionlimit() + _depth())
        self.serve()


def _host_exception(kind: str, message: str) -> Exception:
    if kind == "ToolError":
        return ToolError(message)
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(message)
        except TypeError:  # a UnicodeDecodeError or a group is not made from its message
            pass
    return RuntimeError(f"{kind}: {message}")


def _encode_final(value: Any) -> Encoded:
    try:
        return Encoded([value], _plain)
    except TypeError:  # keys that are not strings
        return Encoded([_string_keys(value)], _plain)


def _plain(item: Any) -> Any:
    """The nearest JSON-like value: an answer should not be lost for its type."""
    if isinstance(item, set | frozenset):
        return sorted(cast("set[Any]", item), key=repr)
    if hasattr(item, "isoformat"):
        return item.isoformat()
    if hasattr(item, "__dataclass_fields__"):
        return {name: getattr(item, name) for name in item.__dataclass_fields__}
    if isinstance(item, SharedTexts):
        return dict(item)
    return str(item)


def _shared_to_str(item: Any) -> Any:
    if type(item) is SharedText:
        return str(item)
    if isinstance(item, SharedTexts):
        return dict(item)
    raise TypeError(f"a {type(item).__name__} is not JSON-like: pass str, numbers, lists, dicts or bytes")


def _string_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _string_keys(each) for key, each in cast("dict[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_string_keys(each) for each in cast("list[Any]", value)]
    return value


def _depth() -> int:
    depth, frame = 0, inspect.currentframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth
