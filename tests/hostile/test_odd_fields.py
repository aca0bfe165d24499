"""Every field that a server of traces sends, with values that JSON allows and nobody expects: a command ends with a line, never with a
traceback.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from victim import Victim

from contexts.traces import trace_servers as servers
from contexts.traces.trace_servers import KEYS, Asked, Reply, serving
from watch.watch_scene import Fault, append, trace, traffic

SERVERS: dict[str, Callable[[Asked], Reply]] = {
    "phoenix": servers.phoenix,
    "langfuse": servers.langfuse,
    "langfuse 3": servers.langfuse_v3,
    "langsmith": servers.langsmith,
    "langsmith 2": servers.langsmith_v2,
}
ODD = [  # as they stand in JSON
    *('""', '"\\ud800"', '"\\u0000\\u001b[2J\\u202e\\r\\nX: y"', f'"{"x" * 70_000}"', '"../../.."', '"-1"', '"1e999"', '"NaN"'),
    *("null", "true", "-1", "0", "1e308", "-1e308", "1e999", "NaN", "-Infinity", "9" * 25, "9" * 400, "9" * 5000, "0.1e-400"),
    *("[]", "{}", "[[]]", '[{"x": []}]', '{"x": {}}', "[null]", '["\\ud800"]', '{"\\ud800": 1}'),
    *('"0001-01-01T00:00:00+14:00"', '"9999-12-31T23:59:59.999999-14:00"', '"2026-13-45"', '"١٢"', '"99999999999999999999"'),
]  # fmt: skip
MARK = "the-odd-one"


def with_field(value: Any, field: str) -> Any:
    """The reply, with the mark in the place of every field of this name."""
    match value:
        case dict():
            fields = cast("dict[str, Any]", value)
            return {name: MARK if name == field else with_field(item, field) for name, item in fields.items()}
        case list():
            return [with_field(item, field) for item in cast("list[Any]", value)]
        case _:
            return value


def fields_of(value: Any) -> Iterator[str]:
    match value:
        case dict():
            fields = cast("dict[str, Any]", value)
            yield from fields
            yield from fields_of(list(fields.values()))
        case list():
            for item in cast("list[Any]", value):
                yield from fields_of(item)
        case _:
            pass


def odd(honest: Callable[[Asked], Reply], field: str, value: str) -> Callable[[Asked], Reply]:
    def answer(asked: Asked) -> Reply:
        status, reply, *_ = honest(asked)
        return status, json.dumps(with_field(reply, field)).replace(f'"{MARK}"', value).encode()

    return answer


def commands(server: str, url: str, victim: Victim) -> dict[str, list[str]]:
    source = [f"--source={server.split(maxsplit=1)[0]}:{url}", f"--project={servers.PROJECT}"]
    ids = servers.uuids if server.startswith("langsmith") else servers.hex_ids
    runs = [f"--runs-dir={victim.own}"]
    return {
        "ls": ["traces", "ls", *source],
        "show": ["traces", "show", ids(servers.STEPS[3])[0], *source],
        "rca": ["rca", ids(servers.STEPS[3])[0], *source, *runs],
        "incident": ["incident", *source, *runs],
        "ask": ["ask", "Why do checkouts fail?", *source, *runs],
        "watch": ["watch", "--once", *source, f"--state={victim.own / 'state'}"],
    }


def sent_fields(victim: Victim, server: str) -> list[str]:
    """The fields of every reply to these commands."""
    sent: set[str] = set()

    def watched(asked: Asked) -> Reply:
        status, reply, *_ = SERVERS[server](asked)
        sent.update(fields_of(reply))
        return status, reply

    with serving(watched) as (url, _):
        for words in commands(server, url, victim).values():
            assert "Traceback" not in victim.call(*words).stderr
    return sorted(sent)


@pytest.mark.hostile_long
@pytest.mark.parametrize("server", SERVERS)
def test_a_field_with_an_odd_value_ends_no_command_with_a_traceback(victim: Victim, server: str) -> None:
    victim.environ = KEYS
    names = sent_fields(victim, server)
    chosen = random.Random(9)
    for _ in range(40):
        field, value = chosen.choice(names), chosen.choice(ODD)
        with serving(odd(SERVERS[server], field, value)) as (url, _):
            name, words = chosen.choice(list(commands(server, url, victim).items()))
            done = victim.call(*words)
        said = done.stdout + done.stderr
        assert "Traceback" not in said and "UNEXPECTED_RUNTIME_ERROR" not in said, (
            name,
            field,
            value[:40],
            said[-2000:],
        )


@pytest.mark.hostile_long
@pytest.mark.parametrize("command", ["ls", "ask", "incident"])
@pytest.mark.parametrize(
    ("server", "field"), [("langfuse", "traceId"), ("langsmith", "trace_id"), ("phoenix", "trace_id")]
)
def test_half_a_character_in_an_id_is_written_as_an_escape(
    victim: Victim, server: str, field: str, command: str
) -> None:
    victim.environ = KEYS
    with serving(odd(SERVERS[server], field, '"\\ud800"')) as (url, _):
        done = victim.call(*commands(server, url, victim)[command])

    assert "Traceback" not in done.stderr and "UNEXPECTED_RUNTIME_ERROR" not in done.stderr, done.stderr


@pytest.mark.parametrize("late", ["9999-12-31T23:59:59.999999Z", 2**62 * 1000 - 1000, -(2**61) * 1000])
def test_a_trace_beyond_all_years_does_not_hide_the_others_from_an_incident(victim: Victim, late: str | int) -> None:
    spans = [*traffic(12, 60, [Fault(step="charge_card", text="ledger down", begin=0, end=1e9)]), trace(99, 0)]
    spans[-1] = [{**span, "start_time": late, "end_time": late} for span in spans[-1]]
    append(victim.folder / "traces.jsonl", spans)

    done = victim.call("incident", "--source", "traces.jsonl", "--runs-dir", victim.own, "--json")

    assert done.returncode == 0, done.stderr
    assert "ledger down" in done.stdout
    years = re.findall(r'"(?:start|end|timestamp|first_seen|last_seen)": "(.{11})', done.stdout)
    assert years
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT", year) for year in years)
