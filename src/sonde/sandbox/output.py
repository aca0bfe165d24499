"""Cutting the output of a turn to what fits, with head, tail and the true length."""

from __future__ import annotations

from dataclasses import dataclass

MARKER = "\n[... output cut: {total} characters in all, {head} first and {tail} last are shown ...]\n"


@dataclass(frozen=True, slots=True)
class Captured:
    """One stream as the worker kept it: the whole text if `head` is as long as `total`."""

    head: str
    tail: str
    total: int


def cut_output(out: Captured, err: Captured, limit: int) -> tuple[str, str]:
    """Both streams, together at most `limit` characters, markers included. stderr yields first."""
    err_share = min(err.total, max(limit // 4, limit - out.total))
    out_share = min(out.total, limit - err_share)
    return cut(out, out_share), cut(err, min(err_share, limit - out_share))


def cut(stream: Captured, limit: int) -> str:
    """The stream in at most `limit` characters."""
    if stream.total <= limit and len(stream.head) + len(stream.tail) >= stream.total:
        return (stream.head + stream.tail)[: stream.total]
    room = limit - len(MARKER.format(total=stream.total, head=limit, tail=limit))
    if room < 2:
        return stream.head[:limit]
    head = _whole_lines(stream.head[: room - room // 2])
    tail = (stream.tail if len(stream.tail) >= room // 2 else stream.head + stream.tail)[-(room // 2) :]
    tail = _whole_lines(tail[::-1])[::-1]
    return head + MARKER.format(total=stream.total, head=len(head), tail=len(tail)) + tail


def _whole_lines(text: str) -> str:
    """The text up to its last line break, unless that would lose more than a quarter of it (one giant line)."""
    end = text.rfind("\n") + 1
    return text[:end] if end >= len(text) * 3 // 4 else text
