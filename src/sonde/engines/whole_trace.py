"""Reading a whole trace: `rca` with a taxonomy lists every failure.

It is the `rca` engine with other words. The model sees the rules, what code found (see `contexts.traces.facts`) and a transcript (see
`contexts.traces.transcript`), replies with claims, and a sceptic checks them. If the trace is long, fresh readers get a part each first:
the run of one agent, or a phase of it. The model then merges what they claim. Every shown step is noted as evidence. The report's coverage
says who read which steps, judged by the prompts that were really sent and not by what the model says. The words are files in `prompts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.facts import facts_of, listed
from sonde.contexts.traces.rules import NO_FAILURE
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.transcript import Transcript, TranscriptPart, shortened, told_once, transcript_of
from sonde.contexts.traces.views import content_excerpt, span_excerpt
from sonde.core.budget import CONTRACT_MAXIMA
from sonde.core.canonical import plural, sha256_text
from sonde.core.evidence import Excerpt, merge
from sonde.engines import rca
from sonde.engines.findings import claims_by_rule, conclude_findings
from sonde.engines.pages import rca_page
from sonde.engines.reports import RCAReport
from sonde.engines.sceptic import Sceptic, listed as claims_in
from sonde.engines.submission import number
from sonde.engines.taxonomies import Taxonomy
from sonde.runtime.engine import Conclusion, Gathered, Prefilter, Reading
from sonde.runtime.prompts import fill, prompt_file

# One reader did well with one agent's trace of this length. With several agents the same reader missed two of three marked places from here
# on, because each agent has its own task, tools and plan.
WHOLE_CHARS, TEAM_CHARS = 60_000, 40_000
PART_CHARS = 30_000
OUTLINE_CHARS = 8_000
ROOT_OUTLINE_CHARS = 20_000
TASK_CHARS = 3_000
FACTS_CHARS = 6_000
CLAIMS_CHARS = 16_000
DECIDING_CHARS, DECIDING_STEPS = 6_000, 8
CLAIMED_CHARS, CLAIMED_STEP_CHARS, CLAIMED_INPUT_CHARS = 30_000, 3_000, 800
STEP_CHARS = 6_000
KEPT = 0.4  # claims with at least these odds are submitted
# With the general guide a claim costs one reading: its author gives the odds, and only claims below SURE are read again, with their steps.
GENERAL_KEPT, SURE = 0.3, 0.5
CONVERSATION_ROOMS = (4000, 3000, 2000, 1500, 1000, 800, 600, 400)


def findings_prefilter(gathered: Gathered) -> Prefilter:
    """What the plain engine finds, the rules of the taxonomy, what code found, and the transcript or the prompts of its readers."""
    taxonomy = cast("Taxonomy", gathered.params["taxonomy"])
    spans, transcript = _read(gathered)
    facts = facts_of(spans, transcript)
    guide = (taxonomy.team_guide if transcript.team else "") or taxonomy.guide
    rules = fill(
        prompt_file("engines/findings_rules"),
        name=taxonomy.name,
        categories=taxonomy.listed(),
        guide=guide or prompt_file("engines/general_guide"),
        task=shortened(transcript.task, TASK_CHARS),
    )
    count = len(transcript.steps)
    parts = _parts(transcript)
    found = "What code found. Not every fact is a failure, and not every failure is among them:\n" + listed(
        facts, most=FACTS_CHARS
    )
    outline = transcript.outline(OUTLINE_CHARS)
    prompts = [
        fill(
            prompt_file("engines/findings_label"),
            rules=rules,
            steps=str(count),
            outline=outline,
            number=str(at),
            count=str(len(parts)),
            title=part.title,
            first=str(part.first),
            last=str(part.last),
            own_task="The same." if part.task is None else shortened(part.task, TASK_CHARS),
            facts=listed(filter(None, (fact.within(own) for fact in facts)), most=FACTS_CHARS),
            part=part.text,
        )
        for at, (part, own) in enumerate(((part, set(part.span_ids)) for part in parts), 1)
    ]
    shown = f"The trace in outline, {count} steps:\n{transcript.outline(ROOT_OUTLINE_CHARS)}"
    if not parts:
        shown = f"The whole trace, {count} steps:\n\n{transcript.text()}"
    text = f"{rules}\n\n{found}\n\n{shown}"
    doubts = prompt_file("engines/findings_verify")
    if guide:
        sceptic = Sceptic(begins=text, words=doubts, transcript=transcript, whole=not parts, kept=KEPT)
    else:
        begins = f"{rules}\n\nThe trace in outline, {count} steps:\n{outline}"
        sceptic = Sceptic(begins=begins, words=doubts, transcript=transcript, whole=False, kept=GENERAL_KEPT, sure=SURE)
    first = with_steps(gathered, spans, [step.span_id for step in transcript.steps])
    variables = {
        "task_text": transcript.task,
        "outline": transcript.outline(),
        "step_text": {step.span_id: step.text(min(STEP_CHARS, 2 * transcript.room)) for step in transcript.steps},
        "label_prompts": prompts,
        "categories": [each.name for each in taxonomy.categories],
    }
    return replace(
        first,
        variables={**first.variables, **variables},
        text=text,
        review=sceptic.review(),
        reading=Reading(prompts=tuple(prompts), told=lambda answers: _merged(transcript, answers)) if prompts else None,
    )


def _read(gathered: Gathered) -> tuple[list[Span], Transcript]:
    context = cast("TracesContext", gathered.context)
    spans = list(context.store.spans(str(gathered.params["trace_id"])))
    transcript = transcript_of(spans)
    # Nothing but words: cut so that one reader has all of it, if that leaves enough of each step.
    if transcript.conversation:
        transcript = told_once(transcript)
        rooms = (replace(transcript, room=room) for room in CONVERSATION_ROOMS if room <= transcript.room)
        transcript = next((each for each in rooms if len(each.text()) <= WHOLE_CHARS), transcript)
    return spans, transcript


def _parts(transcript: Transcript) -> list[TranscriptPart]:
    """The parts that others read; none when the whole is in the first prompt."""
    most = TEAM_CHARS if transcript.runs else WHOLE_CHARS
    return [] if len(transcript.text()) <= most else transcript.parts(PART_CHARS)


def _merged(transcript: Transcript, answers: Sequence[str]) -> str:
    """What the readers of the parts claim, in the order of steps, the steps that they name, and those that decided the end."""
    claims = [claim for answer in answers for claim in claims_in(answer)]
    places = {step.span_id: step.number for step in transcript.steps}
    claims.sort(key=lambda claim: places.get(str(claim.get("span_id")), len(places)))
    room = max(80, CLAIMS_CHARS // max(len(claims), 1) - 60)
    lines = [
        " | ".join(
            [
                f"step {places.get(str(claim.get('span_id')), '?')}, {claim.get('span_id')}",
                str(claim.get("category")),
                f"{number(claim.get('odds'), 0.5):.2f}",
                " ".join(str(claim.get("why", "")).split())[:room],
            ]
        )
        for claim in claims
    ]
    # The last words of each run, and what those around it made of a team member's result.
    # A conversation has no model calls, only what its agents said.
    calls = [step for step in transcript.steps if step.kind == "LLM"] or transcript.steps
    last = {step.run: step for step in calls}
    after = [step for before, step in pairwise(calls) if before.run != step.run and before.run in transcript.runs]
    deciding = {step.number: step for step in (*after, *last.values()) if step.came}
    shown = [deciding[at] for at in sorted(deciding)][-DECIDING_STEPS:]
    named = {str(claim.get("span_id")) for claim in claims} - {step.span_id for step in shown}
    claimed = [  # what they said counts; of what they were given, most is their rules
        replace(step, given=(shortened("\n".join(step.given), CLAIMED_INPUT_CHARS),) if step.given else ())
        for step in transcript.steps
        if step.span_id in named
    ]
    most = min(CLAIMED_STEP_CHARS, transcript.room, CLAIMED_CHARS // max(len(claimed), 1))
    return fill(
        prompt_file("engines/findings_merge"),
        count=str(len(answers)),
        claims="\n".join(lines) or "(nothing)",
        claimed="\n\n".join(step.text(most, most=most) for step in claimed) or "(none)",
        deciding="\n\n".join(
            f"### step {step.number} | span {step.span_id} | agent {step.agent}\n{shortened(step.came, DECIDING_CHARS)}"
            for step in shown
        ),
    )


def with_steps(gathered: Gathered, spans: Iterable[Span], shown: Collection[str]) -> Prefilter:
    """What the plain engine finds, with the steps that the prompt shows noted as evidence."""
    first = rca.prefilter(gathered)
    excerpts: list[Excerpt] = []
    for span in spans:
        if span.summary.span_id in shown:
            excerpts += [span_excerpt(span.summary), content_excerpt(span)]
    return replace(first, excerpts=(*first.excerpts, *excerpts))


def conclude(value: Any, gathered: Gathered) -> Conclusion:
    """The report as `rca` makes it, with the coverage that the prompts prove."""
    return _covered(rca.conclude(value, gathered), gathered)


def fallback(gathered: Gathered) -> Conclusion:
    """What the plain engine says, with the claims that the sceptic let stand, or a rule's if none stood."""
    spoken = rca.fallback(gathered)
    if spoken.output is None:
        return spoken
    kept = [each for each in gathered.checked if number(each.get("confidence")) >= KEPT]
    taxonomy = cast("Taxonomy", gathered.params["taxonomy"])
    claims = kept or claims_by_rule(_read(gathered)[1], taxonomy)
    findings, _ = conclude_findings(claims, gathered, taxonomy)
    if not kept:
        findings = [finding.model_copy(update={"annotator_kind": "CODE"}) for finding in findings]
    told = spoken.output
    if findings and told["primary_label"] == NO_FAILURE:  # no span failed, but steps report errors as text
        refs = merge(*(finding.evidence_refs for finding in findings))
        why = f"By rule, without a model: {plural(len(findings), 'step')} reported an error in words."
        told = {**told, "primary_label": "instruction_failure", "summary": why, "evidence_refs": refs}
    shown = RCAReport.model_validate({**told, "findings": findings, "taxonomy": taxonomy.name})
    by_model = True if kept else spoken.by_model
    page = rca_page(shown, cast("TracesContext", gathered.context))
    return _covered(replace(spoken, output=shown.model_dump(mode="json"), text=page, by_model=by_model), gathered)


def _covered(conclusion: Conclusion, gathered: Gathered) -> Conclusion:
    transcript = _read(gathered)[1]
    return covered(conclusion, gathered, transcript, _parts(transcript))


def covered(
    conclusion: Conclusion, gathered: Gathered, transcript: Transcript, parts: Sequence[TranscriptPart]
) -> Conclusion:
    """With which steps were read and by whom: the root reads what its prompt holds, a sub-call the part whose prompt it got."""
    if conclusion.output is None:
        return conclusion
    prompts = cast("list[str]", gathered.prefilter.variables.get("label_prompts", []))
    whole = tuple(step.span_id for step in transcript.steps)
    readers: dict[str, tuple[str, ...]] = {} if parts else {"root": whole}
    for part, prompt in zip(parts, prompts, strict=False):
        path = gathered.queries.get(sha256_text(prompt))
        if path is not None:
            readers[path] = part.span_ids
    looked = {e.span_id for e in gathered.prover.log.excerpts() if e.span_id} - set(whole)
    seen = {span_id for spans in readers.values() for span_id in spans}
    coverage = {
        "spans": len(cast("TracesContext", gathered.context).store.summaries(str(gathered.params["trace_id"]))),
        "steps": len(whole),
        "looked_at": len(seen | looked),
        "readers": [
            f"{path}: {len(spans)} steps, {spans[0]} to {spans[-1]}" for path, spans in readers.items() if spans
        ],
        "unread": [span_id for span_id in whole if span_id not in seen][:200],
    }
    return replace(conclusion, output={**conclusion.output, "coverage": coverage})


# Reading costs more than looking: a slow model needs a minute per call for about ten calls, and each step is read two or three times.
READING_BUDGET = rca.RCA_BUDGET.override(max_subcalls=60, max_tokens_total=600_000, max_wall_time_sec=1800)
READING_MAXIMA = CONTRACT_MAXIMA.override(max_tokens_total=2_000_000, max_wall_time_sec=7200)
READING = replace(
    rca.RCA,
    budget=READING_BUDGET,
    maxima=READING_MAXIMA,
    tools=("get_span", "get_attribute", "get_messages", "get_tool_io", "get_retrieval_chunks", "search_trace"),
    functions=("budget", "llm_query", "llm_batch", "check"),
    max_output_tokens=8192,
)
FINDINGS = replace(
    READING,
    system=prompt_file("engines/findings"),
    templates=(
        *(prompt_file(f"engines/findings_{name}") for name in ("rules", "label", "merge", "verify")),
        prompt_file("engines/general_guide"),
    ),
    reply_form="claims",
    prefilter=findings_prefilter,
    conclude=conclude,
    fallback=fallback,
    final_example=(
        'SUBMIT(primary_label="tool_failure", summary="…", confidence=0.8, findings=[{"category": "…", "span_id": "…", '
        '"why": "…", "impact": "high", "first_failure": True}], remediation=["…"], gaps=[])'
    ),
)
