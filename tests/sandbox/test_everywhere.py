"""The same sandbox for an ordinary user, and under every Python on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from watching import kind, run

from sonde.sandbox import ForkServer, Sandbox
from sonde.sandbox.policy import PROFILES

pytestmark = pytest.mark.long


HERE = Path(__file__).parent
PROVED_FOR_USERS = (
    *("test_boundary.py", "test_checkpoint_attacks.py", "test_states.py", "test_parsers.py"),
    *("../contexts/test_files_archives.py", "../contexts/test_code.py", "../contexts/traces/test_trace_odd_tables.py"),
)
PYTHONS = sorted(Path.home().glob(".pyenv/versions/3.1[1-9].*/bin/python")) or [Path(sys.executable)]
AS_USER = f"""
import sys
sys.path.insert(0, {str(HERE.parent / "escapes")!r})
from ordinary import become_ordinary, free_uid
less = ["-p", "no:cacheprovider", "-p", "no:inline_snapshot"]
become_ordinary(free_uid(), [sys.executable, "-m", "pytest", "-q", "-x", *less, *sys.argv[1:]])
"""


@pytest.mark.hostile_long
@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="the suite runs as an ordinary user already")
def test_the_boundary_holds_for_an_ordinary_user_too(tmp_path: Path) -> None:
    tests = [str(HERE / name) for name in PROVED_FOR_USERS]
    done = subprocess.run(
        [sys.executable, "-c", AS_USER, *tests],
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        check=False,
        timeout=590,
    )

    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_the_worker_runs_on_every_python_here(python: Path) -> None:
    server = ForkServer(PROFILES["open"].preload, python=str(python))
    with Sandbox("open", server=server, host=lambda name, args: list(args)) as box:
        box.share("context", "déjà vu\n" * 1000)

        assert run(box, "import sys\nprint(context.count('é'), ask(1, b'2'))") == "1000 [1, b'2']\n"
        assert kind(box.execute("x = 1\nwhile True: pass", wall_s=0.3)) == "timeout"
        assert kind(box.execute("import os\nos.fork()")) == "violation"
        assert kind(box.execute("import threading\nthreading.Thread(target=print).start()")) == "violation"
        assert kind(box.execute("open('/etc/passwd')")) == "error"
        assert kind(box.execute("def f(): return f()\nf()")) == "error"
        assert kind(box.execute("x = [0] * 10**10")) == "memory"
        assert box.execute("import json, statistics, decimal\nFINAL(json.dumps([1]))").final is not None
        assert run(box, "import re, datetime, dataclasses, hashlib\nprint(sys.version_info[:2])").startswith("(3, ")
    server.close()


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: path.parts[-3])
def test_the_general_modules_are_there_on_every_python_here(python: Path) -> None:
    rules = PROFILES["general"]
    server = ForkServer(rules.preload, held=rules.held, python=str(python))
    with Sandbox("general", server=server) as box:
        wanted = sorted((rules.modules or frozenset()) | rules.held)

        assert {name: told.message for name in wanted if (told := box.execute(f"import {name}").fault)} == {}
    server.close()
