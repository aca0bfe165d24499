"""The worker's loop: park, wake as a child, run one block, report, park again.

A state waits inside the fork it will make. The supervisor lets the fork happen; the child takes the turn and the state parks
again, unchanged. FINAL ends a block by never returning: it reports and parks where it stands, so no handler can catch it.
"""

from __future__ import annotations

import ast
import builtins
import ctypes
import errno
import gc
import inspect
import linecache
import os
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any, cast

from . import channel, kernel, tables
from .channel import Encoded
from .clock import SettableClock, install, seed_everything
from .language import add_ready_names, called_names
from .output import Capture
from .report import VIOLATION_EXIT, Variables, describe
from .views import Region, SharedText, SharedTexts

UNFREEZE_EVERY = 64
LIFTED = "__rlm_icpt_"
MOST_DESCRIPTORS = 120
OUTSIDE = ("open", "os.", "socket.", "subprocess.")
"""Audit events of files, sockets and processes begin like this."""
_all_signals = ctypes.create_string_buffer(b"\xff" * 8, 8)


class ToolError(RuntimeError):
    """A host function refused or failed."""


class CodeSession:
    """One namespace of generated code and the way it talks to the supervisor."""

    def __init__(self, config: dict[str, Any], names: dict[str, Any]) -> None:
        """`names` are the `__builtins__` of its code; no other session has them."""
        self._config = config
        self._policy: dict[str, Any] = config["policy"]
        self._limit: int = config["frame_bytes"]
        self._out, self._err = (Capture(config["output_chars"], number) for number in (0, 1))
        self._variables = Variables()
        self._clock: SettableClock | None = None
        self._sequence = 0
        self._turns = 0
        self._mute = False
        self._filename = ""
        self._gated = True
        self._fatal_files: bool | None = None
        self._builtins = names
        self._fixed: dict[str, Any] = {"__name__": "__main__", "__builtins__": self._builtins, "ToolError": ToolError}
        self._fixed |= self._finish_functions()
        self._fixed |= {name: self._host_function(name) for name in config["functions"] or ()}
        self._namespace: dict[str, Any] = dict(self._fixed)
        seed_everything(config["seed"])

    def start(self, *, gated: bool) -> None:
        """Begin to serve, with the fork gate or, in an unsafe sandbox that lacks it, without."""
        self._gated = gated
        self.serve()

    def serve(self) -> None:
        """Never returns: each round of the loop is another process."""
        while True:
            settle(unfreeze=self._turns % UNFREEZE_EVERY == UNFREEZE_EVERY - 1)
            if self._gated:
                park()
            else:
                park_without_gate()
            self._turns += 1
            self._run(channel.receive())

    def _run(self, request: dict[str, Any]) -> None:
        """One turn. A call of its own, so that a parked state does not keep the request."""
        self._sequence = 0
        self._mute = False
        self._filename = f"<turn {request['turn']}>"
        for stream in (self._out, self._err):
            stream.clear()
        sys.stdout, sys.stderr = self._out, self._err
        if request["clock"] is not None:
            if self._clock is None:
                self._clock = SettableClock(*request["clock"])
                install(self._clock)
            self._clock.set(*request["clock"])
        if request["fatal_files"] and self._fatal_files is None:
            sys.addaudithook(self._audit)
            self._fatal_files = False
        if self._fatal_files is not None:
            self._fatal_files = request["fatal_files"]
        for share in request["shares"]:
            region = Region(share["fd"], share["size"])
            entries: dict[str, tuple[int, int, bytes]] = share["entries"]
            whole = entries.get("") if share["single"] else None
            text = SharedText(region, *whole) if whole is not None else SharedTexts(region, entries)
            self._namespace[share["name"]] = text
        self._namespace.update(request["inject"])
        self._variables.changed(self._namespace, self._hidden())
        self._done(self._execute(request["code"], ready=request["ready_names"]), None)

    def _audit(self, event: str, _args: tuple[Any, ...]) -> None:
        """End the process if generated code itself, not the import system below it, reaches for a file: no handler can catch that."""
        if not (self._fatal_files and event.startswith(OUTSIDE)):
            return
        here = inspect.currentframe()
        if here is not None and here.f_back is not None and here.f_back.f_builtins is self._builtins:
            os._exit(VIOLATION_EXIT)

    def _execute(self, source: str, *, ready: bool) -> dict[str, Any] | None:
        """Run the code; the fault that ended it, if one did."""
        compiled = False
        # Where tracebacks, ours and those that code prints itself, look for the line.
        linecache.cache[self._filename] = (len(source), None, source.splitlines(keepends=True), self._filename)
        try:
            code = self._compile(source)
            compiled = True
            if ready and not self._config["binds_unknown"]:
                add_ready_names(self._builtins, self._policy["ready"], code, source)
            exec(code, self._namespace)
        except BaseException as error:
            modules = self._policy["modules"] if self._policy["modules"] is not None else self._policy["preload"]
            try:
                fault = describe(error, self._filename, compiled, modules)
            except MemoryError:
                fault = {"kind": "memory", "message": "MemoryError", "line": None, "hint": None, "traceback": ""}
            error.__traceback__ = None
            return fault
        return None

    def _compile(self, source: str) -> Any:
        """A call of its own, so that a state that parks inside FINAL does not keep the tree."""
        if not self._config["binds_unknown"]:
            return compile(source, self._filename, "exec", dont_inherit=True)
        tree = ast.parse(source, self._filename)
        for name in called_names(tree) - self._namespace.keys() - self._builtins.keys():
            self._fixed[name] = self._namespace[name] = self._host_function(name)
        return compile(tree, self._filename, "exec", dont_inherit=True)

    def _done(self, fault: dict[str, Any] | None, final: Encoded | None) -> None:
        for name in [each for each in self._namespace if type(each) is str and each.startswith(LIFTED)]:
            del self._namespace[name]  # has served: it would keep a large result alive
        rebound = [name for name, value in self._fixed.items() if self._namespace.get(name) is not value]
        self._namespace.update(self._fixed)
        report = {
            "out": (self._out.head(), self._out.tail(), self._out.total, self._out.lines),
            "err": (self._err.head(), self._err.tail(), self._err.total, self._err.lines),
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

    def _host_function(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if self._mute:
                raise ToolError(f"{name} cannot be called now: no code is being run")
            if name in self._config["sharing"] and type(named.get("share")) is list:
                for wanted in named["share"]:  # variables by name, for a function that passes them on: share=["rows"]
                    if wanted not in self._namespace:
                        raise NameError(f"share: there is no variable named {wanted!r}; assign it first")
                named["share"] = {wanted: self._namespace[wanted] for wanted in named["share"]}
            body = Encoded([name, args, named], _shared_to_str)
            channel.send(channel.CALL, self._sequence + 1, {"call": body}, self._limit)
            self._sequence += 1  # only now: a value that was too big has sent nothing
            ok, value = channel.receive()
            if ok:
                return value
            raise _host_exception(*value) from None

        call.__name__ = call.__qualname__ = name
        return call

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
        try:
            final = Encoded([value], _plain)
        except TypeError:  # keys that are not strings
            final = Encoded([_string_keys(value)], _plain)
        final.check(self._limit)
        self._done(None, final)
        depth, frame = 0, inspect.currentframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back
        sys.setrecursionlimit(sys.getrecursionlimit() + depth + 1)
        self.serve()


def settle(*, unfreeze: bool) -> None:
    """Come to rest: collected and frozen, so that later collections neither walk nor copy the pages of this state."""
    kernel.raw(kernel.number("rt_sigprocmask"), 2, ctypes.addressof(_all_signals), 0, 8)
    sys.settrace(None)
    sys.setprofile(None)
    gc.callbacks.clear()
    if unfreeze:
        gc.unfreeze()
    gc.collect()
    gc.freeze()


def park() -> None:
    """Wait inside the fork; returns in the child only, with the supervisor's socket in place."""
    zygote = os.getppid()
    while made := kernel.raw(kernel.number("clone"), tables.FORK_FLAGS):
        if made < 0 and ctypes.get_errno() == errno.ENOSYS:
            os._exit(0)  # the listener is closed: nobody will ever ask again, and to go on asking would be to spin
        # A child was made, or could not be: wait for the next one.
    # The supervisor installs our socket while it holds this call, then lets it run: no socket without PDEATHSIG.
    kernel.raw(kernel.number("prctl"), tables.PR_SET_PDEATHSIG, tables.SIGKILL)
    if os.getppid() != zygote:  # it died before we asked to die with it
        os._exit(1)


def park_without_gate() -> None:
    """For an unsafe sandbox on a kernel without user notifications: wait for descriptors on the socket, then fork."""
    zygote = os.getppid()
    while True:
        wire = socket.socket(fileno=channel.SOCKET)
        message, descriptors, _, _ = socket.recv_fds(wire, 4 * MOST_DESCRIPTORS, MOST_DESCRIPTORS)
        wire.detach()
        if not message:
            os._exit(0)
        if not kernel.raw(kernel.number("clone"), tables.FORK_FLAGS):
            break
        for descriptor in descriptors:
            os.close(descriptor)
    kernel.raw(kernel.number("prctl"), tables.PR_SET_PDEATHSIG, tables.SIGKILL)
    if os.getppid() != zygote:
        os._exit(1)
    for descriptor, (target,) in zip(descriptors, struct.iter_unpack("<I", message), strict=True):
        os.dup2(descriptor, target, inheritable=False)
        os.close(descriptor)
    os.write(channel.SOCKET, struct.pack("<I", os.getpid()))


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


def _plain(item: Any) -> Any:
    """The nearest JSON-like value: an answer should not be lost for its type."""
    if isinstance(item, set | frozenset):
        return sorted(cast("set[Any]", item), key=repr)
    if hasattr(item, "isoformat"):
        return item.isoformat()
    if hasattr(item, "tolist"):  # numbers and arrays of numpy
        return item.tolist()
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
