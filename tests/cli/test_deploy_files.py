"""The unit and the container file start `sonde watch` with flags that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cli.cli_program import sonde

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


def test_the_service_and_the_container_use_flags_that_exist(tmp_path: Path) -> None:
    unit = (DEPLOY / "sonde-watch.service").read_text()
    container = (DEPLOY / "Containerfile.watch").read_text()
    (started,) = re.findall(r"^ExecStart=\S+/sonde watch (.*)$", unit, re.MULTILINE)
    given = json.loads(re.findall(r"^CMD (\[.*\])$", container, re.MULTILINE)[-1])
    known = sonde("watch", "--help", cwd=tmp_path).stdout

    for word in [*started.split(), *given]:
        assert not word.startswith("--") or re.search(rf"^\s+{word}\s", known, re.MULTILINE), word
    for name in set(re.findall(r"SONDE_[A-Z_]+", unit + container)) - {"SONDE_MODEL"}:
        assert name in known
