"""`sonde bench`: measure a model with Sonde, and without it, against benchmarks whose answers are known.

`sonde demo`: play recorded investigations; everything is live except the model's words.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sonde.cli.options import (
    BudgetOptions,
    CommandList,
    ModelOptions,
    SourceOptions,
    UseOptions,
    WindowOptions,
    settings_of,
    spread,
)
from sonde.disk import linked
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.bench.harness import BenchPlan
    from sonde.bench.suite import Suite

Data = Annotated[Path, typer.Option(metavar="DIR", help="The folder with the benchmark's data.")]
Limit = Annotated[int | None, typer.Option(metavar="N", min=1, help="Only the first N cases.")]
Only = Annotated[list[str] | None, typer.Option("--case", metavar="KEY", help="Only this case; repeatable.")]
Baseline = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Also run plain; rule for traces; no-subcalls or retrieval for questions; repeatable."
    ),
]
Sonde = Annotated[bool, typer.Option("--sonde/--no-sonde", help="Whether to run Sonde itself.")]
Repeats = Annotated[int, typer.Option(metavar="N", min=1, help="How often to run each case.")]
Out = Annotated[
    Path, typer.Option(metavar="DIR", help="Where results, runs and the page go; a stopped benchmark continues there.")
]
Join = Annotated[
    int | None,
    typer.Option(
        "--joined", metavar="N", min=2, help="Join every N traces into one: the same faults in longer traces."
    ),
]
Make = Annotated[int | None, typer.Option(metavar="N", min=1, help="First write N seeded traces into --data.")]
Length = Annotated[
    list[str] | None, typer.Option(metavar="SIZE", help="Characters of context, e.g. 200k or 10M; repeatable.")
]
Seeds = Annotated[list[int] | None, typer.Option("--data-seed", metavar="N", help="The seed of the data; repeatable.")]
Tree = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Python source; by default the standard library's asyncio.")
]
OUT = Path("bench-results")
DEMO = Path("artifacts/demo")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeOptions:
    """Which data to make."""

    length: Length = None
    seed: Seeds = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchCaseOptions:
    """Which cases to run, by which methods, how often, and where the results go."""

    limit: Limit = None
    case: Only = None
    baseline: Baseline = None
    sonde: Sonde = True
    repeats: Repeats = 1
    out: Out = OUT


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        cls=CommandList, help="Measure a model against benchmarks whose answers are known.", no_args_is_help=True
    )
    for command in (trail, whowhen, labelled, seeded, incident, niah, oolong, pairs, hops, code, human):
        group.command()(spread(command))
    app.add_typer(group, name="bench")
    app.command()(spread(demo))


def trail(
    *,
    data: Data,
    joined: Join = None,
    how: BenchCaseOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: UseOptions,
) -> int:
    """TRAIL: errors of 21 categories in the spans of agents' traces.

    Example: sonde bench trail --data trail --model openai:gpt-4o-mini --limit 4 --baseline plain
    """
    from sonde.bench.joined import Joined
    from sonde.bench.trail import Trail

    suite = Trail(data) if joined is None else Joined(data, joined, how.out / "joined")
    return _run(_plan(suite, how), model, place, budget)


def whowhen(*, data: Data, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions) -> int:
    """Who&When: the decisive agent and step of failed multi-agent conversations.

    Example: sonde bench whowhen --data whowhen --model openai:gpt-4o-mini --limit 4 --baseline plain
    """
    from sonde.bench.whowhen import WhoWhen

    return _run(_plan(WhoWhen(data), how), model, place, budget)


def labelled(
    *, data: Data, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions
) -> int:
    """Labelled traces: the step and the category of the critical failure, in a folder of your own.

    Example: sonde bench labelled --data .bench/labelled/tau --case held/ --model openai:gpt-4o-mini --baseline plain
    """
    from sonde.bench.labelled import Labelled

    return _run(_plan(Labelled(data), how), model, place, budget)


def seeded(
    *,
    data: Data,
    make: Make = None,
    how: BenchCaseOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: UseOptions,
) -> int:
    """Seeded traces: the primary label of traces whose one fault is known.

    Example: sonde bench seeded --data seeded --make 100 --no-sonde --baseline rule
    """
    from sonde.bench.labels import Seeded
    from sonde.bench.seeded import generate

    if make is not None:
        data.mkdir(parents=True, exist_ok=True)
        generate(make).write(data / "traces.jsonl", data / "manifest.json")
    return _run(_plan(Seeded(data), how), model, place, budget)


def incident(
    *, seed: Seeds = None, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions
) -> int:
    """Windows of traces whose cause is known: the right group, the right change, nothing in healthy ones. Without a model, by rule.

    Example: sonde bench incident --data-seed 1 --data-seed 7
    """
    from dataclasses import replace

    from sonde.bench.incidents import Incidents

    if settings_of(model, place, budget).model is None:
        how = replace(how, sonde=False, baseline=how.baseline or ["rule"])
    return _run(_plan(Incidents(how.out / "incident" / "data", seed or [1]), how), model, place, budget)


def niah(
    *, asked: MadeOptions, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions
) -> int:
    """S-NIAH: one number in a haystack.

    Example: sonde bench niah --length 200k --length 10M --baseline plain --model openai:gpt-4o-mini
    """
    return _ask("niah", asked, how, (model, budget, place))


def oolong(
    *, asked: MadeOptions, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions
) -> int:
    """OOLONG-style: count and compare what every line means.

    Example: sonde bench oolong --length 100k --baseline plain --baseline no-subcalls --model openai:gpt-4o-mini
    """
    return _ask("oolong", asked, how, (model, budget, place))


def pairs(
    *, asked: MadeOptions, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions
) -> int:
    """OOLONG-Pairs-style: all pairs of users with a property.

    Example: sonde bench pairs --length 100k --baseline retrieval --model openai:gpt-4o-mini
    """
    return _ask("pairs", asked, how, (model, budget, place))


def hops(
    *, asked: MadeOptions, how: BenchCaseOptions, model: ModelOptions, budget: BudgetOptions, place: UseOptions
) -> int:
    """Multi-hop questions over 1,000 documents.

    Example: sonde bench hops --baseline retrieval --model openai:gpt-4o-mini
    """
    return _ask("hops", asked, how, (model, budget, place))


def code(
    *,
    tree: Tree = None,
    seed: Seeds = None,
    how: BenchCaseOptions,
    model: ModelOptions,
    budget: BudgetOptions,
    place: UseOptions,
) -> int:
    """Questions about a source tree; ast knows the answers.

    Example: sonde bench code --tree src --baseline retrieval --model openai:gpt-4o-mini
    """
    from sonde.bench.task_family import source_questions

    suite = source_questions(how.out / "code" / "data", tree, seed or [0])
    return _run(_plan(suite, how), model, place, budget)


def _ask(
    name: str, asked: MadeOptions, how: BenchCaseOptions, shared: tuple[ModelOptions, BudgetOptions, UseOptions]
) -> int:
    from sonde.bench.task_family import questions
    from sonde.sandbox.base import parse_size

    lengths = [parse_size(length) for length in asked.length or []]
    suite = questions(name, how.out / name / "data", lengths=lengths, seeds=asked.seed or [0])
    model, budget, place = shared
    return _run(_plan(suite, how), model, place, budget)


def _plan(suite: Suite, how: BenchCaseOptions) -> BenchPlan:
    from sonde.bench.harness import BenchPlan

    return BenchPlan(
        suite=suite,
        out=how.out / suite.name,
        methods=(*(("sonde",) if how.sonde else ()), *dict.fromkeys(how.baseline or ())),
        repeats=how.repeats,
        chosen=how.case or (),
        limit=how.limit,
    )


def _run(plan: BenchPlan, model: ModelOptions, place: UseOptions, budget: BudgetOptions) -> int:
    """Run, print the table, and keep it beside the results with a page of plots."""
    from sonde.bench.harness import Bench
    from sonde.bench.page import page
    from sonde.bench.summary import compared, markdown, summarise
    from sonde.runs.rundir import ignored_by_git, write_atomically

    settings = settings_of(model, place, budget)
    names = [f"{plan.out.name}/{each}" for each in ("results.jsonl", "runs", "data/windows", "data/gold")]
    _refuse_links(plan.out.parent, "--out", [*names, "joined"])
    results = Bench(plan, settings, settings.model, lambda line: typer.echo(line, err=True)).run()
    summaries = summarise(plan.suite, results)
    table = markdown(plan.suite, summaries) + compared(plan.suite, results)
    title = f"{plan.suite.name}: {settings.model or 'no model'}"
    if plan.out.parent == OUT:  # our choice of a folder, so not one for the user's repository
        ignored_by_git(OUT)
    write_atomically(plan.out / "results.md", table.encode())
    write_atomically(plan.out / "results.html", page(plan.suite, summaries, results, title).encode())
    typer.echo(table)
    typer.echo(f"page with plots: {plan.out / 'results.html'}", err=True)
    return 0


def _refuse_links(folder: Path, flag: str, names: Sequence[str]) -> None:
    """ConfigError if something would be written through a link: on the way to a folder that we chose, or below one that the user named."""
    root = Path() if folder in (OUT, DEMO) else folder
    for name in names:
        if link := linked(root, folder / name):
            raise ConfigError(f"{link} is a link, and nothing is written through it: name another folder with {flag}")


def human(
    *,
    where: SourceOptions,
    window: WindowOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """How often people agree with Sonde: their annotations in Phoenix beside Sonde's own of the same name.

    Example: sonde bench human --source http://localhost:6006 --project checkout --last 7d
    """
    from sonde.api.trace_source import source_of
    from sonde.bench.human import agreements
    from sonde.cli.text import printable
    from sonde.contexts.traces.catalog import DEFAULT_PROJECT, query_of
    from sonde.core.canonical import plural
    from sonde.errors import ConfigError
    from sonde.phoenix import PhoenixClient, PhoenixReads

    settings = settings_of(where)
    place = source_of(settings.source, settings.project, settings.environ)
    if not place.writable:
        raise ConfigError("people annotate traces on a Phoenix server: --source http://localhost:6006")
    client = PhoenixClient(place.address, api_key=place.api_key, headers=place.headers)
    try:
        query = query_of(None, start=window.begin, end=window.end, filter_expr=window.filter)
        found, looked = agreements(PhoenixReads(client, place.project or DEFAULT_PROJECT), query)
    finally:
        client.close()
    if as_json:
        print(json.dumps({"traces": looked, "agreement": [each.row() for each in found]}, indent=2))
        return 0
    for each in found:
        others = ", ".join(f"{label} {count}" for label, count in each.others.items())
        said = f"; the others said {others}" if others else ""
        print(printable(f"{each.name}  {each.label}: {each.agreed} of {each.judged} people agree{said}"))
    if not found:
        print(
            f"no person has judged what Sonde said about {plural(looked, 'trace')}; in Phoenix, annotate a trace or a span with"
        )
        print("the same name, for example rca.primary, and the label that you think is right")
    return 0


def demo(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Recordings; all of them if none is named.")
    ] = None,
    *,
    listed: Annotated[bool, typer.Option("--list", help="Only list the recordings.")] = False,
    folder: Annotated[Path, typer.Option(help="Where data and runs go.")] = DEMO,
    code: Annotated[bool, typer.Option(help="Also answer the same questions without a model.")] = True,
) -> int:
    """Play recorded investigations: the words are a real model's, everything else happens now.

    No key is needed. The data comes from a seed, the code runs in the sandbox, tools and sub-calls are real, citations are proved again.
    """
    from sonde.api.settings import Settings
    from sonde.bench import demo as recordings
    from sonde.cli.interrupt import soft_stop
    from sonde.cli.live import open_view
    from sonde.runs.rundir import ignored_by_git

    chosen = [recordings.load(name) for name in names or recordings.names()]
    if listed:
        for each in chosen:
            print(f"{each.name:12} {each.started['run_type']:5} {each.title} ({each.model}, {each.recorded})")
        return 0
    data = ("ask/shop.log", "rca/traces.jsonl", "edit")
    _refuse_links(folder, "--folder", ["runs", *(f"data/{name}" for name in data)])
    if not folder.exists():
        ignored_by_git(folder)
    as_recorded = True
    with soft_stop() as cancel:
        for each in chosen:
            print(f"\n== {each.title}\n   {each.started['objective']}")
            print(f"   words of {each.model}, recorded {each.recorded}; all else is live\n")
            with open_view(sys.stderr) as view:
                result = recordings.play(each, folder, settings=Settings(), on_event=view.on_event, cancel=cancel)
            print(f"\n{result.text.strip()}\n")
            print(f"{result.status.value}, judged by {result.annotator_kind}; {result.run_dir or ''}")
            if code and each.started["run_type"] != "edit" and not cancel.is_set():
                print("\n-- the same without a model:\n")
                silent = recordings.without_model(each, folder, settings=Settings(), cancel=cancel)
                print(f"{silent.text.strip()[:1500]}\n{silent.status.value}, judged by {silent.annotator_kind}")
            as_recorded = as_recorded and result.status.value == each.status
            if cancel.is_set():
                break
    own, found = Path(sys.executable).parent / "sonde", shutil.which("sonde")
    typed = found is not None and own.exists() and Path(found).samefile(own)  # not so after `make demo`
    program = "sonde" if typed or not own.exists() else os.path.relpath(own)
    print(f"\nLook at the runs: {shlex.join([program, 'view', '--runs-dir', str(folder / 'runs')])}")
    return cancel.exit_code(0 if as_recorded else 1)
