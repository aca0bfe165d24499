"""The text of a Jupyter notebook, cell by cell: what was written, and what its outputs say as text. Pictures are left out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO


def read(document: BinaryIO) -> Iterator[str]:
    """Every cell under a line with its number and kind, with its outputs. Any error says that it is no notebook."""
    notebook: Any = json.load(document)
    for number, cell in enumerate(notebook["cells"], 1):
        yield f"[cell {number}, {cell['cell_type']}]\n{_joined(cell['source'])}"
        for output in cell.get("outputs", ()):
            if trace := output.get("traceback"):
                yield f"[error of cell {number}]\n" + "\n".join(trace)
            elif said := output.get("text") or output.get("data", {}).get("text/plain"):
                yield f"[output of cell {number}]\n{_joined(said)}"


def _joined(source: str | list[str]) -> str:
    """Text that a notebook holds whole or in lines."""
    return (source if isinstance(source, str) else "".join(source)).rstrip("\n")
