"""Failures as issues: what belongs together, and what a second batch says of them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sonde.batch.issues import ISSUES, Issue, compare, group, read_issues
from sonde.batch.result import FoundFailure, ItemResult
from sonde.errors import ConfigError

TIMEOUT = "connection to 10.0.0.{n} timed out after {n} ms (request 9f{n}c0ffee)"


def found(
    number: int, label: str = "tool_failure", component: str = "payments.charge", words: str = TIMEOUT
) -> ItemResult:
    text = words.format(n=number)
    return ItemResult(
        id=f"i{number}",
        key=f"k{number}",
        engine="rca",
        status="succeeded",
        trace_ids=[f"t{number}"],
        seen_at=f"2026-11-{number:02d}T00:00:00Z",
        findings=[FoundFailure(label=label, component=component, words=text)],
    )


def one(issues: list[Issue]) -> Issue:
    (issue,) = issues
    return issue


def test_the_same_failure_with_other_numbers_and_ids_is_one_issue_with_its_times_and_traces() -> None:
    issue = one(group([found(number) for number in (3, 1, 9, 2, 5, 7, 4)]))

    assert issue.count == 7
    assert (issue.first_seen, issue.last_seen) == ("2026-11-01T00:00:00Z", "2026-11-09T00:00:00Z")
    assert issue.traces[0] == "t1"
    assert issue.traces[-1] == "t9"
    assert len(issue.traces) == 5


def test_words_of_any_script_tell_issues_apart() -> None:
    lost, refused = "нет соединения с базой {n}", "неверный пароль для {n}"

    issues = group([found(1, words=lost), found(2, words=lost), found(3, words=refused)])

    assert sorted(issue.count for issue in issues) == [1, 2]


def test_another_label_component_or_wording_is_another_issue() -> None:
    results = [
        found(1),
        found(2, label="upstream_dependency_failure"),
        found(3, component="cart.add"),
        found(4, words="quota of the free tier is used up for this month"),
    ]

    assert len(group(results)) == 4


def test_one_trace_that_shows_a_failure_twice_counts_once() -> None:
    result = found(1)
    twice = msgspec.structs.replace(result, findings=result.findings * 2)

    assert one(group([twice])).count == 1


def test_a_second_batch_tells_new_ongoing_and_gone_and_a_third_one_reopened() -> None:
    old, other = found(1), found(2, component="cart.add")
    first = compare(group([old]), [])
    second = compare(group([other]), first)
    third = compare(group([found(8), other]), second)

    assert [(issue.component, issue.state) for issue in second] == [("cart.add", "new"), ("payments.charge", "gone")]
    states = {issue.component: issue.state for issue in third}
    assert states == {"payments.charge": "reopened", "cart.add": "ongoing"}
    again = next(issue for issue in third if issue.state == "reopened")
    assert again.id == first[0].id
    assert again.first_seen == "2026-11-01T00:00:00Z"


def test_words_are_compared_without_numbers_and_ids() -> None:
    issue = one(group([found(1, words="Timeout 500ms at 0xdeadbeef1, trace 4f1c2b9a8d7e6f5a")]))

    assert issue.words == ["at", "timeout", "trace"]


def test_an_earlier_batch_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / ISSUES).write_text("[]")
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError):
            read_issues(path)


def test_while_items_are_left_an_issue_that_was_not_seen_is_not_gone() -> None:
    old, other = found(1), found(2, component="cart.add")
    first = compare(group([old]), [])
    stopped = compare(group([other]), first, complete=False)
    finished = compare(group([other]), stopped)
    stopped_again = compare(group([other]), finished, complete=False)

    assert [issue.state for issue in stopped] == ["new", "unseen"]
    assert [issue.state for issue in finished] == ["ongoing", "gone"]
    assert [issue.state for issue in stopped_again] == ["ongoing", "gone"]
    assert one(compare(group([old]), stopped)[:1]).state == "ongoing"
    assert one(compare(group([old]), stopped_again)[:1]).state == "reopened"
