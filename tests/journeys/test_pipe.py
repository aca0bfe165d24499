"""Chiara pipes a log into a question and does not know that other programs want a `-` for it.

Her scripts run in places where standard input is a pipe that nobody ever closes; there she names files, and nothing waits.
"""

from __future__ import annotations

import os
import subprocess

from journey import SONDE, Person


def test_a_pipe_is_read_without_a_dash(person: Person, log_text: str) -> None:
    asked = person.sonde("ask", "Who refused the connection?", stdin=log_text)

    assert asked.returncode == 0, asked.stderr
    assert "stdin.txt:3211" in asked.stdout
    assert "payments ERROR ledger refused the connection" in asked.stdout


def test_a_pipe_that_is_never_closed_is_left_alone_when_files_are_named(person: Person) -> None:
    log = person.write("app.log", "web INFO started\npayments ERROR ledger refused the connection\n")
    read, write = os.pipe()
    try:
        asked = subprocess.run(
            [SONDE, "ask", "Who refused the connection?", log],
            cwd=person.folder,
            env=person.environment(),
            stdin=read,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    finally:
        os.close(read)
        os.close(write)

    assert asked.returncode == 0, asked.stderr
    assert "app.log:2" in asked.stdout
