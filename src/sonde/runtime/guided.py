"""Guided sessions: typed actions for models that are too weak to be left alone (mode `guided`; what `local:` models get).

The schema of each reply is made from the tools, the words of the question and the files seen, and a grammar holds a local model to it.
The first look is the runtime's own. A repeated action forces the end: from then on only `finalize` fits. An answer that does not occur
in what was shown is refused; the model may then copy one, and if that fails too, the run ends partial with the passages found. This
does not make a weak model clever: an answer that occurs may still be wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from sonde.core.calls import shown_text
from sonde.core.canonical import canonical_json, clip, jsonable
from sonde.core.evidence import Citation
from sonde.runtime.actions import Action, CallTool
from sonde.runtime.engine import Conclusion, Gathered, Judge, Problem
from sonde.runtime.occurrence import TOKEN, ShownLine, Support, about, copies, fitting, support, terms
from sonde.tools import ToolRegistry

REPLY_TOKENS = 160
HISTORY_TOKENS = 3000
"""Small models read little, and lose the question long before their window ends."""
SHOWN_LINES = 6
LINE_CHARS = 240
ANSWER_CHARS = 200
QUESTION_CHARS = 1500
COPY_SHARE = 0.5
CHOICES = 24
EXAMPLES = 3
NEAR_LINES = 2
BY_OFFSET = frozenset({"slice_text", "context_slice"})  # they ask for numbers that weak models invent
SETTLED: Mapping[str, Mapping[str, Any]] = {"grep": {"max_matches": 1000, "flags": "F"}}
"""Arguments that the model does not choose: counts must be complete, and weak models do not write patterns."""

_QUOTED = re.compile(r"\"([^\"]+)\"|(?<!\w)'([^']+)'(?!\w)|`([^`]+)`")
_FILE = re.compile(r"\.\w{1,5}$")
COUNTS = re.compile(r"\bhow (?:many|often)\b|\b(?:number|count) of\b", re.IGNORECASE)
COUNTED = re.compile(r"\b(?:lines|rows|times|entries|matches|occurrences)\b", re.IGNORECASE)
"""Both together, or the first with an exact name, mark a question that only counting answers."""
USES = re.compile(r"\b(?:uses?|used|using|calls?|called|imports?|imported)\b", re.IGNORECASE)
DEFINITION = (
    r"\b(?:def|class|func|fn|function|struct|interface|enum|const|let|var)\s+{name}\b|^\s*{name}\s*(?::[^=]*)?="
)
DONE_ALREADY = "That was done already. Finish now with what the text says."
COPY = "Not accepted: {reason}. Copy the words of the text that answer the question."
NOTHING = "{name} found nothing."


class Guide:
    """What a guided session may say next, what it was shown, and whether an answer holds."""

    def __init__(self, question: str, registry: ToolRegistry, output: Mapping[str, Any] | None = None) -> None:
        self.question = clip(" ".join(question.split()), QUESTION_CHARS)
        self.registry = registry
        self.tools = tuple(
            each
            for each in registry.tools
            if each.name not in BY_OFFSET
            and all(one.type in (str, int, bool) for one in each.parameters if one.required)
        )
        exact = bool(names(self.question)) or COUNTED.search(self.question) is not None
        self.counts = exact and COUNTS.search(self.question) is not None and bool(phrases(self.question))
        self.lines: list[ShownLine] = []
        self.ending = False
        self._looks = self._first_looks()
        self._output = output
        self._done: set[str] = set()
        self.copying = False

    @property
    def prompt(self) -> str:
        """The tools in one line each."""
        return "\n".join(f"{each.name}: {each.doc.partition('.')[0].partition('[')[0].strip()}." for each in self.tools)

    def look(self) -> CallTool | None:
        """The next first look, which needs no model, until one has found something; then None: it is the model's turn."""
        return None if self.lines else next(self._looks, None)

    def _first_looks(self) -> Iterator[CallTool]:
        """Grep for what the question counts or names exactly, a definition first; then search for the question."""
        exact = phrases(self.question)[:1] if self.counts else names(self.question)[:1]
        patterns = [{"pattern": name} for name in exact]
        if exact and exact[0].isidentifier() and not self.counts and not USES.search(self.question):
            patterns.insert(0, {"pattern": DEFINITION.format(name=exact[0]), "flags": ""})
        for args in patterns if "grep" in self.registry.names else ():
            yield CallTool(tool_name="grep", args=args)
        if "search" in self.registry.names and terms(self.question):
            yield CallTool(tool_name="search", args={"query": self.question})

    def schema(self, *, last: bool) -> dict[str, Any]:
        """What the next reply must fit: any action, or the final one only."""
        if last or self.ending or not self.tools:
            return self._finalize()
        calls: list[dict[str, Any]] = []
        for tool in self.tools:
            args = {each.name: self._choice(each.name, each.type) for each in tool.parameters if each.required}
            call = {"type": {"const": "tool_call"}, "tool_name": {"const": tool.name}, "args": _closed(args)}
            calls.append(_closed(call))
        return {"title": "action", "anyOf": [self._finalize(), *calls] if self.lines else calls}

    def repeats(self, action: Action) -> bool:
        """Whether this action was done before, case and spaces aside; from then on the session must end."""
        if not isinstance(action, CallTool):
            return False
        key = f"{action.tool_name} {' '.join(canonical_json(jsonable(action.args)).casefold().split())}"
        self.ending = self.ending or key in self._done
        self._done.add(key)
        return self.ending

    def arguments(self, action: CallTool) -> dict[str, Any]:
        """The action's arguments and the settled ones."""
        return {**SETTLED.get(action.tool_name, {}), **action.args}

    def show(self, action: CallTool, value: Any, ref: str = "") -> str:
        """A tool's result as the few lines that fit the question; these are the evidence. `ref` cites a user's tool."""
        found = lines_of(action, value, ref)
        if not found:
            return NOTHING.format(name=action.tool_name)
        counted = [line for line in found if line.examples and self.counts]
        chosen = [*counted, *self._fitting([line for line in found if not line.examples])]
        self.lines = list(dict.fromkeys([*self.lines, *chosen]))
        return "\n".join(line.shown for line in chosen)

    def refused(self, reasons: Sequence[str]) -> str:
        """What the model hears when its answer does not hold: the best lines again, to copy from."""
        self.ending = self.copying = True
        shown = "\n".join(line.shown for line in self._fitting(self._grounds()))
        return f"{COPY.format(reason='; '.join(reasons))}\n{shown}"

    def judged(self, value: Any, ground: Gathered, judge: Judge) -> Conclusion:
        """The engine's judgement of the part of a final value that occurs in the evidence, cited where it occurs."""
        found = self._support(value)
        if found.reason:
            return Conclusion(output=None, problems=(Problem(gate="evidence", reason=found.reason),))
        places = [place for line in found.lines for place in (line.examples or (line,)) if place.path or place.ref]
        prover, signal = ground.prover, "occurs here"
        proved = [
            prover.call(line.ref, signal=signal)
            if line.ref
            else prover.lines(line.path, line.number, line.number, signal=signal)
            for line in places
        ]
        cited = (*ground.citations, *(each for each in proved if isinstance(each, Citation)))
        kept = value if self._output is not None else {"answer": found.answer}
        return judge(kept, replace(ground, citations=cited))

    def _support(self, value: Any) -> Support:
        if not self.lines:
            return Support(reason="the tools found nothing that bears on the question, so no answer holds")
        lines = self._grounds()
        if self._output is None:
            answer = cast("Mapping[str, Any]", value).get("answer") if isinstance(value, Mapping) else value
            return support(answer if isinstance(answer, str) else "", self.question, lines)
        parts = [support(text, "", lines) for text in _leaves(value)]
        missing = next((part for part in parts if part.reason), None)
        return missing or Support(lines=tuple(dict.fromkeys(line for part in parts for line in part.lines)))

    def _grounds(self) -> list[ShownLine]:
        """The lines that may support an answer: only counts for a count; for a copy, those with half of the question's words."""
        if self.counts:
            return [line for line in self.lines if line.examples]
        return about(self.lines, self.question, share=COPY_SHARE if self.copying else 0)

    def _fitting(self, lines: Sequence[ShownLine]) -> list[ShownLine]:
        return fitting(lines, self.question, SHOWN_LINES) if lines else []

    def _finalize(self) -> dict[str, Any]:
        answer: dict[str, Any] = {"type": "string", "minLength": 1, "maxLength": ANSWER_CHARS}
        if self.copying:
            pieces = copies(self._fitting(self._grounds()), self.question)
            answer = {"enum": pieces} if pieces else answer
        output = self._output or _closed({"answer": answer})
        definitions = {"$defs": output["$defs"]} if "$defs" in output else {}
        return {**_closed({"type": {"const": "finalize"}, "output": output}), **definitions}

    def _choice(self, name: str, kind: Any) -> dict[str, Any]:
        if kind is not str:
            return {"type": "integer", "minimum": 0} if kind is int else {"type": "boolean"}
        seen = list(dict.fromkeys(line.path for line in self.lines if line.path))
        if name == "path" and seen:
            return {"enum": seen[:CHOICES]}
        return {"enum": phrases(self.question)[:CHOICES] or [self.question]}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _leaves(value: Any) -> list[str]:
    match value:
        case dict():
            return [leaf for each in cast("dict[str, Any]", value).values() for leaf in _leaves(each)]
        case list():
            return [leaf for each in cast("list[Any]", value) for leaf in _leaves(each)]
        case None | bool():
            return []
        case _:
            return [str(value)]


def phrases(question: str) -> list[str]:
    """What to look for, in words of the question: names, then words and pairs of words."""
    words = TOKEN.findall(question)
    telling = [word for word in words if terms(word)]
    pairs = [f"{one} {two}" for one, two in pairwise(words) if terms(one) and terms(two)]
    return list(dict.fromkeys([*names(question), *sorted(telling, key=len, reverse=True), *pairs]))


def names(question: str) -> list[str]:
    """What a question names exactly: quoted text, and words spelt like identifiers, paths or codes."""
    quoted = [text for found in _QUOTED.findall(question) for text in found if text]
    words = [word for word in TOKEN.findall(question) if not word.isdigit() and not _FILE.search(word)]
    return [*quoted, *(word for word in words if not word.isalpha() or (not word[1:].islower() and len(word) > 1))]


def lines_of(action: CallTool, value: Any, ref: str = "") -> list[ShownLine]:
    """A tool's result as lines: rows with a place, text of a file, or anything else as text without a place. What a user's tool
    returned has a `ref`: a text line by line, anything else as one.
    """
    match value:
        case str() if ref:
            lines = _lines("", 1, value)
            return [replace(line, path="", number=0, ref=f"{ref}:{line.number}-{line.number}") for line in lines]
        case _ if ref:
            return [ShownLine(text=clip(shown_text(value), 4 * LINE_CHARS), ref=ref)] if value else []
        case str() if isinstance(path := action.args.get("path"), str):
            first = int(action.args.get("start_line") or 1)
            return _lines(path, first, value)
        case list() if value and all(isinstance(row, dict) and "text" in row for row in cast("list[Any]", value)):
            rows = cast("list[dict[str, Any]]", value)
            found: list[ShownLine] = []
            for row in rows:
                first = int(row.get("line") or row.get("start_line") or 1)
                found += _lines(str(row.get("path", "")), first, str(row["text"]))
            if action.tool_name != "grep":
                return found
            most = SETTLED["grep"]["max_matches"]
            number = f"{len(found)} line{'s' * (len(found) != 1)}" if len(found) < most else f"more than {most} lines"
            count = ShownLine(text=f"{number} with {action.args.get('pattern')}", examples=tuple(found[:EXAMPLES]))
            return [count, *found]
        case _:
            text = value if isinstance(value, str) else json.dumps(jsonable(value), ensure_ascii=False)
            return [ShownLine(text=clip(text, 4 * LINE_CHARS))] if value else []


def _lines(path: str, first: int, text: str) -> list[ShownLine]:
    lines = [clip(line.strip(), LINE_CHARS) for line in text.split("\n")]
    return [
        ShownLine(path=path, number=first + at, text=line, near="\n".join(lines[max(0, at - NEAR_LINES) : at]))
        for at, line in enumerate(lines)
        if line
    ]
