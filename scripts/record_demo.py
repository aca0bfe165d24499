"""Turn a finished run by a real model into a recording for the demo.

python scripts/record_demo.py RUN_FOLDER DATA_FOLDER NAME "Title"
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from sonde.bench.demo import record
from sonde.runs.rundir import RunDir, pretty_json

run, data, name, title = sys.argv[1:5]
found = record(RunDir(Path(run)), name, title, Path(data).absolute())
target = Path(__file__).parent.parent / "src" / "sonde" / "bench" / "recordings" / f"{name}.json"
target.parent.mkdir(exist_ok=True)
target.write_bytes(pretty_json(msgspec.to_builtins(found)))
print(f"{target}: {len(found.replies)} replies of {found.model}, {found.status}")
