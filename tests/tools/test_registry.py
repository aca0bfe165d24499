from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sonde.core.canonical import canonical_json, hash_value, sha256_text
from sonde.core.evidence import EvidenceKind, Excerpt, Observed
from sonde.errors import ConfigError, ErrorCode, RecursionLimitReached, ToolFault, ToolResponseInvalid
from sonde.tools import ToolRegistry

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def add(left: int, right: int = 1) -> int:
    """The sum."""
    return left + right


def returning(value: Any) -> ToolRegistry:
    def fetch() -> Any:
        return value

    return ToolRegistry([fetch])


@pytest.mark.requirement(6)
@pytest.mark.requirement(7)
def test_a_call_returns_the_result_with_normalised_arguments_and_both_hashes() -> None:
    result = ToolRegistry([add]).call("add", {"left": 2})

    assert result.result == 3
    assert result.normalized_args == {"left": 2, "right": 1}
    assert result.args_hash == hash_value({"left": 2, "right": 1})
    assert result.response_hash == hash_value(3)
    assert result.latency_s >= 0
    assert result.truncated is None


@pytest.mark.requirement(6)
@pytest.mark.requirement(127)
def test_only_allowed_tools_exist() -> None:
    registry = ToolRegistry([add, returning], allowed=["add"])

    assert registry.names == ("add",)
    for unknown in ("returning", "ad", "__class__"):
        with pytest.raises(ToolFault) as caught:
            registry.call(unknown, {})
        assert "add" in caught.value.message


def test_mistakes_in_the_wiring_are_the_callers() -> None:
    with pytest.raises(ConfigError):
        ToolRegistry([add], allowed=["sub"])
    with pytest.raises(ConfigError):
        ToolRegistry([add, add])


def test_positional_and_keyword_arguments_are_bound_by_name() -> None:
    registry = ToolRegistry([add])

    assert registry.bind("add", (1, 2), {}) == registry.bind("add", (1,), {"right": 2}) == {"left": 1, "right": 2}
    for args, kwargs in [((1, 2, 3), {}), ((1,), {"left": 2})]:
        with pytest.raises(ToolFault):
            registry.bind("add", args, kwargs)


def test_positional_only_and_named_only_arguments_reach_the_function() -> None:
    def area(width: int, /, height: int, *, scale: int = 1) -> int:
        return width * height * scale

    registry = ToolRegistry([area])

    assert registry.call("area", registry.bind("area", (2, 3), {"scale": 5})).result == 30
    with pytest.raises(ToolFault):
        registry.bind("area", (1, 2, 3), {})


@pytest.mark.requirement(8)
def test_what_a_tool_raises_becomes_a_fault_that_shows_how_to_call_it() -> None:
    def broken(path: str) -> str:
        """Always fails."""
        raise KeyError(path)

    with pytest.raises(ToolFault) as caught:
        ToolRegistry([broken]).call("broken", {"path": "a"})

    assert caught.value.message == (
        "broken: failed with KeyError: 'a'\nSignature: broken(path: str) -> str\nExample: result = broken('text')"
    )
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.requirement(8)
def test_a_used_up_budget_passes_through_a_tool_untouched() -> None:
    def spend() -> None:
        raise RecursionLimitReached("no sub-calls left", limit="max_subcalls")

    with pytest.raises(RecursionLimitReached):
        ToolRegistry([spend]).call("spend", {})


@pytest.mark.requirement(8)
@pytest.mark.requirement(6)
def test_timed_rows_come_back_in_order_of_time_then_id() -> None:
    rows = [
        {"start_time": "2024-01-02", "span_id": "b"},
        {"start_time": "2024-01-02", "span_id": "a"},
        {"start_time": "2024-01-01", "span_id": "z"},
    ]
    untimed = [{"role": "user"}, {"role": "assistant"}]
    events = {"events": [{"timestamp": 10.5}, {"timestamp": 9}]}

    assert [row["span_id"] for row in returning(rows).call("fetch", {}).result] == ["z", "a", "b"]
    assert returning(untimed).call("fetch", {}).result == untimed
    assert returning(events).call("fetch", {}).result == {"events": [{"timestamp": 9}, {"timestamp": 10.5}]}
    assert returning(rows).call("fetch", {}).response_hash == returning(rows[::-1]).call("fetch", {}).response_hash


@dataclass
class Reading:
    when: datetime
    values: tuple[int, ...]


def test_structured_arguments_reach_the_function_and_are_recorded_plain() -> None:
    def total(reading: Reading) -> int:
        return sum(reading.values)

    given = {"reading": {"when": "2024-01-02T00:00:00Z", "values": [1, 2]}}
    result = ToolRegistry([total]).call("total", given)

    assert result.result == 3
    assert result.normalized_args == given


def test_dataclasses_dates_and_tuples_become_plain_data() -> None:
    reading = Reading(when=datetime(2024, 1, 2, tzinfo=UTC), values=(1, 2))

    assert returning(reading).call("fetch", {}).result == {"when": "2024-01-02T00:00:00Z", "values": [1, 2]}
    assert returning({1: (2,)}).call("fetch", {}).result == {"1": [2]}


@pytest.mark.parametrize("value", [b"raw", {"a": [1, b"raw"]}, float("nan"), [float("inf")], object(), {"f": open}])
@pytest.mark.requirement(107)
def test_a_result_that_is_not_data_is_refused(value: Any) -> None:
    with pytest.raises(ToolResponseInvalid) as caught:
        returning(value).call("fetch", {})

    assert caught.value.code is ErrorCode.TOOL_RESPONSE_INVALID
    assert "fetch" in caught.value.message


def test_a_result_that_is_not_data_is_pointed_at() -> None:
    with pytest.raises(ToolResponseInvalid, match=r"its result\['rows'\]\[1\] \(bytes\)"):
        returning({"rows": [1, b"x"]}).call("fetch", {})


@pytest.mark.requirement(5)
@pytest.mark.requirement(14)
def test_text_that_looks_like_code_comes_back_as_text() -> None:
    hostile = "__import__('os').system('id')"

    assert returning(hostile).call("fetch", {}).result == hostile


@pytest.mark.requirement(22)
@pytest.mark.parametrize(
    "value", ["é" * 9_000, ["row"] * 9_000, {f"k{n}": "v" * 90 for n in range(99)}, ['"\n' * 3_000] * 5]
)
def test_what_is_too_large_is_cut_and_says_so(value: Any) -> None:
    def fetch() -> Any:
        return value

    result = ToolRegistry([fetch], max_result_bytes=5_000).call("fetch", {})

    assert len(canonical_json(result.result).encode()) <= 5_000
    assert type(result.result) is type(value)
    assert result.truncated is not None
    assert "5,000" in result.truncated
    assert result.response_hash == hash_value(result.result)


def test_a_result_that_just_fits_is_not_cut() -> None:
    def fetch() -> str:
        return "x" * 98

    assert ToolRegistry([fetch], max_result_bytes=100).call("fetch", {}).truncated is None
    assert ToolRegistry([fetch], max_result_bytes=99).call("fetch", {}).truncated is not None


def test_a_plain_result_is_citable_as_the_tools_output() -> None:
    registry = ToolRegistry([add])

    result = registry.call("add", {"left": 2})

    (excerpt,) = result.excerpts
    assert excerpt.kind is EvidenceKind.TOOL_IO
    assert excerpt.ref == f"tool:add:{result.args_hash[:8]}-{sha256_text('3')[:8]}"
    assert excerpt.hash == sha256_text("3")


def test_a_tool_that_cites_by_itself_keeps_its_excerpts_unless_its_text_is_cut() -> None:
    line = Excerpt.of_lines("a.txt", 1, 1, "x" * 500)

    def read() -> Observed:
        return Observed("x" * 500, (line,), truncated="more on line 2")

    whole = ToolRegistry([read]).call("read", {})
    cut = ToolRegistry([read], max_result_bytes=100).call("read", {})

    assert whole.excerpts == (line,)
    assert whole.truncated == "more on line 2"
    assert [e.kind for e in cut.excerpts] == [EvidenceKind.TOOL_IO]


def test_calls_from_many_threads_do_not_mix() -> None:
    together = threading.Barrier(8, timeout=60)

    def echo(number: int) -> int:
        together.wait()
        return number

    registry = ToolRegistry([echo])
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(registry.call, "echo", {"number": number}) for number in range(8)]
        results = [call.result() for call in calls]

    assert [r.result for r in results] == list(range(8))
    assert all(r.excerpts[0].hash == sha256_text(str(r.result)) for r in results)


@given(value=JSON)
def test_any_plain_result_is_the_same_after_a_second_call(value: Any) -> None:
    first = returning(value).call("fetch", {})
    again = returning(first.result).call("fetch", {})

    assert again.result == first.result
    assert again.response_hash == first.response_hash
