"""The golden runs: twelve recorded run folders and the data they were recorded over, and what each command makes of them.

In git every path of a recording is below `/golden`, which exists nowhere. A copy gets the real place instead, and its journal
new checksums, because they cover the paths too. `scripts/record_golden.py` made the folders and, with --expect, the JSON file beside
each of them that says what `VIEWS` give for it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from golden_words import MODEL, WORDS

from sonde.cli.main import main
from sonde.testing import ScriptedServer

KEPT = Path(__file__).parents[1] / "data" / "runs"
PLACEHOLDER = "/golden"
JOURNAL, RECORD, SUMMARY = "events.jsonl", "run_record.json", "summary.md"
NAMES = (
    "ask",
    "actions",
    "subcalls",
    "edit",
    "rca",
    "compliance",
    "incident",
    "interrupted",
    "follow-up",
    "batch-item",
    "rlms",
    "limit",
)
SECRET = "not-a-real-key-4711"
"""Stands in gateway.log, which three of the runs have read."""


def moved(source: Path, target: Path, old: str, new: str) -> None:
    """Copy a run folder; where it names `old`, the copy names `new`."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        text = path.read_bytes().replace(old.encode(), new.encode())
        (target / path.name).write_bytes(rechained(text) if path.name == JOURNAL else text)


def rechained(journal: bytes) -> bytes:
    """The journal with sums that fit: 16 digits of sha256(sum of the line before + the line without its own sum)."""
    lines: list[bytes] = []
    sum_before = ""
    for line in journal.splitlines():
        body = line[: -len(',"sum":"0123456789abcdef"}')]
        sum_before = hashlib.sha256(sum_before.encode() + body).hexdigest()[:16]
        lines.append(body + b',"sum":"' + sum_before.encode() + b'"}\n')
    return b"".join(lines)


@dataclass(frozen=True, slots=True)
class Said:
    """How a command ended, and what it printed."""

    code: int
    out: str

    @property
    def json(self) -> dict[str, Any]:
        return json.loads(self.out)


@dataclass(frozen=True, slots=True)
class Scene:
    """A folder with copies of all golden runs (`runs`) and of their data (`material`), in which commands are run."""

    place: Path

    @property
    def runs(self) -> Path:
        return self.place / "runs"

    def sonde(self, *words: str | Path) -> Said:
        """One command in this process."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            try:
                code = main([*map(str, words), "--runs-dir", str(self.runs)])
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Said(code, out.getvalue().replace(str(self.place), PLACEHOLDER))

    def asking(self, server: ScriptedServer, *words: str | Path) -> Said:
        """One command whose model is a scripted server."""
        return self.sonde(*words, "--model", MODEL, "--base-url", server.base_url, "--json")


@contextlib.contextmanager
def set_out(place: Path) -> Generator[Scene]:
    """Lay out the scene in a folder; meanwhile that is the working folder, the home beside it, and nothing else is in the environment."""
    shutil.copytree(KEPT / "material", place / "material")
    for name in NAMES:
        moved(KEPT / name, place / "runs" / name, PLACEHOLDER, str(place))
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({"PATH": before["PATH"], "HOME": f"{place}-home", "TERM": "dumb", "OPENAI_API_KEY": "scripted"})
    try:
        with contextlib.chdir(place):
            yield Scene(place)
    finally:
        os.environ.clear()
        os.environ.update(before)


def expected(name: str) -> dict[str, Any]:
    """What the views of a run gave when `--expect` was last called."""
    return json.loads((KEPT / f"{name}.json").read_text())


def shown(scene: Scene, name: str) -> Any:
    """The record as `runs show` prints it."""
    return scene.sonde("runs", "show", name, "--json").json


def folded(scene: Scene, name: str) -> Any:
    """The record as the journal alone gives it."""
    (scene.runs / name / RECORD).unlink(missing_ok=True)
    return shown(scene, name)


def replayed(scene: Scene, name: str) -> Any:
    """What `replay` proves."""
    said = scene.sonde("replay", name, "--json")
    return {"exit": said.code, **{key: said.json.get(key) for key in ("equal", "replies", "host_calls", "status")}}


def resumed(scene: Scene, name: str) -> Any:
    """What `resume` makes of a run whose last files are missing, and what it asks the model for."""
    for file in (RECORD, SUMMARY):
        (scene.runs / name / file).unlink(missing_ok=True)
    return _asked(scene, name, "resume", name)


def branched(scene: Scene, name: str) -> Any:
    """What comes of a branch from turn 2 with a model that says the same, beside the recording."""
    found = _asked(scene, name, "branch", name, "--turn", "2")
    made = [path.name for path in scene.runs.iterdir() if path.name not in NAMES]
    if not made:
        return found
    difference = scene.sonde("diff", name, made[0], "--json").json
    return {**found, **{key: difference[key] for key in ("same_answer", "tools", "citations")}}


def _asked(scene: Scene, name: str, *words: str) -> Any:
    with ScriptedServer(WORDS.get(name, "nobody asks for this")) as server:
        said = scene.asking(server, *words)
    prompts = sorted(seen.prompt().partition("\n")[0] for seen in server.requests)  # children ask in any order
    return {"exit": said.code, "status": said.json.get("status"), "answer": said.json.get("answer"), "prompts": prompts}


def exported(scene: Scene, name: str) -> Any:
    """What is in the file that `export` writes."""
    target = scene.place / f"{name}.tar.gz"
    scene.sonde("export", name, "-o", target)
    with tarfile.open(target) as archive:
        return sorted(archive.getnames())


VIEWS: dict[str, Callable[[Scene, str], Any]] = {
    "record": folded,
    "replay": replayed,
    "resume": resumed,
    "branch": branched,
    "export": exported,
}


def expect(name: str, place: Path) -> None:
    """Write down what the views give now, each in a fresh scene below `place`."""
    found: dict[str, Any] = {}
    for view, look in VIEWS.items():
        with set_out(place / name / view) as scene:
            found[view] = look(scene, name)
    (KEPT / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
