"""How deep a JSON text is nested, found without recursion: whoever takes a value apart later has a stack to lose."""

from __future__ import annotations

from itertools import accumulate, count
from operator import sub

DEEPEST = 200
"""Lists in lists in a frame. Answers have ten; at some hundreds, code that follows a value down runs out of stack."""
PEELED = 4
"""Levels that most values have; to take them away whole is faster than to count them."""
NEITHER = bytes(set(range(256)) - set(b'[]{}"'))
SQUARE = bytes.maketrans(b"{}", b"[]")
STEPS = bytes.maketrans(b"[]", b"\2\0")
"""Up and down, one too high each: a byte cannot be negative."""


def too_deep(text: bytes) -> bool:
    """Is it nested deeper than DEEPEST?"""
    if text.count(b"[") + text.count(b"{") <= DEEPEST:
        return False
    brackets = _brackets(text)
    for _ in range(PEELED):
        brackets = brackets.replace(b"[]", b"")
    return max(map(sub, accumulate(brackets.translate(STEPS)), count(1)), default=0) > DEEPEST - PEELED


def _brackets(text: bytes) -> bytes:
    """The brackets outside of strings, all of one kind."""
    if b"\\" in text:
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    marks = text.translate(SQUARE, NEITHER).replace(b'""', b"")
    return b"".join(marks.split(b'"')[::2])
