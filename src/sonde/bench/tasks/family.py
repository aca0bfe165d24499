"""The families by name, and the sheets of questions that options such as lengths and seeds ask of them."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sonde.bench.questions import Material, Questions, Sheet
from sonde.bench.tasks import hops, niah, oolong, pairs, source
from sonde.core.canonical import sha256_text
from sonde.errors import ConfigError

MOST_CHARS = 10_000_000
LEAST_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One kind of task: how its material is made, how long its contexts are unless told."""

    make: Callable[[int, int], Material]
    lengths: tuple[int, ...]


FAMILIES = {
    "niah": Family(make=niah.make, lengths=(20_000, 200_000, 2_000_000)),
    "oolong": Family(make=oolong.make, lengths=(20_000, 200_000)),
    "pairs": Family(make=pairs.make, lengths=(20_000, 100_000)),
    "hops": Family(make=hops.make, lengths=(1_000_000,)),
}


def questions(name: str, data: Path, *, lengths: Sequence[int] = (), seeds: Sequence[int] = (0,)) -> Questions:
    """The benchmark of a family: one sheet for each length and seed."""
    family = FAMILIES[name]
    for length in lengths:
        if not LEAST_CHARS <= length <= MOST_CHARS:
            raise ConfigError(f"a length must be from {LEAST_CHARS:,} to {MOST_CHARS:,} characters, not {length:,}")
    sheets = [_sheet(family, seed, length) for length in lengths or family.lengths for seed in seeds]
    return Questions(name, data, sheets)


def _sheet(family: Family, seed: int, length: int) -> Sheet:
    return Sheet(name=f"{length}-{seed}", make=lambda: family.make(seed, length))


def source_questions(data: Path, tree: Path | None, seeds: Sequence[int] = (0,)) -> Questions:
    """Questions about a source tree: the standard library's asyncio unless told."""
    chosen = tree or Path(sysconfig.get_path("stdlib")) / "asyncio"
    if not chosen.is_dir():
        raise ConfigError(f"{chosen} is no folder; give one with Python files: --tree src")
    sheets = [_source_sheet(chosen.resolve(), seed) for seed in seeds]
    return Questions("code", data, sheets)


def _source_sheet(tree: Path, seed: int) -> Sheet:
    place = sha256_text(str(tree))[:6]  # two trees may have the same name
    return Sheet(name=f"{tree.name}-{place}-{seed}", make=lambda: source.make(tree, seed))
