"""What a journey has: a person with a home and a working folder of their own, the installed command, and a model that plays replies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

SONDE = Path(sys.executable).parent / "sonde"
Shown = subprocess.CompletedProcess[str]

PLAYER = """\
#!/bin/sh
cd "$(dirname "$0")" || exit 1
turn=$(cat turn)
cat > "prompt.$turn"
echo $((turn + 1)) > turn
cat "reply.$turn"
"""


@dataclass(frozen=True, slots=True)
class PlayedModel:
    """A program that plays one reply per call and keeps what it was asked."""

    folder: Path

    @property
    def name(self) -> str:
        """What goes after --model."""
        return f"command:{self.folder / 'model'}"

    @property
    def prompts(self) -> list[str]:
        """What it was asked, call by call."""
        return [(self.folder / f"prompt.{turn}").read_text() for turn in range(self.calls)]

    @property
    def calls(self) -> int:
        """How often it was asked."""
        return int((self.folder / "turn").read_text())


@dataclass(slots=True)
class Person:
    """Somebody at a terminal. `folder` is where they work; `home` is theirs and empty."""

    home: Path
    folder: Path
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    seconds: float = 250
    """How long they wait for a command before they say that it hangs."""
    _models: int = 0

    def sonde(self, *words: str | Path, stdin: str | None = None) -> Shown:
        """Type one command and wait for its end; without `stdin` it reads /dev/null."""
        return self.run(SONDE, *words, stdin=stdin)

    def python(self, code: str) -> Shown:
        """Run a few lines of Python that use the library."""
        return self.run(sys.executable, "-c", code)

    def run(self, program: str | Path, *words: str | Path, stdin: str | None = None) -> Shown:
        """Run any program in the working folder."""
        return subprocess.run(
            [str(program), *map(str, words)],
            cwd=self.folder,
            env=self.environment(),
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            timeout=self.seconds,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """Nothing of the developer's settings and keys gets in."""
        mine = {"PATH": f"{SONDE.parent}:{os.environ['PATH']}", "HOME": str(self.home), "LANG": "C.UTF-8"}
        return {**mine, "TERM": "dumb", **self.environ}

    def write(self, name: str, text: str | bytes) -> Path:
        """A file in the working folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def model(self, *replies: str) -> PlayedModel:
        """A model that answers with these blocks of Python, one per turn."""
        self._models += 1
        folder = self.home / f".played-model-{self._models}"
        folder.mkdir()
        for turn, code in enumerate(replies):
            (folder / f"reply.{turn}").write_text(f"```python\n{code}\n```\n")
        (folder / "turn").write_text("0\n")
        (folder / "model").write_text(PLAYER)
        (folder / "model").chmod(0o755)
        return PlayedModel(folder)
