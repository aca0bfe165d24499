"""Findings: every distinct failure of a trace, each with its category, its span and proved evidence.

Duplicates (same category at the same span) are merged; a claim without proof is dropped and named. Exactly one is the first failure.
Without a model a rule claims the steps whose error fits the patterns of a category: it finds what announces itself (a refused
request, a crash, a malformed call) and nothing that needs judgement.
"""

from __future__ import annotations

import re
from typing import Any

from sonde.contexts.traces.rules import LABELS
from sonde.contexts.traces.transcript import Transcript
from sonde.core.evidence import Refuted
from sonde.engines.reports import Finding
from sonde.engines.submission import fields_of, items_of, joined, number, prove_refs
from sonde.engines.taxonomies import Taxonomy
from sonde.runtime.engine import Gathered

IMPACTS = frozenset({"high", "medium", "low"})
QUOTED = 200


def conclude_findings(items: Any, gathered: Gathered, taxonomy: Taxonomy | None) -> tuple[list[Finding], list[Refuted]]:
    """The findings that hold, in the order given, and why others do not."""
    kept: dict[tuple[str, str], Finding] = {}
    positions: dict[tuple[str, str], int] = {}
    places: dict[int, int] = {}
    refuted: list[Refuted] = []
    for index, item in enumerate(items_of(items)):
        found = _finding(item, gathered, taxonomy)
        if isinstance(found, Refuted):
            where = f"findings[{index}]: "
            refuted.append(Refuted(where + found.reason, where + found.told))
            continue
        same = (found.category, found.span_id)
        kept.setdefault(same, found)
        positions.setdefault(same, len(positions))
        # `caused_by` names a finding by the id that the model gave it, otherwise by its index.
        given = fields_of(item).get("id")
        name = given if isinstance(given, int) and not isinstance(given, bool) else index
        places[name] = positions[same]
    # Causes point at the kept findings and never in a circle; exactly one is the first failure, and nothing caused it.
    findings = list(kept.values())
    first = next((at for at, each in enumerate(findings) if each.first_failure), 0)
    causes = {
        at: places[each.caused_by]
        for at, each in enumerate(findings)
        if at != first and each.caused_by is not None and each.caused_by in places
    }
    for start in range(len(findings)):
        seen: set[int] = set()
        at = causes.get(start)
        while at is not None and at not in seen:
            seen.add(at)
            at = causes.get(at)
        if start in seen:
            del causes[start]
    linked = [
        each.model_copy(update={"first_failure": at == first, "caused_by": causes.get(at)})
        for at, each in enumerate(findings)
    ]
    return linked, refuted


def _finding(item: Any, gathered: Gathered, taxonomy: Taxonomy | None) -> Finding | Refuted:
    """A claim as a finding, or why it is none."""
    fields = fields_of(item)
    if not fields:
        return Refuted("it is no object", "a finding is an object with category, span_id, why and evidence_refs")
    category = _category(str(fields.get("category", "")), taxonomy)
    if category is None:
        return Refuted(f"category {fields.get('category')!r} is not in the taxonomy")
    span_id = str(fields.get("span_id") or fields.get("location") or "")
    pointers: Any = fields.get("evidence_refs") or [span_id, f"{span_id}:attributes"]
    proved, refuted = prove_refs(pointers, gathered.prover)
    if not proved:
        return joined(refuted or [Refuted("it has no evidence")])
    why = str(fields.get("why") or fields.get("description") or "").strip()
    if not why or not span_id:
        return Refuted("it does not say where and why", "it needs span_id and why")
    # The runtime knows what the sceptic said of this claim; the model's own word for it is ignored.
    checked = [
        each
        for each in gathered.checked
        if each.get("verified")
        and each.get("span_id") == span_id
        and _category(str(each.get("category", "")), taxonomy) == category
    ]
    judged = max(checked, key=lambda each: number(each.get("confidence")), default=None)
    impact = str(fields.get("impact", "medium")).lower()
    cause = fields.get("caused_by")
    return Finding(
        category=category,
        span_id=span_id,
        evidence_refs=proved,
        why=why,
        impact=impact if impact in IMPACTS else "medium",  # pyright: ignore[reportArgumentType]  # one of the three words
        first_failure=bool(fields.get("first_failure")),
        caused_by=cause if isinstance(cause, int) and not isinstance(cause, bool) else None,
        verified=judged is not None,
        confidence=number((judged or fields).get("confidence"), 0.5),
    )


def _category(name: str, taxonomy: Taxonomy | None) -> str | None:
    if taxonomy is not None:
        return taxonomy.find(name)
    return name if name in LABELS else None


def claims_by_rule(transcript: Transcript, taxonomy: Taxonomy) -> list[dict[str, Any]]:
    """One claim for each step whose error fits a category. A tool's step is left out if the call before it reports the same error."""
    found: list[dict[str, Any]] = []
    told = ""
    for step in transcript.steps:
        category = taxonomy.category_of(step.around) if step.around else None
        core = re.sub(r"^[\w.]+: ", "", step.around.strip())  # without the exception's name that wrappers put before it
        if category is None or (step.kind == "TOOL" and told and core in told):
            continue
        told = step.around
        why = f"it ended in an error: {' '.join(step.around.split())[:QUOTED]}"
        found.append({"id": len(found), "category": category, "span_id": step.span_id, "why": why, "confidence": 0.35})
    return found
