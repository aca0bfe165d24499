"""The folder of one run, and how runs are found.

`events.jsonl` is the truth and only grows; the other files are views of it, each written whole or not at all (temporary file, sync,
rename). A reader never sees half of one. Nothing here deletes a run; `catalog.prune` does.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
import os
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sonde.core.canonical import jsonable
from sonde.core.deadline import Clock
from sonde.core.events import AnyEvent, RunStarted
from sonde.core.markdown_safety import written_out
from sonde.core.record import RecordFold, RunRecord
from sonde.core.redaction import rewrite_value, without_surrogates
from sonde.disk import NotPlain, below, open_plain, read_plain
from sonde.errors import ConfigError
from sonde.runs.journal import (
    MAX_LINE,
    MAX_RECORD,
    Journal,
    JournalContents,
    JournalUnreadable,
    bounded,
    is_being_written,
    read_journal,
    refuse_newer,
)

JOURNAL = "events.jsonl"
RECORD = "run_record.json"
RESULT = "result.json"
SUMMARY = "summary.md"
ANSWER = "answer.md"
REPORT = "report.md"
SEAL = "seal"
TRACE = "trace.json"
"""What a run over a server keeps of it for the page, which asks no server."""
ARTIFACTS = Path("artifacts/investigator_runs")
"""Where investigations leave their runs, below the working folder."""
CLOCK_SLACK_S = 60.0
Places = str | Path | Sequence[str | Path]
"""One folder of runs, or several; the first ones win."""
_TIMED_ID = re.compile(r"\d{8}-\d{6}-[0-9a-f]{9}")


class NoSuchRun(ConfigError):
    """No run has this name, or the folder is not a run folder."""


@dataclass(frozen=True, slots=True)
class RunDir:
    """One run's folder. Making the value touches nothing; `create` makes the folder."""

    path: Path

    @classmethod
    def create(cls, runs_dir: str | Path, run_id: str) -> RunDir:
        """A new folder for a new run; an existing one is refused rather than mixed up."""
        path = Path(runs_dir) / run_id
        try:
            path.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            raise ConfigError(f"{path} exists already; choose another run id, or resume that run") from None
        except OSError as error:
            raise ConfigError(f"the run folder {path} cannot be made: {error.strerror}; choose --runs-dir") from None
        return cls(path)

    @property
    def run_id(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def journal_path(self) -> Path:
        """Where the events are."""
        return self.path / JOURNAL

    def journal(self, secrets: Sequence[str] = (), most: int | None = None) -> Journal:
        """The journal, open for writing; it takes up to `most` bytes."""
        return Journal(self.journal_path, secrets, most)

    def read(self) -> JournalContents:
        """What the journal holds; raises `NoSuchRun` without one."""
        if not self.journal_path.is_file():
            raise NoSuchRun(f"{self.path} is not a run folder: it has no {JOURNAL}")
        return read_journal(self.journal_path)

    def events(self) -> list[AnyEvent]:
        """The events; raises `JournalUnreadable` when the journal was changed after it was written."""
        held = self.read()
        if held.tampered_line is not None:
            raise JournalUnreadable(
                f"line {held.tampered_line} of {self.journal_path} does not fit its checksum: it was changed after it "
                "was written"
            )
        return held.events

    def is_running(self) -> bool:
        """True while a process works on this run."""
        return is_being_written(self.journal_path)

    def seal(self, key: bytes) -> None:
        """Mark the run as made by the owner of this key: the mark covers its first event, which says what the run reads."""
        # Without a seal a run is a stranger's to later commands, and no worse.
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            self._write(SEAL, self._mark(key).encode() + b"\n")

    def is_sealed(self, key: bytes) -> bool:
        """Whether `seal` was called with this key, and how the run began is what it was then."""
        try:
            return hmac.compare_digest(read_plain(self.path / SEAL, 100).strip(), self._mark(key).encode())
        except (OSError, msgspec.MsgspecError, RecursionError):
            return False

    def _mark(self, key: bytes) -> str:
        with open_plain(self.journal_path) as file:
            line = file.readline(MAX_LINE)
        msgspec.json.decode(bounded(line), type=RunStarted)  # anything else in its place says nothing about the run
        return hmac.new(key, line, hashlib.sha256).hexdigest()

    def settings(self) -> dict[str, Any]:
        """What its first event says of how it was started; nothing if that cannot be read."""
        try:
            with open_plain(self.journal_path) as file:
                return msgspec.json.decode(bounded(file.readline(MAX_LINE)), type=RunStarted).settings
        except (OSError, msgspec.MsgspecError, RecursionError):
            return {}

    def mask(self) -> dict[str, Any] | None:
        """What a masked run says about its placeholders; None if people's data is not behind any here."""
        return self.settings().get("mask")

    def record(self) -> RunRecord:
        """The record as written, or folded from the journal when the run did not get that far."""
        path = self.path / RECORD
        if not path.is_file() and not path.is_symlink():
            return fold(self.read().events)
        try:
            with open_plain(path) as file:
                data = msgspec.json.decode(bounded(file.read(MAX_RECORD)), type=dict[str, Any])
            refuse_newer(str(data.get("schema_version", "0")), path)
            return RunRecord.model_validate(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise JournalUnreadable(f"{path} is not a run record: {error}") from None
        except OSError as error:
            raise JournalUnreadable(f"{path} cannot be read: {error.strerror}") from None

    def result(self) -> dict[str, Any] | None:
        """result.json as written; None if there is none."""
        text = self.text(RESULT)
        try:
            return None if text is None else msgspec.json.decode(bounded(text.encode()), type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError) as error:
            raise JournalUnreadable(f"{self.path / RESULT} is not the result of a run: {error}") from None

    def text(self, name: str) -> str | None:
        """A page of the run such as summary.md; None if there is none, it is too large, or a link or device is in its place."""
        try:
            return read_plain(self.path / name, MAX_RECORD).decode("utf-8", "replace")
        except OSError:
            return None

    def write_record(self, record: RunRecord) -> Path:
        """run_record.json."""
        return self._write(RECORD, pretty_json(record.model_dump(mode="json")))

    def write_result(self, value: Any) -> Path:
        """result.json."""
        return self._write(RESULT, pretty_json(value))

    def write_text(self, name: str, text: str) -> Path:
        """A page of the run, such as answer.md."""
        shown = written_out(text) if name.endswith(".md") else text
        return self._write(name, shown.encode("utf-8", "backslashreplace"))

    def _write(self, name: str, content: bytes) -> Path:
        path = self.path / name
        write_atomically(path, content)
        return path


def fold(events: Sequence[AnyEvent]) -> RunRecord:
    """The record of these events; `NoSuchRun` when not even the first one is there. Events that nobody can have lived through together
    (an unknown status, a type of run that there is not) are `JournalUnreadable`.
    """
    folded = RecordFold()
    try:
        for event in events:
            folded.add(event)
        if folded.started:
            return folded.record()
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise JournalUnreadable(f"the journal does not tell of a run: it was changed or damaged ({reason})") from None
    raise NoSuchRun("the journal holds no run: it was cut off before its first event")


def pretty_json(value: Any) -> bytes:
    """Sorted keys, two spaces, a newline at the end: as every file of a run is written."""
    try:
        text = msgspec.json.encode(value, order="sorted")
    except (TypeError, ValueError):  # not JSON-like after all, or a lone surrogate: written as well as possible
        text = msgspec.json.encode(rewrite_value(jsonable(value), without_surrogates), order="sorted")
    return msgspec.json.format(text, indent=2) + b"\n"


def write_atomically(path: Path, content: bytes | bytearray) -> None:
    """All of it or none: written beside, synced, renamed over."""
    fd, beside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(beside).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(beside).unlink()
        raise
    if not hasattr(os, "O_DIRECTORY"):  # Windows opens no folder
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)  # the rename itself
    finally:
        os.close(folder)


def new_run_id(clock: Clock) -> str:
    """An id that sorts by time and that no other run has: 20260131-235959-0f2e3d4c1."""
    now = clock.utc()
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond:05x}{os.urandom(2).hex()}"


def ignored_by_git(folder: Path) -> Path:
    """The folder, made if need be, with a .gitignore that keeps all of it out of `git status`; one that is there stays.

    Where nothing can be written, nothing is said: whoever writes there next says it better.
    """
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() == folder.absolute():  # a link leads to where it is not ours to hide anything
            with (folder / ".gitignore").open("x") as file:
                file.write("*\n")
    return folder


def linked_artifacts(root: Path = Path()) -> Path | None:
    """The link in place of a project's default folder of runs, if there is one: a repository may have brought it, to lead elsewhere."""
    return next((each for each in (root / ARTIFACTS.parent, root / ARTIFACTS) if each.is_symlink()), None)


def artifacts_folder(flag: str = "--runs-dir", *, named: bool = False) -> Path:
    """The default folder of runs, made if need be; ConfigError if it is a link, unless the user named it."""
    link = None if named else linked_artifacts()
    if link is not None:
        raise ConfigError(
            f"{link} is a link to {link.readlink()}, and nothing is written through it unless you say so: "
            f"{flag} names another place"
        )
    return ignored_by_git(ARTIFACTS)


def places_of(places: Places) -> list[Path]:
    """The folders of runs, each once."""
    return list(dict.fromkeys(map(Path, [places] if isinstance(places, str | Path) else places)))


def find_run(
    places: Places,
    id_or_path: str | Path,
    *,
    ids_only: bool = False,
    own: Callable[[RunDir], bool] = lambda _: False,
) -> RunDir:
    """The run of this id, of this unique beginning of an id, `last`, or in this folder (not with `ids_only`).

    `last` is the newest of those that are the user's `own`, or of all where none is. A folder of the working folder may be a stranger's: it
    is meant only by a name with a slash, or if no run has this name.
    """
    name, as_path = str(id_or_path), Path(id_or_path)
    if not name.strip():
        raise NoSuchRun("the run's name is empty; give an id, its beginning, `last`, or a folder")
    is_run = not ids_only and name != "last" and (as_path / JOURNAL).is_file()
    if is_run and os.sep in name:
        return RunDir(as_path)
    if not ids_only and os.sep in name and as_path.is_dir():
        raise NoSuchRun(f"{as_path} is not a run folder: it has no {JOURNAL}")
    runs: dict[str, Path] = {}
    for place in places_of(places):
        runs = {run_id: place / run_id for run_id in run_ids(place)} | runs
    where = " or ".join(map(str, places_of(places)))
    if not runs and not is_run:
        raise NoSuchRun(f"there are no runs in {where}; `sonde ask` makes one, --runs-dir names another place")
    fitting = [name] if name in runs else [run_id for run_id in runs if run_id.startswith(name)]
    if name == "last":
        newest = _by_start(runs)
        fitting = [next((run_id for run_id in newest if own(RunDir(runs[run_id]))), newest[0])]
    if not fitting and is_run:
        return RunDir(as_path)
    if len(fitting) > 1:
        raise NoSuchRun(f"{name!r} begins {len(fitting)} run ids: {', '.join(sorted(fitting)[:5])}; give more of it")
    if not fitting:
        raise NoSuchRun(
            f"there is no run {name!r} in {where}; the newest is {_by_start(runs)[0]}, also called `last` "
            "(`sonde runs` lists them)"
        )
    return RunDir(runs[fitting[0]])


class _Started(msgspec.Struct):
    at: float = 0.0


def _by_start(runs: Mapping[str, Path]) -> list[str]:
    """The runs, those that started last first. Ids say when, except those of a batch, which are named after its items.

    A run that says it started after its journal was written, or later than now, lies, as an import may: it counts as the oldest.
    """
    now = time.time()

    def started(run_id: str) -> tuple[float, str]:
        try:
            with open_plain(runs[run_id] / JOURNAL) as file:
                if _TIMED_ID.fullmatch(run_id):
                    at = dt.datetime.strptime(f"{run_id[:15]}+0000", "%Y%m%d-%H%M%S%z").timestamp()
                else:
                    at = msgspec.json.decode(bounded(file.readline(MAX_LINE)), type=_Started).at
                written = os.fstat(file.fileno()).st_mtime
        except (OSError, ValueError, RecursionError):  # ValueError: no such day, or no JSON
            return 0.0, run_id
        return at if at < min(written, now) + CLOCK_SLACK_S else 0.0, run_id

    return sorted(runs, key=started, reverse=True)


def run_ids(runs_dir: str | Path) -> list[str]:
    """The ids of all runs in a folder, sorted; ids of `new_run_id` are then in order of time. Links that lead out of it are no runs."""
    try:
        found = [entry for entry in os.scandir(runs_dir) if not entry.name.startswith(".")]
        entries, links = ([each.name for each in found if each.is_symlink() is link] for link in (False, True))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise NoSuchRun(
            f"{runs_dir} cannot be listed: {error.strerror}; --runs-dir names the folder of the runs"
        ) from error
    root = os.fspath(runs_dir)
    for link in links:
        with contextlib.suppress(NotPlain):  # it leads out of the folder
            below(root, Path(root, link))
            entries.append(link)
    return sorted(name for name in entries if os.path.isfile(os.path.join(root, name, JOURNAL)))  # noqa: PTH113, PTH118  # thousands of runs
