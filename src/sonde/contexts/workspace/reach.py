"""What an allowed command may reach, where the kernel has landlock: programs and libraries to read, the workspace to write.

It reads the system, the Python that runs Sonde, the tools on PATH and their homes, and the workspace. It writes the workspace, a
folder for temporary files that is its own, and what the user adds. The rest of the home folder is closed: keys, tokens, mail, other
projects. What this does not promise: anything about TCP, and anything about what the user runs in the workspace afterwards.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path

from sonde.disk import followed, read_plain
from sonde.models.process import Confinement
from sonde.sandbox.worker import confine

NOT_CONFINED = (
    "commands are not confined here, because this kernel has no landlock: they read and write whatever you may. "
    "Use Linux 5.13 or newer with landlock, or allow no commands"
)
CLOSED_HINT = (
    "[a command writes only in the workspace and in TMPDIR, and does not see the home folder; "
    "the user can add places with --command-read DIR and --command-write DIR]"
)
SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix", "/gnu", "/etc", "/proc"),
    *("/sys/devices/system", "/sys/fs/cgroup", "/sys/kernel/mm", "/run/current-system", "/run/systemd/resolve"),
)
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
OF_TOOLS = ("lib", "lib64", "libexec", "include", "share", "pyvenv.cfg")  # beside a `bin` on PATH
HOMES_OF_TOOLS = (  # below the home folder. No settings of git, cargo, npm, pip and the like: tokens stand there
    *(".config/git/ignore", ".config/git/attributes", ".rustup", ".cargo/bin", ".cargo/registry", ".cargo/git"),
    *(".local/bin", ".local/lib", ".local/share/uv/python", ".local/share/mise", ".local/share/pnpm"),
    *(".pyenv/bin", ".pyenv/libexec", ".pyenv/plugins", ".pyenv/pyenv.d", ".pyenv/shims", ".pyenv/version"),
    *(".nvm/alias", ".nvm/nvm-exec", ".nvm/nvm.sh", ".volta", ".asdf", ".sdkman"),
    *(".npm/_cacache", ".m2/repository", ".gradle/caches", "go/pkg", "go/bin"),
)
ENVIRONMENTS = (  # there too. Not as a whole: pip.conf, .condarc, etc/npmrc and what pipx writes down may hold tokens
    *(".local/pipx/shared", ".local/pipx/venvs/*", ".local/share/pipx/shared", ".local/share/pipx/venvs/*"),
    *(".local/share/uv/tools/*", ".pyenv/versions/*", ".nvm/versions/node/*"),
)


def confinable() -> bool:
    """Whether this kernel can confine a command."""
    try:
        return sys.platform == "linux" and confine.landlock_abi() > 0
    except (OSError, KeyError):  # KeyError: an architecture whose calls we do not know
        return False


def reach(
    root: Path, environment: Mapping[str, str], program: str, *, read: tuple[str, ...], write: tuple[str, ...]
) -> Confinement:
    """The places for one command; `write` has its temporary folder in it. A program outside of the workspace that the user has named by
    its path may read what belongs to it, as the tools on PATH may: a venv its libraries.
    """
    found = shutil.which(program, path=environment.get("PATH"))
    own = [str(Path(found).resolve())] if found else []
    named = Path(program)
    outside = named.is_absolute() and all(folder.resolve() != root for folder in named.parents)
    folders = [str(Path(each).parent) for each in (program, *own)] if outside else []
    home = Path(environment.get("HOME", ""))
    python = [sys.prefix, sys.base_prefix, environment.get("VIRTUAL_ENV", "")]
    homes: list[str] = []
    if home.is_absolute():
        homes = [str(home / name) for name in HOMES_OF_TOOLS]
        python += [str(place) for name in ENVIRONMENTS for place in home.glob(name)]
    python = [place for place in python if place and not home.is_relative_to(place)]  # never the home folder
    bins = (f"{place}/bin" for place in python)
    tools = [*_tools(os.pathsep.join((environment.get("PATH", ""), *folders, *bins)), home)]
    tools += [f"{place}/ssl" for place in python]  # where a Python of conda has its certificates
    places = [place for place in (*SYSTEM, *homes, *tools, *own, *read) if place.startswith("/")]
    reached = [place for place in places if not root.is_relative_to(place) or place in SYSTEM or place in read]
    code = str(Path(confine.__file__).parents[1])
    return Confinement(read=tuple(dict.fromkeys(reached)), write=(*DEVICES, str(root), *write), code=code)


def reads_git_settings(environment: Mapping[str, str], read: tuple[str, ...]) -> bool:
    """Whether a command may read the user's settings of git: the user has opened the files, or there is no home for them."""
    if not (home := environment.get("HOME")):
        return True
    files = (Path(home, ".gitconfig"), Path(environment.get("XDG_CONFIG_HOME") or f"{home}/.config", "git/config"))
    there = [file for file in files if os.path.lexists(file)]
    return bool(there) and all(any(file.is_relative_to(place) for place in read) for file in there)


def _tools(path: str, home: Path) -> Iterator[str]:
    """The folders of programs, and what belongs to them beside a `bin`."""
    for name in path.split(os.pathsep):
        folder = Path(name)
        if not folder.is_absolute() or home.is_relative_to(folder):
            continue
        yield name
        if folder.name in ("bin", "sbin", "shims"):
            for beside in OF_TOOLS:
                if beside != "share" or folder.parent != home / ".local":  # there are keyrings
                    yield str(folder.parent / beside)


def _small(path: Path) -> str:
    return read_plain(path, 1 << 20).decode()


def outer_git(root: Path) -> list[str]:
    """Where git keeps the history of a workspace that lies inside a repository, or is one of its worktrees or submodules.

    A `.git` may be a stranger's. A link leads nowhere; the target of a file counts only if it names the workspace in turn, and never if
    it would open a folder around the workspace.
    """
    for folder in (root, *root.parents):
        place = folder / ".git"
        if place.is_symlink():
            return []
        if place.is_dir():
            return [] if folder == root else [str(place)]
        if place.is_file():
            with suppress(OSError, ValueError):
                target = Path(followed(folder / _small(place).removeprefix("gitdir:").strip()))
                if target.parent.name == "worktrees":
                    named, history = _small(target / "gitdir"), target.parents[1]
                else:
                    settings = (line.partition("=") for line in _small(target / "config").split("\n"))
                    place_of = [value.strip() for key, _, value in settings if key.strip() == "worktree"]
                    named, history = f"{place_of[0]}/.git" if place_of else "", target
                if followed(target / named.strip()) == followed(place) and not root.is_relative_to(history):
                    return [str(history)]
            return []
    return []


def strange_history(repository: Path) -> str:
    """Why git would read the history of another repository here, or "". A stranger's `.git` can lead there by a file, a link, `commondir`
    or alternates; it may only if the other one names it in turn, as for a worktree or a submodule of the user.
    """
    try:
        place = repository / ".git" if os.path.lexists(repository / ".git") else repository
        own = history = Path(os.path.realpath(repository)) / place.relative_to(repository)
        if place != repository and place.is_symlink():
            return ".git is a link"
        if place.is_file():
            named = outer_git(own.parent)
            if not named:
                return ".git points to a repository that does not name this folder in turn"
            own, history = Path(followed(own.parent / _small(place).removeprefix("gitdir:").strip())), Path(named[0])
        with suppress(FileNotFoundError):
            if followed(own / _small(own / "commondir").strip()) != followed(history):
                return "its commondir points elsewhere"
        for name in ("alternates", "http-alternates"):
            if os.path.lexists(history / "objects/info" / name):
                return f"it borrows objects from elsewhere (objects/info/{name}); `git repack -ad` makes it whole, then remove that file"
        for top in {own, history}:
            links = (entry.name for entry in os.scandir(top) if entry.is_symlink())
            deeper = (
                name
                for part in ("objects", "refs")
                for folder, folders, files in os.walk(top / part)
                for name in (*folders, *files)
                if Path(folder, name).is_symlink()
            )
            if (found := next(chain(links, deeper), None)) is not None:
                return f"{found!r} in it is a link"
    except (OSError, ValueError) as error:
        return f"it cannot be looked at: {error}"
    return ""
