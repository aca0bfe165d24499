"""Whether to run at all, and what a failure means for the role: pure functions of the loop's configuration.

decide(policy, "planner", metrics, requested=True) -> Decision(should_run=True, reason="hybrid_requested", ...)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from sonde.errors import ConfigError

Mode = Literal["auto", "requested", "hybrid"]
FailMode = Literal["warn_and_continue", "fail_role"]
Reason = Literal[
    "disabled",
    "role_disabled",
    "force_off",
    "force_on",
    "auto_threshold",
    "auto_not_met",
    "requested_keyword",
    "request_not_found",
    "hybrid_requested",
    "hybrid_auto",
    "hybrid_not_met",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """From each of these on, `auto` runs."""

    max_lines: int = 2500
    max_estimated_tokens: int = 120_000
    max_files: int = 40

    def met(self, metrics: Mapping[str, Any]) -> bool:
        """Whether one of them is reached."""
        return (
            metrics.get("line_count", 0) >= self.max_lines
            or metrics.get("estimated_tokens", 0) >= self.max_estimated_tokens
            or metrics.get("file_count", 0) >= self.max_files
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits a loop passes on."""

    max_steps: Annotated[int, msgspec.Meta(ge=1)] = 40
    max_depth: Annotated[int, msgspec.Meta(ge=0)] = 2
    timeout_seconds: Annotated[int, msgspec.Meta(ge=1)] = 240
    max_subcalls: Annotated[int, msgspec.Meta(ge=0)] = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The output a loop asks for."""

    format: Literal["json"] = "json"
    require_citations: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Forced:
    """What a person has decided, and what a failure means."""

    force_on: bool = False
    force_off: bool = False
    fail_mode: FailMode = "warn_and_continue"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopPolicy:
    """The `rlms` section of a loop's configuration, with its defaults."""

    enabled: bool = False
    mode: Mode = "auto"
    request_keyword: str = "RLMS_REQUEST"
    auto: Thresholds = field(default_factory=Thresholds)
    roles: Mapping[str, bool] = field(default_factory=dict[str, bool])
    limits: Bounds = field(default_factory=Bounds)
    output: Wanted = field(default_factory=Wanted)
    policy: Forced = field(default_factory=Forced)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether to run, why, and on what grounds."""

    should_run: bool
    reason: Reason
    mode: Mode
    metrics: Mapping[str, Any]
    requested: bool

    def as_dict(self) -> dict[str, Any]:
        """As the metadata and the event carry it."""
        return asdict(self)


def decide(policy: LoopPolicy, role: str, metrics: Mapping[str, Any], *, requested: bool) -> Decision:
    """The trigger policy."""
    should_run, reason = _judge(policy, role, requested=requested, large=policy.auto.met(metrics))
    return Decision(should_run=should_run, reason=reason, mode=policy.mode, metrics=dict(metrics), requested=requested)


def _judge(policy: LoopPolicy, role: str, *, requested: bool, large: bool) -> tuple[bool, Reason]:
    if not policy.enabled:
        return False, "disabled"
    if not policy.roles.get(role, True):
        return False, "role_disabled"
    if policy.policy.force_off:
        return False, "force_off"
    if policy.policy.force_on:
        return True, "force_on"
    match policy.mode:
        case "auto":
            return (True, "auto_threshold") if large else (False, "auto_not_met")
        case "requested":
            return (True, "requested_keyword") if requested else (False, "request_not_found")
        case "hybrid":
            if requested:
                return True, "hybrid_requested"
            return (True, "hybrid_auto") if large else (False, "hybrid_not_met")


def role_goes_on(fail_mode: FailMode, *, ok: bool) -> bool:
    """Whether the role still runs after this result: always after a good one, with a warning after a bad one if so configured."""
    return ok or fail_mode == "warn_and_continue"


def read_policy(place: str, loop_id: str | None = None) -> LoopPolicy:
    """The policy in a file: an `rlms` section, an object that holds one, or a whole configuration with `loops`."""
    try:
        found: Any = json.loads(Path(place).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"--config {place!r} cannot be read as JSON: {error}") from None
    try:
        return msgspec.convert(_section(found, loop_id), LoopPolicy)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"--config {place!r}: {error}; modes are auto, requested, hybrid, fail modes warn_and_continue, fail_role"
        ) from None


def _section(found: Any, loop_id: str | None) -> Any:
    if isinstance(found, dict):
        config = cast("dict[str, Any]", found)
        loops = cast("list[Any]", config.get("loops") if isinstance(config.get("loops"), list) else [])
        for loop in loops:
            if isinstance(loop, dict) and cast("dict[str, Any]", loop).get("id") == loop_id:
                return cast("dict[str, Any]", loop).get("rlms", {})
        if loops:
            raise ConfigError(f"the configuration has no loop {loop_id!r}; --loop-id names one of its loops")
        return config.get("rlms", config)
    return found
