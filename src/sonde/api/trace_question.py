"""The traces that a question is about: which sources, which project, which window of time.

Built from a call, or from the recipe in a recorded run's first event; both open the same. Keys and headers are never in a recipe: they come
from the environment each time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from sonde.api.consent import require_server, require_sources
from sonde.api.settings import Settings
from sonde.api.sources import Opened
from sonde.api.trace_source import Source, project_in, source_of, upto_of
from sonde.contexts.code import CodeContext
from sonde.contexts.files import FilesContext
from sonde.contexts.traces.catalog import is_server, query_of
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.joined import StorePart
from sonde.contexts.traces.loaded_window import LoadedWindow
from sonde.contexts.traces.question import QuestionContext
from sonde.contexts.traces.span import time_text
from sonde.contexts.traces.store import TraceQuery
from sonde.core.deadline import deadline_in_force
from sonde.disk import AnyPath
from sonde.engines.question import QUESTION
from sonde.errors import ConfigError, RunError, ToolCallFailed, ToolFault
from sonde.trace_client import ServerRefused, ServerUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceQuestion:
    """Sources and a window, as data."""

    places: tuple[Source, ...]
    start: str | None = None
    end: str | None = None
    filter_expr: str | None = None

    @classmethod
    def of(
        cls,
        source: str | Path | Sequence[str | Path],
        project: str | None,
        settings: Settings,
        *,
        start: str | None = None,
        end: str | None = None,
        filter_expr: str | None = None,
    ) -> TraceQuestion:
        """From what a caller gives."""
        given = [source] if isinstance(source, str | Path) else list(source)
        if not given or not all(str(each).strip() for each in given):
            raise ConfigError("a source is empty; give a trace file, a folder of them, or the address of a server")
        places = [source_of(each, project, settings.environ, cache_gb=settings.trace_cache_gb) for each in given]
        return cls(places=tuple(places), start=start, end=end, filter_expr=filter_expr)

    def query(self) -> TraceQuery:
        """The window; ConfigError for a time or a filter that is none."""
        try:
            return query_of(start=self.start, end=self.end, filter_expr=self.filter_expr)
        except ToolFault as fault:
            raise ConfigError(f"--filter: {fault.message}") from None

    @contextmanager
    def opened(self, beside: Opened | None = None) -> Generator[Opened]:
        """The traces, and the files beside them, until the end of the block. Mistakes that only a source can find wait in the context, for
        the run to end with them and leave a record; a source that cannot be reached is a ConfigError here.
        """
        query = self.query()
        run = deadline_in_force()
        began = run.started if run is not None and any(place.server for place in self.places) else None
        files = beside.context if beside is not None else None
        if files is not None and not isinstance(files, FilesContext | CodeContext):
            raise ConfigError("beside traces a question takes files and folders, not data: put the data into a file")
        with ExitStack() as stack:
            parts: list[StorePart] = []
            refusal: ConfigError | RunError | None = None
            for place in self.places:
                try:
                    parts.append(_opened(place, query))
                    stack.callback(parts[-1].store.close)
                except _Refused as refused:
                    refusal = refused.reason
                    break
            context = QuestionContext(parts, query, files=files)
            context.refusal = refusal
            stack.callback(context.close)
            paths = {"paths": list[str](), "code": False} if beside is None else beside.recipe
            yield Opened(
                context=context,
                engine=QUESTION,
                recipe=None if paths is None else {**paths, "traces": self._as_read(parts).recipe()},
                left_out=beside.left_out if beside is not None else "",
                dataset=", ".join(place.dataset for place in self.places),
                input_ref={
                    "project_name": self.project,
                    "trace_ids": [],
                    "time_window": {"start": self.start, "end": self.end},
                    "filter_expr": self.filter_expr,
                },
                secrets=[secret for place in self.places for secret in place.secrets()],
                began=began if beside is None or beside.began is None else beside.began,
            )

    @property
    def project(self) -> str | None:
        """The project that all places have in common."""
        return next((place.project for place in self.places), None)

    def _as_read(self, parts: Sequence[StorePart]) -> TraceQuestion:
        """The same with an end. A server and a listener get new traces every moment: a replay or a follow-up reads those that were there
        now.
        """
        read = [part.store.upto for part in parts]
        places = [replace(place, upto=upto) for place, upto in zip(self.places, read, strict=False)]
        fixed = replace(self, places=(*places, *self.places[len(places) :]))
        if self.end is not None or not any(place.server for place in self.places):
            return fixed
        latest = max((us for part in parts if (us := part.store.latest_us()) is not None), default=None)
        return replace(fixed, end=None if latest is None else time_text(latest + 1))

    def recipe(self) -> dict[str, Any]:
        """What opens the same again."""
        return {
            "sources": [place.name for place in self.places],
            "project": self.project,
            "start": self.start,
            "end": self.end,
            "filter_expr": self.filter_expr,
            **({"upto": upto} if any(upto := [place.upto for place in self.places]) else {}),
        }


def traces_of(
    recipe: Mapping[str, Any], settings: Settings, within: Sequence[AnyPath], moved: str | Path | None = None
) -> TraceQuestion:
    """The traces of a recorded run; `moved` says where they are now. It names no file outside of `within` and no server but the user's."""
    named = [str(each) for each in cast("list[Any]", recipe["sources"])]
    if moved is None:
        for each in named:
            if is_server(each):
                require_server(each, settings)
        require_sources((each for each in named if not is_server(each)), within)
    question = TraceQuestion.of(
        named if moved is None else [moved],
        recipe.get("project"),
        settings,
        start=recipe.get("start"),
        end=recipe.get("end"),
        filter_expr=recipe.get("filter_expr"),
    )
    upto = cast("list[Any]", recipe.get("upto") or [])
    read = [replace(place, upto=upto_of(last)) for place, last in zip(question.places, upto, strict=False)]
    return replace(question, places=(*read, *question.places[len(read) :]))


class _Refused(Exception):
    """The source was reached and cannot serve the question."""

    def __init__(self, reason: ConfigError | RunError) -> None:
        self.reason = reason


def _opened(place: Source, query: TraceQuery) -> StorePart:
    """The local store of a source; of a server the window is loaded first."""
    store = place.open(still=True)
    try:
        project = project_in(place, store)
        if isinstance(store, FileStore):
            return StorePart(store=store, project=project)
        return StorePart(store=LoadedWindow(store, replace(query, project=project), place.dataset))
    except BaseException as failure:
        store.close()
        match failure:
            case ServerUnavailable():
                raise ConfigError(failure.message) from None
            case ServerRefused():  # a key that it does not take, say
                raise _Refused(ToolCallFailed(failure.message)) from None
            case ConfigError() | RunError():
                raise _Refused(failure) from None
            case _:
                raise
