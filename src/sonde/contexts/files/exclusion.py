r"""What is left out though a folder or a glob brings it: the user's globs, and what .gitignore files name.

Both are patterns as git reads them: one without a slash fits a name at any depth, one with a slash starts at its own folder, `/` at the
end means folders only, `**` any number of folders. In .gitignore `!` takes back, the last line that fits counts, a deeper file counts
more, and nothing inside an ignored folder comes back.

A stranger may have written a .gitignore. It can only hide files, is read only if it is a plain file, and costs time linear in the path
(RE2) and bounded in all. Git's own index, .git/info/exclude and the user's global file are not read.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sonde.core.patterns import Pattern, compiled, escaped
from sonde.disk import read_plain
from sonde.errors import ConfigError

GITIGNORE = ".gitignore"
IGNORED = "in .gitignore"
EXCLUDED = "excluded"
COSTLY = "not applied: it is too large or its patterns cost too much"
MOST_BYTES = 65_536  # of one .gitignore
MOST_CHARS = 1_000_000  # of all .gitignore files below one root
MOST_LINE = 4_096  # of one pattern
MOST_SECONDS = 5.0  # of processor time for all comparisons; a million files and a usual .gitignore take less
_PARENTS = 200
_MAGIC = re.compile(r"[*?\[\\]")
_TOKEN = re.compile(r"(?:(?<=/)|^)(?:\*\*/)+|(?<=/)\*\*+$|\*+|\?|\[[!^]?\]?[^\]/]*\]|\\.|.", re.DOTALL)


def _plain(path: str) -> str:
    """A glob for exactly this path."""
    return re.sub(r"([*?\[\]\\])", r"\\\1", path)


class _Rules(NamedTuple):
    """Consecutive lines of one sign. Plain names and endings, which are most, need no pattern."""

    hides: bool
    names: frozenset[str]
    endings: tuple[str, ...]
    by_name: Pattern | None
    by_path: Pattern | None

    def fit(self, name: str, path: str) -> bool:
        """Whether a line fits; a folder's name and path end with a slash."""
        return (
            name in self.names
            or name.removesuffix("/") in self.names
            or name.removesuffix("/").endswith(self.endings)
            or (self.by_name is not None and self.by_name.fullmatch(name) is not None)
            or (self.by_path is not None and self.by_path.fullmatch(path) is not None)
        )


class _Level(NamedTuple):
    """The rules of one folder, which is so many characters of a path."""

    base: int
    rules: tuple[_Rules, ...]


Chain = tuple[_Level, ...]


@dataclass(frozen=True, slots=True)
class Exclusion:
    """What to leave out: globs of the user, and whether .gitignore files count."""

    globs: tuple[str, ...] = ()
    gitignore: bool = True

    @staticmethod
    def of(globs: Sequence[str], *, gitignore: bool = True, here: str | Path | None = None) -> Exclusion:
        """The globs as a user writes them: from the folder that is read, or from `here` (None: the working folder), which is kept as an
        absolute form. `/` at the beginning means the folder that is read, as in .gitignore (kept as `//`), or is an absolute path.
        """
        said: list[str] = []
        for glob in globs:
            if not glob.strip() or "\n" in glob:
                raise ConfigError(
                    "a glob to exclude is empty or has several lines; give one such as '**/*.test.ts', or leave it out"
                )
            if not glob.startswith(("./", "../")):
                said.append(f"/{glob}" if glob.startswith("/") else glob)
            if "/" in glob.rstrip("/"):
                base = "" if glob.startswith("/") else _plain(str(here or Path.cwd()))
                folder = "/" if glob.endswith("/") else ""
                # Two slashes at the beginning would stay two.
                said.append(f"/{os.path.normpath(f'{base}/{glob}').lstrip('/')}{folder}")
        return Exclusion(tuple(dict.fromkeys(said)), gitignore)

    def below(self, root: str) -> Exclusion:
        """The same for paths that are relative to a root: `/` at the beginning of a glob means the root."""
        inside = (re.sub(f"^(?:/(?=/)|{re.escape(_plain(root).rstrip('/'))}(?=/))", "", each) for each in self.globs)
        return Exclusion(tuple(inside), self.gitignore)


@dataclass(slots=True)
class Judge:
    """Judges paths by an exclusion; `costly` lists the .gitignore files that were not applied."""

    exclusion: Exclusion
    costly: list[str] = field(default_factory=list[str])
    _own: tuple[_Rules, ...] = ()
    _absolute: tuple[_Rules, ...] = ()
    _chars: int = MOST_CHARS
    _seconds: float = MOST_SECONDS
    _folders: dict[str, tuple[Chain, bool]] = field(default_factory=dict[str, tuple[Chain, bool]])

    def __post_init__(self) -> None:
        globs = self.exclusion.globs
        # "!" takes nothing back here, and "#" is no comment
        own = [re.sub(r"^([!#])", r"\\\1", each.removeprefix("/")) for each in globs if not re.match("/(?!/)", each)]
        try:
            self._own, self._absolute = _rules(own), _rules([each for each in globs if re.match("/(?!/)", each)])
        except ValueError:
            raise ConfigError("the globs to exclude are too large together; give fewer or shorter ones") from None

    def excludes(self, inside: str, path: str = "", *, folder: bool = False) -> bool:
        """Whether the user leaves it out, by its path below what is read or by its absolute one; folders above it count too."""
        return any(
            bool(rules) and any(_last_fit(rules, each) for each in _prefixes(whole, folder=folder))
            for rules, whole in ((self._own, inside), (self._absolute, path.lstrip("/")))
        )

    def top(self, root: str) -> Chain:
        """The rules that hold at a root: its own, and in a git repository those of the folders around it, unless they hide the root
        itself: the user has named it.
        """
        if not self.exclusion.gitignore:
            return ()
        around = [root, *map(str, Path(root).parents)][:_PARENTS]
        ends = next((at for at, each in enumerate(around) if os.path.lexists(f"{each.rstrip('/')}/.git")), 0)
        chain: Chain = ()
        for folder in reversed(around[: ends + 1]):
            hidden = self.ignores(folder, chain, folder=True)
            chain = self.enter(folder, () if hidden else chain)
        return chain

    def enter(self, folder: str, chain: Chain) -> Chain:
        """The rules that hold in a folder, after those of the folders around it."""
        if not self.exclusion.gitignore:
            return chain
        file = f"{folder.rstrip('/')}/{GITIGNORE}"
        try:
            text = read_plain(file, MOST_BYTES).decode("utf-8-sig", "replace")
            self._chars -= len(text)
            began = time.thread_time()
            rules = _rules(text.splitlines()) if self._chars >= 0 and self._seconds >= 0 else None
            self._seconds -= time.thread_time() - began
        except FileNotFoundError:
            return chain
        except (OSError, ValueError):
            rules = None
        if rules is None:
            self.costly.append(file)
            return chain
        return (*chain, _Level(len(folder.rstrip("/")) + 1, rules)) if rules else chain

    def ignores(self, path: str, chain: Chain, *, folder: bool = False) -> bool:
        """Whether the .gitignore files in force hide a path; the folders above it were judged before."""
        path = f"{path}/" if folder else path
        for level in reversed(chain):
            inside = path[level.base :]
            if self._seconds < 0:
                if COSTLY not in self.costly:
                    self.costly.append(COSTLY)
                return False
            began = time.thread_time()
            fitted = _last_fit(level.rules, inside)
            self._seconds -= time.thread_time() - began
            if fitted is not None:
                return fitted
        return False

    def ignores_below(self, root: str, path: str, *, folder: bool = False) -> bool:
        """The same for a path that `_walk` has not brought: every folder from the root down is judged, each once."""
        *folders, _ = os.path.relpath(path, root).split("/")
        if root not in self._folders:
            self._folders[root] = self.top(root), False
        chain, hidden = self._folders[root]
        at = root
        for name in folders:
            at = f"{at.rstrip('/')}/{name}"
            if at not in self._folders:
                hidden = hidden or self.ignores(at, chain, folder=True)
                self._folders[at] = (chain if hidden else self.enter(at, chain)), hidden
            chain, hidden = self._folders[at]
        return hidden or self.ignores(path, chain, folder=folder)


def _prefixes(path: str, *, folder: bool) -> Iterator[str]:
    """The folders above a path, and itself; folders end with a slash."""
    parts = path.split("/")
    yield from ("/".join(parts[:n]) + "/" for n in range(1, len(parts)))
    yield f"{path}/" if folder else path


def _last_fit(rules: Sequence[_Rules], path: str) -> bool | None:
    """What the last line that fits says; None if none does."""
    if not path.isascii():  # a name that is not UTF-8
        path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    name = path[path.rstrip("/").rfind("/") + 1 :]
    return next((each.hides for each in reversed(rules) if each.fit(name, path)), None)


def _rules(lines: Sequence[str]) -> tuple[_Rules, ...]:
    """The rules of one file, in order; ValueError if they are too large."""
    signed: list[tuple[bool, list[str]]] = []
    for line in lines:
        if len(line) > MOST_LINE:
            raise ValueError("a pattern is too long")
        whole = line.rstrip("\r\n")
        glob = whole.rstrip(" ")
        glob += " " if glob.endswith("\\") and glob != whole else ""  # an escaped blank belongs to the name
        hides = not glob.startswith("!")
        glob = glob.removeprefix("!")
        if not glob.strip("/ ") or line.startswith("#"):
            continue
        if not signed or signed[-1][0] != hides:
            signed.append((hides, []))
        signed[-1][1].append(glob)
    return tuple(_same_sign(hides, globs) for hides, globs in signed)


def _same_sign(hides: bool, globs: Sequence[str]) -> _Rules:
    names: set[str] = set()
    endings: list[str] = []
    by_name: list[str] = []
    by_path: list[str] = []
    for glob in globs:
        if "/" in glob.removesuffix("/"):
            by_path += _source(glob)
        elif _MAGIC.search(glob) is None:
            names.add(glob)
        elif glob.startswith("*") and _MAGIC.search(glob[1:]) is None and not glob.endswith("/"):
            endings.append(glob[1:])
        else:
            by_name += _source(glob)
    return _Rules(
        hides,
        frozenset(names),
        tuple(endings),
        compiled("(?s)" + "|".join(by_name)) if by_name else None,
        compiled("(?s)" + "|".join(by_path)) if by_path else None,
    )


def _source(glob: str) -> list[str]:
    """One pattern of git as RE2 over a whole path, which ends with a slash if it is a folder. Nothing if it can fit nothing."""
    folder, anchored = glob.endswith("/"), glob.startswith("/")
    glob = glob.removesuffix("/").removeprefix("/")
    fixed = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    source = ""
    tokens: list[str] = []
    for found in _TOKEN.finditer(glob):
        if found[0] == "[":  # it is never closed: git, too, lets it fit nothing
            return []
        tokens.append(found[0])
    for at, token in enumerate(tokens):
        if token.endswith("*/"):
            source += fixed["**/"]
        elif token.startswith("**") and at == len(tokens) - 1 and (source.endswith("/") or (anchored and not source)):
            source += ".+"
        elif token[0] == "*" and (not at or tokens[at - 1][-1] == "/") and tokens[at + 1 : at + 2] in ([], ["/"]):
            source += "[^/]+"  # a whole name is never empty
        elif token[0] in "*?":
            source += fixed[token[0]]
        elif token[0] == "[" and len(token) > 2:
            negated = token[1] in "!^"
            signs = escaped(token[2 if negated else 1 : -1].replace("\\", "")).replace(r"\-", "-")
            try:
                compiled(f"[{signs}]")
            except ValueError:  # a range that runs backwards
                return []
            source += f"[^/{signs}]" if negated else f"[{signs}]"
        elif token[0] == "[" or token == "\\":
            return []
        else:
            source += escaped(token[-1])
    return [f"(?:{source}){'/' if folder else '/?'}"]
