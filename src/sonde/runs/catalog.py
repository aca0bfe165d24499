"""All runs of a folder: listed, filtered and pruned, fast.

Listing reads only the few fields it shows from each run's record. A run without a record (still running, or killed) is shown with
what its journal adds up to so far. Nothing is cached, so nothing is stale.
Pruning deletes whole run folders, never one that is being written.
"""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from sonde.core.canonical import cut
from sonde.core.events import RunStarted
from sonde.core.record import moment
from sonde.core.usage import Usage, used_by
from sonde.disk import open_plain
from sonde.errors import ConfigError
from sonde.runs.journal import MAX_LINE, MAX_RECORD, JournalUnreadable, bounded, is_being_written, read_journal
from sonde.runs.rundir import ANSWER, JOURNAL, RECORD, RESULT, Places, places_of, run_ids

OUTCOME = 200
"""Characters of an answer in a list."""
INVESTIGATIONS = frozenset({"rca", "policy_compliance", "incident_dossier"})
"""Types of runs whose result is a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One line of the list. `status` is a run's own, or `running`, `interrupted` (killed; can be resumed) or `unreadable`."""

    run_id: str
    path: Path
    status: str
    run_type: str = ""
    objective: str = ""
    model: str = ""
    started_at: str = ""
    completed_at: str | None = None
    iterations: int = 0
    subcalls: int = 0
    tokens: int = 0
    cost_usd: float | None = 0.0
    seconds: float = 0.0
    citations: int = 0
    unproved: bool = False
    outcome: str = ""
    """In a few words: the label or verdict of an investigation, the code of an error, otherwise the first line of the answer."""


class _Runtime(msgspec.Struct):
    usage: Usage
    model_name: str | None = None
    price_source: str | None = None
    unproved: bool = False

    @property
    def cost(self) -> float | None:
        """As in a record. In runs of old versions, tokens that cost nothing came from a model without a known price."""
        silent = self.usage.iterations and not self.usage.tokens_out
        counted = {"unknown": silent, "": self.usage.tokens_total}.get(self.price_source or "")
        return None if counted and not self.usage.cost_usd else self.usage.cost


class _Metrics(msgspec.Struct):
    total_latency_s: float = 0.0


class _Citation(msgspec.Struct):
    pass


class _Error(msgspec.Struct):
    code: str = ""


class _Verdict(msgspec.Struct):
    """What reports call their result."""

    primary_label: str = ""
    overall_verdict: str = ""
    incident_summary: str = ""


class _Result(msgspec.Struct):
    output: _Verdict | None = None


class _Head(msgspec.Struct):
    """The fields of a record that the list shows; the decoder skips all others without building them."""

    run_id: str
    run_type: str
    status: str
    started_at: str
    runtime_ref: _Runtime
    objective: str = ""
    completed_at: str | None = None
    metrics: _Metrics = msgspec.field(default_factory=_Metrics)
    citations: list[_Citation] = []
    error: _Error | None = None


_TIMED = re.compile(r"\d{8}-\d{6}-[0-9a-f]{9}")  # ids of `new_run_id`, which are in order of time
_heads = msgspec.json.Decoder(_Head, dec_hook=lambda _kind, value: Usage.model_validate(value))
_starts = msgspec.json.Decoder(RunStarted)
_results = msgspec.json.Decoder(_Result)


def list_runs(
    places: Places,
    *,
    status: str | None = None,
    run_type: str | None = None,
    text: str | None = None,
    limit: int | None = None,
) -> list[RunSummary]:
    """The runs, newest first; only those with this status, type, and text in their id, objective or model. Where an id says when its run
    began, no more runs are read than `limit` asks for.
    """
    wanted: list[RunSummary] = []
    paths = [place / run_id for place in places_of(places) for run_id in run_ids(place)]
    paths.sort(key=lambda path: (_TIMED.fullmatch(path.name) is None, path.name), reverse=True)  # other ids first
    others = 0
    for path in paths:
        timed = _TIMED.fullmatch(path.name) is not None
        if timed and limit is not None and len(wanted) - others >= limit:
            break
        summary = summarise(path)
        searched = f"{summary.run_id}\n{summary.objective}\n{summary.model}".lower()
        if (
            status in (None, summary.status)
            and run_type in (None, summary.run_type)
            and (text is None or text.lower() in searched)
        ):
            wanted.append(summary)
            others += not timed
    wanted.sort(key=lambda summary: (summary.started_at, summary.run_id), reverse=True)
    return wanted[:limit]


def summarise(path: Path) -> RunSummary:
    """One run's line; an unreadable run is a line that says so, not an error."""
    running = is_being_written(path / JOURNAL)
    try:
        with open_plain(path / RECORD) as file:
            head = _heads.decode(bounded(file.read(MAX_RECORD)))
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        head = None
    if head is not None:
        usage = head.runtime_ref.usage
        return RunSummary(
            run_id=path.name,
            path=path,
            status="running" if running else "interrupted" if head.completed_at is None else head.status,
            run_type=head.run_type,
            objective=head.objective,
            model=head.runtime_ref.model_name or "",
            started_at=head.started_at,
            completed_at=head.completed_at,
            iterations=usage.iterations,
            subcalls=usage.llm_subcalls,
            tokens=usage.tokens_total,
            cost_usd=head.runtime_ref.cost,
            seconds=head.metrics.total_latency_s,
            citations=len(head.citations),
            unproved=head.runtime_ref.unproved,
            outcome=_outcome(path, head),
        )
    try:
        with open_plain(path / JOURNAL) as file:
            start = _starts.decode(bounded(file.readline(MAX_LINE)))
    except (OSError, msgspec.MsgspecError, RecursionError):
        return RunSummary(run_id=path.name, path=path, status="running" if running else "unreadable")
    usage = Usage()
    with suppress(JournalUnreadable, OSError, ValueError, TypeError, LookupError):  # then the list shows how it began
        usage = sum(map(used_by, read_journal(path / JOURNAL).events), usage)
    return RunSummary(
        run_id=path.name,
        path=path,
        status="running" if running else "interrupted",
        run_type=start.run_type,
        objective=start.objective,
        model=start.model or "",
        started_at=moment(start.at),
        iterations=usage.iterations,
        subcalls=usage.llm_subcalls,
        tokens=usage.tokens_total,
        cost_usd=usage.cost,
    )


def _outcome(path: Path, head: _Head) -> str:
    """What came of a run, from its files; nothing if it has none."""
    if head.completed_at is None or head.status == "failed":
        return head.error.code if head.error else ""
    with suppress(OSError, msgspec.MsgspecError, ValueError, RecursionError):
        if head.run_type in INVESTIGATIONS:
            with open_plain(path / RESULT) as file:
                said = _results.decode(bounded(file.read(MAX_RECORD))).output or _Verdict()
            return cut(said.primary_label or said.overall_verdict or " ".join(said.incident_summary.split()), OUTCOME)
        with open_plain(path / ANSWER) as file:
            text = file.read(4 * OUTCOME).decode("utf-8", "ignore").strip()
        return cut(next(iter(text.splitlines()), ""), OUTCOME)
    return ""


def prune(
    places: Places,
    *,
    keep: int | None = None,
    before: datetime | None = None,
    status: str | None = None,
    dry_run: bool = False,
) -> list[RunSummary]:
    """Delete runs: all but the newest `keep`, or those started before a time; with `status`, only such runs. Returns what was deleted."""
    if keep is None and before is None:
        raise ConfigError("say what to prune: keep=20 keeps the newest twenty, before=<time> deletes what is older")
    if keep is not None and keep < 0:
        raise ConfigError(f"keep is {keep}; it must be 0 or more")
    border = None if before is None else moment(before.timestamp())
    doomed = [
        summary
        for place, summary in enumerate(list_runs(places, status=status))
        if (keep is None or place >= keep)
        and (border is None or summary.started_at < border)
        and summary.status != "running"
        and not summary.path.is_symlink()  # a link's target is not ours
    ]
    for summary in doomed:
        if not dry_run:
            shutil.rmtree(summary.path)
    return doomed
