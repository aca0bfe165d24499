"""The `ask` engine: a question about any context, answered with citations that are proved.

A final value may be text, `{"answer": ..., "citations": [...]}`, or data that fits the user's schema; `[path:12-14]`
in the text cites too, and so does the ref of a call of the user's own tools. Without a model, or when the model gave
nothing, the passages that bear on the question are shown, ranked and cited, and marked as found by CODE.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, NamedTuple, cast

from sonde.contexts import Showable
from sonde.contexts.files import FilesContext
from sonde.contexts.files.bm25 import HEART_LINES, Words, asked_names, definition_of, hearts, prior, stem
from sonde.contexts.files.grep import COUNTED
from sonde.core.budget import Budget
from sonde.core.calls import CallRef, how_to_cite
from sonde.core.canonical import clip, hash_value, jsonable
from sonde.core.evidence import Citation, Excerpt, Refuted, SpanCitation, merge
from sonde.core.schema import violations
from sonde.engines.submission import fields_of, items_of
from sonde.errors import Fault, SandboxViolation
from sonde.runtime.engine import LATE, NO_PREFILTER, Conclusion, Engine, Gathered, Prefilter, Problem
from sonde.runtime.feedback import was_shown
from sonde.runtime.prompts import prompt_file

_BRACKET = re.compile(r"\[([^\[\]\n]+)\](\(?)")
_INLINE = re.compile(r"([^:]+):(\d{1,9}(?:-\d{1,9})?(?:, ?\d{1,9}(?:-\d{1,9})?)*)")
_NUMBERED = re.compile(r"(?::\s*|#)(?:L|lines?\s)?\d", re.IGNORECASE)
_LINES = re.compile(
    r"(?:L|lines?\s)?(\d{1,9})(?:\s*(?:[-\u2010-\u2015\u2212]|to)\s*L?(\d{1,9}))?", re.IGNORECASE
)  # 9, L9, 9-12, 9–12
_AND = re.compile(r"[,;]| and ")
_PLACED = re.compile(r"(?<![^\s:])([^\s:]+):L?\d")
_NO_NAME = re.compile(r"[\s:\"'{}<>=|]|\.$")
_CALLS = re.compile(r"\[(tool:[^\[\]\n]+)\]")
_TRACED = re.compile(r"\[((?:span|group|tool|message|retrieval):[^\[\]\n]+)\]")
_TROUBLE = re.compile(r"\b(fail|wrong|br[eo]ke?|crash|outage|incident|problem|cause)", re.IGNORECASE)
_SIGNS = "error failed failure exception fatal critical panic"
_ORDINAL = re.compile(r"\b(first|earliest|oldest|last|latest|newest)\s+([^\W\d_]{3,})", re.IGNORECASE)
_TIMED = r"^\D{0,24}(?:\d{1,2} )?\d{2,4}[-/:]\d{2}\b"
MOST_LOGS = 20
TIME_CHARS = 8
PASSAGES = 8
MOST_DEFINITIONS = 200
PROSE = (".md", ".rst", ".txt", ".adoc", ".html", ".htm", ".ipynb")
MOST_RESULTS = 40
QUOTED_CHARS = 200
LOOKED_UP_LINES = 200
MAX_CITED = 500
"""How many different places of one final value are proved."""
OVERCITED = f"the answer cites more than {MAX_CITED} places; only the first {MAX_CITED} were checked"
KEPT_CHARS = 6_000
"""Data that is shown whole stays in the prompt for all turns if it has no more characters."""
SCARCE_TOKENS = 200_000
"""With fewer tokens left the model hears how many."""
BRIEF: dict[str, str | None] = {
    **{line.partition("(")[0]: line for line in prompt_file("engines/ask_functions").splitlines()},
    **dict.fromkeys(
        ("sub_rlm", "rlm_batch", "add_citation", "file_info", "nav_info", "budget", "append_highlight"), ""
    ),
    # Python, sub_rlm and rlm_batch do the same; a prompt with CONTEXT_INDEX names context_slice beside it.
    **dict.fromkeys(("slice_text", "context_slice", "delegate_subcall", "delegate_batch")),
}


class Pointer(NamedTuple):
    """Lines that a final value points at, and what for; for a tool call or a span, `path` is its ref and the lines are 0."""

    path: str
    start_line: int
    end_line: int
    signal: str = "reference"


def first_look(gathered: Gathered) -> Prefilter:
    """Small data whole and numbered, of large data the first lines: what the first prompt shows may be cited."""
    context = gathered.context
    if not gathered.room or not isinstance(context, Showable):
        return NO_PREFILTER
    head, whole = context.first_lines(), context.whole_text(gathered.room)
    if whole is None:
        return Prefilter(text=head.value, excerpts=head.excerpts)
    text = str(whole.value)
    if len(text) <= KEPT_CHARS:
        return Prefilter(text=f"All of it, each line with its number:\n{text}", excerpts=whole.excerpts)
    shown = f"All of it, each line with its number, shown only this once:\n{text}"
    later = f"{head.value}\n(You were shown all of it once; now read it with the functions.)".strip()
    return Prefilter(text=shown, later=later, excerpts=whole.excerpts)


def left_line(left: Mapping[str, Any], *, elapsed_s: float, wall_s: float) -> str:
    """The turns; the rest only when it becomes scarce, because every line is sent again with each turn."""
    seconds, usd = max(0.0, wall_s - elapsed_s), left.get("cost_usd")
    parts = [f"{left['iterations']} turns"]
    parts += [f"{left['tokens']:,} tokens"] if left["tokens"] < SCARCE_TOKENS else []
    parts += [f"{left['tool_calls']} tool calls"] if left["tool_calls"] < 100 else []
    parts += [f"{left['subcalls']} sub-calls"] if left["subcalls"] < 30 and left.get("depth", 1) > 0 else []
    parts += [f"{usd:.4f} USD"] if usd is not None and usd < 0.25 else []
    parts += [f"{seconds:.0f} s of running time"] if seconds < 120 else []
    return f"Left: {', '.join(parts)}."


def conclude(value: Any, gathered: Gathered, *, look: bool = True) -> Conclusion:
    """What a final value amounts to: text, proved citations, and what is wrong.

    With `look`, cited lines that no tool has returned are read now; unless the code has printed them, the model is shown them once.
    """
    text, pointers = _read(value, gathered)
    problems: list[Problem] = []
    wrong: list[str] = []
    if gathered.schema is not None:
        mask = gathered.mask  # the schema is about the value that the user gets
        plain = jsonable(value)
        if mask is None or not mask.handed(plain):
            wrong = violations(plain, gathered.schema)
        else:
            wrong = violations(mask.restored_value(plain), gathered.schema, quote=False)
        if wrong:
            reason = "the final value does not fit the schema: " + "; ".join(wrong)
            problems.append(Problem(gate="schema", reason=reason))
    noted = [
        Pointer(c.path, c.start_line, c.end_line, c.signal)
        if c.path
        else Pointer(c.place if isinstance(c, SpanCitation) else c.ref, 0, 0, c.signal)
        for c in gathered.citations
        if not c.fallback
    ]
    exact = _results(value, gathered)
    # What looks like a citation in a tool's own result is not one of the model's.
    citations, refuted = _prove(chain(noted, exact or pointers), gathered, look=look)
    problems.extend(Problem.of(each) for each in refuted)
    if not text.strip() and value in (None, "", [], {}):
        problems.append(Problem(gate="schema", reason="the final value is empty"))
    if not citations and not refuted:
        reason = "the answer has no citation"
        told = f"{reason}: write [path:start-end] in it for lines that you have read and that prove it"
        if given := gathered.registry.given:
            told += f"; {how_to_cite(given, _refs(gathered))}"
        elif _has_traces(gathered):
            told = f"{reason}: write [span:ID] in it for a span that proves it, or [group:ID] for a group"
        elif gathered.calls:
            told += f"; what a tool returned without lines is cited by its call: [{gathered.calls[-1]}]"
        told += ". If the data does not say, cite what you looked at"
        problems.append(Problem(gate="citations", reason=reason, told=told))
    if wrong:
        return Conclusion(output=None, text=text, problems=tuple(problems))
    return replace(answered(text, citations, gathered, value=jsonable(value)), problems=tuple(problems))


def answered(text: str, citations: Sequence[Citation], gathered: Gathered, *, value: Any = None) -> Conclusion:
    """An answer in the form in which every run that answers has its output."""
    output = {
        "answer": text,
        "value": value,
        "citations": [citation.model_dump(mode="json") for citation in citations],
        "highlights": list(gathered.highlights),
    }
    return Conclusion(output=output, text=text, citations=tuple(citations))


def _results(value: Any, gathered: Gathered) -> list[Pointer]:
    """What proves an answer that is exactly what a tool returned: the lines that it returned, or the call itself."""
    answer = cast("Mapping[str, Any]", value).get("answer", value) if isinstance(value, Mapping) else value
    keys = (hash_value(jsonable(value)), hash_value(jsonable(answer)))
    found = next((gathered.results[key] for key in keys if key in gathered.results), ())
    return [
        Pointer(each.path, each.start_line, each.end_line, "result") if each.path else Pointer(each.ref, 0, 0, "result")
        for each in found[:MOST_RESULTS]
        if each.path or CallRef.read(each.ref) is not None
    ]


def conclude_child(value: Any, gathered: Gathered) -> Conclusion:
    """A child hands back its value as it is, with the gaps that it names; its citations are those it has proved."""
    text, pointers = _read(value, gathered)
    proved, refuted = _prove(pointers, gathered, look=True)
    citations = tuple(merge(gathered.citations, proved))
    problems = tuple(Problem.of(each) for each in refuted)
    gaps = tuple(str(gap) for gap in items_of(fields_of(value).get("gaps")))
    return Conclusion(output=jsonable(value), text=text, citations=citations, gaps=gaps, problems=problems)


def _refs(gathered: Gathered) -> list[str]:
    return gathered.prover.log.call_refs()


def _has_traces(gathered: Gathered) -> bool:
    return "get_span" in gathered.registry.names


def _read(value: Any, gathered: Gathered) -> tuple[str, Iterable[Pointer | Refuted]]:
    """The text of a final value, and the places that it cites, read one by one: there can be millions."""
    if isinstance(value, Mapping):
        fields = cast("Mapping[str, Any]", value)
        answer = fields.get("answer", fields.get("summary"))
        text = answer if isinstance(answer, str) else json.dumps(jsonable(value), ensure_ascii=False)
        return text, chain(_listed(items_of(fields.get("citations")), gathered), _inline(text, gathered))
    text = value if isinstance(value, str) else "" if value is None else json.dumps(jsonable(value), ensure_ascii=False)
    return text, _inline(text, gathered)


def _listed(items: Iterable[Any], gathered: Gathered) -> Iterator[Pointer | Refuted]:
    for item in items:
        match item:
            case {"ref": str(ref), **rest} | {"path": str(ref), **rest} if ref.startswith("tool:"):
                yield Pointer(ref, 0, 0, str(rest.get("signal") or "reference"))
            case {"span_id": str(span_id), **rest} if _has_traces(gathered):
                yield Pointer(f"span:{span_id}", 0, 0, str(rest.get("signal") or "reference"))
            case {"path": str(path), "start_line": int(start), **rest}:
                end = rest.get("end_line", start)
                signal = str(rest.get("signal") or "reference")
                yield Pointer(path, start, end if isinstance(end, int) else start, signal)
            case str():
                yield from _inline(f"[{item.strip('[]')}]", gathered)
            case _:
                continue


def _inline(text: str, gathered: Gathered) -> Iterator[Pointer | Refuted]:
    """Places cited in a text. A ref of a call may be invented; one that names no tool of the user is prose."""
    given = gathered.registry.given
    for cited in _CALLS.finditer(text):
        for ref in map(str.strip, re.split(r"[,;]", cited[1])):
            if ref.startswith("tool:") and (CallRef.read(ref) is not None or ref.split(":")[1] in given):
                yield Pointer(ref, 0, 0)
    for cited in _TRACED.finditer(text) if _has_traces(gathered) else ():
        form = ""
        for part in map(str.strip, re.split(r"[,;]", cited[1])):  # [span:A, B] cites two spans
            form = form if ":" not in part else part.partition(":")[0]
            ref = part if ":" in part else f"{form}:{part}"
            if part and not (form == "tool" and (CallRef.read(ref) is not None or ref.split(":")[1] in given)):
                yield Pointer(ref, 0, 0)
    pieces = text.split("```")
    for number, piece in enumerate(pieces):
        code = number % 2 == 1 and number < len(pieces) - 1
        for cited in _BRACKET.finditer(piece):
            if _NUMBERED.search(cited[1]):
                yield from _bracketed(cited[1].strip(), gathered, code=code, link=bool(cited[2]))


def _bracketed(text: str, gathered: Gathered, *, code: bool, link: bool) -> Iterator[Pointer | Refuted]:
    """The lines that a bracket cites: three places in `[a.log:1, 5; b.log:2]`, none in `[12:30]`. A file with lines that cannot be
    read is refuted, but not in code and in the text of a Markdown link.
    """
    reason = f"[{clip(text, 80)}] cannot be read as a citation"
    refuted = [] if code or link else [Refuted(reason, f"{reason}; write [path:start-end], and one bracket per file")]
    exact = _INLINE.fullmatch(text)
    name = exact[1].strip() if exact else ""
    parts = [] if exact and (_is_file(name, gathered) or not _AND.search(name)) else _AND.split(text)
    path, cited, without_lines = "", False, False
    for part in (each.strip(" \t*`\\") for each in parts):
        before, _, after = re.sub(r"#L(?=\d)", ":", part).rpartition(":")
        lines = _LINES.fullmatch(after.strip())
        if lines is not None:
            if before:
                path = before.strip()
                path = path if _is_file(path, gathered) or (not code and _looks_like_path(path)) else ""
            if path:
                cited = True
                yield Pointer(path, int(lines[1]), int(lines[2] or lines[1]))
            continue
        first, _, rest = part.partition(":")
        unread = rest[:1].isdigit() and not re.search(r"[^\W\d]|[/%]", rest) and _looks_like_path(first)
        if unread or any(_is_file(each[1], gathered) for each in _PLACED.finditer(part)):
            cited = True
            yield from refuted
        without_lines = without_lines or _is_file(part, gathered) or _looks_like_path(part)
    if cited and without_lines:
        yield from refuted
    if exact and not cited and ("." in name or "/" in name or _is_file(name, gathered)):
        for place in exact[2].split(","):
            start, _, end = place.strip().partition("-")
            yield Pointer(name, int(start), int(end or start))


def _is_file(name: str, gathered: Gathered) -> bool:
    context = gathered.context
    return gathered.prover.log.has_path(name) or (isinstance(context, FilesContext) and name in context.library.entries)


def _looks_like_path(name: str) -> bool:
    """Whether a word names a file, of the data or not; `1.5`, `16/Nov/2026` and `"a.log"` do not."""
    last = name.rpartition("/")[2]
    return not _NO_NAME.search(name) and bool(re.search(r"\.[^\W\d]", last) or ("/" in name and last[:1].isalpha()))


def _prove(
    pointers: Iterable[Pointer | Refuted], gathered: Gathered, *, look: bool
) -> tuple[list[Citation], list[Refuted]]:
    proved: list[Citation] = []
    refuted: list[Refuted] = []
    given: dict[Pointer | Refuted, None] = {}
    for pointer in pointers:
        given[pointer] = None
        if len(given) > MAX_CITED or gathered.prover.late():
            break
    for pointer in dict.fromkeys(_named(islice(given, MAX_CITED), gathered)):
        if isinstance(pointer, Refuted):
            refuted.append(pointer)
            continue
        if _has_traces(gathered) and CallRef.read(pointer.path) is None and _TRACED.fullmatch(f"[{pointer.path}]"):
            found = _traced(pointer, gathered, look=look)
        elif pointer.path.startswith("tool:"):
            found = gathered.prover.call(pointer.path, signal=pointer.signal)
        else:
            found = gathered.prover.lines(pointer.path, pointer.start_line, pointer.end_line, signal=pointer.signal)
            if isinstance(found, Refuted) and pointer.path in gathered.registry.given:
                how = how_to_cite([pointer.path], _refs(gathered))
                reason = f"{pointer.path} is a tool and no file"
                found = Refuted(reason, f"{reason}; {how}")
            elif isinstance(found, Refuted) and found.unseen and look:
                found = _looked_up(pointer, found, gathered)
        if isinstance(found, Citation) and (why := gathered.denied.get(found.place)):
            found = why
        if isinstance(found, Refuted):
            refuted.append(found)
        else:
            proved.append(found)
    if len(given) > MAX_CITED:
        refuted.insert(0, Refuted(OVERCITED, f"{OVERCITED}. Cite the fewest lines that prove each claim"))
    if proved and gathered.confirms:  # a blank line beside lines that hold is nothing to send an answer back for
        refuted = [each for each in refuted if not each.blank]
    return merge(proved), sorted(dict.fromkeys(refuted), key=lambda each: each is not LATE)  # only the first are listed


def _traced(pointer: Pointer, gathered: Gathered, *, look: bool) -> Citation | Refuted:
    """A span, something in one, or a group; a span that no tool has returned is read now."""
    found = gathered.prover.traced(pointer.path, signal=pointer.signal)
    if not isinstance(found, Refuted) or not found.unseen or not look:
        return found
    form, _, rest = pointer.path.partition(":")
    reads = {"tool": "get_tool_io", "message": "get_messages", "retrieval": "get_retrieval_chunks"}
    try:
        result = gathered.registry.call(reads.get(form, "get_span"), {"span_id": rest.partition(":")[0]})
    except Fault as fault:
        return Refuted(f"[{pointer.path}]: {fault.message.partition(chr(10))[0].partition(': ')[2]}")
    gathered.prover.log.note(result.excerpts)
    return gathered.prover.traced(pointer.path, signal=pointer.signal)


def _named(pointers: Iterable[Pointer | Refuted], gathered: Gathered) -> Iterator[Pointer | Refuted]:
    """Each pointer with the name that the tools use, where it begins with folders that they leave out, or leaves out some of theirs."""
    paths = gathered.prover.log.paths() if gathered.confirms else []
    names = {path: path for path in paths}
    for pointer in pointers:
        if isinstance(pointer, Refuted):
            yield pointer
            continue
        if pointer.path not in names:
            end = f"/{pointer.path}"
            near = [path for path in paths if f"/{path}".endswith(end) or end.endswith(f"/{path}")]
            names[pointer.path] = near[0] if len(near) == 1 else pointer.path
        yield pointer._replace(path=names[pointer.path])


def _looked_up(pointer: Pointer, refuted: Refuted, gathered: Gathered) -> Citation | Refuted:
    """Lines that code took from CONTEXT: read now, and proved at once if they were printed; else shown for confirmation."""
    path, start, end, signal = pointer
    if "read_file" not in gathered.registry.names or not 0 < start <= end <= start + LOOKED_UP_LINES:
        return refuted
    try:
        result = gathered.registry.call("read_file", {"path": path, "start_line": start, "end_line": end})
    except (Fault, SandboxViolation) as fault:  # a place that only the value names: no code has tried to read it
        why = fault.message.partition("\n")[0].removeprefix("read_file: ")  # not how to call it: nobody did
        return Refuted(f"{path}:{start}-{end}: {why}")
    gathered.prover.log.note(result.excerpts)
    found = gathered.prover.lines(path, start, end, signal=signal)
    if isinstance(found, Refuted) or gathered.confirms or was_shown(str(result.result), gathered.printed):
        return found
    reason = f"the model cited {path}:{start}-{end} without having read it"
    told = f"{path}:{start}-{end} was not shown to you yet. It reads: {clip(str(result.result), 400)}"
    return Refuted(reason, told, confirmable=True)


def fallback(gathered: Gathered) -> Conclusion:
    """The passages that bear on the question, ranked and cited; honest about being no answer."""
    passages: list[Citation] = []
    if "search" in gathered.registry.names and gathered.objective.strip():
        first = [*_at_an_end(gathered), *_definitions(gathered)]
        passages = merge(first, _found(gathered.objective, gathered))[:PASSAGES]
        if not passages and _TROUBLE.search(
            gathered.objective
        ):  # a question about trouble seldom has the words of errors
            passages = _found(_SIGNS, gathered)
    kept = [citation for citation in gathered.citations if not citation.fallback]
    citations = tuple(merge(kept, passages))
    lines = [_quoted(number, citation, gathered) for number, citation in enumerate(citations, 1)]
    lines += [f"- {highlight}" for highlight in gathered.highlights]
    if not lines:
        lines = _uncited(gathered)
    if lines:
        head = "No model has answered this question. These passages bear on it:"
    elif not isinstance(gathered.context, FilesContext):
        head = "No model has answered this question, and nothing that was given shares a word with it."
    elif count := len(gathered.context.library.entries):
        files = "the file" if count == 1 else f"the {count:,} files"
        head = f"No model has answered this question, and no text in {files} shares a word with it; other words may."
    else:
        head = "No model has answered this question, and there is no file to look into: no PATH was given, or it holds none."
    return answered("\n\n".join([head, *lines]), citations, gathered)


def _quoted(number: int, citation: Citation, gathered: Gathered) -> str:
    """A citation with its lines, each on its own and indented, which Markdown shows as they are."""
    if not citation.path:
        return f"[{number}] {citation.place}: {citation.snippet}"
    excerpt = Excerpt.of_lines(citation.path, citation.start_line, citation.end_line, "")
    text = textwrap.dedent((gathered.prover.reread(excerpt) or citation.snippet).expandtabs(4))
    stems = Words(gathered.objective).weight
    shown: list[str] = []
    for line in text.split("\n"):
        places = (line.lower().find(each) for each in stems)
        at = min((place for place in places if place >= 0), default=0)
        begin = max(0, min(at - QUOTED_CHARS // 2, len(line) - QUOTED_CHARS))
        end = begin + QUOTED_CHARS
        shown.append(f"    {'…' if begin else ''}{line[begin:end].rstrip()}{'…' if end < len(line) else ''}".rstrip())
    return "\n".join([f"[{number}] {citation.heading}", "", *shown])


def _uncited(gathered: Gathered) -> list[str]:
    """Found parts of lines that are too long to be read whole, and so to be proved: a file of JSON without line ends, for example."""
    try:
        rows = gathered.registry.call("search", {"query": gathered.objective, "limit": 1}).result
    except Fault:
        return []
    shown: list[str] = []
    for row in rows:
        part = re.sub(r"\s+", " ", row["text"])
        at = min((at for each in Words(gathered.objective).weight if (at := part.lower().find(each)) >= 0), default=0)
        begin = max(0, at - QUOTED_CHARS // 2)
        quoted = f"…{part[begin : begin + QUOTED_CHARS]}…"
        shown.append(f"{row['path']}:{row['start_line']} (the line is too long to be cited)\n\n    {quoted}")
    return shown


def _at_an_end(gathered: Gathered) -> list[Citation]:
    """For "the first error" or "the last timeout": that line of the logs, by time. Ranking knows nothing of order."""
    asked = _ORDINAL.search(gathered.objective)
    if asked is None or not isinstance(gathered.context, FilesContext) or "grep" not in gathered.registry.names:
        return []
    first, word = asked[1].lower() in ("first", "earliest", "oldest"), stem(asked[2].lower())
    found: list[tuple[str, Citation]] = []
    for entry in gathered.context.library.listing.texts[:MOST_LOGS]:
        for level in (word.upper(), f"(?i:{word})"):  # ERROR is a level; "no error yet" is prose
            pattern = rf"{_TIMED}.*\b{level}"
            wanted = {"pattern": pattern, "path": entry.path, "max_matches": 1 if first else COUNTED}
            try:
                result = gathered.registry.call("grep", wanted)
            except Fault:
                break
            if result.result and (first or result.truncated is None):
                row = result.result[0 if first else -1]
                gathered.prover.log.note(result.excerpts)
                proved = gathered.prover.lines(entry.path, row["line"], row["line"], signal="file_reference")
                if isinstance(proved, Citation):
                    found.append((row["text"], proved.model_copy(update={"fallback": True})))
                break
    found.sort(key=lambda each: each[0], reverse=not first)
    forms = {re.sub(r"\d", "0", text[:TIME_CHARS]) for text, _ in found}
    sorted_by_time = len(forms) == 1 and not found[0][0][:1].isalpha()  # Nov comes after Dec
    return [citation for _, citation in found[: 1 if sorted_by_time else 3]]


def _definitions(gathered: Gathered) -> list[Citation]:
    """Where what the question names is defined: source before tests and prose, outer definitions before inner ones."""
    names = asked_names(gathered.objective)
    files = {"grep", "read_file"}.intersection(gathered.registry.names).difference(gathered.registry.given)
    if not names or len(files) < 2:
        return []
    try:
        result = gathered.registry.call("grep", {"pattern": definition_of(names), "max_matches": MOST_DEFINITIONS})
    except Fault:
        return []

    def order(row: Mapping[str, Any]) -> tuple[bool, bool, int]:
        path, text = row["path"], row["text"]
        return prior(path, ()) < 1, path.lower().endswith(PROSE), len(text) - len(text.lstrip())

    found: list[Citation] = []
    left = dict.fromkeys(names, 2)
    for row in sorted(result.result, key=order):
        name = next((each for each in names if re.search(rf"\b{each}\b", row["text"])), "")
        if not left.get(name):
            continue
        left[name] -= 1
        path, start = row["path"], row["line"]
        wanted = {"path": path, "start_line": start, "end_line": start + HEART_LINES - 1}
        try:
            read = gathered.registry.call("read_file", wanted)
        except Fault:
            continue
        gathered.prover.log.note(read.excerpts)
        end = start + str(read.result).rstrip().count("\n")
        proved = gathered.prover.lines(path, start, end, signal="file_reference")
        if isinstance(proved, Citation):
            found.append(proved.model_copy(update={"fallback": True}))
    return found[: PASSAGES // 2]


def _found(query: str, gathered: Gathered) -> list[Citation]:
    """The best passages for the words of a query, each cut to the lines that bear most on it, proved."""
    try:
        result = gathered.registry.call("search", {"query": query, "limit": PASSAGES})
    except Fault:
        return []
    gathered.prover.log.note(result.excerpts)
    passages = [(each, gathered.prover.reread(each) or "") for each in result.excerpts if each.path]
    found: list[Citation] = []
    chosen = hearts([(excerpt.path, text) for excerpt, text in passages], query)
    for (excerpt, _), (first, last) in zip(passages, chosen, strict=True):
        start, end = excerpt.start_line + first, excerpt.start_line + last
        proved = gathered.prover.lines(excerpt.path, start, end, signal="file_reference")
        if isinstance(proved, Citation):
            found.append(proved.model_copy(update={"fallback": True}))
    return found


ASK = Engine(
    name="ask",
    run_type="ask",
    output_type="Answer",
    system=prompt_file("engines/ask"),
    templates=(prompt_file("engines/ask_functions"),),
    prefilter=first_look,
    brief=BRIEF,
    left_line=left_line,
    child=prompt_file("engines/child"),
    budget=Budget(),
    maxima=None,
    conclude=conclude,
    conclude_child=conclude_child,
    fallback=fallback,
    fails_without_reply=True,
    answers=True,
    thinks=True,
    frugal=True,
    confirms=True,
    profile="general",
    final_example='FINAL("The answer, in plain words. [path/file.py:10-12]")',
)
