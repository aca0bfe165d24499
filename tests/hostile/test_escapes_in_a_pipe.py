"""Text of a stranger with escape sequences, on its way through a pipe (to `less -R`, to a log that somebody prints): none arrives."""

from __future__ import annotations

import json
import re

import pytest
from victim import Victim

EVIL = "\x1b[31m\x1b]52;c;eA==\x07\x9b31m\x7f\u202e"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
TRACE = "a" * 32
SPAN = {
    "name": f"tool{EVIL}",
    "context": {"trace_id": TRACE, "span_id": "b" * 16},
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "span_kind": "TOOL",
    "status_code": "ERROR",
    "status_message": f"boom{EVIL}",
    "attributes": {f"key{EVIL}": f"value{EVIL}", "input.value": f"in{EVIL}"},
    "events": [{"name": "exception", "timestamp": "2026-01-01T00:00:00Z", "attributes": {"exception.message": EVIL}}],
    "project_name": f"p{EVIL}",
}
SOURCE = ("--source", "t.jsonl")
COMMANDS = {
    "traces ls": ("traces", "ls", *SOURCE),
    "traces show": ("traces", "show", TRACE, *SOURCE),
    "traces show --json": ("traces", "show", TRACE, *SOURCE, "--json"),
    "traces overview": ("traces", "overview", *SOURCE),
    "traces search": ("traces", "search", "boom", *SOURCE),
    "rca": ("rca", TRACE, *SOURCE),
    "rca --json": ("rca", TRACE, *SOURCE, "--json"),
    "comply": ("comply", TRACE, *SOURCE),
    "incident": ("incident", *SOURCE),
    "an unknown trace": ("rca", f"zz{EVIL}", *SOURCE),
    "ask": ("ask", f"service{EVIL}?", "."),
    "ask --json": ("ask", f"service{EVIL}?", ".", "--json"),
    "ask --source": ("ask", "boom?", *SOURCE),
    "ask --source --json": ("ask", "boom?", *SOURCE, "--json"),
    "an unknown path": ("ask", "q", f"nope{EVIL}"),
    "an unknown run": ("runs", "show", f"x{EVIL}"),
    "a manifest": ("batch", "bad.jsonl"),
    "an unknown command": (f"nonsense{EVIL}",),
    "an unknown flag": ("ask", f"--nope{EVIL}"),
    "a wrong value": ("ask", "q", "--max-iterations", f"x{EVIL}"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_no_control_character_reaches_a_pipe(victim: Victim, name: str) -> None:
    victim.write("t.jsonl", json.dumps(SPAN) + "\n")
    victim.write(f"f{EVIL.replace('/', '')}.txt", f"the service is payments{EVIL}\n")
    victim.write("bad.jsonl", json.dumps({"id": f"x{EVIL}", "engine": f"n{EVIL}"}) + "\n")
    place = () if name.startswith(("traces", "an unknown command")) else ("--runs-dir", victim.own)

    done = victim.call(*COMMANDS[name], *place)

    for text in (done.stdout, done.stderr):
        assert CONTROLS.search(text) is None, text
    if "--json" in COMMANDS[name]:
        json.loads(done.stdout)


def test_the_answer_of_a_model_and_all_that_shows_it(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    model = victim.model(
        "print(read_file('notes.txt'))", f"FINAL('payments{EVIL.encode('unicode_escape').decode()} [notes.txt:1-1]')"
    )
    ask = ("ask", "Which service?", "notes.txt", "--model", model.name, "--runs-dir", victim.own)

    shown = [victim.call(*ask)]
    shown += [
        victim.call(*words, "--runs-dir", victim.own)
        for words in (("runs",), ("runs", "show", "last"), ("diff", "last", "last"), ("replay", "last"))
    ]

    assert all(each.returncode == 0 for each in shown), shown
    assert "payments" in shown[0].stdout
    assert not any(CONTROLS.search(each.stdout + each.stderr) for each in shown)


FORGED = "x\nsonde: all is well\u2028note: trust this\r\x85"


@pytest.mark.parametrize(
    "words", [("ls",), ("show", "plain"), ("search", "boom"), ("overview",), ("ask", "boom?")], ids=" ".join
)
def test_no_name_in_a_trace_begins_a_line_of_its_own(victim: Victim, words: tuple[str, ...]) -> None:
    other = {"context": {"trace_id": FORGED, "span_id": FORGED}, "name": FORGED, "span_kind": FORGED}
    plain = {"context": {"trace_id": "plain", "span_id": f"p{FORGED}"}, "project_name": FORGED}
    spans = [SPAN | other, SPAN | other | plain]
    victim.write("t.jsonl", "".join(json.dumps(span | {"project_name": FORGED}) + "\n" for span in spans))

    done = victim.call(*(words if words[0] == "ask" else ("traces", *words)), *SOURCE)

    assert done.returncode == 0, done.stderr
    lines = (done.stdout + done.stderr).splitlines()
    assert not any(line.strip().startswith(("sonde:", "note: trust")) for line in lines), lines


@pytest.mark.parametrize(
    "text",
    [
        '[models."x\\nsonde: all is well"]\nname = "openai:x"',
        '[models."x\\nsonde: all is well"]',
        '"x\\nsonde: all is well" = 1',
    ],
)
def test_no_name_in_a_sonde_toml_begins_a_line_of_its_own(victim: Victim, text: str) -> None:
    victim.write("sonde.toml", text)

    done = victim.call("config")

    assert "all is well" in done.stdout + done.stderr
    assert not any(line.startswith("sonde: all") for line in (done.stdout + done.stderr).splitlines())


def test_an_exported_trace_holds_no_control_character(victim: Victim) -> None:
    victim.write("t.jsonl", json.dumps(SPAN) + "\n")

    done = victim.call("traces", "export", TRACE, *SOURCE)

    assert done.returncode == 0 and json.loads(done.stdout)
    assert CONTROLS.search(done.stdout) is None
