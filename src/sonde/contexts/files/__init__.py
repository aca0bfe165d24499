"""Files, folders, globs and piped text as a context."""

from sonde.contexts.files.context import FilesContext

__all__ = ["FilesContext"]
