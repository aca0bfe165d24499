"""Seeded failures: the same for the same seed, without leaks, and hard enough to leave room."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from sonde.bench import seeded
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.prefilter import prefilter
from sonde.contexts.traces.store import TraceQuery

LABEL_WORDS = (
    "failure",
    "schema",
    "mismatch",
    "upstream",
    "dependency",
    "instruction",
    "wrong tool",
    *seeded.FAMILY_NAMES,
)


@pytest.fixture(scope="module")
def data() -> seeded.Dataset:
    return seeded.generate(200, seed=7)


def test_the_same_seed_gives_the_same_traces_and_another_one_others(data: seeded.Dataset) -> None:
    assert seeded.generate(200, seed=7) == data
    assert seeded.generate(200, seed=8).spans != data.spans


def test_nothing_in_a_trace_spells_its_label(data: seeded.Dataset) -> None:
    text = json.dumps(data.spans).lower()

    assert [word for word in LABEL_WORDS if word in text] == []


def test_ten_families_are_there_and_two_are_silent(data: seeded.Dataset) -> None:
    families = Counter(gold.family for gold in data.gold)
    silent = {gold.trace_id for gold in data.gold if gold.family in seeded.SILENT}
    in_error = {span["trace_id"] for span in data.spans if span["status_code"] != "OK"}

    assert set(families) == {*seeded.FAMILY_NAMES, seeded.HEALTHY}
    assert len(seeded.FAMILY_NAMES) == 10
    assert min(families.values()) >= 10
    assert silent and not silent & in_error
    assert {gold.span_id for gold in data.gold if gold.family == seeded.HEALTHY} == {None}


def test_status_alone_tells_nothing_because_healthy_traces_have_errors_too(data: seeded.Dataset) -> None:
    healthy = {gold.trace_id for gold in data.gold if gold.family == seeded.HEALTHY}
    with_errors = {span["trace_id"] for span in data.spans if span["status_code"] == "ERROR"}

    assert 0.3 < len(healthy & with_errors) / len(healthy) < 0.95


@pytest.mark.requirement("O16")
@pytest.mark.parametrize("seed", [7, *(pytest.param(seed, marks=pytest.mark.long) for seed in (8, 9))])
def test_the_deterministic_label_beats_the_majority_by_a_quarter_and_leaves_room(seed: int, tmp_path: Path) -> None:
    data = seeded.generate(200, seed)
    data.write(tmp_path / "traces.jsonl", tmp_path / "gold.json")
    majority = max(Counter(gold.label for gold in data.gold).values()) / len(data.gold)

    with FileStore(tmp_path / "traces.jsonl") as store:
        assert len(store.traces(TraceQuery(limit=1000)).rows) == 200
        verdicts = [prefilter(gold.trace_id, store.summaries(gold.trace_id), store.span).verdict for gold in data.gold]

    found = [verdict.label if verdict.span_id else seeded.HEALTHY for verdict in verdicts]
    right = sum(label == gold.label for label, gold in zip(found, data.gold, strict=True)) / len(data.gold)
    assert majority + 0.25 <= right <= 0.85


def test_the_manifest_is_apart_from_the_traces(data: seeded.Dataset, tmp_path: Path) -> None:
    data.write(tmp_path / "traces.jsonl", tmp_path / "gold.json")

    manifest = json.loads((tmp_path / "gold.json").read_text("utf-8"))

    assert set(manifest[0]) == {"trace_id", "label", "family", "span_id"}
    assert not any(
        gold["family"] in (tmp_path / "traces.jsonl").read_text("utf-8")
        for gold in manifest
        if gold["family"] != "healthy"
    )
