"""`sonde view` serves run folders until it is told to stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

from cli_program import environment, sonde


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


def test_a_port_that_cannot_be_used_is_exit_code_2(tmp_path: Path) -> None:
    shown = sonde("view", "--port", "70000", cwd=tmp_path)

    assert shown.returncode == 2
    assert "--port 0" in shown.stderr
