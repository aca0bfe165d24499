"""Controls: what a trace is held against. Versioned YAML or JSON libraries, checked on load; a mistake is named with file and line.

A control can fail only on evidence, so `required_evidence` is never empty. Patterns are RE2 and case-insensitive: linear time on hostile
text. An empty list in `applies_when` means "always"; any other list must share a member with the trace. Our own additions are
`span_kinds`, `look_in`, which narrows where patterns are matched, and `judgement`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import yaml
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, ValidationInfo

from sonde.contexts.yaml_text import composed, plain
from sonde.core.patterns import PatternAllowance, compiled
from sonde.disk import below, open_exactly, read_whole
from sonde.errors import ConfigError, ToolFault

Severity = Literal["critical", "high", "medium", "low"]
EvidenceNeed = Literal[
    "required_error_span",
    "required_tool_io",
    "required_retrieval_chunks",
    "required_messages",
    "required_span_attributes",
]
Place = Literal["model_input", "model_output", "tool_input", "tool_output", "retrieved", "status", "failed_output"]
SEVERITIES: tuple[str, ...] = get_args(Severity)
NEEDS: tuple[str, ...] = get_args(EvidenceNeed)
MAX_CONTROLS = 50
MAX_FILE_BYTES = 1_000_000
SUFFIXES = (".yaml", ".yml", ".json")


def _listed(value: Any) -> Any:
    """One value may stand for a list of one, and nothing for an empty list."""
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else (value,) if value else ()


def _re2(pattern: str, info: ValidationInfo) -> str:
    allowance = cast("PatternAllowance | None", info.context) or PatternAllowance()
    allowance.compiled(pattern)
    return pattern


Text = Annotated[str, Field(min_length=1)]
Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceScope:
    """What a trace has, as far as controls ask."""

    app_type: str | None = None
    tools_used: frozenset[str] | None = None
    data_domains: frozenset[str] | None = None
    span_kinds: frozenset[str] | None = None


class Control(BaseModel):
    """One control. Its fields are those of a library file."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    control_id: Text
    controls_version: Text
    title: Text
    description: Text
    severity: Severity
    applies_when: Annotated[
        dict[Literal["app_types", "tools", "data_domains", "span_kinds"], Texts],
        BeforeValidator(lambda value: value or {}),
    ] = {}
    required_evidence: Annotated[tuple[EvidenceNeed, ...], BeforeValidator(_listed), Field(min_length=1)]
    violation_patterns: Annotated[tuple[Annotated[str, AfterValidator(_re2)], ...], BeforeValidator(_listed)] = ()
    look_in: Annotated[tuple[Place, ...], BeforeValidator(_listed)] = ()
    """Where patterns are matched; everywhere if empty."""
    judgement: Literal["rule", "model"] = "rule"
    """Who can pass it: with "model" a rule may only fail it, and says insufficient_evidence where no pattern matches."""
    max_error_spans: Annotated[int, Field(ge=0)] | None = None
    remediation_template: Text
    decision_logic_hint: str | None = None
    reference: str | None = None

    def applies(self, scope: TraceScope) -> bool:
        """True if every list shares a member with the trace; what is unknown about the trace excludes nothing."""
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
        found = (compiled(pattern, any_case=True).search(text) for pattern in self.violation_patterns)
        return [text[match.start() : match.end()] for match in found if match is not None]

    def row(self) -> dict[str, Any]:
        """For tools, prompts and reports."""
        return self.model_dump(mode="json")


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
            known = (
                ", ".join(sorted(known for known, version in self._controls if version == controls_version)) or "none"
            )
            raise ToolFault(f"no control {control_id!r} in version {controls_version!r}; there are: {known}")
        return found

    def select(
        self, controls_version: str, scope: TraceScope, *, overrides: Sequence[str] = (), limit: int = MAX_CONTROLS
    ) -> list[Control]:
        """The controls of a version that apply, and the overrides in any case: most severe first, then by id. If they exceed `limit`,
        the overrides and the most severe remain.
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


def infer_scope(spans: Iterable[tuple[str, str]]) -> TraceScope:
    """The scope of a trace from the (kind, name) of its spans."""
    pairs = list(spans)
    kinds = frozenset(kind for kind, _ in pairs)
    named = frozenset(name for kind, name in pairs if kind in {"TOOL", "RETRIEVER", "LLM", "UNKNOWN"})
    return TraceScope(app_type="agentic" if kinds & {"AGENT", "CHAIN"} else None, tools_used=named, span_kinds=kinds)


def parse_controls(text: str, source: str) -> list[Control]:
    """The controls of one file: {"controls": [...]}, a list, or one object. ConfigError names file and line."""
    try:
        root = composed(text)
    except yaml.MarkedYAMLError as broken:
        line = broken.problem_mark.line + 1 if broken.problem_mark else 1
        raise ConfigError(f"{source}:{line}: not YAML or JSON: {broken.problem}") from None
    except yaml.YAMLError as broken:
        raise ConfigError(f"{source}: not YAML or JSON: {' '.join(str(broken).split())}") from None
    if isinstance(root, yaml.MappingNode):
        fields = {str(key.value): value for key, value in cast("list[tuple[Any, Any]]", root.value)}
        nodes = fields["controls"].value if isinstance(fields.get("controls"), yaml.SequenceNode) else [root]
    elif isinstance(root, yaml.SequenceNode):
        nodes = cast("list[Any]", root.value)
    else:
        raise ConfigError(f"{source}:1: a control file is a list of controls, one control, or {{controls: [...]}}")
    controls: list[Control] = []
    allowance = PatternAllowance()
    for node in nodes:
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{source}:{_line(node)}: a control is a mapping of fields")
        try:
            data = cast("dict[str, Any]", plain(node))
            version = data.pop("version", None)  # the other name of controls_version
            data["controls_version"] = str(data.get("controls_version", version) or "")  # YAML reads 1 and 2026-11-01
            controls.append(Control.model_validate(data, context=allowance))
        except yaml.MarkedYAMLError as broken:
            raise ConfigError(f"{source}:{_line(node)}: not plain data: {broken.problem}") from None
        except ValidationError as broken:
            first = broken.errors()[0]
            name = ".".join(str(part) for part in first["loc"])
            said = first["msg"].removeprefix("Value error, ")
            if first["type"] == "literal_error":
                said += f", not {first['input']!r}"
            elif first["type"] == "extra_forbidden":
                said = f"unknown field; known: {', '.join(sorted(Control.model_fields))}"
            raise ConfigError(f"{source}:{_line(node, first['loc'])}: {name}: {said}") from None
    return controls


def _line(node: Any, place: Sequence[int | str] = ()) -> int:
    """The line of a place inside a node, or of the innermost node on the way to it."""
    for part in place:
        inner: dict[Any, Any] = {}
        if isinstance(node, yaml.MappingNode):
            inner = {str(key.value): value for key, value in cast("list[tuple[Any, Any]]", node.value)}
        elif isinstance(node, yaml.SequenceNode):
            inner = dict(enumerate(cast("list[Any]", node.value)))
        if part not in inner:
            break
        node = inner[part]
    return node.start_mark.line + 1


def _controls_at(path: Path) -> Iterator[Control]:
    def refuse(error: OSError) -> None:  # a folder that is left out takes its controls with it, and nobody would know
        raise ConfigError(f"{error.filename}: cannot be read: {error.strerror}")

    files = [path]
    if path.is_dir():
        found = (Path(folder, name) for folder, _, names in os.walk(path, onerror=refuse) for name in names)
        files = sorted(item for item in found if item.suffix in SUFFIXES)
    if not files:
        raise ConfigError(f"{path} holds no control files ({', '.join(SUFFIXES)})")
    for item in files:
        try:
            real = os.path.realpath(path) if item == path else below(path, item)
            with os.fdopen(open_exactly(real), "rb") as file:
                text = read_whole(file, MAX_FILE_BYTES).decode("utf-8")
        except (OSError, UnicodeDecodeError) as broken:
            raise ConfigError(f"{item}: cannot be read: {broken}") from None
        yield from parse_controls(text, str(item))
