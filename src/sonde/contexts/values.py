"""A value of the caller's program as a context: text, bytes, dicts, lists, data frames.

The code gets it as the variable `context`. The tools see the same data as a text, `context.txt` or `context.json`, so that every
claim about it can be cited by lines; a dict of longer texts is seen as one file per key. Data frames are recognised by their methods
(`to_dict`, `to_dicts`, `to_pylist`), without importing a library, and arrive as lists of row dicts. Dates become ISO text, NaN
becomes None. Nothing else is converted: a value without a JSON form is refused, and the error names the place.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from sonde.contexts import Shareable
from sonde.contexts.files import FilesContext
from sonde.core.canonical import plural
from sonde.core.deadline import Clock
from sonde.core.evidence import Excerpt, Observed
from sonde.errors import ConfigError
from sonde.tools import Tool

if TYPE_CHECKING:
    from sonde.core.mask import Mask

NAME = "context"
SHARED_BYTES = 256_000_000
INJECTED_BYTES = 64_000_000


class ValuesContext:
    """One value as a context."""

    def __init__(self, value: Any, *, clock: Clock | None = None) -> None:
        try:
            self.value = self._real = plain_value(value)
        except RecursionError:
            raise ConfigError(f"{NAME} is nested too deeply, or contains itself: give a flatter value.") from None
        self._clock = clock
        self._texts = _texts(self.value)
        self._files = FilesContext(texts=self._texts, clock=clock)

    def mask_with(self, mask: Mask | None) -> None:
        """Show only the masked value; None: as it is."""
        if mask is None and self.value is self._real:
            return
        self.value = self._real if mask is None else mask.hidden_value(self._real)
        self._texts = _texts(self.value)
        self._files = FilesContext(texts=self._texts, clock=self._clock)

    def tools(self) -> Sequence[Tool]:
        """The tools of files, over the value's text."""
        return self._files.tools()

    def variables(self) -> Mapping[str, Any]:
        """`context` for the code, unless it is text (which is shared) or too large to copy."""
        return {} if self._as_text() or self._too_large() else {NAME: self.value}

    def shared(self) -> Mapping[str, Shareable]:
        """Text as the variable `context`: one text, or texts by name."""
        if not self._as_text() or self._too_large():
            return {}
        return {NAME: self._texts["context.txt"]} if isinstance(self.value, str) else {NAME: self._texts}

    def describe(self) -> str:
        """The value's shape, and how its text is laid out."""
        large = " It is too large for a variable." if self._too_large() else ""
        names = ", ".join(list(self._texts)[:20])
        value, layout = self.value, ""
        match value:
            case str():
                shape = f"A text of {plural(len(value), 'character')}."
            case dict():
                keys = list(cast("dict[str, Any]", value))
                more = ", …" if len(keys) > 20 else ""
                shape = f"A dict of {plural(len(keys), 'key')}: {', '.join(keys[:20])}{more}."
            case list():
                rows = cast("list[Any]", value)
                first = cast("dict[str, Any]", rows[0]) if rows and isinstance(rows[0], dict) else {}
                columns = ", ".join(list(first)[:40])
                keyed = f" with the keys {columns}" if columns else ""
                shape = f"A list of {plural(len(rows), 'item')}{keyed}."
                layout = ", where context[i] is line i + 2" if rows else ""
            case _:
                shape = f"One {type(value).__name__}."
        return f"{shape}{large} The tools read it as {names}{layout}."

    def outline(self) -> str:
        """The value's shape."""
        return self.describe()

    def whole_text(self, most_chars: int) -> Observed | None:
        """All of it with numbered lines, if that takes no more characters."""
        return self._files.whole_text(most_chars)

    def first_lines(self) -> Observed:
        """The first lines of its text."""
        return self._files.first_lines()

    def reread(self, excerpt: Excerpt) -> str | None:
        """The cited lines; they cannot change."""
        return self._files.reread(excerpt)

    def fingerprint(self) -> str:
        """A hash of the value's text."""
        return self._files.fingerprint()

    def _as_text(self) -> bool:
        return "context.json" not in self._texts

    def _too_large(self) -> bool:
        limit = SHARED_BYTES if self._as_text() else INJECTED_BYTES
        return self._files.library.listing.total_bytes > limit


def plain_value(value: Any, where: str = NAME) -> Any:
    """The JSON-like form of a caller's value; a ConfigError names the place that has none."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return value if value.isascii() else value.encode("utf-8", "replace").decode()
        case float():
            return value if math.isfinite(value) else None
        case bytes() | bytearray():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError as error:
                raise ConfigError(f"{where} is bytes that are not UTF-8 text ({error}): decode them first.") from None
        case Mapping():
            table: dict[str, Any] = {}
            for key, item in cast("Mapping[Any, Any]", value).items():
                if str(key) in table:
                    raise ConfigError(f"{where} has several keys that read {str(key)!r}: give them different names.")
                table[str(key)] = plain_value(item, f"{where}[{key!r}]")
            return table
        case list() | tuple():
            parts = cast("Iterable[Any]", value)
            return [plain_value(item, f"{where}[{number}]") for number, item in enumerate(parts)]
        case _:
            pass  # a data frame, a model or a scalar of another library, known by its methods
    for method, arguments in (
        ("to_dicts", {}),
        ("to_pylist", {}),
        ("to_dict", {"orient": "records"}),
        ("model_dump", {}),
    ):
        if hasattr(value, method) and (method != "to_dict" or hasattr(value, "columns")):
            return plain_value(getattr(value, method)(**arguments), where)
    for method in ("isoformat", "item"):
        if hasattr(value, method):
            found = getattr(value, method)()
            return None if found == "NaT" else plain_value(found, where)
    raise ConfigError(
        f"{where} is a {type(value).__name__}, which is not data: give text, numbers, lists, dicts, a data frame, or a path."
    )


def _texts(value: Any) -> dict[str, str]:
    """The value as files. JSON has short lines: one per item of a list, indented otherwise."""
    if isinstance(value, str):
        return {"context.txt": value}
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        texts = {key: item for key, item in items.items() if isinstance(item, str)}
        if len(texts) == len(items) and any("\n" in text or len(text) > 500 for text in texts.values()):
            return texts
    if not value or not isinstance(value, list):
        return {"context.json": json.dumps(value, ensure_ascii=False, indent=1)}
    rows = [json.dumps(row, ensure_ascii=False) for row in cast("list[Any]", value)]
    return {"context.json": "[\n" + ",\n".join(rows) + "\n]"}
