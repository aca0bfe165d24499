"""Puts payloads on stage: in the control, or in a sandbox of some profile as some user, and judges each from outside."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arena import Arena, open_arena
from corpus import Payload, payloads

from patience import SLOWNESS

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What came of one payload. `fault` is the sandbox's word for it; `intact` says that earlier state was still there."""

    payload: Payload
    won: tuple[str, ...]
    output: str = ""
    fault: str | None = None
    intact: bool = True


def live_candidates() -> list[Payload]:
    """The payloads that can be live for this user on this kernel."""
    running = _version(platform.release())
    return [
        one for one in payloads() if (not one.needs or os.geteuid() == 0) and _version(one.kernel or "0.0") <= running
    ]


def _version(release: str) -> tuple[int, int]:
    major, minor = re.findall(r"\d+", release)[:2]
    return int(major), int(minor)


def control() -> list[Verdict]:
    """Every payload in plain CPython."""
    with open_arena() as arena:
        chosen = live_candidates()
        outputs = perform(arena, chosen, [str(HERE / "control.py")], [str(arena.folder / "stdin.txt")])
        return [
            Verdict(payload=one, output=outputs[one.id], won=tuple(arena.judge(one, outputs[one.id]))) for one in chosen
        ]


def confined(profile: str, uid: int | None, chosen: Sequence[Payload], without: Sequence[str] = ()) -> list[Verdict]:
    """Payloads in a sandbox that is started by `uid` (None: whoever runs this), with some layers left off."""
    with open_arena(victim_uid=uid) as arena:
        told = perform(
            arena, chosen, [str(HERE / "confined.py")], [profile, "-" if uid is None else str(uid), *without]
        )
        verdicts = [_verdict(arena, one, json.loads(told[one.id])) for one in chosen]
        assert {*without} - {"landlock"} or not arena.heard, arena.heard
        return verdicts


def interpreted(profile: str, chosen: Sequence[Payload]) -> list[Verdict]:
    """Payloads in the monty backend."""
    with open_arena() as arena:
        told = perform(arena, chosen, [str(HERE / "interpreted.py")], [profile])
        verdicts = [_verdict(arena, one, json.loads(told[one.id])) for one in chosen]
        assert not arena.heard, arena.heard
        return verdicts


def _verdict(arena: Arena, payload: Payload, told: dict[str, str | bool | None]) -> Verdict:
    output = str(told["output"])
    fault = None if told["fault"] is None else str(told["fault"])
    won = tuple(arena.judge(payload, output))
    return Verdict(payload=payload, output=output, won=won, fault=fault, intact=bool(told["intact"]))


def perform(
    arena: Arena, chosen: Sequence[Payload], script: list[str], extra: list[str], python: str = sys.executable
) -> dict[str, str]:
    """Run a stage script with everything that a careless parent leaves lying about: environment, stdin, descriptors."""
    jobs = arena.folder / "jobs.json"
    jobs.write_text(json.dumps([[one.id, arena.fill(one)] for one in chosen]))
    readable = [os.open(path, os.O_RDONLY) for path in (arena.folder / "secret.txt", arena.folder)]
    left_open = [*readable, os.open(arena.inherited, os.O_RDWR)]
    path = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))
    with open(arena.folder / "stdin.txt", encoding="utf-8") as stdin:  # noqa: PTH123 # a descriptor is wanted
        done = subprocess.run(
            [python, *script, str(jobs), *extra],
            env={**arena.environment, "PYTHONPATH": path},
            stdin=stdin,
            capture_output=True,
            text=True,
            pass_fds=left_open,
            timeout=600 * SLOWNESS,
            check=False,
        )
    for descriptor in left_open:
        os.close(descriptor)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
