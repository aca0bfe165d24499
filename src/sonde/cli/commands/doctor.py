"""`sonde doctor`: can untrusted code run safely here, and does the model answer?"""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from sonde.cli.options import PRICE, Without, settings_of, spread
from sonde.cli.text import escaped_json, one_line, printable
from sonde.errors import ConfigError, ModelCallFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sonde.api.settings import ModelChoice, Settings
    from sonde.models.loopback import FoundServer
    from sonde.sandbox.doctor import Diagnosis, PortableDiagnosis

EXTRAS = {
    "models": "pydantic_ai",
    "otel": "opentelemetry.sdk",
    "code": "tree_sitter",
    "data": "duckdb",
    "pdf": "pypdf",
    "office": "mammoth",
    "mcp": "mcp",
    "acp": "acp",
    "monty": "pydantic_monty",
    "cluster": "ray",
    "local": "xllamacpp",
}
"""Each extra and a module that it installs."""


def register(app: typer.Typer) -> None:
    app.command()(spread(doctor))


def doctor(
    model: Annotated[
        str | None, typer.Option(metavar="M", help="Also ask this model once: latency, context window, price, schema.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="The OpenAI-compatible server.")] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--model-timeout", metavar="S", help="Seconds the model may take.")
    ] = None,
    price: Annotated[str | None, typer.Option(metavar="IN/OUT", help=PRICE)] = None,
    *,
    without: Without = "",
    backend: Annotated[
        str | None,
        typer.Option(metavar="kernel|monty", help="The backend to judge; as `sonde config` says by default."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Can untrusted code run safely here, and, with --model, does that model answer? Tries it for real.

    Without --model no model is asked, even if a key is set. Prints layers, kernel, Python and versions, and which model
    servers of this machine answer if no model is set.
    Where the kernel has no layers (macOS, Windows) it says what the portable backend promises and what it does not.
    Exit code 1 if untrusted code cannot run safely, or if the model given with --model does not answer. If you have chosen
    the portable backend, that is the one that counts.

    Example: sonde doctor --model openai:gpt-4o-mini
    """
    from sonde.models.loopback import find_servers, ports_of
    from sonde.sandbox.doctor import examine, examine_portable

    if timeout_s is not None and model is None:
        raise ConfigError("--model-timeout goes with --model: sonde doctor --model openai:NAME --model-timeout 30")
    if base_url is not None and model is None:
        raise ConfigError("--base-url goes with --model: sonde doctor --base-url URL --model openai:NAME")
    settings = settings_of(model=model, base_url=base_url, timeout_s=timeout_s, price=price, backend=backend)
    tried = _try(settings, model) if model is not None else None
    servers = find_servers(ports_of(settings.local_ports)) if settings.model is None else []
    chosen = settings.backend != "kernel"
    portable = examine_portable() if chosen or sys.platform != "linux" else None
    code = report(examine(without), json=json, model=tried, servers=servers, portable=portable)
    if chosen and portable is not None:
        code = 0 if portable.works else 1
    if tried is not None and not json:
        for name, value in tried.items():
            print(printable(f"{name:9} {value}"))
    elif settings.model is not None and not json:
        print(printable(f"{settings.model_line()}; ask it once: sonde doctor --model {settings.model}"))
    elif not json:
        for server in servers:
            print(f"{server.name} answers on this machine: sonde ask QUESTION PATH {server.flags}")
        if not servers:
            print(f"{settings.model_line()}; no model server answers on the ports {settings.local_ports}")
    return 1 if tried is not None and "error" in tried else code


def _try(settings: Settings, name: str) -> dict[str, str]:
    """Ask the model once, for a value of a schema: what there is to know about it, or its error."""
    import json

    from sonde.core.deadline import Deadline, SystemClock
    from sonde.models import Message, ModelRequest, TokenUsage, open_model
    from sonde.models.base import cost_of, price_source

    wanted = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    request = ModelRequest(
        messages=[Message("user", "Is 2 + 2 equal to 4?")], schema={**wanted, "additionalProperties": False}
    )
    choice = settings.choose(name)
    try:
        model = open_model(choice.spec, choice.settings)
        try:
            reply = model.complete(request, deadline=Deadline(SystemClock(), choice.settings.timeout_s or 60.0))
        finally:
            getattr(model, "close", lambda: None)()
    except (ConfigError, ModelCallFailed) as error:
        return {"model": name, "error": one_line(error.message, 600)}
    try:
        value: Any = json.loads(reply.text)
    except ValueError:
        value = None
    fits = isinstance(value, dict) and isinstance(cast("dict[str, Any]", value).get("ok"), bool)
    taken = "response_format" not in getattr(model, "refused", ())
    schema = "the server takes one" if taken else "the server refuses one, so it is asked for in words"
    schema += "; the reply fits" if fits else f"; the reply does NOT fit: {one_line(reply.text, 80)}"
    if choice.spec.startswith("command:"):
        schema = f"a program gets none; it replied: {one_line(reply.text, 80)}"
    own = choice.settings.price
    read, written = (cost_of(choice.spec, TokenUsage(*each), own) for each in ((1_000_000, 0), (0, 1_000_000)))
    return {
        "model": f"{name} answered as {one_line(reply.model, 100)}",
        "latency": f"{reply.latency_s:.2f} s for {reply.usage.tokens_in + reply.usage.tokens_out} tokens",
        "context": _context_window(choice),
        "price": (
            "unknown, so a limit in dollars cannot hold; give it: --price INPUT/OUTPUT, in dollars per million tokens"
            if read is None
            else f"${read:g} per million tokens read, ${written or 0.0:g} written ({price_source(choice.spec, own)})"
        ),
        "schema": schema,
    }


def _context_window(choice: ModelChoice) -> str:
    """How much the model reads: from the server's list of models, else from the price list."""
    from urllib.parse import urlsplit

    from genai_prices.data_snapshot import get_snapshot

    from sonde.models.loopback import told_window

    kind, _, short = choice.spec.partition(":")
    url = urlsplit(choice.settings.base_url or "")
    if kind == "openai" and url.hostname in ("127.0.0.1", "localhost", "::1") and url.scheme == "http":
        told = told_window(url.port or 80, url.path.rstrip("/"), short)
        if told is not None:
            return f"{told:,} tokens, says the server"
    try:
        listed = get_snapshot().find_provider_model(short.rpartition("/")[2], None, None, None)[1].context_window
    except LookupError:
        listed = None
    return (
        f"{listed:,} tokens, says the price list"
        if kind not in ("command", "local") and listed
        else "the server does not say"
    )


def report(
    found: Diagnosis,
    *,
    json: bool,
    model: Mapping[str, str] | None = None,
    servers: Sequence[FoundServer] = (),
    portable: PortableDiagnosis | None = None,
) -> int:
    """Print it; the exit code."""
    if json:
        from sonde.runs.rundir import pretty_json

        local = [{"name": each.name, "port": each.port, "models": list(each.models)} for each in servers]
        more = {"extras": installed(), "mixed_up": mixed_up(), "model": model, "local_servers": local}
        more["portable"] = asdict(portable) if portable is not None else None
        sys.stdout.write(escaped_json(pretty_json(asdict(found) | more).decode()))
    else:
        print(f"kernel    {found.kernel} on {found.machine}")
        print(f"python    {found.python}")
        print(f"versions  {', '.join(f'{name} {version}' for name, version in found.versions.items())}")
        print(f"extras    {', '.join(name for name, there in installed().items() if there) or 'none'}")
        print(f"layers    {', '.join(found.layers) or 'none'}")
        for layer, stopped in found.missing.items():
            print(f"missing   {one_line(layer, 200)}; it would have stopped {stopped}")
        print(f"profiles  {', '.join(found.profiles)}")
        if warning := mixed_up():
            print(f"warning   {warning}")
        for check in found.checks:
            why = "" if check.ok else f": {one_line(check.detail, 200)}"
            print(f"  {'ok ' if check.ok else 'NO '} {check.name}{why}")
        verdict = "can run safely here" if found.safe else f"CANNOT run safely here: {found.problem}"
        print(f"untrusted code {verdict}")
        if portable is not None:
            print(
                f"\nportable backend (--backend monty): {'works' if portable.works else f'DOES NOT work: {portable.problem}'}"
            )
            for check in portable.checks:
                why = "" if check.ok else f": {one_line(check.detail, 200)}"
                print(f"  {'ok ' if check.ok else 'NO '} {check.name}{why}")
            for title, sentences in (("promised", portable.promised), ("NOT promised", portable.not_promised)):
                print("\n".join((f"  {title}:", *(f"    - {each}" for each in sentences))))
    return 0 if found.safe else 1


def mixed_up() -> str | None:
    """A warning if the unrelated distribution `sonde` is installed too: its files and ours have the same names."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        other = distribution("sonde")
    except PackageNotFoundError:
        return None
    return (
        f"the distribution sonde {other.version}, which is not ours, is installed beside sonde-rlm and overwrites its files: "
        "pip uninstall sonde, then pip install --force-reinstall --no-deps sonde-rlm"
    )


def installed() -> dict[str, bool]:
    """Which extras are installed; they are looked up, not imported."""
    from importlib.util import find_spec

    found: dict[str, bool] = {}
    for name, module in EXTRAS.items():
        try:
            found[name] = find_spec(module) is not None
        except ModuleNotFoundError:  # its parent package is missing
            found[name] = False
    return found
