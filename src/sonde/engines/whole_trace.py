"""Reading a whole trace: `rca` with a taxonomy lists every failure.

It is the `rca` engine with other words and more variables: a transcript (see `contexts.traces.transcript`), whole in the
prompt when it is short, otherwise in parts with ready prompts for batched sub-calls, and a sceptic who checks the claims. Every shown
step is noted as evidence. The report's coverage says who read which steps, judged by the prompts that were really sent and not by
what the model says. The words are files in `prompts`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.rules import NO_FAILURE
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.transcript import Transcript, TranscriptPart, shortened, transcript_of
from sonde.contexts.traces.views import content_excerpt, span_excerpt
from sonde.core.budget import CONTRACT_MAXIMA
from sonde.core.canonical import plural, sha256_text
from sonde.core.evidence import Excerpt, merge
from sonde.engines import rca
from sonde.engines.findings import claims_by_rule, conclude_findings
from sonde.engines.pages import rca_page
from sonde.engines.reports import RCAReport
from sonde.engines.sceptic import Sceptic
from sonde.engines.submission import number
from sonde.engines.taxonomies import Taxonomy
from sonde.runtime.engine import Conclusion, Gathered, Prefilter
from sonde.runtime.prompts import fill, prompt_file

WHOLE_CHARS = 100_000
OUTLINE_CHARS = 8_000
ROOT_OUTLINE_CHARS = 40_000
TASK_CHARS = 3_000
ENDING_CHARS = 800
STEP_CHARS = 6_000
KEPT = 0.4  # claims with at least these odds are submitted
KEPT_PLACE = "{{kept}}"


def findings_prefilter(gathered: Gathered) -> Prefilter:
    """What the plain engine finds, the transcript, and the prompts that go with the taxonomy."""
    taxonomy = cast("Taxonomy", gathered.params["taxonomy"])
    spans, transcript = _read(gathered)
    words = {
        "categories": taxonomy.listed(),
        "guide": taxonomy.guide or prompt_file("engines/general_guide"),
    }
    parts = _parts(transcript)
    variables = {
        **_variables(transcript),
        "label_prompts": [
            _label_prompt("findings_label", transcript, part, {**words, "number": str(at), "count": str(len(parts))})
            for at, part in parts
        ],
        "categories": [each.name for each in taxonomy.categories],
    }
    text = f"Categories ({taxonomy.name}):\n{words['categories']}\n\nHow they are used:\n{words['guide']}\n\n{_shown(transcript, parts)}"
    sceptic = Sceptic(
        words=fill(prompt_file("engines/findings_verify"), **words, task=shortened(transcript.task, TASK_CHARS)),
        transcript=transcript,
    )
    first = with_steps(gathered, spans, [step.span_id for step in transcript.steps])
    return replace(first, variables={**first.variables, **variables}, text=text, review=sceptic.review())


def _read(gathered: Gathered) -> tuple[list[Span], Transcript]:
    context = cast("TracesContext", gathered.context)
    spans = list(context.store.spans(str(gathered.params["trace_id"])))
    return spans, transcript_of(spans)


def _parts(transcript: Transcript) -> list[tuple[int, TranscriptPart]]:
    """The parts that sub-calls read; none when the whole fits into the first prompt."""
    return [] if len(transcript.text()) <= WHOLE_CHARS else list(enumerate(transcript.parts(), 1))


def _variables(transcript: Transcript) -> dict[str, Any]:
    return {
        "task_text": transcript.task,
        "outline": transcript.outline(),
        "step_text": {step.span_id: step.text(min(STEP_CHARS, 2 * transcript.room)) for step in transcript.steps},
    }


def _label_prompt(name: str, transcript: Transcript, part: TranscriptPart, words: Mapping[str, str]) -> str:
    return fill(
        prompt_file(f"engines/{name}"),
        **words,
        task=shortened(part.task or transcript.task, TASK_CHARS),
        outline=transcript.outline(OUTLINE_CHARS),
        first=str(part.first),
        last=str(part.last),
        part=part.text,
        ending=shortened(transcript.steps[-1].came, ENDING_CHARS),
    )


def _shown(transcript: Transcript, parts: list[tuple[int, TranscriptPart]]) -> str:
    task = f"What was asked:\n{shortened(transcript.task, TASK_CHARS)}"
    if not parts:
        return f"{task}\n\nThe whole trace, {len(transcript.steps)} steps:\n\n{transcript.text()}"
    outline = transcript.outline(ROOT_OUTLINE_CHARS)
    return f"{task}\n\nThe trace in outline ({len(parts)} parts are in label_prompts):\n{outline}"


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
    return covered(conclusion, gathered, transcript, [part for _, part in _parts(transcript)])


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
    system=prompt_file("engines/findings").replace(KEPT_PLACE, str(KEPT)),
    templates=tuple(prompt_file(f"engines/{name}") for name in ("findings_label", "findings_verify", "general_guide")),
    prefilter=findings_prefilter,
    conclude=conclude,
    fallback=fallback,
    final_example=(
        'SUBMIT(primary_label="tool_failure", summary="…", confidence=0.8, findings=[{"category": "…", "span_id": "…", '
        '"why": "…", "impact": "high", "first_failure": True}], remediation=["…"], gaps=[])'
    ),
)
