"""What `rca`, `compliance` and `incident` share: fields and evidence as a model writes them, and the report they become.

A model may point by `{"kind": ..., "ref": ...}`, by a bare ref (`tool:<span_id>`, `message:<span_id>:0`, a span id),
or by a span id in a dict. In every form, the pointer must be in this run's log and its text, read again, must hash
the same. Hashes that a model writes are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from sonde.contexts.traces.span import SpanSummary
from sonde.core.canonical import clip
from sonde.core.evidence import EvidenceKind, EvidenceRef, Refuted, merge
from sonde.engines.reports import ComplianceReport, IncidentDossier, RCAReport
from sonde.runtime.engine import Conclusion, Gathered, Problem, Prover

KINDS = frozenset(kind.value for kind in EvidenceKind)
MAX_GAPS = 100
GAP_CHARS = 500
MAX_CLAIMS, CLAUSE_CHARS = 200, 2_000
NOT_READ = "no model read the content"
SIGNS = ".,'\"`) "
CLAIMED = re.compile(
    r"(?<![\w.,/-])(\d[\d,]{0,8}) (?:out )?of (?:the |all )?(\d[\d,]{0,8}) (spans|controls|representative traces|traces)"
    r"(?: that| which)?(?: have| had| are| were)? (?:failed|fail|errored|in error)\b(?! to\b)",
    re.IGNORECASE,
)
AnyReport = TypeVar("AnyReport", RCAReport, ComplianceReport, IncidentDossier)


def prove_refs(items: Any, prover: Prover) -> tuple[list[EvidenceRef], list[Refuted]]:
    """The references that hold, each once, and why others do not."""
    proved: list[EvidenceRef] = []
    refuted: list[Refuted] = []
    listed = cast("list[Any]", items) if isinstance(items, list | tuple) else [] if items is None else [items]
    for item in listed:
        found = prove_ref(item, prover)
        if isinstance(found, EvidenceRef):
            proved.append(found)
        else:
            refuted.append(found)
    return merge(proved), list(dict.fromkeys(refuted))


def joined(refuted: Sequence[Refuted]) -> Refuted:
    """Several as one."""
    return Refuted("; ".join(each.reason for each in refuted), "; ".join(each.told for each in refuted))


def prove_ref(item: Any, prover: Prover) -> EvidenceRef | Refuted:
    """One pointer in any form."""
    match item:
        case {"kind": str(kind), "ref": str(ref), **_rest} if kind in KINDS:
            return prover.ref(kind, ref)
        case {"ref": str(ref), **_rest}:
            return _by_ref(ref, prover)
        case {"span_id": str(span_id), **_rest}:
            return _by_ref(span_id, prover)
        case str():
            return _by_ref(item.strip(), prover)
        case _:
            return Refuted(
                f"the evidence {item!r:.80} points at nothing",
                f'evidence is {{"kind": "SPAN", "ref": "<span_id>"}} or a ref as text, not {item!r:.80}',
            )


def _by_ref(ref: str, prover: Prover) -> EvidenceRef | Refuted:
    excerpt = prover.log.find_ref(ref)
    if excerpt is None:
        reason = f"{ref!r} was not returned by any tool in this run"
        return Refuted(reason, f"{reason}; look at it first, for example get_span({ref!r})")
    return prover.ref(excerpt.kind.value, excerpt.ref)


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object that a model wrote; none when it wrote something else."""
    return {str(key): item for key, item in cast("dict[Any, Any]", value).items()} if isinstance(value, dict) else {}


def items_of(value: Any) -> list[Any]:
    """A list that a model wrote; empty when it wrote something else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def texts(value: Any) -> list[str]:
    """A list of texts from what a model wrote: a list, or one text."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    if isinstance(value, list | tuple):
        return [str(each) for each in cast("Iterable[Any]", value) if str(each).strip()]
    return []


def number(value: Any, default: float = 0.0) -> float:
    """A confidence from what a model wrote, kept within 0 and 1."""
    try:
        return min(1.0, max(0.0, float(value)))
    except (TypeError, ValueError):
        return default


def unfit_confidence(fields: Mapping[str, Any], where: str = "") -> list[Problem]:
    """What is wrong with a confidence that a model wrote: 7 may mean 0.7, and nobody should have to guess."""
    value = fields.get("confidence")
    try:
        if value is None or 0 <= float(value) <= 1:
            return []
    except (TypeError, ValueError, OverflowError):
        pass
    return [Problem(gate="schema", reason=f"{where}confidence must be a number from 0 to 1, not {value!r:.40}")]


def report_gaps(own: Iterable[str], gathered: Gathered) -> list[str]:
    """What a report says is missing: its own words, what the pre-filter could not see, what sub-calls left open."""
    below = (str(gap) for result in gathered.subcalls for gap in result.get("gaps", ()))
    gaps = dict.fromkeys(clip(gap, GAP_CHARS) for gap in (*own, *gathered.prefilter.gaps, *below))
    kept = list(gaps)[:MAX_GAPS]
    return kept if len(gaps) <= MAX_GAPS else [*kept, f"{len(gaps) - MAX_GAPS} more gaps are not listed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """What the runtime counted: so many of a kind, and how many of them failed. What fails in two senses has two numbers."""

    kind: str
    total: int
    failed: tuple[int, ...]
    about: tuple[str, ...] = ()
    """What failed, in a few words, if it is a part: a sentence that ends with one of them means this part."""

    @classmethod
    def of_spans(cls, spans: Sequence[SpanSummary]) -> Counted:
        """By status, and with those that only have an exception."""
        by_status = sum(span.status == "ERROR" for span in spans)
        raised = sum(span.status == "ERROR" or bool(span.exception) for span in spans)
        return cls(kind="spans", total=len(spans), failed=(by_status, raised))


def miscounted(said: Mapping[str, str], count: Callable[[], Sequence[Counted]]) -> list[Problem]:
    """Claims like "8 of 16 spans failed" that contradict a count; `said` maps where something is said to the text. `count`
    is called if there is such a claim at all.

    Silent unless kind and total are those of a count. A smaller number counts as wrong only at the end of its clause: "6 of 16 spans
    failed with a time-out" may well be true if 7 failed.
    """
    wrong: dict[str, None] = {}
    counts: Sequence[Counted] | None = None
    for where, text in said.items():
        words = " ".join(text.split())
        for claim in islice(CLAIMED.finditer(words), MAX_CLAIMS):
            counts = count() if counts is None else counts
            number_said, total = (int(claim[group].replace(",", "")) for group in (1, 2))
            known = [each for each in counts if each.kind == claim[3].lower() and each.total == total]
            rest = re.split(r"[.;!?](?:\s|$)", words[claim.end() : claim.end() + CLAUSE_CHARS], maxsplit=1)[0]
            ending = rest.rstrip(SIGNS)
            parts = [each for each in known if any(ending.endswith(said.rstrip(SIGNS)) for said in each.about if said)]
            failed = [number for each in known if each in parts or not (parts or each.about) for number in each.failed]
            ends = bool(parts) or words[claim.end() : claim.end() + 1] in ("", *".,;:!?)")
            if failed and number_said not in failed and (ends or number_said > max(failed)):
                wrong[f'{where} says "{claim[0]}"; counted: {failed[0]} of {total}'] = None
    return [Problem(gate="evidence", reason=reason, told=f"{reason}. Correct the number") for reason in wrong]


def conclude_report(
    kind: type[AnyReport], draft: Mapping[str, Any], page: Callable[[AnyReport], str], problems: list[Problem]
) -> Conclusion:
    """The report that a draft makes; a draft that does not fit the schema makes none, and the problem names each field."""
    try:
        report = kind.model_validate(draft)
    except ValidationError as error:
        what = "dossier" if kind is IncidentDossier else "report"
        reasons = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:6])
        misfit = Problem(gate="schema", reason=f"the {what} does not fit its schema: {reasons}")
        return Conclusion(output=None, problems=(misfit, *problems))
    return Conclusion(
        output=report.model_dump(mode="json"),
        text=page(report),
        evidence=tuple(report.refs()),
        gaps=tuple(report.gaps),
        problems=tuple(problems),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvedReply:
    """What a sub-call handed back: its fields, the references that hold, and what it leaves open.

    Refuted references are problems only when none holds; otherwise they are gaps.
    """

    fields: Mapping[str, Any]
    refs: list[EvidenceRef]
    gaps: list[str]
    problems: list[Problem]

    @property
    def ref_rows(self) -> list[dict[str, Any]]:
        """The references as data."""
        return [ref.model_dump(mode="json") for ref in self.refs]

    def conclusion(self, output: Mapping[str, Any], text: str, problems: Iterable[Problem] = ()) -> Conclusion:
        """What the parent gets; `problems` stand before those of the evidence."""
        return Conclusion(
            output=output,
            text=text,
            evidence=tuple(self.refs),
            gaps=tuple(self.gaps),
            problems=(*problems, *self.problems),
        )


def prove_reply(value: Any, gathered: Gathered, *, only: str) -> ProvedReply:
    """A sub-call's final value; if it is not an object, it counts as the field `only`."""
    fields = fields_of(value) or {only: value}
    proved, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    return ProvedReply(
        fields=fields,
        refs=proved,
        gaps=[*texts(fields.get("gaps")), *(each.reason for each in refuted)],
        problems=[] if proved else [Problem.of(each) for each in refuted],
    )
