"""What a batch says while it runs: on narrow terminals, on those that know no escape sequences, and into a pipe."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from rich.cells import cell_len

from batch.scene import Scene, counting_server, eventually, one_worker

pytestmark = pytest.mark.long


COLUMNS = 20
WIPE = "\r\x1b[K"


def shown_on(terminal: str, scene: Scene) -> str:
    """What a batch writes to a narrow terminal of this kind."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with counting_server(0.02) as server:
        command = scene.command(server.base_url, *one_worker(["--requests-per-minute", "600"]))
        environ = {**os.environ, "TERM": terminal}
        driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, cwd=scene.path, env=environ)
        os.close(theirs)
        said = _all_of(ours)
        assert driver.wait() == 0, said
    os.close(ours)
    return said


def _all_of(fd: int) -> str:
    said = b""
    while True:
        try:
            piece = os.read(fd, 65536)
        except OSError:  # nobody writes there any more
            return said.decode()
        said += piece


def test_the_line_of_progress_stays_within_a_narrow_terminal(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(12)

    drawn = shown_on("xterm", scene).split(WIPE)[1:-1]

    assert drawn
    assert [line for line in drawn if cell_len(line) >= COLUMNS] == []


def test_a_dumb_terminal_gets_no_escape_sequence(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(3)

    assert "\x1b" not in shown_on("dumb", scene)


def test_into_a_pipe_a_line_goes_when_it_is_said_and_not_with_the_end(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.write(3)
    with counting_server(0.05) as server:
        driver = scene.start(server.base_url, "--concurrency", "1")
        eventually(lambda: len(server.counts()) >= 1)
        driver.kill()
        _, said = driver.communicate()

    assert said.startswith("model: openai:gpt-4o-mini")
