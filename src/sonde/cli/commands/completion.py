"""`sonde completion` and `sonde man`: scripts for shells and a manual page, both made from the commands themselves.

The scripts hold every command and flag, so Tab starts no Python. After an update, print them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import typer


class Shell(Enum):
    """The shells that we write scripts for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option of a command."""

    names: tuple[str, ...]
    metavar: str
    """Empty if it takes no value."""
    values: tuple[str, ...]
    """The words that it takes, if these can be listed."""
    help: str


@dataclass(frozen=True, slots=True)
class CommandPage:
    """A command with what can follow it. The path of `sonde traces ls` is "traces ls"."""

    path: str
    help: str
    summary: str
    arguments: tuple[tuple[str, str], ...]
    flags: tuple[Flag, ...]
    words: tuple[tuple[str, str], ...]
    """Its sub-commands, or the words that its first argument may be, each with what it means."""


def register(app: typer.Typer) -> None:
    app.command()(completion)
    app.command()(man)


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print the script that completes commands and flags in a shell.

    bash: sonde completion bash > ~/.local/share/bash-completion/completions/sonde

    zsh: sonde completion zsh > ~/.zfunc/_sonde, with fpath+=~/.zfunc before compinit in ~/.zshrc

    fish: sonde completion fish > ~/.config/fish/completions/sonde.fish
    """
    pages = list(_pages(_program(), ()))
    match shell:
        case Shell.bash:
            print(
                _BASH.format(paths=_paths(pages), cases="\n".join(map(_bash_case, pages)), values=_bash_values(pages))
            )
        case Shell.zsh:
            print(_ZSH.format(paths=_paths(pages), cases="\n".join(map(_zsh_case, pages)), values=_zsh_values(pages)))
        case Shell.fish:
            known = " ".join(_quoted(page.path) for page in pages if page.path)
            print(_FISH.format(paths=known, lines="\n".join(line for page in pages for line in _fish_lines(page))))


def man() -> None:
    """Print the manual page.

    Read it with `sonde man | man -l -`, or keep it: sonde man > ~/.local/share/man/man1/sonde.1
    """
    from importlib.metadata import version

    from sonde.cli.program import ABOUT, CODES

    pages = list(_pages(_program(), ()))
    about, _, example = ABOUT.strip().partition("\n")
    print(f'.TH SONDE 1 "" "sonde {version("sonde-rlm")}" "User Commands"')
    print(f".SH NAME\nsonde \\- {_roff('ask questions of data that does not fit in a prompt')}")
    print(".SH SYNOPSIS\n.B sonde\n.I COMMAND\n[\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]")
    print(f".SH DESCRIPTION\n{_roff(about)}\n.PP\n.EX\n{_roff(example.strip())}\n.EE")
    print(".SH OPTIONS")
    print("\n".join(_man_flags(pages[0])))
    print(".SH COMMANDS")
    for page in pages[1:]:
        after = " ".join(metavar for metavar, _ in page.arguments) or ("COMMAND" if page.words else "")
        print(f".SS {_roff(f'sonde {page.path} {after}'.strip())}")
        for paragraph in re.split(r"\n\n|\n\s*(?=Example: )", page.help):
            text = _roff(" ".join(paragraph.split()))
            # An example keeps its line and its spaces, so that it can be copied.
            print(f".PP\n.EX\n{text}\n.EE" if text.startswith("Example: ") else f".PP\n{text}")
        for metavar, about in page.arguments:
            print(f".TP\n.I {_roff(metavar)}\n{_roff(about)}")
        print("\n".join(_man_flags(page)))
    print(f".SH EXIT STATUS\n{_roff(CODES.removeprefix('Exit codes: '))}")
    print(
        ".SH ENVIRONMENT\n"
        + _roff(
            "Every setting that `sonde config` lists can be given as SONDE_NAME, in capitals: SONDE_MODEL, SONDE_RUNS_DIR. "
            "Flags come first, then the environment, then sonde.toml. Keys of providers have their usual names: OPENAI_API_KEY."
        )
    )


def _program() -> Any:
    """The whole program as click sees it; typer carries a click of its own, whose types have no public name."""
    from typer.main import get_command

    from sonde.cli.program import build, command_names

    return get_command(build(command_names()))


def _pages(command: Any, path: tuple[str, ...]) -> Iterator[CommandPage]:
    flags = [Flag(("--help", "-h"), "", (), "Show the help, here or after a command.")]
    inner = {name: each for name, each in getattr(command, "commands", {}).items() if not each.hidden}
    words = [(name, each.get_short_help_str(1000)) for name, each in inner.items()]
    arguments: list[tuple[str, str]] = []
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        metavar = each.metavar or each.type.name.upper()
        listed = metavar.split("|") if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", metavar) else ()
        values = tuple(getattr(each.type, "choices", listed))
        if each.param_type_name == "argument":
            words = words or ([(str(value), "") for value in values] if not arguments else [])
            arguments.append((metavar, each.help or ""))
            continue
        names = (*each.opts, *each.secondary_opts)
        flags.append(Flag(names, "" if each.is_flag else metavar, values, each.help or ""))
    yield CommandPage(
        path=" ".join(path),
        help=command.help or "",
        summary=command.get_short_help_str(1000),
        arguments=tuple(arguments),
        flags=tuple(flags),
        words=tuple(words),
    )
    for name, each in inner.items():
        yield from _pages(each, (*path, name))


def _quoted(text: str) -> str:
    """For all three shells, also for fish, which does not join quoted pieces as the others do."""
    return "'" + text.replace("\\", "").replace("'", "’") + "'"


def _paths(pages: Sequence[CommandPage]) -> str:
    return "|".join(_quoted(f" {page.path}") for page in pages if page.path)


_BASH = """\
# bash completion for sonde; made by `sonde completion bash`
_sonde() {{
    local at='' commands='' flags='' word current=${{COMP_WORDS[COMP_CWORD]}}
    COMPREPLY=()
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$at $word" in {paths}) at="$at $word" ;; esac
    done
    case "$at" in
{cases}
    esac
    case "$at ${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    esac
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$current"))
    elif [[ -n $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$current"))
    fi
}}
complete -o default -F _sonde sonde"""  # `-o default`: where we say nothing, files are completed


def _bash_case(page: CommandPage) -> str:
    commands = " ".join(name for name, _ in page.words)
    flags = " ".join(name for flag in page.flags for name in flag.names)
    at = _quoted(f" {page.path}" if page.path else "")
    return f"        {at}) commands={_quoted(commands)} flags={_quoted(flags)} ;;"


def _patterns(page: CommandPage, flag: Flag) -> str:
    before = f" {page.path}" if page.path else ""
    return "|".join(_quoted(f"{before} {name}") for name in flag.names)


def _bash_values(pages: Sequence[CommandPage]) -> str:
    lines: list[str] = []
    for page in pages:
        free = [_patterns(page, flag) for flag in page.flags if flag.metavar and not flag.values]
        for flag in page.flags:
            if flag.values:
                reply = f'COMPREPLY=($(compgen -W {_quoted(" ".join(flag.values))} -- "$current"))'
                lines.append(f"        {_patterns(page, flag)}) {reply}; return ;;")
        if free:
            lines.append(f"        {'|'.join(free)}) return ;;")
    return "\n".join(lines)


_ZSH = """\
#compdef sonde
# zsh completion for sonde; made by `sonde completion zsh`
_sonde() {{
    local at='' word
    local -a commands flags values
    for word in ${{words[2,CURRENT-1]}}; do
        case "$at $word" in ({paths}) at="$at $word" ;; esac
    done
    case "$at" in
{cases}
    esac
    case "$at ${{words[CURRENT-1]}}" in
{values}
    esac
    if [[ $PREFIX == -* ]]; then
        _describe -o flag flags
    elif (( $#commands )); then
        _describe command commands
    else
        _files
    fi
}}
if [[ $funcstack[1] == _sonde ]]; then _sonde "$@"; else compdef _sonde sonde; fi"""


def _zsh_case(page: CommandPage) -> str:
    def row(name: str, about: str) -> str:
        return _quoted(f"{name}:{about.replace(':', ' ')}")

    commands = " ".join(row(name, about) for name, about in page.words)
    flags = " ".join(row(name, flag.help) for flag in page.flags for name in flag.names)
    at = _quoted(f" {page.path}" if page.path else "")
    return f"        ({at}) commands=({commands}) flags=({flags}) ;;"


def _zsh_values(pages: Sequence[CommandPage]) -> str:
    lines: list[str] = []
    for page in pages:
        free = [_patterns(page, flag) for flag in page.flags if flag.metavar and not flag.values]
        lines += [
            f"        ({_patterns(page, flag)}) compadd -- {' '.join(flag.values)}; return ;;"
            for flag in page.flags
            if flag.values
        ]
        if free:
            lines.append(f"        ({'|'.join(free)}) _files; return ;;")
    return "\n".join(lines)


_FISH = """\
# fish completion for sonde; made by `sonde completion fish`
function __sonde_at
    set -l at
    for word in (commandline -opc)[2..]
        set -l longer (string trim -- "$at $word")
        contains -- $longer {paths}; and set at $longer
    end
    test "$at" = "$argv[1]"
end
{lines}"""


def _fish_lines(page: CommandPage) -> Iterator[str]:
    here = f"complete -c sonde -n \"__sonde_at '{page.path}'\""
    for name, about in page.words:
        yield f"{here} -f -a {name} -d {_quoted(about)}"
    for flag in page.flags:
        named = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in flag.names)
        takes = f" -x -a {_quoted(' '.join(flag.values))}" if flag.values else " -r" if flag.metavar else ""
        yield f"{here} {named}{takes} -d {_quoted(flag.help)}"


def _roff(text: str) -> str:
    """Text as it is meant: no line of it is a command of roff, and a hyphen stays one that can be copied."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in plain.splitlines())


def _man_flags(page: CommandPage) -> Iterator[str]:
    for flag in page.flags:
        if page.path and flag.names[0] == "--help":
            continue  # said once, of the program
        value = f" \\fI{_roff(flag.metavar)}\\fR" if flag.metavar else ""
        yield f".TP\n\\fB{_roff(', '.join(flag.names))}\\fR{value}\n{_roff(flag.help)}"
