"""Controls: what a trace is held against. Versioned YAML or JSON libraries, checked on load with file and line.

A control can fail only on evidence, so `required_evidence` is never empty. Patterns are RE2 and case-insensitive: linear time on hostile
text. An empty list in `applies_when` means "always"; a list that is given must share a member with what the trace has. Scope `span_kinds`
and `look_in`, which narrows where patterns are matched, are our own additions.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal, cast, get_args

import yaml

from sonde.contexts.yaml_text import composed, plain
from sonde.core.patterns import Pattern, compiled
from sonde.errors import ConfigError, ToolFault

Severity = Literal["critical", "high", "medium", "low"]
EvidenceNeed = Literal[
    "required_error_span",
    "required_tool_io",
    "required_retrieval_chunks",
    "required_messages",
    "required_span_attributes",
]
Place = Literal["model_input", "model_output", "tool_input", "tool_output", "retrieved"]
PLACES: tuple[str, ...] = get_args(Place)
SEVERITIES: tuple[str, ...] = get_args(Severity)
NEEDS: tuple[str, ...] = get_args(EvidenceNeed)
MAX_CONTROLS = 50
SUFFIXES = (".yaml", ".yml", ".json")
_SCOPES = ("app_types", "tools", "data_domains", "span_kinds")
_REQUIRED = ("control_id", "title", "description", "severity", "required_evidence", "remediation_template")
_FIELDS = frozenset(
    {
        *_REQUIRED,
        "controls_version",
        "version",
        "applies_when",
        "violation_patterns",
        "look_in",
        "max_error_spans",
        "decision_logic_hint",
        "reference",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """What a trace has, as far as controls ask."""

    app_type: str | None = None
    tools_used: frozenset[str] | None = None
    data_domains: frozenset[str] | None = None
    span_kinds: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control."""

    control_id: str
    controls_version: str
    title: str
    description: str
    severity: str
    required_evidence: tuple[str, ...]
    remediation_template: str
    applies_when: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    violation_patterns: tuple[str, ...] = ()
    look_in: tuple[str, ...] = ()  # places; none means everywhere
    max_error_spans: int | None = None
    decision_logic_hint: str | None = None
    reference: str | None = None

    def applies(self, scope: Scope) -> bool:
        """True when every list that is given shares a member with what the trace has; what is unknown does not exclude."""
        has = {
            "app_types": None if scope.app_type is None else {scope.app_type},
            "tools": scope.tools_used,
            "data_domains": scope.data_domains,
            "span_kinds": scope.span_kinds,
        }
        return all(
            not wanted or (found := has[name]) is None or not found.isdisjoint(wanted)
            for name, wanted in self.applies_when.items()
        )

    def violations(self, text: str) -> list[str]:
        """What in this text matches a violation pattern, in the order of the patterns."""
        found = (matcher(pattern).search(text) for pattern in self.violation_patterns)
        return [text[match.start() : match.end()] for match in found if match is not None]

    def row(self) -> dict[str, Any]:
        """For tools, prompts and reports."""
        return {
            "control_id": self.control_id,
            "controls_version": self.controls_version,
            "title": self.title,
            "description": self.description,
            "severity": self.severity,
            "applies_when": {name: list(words) for name, words in self.applies_when.items()},
            "required_evidence": list(self.required_evidence),
            "violation_patterns": list(self.violation_patterns),
            "look_in": list(self.look_in),
            "max_error_spans": self.max_error_spans,
            "remediation_template": self.remediation_template,
            "decision_logic_hint": self.decision_logic_hint,
            "reference": self.reference,
        }


class ControlsLibrary:
    """All controls of some files, by id and version."""

    def __init__(self, controls: Iterable[Control]) -> None:
        self._controls: dict[tuple[str, str], Control] = {}
        for control in controls:
            key = (control.control_id, control.controls_version)
            if key in self._controls:
                raise ConfigError(f"control {key[0]} version {key[1]} is defined twice")
            self._controls[key] = control

    @classmethod
    def shipped(cls) -> ControlsLibrary:
        """The library that comes with Sonde."""
        folder = resources.files("sonde.contexts") / "controls_library"
        files = sorted((item for item in folder.iterdir() if item.name.endswith(SUFFIXES)), key=lambda item: item.name)
        return cls(control for item in files for control in parse_controls(item.read_text("utf-8"), item.name))

    @classmethod
    def load(cls, *paths: Path) -> ControlsLibrary:
        """Files, or all YAML and JSON files below folders."""
        return cls(control for path in paths for control in _controls_at(path))

    def joined(self, other: ControlsLibrary) -> ControlsLibrary:
        """Both libraries together."""
        return ControlsLibrary([*self._controls.values(), *other._controls.values()])

    def versions(self) -> list[str]:
        """Known versions, sorted."""
        return sorted({version for _, version in self._controls})

    def get(self, control_id: str, controls_version: str) -> Control:
        """One control; the fault lists those of that version."""
        found = self._controls.get((control_id, controls_version))
        if found is None:
            raise ToolFault(
                f"no control {control_id!r} in version {controls_version!r}; there are: {self._known(controls_version)}"
            )
        return found

    def select(
        self, controls_version: str, scope: Scope, *, overrides: Sequence[str] = (), limit: int = MAX_CONTROLS
    ) -> list[Control]:
        """Controls of a version that apply, and the overrides whether they do or not: most severe first, then by id. Where they are more
        than `limit`, the overrides and the most severe.
        """
        if controls_version not in self.versions():
            raise ToolFault(f"no controls of version {controls_version!r}; versions: {', '.join(self.versions())}")
        forced = {self.get(control_id, controls_version).control_id for control_id in overrides}
        chosen = [
            control
            for (control_id, version), control in self._controls.items()
            if version == controls_version and (control_id in forced or control.applies(scope))
        ]
        chosen.sort(key=lambda c: (SEVERITIES.index(c.severity), c.control_id))
        kept = {c.control_id for c in sorted(chosen, key=lambda c: c.control_id not in forced)[:limit]}
        return [control for control in chosen if control.control_id in kept]

    def _known(self, version: str) -> str:
        return ", ".join(sorted(control_id for control_id, known in self._controls if known == version)) or "none"


def infer_scope(spans: Iterable[tuple[str, str]]) -> Scope:
    """The scope of a trace from the (kind, name) of its spans."""
    pairs = list(spans)
    kinds = frozenset(kind for kind, _ in pairs)
    named = frozenset(name for kind, name in pairs if kind in {"TOOL", "RETRIEVER", "LLM", "UNKNOWN"})
    return Scope(app_type="agentic" if kinds & {"AGENT", "CHAIN"} else None, tools_used=named, span_kinds=kinds)


def matcher(pattern: str) -> Pattern:
    """The compiled pattern; ValueError when it is not RE2."""
    return compiled(pattern, any_case=True)


def parse_controls(text: str, source: str) -> list[Control]:
    """The controls of one file: {"controls": [...]}, a list, or one object. ConfigError names file and line."""
    try:
        root = composed(text)
    except yaml.MarkedYAMLError as broken:
        line = broken.problem_mark.line + 1 if broken.problem_mark else 1
        raise ConfigError(f"{source}:{line}: not YAML or JSON: {broken.problem}") from None
    except yaml.YAMLError as broken:
        raise ConfigError(f"{source}: not YAML or JSON: {' '.join(str(broken).split())}") from None
    return [_Reader(node, source).control() for node in _control_nodes(root, source)]


def _controls_at(path: Path) -> Iterator[Control]:
    files = sorted(item for item in _files_below(path) if item.suffix in SUFFIXES) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"{path} holds no control files ({', '.join(SUFFIXES)})")
    for item in files:
        try:
            text = item.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as broken:
            raise ConfigError(f"{item}: cannot be read: {broken}") from None
        yield from parse_controls(text, str(item))


def _files_below(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder, onerror=_refuse_locked):
        yield from (Path(place, name) for name in names)


def _refuse_locked(error: OSError) -> None:
    """A folder that is left out takes its controls with it, and nobody would know."""
    raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}")


def _control_nodes(root: Any, source: str) -> list[Any]:
    if isinstance(root, yaml.MappingNode):
        for key, value in cast("list[tuple[Any, Any]]", root.value):
            if key.value == "controls" and isinstance(value, yaml.SequenceNode):
                return list(cast("list[Any]", value.value))
        return [root]
    if isinstance(root, yaml.SequenceNode):
        return list(cast("list[Any]", root.value))
    raise ConfigError(f"{source}:1: a control file is a list of controls, one control, or {{controls: [...]}}")


class _Reader:
    """One control out of a YAML node, so that every complaint has its line."""

    def __init__(self, node: Any, source: str) -> None:
        self._source = source
        self._node = node
        if not isinstance(node, yaml.MappingNode):
            raise self._wrong(node, "a control is a mapping of fields")
        try:
            self._data = cast("dict[str, Any]", plain(node))
        except yaml.MarkedYAMLError as broken:
            raise self._wrong(node, f"not plain data: {broken.problem}") from None
        self._lines: dict[str, Any] = {  # after the data: only then are the fields of `<<` in it
            str(key.value): value for key, value in cast("list[tuple[Any, Any]]", node.value)
        }

    def control(self) -> Control:
        """The checked control."""
        self._refuse_unknown()
        for name in _REQUIRED:
            if not self._data.get(name):
                raise self._wrong(self._lines.get(name, self._node), f"{name} is missing or empty")
        return Control(
            control_id=self._text("control_id"),
            controls_version=self._version(),
            title=self._text("title"),
            description=self._text("description"),
            severity=self._one_of("severity", SEVERITIES),
            required_evidence=self._needs(),
            remediation_template=self._text("remediation_template"),
            applies_when=self._applies_when(),
            violation_patterns=self._patterns(),
            look_in=self._places(),
            max_error_spans=self._count(),
            decision_logic_hint=self._optional("decision_logic_hint"),
            reference=self._optional("reference"),
        )

    def _refuse_unknown(self) -> None:
        for name in self._data:
            if name not in _FIELDS:
                raise self._wrong(
                    self._lines.get(name, self._node), f"unknown field {name}; known: {', '.join(sorted(_FIELDS))}"
                )

    def _version(self) -> str:
        value = self._data.get("controls_version", self._data.get("version"))
        if not value:
            raise self._wrong(self._node, "controls_version is missing, for example: controls_version: v1")
        return str(value)

    def _text(self, name: str) -> str:
        value = self._data[name]
        if not isinstance(value, str):
            raise self._wrong(self._lines[name], f"{name} must be text")
        return value

    def _optional(self, name: str) -> str | None:
        return self._text(name) if self._data.get(name) is not None else None

    def _one_of(self, name: str, allowed: Sequence[str]) -> str:
        value = self._text(name)
        if value not in allowed:
            raise self._wrong(self._lines[name], f"{name} is {value!r}; allowed: {', '.join(allowed)}")
        return value

    def _strings(self, value: Any, node: Any, name: str) -> tuple[str, ...]:
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not all(isinstance(item, str) for item in items):
            raise self._wrong(node, f"{name} must be a list of texts")
        return tuple(cast("list[str]", items))

    def _places(self) -> tuple[str, ...]:
        node = self._lines.get("look_in", self._node)
        places = self._strings(self._data.get("look_in") or [], node, "look_in")
        unknown = [place for place in places if place not in PLACES]
        if unknown:
            raise self._wrong(node, f"look_in {unknown[0]!r} is unknown; allowed: {', '.join(PLACES)}")
        return places

    def _needs(self) -> tuple[str, ...]:
        node = self._lines["required_evidence"]
        needs = self._strings(self._data["required_evidence"], node, "required_evidence")
        unknown = [need for need in needs if need not in NEEDS]
        if unknown:
            raise self._wrong(node, f"required_evidence {unknown[0]!r} is unknown; allowed: {', '.join(NEEDS)}")
        return needs

    def _applies_when(self) -> dict[str, tuple[str, ...]]:
        given: Any = self._data.get("applies_when") or {}
        node = self._lines.get("applies_when", self._node)
        if not isinstance(given, dict):
            raise self._wrong(node, "applies_when is a mapping of lists: {app_types: [agentic]}")
        table = cast("dict[str, Any]", given)
        unknown = [name for name in table if name not in _SCOPES]
        if unknown:
            raise self._wrong(node, f"applies_when knows {', '.join(_SCOPES)}, not {unknown[0]}")
        return {name: self._strings(value or [], node, name) for name, value in table.items()}

    def _patterns(self) -> tuple[str, ...]:
        node = self._lines.get("violation_patterns", self._node)
        patterns = self._strings(self._data.get("violation_patterns") or [], node, "violation_patterns")
        for position, pattern in enumerate(patterns):
            try:
                matcher(pattern)
            except ValueError as broken:
                where = node.value[position] if isinstance(node, yaml.SequenceNode) else node
                raise self._wrong(where, f"pattern {pattern!r} is not RE2: {broken}") from None
        return patterns

    def _count(self) -> int | None:
        value = self._data.get("max_error_spans")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise self._wrong(self._lines["max_error_spans"], "max_error_spans must be a whole number from 0")
        return value

    def _wrong(self, node: Any, what: str) -> ConfigError:
        return ConfigError(f"{self._source}:{node.start_mark.line + 1}: {what}")
