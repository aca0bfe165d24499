"""What a failure says, and the form in which two failures say the same: ids, numbers and times are folded away, words stay.

    folded("Step 4: order 8812-AX not found")   # "Step #: order # not found"
    folded("KeyError: 'currency'")              # as it is: the word says what is missing
    folded('{"error": {"message": "user 7 is locked"}}')    # "user # is locked": what an object says

HTTP status codes stay as well, because 429 and 503 have different causes. Everything is bounded, since messages are a stranger's.
"""

from __future__ import annotations

import re
from functools import lru_cache

from sonde.contexts.traces.span import Span

SAID_CHARS = 2_000
NAME_CHARS = 300
STACK_CHARS = 50_000
CODE = "error="  # before an error that is one word, such as not_found: no place for a word that varies
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?")
_ADDRESS = re.compile(r"\b(\w+://[^\s/'\"?#]+)[^\s'\"]*")
_STATUS = re.compile(
    r"(?:^|\b(?:https?|status|code|error|returned|response|got|answered|with)[ :=]{1,2}(?:code[ :=]{1,2}|status[ :=]{1,2})?)"
    r"([45]\d\d)\b(?! ?(?:ms|s|sec|bytes|chars|tokens|items|rows)\b)",
    re.IGNORECASE,
)
_TOKEN = re.compile(r"[\w@+-]+")
_DIGIT = re.compile(r"\d")
_BRACES = re.compile(r"\{[^{}]{0,1000}\}")
_OBJECT = re.compile(
    r"\{(?:[^{}]|\{[^{}]{0,500}+\}){0,1000}+(?:\}|$)"
)  # with objects one level down; the end may be cut off
_TOLD = re.compile(
    r"([\"'])(?:error|errors|error_message|message|msg|detail|details|reason)\1\s*:\s*([\"'])((?:\\.|(?!\2)[^\\]){1,500})",
    re.IGNORECASE,
)
_GIVEN = re.compile(
    r"\b(?:args|arguments|kwargs|params|parameters|inputs?|payload|request|with)\W{0,4}$|(?<!Error)(?<!Exception)\($",
    re.IGNORECASE,
)
_RUN = re.compile(r"#(?:[\s,;:/.-]{1,3}#)+")
_QUOTED = re.compile(r"(?<!\w)'[^']{0,300}'(?!\w)|\"[^\"]{0,300}\"|`[^`]{0,300}`")
_WORD = re.compile(r"[^\W\d_][^\W\d]+")
_NUMBERED = re.compile(
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|(?<![a-z0-9])(?=[a-f]*\d)[0-9a-f]{6,}(?![a-z0-9])|(?<![\w.-])\d+(?![\w.-])",
    re.IGNORECASE,
)
_EXCEPTION = ("exception.type", "exception.message")
_STACK = "exception.stacktrace"
_PLACE = re.compile(r'^(File ["\w/.~<].*\bline \d+|at .*:\d+|from .*:\d+|[\w/.~-]{1,200}:\d+)')
_SAID_IN = ("error.message", "exception.message", "error.type", "exception.type")


def failure_text(span: Span) -> str:
    """What a failed span says in one line: its status message with the type of its exception, or whatever else names the error."""
    said = _one_line(span.summary.status_message)
    for event in span.events:
        if not event.is_exception:
            continue
        kind, message = (_one_line(str(event.attributes.get(key) or "")) for key in _EXCEPTION)
        message = message or said
        short = kind.rpartition(".")[2]
        if kind and short not in message:
            message = f"{short}: {message}" if message else short
        return message if len(message) >= len(said) else said
    return said or next((_one_line(str(span.attributes[key])) for key in _SAID_IN if span.attributes.get(key)), "")


def raised_at(span: Span) -> str:
    """The line of the stack trace of a span that says where its exception was raised; empty if it has none."""
    stack = next((str(each.attributes[_STACK]) for each in span.events if each.attributes.get(_STACK)), "")
    if len(stack) > 2 * STACK_CHARS:
        stack = f"{stack[:STACK_CHARS]}\n{stack[-STACK_CHARS:]}"
    places = [line.strip()[:NAME_CHARS] for line in stack.splitlines() if _PLACE.match(line.strip()[:NAME_CHARS])]
    if not places:
        return ""
    return places[-1] if places[-1].startswith("File ") else places[0]  # Python puts the innermost last, others first


def _one_line(text: str) -> str:
    """The line that says it: the last one of a traceback, else all of them in one."""
    text = text[-SAID_CHARS:] if text.startswith("Traceback (most") else text[:SAID_CHARS]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if lines and text.startswith("Traceback (most"):
        return lines[-1]
    return " ".join(" ".join(lines).split())


@lru_cache(maxsize=1024)  # the spans of a loop say the same thousands of times
def folded(text: str, *, quotes: bool = False) -> str:
    """The text without what differs from one case to the next; with `quotes`, without quoted words as well."""
    text = _OBJECT.sub(_told_in, text[:SAID_CHARS])
    if quotes:
        text = _QUOTED.sub("'#'", text)
    codes: list[str] = []

    def aside(found: re.Match[str]) -> str:
        codes.append(found[1])
        return f"{found[0][: -len(found[1])]}\x00"

    text = _STATUS.sub(aside, text.replace("\x00", " "))
    text = _ADDRESS.sub(r"\1", _TIME.sub("#", _BRACES.sub("{#}", text)))
    text = _RUN.sub("#", _TOKEN.sub(lambda found: "#" if _DIGIT.search(found[0]) else found[0], text))
    for code in codes:
        text = text.replace("\x00", code, 1)
    return " ".join(text.split())


def _told_in(found: re.Match[str]) -> str:
    """The message in an object that reports an error, or the object as it is: what a tool was called with says nothing about its error."""
    if ":" not in found[0]:
        return found[0]
    said = " ".join(dict.fromkeys(" ".join(each[3].split()) for each in _TOLD.finditer(found[0])))
    if not said or _GIVEN.search(found.string[max(0, found.start() - 40) : found.start()]):
        return found[0]
    return said if " " in said else f"{CODE}{said}"


def telling_words(text: str, most: int = 40) -> frozenset[str]:
    """The words of a message that say what happened: no ids, no numbers."""
    return frozenset(_WORD.findall(folded(text).lower())[:most])


def overlap(one: frozenset[str], other: frozenset[str]) -> float:
    """How much of two sets of words is the same, from 0 to 1; two empty ones are the same."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if one or other else 1.0


@lru_cache(maxsize=4096)
def component_of(name: str) -> str:
    """The name of a step without its number or id: `Step 4` and `Step 12` are one component, `gpt-4o` keeps its digits."""
    return " ".join(_NUMBERED.sub("#", name[:NAME_CHARS]).split()) or "unnamed"
