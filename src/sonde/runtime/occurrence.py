"""Does an answer occur in what was shown? Decided by words, never by a model.

A sentence occurs in a line if everything it says beyond the question is in that line or in its path and number: numbers exactly, the
rest whatever the case, punctuation and endings. This does not promise that the line means what the sentence says.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sonde.contexts.files.bm25 import split_names, words_of
from sonde.core.source import Refusal, parse

# 02:30 and 2026-03-08 are one word each: parts of numbers prove nothing
_WORD = re.compile(r"\d+(?:[.,:/-]\d+)+|[^\W_]+")
TOKEN = re.compile(r"\w[\w./:@-]*\w|\w")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
TELLING_DIGITS = 4
"""A shorter number stands somewhere in almost every table: in a time, an address, an id."""
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_ENDING = re.compile(r"(?<=\w\w)(?:ing|ed|es|e|s)$")
_REF = re.compile(r"\[[^\[\]\n]*\]")
_VERDICT = re.compile(r"\b(?:no|not|never|none|nobody|nothing|without|cannot|yes)\b|n't\b")
_PLACES = re.compile(r"\b(?:where|files?|path|module|page|document)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownLine:
    """A line that a tool returned. `near` is the text before it: headings say what a line is about. A line without a place, such as a
    count, is cited by the lines in `examples`, one of a user's tool by the `ref` of the call.
    """

    text: str
    path: str = ""
    number: int = 0
    near: str = ""
    examples: tuple[ShownLine, ...] = ()
    ref: str = ""

    @property
    def shown(self) -> str:
        """The line as the model sees it."""
        return f"{self.path}:{self.number}: {self.text}" if self.path else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Support:
    """The sentences of an answer that occur, and the lines that support them; `reason` if none does."""

    answer: str = ""
    lines: tuple[ShownLine, ...] = ()
    reason: str = ""


def support(answer: str, question: str, lines: Sequence[ShownLine]) -> Support:
    """What of an answer occurs in the lines. Sentences that do not are left out."""
    asked = terms(question)
    kept: dict[str, ShownLine] = {}
    silent = True
    for sentence in filter(str.strip, _SENTENCE_END.split(answer.strip())):
        new = terms(sentence) - asked - _FRAME
        silent = silent and not new
        bearer = _bearer(sentence, new, asked, lines) if new else None
        if bearer is not None:
            kept.setdefault(sentence.strip(), bearer)
    if kept:
        return Support(answer=" ".join(kept), lines=tuple(dict.fromkeys(kept.values())))
    if silent:
        return Support(reason=f"the answer {answer[:80]!r} only repeats the question")
    return Support(reason=f"the answer {answer[:80]!r} does not occur in what the tools returned")


def _bearer(sentence: str, new: frozenset[str], asked: frozenset[str], lines: Iterable[ShownLine]) -> ShownLine | None:
    """The line that holds all new words, and most of the question's."""
    joined = [word for word in TOKEN.findall(sentence.casefold()) if not word.isalnum() and not terms(word) <= asked]
    holding: list[tuple[int, ShownLine]] = []
    for line in lines:
        # A line bears out its own words, those of its path if the sentence names the file, its number if it names the line.
        path = line.path if any(word in line.path.casefold() for word in joined) else ""
        number = line.number if re.search(rf"(?:\bline |:){line.number}\b", sentence) else ""
        held = terms(f"{line.text} {number} {path}")
        if new <= held and all(word in line.shown.casefold() for word in joined):
            holding.append((len(asked & terms(line.shown)), line))
    return max(holding, key=lambda each: each[0])[1] if holding else None


def is_computed(text: str, literals: str, lines: str) -> bool:
    """Whether code made a text out of what it read: it says something that is in no literal of the code, every telling word that is in
    one is in these lines too, and no literal denies or affirms what the text says.
    """
    written, said = (_REF.sub(" ", each).lower() for each in (literals, text))
    if {*_VERDICT.findall(written)} & {*_VERDICT.findall(said)}:
        return False
    by_hand = terms(written) & terms(said)
    return bool(terms(said) - by_hand) and by_hand <= terms(lines) | _FRAME


def counted(text: str, literals: str, lines: str) -> list[str]:
    """The numbers of a text that code computed: they are in no literal of it, and not in these lines."""
    numbers = dict.fromkeys(word for word in _WORD.findall(_REF.sub(" ", text)) if word[0].isdigit())
    known = {*_WORD.findall(literals), *_WORD.findall(lines)}
    return [number for number in numbers if number not in known]


def uncounted(text: str, blocks: Iterable[tuple[str, str | None]], known: str, result: str) -> list[str] | None:
    """The numbers of a text that code did not compute, and that are neither known nor in the result and long enough to mean something
    there; None if the text is no count: it has no number, none of code, or denies or affirms something.

    `blocks` are the code and what each block printed, None where it finished: code computed what it printed and had not written out
    before, other than in a final value, and what is in the text but in no literal.
    """
    said = _REF.sub(" ", text)
    wanted = {number.replace(",", "") for number in _NUMBER.findall(said)}
    if not wanted or _VERDICT.search(said.lower()):
        return None
    written: set[str] = set()
    finished: set[str] = set()
    computed: set[str] = set()
    for code, printed in blocks:
        literals = literals_of([code])
        if literals is None:
            return None
        numbers = _numbers("\n".join(line for line in literals.split("\n") if line not in ("0", "1")))  # as in rows[0]
        if printed is None:
            finished |= numbers
        else:
            written |= numbers
            computed |= _numbers(printed) - written
    computed |= wanted - written - finished
    telling = {number for number in _NUMBER.findall(result) if len(number) >= TELLING_DIGITS or "." in number}
    return sorted(wanted - computed - _numbers(known) - telling) if wanted & computed else None


def _numbers(text: str) -> set[str]:
    """The numbers of a text without their commas, and the whole part of each: 18:17:37.334 is at 37 seconds, too."""
    numbers = {number.replace(",", "") for number in _NUMBER.findall(text)}
    return numbers | {number.partition(".")[0] for number in numbers}


def literals_of(code: Iterable[str]) -> str | None:
    """All texts that are written out in code; None if some of it cannot be read."""
    found: list[str] = []
    for block in code:
        tree = parse(block)
        if isinstance(tree, Refusal):
            return None
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                value = node.value
                found.append(value if isinstance(value, str) else value.decode("utf-8", "replace"))
            elif isinstance(node, ast.Constant):
                found.append(str(node.value))
    return "\n".join(found)


def about(lines: Iterable[ShownLine], question: str, *, share: float) -> list[ShownLine]:
    """The lines that hold at least one of the question's words, and together with the text before them this share of the words."""
    asked = terms(question) - _FRAME or terms(question)
    least = max(1, share * len(asked))
    return [line for line in lines if len(asked & terms(f"{line.near} {line.shown}")) >= least]


def terms(text: str) -> frozenset[str]:
    """The words of a text that say something, without their endings."""
    plain = split_names(text)
    telling = set(words_of(f"0 {plain}"))  # the number, because words_of keeps every word if none says anything
    words = (word.lower() for word in _WORD.findall(plain))
    return frozenset(_stem(word) for word in words if word in telling or not word.isalnum())


def _stem(word: str) -> str:
    return _ENDING.sub("", word) if len(word) > 3 and word.isalpha() else word


_FRAMING = "answer called contains defined equals file found function hold line located named set value"
_FRAME = frozenset(map(_stem, _FRAMING.split()))
"""Words that frame an answer and claim nothing."""


def fitting(lines: Sequence[ShownLine], question: str, limit: int) -> list[ShownLine]:
    """The lines that hold most of the question's words, rare words first; far worse ones are left out."""
    asked = terms(question)
    held = [terms(line.shown) & asked for line in lines]
    often = Counter(word for words in held for word in words)
    scores = [sum(1 / often[word] for word in words) for words in held]
    order = sorted(range(len(lines)), key=lambda at: (-scores[at], _start(lines[at], asked)))[:limit]
    return [lines[at] for at in order if scores[at] > scores[order[0]] / 2 or not scores[order[0]]]


def _start(line: ShownLine, asked: frozenset[str]) -> int:
    """Where the first word of the question is in a line: early where something is defined, late where it is used."""
    return next(
        (match.start() for match in _WORD.finditer(line.text) if _stem(match[0].lower()) in asked), len(line.text)
    )


def copies(lines: Iterable[ShownLine], question: str) -> list[str]:
    """What can be copied out of the lines and says more than the question: lines, their sentences, and paths where it asks for one."""
    asked = terms(question)
    found: dict[str, None] = {}
    for line in lines:
        path = [line.path] if _PLACES.search(question) else []
        pieces = [*path, line.text, *_SENTENCE_END.split(line.text)]
        found.update(dict.fromkeys(piece for piece in pieces if terms(piece) - asked - _FRAME))
    return list(found)
