"""Text that is cheap to write and dear to read: in answers, in traces, in what tools return."""

from __future__ import annotations

import json
import time

import pytest
from victim import Victim

from sonde.api.ask_run import ask
from sonde.contexts.configs import ConfigSnapshots
from sonde.contexts.workspace.reach import outer_git
from sonde.runtime.feedback import was_shown
from sonde.testing import ScriptedModel

ANSWERS = {
    "fences": "'`' * 60_000",
    "tildes": "'~' * 60_000 + 'mermaid'",
    "pictures": "'![' * 40_000",
    "breaks": "'![a](b)' + '\\\\\\n' * 60_000 + 'x'",
    "citations": "'[a.txt:1,' * 20_000",
}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def test_whether_thousands_of_cited_lines_were_shown_is_found_in_time() -> None:
    lines = [f"request {number} of worker\t{number % 13}" for number in range(60_000)]
    printed = "".join(f"{number}: {line!r}\n" for number, line in enumerate(lines))
    began = time.process_time()

    assert was_shown("\n".join(lines), printed)
    assert not was_shown("\n".join([*lines, "request none"]), printed)
    assert was_shown("\n".join(lines[60:0:-30]), printed)
    assert not was_shown(lines[-1], printed, late=lambda: True)
    assert time.process_time() - began < 10  # it was a minute


@pytest.mark.hostile_long
def test_answers_made_of_markup_are_written_in_time(victim: Victim) -> None:
    victim.write("a.txt", "one\n")
    for name, answer in ANSWERS.items():
        model = victim.model("print(read_file('a.txt'))", f"FINAL({answer} + ' one [a.txt:1-1]')")

        done = victim.sonde("ask", "What is it?", ".", "--model", model.name, "--runs-dir", victim.own / name, "--json")

        assert done.returncode == 0, (name, done.stderr)
        assert json.loads(done.stdout)["status"] in ("succeeded", "partial")


@pytest.mark.hostile_long
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


@pytest.mark.hostile_long
def test_a_trace_that_is_dear_to_look_for_facts_in_is_judged_in_time(victim: Victim) -> None:
    rules = "Here are the team members that you can call:\n- abc: x\n"
    roots: list[tuple[int | None, dict[str, object]]] = [
        (None, {"openinference.span.kind": "AGENT", "input.value": "the task"})
    ]
    quotes = [(1, _call("```python\nprint " + '\\"' * 9_900, rules))] * 20
    tools = [(1, _call("done", rules + "- a:\n" * 400_000))]
    words = [" ".join(f"w{(at * 7919 + word) % 90_001}" for word in range(3_000)) for at in range(200)]
    finds = [(1, {"openinference.span.kind": "TOOL", "tool.name": "find", "input.value": text}) for text in words]
    before = len(roots) + len(quotes) + len(tools) + len(finds)
    nested = [(before + at if at else 1, {"openinference.span.kind": "AGENT"}) for at in range(400)]
    said = [(before + 1 + at, _call(f"words {at} " * 20, "")) for at in (*range(400), *range(399, -1, -1))]
    spans = [
        {
            "trace_id": TRACE,
            "span_id": f"{number:016x}",
            "parent_id": None if parent is None else f"{parent:016x}",
            "name": f"span {number}",
            "start_time": 1_760_000_000_000_000_000 + number * 1_000,
            "end_time": 1_760_000_000_000_000_000 + number * 1_000 + 5,
            "status_code": "OK",
            "attributes": attributes,
        }
        for number, (parent, attributes) in enumerate([*roots, *quotes, *tools, *finds, *nested, *said], 1)
    ]
    victim.write("traces.jsonl", "".join(json.dumps(span) + "\n" for span in spans))

    done = victim.sonde(
        "rca", TRACE, "--source", "traces.jsonl", "--taxonomy", "sonde", "--runs-dir", victim.own, "--json"
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["report"]["coverage"]["steps"] == len(spans) - 401


def _call(said: str, rules: str) -> dict[str, object]:
    return {
        "openinference.span.kind": "LLM",
        "llm.input_messages": [{"message": {"role": "system", "content": rules}}],
        "llm.output_messages": [{"message": {"role": "assistant", "content": said}}],
    }


ALIKE = "".join(f"{'a' if number % 2 else 'b'}\n" for number in range(199))
OTHER = "".join(f"{'b' if number % 3 else 'a'}\n" for number in range(199))


@pytest.mark.hostile_long
def test_config_snapshots_whose_lines_repeat_are_compared_in_time(victim: Victim) -> None:
    for tag, created, text in (("one", "2025-10-01", ALIKE), ("two", "2025-10-02", OTHER)):
        victim.write(f"configs/{tag}/metadata.json", json.dumps({"created_at": f"{created}T00:00:00Z"}))
        for number in range(100):
            victim.write(f"configs/{tag}/{number}.yaml", text)
    configs = ConfigSnapshots(victim.folder / "configs", project_name="shop")
    first, second = (str(row["snapshot_id"]) for row in configs.list_config_snapshots("shop"))

    seen = configs.get_config_diff(first, second)

    assert len(seen.value["paths"]) == 100
    assert configs.reread(seen.excerpts[0]) == configs.reread(seen.excerpts[0])


def test_two_answers_whose_lines_repeat_are_compared_in_time(victim: Victim) -> None:
    for text in (ALIKE * 30, OTHER * 30):
        ask("?", model=ScriptedModel([f"FINAL({text!r})"]), runs_dir=victim.own, citations=False)

    shown = victim.call("diff", *sorted(victim.own.iterdir()), "--runs-dir", victim.own)

    assert shown.returncode in (0, 1) and "@@" in shown.stdout


def test_the_settings_of_a_planted_submodule_are_read_in_time(victim: Victim) -> None:
    victim.write("history/config", "\n" * 1_000_000)
    victim.write("part/.git", f"gitdir: {victim.folder / 'history'}\n")

    assert outer_git(victim.folder / "part") == []
