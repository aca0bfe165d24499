"""`sonde branch`: what if a run had taken another way from turn K?"""

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
    app.command()(spread(branch))


def branch(
    run: RunName,
    *,
    turn: Annotated[int, typer.Option(metavar="K", help="The first turn to do again.")],
    context: GivenAgain = None,
    allowed: AllowedAgain,
    budget: BudgetOptions,
    model: ModelOptions,
    place: PlaceOptions,
    output: EndOptions,
) -> int:
    """Take a run another way from turn K.

    The new run shares the turns before K with the recorded one.
    """
    from sonde.api import rerun
    from sonde.cli.foreground_run import run_with_view
    from sonde.cli.inputs import one_source

    settings = settings_of(model, budget, place, backend=allowed.backend)

    def start(hooks: RunHooks) -> Result:
        return rerun.branch(
            run,
            turn,
            model=model.model,
            sub_model=model.sub_model,
            context=one_source(context),
            settings=settings,
            limits=allowed.limits(),
            trust_run=allowed.trust_run,
            without=allowed.without,
            on_event=hooks["on_event"],
            on_text=hooks["on_text"],
            cancel=hooks["cancel"],
        )

    return run_with_view(output, settings, start, model_line=f"branching {run} at turn {turn}")
