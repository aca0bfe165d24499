"""`sonde bench`: measure the investigators against benchmarks with gold labels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import ModelOptions, PlaceOptions, settings_of, spread

if TYPE_CHECKING:
    from sonde.bench.harness import Plan

Data = Annotated[Path, typer.Option(metavar="DIR", help="The folder of the benchmark's data.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first so many cases.")]
Only = Annotated[list[str] | None, typer.Option("--case", metavar="KEY", help="Only this case; repeatable.")]
Baseline = Annotated[list[str] | None, typer.Option(metavar="NAME", help="Also run plain or rule; repeatable.")]
Sonde = Annotated[bool, typer.Option("--sonde/--no-sonde", help="Whether the engine with the model is run.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, help="How often each case is run.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where results, runs and the page go; a stopped run goes on.")]
Make = Annotated[int | None, typer.Option(metavar="N", min=1, help="First write so many seeded traces into --data.")]
OUT = Path("bench-results")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Measure the investigators against benchmarks with gold labels.", no_args_is_help=True)
    for command in (trail, whowhen, seeded):
        group.command()(spread(command))
    app.add_typer(group, name="bench")


def trail(
    *,
    data: Data,
    limit: Limit = None,
    case: Only = None,
    baseline: Baseline = None,
    sonde: Sonde = True,
    repeats: Repeats = 1,
    out: Out = OUT,
    model: ModelOptions,
    place: PlaceOptions,
) -> int:
    """TRAIL: errors of 21 categories in the spans of agents' traces.

    Example: sonde bench trail --data trail --model openai:gpt-4o-mini --limit 4 --baseline plain
    """
    from sonde.bench.harness import Plan
    from sonde.bench.trail import Trail

    methods = _methods(baseline, sonde=sonde)
    suite = Trail(data)
    plan = Plan(suite=suite, out=out / suite.name, methods=methods, repeats=repeats, chosen=case or (), limit=limit)
    return _run(plan, model, place)


def whowhen(
    *,
    data: Data,
    limit: Limit = None,
    case: Only = None,
    baseline: Baseline = None,
    sonde: Sonde = True,
    repeats: Repeats = 1,
    out: Out = OUT,
    model: ModelOptions,
    place: PlaceOptions,
) -> int:
    """Who&When: the decisive agent and step of failed multi-agent conversations.

    Example: sonde bench whowhen --data whowhen --model openai:gpt-4o-mini --limit 4 --baseline plain
    """
    from sonde.bench.harness import Plan
    from sonde.bench.whowhen import WhoWhen

    methods = _methods(baseline, sonde=sonde)
    suite = WhoWhen(data)
    plan = Plan(suite=suite, out=out / suite.name, methods=methods, repeats=repeats, chosen=case or (), limit=limit)
    return _run(plan, model, place)


def seeded(
    *,
    data: Data,
    make: Make = None,
    limit: Limit = None,
    case: Only = None,
    baseline: Baseline = None,
    sonde: Sonde = True,
    repeats: Repeats = 1,
    out: Out = OUT,
    model: ModelOptions,
    place: PlaceOptions,
) -> int:
    """Seeded traces: the primary label of traces whose one fault is known.

    Example: sonde bench seeded --data seeded --make 100 --no-sonde --baseline rule
    """
    from sonde.bench.harness import Plan
    from sonde.bench.labels import Seeded
    from sonde.bench.seeded import generate

    if make is not None:
        data.mkdir(parents=True, exist_ok=True)
        generate(make).write(data / "traces.jsonl", data / "manifest.json")
    methods = _methods(baseline, sonde=sonde)
    suite = Seeded(data)
    plan = Plan(suite=suite, out=out / suite.name, methods=methods, repeats=repeats, chosen=case or (), limit=limit)
    return _run(plan, model, place)


def _methods(baseline: list[str] | None, *, sonde: bool) -> tuple[str, ...]:
    return (*(("sonde",) if sonde else ()), *dict.fromkeys(baseline or ()))


def _run(plan: Plan, model: ModelOptions, place: PlaceOptions) -> int:
    """Run, print the page and keep it beside the results."""
    from sonde.bench.harness import Bench
    from sonde.bench.summary import markdown, summarise

    settings = settings_of(model, place)
    results = Bench(plan, settings, settings.model, lambda line: typer.echo(line, err=True)).run()
    page = markdown(plan.suite, summarise(plan.suite, results))
    (plan.out / "results.md").write_text(page, encoding="utf-8")
    typer.echo(page)
    return 0
