"""`sonde resume`: continue a run that was cut off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    AllowedAgain,
    BudgetOptions,
    EndOptions,
    GivenAgain,
    ModelOptions,
    PlaceOptions,
    RunName,
    settings_of,
    spread,
)

if TYPE_CHECKING:
    from sonde import Result
    from sonde.cli.foreground_run import RunHooks


def register(app: typer.Typer) -> None:
    app.command()(spread(resume))


def resume(
    run: RunName,
    *,
    live: Annotated[
        bool, typer.Option("--live", help="If code takes another path than recorded, go on from there.")
    ] = False,
    writeback: Annotated[
        bool | None, typer.Option("--writeback/--no-writeback", help="Whether to write annotations to the server.")
    ] = None,
    context: GivenAgain = None,
    allowed: AllowedAgain,
    budget: BudgetOptions,
    model: ModelOptions,
    place: PlaceOptions,
    output: EndOptions,
) -> int:
    """Continue a killed run; no recorded reply is asked for again."""
    from sonde.api import rerun
    from sonde.cli.foreground_run import run_with_view
    from sonde.cli.inputs import one_source

    settings = settings_of(model, budget, place, backend=allowed.backend)
    settings.find_run(run)  # a wrong name is refused before anything is said

    def start(hooks: RunHooks) -> Result:
        return rerun.resume(
            run,
            model=model.model,
            sub_model=model.sub_model,
            context=one_source(context),
            go_live=live,
            settings=settings,
            limits=allowed.limits(),
            trust_run=allowed.trust_run,
            without=allowed.without,
            writeback=writeback,
            on_event=hooks["on_event"],
            on_text=hooks["on_text"],
            cancel=hooks["cancel"],
        )

    return run_with_view(output, settings, start, model_line=f"resuming {run}")
