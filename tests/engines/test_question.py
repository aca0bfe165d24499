"""A free question over traces: proved by spans and groups, with and without a model, beside files, again and followed up."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from phoenix_double import PhoenixDouble
from trace_cases import TOOL, failed_trace, span, write

import sonde
from contexts.traces import trace_servers
from sonde.core.events import HostReturned, Noted, RunStarted, TurnStarted
from sonde.errors import ConfigError
from sonde.runs.rundir import RunDir
from sonde.testing import FrozenClock, ScriptedModel
from sonde.viewer.excerpts import shown_excerpts

Json = dict[str, Any]
STACK = """Traceback (most recent call last):
  File "/usr/lib/python3.11/threading.py", line 2, in run
  File "/srv/app/shop/pay.py", line 3, in pay
    return currency[order]
KeyError: 'currency'
"""


def shop(count: int = 6) -> list[Json]:
    """Checkouts, a minute apart; in the second half of them a payment fails."""
    rows: list[Json] = []
    for number in range(count):
        trace, root, pay = f"{number + 1:032x}", f"{number + 1:016x}", f"{number + 101:016x}"
        failed = number >= count // 2
        status = {"status_code": "ERROR", "status_message": f"KeyError: 'currency' in order {number}"} if failed else {}
        event: Json = {"name": "exception", "timestamp": 1_767_225_600_000_000_000 + number * 60_000_000_000}
        event["attributes"] = {"exception.type": "KeyError", "exception.stacktrace": STACK}
        rows.append(span(root, "checkout", 60 * number, trace_id=trace, parent=None, kind="AGENT", **status))
        more: Json = {"events": [event]} if failed else {}
        rows.append(
            span(pay, "pay", 60 * number, trace_id=trace, parent=root, kind="TOOL", **status, **more)
            | {"attributes": {"openinference.span.kind": "TOOL", "release": "v2" if failed else "v1"}}
        )
    return rows


FAILED = f"{104:016x}"


def returned(answer: sonde.Answer) -> dict[str, Any]:
    """What each function returned last."""
    assert answer.run_dir is not None
    return {each.name: each.result for each in RunDir(answer.run_dir).events() if isinstance(each, HostReturned)}


def asked(
    source: Path | str | list[Path], *blocks: str, folder: Path, context: tuple[Any, ...] = (), **more: Any
) -> sonde.Answer:
    model = ScriptedModel([f"```python\n{block}\n```" for block in blocks]) if blocks else None
    return sonde.ask(
        "Why do checkouts fail?",
        *context,
        source=source if isinstance(source, str | Path) else [str(each) for each in source],
        model=model,
        settings=sonde.Settings(),
        runs_dir=folder / "runs",
        **more,
    )


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return write(tmp_path, shop())


@pytest.fixture
def server() -> Iterator[PhoenixDouble]:
    with PhoenixDouble(shop()) as double:
        yield double


LOOK = f"print(get_span('{FAILED}')['summary'])\ngroup = groups[0]\nprint(group['id'], group['count'])"
DONE = f"FINAL(f\"Payments fail. [span:{FAILED}] [group:{{group['id']}}]\")"


def test_an_answer_is_proved_by_a_span_and_by_a_group_that_is_counted_again(traces: Path, tmp_path: Path) -> None:
    answer = asked(traces, LOOK, DONE, folder=tmp_path)

    cited = [each.model_dump(mode="json") for each in answer.citations]
    assert (answer.status, answer.annotator_kind, answer.gaps) == ("succeeded", "LLM", ())
    assert (cited[0]["kind"], cited[0]["ref"]) == ("SPAN", FAILED)
    assert cited[0]["trace_id"] == f"{4:032x}" and "pay (TOOL)" in cited[0]["snippet"]
    assert cited[1]["ref"].startswith("group:") and "3 of 6 traces" in cited[1]["snippet"]
    assert answer.record.dataset_ref.dataset_id == "traces.jsonl"


@pytest.mark.parametrize("invented", ["span:ffffffffffffffff", "group:0123456789ab", "message:ffffffffffffffff:1"])
def test_what_the_model_invents_is_refused_and_named_as_a_gap(traces: Path, tmp_path: Path, invented: str) -> None:
    answer = asked(traces, *[f"FINAL('It is so. [{invented}]')"] * 4, folder=tmp_path)

    assert (answer.status, answer.citations) == ("partial", ())
    assert any(invented in gap for gap in answer.gaps)


def test_a_span_that_nobody_printed_is_confirmed_by_a_question_of_its_own(traces: Path, tmp_path: Path) -> None:
    asks: list[str] = []

    def reply(request: Any) -> str:
        asks.append(request.messages[-1].content)
        return "yes" if "bear out" in asks[-1] else f"```python\nFINAL('Payments fail. [span:{f'{105:016x}'}]')\n```"

    answer = sonde.ask(
        "Why?", source=traces, model=ScriptedModel(reply), settings=sonde.Settings(), runs_dir=tmp_path / "runs"
    )

    assert answer.status == "succeeded"
    assert len(asks) == 2 and "KeyError: 'currency' in order 4" in asks[1]


def test_the_first_prompt_holds_the_counts_and_the_functions_of_traces(traces: Path, tmp_path: Path) -> None:
    model = ScriptedModel(["```python\nFINAL('no')\n```"] * 4)

    sonde.ask("Why?", source=traces, model=model, settings=sonde.Settings(), runs_dir=tmp_path / "runs")

    system, task = (message.content for message in model.requests[0].messages[:2])
    assert "sql(query)" in system and "members(group_id, trace_id)" in system and "stack_frames" not in system
    assert "6 traces begun from 2026-01-01T00:00:00Z" in task and "3 failed (50%)" in task
    assert "KeyError: 'currency'" in task and "3 of 6 traces" in task


def test_sql_and_tables_are_cited_by_their_call(traces: Path, tmp_path: Path) -> None:
    count = "rows = sql(\"SELECT attr(span_id, 'release') AS r, count(*) AS n FROM spans WHERE name = 'pay' GROUP BY r\")\nprint(rows)"

    def finish(request: Any) -> str:
        if "is cited as [" not in request.messages[-1].content:
            return f"```python\n{count}\n```"
        ref = request.messages[-1].content.partition("is cited as [")[2].partition("]")[0]
        return f"```python\nFINAL('Three payments of each release. [{ref}]')\n```"

    model = ScriptedModel(finish)
    answer = sonde.ask("How many?", source=traces, model=model, settings=sonde.Settings(), runs_dir=tmp_path / "runs")

    assert answer.status == "succeeded", answer.gaps
    [cited] = answer.citations
    assert cited.ref.startswith("tool:sql:") and '"n":3' in cited.snippet


def test_rows_of_sql_and_ranked_spans_keep_their_order_though_they_have_times(traces: Path, tmp_path: Path) -> None:
    query = "SELECT start_time, trace_id FROM traces ORDER BY start_time DESC LIMIT 3"
    look = f"print(sql('{query}'))\nprint(search_spans('order 5 currency'))"

    found = returned(asked(traces, look, "FINAL('x')", folder=tmp_path))

    times = [row["start_time"] for row in found["sql"]]
    assert times == sorted(times, reverse=True) and len(set(times)) == 3
    ranked = [row["start_time"] for row in found["search_spans"]]
    assert ranked[0] == max(ranked) != ranked[-1]


@pytest.mark.parametrize(
    ("printed", "asked"),
    [
        ("for r in rows: print(r['n'], 'of', r['name'])", 2),
        ("print(rows[0]); print(rows[1])", 2),
        ("print(len(rows))", 3),
        ("print(6, 6)", 3),
    ],
)
def test_a_table_that_was_printed_row_by_row_needs_no_check(
    traces: Path, tmp_path: Path, printed: str, asked: int
) -> None:
    query = "SELECT name || ' of ' || kind AS name, count(*) AS n FROM spans GROUP BY 1"

    def reply(request: Any) -> str:
        said = request.messages[-1].content
        if "bear out" in said:
            return "yes"
        ref = said.partition("is cited as [")[2].partition("]")[0]
        block = f"rows = sql({query!r})\n{printed}" if not ref else f"FINAL('As many payments as checkouts. [{ref}]')"
        return f"```python\n{block}\n```"

    model = ScriptedModel(reply)
    answer = sonde.ask("How many?", source=traces, model=model, settings=sonde.Settings(), runs_dir=tmp_path / "runs")

    assert (answer.status, len(model.requests)) == ("succeeded", asked)


def test_a_wrong_count_in_the_answer_goes_back_and_stays_a_gap(traces: Path, tmp_path: Path) -> None:
    wrong = f"FINAL('5 of 12 spans failed. [span:{FAILED}]')"

    answer = asked(traces, LOOK, *[wrong] * 4, folder=tmp_path)

    assert answer.status == "partial"
    assert any('says "5 of 12 spans failed"; counted: 6 of 12' in gap for gap in answer.gaps)


def test_without_a_model_the_window_its_groups_and_matching_spans_are_told(traces: Path, tmp_path: Path) -> None:
    answer = asked(traces, folder=tmp_path)

    assert (answer.status, answer.annotator_kind) == ("partial", "CODE")
    assert "6 traces begun from" in answer.text and "3 failed (50%)" in answer.text
    assert "pay (error) is in 3 of 6 traces" in answer.text
    assert {each.ref.partition(":")[0] for each in answer.citations if each.ref.startswith("group")} == {"group"}
    assert all(each.fallback for each in answer.citations)


def test_the_moment_since_which_something_fails_is_told(tmp_path: Path) -> None:
    answer = asked(write(tmp_path, shop(16)), folder=tmp_path)

    assert "It began at 2026-01-01T00:08:00Z (8 of 8 traces since, 0 of 8 before)" in answer.text


def test_the_window_narrows_what_is_counted(traces: Path, tmp_path: Path) -> None:
    answer = asked(traces, folder=tmp_path, start="2026-01-01T00:03:00Z", end="2026-01-01T00:05:00Z")

    assert "2 traces begun from 2026-01-01T00:03:00Z" in answer.text


def test_a_window_without_traces_says_when_they_began_and_leaves_a_record(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="traces began between 2026-01-01T00:00:00Z and 2026-01-01T00:05:00Z"):
        asked(traces, folder=tmp_path, start="2027-01-01T00:00:00Z")

    [record] = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/run_record.json")]
    assert record["status"] == "failed" and "no trace lies in this window" in record["error"]["message"]


def test_several_sources_are_one_window(traces: Path, tmp_path: Path) -> None:
    other = write(tmp_path, failed_trace(), "other.jsonl")

    answer = asked(
        [traces, other, traces],
        "print(sql('SELECT source, count(*) AS n FROM traces GROUP BY source'))",
        f"FINAL('Both fail. [span:{FAILED}, {TOOL}]')",
        "FINAL(held_final)",
        folder=tmp_path,
    )

    assert returned(answer)["sql"] == [{"source": "other.jsonl", "n": 1}, {"source": "traces.jsonl", "n": 6}]
    assert answer.record.dataset_ref.dataset_id == "traces.jsonl, other.jsonl, traces.jsonl"


def repository(folder: Path) -> Path:
    """A git repository whose second commit broke a line."""
    code = folder / "code"
    (code / "shop").mkdir(parents=True)
    (code / "pay.py").write_text("import shop\n\n\n")
    for number, line in enumerate(("return order.currency", "return currency[order]")):
        (code / "shop" / "pay.py").write_text(f"def pay(order):\n    currency = {{}}\n    {line}\n")
        who = ["-c", "user.name=Ada", "-c", "user.email=ada@example.org"]
        for words in ([] if number else ["init", "-q"]), ["add", "."], [*who, "commit", "-qm", f"Change {number}"]:
            if words:
                subprocess.run(["git", *words], cwd=code, check=True, capture_output=True)
    return code


def test_a_failing_span_leads_to_the_line_that_raised_it_and_to_the_commit_that_changed_it(
    traces: Path, tmp_path: Path
) -> None:
    code = repository(tmp_path)
    blocks = [
        f"frames = stack_frames('{FAILED}')\nmine = [f for f in frames if f['path']][0]\nprint(mine)",
        "print(line_history(mine['path'], mine['line']))",
        f"FINAL(f\"It raises here. [span:{FAILED}] [{{mine['path']}}:{{mine['line']}}]\")",
    ]

    answer = asked(traces, *blocks, folder=tmp_path, context=(code,))

    assert answer.status == "succeeded", answer.gaps
    assert [(each.path, each.start_line, each.snippet) for each in answer.citations][1:] == [
        ("shop/pay.py", 3, "return currency[order]")
    ]
    calls = returned(answer)
    assert [frame["path"] for frame in calls["stack_frames"]] == [None, "shop/pay.py"]
    assert calls["line_history"]["summary"] == "Change 1" and calls["line_history"]["author"] == "Ada"
    assert "+    return currency[order]" in calls["line_history"]["diff"]


def test_files_outside_of_git_have_no_history_to_ask_for(traces: Path, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "pay.py").write_text("a = 1\n")
    model = ScriptedModel(["```python\nFINAL('no')\n```"] * 4)

    sonde.ask(
        "Why?", tmp_path / "plain", source=traces, model=model, settings=sonde.Settings(), runs_dir=tmp_path / "runs"
    )

    system = model.requests[0].messages[0].content
    assert "stack_frames" in system and "line_history" not in system


def test_such_a_run_replays_to_the_bit(traces: Path, tmp_path: Path) -> None:
    answer = asked(traces, LOOK, "print(sql('SELECT count(*) AS n FROM spans'))", DONE, folder=tmp_path)
    assert answer.run_dir is not None

    again = sonde.replay(answer.run_dir, settings=sonde.Settings(), trust_run=True)
    (tmp_path / "elsewhere").mkdir()
    moved_to = traces.rename(tmp_path / "elsewhere" / traces.name)
    moved = sonde.replay(answer.run_dir, context=moved_to, settings=sonde.Settings(), trust_run=True)

    assert (again.differences, again.record and again.record.status) == ((), "succeeded")
    assert moved.differences == ()


def test_the_page_of_a_run_reads_its_spans_again_and_counts_its_groups_again(traces: Path, tmp_path: Path) -> None:
    answer = asked(traces, LOOK, DONE, folder=tmp_path)
    assert answer.run_dir is not None
    lines = (answer.run_dir / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) | {"n": number} for number, line in enumerate(lines)]

    cards = shown_excerpts(events, within=("/",))
    traces.write_text(traces.read_text().replace("'currency' in", "'amount' in"))
    changed = shown_excerpts(events, within=("/",))

    assert [(each.ref.partition(":")[0], each.state) for each in cards] == [(FAILED, "verified"), ("group", "verified")]
    assert [each.state for each in changed] == ["changed", "changed"]


def test_a_run_that_was_cut_off_is_resumed_over_the_same_traces(traces: Path, tmp_path: Path) -> None:
    whole = asked(traces, LOOK, DONE, folder=tmp_path)
    assert whole.run_dir is not None
    journal = whole.run_dir / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    second = next(at for at, line in enumerate(lines) if '"turn_started"' in line and '"turn":2' in line)
    journal.write_text("".join(lines[:second]))
    for name in ("run_record.json", "summary.md"):
        (whole.run_dir / name).unlink()
    model = ScriptedModel([f"```python\n{DONE}\n```"])

    again = sonde.resume(whole.run_dir, model=model, settings=sonde.Settings(), trust_run=True)

    assert (again.status, len(model.requests)) == ("succeeded", 1)
    assert [each.ref for each in again.citations] == [each.ref for each in whole.citations]


def test_a_follow_up_reads_the_same_traces_and_knows_the_variables(traces: Path, tmp_path: Path) -> None:
    first = asked(traces, LOOK, DONE, folder=tmp_path)
    model = ScriptedModel(["```python\nFINAL(f\"{group['count']} traces. [group:{group['id']}]\")\n```"])

    second = sonde.ask(
        "How many?",
        continue_from=first.run_dir,
        model=model,
        settings=sonde.Settings(),
        runs_dir=tmp_path / "runs",
        trust_run=True,
    )

    assert (second.status, second.text.split(".")[0]) == ("succeeded", "3 traces"), second.gaps
    assert "Payments fail." in model.requests[0].messages[1].content


def test_a_follow_up_over_files_alone_says_that_the_traces_are_no_longer_asked_and_not_that_they_changed(
    traces: Path, tmp_path: Path
) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/app.log").write_text("12:01 card declined\n")
    first = asked(traces, LOOK, DONE, folder=tmp_path)

    def follow_up(run: sonde.Answer, *context: Path) -> tuple[sonde.Answer, list[str]]:
        done = sonde.ask(
            "And in the logs?",
            *context,
            continue_from=run.run_dir,
            model=ScriptedModel(["```python\nprint(read_file('app.log'))\n```", "FINAL('Declined. [app.log:1]')"]),
            settings=sonde.Settings(),
            runs_dir=tmp_path / "runs",
            trust_run=True,
        )
        assert done.run_dir is not None and done.status == "succeeded", done.gaps
        return done, [each.text for each in RunDir(done.run_dir).events() if isinstance(each, Noted)]

    dropping, told = follow_up(first, tmp_path / "logs")
    _, told_again = follow_up(dropping)

    expected = f"the traces of run {first.record.run_id} are not part of this follow-up; --source adds them"
    assert [each for each in (*told, *told_again) if "follow-up" in each or "changed since" in each] == [
        expected,
        expected,
    ]


def test_a_server_is_loaded_once_and_says_what_of_it_was_loaded(server: PhoenixDouble, tmp_path: Path) -> None:
    answer = asked(server.url, LOOK, DONE, folder=tmp_path, project="shop")

    assert answer.status == "succeeded", answer.gaps
    assert answer.run_dir is not None
    [started] = [each for each in RunDir(answer.run_dir).events() if isinstance(each, RunStarted)]
    assert "project shop. Loaded: 6 traces, 12 spans, 6 with errors, begun from 2026-01-01" in started.context
    assert answer.record.dataset_ref.dataset_id == f"{server.url.partition('://')[2]}/shop"


def test_a_replay_over_a_server_reads_the_traces_that_were_there(server: PhoenixDouble, tmp_path: Path) -> None:
    answer = asked(server.url, LOOK, DONE, folder=tmp_path, project="shop")
    assert answer.run_dir is not None
    later = {"start_time": "2026-01-02T00:00:00+00:00", "end_time": "2026-01-02T00:00:01+00:00", "parent_id": None}
    server.rows.append(server.rows[-1] | later | {"context": {"trace_id": "f" * 32, "span_id": "e" * 16}})

    again = sonde.replay(answer.run_dir, settings=sonde.Settings(source=server.url), trust_run=True)
    now = asked(server.url, folder=tmp_path, project="shop")

    assert again.differences == ()
    assert "7 traces begun from" in now.text


def test_a_project_that_the_server_does_not_have_leaves_a_record(server: PhoenixDouble, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no project 'bakery'"):
        asked(server.url, folder=tmp_path, project="bakery")

    [record] = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*/run_record.json")]
    assert record["status"] == "failed" and record["input_ref"]["project_name"] == "bakery"


@pytest.mark.long  # it is tried again
def test_a_server_that_nobody_can_reach_is_the_callers_mistake(tmp_path: Path) -> None:
    with PhoenixDouble(shop()) as double:
        gone = double.url

    with pytest.raises(ConfigError, match=gone):
        asked(gone, folder=tmp_path)

    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("given", [{"project": "shop"}, {"start": "2026-01-01T00:00Z"}, {"filter_expr": "name == 'a'"}])
def test_a_window_or_project_without_a_source_is_refused(tmp_path: Path, given: Json) -> None:
    with pytest.raises(ConfigError, match="name their source too"):
        sonde.ask("Why?", tmp_path, settings=sonde.Settings(), **given)


def test_data_beside_traces_is_refused(traces: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="files and folders, not data"):
        asked(traces, folder=tmp_path, context=({"a": 1},))


@pytest.mark.long  # the servers of the suite of sources
@pytest.mark.parametrize("product", ["phoenix", "langfuse", "langsmith"])
def test_a_question_over_each_product_counts_the_same_traces(product: str, tmp_path: Path) -> None:
    answers = {
        "phoenix": trace_servers.phoenix,
        "langfuse": trace_servers.langfuse,
        "langsmith": trace_servers.langsmith,
    }
    settings = sonde.Settings(environ=trace_servers.KEYS)
    with trace_servers.serving(answers[product]) as (url, _):
        answer = sonde.ask(
            "What fails?",
            source=url if product == "phoenix" else f"{product}:{url}",
            project=trace_servers.PROJECT,
            settings=settings,
            runs_dir=tmp_path / "runs",
        )

    [counted] = [line for line in answer.text.splitlines() if "begun from" in line]
    assert counted.startswith(f"{len({step.trace for step in trace_servers.STEPS})} traces begun from")
    recorded = "".join(file.read_text() for file in (tmp_path / "runs").rglob("*") if file.is_file())
    assert not any(key in recorded for key in trace_servers.KEYS.values())


class SlowServer(PhoenixDouble):
    """Every read takes `seconds` of a clock."""

    def __init__(self, clock: FrozenClock, seconds: float, rows: list[Json] | None = None) -> None:
        super().__init__(rows or shop())
        self.clock, self.seconds, self.reads = clock, seconds, 0

    def read(self, path: str) -> tuple[int, Json]:
        self.clock.advance(self.seconds)
        self.reads += 1
        return super().read(path)


class EndlessServer(SlowServer):
    """Each page of spans holds others and says that there are more."""

    def read(self, path: str) -> tuple[int, Json]:
        status, reply = super().read(path)
        if "/spans?" in path:
            reply = json.loads(json.dumps(reply))
            for at, row in enumerate(reply["data"]):
                row["context"]["span_id"] = f"{100 * self.reads + at:016x}"
            reply["next_cursor"] = f"c{self.reads}"
        return status, reply


@pytest.mark.parametrize("judge", [sonde.rca, sonde.comply])
def test_a_server_whose_spans_never_end_is_left_when_the_runs_time_is_over(judge: Any, tmp_path: Path) -> None:
    clock = FrozenClock()
    with EndlessServer(clock, 1) as server:
        limits = {"clock": clock, "max_wall_time_sec": 60, "runs_dir": tmp_path / "runs"}
        found = judge(f"{4:032x}", server.url, project="shop", settings=sonde.Settings(), **limits)

    assert server.reads < 100
    assert found.status == "failed" and "no time left" in str(found.record.error)


def begun_after(answer: sonde.Answer) -> float:
    """How much of the run's time was used before its first turn."""
    assert answer.run_dir is not None
    return next(each.elapsed_s for each in RunDir(answer.run_dir).events() if isinstance(each, TurnStarted))


def test_the_time_that_a_server_takes_is_the_runs_time(tmp_path: Path) -> None:
    clock = FrozenClock()
    with SlowServer(clock, 10) as server:
        answer = asked(server.url, LOOK, DONE, folder=tmp_path, project="shop", clock=clock, max_wall_time_sec=100)
        loading = 10 * server.reads
        on = sonde.ask(
            "And now?",
            continue_from=answer.run_dir,
            model=ScriptedModel([f"```python\n{LOOK}\n{DONE}\n```"]),
            settings=sonde.Settings(source=server.url),
            runs_dir=tmp_path / "runs",
            trust_run=True,
            clock=clock,
            max_wall_time_sec=100,
        )

    assert 0 < loading < 50
    assert (answer.status, on.status) == ("succeeded", "succeeded"), (answer.gaps, on.gaps)
    assert (begun_after(answer), begun_after(on)) == (loading, 10 * server.reads - loading)


def test_a_slow_server_leaves_half_of_the_time_for_the_answer(tmp_path: Path) -> None:
    clock = FrozenClock()
    with SlowServer(clock, 10, shop(41)) as server:
        answer = asked(server.url, LOOK, DONE, folder=tmp_path, project="shop", clock=clock, max_wall_time_sec=60)

    assert begun_after(answer) <= 40
    assert any("only the first 40 traces of the window were loaded" in gap for gap in answer.gaps), answer.gaps


def test_a_server_that_is_too_slow_is_not_called_empty(tmp_path: Path) -> None:
    clock = FrozenClock()
    with (
        SlowServer(clock, 25) as server,
        pytest.raises(ConfigError, match=r"no trace was loaded .* --max-wall-time-sec"),
    ):
        asked(server.url, LOOK, DONE, folder=tmp_path, project="shop", clock=clock, max_wall_time_sec=100)


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_that_the_server_refuses_is_recorded_as_a_failed_call_and_named(
    server: PhoenixDouble, tmp_path: Path, status: int
) -> None:
    server.answers = (status, b'{"detail": "no"}')

    answer = asked(server.url, LOOK, DONE, folder=tmp_path, project="shop")

    assert answer.status == "failed" and answer.record.error is not None
    assert answer.record.error.code == "TOOL_CALL_FAILED"
    assert "set PHOENIX_API_KEY" in answer.record.error.message


def test_a_resumed_run_opens_its_sources_within_its_own_time(tmp_path: Path) -> None:
    clock = FrozenClock()
    with SlowServer(clock, 10) as server:
        answer = asked(server.url, LOOK, DONE, folder=tmp_path, project="shop", clock=clock, max_wall_time_sec=100)
        assert answer.run_dir is not None
        journal = answer.run_dir / "events.jsonl"
        lines = journal.read_text().splitlines(keepends=True)
        journal.write_text("".join(lines[:-2]))  # as if it had been killed before its end
        server.seconds = 90

        with pytest.raises(ConfigError, match="no trace was loaded"):
            sonde.resume(
                answer.run_dir, settings=sonde.Settings(source=server.url), trust_run=True, clock=clock, go_live=True
            )
