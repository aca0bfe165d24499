"""The `rca` engine: why a trace failed, by hypotheses that sub-calls test, in one report whose every reference is proved.

The pre-filter finds hot spans, branches and a rule's label and puts them into variables. The root tests one to four
hypotheses by sub-calls and submits. Without a model, or without a usable submission, the best sub-call or the rule
speaks; the record says which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import ValidationError

from sonde.contexts.traces.context import LOOKING, TracesContext
from sonde.contexts.traces.failure_words import raised_at
from sonde.contexts.traces.prefilter import prefilter as look
from sonde.contexts.traces.rules import LABELS, NO_FAILURE
from sonde.contexts.traces.shape import Tree
from sonde.contexts.traces.views import span_excerpt
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.canonical import plural
from sonde.core.evidence import EvidenceRef, independent, merge
from sonde.engines.findings import conclude_findings
from sonde.engines.pages import rca_page
from sonde.engines.reports import Alternative, Decisive, RCAReport
from sonde.engines.submission import (
    NOT_READ,
    Counted,
    conclude_report,
    fields_of,
    items_of,
    miscounted,
    number,
    prove_refs,
    prove_reply,
    report_gaps,
    texts,
    unfit_confidence,
)
from sonde.engines.taxonomies import Taxonomy
from sonde.runtime.actions import DELEGATION_KEYS
from sonde.runtime.engine import Conclusion, Engine, Gathered, Prefilter, Problem
from sonde.runtime.prompts import prompt_file

RCA_BUDGET = Budget(
    max_iterations=40,
    max_depth=2,
    max_tool_calls=120,
    max_subcalls=40,
    max_tokens_total=200_000,
    max_cost_usd=None,
    max_wall_time_sec=180,
)
SURE, UNSURE = 0.5, 0.49  # from here on two independent references are needed; the most that one can carry
HALF = 0.5  # of the failing branch: whoever read less, or tested no other explanation, is not sure
REMEDIES = {
    "retrieval_failure": "Check the retriever's index, query and filters; alert on empty or low-score results.",
    "tool_failure": "Handle the tool's errors and time-outs; retry or fall back, and check its arguments.",
    "instruction_failure": "Tighten the prompt and validate the form of the answer before it is used.",
    "upstream_dependency_failure": "Retry with backoff, watch the dependency, and degrade gracefully without it.",
    "data_schema_mismatch": "Validate data at the boundary and agree on a versioned schema.",
}


def prefilter(gathered: Gathered) -> Prefilter:
    """Hot spans, branches, error groups and the rule's label, as variables and in words."""
    context = cast("TracesContext", gathered.context)
    trace_id = str(gathered.params["trace_id"])
    store = context.store
    summaries = store.summaries(trace_id)
    found = look(trace_id, summaries, store.span)
    shown = tuple(span_excerpt(span) for span in found.hot_spans)
    hot = "\n".join(
        f"- {span.span_id} {span.kind} {span.name!r} {span.status} {span.latency_ms:.0f} ms {span.status_message[:120]}"
        for span in found.hot_spans
    )
    text = (
        f"A rule looked first (it reads words, not meaning): {found.verdict.label}, {found.verdict.confidence}: "
        f"{found.verdict.why}\nHot spans of {len(summaries)}:\n{hot}"
    )
    return Prefilter(
        variables=found.variables(),
        text=text,
        excerpts=(*shown, *found.verdict.excerpts),
        gaps=(*found.gaps, *store.gaps(trace_id), *store.skipped()),
    )


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """A submission as a report: label, confidence and evidence judged by rule."""
    fields = fields_of(value)
    taxonomy = cast("Taxonomy | None", gathered.params.get("taxonomy"))
    problems = unfit_confidence(fields)
    findings, wrong = conclude_findings(fields.get("findings"), gathered, taxonomy)
    refs, refuted = prove_refs(fields.get("evidence_refs"), gathered.prover)
    problems += [Problem.of(each) for each in (*refuted, *wrong)]
    label = _label(fields)
    # A submission without references of its own stands on its findings, or on what sub-calls proved for its label.
    refs = refs or merge(*(finding.evidence_refs for finding in findings))
    refs = refs or merge(
        *(prove_refs(r.get("evidence_refs"), gathered.prover)[0] for r in gathered.subcalls if r.get("label") == label)
    )
    confidence = number(fields.get("confidence"), 0.5)
    rule = cast("Mapping[str, Any]", gathered.prefilter.variables.get("rule") or {})
    if label == NO_FAILURE and (findings or rule.get("failed")):
        what = "its findings name failures" if findings else f"a span failed: {rule.get('why')}"
        told = f"{NO_FAILURE} is for a trace in which nothing failed, but {what}; choose the label of that failure"
        reason = f"the model found no failure, although {what}"
        return Conclusion(output=None, problems=(Problem(gate="schema", reason=reason, told=told),))
    if label == NO_FAILURE:
        pass
    elif not refs:
        told = "evidence_refs is empty: point at spans or artifacts you looked at"
        problems.append(Problem(gate="evidence", reason="the model named no evidence that holds", told=told))
    elif confidence >= SURE and independent(refs) < 2:
        told = "a confidence of 0.5 or more needs two independent evidence_refs; add one or lower the confidence"
        reason = f"a confidence of {confidence:g} rests on one piece of evidence; 0.5 or more needs two"
        problems.append(Problem(gate="evidence", reason=reason, told=told))
    gaps = texts(fields.get("gaps"))
    decisive = None
    if fields.get("decisive") is not None:
        try:
            decisive = Decisive.model_validate(fields["decisive"])
        except ValidationError:
            gaps.append("decisive was not an object with agent, step, span_id and why, and was left out")
    if label not in (*LABELS, NO_FAILURE):
        problems.insert(0, _unknown_label("primary_label", label))
    if label not in (*LABELS, NO_FAILURE) or not (refs or label == NO_FAILURE):
        return Conclusion(output=None, problems=tuple(problems))
    alternatives = _alternatives(fields, label, gathered)
    opened, named, branch = _read_of_branch(gathered)
    little = opened < HALF * branch
    if taxonomy is None and label != NO_FAILURE and confidence > SURE and (little or not alternatives):
        why = (
            f"only {opened} of the {plural(branch, 'span')} of the failing branch were opened; of {named} others it saw names and errors"
            if little
            else "no other explanation was tested"
        )
        gaps.append(f"the model's confidence of {confidence:g} is lowered to {SURE:g}: {why}")
        confidence = SURE
    draft: dict[str, Any] = {
        "primary_label": label,
        "summary": str(fields.get("summary") or "").strip(),
        "confidence": confidence,
        "evidence_refs": refs,
        "remediation": texts(fields.get("remediation")),
        "gaps": report_gaps(gaps, gathered),
        "alternatives": alternatives,
        "findings": findings,
        "taxonomy": taxonomy.name if taxonomy else "sonde",
        "decisive": decisive,
        "annotator_kind": "LLM",
    }
    said = {"the summary": draft["summary"]} | {f"findings[{at}]": each.why for at, each in enumerate(findings)}
    store = cast("TracesContext", gathered.context).store
    problems += miscounted(said, lambda: [Counted.of_spans(store.summaries(str(gathered.params["trace_id"])))])
    return _report(draft, gathered, problems)


def _alternatives(fields: Mapping[str, Any], label: str, gathered: Gathered) -> list[Alternative]:
    """Explanations that were tested and rejected: those the submission names, and sub-calls that came to another label or to none."""
    listed: list[tuple[str, str, Any]] = []
    for item in items_of(fields.get("alternatives")):
        given = fields_of(item)
        listed.append(
            (
                str(given.get("hypothesis") or ""),
                str(given.get("why_rejected") or given.get("why") or ""),
                given.get("evidence_refs"),
            )
        )
    for result in gathered.subcalls:
        if result.get("status") == "succeeded" and result.get("label") in LABELS and result["label"] != label:
            facts = "; ".join(texts(result.get("supporting_facts")))
            why = f"tested by {result.get('call_id')}, confidence {number(result.get('confidence')):g}"
            listed.append(
                (
                    str(result.get("hypothesis") or result["label"]),
                    f"{why}: {facts}".rstrip(": "),
                    result.get("evidence_refs"),
                )
            )
    return [
        Alternative(hypothesis=what, why_rejected=why, evidence_refs=prove_refs(refs, gathered.prover)[0])
        for what, why, refs in listed
        if what.strip() and why.strip()
    ]


def _read_of_branch(gathered: Gathered) -> tuple[int, int, int]:
    """Of the branch around the first failure: how many spans this run has opened, of how many more it saw names and statuses, and how
    many there are.
    """
    variables = gathered.prefilter.variables
    rule = cast("Mapping[str, Any]", variables.get("rule") or {})
    branches = cast("Sequence[Mapping[str, Any]]", variables.get("branches") or ())
    hot = next((each for each in branches if rule.get("span_id") in each["span_ids"]), next(iter(branches), None))
    if hot is None:
        return 0, 0, 0
    branch = set(hot["span_ids"])
    if hot["left_out"]:  # the variable names some of a large branch; what was read of the others counts too
        context = cast("TracesContext", gathered.context)
        tree = Tree(context.store.summaries(str(gathered.params["trace_id"])))
        below = [hot["root_span_id"]]
        for span_id in below:  # grows while it is walked
            below += [child.span_id for child in tree.children(span_id)]
        branch.update(below)
    shown = [excerpt for excerpt in gathered.prover.log.excerpts() if excerpt.span_id in branch]
    opened = {excerpt.span_id for excerpt in shown if excerpt.ref != excerpt.span_id}
    return len(opened), len({excerpt.span_id for excerpt in shown} - opened), len(branch)


def _report(draft: Mapping[str, Any], gathered: Gathered, problems: list[Problem]) -> Conclusion:
    """The report, with what was looked at; its confidence is at most what the references can carry."""
    confidence, refs = cast("float", draft["confidence"]), cast("list[EvidenceRef]", draft["evidence_refs"])
    context = cast("TracesContext", gathered.context)
    trace_id = str(gathered.params["trace_id"])
    seen = {e.span_id for e in gathered.prover.log.excerpts() if e.span_id}
    spans = len(context.store.summaries(trace_id))
    ceiling = 1.0 if independent(refs) >= 2 else UNSURE
    if (
        draft["primary_label"] == NO_FAILURE
    ):  # nobody is surer of having found nothing than the share that was looked at
        ceiling = len(seen) / max(1, spans)
    whole = {
        **draft,
        "trace_id": trace_id,
        "confidence": round(min(confidence, ceiling), 4),
        "coverage": {
            "spans": spans,
            "looked_at": len(seen),
            "span_ids": sorted(seen)[:200],
        },
    }
    return conclude_report(RCAReport, whole, lambda report: rca_page(report, context), problems)


def _label(fields: Mapping[str, Any]) -> str:
    return str(fields.get("primary_label") or fields.get("label") or "")


def _unknown_label(field: str, label: str) -> Problem:
    return Problem(gate="schema", reason=f"{field} must be one of {', '.join(LABELS)}; not {label!r:.80}")


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """What a hypothesis sub-call hands back: label, confidence, proved evidence, facts, gaps; batches hand back findings."""
    reply = prove_reply(value, gathered, only="summary")
    fields, facts = reply.fields, texts(reply.fields.get("supporting_facts"))
    output: dict[str, Any] = {
        "label": _label(fields),
        "hypothesis": str(gathered.params.get("hypothesis_statement") or gathered.params.get("candidate_label") or ""),
        "confidence": number(fields.get("confidence"), 0.0),
        "evidence_refs": reply.ref_rows,
        "supporting_facts": facts,
        "gaps": reply.gaps,
        "findings": items_of(fields.get("findings")),
    }
    problems = unfit_confidence(fields)
    if output["label"] not in (*LABELS, NO_FAILURE) and not output["findings"]:
        problems.insert(0, _unknown_label("label", output["label"]))
    return reply.conclusion(output, str(fields.get("summary") or "; ".join(facts) or output["label"]), problems)


def winner(results: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The best hypothesis: one that succeeded, then by confidence, independent references and facts."""
    usable = [result for result in results if result.get("evidence_refs") and result.get("label") in LABELS]
    return max(
        usable,
        key=lambda r: (
            r.get("status") == "succeeded",
            r.get("confidence", 0),
            len({(e["kind"], e["ref"]) for e in r["evidence_refs"]}),
            len(r.get("supporting_facts", ())),
        ),
        default=None,
    )


def fallback(gathered: Gathered) -> Conclusion:
    """The best sub-call if it proved something, otherwise the rule's report, marked CODE."""
    best = winner(gathered.subcalls)
    refs = prove_refs(best["evidence_refs"], gathered.prover)[0] if best is not None else []
    if best is not None and refs:
        label = str(best["label"])
        draft = {
            "primary_label": label,
            "summary": str(best.get("summary") or label),
            "confidence": number(best.get("confidence")),
            "evidence_refs": refs,
            "remediation": [REMEDIES[label]],
            "annotator_kind": "LLM",
            "alternatives": _alternatives({}, label, gathered),
            "gaps": report_gaps([f"taken from the best sub-call: {gathered.reason}"], gathered),
        }
        found = _report(draft, gathered, [])
        return replace(found, by_model=found.output is not None)
    rule = cast("Mapping[str, Any]", gathered.prefilter.variables.get("rule") or {})
    refs, _ = prove_refs(rule.get("evidence"), gathered.prover)
    label = str(rule.get("label") or NO_FAILURE)
    if not refs and label != NO_FAILURE:
        log, reread = gathered.prover.log, gathered.prover.reread
        refs = [EvidenceRef.of(e) for e in gathered.prefilter.excerpts if not log.prove(e, reread)][:1]
        if not refs:
            return Conclusion(output=None)
    why = str(rule.get("why") or "nothing was found").rstrip()
    if why.endswith("…"):  # it was cut, perhaps within a word
        why = f"{why[:-1].rstrip().rpartition(' ')[0]} …"
    failing = rule.get("span_id")
    raised = raised_at(cast("TracesContext", gathered.context).store.span(failing)) if failing else ""
    unread = [NOT_READ] if label == NO_FAILURE else []
    draft = {
        "primary_label": label,
        "summary": f"By rule, without a model: {why}{f', raised at {raised}' if raised else ''}.",
        "confidence": number(rule.get("confidence"), 0.35),
        "evidence_refs": refs,
        "remediation": [] if label == NO_FAILURE else [REMEDIES[label]],
        "annotator_kind": "CODE",
        "gaps": report_gaps([*unread, gathered.reason or "no model looked at this trace"], gathered),
    }
    return _report(draft, gathered, [])


RCA = Engine(
    name="rca",
    run_type="rca",
    output_type="RCAReport",
    system=prompt_file("engines/rca"),
    child=prompt_file("engines/rca_child"),
    budget=RCA_BUDGET,
    maxima=CONTRACT_MAXIMA,
    prefilter=prefilter,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    reply_form="schema",
    tools=LOOKING,
    functions=("budget", "llm_query", "llm_batch", "delegate_subcall", "delegate_batch"),
    unforgiving=True,
    delegation_keys=DELEGATION_KEYS | {"findings", "span_ids"},
    in_actions=prompt_file("engines/rca_actions"),
    final_example=(
        'SUBMIT(primary_label="tool_failure", summary="…", confidence=0.8, evidence_refs=[{"kind": "SPAN", "ref": "<span_id>"}, '
        '{"kind": "TOOL_IO", "ref": "tool:<span_id>"}], alternatives=[{"hypothesis": "…", "why_rejected": "…"}], remediation=["…"], '
        "gaps=[])"
    ),
)
