"""Parsers of untrusted documents, by kind. Each runs in a confined process, and this process sees only plain records.

    for page in parse("pdf", descriptor, str):
        ...

To add a kind, write a module with `read(document, **options)` that takes a seekable binary file and yields plain values, and name it here.
Such a module imports all that it needs when it is itself imported: in the confined process no file can be opened any more.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

import msgspec

from sonde.parsers.extensions import unpacked
from sonde.sandbox.parser_process import PARSERS, ParserKind, ParserLimits, ParserUnavailable, Refused, Unparsed

T = TypeVar("T")
KINDS = {
    "pdf": ParserKind(module="sonde.parsers.pdf", batch=50),
    "notebook": ParserKind(module="sonde.parsers.notebook", batch=50),
    "web": ParserKind(module="sonde.parsers.web", batch=50),
    "office": ParserKind(module="sonde.parsers.office", batch=50),
    "opendocument": ParserKind(module="sonde.parsers.opendocument", batch=50),
    "presentation": ParserKind(module="sonde.parsers.presentation", batch=50),
    "symbols": ParserKind(module="sonde.parsers.grammars", batch=500),
    "archive": ParserKind(module="sonde.parsers.archives", batch=50),
    "parquet": ParserKind(module="sonde.parsers.parquet"),
}


def parse(
    kind: str,
    source: int | bytes,
    shape: type[T],
    limits: ParserLimits = ParserLimits(),  # noqa: B008 - a frozen value
    *,
    without: str = "",
    **options: Any,
) -> Generator[T]:
    """The records of a document, each checked to be of this shape. Unparsed says why there are none, or no more.

    `source` is an open file or bytes; `options` are for the parser. `without` is the layer that it may lack.
    """
    for record in PARSERS.read(KINDS[kind], source, options, limits, without=without):
        try:
            yield msgspec.msgpack.decode(record, type=shape, ext_hook=unpacked)
        except (msgspec.DecodeError, ValueError, ArithmeticError, RecursionError):
            raise Unparsed("was not read: its parser answered with something else than it should") from None


__all__ = ["KINDS", "ParserLimits", "ParserUnavailable", "Refused", "Unparsed", "parse"]
