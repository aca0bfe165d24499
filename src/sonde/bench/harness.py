"""Running a benchmark: cases times methods times repeats, each result on a line of results.jsonl as soon as it exists.

What is on a line is not run again, so a stopped benchmark goes on where it was; several processes may share one file. A case whose
run failed is a result too (with no prediction) and counts as wrong. Methods: `sonde` (the engine with the model), `plain` (everything in
one prompt to the same model, where it fits), `rule` (the engine without a model).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sonde.api.investigating import Options, rca
from sonde.api.settings import Settings
from sonde.bench.results import Result, append_result, read_results
from sonde.bench.suite import METHODS, Case, Suite
from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError, SondeError
from sonde.models import Message, Model, ModelRequest, open_model
from sonde.models.prices import price

PLAIN_SECONDS = 3600.0
PLAIN_TOKENS = 8192


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
        return found[: self.limit]

    @property
    def results(self) -> Path:
        """The file of results."""
        return self.out / "results.jsonl"


class Bench:
    """One benchmark with one model."""

    def __init__(self, plan: Plan, settings: Settings, model: str | Model | None, tell: Callable[[str], None]) -> None:
        unknown = [method for method in plan.methods if method not in METHODS]
        if unknown:
            raise ConfigError(f"{unknown[0]!r} is no method; choose from {', '.join(METHODS)}")
        if model is None and set(plan.methods) - {"rule"}:
            raise ConfigError("a benchmark of a model needs one: --model M, or --baseline rule alone with --no-sonde")
        self.plan = plan
        self.settings = settings
        self.model = model
        self.tell = tell

    def run(self) -> list[Result]:
        """Run what is not there yet; all results of the chosen cases."""
        self.plan.out.mkdir(parents=True, exist_ok=True)
        cases = self.plan.cases()
        done = {result.key: result for result in read_results(self.plan.results)}
        for repeat in range(self.plan.repeats):
            for case in cases:
                for method in self.plan.methods:
                    if (method, case.key, repeat) not in done:
                        result = self._one(case, method, repeat)
                        append_result(self.plan.results, result)
                        done[result.key] = result
                        self.tell(f"{method} {case.key} #{repeat + 1}: {result.status}, {result.seconds:.0f} s")
        wanted = {(m, case.key, r) for m in self.plan.methods for case in cases for r in range(self.plan.repeats)}
        return [result for key, result in done.items() if key in wanted]

    def _one(self, case: Case, method: str, repeat: int) -> Result:
        started = time.monotonic()
        try:
            result = self._plain(case, repeat) if method == "plain" else self._engine(case, method, repeat)
        except SondeError as error:
            result = Result(case=case.key, method=method, repeat=repeat, status=f"failed: {error.message[:200]}")
        return replace(result, seconds=round(time.monotonic() - started, 3))

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
        prompt = self.plan.suite.plain_prompt(case)
        if prompt is None:
            return Result(case=case.key, method="plain", repeat=repeat, status="does not fit", fits=False)
        request = ModelRequest(messages=(Message("user", prompt),), max_output_tokens=PLAIN_TOKENS, seed=repeat)
        model = self._opened()
        reply = model.complete(request, deadline=Deadline(SystemClock(), PLAIN_SECONDS))
        cost = reply.cost_usd if reply.cost_usd is not None else price(reply.model, reply.usage)
        return Result(
            case=case.key,
            method="plain",
            repeat=repeat,
            predicted=self.plan.suite.read_plain(reply.text),
            status="succeeded",
            tokens=reply.usage.tokens_in + reply.usage.tokens_out,
            cost_usd=cost or 0.0,
        )

    def _opened(self) -> Model:
        if not isinstance(self.model, str):
            assert self.model is not None, "checked when the benchmark was made"
            return self.model
        choice = self.settings.choose(self.model)
        return open_model(choice.spec, choice.settings)


def _named(key: str, word: str, exact: set[str]) -> bool:
    """A whole key means that case only; anything else is the beginning of a key, with or without its split."""
    return key == word if word in exact else key.startswith(word) or key.partition("/")[2].startswith(word)
