"""A workspace that is a folder of this machine. The only place in Sonde that changes a user's files."""

from __future__ import annotations

import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from sonde.contexts.files.exclusion import Judge
from sonde.contexts.files.text import OFFICE_KINDS, SAMPLE, Unreadable, document_text
from sonde.contexts.workspace import git
from sonde.contexts.workspace.base import (
    Action,
    Applied,
    Approval,
    Approve,
    CommandResult,
    FileSlice,
    Keep,
    Match,
    Matches,
    PatchRefused,
    PathRefused,
    Plan,
    WriteNote,
    matching_lines,
    passage,
    reject,
    rejected,
)
from sonde.contexts.workspace.history import net
from sonde.contexts.workspace.paths import Root, clean, clean_folder, portable
from sonde.contexts.workspace.policy import Policy
from sonde.contexts.workspace.reach import CLOSED_HINT, confinable, outer_git, reach, reads_git_settings
from sonde.contexts.workspace.text import decode, plain
from sonde.contexts.workspace.writer import write_plan
from sonde.core.deadline import deadline_in_force
from sonde.disk import DEEPEST
from sonde.errors import ConfigError, ToolFault
from sonde.models.process import Program, ProgramEnd, run_process

DOCUMENTS = (".pdf", *OFFICE_KINDS)
MAX_FILES = 20_000
MAX_MATCHES = 200
NOT_ENDED = "did not end within"
DENIED = r"permission denied|operation not permitted|cross-device link|EACCES"
NO_LOCALE = r"(?m)^.*: cannot change locale \([\w.@-]+\).*\n?"
"""Each shell script warns so of a locale that is not installed, and the shim of a version manager starts a dozen of them."""
PLAIN = MappingProxyType({"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"})


class LocalWorkspace:
    """See `Workspace`. `approve` is asked before anything is written; without one, nothing is."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        policy: Policy | None = None,
        approve: Approve = reject,
        environment: Mapping[str, str] = PLAIN,  # of allowed commands
        without: str = "",  # the layer that parsers of documents may lack
    ) -> None:
        if sys.platform == "win32":  # no folder can be held open there while its files are replaced
            raise ConfigError("edits need Linux or macOS: use WSL2")
        self.root = Root(root)
        self.policy = policy or Policy()
        self.approve = approve
        self.environment = environment
        self.without = without
        self.keep: Keep = lambda _: None  # hears of what is written before it is
        self._applied: list[Plan] = []

    def list_files(self, root: str = "") -> tuple[str, ...]:
        """Paths of the files below a folder, sorted; protected and generated ones are left out."""
        folder = clean_folder(root)
        if folder:
            self.policy.check_read(folder)
        real = self.root.real(folder)
        if real:
            self.policy.check_read(real)  # the end of a link is judged by its own name
        try:
            with self.root.folder(real) as top:
                return tuple(sorted(self._walk(top, real)))
        except OSError:
            raise PathRefused(f"{root} is not a folder of the workspace; list_files() shows everything") from None

    def _walk(self, top: int, path: str) -> Iterator[str]:
        judge, root = Judge(self.policy.exclusion), str(self.root.path)

        def shown(prefix: Path, name: str, *, folder: bool) -> bool:
            inside = (prefix / name).as_posix()
            return (
                self.policy.listed(name)
                and not judge.excludes(inside, inside, folder=folder)
                and not judge.ignores_below(root, f"{root}/{inside}", folder=folder)
            )

        left = MAX_FILES
        for below, folders, names, here in os.fwalk(".", dir_fd=top):
            prefix = Path(path, below)
            deep = len(prefix.parts) >= DEEPEST  # what lies deeper has no path that we take
            folders[:] = [] if deep else sorted(name for name in folders if shown(prefix, name, folder=True))
            for name in sorted(names):
                if shown(prefix, name, folder=False) and not _is_link(name, here):
                    left -= 1
                    yield (prefix / name).as_posix()
                if left == 0:
                    return

    def read(
        self, path: str, start_line: int | None = None, end_line: int | None = None, *, rationale: str = ""
    ) -> FileSlice:
        """Lines of a file as they are now."""
        del rationale  # who watches a folder of this machine sees it in the trace of the run
        text = self._readable(path)
        if text is None:
            raise ToolFault(f"there is no file {path}; list_files() shows what there is")
        return passage(clean(path), plain(text), start_line, end_line)

    def text(self, path: str) -> str | None:
        """The whole text with its own line endings, None where there is no such file."""
        path = clean(path)
        self.policy.check_read(path)
        found = self.root.read(path, self.policy.check_read)  # the end of a link is judged by its own name
        return None if found is None else decode(path, *found)[0]

    def _readable(self, path: str, *, one_of_many: bool = False) -> str | None:
        """The text of a file, also of a PDF or office file, which a patch cannot change."""
        del one_of_many  # of those that are searched; an editor's files differ
        path = clean(path)
        if not path.lower().endswith(DOCUMENTS):
            return self.text(path)
        self.policy.check_read(path)
        data, mode = self.root.read(path, self.policy.check_read) or (None, 0)
        if data is None:
            return None
        try:
            document = document_text(path, data, len(data), data[:SAMPLE], without=self.without)
        except Unreadable as reason:
            raise PathRefused(f"{path} is {reason.message}") from None
        return decode(path, data, mode)[0] if document is None else document.decode(document.read(0, document.size))

    def search(self, query: str, path: str | None = None) -> Matches:
        """Lines that contain the text, at most 200; files that are not text are passed over, and documents unless one is named."""
        if not query:
            raise ToolFault("the query is empty. Example: search('def main')")
        matches: list[Match] = []
        folder = clean_folder(path or "")
        is_file = folder and (self.root.path / self.root.real(folder)).is_file()
        names = (folder,) if is_file else self.list_files(folder)
        run = deadline_in_force()
        for number, name in enumerate(names):
            if run is not None and run.is_over():
                note = f"the run had to end: {number:,} of {len(names):,} files were searched"
                return Matches(matches=tuple(matches), truncated=note)
            if len(names) == 1 or not name.lower().endswith(DOCUMENTS):
                with suppress(PathRefused):  # no text
                    text = plain(self._readable(name, one_of_many=len(names) > 1) or "")
                    matches += matching_lines(name, text, query, MAX_MATCHES - len(matches))
            if len(matches) >= MAX_MATCHES:
                note = f"only the first {MAX_MATCHES} matches are shown; search for something rarer or in one folder"
                return Matches(matches=tuple(matches), truncated=note)
        note = (
            f"only the first {MAX_FILES:,} files were searched; search one folder" if len(names) >= MAX_FILES else None
        )
        return Matches(matches=tuple(matches), truncated=note)

    def apply(self, plan: Plan) -> Applied:
        """Judge every path, ask, and write all or nothing."""
        for change in plan.changes:
            for path in change.touched():
                self.policy.check_write(clean(path))
                self.root.check_writable(path)
            if change.action in (Action.ADD, Action.MOVE):
                portable(change.writes)
        decision = self.approve(plan)
        if isinstance(decision, bool):
            decision = Approval(accepted=decision)
        if not decision.accepted:
            return rejected(decision)
        self._applied.append(self._write(plan))
        return Applied(applied=True, summary=plan.summary(), diff=plan.diff())

    def _write(self, plan: Plan) -> Plan:
        return write_plan(self.root, plan, self.keep)

    def changes(self) -> Plan:
        """All that was applied and not taken back, as one plan."""
        return net([WriteNote(plan=each) for each in self._applied])

    def undo(self) -> str:
        """Take the last applied plan back in one step; refused when its files have changed since."""
        if not self._applied:
            raise ToolFault("there is nothing to undo")
        plan = self._applied[-1].inverse()
        self._write(plan)
        self._applied.pop()
        return plan.summary()

    def execute(self, command: str, cwd: str = "") -> CommandResult:
        """Run an allowed command without a shell; what it started ends with it, or when time is up. Whoever shows what it printed
        cuts it, after masking it if need be.
        """
        words = self.policy.check_command(command)
        self.policy.check_folder(clean_folder(cwd))
        self.root.check_place()
        folder = self.root.path / self.root.real(clean_folder(cwd))
        program = words[0]
        if "/" in program:  # meant from the root, whichever folder the model names
            program = str(self.root.path / program)
        if git.is_git(words):
            found = program if "/" in program else git.git_outside(self.root.path, self.environment)
            if found is None or Path(found).resolve().is_relative_to(self.root.path):
                raise ToolFault(f"{command!r} is not started: there is no git, or only one in the workspace")
            program = found
        if shutil.which(program, path=self.environment.get("PATH")) is None:
            raise ToolFault(f"{command!r} could not be started: there is no program {words[0]!r}")
        argv, environment, left_off = [program, *words[1:]], {**self.environment, **git.variables()}, ""
        if git.is_git(words):
            seconds = self.policy.command_timeout_s
            argv, environment, left_off = git.started(program, words, folder, self.environment, seconds)
        confinement = None
        temporary = tempfile.mkdtemp(prefix="sonde-command-")
        if confinable():
            histories = outer_git(self.root.path) if git.is_git(words) else ()
            confinement = reach(
                self.root.path,
                self.environment,
                program,
                read=(*self.policy.command_read, *histories),
                write=(temporary, *self.policy.command_write),
            )
        private = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), temporary) | {"XDG_CACHE_HOME": f"{temporary}/cache"}
        if confinement and not reads_git_settings(self.environment, self.policy.command_read):
            own = Path(temporary, "gitconfig")
            own.write_bytes(git.carried_settings(words, self.root.path, folder, self.environment))
            private["GIT_CONFIG_GLOBAL"] = str(own)
        job = Program(
            argv=argv,
            stdin=b"",
            cwd=str(folder),
            environment={**environment, **private},
            seconds=self.policy.command_timeout_s,
            alone=True,
            confinement=confinement,
            temporary=temporary,
        )
        before = self._stamps()
        try:
            done = self._finished(command, run_process(job), confined=confinement is not None)
            return (
                replace(done, stderr="\n".join(filter(None, (done.stderr.rstrip("\n"), left_off))))
                if left_off
                else done
            )
        except (OSError, ValueError) as error:
            raise ToolFault(f"{command!r} could not be started: {getattr(error, 'strerror', error)}") from error
        finally:
            # Not TemporaryDirectory: some versions of Python change the mode of what a link in it points to.
            shutil.rmtree(temporary, ignore_errors=True)
            after = self._stamps()
            changed = [path for path in sorted({**before, **after}) if before.get(path) != after.get(path)]
            if changed:
                with suppress(PatchRefused):  # the command has run: how it ended is told in any case
                    self.keep(WriteNote(by_commands=tuple(changed)))

    def _stamps(self) -> dict[str, tuple[int, int]]:
        """Size and time of each file that is listed."""
        found: dict[str, tuple[int, int]] = {}
        files: tuple[str, ...] = ()
        with suppress(PathRefused):  # a command may have moved the workspace itself
            files = self.list_files()
        for path in files:
            with suppress(OSError):  # it has gone meanwhile
                state = (self.root.path / path).lstat()
                found[path] = state.st_size, state.st_mtime_ns
        return found

    def _finished(self, command: str, ended: ProgramEnd, *, confined: bool) -> CommandResult:
        if ended.timed_out:
            raise ToolFault(f"{command!r} {NOT_ENDED} {self.policy.command_timeout_s:g} s and was stopped")
        note = "\n[it was stopped: it printed too much]" if ended.overflowed else ""
        if confined and ended.returncode != 0 and re.search(DENIED, ended.stderr_tail + ended.text, re.IGNORECASE):
            note += f"\n{CLOSED_HINT}"
        stdout = ended.text[: ended.text.rfind("\n") + 1] if ended.overflowed else ended.text  # no line that is torn
        errors = re.sub(NO_LOCALE, "", ended.stderr_tail)
        return CommandResult(exit_code=ended.returncode, stdout=stdout, stderr=errors + note)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:  # it has gone meanwhile
        return True
