"""The values behind a masked run's placeholders: one private file per run in the user's state folder, never in the run's own.

A line is on its way to the disk before its placeholder is used, so that a run that was killed goes on with the same ones. The file's name
is random and stands in the run's first event; whoever reads it must first know that the run is the user's own (its seal holds).
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from sonde.disk import PRIVATE, read_plain
from sonde.errors import ConfigError
from sonde.runs.journal import bounded

MAX_BYTES = 256 << 20
_ID = re.compile(r"[0-9a-f]{32}")


def new_id() -> str:
    """The name of a new file."""
    return secrets.token_hex(16)


class PlaceholderFile:
    """One run's pairs; made when the first one is written."""

    def __init__(self, folder: Path, name: str) -> None:
        if not _ID.fullmatch(name):
            raise ConfigError(f"{name[:40]!r} names no file of placeholders: the run was changed or damaged")
        self.path = folder / "masks" / f"{name}.jsonl"

    def write(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Add pairs, readable by the user alone."""
        lines = "".join(f"{json.dumps(pair)}\n" for pair in pairs)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | PRIVATE, 0o600)
        with os.fdopen(fd, "ab") as file:
            file.write(lines.encode("ascii"))

    def read(self) -> list[tuple[str, str]] | None:
        """What was written; None if there is no such file. A torn last line is left out: its placeholder was never used."""
        try:
            lines = read_plain(self.path, MAX_BYTES).splitlines()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be read: {error.strerror}") from None
        pairs: list[tuple[str, str]] = []
        for line in lines:
            with suppress(ValueError, RecursionError, msgspec.DecodeError):
                name, value = json.loads(bounded(line))
                pairs.append((str(name), str(value)))
        return pairs
