"""What code may look at: files, values, source code, traces, controls, configurations, and the workspace of an edit.

Every context gives a run tools, a description for the prompt, data to share with the sandbox, and a second look at citations. A context
is read-only (the workspace of `edit` is the exception) and may be used from several threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

from sonde.core.evidence import Excerpt, Observed
from sonde.tools import Tool

if TYPE_CHECKING:
    from sonde.core.mask import Mask

Shareable = str | bytes | Path | Mapping[str, Path | str]
"""Text, bytes, a file, or texts and files by name: what `Sandbox.share` maps into the code's process."""


SeenText = Annotated[Observed, "str"]
SeenNames = Annotated[Observed, "list[str]"]
SeenRows = Annotated[Observed, "list[dict]"]
SeenFields = Annotated[Observed, "dict"]
"""What tools return: the text names what code gets, `Observed` carries the excerpts with it."""


@runtime_checkable
class Showable(Protocol):
    """A context that a short prompt can show: its outline, its first lines, or all of it."""

    def outline(self) -> str:
        """What is here, in few words."""
        ...

    def first_lines(self) -> Observed:
        """A sample of the text; its excerpts may be cited."""
        ...

    def whole_text(self, most_chars: int) -> Observed | None:
        """All of it with numbered lines; None if that takes more characters."""
        ...


class Context(Protocol):
    """What code may look at."""

    def tools(self) -> Sequence[Tool]:
        """The functions that code may call."""
        ...

    def describe(self) -> str:
        """What is here, for the prompt: metadata only, never the content."""
        ...

    def shared(self) -> Mapping[str, Shareable]:
        """Data by variable name that the sandbox maps instead of copying."""
        ...

    def reread(self, excerpt: Excerpt) -> str | None:
        """The text behind an excerpt as it is now, or None if it cannot be read again."""
        ...

    def fingerprint(self) -> str:
        """A hash that changes with the data; cheap even for a gigabyte."""
        ...


@runtime_checkable
class Maskable(Protocol):
    """A context that can put people's data behind placeholders."""

    def mask_with(self, mask: Mask | None) -> None:
        """From now on show, share and prove only text that this mask hides; None: the real text again."""
        ...


@runtime_checkable
class Narrowable(Protocol):
    """A context that gives a sub-call only a part of itself; the part enforces that."""

    @property
    def places(self) -> Sequence[str]:
        """What this one is limited to; empty: nothing."""
        ...

    @property
    def first_looks(self) -> Sequence[Mapping[str, Any]]:
        """Arguments of `read_file` for what a sub-call reads before its model is asked."""
        ...

    def narrowed(self, paths: Sequence[str]) -> Context:
        """The part at these places, for reading only; without any, all that this one sees. A ToolFault for places that make no sense."""
        ...


@runtime_checkable
class Mindful(Protocol):
    """A context that remembers what calls did, and must hear of recorded ones, which a replay does not make."""

    def recall(self, name: str, args: Mapping[str, Any], result: Any, error: str | None) -> None:
        """Take note of a recorded call."""
        ...
