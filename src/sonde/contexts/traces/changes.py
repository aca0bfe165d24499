"""What changed around a window, and which change a group of failures is suspected of, with what speaks for it and what against.

    changes = [*attribute_changes(window), *read_changes(["git:.", "deploys.json"], environ)]
    suspicion = suspect(window, window.groups[0], changes)      # suspicion.change is None: unknown

Changes come from the spans themselves (an attribute such as `release` takes a new value), from config snapshots, from a file of deploys
and from the commits and tags of a git repository. A change is suspected if failures come clearly more often with it than without it and
hardly before it; which of several fits best is a matter of counts first, then of time and of shared words. It is a suspicion, not a proof.
Files and repositories are a stranger's: they are read within limits, and git starts nothing that a repository names.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from sonde.contexts.traces.groups import BLAST_KEYS, MODEL_KEYS, RELEASE_KEYS, Attribute
from sonde.contexts.traces.span import Row, us_of
from sonde.contexts.traces.window import FEW, SURE, Group, Onset, Window, hit_otherwise, seconds, surplus
from sonde.contexts.workspace.git import printed
from sonde.contexts.workspace.reach import strange_history
from sonde.core.canonical import cut, lapse, plural
from sonde.disk import open_below, read_whole
from sonde.errors import ConfigError, ToolFault

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPLOYS = 10_000
MAX_COMMITS = 1_000
MAX_TAGS = 1_000
TEXT_CHARS = 300
FLIP_VALUES = 30
MANY = 12  # traces: with fewer nothing can be counted
CHANCE = 0.02  # that a value merely was not seen before
CLEAR = 3.5
PART = 0.3  # of the best split: a change whose moment explains less than this is not near the onset
STRAYS = 0.15  # of the failures may lie before a change
NEAR_US = 3_600_000_000
_DELAYS = {
    "attribute": 300_000_000,
    "config": 300_000_000,
    "deploy": 300_000_000,
    "tag": 1_800_000_000,
    "commit": 3_600_000_000,
}
_TYPES = ("deploy", "config", "prompt", "dependency")
_KNOWN = {
    "at": ("at", "time", "timestamp", "deployed_at", "created_at", "date"),
    "name": ("name", "id", "title"),
    "service": ("service", "app", "component", "project"),
    "version": ("version", "release", "tag"),
    "summary": ("summary", "description", "message", "notes"),
    "commit": ("commit", "sha", "git_commit", "revision"),
    "type": ("type", "kind"),
    "": ("author", "by", "user", "environment", "env", "status", "url", "link"),
}
_EXAMPLE = '[{"at": "2026-11-01T12:14:00Z", "name": "checkout 2.4.1", "service": "checkout"}]'
_EFFECT = re.compile(
    r"finish|status|result|outcome|retry|retries|attempt|count|length|size|score|duration|_ms$|\bid$|\.id$"
)
_LIKELY = re.compile(
    r"release|version|deploy|flag|feature|experiment|variant|config|prompt|model|provider|region|cluster|commit|sha"
)
_EVERYWHERE = """with from that this have been were when after before into over under update updated change changed changes merge branch
error errors failed fails failure exception fixed adds added remove removed make test tests step main none null true false"""
_SERVICE = re.compile(rf"(?:{'|'.join(map(re.escape, RELEASE_KEYS))}) \((.*)\)")
_SIGNS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]+")
_HALVES = re.compile(r"[\ud800-\udfff]")  # JSON can escape them; UTF-8 cannot hold them
_PARTS = re.compile(r"[a-z]{4,}|[A-Z][a-z]{3,}")
Hide = Callable[[str], str]
ChangeKind = Literal["attribute", "config", "deploy", "tag", "commit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something that changed at a moment. One seen in spans has its attribute; one that stands there all along has no moment."""

    kind: ChangeKind
    change_type: str
    name: str
    ref: str
    at_us: int
    detail: str = ""
    attribute: Attribute | None = None
    service: str = ""
    words: frozenset[str] = frozenset()
    standing: bool = False
    positions: frozenset[int] = frozenset()
    """The traces of the window that have the attribute."""
    diff_ref: str | None = None

    def row(self) -> Row:
        """As data."""
        return {
            "kind": self.kind,
            "change_type": self.change_type,
            "change_ref": self.ref,
            "name": self.name,
            "at": None if self.standing else seconds(self.at_us),
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The change that a group is suspected of, or none, with the counts that speak for and against it, and other changes near by."""

    change: Change | None
    speaks_for: tuple[str, ...] = ()
    speaks_against: tuple[str, ...] = ()
    others: tuple[str, ...] = ()

    def row(self) -> Row:
        """As data; an unknown change has a row, too."""
        unknown = {
            "kind": None,
            "change_type": "unknown",
            "change_ref": "",
            "name": "unknown",
            "at": None,
            "detail": "",
        }
        return {
            **(self.change.row() if self.change else unknown),
            "speaks_for": list(self.speaks_for),
            "speaks_against": list(self.speaks_against),
            "also_near": list(self.others),
        }


def attribute_changes(window: Window) -> list[Change]:
    """Attributes that take a new value within the window, and releases that stand beside others all along."""
    places: dict[str, dict[str, list[int]]] = {}
    skip = {key for keys in BLAST_KEYS.values() for key in keys}
    for at, facts in enumerate(window.traces):
        for key, value in facts.attributes:
            if key not in skip:
                places.setdefault(key, {}).setdefault(value, []).append(at)
    single = {
        key
        for key, values in places.items()
        if sum(map(len, values.values())) <= 1.1 * len({at for hits in values.values() for at in hits})
    }
    found: list[Change] = []
    for key, values in sorted(places.items()):
        if not 2 <= len(values) <= FLIP_VALUES or _EFFECT.search(key):
            continue
        service = _SERVICE.fullmatch(key)
        if service and key.removesuffix(f" ({service[1]})") in single:
            continue  # one service only: its key without the name says it
        having = sorted({at for hits in values.values() for at in hits})
        if key not in MODEL_KEYS and key not in single:
            continue  # traces have several values at once: it says what a step is, not in which state the system was
        for value, hits in sorted(values.items()):
            before = bisect_left(having, hits[0])
            share = len(hits) / (len(having) - before)
            new = len(hits) >= 2 and before >= FEW and (1 - share) ** before < CHANCE
            standing = not new and len(hits) >= FEW and (key in RELEASE_KEYS or service is not None)
            if not (new or standing):
                continue
            old = max(values, key=lambda one: (bisect_left(values[one], hits[0]), one)) if new else ""
            found.append(
                Change(
                    kind="attribute",
                    change_type=_type_of(key),
                    name=f"{key} {value}",
                    ref=f"{key}={value}",
                    at_us=window.traces[hits[0]].start_us,
                    detail=f"{key} was {old} before" if new else f"in use together with other values of {key}",
                    attribute=(key, value),
                    service=service[1] if service else "",
                    words=plain_words(f"{key} {value}"),
                    standing=standing,
                    positions=frozenset(hits),
                )
            )
    return found


def _type_of(key: str) -> str:
    if key in RELEASE_KEYS or (re.search(r"release|version|deploy|commit|\bsha\b|build", key) and "prompt" not in key):
        return "deploy"
    if "prompt" in key or "template" in key:
        return "prompt"
    return "dependency" if key in MODEL_KEYS or re.search(r"model|provider|sdk|library", key) else "config"


def plain_words(text: str) -> frozenset[str]:
    """The words of names, also those within camelCase and snake_case, without those that stand everywhere."""
    return frozenset(word.lower() for word in _PARTS.findall(text[:4000])) - frozenset(_EVERYWHERE.split())


def suspect(window: Window, group: Group, changes: Iterable[Change]) -> Suspicion:
    """The change that fits a group best; none if the group did not begin, or if nothing that changed fits."""
    every = list(changes)
    if group.pattern == "stray":
        return _in_few_traces(window, group, every)
    others = hit_otherwise(group.members, window.traces) if group.kind in {"error", "retries"} else ()
    fits = [found for change in every if (found := _fit(window, group, change, others)) is not None]
    fits.sort(key=lambda each: (-each.weight, each.change.at_us, each.change.ref))
    if not fits:
        if (before := _before_the_window(window, group, every)) is not None:
            return before
        why = "it is spread over the window: it began at no moment and with no change of an attribute"
        if group.onset is not None:
            since = seconds(window.traces[group.onset.position].start_us)
            why = f"nothing that is known to have changed near {since} fits"
        return Suspicion(change=None, speaks_against=(why,))
    best = fits[0]
    near = [each.change for each in fits[1:] if each.weight > best.weight - SURE]
    tagged = _tag_of(best.change, every)
    speaks_for, speaks_against = best.reasons()
    return Suspicion(
        change=replace(best.change, detail=f"{best.change.detail}; {tagged}".strip("; ")) if tagged else best.change,
        speaks_for=speaks_for,
        speaks_against=speaks_against,
        others=tuple(f"{each.name} ({seconds(each.at_us)})" for each in near[:3]),
    )


def _in_few_traces(window: Window, group: Group, changes: Sequence[Change]) -> Suspicion:
    """Too few to count with. Where they are a fair part of the few traces that there are, the last change before them is suspected."""
    first = window.traces[group.members[0]].start_us
    before = [each for each in changes if each.at_us <= first and each.kind != "commit" and not each.standing]
    if len(window.traces) >= MANY or len(group.members) * 5 < len(window.traces) or not before:
        return Suspicion(change=None, speaks_against=("too few traces to tell since when",))
    last = max(before, key=lambda each: (each.at_us, each.ref))
    return Suspicion(
        change=last,
        speaks_for=(f"it is the last change before the first failure, {lapse((first - last.at_us) / 1e6)} before it",),
        speaks_against=("there are too few traces to compare those before it with those after it",),
    )


def _tag_of(change: Change, changes: Iterable[Change]) -> str:
    """The tag, deploy or commit that a release names."""
    if change.attribute is None or change.change_type != "deploy":
        return ""
    value = change.attribute[1].lower()
    for each in changes:
        same = each.kind == "tag" and each.ref.lower().lstrip("v") == value.lstrip("v")
        same |= each.kind == "deploy" and value.lstrip("v") in re.split(r"[\s@:,()v]+", each.name.lower())
        if same or (each.kind == "commit" and len(value) >= 7 and each.ref.startswith(value)):
            return f"{each.name}{f' ({each.detail})' if each.detail else ''}"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """How a change and a group go together: hit traces with it and without it, and those with it that are `fine`."""

    change: Change
    sureness: float
    inside: int
    outside: int
    fine: int
    early: int
    lag_us: int
    gap_us: int
    shared: tuple[str, ...]
    services: tuple[str, ...]

    @property
    def elsewhere(self) -> bool:
        """The change is of a service in which nothing failed."""
        return bool(self.change.service and self.services) and self.change.service not in self.services

    @property
    def weight(self) -> float:
        """Counts first; then what kind of change it is, shared words, the service, what was hit before it, and the time between."""
        key = self.change.attribute[0] if self.change.attribute else ""
        return (
            self.sureness
            + {"attribute": 0.5, "config": 0.8, "deploy": 0.8, "tag": 0.5, "commit": 0.2}[self.change.kind]
            + (1.0 if key.partition(" (")[0] in RELEASE_KEYS else 0.0)
            - (1.5 if key and not _LIKELY.search(key) else 0.0)
            + min(3.0, 1.5 * len(self.shared))
            - (3.0 if self.elsewhere else 0.0)
            - self.early
            - (0.0 if self.change.standing else 0.4 * math.log1p(abs(self.lag_us) / self.gap_us))
        )

    def reasons(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What speaks for it, and what against."""
        change, hits = self.change, self.inside + self.outside
        what = f"have {change.attribute[0]} {change.attribute[1]}" if change.attribute else "came after it"
        speaks_for = [f"{self.inside} of {hits} hit traces {what}"]
        speaks_against: list[str] = []
        if change.standing:
            speaks_against.append("it was in use before the window began")
        elif self.lag_us >= 0:
            speaks_for.append(f"the group began {lapse(self.lag_us / 1e6)} after it")
        else:
            speaks_against.append(f"the group began {lapse(-self.lag_us / 1e6)} before it was first seen")
        if self.shared:
            speaks_for.append(f"it names {', '.join(self.shared[:4])}")
        if change.service and change.service in self.services:
            speaks_for.append(f"it is of the service {change.service}, where the failures are")
        if self.fine:
            how = "with it" if change.attribute else "after it"
            speaks_against.append(f"{plural(self.fine, 'trace')} {how} {'is' if self.fine == 1 else 'are'} not hit")
        if other := self.early or self.outside:
            how = "before it" if self.early else "without it"
            speaks_against.append(f"{plural(other, 'trace')} {'was' if other == 1 else 'were'} hit {how}")
        if self.elsewhere:
            where = ", ".join(self.services[:3])
            speaks_against.append(f"it is of the service {change.service}, the failures are in {where}")
        return tuple(speaks_for), tuple(speaks_against)


def _fit(window: Window, group: Group, change: Change, others: Sequence[int]) -> _Fit | None:
    """How well a change fits a group; None if it does not. `others` failed in another way and count neither as hit nor as fine."""
    traces, hits, total = window.traces, group.members, len(window.traces) - len(others)
    position = bisect_left(traces, change.at_us, key=lambda each: each.start_us)
    if change.attribute is None:
        count = len(traces) - position - (len(others) - bisect_left(others, position))
        inside = len(hits) - bisect_left(hits, position)
    else:
        count = len(change.positions) - len(change.positions.intersection(others))
        inside = len(change.positions.intersection(hits))
    outside = len(hits) - inside
    if not inside or inside * (total - count) <= outside * count:
        return None
    sureness = surplus(inside, count, outside, total - count)
    early = 0 if change.standing else bisect_left(hits, position)
    began = group.onset.position if group.onset else hits[min(early, len(hits) - 1)]
    whole = group.onset.sureness if group.onset else 0.0
    lag = traces[began].start_us - change.at_us
    gap = max(1, (traces[-1].start_us - traces[0].start_us) // max(1, total - 1))
    if group.onset and not change.standing:
        if lag < -gap and change.attribute is None:
            return None  # it came after what it would have caused
        if -gap <= lag <= max(_DELAYS[change.kind], gap):  # it takes a while until a change is in use
            sureness = max(sureness, whole)
        elif not bisect_left(hits, began) - early and _spared(group.onset, change, position):
            return None
    between = bisect_left(hits, began) - early
    if sureness < (PART if between else 1.3 * PART) * whole:  # what grows slowly since a change begins before its onset
        return None
    released = change.attribute is not None and change.change_type == "deploy" and not change.standing
    needed = CLEAR if released or (group.onset and not change.standing) else 1.5 * CLEAR
    if sureness < needed or early > max(1, STRAYS * len(hits)) or inside < max(FEW, 0.6 * len(hits)):
        return None
    failures = [each for at in hits for each in traces[at].failures if each.component == group.component]
    return _Fit(
        change=change,
        sureness=sureness,
        inside=inside,
        outside=outside,
        fine=count - inside,
        early=early,
        lag_us=lag,
        gap_us=gap,
        shared=tuple(sorted(change.words & plain_words(f"{group.component} {group.message}"))),
        services=tuple(sorted({each.service for each in failures if each.service})),
    )


def _spared(onset: Onset, change: Change, position: int) -> bool:
    """Whether so many traces between a change and the onset were not hit that it hardly was the change."""
    hit, of = onset.since
    having = change.positions if change.attribute else range(position, onset.position)
    waited = sum(position <= at < onset.position for at in having)
    return (1 - hit / of) ** waited < CHANCE / 2


def _before_the_window(window: Window, group: Group, changes: Sequence[Change]) -> Suspicion | None:
    """The last change shortly before the first trace, for failures that are there from the beginning: there is nothing to compare with."""
    first = window.traces[0].start_us
    near = max(NEAR_US, window.traces[-1].start_us - first)
    before = [each for each in changes if each.attribute is None and first - near <= each.at_us <= first]
    if group.onset is not None or len(group.members) * 10 < len(window.traces) or not before:
        return None
    words = plain_words(f"{group.component} {group.message}")
    last = max(before, key=lambda each: (len(each.words & words), each.at_us, each.ref))
    named = (f"it names {', '.join(sorted(last.words & words)[:4])}",) if last.words & words else ()
    ago = lapse((first - last.at_us) / 1e6)
    return Suspicion(
        change=last,
        speaks_for=(f"it came {ago} before the window, and the failures are there from its beginning", *named),
        speaks_against=("no trace from before it lies in the window",),
    )


def read_changes(
    places: Sequence[str],
    environ: Mapping[str, str],
    *,
    start_us: int | None = None,
    end_us: int | None = None,
    hide: Hide = str,
) -> list[Change]:
    """The changes that the user's places hold: `git:REPO`, or a JSON file of deploys. ConfigError if a place is not what it says.

    `hide` masks people's data in every text of theirs, before it is cut.
    """
    found: list[Change] = []
    for place in places:
        if place.startswith("git:"):
            found += _history(place.removeprefix("git:"), environ, start_us, end_us, hide)
        elif place.lower().endswith(".json"):
            found += _deploys(Path(place), hide)
        else:
            raise ConfigError(
                f"--changes {place}: write git:REPO for a repository, or the name of a .json file of deploys"
            )
    return sorted(found, key=lambda each: (each.at_us, each.ref))


def _deploys(path: Path, hide: Hide) -> Iterator[Change]:
    """A list of deploys, or an object with such a list under `deploys` or `changes`; each entry is checked field by field."""
    try:
        with open_below(path.parent, path) as file:
            raw = read_whole(file, MAX_BYTES)
        value: Any = json.loads(raw.decode(json.detect_encoding(raw), "replace"))
    except OSError as error:
        raise ConfigError(f"--changes {path}: it cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--changes {path}: not JSON ({cut(str(error), 200)}); for example: {_EXAMPLE}") from None
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        value = next((table[key] for key in ("deploys", "changes", "deployments", "events") if key in table), None)
    if not isinstance(value, list):
        raise ConfigError(f"--changes {path}: it must hold a list of deploys; for example: {_EXAMPLE}")
    entries = cast("list[Any]", value)
    if len(entries) > MAX_DEPLOYS:
        raise ConfigError(f"--changes {path}: {len(entries):,} deploys; at most {MAX_DEPLOYS:,} are read")
    for number, entry in enumerate(entries):
        try:
            yield _deploy(entry, hide)
        except ValueError as error:
            raise ConfigError(f"--changes {path}: entry {number}: {error}; for example: {_EXAMPLE[1:-1]}") from None


def _deploy(entry: Any, hide: Hide) -> Change:
    if not isinstance(entry, dict):
        raise ValueError("it is no object")  # noqa: TRY004 - a caller of ours words all of these in one way
    fields: dict[str, str] = {}
    meant = {key: name for name, keys in _KNOWN.items() for key in keys}
    for key, value in cast("dict[str, Any]", entry).items():
        if key.lower() not in meant:
            known = ", ".join(name for name in _KNOWN if name)
            raise ValueError(f"it has no field {key!r:.60}; there are: {known}")
        if value is None:
            continue
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise ValueError(f"{key!r:.60} must be text")  # noqa: TRY004 - as above
        name = meant[key.lower()]
        fields.setdefault(name, _plain(str(value), str if name == "at" else hide))
    if not fields.get("at"):
        raise ValueError("`at` is missing: when was it?")
    try:
        at_us = us_of(fields["at"])
    except (ValueError, OverflowError):
        at_us = None
    if at_us is None:
        raise ValueError(f"{fields['at']!r:.60} is not a time; write 2026-11-01T12:00:00Z")
    named = fields.get("name") or " ".join(filter(None, (fields.get("service"), fields.get("version"))))
    if not named:
        raise ValueError("it has neither a name nor a service or version")
    kind = fields.get("type", "deploy").lower()
    if kind not in _TYPES:
        kind = next((each for each in _TYPES if each in kind), "deploy")
    version = fields.get("version", "")
    return Change(
        kind="deploy",
        change_type=kind,
        name=f"{kind} {named}{f' {version}' if version and version not in named else ''}",
        ref=f"deploy:{fields.get('commit') or named}@{seconds(at_us)}",
        at_us=at_us,
        detail=fields.get("summary", ""),
        service=fields.get("service", ""),
        words=plain_words(f"{named} {fields.get('summary', '')} {fields.get('service', '')}"),
    )


def _plain(text: str, hide: Hide) -> str:
    """A stranger's words on one line, without signs that a terminal or a reader would obey, and without halves of characters."""
    whole = _HALVES.sub("\ufffd", text)
    return cut(hide(" ".join(_SIGNS.sub(" ", whole).split())), TEXT_CHARS)


def _history(
    place: str, environ: Mapping[str, str], start_us: int | None, end_us: int | None, hide: Hide
) -> Iterator[Change]:
    """Commits, the newest first, and tags of a repository, by the time when they were made."""
    repository = Path(place or ".")
    words = ["git"]
    if not (repository / ".git").exists():
        if not (repository / "HEAD").is_file() or not (repository / "objects").is_dir():
            raise ConfigError(f"--changes git:{place}: there is no git repository; for example: --changes git:.")
        words += ["--git-dir", str(repository.resolve())]
    if strange := strange_history(repository):
        raise ConfigError(f"--changes git:{place}: it is not read, because {cut(strange, 300)}")
    since = [] if start_us is None else [f"--since={start_us // 1_000_000 - 30 * 86_400}"]
    until = [] if end_us is None else [f"--until={end_us // 1_000_000 + 1}"]
    form = "--format=%x1e%H%x1f%ct%x1f%s%x1f"
    log = ["log", f"--max-count={MAX_COMMITS}", *since, *until, form, "--name-only", "--no-renames", "HEAD", "--"]
    refs = ["for-each-ref", f"--count={MAX_TAGS}", "--sort=-creatordate"]
    refs += ["--format=%(creatordate:unix)%1f%(refname:short)%1f%(contents:subject)", "refs/tags"]
    try:
        commits = printed([*words, *log], repository, environ)
        tags = printed([*words, *refs], repository, environ)
    except ToolFault as fault:
        raise ConfigError(f"--changes git:{place}: {fault.message}") from None
    for record in commits.split("\x1e"):
        head, *rest = record.split("\x1f")
        if len(rest) < 3 or not re.fullmatch(r"[0-9a-f]{40,64}", head) or not re.fullmatch(r"\d{1,12}", rest[0]):
            continue
        subject, paths = _plain(rest[1], hide), [hide(line) for line in rest[2].split("\n") if line.strip()]
        yield Change(
            kind="commit",
            change_type="config"
            if paths and all(re.search(r"\.(ya?ml|toml|json|ini|env|cfg)$", one) for one in paths)
            else "deploy",
            name=f"commit {head[:10]} {subject}".rstrip(),
            ref=head,
            at_us=int(rest[0]) * 1_000_000,
            detail=f"{plural(len(paths), 'file')}: {_plain(', '.join(paths[:5]), str)}" if paths else "",
            words=plain_words(f"{subject} {' '.join(paths[:50])}"),
        )
    for line in tags.split("\n"):
        when, _, rest_ = line.partition("\x1f")
        name, _, subject = rest_.partition("\x1f")
        if re.fullmatch(r"\d{1,12}", when) and name:
            shown, said = _plain(name, hide), _plain(subject, hide)
            yield Change(
                kind="tag",
                change_type="deploy",
                name=f"tag {shown}",
                ref=shown,
                at_us=int(when) * 1_000_000,
                detail=said,
                words=plain_words(f"{shown} {said}"),
            )
