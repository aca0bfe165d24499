"""`sonde incident`: what happened in a window of time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    InvestigationOptions,
    ModelOptions,
    PlaceOptions,
    ReportOptions,
    SourceOptions,
    WindowOptions,
    filled,
    settings_of,
    spread,
)

if TYPE_CHECKING:
    from sonde import Investigation
    from sonde.cli.foreground_run import RunHooks


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOptions(WindowOptions):
    """Which traces, and what else to look at."""

    trace: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", parser=filled, help="Always look at this trace; repeatable."),
    ] = None
    configs: Annotated[Path | None, typer.Option(metavar="DIR", help="Config snapshots: DIR/<tag>/metadata.json.")] = (
        None
    )
    changes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PLACE",
            parser=filled,
            help="What changed: git:REPO (commits and tags), or a JSON file of deploys; repeatable.",
        ),
    ] = None


def register(app: typer.Typer) -> None:
    app.command()(spread(incident))


def incident(
    *,
    window: IncidentOptions,
    source: SourceOptions,
    how: InvestigationOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: ReportOptions,
) -> int:
    """Write an incident report: how many traces failed, in which groups, since when and after which change; timeline, what to do.
    Works without a model: all traces are counted by rule, and a model explains the counts.

    Example: sonde incident --project checkout --from 2026-11-01T00:00Z --to 2026-11-01T06:00Z --changes git:. --changes deploys.json
    """
    import sonde
    from sonde.cli.foreground_run import investigate_each

    settings = settings_of(source, model, budget, place, mode=how.mode, sandbox_profile=how.sandbox_profile)

    def start(hooks: RunHooks) -> Investigation:
        return sonde.incident(
            settings.source,
            project=settings.project,
            start=window.begin,
            end=window.end,
            filter_expr=window.filter,
            trace_ids=window.trace or (),
            configs=window.configs,
            changes=window.changes or (),
            writeback=not how.no_writeback,
            replace_judgements=how.replace_judgements,
            settings=settings,
            unsafe=how.unsafe,
            without=how.without,
            **hooks,
        )

    return investigate_each(output, settings, [start])
