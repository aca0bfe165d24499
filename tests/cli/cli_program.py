"""The program: called here, which is quick, or as a user starts it, where a process matters (signals, streams, how it starts and ends).

Both see only the environment, the folder and the standard input that the test gives them.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO
from unittest import mock

import pytest

from sonde.cli.main import main

Shown = subprocess.CompletedProcess[str]
_ROOT = os.geteuid() == 0
_FEWER_POWERS = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search", "--"] if _ROOT else []
ordinary = pytest.mark.skipif(
    _ROOT and shutil.which("setpriv") is None, reason="root reads everything unless setpriv takes that away"
)


def environment(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the developer's settings and keys gets in."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **more}


def kept_runs(home: Path) -> list[Path]:
    """The run folders of questions and edits in the state folder of this home."""
    return sorted(home.glob(".local/state/sonde/runs/*/*"))


def sonde(*words: str | Path, cwd: Path, stdin: str | None = None, **env: str) -> Shown:
    """Run one command to its end, in this process."""
    return call(*words, cwd=cwd, env=environment(cwd, **env), stdin=stdin)


def call(*words: str | Path, cwd: Path, env: Mapping[str, str], stdin: str | None = None) -> Shown:
    """The same with the whole environment given."""
    arguments = list(map(str, words))
    with _streams(stdin) as (out, err), contextlib.chdir(cwd), mock.patch.dict(os.environ, env, clear=True):
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
        assert code is None or isinstance(code, int), code
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        return Shown(["sonde", *arguments], code or 0, _text(out), _text(err))


def sonde_process(*words: str | Path, cwd: Path, stdin: str | None = None, **env: str) -> Shown:
    """Run one command to its end, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "sonde", *map(str, words)],
        cwd=cwd,
        env=environment(cwd, **env),
        stdin=subprocess.DEVNULL if stdin is None else None,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def as_ordinary(*commands: Sequence[str], cwd: Path) -> list[Shown]:
    """Run commands one after the other in one process of a user whom modes of files hold, as they do not hold root."""
    done = subprocess.run(
        [*_FEWER_POWERS, sys.executable, __file__],
        cwd=cwd,
        env=environment(cwd),
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Shown(*each) for each in json.loads(done.stdout)]


@contextlib.contextmanager
def _streams(stdin: str | None) -> Generator[tuple[BinaryIO, BinaryIO]]:
    """The three standard streams, all with descriptors: a pipe or nothing to read from, files to write to."""
    if stdin is None:
        ours = os.open(os.devnull, os.O_RDONLY)
    else:
        ours, theirs = os.pipe()
        assert os.write(theirs, stdin.encode()) == len(stdin.encode()), "a pipe holds 64 kB; start a process for more"
        os.close(theirs)
    before = sys.stdin, sys.stdout, sys.stderr
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        sys.stdin = os.fdopen(ours, encoding="utf-8")
        sys.stdout, sys.stderr = (io.TextIOWrapper(each, encoding="utf-8", line_buffering=True) for each in (out, err))
        try:
            yield out, err
        finally:
            sys.stdin.close()
            sys.stdin, sys.stdout, sys.stderr = before


def _text(written: BinaryIO) -> str:
    written.seek(0)
    return written.read().decode()


if __name__ == "__main__":
    ran = [sonde(*each, cwd=Path.cwd()) for each in json.load(sys.stdin)]
    json.dump([(each.args, each.returncode, each.stdout, each.stderr) for each in ran], sys.stdout)
