"""What code sees of a shared text: a str-like view, or a mapping of names to texts, over one mapped file.

Promises that the bytes stay in the mapping: nothing is decoded before it is asked for, and then only the part asked for.
Offsets are characters, as in str. Methods of str that need the whole text (`split`, `lower`, ...) decode the whole text: they
work, and cost that much memory. So do the functions of `re` and `json.loads`, which `teach_modules` teaches; a compiled pattern
wants a real str: `pattern.findall(str(context))`, or a slice, `context[a:b]`. `isinstance(context, str)` is true, for code that asks.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import Any

BLOCK = 65536
LINE_CHUNK = 1 << 20


class Region:
    """A sealed file, mapped read-only and private, so that it is one copy for every state of every box."""

    def __init__(self, descriptor: int, size: int) -> None:
        # A mapping keeps a copy of the descriptor, under the lowest free number, and its offset would belong to all states: what code
        # does to it would survive a rollback. So /dev/null takes its place.
        copy = os.dup(descriptor)
        os.close(copy)
        self.map = mmap.mmap(descriptor, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
        os.close(copy)
        os.dup(0)
        os.close(descriptor)


@functools.total_ordering
class SharedText:
    """A text in the shared region: `len`, slices, `find`, `count`, `in`, lines, and `str()` for all of it."""

    def __init__(self, region: Region, start: int, size: int, index: bytes) -> None:
        self._map = region.map
        self._start = start
        self._end = start + size
        self._index = array("Q", index)
        """Characters before each block of 64 KiB; empty when the text is ASCII, where bytes are characters."""
        self._length = self._index[-1] if self._index else size

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride] - what isinstance() is told
        return str

    def __len__(self) -> int:
        return self._length

    def __str__(self) -> str:
        return self._decode(self._start, self._end)

    def __repr__(self) -> str:
        return f"<shared text of {self._length} characters: slice it, or use find, count, lines() or str()>"

    def __getitem__(self, key: int | slice) -> str:
        if not isinstance(key, slice):
            position = range(self._length)[key]
            return self[position : position + 1]
        start, stop, step = key.indices(self._length)
        if step != 1:
            return str(self)[key]
        return self._decode(self._byte(start), self._byte(max(start, stop)))

    def __iter__(self) -> Iterator[str]:
        for start in range(0, self._length, BLOCK):
            yield from self[start : start + BLOCK]

    def __contains__(self, part: object) -> bool:
        return isinstance(part, str) and self.find(part) >= 0

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str | SharedText):
            return len(other) == len(self) and str(other) == str(self)
        return NotImplemented

    def __lt__(self, other: object) -> bool:
        return str(self) < str(other) if isinstance(other, str | SharedText) else NotImplemented

    def __mul__(self, times: int) -> str:
        return str(self) * times

    def __hash__(self) -> int:
        return hash(str(self))

    def __add__(self, other: str) -> str:
        return str(self) + str(other)

    def __radd__(self, other: str) -> str:
        return other + str(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(str, name):
            raise AttributeError(f"a shared text has no attribute {name!r}; str(text) gives a plain str")
        return getattr(str(self), name)

    def find(self, part: str, start: int = 0, end: int | None = None) -> int:
        return self._search(self._map.find, part, start, end)

    def rfind(self, part: str, start: int = 0, end: int | None = None) -> int:
        return self._search(self._map.rfind, part, start, end)

    def index(self, part: str, start: int = 0, end: int | None = None) -> int:
        position = self.find(part, start, end)
        if position < 0:
            raise ValueError("substring not found")
        return position

    def count(self, part: str, start: int = 0, end: int | None = None) -> int:
        first, last, _ = slice(start, end).indices(self._length)
        if first > last or start > self._length:
            return 0
        if not part:
            return last - first + 1
        needle = part.encode("utf-8", "surrogatepass")
        at, stop, found = self._byte(first), self._byte(last), 0
        while (at := self._map.find(needle, at, stop)) >= 0:
            found, at = found + 1, at + len(needle)
        return found

    def startswith(self, part: str | tuple[str, ...], start: int = 0, end: int | None = None) -> bool:
        first, last, _ = slice(start, end).indices(self._length)
        fitting = self._fitting(part, last - first if start <= self._length else -1)
        return any(self[first : first + len(each)] == each for each in fitting)

    def endswith(self, part: str | tuple[str, ...], start: int = 0, end: int | None = None) -> bool:
        first, last, _ = slice(start, end).indices(self._length)
        fitting = self._fitting(part, last - first if start <= self._length else -1)
        return any(self[last - len(each) : last] == each for each in fitting)

    @staticmethod
    def _fitting(part: str | tuple[str, ...], room: int) -> list[str]:
        return [each for each in ([part] if isinstance(part, str) else part) if len(each) <= room]

    def lines(self) -> Iterator[str]:
        """The lines, one at a time, without their newline."""
        at = self._start
        while at < self._end:
            if at + LINE_CHUNK >= self._end:
                stop = self._end - (self._map[self._end - 1] == ord("\n"))
            else:  # the last newline within a chunk, or else the next one, or else the end
                stop = self._map.rfind(b"\n", at, at + LINE_CHUNK)
                stop = stop if stop >= 0 else self._map.find(b"\n", at + LINE_CHUNK, self._end)
                stop = stop if stop >= 0 else self._end
            for line in self._decode(at, stop).split("\n"):
                yield line.rstrip("\r")
            at = stop + 1

    def _search(self, find: Any, part: str, start: int, end: int | None) -> int:
        first, last, _ = slice(start, end).indices(self._length)
        if first > last or start > self._length:
            return -1
        at = find(part.encode("utf-8", "surrogatepass"), self._byte(first), self._byte(last))
        return self._character(at) if at >= 0 else -1

    def _decode(self, start: int, stop: int) -> str:
        return str(memoryview(self._map)[start:stop], "utf-8", "replace")

    def _byte(self, character: int) -> int:
        """Where the character starts, as an offset into the mapping."""
        if not self._index:
            return self._start + character
        if character >= self._length:
            return self._end
        block = bisect_right(self._index, character) - 1
        at = self._start + block * BLOCK
        data = self._skip_continuation(at, at + BLOCK + 4)
        ahead = str(data, "utf-8", "ignore")[: character - self._index[block]]
        return at + (min(at + BLOCK + 4, self._end) - at - len(data)) + len(ahead.encode())

    def _character(self, byte: int) -> int:
        """Which character starts at this offset of the mapping."""
        if not self._index:
            return byte - self._start
        block = (byte - self._start) // BLOCK
        at = self._start + block * BLOCK
        return self._index[block] + len(str(self._skip_continuation(at, byte), "utf-8"))

    def _skip_continuation(self, start: int, stop: int) -> memoryview:
        """The bytes of a block from its first whole character on: the one before belongs to the block before."""
        data = memoryview(self._map)[start : min(stop, self._end)]
        while data and data[0] & 0xC0 == 0x80:
            data = data[1:]
        return data


class SharedTexts(Mapping[str, str]):
    """Names and their texts: each text is decoded when it is asked for. `view(name)` does not decode at all."""

    def __init__(self, region: Region, entries: dict[str, tuple[int, int, bytes]]) -> None:
        self._region = region
        self._entries = entries

    def __getitem__(self, name: str) -> str:
        return str(self.view(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"<{len(self)} shared texts: {', '.join(list(self._entries)[:10])}{' ...' if len(self) > 10 else ''}>"

    def view(self, name: str) -> SharedText:
        """The text as a view, for one that is too big to be a str."""
        start, size, index = self._entries[name]
        return SharedText(self._region, start, size, index)

    def size(self, name: str) -> int:
        """Bytes of the text, without decoding it."""
        return self._entries[name][1]


def teach_modules() -> None:
    """Let the functions that code calls most with a text take a view as well."""
    for name in ("search", "match", "fullmatch", "findall", "finditer", "split", "sub", "subn"):
        setattr(re, name, _taking_views(getattr(re, name)))
    json.loads = _taking_views(json.loads)


def _taking_views(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        plain = [str(value) if type(value) is SharedText else value for value in args]
        return function(
            *plain, **{key: str(value) if type(value) is SharedText else value for key, value in named.items()}
        )

    return call
