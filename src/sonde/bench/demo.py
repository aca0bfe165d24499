"""The demo: recorded investigations by a capable model, played again with everything but the model's words live.

A recording holds the replies of a real run (made through `sonde` itself, the model's name in it) and how the run
began; nothing else. Playing it makes the data anew from its seed, runs the code in the real sandbox, calls the real
tools, proves the citations again and leaves a run folder to look at. A recording that no longer leads to the same end
is a failed test.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

import msgspec

from sonde.api.consent import ANYWHERE
from sonde.api.launch import launch
from sonde.api.recorded_spec import rebuilt
from sonde.api.result import Result
from sonde.api.settings import Settings
from sonde.bench.log import write_log
from sonde.bench.seeded import generate
from sonde.contexts.workspace import LocalWorkspace, WorkspaceContext, accept
from sonde.core.cancellation import Stop
from sonde.core.events import AnyEvent, ModelReplied, RunStarted
from sonde.errors import ConfigError
from sonde.models.base import Price, RecordedModel
from sonde.runs.recording import Recording
from sonde.runs.rundir import RunDir
from sonde.runtime.run import OnEvent

DATA = "{data}"
RECORDINGS = resources.files("sonde.bench") / "recordings"
WORKSPACE = {
    "sample.ts": """\
/** Cuts a text to at most `limit` characters and marks the cut. */
export function shorten(text: string, limit: number): string {
  if (text.length <= limit) {
    return text;
  }
  return `${text.slice(0, limit - 1)}…`;
}
""",
    "sample.test.ts": """\
import { describe, expect, it } from "vitest";
import { shorten } from "./sample";

describe("shorten", () => {
  it("marks the cut", () => {
    expect(shorten("abcdef", 4)).toBe("abc…");
  });
});
""",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoScript:
    """What a real model said in a real run, and how that run began."""

    name: str
    title: str
    model: str
    recorded: str
    started: Mapping[str, Any]
    replies: Sequence[Mapping[str, Any]]
    status: str
    answer: str


def names() -> list[str]:
    """The recordings that are shipped."""
    return sorted(file.name.removesuffix(".json") for file in RECORDINGS.iterdir() if file.name.endswith(".json"))


def load(name: str) -> DemoScript:
    """A shipped recording."""
    file = RECORDINGS / f"{name}.json"
    if not file.is_file():
        raise ConfigError(f"no recording is called {name!r}; choose from {', '.join(names())}")
    return msgspec.json.decode(file.read_bytes(), type=DemoScript)


def prepare(family: str, folder: Path) -> Path:
    """Make the data of a family of demos below a folder, the same on every machine. The path is absolute: the run records it, and
    its citations are read again there from whatever working folder.
    """
    place = folder.absolute() / family
    place.mkdir(parents=True, exist_ok=True)
    match family:
        case "ask":
            if not (place / "shop.log").exists():
                write_log(place / "shop.log")
        case "rca":
            spans = generate(40, seed=11).spans
            (place / "traces.jsonl").write_text("".join(f"{json.dumps(span)}\n" for span in spans), "utf-8")
        case "edit":
            shutil.rmtree(place)
            place.mkdir()
            for name, text in WORKSPACE.items():
                (place / name).write_text(text)
        case _:
            raise ConfigError(f"no data for {family!r}")
    return place


def play(
    recording: DemoScript,
    folder: Path,
    *,
    settings: Settings,
    on_event: OnEvent | None = None,
    cancel: Stop | None = None,
) -> Result:
    """Run a recording again below a folder: data in `data/`, the run in `runs/`."""
    started = began(recording, prepare(str(recording.started["run_type"]), folder / "data"))
    free = Price(input=0.0, output=0.0, source="free: it is a recording")
    silent = RecordedModel(f"{recording.model} (recorded)", [], price=free)
    replies: list[AnyEvent] = [
        ModelReplied(**reply, request_hash="", model=recording.model, estimated=True, cost_usd=0.0)
        for reply in recording.replies
    ]
    words = Recording(replies, words_only=True)
    with rebuilt(started, settings, within=ANYWHERE) as built:
        context = built.context
        if recording.started["run_type"] == "edit":
            context = WorkspaceContext(LocalWorkspace(Path(started.settings["workspace"]), approve=accept))
        spec = replace(
            built,
            context=context,
            model=silent,
            sub_model=None,
            runs_dir=folder / "runs",
            on_event=on_event,
            cancel=cancel or Stop(),
            recording=words,
        )
        return launch(spec, settings)


def without_model(recording: DemoScript, folder: Path, *, settings: Settings, cancel: Stop | None = None) -> Result:
    """The same run with no model: what rules and search alone can say, marked CODE."""
    started = began(recording, prepare(str(recording.started["run_type"]), folder / "data"))
    with rebuilt(started, settings, within=ANYWHERE) as spec:
        alone = replace(spec, model=None, sub_model=None, runs_dir=folder / "runs", cancel=cancel or Stop())
        return launch(alone, settings)


def began(recording: DemoScript, place: Path) -> RunStarted:
    """The first event of the recorded run, with its data where it is now."""
    text = json.dumps(dict(recording.started)).replace(DATA, json.dumps(str(place))[1:-1])
    return msgspec.json.decode(text, type=RunStarted)


def record(run: RunDir, name: str, title: str, data: Path) -> DemoScript:
    """A recording of a finished run whose data lay in `data`."""
    events = run.events()
    started = next(event for event in events if isinstance(event, RunStarted))
    text = msgspec.json.encode(started).decode().replace(json.dumps(str(data))[1:-1], DATA)
    written = run.record()
    output = cast("dict[str, Any]", written.state.artifacts.final_output or {})
    kept = ("session", "turn", "ordinal", "text", "tokens_in", "tokens_out")
    replies = [event for event in events if isinstance(event, ModelReplied)]
    return DemoScript(
        name=name,
        title=title,
        model=started.model or "none",
        recorded=written.started_at[:10],
        started=json.loads(text),
        replies=[{field: getattr(reply, field) for field in kept} for reply in replies],
        status=written.status.value,
        answer=str(output.get("answer") or output.get("summary") or ""),
    )
