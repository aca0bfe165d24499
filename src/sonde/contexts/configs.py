"""Config snapshots and their differences: folders `configs/snapshots/<tag>/` with a metadata.json beside the files.

A difference is cited by the hash of its unified diff. Files are compared as text; binary ones and those over 1 MB are compared by
hash, and beyond 1 GB in all by size and time. Symbolic links are not followed, and files whose names say that they hold secrets are left
out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from sonde.core.canonical import clip, plural, sha256_text
from sonde.core.deadline import rfc3339
from sonde.core.difference import Effort, TooRepetitive, best_hunks
from sonde.core.evidence import EvidenceKind, Excerpt, Observed
from sonde.disk import open_below, secret_reason
from sonde.errors import ConfigError, ToolFault

if TYPE_CHECKING:
    from sonde.core.mask import Mask

METADATA = "metadata.json"
MAX_TEXT_BYTES = 1_000_000
MAX_HASHED_BYTES = 1 << 30  # of large files in one comparison; a hole of terabytes takes no room on a disk
MAX_SHOWN_CHARS = 60_000
MAX_COMPARED = 4_000_000  # lines of one file times lines of the other
_DEPENDENCIES = ("requirements", "pyproject", "poetry.lock")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One state of the configuration."""

    snapshot_id: str
    project_name: str
    tag: str
    created_at: str
    git_commit: str
    paths: tuple[str, ...]
    metadata: dict[str, Any]
    folder: Path

    @classmethod
    def load(cls, folder: Path, project_name: str) -> Snapshot:
        """The snapshot in a folder; ConfigError if its metadata is broken. The project name counts if the metadata has none."""
        try:
            with open_below(folder.parent, folder / METADATA) as file:
                read: Any = json.loads(file.read(MAX_TEXT_BYTES).decode("utf-8-sig"))
        except (OSError, ValueError, RecursionError) as broken:
            raise ConfigError(f"{folder / METADATA}: {broken}") from None
        data = cast("dict[str, Any]", read if isinstance(read, dict) else {})
        if not data.get("created_at"):
            raise ConfigError(
                f'{folder / METADATA}: created_at is missing, for example: {{"created_at": "2026-11-01T12:00:00Z"}}'
            )
        try:
            created = _moment(str(data["created_at"]))
        except ToolFault as broken:
            raise ConfigError(f"{folder / METADATA}: created_at: {broken.message}") from None
        files = sorted(
            item.relative_to(folder).as_posix()
            for item in folder.rglob("*")
            if item.is_file() and not item.is_symlink() and secret_reason(item.relative_to(folder).as_posix()) is None
        )
        return cls(
            snapshot_id=folder.name,
            project_name=str(data.get("project_name") or project_name),
            tag=str(data.get("tag") or folder.name),
            created_at=created,
            git_commit=str(data.get("git_commit") or ""),
            paths=tuple(path for path in files if path != METADATA),
            metadata={
                key: value
                for key, value in data.items()
                if key not in ("created_at", "git_commit", "tag", "project_name")
            },
            folder=folder,
        )

    def row(self) -> dict[str, Any]:
        """The fields of the inspection contract."""
        names = ("snapshot_id", "project_name", "tag", "created_at", "git_commit")
        return {**{name: getattr(self, name) for name in names}, "paths": list(self.paths), "metadata": self.metadata}


class ConfigSnapshots:
    """The snapshots below one folder; none without a folder."""

    def __init__(self, root: Path | None = None, *, project_name: str = "") -> None:
        self._snapshots: dict[str, Snapshot] = {}
        self._compared: dict[str, str] = {}
        self.mask: Mask | None = None
        """With one, rows and differences are shown and proved masked."""
        if root is None:
            return
        if not root.is_dir():
            raise ConfigError(f"{root} is not a folder of config snapshots; expected <tag>/{METADATA} below it")
        try:
            folders = sorted(path for path in root.iterdir() if os.path.lexists(path / METADATA))
        except OSError as error:
            raise ConfigError(f"{error.filename or root}: cannot be read: {error.strerror}") from None
        if not folders:  # a folder too high or too low would pass for a configuration that never changed
            raise ConfigError(f"{root} holds no config snapshot; expected <tag>/{METADATA} below it")
        self._snapshots = {folder.name: Snapshot.load(folder, project_name) for folder in folders}

    def list_config_snapshots(
        self,
        project_name: str,
        *,
        start_time: str | None = None,
        end_time: str | None = None,
        tag: str | None = None,
    ) -> list[dict[str, Any]]:
        """Config snapshots of a project by (created_at, snapshot_id), within [start_time, end_time], of one tag if given."""
        start = None if start_time is None else _moment(start_time)
        end = None if end_time is None else _moment(end_time)
        found = [
            snapshot
            for snapshot in self._snapshots.values()
            if (start is None or snapshot.created_at >= start) and (end is None or snapshot.created_at <= end)
        ]
        shown = sorted(map(self._shown, found), key=lambda row: (row["created_at"], row["snapshot_id"]))
        return [
            row for row in shown if row["project_name"] in {"", project_name} and tag in {None, row["tag"]}
        ]  # as they are shown: a value in the clear is a guess

    def get_config_snapshot(self, snapshot_id: str) -> dict[str, Any]:
        """One config snapshot: {snapshot_id, project_name, tag, created_at, git_commit, paths, metadata}."""
        return self._shown(self._get(snapshot_id))

    def _shown(self, snapshot: Snapshot) -> dict[str, Any]:
        return snapshot.row() if self.mask is None else {**self.mask.hidden_value(snapshot.row())}

    def _diff(self, base: Snapshot, target: Snapshot) -> tuple[str, list[str]]:
        text, paths = unified_diff(base, target)
        if self.mask is None:
            return text, paths
        return self.mask.hidden(text), [self.mask.hidden(path) for path in paths]

    def get_config_diff(self, base_snapshot_id: str, target_snapshot_id: str) -> Observed:
        """What changed between two config snapshots; cite diff_ref as CONFIG_DIFF evidence."""
        base, target = self._get(base_snapshot_id), self._get(target_snapshot_id)
        old, new = self._shown(base), self._shown(target)
        text, paths = self._diff(base, target)
        ref = f"configdiff:{sha256_text(text)}"
        lines = text.split("\n")
        added = sum(line.startswith("+") and not line.startswith("+++") for line in lines)
        removed = sum(line.startswith("-") and not line.startswith("---") for line in lines)
        named = ", ".join(paths[:5]) or "nothing"
        counts = f"{plural(len(paths), 'file')} changed, {plural(added, 'line')} added, {removed:,} removed"
        value = {
            "project_name": new["project_name"] or old["project_name"],
            "base_snapshot_id": old["snapshot_id"],
            "target_snapshot_id": new["snapshot_id"],
            "artifact_id": ref,
            "diff_ref": ref,
            "git_commit_base": old["git_commit"],
            "git_commit_target": new["git_commit"],
            "paths": paths,
            "summary": f"{counts}: {named}",
            "diff": clip(text, MAX_SHOWN_CHARS),
        }
        where = self._compared[ref] = f"{old['snapshot_id']}..{new['snapshot_id']}"
        excerpt = Excerpt(
            kind=EvidenceKind.CONFIG_DIFF, ref=ref, hash=sha256_text(text), path=where, ts=target.created_at
        )
        note = f"the diff has {len(text)} characters; its middle is left out" if len(text) > MAX_SHOWN_CHARS else None
        return Observed(value, (excerpt,), note)

    def compared(self, ref: str) -> str:
        """Which two snapshots a diff_ref that was shown compares, as the path of its excerpt."""
        return self._compared.get(ref, "")

    def reread(self, excerpt: Excerpt) -> str | None:
        """The diff behind a pointer, made again from the files."""
        base, _, target = excerpt.path.partition("..")
        try:
            return self._diff(self._get(base), self._get(target))[0]
        except ToolFault:
            return None

    def _get(self, snapshot_id: str) -> Snapshot:
        hide = str if self.mask is None else self.mask.hidden
        shown = {hide(name): snapshot for name, snapshot in self._snapshots.items()}
        if snapshot_id not in shown:
            raise ToolFault(f"no config snapshot {snapshot_id!r}; there are: {', '.join(sorted(shown)) or 'none'}")
        return shown[snapshot_id]


def unified_diff(base: Snapshot, target: Snapshot) -> tuple[str, list[str]]:
    """The diff of all files in the order of their paths, and the paths that changed."""
    lines: list[str] = []
    changed: list[str] = []
    left, effort = MAX_HASHED_BYTES, Effort()
    for path in sorted({*base.paths, *target.paths}):
        (before, first), (after, second) = (_lines(each.folder, path, left // 2) for each in (base, target))
        left -= first + second
        if before == after:
            continue
        changed.append(path)
        lines += [f"--- a/{path}", f"+++ b/{path}"]
        if len(before) * len(after) <= MAX_COMPARED:
            with suppress(TooRepetitive):
                lines += best_hunks(before, after, effort)
                continue
        lines.append(f"@@ -1,{len(before)} +1,{len(after)} @@ too long to compare line by line")
        kept, gone = set(after), set(before)
        lines += [f"-{line}" for line in before if line not in kept]
        lines += [f"+{line}" for line in after if line not in gone]
    return "\n".join(lines), changed


def change_type(paths: Sequence[str]) -> str:
    """What kind of change these paths suggest: prompt, dependency or config."""
    if any("prompt" in path.lower() for path in paths):
        return "prompt"
    return "dependency" if any(word in path for path in paths for word in _DEPENDENCIES) else "config"


def _lines(folder: Path, path: str, most: int) -> tuple[list[str], int]:
    """The lines of a file, or one line that stands for what is no text; and how many bytes were read beyond those of texts."""
    try:
        with open_below(folder.parent, folder / path) as file:
            state = os.fstat(file.fileno())
            if state.st_size > max(most, MAX_TEXT_BYTES):
                when = rfc3339(datetime.fromtimestamp(state.st_mtime, UTC))
                return [f"[{state.st_size} bytes of {when}, too many to compare]"], 0
            if state.st_size > MAX_TEXT_BYTES:
                return [f"[{state.st_size} bytes, sha256 {_sha256(file)}]"], state.st_size
            data = file.read(MAX_TEXT_BYTES)
    except OSError:
        return [], 0
    try:
        return data.decode("utf-8").splitlines(), 0
    except UnicodeDecodeError:
        return [f"[{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}]"], 0


def _sha256(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def _moment(text: str) -> str:
    """A time in the one spelling that sorts as text."""
    try:
        moment = datetime.fromisoformat(text)
        return rfc3339(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError):  # the last hour of the year 9999 in New York is none of ours
        raise ToolFault(f"{text!r} is not a time; write 2026-11-01T12:00:00Z") from None
