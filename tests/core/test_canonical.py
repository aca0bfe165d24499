"""One text for one value, and one hash."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sonde.core.canonical import canonical_json, clip, hash_value, jsonable, sha256_text

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5), max_leaves=20
)
odd = st.recursive(
    scalars | st.binary() | st.floats() | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(values)
def test_canonical_json_round_trips(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value
    assert canonical_json(json.loads(canonical_json(value))) == canonical_json(value)


@pytest.mark.requirement(100)
@given(st.dictionaries(st.text(), values), st.randoms(use_true_random=True))
def test_the_order_of_keys_does_not_change_the_hash(value: dict[str, Any], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)

    assert hash_value(dict(items)) == hash_value(value)


@given(values, values)
def test_different_values_have_different_hashes(one: Any, other: Any) -> None:
    assert (canonical_json(one) == canonical_json(other)) == (hash_value(one) == hash_value(other))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [{"x": float("-inf")}]])
def test_what_is_not_json_is_refused(value: Any) -> None:
    with pytest.raises(ValueError):
        canonical_json(value)


@given(odd)
def test_everything_has_a_json_like_form_that_stays_as_it_is(value: Any) -> None:
    plain = jsonable(value)

    canonical_json(plain)
    assert jsonable(plain) == plain


def test_sets_have_one_order() -> None:
    assert jsonable({"b", "a", "c"}) == ["a", "b", "c"]


@given(st.text(), st.integers(min_value=40, max_value=200))
def test_clipped_text_keeps_head_and_tail_and_its_limit(text: str, limit: int) -> None:
    short = clip(text, limit)

    assert len(short) <= limit
    assert short == text or (str(len(text)) in short and text.startswith(short[:5]) and text.endswith(short[-2:]))


def test_lone_surrogates_have_a_hash_of_their_own() -> None:
    assert sha256_text("\ud800") != sha256_text("?")
