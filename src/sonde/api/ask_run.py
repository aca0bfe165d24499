"""`ask` and `aask`: a question about files, text or data, and an answer whose every citation is proved."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Unpack, cast

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError

from sonde.api.follow_up import continued, continued_mask
from sonde.api.launch import RunOptions, budget_of, launch, mask_of, model_names, spec_of
from sonde.api.result import Answer
from sonde.api.settings import Settings, load_settings
from sonde.api.sources import Opened, open_context, parsed_without
from sonde.contexts.files.exclusion import Exclusion
from sonde.core.cancellation import Stop
from sonde.core.deadline import Deadline, SystemClock, guarded
from sonde.engines.ask import ASK
from sonde.errors import ConfigError
from sonde.runtime.run import RunSpec
from sonde.sandbox import Limits
from sonde.tools import tool


def ask(
    question: str,
    *context: Any,
    tools: Sequence[Callable[..., Any]] = (),
    schema: Any = None,
    code: bool = False,
    exclude: Sequence[str] = (),
    gitignore: bool = True,
    citations: bool = True,
    continue_from: str | Path | None = None,
    trust_run: bool = False,
    limits: Limits | None = None,
    source: str | Path | Sequence[str | Path] | None = None,
    project: str | None = None,
    start: str | None = None,
    end: str | None = None,
    filter_expr: str | None = None,
    **options: Unpack[RunOptions],
) -> Answer:
    """Ask a question about files, folders, text or data, or about traces.

        answer = sonde.ask("Which service first logged the outage?", "logs/", model="openai:gpt-4o-mini", max_iterations=20)

    question       what you want to know
    context        paths, globs, text of several words, or one value (a dict, a list, a data frame); nothing: the question alone
    tools          functions of yours that the code may call; their type hints and docstrings are shown to the model
    schema         the form of the value: a pydantic model, another type (a dataclass, list[int]) or a JSON schema
    code           read source code by its symbols (functions, classes, callers) as well as by its lines: of paths, of a text (taken
                   for Python), or of a dict of texts by file name
    exclude        globs of files and folders to leave out, as in .gitignore: "**/*.test.ts", "vendor/"
    gitignore      False: read what .gitignore files name, too
    citations      False: the answer needs no citation. One without is recorded and shown as unproved
    continue_from  a run (id, folder or "last") that this question follows up on
    trust_run      let that run name files anywhere, even if it was not made here
    limits         what one block of code may use in the sandbox (seconds, memory, output)
    source         traces to ask about: a trace file, a folder of them, or the address of a server; several in a list. Files given as
                   context are there as well, so that a failing span can be followed into the code
    project        the project of the traces
    start, end     their window, as RFC 3339; None: from the first trace, to the last
    filter_expr    only traces with a span that fits, for example "status_code == 'ERROR'"

    The keywords of every function that starts a run (`ask`, `edit`, `rca`, `comply`, `incident`, `run`):

    model          "provider:name", a name of sonde.toml, or an object with `complete`; None: the one of the settings;
                   "none": no model, so passages only
    sub_model      who answers sub-calls; None: the one of the settings, else `model`
    budget         a Budget instead of the engine's own. Single limits by name hold on top of it: max_iterations, max_depth,
                   max_tool_calls, max_subcalls, max_tokens_total, max_tokens_per_subcall, max_cost_usd, max_wall_time_sec,
                   and sampling_seed
    temperature    and reasoning_effort, max_output_tokens, top_p: how a model given by name answers; None: what suits it
    profile        language rules of the sandbox: open, general (ask and edit), analysis (the others), strict, assign-only
    packages       installed packages that the code may import: numpy, pandas
    mode           the form of the model's replies: code, actions, guided (questions only), or auto: what suits the model
    runs_dir       where the run's folder is made; None: the one of the settings, else as docs/runs.md says
    on_event       called with every event of the run; if it raises, the journal notes it, and it is not called again
    on_text        called with the session's path and each piece of text as a model streams it; the same holds
    cancel         a threading.Event that stops the run softly: it ends with the best it has and a complete record
    settings       Settings instead of those of the environment and sonde.toml
    clock          where the run's time comes from
    unsafe         run code even where the kernel cannot confine it; the record says so
    without        "landlock": leave that layer off, for kernels that lack it; all others must hold, and the record says so
    in_memory      leave no folder
    mask           hide e-mail addresses, tokens and card numbers from the model and the journal (docs/privacy.md); the result has them
    mask_patterns  what else is hidden: patterns by name, for example {"customer": "C-[0-9]+"}; they turn `mask` on
    restore        False: the result of a masked run keeps the placeholders, for example because another model reads it
    """
    settings = options.get("settings") or load_settings()
    if callable(tools):
        raise ConfigError("tools is a list of functions: tools=[lookup], and not tools=lookup")
    form = None if schema is None or isinstance(schema, Mapping) else _form_of(schema)
    with question_spec(
        question,
        context,
        settings,
        options,
        tools=tools,
        schema=cast("Mapping[str, Any] | None", schema) if form is None else form.json_schema(),
        code=code,
        exclusion=Exclusion.of(exclude, gitignore=gitignore),
        citations=citations,
        continue_from=continue_from,
        trust_run=trust_run,
        limits=limits,
        source=source,
        project=project,
        start=start,
        end=end,
        filter_expr=filter_expr,
    ) as spec:
        answer = launch(spec, settings)
    assert isinstance(answer, Answer)
    if form is not None and answer.value is not None:
        try:
            answer = replace(answer, value=form.validate_python(answer.value))
        except ValidationError:  # a partial run may hold a value that does not fit; it stays as data
            pass
    return answer


def _form_of(schema: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(schema)
    except (PydanticUserError, TypeError, NameError):
        raise ConfigError(
            f"schema is a JSON schema, a pydantic model or a type such as list[int], and not {schema!r:.100}"
        ) from None


@contextmanager
def question_spec(
    question: str,
    context: Sequence[Any],
    settings: Settings,
    options: RunOptions,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    schema: Mapping[str, Any] | None = None,
    code: bool = False,
    exclusion: Exclusion | None = None,
    citations: bool = True,
    continue_from: str | Path | None = None,
    trust_run: bool = False,
    limits: Limits | None = None,
    source: str | Path | Sequence[str | Path] | None = None,
    project: str | None = None,
    start: str | None = None,
    end: str | None = None,
    filter_expr: str | None = None,
) -> Generator[RunSpec]:
    """The run of what `ask` was given; its traces are open until the end of the block."""
    if not question.strip():
        raise ConfigError("the question is empty; ask one, for example: sonde ask 'What does this do?' src/")
    if source is None and (project or start or end or filter_expr):
        raise ConfigError("a project, a window and a filter are those of traces: name their source too (--source)")
    options["mask"] = continued_mask(continue_from, mask_of(settings, options), settings, options.get("runs_dir"))
    without = parsed_without(settings.backend, unsafe=options.get("unsafe", False), without=options.get("without", ""))
    limits = limits or Limits()
    clock = options.get("clock") or SystemClock()
    loading = Deadline(clock, budget_of(ASK, settings, options).max_wall_time_sec)
    with ExitStack() as stack:
        opened = open_context(context, code=code, without=without, exclusion=exclusion, loading=loading)
        if source is not None:
            from sonde.api.trace_question import TraceQuestion  # noqa: PLC0415  # loaded only for those who ask about traces

            window = {"start": start, "end": end, "filter_expr": filter_expr}
            traces = TraceQuestion.of(source, project, settings, **window)
            with loading.in_force(), guarded("loading the traces"):
                opened = stack.enter_context(traces.opened(opened if context or code else None))
        spec = ask_spec(question, opened, settings, options, code=code, schema=schema, citations=citations)
        own = {"tools": [tool(each).name for each in tools], "limits": asdict(limits)}
        own |= {"given": bool(context) or source is not None}
        spec = replace(spec, tools=tools, limits=limits, recipe={**spec.recipe, **own})
        if continue_from is not None:
            with loading.in_force():
                earlier = continued(spec, continue_from, settings, options.get("runs_dir"), trust_run=trust_run)
                spec = stack.enter_context(earlier)
        yield spec


def ask_spec(
    question: str,
    opened: Opened,
    settings: Settings,
    options: RunOptions | None = None,
    *,
    code: bool = False,
    schema: Mapping[str, Any] | None = None,
    citations: bool = True,
) -> RunSpec:
    """The run of a question; the same again from its recipe."""
    spec = spec_of(opened.engine, question, opened.context, settings, options)
    recipe = {"engine": "ask", "sources": opened.recipe, "code": code, "schema": schema, **model_names(spec)}
    recipe |= {"given": True, **({} if citations else {"citations": False})}
    return replace(opened.given_to(spec), schema=schema, citations=citations, recipe=recipe)


async def aask(question: str, *context: Any, **options: Any) -> Answer:
    """`ask` for asynchronous programs: the run goes on in a thread of its own; cancelling the task stops the run softly."""
    cancel: threading.Event = options.pop("cancel", None) or Stop()
    thread = ThreadPoolExecutor(1, thread_name_prefix="sonde-ask")  # the loop's own are few, and for others
    work = asyncio.get_running_loop().run_in_executor(
        thread, functools.partial(ask, question, *context, cancel=cancel, **options)
    )
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancel.set()
        await asyncio.wait([work])
        raise
