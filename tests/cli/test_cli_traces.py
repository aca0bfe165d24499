"""`sonde rca`, `comply`, `incident`, `publish` and `traces` as people type them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from cli_program import sonde

from sonde.bench import origin30
from sonde.bench.seeded import generate
from sonde.testing import ScriptedServer, SeenRequest

FIRST, SECOND = origin30.trace_id(0), origin30.trace_id(1)
TOOL = f"{2:016x}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "traces.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in origin30.spans()))
    return tmp_path


def test_json_is_exactly_the_four_fields(folder: Path) -> None:
    shown = sonde("rca", FIRST, "--source", "traces.jsonl", "--json", cwd=folder)

    assert shown.returncode == 0, shown.stderr
    told = json.loads(shown.stdout)
    assert set(told) == {"report", "annotator_kind", "status", "run_dir"}
    assert (told["report"]["primary_label"], told["annotator_kind"], told["status"]) == (
        "tool_failure",
        "CODE",
        "partial",
    )
    assert (folder / told["run_dir"] / "report.md").is_file()
    assert shown.stderr == ""


def test_several_traces_are_one_run_and_one_line_each(folder: Path) -> None:
    shown = sonde("comply", FIRST, SECOND, FIRST, "--source", "traces.jsonl", "--controls", "v1", "--json", cwd=folder)

    told = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [line["report"]["overall_verdict"] for line in told] == ["non_compliant", "needs_review"]
    assert len({line["run_dir"] for line in told}) == 2


@pytest.mark.long
def test_a_failed_control_is_exit_code_3_if_one_asks_for_that(folder: Path) -> None:
    def code(*words: str, trace: str = FIRST) -> int:
        return sonde("comply", trace, "--source", "traces.jsonl", *words, cwd=folder).returncode

    mild = ("--override", "execution.hard_failures=pass", "--reason", "a drill")
    assert (code(), code("--fail-on", "fail"), code("--fail-on", "review")) == (0, 3, 3)
    assert (code("--fail-on", "fail", trace=SECOND), code("--fail-on", "review", trace=SECOND)) == (0, 3)
    assert code("--fail-on", "pass") == 2
    assert code("--fail-on", "fail", *mild) == 0


def test_a_verdict_of_a_person_is_named_with_the_one_it_replaces(folder: Path) -> None:
    words = ("--override", "execution.hard_failures=pass", "--reason", "a planned drill")
    shown = sonde("comply", FIRST, "--source", "traces.jsonl", *words, cwd=folder)

    assert "1 verdict by a person." in shown.stdout
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("| execution.hard")]
    assert "| pass | by a person | a planned drill. Before that it was fail, by rule, " in row
    assert "judged by HUMAN (1 verdict) · " in shown.stderr


def test_broken_lines_are_counted_and_named_by_whoever_reads_the_file(folder: Path) -> None:
    with (folder / "traces.jsonl").open("a") as file:
        file.write('{"broken\n[]\n')
    lines = len((folder / "traces.jsonl").read_text().splitlines())
    told = f"2 malformed records skipped (traces.jsonl:{lines - 1}, traces.jsonl:{lines})"

    for words in (("traces", "ls"), ("traces", "overview"), ("traces", "show", FIRST)):
        assert f"gap: {told}" in sonde(*words, "--source", "traces.jsonl", cwd=folder).stderr
    for words in (("rca", FIRST), ("comply", FIRST), ("incident",)):
        assert told in sonde(*words, "--source", "traces.jsonl", cwd=folder).stdout


def test_the_labels_beside_seeded_traces_are_no_broken_spans(folder: Path) -> None:
    (folder / "seeded").mkdir()
    generate(4).write(folder / "seeded/traces.jsonl", folder / "seeded/manifest.json")

    assert "malformed" not in sonde("traces", "ls", "--source", "seeded", cwd=folder).stderr


def test_the_beginning_of_an_id_is_enough_to_show_search_and_export_a_trace(folder: Path) -> None:
    file, named = folder / "traces.jsonl", "128b2f33" + "0" * 24
    file.write_text(file.read_text().replace(FIRST, named))
    source = ("--source", "traces.jsonl")

    shown = sonde("traces", "show", "128b2f33", *source, cwd=folder).stdout
    assert shown and shown == sonde("traces", "show", named, *source, cwd=folder).stdout
    assert named in sonde("traces", "search", "timeout", "--trace", "128b", *source, cwd=folder).stdout
    assert named in sonde("traces", "export", "128b", *source, cwd=folder).stdout
    unclear = sonde("traces", "show", "0000", *source, cwd=folder)
    assert (unclear.returncode, "29 traces begin with 0000" in unclear.stderr) == (2, True)


def test_a_model_drives_it_and_the_report_is_markdown(folder: Path) -> None:
    look = {"reasoning": "look", "code": f"print(get_span('{TOOL}')['summary'], get_tool_io('{TOOL}'))"}
    refs = f"[{{'kind': 'SPAN', 'ref': '{TOOL}'}}, {{'kind': 'TOOL_IO', 'ref': 'tool:{TOOL}'}}]"
    submit = f"SUBMIT(primary_label='tool_failure', summary='it timed out', confidence=0.8, evidence_refs={refs})"
    with ScriptedServer([json.dumps(look), json.dumps({"reasoning": "done", "code": submit})]) as server:
        env = {"OPENAI_API_KEY": "sk-planted-never-shown", "OPENAI_BASE_URL": server.base_url}
        shown = sonde("rca", FIRST, "--source", "traces.jsonl", cwd=folder, **env)

    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith(
        f"# Root cause of `{FIRST}`\n\n**Tool failure** (confidence 0.50, judged by a model): it timed out\n"
    )
    assert "judged by LLM · succeeded · 2 turns" in shown.stderr
    assert "sk-planted" not in shown.stdout + shown.stderr


def test_a_limit_of_a_sub_call_is_told_as_a_gap(folder: Path) -> None:
    where = "{'trace_id': trace_id, 'candidate_label': 'tool_failure'}"
    delegate = f"print(delegate_batch([{{'objective': 'Test: the tool failed', 'context': {where}}}]))"
    refs = f"[{{'kind': 'SPAN', 'ref': '{TOOL}'}}]"
    submit = f"get_span('{TOOL}')\nSUBMIT(primary_label='tool_failure', summary='it timed out', confidence=0.4, evidence_refs={refs})"
    root = iter([delegate, submit, submit])

    def reply(seen: SeenRequest) -> str:
        child = "and only that one" in seen.body["messages"][0]["content"]
        return json.dumps({"reasoning": "r", "code": "print('looking')" if child else next(root)})

    with ScriptedServer(reply) as server:
        env = {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": server.base_url}
        shown = sonde("rca", FIRST, "--source", "traces.jsonl", "--max-iterations", "9", cwd=folder, **env)

    assert shown.returncode == 0, shown.stderr
    assert "gap: sub-call root/1.1.0 reached a limit: max_iterations" in shown.stderr


def test_an_incident_with_a_window_and_its_filter(folder: Path) -> None:
    words = ("--project", "origin30", "--from", "2026-01-01T00:00Z", "--to", "2026-01-01T00:05Z", "--json")
    shown = sonde("incident", "--source", "traces.jsonl", *words, cwd=folder)

    report = json.loads(shown.stdout)["report"]
    assert len(report["representative_traces"]) == 5
    times = [event["timestamp"] for event in report["timeline"]]
    assert times == sorted(times)


@pytest.mark.requirement(93)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("rca", FIRST, "--max-iterations", "61"), "contract's maximum of 60"),
        (("comply", FIRST, "--max-wall-time-sec", "301"), "contract's maximum of 300"),
        (("rca", "nope"), "has no trace 'nope'"),
        (("comply", FIRST, "--controls", "v9"), "versions: "),
        (("rca", FIRST, "--taxonomy", "nope"), "no taxonomy 'nope'"),
        (("incident", "--from", "yesterday"), "2026-11-01T12:00:00Z"),
        (("incident", "--filter", "import os"), "filter refused"),
        (("incident", "--from", "2030-01-01T00:00Z"), "no trace lies in this window"),
        (("traces", "ls", "--filter", "x ("), "filter refused"),
        (("traces", "show", "nope"), "`sonde traces ls` lists them"),
        (("traces", "export", FIRST, "-o", "traces.jsonl"), "File exists"),
    ],
)
def test_what_is_wrong_is_named_and_the_exit_code_is_two(folder: Path, words: tuple[str, ...], said: str) -> None:
    shown = sonde(*words, "--source", "traces.jsonl", cwd=folder)

    assert (shown.returncode, shown.stdout) == (2, "")
    assert said in shown.stderr


def test_publish_says_where_annotations_of_files_are(folder: Path) -> None:
    sonde("rca", FIRST, "--source", "traces.jsonl", "--no-writeback", cwd=folder)
    shown = sonde("publish", "last", cwd=folder)

    assert shown.returncode == 2
    assert "annotations.jsonl" in shown.stderr


def test_traces_can_be_looked_at_and_taken_along(folder: Path) -> None:
    source = ("--source", "traces.jsonl")
    assert "30 traces, 60 spans" in sonde("traces", "import", "traces.jsonl", cwd=folder).stdout
    listed = json.loads(sonde("traces", "ls", *source, "--limit", "2", "--json", cwd=folder).stdout)
    assert [row["trace_id"] for row in listed["traces"]] == [FIRST, SECOND] and listed["more"]
    assert "x   TOOL tool.call" in sonde("traces", "show", FIRST, *source, cwd=folder).stdout
    hits = json.loads(sonde("traces", "search", "time.?out", "--trace", FIRST, *source, "--json", cwd=folder).stdout)
    assert [hit["span_id"] for hit in hits["hits"]] == [TOOL]
    assert "forced tool timeout" in sonde("traces", "search", "forced timeout", *source, cwd=folder).stdout
    table = sonde("traces", "ls", *source, "--limit", "2", cwd=folder).stdout.splitlines()
    assert table[0].split() == ["TRACE", "STARTED", "SPANS", "ERRORS", "OUTCOME", "MS"]
    assert [row.split()[0] for row in table[1:]] == [FIRST, SECOND]
    glance = sonde("traces", "overview", *source, "--limit", "100", cwd=folder).stdout
    assert glance.startswith("30 traces, ") and re.search(r"^TOOL +16$", glance, re.MULTILINE)
    assert re.search(r"^ERRORS  SPAN +FIRST +IN TRACE +MESSAGE\n +\d+  tool.call ", glance, re.MULTILINE)
    exported = sonde("traces", "export", FIRST, *source, "-o", "one.jsonl", cwd=folder)
    assert exported.returncode == 0, exported.stderr
    again = json.loads(sonde("rca", FIRST, "--source", "one.jsonl", "--json", cwd=folder).stdout)
    assert again["report"]["primary_label"] == "tool_failure"


def test_a_list_of_traces_says_what_failed_how_to_go_on_and_where_traces_lie(folder: Path) -> None:
    source = ("--source", "traces.jsonl")
    listed = sonde("traces", "ls", *source, "--limit", "2", cwd=folder)
    flags = listed.stderr.partition("go on with ")[2].replace("'", "").split()
    rest = json.loads(sonde("traces", "ls", *source, *flags, "--json", cwd=folder).stdout)
    recent = sonde("traces", "ls", *source, "--last", "5m", cwd=folder)
    part = sonde("traces", "overview", *source, "--limit", "2", cwd=folder)

    assert flags == ["--after", SECOND] and len(rest["traces"]) == 28
    assert [row.split()[3] for row in listed.stdout.splitlines()[1:]] == ["1", "0"]
    assert recent.stderr.startswith("0 traces; traces began between 20")
    assert part.stdout.startswith("the first 2 traces, 2 failed")


def test_runs_of_investigations_replay_from_the_command_line(folder: Path) -> None:
    sonde("comply", FIRST, "--source", "traces.jsonl", cwd=folder)
    shown = sonde("replay", "last", cwd=folder)

    assert shown.returncode == 0, shown.stderr
    assert "every hash is the same" in shown.stdout


def test_an_export_that_fails_leaves_no_file_behind_and_can_be_repeated(folder: Path) -> None:
    words = ("traces", "export", FIRST, "nope", "--source", "traces.jsonl", "-o", "out.jsonl")

    refused = sonde(*words, cwd=folder)
    again = sonde(*(word for word in words if word != "nope"), cwd=folder)

    assert (refused.returncode, again.returncode) == (2, 0), (refused.stderr, again.stderr)
    assert len((folder / "out.jsonl").read_text().splitlines()) == 2


def test_runs_are_listed_by_the_name_of_their_command_and_an_unknown_type_is_refused(folder: Path) -> None:
    sonde("incident", "--source", "traces.jsonl", cwd=folder)

    listed = [
        len(json.loads(sonde("runs", "--type", name, "--json", cwd=folder).stdout)["runs"])
        for name in ("incident", "incident_dossier", "comply")
    ]
    refused = sonde("runs", "--type", "incidents", cwd=folder)

    assert listed == [1, 1, 0]
    assert refused.returncode == 2 and "--type incidents: one of ask, rca" in refused.stderr


def test_a_trace_that_is_not_there_keeps_no_other_back(folder: Path) -> None:
    shown = sonde("rca", "nope", FIRST, "--source", "traces.jsonl", "--json", cwd=folder)
    report, refusal = map(json.loads, shown.stdout.splitlines())

    assert shown.returncode == 2
    assert report["report"]["trace_id"] == FIRST
    assert "has no trace 'nope'" in refusal["error"]["message"]


def test_a_window_may_be_the_last_hours(folder: Path) -> None:
    recent = sonde("traces", "ls", "--source", "traces.jsonl", "--last", "1h", "--json", cwd=folder)
    long_ago = sonde("traces", "ls", "--source", "traces.jsonl", "--since", "20000d", "--json", cwd=folder)
    both = sonde("incident", "--source", "traces.jsonl", "--since", "1h", "--from", "2026-01-01T00:00Z", cwd=folder)

    assert json.loads(recent.stdout)["traces"] == []
    assert len(json.loads(long_ago.stdout)["traces"]) == 30
    assert (both.returncode, "give one of them" in both.stderr) == (2, True)
