"""Where every item stands before the work begins: finished, interrupted, untouched; and what has been spent so far.

An item is finished when results.jsonl says so, interrupted when its folder holds a journal, and untouched otherwise. A journal that ended
without its line (the driver died in between) is found by the worker that opens it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sonde.batch.folder import BatchFolder, ended_of
from sonde.batch.item_runner import Errand
from sonde.batch.manifest import Item
from sonde.batch.result import ItemResult
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
    lines, touched = folder.all_results(), folder.touched()
    known = {result.key: result for result in lines}
    finished: dict[str, ItemResult] = {}
    begun: list[Errand] = []
    fresh: list[Errand] = []
    for item in items:
        result = known.get(item.key)
        if result is not None and not (result.status == "refused" or (retry_failed and result.failed)):
            finished[item.key] = result
            continue
        errand = Errand(item=item, attempt=_attempt(item, result, folder))
        name = folder.run_dir(item, errand.attempt).run_id
        (begun if name in touched else fresh).append(errand)
    paid = {(result.key, result.attempt): result.cost_usd for result in lines}
    paid |= {(errand.item.key, errand.attempt): folder.spent(errand.item, errand.attempt) for errand in begun}
    return Plan(finished=finished, errands=(*begun, *fresh), interrupted=len(begun), spent_usd=sum(paid.values()))


def _attempt(item: Item, result: ItemResult | None, folder: BatchFolder) -> int:
    """Which run folder to use: the next one only after a run that came to its end and failed."""
    if result is None:
        return 1
    run_dir = folder.run_dir(item, result.attempt)
    try:
        ended = run_dir.journal_path.is_file() and ended_of(run_dir.read().events) is not None
    except JournalUnreadable:
        ended = False  # refused again, with the reason
    return result.attempt + 1 if ended else result.attempt
