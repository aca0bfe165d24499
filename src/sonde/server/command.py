"""One allowed command, for an editor that decides by itself what may run: the same guard, confinement and end as in `sonde edit`.

    echo '{"command": "npm test", "allowed": ["=npm test"], "seconds": 55}' | python -P -m sonde.server.command

It runs in the working folder. One line of JSON comes back: exitCode, stdout and stderr, or `refused` in words. The command and all that
it started end when this process does, and this process ends with its standard input. `notConfined` says why it was not confined.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

from sonde.api.edit_run import command_environment, command_policy
from sonde.api.settings import load_settings
from sonde.contexts.workspace import LocalWorkspace
from sonde.contexts.workspace.reach import NOT_CONFINED, confinable
from sonde.errors import SondeError

MAX_OUTPUT = 60_000


def main() -> int:
    """Read the order, run the command, print what came of it."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        settings = load_settings(command_read=order.get("read") or None, command_write=order.get("write") or None)
        policy = replace(command_policy(settings, order["allowed"]), command_timeout_s=order["seconds"])
        workspace = LocalWorkspace(Path.cwd(), policy=policy, environment=command_environment())
        done = workspace.execute(order["command"])
    except SondeError as error:
        answer = {"refused": error.message}
    else:
        outputs = {"stdout": done.stdout, "stderr": done.stderr}
        answer = {"exitCode": done.exit_code, **{name: _last_lines(text) for name, text in outputs.items()}}
        answer |= {} if confinable() else {"notConfined": NOT_CONFINED}
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
    return 0


def _last_lines(text: str) -> str:
    """Several times what a model is shown, and no torn line at the beginning: the runtime masks it before it cuts it."""
    return text if len(text) <= MAX_OUTPUT else text[text.find("\n", len(text) - MAX_OUTPUT) + 1 :]


def _end_with_input() -> None:
    """The editor hung up or is gone. The launcher of the command sees our end and ends the command."""
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
