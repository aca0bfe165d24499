"""`ask` and `aask`: a question about files, text or data, and an answer whose every citation is proved."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ValidationError

from sonde.api.follow_up import continued
from sonde.api.launch import Finished, Job, Launch, OnEvent, run_for_answer
from sonde.api.settings import Settings, load_settings
from sonde.api.sources import Opened, open_context
from sonde.core.budget import Budget
from sonde.core.cancellation import Stop
from sonde.core.deadline import Clock, SystemClock
from sonde.core.evidence import Citation
from sonde.core.record import RunRecord
from sonde.core.status import RunStatus
from sonde.engines.ask import ASK
from sonde.errors import ConfigError
from sonde.models.base import Model
from sonde.runtime.wiring import ModeChoice
from sonde.sandbox import Limits
from sonde.tools import tool


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a question. `value` is the final value itself (an instance of the schema's model when one was given)."""

    text: str
    value: Any
    citations: tuple[Citation, ...]
    status: RunStatus
    record: RunRecord
    run_dir: Path | None
    gaps: tuple[str, ...]
    annotator_kind: Literal["LLM", "CODE"]

    def __str__(self) -> str:
        return self.text


Schema = type[BaseModel] | Mapping[str, Any]


def ask(
    question: str,
    *context: Any,
    model: str | Model | None = None,
    sub_model: str | Model | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    schema: Schema | None = None,
    budget: Budget | None = None,
    profile: str | None = None,
    mode: ModeChoice | None = None,
    code: bool = False,
    runs_dir: str | Path | None = None,
    continue_from: str | Path | None = None,
    on_event: OnEvent | None = None,
    on_text: Callable[[str, str], None] | None = None,
    cancel: threading.Event | None = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
    unsafe: bool = False,
    in_memory: bool = False,
    **knobs: float | None,
) -> Answer:
    """Ask a question about files, folders, text or data; `knobs` are budget knobs such as max_iterations=20."""
    if not question.strip():
        raise ConfigError("the question is empty; ask one, for example: sonde ask 'What does this do?' src/")
    chosen = settings or load_settings()
    launch = Launch(
        settings=chosen,
        runs_dir=Path(runs_dir) if runs_dir else None,
        on_event=on_event,
        on_text=on_text,
        cancel=cancel or Stop(),
        clock=clock or SystemClock(),
        in_memory=in_memory,
    )
    job = replace(
        ask_job(question, open_context(context, code=code), chosen, code=code, schema=json_schema(schema)),
        model=model,
        sub_model=sub_model,
        tools=tools,
        budget=budget,
        knobs=check_knobs(knobs),
        profile=profile or chosen.sandbox_profile,
        mode=mode or cast("ModeChoice", chosen.mode),
        unsafe=unsafe,
        limits=limits or Limits(),
    )
    given = {"given": bool(context), "tools": [tool(each).name for each in tools], "limits": asdict(job.limits)}
    job = replace(job, recipe={**job.recipe, **_specs(model, sub_model, chosen), **given})
    if continue_from is not None:
        job = continued(job, chosen, continue_from, runs_dir)
    return answer_of(run_for_answer(job, launch), schema)


def ask_job(
    question: str, opened: Opened, settings: Settings, *, code: bool = False, schema: Mapping[str, Any] | None = None
) -> Job:
    """The job of a question, with the settings' model, mode and profile; the same again from its recipe."""
    return Job(
        engine=ASK,
        objective=question,
        context=opened.context,
        schema=schema,
        variables=opened.variables,
        input_ref={"trace_ids": []},
        profile=settings.sandbox_profile,
        mode=cast("ModeChoice", settings.mode),
        recipe={
            "engine": "ask",
            "sources": opened.recipe,
            "code": code,
            "schema": schema,
            "model": settings.model,
            "sub_model": settings.sub_model,
            "given": True,
        },
    )


def _specs(model: str | Model | None, sub_model: str | Model | None, settings: Settings) -> dict[str, str | None]:
    """How the models can be opened again; None for one that only the caller has."""
    given = {"model": (model, settings.model), "sub_model": (sub_model, settings.sub_model)}
    return {
        name: chosen if isinstance(chosen, str) else configured if chosen is None else None
        for name, (chosen, configured) in given.items()
    }


async def aask(question: str, *context: Any, **options: Any) -> Answer:
    """`ask` for asynchronous programs: the run goes on in a thread; cancelling the task stops the run softly."""
    cancel: threading.Event = options.pop("cancel", None) or Stop()
    work = asyncio.get_running_loop().run_in_executor(
        None, functools.partial(ask, question, *context, cancel=cancel, **options)
    )
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        cancel.set()
        await asyncio.wait([work])
        raise


def json_schema(schema: Schema | None) -> Mapping[str, Any] | None:
    """The JSON schema of what the user gave: a pydantic model or a schema already."""
    if schema is None or isinstance(schema, Mapping):
        return schema
    return schema.model_json_schema()


def check_knobs(knobs: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """Budget knobs by name; ConfigError lists the known ones."""
    known = Budget.__dataclass_fields__
    for name in knobs:
        if name not in known:
            raise ConfigError(f"ask() has no argument {name!r}; budget knobs are {', '.join(known)}")
    return knobs


def answer_of(finished: Finished, schema: Schema | None = None) -> Answer:
    """The answer of a finished run."""
    conclusion = finished.ended.conclusion
    output = cast("dict[str, Any]", conclusion.output or {})
    value = output.get("value")
    if isinstance(schema, type) and value is not None:
        try:
            value = schema.model_validate(value)
        except ValidationError:  # a partial run may hold a value that does not fit; it stays as data
            pass
    return Answer(
        text=conclusion.text,
        value=value,
        citations=conclusion.citations,
        status=finished.ended.status,
        record=finished.record,
        run_dir=finished.run_dir.path if finished.run_dir else None,
        gaps=conclusion.gaps,
        annotator_kind=finished.annotator,
    )
