"""Where every item stands before the work begins: finished, interrupted, untouched; and what has been spent so far.

An item is finished when results.jsonl says so, interrupted when its folder holds a journal, and untouched otherwise. A journal that ended
without its line (the driver died in between) is found by the worker that opens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.batch.folder import BatchFolder, spent_of
from sonde.batch.manifest import Item
from sonde.batch.result import ItemResult
from sonde.batch.station import Errand
from sonde.runs.journal import JournalUnreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """`finished` by key; `errands` in the order of the manifest, interrupted ones first: they are paid for in part."""

    finished: dict[str, ItemResult]
    errands: tuple[Errand, ...]
    interrupted: int
    spent_usd: float


def plan_batch(items: Sequence[Item], folder: BatchFolder, *, retry_failed: bool = False) -> Plan:
    """What is left to do. A refused item is tried again; a failed one only when asked for, in a folder of its own."""
    known, touched = folder.finished(), folder.touched()
    finished: dict[str, ItemResult] = {}
    begun: list[Errand] = []
    fresh: list[Errand] = []
    for item in items:
        result = known.get(item.key)
        again = result is not None and (result.status == "refused" or (retry_failed and result.failed))
        attempt = _attempt(item, touched, after=result is not None and again)
        if result is not None and not again:
            finished[item.key] = result
        elif item.key in touched and not again:
            begun.append(Errand(item=item, attempt=attempt))
        else:
            fresh.append(Errand(item=item, attempt=attempt))
    spent = sum(result.cost_usd for result in known.values()) + sum(_spent(folder, errand) for errand in begun)
    return Plan(finished=finished, errands=(*begun, *fresh), interrupted=len(begun), spent_usd=spent)


def _attempt(item: Item, touched: set[str], *, after: bool) -> int:
    """The number of the run folder to use: the last one there is, or the one after it."""
    last = 1
    while f"{item.key}.{last + 1}" in touched:
        last += 1
    return last + 1 if after and item.key in touched else last


def _spent(folder: BatchFolder, errand: Errand) -> float:
    try:
        return spent_of(folder.run_dir(errand.item, errand.attempt).read().events)
    except JournalUnreadable:
        return 0.0  # its worker says what is wrong with it
