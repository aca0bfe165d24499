"""Model servers on this machine: which of them answer, and how to use them.

Asks the usual ports of loopback for their lists of models (Ollama's /api/tags, and /v1/models, which LM Studio, vLLM and llama.cpp
have). No key is sent, and no redirect followed. Whoever listens there may be anyone, so a reply is read up to a size and a time, and
the names in it are checked.
"""

from __future__ import annotations

import http.client
import json
import re
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sonde.errors import ConfigError

PORTS = "11434,1234,8000,8080"
"""Ollama, LM Studio, vLLM, llama.cpp."""
PATIENCE_S = 1.0
_MOST_BYTES = 1 << 20
_NAME = re.compile(r"[\w./:@+-]{1,200}")
_OWNERS = {"vllm": "vLLM", "llamacpp": "llama.cpp", "organization_owner": "LM Studio", "library": "Ollama"}
_WINDOWS = ("max_model_len", "context_length", "max_context_length", "context_window", "n_ctx", "n_ctx_train")
_NOT_FOR_CHAT = re.compile(r"embed|bge-|rerank|whisper", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer:
    """A server that answered, and the models it can chat with."""

    name: str
    port: int
    models: tuple[str, ...]

    @property
    def flags(self) -> str:
        """What makes any command use it."""
        return f"--base-url http://127.0.0.1:{self.port}/v1 --model {shlex.quote(f'openai:{self.models[0]}')}"


def ports_of(text: str) -> list[int]:
    """The ports of a setting such as `11434,1234`; ConfigError for anything else. `none` is none at all."""
    if text.strip() == "none":
        return []
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 65536 for part in parts):
        raise ConfigError(f"local_ports must be ports between commas, such as {PORTS}, or none; not {text!r}")
    return [int(part) for part in parts]


def find_servers(ports: Sequence[int]) -> list[FoundServer]:
    """The servers that answer on these ports within a second, in the order of the ports."""
    found: dict[int, FoundServer] = {}

    def look(port: int) -> None:
        server = _server_at(port)
        if server is not None:
            found[port] = server

    # Threads of their own: one that drips its reply is left behind, not waited for.
    threads = [threading.Thread(target=look, args=(port,), daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    until = time.monotonic() + PATIENCE_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return [found[port] for port in ports if port in found]


def _server_at(port: int) -> FoundServer | None:
    rows, key, owner = _rows(_fetch(port, "/api/tags").get("models")), "name", "library"
    if not rows:
        rows, key, owner = _rows(_fetch(port, "/v1/models").get("data")), "id", ""
    names = [name for row in rows if isinstance(name := row.get(key), str) and _NAME.fullmatch(name)]
    usable = tuple(name for name in names if not _NOT_FOR_CHAT.search(name))
    if not usable:
        return None
    name = _OWNERS.get(owner or str(rows[0].get("owned_by")), "an OpenAI-compatible server")
    return FoundServer(name=name, port=port, models=usable)


def told_window(port: int, path: str, model: str) -> int | None:
    """How many tokens a model of a server on this machine reads: each kind of server has its own name for that."""
    told: list[Any] = []
    for row in _rows(_fetch(port, f"{path}/models").get("data")):
        if row.get("id") == model:
            told += [row.get(name) for name in _WINDOWS]
            told += [size for meta in _rows([row.get("meta")]) for name, size in meta.items() if name in _WINDOWS]
    for shown in [] if any(told) else _rows([_fetch(port, "/api/show", {"model": model}).get("model_info")]):
        told += [size for name, size in shown.items() if name.endswith(".context_length")]
    return next((size for size in told if isinstance(size, int) and size > 0), None)


def _rows(value: object) -> list[Mapping[str, Any]]:
    """The objects of a list that a stranger sent."""
    listed = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Mapping[str, Any]", each) for each in listed if isinstance(each, dict)]


def _fetch(port: int, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
    """The object at a path of a server on this machine; empty if there is none."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        sent = None if body is None else json.dumps(body)
        line.request("GET" if body is None else "POST", path, sent, {"content-type": "application/json"})
        response = line.getresponse()
        value: Any = json.loads(response.read(_MOST_BYTES)) if response.status == 200 else None
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return {}
    finally:
        line.close()
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}
