"""What a recorded run has read and that is not as it was: the usual reason why a replay differs.

Every excerpt that a tool showed or the code cited is read again. Where all of them are the same, the hash of the whole data tells of
other changes. It does not say what has changed in a file: the run recorded hashes of what it read, and the text only where code printed it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from sonde.contexts.base import Context
from sonde.core.calls import CallRef
from sonde.core.canonical import sha256_text
from sonde.core.events import AnyEvent, Cited, HostReturned, RunStarted
from sonde.core.evidence import Citation, Excerpt
from sonde.errors import RunError

ALL_OF_IT = "the data"


def changed_sources(events: Sequence[AnyEvent], context: Context) -> tuple[str, ...]:
    """The files (or refs) that read otherwise now; "the data" when it is none of those that were read but the whole differs."""
    with suppress(RunError):  # the data cannot be reached: the replay says so itself
        read = {excerpt.ref: excerpt for excerpt in _excerpts(events)}
        names = dict.fromkeys(each.path or each.ref for each in read.values() if not _is_same(each, context))
        return tuple(names) or ((ALL_OF_IT,) if _whole_differs(events, context) else ())
    return ()


def _excerpts(events: Sequence[AnyEvent]) -> Iterator[Excerpt]:
    for event in events:
        if isinstance(event, HostReturned):
            yield from (msgspec.convert(each, Excerpt) for each in event.excerpts)
        elif isinstance(event, Cited):
            yield _cited(Citation.model_validate(event.citation))


def _cited(citation: Citation) -> Excerpt:
    return Excerpt(
        kind=citation.kind,
        ref=citation.ref,
        hash=citation.excerpt_hash,
        path=citation.path,
        start_line=citation.start_line,
        end_line=citation.end_line,
    )


def _is_same(excerpt: Excerpt, context: Context) -> bool:
    if CallRef.read(excerpt.ref) is not None:
        return True  # the result of a user's tool stands in the record itself
    text = context.reread(excerpt)
    return text is not None and sha256_text(text) == excerpt.hash


def _whole_differs(events: Sequence[AnyEvent], context: Context) -> bool:
    started = next((event for event in events if isinstance(event, RunStarted)), None)
    recorded = "" if started is None else started.dataset_ref.get("dataset_hash")
    return bool(recorded) and recorded != context.fingerprint()
