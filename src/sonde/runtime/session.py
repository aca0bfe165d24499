"""THE loop: one node of the recursion tree, from an objective to an outcome.

A turn is one model reply and what came of it. Limits are checked before a turn and after each reply. Faults go back to
the model; a reached limit leads to the best that can be said; violations and a lost sandbox end the whole run. Sub-
calls run this same loop one level down. `forms` decides what the model reads and how its replies are read.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from sonde.contexts import Narrowable
from sonde.core.budget import LastTurn, Scope
from sonde.core.canonical import canonical_json, clip, jsonable
from sonde.core.events import Compacted, StateChanged, TurnStarted
from sonde.core.status import LOOP_TRANSITIONS, LoopState, advance
from sonde.errors import (
    BudgetExceeded,
    Cancelled,
    Fault,
    ModelCallFailed,
    ModelOutputInvalid,
    RunError,
    SandboxLost,
    SandboxViolation,
    ToolFault,
    WallTimeLimitReached,
    by_user,
)
from sonde.models.base import Message
from sonde.runs.recording import Diverged
from sonde.runtime import feedback
from sonde.runtime.actions import (
    DELEGATE,
    Action,
    CallTool,
    Delegate,
    Finalize,
    RunCode,
    SandboxGuard,
    Say,
    Synthesize,
    action_of,
)
from sonde.runtime.code_runner import Coder
from sonde.runtime.delegate import Delegation, Errand
from sonde.runtime.engine import NO_PREFILTER, Prefilter
from sonde.runtime.finish import Outcome, best_effort, conclude, gate_checked, settled, stopped_here
from sonde.runtime.forms import REPETITION, ReplyForm, form_of
from sonde.runtime.host import Host
from sonde.runtime.memory import Conversation, Exchange, Memory, Observation
from sonde.runtime.model_calls import FIRST, FOLDED, REGENERATED, Question, ask, given_up
from sonde.tools import ToolRegistry

if TYPE_CHECKING:
    from sonde.runtime.run import Run

EXAMPLE_CITATION = re.compile(r" ?\[path[^\]]*\]")
MAX_REPAIRS = 2
"""How often the model may mend a final value, per gate."""


class Session:
    """One loop. `errand` is None for the root."""

    def __init__(
        self, run: Run, scope: Scope, path: str, errand: Errand | None = None, prefilter: Prefilter = NO_PREFILTER
    ) -> None:
        self.shared = run
        self.spec = run.spec
        self.scope = scope
        self.path = path
        self.errand = errand
        self.engine = run.spec.engine
        self.objective = errand.objective if errand else run.spec.objective
        self.model = (run.sub_model if errand else run.model) or run.model
        self.prefilter = prefilter
        self.delegation = Delegation(run=run, scope=scope, session=path, spawn=self._spawn, delegating=self.delegating)
        self.host = Host(self.delegation, self.prefilter.review)
        state: dict[str, Any] = {"variables": {}, "evidence_refs": [], "hypothesis_candidates": []}
        given = {**run.spec.variables, **prefilter.variables}
        if errand is not None:
            given = {**errand.context, "context": dict(errand.context)}
        self.coder = Coder(run, self.host, path, {**state, **given})
        self.memory = Memory()
        self.form: ReplyForm = form_of(self)
        self.history: Conversation
        self.state = LoopState.INITIALIZED
        self._script: Iterator[dict[str, Any]] | None = (
            iter(errand.actions) if errand is not None and errand.actions is not None else None
        )

    @property
    def final_example(self) -> str:
        """How code finishes here: with the fields of the schema when there is one, a child as its prompt says."""
        if self.errand is not None:
            return next(
                (line for line in self.engine.child.splitlines() if line.startswith("SUBMIT(")),
                self.engine.final_example,
            )
        schema, cites = self.spec.schema, self.shared.cites
        if schema is not None:
            return feedback.schema_example(schema, cites=cites)
        return self.engine.final_example if cites else EXAMPLE_CITATION.sub("", self.engine.final_example)

    @property
    def confirms(self) -> bool:
        """Whether a small question confirms a claim whose lines the model had not seen."""
        return self.engine.confirms and self.shared.cites and self._script is None and self.spec.mode != "guided"

    @property
    def guard(self) -> SandboxGuard:
        """Which typed actions are allowed here."""
        return SandboxGuard(self.shared.registry.names, delegation_keys=self.engine.delegation_keys)

    def run(self) -> Outcome:
        """The loop, until there is an outcome."""
        try:
            self.advance(LoopState.PLANNING)
            self.form.prepare()
            while True:
                outcome = self.turn()
                if outcome is not None:
                    self.advance(LoopState.FINALIZING)
                    self.advance(LoopState.COMPLETED)
                    return outcome
        except (BudgetExceeded, KeyboardInterrupt) as reached:
            self.advance(LoopState.TERMINATED_BUDGET)
            return best_effort(self, reached if isinstance(reached, BudgetExceeded) else self.interrupted())
        except Diverged as diverged:
            stopped = stopped_here(self, diverged)
            if stopped is None:
                raise
            self.advance(LoopState.TERMINATED_BUDGET if isinstance(stopped, BudgetExceeded) else LoopState.FAILED)
            return best_effort(self, stopped)
        except (SandboxViolation, SandboxLost):
            self.advance(LoopState.FAILED)
            raise
        except RunError as error:
            self.advance(LoopState.FAILED)
            return best_effort(self, given_up(error) if isinstance(error, ModelCallFailed) else error)
        finally:
            self.coder.close()

    def turn(self) -> Outcome | None:
        """One reply and what came of it; the outcome if its final value passes the gates. Otherwise the model hears why it does not."""
        self.begin_turn()
        observation = self.act(self.next_action())
        if observation.final is None:
            self.observe("\n".join(filter(None, (observation.text, self.delegation.heed(observation.text)))))
            return None
        return self.settle(observation.final.output, observation)

    def begin_turn(self) -> None:
        """Ask the budget for one more turn, and decide whether it must be the last."""
        self.shared.check_cancel()
        memory = self.memory
        if memory.forced in get_args(LastTurn):
            used = "90 %" if memory.forced == "wall_time" else "too much for another call"
            text = f"{used} of max_wall_time_sec {self.scope.budget.max_wall_time_sec:g} was used"
            raise WallTimeLimitReached(text, limit="max_wall_time_sec")
        if memory.forced == "iterations":
            self.scope.charge(iterations=1)
            raise AssertionError("a last turn leaves no further one")
        # First of all: a replay charges no turn that the recorded run did not take.
        started = self.spec.recording.expect(TurnStarted, self.path, memory.turn + 1)
        live = started is None
        elapsed_s = round(self.scope.deadline.elapsed(), 3) if started is None else started.elapsed_s
        # Older versions told the time of the turn before, and their runs replay with that.
        self._tell(elapsed_s if started is None or started.call_s is not None else memory.elapsed_s)
        self.scope.charge(iterations=1)
        memory.turn += 1
        self.host.begin(memory.turn)
        memory.shown = len(self.coder.printed)
        if started is None:
            left, call_s = self.scope.left(), round(memory.expected_s(), 3)
            last = "iterations" if left["iterations"] == 0 else REPETITION if self.form.ending else None
            started = TurnStarted(
                session=self.path,
                turn=memory.turn,
                elapsed_s=elapsed_s,
                call_s=call_s,
                forced=self.scope.last_by_time(elapsed_s, call_s) or last,
                left=left | {"seconds": None},
            )
        memory.forced, memory.elapsed_s, memory.call_s = started.forced, elapsed_s, started.call_s or 0.0
        self.shared.emit(started)
        if not self._compact(self.form.history_tokens):
            self._shrink(live=live)

    def next_action(self) -> Action:
        """What to do in this turn: the next step of a script, an action of the form's own, or the model's reply read as one."""
        if self._script is not None:
            step = next(self._script, None)
            if step is None:
                return Finalize(output=self.memory.draft or {"summary": f"done: {self.objective}"})
            self.guard.validate(step)
            return action_of(step)
        ahead = self.form.ahead()
        self.memory.asked = ahead is None
        if ahead is not None:
            return ahead
        try:
            text = self._ask(FIRST)
        except ModelCallFailed as failure:
            # A conversation that is longer than the model reads is folded once, and the model asked again.
            if not failure.too_long or not self._compact(self.history.tokens() // 2):
                raise
            text = self._ask(FOLDED)
        if self.memory.forced and not self.engine.scripted and not self.form.finishes(text):
            reminder = feedback.REGENERATE.format(final_example=self.form.finish)
            text = self._ask(REGENERATED, (Message("assistant", text), Message("user", reminder)))
        self.memory.last_words = text
        return self.form.read(text)

    def _ask(self, ordinal: int, extra: tuple[Message, ...] = ()) -> str:
        assert self.model is not None, "a run without a model has no session"
        messages, kept = self.history.take(self.form.urgent())
        question = Question(
            session=self.path,
            turn=self.memory.turn,
            ordinal=ordinal,
            messages=(*messages, *extra),
            kept=kept if not extra else len(messages),
            schema=self.form.schema(),
            max_output_tokens=self.form.reply_tokens(),
            conversation=self.path,
        )
        replied = ask(self.shared, self.scope, self.model, question)
        self.memory.cut = replied.finish_reason == "length"
        self.memory.calls.append(max(0.0, replied.latency_s - replied.waited_s))
        return replied.text

    def act(self, action: Action) -> Observation:
        """Do what the action says."""
        self.memory.coded = isinstance(action, RunCode)
        if not isinstance(action, Say):
            self.memory.prose = 0
        match action:
            case RunCode():
                self.advance(LoopState.ACTING)
                ran = self.coder.execute(action, self.memory.turn)
                unseen = [f"this block also printed what you have not seen yet:\n{ran.printed}"] if ran.printed else []
                cited = self.host.citations.unseen
                unseen += [f"it cites what you have not read yet: {each}" for each in cited]
                shown = [f"Cited: {each}" for each in cited] if self.confirms and ran.final is None else []
                self.coder.printed += shown
                observation = Observation(
                    text="\n".join([*ran.texts, *shown, feedback.notes_text(self.host.site.notes)]).strip(),
                    final=None if ran.final is None else Finalize(output=ran.final.value),
                    unseen="\n".join(unseen),
                )
            case CallTool():
                self.advance(LoopState.ACTING)
                observation = self.form.call(action)
                self.coder.printed.append(observation.text)
            case Delegate():
                self.advance(LoopState.DELEGATING)
                actions = None if action.use_planner else action.actions
                self.host.site.ordinal += 1
                errand = Errand(objective=action.objective, context=action.context, actions=actions)
                try:
                    told = feedback.value_text(DELEGATE, self.host.functions.run_child(errand).as_dict())
                except ToolFault as fault:
                    told = f"{DELEGATE} failed: {fault.message}"
                observation = Observation(text=told)
            case Synthesize():
                self.memory.draft = action.output
                return Observation(text="The draft is kept. Finish with a finalize action when it is ready.")
            case Finalize():
                return Observation(
                    text="", final=Finalize(output=self.memory.draft) if action.output is None else action
                )
            case Say():
                observation = self.form.said(action)
                if observation.final is None:
                    self.memory.prose += 1
                    if self.memory.prose >= 2:
                        raise ModelOutputInvalid("the model replied twice in a row without code or a usable action")
                return observation
        self.advance(LoopState.PLANNING)
        return observation

    def settle(self, value: Any, observation: Observation) -> Outcome | None:
        """The outcome of a final value. It may be mended twice per gate that refuses it, unless it comes back unchanged. Where claims
        are not confirmed by a question, it is held back once if its block showed something unseen.
        """
        memory, unseen = self.memory, "" if self.engine.confirms else observation.unseen
        correctable = memory.forced in (None, REPETITION) and self._script is None
        may_hold = correctable and not self.engine.scripted and not memory.held_back
        if unseen and may_hold and self.scope.left()["iterations"] > 1:
            memory.held_back, memory.draft = True, value
            self.coder.offer("held_final", value)
            gate_checked(self, "seen", ["the block also showed something unseen"])
            shown, kept = clip(unseen, feedback.SHOWN_CHARS), clip(repr(jsonable(value)), 500)
            shown = "\n".join(filter(None, (shown, self.delegation.heed(shown))))
            self.observe(feedback.HELD_BACK.format(shown=shown, value=kept))
            return None
        conclusion = conclude(self, value, asks=True)
        mendable = [problem for problem in conclusion.problems if problem.mendable]
        gates, sent = {problem.gate for problem in mendable}, canonical_json(jsonable(value))
        # Older versions allowed one repair in all: a replay ends where the recorded session did.
        recording = self.spec.recording
        then = recording.at(StateChanged, self.path, memory.states + 1)
        went_on = recording.at(TurnStarted, self.path, memory.turn + 1) is not None
        ended = then is not None and then.state == LoopState.FINALIZING and not went_on
        fresh = sent != memory.refused and all(memory.repairs[gate] < MAX_REPAIRS for gate in gates)
        if gates and correctable and fresh and not ended:
            memory.repairs.update(gates)
            memory.refused, memory.draft = sent, value
            confirmable = all(problem.confirmable for problem in conclusion.problems)
            words = self.form.refused([problem.told for problem in mendable], value, confirmable=confirmable)
            if words is not None:
                if self.confirms and observation.unseen:  # what its block printed, too
                    words = "\n".join(filter(None, (observation.text, self.delegation.heed(observation.text), words)))
                self.observe(words)
                return None
        return settled(self, conclusion)

    def observe(self, text: str) -> None:
        """Keep what came of a turn until the model is told at the beginning of the next one."""
        self.memory.untold = text

    def _tell(self, elapsed_s: float) -> None:
        """Tell the model the task, or what came of its turn; and what is left, as of now."""
        memory = self.memory
        if memory.turn == 0:
            self.history = self.form.opening(elapsed_s)
        if memory.untold is None:
            return
        said = self.form.after_turn(memory.untold, elapsed_s)
        if memory.asked:
            turn = Exchange(number=memory.turn, reply=memory.last_words, outcome=memory.untold, observation=said)
            self.history.add(turn)
            if memory.turn == 1 and self.prefilter.later is not None:
                self.history.shorten(self.prefilter.text, self.prefilter.later)
        else:  # the model has not heard the task yet, so this becomes part of it
            self.history.retell(said)
        memory.untold = None

    def interrupted(self) -> Cancelled:
        """The user's stop; all other sessions hear of it."""
        self.shared.cancel.set()
        return by_user()

    def _compact(self, limit: int) -> bool:
        before = self.history.tokens()
        return self._compacted(before, self.history.compact(limit))

    def _shrink(self, *, live: bool) -> None:
        """Shorten old turns where that pays. A turn that was recorded is as it was then, also if older versions made other choices."""
        recorded = self.spec.recording.at(Compacted, self.path, self.memory.turn)
        wanted = self.engine.frugal and self.form.forgets and self.memory.forced is None
        if wanted if live else recorded is not None and recorded.shortened:
            before = self.history.tokens()
            self._compacted(before, self.history.shrink(), shortened=True)

    def _compacted(self, before: int, turns: int, *, shortened: bool = False) -> bool:
        if turns:
            self.shared.emit(
                Compacted(
                    session=self.path,
                    turn=self.memory.turn,
                    turns=turns,
                    tokens_before=before,
                    tokens_after=self.history.tokens(),
                    shortened=shortened,
                )
            )
        return turns > 0

    def advance(self, state: LoopState) -> None:
        """Move the loop's state along its table, and put the move on the stream."""
        self.state = advance(LOOP_TRANSITIONS, self.state, state)
        self.memory.states += 1
        self.shared.emit(
            StateChanged(session=self.path, turn=self.memory.turn, state=state.value, ordinal=self.memory.states)
        )

    @contextmanager
    def delegating(self) -> Generator[None]:
        """The loop's state while code waits for a sub-call. A limit that is reached there ends the loop in this state."""
        if self.shared.format < 1 or self.state is not LoopState.ACTING:
            yield
            return
        self.advance(LoopState.PLANNING)  # the table has no way from acting to delegating
        self.advance(LoopState.DELEGATING)
        fault: Fault | None = None
        try:
            yield
        except Fault as heard:  # the code hears it and goes on
            fault = heard
        self.advance(LoopState.PLANNING)
        self.advance(LoopState.ACTING)
        if fault is not None:
            raise fault

    def _spawn(self, path: str, errand: Errand, scope: Scope) -> Outcome:
        run, context = replace(self.shared, log=self.shared.log.copy()), self.spec.context
        if isinstance(context, Narrowable):
            part = context.narrowed(errand.paths)
            tools = [each for each in part.tools() if each.name in self.shared.registry.names]
            registry = ToolRegistry(tools, clock=self.spec.clock, given=self.spec.tools)
            run = replace(run, spec=replace(self.spec, context=part), registry=registry)
            given = {name: value for name, value in errand.context.items() if name != "paths"}
            errand = replace(errand, context=given)
        outcome = Session(run, scope, path, errand).run()
        return replace(outcome, seen=tuple(run.log.since(self.shared.log)))
