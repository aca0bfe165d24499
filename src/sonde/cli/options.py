"""Options that several commands share, as values; `spread` shows their fields to typer as flags.

    def ask(question: str, run: RunOptions, output: OutputOptions) -> int: ...
    app.command()(spread(ask))

A flag that was not given is None, so that the environment, sonde.toml and the defaults apply.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperGroup

from sonde.cli.text import printable
from sonde.errors import ConfigError

if TYPE_CHECKING:
    from sonde.api.settings import Settings
    from sonde.contexts.files.exclusion import Exclusion
    from sonde.sandbox.base import Limits

SECTIONS = {
    "Ask": ("ask", "edit", "undo"),
    "Investigate": ("rca", "comply", "incident", "traces", "batch", "watch", "issues"),
    "Runs": ("runs", "view", "export", "publish", "resume", "replay", "branch", "diff"),
    "Serve": ("serve",),
    "More": ("demo", "doctor", "self-test", "config", "exec", "bench", "rlms", "completion", "man"),
}
"""The commands as the help lists them."""

_BUDGETS = {
    "ask": (60, 3, 10_000, 90, 1_000_000, None, 1.0, 600),
    "edit": (60, 2, 220, 30, 200_000, 8000, None, 600),
    "rca": (40, 2, 120, 40, 200_000, None, None, 180),
    "comply": (40, 2, 160, 60, 260_000, None, None, 180),
    "incident": (60, 3, 220, 90, 320_000, None, None, 300),
}
"""What the help shows as the default of each limit, in the order of BudgetOptions: importing the engines would make the help slow."""

RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run id, its beginning, `last`, or a folder.")]
TraceIds = Annotated[list[str], typer.Argument(metavar="TRACE_ID", help="One run per trace.")]
GivenAgain = Annotated[str | None, typer.Option(metavar="PATH|-", help="The run's data, if the run did not store it.")]

TrustRun = Annotated[
    bool, typer.Option("--trust-run", help="Let a run that was not made here name files anywhere on this machine.")
]


def path(text: str | Path) -> Path:
    """The given path. An empty one is refused: it would quietly mean the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("the path is empty; give one (. is the current folder)")
    return Path(text)


def filled(text: str) -> str:
    """The given value. An empty one, as from an unset shell variable, is refused: it would quietly widen a query."""
    if not text.strip():
        raise typer.BadParameter("the value is empty; give one, or leave the option out")
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """Takes one of these words and nothing else."""

    def parsed(given: str) -> str:
        if given not in words:
            raise typer.BadParameter(f"{given!r} is not one of {', '.join(words)}")
        return given

    return parsed


FAILING = 3  # the exit code of --fail-on
FAIL_ON = {"partial": ("partial",), "fail": ("non_compliant",), "review": ("non_compliant", "needs_review")}
FailOnVerdict = Annotated[
    str | None,
    typer.Option(
        metavar="|".join(FAIL_ON),
        parser=one_of(*FAIL_ON),
        help="Exit code 3 if an outcome is only partial; if a trace fails a control; or if one fails or needs review.",
    ),
]
PRICE = "US dollars per million tokens read/written[/cached], e.g. 0.5/1.5, for a model that no list knows."


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, and how to reach it."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="M",
            help="provider:name, command:PROGRAM (env of its [models] entry names the variables it sees), an entry, or none.",
        ),
    ] = None
    sub_model: Annotated[
        str | None, typer.Option(metavar="M", help="The model for sub-calls; by default the same.")
    ] = None
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The OpenAI-compatible server.")] = None
    timeout_s: Annotated[
        float | None, typer.Option("--model-timeout", metavar="S", help="Seconds one attempt may take.")
    ] = None
    reasoning_effort: Annotated[
        str | None, typer.Option(metavar="E", help="How much the model thinks, e.g. minimal, low, medium or high.")
    ] = None
    max_output_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of one reply, thinking included.")
    ] = None
    temperature: Annotated[float | None, typer.Option(metavar="T", help="From 0 to 2; 0 by default.")] = None
    top_p: Annotated[float | None, typer.Option(metavar="P", help="From 0 to 1; the server's own by default.")] = None
    price: Annotated[str | None, typer.Option(metavar="IN/OUT", help=PRICE)] = None
    mask: Annotated[
        bool | None,
        typer.Option(
            "--mask/--no-mask",
            help="Hide e-mail addresses, tokens and card numbers from the model and the journal; you see them.",
        ),
    ] = None
    mask_patterns: Annotated[
        list[str] | None,
        typer.Option(
            "--mask-pattern", metavar="NAME=REGEX", help="Hide what this matches, too; repeatable. Turns --mask on."
        ),
    ] = None
    count_wait: Annotated[
        bool | None,
        typer.Option("--count-wait/--no-count-wait", help="Whether waiting for a command model counts as run time."),
    ] = None
    max_journal_mb: Annotated[
        int | None, typer.Option(metavar="N", help="Megabytes that the run's journal may take. [256]")
    ] = None
    max_parallel: Annotated[int | None, typer.Option(metavar="N", help="Model calls in flight at once. [16]")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetOptions:
    """One flag per limit."""

    max_iterations: Annotated[int | None, typer.Option(metavar="N", help="Turns in the whole run.")] = None
    max_depth: Annotated[int | None, typer.Option(metavar="N", help="Levels of sub-calls.")] = None
    max_tool_calls: Annotated[int | None, typer.Option(metavar="N", help="Tool calls in the whole run.")] = None
    max_subcalls: Annotated[int | None, typer.Option(metavar="N", help="Sub-calls in the whole run.")] = None
    max_tokens_total: Annotated[int | None, typer.Option(metavar="N", help="Tokens, both directions.")] = None
    max_tokens_per_subcall: Annotated[int | None, typer.Option(metavar="N", help="Tokens in one sub-call.")] = None
    max_cost_usd: Annotated[float | None, typer.Option(metavar="USD", help="Money, where prices are known.")] = None
    max_wall_time_sec: Annotated[float | None, typer.Option(metavar="S", help="Seconds on the clock.")] = None
    sampling_seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Seed for the model and the code.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UseOptions:
    """Which preset of sonde.toml applies."""

    use: Annotated[str | None, typer.Option(metavar="NAME", help="The [preset.NAME] of sonde.toml.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions(UseOptions):
    """Where run folders are, and which preset of sonde.toml applies."""

    runs_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="Where run folders are.")] = None


Without = Annotated[
    str,
    typer.Option(
        metavar="landlock", help="Leave this layer off, for kernels that lack it; all others must hold. Recorded."
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllowedAgain:
    """What a recorded run may use beyond the user's settings."""

    backend: Annotated[
        str | None, typer.Option(metavar="B", help="Allow the backend that the run was recorded with.")
    ] = None
    limit: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=N", help="Allow a sandbox limit, e.g. memory=4GiB; can be repeated."),
    ] = None
    trust_run: TrustRun = False
    without: Without = ""

    def limits(self) -> Limits:
        """The sandbox's limits, with the given ones."""
        from sonde.sandbox.base import Limits

        given: dict[str, Any] = {}
        for text in self.limit or ():
            name, _, value = text.partition("=")
            if name not in Limits.__dataclass_fields__:
                raise typer.BadParameter(
                    f"--limit {text}: write NAME=N, where NAME is one of {', '.join(Limits.__dataclass_fields__)}"
                )
            try:
                given[name] = value if name == "memory" else float(value) if name.endswith("_s") else int(value)
            except ValueError:
                raise typer.BadParameter(f"--limit {text}: {value!r} is not a number") from None
        return Limits(**given)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOptions:
    """Which commands a task may run, and where."""

    allow_command: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COMMAND",
            help='A command that a task may run: "=npm test" exactly, "npm test" with any words after it; repeatable.',
        ),
    ] = None
    command_cwd: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="Another folder of the workspace in which commands may run.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReachOptions:
    """What commands may reach outside of the workspace."""

    command_read: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="A place outside that commands may also read; repeatable.")
    ] = None
    command_write: Annotated[
        list[str] | None, typer.Option(metavar="DIR", help="A place outside that commands may also write; repeatable.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputOptions:
    """What is printed."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False
    quiet: Annotated[
        bool,
        typer.Option(
            "--quiet", "-q", help="Print the answer or report alone; one line on stderr if it is not a full success."
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOptions(OutputOptions):
    """What is printed, and what counts as a failure."""

    fail_on: Annotated[
        str | None,
        typer.Option(metavar="partial", parser=one_of("partial"), help="Exit code 3 if the outcome is only partial."),
    ] = None

    def exit_code(self, statuses: Iterable[str], verdicts: Iterable[str | None] = ()) -> int:
        """The exit code of runs that ended so, with these verdicts of `comply`."""
        ended = set(map(str, statuses))
        named = FAIL_ON[self.fail_on] if self.fail_on else ()
        return 1 if "failed" in ended else FAILING if ended.union(map(str, verdicts)).intersection(named) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """Which traces."""

    start: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", parser=filled, help="From this time on, e.g. 2026-11-01T00:00Z."),
    ] = None
    since: Annotated[
        str | None,
        typer.Option("--since", "--last", metavar="SPAN", parser=filled, help="The last 24h, 30m or 7d."),
    ] = None
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", parser=filled, help="Up to, but not including, this time.")
    ] = None
    filter: Annotated[
        str | None,
        typer.Option(metavar="EXPR", parser=filled, help="Traces with a matching span: status_code == 'ERROR'."),
    ] = None

    @property
    def begin(self) -> str | None:
        """The first moment of the window, from --from or --since."""
        if self.since is None:
            return self.start
        from datetime import UTC, datetime

        from sonde.batch.query import since_time

        if self.start is not None:
            raise typer.BadParameter("--from and --last (or --since) both say when the window begins; give one of them")
        return since_time(self.since, datetime.now(UTC))


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Where traces are."""

    source: Annotated[
        str | None,
        typer.Option(
            metavar="S",
            help="A trace file, a folder, or a server: Phoenix [http://localhost:6006], langfuse:URL or langsmith:URL. "
            "Keys come from PHOENIX_API_KEY, LANGFUSE_PUBLIC_KEY with LANGFUSE_SECRET_KEY, or LANGSMITH_API_KEY.",
        ),
    ] = None
    project: Annotated[str | None, typer.Option(metavar="NAME", help="The project of the traces.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvestigationOptions:
    """How an investigation runs."""

    no_writeback: Annotated[bool, typer.Option("--no-writeback", help="Write no annotations to the server.")] = False
    replace_judgements: Annotated[
        bool,
        typer.Option(
            "--replace-judgements", help="Let annotations of a rule replace a model's, and those of a model a person's."
        ),
    ] = False
    mode: Annotated[str | None, typer.Option(metavar="code|actions", help="The form of the model's replies.")] = None
    sandbox_profile: Annotated[
        str | None,
        typer.Option(
            "--profile", metavar="P", help="Language rules: open, general, analysis, strict, assign-only. [analysis]"
        ),
    ] = None
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Run code even if the kernel cannot confine it; the record says so.")
    ] = False
    without: Without = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludeOptions:
    """Which files are left out."""

    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Leave these files or folders out, as in .gitignore: '**/*.test.ts'; repeatable."
        ),
    ] = None
    no_ignore: Annotated[bool, typer.Option("--no-ignore", help="Read what .gitignore files name, too.")] = False

    def exclusion(self) -> Exclusion:
        """The same for those who list files."""
        from sonde.contexts.files.exclusion import Exclusion

        return Exclusion.of(self.exclude or (), gitignore=not self.no_ignore)


DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Say what would be read and about what it would cost; call no model, keep no run."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions(EndOptions):
    """What is printed."""

    json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print {report, annotator_kind, status, run_dir}; several runs print one object per line."
        ),
    ] = False


def _is_typed(ctx: Any, option: str) -> bool:
    return ctx.get_parameter_source(option).name == "COMMANDLINE"


class CommandList(TyperGroup):
    """A command with sub-commands. Its help is under headings at the top, with whole summaries.

    An option before the sub-command means what it means after it; one that the sub-command does not have is refused.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The sub-command, which finds the options that stand before it as its own."""
        name, command, rest = super().resolve_command(ctx, args)
        given = [
            (option_name, max(each.opts, key=len))
            for each in self.get_params(ctx)
            if (option_name := str(each.name)) and _is_typed(ctx, option_name)
        ]
        if command is None or not given:
            return name, command, rest
        after = command.make_context(name, list(rest), parent=ctx, resilient_parsing=True)
        passed: dict[str, Any] = {}
        for option_name, spelling in given:
            own = next((str(each.name) for each in command.params if spelling in each.opts), None)
            if own is None:
                raise ConfigError(f"`{ctx.command_path} {name}` has no option {spelling}; leave it out")
            passed[own] = ctx.params[option_name]
            if _is_typed(after, own) and after.params[own] != passed[own]:
                raise ConfigError(f"{spelling} has two values, before and after `{name}`; give one")
        ctx.default_map = {name: passed}
        return name, command, rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sub-commands."""
        rest = dict(self.commands)
        sections = SECTIONS if ctx.parent is None else {}
        titled = {
            title: [(name, rest.pop(name)) for name in names if name in rest] for title, names in sections.items()
        }
        for title, found in {**titled, "Commands": list(rest.items())}.items():
            rows = [(name, command.get_short_help_str(1000)) for name, command in found if not command.hidden]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


def settings_of(*groups: Any, **more: Any) -> Settings:
    """The settings of this process, with the flags in these groups."""
    from sonde.api.settings import load_settings

    flags = {field.name: getattr(group, field.name) for group in groups for field in fields(group)}
    settings = load_settings(**flags, **more)
    if settings.ignored:
        print(f"note: {printable(settings.ignored)}", file=sys.stderr)
    return settings


def spread(command: Callable[..., int | None]) -> Callable[..., None]:
    """The command with a parameter for each field of its dataclass parameters. It returns the exit code."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    plain = [p for p in inspect.signature(command).parameters.values() if p.name not in groups]
    shown = [p.replace(annotation=hints[p.name], kind=inspect.Parameter.KEYWORD_ONLY) for p in plain]
    for group in groups.values():
        field_hints = get_type_hints(group, include_extras=True)
        if issubclass(group, BudgetOptions):
            limits = [f.name for f in fields(BudgetOptions) if f.name != "sampling_seed"]
            known = _BUDGETS.get(command.__name__)
            for name, value in zip(limits, known or [None] * len(limits), strict=True):
                if group is not BudgetOptions and name in group.__annotations__:
                    continue  # it has a meaning of its own there
                kind, option = get_args(field_hints[name])
                option, most = copy.copy(option), "no limit" if value is None else f"{value:,.10g}"
                option.help += f" [{most if known else 'as its engine'}]"
                field_hints[name] = Annotated[kind, option]
        shown += [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=field_hints[f.name])
            for f in fields(group)
        ]
    for parameter in shown:
        kind, *described = get_args(parameter.annotation) or (parameter.annotation,)
        if Path in (kind, *get_args(kind), *(part for each in get_args(kind) for part in get_args(each))):
            for option in described:
                option.parser = path

    @functools.wraps(command)
    def run(**given: Any) -> None:
        values = {name: group(**{f.name: given.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        code = command(**given, **values)
        if code is not None:
            raise typer.Exit(code)

    run.__annotations__ = {p.name: p.annotation for p in shown}
    run.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]  # where inspect looks first
    return run
