"""A third stage: runs each payload in the monty backend, between two harmless turns.

Usage: python interpreted.py JOBS PROFILE (JOBS: JSON list of [id, code]). Prints one JSON object of JSON reports by id.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from confined import LIMITS, run

from sonde.sandbox import Args, open_box


def main(jobs_path: str, profile: str) -> None:
    jobs: list[tuple[str, str]] = json.loads(Path(jobs_path).read_text())
    box = open_box("monty", profile=profile, limits=LIMITS, host=_serve)
    box.execute("kept = 41")
    told = {name: json.dumps(run(code, box.branch())) for name, code in jobs}
    json.dump(told, sys.stdout)


def _serve(name: str, _: Args) -> str:
    return f"no function {name}"


if __name__ == "__main__":
    main(*sys.argv[1:])
