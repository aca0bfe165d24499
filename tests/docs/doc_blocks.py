"""The fenced blocks of a Markdown page, and what a comment before a block says about it.

    <!-- not run: needs a Phoenix server -->      the next block is shown only; the reason is counted and listed
    <!-- file: sonde.toml -->                     the next block is written to that file, not run
    <!-- exit: 1 -->                              the next shell block ends with this code

Languages that are run: `python` and `sh`. `toml`, `yaml` and `json` are parsed. `text` is no code. Nothing else is allowed, and neither
are indented blocks outside lists: nobody could tell whether they work.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LANGUAGES = ("python", "sh", "toml", "yaml", "json", "text")
_DIRECTIVE = re.compile(r"^<!-- (not run|file|exit): (.+) -->$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One fenced block: where, in which language, and what is said about it."""

    page: str
    line: int
    language: str
    code: str
    directives: dict[str, str]

    @property
    def where(self) -> str:
        """Page and line, as editors open them."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README and every page under docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """The blocks of a page in order."""
    found: list[Block] = []
    said: dict[str, str] = {}
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    for number, line in lines:
        if match := _DIRECTIVE.match(line):
            said[match[1]] = match[2]
        elif line.startswith("```"):
            code = "".join(f"{each}\n" for _, each in takewhile(lambda row: not row[1].startswith("```"), lines))
            name = str(page.relative_to(ROOT))
            found.append(Block(page=name, line=number, language=line[3:].strip(), code=code, directives=said))
            said = {}
        elif line.strip():
            said = {}
    return found


def indented(page: Path) -> list[int]:
    """Lines where an indented block begins outside fences and lists."""
    fenced, in_list, before, found = False, False, "", list[int]()
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            fenced = not fenced
        elif line.strip() and not line.startswith(" "):
            in_list = bool(re.match(r"([-*]|\d+\.) ", line))
        elif not fenced and not in_list and not before.strip() and line.startswith("    ") and line.strip():
            found.append(number)
        before = line
    return found
