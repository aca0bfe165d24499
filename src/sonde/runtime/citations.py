"""How generated code cites: lines of files, and what the user's own tools returned.

Models read the docstrings of `add_citation` and `cite_tool`. What the code cites is proved at once; the model sees text that its code
has not printed before it may finish.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from sonde.core.calls import CallRef, call_prefix, call_text, shown_text
from sonde.core.canonical import clip
from sonde.core.events import ROOT, Cited, HostReturned
from sonde.core.evidence import Citation, EvidenceKind, Excerpt, Refuted, merge
from sonde.errors import ToolFault
from sonde.runtime.feedback import was_shown

if TYPE_CHECKING:
    from sonde.runtime.run import Run

MAX_CITATIONS = 120
UNSEEN_CHARS = 400
LISTED_CALLS = 12
LISTED_CHARS = 160


@dataclass(slots=True, kw_only=True)
class CallSite:
    """Where the code of a session is, and the remarks its model reads after the turn. The host and its parts share one."""

    session: str
    turn: int = 0
    ordinal: int = 0
    notes: list[str] = field(default_factory=list[str])
    done: list[str] = field(default_factory=list[str])
    """What its block has changed so far, in words: that stays if the block fails."""


class Citations:
    """The citations of one session: what its code has cited, and what it may cite."""

    def __init__(self, run: Run, site: CallSite) -> None:
        self.run = run
        self.site = site
        self.proved: list[Citation] = []
        self.unseen: list[str] = []
        # What the first prompt and earlier blocks showed.
        self.shown = [run.spec.earlier] if site.session == ROOT else []
        self.ref = ""  # by which the last call is cited, if it was of a user's tool
        self.refs: dict[str, str] = {}  # how the refs of a call begin -> that of its last result in this session
        self.results: dict[str, tuple[Excerpt, ...]] = {}  # by hash: what a tool returned here, and what proves it
        self._listed = 0  # calls of user's tools in this turn

    def begin_turn(self) -> None:
        """Start a turn: nothing is listed or unseen yet."""
        self._listed = 0
        self.unseen.clear()

    def merge(self, cited: Iterable[Citation]) -> None:
        """Add what is already proved, such as the citations of a child."""
        self.proved[:] = merge(self.proved, cited)

    def remember(self, recorded: HostReturned) -> None:
        """Keep what proves a result, and the ref by which the call is cited if it is; the model hears those of the user's tools."""
        self.ref = ""
        excerpts = tuple(msgspec.convert(each, Excerpt) for each in recorded.excerpts)
        if recorded.ok:
            self.results[recorded.response_hash] = excerpts
        own = next((each.ref for each in excerpts if CallRef.read(each.ref) is not None), None)
        if own is None:
            return
        self.refs[own.rpartition("-")[0]] = own
        by_call = (*self.run.registry.given, *self.run.spec.engine.cited)
        if recorded.name not in by_call or not self.run.cites:
            return
        self.ref = own
        self._listed += 1
        if self._listed <= LISTED_CALLS:
            called = clip(call_text(recorded.name, dict(recorded.args)), LISTED_CHARS)
            self.site.notes.append(f"{called} is cited as [{own}]")
        elif self._listed == LISTED_CALLS + 1:
            self.site.notes.append(
                f"further calls are not listed: cite_tool({recorded.name!r}, {{...}}) cites one of them"
            )

    def add_citation(
        self, path: str, start_line: int, end_line: int, signal: str = "reference", snippet: str = ""
    ) -> str:
        """Cite lines of a file as proof of your answer; returns their text. Cite the fewest lines that prove the claim.

        Example: add_citation("src/app.py", 10, 12)
        """
        del snippet  # the runtime takes the text from the file, never from the model
        proved = self.run.prover.lines(path, start_line, end_line, signal=signal)
        if isinstance(proved, Refuted):
            if start_line < 1 or end_line < start_line:
                raise ToolFault(
                    f"{start_line}-{end_line} is not a range of lines; lines count from 1, for example 10 to 12"
                )
            args: dict[str, Any] = {"path": path, "start_line": start_line, "end_line": end_line}
            if end_line - start_line >= 200:
                args["rationale"] = "the code cites these lines"
            read = self.run.registry.call("read_file", args)
            self.run.log.note(each for each in read.excerpts if each.kind is EvidenceKind.FILE)
            proved = self.run.prover.lines(path, start_line, end_line, signal=signal)
            if isinstance(proved, Refuted):
                raise ToolFault(proved.told)
            if not was_shown(str(read.result), "\n".join(self.shown)):
                self.unseen.append(f"{path}:{start_line}-{end_line}: {proved.snippet}")
        self._cite(proved)
        return proved.snippet

    def try_citation(
        self, path: str, start_line: int, end_line: int, signal: str = "reference", snippet: str = ""
    ) -> str:
        """Cite lines of a file as proof of what you found; returns their text. Cite the fewest lines that prove the claim.

        Example: add_citation(path, 10, 12, "retries")
        """
        del snippet  # as above
        start = max(1, start_line)
        args: dict[str, Any] = {"path": path, "start_line": start, "end_line": max(start, end_line)}
        try:
            read = self.run.registry.call("read_file", args)
            lines = [each for each in read.excerpts if each.kind is EvidenceKind.FILE]
            self.run.log.note(lines)
            place = (
                (lines[0].path, start, min(args["end_line"], lines[-1].end_line)) if lines else (path, start, end_line)
            )
            proved = self.run.prover.lines(*place, signal=signal)
            why = proved.told if isinstance(proved, Refuted) else ""
        except ToolFault as fault:
            proved, why = None, fault.message
        if not isinstance(proved, Citation):
            self.site.notes.append(f"add_citation: {clip(why, UNSEEN_CHARS)}")
            return ""
        self._cite(proved)
        return proved.snippet

    def cite_tool(self, name: str, args: dict[str, Any], signal: str = "reference") -> str:
        """Cite what one of the user's tools returned for these arguments, as proof of your answer; returns the ref, which cites it too
        when it stands in brackets in the answer.

        Example: ref = cite_tool("NAME", {"argument": value})
        """
        if name not in self.run.registry.names:
            known = ", ".join(self.run.registry.given)
            raise ToolFault(f"{name!r} is none of the tools that are cited by their calls: {known}")
        ref = self.refs.get(call_prefix(name, self.run.registry.args_hash(name, args)))
        if ref is None:
            lines = "" if name in self.run.registry.given else ", or returned lines of files: cite those as [path:3-5]"
            raise ToolFault(
                f"{call_text(name, args)} was not called in this session{lines}; call it and look at what it returns"
            )
        proved = self.run.prover.call(ref, signal=signal)
        if isinstance(proved, Refuted):
            raise ToolFault(proved.told)
        # The model sees a result that its code cites unprinted, as it sees lines of a file.
        event, printed = self.run.recorder.returned(ref), "\n".join(self.shown)
        if event is not None and repr(event.result) not in printed and not was_shown(shown_text(event.result), printed):
            self.unseen.append(f"{proved.place}: {clip(shown_text(event.result), UNSEEN_CHARS)}")
        self._cite(proved)
        return ref

    def _cite(self, proved: Citation) -> None:
        if len(self.proved) < MAX_CITATIONS:
            self.merge([proved])
            self.run.emit(
                Cited(
                    session=self.site.session,
                    turn=self.site.turn,
                    ordinal=self.site.ordinal,
                    citation=proved.model_dump(mode="json"),
                )
            )
