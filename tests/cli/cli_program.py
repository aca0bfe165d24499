"""The program: called here, which is quick, or as a user starts it, where a process matters (signals, streams, how it starts and ends).

Both see only the environment, the folder and the standard input that the test gives them.
"""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping
from pathlib import Path
from unittest import mock

from sonde.cli.main import main

Shown = subprocess.CompletedProcess[str]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the developer's settings and keys gets in."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **more}


def sonde(*words: str | Path, cwd: Path, stdin: str = "", **env: str) -> Shown:
    """Run one command to its end, in this process."""
    return call(*words, cwd=cwd, env=environment(cwd, **env), stdin=stdin)


def call(*words: str | Path, cwd: Path, env: Mapping[str, str], stdin: str = "") -> Shown:
    """The same with the whole environment given."""
    arguments = list(map(str, words))
    with _streams(stdin) as (out, err), contextlib.chdir(cwd), mock.patch.dict(os.environ, env, clear=True):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        assert code is None or isinstance(code, int), code
        return Shown(["sonde", *arguments], code or 0, _text(out), _text(err))


def sonde_process(*words: str | Path, cwd: Path, stdin: str = "", **env: str) -> Shown:
    """Run one command to its end, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sonde", *map(str, words)],
        cwd=cwd,
        env=environment(cwd, **env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@contextlib.contextmanager
def _streams(stdin: str) -> Generator[tuple[io.TextIOWrapper, io.TextIOWrapper]]:
    """The three standard streams, all with descriptors: a pipe to read from, files to write to."""
    ours, theirs = os.pipe()
    assert os.write(theirs, stdin.encode()) == len(stdin.encode()), "a pipe holds 64 kB; start a process for more"
    os.close(theirs)
    before = sys.stdin, sys.stdout, sys.stderr
    with os.fdopen(ours, encoding="utf-8") as given, _file() as out, _file() as err:
        sys.stdin, sys.stdout, sys.stderr = given, out, err
        try:
            yield out, err
        finally:
            sys.stdin, sys.stdout, sys.stderr = before


def _file() -> io.TextIOWrapper:
    return io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", line_buffering=True)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.buffer.seek(0)
    return stream.buffer.read().decode()
