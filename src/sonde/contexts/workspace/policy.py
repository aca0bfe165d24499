"""What may be read, written and run in a workspace. Plain data, matched without regard to case.

Reading is allowed inside the root except for secrets and version control; writing needs approval besides, and never touches files
with which an editor, an assistant or git starts programs. Commands are off unless listed. What this does not promise: to know every
secret by its name.

An allowed command is a prefix, `npm test`, or with `=` before it exact, `=npm test`: then nothing may be added.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import pairwise

from sonde.contexts.files.exclusion import Exclusion, Judge
from sonde.contexts.workspace import git
from sonde.contexts.workspace.base import PathRefused
from sonde.contexts.workspace.text import WRITTEN_OUT
from sonde.disk import plain_name
from sonde.errors import ToolFault

SECRETS = (
    *(".git", "git~*", ".hg", ".svn", ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".secrets"),
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".pypirc", ".git-credentials", ".htpasswd"),
    *(".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", "htpasswd", ".vault_pass*", ".vault-pass*"),
    *(
        "ssh_host_*_key",
        ".dockercfg",
        ".dockerconfigjson",
        "kubeconfig",
        "*.kubeconfig",
        "kubeconfig.y*ml",
        "kubeconfig.json",
    ),
    *(".s3cfg", ".boto", ".databrickscfg", "rclone.conf", "service_account*.json"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.gpg", "*.asc"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*"),
    *("credentials", "credentials.*", "*.credentials", "secrets", "secrets.*", "secret.*", "*.secret"),
    *("*.token", "token", "tokens.json", "service-account*.json", "*.tfstate", "*.tfvars", "*.tfvars.json"),
)  # what `sonde.disk` always refuses, but for `shadow`, which is also a good name for a folder; the extension has the same list
HARMLESS = (
    *(".env.example", ".env.sample", ".env.template", "*.pub", ".browserslistrc", ".nvmrc"),
    *(".jshintrc", ".markdownlintrc", ".coveragerc"),
)  # examples, public keys, and settings that hold data and name no plugin
STARTS_PROGRAMS = (
    *(".*rc", ".*rc.js", ".*rc.cjs", ".*rc.mjs", ".*rc.ts", ".*rc.py", "pylintrc", ".config", ".local", ".bash*"),
    *(".zsh*", ".profile", ".zprofile", ".login", ".zlog*", ".xsession*", ".xprofile", ".gitconfig", ".tmux*"),
    *(".pythonstartup*", ".vim", ".nvim.lua", ".lazy.lua", ".emacs*", ".doom.d", ".spacemacs*", ".dir-locals.el"),
    *(".dir-locals-2.el", ".vscode", ".idea", "*.code-workspace", ".devcontainer", ".devcontainer.json", ".vs"),
    *(".fleet", ".zed", "*.sublime-project", ".theia", ".externaltoolbuilders", ".helix", ".idx", ".gitpod.yml"),
    *(".cursor", ".windsurf", ".claude*", ".codex", ".gemini", ".aider*", ".roo", ".kiro", ".kilocode", ".cline"),
    *(".continue", ".amazonq", ".junie", ".opencode", "opencode.json*", ".qwen", "mcp.json", ".mcp.json"),
    *("*mcp*.json", ".crush.json", "crush.json", ".amp", ".factory", ".augment", ".copilot", "gemini-extension.json"),
    *(".openhands", ".husky", ".githooks", "githooks", ".git-hooks", ".hooks", ".github/hooks"),
    *(".pre-commit-config.yaml", ".pre-commit-config.yml", "prek.toml", "lefthook*", ".lefthook*", ".overcommit.yml"),
    *(".simple-git-hooks*", "simple-git-hooks*", ".lintstagedrc*", ".jj", ".bzr", ".sl", ".gdbinit", ".gdbearlyinit"),
    *(".lldbinit*", ".ghci", ".rprofile", ".iex.exs", ".ocamlinit", ".ipython", ".bundle", ".autoenv*", ".direnv"),
    *(".cargo", ".gradle", ".mvn", ".yarn", ".yarnrc*", ".pnpmfile.*", ".pnp.cjs", ".pnp.loader.mjs", "bunfig.toml"),
    *("binding.gyp", ".pixi", "mise.toml", "mise.*.toml", ".mise*", "launchagents", "launchdaemons", "env/lib"),
    *("*.pth", "sitecustomize*", "usercustomize*", "node_modules", ".venv", "venv", "site-packages"),
    *("env/bin", "env/scripts", "pyvenv.cfg", "conda-meta", "conda/activate.d", ".envrc*", ".tool-versions", ".rtx*"),
    *(
        "mise/config*",
        "rust-toolchain*",
        "gradle/wrapper",
        ".clinerules",
        ".goose",
        ".trae",
        ".agents",
        ".agent",
        ".pi",
    ),
    *(".qoder", ".serena", ".luarc.json*", ".ycm_extra_conf.py", ".kateproject*", "eslint.config.*", ".flake8"),
    *("prettier.config.*", "stylelint.config.*", ".rubocop*", "lint-staged.config.*", ".cargo-husky", "hk.pkl"),
    *("captainhook.json", "grumphp.yml*", ".codesandbox", ".replit", ".renviron", "renv/activate.r", "startup.m"),
    *(".erlang", ".perldb", ".julia", ".logout", "*profile.ps1", "rust-analyzer.toml", ".rust-analyzer.toml", ".bsp"),
    *(".eslintrc*", ".prettierrc*", ".stylelintrc*", ".babelrc*", ".commitlintrc*", "hie.yaml", ".php-cs-fixer*"),
    *(".neoconf.json*", ".nlsp-settings", "pylintrc.toml", ".pylintrc.toml", "_vimrc", "_gvimrc"),
)  # editors, shells, assistants, package managers and git start what these hold or name, without asking again
SHORT_NAME = re.compile(r"[^.~]{1,8}~[0-9]+(\.[^.]{0,3})?")  # `VSCODE~1` is `.vscode` to Windows
SKIPPED = (
    "node_modules",
    "__pycache__",
    ".venv",
    "venv",
    ".tox",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    "*.pyc",
    "*.vsix",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Names (globs, matched on every part of a path) and command prefixes."""

    deny: tuple[str, ...] = SECRETS
    deny_write: tuple[str, ...] = STARTS_PROGRAMS
    skip: tuple[str, ...] = SKIPPED  # left out of listings and searches, but readable by name
    exclusion: Exclusion = field(
        default_factory=Exclusion
    )  # of globs from the root; what .gitignore files name is left out like `skip`
    commands: tuple[str, ...] = ()
    command_folders: tuple[
        str, ...
    ] = ()  # where they may run besides the root: a folder's own files can tell a program what to start
    command_read: tuple[str, ...] = ()  # places outside of the workspace, where commands are confined
    command_write: tuple[str, ...] = ()
    command_timeout_s: float = 60.0

    def check_read(self, path: str) -> None:
        """Raise where the path is protected."""
        if self._protects(path):
            raise PathRefused(f"{path} is protected (secrets and version control are never read or written)")
        if self.exclusion.globs and Judge(self.exclusion).excludes(path, path):
            raise PathRefused(f"{path} is not read or written: the user has excluded it")

    def check_write(self, path: str) -> None:
        """Raise where the path is protected or could start a program in an editor."""
        self.check_read(path)
        parts = _parts(path)
        short = any(map(SHORT_NAME.fullmatch, parts))
        if _hit(path, self.deny_write) or short or parts[-1] == "head":  # HEAD makes a folder a repository of git
            raise PathRefused(
                f"{path} holds or configures what an editor or git starts and is never written by a patch; ask the user to change it"
            )

    def listed(self, name: str) -> bool:
        """Whether a file or folder of this name shows up in listings and searches."""
        return not self._protects(name) and not _hit(name, self.skip)

    def _protects(self, path: str) -> bool:
        """Whether a name on the way says so, or would without the suffixes of packed files and copies."""
        copied = "/".join(plain_name(part) for part in _parts(path))
        return _hit(path, self.deny) or _hit(copied, self.deny)

    def check_command(self, command: str) -> list[str]:
        """The command's words, when they are, or begin with, those of an allowed one; no shell ever sees them."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise ToolFault(f"the command cannot be split into words: {error}") from error
        refused: ToolFault | None = None
        for allowed in self.commands:
            typed = shlex.split(allowed.removeprefix("="))
            if not typed or words[: len(typed)] != typed:  # an empty one allows nothing, not all
                continue
            if words == typed:
                return words
            if allowed.startswith("="):
                continue
            try:
                if git.is_git(words):
                    git.check_added(words, len(typed))
            except ToolFault as fault:
                refused = fault
            else:
                return words
        if refused is not None:
            raise refused
        raise ToolFault(
            f"{command!r} is not an allowed command; allowed: {', '.join(map(named, self.commands)) or 'none (execute_command is off)'}"
        )

    def check_folder(self, folder: str) -> None:
        """Raise where a command may not run."""
        if folder and folder not in self.command_folders:
            raise ToolFault(f"commands run in the root of the workspace, not in {folder!r}; leave cwd out")


def named(allowed: str) -> str:
    """An allowed command in words that a model understands."""
    return f"exactly {allowed[1:]}" if allowed.startswith("=") else allowed


def _parts(path: str) -> list[str]:
    """The names on the way, as Windows and macOS compare them too: `.VSCode. `, `.vscode:x`, `.g\u200cit`."""
    return [WRITTEN_OUT.sub("", part).casefold().split(":")[0].rstrip(". ") for part in path.split("/")]


def _hit(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether a name on the way matches, or two in a row where the pattern has two."""
    parts = _parts(path)
    in_a_row = ["/".join(two) for two in pairwise(parts)]
    return any(
        fnmatchcase(name, pattern) and not any(fnmatchcase(name, fine) for fine in HARMLESS)
        for pattern in patterns
        for name in (in_a_row if "/" in pattern else parts)
    )
