"""The source text behind a citation, read again: only for places that the run itself cites, only below the folders that it was given, and
only when the text still has the hash that was recorded. Otherwise the short snippet of the recording is shown, and said to be that. What
a tool of the user returned is read again from the recording, with its tool and arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from sonde.core.calls import CallRef, call_text, shown_text
from sonde.core.canonical import clip, sha256_text
from sonde.runs.rundir import pretty_json

LARGEST_FILE = 64 << 20
RECORDED_TEXT = 4_000
RETURNED_TEXT = 20_000
CALL_TEXT = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """An excerpt for the page. `state`: verified (read again, hash fits), changed (it does not), missing, or recorded (not a file)."""

    ref: str
    state: Literal["verified", "changed", "missing", "recorded"]
    text: str
    path: str = ""
    start_line: int = 0
    end_line: int = 0
    excerpt_hash: str = ""
    signal: str = ""
    fallback: bool = False
    seen_at: int | None = None
    call: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def shown_excerpts(events: Iterable[Mapping[str, Any]], result_of: Callable[[int], Any] | None = None) -> list[Shown]:
    """Every citation of a run with its text; `result_of` gives the recorded result of a call by its number."""
    listed = list(events)
    roots = list(_roots(listed))
    calls = [event for event in listed if event.get("type") == "host_returned"]
    cited: dict[str, Shown] = {}
    for citation in _citations(listed):
        shown = _show(citation, roots, calls)
        if shown.call and shown.seen_at is not None and result_of is not None:
            shown = _returned(shown, result_of(shown.seen_at))
        if not shown.text and shown.seen_at is not None and result_of is not None:
            shown = replace(shown, text=_recorded(result_of(shown.seen_at)))
        cited.setdefault(shown.ref, shown)
    return list(cited.values())


def _returned(shown: Shown, result: Any) -> Shown:
    """A cited call with the text that the recording holds, if it still has the cited hash."""
    pointer = CallRef.read(shown.ref)
    text = pointer.cut(shown_text(result)) if pointer is not None else None
    if text is None or sha256_text(text) != shown.excerpt_hash:
        return replace(shown, state="changed")
    shown_now = clip(text, RETURNED_TEXT) if isinstance(result, str) else _recorded(result)
    return replace(shown, state="verified", text=shown_now)


def _recorded(result: Any) -> str:
    text = result if isinstance(result, str) else pretty_json(result).decode().rstrip()
    return clip(text, RECORDED_TEXT)


def _citations(events: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """What the code cited on its way, and what the output points at."""
    for event in events:
        if event.get("type") == "cited":
            yield event["citation"]
        elif event.get("type") == "run_ended":
            yield from _pointers(event.get("output"))


def _pointers(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if isinstance(fields.get("excerpt_hash"), str) and _sound(fields):
            yield fields
        else:
            for item in fields.values():
                yield from _pointers(item)
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _pointers(item)


def _sound(fields: Mapping[str, Any]) -> bool:
    """Whether this can be a citation: a final value may hold anything under the same names."""
    lines = (fields.get(name, 0) for name in ("start_line", "end_line"))
    return all(isinstance(line, int) for line in lines) and isinstance(fields.get("path", ""), str)


def _roots(events: Iterable[Mapping[str, Any]]) -> Iterator[Path]:
    """The folders and files that the run was given; for a glob, the folder in which it looks."""
    starts = [event for event in events if event.get("type") == "run_started"]
    places: list[Any] = [start.get(name) or {} for start in starts[:1] for name in ("input_ref", "settings")]
    places += [place["sources"] for place in places if isinstance(place.get("sources"), dict)]
    for source in places:
        for name in ("paths", "roots", "root", "workspace"):
            value: Any = source.get(name) or []
            for each in cast("list[Any]", value) if isinstance(value, list) else [value]:
                if isinstance(each, str) and os.path.isabs(each):  # noqa: PTH117  # text until it is known to be a path
                    before, star, _ = each.partition("*")
                    yield Path(f"{before}*").parent if star else Path(each)


def _show(citation: Mapping[str, Any], roots: Iterable[Path], calls: Iterable[Mapping[str, Any]]) -> Shown:
    path, start, end = (
        str(citation.get("path", "")),
        int(citation.get("start_line", 0)),
        int(citation.get("end_line", 0)),
    )
    wanted = str(citation.get("excerpt_hash", ""))
    found = [lines_of(file, start, end) for file in _candidates(path, roots)] if path and start > 0 else []
    fitting = next((text for text in found if text is not None and sha256_text(text) == wanted), None)
    state = "verified" if fitting is not None else "changed" if found else "missing" if path else "recorded"
    return Shown(
        ref=str(citation.get("ref") or f"{path}:{start}-{end}"),
        state=state,
        text=fitting if fitting is not None else str(citation.get("snippet", "")),
        path=path,
        start_line=start,
        end_line=end,
        excerpt_hash=wanted,
        signal=str(citation.get("signal", "")),
        fallback=bool(citation.get("fallback", False)),
        seen_at=next((call.get("n") for call in calls if _showed(call, citation)), None),
        call=_called(citation, start, end),
    )


def _called(citation: Mapping[str, Any], start: int, end: int) -> str:
    """The call behind a citation of a user's tool, as code writes it."""
    arguments: Any = citation.get("arguments")
    if not isinstance(arguments, dict):
        return ""
    return clip(call_text(str(citation.get("tool")), cast("dict[str, Any]", arguments), start, end), CALL_TEXT)


def _showed(call: Mapping[str, Any], citation: Mapping[str, Any]) -> bool:
    """Whether this call returned the cited place."""
    path, line, ref = citation.get("path"), int(citation.get("start_line", 0)), citation.get("ref")
    pointer = CallRef.read(str(ref))
    ref = pointer.base if pointer is not None else ref
    return any(
        (each.get("path") == path and int(each.get("start_line", 0)) <= line <= int(each.get("end_line", 0)))
        if path
        else each.get("ref") == ref
        for each in call.get("excerpts", ())
    )


def _candidates(path: str, roots: Iterable[Path]) -> Iterator[Path]:
    """The files that this cited path may mean; each lies below a root also after its links are followed."""
    for root in roots:
        for file in (root / path, *(above / path for above in root.parents), root):
            with suppress(OSError, ValueError):  # a final value may call anything a path
                real, top = file.resolve(), root.resolve()
                inside = real == top or top in real.parents
                if inside and real.is_file() and real.as_posix().endswith(Path(path).name):
                    yield real


def lines_of(file: Path, start: int, end: int) -> str | None:
    r"""Lines of a file, from 1, both included, joined by `\n`; None when it cannot be read."""
    try:
        if not 0 < file.stat().st_size <= LARGEST_FILE:  # 0: files of /proc say so, and may never end
            return None
        with file.open("rb") as opened:
            text = opened.read(LARGEST_FILE).decode("utf-8-sig", "replace")
    except OSError:
        return None
    return "\n".join(line.removesuffix("\r") for line in text.split("\n")[start - 1 : end])
