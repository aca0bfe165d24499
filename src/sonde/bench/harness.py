"""Running a benchmark: cases times methods times repeats, each result on a line of results.jsonl as soon as it exists.

A result that is on file is not run again, so a stopped benchmark continues where it was; several processes may share one file. A case
whose run failed is a result too (with no prediction) and counts as wrong.

Methods: `sonde` (the engine with the model), `plain` (everything in one prompt to the same model, where it fits), `rule` (the engine
without a model); for questions also `no-subcalls` and `retrieval`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from sonde.api.investigations import rca
from sonde.api.launch import RunOptions
from sonde.api.settings import Settings
from sonde.bench.incidents import Incidents
from sonde.bench.methods import QUESTION_METHODS, Asker, answered, one_prompt
from sonde.bench.questions import Questions
from sonde.bench.suite import BenchCase, Suite, Trial, append_result, read_results
from sonde.errors import ConfigError, Fault, RunError
from sonde.models import Model, open_model

TRACE_METHODS = ("sonde", "plain", "rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What to run."""

    suite: Suite
    out: Path
    methods: Sequence[str] = ("sonde",)
    repeats: int = 1
    chosen: Sequence[str] = ()
    limit: int | None = None

    def cases(self) -> list[BenchCase]:
        """The chosen cases, by the beginning of their names, up to the limit."""
        found = self.suite.cases()
        if self.chosen:
            exact = {case.key for case in found}

            def wanted(key: str) -> bool:
                """A whole key means that case only; anything else is the beginning of a key, with or without its split."""
                return any(
                    key == word if word in exact else key.startswith(word) or key.partition("/")[2].startswith(word)
                    for word in self.chosen
                )

            found = [case for case in found if wanted(case.key)]
            if not found:
                some = ", ".join(sorted(exact)[:3]) + (f" and {len(exact) - 3} more" if len(exact) > 3 else "")
                raise ConfigError(f"no case of {self.suite.name} begins with that; cases are {some}")
        return found[: self.limit]

    @property
    def results(self) -> Path:
        """The file of results."""
        return self.out / "results.jsonl"


class Bench:
    """One benchmark with one model."""

    def __init__(
        self, plan: BenchPlan, settings: Settings, model: str | Model | None, tell: Callable[[str], None]
    ) -> None:
        known = QUESTION_METHODS if isinstance(plan.suite, Questions) else TRACE_METHODS
        unknown = [method for method in plan.methods if method not in known]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is not a method of {plan.suite.name}; choose from {', '.join(known)}")
        if model is None and set(plan.methods) - {"rule"}:
            raise ConfigError("a benchmark of a model needs one: --model M, or --baseline rule alone with --no-sonde")
        self.plan = plan
        self.settings = settings
        self.model = model
        self.tell = tell
        self._opened: Model | None = None

    def run(self) -> list[Trial]:
        """Run what is not there yet; all results of the chosen cases."""
        self.plan.out.mkdir(parents=True, exist_ok=True)
        # Results of another model in the same file are not this model's; a line without a name predates names.
        done = {
            result.key: result
            for result in read_results(self.plan.results)
            if result.model in {"", self._model_name(result.method)}
        }
        order = product(range(self.plan.repeats), self.plan.cases(), self.plan.methods)
        wanted = {(method, case.key, repeat): case for repeat, case, method in order}
        missing = {key: case for key, case in wanted.items() if key not in done}
        with ExitStack() as stack:
            if any(method != "rule" for method, _, _ in missing):
                # First of all: a wrong name or a missing key is not a result.
                if isinstance(self.model, str):
                    choice = self.settings.choose(self.model)
                    self._opened = open_model(choice.spec, choice.settings)
                    stack.callback(getattr(self._opened, "close", lambda: None))
                else:
                    self._opened = self.model
            for (method, _, repeat), case in missing.items():
                result = self._one(case, method, repeat)
                append_result(self.plan.results, result)
                done[result.key] = result
                self.tell(
                    f"{method} {case.key} #{repeat + 1}: {result.status}, {result.tokens:,} tokens, {result.seconds:.0f} s"
                )
        return [result for key, result in done.items() if key in wanted]

    def _one(self, case: BenchCase, method: str, repeat: int) -> Trial:
        started = time.monotonic()
        suite, blank = self.plan.suite, Trial(case=case.key, method=method, repeat=repeat)
        try:
            if method == "rule" or (method == "sonde" and not isinstance(suite, Questions)):
                result = self._engine(case, method, repeat)
            else:
                assert self.model is not None, "checked when the benchmark was made"
                assert self._opened is not None, "opened before the first case"
                if isinstance(suite, Questions):
                    runs = self.plan.out / "runs"
                    asker = Asker(model=self.model, opened=self._opened, settings=self.settings, runs_dir=runs)
                    result = answered(suite, case, blank, asker)
                else:
                    result = one_prompt(suite, blank, self._opened, suite.plain_prompt(case))
        except (Fault, RunError) as error:
            result = replace(blank, status=f"failed: {error.message[:200]}")
        return replace(result, seconds=round(time.monotonic() - started, 3), model=self._model_name(method))

    def _model_name(self, method: str) -> str:
        if method == "rule" or self.model is None:
            return ""
        return self.model if isinstance(self.model, str) else self.model.name

    def _engine(self, case: BenchCase, method: str, repeat: int) -> Trial:
        suite = self.plan.suite
        by_rule = method == "rule"
        options: RunOptions = {
            "model": None if by_rule else self.model,
            "runs_dir": self.plan.out / "runs",
            "settings": replace(self.settings, model=None, sub_model=None) if by_rule else self.settings,
            "in_memory": by_rule,
        }
        if isinstance(suite, Incidents):
            found = suite.investigate(case, **options)
        else:
            found = rca(case.trace_id, case.source, taxonomy=suite.taxonomy, writeback=False, **options)
        report = found.report
        predicted = None if report is None else suite.by_rule(case, report) if by_rule else suite.predicted(report)
        used = found.record.runtime_ref.usage
        return Trial(
            case=case.key,
            method=method,
            repeat=repeat,
            predicted=predicted,
            status=found.status.value,
            tokens=used.tokens_total,
            cost_usd=used.cost_usd,
            cached=used.cached_in,
            run_dir="" if found.run_dir is None else str(found.run_dir),
        )
