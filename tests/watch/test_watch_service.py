"""`sonde watch` as a service: it takes traces, finds an issue, tells a program, answers for its health, and ends at SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from otlp_bodies import as_json, request, span

from cli.cli_program import environment

TOKEN = "a-token-of-the-test"


@pytest.mark.long
def test_a_watch_that_listens_finds_tells_and_answers_until_it_is_stopped(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    command = [sys.executable, "-m", "sonde", "watch", "--state", str(tmp_path / "state"), "--listen", "127.0.0.1:0"]
    command += ["--page", "0", "--every", "1s", "--settle", "0s", "--min-traces", "1", "--on-new", f"tee {told}"]
    env = environment(tmp_path, SONDE_LISTEN_TOKEN=TOKEN)
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: dict[str, str] = {}
        while not {"listening", "page"} <= said.keys():
            name, _, rest = process.stderr.readline().partition(": ")
            said[name] = rest.strip()
        otlp, page = said["listening"].split()[0], said["page"].rstrip("/")
        now = time.time_ns()
        failed = span(
            1,
            startTimeUnixNano=str(now - 10**9),
            endTimeUnixNano=str(now),
            status={"code": 2, "message": "no stock"},
        )
        body = as_json(request(failed))
        sent = urllib.request.Request(
            f"{otlp}/v1/traces", body, {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
        )
        urllib.request.urlopen(sent, timeout=60).close()
        notice = json.loads(told.read_text())  # waits until the program writes
        health = [urllib.request.urlopen(f"{each}/healthz", timeout=60).read() for each in (otlp, page)]
        issues = json.load(urllib.request.urlopen(f"{page}/api/issues", timeout=60))
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{otlp}/metrics", timeout=60)
        figures = urllib.request.urlopen(f"{page}/metrics", timeout=60).read()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=250)

    assert "no stock" in notice["issue"]["title"]
    assert health == [b"ok\n", b"ok\n"]
    assert [each["state"] for each in issues["watch"]["issues"]] == ["new"]
    assert b'outcome="received"} 1' in figures
    assert "key=" not in page  # stderr is no terminal
    assert process.returncode == 143
