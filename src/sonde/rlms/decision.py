"""`sonde rlms decide`: what the pure policy needs, gathered from files, and its decision kept where the worker finds it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sonde.rlms.files import LoopFiles, read_list, sort_out, split_list
from sonde.rlms.layout import Decided, Layout
from sonde.rlms.policy import Decision, LoopPolicy, decide, read_policy
from sonde.rlms.request import read_metadata

_STEP = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
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


def answer(question: Question) -> dict[str, Any]:
    """The decision with the policy's limits, output and fail mode, kept when there is a place for it."""
    policy = read_policy(question.config, question.loop_id or None)
    listed = read_list(question.context_file_list)
    places, left_out = sort_out(split_list(listed), Path(question.repo).absolute())
    files = LoopFiles(places, left_out)
    asked = [Path(name) for name in question.request_files] or list(places.values())
    decision = decide(policy, question.role, files.survey.metrics(), requested=holds(policy.request_keyword, asked))
    if question.output_dir is not None:
        _keep(question, decision, question.output_dir, listed)
    return {**decision.as_dict(), **_settings(policy)}


def _settings(policy: LoopPolicy) -> dict[str, Any]:
    limits, output = policy.limits, policy.output
    return {
        "limits": {
            "max_steps": limits.max_steps,
            "max_depth": limits.max_depth,
            "timeout_seconds": limits.timeout_seconds,
            "max_subcalls": limits.max_subcalls,
        },
        "output": {"format": output.format, "require_citations": output.require_citations},
        "fail_mode": policy.policy.fail_mode,
    }


def _keep(question: Question, decision: Decision, output: Path, listed: bytes) -> None:
    layout = Layout(
        output=output.absolute(), loop_id=question.loop_id, role=question.role, iteration=question.iteration
    )
    layout.make()
    metadata = {**read_metadata(question.metadata_file), "decision": decision.as_dict()}
    layout.keep_list(listed)
    layout.keep_metadata(metadata)
    layout.emit("rlms_decision", "run" if decision.should_run else "skip", decision.as_dict())
    if not decision.should_run:
        layout.write_status(Decided.of(metadata), status="skipped")


def holds(keyword: str, places: Iterable[Path]) -> bool:
    """Whether one of these files has the keyword; files that cannot be read do not."""
    wanted = keyword.encode()
    return bool(wanted) and any(_in_file(wanted, place) for place in places)


def _in_file(wanted: bytes, place: Path) -> bool:
    tail = b""
    try:
        with place.open("rb") as file:
            while piece := file.read(_STEP):
                if wanted in tail + piece:
                    return True
                tail = piece[-len(wanted) :]
    except OSError:
        return False
    return False
