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
    """Write an incident report: timeline, hypotheses, suspected change, what to do. Events and causes have proved evidence.

    Example: sonde incident --project checkout --from 2026-11-01T00:00Z --to 2026-11-01T06:00Z
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
            writeback=not how.no_writeback,
            replace_judgements=how.replace_judgements,
            settings=settings,
            unsafe=how.unsafe,
            **hooks,
        )

    return investigate_each(output, settings, [start])
