"""What a model may do: typed actions, and how a reply is read as one.

Three reply forms lead to the same actions: fenced Python (or bare Python that parses), `{reasoning, code}` by JSON
schema, and one typed action as a JSON object. `SandboxGuard` judges typed actions before anything runs: what it
refuses ends the run. An unreadable reply is a `FormatFault`: the model hears what was wrong, with an example.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from sonde.core.canonical import canonical_json
from sonde.core.source import Refusal, parse
from sonde.errors import FormatFault, SandboxViolation

DELEGATION_KEYS = frozenset(
    {
        "trace_id",
        "candidate_label",
        "focus",
        "control_id",
        "required_evidence",
        "hypothesis_statement",
        "relevant_span_ids",
        "investigation_tools",
        "paths",
    }
)

CODE_SCHEMA: dict[str, Any] = {
    "title": "turn",
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "code": {"type": "string"}},
    "required": ["reasoning", "code"],
    "additionalProperties": False,
}

CLAIMS_SCHEMA: dict[str, Any] = {
    "title": "claims",
    "type": "object",
    "properties": {
        "claims": {"type": "array", "items": {"type": "object"}},
        "first_failure": {"type": ["integer", "null"]},
        "primary_label": {"type": "string"},
        "summary": {"type": "string"},
        "confidence": {"type": "number"},
        "remediation": {"type": "array", "items": {"type": "string"}},
        "gaps": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["claims", "primary_label", "summary", "confidence"],
}

DELEGATE = "delegate_subcall"
_DELEGATE_FIELDS: dict[str, Any] = {
    "objective": {"type": "string"},
    "use_planner": {"type": "boolean"},
    "actions": {"type": "array", "items": {"type": "object"}},
    "context": {"type": "object"},
}


def action_schema(*, delegates: bool) -> dict[str, Any]:
    """The form of a typed action; the fields of a delegation only if the session may delegate."""
    kinds = ["tool_call", *([DELEGATE] if delegates else []), "synthesize", "finalize"]
    fields: dict[str, Any] = {
        "type": {"type": "string", "enum": kinds},
        "tool_name": {"type": "string"},
        "args": {"type": "object"},
        **(_DELEGATE_FIELDS if delegates else {}),
        "output": {"type": "object"},
    }
    return {"title": "action", "type": "object", "properties": fields, "required": ["type"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCode:
    """Run these blocks in order until one fails."""

    blocks: tuple[str, ...]
    reasoning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTool:
    """Call one tool."""

    tool_name: str
    args: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegate:
    """Give an objective to a child: planned by a model, or as a list of actions."""

    objective: str
    context: dict[str, Any] = field(default_factory=dict[str, Any])
    use_planner: bool = True
    actions: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesize:
    """Keep a draft of the output."""

    output: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalize:
    """This is the output."""

    output: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Prose without code: the answer of a child that needs no code, a mistake of a root."""

    text: str


Action: TypeAlias = RunCode | CallTool | Delegate | Synthesize | Finalize | Say

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*$", re.MULTILINE)
_JSON_FENCE = re.compile(r"^[ \t]*```(?:json)?[^\S\n]*\n(.*?)\n[ \t]*```", re.MULTILINE | re.DOTALL)
"""Only at the start of a line: then whatever could open a second one closes the first, and no reply is scanned twice."""
_LANGUAGES = frozenset({"", "python", "py", "python3", "repl"})


def fenced_blocks(text: str, *, any_language: bool = False) -> list[str]:
    """The Python blocks of a reply in order; an unclosed last one counts, other languages only if asked for."""
    blocks: list[str] = []
    position = 0
    while (opening := _FENCE.search(text, position)) is not None:
        fence, language = opening.group(1), opening.group(2).lower()
        closing = re.compile(rf"^[ \t]*{re.escape(fence[0])}{{{len(fence)},}}[ \t]*$", re.MULTILINE)
        end = closing.search(text, opening.end())
        body = text[opening.end() + 1 : end.start() if end else len(text)]
        if (any_language or language in _LANGUAGES) and body.strip():
            blocks.append(body.rstrip("\n"))
        position = end.end() if end else len(text)
    return blocks


def outside_fences(text: str) -> str:
    """What a reply says around its code."""
    head = _FENCE.search(text)
    return (text[: head.start()] if head else text).strip()


def read_code(text: str) -> RunCode | Say:
    """A reply in code form: fenced blocks, or Python that does something (a call, an assignment, a definition)."""
    blocks = fenced_blocks(text)
    if blocks:
        return RunCode(blocks=tuple(blocks), reasoning=outside_fences(text))
    tree = parse(text)
    deeds = (ast.Call, ast.Assign, ast.AugAssign, ast.FunctionDef, ast.Import, ast.ImportFrom, ast.For, ast.Raise)
    if not isinstance(tree, Refusal) and any(isinstance(node, deeds) for node in ast.walk(tree)):
        return RunCode(blocks=(text.strip("\n"),))
    return Say(text=text.strip())


def read_longest(text: str) -> RunCode | Say:
    """A reply whose longest fenced block is the code, or the whole text if it has no block."""
    blocks = fenced_blocks(text) or fenced_blocks(text, any_language=True)
    if blocks:
        return RunCode(blocks=(max(blocks, key=len),), reasoning=outside_fences(text))
    return RunCode(blocks=(text.strip("\n"),)) if text.strip() else Say(text="")


def read_schema(text: str) -> RunCode | Say:
    """A reply in `{reasoning, code}` form; fences are understood too."""
    found = _json_object(text)
    if found is None or not isinstance(found.get("code"), str):
        return read_code(text)
    code: str = found["code"]
    inner = fenced_blocks(code)
    blocks = tuple(inner) if inner else (code,)
    if not any(block.strip() for block in blocks):
        return Say(text=str(found.get("reasoning", "")))
    return RunCode(blocks=blocks, reasoning=str(found.get("reasoning", "")))


def read_claims(text: str) -> dict[str, Any] | None:
    """The object of a reply that lists claims, or a bare list of them as such an object; None for any other reply."""
    found = _json_object(text)
    if found is not None and isinstance(found.get("claims"), list):
        return found
    for candidate in (text, *_JSON_FENCE.findall(text)):
        try:
            value: Any = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, list):
            return {"claims": value}
    return None


def _json_object(text: str) -> dict[str, Any] | None:
    candidates = [text, *_JSON_FENCE.findall(text)]
    start, end = text.find("{"), text.rfind("}")
    if 0 <= start < end:
        candidates.append(text[start : end + 1])
    for candidate in candidates:
        try:
            value: Any = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return cast("dict[str, Any]", value)
    return None


def read_action(text: str, guard: SandboxGuard) -> Action:
    """A reply as one typed action, judged by the guard."""
    found = _json_object(text)
    if found is None:
        raise FormatFault(f"The reply was not one JSON object. Send exactly one action, for example:\n{guard.example}")
    guard.validate(found)
    return action_of(found)


def action_of(found: dict[str, Any]) -> Action:
    """The action of an object that the guard allowed."""
    match found["type"]:
        case "tool_call":
            return CallTool(tool_name=found["tool_name"], args=found.get("args") or {})
        case "delegate_subcall":
            return Delegate(
                objective=found["objective"],
                context=found.get("context") or {},
                use_planner=found["use_planner"],
                actions=tuple(found.get("actions") or ()),
            )
        case "synthesize":
            return Synthesize(output=found.get("output"))
        case _:
            return Finalize(output=found.get("output"))


class SandboxGuard:
    """Judges typed actions: unknown types, forbidden tools and bad shapes are violations, and violations end the run (R129)."""

    def __init__(self, tools: Collection[str], *, delegation_keys: Collection[str] | None = DELEGATION_KEYS) -> None:
        self.tools = frozenset(tools)
        self.delegation_keys = None if delegation_keys is None else frozenset(delegation_keys)

    @property
    def example(self) -> str:
        """An action that is allowed here."""
        if not self.tools:
            return '{"type": "finalize", "output": {...}}'
        name = "list_files" if "list_files" in self.tools else min(self.tools)
        return f'{{"type": "tool_call", "tool_name": "{name}", "args": {{}}}}'

    def validate(self, action: Any) -> None:
        """Return for an allowed action, raise SandboxViolation for any other."""
        if not isinstance(action, dict):
            raise SandboxViolation(f"an action is a JSON object, not {type(action).__name__}")
        found = cast("dict[str, Any]", action)
        match found.get("type"):
            case "tool_call":
                name = found.get("tool_name")
                if not isinstance(name, str) or name not in self.tools:
                    raise SandboxViolation(f"tool {name!r} is not allowed; allowed: {', '.join(sorted(self.tools))}")
                self._object("args", found.get("args", {}))
            case "delegate_subcall":
                if not isinstance(found.get("objective"), str) or not found["objective"].strip():
                    raise SandboxViolation("delegate_subcall needs an objective")
                if not isinstance(found.get("use_planner"), bool):
                    raise SandboxViolation("delegate_subcall needs use_planner as true or false")
                steps = found.get("actions")
                if not found["use_planner"] and not isinstance(steps, list):
                    raise SandboxViolation("delegate_subcall without a planner needs a list of actions")
                for step in cast("list[Any]", steps or []):
                    self.validate(step)
                context = found.get("context", {})
                self._object("context", context)
                if self.delegation_keys is not None and (extra := set(context) - self.delegation_keys):
                    raise SandboxViolation(f"delegation context may not carry {', '.join(sorted(extra))}")
            case "synthesize" | "finalize":
                if found.get("output") is not None:
                    self._object("output", found["output"])
            case kind:
                raise SandboxViolation(f"unknown action type {kind!r}")

    @staticmethod
    def _object(name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise SandboxViolation(f"{name} must be a JSON object, not {type(value).__name__}")
        try:
            canonical_json(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise SandboxViolation(f"{name} is not JSON-safe: {error}") from error
