"""An answer on its way out: as text with citations that can be clicked, or as one JSON object.

Reads the finished run's answer and record, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from sonde.cli.text import link, links_shown, one_line, printable
from sonde.core.budget import shown_cost
from sonde.core.plurals import plural

if TYPE_CHECKING:
    from sonde import Result
    from sonde.core.evidence import Citation


def as_object(answer: Result) -> dict[str, Any]:
    """What `--json` prints."""
    record = answer.record
    return {
        "answer": answer.text,
        "value": answer.value,
        "citations": [citation.model_dump(mode="json") for citation in answer.citations],
        "gaps": list(answer.gaps),
        "status": str(answer.status),
        "annotator_kind": answer.annotator_kind,
        "usage": record.runtime_ref.usage.model_dump(mode="json"),
        "model": record.runtime_ref.model_name,
        "error": record.error.model_dump(mode="json") if record.error else None,
        "run_id": record.run_id,
        "run_dir": str(answer.run_dir) if answer.run_dir else None,
    }


def print_answer(answer: Result, stream: TextIO, roots: Sequence[Path] = (), *, quiet: bool = False) -> None:
    """The text, then its citations, then what is missing. To a file or pipe the text goes exactly as it is."""
    terminal = links_shown(stream)
    text = printable(answer.text) if stream.isatty() else answer.text
    stream.write(text.rstrip("\n") + "\n" if text else "")
    if not quiet:
        appendix = "".join(f"{line}\n" for line in _appendix(answer, roots, linked=terminal))
        stream.write(appendix if text else appendix.lstrip("\n"))
    stream.flush()


def _appendix(answer: Result, roots: Sequence[Path], *, linked: bool) -> Iterable[str]:
    if answer.citations:
        yield "\nCitations:"
        for number, citation in enumerate(answer.citations, 1):
            yield f"  [{number}] {_place(citation, roots, linked=linked)}  {one_line(citation.snippet, 100)}".rstrip()
    if answer.gaps:
        yield "\nGaps:"
        yield from (f"  - {one_line(gap, 300)}" for gap in answer.gaps)


def _place(citation: Citation, roots: Sequence[Path], *, linked: bool) -> str:
    """`path:line` or `path:line-line`; with a link where the file is found."""
    if not citation.path:
        called = citation.place if citation.ref in citation.place else f"{citation.place} [{citation.ref}]"
        return one_line(called, 300)
    lines = f"{citation.start_line}" + (f"-{citation.end_line}" if citation.end_line > citation.start_line else "")
    shown = one_line(f"{citation.path}:{lines}", 400) + (" (fallback)" if citation.fallback else "")
    target = find_cited(citation.path, roots) if linked else None
    return link(shown, target, citation.start_line) if target else shown


def find_cited(path: str, roots: Sequence[Path]) -> Path | None:
    """The file that a citation means: below one of the asked folders, one of the asked files, or where it says."""
    candidates = [root / path for root in roots if root.is_dir()]
    candidates += [root for root in roots if root.name == Path(path).name]
    candidates += [root.parent / path for root in roots]
    candidates.append(Path(path))
    return next((candidate.resolve() for candidate in candidates if candidate.is_file()), None)


def error_line(answer: Result) -> str | None:
    """What went wrong, for stderr; of a run that ended partial only what its gaps do not say already."""
    error = answer.record.error
    if error is None or (answer.status != "failed" and error.message in answer.gaps):
        return None
    return f"sonde: {error.code}: {one_line(error.message, 600)}"


def summary_line(answer: Result) -> str:
    """One line on how it went, for the end of the live view."""
    usage = answer.record.runtime_ref.usage
    tokens = usage.tokens_in + usage.tokens_out
    parts = [
        str(answer.status),
        plural(usage.iterations, "turn"),
        plural(usage.llm_subcalls, "sub-call"),
        plural(tokens, "token"),
        shown_cost(usage.cost_usd, tokens),
    ]
    where = f" · {printable(str(answer.run_dir))}" if answer.run_dir else ""
    return " · ".join(parts) + where
