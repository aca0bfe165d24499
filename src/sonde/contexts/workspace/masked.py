"""A workspace with people's data behind placeholders: read masked, written with the real values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sonde.contexts.workspace.base import (
    Action,
    Applied,
    CommandResult,
    FileChange,
    FileSlice,
    Match,
    Matches,
    PatchRefused,
    PathRefused,
    Plan,
    Workspace,
    matching_lines,
    passage,
)
from sonde.contexts.workspace.local import DOCUMENTS, MAX_MATCHES
from sonde.contexts.workspace.paths import clean_folder
from sonde.contexts.workspace.text import plain
from sonde.core.canonical import sha256_text
from sonde.core.deadline import deadline_in_force
from sonde.errors import ToolFault

if TYPE_CHECKING:
    from sonde.core.mask import Mask

MAX_SEARCHED = 2000
"""Files; each is read and masked as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnText:
    """A file as the run has left it, and as it knows it."""

    text: str
    masked: str


class MaskedWorkspace:
    """See `Workspace`. Whoever approves a plan sees it as it will be written."""

    def __init__(
        self,
        inner: Workspace,
        mask: Mask,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,  # entered while somebody is asked
    ) -> None:
        self.inner = inner
        self._mask = mask
        self._waiting = waiting
        self._written: dict[str, OwnText] = {}
        self._named: dict[str, str] = {}
        self._placed: dict[str, str] = {}

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths of the files below a folder, masked."""
        with self._behind(root) as real:
            return tuple(sorted(map(self._name, self.inner.list_files(real))))

    def _name(self, path: str) -> str:
        """The masked name of a file, for one that the run has made the one that it gave."""
        return self._named.get(path) or self._mask.hidden_name(path)

    def _shown(self, path: str, text: str) -> str:
        """The masked text of a file. One that the run has written, and nobody has changed since, is shown as it wrote it: not by what
        its values look like now beside their new neighbours.
        """
        written = self._written.get(path)
        if written is None:
            return self._mask.hidden(text)
        for real, masked in (
            (written.text, written.masked),
            (plain(written.text).removesuffix("\n"), plain(written.masked).removesuffix("\n")),
        ):
            if text == real:
                return masked
        return self._mask.returned(text, self._placed)

    def recall(self, patch: str, paths: Iterable[str]) -> None:
        """Take note of a patch that was written before this process began."""
        self._placed.update(self._mask.handed(patch))
        self._written.update({self._mask.filled(path): OwnText(text="", masked="") for path in paths})

    @contextmanager
    def _behind(self, path: str) -> Generator[str]:
        """The path behind one that the run names. The words of a fault may quote it or parts of it, so they are said only if it hides
        nothing; one that holds a value in the clear is a guess, and names nothing.
        """
        made = (real for real, given in self._named.items() if given == path)
        real = next(made, None) or self._mask.behind(path)
        missing = f"there is no {path}; list_files() shows what there is"
        if real is None:
            raise PathRefused(missing)
        try:
            yield real
        except ToolFault as fault:
            raise PathRefused(self._mask.hidden(fault.message) if real == path else missing) from None

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines of a file. All of it is read and masked first: a key may begin above them."""
        with self._behind(path) as real:
            whole = self.inner.read(real, rationale=rationale)
        shown = f"{self._shown(whole.path, whole.content)}\n" if whole.total_lines else ""
        return passage(self._name(whole.path), shown, start_line, end_line)

    def search(self, query: str, path: str | None = None) -> Matches:
        """Lines that contain the text `query` as they are masked."""
        if not query:
            raise ToolFault("the query is empty. Example: search('def main')")
        place = clean_folder(path or "")
        names = [each for each in self.list_files() if not place or each == place or each.startswith(f"{place}/")]
        if place and not names:
            found = matching_lines(place, self.read(place).content, query, MAX_MATCHES)
            note = f"only the first {MAX_MATCHES} matches are shown; search for something rarer"
            return Matches(matches=tuple(found), truncated=note if len(found) >= MAX_MATCHES else None)
        rows: list[Match] = []
        run = deadline_in_force()
        for number, name in enumerate(names[:MAX_SEARCHED]):
            if run is not None and run.is_over():
                note = f"the run had to end: {number:,} of {len(names):,} files were searched"
                return Matches(matches=tuple(rows), truncated=note)
            if len(names) == 1 or not name.lower().endswith(DOCUMENTS):
                with suppress(PathRefused):  # no text
                    rows += matching_lines(name, self.read(name).content, query, MAX_MATCHES - len(rows))
            if len(rows) >= MAX_MATCHES:
                break
        cut = len(rows) >= MAX_MATCHES or len(names) > MAX_SEARCHED
        note = f"only the first {MAX_MATCHES} matches in the first {MAX_SEARCHED:,} files are shown; name a file or a folder"
        return Matches(matches=tuple(rows), truncated=note if cut else None)

    def text(self, path: str) -> str | None:
        """The whole text of a file, masked."""
        if path not in self._named.values() and self._mask.behind(path) is None:
            return None
        with self._behind(path) as real:
            whole = self.inner.text(real)
        return None if whole is None else self._shown(real, whole)

    def apply(self, plan: Plan) -> Applied:
        """Write the plan with the real values. Whether a placeholder may stand somewhere, and what is said afterwards, goes by the
        plan as the run gave it: by the real one, one could try out guesses, and read values beside which others begin.
        """
        for change in plan.changes:
            self._check(change)
        real = replace(plan, changes=tuple(map(self._real, plan.changes)))
        try:
            with self._waiting():
                done = self.inner.apply(real)
        except ToolFault as fault:
            named = [path for change in plan.changes for path in change.touched()]
            raise ToolFault(
                self._mask.NOT_SAID if self._mask.handed(named) else self._mask.hidden(fault.message)
            ) from None
        if not done.applied:
            return replace(done, summary=self._mask.hidden(done.summary))
        for change, written in zip(plan.changes, real.changes, strict=True):
            for path in written.touched():
                self._written.pop(path, None)
                self._named.pop(path, None)
            if change.new_text is not None and written.new_text is not None:
                before = set(change.old_text.split("\n"))
                added = [line for line in change.new_text.split("\n") if line not in before]
                self._placed.update(self._mask.handed(added))
                self._written[written.writes] = OwnText(
                    text=written.new_text, masked=self._mask.guarded(change.new_text)
                )
                self._named[written.writes] = change.writes
        own_words = done.summary != real.summary()  # of an editor
        return replace(done, summary=self._mask.hidden(done.summary) if own_words else plan.summary(), diff=plan.diff())

    def _check(self, change: FileChange) -> None:
        """PatchRefused where a placeholder stands for nothing or would be read as something else, or a new name holds a guess."""
        text, name = change.new_text or "", change.writes if change.action in (Action.ADD, Action.MOVE) else ""
        unknown = [*self._mask.unknown_in(text), *self._mask.unknown_in(name)]
        if unknown:
            raise PatchRefused(f"{unknown[0]} stands for nothing here; use only placeholders that you have read")
        glued = [*self._mask.glued_in_name(name), *self._mask.glued_in(text, change.old_text)]
        if glued:
            raise PatchRefused(
                f"{glued[0]} would not be recognised there any more; put a quote, a bracket, a comma or a word and a space between it "
                "and its neighbours"
            )
        if self._mask.has_clear(name):
            raise PatchRefused("the new name looks like somebody's data; use the placeholder, or another name")

    def _real(self, change: FileChange) -> FileChange:
        filled, old = self._mask.filled, self._mask.filled(change.old_text)
        return replace(
            change,
            path=filled(change.path),
            target=None if change.target is None else filled(change.target),
            new_text=None if change.new_text is None else filled(change.new_text),
            old_text=old,
            base_hash=None if change.base_hash is None else sha256_text(old),
        )

    def undo(self) -> str:
        """Take the last applied plan back."""
        return self._mask.returned(self.inner.undo(), self._placed)

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """Run an allowed command with the real values; what it prints is masked."""
        real = self._mask.filled(command)
        try:
            with self._behind(cwd) as folder:
                done = self.inner.execute(real, folder)
        except ToolFault as fault:
            raise ToolFault(fault.message if real == command else self._mask.NOT_SAID) from None
        handed = {**self._placed, **self._mask.handed(command)}
        out, errors = self._mask.returned([done.stdout, done.stderr], handed)
        return replace(done, stdout=out, stderr=errors)
