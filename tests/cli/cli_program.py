"""The program as a user starts it: a process of its own, with an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

Shown = subprocess.CompletedProcess[str]


def environment(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the developer's settings and keys gets in."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "dumb", **more}


def sonde(*words: str | Path, cwd: Path, stdin: str = "", **env: str) -> Shown:
    """Run one command to its end."""
    command = [sys.executable, "-m", "sonde", *map(str, words)]
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment(cwd, **env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
