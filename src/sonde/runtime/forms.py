"""The forms that a model's replies can have: Python code, typed actions, and guided actions for weak models.

A form writes what the model reads (its first messages, and the words after each turn) and reads a reply as an action. The loop in
`session` is the same for all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, cast

from sonde.contexts import Narrowable
from sonde.core.canonical import clip
from sonde.core.status import LoopState
from sonde.errors import Fault, FormatFault, ModelOutputInvalid
from sonde.models.base import Message, Role, output_limit, suited_mode
from sonde.runtime import feedback, guided
from sonde.runtime.actions import (
    CLAIMS_SCHEMA,
    CODE_SCHEMA,
    DELEGATE,
    Action,
    CallTool,
    Finalize,
    Say,
    action_schema,
    read_action,
    read_claims,
    read_code,
    read_longest,
    read_schema,
)
from sonde.runtime.delegate import QUERY_SYSTEM
from sonde.runtime.engine import Conclusion, Gathered, Judge
from sonde.runtime.memory import Conversation, Observation
from sonde.runtime.prompts import fill, language_text, offered, prompt_file, render_task

if TYPE_CHECKING:
    from sonde.runtime.session import Session

REPETITION = "repetition"  # why a turn must be the last: the model goes round in circles
SUBMIT_DEADLINE_TURNS = 2
HISTORY_TOKENS = 60_000
ANSWER_TOKENS = 200  # for the reply of a child that was given lines, and what wraps its messages
WEAK_TOKENS = 400  # a weak model says nothing useful after that, and left alone it talks until the time is up
_IN_CODE = re.compile(r" (?=You work in a Python session|Each reply is one fenced)")
_SIGNAL = re.compile(r"\b(?:FINAL|FINAL_VAR|set_final|SUBMIT)\s*\(|\"type\"\s*:\s*\"finalize\"")


class ReplyForm(Protocol):
    """How one session talks to its model. The methods with a body are the default of every form."""

    session: Session
    finish: str
    """How a reply finishes, as shown to the model."""
    history_tokens: int = HISTORY_TOKENS
    forgets: bool = False
    """Whether old turns can be shortened: replies are code, whose variables stay."""

    def opening(self, elapsed_s: float) -> Conversation:
        """The conversation before the first reply, which is asked for at this time."""
        ...

    def schema(self) -> Mapping[str, Any] | None:
        """The schema of the next reply; None for free text."""
        ...

    def read(self, text: str) -> Action:
        """A reply as an action; an unreadable one becomes a Say with what the model hears about it."""
        ...

    def said(self, say: Say) -> Observation:
        """What comes of a reply without an action."""
        ...

    def refused(self, reasons: Sequence[str], value: Any, *, confirmable: bool) -> str | None:
        """What the model hears about a final value that does not hold; None where it can mend nothing. `confirmable`: it would hold
        if the model sent it again, because the model has now seen what it cites.
        """
        ...

    def prepare(self) -> None:
        """Do what takes time before the first turn and does not count as the run's time."""

    @property
    def ending(self) -> bool:
        """Whether the next reply must finish because the model goes round in circles."""
        return False

    def ahead(self) -> Action | None:
        """An action that needs no reply."""
        return None

    def finishes(self, text: str) -> bool:
        """Whether a reply tries to finish."""
        return _SIGNAL.search(text) is not None

    def call(self, action: CallTool) -> Observation:
        """Call a tool and put its result into words."""
        host = self.session.host
        try:
            value = host.tool_action(action.tool_name, action.args)
        except Fault as fault:
            return Observation(text=f"{action.tool_name} failed: {fault.message}")
        text = feedback.value_text(action.tool_name, value)
        self.session.coder.printed.append(clip(repr(value), feedback.SHOWN_CHARS))
        return Observation(text="\n".join([text, feedback.notes_text(host.site.notes)]).strip())

    def judged(self, value: Any, ground: Gathered, judge: Judge) -> Conclusion:
        """What a final value amounts to."""
        return judge(value, ground)

    def reply_tokens(self) -> int:
        """How long a reply may be."""
        most = self.session.engine.max_output_tokens
        usual = min(most, WEAK_TOKENS) if suited_mode(self.session.model) == "guided" else most
        return output_limit(self.session.model, usual)

    def urgent(self) -> str:
        """What the model must hear before this turn and could not hear after the last one."""
        memory = self.session.memory
        if memory.forced == "wall_time":
            return feedback.TIME_UP.format(final_example=self.finish)
        if memory.forced == "last_call":
            left = self.session.scope.budget.max_wall_time_sec - memory.elapsed_s
            return feedback.LAST_CALL.format(left=left, call=memory.call_s, final_example=self.finish)
        first = memory.forced == "iterations" and memory.turn == 1
        return feedback.LAST_TURN.format(final_example=self.finish) if first else ""

    def after_turn(self, text: str, elapsed_s: float) -> str:
        """What the model hears after a turn: what came of it, and what is left at this time."""
        session = self.session
        turns = session.scope.left()["iterations"]
        lines = [text, *([feedback.CUT] if session.memory.cut else []), "", self.left_line(elapsed_s)]
        if turns == 1:
            lines.append(feedback.LAST_TURN.format(final_example=self.finish))
        elif turns <= SUBMIT_DEADLINE_TURNS:
            lines.append(feedback.DEADLINE.format(turns=turns, final_example=self.finish))
        return "\n".join(lines).strip()

    def left_line(self, elapsed_s: float) -> str:
        """What is left of the budget in one line."""
        session = self.session
        wall_s = session.scope.budget.max_wall_time_sec
        return session.engine.left_line(self.left(), elapsed_s=elapsed_s, wall_s=wall_s)

    def left(self) -> dict[str, Any]:
        """What is left of the budget."""
        return self.session.scope.left()


class CodeReplies(ReplyForm):
    """Fenced Python, or `{reasoning, code}` by a schema. Prose is the answer of a child, and a mistake of the root."""

    forgets = True

    def __init__(self, session: Session) -> None:
        self.session = session
        self.finish = session.final_example
        self._looks: list[str] = []

    def opening(self, elapsed_s: float) -> Conversation:
        """Rules, functions with their documentation, and a task that names the variables."""
        session = self.session
        spec, cites = session.spec, session.shared.cites
        names = (*session.host.names, *(["citations"] if cites else []))
        system = fill(
            offered(session.engine.system if session.errand is None else session.engine.child, names),
            functions=session.host.prompt,
            looked=", and cite what you looked at" if cites else "",
            calling="" if spec.profile == "assign-only" else "call them like any Python function; ",
            profile=offered(
                language_text(spec.profile, spec.backend, spec.packages, brief=bool(session.host.functions.brief)),
                names,
            ),
            form=prompt_file("runtime/schema") if session.engine.reply_form == "schema" else "",
            final=session.final_example,
        )
        return Conversation(system, render_task(session, in_code=True, left=self.left_line(elapsed_s)))

    def ahead(self) -> CallTool | None:
        """A child that was given a few lines reads them before its model is asked: one call instead of two."""
        session, context = self.session, self.session.spec.context
        looks = context.first_looks if session.errand is not None and isinstance(context, Narrowable) else ()
        turn = session.memory.turn
        if session.memory.forced or turn > len(looks):
            return None
        return CallTool(tool_name="read_file", args=dict(looks[turn - 1]))

    def call(self, action: CallTool) -> Observation:
        """Those lines, numbered, so that they can be cited; as many as leave room for an answer."""
        session = self.session
        try:
            found = session.host.tool_action(action.tool_name, action.args)
        except Fault as fault:
            return Observation(text=f"{action.tool_name} failed: {fault.message}")
        numbered = [f"{number} {line}" for number, line in enumerate(found["content"].split("\n"), found["startLine"])]
        room = 4 * (session.scope.left()["tokens"] - session.history.tokens() - ANSWER_TOKENS)
        fits = sum(size <= room for size in accumulate(len(line) + 1 for line in numbered))
        shown = [f"{action.args['path']}:", *numbered[:fits]]
        if fits < len(numbered):
            first, last = found["startLine"] + fits, found["endLine"]
            shown.append(f"(lines {first}-{last} do not fit in the budget of this sub-call: say so if you need them)")
        return Observation(text="\n".join(shown))

    def after_turn(self, text: str, elapsed_s: float) -> str:
        """What was read before the first reply becomes part of the task."""
        if self.session.memory.asked:
            return super().after_turn(text, elapsed_s)
        self._looks.append(text)
        return "\n\n".join([render_task(self.session, in_code=True, left=self.left_line(elapsed_s)), *self._looks])

    def prepare(self) -> None:
        """For a follow-up, run the code of the earlier run again."""
        if self.session.errand is None and self.session.spec.played.recordings:
            self.session.coder.box()

    def schema(self) -> Mapping[str, Any] | None:
        """Only for engines that ask for one."""
        return CODE_SCHEMA if self.session.engine.reply_form == "schema" else None

    def read(self, text: str) -> Action:
        """As the engine wants it; `longest` is for a root only."""
        form = self.session.engine.reply_form
        if form == "longest" and self.session.errand is None:
            return read_longest(text)
        return read_schema(text) if form in {"schema", "claims"} else read_code(text)

    def finishes(self, text: str) -> bool:
        """The prose of a child is its answer."""
        prose = self.session.errand is not None and isinstance(self.read(text), Say)
        return prose or super().finishes(text)

    def said(self, say: Say) -> Observation:
        """A child's answer; a root is shown what a block looks like."""
        if self.session.errand is not None and say.text:
            return Observation(text="", final=Finalize(output=say.text))
        listed = "list_files" in self.session.host.names
        look = "print(list_files()[:20])" if listed else "print(budget())"
        if self.session.spec.profile == "assign-only":
            look = f"seen = {'list_files()' if listed else 'budget()'}\nprint(seen)"
        return Observation(text=feedback.NUDGE.format(look=look, final_example=self.finish))

    def refused(self, reasons: Sequence[str], value: Any, *, confirmable: bool) -> str:
        """The value stays in a variable, so the model need not write it again."""
        self.session.coder.offer("held_final", value)
        how = feedback.CONFIRM_OR_MEND if confirmable else feedback.MEND
        return feedback.repair_text(reasons, how.format(example=f"Example: {self.finish}"))

    def left(self) -> dict[str, Any]:
        """Without depth where the profile forbids sub-calls, so that the model does not hear of them."""
        barred = {"depth": 0} if self.session.spec.profile == "assign-only" else {}
        return self.session.scope.left() | barred


class ClaimReplies(CodeReplies):
    """One JSON object with claims: the runtime has them checked and submits those that hold. Code is understood as well.

    The data stand first in the prompt and the request last, under the system message of sub-calls: whoever checks the claims gets a prompt
    with the same beginning, and the provider has it in its cache. Readers of parts are asked before the model is.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.finish = feedback.FINAL_CLAIMS
        self._readings: str | None = None

    def opening(self, elapsed_s: float) -> Conversation:
        """What there is to judge, then what to do."""
        return Conversation(QUERY_SYSTEM, self._task(elapsed_s))

    def _task(self, elapsed_s: float) -> str:
        session = self.session
        shown = "\n\n".join(filter(None, (session.prefilter.text, self._readings)))
        left = self.left_line(elapsed_s)
        asked = render_task(session, in_code=False, left=left, found=False)
        return "\n\n".join(filter(None, (shown, session.delegation.heed(shown), session.engine.system, asked)))

    def ahead(self) -> None:
        """Have the parts read, once, and put what the readers say into the task; the model answers in this same turn."""
        session, reading = self.session, self.session.prefilter.reading
        if reading is None or self._readings is not None:
            return
        most = (
            session.scope.left()["subcalls"] if "llm_batch" in session.host.names and not session.memory.forced else 0
        )
        prompts = list(reading.prompts[:most])
        answers = self._delegated(lambda: session.host.functions.llm_batch(prompts)) if prompts else []
        self._readings = reading.told(answers)
        session.history.retell(self._task(session.memory.elapsed_s))

    def _delegated(self, asks: Callable[[], list[Any]]) -> list[Any]:
        """What sub-calls of the runtime's own say; nothing where they cannot be asked."""
        session = self.session
        session.host.site.ordinal += 1
        session.advance(LoopState.DELEGATING)
        try:
            found = asks()
        except Fault:  # whoever gets no answer goes on without
            found = []
        session.advance(LoopState.PLANNING)
        return found

    def schema(self) -> Mapping[str, Any]:
        """The same for every turn."""
        return CLAIMS_SCHEMA

    def finishes(self, text: str) -> bool:
        """Claims are the end."""
        return read_claims(text) is not None or super().finishes(text)

    def read(self, text: str) -> Action:
        """The claims that hold as a final value, with the fields beside them."""
        found = read_claims(text)
        if found is None:
            return super().read(text)
        functions, review = self.session.host.functions, self.session.prefilter.review
        listed = [cast("dict[str, Any]", each) for each in cast("list[Any]", found["claims"]) if isinstance(each, dict)]
        numbered = [{"id": at, **claim} for at, claim in enumerate(listed)]
        claims = [{**claim, "first_failure": claim["id"] == found.get("first_failure")} for claim in numbered]
        if claims and review is not None and (checked := self._delegated(lambda: functions.check(claims))):
            surest = max(checked, key=lambda claim: claim["confidence"])
            claims = [claim for claim in checked if claim["confidence"] >= review.kept] or [surest]
        fields = {name: value for name, value in found.items() if name not in {"claims", "first_failure"}}
        return Finalize(output={**fields, "findings": claims})

    def said(self, say: Say) -> Observation:
        """What a reply looks like."""
        del say
        return Observation(text=feedback.NO_CLAIMS.format(final_example=self.finish))

    def refused(self, reasons: Sequence[str], value: Any, *, confirmable: bool) -> str:
        """The reasons; the object is in the model's last reply."""
        del confirmable  # claims are checked by a sub-call of their own
        self.session.coder.offer("held_final", value)
        return feedback.repair_text(reasons, template=feedback.REPAIR_CLAIMS)


class ActionReplies(ReplyForm):
    """One typed action per reply, as a JSON object."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.finish = feedback.FINAL_ACTION
        left = session.scope.left()
        self._schema = action_schema(delegates=bool(left["depth"] and left["subcalls"]))

    def opening(self, elapsed_s: float) -> Conversation:
        """What the work is, without how it is done in code; the tools, and the fields of an action."""
        session, fields = self.session, self._schema["properties"]
        prompt = session.engine.system if session.errand is None else session.engine.child
        rules = session.engine.in_actions if session.errand is None else ""
        system = fill(
            offered(prompt_file("runtime/actions"), [DELEGATE] if DELEGATE in fields["type"]["enum"] else []),
            engine="\n\n".join(filter(None, (_IN_CODE.split(prompt.partition("\n\n")[0])[0], rules))),
            tools=session.shared.registry.prompt,
            schema=json.dumps(fields),
            final=session.final_example,
        )
        return Conversation(system, render_task(session, in_code=False, left=self.left_line(elapsed_s)))

    def schema(self) -> Mapping[str, Any]:
        """The same for every turn."""
        return self._schema

    def read(self, text: str) -> Action:
        """One action that the guard allows."""
        return _typed(self.session, text)

    def said(self, say: Say) -> Observation:
        """The text already says what was wrong with the reply."""
        return Observation(text=say.text)

    def refused(self, reasons: Sequence[str], value: Any, *, confirmable: bool) -> str:
        """The reasons."""
        del value  # the model has it in its last reply
        return feedback.repair_text(reasons, feedback.CONFIRM_OR_MEND_ACTION if confirmable else feedback.MEND_ACTION)


class GuidedReplies(ReplyForm):
    """Typed actions for a model that must be led: a `Guide` decides what it may say next and what it sees."""

    history_tokens = guided.HISTORY_TOKENS

    def __init__(self, session: Session) -> None:
        self.session = session
        self.finish = session.final_example
        self.guide = guided.Guide(session.objective, session.shared.registry, session.spec.schema)

    @property
    def ending(self) -> bool:
        """After a repetition, or an answer that did not hold."""
        return self.guide.ending

    def opening(self, elapsed_s: float) -> Conversation:
        """A short prompt with turns of another run; weak models follow examples better than rules."""
        del elapsed_s  # nor would they know what to do about the time
        system, *shown = [part.strip() for part in prompt_file("runtime/guided").split("\n---\n")]
        roles: tuple[Role, Role] = ("user", "assistant")
        examples = [Message(roles[at % 2], text) for at, text in enumerate(shown)]
        return Conversation(fill(system, tools=self.guide.prompt), self.guide.question, examples)

    def ahead(self) -> CallTool | None:
        """The first looks are the runtime's own."""
        return self.guide.look() if self.session.memory.forced is None else None

    def schema(self) -> Mapping[str, Any]:
        """Made anew for each turn."""
        return self.guide.schema(last=self.session.memory.forced is not None)

    def reply_tokens(self) -> int:
        """Few."""
        return output_limit(self.session.model, guided.REPLY_TOKENS)

    def urgent(self) -> str:
        """Nothing: a grammar needs no words."""
        return ""

    def read(self, text: str) -> Action:
        """One action that the guard allows; in the end only the final one."""
        action = _typed(self.session, text)
        if self.session.memory.forced == REPETITION and not isinstance(action, Finalize | Say):
            raise ModelOutputInvalid("the model repeated itself and then did not finish")
        return action

    def said(self, say: Say) -> Observation:
        """The text already says what was wrong with the reply."""
        return Observation(text=say.text)

    def call(self, action: CallTool) -> Observation:
        """A tool's result as the few lines that fit the question."""
        if self.guide.repeats(action):
            return Observation(text=guided.DONE_ALREADY)
        host = self.session.host
        try:
            value = host.tool_action(action.tool_name, self.guide.arguments(action))
        except Fault as fault:
            return Observation(text=f"{action.tool_name} failed: {fault.message}")
        return Observation(text=self.guide.show(action, value, host.citations.ref))

    def refused(self, reasons: Sequence[str], value: Any, *, confirmable: bool) -> str | None:
        """The best lines again, to copy from, once: what cannot be copied then is not there."""
        del value, confirmable
        return self.guide.refused(reasons) if self.guide.lines and not self.guide.copying else None

    def judged(self, value: Any, ground: Gathered, judge: Judge) -> Conclusion:
        """Only what occurs in the evidence counts."""
        return self.guide.judged(value, ground, judge)

    def after_turn(self, text: str, elapsed_s: float) -> str:
        """The question again after each result: a small model forgets it otherwise."""
        del elapsed_s
        return f"{text}\n\n{self.guide.question}"


FORMS = {"code": CodeReplies, "actions": ActionReplies, "guided": GuidedReplies}


def form_of(session: Session) -> ReplyForm:
    """The form of a session: that of its mode, or claims where a root's engine asks for them instead of code."""
    claims = session.spec.mode == "code" and session.errand is None and session.engine.reply_form == "claims"
    return ClaimReplies(session) if claims else FORMS[session.spec.mode](session)


def _typed(session: Session, text: str) -> Action:
    try:
        return read_action(text, session.guard)
    except FormatFault as fault:
        return Say(text=fault.message)
