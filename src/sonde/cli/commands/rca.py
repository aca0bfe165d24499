"""`sonde rca`: why a trace failed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    DryRun,
    InvestigationOptions,
    ModelOptions,
    PlaceOptions,
    ReportOptions,
    SourceOptions,
    TraceIds,
    filled,
    settings_of,
    spread,
)

if TYPE_CHECKING:
    from sonde import Investigation
    from sonde.cli.foreground_run import RunHooks

Taxonomy = Annotated[
    str | None,
    typer.Option(metavar="NAME|FILE", parser=filled, help="Also list every failure: sonde, trail, or a YAML file."),
]


def register(app: typer.Typer) -> None:
    app.command()(spread(rca))


def rca(
    trace_ids: TraceIds,
    *,
    taxonomy: Taxonomy = None,
    dry_run: DryRun = False,
    source: SourceOptions,
    how: InvestigationOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: ReportOptions,
) -> int:
    """Find the root cause of failed traces; every reference is proved. Also works without a model, and then says so.

    Example: sonde rca 4f1c2b… --source traces.jsonl

    Example: sonde rca 4f1c2b… --source http://localhost:6006 --project checkout
    """
    import sonde
    from sonde.cli.foreground_run import investigate_each

    settings = settings_of(source, model, budget, place, mode=how.mode, sandbox_profile=how.sandbox_profile)
    if dry_run:
        from contextlib import closing

        from sonde.api.estimate import Estimate, estimate
        from sonde.api.investigations import case_spec
        from sonde.api.trace_source import Case, source_of
        from sonde.cli.foreground_run import print_estimate

        traces = source_of(settings.source, settings.project, settings.environ, cache_gb=settings.trace_cache_gb)
        found: list[Estimate] = []
        budget_of_run = settings.budget()
        for each in dict.fromkeys(trace_ids):
            case = Case(engine="rca", place=traces, trace_ids=(each,), taxonomy=taxonomy, writeback=False).resolved()
            context = case.open()
            with closing(context.store):
                spec = case_spec(case, context, settings, {"unsafe": how.unsafe, "without": how.without})
                found.append(estimate(spec, settings))
                budget_of_run = spec.budget
        return print_estimate(found, settings, budget_of_run, as_json=output.json)

    def start(trace_id: str, hooks: RunHooks) -> Investigation:
        return sonde.rca(
            trace_id,
            settings.source,
            project=settings.project,
            taxonomy=taxonomy,
            writeback=not how.no_writeback,
            replace_judgements=how.replace_judgements,
            settings=settings,
            unsafe=how.unsafe,
            without=how.without,
            **hooks,
        )

    return investigate_each(output, settings, [partial(start, each) for each in dict.fromkeys(trace_ids)])
