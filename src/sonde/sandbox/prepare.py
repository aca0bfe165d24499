"""What happens to code before it meets a worker: size, null bytes, the gate, and lifted tool calls."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

from sonde.core.source import Refusal, parse
from sonde.errors import Fault, RunError
from sonde.sandbox import gate
from sonde.sandbox.base import Args, ExecFault, ExecResult, ExecUsage, Host, Limits, host_error
from sonde.sandbox.intercept import InjectedNames, cut_result, extract_tool_calls, rewrite
from sonde.sandbox.policy import FINISH_NAMES, Profile
from sonde.sandbox.worker.language import called_names

NOT_PYTHON = frozenset({"syntax", "too-long", "too-deep", "bad-text"})
"""Rules of `source`: the text is not a program at all."""
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
        self._lifted = ExecUsage()

    def copy(self) -> Preparation:
        """For a branch: its own counter, from here on."""
        twin = Preparation(self._profile, self._functions, "", self._limits, self._host)
        twin._names = replace(self._names)
        return twin

    def prepare(self, code: str, defined: Collection[str]) -> Prepared | ExecFault:
        """The code as it will run, its tool calls served if the profile lifts them; `defined` are names left by earlier turns."""
        self._lifted = ExecUsage()
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
        try:
            code.encode()
        except UnicodeEncodeError as error:
            line = code[: error.start].count("\n") + 1
            message = f"the code contains half a character ({error.object[error.start]!a}), which is no text"
            return ExecFault(kind="syntax", message=message, line=line, hint="Write it as an escape in a string.")
        if not self._profile.gated:
            return Prepared(code=code)
        offered: Collection[str] | None = self._functions or ()
        if self._functions is None and self._host is not None:  # the host serves any name that nobody else has
            offered = None
            if self._profile.lifts_tool_calls:
                tree = parse(code)
                called = set[str]() if isinstance(tree, Refusal) else called_names(tree)
                offered = called - gate.PYTHON_BUILTINS - {*FINISH_NAMES, *defined}
        refusals = gate.check(code, self._profile, offered, defined=defined)
        if refusals:
            return _gate_fault(refusals)
        return self._lift(code, offered or ()) if self._profile.lifts_tool_calls else Prepared(code=code)

    def charged(self, result: ExecResult) -> ExecResult:
        """The result of the code that was prepared last, with the calls that were served before it ran."""
        calls, seconds = self._lifted.host_calls, self._lifted.host_s
        usage = result.usage
        return replace(result, usage=replace(usage, host_calls=usage.host_calls + calls, host_s=usage.host_s + seconds))

    def _lift(self, code: str, offered: Collection[str]) -> Prepared | ExecFault:
        """Serve the tool calls of the code, and put their results where the calls were."""
        sites, errors = extract_tool_calls(code, offered)
        if errors:
            return _gate_fault(errors)
        if len(sites) > self._limits.host_calls:
            return ExecFault(
                kind="quota",
                message=f"the code has {len(sites)} tool calls; at most {self._limits.host_calls} are served in a turn",
                hint="No line of the code was run. Make fewer calls at a time.",
            )
        rewritten = rewrite(code, sites, self._names)
        injected: dict[str, Any] = {}
        warnings: list[str] = []
        for site, name in zip(sites, rewritten.injected, strict=True):
            assert self._host is not None  # functions are refused without a host
            started = time.monotonic()
            try:
                try:
                    result = self._host(site.tool_name, Args.of(list(site.args), dict(site.kwargs)))
                finally:
                    spent = self._lifted.host_s + time.monotonic() - started
                    self._lifted = ExecUsage(host_calls=self._lifted.host_calls + 1, host_s=spent)
                value, warning = cut_result(result)
            except RunError:
                raise
            except Exception as error:  # noqa: BLE001 - the top of a host call: whatever it raises belongs to the code
                kind, message = host_error(error)
                kind = "ToolError" if isinstance(error, Fault) else kind
                words = [repr(value) for value in site.args]
                words += [f"{word}={value!r}" for word, value in site.kwargs.items()]
                call = f"{site.tool_name}({', '.join(words)})"[:CALL_CHARS]
                hint = f"No line of the code was run. Mend the arguments of {site.tool_name} in line {site.lineno}, or leave the call out."
                return ExecFault(kind="error", message=f"{kind} in {call}: {message}", line=site.lineno, hint=hint)
            injected[name] = value
            warnings += [f"line {site.lineno}, {site.tool_name}: {warning}"] if warning else []
        return Prepared(code=rewritten.code, injected=injected, warnings=tuple(warnings))


def _gate_fault(refusals: list[Refusal]) -> ExecFault:
    first = refusals[0]
    kind = "syntax" if first.rule in NOT_PYTHON else "gate"
    return ExecFault(kind=kind, message="\n".join(map(str, refusals)), line=first.line, hint=first.example)
