"""From a failing span to the code that raised it: frames of its stack trace as files of the workspace, and the commits behind a line.

A stack trace is a stranger's text. A file that it names is never opened by that name: it is only looked for among the listed files, by the
end of its path. git runs as an allowed command of `edit` does, confined and without programs of the repository's choice. The files may
have changed since the trace was recorded, and the line may hold something else now.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from sonde.contexts.files import FilesContext
from sonde.contexts.traces.span import Row, Span, time_text
from sonde.contexts.traces.store import TraceStore
from sonde.contexts.traces.views import content_excerpt
from sonde.contexts.workspace.local import PLAIN, LocalWorkspace
from sonde.contexts.workspace.policy import Policy
from sonde.contexts.workspace.reach import strange_history
from sonde.core.canonical import clip
from sonde.core.evidence import Excerpt, Observed
from sonde.disk import secret_reason
from sonde.errors import ToolFault

STACK = "exception.stacktrace"
STACK_CHARS = 100_000
LINE_CHARS = 600
MAX_FRAMES = 100
DIFF_CHARS = 6_000
NO_PATTERNS = {"GIT_LITERAL_PATHSPECS": "1"}  # in the name of a file
_PYTHON = re.compile(r'File "([^"]+)", line (\d{1,7})(?:, in (\S+))?')
_JVM = re.compile(r"at ([\w.$]+)\.([\w$<>]+)\(([\w$-]+\.\w{1,8}):(\d{1,7})\)")
_OTHERS = re.compile(
    r"(?:at (?:async )?(\S+) \(|from |^|\()(?:file://)?([^\s():\"']*[^\s():\"'/]\.\w{1,8}):(\d{1,7})\b"
)


class Frame(NamedTuple):
    """One line of a stack trace."""

    file: str
    line: int
    function: str


def frames_in(stack: str) -> Iterator[Frame]:
    """The frames that a stack trace names, as it orders them: Python, the JVM, and whatever writes `path:line`."""
    for text in stack[:STACK_CHARS].splitlines():
        line = text.strip()[:LINE_CHARS]
        if found := _PYTHON.search(line):
            yield Frame(found[1], int(found[2]), found[3] or "")
        elif found := _JVM.search(line):
            package = "/".join(found[1].split(".")[:-1])
            yield Frame(f"{package}/{found[3]}".lstrip("/"), int(found[4]), f"{found[1].rpartition('.')[2]}.{found[2]}")
        elif found := _OTHERS.search(line):
            yield Frame(found[2], int(found[3]), found[1] or "")


class Frames:
    """The tools that lead from spans to code."""

    def __init__(self, store: TraceStore, files: FilesContext) -> None:
        self._store = store
        self._files = files
        self._by_name: Mapping[str, list[tuple[str, ...]]] | None = None

    def stack_frames(self, span_id: str) -> Observed:
        """The stack trace of a failed span as [{file, line, function, path, text}]; path is the file here and text its line now,
        both None for code from elsewhere. Lines with a path may be cited as [path:line].

        Example: frames = stack_frames(span_id)
        """
        span = self._store.span(span_id)
        stack = _stack_of(span)
        if not stack:
            raise ToolFault(f"span {span_id} has no stack trace (no {STACK}); get_span shows what it has")
        rows: list[Row] = []
        excerpts: dict[str, Excerpt] = {}
        for frame in frames_in(stack):
            if len(rows) == MAX_FRAMES:
                break
            path, also = self._here(frame.file)
            text = None
            if path is not None:
                try:
                    seen = self._files.read_file(path, frame.line, frame.line)
                    text = clip(str(seen.value), LINE_CHARS)
                    excerpts |= {each.ref: each for each in seen.excerpts}
                except ToolFault:  # it is shorter now, or no text
                    text = None
            row = {
                "file": clip(frame.file, LINE_CHARS),
                "line": frame.line,
                "function": frame.function,
                "path": path,
                "text": text,
            }
            rows.append({**row, "one_of": also} if also else row)
        if not rows:
            raise ToolFault(f"no frame could be read from the stack trace of {span_id}; get_attribute shows it")
        cut = f"only the first {MAX_FRAMES} frames" if len(rows) == MAX_FRAMES else None
        return Observed(rows, (*excerpts.values(), content_excerpt(span)), cut)

    def line_history(self, path: str, line: int) -> Row:
        """The commit that last changed a line of a file here: {commit, author, date, summary, diff of that file}.

        Example: print(line_history("src/pay.py", 42))
        """
        entry = self._files.library.entry(path)
        top = repository_of(Path(entry.real)) if entry.real and not entry.member else None
        if top is None:
            raise ToolFault(f"{path} is not in a git repository")
        inside = Path(entry.real).resolve().relative_to(top).as_posix()
        if reason := secret_reason(inside):
            raise ToolFault(f"the history of {path} is not shown: {reason}")
        name = shlex.quote(inside)
        blamed = _git(top, f"git blame --porcelain -L {max(1, line)},{max(1, line)} -- {name}")
        commit = blamed.split(" ", 1)[0]
        said = {name: value for name, _, value in (each.partition(" ") for each in blamed.splitlines()[1:])}
        if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
            raise ToolFault(f"git says nothing about line {line} of {path}")
        if not commit.strip("0"):
            return {"commit": None, "author": None, "date": None, "summary": "not committed yet", "diff": None}
        when = time_text(int(said.get("author-time", "0")) * 1_000_000)
        return {
            "commit": commit,
            "author": said.get("author"),
            "date": f"{when[:19]}Z",
            "summary": said.get("summary"),
            "diff": clip(_git(top, f"git show --format= -U2 --diff-filter=d {commit} -- {name}"), DIFF_CHARS),
        }

    def _here(self, file: str) -> tuple[str | None, list[str]]:
        """The listed file with the longest common end of path; several that fit equally well are named, and none is chosen."""
        if self._by_name is None:
            names: dict[str, list[tuple[str, ...]]] = defaultdict(list)
            for path in self._files.library.entries:
                parts = tuple(path.split("/"))
                names[parts[-1]].append(parts)
            self._by_name = names
        wanted = [part for part in file.replace("\\", "/").split("/") if part not in ("", ".")]
        known = self._by_name.get(wanted[-1], []) if wanted else []
        alike = [(_common_end(parts, wanted), "/".join(parts)) for parts in known]
        most = max((length for length, _ in alike), default=0)
        best = [path for length, path in alike if length == most]
        return (best[0], []) if len(best) == 1 else (None, best[:5])


def _common_end(one: tuple[str, ...], other: list[str]) -> int:
    length = 0
    for mine, theirs in zip(reversed(one), reversed(other), strict=False):
        if mine != theirs:
            break
        length += 1
    return length


def _stack_of(span: Span) -> str:
    tables = (*(event.attributes for event in span.events), span.attributes)
    found = next((str(table[STACK]) for table in tables if table.get(STACK)), "")
    said = span.summary.status_message
    return found or (said if _PYTHON.search(said) or _JVM.search(said) else "")


def repository_of(file: Path) -> Path | None:
    """The top of the git repository that holds a file; None if it is in none."""
    return next((folder for folder in file.resolve().parents if (folder / ".git").exists()), None)


def _git(top: Path, command: str) -> str:
    policy = Policy(commands=("git blame", "git show"))
    if strange := strange_history(top):
        raise ToolFault(f"the history of these files is not read, because {strange}")
    result = LocalWorkspace(top, policy=policy, environment={**PLAIN, **NO_PATTERNS}).execute(command)
    if result.exit_code != 0:
        raise ToolFault(f"git failed: {clip(' '.join(result.stderr.split()), 300)}")
    return result.stdout


def in_repository(files: FilesContext) -> bool:
    """Whether some listed file lies in a git repository: without one there is no history to ask for."""
    folders = {Path(entry.real).parent for entry in files.library.entries.values() if entry.real}
    return any(repository_of(folder / "x") is not None for folder in list(folders)[:1000])
