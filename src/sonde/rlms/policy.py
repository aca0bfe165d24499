"""Whether to run at all, and what a failure means for the role.

decide(policy, "planner", metrics, requested=True) -> Decision(should_run=True, reason="hybrid_requested", ...)

`decide` and `role_goes_on` are pure functions of the loop's configuration. `answer` is `sonde rlms decide`: it gathers what they need
from files and keeps the decision where the worker finds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec

from sonde.errors import ConfigError
from sonde.rlms.files import LoopFiles, read_list, sort_out, split_list
from sonde.rlms.layout import Decided, Layout
from sonde.rlms.request import read_json, read_metadata

_STEP = 1_048_576
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
    """`auto` runs when one of these is reached."""

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
class OutputForm:
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
    output: OutputForm = field(default_factory=OutputForm)
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
    large = policy.auto.met(metrics)
    verdict: tuple[bool, Reason]
    match policy.mode:
        case "auto":
            verdict = (True, "auto_threshold") if large else (False, "auto_not_met")
        case "requested":
            verdict = (True, "requested_keyword") if requested else (False, "request_not_found")
        case "hybrid" if requested:
            verdict = True, "hybrid_requested"
        case "hybrid":
            verdict = (True, "hybrid_auto") if large else (False, "hybrid_not_met")
    if not policy.enabled:
        verdict = False, "disabled"
    elif not policy.roles.get(role, True):
        verdict = False, "role_disabled"
    elif policy.policy.force_off:
        verdict = False, "force_off"
    elif policy.policy.force_on:
        verdict = True, "force_on"
    should_run, reason = verdict
    return Decision(should_run=should_run, reason=reason, mode=policy.mode, metrics=dict(metrics), requested=requested)


def role_goes_on(fail_mode: FailMode, *, ok: bool) -> bool:
    """Whether the role still runs after this result: always after a good one, after a bad one only with warn_and_continue."""
    return ok or fail_mode == "warn_and_continue"


def read_policy(place: str, loop_id: str | None = None) -> LoopPolicy:
    """The policy in a file: an `rlms` section, an object that holds one, or a whole configuration with `loops`."""
    try:
        found: Any = read_json(place)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {place!r} cannot be read as JSON: {error}") from None
    section = found
    if isinstance(found, dict):
        config = cast("dict[str, Any]", found)
        loops = cast("list[Any]", config.get("loops") if isinstance(config.get("loops"), list) else [])
        rows = [cast("dict[str, Any]", loop) for loop in loops if isinstance(loop, dict)]
        mine = next((loop for loop in rows if loop.get("id") == loop_id), None)
        if loops and mine is None:
            raise ConfigError(f"the configuration has no loop {loop_id!r}; --loop-id names one of its loops")
        section = config.get("rlms", config) if mine is None else mine.get("rlms", {})
    try:
        return msgspec.convert(section, LoopPolicy)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"--config {place!r}: {error}; modes are auto, requested, hybrid, fail modes warn_and_continue, fail_role"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleFiles:
    """A role, its files, and the configuration that decides about them."""

    config: str
    role: str
    context_file_list: str
    repo: str = "."
    loop_id: str = ""
    iteration: int = 0
    request_files: tuple[str, ...] = ()
    metadata_file: str | None = None
    output_dir: Path | None = None


def answer(asked: RoleFiles) -> dict[str, Any]:
    """The decision with the policy's limits, output and fail mode; kept if an output folder is given."""
    policy = read_policy(asked.config, asked.loop_id or None)
    listed = read_list(asked.context_file_list)
    places, left_out = sort_out(split_list(listed), Path(asked.repo).absolute())
    files = LoopFiles(places, left_out)
    searched = [Path(name) for name in asked.request_files] or list(places.values())
    requested = holds(policy.request_keyword, searched)
    decision = decide(policy, asked.role, files.survey.metrics(), requested=requested)
    if asked.output_dir is not None:
        output = asked.output_dir.absolute()
        layout = Layout(
            output=output,
            repo=Path(asked.repo),
            loop_id=asked.loop_id,
            role=asked.role,
            iteration=asked.iteration,
        )
        layout.make()
        metadata = {**read_metadata(asked.metadata_file), "decision": decision.as_dict()}
        layout.keep_list(listed)
        layout.keep_metadata(metadata)
        layout.emit("rlms_decision", "run" if decision.should_run else "skip", decision.as_dict())
        if not decision.should_run:
            layout.write_status(Decided.of(metadata), status="skipped")
    return {
        **decision.as_dict(),
        "limits": asdict(policy.limits),
        "output": asdict(policy.output),
        "fail_mode": policy.policy.fail_mode,
    }


def holds(keyword: str, places: Iterable[Path]) -> bool:
    """Whether one of these files has the keyword; files that cannot be read do not."""
    wanted = keyword.encode()
    for place in places if wanted else ():
        tail = b""
        try:
            with place.open("rb") as file:
                while piece := file.read(_STEP):
                    if wanted in tail + piece:
                        return True
                    tail = piece[-len(wanted) :]
        except OSError:
            continue
    return False
