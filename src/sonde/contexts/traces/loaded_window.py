"""A window of a server's traces in an index of its own, because counts and SQL need all of them at hand.

It is filled once, when it is opened, with at most MAX_TRACES traces and MAX_SPANS spans, the earliest first, for at most LOAD_S seconds
and at most half of the time that the run has left: the rest is for the answer. `describe` says what was loaded and `skipped` what was
not. Annotations and links are the server's. What arrives at the server later is not seen.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from sonde.contexts.traces.filestore import IndexStore
from sonde.contexts.traces.index import IndexWriter
from sonde.contexts.traces.serverstore import ServerStore
from sonde.contexts.traces.span import time_text
from sonde.contexts.traces.store import TraceQuery
from sonde.core.canonical import hash_value, plural
from sonde.core.deadline import Deadline, SystemClock, deadline_in_force
from sonde.trace_client import ServerUnavailable

MAX_TRACES = 5_000
MAX_SPANS = 200_000
AT_ONCE = 40
LOAD_S = 120.0


class LoadedWindow(IndexStore):
    """The traces of a query as they were when this was opened."""

    def __init__(self, server: ServerStore, query: TraceQuery, name: str) -> None:
        self._server = server
        self._temporary = tempfile.TemporaryDirectory(prefix="sonde-traces-")
        self._content = ""
        self._missing: list[str] = []
        path = Path(self._temporary.name) / "window.sqlite"
        try:
            run = deadline_in_force()
            deadline = Deadline(SystemClock(), LOAD_S) if run is None else run.sub(min(LOAD_S, run.remaining() / 2))
            with IndexWriter(path, new=True) as writer, server.client.within(deadline):
                self.loaded = self._load(writer, query, deadline)
                writer.finish(files=(), malformed=(), meta={"malformed": "0"})
            super().__init__(path, name)
        except BaseException:
            self._temporary.cleanup()
            raise

    def _load(self, writer: IndexWriter, query: TraceQuery, deadline: Deadline) -> tuple[int, int] | None:
        """Copy traces up to the limits; when the first and the last of them began."""
        page = self._server.traces(replace(query, limit=MAX_TRACES))
        low, high = query.start_us, query.end_us  # not every server cuts to the microsecond
        rows = [
            row for row in page.rows if (low is None or row.start_us >= low) and (high is None or row.start_us < high)
        ]
        hashes: list[str] = []
        loaded, why = 0, page.more or ""
        if len(page.rows) == MAX_TRACES and why:
            why = f"the limit is {MAX_TRACES:,} traces"
        for at in range(0, len(rows), AT_ONCE):
            batch = [row.trace_id for row in rows[at : at + AT_ONCE]]
            try:
                spans = [] if len(hashes) >= MAX_SPANS else [*self._server.read_traces(batch, {})]
            except ServerUnavailable:
                if not deadline.expired():
                    raise
                spans = []
            if len(hashes) >= MAX_SPANS or deadline.expired():
                why = (
                    f"the limit is {MAX_SPANS:,} spans"
                    if len(hashes) >= MAX_SPANS
                    else f"it took {deadline.seconds:.0f} s"
                )
                break
            for span in spans:
                writer.add(span)
                hashes.append(span.hash())
            loaded = at + len(batch)
        if why and not loaded and rows:
            raise ServerUnavailable(
                f"no trace was loaded from {self._server.client.base_url}, because {why}; "
                "narrow the window with --from and --to, or allow more with --max-wall-time-sec"
            )
        if why and loaded:
            until = f"those that began up to {time_text(rows[loaded - 1].start_us)}"
            self._missing.append(
                f"only the first {plural(loaded, 'trace')} of the window were loaded, {until}, because {why}; "
                "narrow it with --from and --to"
            )
        self._content = hash_value(sorted(hashes))
        return (rows[0].start_us, rows[loaded - 1].start_us) if loaded else None

    def close(self) -> None:
        """Close the index, remove it, and let go of the server."""
        super().close()
        self._temporary.cleanup()
        self._server.close()

    def describe(self) -> str:
        """Which window of which server was loaded, and how much is in it."""
        if self.loaded is None:
            return f"{self._server.describe()} Loaded: no traces."
        first, last = map(time_text, self.loaded)
        return f"{self._server.describe()} Loaded: {self.counted()}, begun from {first} to {last}."

    def fingerprint(self) -> str:
        """The hash of the spans that were loaded."""
        return self._content

    def skipped(self) -> list[str]:
        """What of the window was not loaded."""
        return [*self._server.skipped(), *self._missing]

    def annotations(self, trace_id: str, span_id: str | None) -> list[dict[str, Any]]:
        """As the server has them now."""
        return self._server.annotations(trace_id, span_id)

    def link(self, trace_id: str, span_id: str | None = None) -> str | None:
        """The page of the server."""
        return self._server.link(trace_id, span_id)
