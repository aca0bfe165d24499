"""Only what a tool has shown in this run, and what still reads the same, is evidence."""

from __future__ import annotations

import sys
import threading

import pytest
from hypothesis import given, strategies as st

from sonde.core.canonical import sha256_text
from sonde.core.evidence import (
    Citation,
    EvidenceKind,
    EvidenceLog,
    EvidenceRef,
    Excerpt,
    Refuted,
    independent,
    merge,
)

TEXT = [f"line {number}" for number in range(1, 101)]


def lines(start: int, end: int) -> str:
    return "\n".join(TEXT[start - 1 : end])


def shown(start: int, end: int, path: str = "a.log") -> Excerpt:
    return Excerpt.of_lines(path, start, end, lines(start, end))


def reread(excerpt: Excerpt) -> str | None:
    return lines(excerpt.start_line, excerpt.end_line)


refs = st.builds(
    EvidenceRef,
    kind=st.sampled_from(EvidenceKind),
    ref=st.sampled_from(["a", "b", "c"]),
    excerpt_hash=st.text(alphabet="0123456789abcdef", min_size=4, max_size=4),
)


@pytest.mark.requirement(132)
@given(st.lists(refs), st.lists(refs))
def test_merging_is_idempotent_and_keeps_the_first_of_each_kind_and_ref(
    one: list[EvidenceRef], two: list[EvidenceRef]
) -> None:
    merged = merge(one, two)

    assert merge(merged) == merged == merge(merged, one, two)
    assert len({ref.key for ref in merged}) == len(merged) == independent(one + two)
    assert merged == sorted(merged, key=(one + two).index)


@given(st.lists(refs), st.lists(refs), st.lists(refs))
def test_merging_in_steps_is_merging_at_once(
    one: list[EvidenceRef], two: list[EvidenceRef], three: list[EvidenceRef]
) -> None:
    assert merge(merge(one, two), three) == merge(one, two, three) == merge(one, merge(two, three))


spans = st.tuples(st.integers(1, 100), st.integers(0, 20)).map(lambda s: (s[0], min(100, s[0] + s[1])))


@pytest.mark.requirement("O2")
@given(st.lists(spans, max_size=8), spans)
def test_lines_are_proved_exactly_when_every_one_of_them_was_shown(
    seen: list[tuple[int, int]], asked: tuple[int, int]
) -> None:
    log = EvidenceLog()
    log.note(shown(*span) for span in seen)

    proved = log.prove_lines("a.log", *asked, reread)

    known = {line for start, end in seen for line in range(start, end + 1)}
    if set(range(asked[0], asked[1] + 1)) <= known:
        assert isinstance(proved, Excerpt)
        assert proved.hash == sha256_text(lines(*asked))
    else:
        assert isinstance(proved, Refuted)
        assert "read_file('a.log'" in proved.told
        assert "read_file" not in proved.reason


@pytest.mark.requirement("O2")
@pytest.mark.requirement(117)
def test_text_that_changed_since_it_was_read_is_refused() -> None:
    log = EvidenceLog()
    log.note([shown(3, 9)])

    assert isinstance(log.prove_lines("a.log", 4, 5, lambda excerpt: "something else"), Refuted)
    assert isinstance(log.prove_lines("a.log", 4, 5, lambda excerpt: None), Refuted)


@pytest.mark.parametrize("span", [(0, 3), (-1, 2), (5, 4)])
def test_a_range_that_is_none_is_refused(span: tuple[int, int]) -> None:
    log = EvidenceLog()
    log.note([shown(1, 100)])

    assert isinstance(log.prove_lines("a.log", *span, reread), Refuted)


def test_a_second_look_at_the_same_place_replaces_the_first() -> None:
    log = EvidenceLog()
    log.note([Excerpt.of_lines("a.log", 1, 2, "old")])
    log.note([shown(1, 2)])

    assert isinstance(log.prove_lines("a.log", 1, 2, reread), Excerpt)
    assert len(log) == 1


def test_a_pointer_is_proved_by_kind_and_ref_together() -> None:
    log = EvidenceLog()
    log.note([Excerpt(kind=EvidenceKind.SPAN, ref="s1", hash=sha256_text("body"), span_id="s1")])

    assert isinstance(log.prove_ref("SPAN", "s1", lambda excerpt: "body"), Excerpt)
    assert isinstance(log.prove_ref("TOOL_IO", "s1", lambda excerpt: "body"), Refuted)
    assert EvidenceRef.of(log.excerpts()[0]).key == ("SPAN", "s1")


def test_a_citation_without_a_ref_is_known_by_its_lines() -> None:
    one = Citation(path="a", start_line=1, end_line=2, excerpt_hash="x")

    assert merge([one], [one.model_copy(update={"snippet": "other"})]) == [one]


@pytest.mark.long
def test_a_citation_is_proved_while_other_sessions_look_at_the_same_file() -> None:
    excerpts = [Excerpt.of_lines("a.py", line, line, f"line {line}") for line in range(1, 60)]
    log, stop = EvidenceLog(), threading.Event()
    log.note(excerpts)

    def look() -> None:
        while not stop.is_set():
            log.note(excerpts)

    before, looking = sys.getswitchinterval(), threading.Thread(target=look)
    sys.setswitchinterval(1e-6)
    looking.start()
    try:
        proofs = [log.prove_lines("a.py", 30, 31, lambda e: f"line {e.start_line}") for _ in range(300)]
    finally:
        stop.set()
        looking.join()
        sys.setswitchinterval(before)

    assert not [proof for proof in proofs if isinstance(proof, Refuted)]


@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12), st.booleans())), st.integers(1, 40), st.integers(0, 20)
)
def test_lines_count_as_shown_exactly_when_every_one_of_them_was(
    reads: list[tuple[int, int, bool]], start: int, more: int
) -> None:
    log, seen = EvidenceLog(), set[int]()
    for first, width, shown in reads:
        log.note([Excerpt.of_lines("a.txt", first, first + width, "")], shown=shown)
        seen |= set(range(first, first + width + 1)) if shown else set()

    assert log.shows("a.txt", start, start + more) is (set(range(start, start + more + 1)) <= seen)
    assert log.copy().shows("a.txt", start, start) is any(first <= start <= first + width for first, width, _ in reads)
