"""Issues over time, by code alone: what is one issue, what state it is in, what people change."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from cli.cli_program import sonde
from sonde.batch.limits import Ask, Limiter, SharedLimits, Told
from sonde.batch.result import ItemResult
from sonde.contexts.traces.catalog import overview
from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.span import time_text
from sonde.contexts.traces.store import TraceQuery
from sonde.contexts.traces.window import read_window
from sonde.errors import ConfigError
from sonde.watch import issues, lifecycle
from sonde.watch.investigations import Ledger, begin, candidates, conclude
from sonde.watch.state import WatchState
from watch.watch_scene import START, Fault, Post, append, trace, traffic

STOCK = Fault(step="search_stock", text="KeyError: 'sku' in row {n}", begin=0, end=300)
CARD = Fault(step="charge_card", text="TimeoutError: no answer in {n} ms", begin=120, end=1e9)


@pytest.fixture
def post(tmp_path: Path) -> Post:
    return Post(tmp_path)


def test_failures_with_the_same_words_are_one_issue_and_ids_in_them_do_not_matter(post: Post) -> None:
    append(post.traces, traffic(60, 600, [STOCK, CARD]))

    told = post.look(2000)
    found = post.issues()

    assert told.count("new 1") == told.count("new 2") == 1
    assert len(found) == 2
    assert [each.component for each in found.values()] == ["charge_card", "search_stock"]
    assert sum(each.count for each in found.values()) == 39
    assert post.traces_read() == 60
    assert found[1].users > 3
    assert found[1].sessions == found[1].count
    assert found[1].releases == ("1.0",)


def test_an_issue_that_is_quiet_is_resolved_and_regresses_when_it_comes_back(post: Post) -> None:
    again = replace(STOCK, begin=900, end=1e9)
    append(post.traces, traffic(30, 60, [STOCK]))
    first = post.look(75), post.issues()[1].state
    append(post.traces, traffic(100, 1200, [STOCK, again], begin=60, first=50))

    assert first == (["new 1"], "new")
    assert post.look(2000) == ["resolved 1", "regressed 1"]
    assert post.issues()[1].state == "regressed"
    assert 4 <= len([each for each in post.issues()[1].trend if each]) <= 12


def test_windows_without_traces_resolve_nothing(post: Post) -> None:
    append(post.traces, traffic(20, 120, [STOCK]))
    post.look(200)
    append(post.traces, traffic(1, 60, [], begin=86_400, first=1000))
    post.look(90_000)

    assert [each.state for each in post.issues().values()] == ["ongoing"]


def test_a_group_becomes_an_issue_when_enough_traces_of_an_hour_show_it(post: Post) -> None:
    post.options = replace(post.options, min_traces=3)
    append(post.traces, [trace(number, number * 2000, STOCK) for number in range(1, 4)])
    assert post.look(9000) == []
    append(post.traces, [trace(number, 9000 + number, STOCK) for number in range(10, 13)])

    assert post.look(10_000) == ["new 1"]
    assert post.issues()[1].count == 6


def test_by_default_an_issue_needs_one_trace_in_two_hundred_of_its_hour(post: Post) -> None:
    post.options = replace(post.options, every_s=600, min_traces=None)
    append(post.traces, [trace(number, number)[:1] for number in range(1, 601)])
    append(post.traces, [trace(number, number, STOCK) for number in range(601, 604)])
    assert (post.look(1300), post.traces_read()) == ([], 603)  # three of these are strays
    append(post.traces, [trace(604, 1400, STOCK)])

    assert post.look(1900) == ["new 1"]


def test_a_mended_failure_is_no_issue_but_a_quiet_one_is(post: Post) -> None:
    mended, quiet = trace(1, 0), trace(2, 1)
    tried = {
        **mended[2],
        "span_id": "e" * 16,
        "start_time": mended[2]["start_time"] - 50_000_000,
        "status_code": "ERROR",
        "status_message": "KeyError: 'x'",
    }
    quiet[1]["attributes"] |= {"output.value": '{"error": "stock database is closed"}'}
    append(post.traces, [[*mended, tried], quiet])

    assert post.look(500) == ["new 1"]
    assert "stock database is closed" in post.issues()[1].message


def test_errors_that_tools_return_as_objects_are_grouped_by_what_they_say(post: Post) -> None:
    errors = [
        *({"error": f"permission denied for user {number}"} for number in range(4)),
        *({"error": {"message": "database is locked", "code": number}} for number in range(4)),
        *({"detail": "quota exhausted", "request_id": f"r-{number}"} for number in range(4)),
        *({"error": code} for code in ("not_found", "forbidden", "rate_limited") * 2),
    ]
    told = [trace(number, number) for number in range(1, len(errors) + 1)]
    for spans, error in zip(told, errors, strict=True):
        spans[1]["attributes"] |= {"output.value": json.dumps({"error": 1, **error} if "detail" in error else error)}
    append(post.traces, told)
    post.look(500)

    assert sorted(each.count for each in post.issues().values()) == [2, 2, 2, 4, 4, 4]


def test_watch_incident_and_overview_count_the_same_traces_as_failed_and_as_recovered(post: Post) -> None:
    told = [trace(number, number, STOCK if number <= 4 else None) for number in range(1, 13)]
    for spans in told[4:10]:
        spans[2]["attributes"] |= {"output.value": '{"error": "stock database is closed"}'}
    for spans in told[8:10]:  # tried again, and then it worked
        later = {"start_time": spans[2]["start_time"] + 1_000, "attributes": {"openinference.span.kind": "TOOL"}}
        spans.append({**spans[2], **later, "span_id": f"a{spans[2]['span_id'][1:]}"})
    append(post.traces, told)
    post.clock.seconds = 500
    with WatchState(post.folder, create=True) as state:
        turn = post.watch(state).turn()
    with FileStore(post.traces) as store:
        glance, window = overview(store, TraceQuery()), read_window(store, TraceQuery()).row()

    assert (turn.failed, turn.recovered) == (8, 2)
    assert (glance["failed_traces"], glance["recovered_traces"]) == (8, 2)
    assert (window["failed"], window["recovered"]) == (8, 2)


def test_the_line_of_a_watch_and_the_overview_say_how_many_recovered(post: Post) -> None:
    mended = trace(1, 0)
    tried = {"span_id": "e" * 16, "start_time": mended[2]["start_time"] - 50_000_000, "status_code": "ERROR"}
    append(post.traces, [[*mended, {**mended[2], **tried}]])
    said = sonde("watch", "--once", "--source", str(post.traces), "--state", str(post.folder), cwd=post.path)
    glance = sonde("traces", "overview", "--source", str(post.traces), cwd=post.path)

    assert "1 trace, 0 failed, 1 had errors and recovered" in said.stderr
    assert glance.stdout.startswith("1 trace, 0 failed, 1 had errors and recovered; ")


def test_lines_that_cannot_be_read_are_told_once_until_there_are_more(post: Post) -> None:
    append(post.traces, [trace(1, 0)])
    post.clock.seconds = 500
    with WatchState(post.folder, create=True) as state:
        watching = post.watch(state)
        with post.traces.open("a") as file:
            file.write('{"trace_id": "cut off\n')
        first = [watching.turn().gaps, watching.turn().gaps]
        with post.traces.open("a") as file:
            file.write("garbage\n")
        later = [watching.turn().gaps, watching.turn().gaps]
    flags = ("--source", post.traces, "--state", post.path / "other", "--once")
    told = sonde("watch", *flags, cwd=post.path)
    as_json = sonde("watch", *flags, "--json", cwd=post.path)
    kept = json.loads(sonde("issues", "--json", "--state", post.path / "other", cwd=post.path).stdout)

    assert [[gap.partition(" skipped")[0] for gap in gaps] for gaps in first + later] == [
        ["1 malformed record"],
        [],
        ["2 malformed records"],
        [],
    ]
    assert told.stderr.count("gap: 2 malformed records skipped") == 1
    assert json.loads(as_json.stdout)["summary"]["gaps"] == kept["gaps"]
    assert kept["gaps"][0].startswith("2 malformed records")


def test_keys_that_an_older_version_stored_are_not_shown(post: Post) -> None:
    key = "sk-" + "abcdEFGH" * 4
    append(post.traces, [trace(1, 1, STOCK)])
    post.look(500)
    with WatchState(post.folder) as state:
        state.change("UPDATE signatures SET message = ?, form = ?", f"refused: {key}", f"refused: {key}")

    said = [sonde("issues", *words, "--state", post.folder, cwd=post.path) for words in ([], ["--json"], ["show", "1"])]

    assert all(key not in each.stdout and "refused: " in each.stdout for each in said)


def test_keys_in_messages_are_removed_from_issues_wherever_they_are_shown(post: Post) -> None:
    key = "sk-" + "abcdEFGH" * 4
    told = [
        trace(number, number, replace(STOCK, text=f"refused: Bearer {key} of ann@example.com")) for number in (1, 2, 3)
    ]
    quiet = trace(4, 4)
    quiet[1]["attributes"] |= {"output.value": json.dumps({"error": f"api_key={key} is not known"})}
    append(post.traces, [*told, quiet])
    flags = ("--state", post.folder)
    said = [
        sonde("watch", "--once", "--min-traces", "1", "--source", post.traces, *flags, cwd=post.path),
        *(sonde("issues", *words, *flags, cwd=post.path) for words in ([], ["--json"], ["--markdown"], ["show", "1"])),
    ]

    assert all(key not in each.stdout + each.stderr for each in said)
    assert all("refused: " in each.stdout for each in said)
    assert "ann@example.com" in said[0].stdout
    assert key.encode() not in b"".join(path.read_bytes() for path in post.folder.glob("*") if path.is_file())


@pytest.mark.parametrize(("release", "state"), [("2.0", "regressed"), ("3.0", "regressed"), ("1.0", "resolved")])
def test_an_issue_that_is_fixed_in_a_release_regresses_only_there_or_later(
    post: Post, release: str, state: str
) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    append(post.traces, [trace(90, 61, release="2.0"), trace(91, 62, release="3.0")])
    post.look(200)
    with WatchState(post.folder) as opened:
        lifecycle.resolve(opened, 1, release="2.0")
    append(post.traces, [trace(100, 250, STOCK, release=release)])
    post.look(500)

    assert post.issues()[1].state == state


def test_traces_that_ended_before_an_issue_was_resolved_are_no_regression(post: Post) -> None:
    now = time.time() - START.timestamp()
    append(post.traces, [trace(number, now - 300 + number, STOCK) for number in range(3)])
    post.look(now - 100)
    said = sonde("issues", "resolve", "1", "--state", post.folder, cwd=post.path)
    append(post.traces, [trace(100, now - 17, STOCK)])  # under way to the watch while somebody resolved it
    before = post.look(now + 200), post.issues()[1]
    append(post.traces, [trace(101, now + 250, STOCK)])
    after = post.look(now + 500), post.issues()[1]

    assert said.returncode == 0
    assert (before[0], before[1].state, before[1].count) == ([], "resolved", 4)
    assert (after[0], after[1].state, after[1].count) == (["regressed 1"], "regressed", 5)
    resolved, regressed = after[1].happenings[-2:]
    assert (resolved.kind, regressed.kind) == ("resolved", "regressed")
    assert resolved.at_us < regressed.at_us


def test_resolving_again_keeps_the_release_that_has_the_fix(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)
    said = [
        sonde("issues", "resolve", "1", *more, "--state", post.folder, cwd=post.path).stdout
        for more in (["--release", "2.4.1"], [], ["--release", "2.5"])
    ]

    assert said == [f"issue 1 is resolved, fixed in {release}\n" for release in ("2.4.1", "2.4.1", "2.5")]


def test_an_issue_is_shown_with_its_cause_and_what_to_do_first_and_its_history_in_order(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)
    sonde("issues", "note", "1", "the stock service was new", "--state", post.folder, cwd=post.path)
    with WatchState(post.folder) as state:
        chosen = candidates(state, 0)[0]
        begin(state, chosen, "run-1", 0)
        found = ItemResult(
            id="i",
            key="k",
            engine="rca",
            status="succeeded",
            judge="LLM",
            label="tool_failure",
            summary="sku is gone",
            confidence=0.8,
        )
        conclude(state, chosen, found)
    (post.folder / "items" / "run-1").mkdir(parents=True)
    (post.folder / "items" / "run-1" / "result.json").write_text('{"output": {"remediation": ["put sku back"]}}')
    shown = sonde("issues", "show", "1", "--state", post.folder, cwd=post.path).stdout.splitlines()

    assert shown[2:4] == ["cause: sku is gone (tool_failure, confidence 0.80, by a model)", "what to do: put sku back"]
    assert shown[4].startswith("seen: 5 of 10 traces, first 2026-03-02 09:00:00 UTC, last 2026-03-02 09:00:4")
    assert [line.split("UTC  ")[1].split()[0] for line in shown[-3:]] == ["new", "investigated", "note"]


def test_what_a_kill_may_have_cost_is_shown_apart_from_what_was_paid(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)
    with WatchState(post.folder) as state:
        chosen = candidates(state, 0)[0]
        begin(state, chosen, "run-1", 0)
        ledger = Ledger(
            state, Limiter(SharedLimits(max_cost_usd=1.0, concurrency=2)), chosen.fingerprint, post.clock, Event()
        )
        asked = [Ask(tokens=10, cost_usd=0.25), Ask(tokens=10, cost_usd=0.5)]
        for each in asked:
            ledger.book(each)
        ledger.tell(Told(asked=asked[0], cost_usd=0.125))
        state.count_lost(0.0)  # killed and started again
        conclude(
            state,
            chosen,
            ItemResult(id="i", key="k", engine="rca", status="succeeded", judge="LLM", label="tool_failure"),
        )
        spent = state.spent(-1.0)
    shown = sonde("issues", "show", "1", "--state", post.folder, cwd=post.path).stdout

    assert spent == 0.625
    assert "$0.1250 spent, and up to $0.5000 for requests that a kill cut off" in shown


def test_people_merge_split_mute_assign_note_and_reopen(post: Post) -> None:
    append(post.traces, traffic(60, 600, [STOCK, CARD]))
    post.look(2000)
    before = post.issues()

    def change(*words: str) -> str:
        done = sonde("issues", *words, "--state", post.folder, cwd=post.path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    change("merge", "2", "1")
    assert post.issues()[1].count == before[1].count + before[2].count
    refused = sonde("issues", "show", "2", "--state", post.folder, cwd=post.path)
    assert refused.returncode == 2
    assert "merged into 1" in refused.stderr
    change("split", "1", str(before[2].signatures[0].id))
    assert {number: each.count for number, each in post.issues().items()} == {1: before[1].count, 3: before[2].count}
    change("mute", "1")
    change("assign", "3", "ada")
    change("note", "3", "the card service was slow")
    change("resolve", "3")
    change("reopen", "3")
    shown = json.loads(change("show", "3", "--json"))
    assert (shown["state"], shown["assignee"], shown["notes"][0]["text"]) == (
        "reopened",
        "ada",
        "the card service was slow",
    )
    listed = json.loads(change("--json"))
    assert [each["number"] for each in listed["issues"]] == [3]
    assert "## Notes" in change("show", "3", "--markdown")
    assert change("--markdown", "--all").count("\n") == 4


def test_an_issue_that_does_not_exist_is_refused(post: Post) -> None:
    append(post.traces, traffic(4, 60, [STOCK]))
    post.look(200)
    with WatchState(post.folder) as opened, pytest.raises(ConfigError, match="no issue 9"):
        lifecycle.mute(opened, 9)
    with WatchState(post.folder) as opened, pytest.raises(ConfigError, match="nothing to split"):
        lifecycle.split(opened, 1, 1)


def test_what_people_do_has_the_time_of_people_and_notes_show_it(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)
    began = time.time_ns() // 1000
    place = ("--state", post.folder)
    sonde("issues", "note", "1", "the ledger was down", *place, cwd=post.path)
    sonde("issues", "resolve", "1", *place, cwd=post.path)
    issue = post.issues()[1]
    texts = [sonde("issues", "show", "1", *place, *form, cwd=post.path).stdout for form in ((), ("--markdown",))]

    assert issue.since_us >= began
    assert issue.happenings[-1].at_us >= began
    noted = time_text(int(issue.notes[0].at * 1e6))[:10]
    for text in texts:
        assert [line for line in text.splitlines() if "the ledger was down" in line and noted in line]


def test_all_issues_are_listed_and_only_open_ones_are_counted_as_open(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)
    sonde("issues", "mute", "1", "--state", post.folder, cwd=post.path)

    shown = sonde("issues", "--all", "--state", post.folder, cwd=post.path)

    assert "0 open issues; 1 resolved or muted;" in shown.stdout


def test_a_watch_that_ended_is_not_running_and_has_nothing_unread(post: Post) -> None:
    append(post.traces, traffic(30, 300, [STOCK]))
    done = sonde("watch", "--source", post.traces, "--state", post.folder, "--once", cwd=post.path)
    shown = sonde("issues", "--state", post.folder, cwd=post.path)
    listed = sonde("issues", "--state", post.folder, "--json", cwd=post.path)

    assert "wait" not in done.stderr
    assert "the watch is not running" in shown.stdout
    assert json.loads(listed.stdout)["behind_s"] == 0


def test_a_watch_that_was_killed_last_turned_some_time_ago(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)  # it does not say that it ends
    with WatchState(post.folder) as state:
        then = post.clock.utc().timestamp()

        assert issues.at_rest(state, then + 10) == ""
        assert issues.at_rest(state, then + 1000) == "the watch last turned 17 min ago"


def test_once_with_json_prints_one_object_whatever_happened(post: Post) -> None:
    append(post.traces, [*traffic(30, 300, [STOCK]), *traffic(30, 300, [CARD], first=100)])
    flags = ("--source", post.traces, "--state", post.folder, "--min-traces", "1", "--once", "--json")

    first, second = (json.loads(sonde("watch", *flags, cwd=post.path).stdout) for _ in range(2))

    assert (first["summary"]["traces"], [each["kind"] for each in first["happenings"]]) == (60, ["new", "new"])
    assert first["happenings"][0]["title"].startswith("search_stock")
    assert (second["summary"]["traces"], second["happenings"]) == (0, [])


def test_two_forms_at_once_are_refused(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    post.look(200)
    both = ("--json", "--markdown", "--state", post.folder)

    assert sonde("issues", "list", *both, cwd=post.path).returncode == 2
    assert sonde("issues", "show", "1", *both, cwd=post.path).returncode == 2


def test_traces_that_name_nobody_leave_open_who_is_affected() -> None:
    assert issues.affected_text(0, 0).startswith("unknown")
    assert issues.affected_text(1, 0) == "1 user"


def test_a_page_says_in_words_why_a_port_cannot_be_used(post: Post) -> None:
    append(post.traces, traffic(10, 60, [STOCK]))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        flags = ("--source", post.traces, "--state", post.folder, "--once")
        used = sonde("watch", *flags, "--page", port, cwd=post.path)
        high = sonde("watch", *flags, "--page", "99999", cwd=post.path)

    assert (used.returncode, high.returncode) == (2, 2)
    assert "another program uses this port" in used.stderr
    assert "0 to 65535" in high.stderr


def test_a_watch_that_ran_once_leaves_issues_for_the_command_line(post: Post) -> None:
    append(post.traces, traffic(30, 300, [STOCK]))
    flags = ("--source", post.traces, "--state", post.folder, "--min-traces", "1")

    planned = sonde("watch", *flags, "--once", "--dry-run", cwd=post.path)
    as_json = sonde("watch", *flags, "--once", "--dry-run", "--json", cwd=post.path)
    first = sonde("watch", *flags, "--once", cwd=post.path)
    second = sonde("watch", *flags, "--once", cwd=post.path)
    shown = sonde("issues", "--state", post.folder, cwd=post.path)

    assert "would read 30 traces" in planned.stdout, planned.stderr
    assert first.stdout.startswith("new: issue 1: search_stock: KeyError: 'sku'"), first.stderr
    assert "new issue: search_stock: KeyError" in planned.stdout
    candidate = json.loads(as_json.stdout)["investigations"][0]
    assert (candidate["issue"], candidate["new"], candidate["title"][:12]) == (None, True, "search_stock")
    assert "30 traces" in first.stderr
    assert second.stdout == ""
    assert "nothing new: 0 traces to read, 1 open issue\n" in second.stderr
    assert "1 open issue" in shown.stdout
