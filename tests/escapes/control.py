"""The control: runs each payload in plain CPython, one fork each, so that a payload that is not live is found out.

Usage: python control.py JOBS STDIN (JOBS: JSON list of [id, code]); prints one JSON object of outputs by id.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import tempfile
from pathlib import Path

from patience import SLOWNESS
from sonde.sandbox.policy import OPEN_PRELOAD

PATIENCE_S = 60.0 * min(3.0, SLOWNESS)


def main(jobs_path: str, stdin_path: str) -> None:
    for module in sorted(OPEN_PRELOAD):
        importlib.import_module(module)
    jobs: list[tuple[str, str]] = json.loads(Path(jobs_path).read_text())
    json.dump({name: run(code, stdin_path) for name, code in jobs}, sys.stdout)


def run(code: str, stdin_path: str) -> str:
    """The output of `code` in a child that is killed when it takes too long."""
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            _become(code, stdin_path, output.fileno())
        _wait(pid)
        output.seek(0)
        return output.read().decode("utf-8", "replace")


def _become(code: str, stdin_path: str, output: int) -> None:
    try:
        os.setpgid(0, 0)
        os.dup2(os.open(stdin_path, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115 # the payload's own
        exec(compile(code, "<payload>", "exec"), {"__name__": "__main__"})
    except BaseException as error:  # noqa: BLE001 # the top of the payload
        sys.excepthook(type(error), error, error.__traceback__)
    with contextlib.suppress(BaseException):
        import atexit

        atexit._run_exitfuncs()
    with contextlib.suppress(BaseException):
        sys.stdout.flush()
    os._exit(0)


def _wait(pid: int) -> None:
    ended = os.pidfd_open(pid)
    if not select.select([ended], [], [], PATIENCE_S)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(ended)
    os.waitpid(pid, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
