"""From what a user names to a store: a file, a folder, or the address of a Phoenix server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.phoenixstore import PhoenixStore
from sonde.core.deadline import Deadline
from sonde.phoenix import PhoenixClient, PhoenixReads

DEFAULT_PROJECT = "default"


def is_server(source: str | Path) -> bool:
    """True for an address."""
    return str(source).startswith(("http://", "https://"))


def open_store(
    source: str | Path,
    *,
    project: str | None = None,
    cache: Path | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    deadline: Deadline | None = None,
) -> FileStore | PhoenixStore:
    """The store behind a source. `cache` keeps indexes of files between runs; a key and headers go to a server only."""
    if is_server(source):
        client = PhoenixClient(str(source), api_key=api_key, headers=headers, deadline=deadline)
        return PhoenixStore(PhoenixReads(client, project or DEFAULT_PROJECT))
    return FileStore(Path(source), cache=cache, project=project)
