from __future__ import annotations

from pathlib import Path

import pytest
from files_support import call, proved, write

from sonde.contexts.files import FilesContext
from sonde.contexts.files.bm25 import hearts
from sonde.errors import ToolFault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


@pytest.mark.requirement(33)
def test_grep_gives_path_line_and_text(root: Path) -> None:
    context = write(root, {"a.log": "ok\nERROR one\r\nerror two\n", "b/c.log": "ERROR three"})

    rows = call(context, "grep", "^ERROR .*e$")

    assert rows.result == [
        {"path": "a.log", "line": 2, "text": "ERROR one"},
        {"path": "b/c.log", "line": 1, "text": "ERROR three"},
    ]
    assert proved(context, rows)
    assert [r["line"] for r in call(context, "grep", "error", path="a.log", flags="i").result] == [2, 3]
    assert [r["path"] for r in call(context, "grep", "ERROR", path="b").result] == ["b/c.log"]
    assert [r["path"] for r in call(context, "grep", "ERROR", path="*/c.*").result] == ["b/c.log"]
    assert call(context, "grep", "one)", flags="F").result == []
    assert call(context, "grep", "tw", flags="w").result == []


def test_grep_says_how_many_matches_it_left_off(root: Path) -> None:
    context = write(root, {"a.txt": "hit\n" * 100, "b.txt": "hit\n" * 20_000})

    some = call(context, "grep", "hit", path="a.txt", max_matches=30)
    many = call(context, "grep", "hit", max_matches=30)

    assert len(some.result) == len(many.result) == 30
    assert some.truncated is not None and some.truncated.startswith("70 further")
    assert many.truncated is not None and many.truncated.startswith("more than 10,000 further")
    with pytest.raises(ToolFault):
        call(context, "grep", "hit", max_matches=0)


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "a\nb", r"a\nb", "x{1,5000}"])
def test_a_pattern_that_cannot_be_used_is_explained(root: Path, pattern: str) -> None:
    context = write(root, {"a.txt": "x"})

    with pytest.raises(ToolFault):
        call(context, "grep", pattern)


@pytest.mark.timeout(200)
def test_hostile_patterns_take_linear_time(root: Path) -> None:
    context = write(root, {"a.txt": "a" * 200_000 + "\n"})

    assert call(context, "grep", "(a+)+$|(a|aa)+b").result[0]["line"] == 1


def test_matches_never_span_lines_and_empty_matches_are_lines(root: Path) -> None:
    context = write(root, {"a.txt": "a\n\nb\n"})

    assert call(context, "grep", r"a\s*b").result == []
    assert [r["line"] for r in call(context, "grep", "^$").result] == [2]
    assert [r["line"] for r in call(context, "grep", "x*").result] == [1, 2, 3]


def test_a_long_line_is_shown_around_the_match(root: Path) -> None:
    context = write(root, {"a.txt": "x" * 5_000 + "needle" + "y" * 5_000})

    (row,) = call(context, "grep", "needle").result

    assert "needle" in row["text"] and len(row["text"]) < 600


def test_search_ranks_passages_and_cites_them(root: Path) -> None:
    noise = "\n".join(f"line {n} about the weather and the sea" for n in range(400))
    context = write(root, {"a.md": noise, "b.md": f"{noise}\nThe payments were retried until exhaustion.\n{noise}"})

    hits = call(context, "search", "Why was the payment retry exhausted?", 3)

    assert hits.result[0]["path"] == "b.md"
    assert "payments were retried" in hits.result[0]["text"]
    assert hits.result[0]["start_line"] <= 401 <= hits.result[0]["end_line"]
    assert proved(context, hits)
    with pytest.raises(ToolFault):
        call(context, "search", "?!")


def test_words_in_paths_and_inside_names_are_found(root: Path) -> None:
    noise = "the run goes on and on\n" * 30
    context = write(
        root,
        {"errors.py": f"class RunFailed: ...\n{noise}", "other.py": noise, "events.py": "class StatusChanged: ...\n"},
    )

    assert call(context, "search", "errors of a run").result[0]["path"] == "errors.py"
    assert call(context, "search", "changed").result[0]["path"] == "events.py"
    assert call(context, "search", "StatusChanged").result[0]["path"] == "events.py"


def test_a_search_index_is_kept_for_the_next_run_and_rebuilt_when_data_changes(root: Path, tmp_path: Path) -> None:
    write(root, {"a.md": "the harbour is closed\n"})
    cache = tmp_path / "cache"

    first = call(FilesContext(root, cache_dir=cache), "search", "harbour")
    again = call(FilesContext(root, cache_dir=cache), "search", "harbour")
    assert len(list(cache.iterdir())) == 1
    next(iter(cache.iterdir())).write_bytes(b"damaged")
    repaired = call(FilesContext(root, cache_dir=cache), "search", "harbour")
    write(root, {"a.md": "the harbour is open again\n"})
    changed = call(FilesContext(root, cache_dir=cache), "search", "harbour")

    assert first.result == again.result == repaired.result != changed.result
    assert len(list(cache.iterdir())) == 2


def test_data_too_large_to_index_is_searched_through_its_hits(root: Path) -> None:
    row = "2024-01-01 INFO nothing happened here at all, again and again and again\n"
    context = write(root, {"big.log": row * 250_000 + "2024-01-02 FATAL disk quota reached\n" + row * 250_000})

    hits = call(context, "search", "disk quota happened", 2)

    assert "quota reached" in hits.result[0]["text"]
    assert hits.truncated is not None and "happened" in hits.truncated
    assert proved(context, hits)


def test_source_comes_before_tests_and_a_definition_before_its_uses(root: Path) -> None:
    uses = "".join(f"value_{n} = evict_entry(cache, {n})  # evict the entry\n" for n in range(25))
    context = write(
        root,
        {
            "tests/test_cache.py": f"def test_evict_entry():\n    evict_entry(cache)  # evict the entry of the cache\n{uses}",
            "store.py": f"{uses}\n\ndef evictEntry(cache, key):\n    return cache.pop(key)\n",
        },
    )

    hits = call(context, "search", "Where is an entry of the cache evicted?").result

    assert hits[0]["path"] == "store.py" and "def evictEntry" in hits[0]["text"]
    assert call(context, "search", "tests of evicting an entry").result[0]["path"] == "tests/test_cache.py"


def test_of_a_passage_the_lines_that_answer_are_chosen() -> None:
    text = "import math\n\nallow_nan = True\n\n\ndef text_of(o):\n    if o != o:\n        return 'NaN'\n"

    assert hearts([("json/encoder.py", text)], "Where does json write NaN?") == [(7, 7)]
    assert hearts([("a.py", text)], "Which function makes text of it?") == [(5, 7)]
    assert hearts([("a.py", "\n\n")], "nothing") == [(0, 0)]


@pytest.mark.long
def test_words_that_are_common_in_large_data_are_found_in_other_forms(root: Path) -> None:
    row = "2024-01-01 INFO payment accepted for order 4711 within the usual time, nothing to see\n"
    context = write(root, {"big.log": row * 200_000 + "2024-01-02 WARN payment retry 3 of 3\n" + row * 200_000})

    hits = call(context, "search", "How many payment retries?", 2)

    assert "payment retry 3 of 3" in hits.result[0]["text"]
    assert "payment accepted" in call(context, "search", "payments", 2).result[0]["text"]


def test_files_that_vanish_while_they_are_searched_are_told_of(root: Path) -> None:
    context = write(root, {f"{n}.txt": "x\n" for n in range(5)})
    call(context, "list_files")
    (root / "1.txt").unlink()
    (root / "3.txt").unlink()

    found = call(context, "grep", "x")

    assert len(found.result) == 3
    assert found.truncated is not None and "2 files could not be searched" in found.truncated
