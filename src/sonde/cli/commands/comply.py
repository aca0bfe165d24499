"""`sonde comply`: does a trace comply with its controls?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    FailOnVerdict,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlOptions:
    """What traces are judged against."""

    controls: Annotated[
        str | None,
        typer.Option(
            metavar="VERSION", parser=filled, help="The version of the controls [v1, or the only one in the files]."
        ),
    ] = None
    controls_file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Your own controls, YAML or JSON; repeatable.")
    ] = None
    control: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Judge this control even if it does not apply; repeatable."),
    ] = None
    override: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONTROL=VERDICT",
            help="Your own verdict on a control: pass, fail, not_applicable or insufficient_evidence; repeatable. The report keeps the "
            "verdict that it replaces.",
        ),
    ] = None
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why; needed with --override.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictOptions(ReportOptions):
    """What is printed, and what counts as a failure."""

    fail_on: FailOnVerdict = None


def register(app: typer.Typer) -> None:
    app.command()(spread(comply))


def comply(
    trace_ids: TraceIds,
    *,
    against: ControlOptions,
    source: SourceOptions,
    how: InvestigationOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: VerdictOptions,
) -> int:
    """Judge traces against a library of controls: by rule, and by the model where it is stricter.

    Example: sonde comply 4f1c2b… --source traces.jsonl --controls v1 --fail-on fail
    """
    import sonde
    from sonde.cli.foreground_run import investigate_each

    pairs = [each.partition("=") for each in against.override or ()]
    if wrong := [name for name, sign, _ in pairs if not sign]:
        raise typer.BadParameter(f"--override is CONTROL=VERDICT, for example {wrong[0]}=pass")
    settings = settings_of(source, model, budget, place, mode=how.mode, sandbox_profile=how.sandbox_profile)

    def start(trace_id: str, hooks: RunHooks) -> Investigation:
        return sonde.comply(
            trace_id,
            settings.source,
            project=settings.project,
            controls=against.controls,
            controls_files=against.controls_file or (),
            overrides=against.control or (),
            verdicts={name: verdict for name, _, verdict in pairs},
            reason=against.reason,
            writeback=not how.no_writeback,
            replace_judgements=how.replace_judgements,
            settings=settings,
            unsafe=how.unsafe,
            without=how.without,
            **hooks,
        )

    return investigate_each(output, settings, [partial(start, each) for each in dict.fromkeys(trace_ids)])
