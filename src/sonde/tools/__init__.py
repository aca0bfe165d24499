"""Typed functions that code may call, and the registry that is their only door.

It checks the allowlist and the arguments, and bounds, orders and hashes what comes back. `bind` turns positional and keyword arguments
into names; `call` checks them, runs the tool and returns a `CallResult`. Whatever a tool raises becomes a ToolFault with the signature
and a correct example, because the model must hear of it; only RunErrors (an exhausted budget) pass through. It is as thread-safe as its
tools. The runtime counts and charges calls, not the registry.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sonde.core.calls import excerpt_of_call
from sonde.core.canonical import hash_value, sha256_text
from sonde.core.deadline import Clock, SystemClock
from sonde.core.evidence import Excerpt, Observed
from sonde.errors import ConfigError, RunError, ToolFault
from sonde.tools.results import data_text, fit, in_order, plain
from sonde.tools.spec import Parameter, Tool, tool

__all__ = ["CallResult", "Parameter", "Tool", "ToolRegistry", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """One call and its result. `truncated` says what was cut and how to get the rest."""

    tool_name: str
    normalized_args: Mapping[str, Any]
    args_hash: str
    result: Any
    response_hash: str
    latency_s: float
    excerpts: tuple[Excerpt, ...] = ()
    truncated: str | None = None
    citable: bool = True


class ToolRegistry:
    """The tools of a run by name. `allowed` narrows them; None allows all. `given` are the user's own and come last."""

    def __init__(
        self,
        tools: Iterable[Tool | Callable[..., Any]],
        allowed: Iterable[str] | None = None,
        max_result_bytes: int = 1_000_000,
        clock: Clock | None = None,
        given: Iterable[Tool | Callable[..., Any]] = (),
    ) -> None:
        own = [tool(each) for each in given]
        self._tools: dict[str, Tool] = {}
        for each in [*map(tool, tools), *own]:
            if each.name in self._tools:
                raise ConfigError(f"two tools are called {each.name}; rename one with tool(function, name='other').")
            self._tools[each.name] = each
        self._given = frozenset(each.name for each in own)
        self._allowed = frozenset(self._tools if allowed is None else allowed)
        unknown = sorted(self._allowed - set(self._tools))
        if unknown:
            raise ConfigError(
                f"allowed tools that do not exist: {', '.join(unknown)}; there are {', '.join(self._tools) or 'none'}."
            )
        self._max_result_bytes = max_result_bytes
        self._clock = clock or SystemClock()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tools that may be called, in the order given."""
        return tuple(name for name in self._tools if name in self._allowed)

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that may be called, in the order given."""
        return tuple(self._tools[name] for name in self.names)

    @property
    def given(self) -> tuple[str, ...]:
        """The user's own among them; their results are cited by the call."""
        return tuple(name for name in self.names if name in self._given)

    @property
    def prompt(self) -> str:
        """Signatures and docstrings of the tools that may be called."""
        return "\n\n".join(each.prompt for each in self.tools)

    def get(self, name: str) -> Tool:
        """The tool of this name; a ToolFault lists the known ones."""
        if name in self._allowed:
            return self._tools[name]
        near = difflib.get_close_matches(name, self.names, n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        known = f"The tools here are {', '.join(self.names)}." if self.names else "There are no tools here."
        raise ToolFault(f"there is no tool {name!r} here.{hint} {known}")

    def bind(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, unchecked; a ToolFault for too many, or for one given twice."""
        found = self.get(name)
        places = [p.name for p in found.parameters if p.positional]
        if len(args) > len(places):
            raise found.fault(f"{len(args)} positional arguments given, it takes at most {len(places)}.")
        bound = dict(zip(places, args, strict=False))
        twice = [key for key in kwargs if key in bound]
        if twice:
            raise found.fault(f"argument {twice[0]!r} is given twice.")
        return {**bound, **kwargs}

    def args_hash(self, name: str, args: Mapping[str, Any]) -> str:
        """The hash of a call with these arguments, defaults filled in; a ToolFault if they do not fit."""
        found = self.get(name)
        return sha256_text(_args_text(found, found.check(args)))

    def call(self, name: str, args: Mapping[str, Any], hide: Callable[[Any], Any] | None = None) -> CallResult:
        """Run a tool: checked arguments in, plain data in stable order out. `hide` masks what it returns, before that is cut."""
        found = self.get(name)
        given = found.check(args)
        text = _args_text(found, given)
        args_hash = sha256_text(text)
        places = [given[p.name] for p in found.parameters if p.positional]
        named = {p.name: given[p.name] for p in found.parameters if not p.positional}
        started = self._clock.now()
        try:
            returned = found.function(*places, **named)
        except ToolFault as fault:
            raise found.fault(fault.message) from fault
        except RunError:
            raise
        except Exception as error:  # a user's function may raise anything, and the model has to hear of it
            raise found.fault(f"failed with {type(error).__name__}: {error}") from error
        latency = self._clock.now() - started
        observed = returned if isinstance(returned, Observed) else None
        whole = plain(name, observed.value if observed else returned)
        shown = whole if hide is None else hide(whole)
        value, cut = fit(shown if observed and observed.ranked else in_order(shown), self._max_result_bytes)
        remark = observed.truncated if observed else None
        remark = remark if remark is None or hide is None else hide(remark)
        citable = observed is None or observed.citable
        own = (excerpt_of_call(name, args_hash, value),) if citable else ()
        return CallResult(
            tool_name=name,
            normalized_args=json.loads(text),
            args_hash=args_hash,
            result=value,
            response_hash=hash_value(value),
            latency_s=latency,
            # Pointers into text that was cut would cite what nobody saw, so a cut result is cited as the tool's output.
            excerpts=observed.excerpts if observed and not cut else own,
            citable=citable,
            truncated=" ".join(filter(None, [cut, remark])) or None,
        )


def _args_text(found: Tool, given: Mapping[str, Any]) -> str:
    try:
        return data_text(given)
    except (TypeError, ValueError) as error:
        raise found.fault(f"its arguments are not plain data: {error}.") from None
