"""The families of tasks by name. Each makes its material from a seed, with answers that are known by construction."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sonde.bench import source_tree
from sonde.bench.needles import hops, niah
from sonde.bench.questions import Material, Questions, Sheet
from sonde.bench.user_records import oolong, pairs
from sonde.core.canonical import sha256_text
from sonde.errors import ConfigError

MOST_CHARS = 10_000_000
LEAST_CHARS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFamily:
    """One kind of task: how its material is made, and its default context lengths."""

    make: Callable[[int, int], Material]
    lengths: tuple[int, ...]


FAMILIES = {
    "niah": TaskFamily(make=niah, lengths=(20_000, 200_000, 2_000_000)),
    "oolong": TaskFamily(make=oolong, lengths=(20_000, 200_000)),
    "pairs": TaskFamily(make=pairs, lengths=(20_000, 100_000)),
    "hops": TaskFamily(make=hops, lengths=(1_000_000,)),
}


def questions(name: str, data: Path, *, lengths: Sequence[int] = (), seeds: Sequence[int] = (0,)) -> Questions:
    """The benchmark of a family: one sheet for each length and seed."""
    family = FAMILIES[name]
    for length in lengths:
        if not LEAST_CHARS <= length <= MOST_CHARS:
            raise ConfigError(f"a length must be from {LEAST_CHARS:,} to {MOST_CHARS:,} characters, not {length:,}")
    sheets = [
        Sheet(name=f"{length}-{seed}", make=partial(family.make, seed, length))
        for length in lengths or family.lengths
        for seed in seeds
    ]
    return Questions(name, data, sheets)


def source_questions(data: Path, tree: Path | None, seeds: Sequence[int] = (0,)) -> Questions:
    """Questions about a source tree; by default the asyncio package of the standard library."""
    chosen = tree or Path(sysconfig.get_path("stdlib")) / "asyncio"
    if not chosen.is_dir():
        raise ConfigError(f"{chosen} is not a folder; give one with Python files: --tree src")
    chosen = chosen.resolve()
    place = sha256_text(str(chosen))[:6]  # two trees may have the same name
    sheets = [
        Sheet(name=f"{chosen.name}-{place}-{seed}", make=partial(source_tree.make, chosen, seed)) for seed in seeds
    ]
    return Questions("code", data, sheets)
