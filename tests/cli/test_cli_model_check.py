"""`sonde doctor --model` asks a model once; servers of this machine are named when no model is set. Real servers on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sonde.cli.main import main
from sonde.testing import ScriptedReply, ScriptedServer


class Ollama(BaseHTTPRequestHandler):
    """Answers as Ollama does, as far as its list and description of models."""

    def do_GET(self) -> None:
        models = [{"name": "nomic-embed-text:latest"}, {"name": "llama3.2:3b"}]
        self._send({"models": models} if self.path == "/api/tags" else {"data": []})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/api/show":
            self._send({"model_info": {"general.architecture": "llama", "llama.context_length": 131072}})
            return
        message = {"role": "assistant", "content": '{"ok": true}'}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        self._send({"object": "chat.completion", "model": asked["model"], "choices": choices})

    def _send(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
        """Silent."""


@contextmanager
def ollama() -> Generator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ollama)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run(*words: str) -> int:
    """The command in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no settings of the developer's, and no server of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SONDE_LOCAL_PORTS", "none")
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "SONDE_MODEL", "SONDE_API_KEY", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_doctor_asks_the_model_once_and_says_what_it_is_like(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer('{"ok": true}') as server:
        code = run("doctor", "--model", "openai:gpt-4o-mini", "--base-url", server.base_url)

    shown = capsys.readouterr().out
    assert code == 0
    assert [seen.path for seen in server.requests].count("/v1/chat/completions") == 1
    assert "answered as gpt-4o-mini" in shown
    assert "128,000 tokens" in shown
    assert "$0.15 per million tokens read, $0.6 written" in shown
    assert "the server takes one; the reply fits" in shown


def test_a_program_gets_no_schema_and_may_have_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    run("doctor", "--model", "command:echo Yes.", "--model-timeout", "60", "--json")

    assert json.loads(capsys.readouterr().out)["model"]["schema"] == "a program gets none; it replied: Yes."
    assert main(["doctor", "--model-timeout", "60"]) == 2


def test_a_server_without_schemas_and_a_model_without_a_price_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    refusal = ScriptedReply(status=400, raw=b'{"error": {"message": "response_format is not supported"}}')
    with ScriptedServer([refusal, "Yes."]) as server:
        run("doctor", "--model", "openai:house-model", "--base-url", server.base_url, "--json")

    told = json.loads(capsys.readouterr().out)["model"]
    assert told["price"].startswith("unknown")
    assert told["context"] == "the server does not say"
    assert told["schema"] == "the server refuses one, so it is asked for in words; the reply does NOT fit: Yes."


@pytest.mark.parametrize(("status", "says"), [(401, "The key was refused"), (404, "it has scripted.")])
def test_a_model_that_refuses_is_one_clear_line(status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer(ScriptedReply(status=status)) as server:
        code = run("doctor", "--model", "openai:gpt-4o-mini", "--base-url", server.base_url)

    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert code == 1
    assert len(errors) == 1 and says in errors[0]
    assert len(server.requests) == 1


def test_no_key_and_no_server_are_clear_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ScriptedServer() as server:
        gone = server.base_url

    assert run("doctor", "--model", "openai:gpt-4o-mini") == 1
    assert "needs a key: set OPENAI_API_KEY" in capsys.readouterr().out
    assert run("doctor", "--model", "openai:gpt-4o-mini", "--base-url", gone) == 1
    assert "could not be reached" in capsys.readouterr().out


def test_doctor_names_the_servers_of_this_machine_with_a_command_that_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ollama() as port, ScriptedServer() as other:
        far = other.base_url.split(":")[-1].removesuffix("/v1")
        monkeypatch.setenv("SONDE_LOCAL_PORTS", f"{port},{far}")
        run("doctor")
        flags = f"--base-url http://127.0.0.1:{port}/v1 --model openai:llama3.2:3b"
        shown = capsys.readouterr().out

        assert f"Ollama answers on this machine: sonde ask QUESTION PATH {flags}" in shown
        assert (
            f"an OpenAI-compatible server answers on this machine: sonde ask QUESTION PATH --base-url http://127.0.0.1:{far}/v1"
            in shown
        )
        assert run("doctor", *flags.split()) == 0
        assert "131,072 tokens, says the server" in capsys.readouterr().out


def test_ask_without_a_model_says_in_one_line_how_to_use_the_server_of_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.md").write_text("The pump failed at noon.\n")
    with ollama() as port:
        monkeypatch.setenv("SONDE_LOCAL_PORTS", str(port))
        run("ask", "When did the pump fail?", "notes.md")

    first = capsys.readouterr().err.splitlines()[0]
    assert first == (
        f"model: none, but Ollama answers on this machine: add --base-url http://127.0.0.1:{port}/v1 --model openai:llama3.2:3b"
    )


@pytest.mark.parametrize(
    "reply",
    [
        b"\xff\xfe not json",
        b"[" * 9_000,
        b'{"data": 7, "models": 7}',
        b'{"data": [{"id": "x; rm -rf ~"}, {"id": 7}, null]}',
    ],
)
def test_a_stranger_on_the_port_is_left_alone(
    reply: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stranger(Ollama):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    monkeypatch.setenv("SONDE_LOCAL_PORTS", str(server.server_port))
    try:
        run("doctor")
    finally:
        server.shutdown()
        server.server_close()

    shown = capsys.readouterr().out
    assert "answers on this machine" not in shown
    assert "rm -rf" not in shown
