"""What the tests of file contexts share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sonde.contexts.files import FilesContext
from sonde.core.canonical import sha256_text
from sonde.tools import CallResult, ToolRegistry


def write(root: Path, files: dict[str, str | bytes]) -> FilesContext:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return FilesContext(root)


def call(context: FilesContext, name: str, *args: Any, **kwargs: Any) -> CallResult:
    registry = ToolRegistry(context.tools())
    return registry.call(name, registry.bind(name, args, kwargs))


def proved(context: FilesContext, result: CallResult) -> bool:
    texts = [context.reread(excerpt) for excerpt in result.excerpts]
    return all(t is not None and sha256_text(t) == e.hash for t, e in zip(texts, result.excerpts, strict=True))
