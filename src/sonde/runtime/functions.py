"""The functions that the runtime itself offers to generated code: sub-calls, the budget, and the evidence to keep.

Models read the docstrings here: short, each with an example. A session offers only functions that can work in it, and its
prompt names no others. `host` serves and records the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sonde.core.canonical import cut, jsonable
from sonde.core.events import Highlighted, HostReturned, SubcallStarted, TurnStarted
from sonde.core.evidence import Citation
from sonde.errors import ConfigError, ModelOutputInvalid, RunError, ToolFault, WallTimeLimitReached
from sonde.models.base import Model
from sonde.runtime.citations import Citations
from sonde.runtime.delegate import Delegation, Errand, SubcallResult
from sonde.runtime.engine import Review
from sonde.sandbox.policy import FINISH_NAMES
from sonde.tools import Tool, ToolRegistry, tool

FUNCTIONS = (
    "help",
    "budget",
    "append_highlight",
    "add_citation",
    "cite_tool",
    "llm_query",
    "llm_batch",
    "check",
    "sub_rlm",
    "rlm_batch",
    "delegate_subcall",
    "delegate_batch",
)
SUBCALLS = frozenset(
    {"llm_query", "llm_batch", "summarize", "check", "sub_rlm", "rlm_batch", "delegate_subcall", "delegate_batch"}
)
"""Those that wait for another model or a child."""
VARIABLES = (
    "CONTEXT",
    "CONTEXT_INDEX",
    "context",
    "variables",
    "evidence_refs",
    "hypothesis_candidates",
    "tool_trace",
    "budget_counters",
    "held_final",
)
SHARING = ("sub_rlm", "rlm_batch", "delegate_subcall")
MAX_HIGHLIGHTS, HIGHLIGHT_CHARS = 80, 240


Share = list[str] | dict[str, Any] | None
"""Names in the code; the worker puts the variables in their place, so that they arrive here with their values."""


class Functions:
    """The functions of one session and what they have gathered."""

    def __init__(self, delegation: Delegation, citations: Citations, review: Review | None = None) -> None:
        self.run = delegation.run
        self.scope = delegation.scope
        self.delegation = delegation
        self.citations = citations
        self.site = citations.site
        self.review = review
        self.highlights: list[str] = []
        self.subcalls: list[dict[str, Any]] = []
        self.checked: list[dict[str, Any]] = []

    @property
    def brief(self) -> Mapping[str, str | None]:
        """The engine's lines for functions; the convention of assign-only asks for their whole documentation."""
        spec = self.run.spec
        return {} if spec.profile == "assign-only" else spec.engine.brief

    def offered(self) -> list[Tool]:
        """Those that can work here."""
        functions: list[Callable[..., Any]] = [self.budget, self.append_highlight]
        if self.brief:
            functions.append(self.help)
        if "read_file" in self.run.registry.names and self.run.cites:
            functions.append(self.citations.add_citation)
        lifted = self.run.spec.profile == "assign-only"  # arguments are literals there: no dicts, no lists
        if self.run.registry.given and self.run.cites and not lifted:
            functions.append(self.citations.cite_tool)
        if self._may_ask():
            functions += [self.llm_query, self.llm_batch, self.summarize]
        if self.review is not None and not lifted:
            functions.append(self.check)
        # The depth-stop rule: a child with at most one level left asks plain questions instead of making children. A root whose
        # engine promises sub_rlm by name always has it: a call that is too deep is then a limit, and not an unknown name.
        root, levels = self.scope.depth == 0, self.scope.budget.max_depth - self.scope.depth
        promised = root and "sub_rlm" in (self.run.spec.engine.functions or ())
        if promised or (self._may_ask() and (root or levels > 1)):
            functions += [self.sub_rlm, self.rlm_batch, self.delegate_subcall, self.delegate_batch]
        tools = {each.__name__: tool(each) for each in functions}
        if "sub_rlm" in tools and self.run.spec.engine.max_subcall_chars is not None:
            tools["sub_rlm"] = tool(self.ask_once, "sub_rlm")
        if "add_citation" in tools and self.run.spec.engine.scripted:
            tools["add_citation"] = tool(self.citations.try_citation, "add_citation")
        wanted = self.run.spec.engine.functions or FUNCTIONS
        return [each for name, each in tools.items() if name in wanted]

    def _may_ask(self) -> bool:
        budget = self.scope.budget
        return (
            self.scope.depth < budget.max_depth and budget.max_subcalls > 0 and self.run.spec.profile != "assign-only"
        )

    def _path(self, index: int | None = None) -> str:
        path = f"{self.site.session}/{self.site.turn}.{self.site.ordinal}"
        return path if index is None else f"{path}.{index}"

    # Models read the docstrings below: keep them short, each with an example.

    def help(self, name: str) -> None:
        """Show how a function is called.

        Example: help("sub_rlm")
        """
        offered = ToolRegistry(self.offered())
        known = self.run.registry if name in self.run.registry.names else offered
        if name not in known.names:
            names = ", ".join((*self.run.registry.names, *offered.names))
            raise ToolFault(f"there is no function {name!r} here; there are {names}")
        self.site.notes.append(known.get(name).prompt)

    def llm_query(self, prompt: str) -> str:
        r"""Ask a language model one question; it sees only this prompt, so put the text to look at into it.

        Example: kind = llm_query("Is this log line an error? Answer yes or no.\n" + line)
        """
        try:
            return self.delegation.query(prompt, self._path())
        except ModelOutputInvalid as failure:  # the code hears that it got no reply, as in a batch
            raise ToolFault(f"the model gave no reply: {failure.message}") from None

    def summarize(self, text: str) -> str:
        """A short summary of a text by a sub-call.

        Example: gist = summarize(text)
        """
        return self.llm_query(f"Summarise in at most five sentences, keep names and numbers:\n{text}")

    def llm_batch(self, prompts: list[str]) -> list[str]:
        r"""Ask many questions in parallel; answers come in the same order. One that failed is text starting with "[error]".

        Example: answers = llm_batch([f"Summarise in one line:\n{text}" for text in chunks])
        """
        found = self.delegation.queries(prompts, self._path())
        answers = [f"[error] {each.message}" if isinstance(each, RunError | ToolFault) else each for each in found]
        failed = sum(isinstance(each, RunError | ToolFault) for each in found)
        if failed:
            self.site.notes.append(f'llm_batch: {failed} of {len(prompts)} failed; their text starts with "[error]"')
        return answers

    def check(self, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Have claims checked by somebody who doubts them. They come back in order, each with "confidence" (the odds that it holds),
        "doubt" (what speaks against it) and "verified" (False where nobody could be asked).

        Example: findings = [claim for claim in check(claims) if claim["confidence"] >= 0.5]
        """
        assert self.review is not None, "check is offered with a review only"
        prompts = self.review.questions(claims)
        may = self._may_ask() and len(prompts) <= self.scope.left()["subcalls"]
        if not may:
            self.site.notes.append("check: no sub-calls are left for it; the claims are not verified")
        judged = self.review.judged(claims, self.llm_batch(prompts) if may and prompts else [])
        self.checked += judged
        return judged

    def sub_rlm(
        self, prompt: str, depth: int = 1, context: dict[str, Any] | None = None, *, share: Share = None
    ) -> Any:
        """Give a task to a child that has its own Python session, the same tools and a share of the budget; returns its
        final value. It sees none of your variables but those named in `share` and what `context` holds. `depth` is how many
        levels it may use, itself included. Its turns and tokens count as yours; what it has cited you may cite.

        Example: found = sub_rlm("Find where retries are configured in these files", share=["paths"])
        """
        if depth < 1:
            raise ToolFault("depth counts levels from 1")
        errand = Errand(objective=prompt, context={**(context or {}), **shared(share)}, levels=depth)
        result = self.run_child(errand)
        if result.status != "succeeded" and result.value is None:  # words about a limit are not an answer
            raise ToolFault(f"the sub-call failed: {result.summary}")
        return result.summary if result.value is None else jsonable(result.value)

    def ask_once(self, prompt: str, depth: int = 1) -> str:
        r"""Ask another model once; it sees this prompt and nothing else, so put the text to look at into it. Returns its reply.

        Example: said = sub_rlm("What can this function raise?\n" + read_file(path, 10, 40))
        """
        if depth < 1:
            raise ToolFault("depth counts levels from 1")
        most = self.run.spec.engine.max_subcall_chars or 0
        if len(prompt) > most:
            raise ToolFault(f"the prompt has {len(prompt):,} characters; a sub-call takes {most:,}: send less text")
        self.scope.check_depth(self.scope.depth + depth)
        why = ""
        for path in (self._path(), self._path(1)):  # a failed call is tried once more, which is a sub-call of its own
            try:
                return self.delegation.query(prompt, path, bare=True).strip()
            except ModelOutputInvalid as failure:
                why = failure.message
            except WallTimeLimitReached:
                self.scope.check_time()  # raises if it was not only the sub-call's share of the time
                why = "no answer within nine tenths of the time that was left"
                break
            if self.scope.left()["subcalls"] == 0:
                break
        raise ToolFault(f"the sub-call failed: {why}")

    def rlm_batch(self, prompts: list[str], context: dict[str, Any] | None = None, *, share: Share = None) -> list[Any]:
        """Run several children in parallel, each with a fair share of the budget; one dict a child with status, summary,
        evidence_refs and gaps, in order. `context` and `share` go to each.

        Example: parts = rlm_batch([f"Summarise the errors in {path}" for path in paths])
        """
        given = {**(context or {}), **shared(share)}
        errands = [Errand(objective=prompt, context=given, levels=1) for prompt in prompts]
        return self.run_children(errands)

    def confirm(self, prompt: str, model: Model) -> str | None:
        """The reply to a small question of the runtime itself; None where nobody can be asked."""
        left, recording = self.scope.left(), self.run.spec.recording
        if left["depth"] < 1 or left["subcalls"] < 1:
            return None
        self.site.ordinal += 1
        # Where older versions asked nothing and took another turn, a replay takes it too.
        went_on = recording.at(TurnStarted, self.site.session, self.site.turn + 1) is not None
        if went_on and recording.at(SubcallStarted, self._path()) is None:
            return None
        try:
            return self.delegation.query(prompt, self._path(), model=model)
        except (ModelOutputInvalid, ToolFault):
            return None

    def run_children(self, errands: Sequence[Errand]) -> list[Any]:
        """Children in parallel; a failed one is a dict that says so."""
        self.delegation.require_room(len(errands), turns=1)
        scopes = [self.delegation.open_scope(errand, len(errands)) for errand in errands]
        found = self.delegation.many(
            list(zip(errands, scopes, strict=True)),
            lambda pair, index: self.delegation.child(pair[0], self._path(index), pair[1]),
        )
        return [
            {"status": "failed", "summary": each.message, "evidence_refs": [], "gaps": [each.message]}
            if isinstance(each, RunError | ToolFault)
            else self._absorb(each).as_dict()
            for each in found
        ]

    def delegate_subcall(
        self, objective: str, context: dict[str, Any] | None = None, *, share: Share = None
    ) -> dict[str, Any]:
        """Give one focused objective to a child session. `context` says where to look (only these fields reach it),
        share=["rows"] passes on variables of yours by name. Returns {status, summary, evidence_refs, gaps, ...}.

        Example: result = delegate_subcall("Check whether the tool call failed first", context={"focus": span_id})
        """
        errand = Errand(objective=objective, context={**self._allowed(context), **shared(share)})
        return self.run_child(errand).as_dict()

    def delegate_batch(self, errands: list[dict[str, Any]]) -> list[Any]:
        """Several delegate_subcall at once, in parallel, each with a fair share of the budget; results in order.

        Example: results = delegate_batch([{"objective": "Check the tool", "context": {"focus": span_id}}])
        """
        wanted: list[Errand] = []
        for each in errands:
            objective = each.get("objective")
            if not isinstance(objective, str) or not objective.strip():
                raise ToolFault('each errand is {"objective": "...", "context": {...}}')
            wanted.append(Errand(objective=objective, context=self._allowed(each.get("context"))))
        return self.run_children(wanted)

    def _allowed(self, context: dict[str, Any] | None) -> dict[str, Any]:
        allowed = self.run.spec.engine.delegation_keys
        given = context or {}
        if allowed is not None and (extra := set(given) - allowed):
            raise ToolFault(f"context may hold {', '.join(sorted(allowed))}; not {', '.join(sorted(extra))}")
        return given

    def run_child(self, errand: Errand) -> SubcallResult:
        """One child, with all that is left."""
        result = self._absorb(self.delegation.child(errand, self._path(), self.delegation.open_scope(errand, 1)))
        self.run.check_cancel()  # what a cancelled child has is not a result: a resume continues it
        return result

    def _absorb(self, result: SubcallResult) -> SubcallResult:
        self.subcalls.append(result.as_dict())
        self.run.log.note(result.seen, shown=True)
        self.citations.merge(ref for ref in result.evidence_refs if isinstance(ref, Citation) and not ref.fallback)
        return result

    def budget(self) -> dict[str, Any]:
        """What is left: turns (iterations), tool_calls, subcalls, tokens, cost_usd, seconds, depth.

        Example: left = budget()
        """
        place = (self.site.session, self.site.turn, self.site.ordinal)
        recorded = self.run.spec.recording.expect(HostReturned, *place)
        if recorded is not None and recorded.name == "budget" and recorded.result is not None:
            return recorded.result
        left = self.scope.left()
        return {**left, "seconds": round(left["seconds"], 1)} if left["seconds"] != float("inf") else left

    def append_highlight(self, text: str) -> None:
        """Keep a remark for the reader of the run, at most 240 characters.

        Example: append_highlight("payments was the first service to fail")
        """
        site = self.site
        if len(self.highlights) >= MAX_HIGHLIGHTS:
            full = f"append_highlight: only the first {MAX_HIGHLIGHTS} are kept"
            site.notes += [] if full in site.notes else [full]
            return
        self.highlights.append(cut(text, HIGHLIGHT_CHARS))
        self.run.emit(Highlighted(session=site.session, turn=site.turn, ordinal=site.ordinal, text=self.highlights[-1]))


def refuse_taken(names: Iterable[str]) -> None:
    """ConfigError for a user's tool with the name of something the runtime itself offers."""
    for name in names:
        if name in FUNCTIONS or name in VARIABLES or name in FINISH_NAMES:
            raise ConfigError(f"a tool cannot be called {name}, which the runtime offers itself; rename it")


def shared(share: Share) -> dict[str, Any]:
    """The variables that code passes on to a child."""
    if isinstance(share, list):
        raise ToolFault('share is a list of names of variables, written in the call: share=["rows"]')
    return share or {}
