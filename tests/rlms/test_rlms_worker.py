"""The worker over real programs: values, citations, helpers, and faults that go back to the root model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rlms_loop import CITED, Loop, fenced


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


@pytest.mark.requirement(32)
@pytest.mark.requirement(34)
@pytest.mark.requirement(45)
def test_a_root_and_a_sub_call_program_lead_to_a_result_with_highlights_and_proved_citations(loop: Loop) -> None:
    code = """\
text = read_file("src/a.py", 1, 2)
append_highlight("kept by the helper")
add_citation("src/a.py", 1, 2, "retry")
said = sub_rlm("What is this?\\n" + text)
set_final({"highlights": [said], "citations": [{"path": "src/a.py", "start_line": 2, "end_line": 2, "signal": "call"}]})"""
    root, sub = loop.replies("root", [fenced(code)]), loop.replies("sub", ["a payment function\n"])

    result = loop.work(root, subcall_command_json=sub.command)

    assert result["ok"] is True
    assert result["highlights"] == ["kept by the helper", "a payment function"]
    assert [(c["path"], c["start_line"], c["end_line"], c["signal"]) for c in result["citations"]] == [
        ("src/a.py", 1, 2, "retry"),
        ("src/a.py", 2, 2, "call"),
    ]
    assert result["citations"][1]["snippet"] == "return retry(n)"
    assert result["stats"]["step_count"] == 1
    assert result["stats"]["subcall_count"] == 1
    assert [(row["type"], row["returncode"]) for row in result["trace"]] == [("root", 0), ("subcall", 0)]
    assert "def pay(n)" in sub.prompt(1)


def row(path: str, line: int, text: str) -> dict[str, Any]:
    """A row of grep, as the worker's origin has it, beside our own line and text."""
    place = {"path": path, "start_line": line, "end_line": line, "signal": "regex_match", "snippet": text.strip()}
    return place | {"line": line, "text": text}


@pytest.mark.requirement(33)
def test_the_helpers_have_their_defaults(loop: Loop) -> None:
    code = """\
found = {
    "files": list_files(),
    "whole": read_file("b.txt"),
    "lines": read_file("b.txt", 2, 2),
    "grep": grep("RETRY", flags="i"),
    "one_file": grep("o", path="b.txt", max_matches=1),
    "slice": slice_text("abcdef", 1, 3),
    "rest": slice_text("abcdef", 4),
    "context": CONTEXT["b.txt"],
}
add_citation("b.txt", 1, 1)
set_final(found)"""
    root = loop.replies("root", [code])

    result = loop.work(root)

    assert result["final"] == {
        "files": ["b.txt", "src/a.py"],
        "whole": "one\ntwo",
        "lines": "two",
        "grep": [row("src/a.py", 2, "    return retry(n)")],
        "one_file": [row("b.txt", 1, "one")],
        "slice": "bc",
        "rest": "ef",
        "context": "one\ntwo\n",
    }
    assert result["citations"][0]["signal"] == "reference"


@pytest.mark.requirement(33)
def test_grep_gives_80_rows_unless_asked_for_up_to_500(loop: Loop) -> None:
    (loop.repo / "b.txt").write_text("x\n" * 600)
    counted = "add_citation('b.txt', 1, 1)\nset_final([len(grep('x', max_matches=n)) for n in (80, 500, 501, 0)])"

    result = loop.work(loop.replies("root", [counted]))

    assert result["final"] == [80, 500, 500, 1]


@pytest.mark.requirement(38)
@pytest.mark.parametrize(
    ("code", "word"),
    [
        ("import os", "import"),
        ("from os import path", "import"),
        ("x = CONTEXT.data", ".data"),
        ("class A:\n    pass", "class"),
        ("with x:\n    pass", "with"),
        ("async def f():\n    pass", "async"),
        ("try: x = 1\nexcept: x = 2", "except"),
        ("x = __name__", "underscore"),
        ("eval('1')", "eval"),
        ("llm_query('x')", "llm_query"),
    ],
)
def test_what_the_strict_profile_blocks_goes_back_with_its_line_and_the_run_goes_on(
    loop: Loop, code: str, word: str
) -> None:
    root = loop.replies("root", [fenced(f"x = 1\n{code}"), fenced(CITED)])

    result = loop.work(root)

    assert result["ok"] is True
    told = root.prompt(2).rpartition("ASSISTANT (your earlier reply)")[2]
    assert "gate (line " in told
    assert word in told
    assert "Step 2/4" in told


@pytest.mark.requirement("O9")
@pytest.mark.parametrize("code", ["print(undefined)", "x = 1 / 0", "x = read_file('src')", "x = (", "grep('(')"])
def test_a_fault_of_the_code_goes_back_to_the_root_model(loop: Loop, code: str) -> None:
    root = loop.replies("root", [fenced(code), fenced(CITED)])

    result = loop.work(root)

    assert result["ok"] is True
    assert result["stats"]["step_count"] == 2
    assert "failed" in root.prompt(2)


def test_the_longest_fenced_block_is_the_code(loop: Loop) -> None:
    root = loop.replies("root", [f"```python\nx = 1 / 0\n```\nor\n```\n{CITED}\n```\nand\n```sh\n{'ls ' * 100}\n```\n"])

    result = loop.work(root)

    assert result["ok"] is True
    assert result["trace"][0]["code_preview"] == CITED


def test_without_a_fence_the_whole_text_is_the_code_and_prose_is_a_fault_with_its_line(loop: Loop) -> None:
    root = loop.replies("root", ["I would read the file first.", CITED])

    result = loop.work(root)

    assert result["final"] == "pay retries"
    assert "syntax (line 1)" in root.prompt(2)


@pytest.mark.requirement("O14")
def test_citations_that_do_not_hold_are_refused_and_the_root_hears_why(loop: Loop) -> None:
    beyond = 'set_final({"citations": [{"path": "src/a.py", "start_line": 90, "end_line": 99}], "answer": "x"})'
    root = loop.replies("root", [beyond, CITED])

    result = loop.work(root)

    assert [c["start_line"] for c in result["citations"]] == [1]
    assert "90-99" in root.prompt(2)


@pytest.mark.requirement("O14")
def test_a_value_without_citations_gets_marked_fallback_ones(loop: Loop) -> None:
    result = loop.work(loop.replies("root", ['set_final("nothing found")']))

    assert result["ok"] is True
    assert result["final"] == "nothing found"
    assert {c["signal"] for c in result["citations"]} == {"file_reference"}
    assert result["citations"][1]["snippet"] == "def pay(n):"


def test_citations_point_at_files_also_if_the_value_is_exactly_what_a_tool_returned(loop: Loop) -> None:
    result = loop.work(loop.replies("root", ["set_final(list_files())"]))

    assert {row["path"] for row in result["citations"]} == {"b.txt", "src/a.py"}


def test_fallback_citations_skip_blank_lines(loop: Loop) -> None:
    for file in loop.repo.rglob("*.py"):
        file.write_text(f"\n  \n{file.read_text()}")

    result = loop.work(loop.replies("root", ['set_final("nothing found")']))

    assert result["citations"]
    assert all(each["snippet"].strip() for each in result["citations"])


def test_without_require_citations_none_are_asked_for_and_none_made_up(loop: Loop) -> None:
    root = loop.replies("root", ['set_final("nothing found")'])

    result = loop.work(root, require_citations="false")

    assert result["citations"] == []
    assert result["stats"]["step_count"] == 1


@pytest.mark.parametrize("value", ["0", "False", "[]", "''"])
def test_a_falsy_final_value_is_a_value(loop: Loop, value: str) -> None:
    result = loop.work(loop.replies("root", [f"set_final({value})"]), require_citations="false")

    assert result["ok"] is True
    assert result["final"] == json.loads({"False": "false", "''": '""'}.get(value, value))


def test_the_root_prompt_states_what_the_loop_promises(loop: Loop) -> None:
    metadata = loop.tmp / "metadata.json"
    metadata.write_text('{"objective": "mend the retries"}')
    root = loop.replies("root", [CITED])

    loop.work(root, metadata_file=metadata)

    prompt = root.prompt(1)
    for promised in ("Step 1/4", "Elapsed: 0", "Sub-calls used: 0/8", "Max depth: 2", "'src/a.py' (6, 20)"):
        assert promised in prompt
    for helper in (
        "list_files",
        "read_file",
        "grep",
        "slice_text",
        "append_highlight",
        "add_citation",
        "sub_rlm",
        "set_final",
    ):
        assert f"{helper}(" in prompt
    assert '{"objective": "mend the retries"}' in prompt
    assert "retry(n)" not in prompt  # the files stay outside


@pytest.mark.requirement(37)
def test_sub_calls_go_to_the_roots_program_unless_another_is_named(loop: Loop) -> None:
    root = loop.replies("root", [f'said = sub_rlm("who?")\n{CITED}', "it was me"])

    result = loop.work(root)

    assert result["ok"] is True
    assert root.calls == 2
    assert [row["type"] for row in result["trace"]] == ["root", "subcall"]


@pytest.mark.requirement(40)
def test_a_result_has_exactly_the_promised_fields(loop: Loop) -> None:
    good = loop.work(loop.replies("root", [CITED]))
    bad = loop.work(loop.replies("bad", ["x = 1"]), max_steps=1)

    head = {"ok", "generated_at", "loop_id", "role", "iteration", "format", "limits", "stats", "trace", "metadata"}
    assert set(good) == head | {"signals", "highlights", "citations", "files", "final"}
    assert set(bad) == set(good) | {"error", "error_code"}
    counts = {"step_count", "subcall_count", "cli_run_count", "elapsed_seconds"}
    assert set(good["stats"]) == counts | {"file_count", "line_count", "char_count", "estimated_tokens"}
    assert set(bad["stats"]) == set(good["stats"])
    assert good["limits"] == {"max_steps": 4, "max_depth": 2, "timeout_seconds": 60, "max_subcalls": 8}
    assert good["signals"] == {
        "class": 1,
        "python_def": 1,
        "function": 0,
        "arrow_function": 0,
        "test": 0,
        "todo": 1,
        "error": 1,
    }
    assert set(good["citations"][0]) == {"path", "start_line", "end_line", "signal", "snippet"}
    assert set(good["trace"][0]) == {"step", "type", "returncode", "duration_ms", "code_preview", "stdout_preview"}


def test_long_texts_and_long_lists_are_cut_to_the_contract(loop: Loop) -> None:
    (loop.repo / "b.txt").write_text("".join(f"line {n} {'x' * 300}\n" for n in range(200)))
    code = """\
read_file("b.txt")
for n in range(100):
    append_highlight(f"{n} " + "h" * 300)
cited = [{"path": "b.txt", "start_line": n, "end_line": n, "signal": "s" * 60} for n in range(1, 150)]
set_final({"citations": cited})"""

    result = loop.work(loop.replies("root", [code]))

    assert len(result["highlights"]) == 80
    assert {len(text) for text in result["highlights"][:79]} == {240}
    assert all(text.endswith("h…") for text in result["highlights"][:79])
    assert result["highlights"][79] == "… and 21 more: only 80 are kept"
    assert len(result["citations"]) == 120
    assert len(result["citations"][0]["signal"]) == 48
    assert len(result["citations"][0]["snippet"]) == 220
    assert result["citations"][0]["snippet"].endswith("x…")


def test_the_trace_is_the_last_eight_calls(loop: Loop) -> None:
    root = loop.replies("root", ["x = 1"] * 11 + [CITED])

    trace = loop.work(root, max_steps=12)["trace"]

    assert [row["step"] for row in trace] == list(range(5, 13))


@pytest.mark.long
def test_missing_binary_and_huge_files_of_the_list_are_sorted_out(loop: Loop) -> None:
    (loop.repo / "image.bin").write_bytes(bytes(range(256)) * 64)
    (loop.repo / "folder").mkdir()
    with (loop.repo / "huge.log").open("w") as huge:
        for _ in range(60):
            huge.write("a log line that is of no use\n" * 100_000)
        huge.write("the needle\n")
    loop.list("src/a.py", "missing.py", "", "image.bin", "huge.log", "folder", "src/a.py", str(loop.repo / "b.txt"))
    root = loop.replies(
        "root", ['rows = grep("needle")\nadd_citation("huge.log", rows[0]["line"], rows[0]["line"])\nset_final(rows)']
    )

    result = loop.work(root)

    assert [each["path"] for each in result["files"]] == ["b.txt", "huge.log", "src/a.py"]
    assert result["final"] == [row("huge.log", 6_000_001, "the needle")]
    assert result["files"][1]["line_count"] == 6_000_001
    assert result["stats"]["file_count"] == 3
    for left_out in ("missing.py", "image.bin", "folder"):
        assert f"not read: '{left_out}'" in root.prompt(1)


def test_a_list_of_more_files_than_the_index_shows_says_so(loop: Loop) -> None:
    names = [f"many/{n:03}.txt" for n in range(170)]
    (loop.repo / "many").mkdir()
    for name in names:
        (loop.repo / name).write_text("x\n")
    loop.list(*names)
    root = loop.replies("root", ["set_final(len(list_files()))"])

    result = loop.work(root, require_citations="false")

    assert result["final"] == 170
    assert "and 10 more" in root.prompt(1)
    assert "many/160.txt" not in root.prompt(1)


@pytest.mark.requirement(35)
def test_the_prompt_comes_by_file_and_the_placeholders_are_filled(loop: Loop) -> None:
    root = loop.program(
        "by_file",
        f'pwd > "$0.cwd"; wc -c < /dev/stdin > "$0.stdin"; cp "$1" "$0.prompt"; echo "$3" > "$0.repo"\ncat > "$2" <<"E"\n{CITED}\nE\n',
    )
    flags: dict[str, Any] = {
        "root_args_json": json.dumps(["{prompt_file}", "{last_message_file}", "{repo}/src"]),
        "root_prompt_mode": "file",
    }

    result = loop.work(root, **flags)

    assert result["final"] == "pay retries"  # nothing on stdout: the answer is the last message
    assert Path(f"{root.path}.cwd").read_text().strip() == str(loop.repo)
    assert Path(f"{root.path}.stdin").read_text().strip() == "0"
    assert "Step 1/4" in Path(f"{root.path}.prompt").read_text()
    assert Path(f"{root.path}.repo").read_text().strip() == str(loop.repo / "src")


def test_programs_get_the_loops_whole_environment_and_generated_code_none_of_it(loop: Loop) -> None:
    root = loop.program("env", f'echo "$AGENT_TOKEN" > "$0.token"\ncat <<"E"\n{CITED}\nE\n')

    called = loop.shell(root, env={"AGENT_TOKEN": "t-123456"})

    assert called.code == 0
    assert Path(f"{root.path}.token").read_text().strip() == "t-123456"
