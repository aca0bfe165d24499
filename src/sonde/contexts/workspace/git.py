"""git as an allowed command: it starts no program of the repository's choice and takes no option that reaches outside from the model.

The settings of a repository may be a stranger's; those of the user and of the machine are not. A program that the repository names is
replaced by the one that the user has set, else by nothing. What the user typed as an allowed command may hold any option. What this
does not promise: anything about git that another program starts (`make`, `sh`), beyond the fixed settings.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from sonde.errors import ToolFault

LIST_S = 30.0
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
FIXED_VARIABLES = {
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_SEQUENCE_EDITOR": "false",
    "GIT_SSH_COMMAND": "false",
    "GIT_ASKPASS": "false",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
}
NAMES_PROGRAM = re.compile(  # section, any name, and a last word that says "run this"; git writes both ends in lower case
    r"alias\..+"
    r"|diff\.external"
    r"|(?:credential|gc|uploadpack|core|gpg|hook|interactive|sendemail|imap|web|browser|man|help|guitool|instaweb|tar|trailer|"
    r"difftool|mergetool|merge|diff|filter|lfs|pager|remote|submodule|sequence)\.(?:.+\.)?"
    r"(?:alternaterefscommand|askpass|browser|clean|cmd|command|defaultkeycommand|difffilter|driver|editor|fsmonitor|gitproxy|helper|"
    r"hookspath|httpd|packobjectshook|path|pager|process|program|receivepack|recentobjectshook|sendmailcmd|smtpserver|smudge|"
    r"sshcommand|standalonetransferagent|textconv|tocmd|cccmd|tunnel|update|uploadpack|vcs)"
)
NEUTRAL = {  # by last word; others are "false", the program that only fails
    "clean": "",
    "smudge": "",
    "process": "",
    "standalonetransferagent": "",
    "helper": "",
    "textconv": "cat",
    "difffilter": "cat",
    "pager": "cat",
    "update": "none",
    "uploadpack": "git-upload-pack",
    "receivepack": "git-receive-pack",
}
ONLY_BY_THE_USER = (  # in full; git takes any beginning of them as well
    *("--no-index", "--output", "--output-directory", "--ext-diff", "--textconv", "--filters", "--contents"),
    *("--exec-path", "--git-dir", "--work-tree", "--config", "--config-env", "--exec", "--extcmd", "--tool"),
    *("--upload-pack", "--receive-pack", "--open-files-in-pager", "--template", "--separate-git-dir", "--remote"),
    *(
        "--show-signature",
        "--gpg-sign",
        "--verify-signatures",
        "--recurse-submodules",
        "--submodule",
        "--ignore-submodules",
    ),
)
SHORT_ONLY_BY_THE_USER = {  # letters that mean the same as one of the above
    "archive": "o",
    "clone": "cou",
    "commit": "S",
    "difftool": "tx",
    "format-patch": "o",
    "grep": "O",
    "ls-remote": "u",
    "mergetool": "t",
    "rebase": "Sx",
}
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
HARMLESS_BEGINNINGS = ("--text", "--filter")  # options of their own
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
    letters = SHORT_ONLY_BY_THE_USER.get(subcommand, "")
    for word in words[typed:]:
        name = word.partition("=")[0]
        if word == "--":
            continue
        long = (
            word.startswith("--")
            and name not in HARMLESS_BEGINNINGS
            and any(full.startswith(name) for full in ONLY_BY_THE_USER)
        )
        short = re.match(r"-[A-Za-z]", word) and any(letter in letters for letter in name[1:])
        outside = subcommand == "diff" and (word.startswith("/") or ".." in word.split("/"))  # means --no-index
        if long or short or outside:
            raise ToolFault(
                f"{word!r} may not be added to an allowed git command: it can read, write or run something elsewhere"
            )


def arguments(words: Sequence[str]) -> list[str]:
    """The words after the program; where git compares files, without the programs that attributes choose for that."""
    at = subcommand_at(words)
    plain: list[str] = []
    match words[at] if at < len(words) else "":
        case (
            "diff" | "log" | "show" | "diff-tree" | "diff-index" | "diff-files" | "format-patch" | "whatchanged" as one
        ):
            plain = ["--no-ext-diff", "--no-textconv", *(["--ignore-submodules=all"] if one.startswith("diff") else [])]
        case "blame" | "annotate" | "grep":
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


def settings_for(program: str, words: Sequence[str], folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The fixed settings, and one for each program that the repository itself names."""
    env = {**environment, **variables()}

    def asked(*question: str) -> str:
        ask = [program, *words[1 : subcommand_at(words)], *question]
        try:
            done = subprocess.run(
                ask, check=True, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIST_S
            )
        except (subprocess.SubprocessError, OSError) as error:
            raise ToolFault(f"git is not started, since its settings could not be read: {error}") from error
        return done.stdout.decode("utf-8", "surrogateescape")

    fields = asked("config", "--list", "--show-scope", "--includes", "-z").split("\0")
    mine: dict[str, str] = {}
    strange: dict[str, str] = {}
    heeded = False
    for scope, entry in zip(fields[::2], fields[1::2], strict=False):
        name, _, value = entry.partition("\n")
        heeded = heeded or (scope == "command" and name == "safe.barerepository")
        if scope in ("local", "worktree"):
            strange[name] = value
        elif scope in ("system", "global"):
            mine[name] = value
    if not heeded:
        raise ToolFault(
            "git is not started: this one takes no settings from its environment; version 2.38 or newer does"
        )
    if "core.worktree" in strange:
        top = Path(asked("rev-parse", "--show-toplevel").rstrip("\n"))
        if not (top.is_relative_to(folder) or (top / ".git").exists()):  # as a submodule's
            raise ToolFault("the setting core.worktree of this repository points out of it, so git is not started")
    settings = dict(FIXED)
    fixed = {name.lower() for name in FIXED}
    for name in strange:
        if name.lower() in fixed:
            continue
        if NAMES_PROGRAM.fullmatch(name):
            neutral = "" if name.startswith("alias.") else NEUTRAL.get(name.rpartition(".")[2], "false")
            settings[name] = mine.get(name, neutral)
        elif name.startswith("filter.") and name.endswith(".required"):
            settings[name] = mine.get(name, "false")
    return settings
