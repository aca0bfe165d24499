"""`sonde view` serves run folders until it is told to stop."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from cli_program import environment, sonde

from watch.watch_scene import Fault, append, traffic


@pytest.mark.long
def test_the_page_is_served_on_loopback_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a line\n")
    sonde("ask", "line", "a.txt", "--quiet", cwd=tmp_path)
    command = [sys.executable, "-m", "sonde", "view", "last"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        with urllib.request.urlopen(address, timeout=60) as page:
            body = page.read().decode()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=250)

    assert address.startswith("http://127.0.0.1:") and "#/run/" in address
    assert "<html" in body
    assert process.returncode == 0


@pytest.mark.long
def test_on_a_terminal_the_address_is_a_link(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    command, env = [sys.executable, "-m", "sonde", "view"], environment(tmp_path) | {"TERM": "xterm"}
    with subprocess.Popen(command, cwd=tmp_path, env=env, stdout=theirs, stderr=subprocess.DEVNULL) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as terminal:
            shown = b""
            while b"\n" not in shown:
                shown += terminal.read(1000)
            process.send_signal(signal.SIGINT)
            process.wait(250)

    assert re.fullmatch(rb"\x1b\]8;;(http://127\.0\.0\.1:\d+/\S*)\x1b\\\1\x1b\]8;;\x1b\\\r\n", shown), shown


def test_a_port_that_cannot_be_used_is_exit_code_2(tmp_path: Path) -> None:
    shown = sonde("view", "--port", "70000", cwd=tmp_path)

    assert shown.returncode == 2
    assert "--port 0" in shown.stderr


@pytest.mark.long
def test_issues_come_first_where_a_watch_works_and_a_damaged_state_is_no_obstacle(tmp_path: Path) -> None:
    append(tmp_path / "traces.jsonl", traffic(12, 60, [Fault(step="send_mail", text="no route", begin=0, end=1e9)]))
    assert sonde("watch", "--source", "traces.jsonl", "--once", cwd=tmp_path).returncode == 0
    (state,) = tmp_path.glob(".local/state/sonde/watch/*/watch.sqlite")

    def looked() -> tuple[str, bytes]:
        command, pipe = [sys.executable, "-m", "sonde", "view"], subprocess.PIPE
        with subprocess.Popen(
            command, cwd=tmp_path, env=environment(tmp_path), stdout=pipe, stderr=pipe, text=True
        ) as process:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{address.partition('#')[0]}api/issues", timeout=60) as reply:
                told = reply.read()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=250)
        return address, told

    address, told = looked()
    assert "#/?key=" in address
    assert b"send_mail: no route" in told
    state.write_bytes(b"not a database" * 1000)
    address, told = looked()
    assert "key=" not in address
    assert told == b"null"
