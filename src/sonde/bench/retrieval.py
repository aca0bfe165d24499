"""The retrieval baseline: the pieces of a text that share the most telling words with a question, by BM25. No model, no index on disk."""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter

PIECE_CHARS = 2000
PIECES = 20
_SATURATION, _LENGTH_SHARE = 1.5, 0.75
_WORD = re.compile(r"\w+")


def pieces_of(text: str, size: int = PIECE_CHARS) -> list[str]:
    """The text in pieces of about `size` characters that end at line breaks."""
    pieces: list[str] = []
    at = 0
    while at < len(text):
        end = at + size
        end = text.rfind("\n", at + 1, end) + 1 if end < len(text) else len(text)
        pieces.append(text[at : max(end, at + 1) if end > at else at + size])
        at += len(pieces[-1])
    return pieces


def top_pieces(question: str, text: str, count: int = PIECES) -> list[str]:
    """The best pieces, in the order in which they stand in the text."""
    pieces = pieces_of(text)
    wanted = set(_words(question))
    counts = [Counter(word for word in _words(piece) if word in wanted) for piece in pieces]
    spread = Counter(word for found in counts for word in found)
    average = sum(map(len, pieces)) / max(len(pieces), 1)
    scored = [
        (_score(found, spread, len(pieces), len(piece) / average), -at)
        for at, (found, piece) in enumerate(zip(counts, pieces, strict=True))
    ]
    return [pieces[at] for at in sorted(-at for _, at in heapq.nlargest(count, scored))]


def _score(found: Counter[str], spread: Counter[str], total: int, length: float) -> float:
    norm = _SATURATION * (1 - _LENGTH_SHARE + _LENGTH_SHARE * length)
    return sum(
        math.log(1 + (total - spread[word] + 0.5) / (spread[word] + 0.5)) * times * (_SATURATION + 1) / (times + norm)
        for word, times in found.items()
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())
