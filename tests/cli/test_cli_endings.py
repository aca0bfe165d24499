"""`sonde ask` as a process against models that misbehave: servers, programs, signals. Every ending leaves a complete folder."""

from __future__ import annotations

import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_program import environment, kept_runs, sonde

from sonde.testing import ScriptedReply, ScriptedServer, SeenRequest

pytestmark = pytest.mark.long


KEY = "sk-planted-never-shown"
LOOK = "```python\nlines = grep('ERROR')\nprint(lines)\n```"
CITE = "```python\nFINAL('payments failed first [app.log:2]')\n```"
FILES = {"run_record.json", "events.jsonl", "result.json", "summary.md", "answer.md"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/app.log").write_text("12:00 INFO up\n12:01 ERROR payments: timeout\n12:02 ERROR cart: 500\n")
    return tmp_path


def ask(folder: Path, server: ScriptedServer, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit code and the object that --json prints."""
    env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url}
    shown = sonde("ask", "Who failed first?", "logs", "--json", *words, cwd=folder, **env)
    assert shown.stderr == ""
    return shown.returncode, json.loads(shown.stdout)


def start(folder: Path, server: ScriptedServer, *words: str) -> subprocess.Popen[bytes]:
    env = environment(folder, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.base_url)
    command = [sys.executable, "-m", "sonde", "ask", "Who failed first?", "logs", "--json", *words]
    return subprocess.Popen(
        command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def run_folder(folder: Path) -> Path:
    (found,) = kept_runs(folder)
    return found


def complete(folder: Path) -> dict[str, Any]:
    """The record of the only run, whose folder must be complete."""
    found = run_folder(folder)
    assert {path.name for path in found.iterdir()} >= FILES
    record = json.loads((found / "run_record.json").read_text())
    assert record["completed_at"]
    return record


def await_requests(server: ScriptedServer, count: int) -> None:
    for _ in range(2000):
        if len(server.requests) >= count:
            return
        server.closing.wait(0.05)
    raise AssertionError(f"only {len(server.requests)} requests came")


GARBLED = ScriptedReply(raw=b'{"choices": [{"message": {"content": ')


@pytest.mark.parametrize(
    "trouble",
    [
        ScriptedReply(status=429, headers={"retry-after": "0"}),
        ScriptedReply(status=500, text="boom"),
        ScriptedReply(status=503, text="overloaded"),
    ],
    ids=["429", "500", "503"],
)
def test_trouble_that_passes_is_waited_out_counted_and_recorded(folder: Path, trouble: ScriptedReply) -> None:
    with ScriptedServer([LOOK, trouble, CITE]) as server:
        code, answer = ask(folder, server)

    assert (code, answer["status"]) == (0, "succeeded")
    assert complete(folder)["metrics"]["model_failures"] == 1
    assert len(server.requests) == 3


def test_a_wish_to_wait_is_heeded(folder: Path) -> None:
    with ScriptedServer([LOOK, ScriptedReply(status=429, headers={"retry-after": "2"}), CITE]) as server:
        began = time.monotonic()
        code, _ = ask(folder, server)

    assert code == 0
    assert time.monotonic() - began >= 2


def test_trouble_that_stays_ends_partial_with_what_was_found(folder: Path) -> None:
    def answer(seen: SeenRequest) -> str | ScriptedReply:
        return LOOK if len(seen.body["messages"]) == 2 else ScriptedReply(status=500, headers={"retry-after": "0"})

    with ScriptedServer(answer) as server:
        code, found = ask(folder, server)

    assert (code, found["status"], found["annotator_kind"]) == (0, "partial", "CODE")
    assert found["error"]["code"] == "MODEL_UNREACHABLE"
    assert len(server.requests) == 5
    complete(folder)


@pytest.mark.requirement(92)
def test_a_server_that_never_answers_ends_for_time(folder: Path) -> None:
    with ScriptedServer([LOOK, ScriptedReply(hang=True)]) as server:
        code, answer = ask(folder, server, "--max-wall-time-sec", "10")

    assert (code, answer["status"]) == (0, "partial")
    assert answer["error"]["code"] == "WALL_TIME_LIMIT_REACHED"
    complete(folder)


def test_usage_that_a_server_leaves_out_is_estimated(folder: Path) -> None:
    with ScriptedServer([ScriptedReply(text=LOOK, usage=None), ScriptedReply(text=CITE, usage=None)]) as server:
        _, answer = ask(folder, server)

    assert answer["usage"]["tokens_in"] > 100
    assert answer["usage"]["tokens_out"] > 10


def test_a_first_request_that_is_refused_is_exit_code_1(folder: Path) -> None:
    with ScriptedServer(ScriptedReply(status=401, text="bad key")) as server:
        code, answer = ask(folder, server)

    assert (code, answer["status"]) == (1, "failed")
    assert "OPENAI_API_KEY" in answer["error"]["message"]
    assert KEY not in json.dumps(answer)
    complete(folder)


@pytest.mark.requirement(84)
def test_a_violation_is_exit_code_1_without_output(folder: Path) -> None:
    escape = "```python\nimport ctypes\nctypes.CDLL(None).syscall(57)\n```"
    with ScriptedServer([LOOK, escape, CITE]) as server:
        code, answer = ask(folder, server, "--profile", "open")

    assert (code, answer["status"], answer["answer"]) == (1, "failed", "")
    assert answer["error"]["code"] == "SANDBOX_VIOLATION"
    complete(folder)


def test_on_a_terminal_replies_stream_and_a_cut_line_is_asked_again(folder: Path) -> None:
    cut = ScriptedReply(text=LOOK, pieces=["```python\n", "x = 1", "\n```"], cut_after=2)
    whole = ScriptedReply(text=LOOK, pieces=["```python\nlines = ", "grep('ERROR')", "\nprint(lines)\n```"])
    with ScriptedServer([cut, whole, CITE]) as server:
        shown = on_terminal(folder, server)

    assert "payments failed first" in shown
    assert all(seen.body.get("stream") for seen in server.requests)
    assert complete(folder)["metrics"]["model_failures"] == 1


def on_terminal(folder: Path, server: ScriptedServer) -> str:
    ours, theirs = pty.openpty()
    env = environment(folder, OPENAI_API_KEY=KEY, OPENAI_BASE_URL=server.base_url) | {"TERM": "xterm"}
    command = [sys.executable, "-m", "sonde", "ask", "Who failed first?", "logs"]
    chunks: list[bytes] = []
    with subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # Linux answers EIO when the other side is closed
            pass
        process.wait(60)
    os.close(ours)
    return b"".join(chunks).decode("utf-8", "replace")


HANGS = "import time\ntime.sleep(600)"
DIES = "import os, sys\nprint('half a rep', flush=True)\nsys.stderr.write('out of memory')\nos._exit(3)"
FLOODS = "import sys\nsys.stdout.write('y' * 100_000_000)"


def program(folder: Path, code: str, **options: Any) -> Path:
    """A command model in sonde.toml that looks first and misbehaves afterwards; the file where its process ids go."""
    script = folder / "model.py"
    script.write_text(
        f"import os, sys\nwith open({str(folder / 'pids')!r}, 'a') as f: f.write(f'{{os.getpid()}}\\n')\n"
        f"prompt = sys.stdin.read()\nif 'your earlier reply' not in prompt:\n    print({LOOK!r})\n    sys.exit()\n{code}\n"
    )
    lines = [f"{name} = {json.dumps(value)}" for name, value in options.items()]
    command = f"command = {json.dumps([sys.executable, str(script)])}"
    (folder / "sonde.toml").write_text("\n".join(["[models.mine]", command, *lines]) + "\n")
    return folder / "pids"


@pytest.mark.requirement(34)
@pytest.mark.parametrize(
    ("code", "patience_s", "words"),
    [(HANGS, 5, "did not answer within 5 s"), (DIES, 60, "ended with exit code 3"), (FLOODS, 60, "")],
    ids=["hangs", "dies", "prints 100 MB"],
)
def test_a_program_that_misbehaves_ends_the_run_partial_and_leaves_no_process(
    folder: Path, code: str, patience_s: int, words: str
) -> None:
    pids = program(folder, code, timeout_s=patience_s)
    shown = sonde(
        "ask", "Who failed first?", "logs", "--json", "--model", "mine", cwd=folder, SONDE_CONFIG="sonde.toml"
    )

    answer = json.loads(shown.stdout)
    assert (shown.returncode, answer["status"]) == (0, "partial")
    assert words in answer["error"]["message"]
    assert not [pid for pid in pids.read_text().split() if Path("/proc", pid).exists()]
    complete(folder)
    assert sum(path.stat().st_size for path in run_folder(folder).iterdir()) < 40_000_000


def test_waiting_that_does_not_count_outlasts_the_runs_time_and_is_recorded(folder: Path) -> None:
    program(folder, f"import time\ntime.sleep(11)\nprint({CITE!r})", count_wait=False)
    shown = sonde(
        "ask",
        "Who failed first?",
        "logs",
        "--json",
        "--model",
        "mine",
        "--max-wall-time-sec",
        "10",
        cwd=folder,
        SONDE_CONFIG="sonde.toml",
    )

    assert json.loads(shown.stdout)["status"] == "succeeded", shown.stdout
    events = [json.loads(line) for line in (run_folder(folder) / "events.jsonl").read_text().splitlines()]
    assert max(event.get("waited_s", 0) for event in events) >= 11


def finish(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Interrupt it as a terminal does; what it prints soon after, however busy the machine."""
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=250)
    return json.loads(out)


def test_ctrl_c_in_the_middle_of_a_parallel_batch_returns_soon(folder: Path) -> None:
    batch = "```python\nanswers = llm_batch([f'ask {i}' for i in range(60)])\n```"

    def answer(seen: SeenRequest) -> str | ScriptedReply:
        if seen.prompt().startswith("ask"):
            return ScriptedReply(hang=True)
        return LOOK if len(seen.body["messages"]) == 2 else batch

    with ScriptedServer(answer) as server, start(folder, server) as process:
        await_requests(server, 10)
        found = finish(process)

    assert (process.returncode, found["status"]) == (130, "partial")
    assert "cancelled by the user" in found["gaps"]
    complete(folder)


def test_ctrl_c_in_a_batch_of_programs_leaves_no_process(folder: Path) -> None:
    code = (
        "import time\nif 'ask ' in prompt and 'Task:' not in prompt:\n    time.sleep(600)\n"
        "print(\"```python\\nanswers = llm_batch([f'ask about ERROR payments {i}' for i in range(8)])\\n```\")"
    )
    pids = program(folder, code)
    command = [sys.executable, "-m", "sonde", "ask", "Who failed first?", "logs", "--json", "--model", "mine"]
    env = environment(folder, SONDE_CONFIG="sonde.toml")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, env=env, stdout=pipe, stderr=pipe, start_new_session=True) as process:
        wait_for(lambda: pids.exists() and len(pids.read_text().split()) >= 8)
        found = finish(process)

    assert found["status"] == "partial"
    wait_for(lambda: not [pid for pid in pids.read_text().split() if Path("/proc", pid).exists()])


def wait_for(true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        time.sleep(0.05)
    raise AssertionError("it did not come to that")


@pytest.mark.requirement(103)
def test_killed_and_resumed_a_run_ends_complete_and_asks_no_recorded_reply_again(folder: Path) -> None:
    hang = iter([ScriptedReply(hang=True)])

    def answer(seen: SeenRequest) -> str | ScriptedReply:
        return LOOK if len(seen.body["messages"]) == 2 else next(hang, CITE)

    with ScriptedServer(answer) as server:
        with start(folder, server) as process:
            await_requests(server, 2)
            process.kill()
        before = {path.name for path in run_folder(folder).iterdir()}
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url}
        shown = sonde("resume", "last", "--json", cwd=folder, **env)
        asked = len(server.requests)

    assert "events.jsonl" in before
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["status"] == "succeeded"
    assert asked == 3  # two before the kill, and only the one that was in flight after it
    assert complete(folder)["status"] == "succeeded"


def test_standard_input_of_any_size_is_a_context_and_leaves_nothing_behind(folder: Path) -> None:
    look = "```python\nprint(grep('needle'), CONTEXT_INDEX if 'CONTEXT_INDEX' in dir() else '')\n```"
    env = environment(folder, OPENAI_API_KEY=KEY, TMPDIR=str(folder / "tmp"))
    (folder / "tmp").mkdir()
    big = folder / "big"
    with big.open("wb") as file:
        for _ in range(60):
            file.write(b"hay in the stack, nothing else\n" * 32_000)
        file.write(b"the needle \xff is here\n")
    with ScriptedServer([look, "```python\nFINAL('here [stdin.txt:1920001]')\n```"]) as server, big.open("rb") as given:
        command = [sys.executable, "-m", "sonde", "ask", "Where?", "-", "--json"]
        env["OPENAI_BASE_URL"] = server.base_url
        done = subprocess.run(command, cwd=folder, env=env, stdin=given, capture_output=True, timeout=250, check=False)

    answer = json.loads(done.stdout)
    assert (done.returncode, answer["status"]) == (0, "succeeded"), done
    assert answer["citations"][0]["snippet"].startswith("the needle")
    assert not list((folder / "tmp").glob("sonde-stdin*"))


def test_after_a_limit_one_line_is_the_command_that_goes_on(folder: Path) -> None:
    with ScriptedServer(lambda _seen: LOOK) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "SONDE_MODEL": "openai:x"}
        shown = sonde("ask", "Who failed first?", "logs", "--max-iterations=2", cwd=folder, **env)
        (offered,) = [line for line in shown.stderr.splitlines() if line.startswith("to go on: ")]
        words = shlex.split(offered.removeprefix("to go on: sonde "))
        run = run_folder(folder).name
        on = sonde(*words, cwd=folder, **env)

    assert words[-4:] == ["--continue", run, "--max-iterations", "10"] and "--max-iterations=2" not in words
    assert on.returncode == 0 and "partial · 10 turns" in on.stderr


def test_after_a_limit_of_tokens_the_offered_one_is_enough_for_the_refused_call(folder: Path) -> None:
    with ScriptedServer(lambda _seen: LOOK) as server:
        env = {"OPENAI_BASE_URL": server.base_url, "SONDE_MODEL": "openai:x"}
        shown = sonde("ask", "Who failed first?", "logs", "--max-tokens-total", "300", cwd=folder, **env)
        (offered,) = [line for line in shown.stderr.splitlines() if line.startswith("to go on: ")]
        on = sonde(*shlex.split(offered.removeprefix("to go on: sonde ")), cwd=folder, **env)

    assert "0 turns" in shown.stderr or "0 tokens" in shown.stderr
    assert " 0 tokens" not in on.stderr
