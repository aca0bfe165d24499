"""Reports for people, as Markdown: the verdict and the cause first, then the evidence read again, then everything else.

With a `context`, each reference is shown as its span and the text behind its hash; a text that no longer has that hash is not shown.
With a `link`, spans and traces open where they live. Words of models and traces stay on one line each and cannot open a tag, a link, a
fence or a table cell. Everything is bounded: long texts are cut, and what is not shown is counted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.failure_words import raised_at
from sonde.contexts.traces.rules import error_text
from sonde.contexts.traces.span import Span, SpanSummary, time_text
from sonde.core.canonical import canonical_json, cut, percent, plural
from sonde.core.evidence import EvidenceKind, EvidenceRef, merge
from sonde.core.markdown_safety import code, fence, words
from sonde.engines.reports import ComplianceReport, ControlFinding, Finding, IncidentDossier, RCAReport
from sonde.errors import SondeError

Link = Callable[[str, str | None], str | None]
SHOWN_SPANS = 12
SHOWN_ROWS = 8
DETAILED = 4  # groups
SHOWN_EVENTS = 20
VALUE_CHARS = 300
DIFF_LINES, DIFF_CHARS = 60, 4000
ALIKE = re.compile(r"\b[0-9a-f]{8,}\b|\d+")
BRANCH = re.compile(r"branch of (\S+): (\d+) spans? left out")
BY = {"LLM": "judged by a model", "CODE": "by rule, without a model", "HUMAN": "decided by a person"}
BY_RULE = "By rule, without a model: "
VERDICTS = {"compliant": "Compliant", "non_compliant": "Not compliant", "needs_review": "Needs review"}


def no_link(_trace_id: str, _span_id: str | None) -> str | None:
    """Files have no page."""
    return None


def page_of(run_type: str, output: Mapping[str, Any], context: TracesContext | None, link: Link = no_link) -> str:
    """The page of a report as data."""
    match run_type:
        case "rca":
            return rca_page(RCAReport.model_validate(output), context, link)
        case "policy_compliance":
            return compliance_page(ComplianceReport.model_validate(output), context, link)
        case _:
            return incident_page(IncidentDossier.model_validate(output), context, link)


def rca_page(report: RCAReport, context: TracesContext | None = None, link: Link = no_link) -> str:
    """Why a trace failed."""
    source = _Source(context, link)
    by = f", {BY[report.annotator_kind]}" if report.annotator_kind else ""
    summary = inline(report.summary.removeprefix(BY_RULE), 4000)
    label = inline(report.primary_label.replace("_", " ").capitalize())
    refs = merge(report.evidence_refs, *(finding.evidence_refs for finding in report.findings))
    lines = [
        f"# Root cause of {_linked(report.trace_id, link(report.trace_id, None))}",
        "",
        f"**{label}** (confidence {report.confidence:.2f}{by}): {summary}",
        *_section("What to do", report.remediation),
        *_titled("Findings", _findings(report, source)),
        *_titled("Evidence", source.evidence(refs)),
        *_titled("Timeline", _timeline(report, source)),
        *_section("Other explanations", [f"{each.hypothesis}: {each.why_rejected}" for each in report.alternatives]),
        *_section("Gaps", folded(report.gaps)),
    ]
    more = [f"label {code(report.primary_label)}, taxonomy {code(report.taxonomy)}"]
    if report.coverage is not None:
        seen = (report.coverage.get(name) for name in ("looked_at", "spans"))
        more.append("looked at {} of {} spans".format(*seen))
    refs = merge(refs, *(each.evidence_refs for each in report.alternatives))
    return "\n".join([*lines, *_titled("More", [*(f"- {each}" for each in more), *_proofs(refs, link)])]) + "\n"


def _findings(report: RCAReport, source: _Source) -> list[str]:
    lines: list[str] = []
    for number, finding in enumerate(report.findings, 1):
        first = ", the first failure" if finding.first_failure else ""
        cause = f", caused by finding {finding.caused_by + 1}" if finding.caused_by is not None else ""
        checked = "checked" if finding.verified else "not checked"
        odds = f"{finding.impact} impact, {checked}, confidence {finding.confidence:.2f}"
        where = source.named(report.trace_id, finding.span_id)
        lines.append(
            f"{number}. **{inline(finding.category)}** in {where}{first}{cause}: {_said(finding.why)} ({odds})"
        )
    if report.decisive is not None:
        decisive = report.decisive
        lines += ["", f"Decisive: {inline(decisive.agent)}, step {decisive.step}: {inline(decisive.why)}"]
    return lines


def _timeline(report: RCAReport, source: _Source) -> list[str]:
    """The failed spans and those that the report speaks of, in order of their start."""
    spans = source.summaries(report.trace_id)
    findings = {each.span_id: each for each in reversed(report.findings)}
    named = {ref.span_id for ref in report.evidence_refs}.union(findings)
    told = sorted((s for s in spans if s.status == "ERROR" or s.span_id in named), key=lambda each: each.order)
    if len(told) < 2:
        return []
    began = min(span.start_us for span in spans)
    lines: list[str] = []
    for span in told[:SHOWN_EVENTS]:
        finding: Finding | None = findings.get(span.span_id)
        mark = "" if finding is None else f" ({inline(finding.category)}{', first failure' * finding.first_failure})"
        error = (
            f": {inline(span.status_message, VALUE_CHARS)}" if span.status == "ERROR" and span.status_message else ""
        )
        ended = "failed" if span.status == "ERROR" else "ended"
        after = f"{(span.start_us - began) / 1e6:.3f} s"
        lines.append(f"- +{after} **{inline(span.name, 120)}** began, {ended} after {_lasted(span)}{error}{mark}")
    return [*lines, *_uncounted(len(told) - SHOWN_EVENTS, "span")]


def compliance_page(report: ComplianceReport, context: TracesContext | None = None, link: Link = no_link) -> str:
    """Whether a trace keeps its controls."""
    source = _Source(context, link)
    judged = [each for each in report.controls_evaluated if each.pass_fail != "not_applicable"]
    failed = [each for each in judged if each.pass_fail == "fail"]
    unclear = [each for each in judged if each.pass_fail == "insufficient_evidence"]
    counts = [f"{len(failed)} of {plural(len(judged), 'control')} failed"]
    counts += [f"{len(unclear)} could not be judged"] if unclear else []
    people = sum(each.annotator_kind == "HUMAN" for each in report.controls_evaluated)
    by_people = f" {plural(people, 'verdict')} by a person." if people else ""
    trace = _linked(report.trace_id, link(report.trace_id, None))
    verdict = f"**{VERDICTS[report.overall_verdict]}** (confidence {report.overall_confidence:.2f})"
    lines = [
        f"# Compliance of {trace} with {inline(report.controls_version)}",
        "",
        f"{verdict}: {' and '.join(counts) if judged else 'no control applies to this trace'}.{by_people}",
    ]
    for each in failed:
        lines += ["", f"## {inline(each.control_id)} failed", "", f"{_verdict(each)} {_overridden(each)}".rstrip()]
        lines += ["", f"What to do: {_said(each.remediation)}"] if each.remediation else []
        shown = source.evidence(each.evidence_refs)
        lines += ["", *shown] if shown else []
    open_questions = [
        f"{inline(each.control_id)} ({each.severity}): {_said(each.rationale)}"
        + (f" Missing: {inline(', '.join(each.missing_evidence))}." if each.missing_evidence else "")
        for each in unclear
    ]
    lines += _titled("Could not be judged", [f"- {each}" for each in open_questions])
    lines += ["", "## All controls", "", "| control | severity | verdict | judged | why |", "|---|---|---|---|---|"]
    for each in report.controls_evaluated:
        why = inline(each.rationale, VALUE_CHARS)
        if each.overridden is not None:
            why = f"{_said(each.rationale, VALUE_CHARS)} {_overridden(each)}".strip()
        by = {"LLM": "by a model", "CODE": "by rule", "HUMAN": "by a person"}[each.annotator_kind]
        row = (inline(each.control_id), each.severity, each.pass_fail.replace("_", " "), by, why)
        lines.append(f"| {' | '.join(row)} |")
    lines += _section("Gaps", folded(report.gaps))
    return "\n".join([*lines, *_titled("More", _proofs(report.refs(), link))]) + "\n"


def _verdict(finding: ControlFinding) -> str:
    judge = f"{finding.severity} severity, confidence {finding.confidence:.2f}, {BY[finding.annotator_kind]}"
    return f"{_said(finding.rationale or 'No reason was given')} ({judge})"


def _overridden(finding: ControlFinding) -> str:
    old = finding.overridden
    if old is None:
        return ""
    why = f": {inline(old.rationale, VALUE_CHARS)}" if old.rationale else ""
    return f"Before that it was {old.pass_fail.replace('_', ' ')}, {BY[old.annotator_kind]}{why}."


def incident_page(report: IncidentDossier, context: TracesContext | None = None, link: Link = no_link) -> str:
    """What happened in a window of time."""
    source = _Source(context, link)
    change = report.suspected_change
    by_rule = report.incident_summary.startswith(BY_RULE)
    judge = f"{'by rule, without a model, ' if by_rule else ''}confidence {report.confidence:.2f}"
    summary = _said(report.incident_summary.removeprefix(BY_RULE), 4000)
    lines = [f"# Incident {inline(report.incident_id)}".rstrip(), "", f"{summary} ({judge})"]
    first = min(report.hypotheses, key=lambda each: each.rank, default=None)
    if first is not None and not by_rule:  # the rule's first hypothesis is what its summary says
        lines += ["", f"**Most likely:** {_said(first.statement)} (confidence {first.confidence:.2f})"]
    lines += ["", f"**Suspected change ({change.change_type}):** {_said(change.summary or 'none is known')}"]
    diffs = [ref for ref in change.evidence_refs if ref.kind is EvidenceKind.CONFIG_DIFF]
    lines += ["", *source.evidence(diffs)] if diffs else []
    lines += _section(
        "What to do", [f"{a.priority} ({a.type.replace('_', ' ')}): {a.action}" for a in report.recommended_actions]
    )
    lines += _titled("Groups", _group_table(report))
    events = [
        (each.timestamp, f"{inline(each.event)} {source.places(each.evidence_refs)}")
        for each in report.timeline[:SHOWN_EVENTS]
    ]
    suspects = {each.suspected_change.change_ref: each.suspected_change for each in report.groups}
    changes = [(each.at, f"suspected change: {inline(each.name)}") for each in suspects.values() if each.at]
    rows = [f"- {inline(at)} {words}".rstrip() for at, words in sorted([*changes, *events], key=lambda row: row[0])]
    more_events = _uncounted(len(report.timeline) - SHOWN_EVENTS, "event")
    lines += ["", "## Timeline", "", *(rows or ["- no event"]), *more_events]
    others = [each for each in report.hypotheses if by_rule or each is not first]
    lines += _titled(
        "Hypotheses" if by_rule else "Other hypotheses",
        [
            f"{each.rank}. {_said(each.statement)} (confidence {each.confidence:.2f}) {source.places(each.evidence_refs)}".rstrip()
            for each in others
        ],
    )
    lines += _section("Affected", report.impacted_components)
    refs = merge(*(each.evidence_refs for each in (*report.timeline, *report.hypotheses)))
    lines += _titled("Evidence", source.evidence([ref for ref in refs if ref not in diffs]))
    traces = [
        f"- {_linked(each.trace_id, link(each.trace_id, None))} {inline(each.why_selected)}"
        for each in report.representative_traces
    ]
    named = {"", *(each.trace_id for each in report.representative_traces)}
    cited = dict.fromkeys(ref.trace_id for ref in refs if ref.trace_id not in named)
    traces += [f"- {_linked(trace_id, link(trace_id, None))} has evidence above" for trace_id in cited]
    lines += _titled("Traces that stand for the incident", traces)
    lines += _section("Gaps", folded(report.gaps))
    return "\n".join([*lines, *_titled("More", _proofs(report.refs(), link))]) + "\n"


def _group_table(report: IncidentDossier) -> list[str]:
    """Counts over the whole window, whoever wrote the rest; then each main group with what speaks for and against its change."""
    window = report.window
    if window is None:
        return []
    rate = percent(window.failed, window.traces)
    counts = f"{window.failed} of {plural(window.traces, 'trace')} failed ({rate}), {window.recovered} had errors and recovered"
    slow = (
        f"; median {window.latency_ms['p50']:,.0f} ms, p95 {window.latency_ms['p95']:,.0f} ms"
        if window.latency_ms
        else ""
    )
    lines = [f"{counts}, from {window.start} to {window.end}{slow}.", ""]
    if not report.groups:
        return lines[:1]
    lines += [
        "| traces | kind | component | message | first | last | suspected change |",
        "|---|---|---|---|---|---|---|",
    ]
    for each in report.groups[:SHOWN_ROWS]:
        since = each.onset["at"] if each.onset else each.first_seen
        kind = f"{each.kind}, recovered" if each.mended else each.kind
        row = (str(each.count), kind, inline(each.component, 80), inline(each.message, 120), since, each.last_seen)
        lines.append(f"| {' | '.join(row)} | {inline(each.suspected_change.name, 120)} |")
    if len(report.groups) > SHOWN_ROWS:
        lines += ["", f"And {plural(len(report.groups) - SHOWN_ROWS, 'more group')} in result.json."]
    for each in [group for group in report.groups if group.pattern != "stray"][:DETAILED]:
        change = each.suspected_change
        kind = "recovered, " if each.mended else ""
        lines += ["", f"**{inline(each.component, 80)}** ({plural(each.count, 'trace')}, {kind}{each.pattern}):", ""]
        if each.onset:
            lines.append(
                f"- since {each.onset['at']} in {each.onset['since']} traces, before in {each.onset['before']}"
            )
        if each.spans > each.count:
            others = f", and in {plural(each.also, 'other trace')} after something else" if each.also else ""
            lines.append(f"- {each.spans} spans with errors{others}")
        radius = ", ".join(f"{count} {name if count != 1 else name[:-1]}" for name, count in each.blast_radius.items())
        lines += [f"- touches {radius}"] if radius else []
        lines += [
            f"- {inline(row['attribute'], 80)} {inline(str(row['value']), 80)}: {row['in_group']} of {row['of_group']} here, "
            f"{row['in_others']} of {row['of_others']} elsewhere"
            for row in each.over_represented[:3]
        ]
        lines.append(f"- suspected change: {inline(change.name, 200)}{f', {change.at}' if change.at else ''}")
        lines += [f"  - for: {inline(reason)}" for reason in change.speaks_for]
        lines += [f"  - against: {inline(reason)}" for reason in change.speaks_against]
        lines += [f"  - also near: {inline(name)}" for name in change.also_near]
    return lines


class _Source:
    """What a page reads again: spans and the texts behind references, each once. A source that is gone has none of them."""

    def __init__(self, context: TracesContext | None, link: Link) -> None:
        self._context = context
        self._link = link
        self._spans: dict[str, Span | None] = {}

    def summaries(self, trace_id: str) -> Sequence[SpanSummary]:
        """The spans of a trace."""
        try:
            return self._context.store.summaries(trace_id) if self._context else ()
        except SondeError:
            return ()

    def _span(self, span_id: str) -> Span | None:
        if span_id not in self._spans:
            self._spans[span_id] = None
            if self._context is not None and span_id:
                try:
                    self._spans[span_id] = self._context.store.span(span_id)
                except SondeError:
                    pass
        return self._spans[span_id]

    def named(self, trace_id: str, span_id: str) -> str:
        """A span by its name and id, with its link."""
        span = self._span(span_id)
        place = _linked(span_id, self._link(trace_id, span_id))
        return f"{inline(span.summary.name, 120)} ({place})" if span and span.summary.name else place

    def places(self, refs: Iterable[EvidenceRef]) -> str:
        """The spans that references point at, in brackets."""
        spans = dict.fromkeys((ref.trace_id, ref.span_id) for ref in refs if ref.span_id)
        shown = ", ".join(_linked(span_id, self._link(trace_id, span_id)) for trace_id, span_id in list(spans)[:5])
        return f"({shown})" if shown else ""

    def evidence(self, refs: Iterable[EvidenceRef]) -> list[str]:
        """References span by span: what the span is, and the text behind each hash. Diffs stand inline."""
        groups: dict[tuple[str, str], list[EvidenceRef]] = {}
        for ref in refs:
            groups.setdefault((ref.trace_id, ref.span_id) if ref.span_id else ("", ref.ref), []).append(ref)
        lines: list[str] = []
        for (trace_id, name), group in list(groups.items())[:SHOWN_SPANS]:
            span = self._span(name)
            place = _linked(name, self._link(trace_id, name) if group[0].span_id else None)
            if group[0].kind is EvidenceKind.CONFIG_DIFF:
                when = f" of {inline(group[0].ts)}" if group[0].ts else ""
                lines.append(f"- The change{when}:")
            else:
                lines.append(f"- {_sentence(span)} ({place})" if span else f"- {place}")
                raised = raised_at(span) if span else ""
                lines += [f"  - raised at: {inline(raised, VALUE_CHARS)}"] if raised else []
            told: set[str] = {_error_line(span)} if span else set()
            for ref in group:
                text = self._context.text_of(ref) if self._context else None
                if text is None:
                    lines += ["  - its text could not be read again"] if self._context else []
                elif ref.kind is EvidenceKind.CONFIG_DIFF:
                    lines += ["", *(f"  {line}".rstrip() for line in fence(_short_diff(text), "diff").split("\n"))]
                else:
                    rows = [(key, value) for key, value in _readable(ref, text) if value not in told]
                    told.update(value for _, value in rows)
                    lines += [
                        f"  - {inline(key, 80)}: {inline(value, VALUE_CHARS)}" for key, value in rows[:SHOWN_ROWS]
                    ]
        return [*lines, *_uncounted(len(groups) - SHOWN_SPANS, "span")]


def _sentence(span: Span) -> str:
    """What a span was and how it ended."""
    summary = span.summary
    service = span.attributes.get("service.name")
    where = f", service {inline(str(service), 80)}" if service else ""
    began = f"{time_text(summary.start_us)[:19]}Z"
    error = _error_line(span)
    ended = "failed" if summary.status == "ERROR" else "reported an error" if error else "ended"
    shown = f": {inline(error, VALUE_CHARS)}" if error else ""
    return f"**{inline(summary.name, 120)}** ({summary.kind}{where}) {ended} after {_lasted(summary)}, begun {began}{shown}"


def _error_line(span: Span) -> str:
    """The first line of what a span says about its failure."""
    return next(iter(error_text(span).splitlines()), "")


def _lasted(span: SpanSummary) -> str:
    return f"{span.latency_ms:,.0f} ms" if span.latency_ms < 1000 else f"{span.latency_ms / 1000:,.1f} s"


def _readable(ref: EvidenceRef, text: str) -> list[tuple[str, str]]:
    """The canonical text behind a reference as names and values that a person reads."""
    value: Any = json.loads(text)
    rows: list[tuple[str, Any]] = []
    match ref.kind:
        case EvidenceKind.SPAN if "attributes" in value:
            for event in value["events"]:
                said = cast("Mapping[str, Any]", event["attributes"])
                rows.append((str(event["name"]), said.get("exception.message") or said))
            rows += sorted(value["attributes"].items(), key=lambda item: "error" not in item[0])
        case EvidenceKind.SPAN:  # its sentence has said it
            pass
        case EvidenceKind.TOOL_IO:
            rows += [(f"{value['tool_name']} got", value["input"]), (f"{value['tool_name']} returned", value["output"])]
        case EvidenceKind.MESSAGE:
            rows += [(f"{value['role'] or 'someone'} said", value["content"]), ("and called", value.get("tool_calls"))]
        case _:
            rows += [
                (f"retrieved {value.get('document_id') or 'text'}", value.get("content")),
                ("score", value.get("score")),
            ]
    shown = (
        (name, item if isinstance(item, str) else canonical_json(item))
        for name, item in rows
        if item not in (None, "", {})
    )
    return [(name, item) for name, item in shown if name != "openinference.span.kind"]


def _short_diff(text: str) -> str:
    lines = text.split("\n")
    kept = "\n".join(lines[:DIFF_LINES])[:DIFF_CHARS]
    left = len(lines) - kept.count("\n") - 1
    return f"{kept}\n… {plural(left, 'more line')}" if left > 0 else kept


def folded(gaps: Iterable[str]) -> list[str]:
    """Gaps in words; those that differ only in ids and numbers are one sentence with a count."""
    groups: dict[str, list[str]] = {}
    for gap in gaps:
        groups.setdefault(ALIKE.sub("#", gap), []).append(gap)
    told: list[str] = []
    for group in groups.values():
        branches = [found for gap in group if (found := BRANCH.fullmatch(gap))]
        if branches:
            left = max(int(found[2]) for found in branches)  # branches share spans, so a sum would count some twice
            around = plural(len(branches), "slow span or span with an error", "slow spans or spans with errors")
            most = "up to " if len(branches) > 1 else ""
            told.append(f"the first look left out {most}{plural(left, 'span')} around {around}")
        else:
            told.append(group[0] if len(group) == 1 else f"{group[0]} (and {len(group) - 1} more like it)")
    return told


def inline(text: str, limit: int = 1000) -> str:
    """Foreign words on one line, without the signs that would make them more than words."""
    return words(cut(" ".join(text.split()), limit)).replace("|", r"\|")


def _said(text: str, limit: int = 1000) -> str:
    """Foreign words as a sentence."""
    shown = inline(text, limit)
    return shown if not shown or shown.endswith((".", "!", "?", "…")) else f"{shown}."


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _section(title: str, items: Iterable[str]) -> list[str]:
    return _titled(title, [f"- {inline(item)}" for item in items])


def _uncounted(left: int, what: str) -> list[str]:
    return [f"- and {plural(left, f'more {what}')}"] if left > 0 else []


def _proofs(refs: Iterable[EvidenceRef], link: Link) -> list[str]:
    """What the report rests on, as pointers and hashes."""
    return [
        f"- {ref.kind.value} {_linked(ref.ref, link(ref.trace_id, ref.span_id) if ref.span_id else None)} "
        f"(sha256 {code(ref.excerpt_hash[:12])})"
        for ref in refs
    ]


def _linked(name: str, address: str | None) -> str:
    shown = code(cut(name, VALUE_CHARS))
    return f"[{shown}]({address})" if address else shown
