"""Models: `open_model(spec, settings)` gives anything that answers a `ModelRequest` with a `ModelReply`.

    openai:NAME            Chat Completions at the base URL (any compatible server)
    command:PROGRAM ARGS   any program that reads a prompt and prints a reply; also a list of arguments
    local:smollm2          a small model on this machine (extra `local`)
    PROVIDER:NAME          every other provider, through pydantic-ai (extra `models`)

Keys and addresses come in by `ModelSettings`; nothing here reads the environment.
"""

from __future__ import annotations

from collections.abc import Sequence

from sonde.errors import ConfigError
from sonde.models.base import (
    Message,
    Model,
    ModelReply,
    ModelRequest,
    ModelSettings,
    OnText,
    Secret,
    TokenUsage,
)

__all__ = [
    "Message",
    "Model",
    "ModelReply",
    "ModelRequest",
    "ModelSettings",
    "OnText",
    "Secret",
    "TokenUsage",
    "open_model",
]

INTERRUPTIBLE = True  # Ctrl-C may raise KeyboardInterrupt while code of this package waits (cli/interrupt.py)

FORMS = (
    "A model is given as openai:NAME (such as openai:gpt-4o-mini), command:PROGRAM ARGS (such as "
    '"command:python3 my_model.py"), local:smollm2, or PROVIDER:NAME (such as anthropic:claude-sonnet-4-5).'
)


def open_model(spec: str | Sequence[str], settings: ModelSettings | None = None) -> Model:
    """The model that `spec` names; a list of arguments is a command. Raises `ConfigError`."""
    settings = settings or ModelSettings()
    if not isinstance(spec, str):
        from sonde.models.command import CommandModel  # noqa: PLC0415  # imported where it is needed

        return CommandModel(list(spec), settings)
    kind, colon, name = spec.partition(":")
    if not colon or not kind or not name.strip():
        raise ConfigError(f"{spec!r} does not name a model. {FORMS}")
    # Each client is imported where it is needed: httpx2 takes 0.2 s, pydantic-ai a second.
    match kind:
        case "openai":
            from sonde.models.chat import ChatModel  # noqa: PLC0415

            if settings.api_key is None and settings.base_url is None:
                raise ConfigError(
                    f"openai:{name} needs a key: set OPENAI_API_KEY. For a server without keys set OPENAI_BASE_URL, "
                    "such as http://localhost:8080/v1."
                )
            return ChatModel(name, settings)
        case "command":
            from sonde.models.command import CommandModel  # noqa: PLC0415

            return CommandModel(name, settings)
        case "local":
            from sonde.models.local import LocalModel  # noqa: PLC0415

            return LocalModel(name, settings)
        case _:
            from sonde.models.providers import ProviderModel  # noqa: PLC0415

            return ProviderModel(spec, settings, forms=FORMS)
