"""The processes that read untrusted documents: a zygote that imports the parsers, and confined children that run them.

A child has a socket and /dev/null. It gets one document at a time, as a descriptor, and answers with frames of plain data. It can
neither open a file nor reach a network, nor start a process or a thread: whatever a parser needs is imported before the child is forked.

    out   kind (1) · length (4) · msgpack, or the words of a refusal
    in    a packet of marshal, with the descriptor
"""

from __future__ import annotations

import codecs
import gc
import importlib
import io
import marshal
import os
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from . import channel, confine, zygote
from .confine import Origin
from .language import preload
from .zygote import Zygote, keep_only

READY, RECORD, END, REFUSED, OUT_OF_MEMORY = 1, 2, 3, 4, 5
HEADER = struct.Struct("<BI")
LONGEST_REQUEST = 4096
"""It arrives whole: the kernel does not cut what is this short."""
LONGEST_REFUSAL = 500
READ_AT_ONCE = 1 << 16
ENCODINGS = ("charmap", "cp1252", "mac_roman", "utf_16", "utf_16_be", "utf_16_le", "latin_1", "ascii")

Reader = Callable[..., Iterator[Any]]


class Torn(Exception):
    """A part of a frame may be on its way. Whatever came next would be taken for the rest of it, so nothing may."""


class Document(io.RawIOBase):
    """A file by its descriptor, read at positions of our own: the offset that the supervisor shares stays where it is."""

    def __init__(self, descriptor: int, size: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = os.pread(self._descriptor, len(buffer), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def main(control_fd: int, supervisor: int, modules: dict[str, list[str]]) -> None:
    preload(modules["preload"])
    for name in ENCODINGS:
        codecs.lookup(name)
    zygote.serve(control_fd, supervisor, ParserZygote)


class ParserZygote(Zygote):
    """Obeys the supervisor. A parser is imported when the first child for it is wanted."""

    def obey(self, message: tuple[str, Any], descriptors: list[int]) -> Any:
        match message:
            case ("spawn", {"module": name}):
                try:
                    module = importlib.import_module(name)
                except ImportError as error:
                    os.close(descriptors[0])
                    return str(error)
                gc.collect()
                gc.freeze()
                return self.spawn(os.fork, descriptors[0], start_parser, module.read)
            case _:
                return super().obey(message, descriptors)


def start_parser(descriptor: int, origin: Origin, read: Reader) -> None:
    """From a fresh fork to a confined process that reads one document after the other."""
    keep_only(descriptor)
    config: dict[str, Any] = channel.receive()
    wire = socket.socket(fileno=channel.SOCKET)
    on, missing = confine.confine_parser(config, origin)
    _send(READY, msgspec.msgpack.encode((on, missing)))
    serve(wire, read)


def serve_unconfined(module: str) -> None:
    """In a plain process, where the user has said that code may run unconfined."""
    read = importlib.import_module(module).read
    _send(READY, msgspec.msgpack.encode(([], ["confinement"])))
    serve(socket.socket(fileno=channel.SOCKET), read)


def serve(wire: socket.socket, read: Reader) -> None:
    """Read documents until the supervisor hangs up."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(wire, LONGEST_REQUEST, 1)
        if not message:
            os._exit(0)
        options, size = marshal.loads(message)  # written by the supervisor only
        document = io.BufferedReader(Document(descriptors[0], size), READ_AT_ONCE)
        try:
            for record in read(document, **options):
                _send(RECORD, msgspec.msgpack.encode(record))
        except Torn:
            os._exit(1)
        except MemoryError:
            _send(OUT_OF_MEMORY, b"")
        except Exception as error:  # whatever a parser makes of a broken document
            words = str(error) if getattr(error, "in_our_words", False) else type(error).__name__
            _send(REFUSED, words[:LONGEST_REFUSAL].encode("utf-8", "replace"))
        else:
            _send(END, b"")
        document.close()
        os.close(descriptors[0])


def _send(kind: int, data: bytes) -> None:
    view = memoryview(HEADER.pack(kind, len(data)) + data)
    try:
        while view:
            view = view[os.write(channel.SOCKET, view) :]
    except (OSError, MemoryError) as error:
        raise Torn from error
