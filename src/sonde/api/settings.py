"""Settings: flags > environment > sonde.toml (the preset first) > defaults; each value knows where it came from.

    settings = load_settings(model="openai:gpt-4o-mini", max_iterations=20)      # reads the environment and the files
    settings = resolve(flags, environ, cwd)                                      # the same from values, for tests and servers

A sonde.toml that was merely found in a working folder sets only what cannot send anything away, start a program or spend more than the
default, until the user accepts it (`sonde config trust`); `ignored` says what was left out. Keys come from the environment only and
are never shown. Nothing here is checked against the contract's maxima: the engines do that.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from sonde.api.config_file import ConfigFile, Found, NamedModel, find_files, state_folder
from sonde.api.consent import is_own
from sonde.api.keys import KEYS, KNOBS, check, nearest, unknown
from sonde.core.budget import Budget
from sonde.core.redaction import url_secrets
from sonde.errors import ConfigError
from sonde.models.base import (
    OUTPUT_TOKENS,
    SAMPLING,
    ModelSettings,
    Price,
    PromptMode,
    Secret,
    TokenUsage,
    cost_of,
    price,
    price_source,
)
from sonde.models.families import sampling
from sonde.models.loopback import PORTS
from sonde.runs.rundir import ARTIFACTS, NoSuchRun, RunDir, find_run, linked_artifacts

DEFAULT_MODEL = "openai:gpt-4o-mini"
BY_DEFAULT = "the default"
NO_MODEL = "none"
"""The name that stands for no model at all, where one would be set otherwise."""
_USER = re.compile(r"(?<=://)[^/\s]*@")  # a password may stand there
_A_MILLION = (TokenUsage(1_000_000, 0), TokenUsage(0, 1_000_000))
_INVESTIGATIONS = frozenset({"rca", "compliance", "incident"})
_TOKENS = ("SONDE_LISTEN_TOKEN", "SONDE_ON_NEW_TOKEN")
_NOT_KEYS = frozenset({"SONDE_PRESET", "SONDE_PROFILE", "SONDE_CONFIG", "SONDE_ON_NEW", *_TOKENS})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """What `models.open_model` takes."""

    spec: str
    settings: ModelSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting with its provenance in `sources`; `knobs` are the budget knobs that someone really set."""

    model: str | None = None
    sub_model: str | None = None
    base_url: str | None = None
    api_key: Secret | None = None
    timeout_s: float | None = None
    count_wait: bool = True
    prompt_mode: PromptMode = "stdin"
    reasoning_effort: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    price: Price | None = None
    runs_dir: Path | None = None
    mode: str = "auto"
    sandbox_profile: str | None = None
    packages: tuple[str, ...] = ()
    backend: str = "kernel"
    source: str = "http://localhost:6006"
    project: str | None = None
    mask: bool = False
    mask_patterns: tuple[str, ...] = ()
    command_read: tuple[str, ...] = ()
    command_write: tuple[str, ...] = ()
    local_ports: str = PORTS
    trace_cache_gb: float = 5.0
    max_parallel: int = 16
    max_journal_mb: int = 256
    otel_endpoint: str | None = None
    otel_project: str | None = None
    otel_content: bool = False
    knobs: Mapping[str, float] = field(default_factory=dict[str, float])
    models: Mapping[str, NamedModel] = field(default_factory=dict[str, NamedModel])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    files: tuple[str, ...] = ()
    ignored: str = ""
    """What a found file wanted to set and may not, in one line."""
    notes: tuple[str, ...] = ()
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    root: Path | None = None
    """The project's folder: the git repository around the working folder, else the working folder."""

    @property
    def state_runs(self) -> Path | None:
        """The project's folder of runs in the user's state folder, which holds only runs that were made here; None without a home."""
        kept = state_folder(self.environ)
        if kept is None or self.root is None:
            return None
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", self.root.name).strip(".-")[:40] or "root"
        return kept / "runs" / f"{readable}-{hashlib.sha256(os.fsencode(self.root)).hexdigest()[:8]}"

    def runs_home(self, engine: str) -> Path:
        """Where a new run of this engine goes."""
        return self.runs_dir or (None if engine in _INVESTIGATIONS else self.state_runs) or ARTIFACTS

    def run_places(self) -> list[Path]:
        """Where runs of this project lie."""
        if self.runs_dir is not None:
            return [self.runs_dir]
        projects = [root for root in (Path(), self.root) if root is not None and linked_artifacts(root) is None]
        beside = [root / ARTIFACTS for root in projects if root != Path.cwd()]
        return [place for place in (self.state_runs, *beside) if place]

    def all_run_places(self) -> list[Path]:
        """This project's places first, then the folders of all other projects in the state folder."""
        places, own = self.run_places(), self.state_runs
        if self.runs_dir is None and own is not None and own.parent.is_dir():
            places += sorted(folder for folder in own.parent.iterdir() if folder.is_dir() and folder != own)
        return places

    def find_run(self, run: str | Path, runs_dir: str | Path | None = None) -> RunDir:
        """A run by id, beginning of an id, `last` or folder: of this project, else by its id of any project; or in `runs_dir` alone."""
        own = partial(is_own, environ=self.environ)
        if runs_dir is not None:
            return find_run(runs_dir, run, own=own)
        try:
            return find_run(self.run_places(), run, own=own)
        except NoSuchRun:
            if run != "last":
                with suppress(NoSuchRun):
                    return find_run(self.all_run_places(), run)
            raise

    def budget(self, default: Budget | None = None, maxima: Budget | None = None) -> Budget:
        """The engine's default budget with the knobs that were set; ConfigError for one above the contract's maximum."""
        return (default or Budget()).override(maxima, **self.knobs)

    def model_line(self) -> str:
        """The first line of a run: which model, and why this one."""
        if self.model is None and "model" in self.sources:
            return f"model: none ({self.sources['model']})"
        if self.model is None:
            return "model: none (set OPENAI_API_KEY or pass --model, e.g. --model openai:gpt-4o-mini)"
        named = self.models.get(self.model)
        shown = f"{self.model} = {named.spec}" if named else self.model
        return f"model: {shown} ({self.sources.get('model', 'given')})"

    def choose(self, model: str) -> ModelChoice:
        """The spec and options behind a model's name: an entry of [models], `provider:name`, or a bare OpenAI name."""
        spec = model if ":" in model or model == "recorded" else f"openai:{model}"
        named = self.models.get(model)
        for same in (
            spec,
            model.removeprefix("openai:"),
        ):  # an entry without a name of its own speaks of both spellings
            entry = self.models.get(same)
            named = named or (entry if entry is not None and entry.spec == same else None)
        price = None if model == self.sub_model != self.model else self.price
        if named is None:
            return ModelChoice(spec=spec, settings=self._options(spec, price=price))
        spec = named.spec if ":" in named.spec else f"openai:{named.spec}"
        key = self.environ.get(named.api_key_env) if named.api_key_env else None
        options = self._options(
            spec,
            base_url=named.base_url,
            api_key=Secret(key) if key else None,
            timeout_s=named.timeout_s,
            count_wait=named.count_wait,
            prompt_mode=named.prompt_mode,
            **{name: getattr(named, name) for name in SAMPLING if not self.sources.get(name, "").startswith("--")},
            price=price if price and price.source == KEYS["price"].option else named.price or price,
            env=named.env or {each: self.environ[each] for each in named.env_names if each in self.environ},
            extra_body=named.extra_body,
            label=None if named.spec == model else model,
        )
        return ModelChoice(spec=spec, settings=options)

    def sampled(self, given: Mapping[str, Any]) -> Settings:
        """The same with what a caller gives for one run, checked."""
        if not given:
            return self
        values = {name: check(KEYS[name], value, KEYS[name].option) for name, value in given.items()}
        return replace(self, **values, sources={**self.sources, **{name: KEYS[name].option for name in values}})

    def _options(self, spec: str, **more: Any) -> ModelSettings:
        provider = spec.partition(":")[0]
        flag = next((KEYS[name].option for name in SAMPLING if self.sources.get(name) == KEYS[name].option), None)
        if flag is not None and provider == "command":
            raise ConfigError(f"{flag} has no effect on {spec}: the program decides that itself")
        key = self.api_key
        if provider != "openai":
            names = [f"{provider.upper().replace('-', '_')}_API_KEY"]
            names += ["GEMINI_API_KEY", "GOOGLE_API_KEY"] if provider.startswith("google") else []
            key = next((Secret(self.environ[name]) for name in names if self.environ.get(name)), None)
        options: dict[str, Any] = {
            "base_url": self.base_url if provider == "openai" else None,
            "api_key": key,
            "timeout_s": self.timeout_s,
            "count_wait": self.count_wait,
            "prompt_mode": self.prompt_mode,
            **{name: getattr(self, name) for name in SAMPLING},
            "environ": self.environ,
        }
        return ModelSettings(**options | {name: value for name, value in more.items() if value is not None})

    def secrets(self) -> list[str]:
        """The known values of keys: what the journal and every message must never hold."""
        named = {"LANGFUSE_SECRET_KEY", *_TOKENS, *(model.api_key_env for model in self.models.values())}
        passed_on = (name for model in self.models.values() for name in model.env_names)
        named |= {name for name in passed_on if re.search("KEY|TOKEN|SECRET|PASS", name.upper())}
        given = [*self.environ.items(), *(pair for model in self.models.values() for pair in model.env.items())]
        values = {value.strip() for name, value in given if name.endswith("_API_KEY") or name in named}
        values |= {self.api_key.reveal().strip()} if self.api_key else set()  # as it is sent
        for url in (self.base_url, *(model.base_url for model in self.models.values())):
            values.update(url_secrets(url))
        return sorted(value for value in values if value)

    def rows(self) -> list[tuple[str, str, str]]:
        """(name, value, source) of every key, as `sonde config` shows them."""
        rows: list[tuple[str, str, str]] = []
        choice = self.choose(self.model) if self.model is not None else None
        usual: dict[str, Any] = {}
        if choice is not None and choice.spec.startswith(("openai:", "local:")):
            name, own = choice.spec.partition(":")[2], choice.settings
            usual = sampling(name, own, temperature=0.0, thinks=True) | {
                "max_output_tokens": own.max_output_tokens or OUTPUT_TOKENS
            }
        for key in KEYS.values():
            if key.name == "runs_dir" and self.runs_dir is None:
                shown = ", ".join(map(str, dict.fromkeys(map(self.runs_home, ("ask", "rca")))))
            elif key.secret:
                shown = "set" if getattr(self, key.name) else "unset"
            else:
                value = self.knobs.get(key.name, getattr(Budget(), key.name)) if key.knob else getattr(self, key.name)
                if isinstance(value, tuple):
                    between = {"names": ",", "lines": " "}.get(key.form, os.pathsep)
                    value = between.join(cast("tuple[str, ...]", value)) or None
                if value is None and key.name == "price" and choice is not None:
                    read, written = (cost_of(choice.spec, each, choice.settings.price) for each in _A_MILLION)
                    known = "unknown" if read is None or written is None else f"{read:g}/{written:g}"
                    rows.append((key.name, known, price_source(choice.spec, choice.settings.price)))
                    continue
                if value is None and key.name in usual:
                    rows.append((key.name, str(usual[key.name]), "the default for this model in ask"))
                    continue
                number = f"{value:g}" if isinstance(value, float) else _USER.sub("…@", str(value))
                shown = "unset" if value is None else number
            rows.append((key.name, shown, self.sources.get(key.name, "default")))
        return rows


def load_settings(*, use: str | None = None, **flags: Any) -> Settings:
    """The settings of this process: its flags, its environment, the files around its working folder."""
    return resolve(flags, os.environ, Path.cwd(), use=use)


def resolve(flags: Mapping[str, Any], environ: Mapping[str, str], cwd: Path, *, use: str | None = None) -> Settings:
    """Settings from these values; ConfigError names what is wrong, where, and what is allowed. `None` flags are not set."""
    files = find_files(environ, cwd)
    preset = use if use is not None else environ.get("SONDE_PRESET") or environ.get("SONDE_PROFILE") or None
    for name in flags:
        if name not in KEYS:
            raise unknown("setting", name, KEYS, "the call")
    found: dict[str, Found] = {}  # a layer sets only what no layer before it has set
    for name, value in flags.items():
        if value is not None:
            plain, option = str(value) if isinstance(value, Path) else value, KEYS[name].option
            found[name] = Found(check(KEYS[name], plain, option), option)
    for key in KEYS.values():
        variable = next((name for name in key.variables if environ.get(name)), None)  # an empty one sets nothing
        if variable is not None:
            found.setdefault(key.name, Found(check(key, environ[variable], variable), variable))
    for layer in _file_layers(files, preset):
        found = {**layer, **found}
    if "model" not in found and "api_key" in found:
        found["model"] = Found(DEFAULT_MODEL, f"{BY_DEFAULT}, because {found['api_key'].source} is set")
    models = {name: entry for file in _own_last(files) for name, entry in file.models.items()}
    for name in ("model", "sub_model"):
        _refuse_untrusted(flags.get(name), models, files)
    values = {name: hit.value for name, hit in found.items() if not KEYS[name].knob}
    if values.get("model") == NO_MODEL:
        values |= {"model": None, "sub_model": None}
    for name, kind in (("runs_dir", Path), ("api_key", Secret)):
        if name in values:
            values[name] = kind(values[name])
    left_out = ""
    refused = next((file for file in files if file.ignored), None)
    if refused is not None:
        more = f" and {len(refused.ignored) - 8} more" if len(refused.ignored) > 8 else ""
        names = ", ".join(refused.ignored[:8]) + more
        left_out = f"{refused.path} may not set {names}; if you trust it: sonde config trust"
    known = {name for key in KEYS.values() for name in key.variables} | _NOT_KEYS
    here = cwd.resolve()
    stray = [name for name in sorted(environ) if name.startswith("SONDE_") and name not in known]
    return Settings(
        **values,
        knobs={name: found[name].value for name in KNOBS if name in found},
        models=models,
        sources={name: hit.source for name, hit in found.items()},
        files=tuple(str(file.path) for file in files),
        ignored=left_out,
        notes=tuple(
            f"{name} sets nothing{f' (did you mean {near}?)' if near else ''}; `sonde config` lists what does"
            for name in stray
            for near in [nearest(name, known)]
        ),
        environ=dict(environ),
        root=next((folder for folder in (here, *here.parents) if os.path.lexists(folder / ".git")), here),
    )


def _own_last(files: list[ConfigFile]) -> list[ConfigFile]:
    """The user's own files last, so that a folder's model does not replace one of theirs with the same name."""
    return sorted(files, key=lambda file: file.own)


def _file_layers(files: list[ConfigFile], preset: str | None) -> list[Mapping[str, Found]]:
    """The preset of either file, then the top of either. A folder's preset does not overrule the user's own."""
    tops = [file.top for file in files]
    if preset is None:
        return tops
    known = {name for file in files for name in file.presets}
    if preset not in known:
        where = ", ".join(str(file.path) for file in files) or "no sonde.toml was found"
        raise unknown("preset", preset, known, where)
    having = [file for file in reversed(_own_last(files)) if preset in file.presets]
    return [file.presets[preset] for file in having] + tops


def _refuse_untrusted(model: Any, models: Mapping[str, NamedModel], files: list[ConfigFile]) -> None:
    """Refuse a model that the caller typed and that names an entry of a file not accepted yet: nothing is sent anywhere."""
    file = next((file for file in files if f"models.{model}" in file.ignored), None)
    if file is not None and model not in models and price(model, TokenUsage(1, 1)) is None:
        raise ConfigError(
            f"{model} is an entry of {file.path}, which may be a stranger's: read it, then accept it with `sonde config trust`"
        )
