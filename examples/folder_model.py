"""A model made of a folder: prompts go in as files, somebody (a person, an editor, an agent) writes the answers.

    sonde ask "QUESTION" PATH --model "command:python3 examples/folder_model.py DIR"

Each call writes DIR/NNNN.prompt.md and waits for DIR/NNNN.answer.md, which it prints. Both appear at once or not at all
if they are written beside and renamed; an answer must not be empty. Parallel calls take different numbers. Set
`count_wait = false` for the command, so that waiting is not counted as the run's time.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path


def claim(folder: Path, prompt: str) -> Path:
    """Write the prompt under the next free number. A hard link fails if the name exists, so no two callers share one."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / f".{os.getpid()}.prompt"
    beside.write_text(prompt, encoding="utf-8")
    number = 1 + max((int(path.name[:4]) for path in folder.glob("[0-9][0-9][0-9][0-9].prompt.md")), default=0)
    while True:
        try:
            os.link(beside, folder / f"{number:04}.prompt.md")
        except FileExistsError:
            number += 1
            continue
        beside.unlink()
        return folder / f"{number:04}.prompt.md"


def wait_for_answer(prompt: Path, poll_s: float) -> str:
    """Looks again and again: a notification service would need another package."""
    answer = prompt.with_name(prompt.name.replace(".prompt.", ".answer."))
    while True:
        try:
            if text := answer.read_text(encoding="utf-8"):
                return text
        except FileNotFoundError:
            pass
        time.sleep(poll_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--poll", type=float, default=0.2, help="seconds between two looks")
    chosen = parser.parse_args()
    prompt = claim(chosen.folder, sys.stdin.read())
    print(f"waiting for the answer to {prompt}", file=sys.stderr)
    sys.stdout.write(wait_for_answer(prompt, chosen.poll))


if __name__ == "__main__":
    main()
