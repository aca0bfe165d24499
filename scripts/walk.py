"""The walk of one question: what a reader has to know to follow `sonde.ask` from the call to the answer.

    python scripts/walk.py

Runs a two-turn `ask` with a scripted model (one block of code, then FINAL) in the real sandbox, and prints

- the stack of our frames from `sonde.ask` to the first call of the model, both ends counted;
- every class of ours that is constructed, by layer, and whether that was before the first call of the model.

`scripts/shape.py` guards the frames (13 are the aim), and the classes of `sonde.api` and `sonde.runtime`, before the first call of the
model (14 are the aim) and in the whole walk: those two layers carry the question. The other layers (contexts, tools, models, sandbox,
runs, core) are parts with a door of their own; their classes are listed and not counted.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import sonde
from sonde.testing import ScriptedModel

PACKAGE = Path(sonde.__file__).parent
COUNTED = ("api", "runtime")
SETTINGS = sonde.Settings()


@dataclass(frozen=True)
class Walk:
    """What one question passed through. `classes` maps a class to whether it was constructed before the first model call."""

    frames: list[str]
    classes: dict[str, bool]

    @property
    def counted(self) -> list[str]:
        """The classes of the layers that carry the question."""
        return [name for name in self.classes if layer_of(name) in COUNTED]


class Watcher(ScriptedModel):
    """The scripted model; its first call looks at the stack that led to it."""

    frames: list[str] | None = None

    def complete(self, *args: Any, **options: Any) -> Any:
        if self.frames is None:
            self.frames = our_frames(sys._getframe(1))
        return super().complete(*args, **options)


def our_frames(frame: FrameType | None) -> list[str]:
    found: list[str] = ["the model"]
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            found.append(f"{path.relative_to(PACKAGE)} {frame.f_code.co_qualname}")
        frame = frame.f_back
    return found[::-1]


def layer_of(name: str) -> str:
    return name.split(".")[1]


def walk() -> Walk:
    """Ask twice: the first time loads the modules, the second is watched."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_text("The retries began at 09:14.\n")
        ask(folder, ScriptedModel(["FINAL('09:14')"]))
        model = Watcher(["print(read_file('a.txt'))", "FINAL('The retries began at 09:14 [a.txt:1-1].')"])
        classes: dict[str, bool] = {}

        def construct(frame: FrameType, event: str, _arg: object) -> None:
            if event != "call" or frame.f_code.co_name != "__init__":
                return
            made = type(frame.f_locals.get("self"))
            if made.__module__.partition(".")[0] == "sonde":
                classes.setdefault(f"{made.__module__}.{made.__qualname__}", model.frames is None)

        threading.setprofile(construct)
        sys.setprofile(construct)
        try:
            ask(folder, model, lambda event: classes.setdefault(name_of(event), model.frames is None))
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    assert model.frames is not None, "the model was not asked"
    return Walk(frames=model.frames, classes=classes)


def name_of(event: object) -> str:
    """Events are C structs without an `__init__` that could be seen."""
    return f"{type(event).__module__}.{type(event).__qualname__}"


def ask(folder: str, model: ScriptedModel, on_event: Any = None) -> None:
    sonde.ask(
        "When did the retries begin?",
        folder,
        model=model,
        runs_dir=Path(folder) / ".runs",
        settings=SETTINGS,
        on_event=on_event,
    )


def main() -> None:
    walked = walk()
    print(f"{len(walked.frames)} frames from sonde.ask to the first call of the model:")
    for frame in walked.frames:
        print(f"  {frame}")
    layers: defaultdict[str, list[str]] = defaultdict(list)
    for name, first in walked.classes.items():
        layers[layer_of(name)].append(name.rpartition(".")[2] + ("" if first else "*"))
    print(
        f"\n{len(walked.counted)} classes of {' and '.join(COUNTED)} in two turns (* after the first call of the model):"
    )
    for layer in COUNTED:
        print(f"  {layer}: {', '.join(layers.pop(layer, []))}")
    print(f"\n{sum(map(len, layers.values()))} classes of the layers below, not counted:")
    for layer, names in sorted(layers.items()):
        print(f"  {layer}: {', '.join(names)}")


if __name__ == "__main__":
    main()
