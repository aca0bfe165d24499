"""The payloads: one TOML file a family, each payload a small program that tries to get out.

`needs = "root"` marks those that are only live for root, `arch` those of one machine only, `kernel` the oldest kernel
that has what they try. In the code, @SYS_name@ is the number of a system call, and @WORDS@ stand for things that the arena has laid out: a
secret file, a marker to create, a listener's port, a victim's pid. `@NEKOT@` is a token written
backwards: a payload prints it forwards only when it has reached something that has no content of its own to show.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from system_calls import MACHINE, translated

FOLDER = Path(__file__).parent / "payloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    family: str
    name: str
    code: str
    needs: str = ""
    arch: str = ""
    kernel: str = ""

    @property
    def id(self) -> str:
        return f"{self.family}.{self.name}"


def payloads() -> list[Payload]:
    """Those that make sense on this machine."""
    found = [payload for path in sorted(FOLDER.glob("*.toml")) for payload in _family(path)]
    return [payload for payload in found if payload.arch in ("", MACHINE)]


def families() -> dict[str, str]:
    """Each family with what it tries."""
    return {path.stem: str(tomllib.loads(path.read_text())["why"]) for path in sorted(FOLDER.glob("*.toml"))}


def _family(path: Path) -> list[Payload]:
    table = tomllib.loads(path.read_text())["payload"]
    named = {name: {**fields, "code": translated(fields["code"])} for name, fields in table.items()}
    return [Payload(family=path.stem, name=name, **fields) for name, fields in named.items()]
