"""Manifests: what is an item, what is none and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sonde.batch.manifest import Item, parse_manifest, read_manifest
from sonde.errors import ConfigError

ASK = {"id": "a", "engine": "ask", "question": "What?", "paths": ["x.txt"]}


def parse(*lines: Any) -> tuple[list[Item], dict[int, str]]:
    texts = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    manifest = parse_manifest(texts, Path("/data"))
    return list(manifest.items), {line.number: line.reason for line in manifest.broken}


def test_an_ask_and_an_investigation_are_items_with_paths_beside_the_manifest() -> None:
    rca = {"id": "t", "engine": "rca", "trace_ids": ["4f"], "source": "t.jsonl", "project": "shop"}
    phoenix = {"id": "p", "engine": "comply", "trace_ids": ["5a"], "source": "http://localhost:6006"}

    items, broken = parse(ASK, rca, phoenix)

    assert not broken
    assert [item.engine for item in items] == ["ask", "rca", "compliance"]
    assert items[0].fields["paths"] == ["/data/x.txt"]
    assert [item.fields["source"] for item in items[1:]] == ["/data/t.jsonl", "http://localhost:6006"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not"),
        (b"[1]", "not an object"),
        (b"[" * 100_000, "nested"),
        ({**ASK, "id": ""}, "id"),
        ({**ASK, "id": 7}, "id"),
        ({key: value for key, value in ASK.items() if key != "id"}, "no id"),
        ({**ASK, "engine": "guess"}, "engine"),
        ({"id": "a", "engine": "ask"}, "question"),
        ({**ASK, "paths": "x.txt"}, "paths"),
        ({**ASK, "colour": "red"}, "colour"),
        ({**ASK, "code": "yes"}, "code"),
        ({**ASK, "question": "\ud800"}, "half a character"),
        ({**ASK, "schema": {"const": "\ud800"}}, "half a character"),
        ({**ASK, "schema": {"minimum": float("nan")}}, "NaN"),
        (b'{"id": "q", "question": "x", "schema": {"maximum": 1e999}}', "1e999"),
        (b'{"id": "q", "question": "x", "schema": {"x": %s}}' % (b"[" * 600 + b"]" * 600), "levels deep"),
        ({"id": "t", "engine": "rca"}, "trace_ids"),
        ({"id": "t", "engine": "rca", "trace_ids": [1]}, "trace_ids"),
    ],
)
def test_a_broken_line_is_named_with_its_reason_and_the_others_stand(line: Any, said: str) -> None:
    items, broken = parse({**ASK, "id": "before"}, line, {**ASK, "id": "after"})

    assert [item.id for item in items] == ["before", "after"]
    assert list(broken) == [2]
    assert said in broken[2]


def test_ids_used_twice_are_refused_by_name_and_line() -> None:
    with pytest.raises(ConfigError) as refused:
        parse(ASK, {**ASK, "question": "Another?"}, {**ASK, "id": "b"})

    assert "'a'" in refused.value.message
    assert "1, 2" in refused.value.message
    assert "'b'" not in refused.value.message


def test_several_traces_of_one_line_are_one_item_each() -> None:
    items, _ = parse({"id": "t", "engine": "rca", "trace_ids": ["x", "y", "x"], "source": "t.jsonl"})

    assert [(item.id, item.fields["trace_ids"]) for item in items] == [("t:x", ["x"]), ("t:y", ["y"])]


def test_a_run_folder_is_the_same_for_the_same_item_and_another_one_for_other_content() -> None:
    (one, same), (other,) = parse(ASK)[0] * 2, parse({**ASK, "question": "What else?"})[0]

    assert one.key == same.key
    assert one.key != other.key


@given(st.text(min_size=1, max_size=200))
def test_whatever_the_id_the_folder_stays_a_plain_name(name: str) -> None:
    key = Item(id=name, engine="ask").key

    assert key == Path(key).name
    assert not key.startswith(".")
    assert len(key) < 100


@given(st.binary(max_size=200))
def test_no_line_breaks_the_reader(line: bytes) -> None:
    items, broken = parse(*line.splitlines())

    assert len(items) + len(broken) <= len(line.splitlines())


def test_an_item_written_and_read_again_is_the_same_item() -> None:
    (item,), _ = parse(ASK)

    assert parse(item.line().encode())[0] == [item]


def test_a_manifest_without_any_item_is_refused_with_an_example(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text("nonsense\n")

    with pytest.raises(ConfigError) as refused:
        read_manifest(tmp_path / "m.jsonl")

    assert '"question"' in refused.value.message
    assert "line 1" in refused.value.message
    with pytest.raises(ConfigError):
        read_manifest(tmp_path / "missing.jsonl")


@pytest.mark.parametrize("head", ["question;paths", "Question,Paths", "question,question", "What is this?,notes.txt"])
def test_a_csv_file_whose_first_row_does_not_name_its_columns_is_refused_with_an_example(
    head: str, tmp_path: Path
) -> None:
    (tmp_path / "questions.csv").write_text(f"{head}\nWhat?,a.txt\n")

    with pytest.raises(ConfigError, match="id,question,paths"):
        read_manifest(tmp_path / "questions.csv")
