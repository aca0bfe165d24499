"""The indexes of trace files stay below a limit: the least recently used go first, and none that somebody reads."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.cli_program import call
from sonde.contexts.traces.cache import cached_bytes, remove_unused
from sonde.contexts.traces.catalog import query_of
from sonde.contexts.traces.filestore import FileStore

SPAN = '{"trace_id": "%s", "span_id": "s1", "name": "ask", "start_time": "2026-11-01T12:00:00Z", "end_time": "2026-11-01T12:00:01Z"}\n'


def trace(folder: Path, name: str) -> Path:
    file = folder / f"{name}.jsonl"
    file.write_text(SPAN % (name * 8))
    return file


def indexes(cache: Path) -> int:
    return len(list(cache.glob("*.sqlite")))


def test_the_least_recently_used_index_makes_room_for_a_new_one(tmp_path: Path) -> None:
    cache, (old, newer, newest) = tmp_path / "cache", (trace(tmp_path, name) for name in "abc")
    for moment, file in enumerate((old, newer)):
        with FileStore(file, cache=cache) as store:
            path = store.indexed.path
        os.utime(path.with_suffix(".used"), (moment, moment))
    two = cached_bytes(cache)

    FileStore(newest, cache=cache, cache_gb=two / 1e9).close()

    assert indexes(cache) == 2
    with FileStore(newer, cache=cache) as kept, FileStore(old, cache=cache) as again:
        assert kept.indexed.how == "found"
        assert again.indexed.how == "built"


def test_an_index_that_is_read_is_not_removed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with FileStore(trace(tmp_path, "a"), cache=cache) as store:
        FileStore(trace(tmp_path, "b"), cache=cache, cache_gb=0).close()

        assert store.indexed.path.exists()
        assert [row.trace_id for row in store.traces(query_of()).rows] == ["a" * 8]
        assert remove_unused(cache, 0) == 1
    assert remove_unused(cache, 0) == 1
    assert cached_bytes(cache) == 0
    assert not list(cache.glob("*.used"))


def test_a_source_that_cannot_be_read_leaves_nothing_in_the_cache(tmp_path: Path) -> None:
    cache, broken = tmp_path / "cache", tmp_path / "broken.jsonl"
    broken.write_text("no span\n")

    with pytest.raises(Exception, match="no span could be read"):
        FileStore(broken, cache=cache)

    assert not [*cache.glob("*.sqlite"), *cache.glob("*.used"), *cache.glob("*.part")]


def test_config_shows_the_cache_and_traces_clear_empties_it(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "SONDE_TRACE_CACHE_GB": "2"}
    file = trace(tmp_path, "a")
    imported = call("traces", "import", file, cwd=tmp_path, env=environ)

    shown = json.loads(call("config", "--json", cwd=tmp_path, env=environ).stdout)["trace_cache"]
    said = call("config", cwd=tmp_path, env=environ).stdout
    cleared = call("traces", "clear", cwd=tmp_path, env=environ)

    assert imported.returncode == 0, imported.stderr
    assert shown["path"] == str(tmp_path / ".cache/sonde/traces")
    assert shown["bytes"] > 0
    assert shown["limit_bytes"] == 2_000_000_000
    assert f"indexes of trace files: {shown['path']}" in said
    assert "1 index removed" in cleared.stdout
    assert not list(Path(shown["path"]).glob("*.sqlite"))
