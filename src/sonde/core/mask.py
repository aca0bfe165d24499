"""People's data behind placeholders: `<email-1>`, `<card-1>`, `<token-1>`, and `<NAME-1>` for a pattern that the user gives.

What a run reads is masked where it enters (`hidden`), so code, prompts, sub-calls and the journal see placeholders only, and a value is
never cut in two by whoever reads a part. `guarded` looks once more at what leaves: a model may write an address of its own, which becomes
`<written-1>`, whether or not it is in the data. `restored` puts the values back for the user, and is exact: restored(hidden(text)) == text.
A text in the data that looks like a placeholder is itself hidden (`<literal-1>`), so a stranger's `<email-1>` never becomes somebody's
address. Equal values have equal placeholders; another spelling of one (`J%40x.org`, `4111-1111-…`) has the same number with a dot:
`<email-1.2>`. Line ends are never hidden.

Masking a large text ends with the run: ToolFault, once the run is over and has used up its grace.

Not promised: names, phone numbers and addresses without a pattern; values in base64, in pictures, or broken over lines; what a value
looks like from the words around it; the end of a value of more than 16,000 characters in a line of more than 500,000.
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import unescape
from io import StringIO
from posixpath import splitext
from string import ascii_letters, digits
from typing import Any, cast
from unicodedata import normalize
from urllib.parse import unquote

from sonde.core.deadline import deadline_in_force
from sonde.core.markdown_safety import words
from sonde.core.patterns import Pattern, compiled
from sonde.core.redaction import (
    OVERLAP,
    PART,
    Span,
    folded,
    found_in_parts,
    names_in,
    names_of,
    readings,
    resolved,
    rewrite_value,
    tells,
    tokens_in,
)
from sonde.errors import ConfigError

MOST_VALUES = 200_000
"""Different values of one run; a pattern that finds more masks words, not people."""
MOST_PATTERN_CHARS = 1000
LITERAL, WRITTEN = "literal", "written"
LARGEST_EXACT = 2.0**53
KINDS = ("email", "card", "token", LITERAL, WRITTEN)
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]{0,30}")
_AT = r"(?:@|%40|\\u0040|&#64;|&#x40;|&commat;)"
_DOMAIN = r"(?:[A-Za-z0-9][A-Za-z0-9-]{0,62}\.){1,8}[A-Za-z]{2,24}"
_EMAIL = compiled(
    r"""(?:(?:[A-Za-z0-9._%+-]{0,60}[ac-eg-qstv-zAC-EG-QSTV-Z]')?[A-Za-z0-9._%+-]{1,100}|"[^"\\<>\r\n]{1,64}")"""
    rf"{_AT}{_DOMAIN}(?:[A-Za-z0-9._%+-]{{0,100}}{_AT}{_DOMAIN})*"
)
"""O'Brien is a name; b'…', f'…', r'…' and u'…' are how texts begin in Python. Addresses with nothing between them are one: the first
would take along the beginning of the next.
"""
_ESCAPE = re.compile(r"(?:[nrtbf]|u[0-9A-Fa-f]{4})(?=[A-Za-z0-9._%+'-]{0,99}" + _AT + ")")
_PLAIN_EMAIL = re.compile(r"(?<![a-z0-9._+-])[a-z0-9._+-]++@.+")
_GAP = r"(?:[ +._\t-]|  |%20)"
_CARD = rf"(?:[0-9]{{13,}}|(?:[0-9]{{4}}{_GAP}){{3}}[0-9]{{1,7}}|[0-9]{{4}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4,5}})"
"""Longer runs of digits are found whole, and are no cards."""
_DIGIT_GROUPS = compiled(rf"(?:^|[^0-9]){_CARD}[0-9]*(?:{_GAP}[0-9]+)*")
"""All groups of digits that follow each other, if the first ones may be a card, with the sign before them."""
_FIRST_GROUP = re.compile(rf"(?<![0-9])(?=[2-6])(?=({_CARD}))[0-9]++")
"""Each group in turn with the card that may begin there: a year may stand before it, and by chance be right with its beginning."""
_WITHOUT_GAPS = str.maketrans("", "", " +._-\t")
_DOUBLED = bytes.maketrans(b"0123456789", bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
_HEX = re.compile(r"(?:0[xX])?[0-9A-Fa-f]*")
_JOINS = frozenset(f"{ascii_letters}{digits}._%+-@\\\0")
"""Signs that may join a value and what stands beside it."""
_GROUP = re.compile(rf"[0-9]{{4}}{_GAP}$")
_THREE_GROUPS = re.compile(rf"[0-9]{{4}}{_GAP}[0-9]{{4,6}}{_GAP}(?:[0-9]{{4}}{_GAP})?$")
"""Digits that a card number may begin with."""
BESIDE = 24  # characters before a placeholder that are compared
HEAD = 4  # characters by which known values are looked up
LONGEST_WORD = 64  # letters and digits beside a card that are looked at
_ISSUERS = re.compile(r"3[0-9]{13,18}|4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})|[56][0-9]{15,18}|2[2-7][0-9]{14}")
FILE_KINDS = frozenset(
    """
    .txt .log .md .rst .csv .tsv .json .jsonl .ndjson .yaml .yml .toml .ini .cfg .conf .env .xml .html .htm .xhtml .css .sql .diff .patch
    .py .pyi .pyw .ipynb .js .jsx .mjs .cjs .ts .mts .cts .tsx .go .rs .java .kt .c .h .cc .cpp .cxx .hpp .hh .hxx .cs .rb .php .sh .bash
    .pdf .docx .xlsx .pptx .odt .ods .odp .rtf .eml .zip .tar .tgz .tbz2 .txz .tzst .gz .bz2 .xz .zst .png .jpg .jpeg .gif .parquet
    """.split()  # noqa: SIM905 - suffixes read better as text
)
"""Suffixes that stay in a masked name; whatever reads a file goes by them."""
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Mask:
    """The values of one run and their placeholders. Safe to use from threads; `keep` hears of each new pair before it is used."""

    NOT_SAID = "it failed; why is not said here, because it was called with the values behind placeholders"

    def __init__(
        self,
        patterns: Mapping[str, str] | None = None,
        known: Iterable[tuple[str, str]] = (),
        key: bytes | None = None,
    ) -> None:
        """`known`: pairs of placeholder and value from an earlier run, or from this one before a crash. `key`: the user's, for `keyed`."""
        self._key = key or secrets.token_bytes(32)
        self.patterns = dict(patterns or {})
        self._patterns = {name: _checked(name, source) for name, source in self.patterns.items()}
        kinds = "|".join((*KINDS, *self._patterns))
        self._placeholder = re.compile(rf"<((?:{kinds})-[1-9][0-9]{{0,8}}(?:\.[1-9][0-9]{{0,8}})?)>")
        self._shown = re.compile(rf"(<|&lt;)((?:{kinds})-[1-9][0-9]{{0,8}}(?:\.[1-9][0-9]{{0,8}})?)>")
        self._values: dict[str, str] = {}
        self._names: dict[tuple[str, str], str] = {}
        self._numbers: dict[tuple[str, str], int] = {}
        self._last: Counter[str] = Counter()
        self._spellings: Counter[tuple[str, int]] = Counter()
        self._handed: dict[str, str] = {}
        self._lock = threading.Lock()
        self.keep: Callable[[str, str], None] | None = None
        for name, value in known:
            kind, _, number = name.partition("-")
            if not self._placeholder.fullmatch(f"<{name}>") or name in self._values:
                continue
            whole = int(number.partition(".")[0])
            self._values[name], self._names[kind, value] = value, name
            self._numbers.setdefault((kind, _same(kind, value)), whole)
            self._last[kind] = max(self._last[kind], whole)
            self._spellings[kind, whole] += 1

    def keyed(self, real_hash: str) -> str:
        """A hash of real data that may be shown: without the user's key nobody can try guesses at the data on it."""
        return hmac.new(self._key, f"masked data {real_hash}".encode(), "sha256").hexdigest()

    def pairs(self) -> list[tuple[str, str]]:
        """Every placeholder, without its brackets, and its value."""
        with self._lock:
            return list(self._values.items())

    def counts(self) -> dict[str, int]:
        """How many different values of each kind were found; literals and what a model wrote are not people's data."""
        return {kind: number for kind, number in sorted(self._last.items()) if kind not in (LITERAL, WRITTEN)}

    def hidden(self, text: str) -> str:
        """Data of the user as the run sees it."""
        return self._replaced(text, found_in_parts(text, self._entering))

    def hidden_name(self, path: str) -> str:
        """The path of a file. A suffix that says what kind of file it is stays; any other may be a part of a value."""
        return self._replaced(path, self._in_name(path))

    def behind(self, given: str) -> str | None:
        """The text or path that this run shows as `given`; None if it shows none like that. One with a value in the clear is a guess,
        and looking it up makes no placeholder that would tell whether the value is known.
        """
        real = self.filled(given)
        ways = (found_in_parts(real, self._entering), self._in_name(real))
        return real if any(self._replaced(real, spans, known=True) == given for spans in ways) else None

    def _entering(self, text: str) -> list[Span]:
        """Where values stand in the data of the user, and texts that look like placeholders, or do once their escapes are resolved."""
        spans: list[Span] = []
        for reading, back in readings(text):
            found = [(*each.span(), LITERAL) for each in self._shown.finditer(reading)] if "-" in reading else []
            found += (*_found_in(reading), *self._own(reading))
            spans += ((*back(start, end), kind) for start, end, kind in found)
        return spans

    def _in_name(self, path: str) -> list[Span]:
        stem, suffix = splitext(path)
        in_stem = list(found_in_parts(stem, self._entering)) if suffix.lower() in FILE_KINDS else []
        return in_stem or list(found_in_parts(path, self._entering))

    def guarded(self, text: str) -> str:
        """What is about to leave, which may hold placeholders already: they stay. A value in it is not known as data: a model may have
        written it, and the placeholder of the data would tell it that its guess was right.
        """
        return self._replaced(text, ((start, end, WRITTEN) for start, end, _ in self._leaving(text)))

    def lets_pass(self, text: str) -> bool:
        """Whether nothing of it has to be hidden before it leaves."""
        return not self._leaving(text)

    def _leaving(self, text: str, more: Iterable[Span] = ()) -> list[Span]:
        """Where values stand that are not part of a placeholder, in order."""

        def found(part: str) -> Iterator[Span]:
            for reading, back in readings(part):
                yield from ((*back(start, end), kind) for start, end, kind in _found_in(reading))

        spans = _in_order([*found_in_parts(text, found), *more])
        kept = [found.span() for found in self._shown.finditer(text)] if spans else []
        ends = [end for _, end in kept]

        def outside(start: int, end: int) -> bool:
            after = bisect_right(
                ends, start
            )  # the first placeholder that ends behind the start; later ones begin later
            return after == len(kept) or kept[after][0] >= end

        return [each for each in spans if outside(each[0], each[1])]

    def asked(self, text: str) -> str:
        """The user's own words: a placeholder of an earlier run that they speak of stays, any other is a literal."""
        parts: list[str] = []
        done = 0
        for found in self._placeholder.finditer(text):
            if found[1] in self._values:
                parts += [self.hidden(text[done : found.start()]), found[0]]
                done = found.end()
        return "".join([*parts, self.hidden(text[done:])])

    def restored(self, text: str) -> str:
        """The text with the values in their places, also where `<` is escaped for Markdown; one that is not known stays."""

        def value(found: re.Match[str]) -> str:
            known = self._values.get(found[2])
            return found[0] if known is None else known if found[1] == "<" else words(known)

        return self._shown.sub(value, text) if "-" in text else text

    def filled(self, text: str) -> str:
        """What the run wrote for a file, a tool or a command, with the values put in as they are."""
        return self._placeholder.sub(lambda found: self._values.get(found[1], found[0]), text) if "-" in text else text

    def handed(self, given: Any) -> dict[str, str]:
        """The values behind the placeholders in plain data, with the kind of each: what a call with it restored hands over."""
        found: dict[str, str] = {}

        def note(text: str) -> str:
            names = [each[2] for each in self._shown.finditer(text)] if "-" in text else []
            found.update({self._values[name]: name.partition("-")[0] for name in names if name in self._values})
            return text

        rewrite_value(given, note)
        return found

    def returned(self, value: Any, handed: Mapping[str, str]) -> Any:
        """What came back from where values were handed to. Each of them has its placeholder, also glued to other text; of what else
        is found there, the rest.
        """
        with self._lock:
            self._handed.update(handed)
            known = dict(self._handed)
        return rewrite_value(self._numbers_as_text(value), lambda text: self._replaced(text, self._coming(text, known)))

    def _coming(self, text: str, handed: Mapping[str, str]) -> list[Span]:
        """Where these values stand, and outside of them whatever else is found, in order."""
        exact = list(_exact(text, handed))
        ends = [end for _, end, _ in exact]
        spans = list(exact)
        for start, end, kind in found_in_parts(text, self._entering):
            at, next_one = start, bisect_right(ends, start)
            while next_one < len(exact) and exact[next_one][0] < end:
                first, last, _ = exact[next_one]
                spans += [(at, first, kind)] if at < first else []
                at, next_one = last, next_one + 1
            spans += [(at, end, kind)] if at < end else []
        return _in_order(spans)

    def told(self, message: str, handed: Mapping[str, str]) -> str:
        """What ended a run, such as a server's words about what it was asked for: for the record, not for the model."""
        return self._replaced(message, self._leaving(message, [*_exact(message, handed), *self._own(message)]))

    def glued_in(self, after: str, before: str) -> list[str]:
        """Placeholders of a new text that stand where their values might not be recognised when it is read again. Only the text with
        the placeholders is looked at, never a value, so that nobody learns about one from the answer. Where one stood like that
        before it may stand again.
        """
        seen = {place for place, _, _ in self._places(before)}
        return [name for place, name, free in self._places(after) if not free and place not in seen]

    def glued_in_name(self, path: str) -> list[str]:
        """The same for the path of a new file."""
        stem, suffix = splitext(path)
        return self.glued_in(stem if suffix.lower() in FILE_KINDS else path, "")

    def _places(self, text: str) -> Iterator[tuple[tuple[str, ...], str, bool]]:
        """What stands beside each placeholder, the placeholder, and whether it stands free."""
        for reading, is_last in ((text, False), (resolved(text), True)):
            shadow = _shadow(reading)
            done = -1
            for found in self._shown.finditer(shadow):
                start, end = found.span()
                left, right = shadow[max(0, start - BESIDE) : start].rpartition("\n")[2], shadow[end : end + 2]
                kind = found[2].partition("-")[0]
                free = start > done and not (_THREE_GROUPS if kind == "email" else _GROUP).search(left)
                if is_last:  # the n of an escape is no letter
                    ends = right[:1] not in _JOINS or (right[0] == "." and right[1:] not in _JOINS)
                    free = free and ends and left[-1:] not in _JOINS
                yield (kind, left, right[:1]), f"<{found[2]}>", free
                done = end

    def has_clear(self, text: str) -> bool:
        """Whether something in it looks like a value and is no placeholder."""
        return bool(self._leaving(text, self._own(text)))

    def _own(self, text: str) -> list[Span]:
        """Where the patterns of the user match."""
        return [(start, end, name) for name, each in self._patterns.items() for start, end in _matches(each, text)]

    def unknown_in(self, text: str) -> list[str]:
        """Placeholders that stand for nothing."""
        return [found[0] for found in self._placeholder.finditer(text) if found[1] not in self._values]

    def hidden_value(self, value: Any) -> Any:
        """Plain data, keys included. A number that is a card, or in which a pattern of the user finds something, becomes text."""
        return self._hidden_below(self._numbers_as_text(value), "")

    def _hidden_below(self, value: Any, name: str) -> Any:
        """The same for data that stands under this name, which may tell that it is a secret: `{"password": "…"}`, and also
        `{"name": "Cookie", "value": "…"}`.
        """
        match value:
            case str():
                if tells(name, value) and any(
                    end > len(name) + 3 for _, end in tokens_in(f'{name}: "{value[:OVERLAP]}"')
                ):
                    return self._replaced(value, ((*line.span(), "token") for line in re.finditer(r"[^\r\n]+", value)))
                return self.hidden(value)
            case dict():
                fields = cast("dict[Any, Any]", value)
                named = names_in(fields, name)
                return {
                    self._hidden_below(key, ""): self._hidden_below(item, named[key]) for key, item in fields.items()
                }
            case list() | tuple():
                items = cast("Sequence[Any]", value)
                return [self._hidden_below(*each) for each in zip(items, names_of(items, name), strict=True)]
            case _:
                return value

    def hidden_texts(self, value: Any) -> Any:
        """Plain data of our own, such as a recipe: its texts are masked, and its numbers are limits and times, which stay."""
        return rewrite_value(value, self.hidden)

    def lasting(self, value: Any, *, apart: bool = False) -> Any:
        """A text or plain data of our own with placeholders that are the same in every process and lead nowhere: `<email>`, or with
        `apart` `<email 3fa94b1c>`, a hash with the user's key, by which values can be counted. Nothing is kept.
        """
        once = Mask(self.patterns, key=self._key)
        hidden = once.hidden_texts(value)

        def named(found: re.Match[str]) -> str:
            kind, real = found[1].partition("-")[0], once.filled(found[0])
            return real if kind == LITERAL else f"<{kind} {self.keyed(real)[:8]}>" if apart else f"<{kind}>"

        return rewrite_value(hidden, lambda text: once._placeholder.sub(named, text)) if once.pairs() else hidden

    def _numbers_as_text(self, value: Any) -> Any:
        match value:
            case bool():
                return value
            case int() | float():
                return next((text for text in _written(value) if self._is_private(text)), value)
            case dict():
                items = cast("dict[Any, Any]", value).items()
                return {self._numbers_as_text(key): self._numbers_as_text(item) for key, item in items}
            case list() | tuple():
                return [self._numbers_as_text(item) for item in cast("Sequence[Any]", value)]
            case _:
                return value

    def _is_private(self, number: str) -> bool:
        return _is_card(number) or any(True for each in self._patterns.values() for _ in _matches(each, number))

    def guarded_value(self, value: Any) -> Any:
        """Plain data about to leave."""
        return rewrite_value(value, self.guarded)

    def restored_value(self, value: Any) -> Any:
        """Plain data with the values in their places."""
        return rewrite_value(value, self.restored)

    def _replaced(self, text: str, spans: Iterable[Span], *, known: bool = False) -> str:
        """The text with placeholders in these places, which come in order; with `known` only those that there are."""
        masked, done = StringIO(newline=""), 0
        for start, end, kind in spans:
            if end <= done:  # of two that overlap, the first and the rest of the second
                continue
            value = text[max(start, done) : end]
            name = self._names.get((kind, value)) if known else self._name(kind, value)
            masked.write(f"{text[done:start]}<{name}>")
            done = end
        return masked.getvalue() + text[done:] if done else text

    def _name(self, kind: str, value: str) -> str:
        with self._lock:
            known = self._names.get((kind, value))
            if known is not None:
                return known
            if len(self._values) >= MOST_VALUES:
                raise ConfigError(
                    f"more than {MOST_VALUES:,} different values are masked; a pattern finds too much: "
                    f"{', '.join(f'{each} {count:,}' for each, count in self._last.most_common(3))}"
                )
            same = (kind, _same(kind, value))
            if same not in self._numbers:
                self._last[kind] += 1
                self._numbers[same] = self._last[kind]
            number = self._numbers[same]
            self._spellings[kind, number] += 1
            spelling = self._spellings[kind, number]
            name = f"{kind}-{number}" if spelling == 1 else f"{kind}-{number}.{spelling}"
            if self.keep is not None:
                self.keep(name, value)
            self._values[name], self._names[kind, value] = value, name
            return name


def patterns_of(given: Iterable[str]) -> dict[str, str]:
    """Patterns by name from `NAME=REGEX`; ConfigError says what is wrong with one."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, source = text.partition("=")
        if not equals:
            raise ConfigError(f"--mask-pattern {text!r}: write NAME=REGEX, for example customer=C-[0-9]+")
        _checked(name, source)
        found[name] = source
    return found


def _checked(name: str, source: str) -> Pattern:
    if not _NAME.fullmatch(name) or name in KINDS:
        raise ConfigError(
            f"--mask-pattern {name}=…: a name is up to 31 letters and digits, and not one of {', '.join(KINDS)}"
        )
    if not source or len(source) > MOST_PATTERN_CHARS:
        raise ConfigError(f"--mask-pattern {name}=…: a pattern has 1 to {MOST_PATTERN_CHARS} characters")
    try:
        return compiled(source, by_line=True)
    except ValueError as error:
        raise ConfigError(
            f"--mask-pattern {name}={source}: {error}. Patterns are RE2, as in sonde ask's grep"
        ) from None


def _in_order(spans: Iterable[Span]) -> list[Span]:
    """By where they begin; of two that begin together the longer comes first."""
    return sorted(spans, key=lambda span: (span[0], -span[1]))


def _found_in(text: str) -> Iterator[Span]:
    """What is masked without being asked for, in one reading of a text: addresses, cards and tokens."""
    for start, end in tokens_in(text):
        yield start, end, "token"
    shadow = _shadow(text)
    data = shadow.encode()
    if any(sign in shadow for sign in ("@", "%40", "u0040", "&#", "&commat;")):
        for start, end in _bytes_matched(_EMAIL, data):
            escape = _ESCAPE.match(shadow, start, end) if shadow[start - 1 : start] == "\\" else None
            yield escape.end() if escape else start, end, "email"  # \n before it is a line end in a JSON text
    for start, end in _bytes_matched(_DIGIT_GROUPS, data):
        groups = start + (not shadow[start].isdigit()), end
        for found in _FIRST_GROUP.finditer(shadow, start, end):
            card = found.span(1)
            if card != groups and ("\t" in found[1] or "  " in found[1]):  # a row of a table with numbers
                continue
            if _is_card(found[1].replace("%20", "").translate(_WITHOUT_GAPS)) and _stands_alone(shadow, *card):
                yield *card, "card"


def _shadow(text: str) -> str:
    """The text in ASCII, sign by sign, so that places are the same: what is no form of an ASCII sign is some letter or a space."""
    return _NOT_ASCII.sub(lambda sign: "q" if sign[0].isalnum() else " ", folded(text))


def _stands_alone(shadow: str, start: int, end: int) -> bool:
    """Whether these digits are no part of a longer number, nor of a hash; `PAN4111…` and `4111…_x` are cards."""
    before, after = shadow[max(0, start - LONGEST_WORD) : start], shadow[end : end + LONGEST_WORD]
    before = before[len(before.rstrip(ascii_letters + digits)) :]
    after = after[: len(after) - len(after.lstrip(ascii_letters + digits))]
    if after[:1].isdigit():
        return False
    if (not before and not after) or re.search(r"[^0-9-]", shadow[start:end]):  # no hash has spaces in it
        return True
    if shadow[end : end + 1] == "^" and before in (
        "B",
        "b",
    ):  # what the stripe of a card begins with: %B4111…^DOE/JOHN^
        return True
    return not _HEX.fullmatch(before + after)


def _exact(text: str, values: Mapping[str, str]) -> Iterator[Span]:
    """Where these values stand, given with their kinds: the longest at each place, in one pass however many they are."""
    lengths: dict[str, set[int]] = {}
    for value in values:
        lengths.setdefault(value[:HEAD], set()).add(len(value))
    heads = sorted({len(head) for head in lengths})
    done = 0
    run = deadline_in_force()
    since = 0.0 if run is None else run.clock.now()
    for at in range(len(text)) if heads else ():
        if run is not None and at and at % PART == 0:
            since = run.check(since, "a text was still being masked")
        fits = [length for head in heads for length in lengths.get(text[at : at + head], ())]
        longest = max((length for length in fits if text[at : at + length] in values), default=0) if fits else 0
        if at + longest > max(at, done):
            done = at + longest
            yield at, done, values[text[at:done]]


def _matches(pattern: Pattern, text: str) -> Iterator[tuple[int, int]]:
    """Where a user's pattern matches, in characters."""
    data = text.encode("utf-8", "surrogatepass")
    at = characters = 0
    for start, end in _bytes_matched(pattern, data):
        characters += len(data[at:start].decode("utf-8", "surrogatepass"))
        length = len(data[start:end].decode("utf-8", "surrogatepass"))
        yield characters, characters + length
        at, characters = end, characters + length


def _bytes_matched(pattern: Pattern, data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data) and (found := pattern.search(data, at)) is not None:
        start, end = found.start(), found.end()
        if end > start:
            yield start, end
        at = max(end, start + 1)


def _is_card(digits: str) -> bool:
    """Whether an issuer numbers cards like this, and the last digit is right (Luhn)."""
    if not _ISSUERS.fullmatch(digits):
        return False
    signs = digits.encode()
    return (sum(signs[-1::-2]) - 48 * len(signs[-1::-2]) + sum(signs[-2::-2].translate(_DOUBLED))) % 10 == 0


def _written(number: float) -> Iterator[str]:
    """The ways to write a number: a card or an id may be stored as 4111111111111111.0."""
    if isinstance(number, float) and number.is_integer() and abs(number) < LARGEST_EXACT:
        yield str(int(number))
    yield repr(number)


def _same(kind: str, value: str) -> str:
    """What all spellings of a value have in common."""
    if kind not in ("card", "email"):
        return value
    plain = normalize("NFKC", folded(unescape(unquote(resolved(value)))))
    if kind == "card":
        return re.sub(r"\D", "", plain)
    found = _PLAIN_EMAIL.search(plain.lower())
    return found[0] if found else plain.lower()
