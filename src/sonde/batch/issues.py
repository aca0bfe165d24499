"""Failures grouped into issues: the same label, the same component, and evidence in much the same words.

    issues = group(results)                      # of one batch
    issues = compare(issues, earlier)            # new, ongoing, reopened; and the earlier ones that are gone
    issues = compare(issues, earlier, complete=False)  # items are left: an issue not seen is unseen, not gone

Words are compared without numbers and ids, as sets (Jaccard). An issue keeps its id over batches as long as it is recognised. It is a
grouping, not a judgement: two causes with one message in one component are one issue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from sonde.batch.result import ItemResult
from sonde.contexts.traces.failure_words import overlap, telling_words
from sonde.disk import open_below, read_whole
from sonde.errors import ConfigError

ALIKE = 0.5
REPRESENTATIVES = 5
ISSUES = "issues.json"
MAX_BYTES = 64 * 1024 * 1024
State = Literal["new", "ongoing", "reopened", "gone", "unseen"]


class Issue(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of failure. `count` is of traces; first and last seen are times of traces, over all batches."""

    id: str
    label: str
    component: str
    sample: str
    words: list[str]
    count: int
    first_seen: str | None = None
    last_seen: str | None = None
    traces: list[str] = []
    state: State = "new"


class IssueFile(msgspec.Struct, frozen=True, kw_only=True):
    """issues.json: those that exist and those that are gone, so that a later batch recognises them."""

    issues: list[Issue]
    schema_version: str = "1.0.0"


@dataclass(slots=True)
class _Group:
    label: str
    component: str
    sample: str
    words: frozenset[str]
    traces: dict[str, str | None] = field(default_factory=dict[str, "str | None"])

    def add(self, result: ItemResult) -> None:
        """One more trace shows it."""
        for trace in result.trace_ids or [result.id]:
            self.traces[trace] = result.seen_at or result.started_at or None

    def issue(self) -> Issue:
        times = sorted(time for time in self.traces.values() if time)
        text = "\0".join((self.label, self.component, *sorted(self.words)))
        traces = list(self.traces)
        if len(traces) > REPRESENTATIVES:  # a few, from the first to the last
            step = (len(traces) - 1) / (REPRESENTATIVES - 1)
            traces = [traces[round(step * number)] for number in range(REPRESENTATIVES)]
        return Issue(
            id=hashlib.sha256(text.encode()).hexdigest()[:12],
            label=self.label,
            component=self.component,
            sample=self.sample,
            words=sorted(self.words),
            count=len(self.traces),
            first_seen=times[0] if times else None,
            last_seen=times[-1] if times else None,
            traces=traces,
        )


def group(results: Iterable[ItemResult]) -> list[Issue]:
    """The issues of a batch, most frequent first."""
    places: dict[tuple[str, str], list[_Group]] = {}
    for result in sorted(results, key=lambda result: (result.seen_at or "", result.id)):
        for finding in result.findings:
            groups = places.setdefault((finding.label, finding.component), [])
            words = telling_words(finding.words)
            home = next((each for each in groups if overlap(each.words, words) >= ALIKE), None)
            if home is None:
                home = _Group(finding.label, finding.component, finding.words, words)
                groups.append(home)
            home.add(result)
    found = [each.issue() for groups in places.values() for each in groups]
    return sorted(found, key=lambda issue: (-issue.count, issue.label, issue.component, issue.id))


def compare(now: Sequence[Issue], earlier: Sequence[Issue], *, complete: bool = True) -> list[Issue]:
    """The issues of now with their state against an earlier batch, then those that were not found."""
    left = list(earlier)
    found: list[Issue] = []
    for issue in now:
        place = (issue.label, issue.component)
        known = (each for each in left if (each.label, each.component) == place)
        words = frozenset(issue.words)
        before = next((each for each in known if overlap(frozenset(each.words), words) >= ALIKE), None)
        if before is None:
            found.append(issue)
            continue
        left.remove(before)
        times = sorted(time for time in (issue.first_seen, before.first_seen) if time)
        same = msgspec.structs.replace(
            issue,
            id=before.id,
            words=before.words,  # what it is recognised by does not drift
            first_seen=times[0] if times else None,
            state="reopened" if before.state == "gone" else "ongoing",
        )
        found.append(same)
    for issue in left:
        state = "gone" if complete or issue.state == "gone" else "unseen"
        found.append(msgspec.structs.replace(issue, state=state, count=0))
    return found


def read_issues(path: Path) -> list[Issue]:
    """The issues of an earlier batch, by its folder or its issues.json."""
    file = path / ISSUES if path.is_dir() else path
    try:
        with open_below(path if path.is_dir() else file.parent, file) as opened:
            return msgspec.json.decode(read_whole(opened, MAX_BYTES), type=IssueFile).issues
    except OSError as error:
        raise ConfigError(f"--compare {path}: {file} cannot be read ({error.strerror}); name a batch folder") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(f"--compare {path}: {file} holds no issues ({error})") from None
