"""The folder of a batch: who works on it, what is finished, and where everything lies.

    BATCH/manifest.jsonl     the items as they were run        BATCH/results.jsonl   a line for each finished item
    BATCH/items/KEY/         the run folder of each item       BATCH/report.*        written at the end
    BATCH/issues.json        failures grouped                  BATCH/workers.log     what workers had to say
    BATCH/cache/             indexes of trace files, if the user has no home for them
    BATCH/attempts.jsonl     results that later ones have replaced: failed attempts, items of an earlier manifest

`results.jsonl` is a view that saves reading ten thousand journals; the journal judges what is not in it. Nothing here deletes.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sonde.batch.manifest import Item
from sonde.batch.result import ItemResult
from sonde.core.canonical import is_deep
from sonde.core.events import AnyEvent, RunEnded, RunStarted
from sonde.core.usage import NOTHING_USED, Usage, used_by
from sonde.disk import PRIVATE, lock, open_plain, read_at, sync
from sonde.errors import ConfigError, RunError
from sonde.runs.journal import JournalUnreadable
from sonde.runs.rundir import JOURNAL, NoSuchRun, RunDir, write_atomically

MANIFEST = "manifest.jsonl"
RESULTS = "results.jsonl"
ATTEMPTS = "attempts.jsonl"
MAX_LINE = 16 * 1024 * 1024
_decode = msgspec.json.Decoder(ItemResult)


class DiskFull(RunError):
    """The batch folder takes nothing more; what was written is sound."""


@dataclass(frozen=True, slots=True)
class BatchFolder:
    """Paths of one batch. Making the value touches nothing."""

    path: Path

    @property
    def items(self) -> Path:
        """Where the run folders are; `sonde runs --runs-dir` and `sonde view --runs-dir` show them."""
        return self.path / "items"

    @property
    def results(self) -> Path:
        return self.path / RESULTS

    def run_dir(self, item: Item, attempt: int = 1) -> RunDir:
        """The folder of an item's run; each retry of a failed one gets its own."""
        return RunDir(self.items / (item.key if attempt == 1 else f"{item.key}.{attempt}"))

    @contextmanager
    def held(self, command: str = "sonde batch") -> Generator[None]:
        """Created if missing, and held by this process alone."""
        try:
            self.items.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self.items.is_symlink():  # the folder may be a stranger's, and runs are written there
                raise ConfigError(f"{self.items} is a link, but `{command}` keeps its runs in its own folder")
            fd = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | PRIVATE, 0o600)
        except OSError as error:
            option = "--runs-dir DIR" if command == "sonde batch" else "--state DIR"
            raise ConfigError(
                f"the folder {self.path} of `{command}` cannot be made: {error.strerror}; choose another one with {option}"
            ) from None
        try:
            lock(fd)
        except BlockingIOError:
            os.close(fd)
            raise ConfigError(f"another `{command}` is at work in {self.path}; wait for it or stop it") from None
        try:
            yield
        finally:
            os.close(fd)

    def write_manifest(self, items: Iterable[Item]) -> None:
        """The items as they are run: `sonde batch BATCH/manifest.jsonl` continues from here."""
        write_atomically(self.path / MANIFEST, "".join(f"{item.line()}\n" for item in items).encode())

    def finished(self) -> dict[str, ItemResult]:
        """The last result of each item, by key."""
        return {result.key: result for result in self.all_results()}

    def all_results(self) -> list[ItemResult]:
        """Every result, replaced ones first; a torn last line counts as not written."""
        found: list[ItemResult] = []
        for path in (self.path / ATTEMPTS, self.results):
            try:
                with open_plain(path) as file:
                    for line in iter(lambda: file.readline(MAX_LINE), b""):  # called before the next turn
                        if len(line) == MAX_LINE:
                            raise ConfigError(f"{path} has a line that is too long for a result; move the file away")
                        with contextlib.suppress(msgspec.DecodeError, RecursionError):
                            result = _decode.decode(line)
                            # What is nested is written again, and may be a stranger's.
                            if not (result.value or result.citations) or not is_deep(line):
                                found.append(result)
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        return found

    def keep_latest(self, results: Sequence[ItemResult]) -> None:
        """One line per item in results.jsonl, these; the lines that they replace go to attempts.jsonl, where their cost still counts."""
        latest = {result.key: result for result in results}
        replaced = {msgspec.json.encode(each): None for each in self.all_results() if latest.get(each.key) != each}
        if replaced:
            write_atomically(self.path / ATTEMPTS, b"".join(line + b"\n" for line in replaced))
            lines = (msgspec.json.encode(each) for each in latest.values())
            write_atomically(self.results, b"".join(line + b"\n" for line in lines))

    def used(self, item: Item, attempt: int) -> Usage:
        """What an item's run has used by its journal; nothing if that is missing or unreadable."""
        with contextlib.suppress(NoSuchRun, JournalUnreadable):
            return sum(map(used_by, self.run_dir(item, attempt).read().events), NOTHING_USED)
        return NOTHING_USED

    def touched(self) -> set[str]:
        """The names of run folders that hold a journal."""
        with contextlib.suppress(FileNotFoundError), os.scandir(self.items) as entries:
            return {entry.name for entry in entries if os.path.exists(os.path.join(entry.path, JOURNAL))}  # noqa: PTH110, PTH118  # thousands
        return set()


class ResultLines:
    """results.jsonl, open for appending: a line is written whole or not at all."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | PRIVATE, 0o600)
        begins = max(0, os.fstat(self._fd).st_size - MAX_LINE)
        cut = read_at(self._fd, MAX_LINE, begins).rfind(b"\n") + 1
        if begins and not cut:
            os.close(self._fd)
            raise ConfigError(f"{path} does not end with a result; move it away to begin a new one")
        os.ftruncate(self._fd, begins + cut)  # what follows the last newline was torn
        os.lseek(self._fd, 0, os.SEEK_END)

    def append(self, result: ItemResult) -> None:
        """Add one line; `DiskFull` when it does not fit."""
        before = os.lseek(self._fd, 0, os.SEEK_CUR)
        rest = memoryview(msgspec.json.encode(result) + b"\n")
        try:
            while rest:
                rest = rest[os.write(self._fd, rest) :]
        except OSError as error:
            os.ftruncate(self._fd, before)
            os.lseek(self._fd, before, os.SEEK_SET)
            raise DiskFull(f"results.jsonl cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Sync and close."""
        with contextlib.suppress(OSError):
            sync(self._fd)
        os.close(self._fd)


def folder_for(manifest: Path, runs_dir: Path) -> BatchFolder:
    """The folder of a manifest: the one it lies in when that is a batch, else one named after it."""
    if manifest.name == MANIFEST and (manifest.parent / "items").is_dir():
        return BatchFolder(manifest.parent)
    digest = hashlib.sha256(os.fsencode(manifest.absolute())).hexdigest()[:8]
    return named_folder(f"{manifest.stem}-{digest}", runs_dir)


def named_folder(name: str, runs_dir: Path) -> BatchFolder:
    """The batch of this name in the runs folder."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")
    if not safe:
        raise ConfigError(f"{name!r} names no batch; use letters, digits, - and _")
    return BatchFolder((runs_dir / f"batch-{safe}").absolute())


def started_of(events: Sequence[AnyEvent]) -> RunStarted | None:
    """How a run began; None when it was cut off before."""
    return next((event for event in events if isinstance(event, RunStarted)), None)


def ended_of(events: Sequence[AnyEvent]) -> RunEnded | None:
    """How a run ended; None when it did not."""
    return next((event for event in reversed(events) if isinstance(event, RunEnded)), None)
