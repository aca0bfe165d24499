"""The text behind each citation of a run, for the page's evidence cards.

A card shows exactly the text that was hashed, or no text at all. The text is read again from the source: files in the folders that
the run was given, trace files, config snapshots. If that fails, it comes from what the run recorded. Either way it must have the cited
hash. Nothing is fetched from a server: a stranger's run folder must not make this machine call anyone.
"""

from __future__ import annotations

import glob
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from sonde.api.consent import is_trusted
from sonde.contexts.configs import ConfigSnapshots
from sonde.contexts.files.file_list import ARCHIVES, Entry
from sonde.contexts.files.library import glob_pattern
from sonde.contexts.files.text import PAGE_SUFFIXES, LineIndex, open_archive, open_text, read_lines
from sonde.contexts.traces.cache import SUFFIXES, store_of
from sonde.contexts.traces.catalog import is_server, query_of
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.joined import StorePart
from sonde.contexts.traces.question import GROUP, QuestionContext
from sonde.contexts.traces.shape import SPANS, KeptTrace, picture_of
from sonde.contexts.traces.span import SpanSummary, us_of_text
from sonde.contexts.traces.views import text_behind, texts_in
from sonde.core.calls import CallRef, call_text, shown_text
from sonde.core.canonical import clip, sha256_text
from sonde.core.evidence import EvidenceKind, Excerpt, pointers
from sonde.disk import LONGEST_PATH, AnyPath, below, followed, is_too_long, secret_reason
from sonde.errors import SondeError
from sonde.runs.journal import bounded

LARGEST_FILE = 64 << 20
LARGEST_TRACES = 256 << 20
TRACE_FILES = 2_000
STRANGERS_S = 20
"""How long the sources of a run that was not made here are looked for: it may name any number of them. Then its recording has to do."""
CARD_CHARS = 100_000
CALL_TEXT = 400
CALLS_TRIED = 20
_NUMBERED = re.compile(r"^\d+: ", re.MULTILINE)

ResultOf = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One evidence card. `text` has the cited hash or is empty; `left_out` counts the characters that did not fit on the card.

    `state`: verified (read again just now, or what a tool returned in a run of the user's own), changed (the source has another text
    now), recorded (the source was not read, the run's recording has the text), missing (neither has it), refused (the run was not made
    here, and the source lies outside of the places where it may be read). A source that a run which was not made here has in its own
    folder proves as little as its recording: it is `recorded` too, and `brought_in` names the folder. `snippet` is what the runtime
    noted when it proved the citation; it is unchecked.
    """

    ref: str
    state: Literal["verified", "changed", "recorded", "missing", "refused"]
    text: str = ""
    left_out: int = 0
    snippet: str = ""
    kind: str = ""
    path: str = ""
    start_line: int = 0
    end_line: int = 0
    excerpt_hash: str = ""
    signal: str = ""
    fallback: bool = False
    seen_at: int | None = None
    call: str = ""
    brought_in: str = ""
    redacted: bool = False

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def shown_excerpts(
    events: Iterable[Mapping[str, Any]],
    result_of: ResultOf | None = None,
    *,
    kept: str | None = None,
    within: Sequence[AnyPath],
    folder: Path | None = None,
    cache: Path | None = None,
) -> list[Shown]:
    """A card for every citation of a run. `result_of` gives the recorded result of a call by the number of its event; `kept` is the text
    of the file in which a run over a server has kept what it cites; `within` are the folders in which sources may be read
    (`consent.readable_places`); `folder` is the run's own; `cache` is where indexes of trace files are kept.
    """
    listed = list(events)
    calls = [event for event in listed if event.get("type") == "host_returned"]
    start = next((event for event in listed if event.get("type") == "run_started"), cast("Mapping[str, Any]", {}))
    cited: list[Mapping[str, Any]] = []  # what the code cited, and what the output points at
    for event in listed:
        if event.get("type") == "cited":
            cited.append(event["citation"])
        elif event.get("type") == "run_ended":
            output: Any = event.get("output")
            answer = isinstance(output, dict) and isinstance(cast("dict[str, Any]", output).get("citations"), list)
            cited += pointers(
                output["citations"] if answer else output
            )  # the rest of an answer is the model's own words
    cards: dict[str, Shown] = {}
    texts = {sha256_text(text): text for text in kept_trace(kept).texts}
    with ExitStack() as opened:
        sources = _CitedSources(start, calls, opened, within=within, cache=cache)
        for citation in cited:
            card = _card(citation, sources, calls, result_of or (lambda _number: None), folder)
            if card.state == "missing" and card.excerpt_hash in texts:
                card = _with(card, "recorded", texts[card.excerpt_hash])
            cards.setdefault(card.ref, card)
    return list(cards.values())


def shown_trace(
    events: Iterable[Mapping[str, Any]],
    result_of: ResultOf | None = None,
    *,
    kept: str | None = None,
    within: Sequence[AnyPath],
    cache: Path | None = None,
) -> dict[str, Any] | None:
    """The trace that a report is about, for the page's picture. Read like excerpts: from trace files, otherwise from the picture that a
    run over a server has kept (`kept` is the text of that file), otherwise from what the run recorded.
    """
    listed = list(events)
    start = next((event for event in listed if event.get("type") == "run_started"), cast("Mapping[str, Any]", {}))
    output: Any = next((event.get("output") for event in listed if event.get("type") == "run_ended"), None)
    trace_id = cast("dict[str, Any]", output).get("trace_id") if isinstance(output, dict) else None
    if not isinstance(trace_id, str):
        return None
    calls = [event for event in listed if event.get("type") == "host_returned"]
    found: Sequence[SpanSummary] = ()
    with ExitStack() as opened:
        store = _CitedSources(start, calls, opened, within=within, cache=cache).traces
        with suppress(SondeError):
            found = store.summaries(trace_id) if store is not None else ()
    state = "read"
    drawn = kept_trace(kept).picture
    if not found and drawn is not None and drawn.trace_id == trace_id and 0 < len(drawn.spans) <= SPANS:
        return {"state": "kept", **msgspec.to_builtins(drawn)}
    if not found and result_of is not None:
        state = "recorded"
        recorded = (row for call in calls[:CALLS_TRIED] for row in _span_rows(result_of(int(call["n"])), trace_id))
        found = list({row.span_id: row for row in islice(recorded, 100 * SPANS)}.values())
    picture = picture_of(trace_id, found, {str(each.get("span_id")) for each in pointers(output)})
    return {"state": state, **msgspec.to_builtins(picture)} if picture.spans else None


def kept_trace(text: str | None) -> KeptTrace:
    """What a run has kept of a server; nothing, if something else lies there: a folder may be a stranger's."""
    with suppress(msgspec.MsgspecError, RecursionError):
        return msgspec.json.decode(bounded((text or "{}").encode()), type=KeptTrace)
    return KeptTrace()


def _span_rows(value: Any, trace_id: str) -> Iterator[SpanSummary]:
    """The spans of a trace that a recorded result lists."""
    if isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _span_rows(item, trace_id)
    elif isinstance(value, dict):
        row = cast("dict[str, Any]", value)
        if row.get("trace_id") == trace_id and {"span_kind", "start_time", "latency_ms"} <= row.keys():
            with suppress(ValueError, OverflowError, TypeError):
                began = us_of_text(str(row["start_time"]))
                yield SpanSummary(
                    trace_id=trace_id,
                    span_id=str(row.get("span_id")),
                    parent_id=None if row.get("parent_id") is None else str(row["parent_id"]),
                    name=str(row.get("name")),
                    kind=str(row["span_kind"]),
                    status=str(row.get("status_code")),
                    status_message=str(row.get("status_message") or ""),
                    start_us=began,
                    end_us=began + int(float(row["latency_ms"]) * 1000),
                )
        else:
            for item in row.values():
                yield from _span_rows(item, trace_id)


def _card(
    citation: Mapping[str, Any],
    sources: _CitedSources,
    calls: Sequence[Mapping[str, Any]],
    result_of: ResultOf,
    folder: Path | None,
) -> Shown:
    path, start, end = (
        str(citation.get("path", "")),
        _line(citation, "start_line"),
        _line(citation, "end_line"),
    )
    wanted = str(citation.get("excerpt_hash", ""))
    showing = [call for call in calls if _showed(call, citation)]
    ref = str(citation.get("ref") or f"{path}:{start}-{end}")
    pointer = CallRef.read(ref)
    arguments: Any = citation.get("arguments")
    call = ""
    if pointer is not None and not path and isinstance(arguments, dict):
        call = clip(call_text(pointer.tool, cast("dict[str, Any]", arguments), start, end), CALL_TEXT)
    card = Shown(
        ref=ref,
        state="missing",
        snippet=str(citation.get("snippet", "")),
        kind=str(citation.get("kind", "")),
        path=path,
        start_line=start,
        end_line=end,
        excerpt_hash=wanted,
        signal=str(citation.get("signal", "")),
        fallback=bool(citation.get("fallback", False)),
        seen_at=showing[0].get("n") if showing else None,
        call=call,
    )
    if pointer is None or path:
        found = sources.texts(citation)
        for text, source in found or ():
            if sha256_text(text) == wanted:
                if folder is not None and not is_trusted(sources.within) and _overlap(source, folder):
                    return replace(_with(card, "recorded", text), brought_in=folder.resolve().name)
                return _with(card, "verified", text)
        if found is not None:
            card = replace(card, state="changed")
        elif sources.refused:
            card = replace(card, state="refused")
    for event in showing[:CALLS_TRIED]:
        for text in _recorded(result_of(int(event["n"])), event, card):
            if sha256_text(text) == wanted:
                # Only its recording holds what a tool returned; that proves something if the user made the recording.
                own = card.call and is_trusted(sources.within)
                return _with(card, "verified" if own else "changed" if card.state == "changed" else "recorded", text)
    return card


def _overlap(source: Path, folder: Path) -> bool:
    """Whether a source lies in a folder, or is one around it: traces are looked for in all of it."""
    real, own = source.resolve(), folder.resolve()
    return real.is_relative_to(own) or own.is_relative_to(real)


def _with(card: Shown, state: Literal["verified", "changed", "recorded"], text: str) -> Shown:
    return replace(card, state=state, text=text[:CARD_CHARS], left_out=max(0, len(text) - CARD_CHARS))


def _line(place: Mapping[str, Any], name: str) -> int:
    """A number of a line; 0 where a recording has something else."""
    value = place.get(name)
    return value if isinstance(value, int) else 0


def _showed(call: Mapping[str, Any], citation: Mapping[str, Any]) -> bool:
    """Whether this call returned the cited place."""
    path, line, ref = citation.get("path"), _line(citation, "start_line"), citation.get("ref")
    pointer = CallRef.read(str(ref))
    ref = pointer.base if pointer is not None else ref
    return any(
        (each.get("path") == path and _line(each, "start_line") <= line <= _line(each, "end_line"))
        if path
        else each.get("ref") == ref
        for each in call.get("excerpts", ())
    )


def _recorded(result: Any, call: Mapping[str, Any], card: Shown) -> Iterator[str]:
    """The texts in a recorded result that may be the cited one; the caller compares hashes."""
    pointer = CallRef.read(card.ref)
    if pointer is not None:
        text = pointer.cut(shown_text(result))
        yield from [] if text is None else [text]
    elif not card.path:
        yield from texts_in(result)
    else:
        rows = cast("list[Any]", result) if isinstance(result, list) else []
        pieces = [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
        if isinstance(result, str):
            pieces = [{**each, "text": result} for each in call["excerpts"] if each.get("path") == card.path]
        for piece in pieces:
            first, text = piece.get("start_line", piece.get("line")), piece.get("text")
            if isinstance(first, int) and isinstance(text, str) and first <= card.start_line:
                lines = text.split("\n")[card.start_line - first : card.end_line - first + 1]
                yield "\n".join(lines)
                yield _NUMBERED.sub("", "\n".join(lines))


class _CitedSources:
    """What the run looked at, as it is on this machine now. A source is opened when the first citation needs it."""

    def __init__(
        self,
        start: Mapping[str, Any],
        calls: Iterable[Mapping[str, Any]],
        opened: ExitStack,
        *,
        within: Sequence[AnyPath],
        cache: Path | None,
    ) -> None:
        self._settings: Mapping[str, Any] = start.get("settings") or {}
        self.within = within
        self.refused = False
        """Whether a source was not read because it lies outside."""
        if "mask" in self._settings:  # the sources hold the real values, and the page must not
            start = self._settings = {}
        self._places = [Path(place).resolve() for place in within]
        self._until = math.inf if is_trusted(within) else time.monotonic() + STRANGERS_S
        named = _roots([start.get("input_ref") or {}, self._settings])
        self._roots = [each for each in dict.fromkeys(named) if not self._is_late() and self._allows(each)]
        self._calls = calls
        self._opened = opened
        self._cache = cache

    def _allows(self, source: Path) -> bool:
        """Whether it lies where this run may be read."""
        if source.parts[1:2] == ("proc",):  # where a recording can name the folder of whoever reads it
            return False
        allowed = False
        with suppress(OSError, ValueError):  # no path at all, or one of links in a circle
            real = Path(followed(source))
            allowed = any(real.is_relative_to(place) for place in self._places)
        self.refused = self.refused or not allowed
        return allowed

    def _is_late(self) -> bool:
        return time.monotonic() > self._until

    def texts(self, citation: Mapping[str, Any]) -> list[tuple[str, Path]] | None:
        """What the cited place holds now, for each file that the path may mean, and where; None if the source is not here."""
        path, start = str(citation.get("path", "")), _line(citation, "start_line")
        if citation.get("kind") == EvidenceKind.CONFIG_DIFF.value:
            return self._diffs(str(citation.get("ref")))
        if path:
            end = _line(citation, "end_line")
            candidates = partial(_candidates, roots=self._roots, is_late=self._is_late)
            tried = [(file, "", False) for file in candidates(path)]
            for slash in (at for at, sign in enumerate(path[:LONGEST_PATH]) if sign == "/"):
                if path[:slash].lower().endswith(ARCHIVES):
                    tried += [(file, path[slash + 1 :], False) for file in candidates(path[:slash])]
            if path.lower().endswith(PAGE_SUFFIXES):  # runs over source code cite the markup
                tried += [(file, "", True) for file in candidates(path)]
            found = [
                (lines_of(file, start, end, member, as_it_is=raw), file)
                for file, member, raw in tried
                if not self._is_late()
            ]
            return [(text, file) for text, file in found if text is not None] if found and start > 0 else None
        if self.traces is None or citation.get("kind") not in {kind.value for kind in EvidenceKind}:
            return None
        excerpt = Excerpt(
            kind=EvidenceKind(citation["kind"]),
            ref=str(citation.get("ref")),
            hash="",
            span_id=str(citation.get("span_id")),
        )
        try:
            text = self._group(excerpt) if excerpt.ref.startswith(GROUP) else text_behind(excerpt, self.traces.span)
        except SondeError:
            text = None
        return [] if text is None else [(text, self.traces.source)]

    def _group(self, excerpt: Excerpt) -> str | None:
        """A group of failures that a question cites, counted again."""
        assert self.traces is not None, "the caller has looked"
        asked = self._asked
        start, end, condition = (
            None if asked.get(name) is None else str(asked[name]) for name in ("start", "end", "filter_expr")
        )
        query = query_of(start=start, end=end, filter_expr=condition)
        project = None if asked.get("project") not in self.traces.projects() else str(asked["project"])
        return QuestionContext([StorePart(store=self.traces, project=project)], query).reread(excerpt)

    @property
    def _asked(self) -> Mapping[str, Any]:
        """The traces of a question, as its recipe names them."""
        sources: Any = self._settings.get("sources")
        traces: Any = cast("dict[str, Any]", sources).get("traces") if isinstance(sources, dict) else None
        return cast("dict[str, Any]", traces) if isinstance(traces, dict) else {}

    @cached_property
    def traces(self) -> FileStore | None:
        """The trace files, unless they are on a server, gone, or more than a page should wait for."""
        several: Any = self._asked.get("sources")  # of several, one cannot tell whose span it is
        only = (
            cast("list[Any]", several)[0]
            if isinstance(several, list) and len(cast("list[Any]", several)) == 1
            else None
        )
        named = self._settings.get("source", only)
        if not isinstance(named, str) or is_server(named) or not os.path.isabs(named):  # noqa: PTH117  # text until it is known to be a path
            return None
        source = Path(named)
        if not self._allows(source):
            return None
        with suppress(SondeError, OSError, ValueError):
            if store_of(source) is not None:  # it needs no index, however large it is
                return self._opened.enter_context(FileStore(source))
            files = [source] if source.is_file() else list(islice(source.rglob("*"), TRACE_FILES + 1))
            sizes = [
                file.stat().st_size for file in files if file.is_file() and file.suffix in (*SUFFIXES, source.suffix)
            ]
            if len(files) <= TRACE_FILES and 0 < sum(sizes) <= LARGEST_TRACES:
                return self._opened.enter_context(FileStore(source, cache=self._cache))
        return None

    def _diffs(self, ref: str) -> list[tuple[str, Path]] | None:
        """The diffs that this ref may mean: between the snapshots that the run compared, and between each and the next."""
        folder = self._settings.get("configs")
        if not isinstance(folder, str) or not self._allows(Path(folder)):
            return None
        try:
            configs = ConfigSnapshots(Path(folder), project_name=str(self._settings.get("project") or ""))
        except (SondeError, OSError):
            return None
        rows = configs.list_config_snapshots(str(self._settings.get("project") or ""))
        compared = [
            str(each.get("path")) for call in self._calls for each in call.get("excerpts", ()) if each.get("ref") == ref
        ]
        compared += [f"{base['snapshot_id']}..{target['snapshot_id']}" for base, target in pairwise(rows)]
        excerpts = (Excerpt(kind=EvidenceKind.CONFIG_DIFF, ref=ref, hash="", path=each) for each in compared)
        return [(text, Path(folder)) for excerpt in excerpts if (text := configs.reread(excerpt)) is not None]


def _roots(places: Sequence[Mapping[str, Any]]) -> Iterator[Path]:
    """The folders, files and globs that the run was given."""
    for source in (*places, *(each["sources"] for each in places if isinstance(each.get("sources"), dict))):
        for name in ("paths", "roots", "root", "workspace"):
            value: Any = source.get(name) or []
            for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
                if isinstance(each, str) and not is_too_long(each) and os.path.isabs(each):  # noqa: PTH117  # text until it is known to be a path
                    yield Path(each)


def _candidates(path: str, roots: Iterable[Path], is_late: Callable[[], bool]) -> Iterator[Path]:
    """The files that a cited path may mean; each is inside a root, or matches it, even after links are followed."""
    seen: set[Path] = set()
    for root in () if is_too_long(path) else roots:
        for base in (root, *root.parents):
            if is_late():
                return
            with suppress(OSError, ValueError):  # a final value may call anything a path
                file = root if base == root and root.name == Path(path).name and root.is_file() else base / path
                if not os.path.lexists(file):  # one look at the disk, and `below` needs one for each folder on the way
                    continue
                if glob.has_magic(str(root)):
                    real = Path(followed(file))
                    fits = glob_pattern(str(root)).fullmatch(str(real).encode()) is not None and not secret_reason(
                        str(real)
                    )
                else:
                    real, fits = Path(below(root, file)), True
                if fits and real not in seen and real.is_file():
                    seen.add(real)
                    yield real


def lines_of(file: Path, start: int, end: int, member: str = "", *, as_it_is: bool = False) -> str | None:
    r"""Lines of a file or of an archive's member as a run reads them, from 1, both included, joined by `\n`; None if there are none."""
    try:
        state = file.stat()
        if not 0 < state.st_size <= LARGEST_FILE:  # files in /proc say 0 and may never end
            return None
        entry = Entry(file.name, state.st_size, state.st_mtime_ns, str(file), member)
        if member and secret_reason(member):
            return None
        with open_archive(entry).open(entry) if member else open_text(entry, as_it_is=as_it_is) as text:
            index = LineIndex.of(text)
            return read_lines(text, index, start, end) if 0 < start <= end <= index.total else None
    except (SondeError, OSError):
        return None
