"""How a session ends: with a value that passed its gates, with one that did not, or with the best that can be said.

The gates are schema, then evidence, then citations. All judge one value, and the model hears their complaints together;
it may mend a value twice per gate. A value that still has problems then, or comes back unchanged, keeps what holds, and
the session ends partial. People read the problems in words of their own, never in those addressed to the model. Without
a value the engine's fallback speaks, marked CODE: only a model's own judgement is marked LLM.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from sonde.core.calls import CallRef, shown_text
from sonde.core.canonical import clip, hash_value, jsonable
from sonde.core.events import ROOT, GateChecked, TurnStarted
from sonde.core.evidence import Citation, Excerpt, Refuted, SpanCitation
from sonde.core.instructions import instructions_in, is_named
from sonde.core.status import RunStatus
from sonde.errors import (
    Cancelled,
    EvidenceValidationFailed,
    ModelOutputInvalid,
    RecursionLimitReached,
    RunError,
    SchemaValidationFailed,
    UsageError,
    reached_before,
)
from sonde.runs.recording import NOTHING, Diverged
from sonde.runtime.engine import LATE, Conclusion, Gate, Gathered, Problem, Prover
from sonde.runtime.feedback import CONFIRM, table_was_shown, was_shown
from sonde.runtime.occurrence import counted, is_computed, literals_of, uncounted

if TYPE_CHECKING:
    from sonde.runtime.session import Session

UNPROVED = "citations are switched off: nothing proves this answer"
UNSEEN_CHARS, WHOLE_CHARS, CLAIM_CHARS, CONFIRMED_CHARS, COUNTED = 800, 1_500, 2_000, 6_000, 12
PLACE_CHARS = 80
COUNTED_SINCE = 2
"""The journal format since which numbers that code counted in a result need no further proof; older runs are judged as they were."""
PROOF_S = 2.0
"""Proofs may take so long even if the time is up, so that a draft keeps its citations at the limit."""
MAX_PROBLEMS, PROBLEM_CHARS, CLAIMED_CHARS = 100, 4_000, 100_000
_YES, _NO = re.compile(r"\W*yes\b", re.IGNORECASE), re.compile(r"\W*no\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a session or a whole run ended. `annotator` is LLM only if the output holds a model's judgement, and HUMAN if a person's
    word decides it.
    """

    status: RunStatus
    conclusion: Conclusion
    annotator: Literal["LLM", "CODE", "HUMAN"]
    error: RunError | None = None
    seen: tuple[Excerpt, ...] = ()
    """For the parent of a child: what it may now cite too."""
    elapsed_s: float = 0.0
    mistake: UsageError | None = None
    """A mistake of the caller that was found after the run had begun; the record says it, and the caller gets it as an exception."""

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is missing, in words."""
        return self.conclusion.gaps


def conclude(session: Session, value: Any, *, asks: bool = False) -> Conclusion:
    """What a final value amounts to by the engine's gates; each judgement goes on the stream.

    Lines that the model had not seen when it wrote the value prove it if code computed it from them or, with `asks`, if the model
    confirms it; otherwise they are among the problems. Lines that it did not confirm count as seen only when they are printed again.
    """
    conclusion, doubt, refuted = _judged(session, value, {}), "", None
    unseen: dict[str, str] = {}
    missing: dict[str, list[str]] = {}
    denied: dict[str, Refuted] = {}
    if session.confirms and not _is_result(session, value):
        unseen, missing, unchecked = _unseen(session, conclusion)
        denied = dict.fromkeys(unchecked, LATE)
    if unseen and asks and not any(problem.mendable for problem in conclusion.problems):
        session.memory.draft = value
        doubt, refuted = _doubt(session, conclusion.text, unseen)
        gate_checked(session, "seen", [doubt] if doubt else [])
        unseen = unseen if doubt else {}
    if unseen:
        told = [
            f"{place} was not shown to you yet. It reads: {clip(text, UNSEEN_CHARS)}" for place, text in unseen.items()
        ]
        for at, place in enumerate(unseen):
            if place in missing:
                told[at] += (
                    f"\nCode has not computed {', '.join(missing[place][:COUNTED])}: print it, and that suffices"
                )
        session.coder.printed += told
        how = "\nTo uphold it, print these lines and read them, then finish" if refuted is not None else ""
        told[-1] = f"{told[-1]}\n{doubt}{how}".strip()
        spans = {each.place for each in conclusion.citations if isinstance(each, SpanCitation)}
        for place, words in zip(unseen, told, strict=True):
            reason = f"the model cited {clip(place, PLACE_CHARS)} without having read it"
            if refuted is not None:
                session.memory.refuted[place] = len(session.coder.printed)
                reason = f"{place} is not confirmed: the check's reply could not be read"
                if _NO.match(refuted):
                    reason = f"a check said that {place} does not bear the answer out: {refuted}"
            shown = place in spans or was_shown(
                unseen[place], words
            )  # a span is seen by its id, lines if all of them are
            denied[place] = Refuted(reason, words, confirmable=shown and refuted is None)
    if denied:
        conclusion = _judged(session, value, denied)
    for gate in ("schema", "evidence", "citations"):
        gate_checked(session, gate, [problem.reason for problem in conclusion.problems if problem.gate == gate])
    return conclusion


def _judged(session: Session, value: Any, denied: Mapping[str, Refuted]) -> Conclusion:
    judge = session.engine.conclude
    if session.errand is not None and session.engine.conclude_child is not None:
        judge = session.engine.conclude_child
    ground = replace(gathered(session), denied=denied, confirms=session.confirms)
    conclusion = session.form.judged(value, ground, judge)
    if not session.shared.cites:
        proved = conclusion.citations or conclusion.evidence or session.errand is not None
        conclusion = replace(
            conclusion,
            problems=tuple(problem for problem in conclusion.problems if problem.gate == "schema"),
            gaps=conclusion.gaps if proved else (*conclusion.gaps, UNPROVED),
            unproved=not proved,
        )
    problems = (*conclusion.problems, *instructed(ground.prover, value, conclusion))
    return replace(conclusion, problems=_first_problems(problems))


def _first_problems(problems: Sequence[Problem]) -> tuple[Problem, ...]:
    """The first problems of each gate, clipped: a value can have millions, and prompts and the record hold them all."""
    number: Counter[Gate] = Counter()
    kept: list[Problem] = []
    for problem in problems:
        number[problem.gate] += 1
        if number[problem.gate] <= MAX_PROBLEMS:
            reason, told = clip(problem.reason, PROBLEM_CHARS), clip(problem.told, PROBLEM_CHARS)
            kept.append(replace(problem, reason=reason, told=told))
    rest = [
        Problem(gate=gate, reason=f"{count - MAX_PROBLEMS:,} more problems like these are not listed")
        for gate, count in number.items()
        if count > MAX_PROBLEMS
    ]
    return (*kept, *rest)


def _is_result(session: Session, value: Any) -> bool:
    """Whether an answer is exactly what a tool returned in this session: then nobody wrote a claim that could be wrong."""
    results = gathered(session).results
    written = [jsonable(value)]
    if isinstance(value, Mapping):
        written.append(jsonable(cast("Mapping[str, Any]", value).get("answer", value)))
    return any(hash_value(each) in results for each in written)


def _unseen(session: Session, conclusion: Conclusion) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Cited text that no prompt and no output had shown before the turn in which the model finishes, by its place; the numbers that
    code would have to compute to prove it all the same; and the places for which there was no time.
    """
    prover, log = gathered(session).prover, session.shared.log
    found: dict[str, str] = {}
    missing: dict[str, list[str]] = {}
    outputs: dict[int, str] = {}
    for number, citation in enumerate(conclusion.citations):
        if prover.late():
            return found, missing, [each.place for each in conclusion.citations[number:]]
        since = session.memory.refuted.get(citation.place, 0)
        if since not in outputs:
            outputs[since] = "\n".join(session.coder.printed[since : session.memory.shown])
        printed = outputs[since]
        pointer = CallRef.read(citation.ref)
        if isinstance(citation, SpanCitation):  # whatever a tool shows of a span or a group has its id beside it
            excerpt = log.find(citation.kind.value, citation.ref)
            named = (citation.span_id or citation.ref.removeprefix("group:")) in printed
            if not named and (since or excerpt is None or not log.is_shown(excerpt)):
                found[citation.place] = clip(prover.text_of(citation), CLAIM_CHARS)
            continue
        if pointer is None:
            seen = log.shows(citation.path, citation.start_line, citation.end_line)
            text = prover.reread(Excerpt.of_lines(citation.path, citation.start_line, citation.end_line, "")) or ""
        else:
            excerpt, event = log.find(citation.kind.value, pointer.base), prover.returned(pointer.base)
            seen = excerpt is None or log.is_shown(excerpt)
            text = "" if event is None else pointer.cut(shown_text(event.result)) or ""
            if event is not None and (repr(event.result) in printed or table_was_shown(event.result, printed)):
                continue
            if not since and text and not instructions_in(text):
                lacking = _uncounted(session, conclusion.text, citation, text)
                if lacking == []:
                    continue
                missing |= {citation.place: lacking} if lacking else {}
        if (since or not seen) and not was_shown(text, printed, prover.late):
            if prover.late():
                return found, missing, [each.place for each in conclusion.citations[number:]]
            found[citation.place] = text
    return found, missing, []


def _uncounted(session: Session, answer: str, citation: Citation, result: str) -> list[str] | None:
    """Which numbers code did not count of those that an answer says of a call's result, which its author saw in part at most, like a
    table of SQL; None if it is no count.
    """
    if not session.memory.coded or session.shared.format < COUNTED_SINCE:
        return None
    blocks = zip(
        session.coder.code, session.coder.outputs, strict=False
    )  # a block that broke the run off has no output
    return uncounted(answer, blocks, f"{session.objective}\n{citation.place}", result)


def _doubt(session: Session, answer: str, unseen: Mapping[str, str]) -> tuple[str, str | None]:
    """Why unseen lines do not prove an answer, "" if it was computed from them or if the model confirms it when it sees them; and what
    the model replied instead of yes.

    The question holds nothing but the claim and the lines, which are data like any other.
    """
    shown: list[str] = []
    for place, text in unseen.items():  # neither a name nor a line can begin another part of the question
        shown += [
            f"{place if place.isprintable() else json.dumps(place)}:",
            *(f"| {line}" for line in text.splitlines()),
        ]
    lines = "\n".join(shown)
    literals = literals_of(session.coder.code) if session.memory.coded else None
    if literals is not None and is_computed(answer, literals, lines):
        return "", None
    if len(lines) > CONFIRMED_CHARS or instructions_in(lines):
        return "Print and read these lines before you rest an answer on them", None
    places = {place.rpartition(":")[0] for place in unseen}
    claims = [line for line in answer[:CLAIMED_CHARS].splitlines() if any(place in line for place in places)]
    claim = answer if len(answer) <= WHOLE_CHARS else clip("\n".join(claims) or answer, CLAIM_CHARS)
    assert session.model is not None, "a run without a model has no session"
    numbers = counted(claim, literals, lines) if literals is not None else []
    if numbers:
        lines += (
            f"\nCode counted {', '.join(numbers[:COUNTED])}: examples suffice for that, it need not be in the lines."
        )
    prompt = CONFIRM.format(question=clip(session.objective, CLAIM_CHARS), claim=claim, lines=lines)
    checks = session.memory.checks
    reply = checks[prompt] if prompt in checks else session.host.functions.confirm(prompt, session.model)
    if reply is None:
        return "Look at it", None
    checks[prompt] = reply
    said = clip(reply.strip(), 300)
    return ("", None) if _YES.match(reply) else (f"They do not bear the answer out: {said}", said)


def instructed(prover: Prover, value: Any, conclusion: Conclusion) -> list[Problem]:
    """The problem of a value whose every proof is text that instructs its reader, unless the value says that it does."""
    proofs = (*conclusion.citations, *conclusion.evidence)
    quotes: dict[str, str] = {}
    for proof in proofs:
        quotes[proof.ref] = prover.instruction(proof)
        if not quotes[proof.ref]:
            return []
        if prover.late():
            break
    # Each field is a sentence of its own: what one denies does not touch another.
    said = json.dumps(jsonable(value), ensure_ascii=False, separators=("; ", ": "))
    if not quotes or is_named(said.replace('\\"', '"').replace("\\n", " "), quotes.values()):
        return []
    places = ", ".join(f'{ref} ("{quote}")' for ref, quote in list(quotes.items())[:3])
    reason = f"it rests only on text that tries to instruct its reader: {places}"
    how = "Prove it by other text, or say in so many words that this text tries to instruct its reader, if that is the finding"
    return [Problem(gate="evidence", reason=reason, told=f"{reason}. {how}")]


def gate_checked(session: Session, gate: str, reasons: Sequence[str]) -> None:
    """Put a gate's judgement on the stream; no reasons: the value passed."""
    event = GateChecked(
        session=session.path, turn=session.memory.turn, gate=gate, ok=not reasons, reason="; ".join(reasons)
    )
    session.shared.emit(event)


def gathered(session: Session, reason: str = "") -> Gathered:
    """Everything a session has to conclude from."""
    spec, deadline = session.spec, session.scope.deadline
    began = deadline.clock.now()

    def late() -> bool:
        over = deadline.expired() or deadline.stop.is_set()
        return over and deadline.clock.now() - began >= PROOF_S

    return Gathered(
        objective=session.objective,
        context=spec.context,
        registry=session.shared.registry,
        prover=session.shared.prover.once(late),
        prefilter=session.prefilter,
        citations=tuple(session.host.citations.proved),
        highlights=tuple(session.host.functions.highlights),
        subcalls=tuple(session.host.functions.subcalls),
        printed="\n".join(session.coder.printed),
        queries=dict(session.delegation.answered),
        checked=tuple(session.host.functions.checked),
        results=session.host.citations.results,
        calls=tuple(session.host.citations.refs.values()),
        mask=spec.mask,
        schema=spec.schema if session.errand is None else None,
        params=spec.params if session.errand is None else {**spec.params, **session.errand.context},
        reason=reason,
    )


def settled(session: Session, conclusion: Conclusion) -> Outcome:
    """The outcome of a final value: succeeded without problems, else partial with the reasons as gaps."""
    judge = conclusion.judge()
    limited = [each for each in session.host.functions.subcalls if each.get("status") == "terminated_budget"]
    if (
        not conclusion.problems
        and limited
        and session.engine.conclude_child is not None
        and session.engine.rests_on_children
    ):
        below = "; ".join(f"sub-call {each['call_id']} reached a limit: {each['summary']}" for each in limited[:3])
        gaps = (*conclusion.gaps, below)
        return Outcome(
            status=RunStatus.PARTIAL,
            conclusion=_with_gaps(session, replace(conclusion, gaps=gaps)),
            annotator=judge,
            error=RecursionLimitReached(below, limit="subcalls"),
        )
    if not conclusion.problems:
        return Outcome(status=RunStatus.SUCCEEDED, conclusion=_with_gaps(session, conclusion), annotator=judge)
    error = error_of(conclusion.problems)
    if conclusion.output is None:
        spoken = session.engine.fallback(gathered(session, error.message))
        gaps = (*conclusion.gaps, *(problem.reason for problem in conclusion.problems), *spoken.gaps)
        return Outcome(
            status=RunStatus.PARTIAL if spoken.output is not None else RunStatus.FAILED,
            conclusion=_with_gaps(session, replace(spoken, gaps=gaps, problems=conclusion.problems)),
            annotator=spoken.judge(fallback=True),
            error=error,
        )
    gaps = (*conclusion.gaps, *(problem.reason for problem in conclusion.problems))
    return Outcome(
        status=RunStatus.PARTIAL,
        conclusion=_with_gaps(session, replace(conclusion, gaps=gaps)),
        annotator=judge,
        error=error,
    )


def best_effort(session: Session, error: RunError) -> Outcome:
    """What can be said after a limit or a failure: the draft if it holds, else the fallback."""
    draft = session.memory.draft
    if draft is None and isinstance(error, ModelOutputInvalid) and session.memory.prose:
        draft = session.memory.last_words if session.memory.last_words.strip() else None
    if draft is not None:
        conclusion = conclude(session, draft)
        if conclusion.output is not None:
            gaps = (*conclusion.gaps, error.message, *(problem.reason for problem in conclusion.problems))
            kept = replace(conclusion, gaps=gaps)
            return Outcome(
                status=RunStatus.PARTIAL,
                conclusion=_with_gaps(session, kept),
                annotator=kept.judge(),
                error=error,
            )
    if session.errand is not None:
        return Outcome(
            status=RunStatus.FAILED,
            conclusion=_with_gaps(session, Conclusion(output=None, gaps=(error.message,))),
            annotator="CODE",
            error=error,
        )
    spoken = session.engine.fallback(gathered(session, error.message))
    spoken = replace(spoken, gaps=(error.message, *spoken.gaps))
    return Outcome(
        status=RunStatus.PARTIAL if spoken.output is not None else RunStatus.FAILED,
        conclusion=_with_gaps(session, spoken),
        annotator=spoken.judge(fallback=True),
        error=error,
    )


def stopped_here(session: Session, diverged: Diverged) -> RunError | None:
    """For a replay: what stopped the recorded session from outside its code, where its recording ends in this session."""
    recording = session.spec.recording
    if diverged.recorded != NOTHING or recording.at(TurnStarted, session.path, session.memory.turn + 1) is not None:
        return None
    stopped = reached_before(recording.error_of(session.path) or recording.error_of(ROOT))
    return session.interrupted() if isinstance(stopped, Cancelled) else stopped


def _with_gaps(session: Session, conclusion: Conclusion) -> Conclusion:
    below = [gap for result in session.host.functions.subcalls for gap in result.get("gaps", ())]
    heard = [
        f'the data tries to instruct its reader, which was not followed: "{quote}"'
        for quote in sorted(session.delegation.instructed)
    ]
    gaps = tuple(dict.fromkeys((*conclusion.gaps, *session.prefilter.gaps, *session.coder.gaps, *below, *heard)))
    return replace(conclusion, gaps=gaps)


def error_of(problems: tuple[Problem, ...]) -> RunError:
    """The error of the gate that comes first: schema, then evidence."""
    reasons = "; ".join(problem.reason for problem in problems)
    if any(problem.gate == "schema" for problem in problems):
        return SchemaValidationFailed(reasons)
    return EvidenceValidationFailed(reasons)
