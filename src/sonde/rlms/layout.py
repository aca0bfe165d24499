"""Where an invocation's files go, each written whole or not at all.

    <output>/                    result.json summary.md worker-stderr.log

The other files are the loop's. Only where no loop is around the worker (`standalone`) it writes them in the loop's place:

    <loop>/rlms/iter-N/<role>/   context-files.txt metadata.json status.json runs/
    <loop>/rlms/latest/          <role>.json <role>.md <role>.status.json
    <loop>/rlms/index.json       one entry for each iteration and role
    <loop>/events.jsonl          rlms_decision, rlms_start, rlms_end

An output folder that is not `iter-N/<role>` holds `latest/`, `index.json` and `events.jsonl` itself.

A repository may bring these folders with it. Nothing is written through a link that lies in it, nor into a pipe or a device: ConfigError.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from sonde.core.canonical import json_value
from sonde.core.markdown_safety import written_out
from sonde.disk import NotPlain, linked, lock, open_to_write, read_plain
from sonde.errors import ConfigError
from sonde.rlms.request import MAX_JSON_BYTES
from sonde.rlms.result import now, summary
from sonde.runs.rundir import pretty_json, write_atomically

RESULT, SUMMARY, STATUS, METADATA = "result.json", "summary.md", "status.json", "metadata.json"
CONTEXT_FILES, INDEX, LATEST, EVENTS = "context-files.txt", "index.json", "latest", "events.jsonl"
WORKER_STDERR = "worker-stderr.log"
_ITERATION = re.compile(r"iter-\d+")
_UNSAFE = re.compile(r"[^\w.-]+")

EventName = Literal["rlms_decision", "rlms_start", "rlms_end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What the trigger policy said, as status.json carries it."""

    should_run: bool = True
    reason: str = "force_on"
    mode: str = "requested"
    metrics: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Decided:
        """The decision that `sonde rlms decide` left in the metadata; without one, the call itself is the request."""
        found: Any = metadata.get("decision")
        if not isinstance(found, dict):
            return cls()
        said = cast("dict[str, Any]", found)
        metrics = said.get("metrics")
        return cls(
            should_run=said.get("should_run") is not False,
            reason=str(said.get("reason", cls().reason)),
            mode=str(said.get("mode", cls().mode)),
            metrics=cast("dict[str, Any]", metrics) if isinstance(metrics, dict) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The places of one role in one iteration."""

    output: Path
    repo: Path
    runs: Path | None = None
    """Where the journal goes, if it is kept."""
    loop_id: str = ""
    role: str = ""
    iteration: int | str = ""
    standalone: bool = True

    @property
    def root(self) -> Path:
        """Where `latest/` and index.json are."""
        return self.output.parent.parent if _ITERATION.fullmatch(self.output.parent.name) else self.output

    @property
    def events(self) -> Path:
        """The loop's stream of events."""
        return (self.root if self.root == self.output else self.root.parent) / EVENTS

    def make(self) -> None:
        """The folder itself; all others are looked at before anything is done."""
        try:
            for folder in (self.output, *([self.runs] if self.runs else [])):
                self._own(folder)
            if self.standalone:
                self._own(self.root / LATEST)
            self.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--output-dir {str(self.output)!r} cannot be made: {error.strerror}") from None

    def _own(self, place: Path) -> Path:
        """A place that may be written to; ConfigError if a link that lies in the repository is on the way."""
        if link := linked(self.repo, place):
            raise ConfigError(f"{link} is a link in the repository, and nothing is written through it: remove it")
        return place

    def _open(self, file: Path, *, append: bool = False) -> int:
        try:
            return open_to_write(self._own(file), append=append, mode=0o644)
        except NotPlain as error:
            raise ConfigError(f"{file} is not written: {error.strerror}") from None

    def open_log(self) -> BinaryIO:
        """worker-stderr.log, empty."""
        return os.fdopen(self._open(self.output / WORKER_STDERR), "wb")

    def clear(self) -> None:
        """Remove an earlier call's files, so that nobody takes them for this one's if it is killed before it can write."""
        for name in (RESULT, SUMMARY, *([STATUS] if self.standalone else [])):
            (self._own(self.output) / name).unlink(missing_ok=True)

    def keep_metadata(self, metadata: Mapping[str, Any]) -> None:
        """The metadata beside the result."""
        if self.standalone:
            write_atomically(self._own(self.output) / METADATA, pretty_json(dict(metadata)))

    def keep_list(self, listed: bytes) -> None:
        """The list beside the result."""
        if self.standalone:
            write_atomically(self._own(self.output) / CONTEXT_FILES, listed)

    def write_result(self, result: Mapping[str, Any], decided: Decided) -> None:
        """result.json and summary.md; status.json, latest/ and the index where they are ours to write."""
        stats = cast("Mapping[str, Any]", result.get("stats", {}))
        counted = {
            name: value for name, value in stats.items() if name.endswith("_count") or name == "estimated_tokens"
        }
        output = self._own(self.output)
        output.mkdir(parents=True, exist_ok=True)  # a program may have cleaned up the repository, this folder with it
        write_atomically(output / RESULT, pretty_json(dict(result)))
        write_atomically(output / SUMMARY, written_out(summary(result)).encode("utf-8", "backslashreplace"))
        if self.standalone:
            self.write_status(
                decided,
                status="ok" if result.get("ok") is True else "failed",
                error=cast("str | None", result.get("error_code")),
                metrics={**(decided.metrics or {}), **counted},
            )

    def write_status(
        self, decided: Decided, *, status: str, error: str | None = None, metrics: Mapping[str, Any] | None = None
    ) -> None:
        """status.json, then latest/ and the index."""
        skipped = status == "skipped"
        body = {
            "generated_at": now(),
            "status": status,
            "reason": decided.reason,
            "mode": decided.mode,
            "should_run": decided.should_run,
            "error": error,
            "result_file": None if skipped else str(self.output / RESULT),
            "summary_file": None if skipped else str(self.output / SUMMARY),
            "metadata_file": str(self.output / METADATA),
            "metrics": dict(metrics if metrics is not None else decided.metrics or {}),
        }
        write_atomically(self._own(self.output) / STATUS, pretty_json(body))
        name = _UNSAFE.sub("_", self.role) or "role"
        latest = self._own(self.root / LATEST)
        latest.mkdir(parents=True, exist_ok=True)
        copies = {RESULT: f"{name}.json", SUMMARY: f"{name}.md", STATUS: f"{name}.status.json"}
        for source, target in copies.items():
            if source == STATUS or not skipped:
                write_atomically(latest / target, (self.output / source).read_bytes())
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            lock(fd, wait=True)  # roles may run at the same time, and each rewrites the index
            entries = self._other_entries()
            entries.append({"loop_id": self.loop_id, "role": self.role, "iteration": self.iteration, **body})
            write_atomically(self.root / INDEX, pretty_json({"generated_at": now(), "entries": entries}))
        finally:
            os.close(fd)

    def _other_entries(self) -> list[Any]:
        """The index without the entry of this role and iteration; a damaged one starts anew, since it is only a view."""
        try:
            found: Any = json_value(read_plain(self.root / INDEX, MAX_JSON_BYTES))
        except (OSError, ValueError):
            return []
        entries: Any = cast("dict[str, Any]", found).get("entries") if isinstance(found, dict) else None
        others: list[Any] = []
        for entry in cast("list[Any]", entries) if isinstance(entries, list) else []:
            row = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
            if not row or (row.get("role"), row.get("iteration")) != (self.role, self.iteration):
                others.append(entry)
        return others

    def emit(self, name: EventName, status: str, data: Mapping[str, Any]) -> None:
        """One line in the loop's stream, if it is ours; written in one piece, so that several writers do not mix."""
        if not self.standalone:
            return
        line = {
            "timestamp": now(),
            "event": name,
            "loop_id": self.loop_id,
            "iteration": self.iteration,
            "role": self.role,
            "status": status,
            "data": dict(data),
        }
        self._own(self.events).parent.mkdir(parents=True, exist_ok=True)
        fd = self._open(self.events, append=True)
        try:
            os.write(fd, json.dumps(line).encode() + b"\n")
        finally:
            os.close(fd)
