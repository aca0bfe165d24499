"""git as an allowed command: it starts no program of the repository's choice and takes no option that reaches outside from the model.

The settings of a repository may be a stranger's; those of the user and of the machine are not. A program that the repository names is
replaced by the one that the user has set, else by nothing, and so is a file that it names to be read: where the last value of a setting
counts, which is ours. Any other setting must be known to be harmless, or git is not started. git has MEMORY bytes and a limit of
processor time, because a repository can also have links for files. It fetches only where the user listed a command for that. What the user
typed as an allowed command may hold any option. What this does not promise: anything about git that another program starts (`make`,
`sh`), beyond the fixed settings.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from sonde.contexts.workspace.text import visible
from sonde.core.deadline import deadline_in_force
from sonde.disk import open_exactly, read_whole
from sonde.errors import ToolFault

LIST_S = 30.0
MEMORY = 1 << 30  # of data; packs that git maps do not count
MAX_INCLUDE_DEPTH = 10
MAX_LINE = 1 << 20  # git takes no longer `.git` file either
MAX_LISTED = 1 << 22  # a few lines can include a file thousands of times
MAX_SETTINGS_FILES = 1000
MAX_WALKED = 1_000_000  # files and folders among which we look for repositories, for at most WALK_S
WALK_S = 20.0
MAX_LEFT_OFF = 6
COMMAND_LINE = "command line:"
FIXED = {
    "safe.bareRepository": "explicit",  # a folder of the repository is no repository of its own
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "core.pager": "cat",
    "core.editor": "false",
    "sequence.editor": "false",
    "core.sshCommand": "false",
    "core.askPass": "false",
    "credential.helper": "",
    "protocol.ext.allow": "never",
    "rebase.instructionFormat": "%s",  # a line end in it begins a line that may say `exec`
    "log.showSignature": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "push.gpgSign": "false",
    "gc.auto": "0",  # it would work on in the background
    "maintenance.auto": "false",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "push.recurseSubmodules": "no",
    "status.submoduleSummary": "false",
    "diff.submodule": "short",
    "diff.ignoreSubmodules": "all",  # git would run in each of them, with its settings
}
FIXED_FOR_GIT = {  # not for git that another program starts: its tests may clone and push in a folder of their own
    "protocol.allow": "never",  # for one that it does not know, git starts a program: git-remote-NAME
    **dict.fromkeys((f"protocol.{name}.allow" for name in ("git", "http", "https", "ssh")), "always"),
    "protocol.file.allow": "never",  # git drops our settings when it starts to receive, so the hooks there would run
    "i18n.logOutputEncoding": "UTF-8",
}
NO_FETCH = {"GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}  # versions before 2.45 know only the second
FIXED_VARIABLES = {
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_ASKPASS": "false",
    "GIT_PROXY_COMMAND": "",  # of core.gitProxy the first value counts, which is the repository's
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
NAMES_PROGRAM = re.compile(  # section, any name, and a last word that says "run this"; git writes both ends in lower case
    # Only those of which the last value counts: not core.gitProxy, remote.*.uploadPack and receivePack (the first), nor
    # gc.recentObjectsHook and man.* (all).
    r"alias\..+"
    r"|pager\..+"
    r"|hook\..+\.event"
    r"|diff\.external"
    r"|(?:credential|uploadpack|core|gpg|hook|interactive|sendemail|imap|web|browser|help|guitool|instaweb|tar|trailer|"
    r"difftool|mergetool|merge|diff|filter|lfs|remote|submodule|sequence)\.(?:.+\.)?"
    r"(?:alternaterefscommand|askpass|browser|clean|cmd|command|defaultkeycommand|difffilter|driver|editor|fsmonitor|helper|"
    r"hookspath|httpd|packobjectshook|path|pager|process|program|sendmailcmd|smtpserver|smudge|"
    r"sshcommand|standalonetransferagent|textconv|tocmd|cccmd|headercmd|tunnel|update|vcs)"
)
NAMES_FILE = re.compile(  # which git reads whole, and of which a message may show a line, or a server get the contents
    r"blame\.ignorerevsfile|commit\.template|core\.(?:attributes|excludes)file|diff\.orderfile|format\.signaturefile|"
    r"gpg\.ssh\.(?:allowedsigners|revocation)file|http\.(?:.+\.)?(?:cookiefile|(?:proxy)?ssl(?:cainfo|capath|cert|key))|"
    r"init\.templatedir|mailmap\.file"
)
HARMLESS = re.compile(  # whatever their value is; git gets new settings with every version, so what is not here is refused
    r"(?:advice|author|color|column|committer|gui|pretty|remotes|safe|url|versionsort)\..+"
    r"|include(?:if\..+)?\.path"  # what is included is looked at
    r"|core\.(?:abbrev|alternaterefsprefixes|autocrlf|checkroundtripencoding|checkstat|commentchar|commentstring|createobject|"
    r"disambiguate|eol|fsync|fsyncmethod|gitproxy|hidedotfiles|logallrefupdates|notesref|safecrlf|sharedrepository|splitindex|"
    r"untrackedcache|whitespace|worktree)"
    r"|extensions\.partialclone"
    r"|branch\.(?:sort|autosetupmerge|autosetuprebase|.+\.(?:remote|pushremote|merge|rebase|description))"
    r"|remote\.(?:pushdefault|.+\.(?:url|pushurl|fetch|push|tagopt|partialclonefilter|followremotehead|proxy|proxyauthmethod|"
    r"serveroption|annex-uuid))"
    r"|(?:branch|remote)\..+\.(?!annex-)[a-z]+-[a-z0-9-]+"  # notes of editors; git itself writes no dash there
    r"|(?:user\.(?:name|email|signingkey))|gpg\.(?:format|mintrustlevel)|ssh\.variant|attr\.tree|mailmap\.blob"
    r"|init\.default(?:branch|objectformat|refformat)|checkout\.defaultremote|clone\.defaultremotename|commit\.cleanup"
    r"|(?:push\.(?:default|pushoption))|pull\.(?:rebase|ff)|fetch\.(?:negotiationalgorithm|output|followremotehead)"
    r"|merge\.(?:conflictstyle|ff|directoryrenames|renames|tool|guitool|suppressdest|default|.+\.(?:name|recursive))"
    r"|diff\.(?:algorithm|colormoved|colormovedws|dirstat|dstprefix|guitool|relative|renames|srcprefix|tool|wordregex|"
    r"wserrorhighlight|.+\.(?:algorithm|binary|funcname|wordregex|xfuncname))"
    r"|log\.(?:date|decorate|diffmerges|excludedecoration|graphcolors|initialdecorationset)|blame\.(?:coloring|date)"
    r"|format\.(?:attach|cc|from|headers|notes|pretty|signature|subjectprefix|suffix|thread|to)|grep\.patterntype"
    r"|status\.(?:comparebranches|renames|showuntrackedfiles)|tag\.sort|showbranch\.default|apply\.(?:ignorewhitespace|whitespace)"
    r"|rebase\.(?:backend|missingcommitscheck|rebasemerges)|notes\.(?:displayref|mergestrategy|.+\.mergestrategy|rewritemode|"
    r"rewriteref)|i18n\.(?:commitencoding|filesencoding|logoutputencoding)"
    r"|gc\.(?:(?:.+\.)?reflogexpire(?:unreachable)?|logexpiry|pruneexpire|worktreepruneexpire)"
    r"|maintenance\.(?:strategy|.+\.schedule)|pack\.(?:island|islandcore|preferbitmaptips)|protocol\.version"
    r"|(?:transfer|receive|uploadpack)\.hiderefs|receive\.deny(?:currentbranch|deletecurrent)"
    r"|(?:fetch\.|receive\.)?fsck\.(?!skiplist)[a-z0-9]+|gitweb\.(?:category|description|owner|url)"
    r"|submodule\.(?:active|alternateerrorstrategy|alternatelocation|.+\.(?:active|branch|fetchrecursesubmodules|ignore|path|url))"
    r"|http\.(?:.+\.)?(?:extraheader|proxy|proxyauthmethod|sslbackend|sslcipherlist|sslversion|useragent|version)"
    r"|credential\.(?:.+\.)?(?:provider|username)|trailer\.(?:separators|(?:.+\.)?(?:ifexists|ifmissing|key|where))"
    r"|sendemail\.(?:.+\.)?(?:bcc|cc|confirm|from|smtpencryption|smtpuser|suppresscc|to)"
    r"|lfs\.(?:fetchexclude|fetchinclude|pushurl|url|.+\.access)",
    re.DOTALL,
)
CARRIED = re.compile(  # of the user's own settings, whoever reads them: none of them has a place for a token or the address of a server
    r"(?:user|author|committer)\.(?:name|email)|user\.useconfigonly|init\.default(?:branch|objectformat|refformat)|safe\.directory"
    r"|core\.(?:abbrev|autocrlf|commentchar|eol|filemode|ignorecase|precomposeunicode|quotepath|safecrlf|symlinks|whitespace)"
    r"|diff\.(?:algorithm|colormoved|mnemonicprefix|noprefix|renames)|merge\.(?:conflictstyle|ff|renames)|rerere\.enabled"
    r"|pull\.(?:ff|rebase)|push\.(?:autosetupremote|default)|rebase\.(?:autosquash|autostash|updaterefs)|i18n\..+|advice\.[a-z]+"
    r"|(?:branch|tag)\.sort|log\.(?:date|decorate)|status\.(?:branch|short|showuntrackedfiles)"
)
CARRIED_FOR_GIT = re.compile(
    r"filter\..+\.(?:clean|smudge|process|required)", re.DOTALL
)  # without git-lfs, it would add whole files
HARMLESS_VALUE = re.compile(
    r"|true|false|yes|no|on|off|auto|always|never|[+-]?[0-9]+[kmg]?|[0-9a-f]{40}|[0-9a-f]{64}|"
    r"files|reftable|sha1|sha256|--(?:no-ff|ff-only|squash)",
    re.IGNORECASE,
)
"""A truth value, a number, an object's name, a format or a plain option of `merge` is no program."""
FOR_SERVERS = ("bundle", "fetch", "http", "push", "receive", "remote", "transfer", "uploadpack")
"""Sections that mean nothing to a command which asks no server."""
UNLISTED = ("annex", "lfs", "trailer")  # sections that git does not list, or that filters read which many users have
NEUTRAL = {  # by last word; others are "false", the program that only fails
    "clean": "",
    "smudge": "",
    "process": "",
    "standalonetransferagent": "",
    "helper": "",
    "event": "",
    "textconv": "cat",
    "difffilter": "cat",
    "pager": "cat",
    "update": "none",
}
WITHOUT_LETTER = (
    *("add-file", "build-fake-ancestor", "bundle-uri", "config-env", "contents", "exclude-per-directory"),
    *("exec-path", "ext-diff", "filters", "git-dir", "global", "ignore-revs-file", "ignore-submodules", "no-index"),
    *("pathspec-from-file", "prefix", "receive-pack", "recurse-submodules", "reference", "reference-if-able"),
    *("remote", "separate-git-dir", "show-signature", "signature-file", "signed", "submodule", "system"),
    *("textconv", "unsafe-paths", "verify-signatures", "work-tree"),
)
ONLY_BY_THE_USER: tuple[tuple[str, str, str], ...] = (
    # The option in full, its letter, and the subcommands in which that letter means it. The long form, of which git takes any beginning,
    # is refused in all of them, and so is a letter that names none.
    *((f"--{name}", "", "") for name in WITHOUT_LETTER),
    ("--config", "c", "clone"),
    ("--exclude-from", "X", "ls-files"),
    ("--exec", "x", "rebase"),
    ("--extcmd", "x", "difftool"),
    ("--file", "F", "commit commit-tree fmt-merge-msg merge notes tag"),  # messages show the lines of such a file
    ("--file", "f", "config grep"),
    ("--gpg-sign", "S", "am cherry-pick commit commit-tree merge pull rebase revert"),
    ("--local-user", "u", "tag"),
    # Where git compares files, this letter names a file that orders them.
    ("--open-files-in-pager", "O", ""),
    ("--output", "o", "archive"),
    ("--output-directory", "o", "format-patch"),
    ("--revs-file", "S", "annotate blame"),  # has no long form
    ("--sign", "s", "tag"),
    ("--strategy", "s", "merge pull rebase"),  # `x/y` starts the file git-merge-x/y of the work tree
    ("--template", "t", "commit"),
    ("--tool", "t", "difftool mergetool"),
    ("--upload-pack", "u", "clone ls-remote"),
    ("--verify", "v", "tag"),
)
HARMLESS_OPTIONS = {  # a beginning of one of the above, but an option of its own in these subcommands
    "--text": "",
    "--filter": "",
    "--exclude": "am apply describe for-each-ref log ls-files name-rev rev-list rev-parse show show-ref",
    "--ignore-rev": "annotate blame",
    "--prefix": "archive rev-parse",
    "--reference": "revert",
    "--signature": "format-patch",
    "--verify": "rev-parse show-ref",
}
REST_IS_VALUE = {  # letters behind which the rest of the word is a harmless value
    "am": "C",
    "annotate": "L",
    "blame": "L",
    "cherry-pick": "mX",
    "commit": "cCm",
    "grep": "e",
    "merge": "mX",
    "notes": "cCm",
    "pull": "X",
    "rebase": "X",
    "revert": "mX",
    "stash": "m",
    "tag": "m",
    **dict.fromkeys(("diff", "diff-files", "diff-index", "diff-tree", "rev-list"), "SG"),
    **dict.fromkeys(("format-patch", "log", "show", "whatchanged"), "SGL"),
}
RUNS_ITS_WORDS = {"bisect": "run", "submodule": "foreach"}  # what follows is a program
NEVER_STARTED = ("citool", "difftool", "filter-branch", "gui", "instaweb", "merge-index", "mergetool")
GOES_ON = ("am", "cherry-pick", "rebase", "revert")  # with what files in `.git` say, which may come with the repository
STEPS = (  # of a rebase, all but `exec`
    *("p", "pick", "r", "reword", "e", "edit", "s", "squash", "f", "fixup", "d", "drop", "b", "break", "noop"),
    *("l", "label", "t", "reset", "m", "merge", "u", "update-ref"),
)
STRATEGIES = ("", "octopus", "ort", "ours", "recursive", "resolve", "subtree")
PLAIN_COMMANDS = (  # what an allowed `git` without a subcommand means
    *(
        "add",
        "annotate",
        "blame",
        "branch",
        "cat-file",
        "check-ignore",
        "checkout",
        "cherry",
        "cherry-pick",
        "commit",
        "describe",
    ),
    *(
        "diff",
        "diff-files",
        "diff-index",
        "diff-tree",
        "for-each-ref",
        "grep",
        "log",
        "ls-files",
        "ls-tree",
        "merge",
        "merge-base",
    ),
    *(
        "mv",
        "name-rev",
        "range-diff",
        "reflog",
        "reset",
        "restore",
        "rev-list",
        "rev-parse",
        "revert",
        "rm",
        "shortlog",
        "show",
    ),
    *("show-ref", "stash", "status", "switch", "tag", "version", "whatchanged"),
)
CHANGES_FILES = ("checkout", "cherry-pick", "merge", "mv", "reset", "restore", "revert", "rm", "stash", "switch")
ONLY_HISTORY = (  # looks into no other repository that lies in the work tree
    *(
        "branch",
        "cat-file",
        "cherry",
        "for-each-ref",
        "log",
        "ls-tree",
        "merge-base",
        "name-rev",
        "range-diff",
        "reflog",
    ),
    *("rev-list", "rev-parse", "shortlog", "show", "show-ref", "tag", "version", "whatchanged"),
)
TAKES_OPTIONS = (  # from the model; those of any other subcommand are not known here
    *PLAIN_COMMANDS,
    *("am", "apply", "archive", "bisect", "clean", "clone", "commit-tree", "config", "count-objects", "difftool"),
    *("fetch", "filter-branch", "fmt-merge-msg", "format-patch", "fsck", "gc", "init", "ls-remote", "merge-tree"),
    *("mergetool", "notes", "pull", "push", "rebase", "remote", "sparse-checkout", "submodule", "symbolic-ref"),
    "worktree",
)
WITH_VALUE = ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix", "--config-env")


def is_git(words: Sequence[str]) -> bool:
    """Whether these are the words of a git command."""
    return Path(words[0]).name == "git"


def subcommand_at(words: Sequence[str]) -> int:
    """Where the subcommand stands, after the options of git itself."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if words[at] in WITH_VALUE else 1
    return at


def check_added(words: Sequence[str], typed: int) -> None:
    """Raise if one of the words after the first `typed`, which are the user's, reads, writes or runs elsewhere."""
    at = subcommand_at(words)
    subcommand = words[at] if at < len(words) else ""
    if at >= typed:
        if at > typed:
            raise ToolFault(f"{words[typed]!r} may not be added to an allowed git command; begin with the subcommand")
        if subcommand not in PLAIN_COMMANDS:
            raise ToolFault(
                f"git {subcommand or '(nothing)'} is not allowed by {' '.join(words[:typed])!r}; the user must list it"
            )
    if RUNS_ITS_WORDS.get(subcommand) in words[typed:]:
        raise ToolFault(f"git {subcommand} {RUNS_ITS_WORDS[subcommand]} runs a program; the user must list it in full")
    letters = "".join(letter for _, letter, where in ONLY_BY_THE_USER if not where or subcommand in where.split())
    values = REST_IS_VALUE.get(subcommand, "")
    for word in words[typed:]:
        name = word.partition("=")[0]
        if word == "--":
            continue
        if word.startswith("-") and subcommand not in TAKES_OPTIONS:
            raise ToolFault(f"{word!r} may not be added to git {subcommand}; the user must list the command with it")
        harmless = HARMLESS_OPTIONS.get(name)
        long = (
            word.startswith("--")
            and (harmless is None or bool(harmless and subcommand not in harmless.split()))
            and any(full.startswith(name) for full, _, _ in ONLY_BY_THE_USER)
        )
        together = takewhile(lambda letter: letter not in values, word[1:])  # `grep -1O` is -1 -O
        short = re.match(r"-[^-]", word) and any(letter in letters for letter in together)
        outside = subcommand == "diff" and (word.startswith("/") or ".." in word.split("/"))  # means --no-index
        if long or short or outside:
            raise ToolFault(
                f"{word!r} may not be added to an allowed git command: it can read, write or run something elsewhere"
            )


def arguments(words: Sequence[str]) -> list[str]:
    """The words after the program; where git compares files, without the programs that attributes choose for that, and where it blames,
    without the files that settings name: no later setting takes those back.
    """
    at = subcommand_at(words)
    plain: list[str] = []
    match words[at] if at < len(words) else "":
        case (
            "diff" | "log" | "show" | "diff-tree" | "diff-index" | "diff-files" | "format-patch" | "whatchanged" as one
        ):
            plain = ["--no-ext-diff", "--no-textconv", *(["--ignore-submodules=all"] if one.startswith("diff") else [])]
        case "blame" | "annotate":
            plain = ["--no-textconv", "--no-ignore-revs-file"]
        case "grep":
            plain = ["--no-textconv"]
        case "status":
            plain = ["--ignore-submodules=all"]
        case _:
            pass
    return [*words[1 : at + 1], *plain, *words[at + 1 :]]


def variables(settings: Mapping[str, str] = FIXED) -> dict[str, str]:
    """The environment that gives git these settings, which overrule all files."""
    return {
        **FIXED_VARIABLES,
        "GIT_CONFIG_COUNT": str(len(settings)),
        **{f"GIT_CONFIG_KEY_{n}": key for n, key in enumerate(settings)},
        **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(settings.values())},
    }


def git_outside(root: Path, environment: Mapping[str, str]) -> str | None:
    """Git as PATH finds it, but never one of this folder: it is asked about settings and history before anything confines it."""
    root = root.resolve()
    places = [each for each in environment.get("PATH", os.defpath).split(os.pathsep) if each]
    outside = os.pathsep.join(each for each in places if not Path(each).resolve().is_relative_to(root))
    program = shutil.which("git", path=outside)
    return None if program is None or Path(program).resolve().is_relative_to(root) else program


def carried_settings(words: Sequence[str], root: Path, folder: Path, environment: Mapping[str, str]) -> bytes:
    """The user's own settings of git as a file for an allowed command, which cannot read theirs: a token may stand there. Only those
    that hold none: name, address and the like, and for git itself filters.
    """
    program = git_outside(root, environment)
    if program is None:
        return b""
    listed: bytes | None = None
    with suppress(ToolFault):
        ask = [program, "config", "--list", "--show-scope", "--includes", "-z"]
        listed = _answer(_limited(ask, LIST_S), folder, {**environment, **variables()})
    fields = os.fsdecode(listed or b"").split("\0")
    lines: list[str] = []
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        name, has_value, value = entry.partition("\n")
        if scope == "global" and (CARRIED.fullmatch(name) or (is_git(words) and CARRIED_FOR_GIT.fullmatch(name))):
            section, _, rest = name.partition(".")
            within, _, key = rest.rpartition(".")
            within, value = (re.sub(r'[\\"]', r"\\\g<0>", text) for text in (within, value if has_value else "true"))
            lines += [
                f'[{section} "{within}"]' if within else f"[{section}]",
                f'\t{key} = "{value}"'.replace("\n", "\\n"),
            ]
    return os.fsencode("".join(f"{line}\n" for line in lines))


def settings_for(
    program: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """The fixed settings, and one for each program or file that the repository itself or one within it names; and which of the
    repository's settings they overrule.

    git also runs in submodules, and some commands change the branch or a file and then start git again. So all settings count that could
    be in force by then: those of every repository below, and what is included under a condition, whether it holds now or not.
    """
    env = {**environment, **variables()}
    at = subcommand_at(words)
    subcommand = words[at] if at < len(words) else ""
    if subcommand in NEVER_STARTED:
        raise ToolFault(f"git {subcommand} is not started: it runs programs that the repository may choose")

    def asked(*question: str, may_fail: bool = False) -> str:
        answer = _answer(_limited([program, *words[1:at], *question], LIST_S), folder, env)
        if answer is None and not may_fail:
            raise ToolFault("git is not started, since its settings could not be read")
        return os.fsdecode(answer or b"")

    places = asked(
        "rev-parse", "--path-format=absolute", "--git-common-dir", "--git-dir", "--show-toplevel", may_fail=True
    )
    common, own, top, *_ = [*map(Path, places.split("\n")[:-1]), None, None, None]  # there is none before `git init`
    if own and subcommand in GOES_ON and list(words[at + 1 :]) not in (["--abort"], ["--quit"]):
        _check_under_way(own, subcommand)
    files = _settings_files(own) if own else []
    listed, files = _all_settings(asked, files)
    heeded = any(origin == COMMAND_LINE and name == "safe.barerepository" for _, origin, name, _ in listed)
    moved = any(scope in ("local", "worktree") and name == "core.worktree" for scope, _, name, _ in listed)
    if not heeded:
        raise ToolFault(
            "git is not started: this one takes no settings from its environment; version 2.38 or newer does"
        )
    if moved and not (top and (top.is_relative_to(folder) or (top / ".git").exists())):  # as a submodule's
        raise ToolFault("the setting core.worktree of this repository points out of it, so git is not started")
    if common and top and subcommand not in ONLY_HISTORY:
        within = [each for found in _repositories(top, common) for each in _settings_files(found)]
        if not set(within) <= set(files):
            listed, files = _all_settings(asked, files + within)
    if subcommand in CHANGES_FILES or subcommand not in PLAIN_COMMANDS:
        inside = [Path(os.path.realpath(each)) for each in (top, common) if each]
        for file in files:
            if _may_change(Path(os.path.realpath(os.path.expanduser(file))), inside):  # noqa: PTH111 - pathlib raises for an unknown user
                raise ToolFault(f"git {subcommand} is not started: it could change {file}, which has settings of git")
    return _overruled(listed, subcommand, lambda: _known_sections(program, env))


def _overruled(
    listed: Sequence[tuple[str, str, str, str]], subcommand: str, known_sections: Callable[[], set[str]]
) -> tuple[dict[str, str], list[str]]:
    """Our settings, and the names of the repository's that they overrule; raises for one that is not harmless and that they cannot."""
    mine = [(name, value) for scope, _, name, value in listed if scope in ("system", "global")]
    last = dict(mine)
    settings = {**FIXED, **FIXED_FOR_GIT}
    fixed = {name.lower(): value for name, value in settings.items()}
    strict: set[str] | None = None
    left_off: list[str] = []
    for scope, origin, name, value in listed:
        if scope in ("system", "global") or origin == COMMAND_LINE:
            continue
        ours = None
        section = name.partition(".")[0]
        if name.lower() in fixed:
            ours = fixed[name.lower()]
        elif NAMES_PROGRAM.fullmatch(name):
            neutral = "" if name.startswith("alias.") else NEUTRAL.get(name.rpartition(".")[2], "false")
            ours = settings[name] = last.get(name, neutral)
        elif NAMES_FILE.fullmatch(name):
            ours = settings[name] = last.get(name, os.devnull)
        elif name.startswith("filter.") and name.endswith(".required"):
            settings[name] = last.get(name, "false")
        elif name.startswith("protocol.") and name.endswith(".allow"):
            settings[name] = last.get(name, "never")
        elif (
            not HARMLESS.fullmatch(name)
            and not HARMLESS_VALUE.fullmatch(value)
            and (name, value) not in mine
            and not (section in FOR_SERVERS and subcommand in PLAIN_COMMANDS)
        ):
            strict = strict or {*UNLISTED, subcommand, f"git-{subcommand}", *known_sections()}
            if section in strict:
                raise ToolFault(
                    f"git is not started: the setting {visible(name)[:200]} in {visible(origin.removeprefix('file:'))} may name a "
                    "program or a file, and no later setting takes it back; remove it, or give it the same value in your own "
                    "settings (git config --global)"
                )
        if ours is not None and ours.lower() != value.lower() and not name.startswith("alias."):
            left_off.append(name)
    return settings, list(dict.fromkeys(left_off))


def started(
    program: str, words: Sequence[str], folder: Path, environment: Mapping[str, str], seconds: float
) -> tuple[list[str], dict[str, str], str]:
    """The words that start git within its limits, its variables, and a line that names what was left off, if anything. A command that no
    one needs a server for asks none, not even for a part of the history that the repository lacks.
    """
    at = subcommand_at(words)
    reach = NO_FETCH if at < len(words) and words[at] in PLAIN_COMMANDS else {}
    settings, left_off = settings_for(program, words, folder, environment)
    names = ", ".join(visible(name)[:100] for name in left_off[:MAX_LEFT_OFF])
    names += f" and {len(left_off) - MAX_LEFT_OFF} more" if len(left_off) > MAX_LEFT_OFF else ""
    note = f"[git ran without these settings of the repository: {names}]" if left_off else ""
    return _limited([program, *arguments(words)], seconds), {**environment, **variables(settings), **reach}, note


def _limited(argv: Sequence[str], seconds: float) -> list[str]:
    """A file that git reads as one line may have no end, and git may live longer than who started it."""
    cpu_s = math.ceil(seconds) * (os.cpu_count() or 1)
    limits = (
        f"ulimit -d {MEMORY >> 10} 2>/dev/null; ulimit -t {cpu_s} 2>/dev/null"  # fails where the limit is lower already
    )
    return ["/bin/sh", "-c", f'{limits}; exec "$@"', "sh", *argv]


def printed(words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """What a git command that only reads history prints, with `\ufffd` for what is not UTF-8. It takes none of the variables that would
    lead it elsewhere.
    """
    top = next((place for place in (folder, *folder.parents) if (place / ".git").exists()), folder)
    program = git_outside(top, environment)
    if program is None:
        raise ToolFault("there is no git on this machine, other than in the repository itself")
    env = {key: value for key, value in environment.items() if not key.startswith("GIT_")}
    argv, env, _ = started(program, words, folder, env, LIST_S)
    said = _answer(argv, folder, env, "commits")
    if said is None:
        raise ToolFault("git could not read this repository: it has no commit, belongs to someone else, or is broken")
    return said.decode("utf-8", "replace")


def _answer(ask: Sequence[str], folder: Path, env: Mapping[str, str], what: str = "its settings") -> bytes | None:
    """What git prints; none if it fails or takes too long."""
    try:
        with subprocess.Popen(
            ask, cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None  # it is a pipe
            clock = threading.Timer(LIST_S, process.kill)
            clock.start()
            try:
                printed = process.stdout.read(MAX_LISTED + 1)
                if len(printed) > MAX_LISTED:
                    process.kill()
                done = process.wait() == 0
            finally:
                clock.cancel()
    except OSError as error:
        raise ToolFault(f"git is not started, since {what} could not be read: {error}") from error
    if len(printed) > MAX_LISTED:
        raise ToolFault(f"git is not started: {what} here take more than {MAX_LISTED >> 20} MiB")
    return printed if done else None


def _known_sections(program: str, env: Mapping[str, str]) -> set[str]:
    """The sections in which this git has settings; it ignores all others."""
    listed = _answer(_limited([program, "help", "--config-for-completion"], LIST_S), Path("/"), env)
    if not listed:
        raise ToolFault("git is not started: it does not say which settings it knows")
    return {line.partition(".")[0] for line in os.fsdecode(listed).lower().split()}


def _check_under_way(own: Path, subcommand: str) -> None:
    """Raise if a rebase or the like that has stopped in this repository would start a program when it goes on."""
    steps = [line.split() for line in _line(own / "rebase-merge/git-rebase-todo").split("\n")]
    strange = [
        *(words[0] for words in steps if words and not words[0].startswith("#") and words[0] not in STEPS),
        *([] if _line(own / "rebase-merge/strategy").strip() in STRATEGIES else ["a strategy of its own"]),
        *re.findall(r"strategy(?=\s*=)", _line(own / "sequencer/opts"), re.IGNORECASE),
        *(["the files in rebase-apply"] if (own / "rebase-apply").exists() else []),
    ]
    if strange:
        raise ToolFault(
            f"git {subcommand} is not started: what is under way in {own} could run a program ({strange[0][:40]}); "
            "--abort ends it, or the user goes on with it"
        )


def _all_settings(asked: Callable[..., str], files: list[str]) -> tuple[list[tuple[str, str, str, str]], list[str]]:
    """Each setting as (scope, origin, name, value), and the files: the given ones and what they include, under any condition."""
    for _ in range(MAX_INCLUDE_DEPTH):
        files = list(dict.fromkeys(files))
        if len(files) > MAX_SETTINGS_FILES:
            break
        includes = [word for file in files for word in ("-c", f"include.path={file}")]
        fields = asked(*includes, "config", "--list", "--show-scope", "--show-origin", "--includes", "-z").split("\0")
        listed: list[tuple[str, str, str, str]] = []
        included: list[str] = []
        for scope, origin, entry in zip(fields[::3], fields[1::3], fields[2::3], strict=False):
            name, _, value = entry.partition("\n")
            listed.append((scope, origin, name, value))
            names_file = (
                scope == "command" and origin != COMMAND_LINE and value
            )  # in the others, paths are not absolute
            if names_file and re.fullmatch(r"include(if\..*)?\.path", name, re.DOTALL):
                beside = Path(origin.removeprefix("file:")).parent
                included.append(value if value[0] in "~%" else str(beside / value))
        if set(included) <= set(files):
            return listed, files
        files += included
    raise ToolFault("git is not started: the settings of this repository include too many files")


def _repositories(top: Path, common: Path) -> Iterator[Path]:
    """The git folders below a work tree, and those that wait for a submodule."""
    run = deadline_in_force()
    end = time.monotonic() + WALK_S
    walked = 0

    def walk(place: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        nonlocal walked
        for found in os.walk(place):
            walked += 1 + len(found[1]) + len(found[2])
            if walked > MAX_WALKED or time.monotonic() > end or (run and run.is_over()):
                raise ToolFault(
                    f"git is not started: {top} has too many files to look for other repositories among them within {WALK_S:g} s "
                    "or what is left of the run; log, show and the like need no look"
                )
            yield found

    for folder, folders, names in walk(top):
        for name in (*folders, *names):
            if name.lower() == ".git":
                yield Path(folder, name)
        folders[:] = [name for name in folders if name.lower() != ".git"]
    for folder, _, names in walk(common / "modules"):
        if "config" in names:
            yield Path(folder)


def _settings_files(place: Path) -> list[str]:
    """The files from which git takes settings in a repository whose `.git` is this folder, or this file that names one."""
    if place.is_file():
        named = _line(place)
        if not named.startswith("gitdir: "):
            return []
        place = place.parent / named.removeprefix("gitdir: ")
    shared = place / _line(place / "commondir")
    return [str(each) for each in (shared / "config", place / "config.worktree") if each.is_file()]


def _line(file: Path) -> str:
    """The one line of a file such as `.git` or `commondir`, through a link as git reads it; nothing if there is no such file."""
    if not file.is_file():
        return ""
    try:
        with os.fdopen(open_exactly(os.path.realpath(file)), "rb") as opened:
            return os.fsdecode(read_whole(opened, MAX_LINE)).rstrip("\r\n")
    except OSError as error:
        raise ToolFault(f"git is not started: {file} cannot be read: {error.strerror}") from None


def _may_change(file: Path, inside: Sequence[Path]) -> bool:
    """Whether git itself could write this file at the wish of a branch: not the settings in a `.git`, nor what lies elsewhere."""
    settings = file.name in ("config", "config.worktree")
    for folder in inside:
        if file.is_relative_to(folder):
            parts = [part.lower() for part in file.relative_to(folder).parts]
            return not (settings and (".git" in parts or folder != inside[0]))
    return False
