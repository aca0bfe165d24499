"""A question over a stranger's traces: the model that has read them writes SQL and follows stack traces wherever they point."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from victim import Listener, Victim, one_in_make_test

from engines.phoenix_double import PhoenixDouble
from engines.trace_cases import TOOL, failed_trace
from journeys.journey import SONDE

PRIVATE = "the wedding is on the ninth"


def traces(victim: Victim, *, stack: str = "", place: Path | None = None) -> Path:
    rows: list[dict[str, Any]] = failed_trace()
    if stack:
        event = {
            "name": "exception",
            "timestamp": "2026-01-01T00:00:03Z",
            "attributes": {"exception.stacktrace": stack},
        }
        rows[-1] = rows[-1] | {"events": [event]}
    file = place or victim.folder / "traces.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def journal(victim: Victim) -> str:
    return "".join(file.read_text() for file in victim.own.rglob("*") if file.is_file())


def test_sql_writes_nothing_and_reads_nothing_but_the_traces(victim: Victim) -> None:
    traces(victim)
    other = victim.home / "private.sqlite"
    other.write_text(PRIVATE)
    queries = [
        f"ATTACH '{victim.marker}' AS x",
        f"VACUUM INTO '{victim.marker}'",
        f"SELECT writefile('{victim.marker}', 'x') AS x",
        f"SELECT readfile('{other}') AS x",
        "SELECT load_extension('/tmp/x.so') AS x",
        "PRAGMA writable_schema = 1",
        "SELECT * FROM pragma_database_list",
        "SELECT * FROM part0.bodies",
        "WITH spans AS (SELECT name, sql FROM part0.sqlite_master) SELECT name FROM spans",
        "WITH groups AS (SELECT name, sql FROM main.sqlite_master) SELECT name FROM groups",
        "WITH traces AS (SELECT zeroblob(9) AS x) SELECT x FROM traces",
        "SELECT randomblob(1000000000) AS x",
        "SELECT printf('%1000000000d', 1) AS x",
        "WITH RECURSIVE a(s) AS (SELECT 'xxxxxxxx' UNION ALL SELECT s||s FROM a) SELECT s FROM a",
    ]
    block = f"for query in {queries!r}:\n    try:\n        print('GOT', sql(query))\n    except Exception as error:\n        print('no')"
    model = victim.model(block, f"print(get_span('{TOOL}')['summary'])", f"FINAL('done [span:{TOOL}]')")

    done = victim.call(
        "ask", "Why?", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own, "--json"
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "succeeded", done.stdout
    assert model.prompts[1].count("\nno") >= len(queries) - 1 and "GOT" not in model.prompts[1].partition("stdout:")[2]
    assert not victim.marker.exists() and PRIVATE not in journal(victim)


@pytest.mark.parametrize(
    "query",
    one_in_make_test(
        {
            "words": "select 'attacker exported 912 cards' as finding, 912 as cards",
            "words beside data": "select 'attacker exported 912 cards' as finding from spans limit 1",
            "sum": "select count(*) + 897 as cards from spans",
        }
    ),
)
def test_a_query_that_says_itself_what_it_finds_proves_nothing(victim: Victim, query: str) -> None:
    traces(victim)
    tried = f"try:\n    ref = cite_tool('sql', {{'query': {query!r}}})\nexcept Exception as error:\n    ref = 'none'"
    block = f"rows = sql({query!r})\nprint(rows)\n{tried}\nprint(ref)"
    model = victim.model(block, *["FINAL(f'The attacker exported 912 cards. [{ref}]')"] * 4)

    done = victim.call(
        "ask", "What happened?", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own, "--json"
    )

    assert "cannot be cited" in model.prompts[1] and "is cited as [tool:sql" not in model.prompts[1]
    answer = json.loads(done.stdout)
    assert answer["status"] != "succeeded" and not [each for each in answer["citations"] if each.get("tool") == "sql"]


@pytest.mark.hostile_long
def test_queries_without_end_are_ended_and_the_run_goes_on(victim: Victim) -> None:
    traces(victim)
    victim.cpu_seconds = 120  # the limit itself is ten seconds for each of three
    queries = [
        "WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a) SELECT count(*) AS n FROM a",
        "WITH RECURSIVE a(n, s) AS (SELECT 1, '"
        + "x" * 15_000
        + "' UNION ALL SELECT n + 1, s || n FROM a) SELECT s FROM a ORDER BY n DESC",
        f"SELECT count(*) AS n FROM {', '.join(f'spans {name}' for name in 'abcdefghijkl')} WHERE a.name LIKE '%' || c.name || '%z'",
    ]
    tried = "    try:\n        print('GOT', sql(query))\n    except Exception as error:\n        print('ended', error)"
    block = f"for query in {queries!r}:\n{tried}"
    model = victim.model(block, f"print(get_span('{TOOL}')['summary'])", f"FINAL('done [span:{TOOL}]')")

    done = victim.sonde(
        "ask", "Why?", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own, "-q"
    )

    assert done.returncode == 0, done.stderr
    assert model.prompts[1].count("ended") >= len(queries)


@pytest.mark.hostile_long
def test_what_a_query_sorts_does_not_fill_the_disk(victim: Victim) -> None:
    traces(victim)
    query = (
        "WITH RECURSIVE a(n, s) AS (SELECT 1, '" + "x" * 15_000 + "' UNION ALL SELECT n + 1, s FROM a LIMIT 900000) "
        "SELECT n, s || n AS t FROM a ORDER BY t DESC, n"
    )
    block = f"try:\n    print('GOT', len(sql({query!r})))\nexcept Exception as error:\n    print('ended', error)"
    model = victim.model(block, f"print(get_span('{TOOL}')['summary'])", f"FINAL('done [span:{TOOL}]')")
    words = ("ask", "Why?", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own, "-q")

    done = victim.run("sh", "-c", 'ulimit -t 120; ulimit -f 100000; exec "$@"', "sh", SONDE, *words)

    assert done.returncode == 0, done.stderr
    assert "the query needs more than 512 MiB" in model.prompts[1], model.prompts[1][-2000:]


@pytest.mark.hostile_long
def test_one_row_of_slow_calls_and_a_wide_result_stay_within_time_and_memory(victim: Victim) -> None:
    traces(victim)
    victim.cpu_seconds = 60
    doubled = "SELECT 'xxxxxxxxx' AS s"
    for _ in range(14):
        doubled = f"SELECT s || s AS s FROM ({doubled}) LIMIT 1"
    text = f"WITH b AS MATERIALIZED ({doubled}) SELECT"
    forms = (
        "instr(s, substr(s, 1, 7{:04d}) || 'y')",
        "length(trim(s, substr(s, 1, 7{:04d}) || 'y'))",
        "substr(s, 1, {})",
    )
    queries = [
        f"{text} {', '.join(f'{form.format(number)} AS c{number}' for number in range(60))} FROM b" for form in forms
    ]
    wide = ", ".join(f"substr(s, {number + 1}, 4000) AS c{number}" for number in range(190))
    queries.append(f"{text} {wide} FROM b, spans a, spans c, spans d")
    tried = (
        "    try:\n        print('GOT', len(sql(query)))\n    except Exception as error:\n        print('ended', error)"
    )
    model = victim.model(f"for query in {queries!r}:\n{tried}", f"FINAL('done [span:{TOOL}]')")

    done = victim.sonde(
        "ask", "Why?", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own, "-q"
    )

    assert "Traceback" not in done.stderr
    assert model.prompts[1].count("\nGOT 1") == len(queries), model.prompts[1]


@pytest.mark.parametrize(
    "named", ["/etc/passwd", "../../home/private.txt", "/proc/self/environ", "src/../../private.txt"]
)
def test_a_stack_trace_reads_no_file_outside_of_what_was_given(victim: Victim, named: str) -> None:
    (victim.home / "private.txt").write_text(f"{PRIVATE}\n")
    victim.write("src/app.py", "raise SystemExit\n")
    (victim.folder / "src" / "private.txt").symlink_to(victim.home / "private.txt")
    traces(victim, stack=f'Traceback (most recent call last):\n  File "{named}", line 1, in read\nKeyError: 1\n')
    look = f"frames = stack_frames('{TOOL}')\nprint(frames)\nprint(read_file(frames[0]['file']))"
    model = victim.model(look, f"print(get_span('{TOOL}')['summary'])", f"FINAL('done [span:{TOOL}]')")

    done = victim.call(
        "ask", "Why?", "src", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own
    )

    assert done.returncode == 0, done.stderr
    shown = journal(victim) + "".join(model.prompts)
    assert PRIVATE not in shown and "root:x:0" not in shown


def committed(victim: Victim, *files: str) -> None:
    git = ("git", "-C", "src", "-c", "user.name=x", "-c", "user.email=x@example.org")
    victim.run(*git, "init", "-q", ".")
    victim.run(*git, "--literal-pathspecs", "add", "-f", "--", *files)
    victim.run(*git, "commit", "-qm", "first")


def told_of_line_history(victim: Victim, path: str) -> str:
    traces(victim)
    look = f"try:\n    print(line_history({path!r}, 1))\nexcept Exception as error:\n    print('no', error)"
    model = victim.model(look, f"print(get_span('{TOOL}')['summary'])", f"FINAL('done [span:{TOOL}]')")

    done = victim.call(
        "ask", "Why?", "src", "--source", "traces.jsonl", "--model", model.name, "--runs-dir", victim.own
    )

    assert done.returncode == 0, done.stderr
    return journal(victim) + "".join(model.prompts)


def test_the_name_of_a_file_is_no_pattern_that_shows_the_history_of_others(victim: Victim) -> None:
    victim.write("src/.env", f"PLAN={PRIVATE}\n")
    victim.write("src/:(top)", "plain words\n")
    committed(victim, ".env", ":(top)")

    told = told_of_line_history(victim, ":(top)")

    assert "+plain words" in told and PRIVATE not in told


@pytest.mark.hostile_long
def test_the_history_of_a_line_is_not_fetched_from_elsewhere(victim: Victim, listener: Listener) -> None:
    victim.write("src/app.py", "one\n")
    committed(victim, "app.py")
    listener.hides_history_of("src", victim)

    told = told_of_line_history(victim, "app.py")

    assert "git failed" in told and not listener.heard


@pytest.mark.hostile_long
def test_the_history_of_a_line_shows_no_file_that_a_setting_names(victim: Victim) -> None:
    victim.write("src/app.py", "one\n")
    committed(victim, "app.py")
    for name in ("blame.ignoreRevsFile", "diff.orderFile", "core.attributesFile"):
        victim.run("git", "-C", "src", "config", name, "/etc/passwd")
    assert "root:x" in victim.run("git", "-C", "src", "blame", "app.py").stderr

    told = told_of_line_history(victim, "app.py")

    assert "+one" in told and "root:x" not in told


def test_neither_a_password_in_an_address_nor_the_key_of_a_server_is_shown_or_recorded(victim: Victim) -> None:
    victim.environ = {"PHOENIX_API_KEY": "open-sesame"}
    with PhoenixDouble([row | {"name": "open-sesame"} for row in failed_trace()]) as server:
        ask = ("ask", "Why?", "--project", "shop", "--runs-dir", victim.own, "--source")

        refused = victim.call(*ask, server.url.replace("://", "://ada:open-sesame@"))
        done = victim.call(*ask, server.url)

    assert (refused.returncode, done.returncode) == (2, 0), refused.stderr + done.stderr
    assert "open-sesame" not in refused.stdout + refused.stderr + done.stdout + done.stderr + journal(victim)


def test_code_gets_no_half_of_a_key_that_the_server_repeats(victim: Victim) -> None:
    victim.environ = {"PHOENIX_API_KEY": "open-sesame"}
    look = "print(sql('SELECT substr(name, 1, 5) AS a, substr(name, 6) AS b FROM spans'))"
    model = victim.model(look, "FINAL('no')")
    with PhoenixDouble([row | {"name": "open-sesame"} for row in failed_trace()]) as server:
        ask = ("ask", "Why?", "--project", "shop", "--runs-dir", victim.own, "--source", server.url)
        victim.call(*ask, "--model", model.name)

    assert "'a': " in model.prompts[1] and "sesame" not in "".join(model.prompts)


def test_a_strangers_run_names_no_traces_of_this_machine(victim: Victim) -> None:
    private = traces(victim, place=victim.home / "private.jsonl")
    ask = ("ask", "Why?", "--source", private, "--runs-dir", victim.own)
    assert victim.call(*ask).returncode == 0
    [run] = [path.parent for path in victim.own.rglob("run_record.json")]
    shutil.copytree(run, victim.folder / "artifacts" / "investigator_runs" / run.name)
    for seal in (victim.folder / "artifacts").rglob("*seal*"):
        seal.unlink()

    done = victim.call("ask", "And now?", "--continue", victim.folder / "artifacts" / "investigator_runs" / run.name)

    assert done.returncode == 2 and "not made here by you" in done.stderr, done.stderr
