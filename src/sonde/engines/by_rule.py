"""Findings without a model: steps that ended in an error whose words fit the patterns of a category.

This finds what announces itself (a refused request, a crash, a malformed call) and nothing that needs judgement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sonde.contexts.traces.transcript import Step, Transcript
from sonde.engines.taxonomies import Taxonomy

QUOTED = 200


def claims_by_rule(transcript: Transcript, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """One claim for each step with such an error; a tool's step is left out when the call before it stands for the same error."""
    found: list[dict[str, Any]] = []
    told = ""
    for step, category in _failed(transcript, taxonomy):
        if step.kind == "TOOL" and told and _core(step.around) in told:
            continue
        told = step.around
        why = f"it ended in an error: {' '.join(step.around.split())[:QUOTED]}"
        found.append({"id": len(found), "category": category, "span_id": step.span_id, "why": why, "confidence": 0.35})
    return found


def _failed(transcript: Transcript, taxonomy: Taxonomy) -> Iterator[tuple[Step, str]]:
    for step in transcript.steps:
        category = taxonomy.category_of(step.around) if step.around else None
        if category is not None:
            yield step, category


def _core(message: str) -> str:
    """The message without the name of the exception that wrappers put before it."""
    return re.sub(r"^[\w.]+: ", "", message.strip())
