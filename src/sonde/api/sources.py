"""Opens what a caller passes as a context: paths, text, data, or an object that already is one."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from sonde.api.consent import require_sources
from sonde.api.launch import masked
from sonde.api.settings import Settings
from sonde.contexts import Context
from sonde.contexts.files import FilesContext
from sonde.contexts.files.about import left_out, raw_pages
from sonde.contexts.files.exclusion import Exclusion
from sonde.contexts.files.file_list import expanded
from sonde.core.canonical import clip
from sonde.core.deadline import Deadline, guarded
from sonde.disk import AnyPath, is_too_long
from sonde.engines.ask import ASK
from sonde.errors import ConfigError
from sonde.runtime.engine import Engine
from sonde.runtime.run import RunSpec
from sonde.sandbox.parser_process import ANY_LAYER

STDIN_NAME = "stdin.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A context, its variables, what opens it again (None: nothing does), which files are not read, how many web pages are read with
    their markup though nobody asked for source code, and the engine that asks about it.

    `dataset`, `input_ref` and `secrets` are of traces: what the record says, and what the journal may not hold.
    """

    context: Context
    engine: Engine = ASK
    variables: Mapping[str, Any] = field(default_factory=dict[str, Any])
    recipe: Mapping[str, Any] | None = None
    left_out: str = ""
    markup: int = 0
    dataset: str = ""
    input_ref: Mapping[str, Any] = field(default_factory=lambda: {"trace_ids": list[str]()})
    secrets: Sequence[str] = ()
    began: float | None = None
    """When it was first looked at: listing and loading are part of the run's time."""

    def given_to(self, spec: RunSpec) -> RunSpec:
        """The spec of a question about this, masked as the spec says."""
        masked(self.context, spec.mask)
        return replace(
            spec,
            engine=self.engine,
            context=self.context,
            variables=self.variables if spec.mask is None else spec.mask.hidden_value(self.variables),
            dataset=self.dataset,
            input_ref=self.input_ref,
            secrets=(*spec.secrets, *self.secrets),
            began=self.began,
        )


def cited_file(path: str, roots: Sequence[Path]) -> Path | None:
    """The file that an answer over these folders and files cites; None if it is not there as a file, as in an archive."""
    # The path may be below one of the asked folders, one of the asked files, or complete in itself.
    candidates = [root / path for root in roots if root.is_dir()]
    candidates += [root for root in roots if root.name == Path(path).name]
    candidates += [root.parent / path for root in roots]
    return next((each.resolve() for each in (*candidates, Path(path)) if each.is_file()), None)


def parsed_without(backend: str, *, unsafe: bool, without: str) -> str:
    """The layer that parsers of documents may lack, in a run with these options."""
    return ANY_LAYER if unsafe or backend != "kernel" else without


def open_context(
    given: Sequence[Any],
    *,
    code: bool = False,
    rationale_over: int | None = None,
    within: Sequence[AnyPath] = (),
    without: str = "",
    exclusion: Exclusion | None = None,
    loading: Deadline | None = None,
) -> Opened:
    """One context of everything given; ConfigError if paths were given and nothing in them can be read.

    `within`: the paths come from a model or a manifest, and are read only below these folders.
    `without` is the layer that the parsers of documents may lack, `exclusion` what to leave out of the paths. `loading` is the time of
    the run, which begins here.
    """
    exclusion = exclusion or Exclusion()
    if len(given) == 1 and isinstance(given[0], Opened):
        return given[0]
    if loading is not None:
        with loading.in_force(), guarded("listing the files"):
            opened = open_context(
                given, code=code, rationale_over=rationale_over, within=within, without=without, exclusion=exclusion
            )
        return replace(opened, began=loading.started)
    own: Any = given[0] if len(given) == 1 else None
    if all(callable(getattr(own, name, None)) for name in ("tools", "describe", "reread", "fingerprint")):
        return Opened(context=own, left_out=left_out(own.library.listing) if isinstance(own, FilesContext) else "")
    paths = [each for each in given if is_path(each)]
    rest = [each for each in given if not is_path(each)]
    if rest and paths:
        raise ConfigError("give either paths or data, not both: put the data into a file, or read the files yourself")
    if len(rest) > 1:
        raise ConfigError(f"give one value as context, not {len(rest)}: put them into one dict with names")
    if rest and code:
        from sonde.contexts.code import CodeContext  # noqa: PLC0415  # parsers are loaded only for those who ask for them

        texts = {"context.py": rest[0]} if isinstance(rest[0], str) else rest[0]
        if not isinstance(texts, Mapping) or not all(isinstance(each, str) for each in cast("Any", texts).values()):
            raise ConfigError("code=True reads source code: give paths, a text, or a dict of texts by file name")
        named = {str(name): text for name, text in cast("Mapping[Any, str]", texts).items()}
        return Opened(context=CodeContext(texts=named, without=without))
    if rest:
        from sonde.contexts.values import ValuesContext  # noqa: PLC0415  # loaded only for those who pass data

        values = ValuesContext(rest[0])
        return Opened(context=values, variables=values.variables())
    names = [str(path) for path in paths]
    if code:
        from sonde.contexts.code import CodeContext  # noqa: PLC0415  # parsers are loaded only for those who ask for them

        names = names or ["."]
        context = CodeContext(names, within=within, without=without, exclusion=exclusion)
        files = context.files
    else:
        context = files = FilesContext(
            names, rationale_over=rationale_over, within=within, without=without, exclusion=exclusion
        )
    if names:
        _require_text(files, names)
    # A recipe names the same files from any working folder. `/./` marks where a relative path began: tools name files by that part.
    here = Path.cwd()
    written = [name if name.startswith("/") else os.path.normpath(name) for name in names]
    absolute = [
        str(here / name) if name.startswith(("/", "..")) or name == "." else f"{here}/./{name}" for name in written
    ]
    return Opened(
        context=context,
        recipe={
            "paths": absolute,
            "code": code,
            "gitignore": exclusion.gitignore,
            **({"exclude": list(exclusion.globs)} if exclusion.globs else {}),
        },
        left_out=left_out(files.library.listing) if names else "",
        markup=raw_pages(files.library.listing) if names and not code else 0,
    )


@contextmanager
def reopened(
    recorded: Mapping[str, Any], settings: Settings, within: Sequence[AnyPath], *, moved: Any = None, without: str = ""
) -> Generator[Opened]:
    """What a recorded run was asked about: its files and its traces, below `within`. `moved` is where the data is now: the traces if it
    read no files, else the files; `without` is the layer that parsers of documents may lack.
    """
    paths: list[str] = recorded.get("paths", [])
    code, traces = bool(recorded.get("code")), recorded.get("traces")
    own = moved is not None and not (traces and not paths)
    if not own:
        require_sources(paths, within)
    opened = open_context(
        [moved] if own else paths,
        code=code,
        within=() if own else within,
        without=without,
        exclusion=recorded_exclusion(recorded),
    )
    if traces is None:
        yield opened
        return
    from sonde.api.trace_question import traces_of  # noqa: PLC0415  # loaded only for those who ask about traces

    asked = traces_of(traces, settings, within, None if own else moved)
    with asked.opened(opened if own or paths else None) as both:
        yield both


def recorded_exclusion(recorded: Mapping[str, Any]) -> Exclusion:
    """What a recorded run left out. Before .gitignore files counted, recipes did not mention them."""
    globs: Any = recorded.get("exclude")
    listed = cast("list[Any]", globs) if isinstance(globs, list) else []
    return Exclusion(tuple(each for each in listed if isinstance(each, str)), bool(recorded.get("gitignore")))


def _require_text(files: FilesContext, names: Sequence[str]) -> None:
    reasons = files.library.unreadable()
    if files.library.entries and not reasons:
        if files.library.listing.texts and not files.library.listing.text_bytes:
            raise ConfigError(f"nothing to read in {', '.join(names)}: every file in it is empty")
        return
    asked, found = ", ".join(names), len(files.library.entries)
    if not found:
        kept = left_out(files.library.listing)
        raise ConfigError(f"nothing to read in {asked}: no files{f' but {kept}' if kept else ''}")
    if found == 1:
        raise ConfigError(f"nothing to read in {asked}: {reasons[0].message}")
    raise ConfigError(f"nothing to read in {asked}: none of its {found:,} files is text. {reasons[0].message}")


def is_path(value: Any) -> bool:
    """A Path, or text that names something on disk, itself or by a glob. Other one-line text without spaces is a mistyped path."""
    if isinstance(value, Path):
        return True
    if not isinstance(value, str) or "\n" in value or is_too_long(value) or "\0" in value or not value.strip():
        return False
    if any(character.isspace() for character in value):  # prose has spaces, and question marks too
        return is_there(value)
    if is_there(value) or any(sign in value for sign in "*?"):
        return True
    raise ConfigError(
        f"there is no file or folder {clip(value, 200)!r}; to ask about text itself, pass text of several words"
    )


def is_there(name: str) -> bool:
    """Whether a name is on disk, itself or as a pattern."""
    try:
        found = Path(name).exists()
    except OSError:  # longer than any name on disk
        found = False
    return found or next(expanded(name), None) is not None
