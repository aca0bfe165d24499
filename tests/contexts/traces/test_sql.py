"""SQL over traces: what a query may ask, what is refused in words that help, and where it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.contexts.traces.filestore import FileStore
from sonde.contexts.traces.sql import MAX_ROWS, Tables, unproved
from sonde.core.deadline import Deadline
from sonde.errors import ToolFault
from sonde.testing import FrozenClock

Json = dict[str, Any]


def span(trace: str, span_id: str, name: str, **more: Any) -> Json:
    row: Json = {"trace_id": trace, "span_id": span_id, "parent_id": None, "name": name, "project_name": "shop"}
    row |= {"start_time": 1_767_225_600_000_000_000, "end_time": 1_767_225_601_500_000_000, "status_code": "OK"}
    return row | {"status_message": "", "attributes": {"openinference.span.kind": "TOOL"}, **more}


def opened(folder: Path, rows: list[Json], name: str = "traces.jsonl") -> FileStore:
    (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return FileStore(folder / name)


@pytest.fixture
def tables(tmp_path: Path) -> Iterator[Tables]:
    rows = [
        span(
            "a" * 32, "1" * 16, "pay", status_code="ERROR", attributes={"llm.model_name": "m", "tries": 3, "ok": True}
        ),
        span("a" * 32, "2" * 16, "pay", attributes={"labels": ["x", "y"]}),
        span("b" * 32, "3" * 16, "ship", attributes={"by": "sea"}),
        span("c" * 32, "4" * 16, "outside the window", attributes={"by": "air"}),
    ]
    group = {"group_id": "g1", "kind": "error", "component": "pay", "message": "no", "traces": 1, "spans": 1}
    group |= {"first_seen": "2026-01-01T00:00:00Z", "last_seen": "2026-01-01T00:00:00Z", "members": ["a" * 32]}
    with opened(tmp_path, rows) as store:
        made = Tables([store], [(0, "a" * 32), (0, "b" * 32)], [group])
        yield made
        made.close()


def test_a_query_counts_the_spans_of_the_window_and_only_those(tables: Tables) -> None:
    rows, cut = tables.ask("SELECT name, count(*) AS n, max(latency_ms) AS ms FROM spans GROUP BY name ORDER BY name")

    assert rows == [{"name": "pay", "n": 2, "ms": 1500.0}, {"name": "ship", "n": 1, "ms": 1500.0}]
    assert cut is None


def test_attributes_groups_and_their_traces_can_be_joined(tables: Tables) -> None:
    rows, _ = tables.ask(
        "SELECT g.message, attr(span_id, 'llm.model_name') AS model, attr(span_id, 'tries') + 1 AS tries, attr(span_id, 'ok') AS ok, "
        "attr(span_id, 'none') AS none, start_time FROM groups g JOIN members USING (group_id) JOIN spans s USING (trace_id) "
        "WHERE s.status = 'ERROR'"
    )
    listed, _ = tables.ask("SELECT attr(span_id, 'labels') AS labels FROM spans WHERE span_id = '2222222222222222'")

    begun = "2026-01-01T00:00:00.000Z"
    assert rows == [{"message": "no", "model": "m", "tries": 4, "ok": 1, "none": None, "start_time": begun}]
    assert listed == [{"labels": '["x", "y"]'}]


def test_attributes_of_spans_outside_the_window_are_not_told(tables: Tables) -> None:
    rows, _ = tables.ask("SELECT attr('4444444444444444', 'by') AS outside, attr('3333333333333333', 'by') AS inside")

    assert rows == [{"outside": None, "inside": "sea"}]


def test_two_sources_are_one_table_and_a_trace_that_both_hold_counts_once(tmp_path: Path) -> None:
    one = opened(tmp_path, [span("a" * 32, "1" * 16, "pay")], "it's.jsonl")
    other = opened(tmp_path, [span("a" * 32, "1" * 16, "pay"), span("b" * 32, "2" * 16, "ship")], "other.jsonl")
    with one, other:
        tables = Tables([one, other], [(0, "a" * 32), (1, "a" * 32), (1, "b" * 32)])
        rows, _ = tables.ask("SELECT source, count(*) AS n FROM spans GROUP BY source ORDER BY source")
        tables.close()

    assert rows == [{"source": "it's.jsonl", "n": 1}, {"source": "other.jsonl", "n": 1}]


@pytest.mark.parametrize(
    "query",
    [
        "ATTACH '/tmp/x.sqlite' AS x",
        "PRAGMA table_info(spans)",
        "SELECT * FROM pragma_table_info('spans')",
        "SELECT load_extension('x')",
        "SELECT writefile('x', 'y')",
        "SELECT readfile('/etc/passwd')",
        "INSERT INTO chosen VALUES (0, 'x')",
        "DELETE FROM part0.spans",
        "DROP VIEW spans",
        "CREATE TEMP TABLE x(a)",
        "VACUUM INTO '/tmp/x.sqlite'",
        "BEGIN",
        "SELECT * FROM part0.bodies",
        "SELECT * FROM part0.meta",
        "SELECT * FROM temp.chosen",
        "SELECT name FROM sqlite_master",
        "SELECT * FROM temp.sqlite_master",
        "SELECT count(*) AS n FROM SQLITE_MASTER",
        "SELECT count(*) AS n FROM bodies",
        "WITH spans AS (SELECT name, sql FROM sqlite_master) SELECT name FROM spans",
        "WITH spans AS (SELECT name, sql FROM part0.sqlite_master) SELECT name FROM spans",
        "WITH spans AS (SELECT name FROM part0.spans) SELECT name FROM spans",
        "WITH groups AS (SELECT zeroblob(9) AS x) SELECT x FROM groups",
        "SELECT x FROM (SELECT hex(name) AS x FROM spans) AS traces",
        "SELECT * FROM json_each('[1]')",
        "SELECT randomblob(1000000000) AS x",
        "SELECT zeroblob(1000000000) AS x",
        "SELECT printf('%1000000000d', 1) AS x",
        "SELECT fts5_decode(1, 2) AS x",
        "SELECT 1 AS a; SELECT 2 AS a",
        "",
    ],
)
def test_anything_but_a_select_over_the_tables_is_refused_and_told_what_is_allowed(tables: Tables, query: str) -> None:
    with pytest.raises(ToolFault, match="allowed is one SELECT"):
        tables.ask(query)

    assert tables.ask("SELECT count(*) AS n FROM traces")[0] == [{"n": 2}]


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("SELECT nope FROM spans", "no such column: nope"),
        ("SELECT 1 AS a, 2 AS a", "two columns are called 'a'"),
        ("SELECT name FROM spans WHERE name LIKE '" + "%a" * 5_000 + "'", "pattern too complex"),
        (
            "WITH RECURSIVE a(s) AS (SELECT 'xxxxxxxx' UNION ALL SELECT s||s FROM a) SELECT length(s) AS n FROM a",
            "too big",
        ),
        ("SELECT '" + "x" * 30_000 + "' AS x", "too"),
        ("SELECT " + "(" * 500 + "1" + ")" * 500 + " AS x", "overflow"),
    ],
)
def test_a_mistake_and_a_bomb_get_one_line(tables: Tables, query: str, told: str) -> None:
    with pytest.raises(ToolFault, match=told):
        tables.ask(query)


def test_a_query_without_end_is_ended_and_the_next_one_works(tmp_path: Path) -> None:
    with opened(tmp_path, [span("a" * 32, "1" * 16, "pay")]) as store:
        tables = Tables([store], [(0, "a" * 32)], seconds=0.05)

        with pytest.raises(ToolFault, match=r"took more than 0\.05 s"):
            tables.ask("WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a) SELECT count(*) AS n FROM a")

        assert tables.ask("SELECT name FROM spans") == ([{"name": "pay"}], None)
        tables.close()


@pytest.mark.parametrize(
    "call",
    [
        *("instr(name, 'y')", "name LIKE '%y'", "trim(name, 'y')", "attr(span_id, 'x')"),
        *("json_extract('[1]', '$[0]')", "'[1]' -> 0", "'[1]' ->> 0", "strftime('%Y', start_time)", "date(start_time)"),
    ],
)
def test_a_single_row_ends_with_the_time_too(tmp_path: Path, call: str) -> None:
    class Ticking(FrozenClock):
        """A second passes between two looks at it."""

        def now(self) -> float:
            self.advance(1)
            return super().now()

    with opened(tmp_path, [span("a" * 32, "1" * 16, "pay")]) as store, Deadline(Ticking(), 1000).in_force():
        tables = Tables([store], [(0, "a" * 32)], seconds=60)

        assert tables.ask("SELECT name FROM spans") == ([{"name": "pay"}], None)
        with pytest.raises(ToolFault, match="took more than 60 s"):
            tables.ask(f"SELECT {', '.join(f'{call} AS x{number}' for number in range(100))} FROM spans")
        tables.close()


def test_brackets_that_nothing_closes_are_read_once_and_refused(tables: Tables) -> None:
    with pytest.raises(ToolFault):
        tables.ask("SELECT name FROM spans WHERE " + "[" * 300_000)


def test_texts_are_sought_matched_and_trimmed_as_in_sqlite(tables: Tables) -> None:
    rows, _ = tables.ask(
        "SELECT instr('banana', 'na') AS i, instr('x', NULL) AS n, instr(1234, 34) AS d, "
        "'Pay' LIKE 'p_%' AS l, '5%' LIKE '5!%' ESCAPE '!' AS e, "
        "'pay' GLOB 'P*' AS g, trim('--a--', '-') AS t, ltrim('--a--', '-') AS lt, rtrim('--a--', '-') AS rt, trim('--', '-') AS none"
    )

    assert rows == [{"i": 3, "n": None, "d": 3, "l": 1, "e": 1, "g": 0, "t": "a", "lt": "a--", "rt": "--a", "none": ""}]


def test_times_and_json_are_read_as_in_sqlite(tables: Tables) -> None:
    rows, _ = tables.ask(
        "SELECT date(start_time, 'start of year') AS d, strftime('%H:%M', start_time) AS t, unixepoch(start_time) AS u, "
        "json_extract('{\"a\": [1, {\"b\": \"x\"}]}', '$.a[1].b', '$.a[0]') AS j, "
        "'{\"a\": {\"b\": 3}}' -> 'a' AS o, '{\"a\": {\"b\": 3}}' -> 'a' ->> 'b' AS b, date(NULL) AS n "
        "FROM spans LIMIT 1"
    )

    assert rows == [
        {"d": "2026-01-01", "t": "00:00", "u": 1_767_225_600, "j": '["x",1]', "o": '{"b":3}', "b": 3, "n": None}
    ]


def test_the_form_of_a_time_is_short(tables: Tables) -> None:
    form = "".join(f"%Y{number}" for number in range(100))

    with pytest.raises(ToolFault, match="at most 200 characters"):
        tables.ask(f"SELECT strftime('{form}', start_time) AS x FROM spans")


def test_rows_that_hold_too_much_text_are_cut_and_said_so(tables: Tables) -> None:
    wide = ", ".join(f"s AS c{number}" for number in range(150))
    text = f"SELECT '{'x' * 15_000}' AS s"
    rows, cut = tables.ask(f"SELECT {wide} FROM ({text}), spans a, spans b, spans c")

    assert 1 <= len(rows) < 10
    assert cut is not None and "characters" in cut


def test_too_many_rows_are_cut_and_said_so(tables: Tables) -> None:
    rows, cut = tables.ask(
        f"WITH RECURSIVE a(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM a LIMIT {MAX_ROWS + 5}) SELECT n FROM a"
    )

    assert len(rows) == MAX_ROWS
    assert cut is not None and "first 1,000 rows" in cut


def test_values_that_json_cannot_hold_become_words(tables: Tables) -> None:
    assert tables.ask("SELECT x'00ff' AS b, 9e999 AS i")[0] == [{"b": "<2 bytes>", "i": "inf"}]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT name, count(*) AS n FROM spans WHERE status = 'ERROR' GROUP BY name ORDER BY n DESC",
        "SELECT attr(span_id, 'release') AS r, count(*) AS n FROM spans WHERE name = 'pay' GROUP BY r",
        "SELECT name || ' of ' || kind AS name, count(*) AS n FROM spans GROUP BY 1",
        "SELECT source, count(*) AS n FROM traces GROUP BY source",
        (
            "SELECT substr(start_time, 1, 13) AS hour, sum(status = 'ERROR') AS e, round(100.0 * sum(status='ERROR') / "
            "count(*), 1) AS pct FROM spans GROUP BY 1 ORDER BY 1 LIMIT 50"
        ),
        "SELECT sum(CASE WHEN status = 'ERROR' THEN 1 ELSE 0 END) AS e, avg(latency_ms) / 1000 AS s FROM spans",
        (
            "WITH f AS (SELECT trace_id, min(start_time) AS t FROM spans WHERE status='ERROR' GROUP BY trace_id) SELECT "
            "count(*) AS n FROM f JOIN traces USING (trace_id) WHERE latency_ms > 500"
        ),
        (
            "SELECT group_concat(DISTINCT name) AS names, group_concat(name, '; ') AS x FROM spans WHERE trace_id IN "
            "(SELECT trace_id FROM members WHERE group_id = 'abc')"
        ),
        "SELECT strftime('%Y-%m-%d %H:00', start_time) AS h, count(*) AS n FROM spans GROUP BY h",
        "SELECT count(*) FILTER (WHERE status = 'ERROR') AS e FROM spans",
        (
            "SELECT name, row_number() OVER (PARTITION BY kind ORDER BY latency_ms DESC) AS rn, lag(name, 1) OVER (ORDER "
            "BY start_time) AS p FROM spans"
        ),
        (
            "SELECT count(*) AS n, coalesce(sum(errors), 0) AS e FROM traces t WHERE EXISTS (SELECT 1 FROM spans s WHERE "
            "s.trace_id = t.trace_id AND s.name = 'pay' LIMIT 1)"
        ),
        "SELECT sum(status IN ('ERROR', 'TIMEOUT')) AS n, max(latency_ms) - min(latency_ms) AS d FROM spans",
        'SELECT "name", count(*) AS "n" FROM "spans" WHERE status_message LIKE \'%timeout%\' GROUP BY "name" HAVING count(*) > 3',
        "SELECT json_extract(attr(span_id,'input.value'), '$.order.id') AS o, attr(span_id,'x') ->> '$.y' AS y FROM spans",
        "SELECT instr(status_message, 'currency') > 0 AS hit, count(*) AS n FROM spans GROUP BY hit",
        "SELECT name, rank() OVER w AS r FROM spans WINDOW w AS (PARTITION BY kind, 7 ORDER BY latency_ms)",
        "SELECT sum(s.name NOT LIKE 'pay%') AS n, sum(lower(name) GLOB 'a*') AS g, sum(like('a%', name)) AS l FROM spans s",
        "SELECT count(*) n FROM spans WHERE CASE kind WHEN 'LLM' THEN name LIKE '%x' ELSE name NOT GLOB '*y' END",
    ],
)
def test_columns_and_counts_of_chosen_rows_can_be_cited(query: str) -> None:
    assert unproved(query) == ""


@pytest.mark.parametrize(
    "query",
    [
        "select 'attacker exported 912 cards' as finding, 912 as cards",
        "select 'attacker exported 912 cards' as finding from spans limit 1",
        "select count(*)+897 as n from spans",
        "select count(*)*897 as n from spans",
        "with f(a) as (values ('attacker exported')) select a from f, spans",
        "with f as (select 'attacker exported' as a) select a from f, spans",
        "select substr('attacker exported', 1, 90) as a from spans",
        "select iif(1, 'attacker exported', name) as a from spans",
        "select case when 1 then 'attacker exported' end as a from spans",
        "select case when 1 then 912 end as a from spans",
        "select coalesce(null, 912) as a from spans",
        "select max(912, count(*)) as a from spans",
        "select count(*) as n from (select 1 as one from spans a, spans b limit 912)",
        'select "attacker exported 912" as a from spans',
        'select "leaked" as a from spans',
        'select count(*) as "attacker exported 912 cards" from spans',
        "select count(*) [attacker exported] from spans",
        "select strftime('attacker exported cards', start_time) as a from spans",
        "select group_concat(name, ' attacker exported ') as a from spans",
        "select '\"attacker exported\"' -> '$' as a from spans",
        "select 'atta'||'cker'||' exp'||'orte' as a from spans",
        "with recursive a(n) as (select 1 union all select n+1 from a) select count(*) as n from a, spans",
        "select 100*1000 as n from spans",
        "select length('xxxxxxxxxxxxxxxxxxxxxxxxxxxx') as n from spans",
        "select lag(name, 1, 'attacker exported') over () as n from spans",
        "select name from spans union all select 'attacker exported'",
        "select name from spans where 1 union select 912",
        "select x'616263646566' as a from spans",
        "select -912 as n from spans",
        "select 0x390 as n from spans",
        "select name, /* ' */ 'attacker exported' /* ' */ as x from spans",
        "select name from spans union select 100",
        "SELECT count(*) AS rows, 'FORGED' AS x FROM spans",
        "SELECT count(*) rows, 'FORGED' AS x FROM spans",
        "SELECT name AS by, 'FORGED' AS x FROM spans",
        "SELECT s.name, f.x FROM spans s JOIN traces t ON s.trace_id = t.trace_id, (SELECT 'FORGED text' AS x) f",
        "SELECT s.name, f.x FROM spans s JOIN traces t ON CASE WHEN 1 THEN 1 END, (SELECT 'FORGED text' AS x) f",
        "SELECT partition by, 4711 AS lost_orders, 'FORGED' AS why FROM (SELECT name AS partition FROM spans)",
        "SELECT p.partition by, 7 AS n FROM (SELECT name AS partition FROM spans) p",
        "SELECT (partition) by, 7 AS n FROM (SELECT name AS partition FROM spans) p",
        "SELECT abs(partition by, 7) AS n FROM (SELECT name AS partition FROM spans) p",
        "SELECT t.by, 'FORGED' AS x FROM (SELECT name by FROM spans) t",
        "SELECT t.like 'FORGED: 4711 orders were lost' FROM (SELECT name AS like FROM spans) t",
        "SELECT t.glob 'FORGED 4711' FROM (SELECT name AS glob FROM spans) t",
        "SELECT like 'FORGED 4711' FROM (SELECT name `like` FROM spans)",
        "SELECT NOT like 'FORGED 4711' FROM (SELECT name `like` FROM spans)",
        "SELECT name, glob 'FORGED 4711' FROM (SELECT name, kind [glob] FROM spans)",
        "SELECT name || like 'FORGED 4711' FROM (SELECT name, kind [like] FROM spans)",
        "SELECT count(*) no_order_was_ever_lost_and_all_is_well_everywhere FROM spans",
        "SELECT count(*) AS no_order_was_ever_lost_and_all_is_well_everywhere FROM spans",
    ],
)
def test_rows_that_may_hold_words_or_numbers_of_the_query_itself_prove_nothing(query: str) -> None:
    assert unproved(query)


def test_a_chain_of_tables_that_doubles_itself_is_refused_before_it_grows(tables: Tables) -> None:
    chain = ", ".join(f"a{n + 1} AS (SELECT p.name FROM a{n} p, a{n} q)" for n in range(25))

    with pytest.raises(ToolFault, match="WITH may have at most 6 tables"):
        tables.ask(f"WITH a0 AS (SELECT 1 AS name), {chain} SELECT a25.name FROM a25, spans")
    with pytest.raises(ToolFault, match="each used at most 3 times"):
        tables.ask("WITH a AS (SELECT 1 AS n), b(n) AS (SELECT 1 FROM a p, a q, a r, a s) SELECT n FROM b, spans")
    with pytest.raises(ToolFault, match="ASCII"):
        tables.ask("SELECT name AS where\u00a0, 'x' AS y FROM spans")
    with pytest.raises(ToolFault, match="comments"):
        tables.ask("SELECT name /* AS */ FROM spans")
    assert tables.ask("WITH a AS (SELECT name FROM spans) SELECT count(*) AS n FROM a")[1] is None
