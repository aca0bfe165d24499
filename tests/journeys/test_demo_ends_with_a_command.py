"""Noor plays the demo from a checkout, where `sonde` is not on the PATH, and types the command that it ends with."""

from __future__ import annotations

import shlex
import signal
import subprocess

import pytest
from journey import Person


@pytest.mark.journey
def test_the_last_line_of_the_demo_works_as_printed(person: Person) -> None:
    person.environ = {"PATH": "/usr/bin:/bin"}

    played = person.sonde("demo", "whitespace", "--no-code")
    command = played.stdout.splitlines()[-1].removeprefix("Look at the runs: ")
    viewer = subprocess.Popen(
        shlex.split(command), cwd=person.folder, env=person.environment(), stdout=subprocess.PIPE, text=True
    )
    with viewer:
        assert viewer.stdout is not None
        address = viewer.stdout.readline()
        viewer.send_signal(signal.SIGINT)

    assert played.returncode == 0
    assert address.startswith("http://127.0.0.1:")
