"""An engine: a kind of job as data plus a few pure functions, never a loop of its own.

The session asks an engine for four things: what code finds in its variables (`prefilter`), what a final value amounts
to (`conclude`), what can be said without one (`fallback`), and the words of its prompts. The runtime does the rest
(turns, budgets, tools, evidence, record).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from sonde.contexts import Context
from sonde.contexts.traces.views import ATTRIBUTES, in_words
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.core.calls import CallCitation, CallRef, how_to_cite, shown_text
from sonde.core.canonical import sha256_text
from sonde.core.events import HostReturned
from sonde.core.evidence import (
    Citation,
    EvidenceKind,
    EvidenceLog,
    EvidenceRef,
    Excerpt,
    ExcerptIndex,
    Refuted,
    SpanCitation,
)
from sonde.core.instructions import instructions_in
from sonde.models.base import OUTPUT_TOKENS
from sonde.runtime.feedback import LeftLine, left_line
from sonde.tools import ToolRegistry

if TYPE_CHECKING:
    from sonde.core.mask import Mask

Gate = Literal["schema", "evidence", "citations"]
NEAR_LINES = 5
MAX_PROOFS = 5_000
LATE = Refuted("not all evidence was checked: the time was up")
TOO_MUCH = Refuted(f"only the first {MAX_PROOFS:,} pieces of evidence were checked; name fewer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a final value is not accepted as it is, for people; `told` says it to the model where that needs other words. A problem that
    the model cannot mend is not told at all; a `confirmable` one is gone when the same value is sent again.
    """

    gate: Gate
    reason: str
    told: str = ""
    mendable: bool = True
    confirmable: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "told", self.told or self.reason)

    @classmethod
    def of(cls, refuted: Refuted, where: str = "") -> Problem:
        """A citation that does not hold; `where` says which."""
        reason, told = where + refuted.reason, where + refuted.told
        return cls(gate="evidence", reason=reason, told=told, confirmable=refuted.confirmable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """What a final value amounts to: the output, the proof, and what is wrong with it. `by_model` says whether it holds a model's
    judgement; None: it does if the session ended with a value of the model, and not if it ended with a fallback.
    """

    output: Any
    text: str = ""
    citations: tuple[Citation, ...] = ()
    evidence: tuple[EvidenceRef, ...] = ()
    gaps: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    by_model: bool | None = None
    by_person: bool = False
    """A person's word decides it, whatever a model or a rule said."""
    unproved: bool = False
    """Citations are switched off, and there are none."""

    def judge(self, *, fallback: bool = False) -> Literal["LLM", "CODE", "HUMAN"]:
        """Whose judgement the output is; `fallback` says that the session did not end with a value of the model."""
        if self.by_person:
            return "HUMAN"
        return "LLM" if self.by_model or (self.by_model is None and not fallback) else "CODE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """How sub-calls doubt claims: the questions to ask, and the claims joined with the answers. Where the runtime submits for the model,
    it keeps claims with a confidence of at least `kept`.
    """

    questions: Callable[[Sequence[Mapping[str, Any]]], list[str]]
    judged: Callable[[Sequence[Mapping[str, Any]], Sequence[str]], list[dict[str, Any]]]
    kept: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Prompts for fresh readers of parts, who are asked before the root is, and how the root is told what they answered."""

    prompts: tuple[str, ...]
    told: Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefilter:
    """What the deterministic step before the first turn found: variables for the code and words for the prompt. With a `review`
    the code has the function `check`. A `reading` is for replies in claims.
    """

    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    text: str = ""
    later: str | None = None
    """What takes the place of a long text from the second turn on; None: the text stays."""
    excerpts: tuple[Excerpt, ...] = ()
    gaps: tuple[str, ...] = ()
    review: Review | None = None
    reading: Reading | None = None


NO_PREFILTER = Prefilter()


class Prover:
    """Turns pointers into proved citations and references; only what this run has seen passes."""

    def __init__(
        self,
        log: EvidenceLog,
        reread: Callable[[Excerpt], str | None],
        returned: Callable[[str], HostReturned | None] = lambda _ref: None,
        *,
        blanks: bool = False,
        late: Callable[[], bool] = lambda: False,
        most: float = math.inf,
    ) -> None:
        self.log = log
        self.late = late
        self._left = most
        self.blanks = blanks
        self.reread = reread
        self.returned = returned

    def once(self, late: Callable[[], bool] = lambda: False) -> Prover:
        """A prover for one final value: it reads each place again once, and lines within a place that it has read not at all. It
        accepts nothing more when it is `late`, or after MAX_PROOFS pointers.
        """
        known: dict[tuple[str, str], str | None] = {}
        files: dict[str, ExcerptIndex] = {}

        def reread(excerpt: Excerpt) -> str | None:
            key = (excerpt.kind.value, excerpt.ref)
            if key in known:
                return known[key]
            within = files.get(excerpt.path) if excerpt.kind is EvidenceKind.FILE else None
            for wide in within.at(excerpt.start_line)[:1] if within else ():
                if excerpt.start_line <= excerpt.end_line <= wide.end_line:
                    lines = (known[(wide.kind.value, wide.ref)] or "").split("\n")
                    if len(lines) == wide.end_line - wide.start_line + 1:
                        first = excerpt.start_line - wide.start_line
                        return "\n".join(lines[first : first + excerpt.end_line - excerpt.start_line + 1])
            known[key] = text = self.reread(excerpt)
            if excerpt.kind is EvidenceKind.FILE and text is not None:
                files.setdefault(excerpt.path, ExcerptIndex()).add(excerpt)
            return text

        return Prover(self.log, reread, self.returned, blanks=self.blanks, late=late, most=MAX_PROOFS)

    def _closed(self) -> Refuted | None:
        """Why no further pointer is looked at; counts this one."""
        self._left -= 1
        return LATE if self.late() else TOO_MUCH if self._left < 0 else None

    def lines(self, path: str, start: int, end: int, *, signal: str = "reference") -> Citation | Refuted:
        """Lines of a file as a proved citation with a snippet. Blank lines prove nothing and are refused, unless `blanks` may be cited."""
        proved = self._closed() or self.log.prove_lines(path, start, end, self.reread)
        if isinstance(proved, Refuted):
            return proved
        text = self.reread(proved) or ""
        if not text.strip() and not self.blanks:
            beside = (line for step in range(1, NEAR_LINES + 1) for line in (end + step, start - step) if line > 0)
            near = next(
                (line for line in beside if (self.reread(Excerpt.of_lines(path, line, line, "")) or "").strip()), None
            )
            hint = f", such as line {near}" if near else ""
            reason = f"{path}:{start}-{end} is blank and proves nothing"
            return Refuted(reason, f"{reason}; cite lines that hold the text you mean{hint}", blank=True)
        return Citation(
            path=path,
            start_line=start,
            end_line=end,
            excerpt_hash=proved.hash,
            signal=signal[:48],
            snippet=" ".join(text.split())[:220],
            ref=proved.ref,
        )

    def call(self, ref: str, *, signal: str = "reference") -> CallCitation | Refuted:
        """What a tool of the user returned, or lines of it, as a proved citation, read again from this run's record."""
        if closed := self._closed():
            return closed
        pointer = CallRef.read(ref)
        excerpt = None if pointer is None else self.log.find(EvidenceKind.TOOL_IO.value, pointer.base)
        if pointer is None or excerpt is None:
            reason = f"[{ref}] names no call of this run"
            return Refuted(reason, f"{reason}; {self.how_to_cite(ref)}", unseen=True)
        refuted, event = self.log.prove(excerpt, self.reread), self.returned(pointer.base)
        if refuted is not None or event is None:
            why = refuted.reason if refuted else f"{pointer.base} is not in this run's record"
            return Refuted(why, f"{why}; {self.how_to_cite(ref)}")
        text = pointer.cut(shown_text(event.result))
        if text is None:
            lines = shown_text(event.result).count("\n") + 1
            reason = f"[{ref}]: {pointer.base} returned lines 1-{lines}"
            return Refuted(reason, f"{reason}; cite those, or all as [{pointer.base}]")
        if not pointer.whole and not text.strip():
            reason = f"[{ref}] is blank and proves nothing"
            return Refuted(reason, f"{reason}; cite lines that hold the text you mean")
        return CallCitation(
            start_line=pointer.start_line,
            end_line=pointer.end_line,
            excerpt_hash=sha256_text(text),
            signal=signal[:48],
            snippet=" ".join(text.split())[:220],
            ref=pointer.ref,
            tool=event.name,
            arguments=dict(event.args),
        )

    def traced(self, ref: str, *, signal: str = "reference") -> SpanCitation | Refuted:
        """A span (`span:ID`), something in it (`message:…`) or a group (`group:ID`) as a proved citation, read again now."""
        if closed := self._closed():
            return closed
        pointer = ref.removeprefix("span:")
        excerpt = self.log.find_ref(pointer, files=False) or self.log.find_ref(pointer + ATTRIBUTES, files=False)
        if excerpt is None:
            reason = f"[{ref}] was not returned by any tool in this run"
            return Refuted(reason, f"{reason}; look at it first, for example get_span({pointer!r})", unseen=True)
        refuted = self.log.prove(excerpt, self.reread)
        if refuted is not None:
            return refuted
        return SpanCitation(
            excerpt_hash=excerpt.hash,
            signal=signal[:48],
            snippet=" ".join(in_words(self.reread(excerpt) or "").split())[:220],
            kind=excerpt.kind,
            ref=pointer,
            trace_id=excerpt.trace_id,
            span_id=excerpt.span_id,
        )

    def instruction(self, proof: Citation | EvidenceRef) -> str:
        """What the text of a proof tells its reader to do; "" for ordinary text."""
        pointer = CallRef.read(proof.ref)
        event = None if pointer is None else self.returned(pointer.base)
        if event is not None:
            text = shown_text(event.result)
        elif isinstance(proof, Citation) and proof.path:
            text = self.reread(Excerpt.of_lines(proof.path, proof.start_line, proof.end_line, ""))
        else:
            text = self.text_of(proof)
        return next(iter(instructions_in(text or "")), "")

    def text_of(self, proof: Citation | EvidenceRef) -> str:
        """What a pointer into traces points at, read again; of a span also what it holds, not only its name and status."""
        known = self.log.find(proof.kind.value, proof.ref)
        excerpt = known or self.log.find(proof.kind.value, proof.ref + ATTRIBUTES)
        text = None if excerpt is None else self.reread(excerpt)
        if excerpt is not None and excerpt is known and excerpt.kind is EvidenceKind.SPAN:
            text = f"{text}\n{self.reread(replace(excerpt, ref=excerpt.span_id + ATTRIBUTES))}"
        return text or ""

    def how_to_cite(self, ref: str) -> str:
        """How the tool that a ref names is cited."""
        return how_to_cite(ref.split(":")[1:2], self.log.call_refs())

    def ref(self, kind: str, ref: str) -> EvidenceRef | Refuted:
        """A pointer as a proved reference."""
        proved = self._closed() or self.log.prove_ref(kind, ref, self.reread)
        return proved if isinstance(proved, Refuted) else EvidenceRef.of(proved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """What a session has when it ends: the ground for a conclusion or a fallback. `queries` maps the hash of each prompt that a plain
    sub-call answered to that sub-call; `checked` holds the claims that `check` returned; `results` maps the hash of what a tool returned
    to what proves it, and `calls` are refs of calls that are cited by themselves.
    """

    objective: str
    context: Context
    registry: ToolRegistry
    prover: Prover
    prefilter: Prefilter
    citations: tuple[Citation, ...] = ()
    highlights: tuple[str, ...] = ()
    subcalls: tuple[Mapping[str, Any], ...] = ()
    queries: Mapping[str, str] = field(default_factory=dict[str, str])
    checked: tuple[Mapping[str, Any], ...] = ()
    results: Mapping[str, Sequence[Excerpt]] = field(default_factory=dict[str, Sequence[Excerpt]])
    calls: tuple[str, ...] = ()
    printed: str = ""
    confirms: bool = False
    """Whether cited lines that nobody has seen yet may pass for now, because the session will ask about them."""
    denied: Mapping[str, Refuted] = field(default_factory=dict[str, Refuted])
    """Places that do not count as proof, with the reason."""
    room: int = 0
    """How many characters of the data the first prompt may show."""
    schema: Mapping[str, Any] | None = None
    mask: Mask | None = None
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])
    reason: str = ""


Judge = Callable[[Any, Gathered], Conclusion]


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One kind of job. `params` of the task reach every function through `Gathered.params`.

    `tools` and `functions` narrow what code may call (None: all); `terse` documents them in one line each. `brief` are
    lines for functions that need no more, "" for those that the prompt only names, None for those that it leaves out; `help`
    explains them all. `reply_form`
    is how a root's reply is read (`claims`: as JSON claims that the runtime has checked and submits); `left_line` puts what is left of
    the budget into words. With
    `max_subcall_chars` sub_rlm asks a model once, with a prompt of at most so many characters, instead of starting a child session.
    `scripted`: a program that cannot react may write the replies. A turn is one request, a final value is judged at once, also if its block
    showed what the model has not seen, blank lines may be cited, and the code goes on after a citation that does not hold.
    `cited` are tools of its contexts whose results are cited by the call, as those of the user's tools are.
    `templates` are further prompt texts it uses, for the hash in the record. `answers`: its final
    value is an answer in words, so a guided session can check it. `in_actions` are its rules and its last action
    for models that work by typed actions. `profile` are the language rules of its sandbox unless others are set.
    `thinks`: models may think before they reply, unless a setting says how much. Without `cites`, a final value needs no citation, and
    the record calls one without any unproved. `frugal`: old turns shrink to what later ones use,
    sub-calls carry few words of ours, and equal ones are asked once.
    `rests_on_children`: a sub-call that a limit ended leaves the whole run partial. `confirms`: a claim whose lines its
    author had not seen is confirmed by a small question of its own, instead of another turn. `unforgiving`: code that reaches for
    a file, a socket or a process ends the run, and so does the second block of a session that the gate refuses.
    """

    name: str
    run_type: str
    output_type: str
    system: str
    child: str
    budget: Budget
    conclude: Judge
    fallback: Callable[[Gathered], Conclusion]
    prefilter: Callable[[Gathered], Prefilter] | None = None
    conclude_child: Judge | None = None
    maxima: Budget | None = CONTRACT_MAXIMA
    reply_form: Literal["code", "schema", "longest", "claims"] = "code"
    tools: Sequence[str] | None = None
    fails_without_reply: bool = False
    delegation_keys: frozenset[str] | None = None
    max_output_tokens: int = OUTPUT_TOKENS
    functions: Sequence[str] | None = None
    terse: bool = False
    brief: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    left_line: LeftLine = left_line
    max_subcall_chars: int | None = None
    scripted: bool = False
    cited: Sequence[str] = ()
    templates: Sequence[str] = ()
    answers: bool = False
    rests_on_children: bool = True
    thinks: bool = False
    cites: bool = True
    frugal: bool = False
    profile: str = "analysis"
    confirms: bool = False
    unforgiving: bool = False
    final_example: str = 'FINAL("…")'
    in_actions: str = ""
