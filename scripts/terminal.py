"""The picture at the top of the README: a recorded investigation in a terminal, as an SVG whose lines appear one after the other.

    python scripts/terminal.py            writes docs/demo.svg

Plays `sonde demo outage --no-code` for real. Each turn shows only the first lines of its code and output, and the
answer only its first lines; nothing else is changed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path

SONDE = Path(sys.executable).parent / "sonde"
PICTURE = Path(__file__).parents[1] / "docs" / "demo.svg"
COLUMNS, LINE_PX, CHAR_PX, EDGE_PX = 104, 17, 7.8, 16
SECONDS_PER_LINE = 0.15
SHOWN = {"  | ": 2, "  > ": 1, "  root/": 4}
"""How many lines of code, output and sub-calls each turn shows."""
ANSWER_LINES = 9
COLOURS = {
    "$": "#e6edf3",
    "turn": "#7ee787",
    "  | ": "#79c0ff",
    "  > ": "#8b949e",
    "words of": "#8b949e",
    "  root/": "#d2a8ff",
}


def played() -> tuple[str, str]:
    """What the demo prints: answer, and progress."""
    with tempfile.TemporaryDirectory() as folder:
        command = [SONDE, "demo", "outage", "--no-code", "--folder", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def shown_lines(answer: str, progress: str) -> Iterator[str]:
    """The lines of the picture."""
    title, _question, words, *rest = answer.strip().splitlines()
    yield "$ sonde demo outage --no-code"
    yield title.removeprefix("== ")
    yield words.strip()
    left = dict(SHOWN)
    for line in progress.splitlines():
        if line.startswith("turn"):
            left = dict(SHOWN)
            yield line
        kind = next((each for each in SHOWN if line.startswith(each)), None)
        if kind is not None and left[kind] and line.strip() != "|" and " starts: " not in line:
            left[kind] -= 1
            yield line
    yield ""
    paragraphs = [line for line in rest if line.strip()]
    wrapped = [part for line in paragraphs[:-2] for part in textwrap.wrap(line, COLUMNS, subsequent_indent="  ")]
    yield from wrapped[:ANSWER_LINES]
    yield "…"
    yield paragraphs[-2].partition(";")[0]


def picture(lines: list[str]) -> str:
    """The SVG. Where nothing moves, all lines are there."""
    width, height = round(COLUMNS * CHAR_PX + 2 * EDGE_PX), len(lines) * LINE_PX + 2 * EDGE_PX
    rows: list[str] = []
    for number, line in enumerate(lines):
        cut = line if len(line) <= COLUMNS else line[: COLUMNS - 1] + "…"
        colour = next((value for start, value in COLOURS.items() if line.startswith(start)), "#e6edf3")
        at = f'y="{EDGE_PX + (number + 0.75) * LINE_PX:g}" fill="{colour}"'
        rows.append(
            f'<text x="{EDGE_PX}" {at} style="animation-delay:{number * SECONDS_PER_LINE:.1f}s">{escape(cut)}</text>'
        )
    style = (
        "text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre;animation:come .2s both}"
        "@keyframes come{from{opacity:0}to{opacity:1}}@media(prefers-reduced-motion){text{animation:none}}"
    )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    back = f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>'
    return "\n".join([head, f"<style>{style}</style>", back, *rows, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(list(shown_lines(*played()))))
    print(f"{PICTURE}: {PICTURE.stat().st_size:,} bytes")
