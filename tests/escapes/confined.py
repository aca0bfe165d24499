"""The other stage: runs each payload in a sandbox of its own, between two harmless turns.

Usage: python confined.py JOBS PROFILE[+PACKAGE...] UID [LAYER...] (JOBS: JSON list of [id, code]; UID a number, or - to stay who we are;
layers to leave off: landlock alone is the mode that users have; others show that a hole would be seen).
Prints one JSON object of JSON reports by id.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from ordinary import become_ordinary

from patience import SLOWNESS
from sonde.sandbox import Args, Box, ForkServer, Limits, Sandbox
from sonde.sandbox.policy import Profile, profile_named

LIMITS = Limits(wall_s=min(30.0, 3.0 * SLOWNESS), memory="256MiB")


def main(jobs_path: str, profile: str, uid: str, *without: str) -> None:
    if uid != "-" and os.geteuid() == 0:
        become_ordinary(int(uid), [sys.executable, *sys.argv])
    jobs: list[tuple[str, str]] = json.loads(Path(jobs_path).read_text())
    profile, *packages = profile.split("+")
    rules = profile_named(profile).having(packages)
    server = ForkServer(rules.preload, held=rules.held, extra=rules.extra, without=without)
    with _fresh(rules, server) as first:
        # The boundary itself is tried with a new session each time; for another user, and for the language rules, on branches,
        # which are cheaper.
        fresh = profile == "open" and uid == "-"
        told = {name: run(code, _fresh(rules, server) if fresh else first.branch()) for name, code in jobs}
    json.dump({name: json.dumps(report) for name, report in told.items()}, sys.stdout)


def _fresh(rules: Profile, server: ForkServer) -> Sandbox:
    mode: dict[str, Any] = (
        {"without": "landlock"} if server.without == ("landlock",) else {"unsafe": bool(server.without)}
    )
    box = Sandbox(rules.name, packages=rules.extra, limits=LIMITS, host=_serve, server=server, **mode)
    box.execute("kept = 41", wall_s=60.0)
    return box


def _serve(name: str, _: Args) -> str:
    return f"no function {name}"


def run(code: str, box: Box) -> dict[str, str | bool | None]:
    with contextlib.closing(box):
        result = box.execute(code)
        after = box.execute("print(kept + 1)", wall_s=60.0)
    final = "" if result.final is None else repr(result.final.value)
    words = "" if result.fault is None else f"{result.fault.message}\n{result.fault.traceback}\n{result.fault.hint}"
    return {
        "output": f"{result.stdout}\n{result.stderr}\n{final}\n{words}\n{after.stdout}\n{after.stderr}",
        "fault": None if result.fault is None else result.fault.kind,
        "intact": "42" in after.stdout,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
