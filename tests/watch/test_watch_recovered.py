"""`sonde watch --recovered`: errors that traces recovered from are issues of their own kind."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cli.cli_program import sonde
from sonde.errors import ConfigError
from sonde.watch import lifecycle
from sonde.watch.investigations import candidates
from sonde.watch.issues import issue_markdown, known_issues
from sonde.watch.state import FILE, WatchState
from watch.watch_scene import Fault, Json, Post, append, trace

STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=300)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    found = Post(tmp_path)
    found.options = replace(found.options, recovered=True)
    return found


def mended(number: int, at: float, *texts: str, step: int = 2) -> list[Json]:
    """A trace in which a step throws each of these and is tried again until it succeeds."""
    spans = trace(number, at)
    for place, text in enumerate(texts or ("KeyError: 'sku' in row {n}",)):
        tried = {
            "span_id": f"{number:08x}{place:04x}eeee",
            "start_time": spans[step]["start_time"] - 50_000_000 + place * 1_000_000,
            "status_code": "ERROR",
            "status_message": text.format(n=number * 7919 % 100_000),
        }
        spans.append({**spans[step], **tried})
    return spans


def watched(post: Post, *flags: str) -> Any:
    place = ("--source", post.traces, "--state", post.folder, "--settle", "10s")
    return sonde("watch", "--once", *place, *flags, cwd=post.path)


def test_an_error_that_recurs_is_an_issue_of_its_own_kind_once_enough_traces_of_an_hour_show_it(post: Post) -> None:
    post.options = replace(post.options, min_traces=3)
    append(post.traces, [mended(1, 0), mended(2, 10), trace(3, 20)])
    assert post.look(200) == []
    append(post.traces, [mended(4, 200)])

    assert post.look(400) == ["new 1"]
    (found,) = post.issues().values()
    assert (found.recovered, found.count, found.component, found.label) == (
        True,
        3,
        "search_stock",
        "tool_failure",
    )
    assert (found.users, found.sessions) == (3, 3)
    assert found.last_us - found.first_us > 200e6
    with WatchState(post.folder) as state:
        assert state.one("SELECT sum(failed) FROM windows") == 0


def test_by_default_nothing_recovered_is_an_issue_and_the_line_names_the_option(post: Post) -> None:
    append(post.traces, [mended(number, number) for number in range(1, 6)])

    said = watched(post)
    plan = watched(post, "--dry-run", "--state", str(post.path / "other"))

    assert (
        "5 traces, 0 failed, 5 had errors and recovered (--recovered makes issues of errors that recur)" in said.stderr
    )
    assert "(--recovered makes issues of errors that recur): 0 new issues" in plan.stdout
    assert post.issues() == {}


def test_a_trace_counts_once_for_each_error_it_recovered_from(post: Post) -> None:
    append(post.traces, [mended(1, 0, "KeyError: 'sku'", "disk full", "disk full"), mended(2, 1, "disk full")])
    append(post.traces, [trace(3, 2, replace(STOCK, step="charge_card")) + mended(3, 2, "disk full")[-1:]])
    post.look(200)

    counts = {each.message: (each.recovered, each.count) for each in post.issues().values()}
    assert counts["disk full"] == (True, 3)  # one of these traces failed later, for another reason
    assert counts["KeyError: 'sku'"] == (True, 1)
    assert counts["KeyError: 'sku' in row 23757"] == (False, 1)
    (mended_only,) = (each for each in post.issues().values() if each.message == "disk full")
    assert mended_only.traces[-1] != f"{3:032x}"  # a model would look at what made it fail


def test_steps_with_numbers_are_one_component(post: Post) -> None:
    told = [mended(number, number, "no code was found") for number in (1, 2, 3)]
    for number, spans in enumerate(told):
        for span in spans:
            span["name"] = f"Step {number + 5}" if span["name"] == "search_stock" else span["name"]
    append(post.traces, told)
    post.look(200)

    assert [(each.component, each.count) for each in post.issues().values()] == [("Step #", 3)]


def test_quoted_words_that_vary_are_left_out_of_the_title(post: Post) -> None:
    append(post.traces, [mended(n, n, f"no results for query: '{word}'") for n, word in enumerate("abcd", 1)])
    post.look(200)

    (found,) = post.issues().values()
    assert (found.title, found.count) == ("search_stock: no results for query: '#'", 4)
    assert found.signatures[0].message == "no results for query: 'a'"


def test_what_also_makes_traces_fail_is_the_failing_issue_alone(post: Post) -> None:
    append(post.traces, [trace(1, 0, STOCK), mended(2, 1), mended(3, 2)])
    post.look(200)

    assert [(each.recovered, each.count) for each in post.issues().values()] == [(False, 1)]


def test_a_recovered_issue_is_over_when_the_same_error_makes_traces_fail(post: Post) -> None:
    append(post.traces, [mended(1, 0), mended(2, 1)])
    assert post.look(100) == ["new 1"]
    append(post.traces, [trace(3, 120, STOCK), mended(4, 121)])

    assert post.look(300) == ["new 2", "resolved 1"]
    found = post.issues()
    assert (found[1].count, found[1].happenings[-1].text) == (2, "it makes traces fail now: issue 2")
    assert (found[2].recovered, found[2].count) == (False, 1)
    append(post.traces, [mended(10 + number, 310 + 60 * number) for number in range(7)])
    assert post.look(900) == ["resolved 2", "regressed 1"]  # nothing fails any more, and some still recover


def test_a_trace_that_grows_is_counted_once_and_where_it_belongs_in_the_end(post: Post) -> None:
    first, second = mended(1, 0), mended(2, 1)
    append(post.traces, [first, second])
    post.look(100)
    append(post.traces, [[{**second[3], "span_id": "d" * 16}]])
    post.look(300)
    counted = post.issues()[1].count
    fails = {"span_id": "c" * 16, "status_code": "ERROR", "status_message": "no card"}
    append(post.traces, [[{**first[3], **fails, "name": "charge_card", "start_time": first[3]["start_time"] + 10**9}]])
    post.look(500)

    assert counted == 2
    assert {(each.recovered, each.count) for each in post.issues().values()} == {(True, 2), (False, 1)}


def test_failures_come_first_in_lists_and_for_money(post: Post) -> None:
    append(post.traces, [mended(number, number, "disk full") for number in range(1, 9)])
    append(post.traces, [trace(20, 30, STOCK)])
    post.look(200)
    with WatchState(post.folder) as state:
        listed = known_issues(state)
        order = [each.kind for each in candidates(state, 0.0)]

    assert [(each.recovered, each.count) for each in listed] == [(False, 1), (True, 8)]
    assert order == ["new", "recovered"]


def test_a_restart_keeps_the_option_and_a_change_is_told(post: Post) -> None:
    append(post.traces, [mended(number, number) for number in range(1, 4)])
    first = watched(post, "--recovered")
    append(post.traces, [mended(number, 100 + number) for number in range(4, 7)])
    kept = watched(post)
    off = watched(post, "--no-recovered", "--json")
    append(post.traces, [mended(7, 300), *(trace(10 + number, 400 + 60 * number) for number in range(80))])
    silent = watched(post)
    after = sonde("issues", "--state", post.folder, cwd=post.path).stdout
    on = watched(post, "--recovered", "--dry-run")

    assert first.stdout.startswith("new, recovered: issue 1: search_stock")
    assert "changed" not in first.stderr + kept.stderr + silent.stderr
    assert post.issues()[1].count == 6
    assert json.loads(off.stdout)["summary"]["changed"].startswith(
        "errors that traces recovered from are counted no more"
    )
    assert post.issues()[1].state == "ongoing"  # nobody has looked: it is not quiet
    assert "not counted any more (`sonde watch --recovered`)" in after
    assert "changed: errors that traces recovered from are issues, too (--recovered)" in on.stdout


def test_turned_on_later_it_counts_the_traces_that_were_read_before(post: Post, tmp_path: Path) -> None:
    told = [mended(n, n * 40, "disk full" if n % 2 else "no results for '{n}'") for n in range(1, 20)]
    told += [trace(n, n * 40, STOCK if n > 30 else None) for n in range(20, 35)]
    late = Post(tmp_path / "late", options=replace(post.options, recovered=None))
    late.path.mkdir()
    for each in (post, late):
        each.options = replace(each.options, min_traces=3)
        append(each.traces, told)
    post.look(3000)
    assert len(late.look(3000)) == 1
    late.options = post.options
    late.look(3000)

    def seen(one: Post) -> set[Any]:
        return {
            (each.title, each.recovered, each.state, each.count, each.first_us, each.last_us)
            for each in one.issues().values()
        }

    assert seen(late) == seen(post)
    assert late.look(3000) == []
    for each in (post, late):
        append(each.traces, [mended(40, 3000, "disk full")])
        assert [word.split()[0] for word in each.look(3200)] == ["regressed"]
    assert seen(late) == seen(post)


def test_the_kind_is_shown_wherever_issues_are(post: Post) -> None:
    append(post.traces, [mended(number, number) for number in range(1, 4)])
    place = ("--state", post.folder)
    plan = watched(post, "--recovered", "--dry-run"), watched(post, "--recovered", "--dry-run", "--json")
    watched(post, "--recovered")
    listed, table, shown = (
        sonde("issues", *words, *place, cwd=post.path).stdout for words in ([], ["--markdown"], ["show", "1"])
    )
    told = json.loads(sonde("issues", "--json", *place, cwd=post.path).stdout)

    assert "new issue, recovered: search_stock" in plan[0].stdout
    assert json.loads(plan[1].stdout)["issues"][0]["recovered"] is True
    assert "new, recovered" in listed
    assert "| new, recovered |" in table
    assert "kind: recovered errors" in shown
    assert (told["recovered"], told["issues"][0]["recovered"]) == (True, True)
    (issue,) = post.issues().values()
    assert "- kind: recovered errors" in issue_markdown(issue)
    assert issue.row()["recovered"] is True


def test_an_issue_is_never_about_failures_and_recovered_errors(post: Post) -> None:
    append(post.traces, [mended(1, 0, "disk full"), trace(2, 1, STOCK)])
    post.look(200)

    with WatchState(post.folder) as state, pytest.raises(ConfigError):
        lifecycle.merge(state, 1, 2)


def test_a_state_of_an_older_version_is_carried_on(post: Post) -> None:
    append(post.traces, [trace(1, 0, STOCK)])
    post.look(100)
    with sqlite3.connect(post.folder / FILE) as older:
        older.execute("DROP TABLE recovered")
        older.execute("DROP TABLE recoveries")
    older.close()
    append(post.traces, [mended(2, 200, "disk full")])

    assert post.look(400) == ["new 2"]
    assert [each.recovered for each in post.issues().values()] == [False, True]


@pytest.mark.long
def test_a_watch_as_a_program_makes_issues_of_recovered_errors_in_otlp_exports(tmp_path: Path) -> None:
    from subprocess import run
    from sys import executable

    for number in range(1, 5):
        spans = [otlp(span) for span in mended(number, number * 300)]
        resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "shop"}}]}
        body = {"resourceSpans": [{"resource": resource, "scopeSpans": [{"spans": spans}]}]}
        (tmp_path / "exports").mkdir(exist_ok=True)
        (tmp_path / "exports" / f"{number}.json").write_text(json.dumps(body))
    home = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}

    def program(*words: str) -> Any:
        command = [executable, "-m", "sonde", *words]
        return run(command, cwd=tmp_path, env=home, capture_output=True, text=True, check=False, timeout=120)

    said = program("watch", "--once", "--recovered", "--source", "exports", "--fail-on", "new")
    told = json.loads(program("issues", "--json").stdout)

    assert (said.returncode, told["traces"], told["failed"]) == (3, 4, 0)
    (issue,) = told["issues"]
    assert (issue["recovered"], issue["count"], issue["component"]) == (True, 4, "search_stock")


def otlp(span: Json) -> Json:
    """A span as exporters write it in JSON."""
    return {
        "traceId": span["trace_id"],
        "spanId": span["span_id"],
        **({"parentSpanId": span["parent_id"]} if span["parent_id"] else {}),
        "name": span["name"],
        "startTimeUnixNano": str(span["start_time"]),
        "endTimeUnixNano": str(span["end_time"]),
        "status": {"code": 2 if span["status_code"] == "ERROR" else 1, "message": span["status_message"]},
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in span["attributes"].items()],
    }
