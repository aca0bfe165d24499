"""THE loop: one node of the recursion tree, from an objective to an outcome.

A turn is one model reply and what came of it. Limits are asked before a turn and after each reply. Faults go back to
the model; a reached limit leads to the best that can be said; violations and a lost sandbox end the whole run. Sub-
calls run this same loop one level down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from sonde.core.budget import Scope
from sonde.core.canonical import clip, jsonable
from sonde.core.events import Compacted, StateChanged, TurnStarted
from sonde.core.status import LOOP_TRANSITIONS, LoopState, advance
from sonde.errors import (
    BudgetExceeded,
    Fault,
    FormatFault,
    ModelCallFailed,
    ModelOutputInvalid,
    RunError,
    SandboxLost,
    SandboxViolation,
    WallTimeLimitReached,
)
from sonde.models.base import Message, suited_mode
from sonde.runs.recording import Diverged
from sonde.runtime import feedback
from sonde.runtime.actions import (
    CODE_SCHEMA,
    Action,
    CallTool,
    Delegate,
    Finalize,
    RunCode,
    SandboxGuard,
    Say,
    Synthesize,
    action_of,
    action_schema,
    read_action,
    read_code,
    read_longest,
    read_schema,
)
from sonde.runtime.code_runner import Coder, has_final_signal
from sonde.runtime.delegate import Delegation, Errand
from sonde.runtime.engine import Prefilter
from sonde.runtime.finish import Outcome, best_effort, conclude, gate_checked, settled, stopped_here
from sonde.runtime.guided import DONE_ALREADY, HISTORY_TOKENS, REPLY_TOKENS, Guide
from sonde.runtime.history import History, Turn, one_line
from sonde.runtime.host import Host
from sonde.runtime.memory import Memory, Observation
from sonde.runtime.model_calls import FIRST, FOLDED, REGENERATED, Place, Question, ask, given_up
from sonde.runtime.prompts import render_examples, render_system, render_task
from sonde.runtime.wiring import Cancelled, Wiring, by_user

SUBMIT_DEADLINE_TURNS = 2
REPETITION = "repetition"
WEAK_TOKENS = 400  # what a weak model has not said by then it will not say: left alone it talks until the time is up


class Session:
    """One loop. `errand` is None for the root."""

    def __init__(
        self, wiring: Wiring, scope: Scope, path: str, errand: Errand | None = None, prefilter: Prefilter | None = None
    ) -> None:
        self.wiring = wiring
        self.scope = scope
        self.path = path
        self.errand = errand
        self.engine = wiring.task.engine
        self.objective = errand.objective if errand else wiring.task.objective
        self.model = (wiring.sub_model if errand else wiring.model) or wiring.model
        self.prefilter = prefilter or Prefilter()
        self.delegation = Delegation(wiring=wiring, scope=scope, session=path, spawn=self._spawn)
        self.host = Host(self.delegation, self.prefilter.review)
        self.guard = SandboxGuard(wiring.registry.names, delegation_keys=self.engine.delegation_keys)
        self.coder = Coder(wiring, self.host, path, self._variables())
        self.guide = Guide(self.objective, wiring.registry, wiring.task.schema) if wiring.mode == "guided" else None
        left = scope.left()
        self.delegates = bool(left["depth"] and left["subcalls"])  # as it is told at the start, and in every schema
        self.history = History(render_system(self), render_task(self), render_examples(self))
        self.state = LoopState.INITIALIZED
        self.memory = Memory()
        self._script: Iterator[dict[str, Any]] | None = (
            iter(errand.actions) if errand is not None and errand.actions is not None else None
        )

    @property
    def final_example(self) -> str:
        """How this session is to finish: with the fields of the schema when there is one, a child as its prompt says."""
        if self.errand is not None:
            return next(
                (line for line in self.engine.child.splitlines() if line.startswith("SUBMIT(")),
                self.engine.final_example,
            )
        schema = self.wiring.task.schema
        return self.engine.final_example if schema is None else feedback.schema_example(schema)

    @property
    def finish(self) -> str:
        """The same in the form of this session's replies, for what it hears after a turn."""
        return feedback.FINAL_ACTION if self.wiring.mode == "actions" else self.final_example

    def run(self) -> Outcome:
        """The loop, until there is an outcome."""
        try:
            return self._loop()
        finally:
            self.coder.close()

    def _loop(self) -> Outcome:
        try:
            self.advance(LoopState.PLANNING)
            if self.errand is None and self.wiring.mode == "code" and self.wiring.task.played.blocks:
                self.coder.box()  # before the first turn: its time is not the run's
            while True:
                self.begin_turn()
                observation = self.act(self.next_action())
                outcome = self.settle(observation)
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

    def interrupted(self) -> Cancelled:
        """The user's stop, which all the others hear of."""
        self.wiring.cancel.set()
        return by_user()

    def begin_turn(self) -> None:
        """Ask the budget for one more turn, and decide whether it must be the last."""
        self.wiring.check_cancel()
        memory = self.memory
        if memory.forced not in (None, REPETITION):
            raise self._out_of_turns(memory.forced)
        # First of all: a replay charges no turn that was not made.
        recorded = self.wiring.tape.turn(self.path, memory.turn + 1)
        self.scope.charge(iterations=1)
        memory.turn += 1
        self.host.begin(memory.turn)
        started = recorded or TurnStarted(
            session=self.path,
            turn=memory.turn,
            elapsed_s=round(self.scope.deadline.elapsed(), 3),
            forced=self._force(),
            left=self.scope.left() | {"seconds": None},
        )
        memory.forced, memory.elapsed_s = started.forced, started.elapsed_s
        self.wiring.emit(started)
        self._compact(self.wiring.history_tokens if self.guide is None else HISTORY_TOKENS)

    def _force(self) -> str | None:
        if self.scope.must_finish():
            return "wall_time"
        if self.scope.left()["iterations"] == 0:
            return "iterations"
        return REPETITION if self.guide is not None and self.guide.ending else None

    def _out_of_turns(self, forced: str) -> BudgetExceeded:
        if forced == "wall_time":
            limit = self.scope.budget.max_wall_time_sec
            return WallTimeLimitReached(f"90 % of max_wall_time_sec {limit:g} was used", limit="max_wall_time_sec")
        self.scope.charge(iterations=1)
        raise AssertionError("a last turn leaves no further one")

    def next_action(self) -> Action:
        """The model's reply as an action; a reply that has no usable form is a Say or a FormatFault in words."""
        if self._script is not None:
            return self._scripted()
        look = self.guide.look() if self.guide is not None and self.memory.forced is None else None
        if look is not None:
            return look
        text = self._first_ask()
        if self.memory.forced and not self._finishes(text):
            reminder = feedback.REGENERATE.format(final_example=self.finish)
            text = self._ask(REGENERATED, (Message("assistant", text), Message("user", reminder)))
        self.memory.last_words = text
        return self._read(text) if self.wiring.mode == "code" else self._typed(text)

    def _read(self, text: str) -> RunCode | Say:
        if self.engine.reply_form == "longest" and self.errand is None:
            return read_longest(text)
        return read_schema(text) if self.engine.reply_form == "schema" else read_code(text)

    def _finishes(self, text: str) -> bool:
        """Whether a reply tries to finish; the prose of a child is its answer."""
        said = self.errand is not None and self.wiring.mode == "code" and isinstance(self._read(text), Say)
        return said or has_final_signal(text)

    def _first_ask(self) -> str:
        """Ask; a conversation that is more than the model reads is folded once and asked again."""
        try:
            return self._ask(FIRST)
        except ModelCallFailed as failure:
            if not failure.too_long or not self._compact(self.history.tokens() // 2):
                raise
            return self._ask(FOLDED)

    def _ask(self, ordinal: int, extra: tuple[Message, ...] = ()) -> str:
        assert self.model is not None, "a run without a model has no session"
        messages, kept = self.history.take(self._urgent())
        question = Question(
            messages=(*messages, *extra),
            kept=kept if not extra else len(messages),
            schema=self._schema(),
            max_output_tokens=self._reply_tokens(),
        )
        place = Place(session=self.path, turn=self.memory.turn, ordinal=ordinal)
        replied = ask(self.wiring, self.scope, self.model, place, question)
        self.memory.cut = replied.finish_reason == "length"
        return replied.text

    def _reply_tokens(self) -> int:
        if self.guide is not None:
            return REPLY_TOKENS
        most = self.engine.max_output_tokens
        return min(most, WEAK_TOKENS) if suited_mode(self.model) == "guided" else most

    def _urgent(self) -> str:
        """What the model must hear before this turn and could not hear after the last one; a grammar needs no words."""
        if self.guide is not None:
            return ""
        if self.memory.forced == "wall_time":
            return feedback.TIME_UP.format(final_example=self.finish)
        first = self.memory.forced == "iterations" and self.memory.turn == 1
        return feedback.LAST_TURN.format(final_example=self.finish) if first else ""

    def _schema(self) -> Mapping[str, Any] | None:
        if self.guide is not None:
            return self.guide.schema(last=self.memory.forced is not None)
        if self.wiring.mode == "actions":
            return action_schema(delegates=self.delegates)
        return CODE_SCHEMA if self.engine.reply_form == "schema" else None

    def _typed(self, text: str) -> Action:
        try:
            action = read_action(text, self.guard)
        except FormatFault as fault:
            return Say(text=fault.message)
        if self.memory.forced == REPETITION and not isinstance(action, Finalize):
            raise ModelOutputInvalid("the model repeated itself and then did not finish")
        return action

    def _scripted(self) -> Action:
        assert self._script is not None
        step = next(self._script, None)
        if step is None:
            return Finalize(output=self.memory.draft or {"summary": f"done: {self.objective}"})
        self.guard.validate(step)
        return action_of(step)

    def act(self, action: Action) -> Observation:
        """Do what the action says."""
        if not isinstance(action, Say):
            self.memory.prose = 0
        match action:
            case RunCode():
                return self._busy(LoopState.ACTING, lambda: self._code(action))
            case CallTool():
                return self._busy(LoopState.ACTING, lambda: self._call(action))
            case Delegate():
                return self._busy(LoopState.DELEGATING, lambda: self._delegate(action))
            case Synthesize():
                self.memory.draft = action.output
                return Observation(text="The draft is kept. Finish with a finalize action when it is ready.")
            case Finalize(output=None):
                return Observation(text="", final=Finalize(output=self.memory.draft))
            case Finalize():
                return Observation(text="", final=action)
            case Say():
                return self._said(action)

    def _busy(self, state: LoopState, work: Any) -> Observation:
        self.advance(state)
        observation: Observation = work()
        self.advance(LoopState.PLANNING)
        return observation

    def _code(self, action: RunCode) -> Observation:
        ran = self.coder.run(action, self.memory.turn)
        text = "\n".join([*ran.texts, feedback.notes_text(self.host.site.notes)]).strip()
        final = None if ran.final is None else Finalize(output=ran.final.value)
        unseen = [f"this block also printed what you have not seen yet:\n{ran.printed}"] if ran.printed else []
        unseen += [f"it cites what you have not read yet: {each}" for each in self.host.citations.unseen]
        return Observation(text=text, final=final, unseen="\n".join(unseen))

    def _call(self, action: CallTool) -> Observation:
        if self.guide is not None and self.guide.repeats(action):
            return Observation(text=DONE_ALREADY)
        args = action.args if self.guide is None else self.guide.arguments(action)
        try:
            value = self.host.tool_action(action.tool_name, args)
        except Fault as fault:
            return Observation(text=f"{action.tool_name} failed: {fault.message}")
        if self.guide is not None:
            return Observation(text=self.guide.show(action, value, self.host.citations.ref))
        text = feedback.value_text(action.tool_name, value)
        return Observation(text="\n".join([text, feedback.notes_text(self.host.site.notes)]).strip())

    def _delegate(self, action: Delegate) -> Observation:
        errand = Errand(
            objective=action.objective,
            context=action.context,
            actions=None if action.use_planner else action.actions,
        )
        self.host.site.ordinal += 1
        result = self.host.functions.run_child(errand)
        return Observation(text=feedback.value_text("delegate_subcall", result.as_dict()))

    def _said(self, action: Say) -> Observation:
        if self.errand is not None and self.wiring.mode == "code" and action.text:
            return Observation(text="", final=Finalize(output=action.text))
        self.memory.prose += 1
        if self.memory.prose >= 2:
            raise ModelOutputInvalid("the model replied twice in a row without code or a usable action")
        if self.wiring.mode != "code":
            return Observation(text=action.text)
        look = "print(list_files()[:20])" if "list_files" in self.host.names else "print(budget())"
        return Observation(text=feedback.NUDGE.format(look=look, final_example=self.final_example))

    def settle(self, observation: Observation) -> Outcome | None:
        """The outcome when the final value passes its gates; otherwise the model hears what came of its turn."""
        if observation.final is None:
            self.observe(observation.text)
            return None
        if self._hold_back(observation):
            return None
        conclusion = conclude(self, observation.final.output)
        if conclusion.problems and not self.memory.repaired and self._may_repair():
            self.memory.repaired = True
            reasons = [problem.reason for problem in conclusion.problems]
            self.memory.draft = observation.final.output
            self.observe(self._repair(reasons, observation.final.output))
            return None
        return settled(self, conclusion)

    def _repair(self, reasons: list[str], output: Any) -> str:
        if self.guide is not None:
            return self.guide.refused(reasons)
        if self.wiring.mode == "actions":
            return feedback.repair_text(reasons, template=feedback.REPAIR_ACTION)
        self.coder.offer("held_final", output)
        return feedback.repair_text(reasons, f"Example: {self.final_example}")

    def _may_repair(self) -> bool:
        hopeless = self.guide is not None and not self.guide.lines
        return self.memory.forced in (None, REPETITION) and self._script is None and not hopeless

    def _hold_back(self, observation: Observation) -> bool:
        held = bool(observation.unseen) and not self.memory.held_back and self._may_repair()
        held = held and self.scope.left()["iterations"] > 1
        if held:
            assert observation.final is not None
            self.memory.held_back = True
            self.memory.draft = observation.final.output
            value = clip(repr(jsonable(observation.final.output)), 500)
            shown = clip(observation.unseen, feedback.SHOWN_CHARS)
            self.coder.offer("held_final", observation.final.output)
            gate_checked(self, "seen", ["the block also showed something unseen"])
            self.observe(feedback.HELD_BACK.format(shown=shown, value=value))
        return held

    def observe(self, text: str) -> None:
        """Tell the model what came of its turn, and what is left."""
        memory = self.memory
        said = self._with_left(text) if self.guide is None else self.guide.ask(text)
        if self.guide is not None and self.guide.looking:
            self.history.retell(said)
            return
        line = one_line(memory.turn, memory.last_words, text)
        self.history.add(Turn(number=memory.turn, reply=memory.last_words, observation=said, line=line))

    def _with_left(self, text: str) -> str:
        left = self.scope.left()
        lines = [text, *([feedback.CUT] if self.memory.cut else []), "", self.left_line(self.memory.elapsed_s)]
        turns = left["iterations"]
        example = self.finish
        if turns == 1:
            lines.append(feedback.LAST_TURN.format(final_example=example))
        elif turns <= SUBMIT_DEADLINE_TURNS:
            lines.append(feedback.DEADLINE.format(turns=turns, final_example=example))
        return "\n".join(lines).strip()

    def left_line(self, elapsed_s: float) -> str:
        """What is left of the budget; sub-calls are named only where they can be made."""
        left = self.scope.left()
        if self.wiring.mode == "code" and self.wiring.profile == "assign-only":
            left["depth"] = 0
        return self.engine.left_line(left, elapsed_s=elapsed_s, wall_s=self.scope.budget.max_wall_time_sec)

    def _compact(self, limit: int) -> bool:
        before = self.history.tokens()
        turns = self.history.compact(limit)
        if turns:
            self.wiring.emit(
                Compacted(
                    session=self.path,
                    turn=self.memory.turn,
                    turns=turns,
                    tokens_before=before,
                    tokens_after=self.history.tokens(),
                )
            )
        return turns > 0

    def advance(self, state: LoopState) -> None:
        """Move the loop's state along its table; moves are on the stream."""
        self.state = advance(LOOP_TRANSITIONS, self.state, state)
        self.memory.states += 1
        self.wiring.emit(
            StateChanged(session=self.path, turn=self.memory.turn, state=state.value, ordinal=self.memory.states)
        )

    def _variables(self) -> dict[str, Any]:
        state: dict[str, Any] = {"variables": {}, "evidence_refs": [], "hypothesis_candidates": []}
        if self.errand is not None:
            return {**state, **self.errand.context, "context": dict(self.errand.context)}
        return {**state, **self.wiring.task.variables, **self.prefilter.variables}

    def _spawn(self, path: str, errand: Errand, scope: Scope) -> Outcome:
        wiring = replace(self.wiring, log=self.wiring.log.copy())
        outcome = Session(wiring, scope, path, errand).run()
        return replace(outcome, seen=tuple(wiring.log.since(self.wiring.log)))
