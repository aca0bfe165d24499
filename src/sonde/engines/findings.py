"""Findings: every distinct failure of a trace, each with its category, its span and proved evidence.

Duplicates (same category at the same span) are merged; a claim without proof is dropped and named. Exactly one is the first failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sonde.contexts.traces.rules import LABELS
from sonde.engines.refs import fields_of, number, prove_refs
from sonde.engines.reports import Finding
from sonde.engines.taxonomies import Taxonomy
from sonde.runtime.engine import Gathered

IMPACTS = frozenset({"high", "medium", "low"})


def conclude_findings(items: Any, gathered: Gathered, taxonomy: Taxonomy | None) -> tuple[list[Finding], list[str]]:
    """The findings that hold, in the order given, and the reasons why others do not."""
    listed = cast("list[Any]", items) if isinstance(items, list) else []
    kept: list[Finding] = []
    places: dict[int, int] = {}
    reasons: list[str] = []
    for index, item in enumerate(listed):
        found = _finding(item, gathered, taxonomy)
        if isinstance(found, str):
            reasons.append(f"findings[{index}]: {found}")
            continue
        same = next((at for at, each in enumerate(kept) if _same(each, found)), None)
        if same is None:
            kept.append(found)
        places[_name(item, index)] = len(kept) - 1 if same is None else same
    return _linked(kept, places), reasons


def _name(item: Any, index: int) -> int:
    """What `caused_by` calls a finding: the id that the model gave it, otherwise its index."""
    given = fields_of(item).get("id")
    return given if isinstance(given, int) and not isinstance(given, bool) else index


def _same(one: Finding, other: Finding) -> bool:
    return (one.category, one.span_id) == (other.category, other.span_id)


def _finding(item: Any, gathered: Gathered, taxonomy: Taxonomy | None) -> Finding | str:
    fields = fields_of(item)
    if not fields:
        return "a finding is an object with category, span_id, why and evidence_refs"
    category = _category(str(fields.get("category", "")), taxonomy)
    if category is None:
        return f"category {fields.get('category')!r} is not in the taxonomy"
    span_id = str(fields.get("span_id") or fields.get("location") or "")
    pointers: Any = fields.get("evidence_refs") or [span_id, f"{span_id}:attributes"]
    proved, refuted = prove_refs(pointers, gathered.prover)
    if not proved:
        return "; ".join(refuted) or "it has no evidence"
    why = str(fields.get("why") or fields.get("description") or "").strip()
    if not why or not span_id:
        return "it needs span_id and why"
    judged = _checked(category, span_id, gathered, taxonomy)
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


def _checked(category: str, span_id: str, gathered: Gathered, taxonomy: Taxonomy | None) -> Mapping[str, Any] | None:
    """What the sceptic said of a claim: whether it is verified is known to the runtime and not taken from the model."""
    same = (
        each
        for each in gathered.checked
        if each.get("verified")
        and each.get("span_id") == span_id
        and _category(str(each.get("category", "")), taxonomy) == category
    )
    return max(same, key=lambda each: number(each.get("confidence")), default=None)


def _category(name: str, taxonomy: Taxonomy | None) -> str | None:
    if taxonomy is not None:
        return taxonomy.find(name)
    return name if name in LABELS else None


def _linked(findings: list[Finding], places: Mapping[int, int]) -> list[Finding]:
    """Causes point at the kept findings and never in a circle; exactly one is the first failure, and nothing caused it."""
    first = next((at for at, each in enumerate(findings) if each.first_failure), 0)
    causes = {
        at: places[each.caused_by]
        for at, each in enumerate(findings)
        if at != first and each.caused_by is not None and each.caused_by in places
    }
    for at in range(len(findings)):
        if _leads_back(at, causes):
            del causes[at]
    return [
        each.model_copy(update={"first_failure": at == first, "caused_by": causes.get(at)})
        for at, each in enumerate(findings)
    ]


def _leads_back(start: int, causes: Mapping[int, int]) -> bool:
    seen: set[int] = set()
    at = causes.get(start)
    while at is not None and at not in seen:
        seen.add(at)
        at = causes.get(at)
    return start in seen
