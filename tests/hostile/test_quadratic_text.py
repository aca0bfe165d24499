"""Text that is cheap to write and dear to read: in answers, in traces, in what tools return."""

from __future__ import annotations

import json

import pytest
from victim import Victim

ANSWERS = {
    "fences": "'`' * 60_000",
    "tildes": "'~' * 60_000 + 'mermaid'",
    "pictures": "'![' * 40_000",
    "breaks": "'![a](b)' + '\\\\\\n' * 60_000 + 'x'",
    "citations": "'[a.txt:1,' * 20_000",
}
TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.hostile_long
def test_answers_made_of_markup_are_written_in_time(victim: Victim) -> None:
    victim.write("a.txt", "one\n")
    for name, answer in ANSWERS.items():
        model = victim.model("print(read_file('a.txt'))", f"FINAL({answer} + ' one [a.txt:1-1]')")

        done = victim.sonde("ask", "What is it?", ".", "--model", model.name, "--runs-dir", victim.own / name, "--json")

        assert done.returncode == 0, (name, done.stderr)
        assert json.loads(done.stdout)["status"] in ("succeeded", "partial")


def test_a_trace_of_tools_that_return_blank_lines_is_judged_in_time(victim: Victim) -> None:
    spans = [
        {
            "trace_id": TRACE,
            "span_id": f"{number:016x}",
            "parent_id": None if number == 1 else f"{1:016x}",
            "name": f"tool {number}",
            "start_time": 1_760_000_000_000_000_000 + number,
            "end_time": 1_760_000_000_000_000_000 + number + 5,
            "status_code": "OK",
            "attributes": {"openinference.span.kind": "TOOL", "tool.name": "t", "output.value": "\n" * 4_000 + "x"},
        }
        for number in range(1, 401)
    ]
    victim.write("traces.jsonl", "".join(json.dumps(span) + "\n" for span in spans))

    done = victim.sonde("rca", TRACE, "--source", "traces.jsonl", "--runs-dir", victim.own, "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] in ("succeeded", "partial")
