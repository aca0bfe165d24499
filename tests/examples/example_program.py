"""An example as a user starts it: a process of its own beside a scripted model server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sonde.testing import Script, ScriptedServer

EXAMPLES = Path(__file__).parents[2] / "examples"
LOG = "09:00 web started\n09:01 payments: connection refused\n09:02 web answered 500\n"


def environment(home: Path, **more: str) -> dict[str, str]:
    """Nothing of the developer's keys; `sonde` is the one of this interpreter."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb", **more}


def run_example(name: str, *words: str | Path, cwd: Path, replies: Script | None = None, **env: str) -> str:
    """What the example printed; it must end with 0. Without replies there is no model."""
    if replies is None:
        return _run(name, *words, cwd=cwd, env=environment(cwd, **env))
    with ScriptedServer(replies) as server:
        keys = {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": "sk-scripted"}
        return _run(name, *words, cwd=cwd, env=environment(cwd, **keys, **env))


def refused_example(name: str, *words: str | Path, cwd: Path) -> str:
    """What the example said of its failure; it must end with 1."""
    return _run(name, *words, cwd=cwd, env=environment(cwd), code=1)


def _run(name: str, *words: str | Path, cwd: Path, env: dict[str, str], code: int = 0) -> str:
    command = [sys.executable, str(EXAMPLES / name), *map(str, words)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == code, f"{name} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def block(code: str) -> str:
    """Code as a model replies with it."""
    return f"```python\n{code}\n```"


def logs(folder: Path) -> Path:
    """A folder with one small log in it."""
    (folder / "logs").mkdir()
    (folder / "logs" / "app.log").write_text(LOG)
    return folder / "logs"
