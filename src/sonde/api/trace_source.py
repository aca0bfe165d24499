"""A case: which engine looks at which traces, where they are, and what they are held against.

Built from a call, or from the recipe in a recorded run's first event; both give the same job. Keys and headers are
never in a recipe: they come from the environment each time.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args
from urllib.parse import unquote, urlsplit

from sonde.api.config_file import user_folder
from sonde.api.consent import require_server, require_sources
from sonde.api.settings import Settings
from sonde.contexts.configs import ConfigSnapshots
from sonde.contexts.controls import ControlsLibrary, TraceScope
from sonde.contexts.traces.catalog import DEFAULT_PROJECT, is_server, open_store, query_of
from sonde.contexts.traces.context import TracesContext
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.store import Product, TraceQuery, TraceStore, UnknownTrace, server_of
from sonde.core.canonical import hash_value
from sonde.core.redaction import url_secrets
from sonde.disk import AnyPath
from sonde.engines.compliance import COMPLIANCE
from sonde.engines.incident import INCIDENT
from sonde.engines.rca import RCA
from sonde.engines.reports import PassFail
from sonde.engines.taxonomies import load_taxonomy, shipped_taxonomy
from sonde.errors import ConfigError, NotInSource, RunError, ToolCallFailed, ToolFault
from sonde.runtime.engine import Engine
from sonde.trace_client import ServerRefused

EngineName = Literal["rca", "compliance", "incident"]
ENGINES: dict[str, Engine] = {"rca": RCA, "compliance": COMPLIANCE, "incident": INCIDENT}
DEFAULT_CONTROLS = "v1"
WHOLE_ID = 32  # characters of a trace id; a shorter one may be the beginning of one
LISTED = 100_000  # traces that are looked through for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where traces are: a file, a folder, or a server with a project. `cache` keeps indexes of files.

    A server is named by its address, with `langfuse:` or `langsmith:` before it if it is not Phoenix.
    """

    source: str | Path
    project: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cache: Path | None = None
    cache_gb: float | None = None
    upto: int | None = None
    """The last span that counts of a store which a listener fills, for a recorded run."""

    @property
    def server(self) -> bool:
        """Whether it is on a server, not in files."""
        return is_server(self.source)

    @property
    def writable(self) -> bool:
        """Whether annotations can be written there: only to Phoenix."""
        return (server_of(self.source) or ("",))[0] == "phoenix"

    @property
    def address(self) -> str:
        """The URL of the server, without the word for its product."""
        return (server_of(self.source) or ("", str(self.source)))[1]

    @property
    def name(self) -> str:
        """The address, or the absolute path."""
        return str(self.source) if self.server else str(Path(self.source).absolute())

    @property
    def dataset(self) -> str:
        """What the record calls the data: the name of the file or folder, or the server (no user, no path) and the project."""
        found = server_of(self.source)
        if found is None:
            return Path(self.source).absolute().name
        usual = "" if found[0] == "langfuse" else DEFAULT_PROJECT  # keys of Langfuse open one project
        return f"{urlsplit(self.address).netloc.rpartition('@')[2]}/{self.project or usual}".removesuffix("/")

    def open(self, *, still: bool = False) -> FileStore | ServerStore:
        """The store. Files keep the projects that their spans name; `project_in` says which one is meant. `still`: what comes into the
        store of a listener from now on, or has come after `upto`, does not count.
        """
        project = self.project if self.server else None
        return open_store(
            self.source,
            project=project,
            cache=self.cache,
            cache_gb=self.cache_gb,
            api_key=self.api_key,
            headers=self.headers,
            still=still,
            upto=self.upto,
        )

    def secrets(self) -> list[str]:
        """What no journal and no message may hold."""
        return [value for value in (self.api_key, *self.headers.values(), *url_secrets(self.address)) if value]


def source_of(
    source: str | Path | Source,
    project: str | None,
    environ: Mapping[str, str],
    cache: Path | None = None,
    *,
    cache_gb: float | None = None,
) -> Source:
    """A source with the key and the headers, or the folder for indexes and its limit, that the environment has for it."""
    if isinstance(source, Source):
        return source
    found = server_of(source)
    if found is None:
        word, colon, rest = str(source).partition(":")
        if colon and word in get_args(Product) and not os.path.lexists(source):
            raise ConfigError(f"--source {word}: needs the whole address, for example {word}:https://{rest or 'HOST'}")
        return Source(source=source, project=project, cache=cache or cache_folder(environ), cache_gb=cache_gb)
    if found[0] == "langfuse":
        public, secret = (_key("Langfuse", name, environ) for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"))
        basic = base64.b64encode(f"{public}:{secret}".encode()).decode()
        return Source(source=source, project=project, api_key=secret, headers={"authorization": f"Basic {basic}"})
    if found[0] == "langsmith":
        key = _key("LangSmith", "LANGSMITH_API_KEY", environ)
        tenant = environ.get("LANGSMITH_WORKSPACE_ID")  # needed by keys that open several workspaces
        sent = {"x-api-key": key} | ({"x-tenant-id": tenant} if tenant else {})
        return Source(
            source=source, project=project or environ.get("LANGSMITH_PROJECT") or None, api_key=key, headers=sent
        )
    headers: dict[str, str] = {}  # name=value,name=value, percent-encoded, as Phoenix's own client reads them
    for pair in filter(None, (part.strip() for part in environ.get("PHOENIX_CLIENT_HEADERS", "").split(","))):
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise ConfigError("PHOENIX_CLIENT_HEADERS is not name=value,name=value (its values are not shown)")
        headers[unquote(name.strip()).lower()] = unquote(value.strip())
    return Source(source=source, project=project, api_key=environ.get("PHOENIX_API_KEY") or None, headers=headers)


def _key(product: str, name: str, environ: Mapping[str, str]) -> str:
    value = environ.get(name, "").strip()
    if not value:
        raise ConfigError(f"{product} needs a key: set {name} in the environment (it is never read from a file)")
    return value


def project_in(place: Source, store: TraceStore) -> str | None:
    """The project to look in; None for all of a file. A file whose spans name no project counts as the wanted one."""
    if place.project is None:
        return None
    known = store.projects()
    if place.project in known:
        return place.project
    if not place.server and known == [DEFAULT_PROJECT]:
        return None
    raise NotInSource(f"{place.name} has no project {place.project!r}; there are: {', '.join(known[:20]) or 'none'}")


def known_ids(place: Source, store: TraceStore) -> dict[str, None]:
    """The ids of the traces there, at most LISTED."""
    known: dict[str, None] = {}
    query = TraceQuery(project=place.project if place.server else None, limit=1000, counted=False)
    while (before := len(known)) < LISTED:
        page = store.traces(query)
        known |= dict.fromkeys(row.trace_id for row in page.rows)
        if not page.more or len(known) == before:  # nothing new: a server may name the same traces again and again
            break
        query = replace(query, after=page.rows[-1].trace_id)
    return known


def whole_ids(given_ids: Sequence[str], known: Mapping[str, None]) -> list[str]:
    """Trace ids, whole where the caller gave only the beginning of a known one."""
    ids: list[str] = []
    for given in given_ids:
        found = [given] if given in known else [each for each in known if each.startswith(given)]
        if len(found) > 1:
            raise ConfigError(f"{len(found)} traces begin with {given}: {', '.join(found[:4])}; give more of the id")
        ids += found or [given]
    return ids


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Where indexes of trace files are kept between runs; None without a home that can be written: then an index lives as long as its
    run.
    """
    folder = user_folder(environ, "XDG_CACHE_HOME", ".cache")
    if folder is None:
        return None
    there = next((each for each in (folder / "traces", folder, *folder.parents) if os.path.lexists(each)), folder)
    return folder / "traces" if there.is_dir() and os.access(there, os.W_OK) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One investigation, as data."""

    engine: EngineName
    place: Source
    trace_ids: tuple[str, ...] = ()
    taxonomy: str | None = None
    controls_version: str | None = None
    controls_files: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    verdicts: Mapping[str, str] = field(default_factory=dict[str, str])
    """A person's verdicts, by control; `reason` says why."""
    reason: str = ""
    start: str | None = None
    end: str | None = None
    filter_expr: str | None = None
    configs: str | None = None
    changes: tuple[str, ...] = ()
    """What else changed: `git:REPO` or a JSON file of deploys."""
    writeback: bool = True
    replace_judgements: bool = False
    """The caller's word that annotations may replace those of a higher judge. Not in the recipe: a recording never says it."""

    @property
    def objective(self) -> str:
        """The task in words."""
        match self.engine:
            case "rca" if self.taxonomy:
                return f"List every failure in trace {self.trace_ids[0]} that can be proved."
            case "rca":
                return f"Find the root cause of the failure in trace {self.trace_ids[0]}."
            case "compliance":
                return f"Judge whether trace {self.trace_ids[0]} keeps the controls {self.version()}."
            case "incident":
                where = f"project {self.place.project}" if self.place.project else "these traces"
                window = f"between {self.start or 'the first trace'} and {self.end or 'the last'}"
                return f"Write the dossier of the incident in {where} {window}."

    def controls(self) -> ControlsLibrary:
        """The shipped controls, and those of the files."""
        shipped = ControlsLibrary.shipped()
        return shipped.joined(self._own()) if self.controls_files else shipped

    def _own(self) -> ControlsLibrary:
        return ControlsLibrary.load(*map(Path, self.controls_files))

    def version(self) -> str:
        """The version that was asked for; otherwise the only one in the files, or v1."""
        own = self._own().versions() if self.controls_files and self.controls_version is None else []
        return self.controls_version or (own[0] if len(own) == 1 else DEFAULT_CONTROLS)

    def resolved(self) -> Case:
        """The same with whole trace ids where the caller gave the beginning of one."""
        if all(len(trace_id) >= WHOLE_ID for trace_id in self.trace_ids):
            return self
        store = self.place.open()
        try:
            known = known_ids(self.place, store)
        except (RunError, ToolFault, ConfigError):  # the run fails with it, and its record says so
            return self
        finally:
            store.close()
        return replace(self, trace_ids=tuple(whole_ids(self.trace_ids, known)))

    def open(self, *, recorded: bool = False) -> TracesContext:
        """The context of the run. Mistakes of the caller (ids, versions, times) raise here, before anything is spent. With `recorded`
        those that only the source can find (no such trace or project, a key that it refuses) wait in the context, for the run to end
        with them and leave a record.
        """
        place = self.place
        store = place.open(still=True)
        configs = ConfigSnapshots(Path(self.configs), project_name=place.project or "") if self.configs else None
        context = TracesContext(store, controls=self.controls(), configs=configs, trace_ids=self.trace_ids)
        try:
            self._check(context)
            context.refusal = self._refusal(context.store)
        except BaseException:
            store.close()
            raise
        refused = isinstance(context.refusal, ConfigError) or type(context.refusal) is ToolCallFailed
        if refused and not recorded:  # a server that does not answer is no mistake of the caller
            store.close()
            raise ConfigError(str(context.refusal))
        return context

    def _check(self, context: TracesContext) -> None:
        self.query()
        try:
            if self.engine == "compliance":
                context.controls.select(self.version(), TraceScope(), overrides=(*self.overrides, *self.verdicts))
                if wrong := [
                    f"{name}={word}" for name, word in self.verdicts.items() if word not in get_args(PassFail)
                ]:
                    raise ConfigError(f"--override {wrong[0]}: a verdict is one of {', '.join(get_args(PassFail))}")
                if self.verdicts and not self.reason.strip():
                    raise ConfigError("an override needs a reason: --reason 'why the verdict is wrong'")
        except ToolFault as fault:
            raise ConfigError(fault.message) from None

    def _refusal(self, store: TraceStore) -> ConfigError | RunError | None:
        """Why the source cannot serve this case: a mistake of the caller, or a server that fails."""
        try:
            for trace_id in self.trace_ids:
                try:
                    store.summaries(trace_id)
                except UnknownTrace:
                    known = ", ".join(row.trace_id for row in store.traces(TraceQuery(limit=3)).rows)
                    where = f"{self.place.name} has no trace {trace_id!r}"
                    return NotInSource(f"{where}; it begins with: {known or 'none'} (`sonde traces ls` lists them)")
            if self.engine == "incident" or (self.place.server and self.place.project):
                project_in(self.place, store)
        except ServerRefused as refused:
            return ToolCallFailed(refused.message)
        except ToolFault as fault:
            return ConfigError(fault.message)
        except (RunError, ConfigError) as error:
            return error
        return None

    def query(self) -> TraceQuery | None:
        """The window; None when only named traces are meant."""
        if self.trace_ids and not (self.start or self.end or self.filter_expr):
            return None
        try:
            return query_of(self.place.project, start=self.start, end=self.end, filter_expr=self.filter_expr)
        except ToolFault as fault:
            raise ConfigError(f"--filter: {fault.message}") from None

    def params(self, store: TraceStore) -> dict[str, Any]:
        """What the engine's functions read."""
        match self.engine:
            case "rca":
                categories = load_taxonomy(self.taxonomy) if self.taxonomy else None
                return {"trace_id": self.trace_ids[0], "taxonomy": categories}
            case "compliance":
                version = {"controls_version": self.version(), "overrides": (*self.overrides, *self.verdicts)}
                return {
                    "trace_id": self.trace_ids[0],
                    **version,
                    "verdicts": dict(self.verdicts),
                    "reason": self.reason,
                }
            case "incident":
                query = self.query()
                if query is not None:
                    with suppress(RunError, ConfigError, ToolFault):  # the run starts, ends with it and records it
                        query = replace(query, project=project_in(self.place, store))
                where = {"project": self.place.project, "query": query}
                # The same for the same data, window and filter, so that two dossiers of one incident share it.
                incident_id = hash_value([self.input_ref(), store.fingerprint()])[:12]
                return {"incident_id": incident_id, "trace_ids": self.trace_ids, **where}

    def input_ref(self) -> dict[str, Any]:
        """What the record says was asked for."""
        return {
            "project_name": self.place.project,
            "trace_ids": list(self.trace_ids),
            "time_window": {"start": self.start, "end": self.end},
            "filter_expr": self.filter_expr,
            "controls_version": self.version() if self.engine == "compliance" else None,
        }

    def recipe(self) -> dict[str, Any]:
        """What a resume, a replay or a later write-back needs."""
        return {
            "engine": self.engine,
            "source": self.place.name,
            "project": self.place.project,
            "trace_ids": list(self.trace_ids),
            "taxonomy": self.taxonomy,
            "controls_version": self.controls_version,
            "controls_files": list(self.controls_files),
            "overrides": list(self.overrides),
            **({"verdicts": dict(self.verdicts), "reason": self.reason} if self.verdicts else {}),
            "start": self.start,
            "end": self.end,
            "filter_expr": self.filter_expr,
            "configs": self.configs,
            **({"changes": list(self.changes)} if self.changes else {}),
            "writeback": self.writeback,
        }


def case_of(
    recipe: Mapping[str, Any], settings: Settings, source: str | Path | None = None, *, within: Sequence[AnyPath]
) -> Case:
    """The case of a recorded run; `source` when its traces are somewhere else now. It names no file outside of `within`."""
    engine = recipe.get("engine")
    if engine not in ENGINES:
        raise ConfigError(f"a run of the engine {engine!r} has no report about traces")
    if source is None and is_server(str(recipe["source"])):
        require_server(str(recipe["source"]), settings)
    own = () if source is not None or is_server(str(recipe["source"])) else (str(recipe["source"]),)
    taxonomy = recipe.get("taxonomy")
    changes = cast("list[str]", recipe.get("changes", []))
    files = [
        *own,
        *recipe.get("controls_files", ()),
        recipe.get("configs"),
        *(each.removeprefix("git:") for each in changes),
    ]
    files += [] if taxonomy is None or shipped_taxonomy(taxonomy) else [taxonomy]
    require_sources((str(path) for path in files if path), within)
    place = source_of(
        source or str(recipe["source"]), recipe.get("project"), settings.environ, cache_gb=settings.trace_cache_gb
    )
    return Case(
        engine=cast("EngineName", engine),
        place=replace(place, upto=upto_of(recipe.get("upto"))),
        trace_ids=tuple(recipe.get("trace_ids", ())),
        taxonomy=taxonomy,
        controls_version=recipe.get("controls_version"),
        controls_files=tuple(recipe.get("controls_files", ())),
        overrides=tuple(recipe.get("overrides", ())),
        verdicts=dict(recipe.get("verdicts", {})),
        reason=str(recipe.get("reason", "")),
        start=recipe.get("start"),
        end=recipe.get("end"),
        filter_expr=recipe.get("filter_expr"),
        configs=recipe.get("configs"),
        changes=tuple(changes),
        writeback=bool(recipe.get("writeback", False)),
    )


def upto_of(recorded: object) -> int | None:
    """The last span of a store that a recorded run has read, if it says so; a stranger may have written it."""
    return recorded if type(recorded) is int and 0 <= recorded < 1 << 63 else None


def absolute(paths: Sequence[str | Path]) -> tuple[str, ...]:
    """Paths that mean the same from another working folder."""
    return tuple(str(Path(path).absolute()) for path in paths)


def absolute_changes(places: Sequence[str]) -> tuple[str, ...]:
    """The same for `git:REPO` and files of deploys."""
    return tuple(
        f"{'git:' * each.startswith('git:')}{Path(each.removeprefix('git:') or '.').absolute()}" for each in places
    )
