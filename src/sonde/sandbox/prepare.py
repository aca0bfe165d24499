"""What happens to code before it meets a worker: size, null bytes, the gate, and lifted tool calls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from sonde.errors import Fault, RunError
from sonde.sandbox import gate
from sonde.sandbox.base import Args, ExecFault, Host, Limits
from sonde.sandbox.intercept import CallbackSite, InjectedNames, cut_result, extract_tool_calls, rewrite
from sonde.sandbox.policy import Profile
from sonde.sandbox.source import Refusal

NOT_PYTHON = frozenset({"syntax", "too-long", "too-deep", "bad-text"})
"""Rules of `source`: the text is no program at all."""


CALL_CHARS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Code that may run, with what must be injected for it."""

    code: str
    injected: dict[str, Any] = field(default_factory=dict[str, Any])
    warnings: tuple[str, ...] = ()


class Preparation:
    """The way from a reply's code to code that may run, for one session."""

    def __init__(
        self, profile: Profile, functions: frozenset[str] | None, session_id: str, limits: Limits, host: Host | None
    ) -> None:
        self._profile = profile
        self._functions = functions
        self._limits = limits
        self._host = host
        self._names = InjectedNames(session_id)

    def copy(self) -> Preparation:
        """For a branch: its own counter, from here on."""
        twin = Preparation(self._profile, self._functions, "", self._limits, self._host)
        twin._names = replace(self._names)
        return twin

    def prepare(self, code: str, defined: Collection[str]) -> Prepared | ExecFault:
        fault = self._unreadable(code) or self._refused(code, defined)
        if fault is not None:
            return fault
        if self._profile.lifts_tool_calls:
            return self._lift(code)
        return Prepared(code=code)

    def objection(self, definition: str, defined: Collection[str]) -> str | None:
        """Why a saved definition may not run here; None: it may. Nothing is lifted out of it and no tool is called."""
        fault = self._unreadable(definition) or self._refused(definition, defined)
        return None if fault is None else fault.message

    def _unreadable(self, code: str) -> ExecFault | None:
        if len(code) > self._limits.source_chars:
            message = f"the code has {len(code)} characters; at most {self._limits.source_chars} are run"
            return ExecFault(
                kind="syntax", message=message, hint="Put data into variables or tools, not into the source."
            )
        if "\0" in code:
            line = code[: code.index("\0")].count("\n") + 1
            return ExecFault(
                kind="syntax", message="the code contains a null byte", line=line, hint="Write it as \\x00."
            )
        return None

    def _refused(self, code: str, defined: Collection[str]) -> ExecFault | None:
        if not self._profile.gated:
            return None
        refusals = gate.check(code, self._profile, self._functions, defined=defined)
        return _gate_fault(refusals) if refusals else None

    def _lift(self, code: str) -> Prepared | ExecFault:
        sites, errors = extract_tool_calls(code, self._functions or ())
        if errors:
            return _gate_fault(errors)
        rewritten = rewrite(code, sites, self._names)
        injected: dict[str, Any] = {}
        warnings: list[str] = []
        for site, name in zip(sites, rewritten.injected, strict=True):
            try:
                value, warning = cut_result(self._call(site))
            except RunError:
                raise
            except Exception as error:  # noqa: BLE001 - the top of a host call: whatever it raises belongs to the code
                return _tool_fault(site, error)
            injected[name] = value
            warnings += [f"line {site.lineno}, {site.tool_name}: {warning}"] if warning else []
        return Prepared(code=rewritten.code, injected=injected, warnings=tuple(warnings))

    def _call(self, site: CallbackSite) -> Any:
        assert self._host is not None  # functions are refused without a host
        return self._host(site.tool_name, Args.of(list(site.args), dict(site.kwargs)))


def _tool_fault(site: CallbackSite, error: Exception) -> ExecFault:
    """The tool's own words, with where and how it was called."""
    kind = "ToolError" if isinstance(error, Fault) else type(error).__name__
    shown = [repr(value) for value in site.args] + [f"{name}={value!r}" for name, value in site.kwargs.items()]
    call = f"{site.tool_name}({', '.join(shown)})"[:CALL_CHARS]
    hint = f"No line of the code was run. Mend the arguments of {site.tool_name} in line {site.lineno}, or leave the call out."
    return ExecFault(kind="error", message=f"{kind} in {call}: {error}", line=site.lineno, hint=hint)


def _gate_fault(refusals: list[Refusal]) -> ExecFault:
    first = refusals[0]
    kind = "syntax" if first.rule in NOT_PYTHON else "gate"
    return ExecFault(kind=kind, message="\n".join(map(str, refusals)), line=first.line, hint=first.example)
