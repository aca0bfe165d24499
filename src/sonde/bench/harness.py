"""Running a benchmark: cases times methods times repeats, each result on a line of results.jsonl as soon as it exists.

What is on a line is not run again, so a stopped benchmark goes on where it was; several processes may share one file. A case whose
run failed is a result too (with no prediction) and counts as wrong. Methods: `sonde` (the engine with the model), `plain` (everything in
one prompt to the same model, where it fits), `rule` (the engine without a model); for questions also `no-subcalls` and `retrieval`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from sonde.api.investigations import Options, rca
from sonde.api.settings import Settings
from sonde.bench.methods import QUESTION_METHODS, Asker, answered, one_prompt
from sonde.bench.questions import Questions
from sonde.bench.results import Result, append_result, read_results
from sonde.bench.suite import Case, Suite
from sonde.errors import ConfigError, Fault, RunError
from sonde.models import Model, open_model

TRACE_METHODS = ("sonde", "plain", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is to be run."""

    suite: Suite
    out: Path
    methods: Sequence[str] = ("sonde",)
    repeats: int = 1
    chosen: Sequence[str] = ()
    limit: int | None = None

    def cases(self) -> list[Case]:
        """The cases that were asked for: by the beginning of their names, and the first so many."""
        found = self.suite.cases()
        if self.chosen:
            exact = {case.key for case in found}
            found = [case for case in found if any(_named(case.key, word, exact) for word in self.chosen)]
            if not found:
                raise ConfigError(f"no case of {self.suite.name} begins so; there are {_some(sorted(exact))}")
        return found[: self.limit]

    @property
    def results(self) -> Path:
        """The file of results."""
        return self.out / "results.jsonl"


class Bench:
    """One benchmark with one model."""

    def __init__(self, plan: Plan, settings: Settings, model: str | Model | None, tell: Callable[[str], None]) -> None:
        known = QUESTION_METHODS if isinstance(plan.suite, Questions) else TRACE_METHODS
        unknown = [method for method in plan.methods if method not in known]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no method of {plan.suite.name}; choose from {', '.join(known)}")
        if model is None and set(plan.methods) - {"rule"}:
            raise ConfigError("a benchmark of a model needs one: --model M, or --baseline rule alone with --no-sonde")
        self.plan = plan
        self.settings = settings
        self.model = model
        self.tell = tell
        self._opened: Model | None = None

    def run(self) -> list[Result]:
        """Run what is not there yet; all results of the chosen cases."""
        self.plan.out.mkdir(parents=True, exist_ok=True)
        done = {result.key: result for result in read_results(self.plan.results) if self._is_ours(result)}
        wanted = {(method, case.key, repeat): case for repeat, case, method in self._order()}
        missing = {key: case for key, case in wanted.items() if key not in done}
        with ExitStack() as stack:
            if any(method != "rule" for method, _, _ in missing):
                self._opened = self._open(stack)  # first of all: a wrong name or a missing key is no result
            for (method, _, repeat), case in missing.items():
                result = self._one(case, method, repeat)
                append_result(self.plan.results, result)
                done[result.key] = result
                self.tell(f"{method} {case.key} #{repeat + 1}: {result.status}, {result.seconds:.0f} s")
        return [result for key, result in done.items() if key in wanted]

    def _order(self) -> Iterable[tuple[int, Case, str]]:
        return product(range(self.plan.repeats), self.plan.cases(), self.plan.methods)

    def _is_ours(self, result: Result) -> bool:
        """Another model's results in the same file are not this model's; a line without a name is from before there were names."""
        return result.model in {"", self._model_name(result.method)}

    def _one(self, case: Case, method: str, repeat: int) -> Result:
        started = time.monotonic()
        try:
            result = self._by_method(case, method, repeat)
        except (Fault, RunError) as error:
            result = Result(case=case.key, method=method, repeat=repeat, status=f"failed: {error.message[:200]}")
        return replace(result, seconds=round(time.monotonic() - started, 3), model=self._model_name(method))

    def _by_method(self, case: Case, method: str, repeat: int) -> Result:
        if isinstance(self.plan.suite, Questions):
            return self._question(self.plan.suite, case, method, repeat)
        return self._plain(case, repeat) if method == "plain" else self._engine(case, method, repeat)

    def _model_name(self, method: str) -> str:
        if method == "rule" or self.model is None:
            return ""
        return self.model if isinstance(self.model, str) else self.model.name

    def _engine(self, case: Case, method: str, repeat: int) -> Result:
        suite = self.plan.suite
        options = Options(
            model=None if method == "rule" else self.model,
            runs_dir=self.plan.out / "runs",
            settings=self.settings if method == "sonde" else replace(self.settings, model=None, sub_model=None),
            in_memory=method == "rule",
        )
        found = rca(case.trace_id, case.source, taxonomy=suite.taxonomy, writeback=False, options=options)
        report = found.report
        by_rule = method == "rule"
        predicted = None if report is None else suite.by_rule(case, report) if by_rule else suite.predicted(report)
        used = found.record.runtime_ref.usage
        return Result(
            case=case.key,
            method=method,
            repeat=repeat,
            predicted=predicted,
            status=found.status.value,
            tokens=used.tokens_in + used.tokens_out,
            cost_usd=used.cost_usd,
            run_dir="" if found.run_dir is None else str(found.run_dir),
        )

    def _plain(self, case: Case, repeat: int) -> Result:
        blank = Result(case=case.key, method="plain", repeat=repeat)
        assert self._opened is not None, "opened before the first case"
        return one_prompt(self.plan.suite, blank, self._opened, self.plan.suite.plain_prompt(case))

    def _question(self, suite: Questions, case: Case, method: str, repeat: int) -> Result:
        assert self.model is not None, "checked when the benchmark was made"
        assert self._opened is not None, "opened before the first case"
        runs = self.plan.out / "runs"
        asker = Asker(model=self.model, opened=self._opened, settings=self.settings, runs_dir=runs)
        return answered(suite, case, Result(case=case.key, method=method, repeat=repeat), asker)

    def _open(self, stack: ExitStack) -> Model | None:
        """The model for the methods of one prompt; what is opened here is closed with the stack."""
        if not isinstance(self.model, str):
            return self.model
        choice = self.settings.choose(self.model)
        opened = open_model(choice.spec, choice.settings)
        stack.callback(getattr(opened, "close", lambda: None))
        return opened


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:3]) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")


def _named(key: str, word: str, exact: set[str]) -> bool:
    """A whole key means that case only; anything else is the beginning of a key, with or without its split."""
    return key == word if word in exact else key.startswith(word) or key.partition("/")[2].startswith(word)
