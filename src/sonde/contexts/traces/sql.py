"""SQL over the indexes of traces: SELECT and nothing else, within limits of rows, time, memory and length.

A query sees a private database with four tables (`spans`, `traces`, `groups`, `members`), copied from the indexes for the window; no index
is attached while it runs. An authorizer lets it read those tables and call the functions of a list; other files, settings, extensions
and writes are out of reach. Who writes the query is a model, which may have read hostile text. What this does not promise: that a query
within its limits is cheap.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sonde.contexts.traces.filestore import IndexStore
from sonde.contexts.traces.index import decode_body, note_grown, stand_still
from sonde.core.canonical import clip
from sonde.core.deadline import Deadline, SystemClock, deadline_in_force
from sonde.disk import open_database
from sonde.errors import ToolFault, ToolResponseInvalid

MAX_ROWS = 1_000
CELL_CHARS = 4_000
QUERY_S = 10.0
QUERY_BYTES = 512 << 20
RESULT_CHARS = 4_000_000
STEPS = 200  # of SQLite's machine between two looks at the clock; it only looks where the program jumps
COLUMNS = {
    name: tuple(columns.split())
    for name, columns in {
        "spans": "source project trace_id span_id parent_id name kind status status_message exception start_time latency_ms",
        "traces": "source project trace_id start_time latency_ms spans errors",
        "groups": "group_id kind component message traces spans first_seen last_seen",
        "members": "group_id trace_id",
    }.items()
}
LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 300_000,  # a status message is shorter; to look for a longer text in another takes minutes
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 20_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 20,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 5_000,  # a row may run all of them between two looks
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 16,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
FUNCTIONS = frozenset(
    """
    attr abs avg coalesce count cume_dist date datetime dense_rank first_value group_concat ifnull iif instr json_extract julianday
    lag last_value lead length like glob lower ltrim max min nth_value ntile nullif percent_rank rank round row_number rtrim sign strftime
    substr substring sum time total trim typeof unixepoch upper -> ->>
    """.split()  # noqa: SIM905 - words read better as text
)
ALLOWED = (
    "one SELECT (WITH, joins, windows) over the tables spans, traces, groups and members, with "
    "count, sum, avg, min, max, group_concat, substr, instr, like, strftime, json_extract, attr(span_id, 'key') and the like"
)
_SPANS = """SELECT ?1, t.project, s.trace_id, s.span_id, s.parent_id, s.name, s.kind, s.status, s.status_message, s.exception,
 strftime('%Y-%m-%dT%H:%M:%fZ', s.start_us / 1000000.0, 'unixepoch'), max(0, coalesce(s.end_us, s.start_us) - s.start_us) / 1000.0
 FROM part.spans s JOIN temp.chosen c ON c.trace_id = s.trace_id AND c.part = ?2 JOIN part.traces t ON t.trace_id = s.trace_id"""
_TRACES = """SELECT ?1, t.project, t.trace_id, strftime('%Y-%m-%dT%H:%M:%fZ', t.start_us / 1000000.0, 'unixepoch'),
 max(0, t.end_us - t.start_us) / 1000.0, t.spans, t.errors
 FROM part.traces t JOIN temp.chosen c ON c.trace_id = t.trace_id AND c.part = ?2"""
_TOKEN = re.compile(
    r"""\s+|--[^\n]*|/\*.*?(?:\*/|$)
    |(?P<text>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*+(?:\]|\Z))
    |(?P<number>\.?\d[\w.]*(?:(?<=[eE])[+-]\d+)?)
    |(?P<word>[^\W\d][\w$]*)
    |(?P<sign>->>|->|\|\||<=|>=|<>|!=|==|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMPARE = frozenset(("=", "==", "<>", "!=", "<", ">", "<=", ">=", "like", "glob", "is", "in", "not", "between", "and"))
_FREE = frozenset(("where", "having", "on", "when", "limit"))
_BEFORE_NAMES = frozenset(  # after these, `like` is no operator but a name
    """
    all and as between by case distinct else except from glob having in intersect is join like limit not offset on or select then
    union when where with
    """.split()  # noqa: SIM905 - words read better as text
)
_SHOWN = frozenset(("select", "from", "then", "else", "join", "union", "intersect", "except"))
_ASIDE = {  # of these functions, from this argument on, literals only say how to read the first one
    **dict.fromkeys(("attr", "substr", "substring", "instr", "round", "json_extract", "nullif", "nth_value"), 1),
    **dict.fromkeys(("trim", "ltrim", "rtrim"), 1),
    **dict.fromkeys(("like", "glob", "ntile"), 0),
}
_UNITS = frozenset(("1", "60", "100", "1000", "1024", "3600", "86400", "1000000"))
_TIME_FORM = re.compile(r"(?:%[a-zA-Z]|[-:/ .TZ]|00)*|start of (?:day|month|year)|unixepoch|utc|localtime|weekday \d")
_TIMES = frozenset(("strftime", "date", "time", "datetime", "julianday", "unixepoch"))
MAX_WITH, MAX_USES = 6, 3  # SQLite copies a table of WITH wherever it is used, before it looks at any clock
TIME_CHARS = 200
NAME_CHARS = 40
SEPARATOR_CHARS = 4
SEPARATORS_CHARS = 12


class Tables:
    """The traces of a window, of one or more indexes, as tables that can be asked in SQL."""

    def __init__(
        self,
        stores: Sequence[IndexStore],
        chosen: Iterable[tuple[int, str]],
        groups: Sequence[dict[str, Any]] = (),
        *,
        seconds: float = QUERY_S,
    ) -> None:
        """`chosen` are the traces as (number of the store, id); `groups` have the columns of the table, and the ids of their `members`."""
        self._bodies = [open_database(store.index.resolve()) for store in stores]
        # An empty name is a private database on disk: it takes the place of memory, and goes with the connection.
        self._connection = connection = sqlite3.connect("", uri=True, check_same_thread=False, isolation_level=None)
        self._lock = threading.Lock()
        self._denied = ""
        self._seconds = seconds
        run = connection.execute
        run("PRAGMA journal_mode = OFF")
        run("PRAGMA trusted_schema = OFF")
        run("PRAGMA temp_store = MEMORY")  # what a query sorts counts as its memory, and fills no disk
        run("CREATE TEMP TABLE chosen(part INTEGER, trace_id TEXT PRIMARY KEY) WITHOUT ROWID")
        self._part_of = {
            trace_id: part for part, trace_id in reversed([*chosen])
        }  # of two that hold a trace, the first
        connection.executemany(
            "INSERT INTO chosen VALUES (?, ?)", ((part, trace_id) for trace_id, part in self._part_of.items())
        )
        for table, columns in COLUMNS.items():
            run(f"CREATE TABLE {table}({', '.join(columns)})")
        for number, store in enumerate(stores):
            try:
                run("ATTACH ? AS part", (f"{store.index.resolve().as_uri()}?mode=ro",))
                if store.upto is not None:
                    stand_still(connection, store.upto, "part")
                    note_grown(connection, store.upto, store.upto, "part")
                for table, form in (("spans", _SPANS), ("traces", _TRACES)):
                    whole = form if store.upto is None else form.replace("part.", "temp.")
                    run(f"INSERT INTO main.{table} {whole}", (store.name, number))
                for view in (
                    ("VIEW temp.spans", "VIEW temp.traces", "TABLE temp.grown") if store.upto is not None else ()
                ):
                    run(f"DROP {view}")
                run("DETACH part")
            except sqlite3.DatabaseError as broken:
                raise ToolResponseInvalid(f"{store.name} cannot be read: {broken}") from None
        run("DROP TABLE temp.chosen")
        run("CREATE INDEX of_trace ON spans(trace_id)")
        run("CREATE INDEX by_id ON spans(span_id)")
        added = f"INSERT INTO groups VALUES ({', '.join('?' * len(COLUMNS['groups']))})"  # noqa: S608 - only question marks
        for row in groups:
            run(added, [row[name] for name in COLUMNS["groups"]])
            connection.executemany(
                "INSERT INTO members VALUES (?, ?)", ((row["group_id"], each) for each in row["members"])
            )
        self._modules = {str(row[0]).lower() for row in run("PRAGMA module_list")}
        run("PRAGMA query_only = ON")
        self._watch = _Watch(seconds)
        self._matcher = sqlite3.connect(":memory:", check_same_thread=False)
        for limit, value in LIMITS.items():
            self._matcher.setlimit(limit, value)
        connection.create_function("attr", 2, self._attribute, deterministic=True)
        # SQLite's own take seconds for long texts, and cannot be interrupted.
        connection.create_function("instr", 2, self._position, deterministic=True)
        for name, most in (("like", 3), ("glob", 2)):
            for count in range(2, most + 1):
                form = f"SELECT {name}({', '.join('?' * count)})"
                connection.create_function(name, count, partial(self._answered, form), deterministic=True)
        connection.create_function("json_extract", -1, partial(self._called, "json_extract"), deterministic=True)
        for name in ("->", "->>"):
            connection.create_function(name, 2, partial(self._answered, f"SELECT ? {name} ?"), deterministic=True)
        for name in _TIMES:
            connection.create_function(name, -1, partial(self._timed, name))
        for name in ("trim", "ltrim", "rtrim"):
            connection.create_function(name, 2, partial(self._trimmed, name), deterministic=True)
        for limit, value in LIMITS.items():
            connection.setlimit(limit, value)
        connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
        connection.set_authorizer(self._allow)

    def close(self) -> None:
        """Let go of the indexes."""
        self._connection.close()
        self._matcher.close()
        for each in self._bodies:
            each.close()

    def ask(self, query: str) -> tuple[list[dict[str, Any]], str | None]:
        """The rows of a query, and what was cut; a ToolFault says what is allowed."""
        if wide := _too_wide(query):
            raise ToolFault(f"{wide}; allowed is {ALLOWED}")
        with self._lock:
            self._watch = watch = _Watch(self._seconds)
            self._denied = ""
            self._connection.set_progress_handler(watch.look, STEPS)
            try:
                cursor = self._connection.execute(query)
                if cursor.description is None:
                    raise ToolFault(f"that is not a SELECT; allowed is {ALLOWED}")
                names = [str(column[0]) for column in cursor.description]
                repeated = [name for name in names if names.count(name) > 1]
                if repeated:
                    raise ToolFault(f"two columns are called {repeated[0]!r}; name them apart with AS")
                rows: list[dict[str, Any]] = []
                cut, chars = None, 0
                for row in cursor:
                    cells = [_cell(value) for value in row]
                    chars += sum(len(each) if isinstance(each, str) else 8 for each in cells)
                    if len(rows) == MAX_ROWS or (rows and chars > RESULT_CHARS):
                        what = "" if len(rows) == MAX_ROWS else f", which hold {RESULT_CHARS:,} characters"
                        cut = f"only the first {len(rows):,} rows{what}; aggregate, or page with LIMIT and OFFSET"
                        break
                    rows.append(dict(zip(names, cells, strict=True)))
                    watch.check()
                cursor.close()
            except (sqlite3.Error, sqlite3.Warning, OverflowError, MemoryError, ValueError) as error:
                raise ToolFault(watch.why or self._denied or _told(error)) from None
            finally:
                self._connection.set_progress_handler(None, 0)
        return rows, cut

    def _allow(self, action: int, first: str | None, second: str | None, base: str | None, inside: str | None) -> int:
        """SQLite asks for each thing that a query would do. `inside` is no ground to allow one: it may be a name of the query's choice."""
        del inside
        table = str(first).lower()
        match action:
            case sqlite3.SQLITE_SELECT | sqlite3.SQLITE_RECURSIVE:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_READ if table in COLUMNS and base in ("main", None):
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_READ if not (
                base or table.startswith(("sqlite_", "pragma_")) or table in self._modules
            ):
                return sqlite3.SQLITE_OK  # a common table expression or a subquery: there are no other tables
            case sqlite3.SQLITE_FUNCTION if str(second).lower() in FUNCTIONS:
                return sqlite3.SQLITE_OK
            case sqlite3.SQLITE_FUNCTION:
                self._denied = f"the function {second} is not allowed; allowed is {ALLOWED}"
            case sqlite3.SQLITE_READ:
                self._denied = f"there is no table {first} for you; allowed is {ALLOWED}"
            case _:
                self._denied = f"a query only reads; allowed is {ALLOWED}"
        return sqlite3.SQLITE_DENY

    def _position(self, text: object, part: object) -> int | None:
        self._watch.check()
        if text is None or part is None:
            return None
        return _text(text).find(_text(part)) + 1

    def _timed(self, name: str, *arguments: Any) -> Any:
        if any(isinstance(each, str | bytes) and len(each) > TIME_CHARS for each in arguments):
            self._watch.why = f"a time and its form have at most {TIME_CHARS} characters"
            raise sqlite3.DataError(self._watch.why)
        return self._called(name, *arguments)

    def _called(self, name: str, *arguments: Any) -> Any:
        return self._answered(f"SELECT {name}({', '.join('?' * len(arguments))})", *arguments)

    def _answered(self, form: str, *arguments: Any) -> Any:
        """What SQLite's own function says, if there is time left. SQLite looks at no clock between the calls of one row."""
        self._watch.check()
        try:
            return self._matcher.execute(form, arguments).fetchone()[0]
        except sqlite3.Error as error:
            self._watch.why = str(error)
            raise

    def _trimmed(self, name: str, text: object, signs: object) -> str | None:
        self._watch.check()
        if text is None or signs is None:
            return None
        kept, away = _text(text), {*_text(signs)}
        start, end = 0, len(kept)
        while name != "rtrim" and start < end and kept[start] in away:
            start += 1
        while name != "ltrim" and end > start and kept[end - 1] in away:
            end -= 1
        return kept[start:end]

    def _attribute(self, span_id: object, key: str) -> str | float | None:
        """One attribute of a span of the window, of its events or of its resource, as SQL can hold it."""
        self._watch.check()
        for part, connection in enumerate(self._bodies):
            found = connection.execute(
                "SELECT trace_id, body FROM spans JOIN bodies USING (id) WHERE span_id = ?", (str(span_id),)
            ).fetchone()
            if found is not None and self._part_of.get(found[0]) == part:
                attributes, events, resource = decode_body(found[1])
                tables = (attributes, *(event.attributes for event in events), resource)
                value = next((table[key] for table in tables if key in table), None)
                if isinstance(value, bool) or value is None:
                    return None if value is None else int(value)
                if isinstance(value, int | float):
                    return value
                return clip(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 60_000)
        return None


@dataclass(slots=True)
class _Bracket:
    """An open bracket of a query: whose it is, which argument is being read, and whether literals are free to stand there."""

    function: str
    free: bool = False
    always: bool = False
    argument: int = 0
    joined: bool = False
    cases: list[bool] = field(default_factory=list[bool])


def _tokens(query: str) -> list[tuple[str, str]]:
    """The parts of a query, in small letters except texts, without comments."""
    return [
        (str(found.lastgroup), found[0] if found.lastgroup == "text" else found[0].lower())
        for found in _TOKEN.finditer(query)
        if found.lastgroup
    ]


def _too_wide(query: str) -> str:
    """Why a query is refused before SQLite sees it; "" if it is not."""
    tokens = _tokens(query)
    if any(found[0].startswith(("--", "/*")) for found in _TOKEN.finditer(query) if not found.lastgroup):
        return "leave comments out"
    if not all(found[0].isascii() for found in _TOKEN.finditer(query) if found.lastgroup != "text"):
        return "write names in ASCII"
    words = [text.strip('"`[]') for _kind, text in tokens]
    tables: list[str] = []
    for at, word in enumerate(words):
        after = [each for each in words[at + 1 : at + 4] if each not in ("not", "materialized")]
        if word == "as" and after[:1] == ["("] and at:
            start = at - 1
            if words[start] == ")":
                while start and words[start] != "(":
                    start -= 1
                start -= 1
            tables.append(words[start])
    used = max((words.count(name) - tables.count(name) for name in tables), default=0)
    if len(tables) > MAX_WITH or used > MAX_USES:
        return f"WITH may have at most {MAX_WITH} tables, each used at most {MAX_USES} times"
    return ""


def unproved(query: str) -> str:
    """Why the rows of a query prove nothing about the traces; "" if they may.

    A literal may choose, compare, and say how to read a column. One that could come out in a cell is the word of who wrote the query.
    This finds plain forgery and not every way to compute a number: a reader sees the query beside its citation.
    """
    tokens = _tokens(query)
    names = {text.strip('"`[]') for kind, text in tokens if kind in ("word", "quoted")}
    if not names & {*COLUMNS}:
        return "it reads none of the tables"
    if names & {"recursive", "values"}:
        return "it makes rows of its own (RECURSIVE, VALUES)"
    known = {*COLUMNS, *(each for columns in COLUMNS.values() for each in columns)}
    brackets = [_Bracket("")]
    separators = 0
    for at, (kind, text) in enumerate(tokens):
        top = brackets[-1]
        before = tokens[at - 1] if at else ("", "")
        if kind == "sign":
            if text == "(":
                always = top.free or before[1] in ("in", "exists")
                brackets.append(_Bracket(before[1] if before[0] == "word" else "", free=always, always=always))
            elif text == ")" and len(brackets) > 1:
                brackets.pop()
            top.argument += text == ","
            if text == "," and top.joined:  # after the condition of a join comes the next table
                top.free, top.joined = top.always, False
        elif kind == "word":
            if len(text) > NAME_CHARS:
                return (
                    f"the name {clip(text, 40)} may be a text of its own; write names of at most {NAME_CHARS} letters"
                )
            if _is_name(tokens, at, top):
                return f"{text} is used as a name there, so what follows cannot be told from data"
            if text == "limit" and len(brackets) > 1 and not top.always:
                return "LIMIT in a subquery decides what is counted"
            if text == "case":
                top.cases.append(top.free)
            elif text == "end" and top.cases:
                top.free = top.cases.pop()
            elif before[1] == "as":
                pass  # a name
            elif text in _FREE or text in _SHOWN or text == "by":
                # `THEN` inside of a condition is still a condition.
                shown = text in _SHOWN and not (text in ("then", "else") and bool(top.cases) and top.cases[-1])
                top.free = top.always or not shown
                if not top.cases:
                    top.joined = text == "on"
        elif before[1] == "as" or kind == "quoted":
            name = text.strip("'\"`[]")
            if not re.fullmatch(rf"\w{{1,{NAME_CHARS}}}", name) or not (
                text[0] != '"' or before[1] == "as" or name in known
            ):
                return f"the name {clip(text, 40)} may be a text of its own; write names without quotes, of one word"
        elif not top.free and not _aside(tokens, at, top):
            separators += len(text) - 2
            short = kind == "text" and len(text) - 2 <= SEPARATOR_CHARS and not re.search(r"\d", text)
            if not short or separators > SEPARATORS_CHARS:
                return f"{clip(text, 40)} is no data, and could come out in its rows"
    return ""


def _is_name(tokens: Sequence[tuple[str, str]], at: int, top: _Bracket) -> bool:
    """Whether a word that frees the literals after it, or compares them, is a name here: SQLite takes it for one wherever it can be no
    keyword.
    """
    word = tokens[at][1]
    if word not in ("by", "like", "glob", "end"):
        return False
    before = [tokens[place] if place >= 0 else ("", "") for place in range(at - 1, at - 3, -1)]
    after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
    if before[0][1] in ("as", ".") or after == ".":
        return True
    if word == "by":
        window = before[0][1] == "partition" and before[1][1] == "(" and top.function in ("over", "as")
        return before[0][1] not in ("order", "group") and not window
    if word == "end" or after == "(":
        return False
    kind, text = before[0] if before[0][1] != "not" else before[1]
    return not kind or text in _BEFORE_NAMES or (kind == "sign" and text != ")")


def _aside(tokens: Sequence[tuple[str, str]], at: int, top: _Bracket) -> bool:
    """Whether a literal in a shown expression is compared, or says how to read a column, counts by one, or changes a unit."""
    around = [tokens[place] if 0 <= place < len(tokens) else ("", "") for place in range(at - 2, at + 3)]
    (first, _), (_, before), (kind, text), (_, after), (last, _) = around
    plain = text.removesuffix(".0")
    return (
        before in _COMPARE
        or before in ("->", "->>")
        or after in _COMPARE
        or top.argument >= _ASIDE.get(top.function, 99)
        or (top.function in ("lag", "lead") and top.argument == 1)
        or (top.function in _TIMES and kind == "text" and _TIME_FORM.fullmatch(text[1:-1]) is not None)
        or (before in ("then", "else") and plain in ("0", "1"))
        or (top.function in ("coalesce", "ifnull", "iif") and top.argument >= 1 and plain in ("0", "1"))
        or (top.function in ("sum", "count", "total") and (before, plain, after) == ("(", "1", ")"))
        or (
            plain in _UNITS
            and ((before in ("*", "/") and first != "number") or (after in ("*", "/") and last != "number"))
        )
    )


class _Watch:
    """Ends a query that takes too long or too much memory; `why` says so."""

    def __init__(self, seconds: float) -> None:
        run = deadline_in_force()
        self._seconds = seconds
        self._deadline = Deadline(SystemClock(), seconds) if run is None else run.sub(seconds)
        self._stop = self._deadline.stop
        self._began = _resident()
        self.why = ""

    def check(self) -> None:
        """Raise if the query is out of time; for what SQLite itself does not interrupt."""
        if self._deadline.expired() or self._stop.is_set():
            self.look()
            raise sqlite3.OperationalError(self.why)

    def look(self) -> int:
        """Whether SQLite is to end the query."""
        if self._deadline.expired() or self._stop.is_set():
            self.why = f"the query took more than {self._seconds:g} s; filter more, or join less"
        elif _resident() - self._began > QUERY_BYTES:
            self.why = f"the query needs more than {QUERY_BYTES >> 20} MiB; filter more, or join less"
        return bool(self.why)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _resident() -> int:
    """Bytes of memory of this process; 0 where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return 0


def _cell(value: Any) -> Any:
    """A value as JSON can hold it, long texts cut."""
    if isinstance(value, bytes):
        return f"<{len(value):,} bytes>"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return clip(value, CELL_CHARS) if isinstance(value, str) else value


def _told(error: BaseException) -> str:
    """SQLite's words, which name the mistake but not the way out."""
    said = str(error)
    if "one statement" in said:
        return f"one statement per call; allowed is {ALLOWED}"
    if "no such function" in said or "no such table" in said:
        return f"{said}; allowed is {ALLOWED}"
    if "too big" in said or "too long" in said or "too many" in said or "too large" in said:
        length, query = (LIMITS[each] for each in (sqlite3.SQLITE_LIMIT_LENGTH, sqlite3.SQLITE_LIMIT_SQL_LENGTH))
        return f"{said}: a text may have {length:,} bytes and a query {query:,}"
    return f"{said}; the tables are {', '.join(COLUMNS)}, and a row of one shows its columns"
