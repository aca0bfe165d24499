"""The settings that exist: name, form, default and meaning of each, as one table.

Flags, SONDE_* variables, sonde.toml, `sonde config` and the list of allowed keys in an error all come from it. It reads nothing.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import shlex
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from sonde.core.budget import Budget
from sonde.errors import ConfigError
from sonde.models.base import Price
from sonde.models.loopback import PORTS

Form = Literal["text", "path", "folders", "names", "lines", "whole", "number", "switch", "model", "price"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting. `variables` are read in this order; a secret is only ever shown as set or unset."""

    name: str
    form: Form
    doc: str
    default: Any = None
    choices: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    secret: bool = False
    in_file: bool = True
    flag: str = ""
    knob: bool = False

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that set it."""
        return (f"SONDE_{self.name.upper()}", *self.aliases)

    @property
    def option(self) -> str:
        """The flag that sets it."""
        return self.flag or f"--{self.name.replace('_', '-')}"


def _knob(name: str, form: Form, doc: str, flag: str = "") -> Key:
    return Key(name=name, form=form, doc=doc, flag=flag, knob=True)


_ALL = (
    Key(
        name="model",
        form="model",
        doc="the model that answers, e.g. openai:gpt-4o-mini or an entry of [models]; none: no model",
    ),
    Key(name="sub_model", form="model", doc="the model of sub-calls; the same as `model` when not set"),
    Key(name="base_url", form="text", doc="the OpenAI-compatible server", aliases=("OPENAI_BASE_URL",)),
    Key(
        name="api_key",
        form="text",
        doc="the key for it; from the environment only",
        aliases=("OPENAI_API_KEY",),
        secret=True,
        in_file=False,
    ),
    Key(name="timeout_s", form="number", doc="seconds that one attempt at a model may take", flag="--model-timeout"),
    Key(name="reasoning_effort", form="text", doc="how much the model thinks, e.g. low; the server knows which words"),
    Key(name="max_output_tokens", form="whole", doc="tokens of one reply, thinking included"),
    Key(name="temperature", form="number", doc="how freely the model chooses its words"),
    Key(name="top_p", form="number", doc="from which part of the likely words it chooses"),
    Key(
        name="price",
        form="price",
        doc="US dollars per million tokens of `model`, as read/written or read/written/cached; in a file: [models]",
        in_file=False,
    ),
    Key(name="count_wait", form="switch", doc="whether waiting for a command model is the run's time", default=True),
    Key(
        name="prompt_mode", form="text", doc="how a command gets its prompt", default="stdin", choices=("stdin", "file")
    ),
    Key(
        name="runs_dir",
        form="path",
        doc="where all run folders go; unset: investigations in artifacts/investigator_runs, others in the state folder",
    ),
    Key(
        name="mode",
        form="text",
        doc="the form of replies; auto is guided for local: models, code for others",
        default="auto",
        choices=("auto", "code", "actions", "guided"),
    ),
    Key(
        name="sandbox_profile",
        form="text",
        doc="the language rules inside the sandbox; when not set: general for ask and edit, analysis for the others",
        choices=("open", "general", "analysis", "strict", "assign-only"),
        flag="--profile",
    ),
    Key(
        name="packages",
        form="names",
        doc="installed packages that the code of ask and edit may import: numpy, pandas",
        default=(),
        flag="--with",
    ),
    Key(
        name="backend",
        form="text",
        doc="what runs the code: kernel (CPython behind the kernel's layers) or monty (an interpreter; extra monty)",
        default="kernel",
        choices=("kernel", "monty"),
    ),
    Key(
        name="source",
        form="text",
        doc="where traces are: a file, a folder, the URL of Phoenix, langfuse:URL or langsmith:URL; not from a file: a key goes there",
        default="http://localhost:6006",
        aliases=("PHOENIX_COLLECTOR_ENDPOINT",),
        in_file=False,
    ),
    Key(name="project", form="text", doc="the project of traces", aliases=("PHOENIX_PROJECT_NAME",)),
    Key(
        name="otel_endpoint",
        form="text",
        doc="an OTLP endpoint that gets each run as a trace (extra otel); not from a file, because data goes there",
        in_file=False,
    ),
    Key(name="otel_project", form="text", doc="the project those traces go to"),
    Key(
        name="otel_content",
        form="switch",
        doc="whether prompts, code and results go along",
        default=False,
        in_file=False,
    ),
    Key(
        name="mask",
        form="switch",
        doc="hide e-mail addresses, tokens and card numbers from models and journals; a found file can only turn it on",
        default=False,
    ),
    Key(
        name="mask_patterns",
        form="lines",
        doc="what else is hidden, as NAME=REGEX",
        default=(),
        flag="--mask-pattern",
    ),
    Key(
        name="command_read",
        form="folders",
        doc="what allowed commands may also read, outside of the workspace",
        default=(),
    ),
    Key(name="command_write", form="folders", doc="where they may also write", default=()),
    Key(
        name="local_ports",
        form="text",
        doc="where model servers of this machine are looked for if no model is set; none: nowhere",
        default=PORTS,
        in_file=False,
    ),
    Key(
        name="trace_cache_gb",
        form="number",
        doc="gigabytes that the indexes of trace files may take on the disk; the least recently used go first",
        default=5.0,
    ),
    Key(name="max_parallel", form="whole", doc="model calls in flight at once", default=16),
    Key(
        name="max_journal_mb", form="whole", doc="megabytes that the journal of a run may take on the disk", default=256
    ),
    _knob("max_iterations", "whole", "turns of the whole run"),
    _knob("max_depth", "whole", "levels of sub-calls"),
    _knob("max_tool_calls", "whole", "tool calls of the whole run"),
    _knob("max_subcalls", "whole", "sub-calls of the whole run"),
    _knob("max_tokens_total", "whole", "tokens in both directions, sub-calls included"),
    _knob("max_tokens_per_subcall", "whole", "tokens that one sub-call may use"),
    _knob("max_cost_usd", "number", "money, where the price is known"),
    _knob("max_wall_time_sec", "number", "seconds on the clock"),
    _knob("sampling_seed", "whole", "seed for the model and for random numbers in code", flag="--seed"),
)
KEYS: dict[str, Key] = {key.name: key for key in _ALL}
KNOBS: tuple[str, ...] = tuple(key.name for key in _ALL if key.knob)


def check(key: Key, value: Any, source: str) -> Any:
    """The value in the key's form; ConfigError naming the source, what was there and what belongs there."""
    text = value if isinstance(value, str) and value.strip() else None
    parsed: Any = None  # nothing that fits
    with suppress(TypeError, ValueError, OverflowError, AttributeError):
        match key.form:
            case "text" | "path":
                parsed = text
            case "folders":  # a list, or a text with the folders between colons, as in PATH; ~ is the home folder
                named: Any = value.split(os.pathsep) if isinstance(value, str) else value
                listed = cast("list[Any]", named) if isinstance(named, list | tuple) else [""]
                if all(isinstance(each, str) and each.strip() for each in listed):
                    parsed = tuple(str(Path(each).expanduser()) for each in listed)
            case "names" | "lines":  # a list, or a text with commas, or with one on each line
                between = "," if key.form == "names" else "\n"
                wanted: Any = value.split(between) if isinstance(value, str) else value
                words = cast("list[Any]", wanted) if isinstance(wanted, list | tuple) else [""]
                if all(isinstance(each, str) and each.strip() for each in words):
                    parsed = tuple(each.strip() for each in words)
            case "whole" if not isinstance(value, bool | float):
                parsed = int(value)
            case "number" if not isinstance(value, bool) and not math.isnan(float(value)):
                parsed = float(value)
            case "switch":
                parsed = value if isinstance(value, bool) else _SWITCHES.get(str(value).strip().lower())
            case "model":  # a spec, or an argv list, also as JSON in a variable
                argv = json.loads(text) if text is not None and text.lstrip().startswith("[") else value
                parsed = command_spec(cast("list[Any]", argv)) if isinstance(argv, list | tuple) else text
            case "price":  # 0.5/1.5 or 0.5/1.5/0.25, or a table {input, output, cached}
                parts: Any = value
                if isinstance(value, str):
                    amounts = value.split("/")
                    parts = dict(zip(_PRICED[: len(amounts)], amounts, strict=True))
                table = {name: float(amount) for name, amount in cast("dict[str, Any]", parts).items()}
                if set(_PRICED[:2]) <= set(table) <= set(_PRICED) and all(
                    0 <= each < math.inf for each in table.values()
                ):
                    parsed = Price(**table, source=source)
            case _:
                pass
    if key.choices and parsed not in key.choices:
        raise ConfigError(f"{key.name} from {source} must be one of {', '.join(key.choices)}, not {value!r}")
    if parsed is None:
        expected = f"{_EXPECTED[key.form]} ({key.doc})" if key.form == "text" else _EXPECTED[key.form]
        shown = "what is there (not shown: it is a key)" if key.secret else repr(value)
        raise ConfigError(f"{key.name} from {source} must be {expected}, not {shown}")
    _check_size(key, parsed, source)
    return parsed


def _check_size(key: Key, parsed: Any, source: str) -> None:
    """ConfigError for a number that no run could use."""
    if key.name == "timeout_s" and parsed <= 0:
        raise ConfigError(f"timeout_s from {source} must be above zero, not {parsed:g}")
    most = {"temperature": 2, "top_p": 1, "trace_cache_gb": 100_000}.get(key.name)
    if most is not None and not 0 <= parsed <= most:
        raise ConfigError(f"{key.name} from {source} must be from 0 to {most}, not {parsed:g}")
    if key.name in ("max_parallel", "max_journal_mb", "max_output_tokens") and parsed < 1:
        raise ConfigError(f"{key.name} from {source} must be 1 or more, not {parsed}")
    if key.knob:
        try:
            Budget(**{key.name: parsed})
        except ConfigError as error:
            raise ConfigError(f"{error.message} (from {source})") from None


def command_spec(argv: Iterable[Any]) -> str | None:
    """The `command:` spec of an argv list; None when it is empty or holds anything but text."""
    words = list(argv)
    if not words or not all(isinstance(word, str) for word in words):
        return None
    return "command:" + shlex.join(cast("list[str]", words))


_SWITCHES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_PRICED = ("input", "output", "cached")
_EXPECTED: dict[Form, str] = {
    "text": "text",
    "path": "a path",
    "folders": 'a list of folders, e.g. ["~/.cache/models"]',
    "names": 'a list of names, e.g. ["numpy", "pandas"]',
    "lines": 'a list of texts, e.g. ["customer=C-[0-9]+"]',
    "whole": "a whole number, e.g. 20",
    "number": "a number, e.g. 0.5",
    "switch": "true or false",
    "price": "US dollars per million tokens, e.g. 0.5/1.5, or {input = 0.5, output = 1.5, cached = 0.25} in a file",
    "model": 'a model such as "openai:gpt-4o-mini" or an argv list such as ["python3", "my_model.py"]',
}


def nearest(name: str, names: Iterable[str]) -> str | None:
    """What somebody meant who typed this: the same letters in another order come first."""
    near = difflib.get_close_matches(name, list(names), n=3)
    return next((each for each in near if sorted(each) == sorted(name)), near[0] if near else None)


def unknown(kind: str, name: str, allowed: Iterable[str], where: str) -> ConfigError:
    """The error for an unknown name: the name, the nearest allowed one, and all allowed ones."""
    names = sorted(allowed)
    near = nearest(name, names)
    hint = f" (did you mean {near!r}?)" if near else ""
    return ConfigError(f"{where}: unknown {kind} {name!r}{hint}; allowed: {', '.join(names) or 'none'}")
