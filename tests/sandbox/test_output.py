"""stdout and stderr: apart from the channel, bounded, with the truth about what was cut."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, strategies as st
from watching import kind, run

from sonde.sandbox import ExecResult, Limits, Sandbox
from sonde.sandbox.output import Captured, cut_output
from sonde.sandbox.worker.output import Capture


def test_stdout_and_stderr_come_apart() -> None:
    with Sandbox("open") as box:
        result = box.execute("import sys\nprint('out')\nprint('err', file=sys.stderr)\nprint('out 2', end='')")

        assert (result.stdout, result.stderr, result.output_chars) == ("out\nout 2", "err\n", 13)


@pytest.mark.requirement(79, 120)
def test_a_long_output_is_cut_to_8192_characters_with_head_tail_and_true_length() -> None:
    with Sandbox() as box:
        result = box.execute("print('HEAD' + 'x' * 100_000 + 'TAIL')")

        assert 8150 < len(result.stdout) <= 8192
        assert result.stdout.startswith("HEAD") and result.stdout.endswith("TAIL\n")
        assert "100009 characters in all" in result.stdout
        assert result.output_chars == 100_009


def test_a_cut_output_says_which_lines_are_left_out() -> None:
    with Sandbox() as box:
        shown = run(box, "for n in range(1, 1001): print(f'line {n} of a thousand')\nprint('no end', end='')")

    cut = re.search(r"; printed lines (\d+)-(\d+) of 1001 are left out: print only those to see them", shown)
    assert cut is not None
    left_out = range(int(cut[1]), int(cut[2]) + 1)
    numbers = [int(number) for number in re.findall(r"^line (\d+) of a thousand$", shown, re.MULTILINE)]
    assert numbers == [number for number in range(1, 1001) if number not in left_out]


def test_of_one_long_line_it_says_which_characters_are_left_out() -> None:
    with Sandbox() as box:
        shown = run(box, "print(''.join(f'{n:05}' for n in range(20_000)))")

    cut = re.search(r"; characters (\d+)-(\d+) are left out", shown)
    assert cut is not None
    text = "".join(f"{n:05}" for n in range(20_000)) + "\n"
    assert shown == text[: int(cut[1]) - 1] + shown[int(cut[1]) - 1 :]
    assert shown.endswith(text[int(cut[2]) :])


@pytest.mark.requirement(79)
def test_both_streams_together_stay_under_the_limit() -> None:
    with Sandbox("open") as box:
        result = box.execute("import sys\nprint('o' * 20_000)\nprint('e' * 20_000, file=sys.stderr)")

        assert len(result.stdout) + len(result.stderr) <= 8192
        assert "20001 characters" in result.stdout and "20001 characters" in result.stderr


def test_exactly_the_limit_is_not_cut() -> None:
    with Sandbox() as box:
        assert run(box, "print('x' * 8191)") == "x" * 8191 + "\n"


def test_a_flood_neither_blocks_nor_fills_memory() -> None:
    with Sandbox(limits=Limits(memory="64MiB", wall_s=100)) as box:
        result = box.execute("for i in range(50_000): print('a line of the flood, number', i)")

        assert result.ok
        assert 8000 < len(result.stdout) <= 8192 and result.output_chars > 1_500_000
        assert result.stdout.endswith("number 49999\n")


def test_a_flood_to_the_raw_descriptors_ends_with_the_turn() -> None:
    with Sandbox("open") as box:
        run(box, "x = 1")
        result = box.execute("import os\nwhile True: os.write(1, b'y' * 65536)", wall_s=0.3)

        assert kind(result) in {"timeout", "error"} and len(result.stdout) <= 8192
        assert run(box, "print(x)") == "1\n"


def stopped(code: str, profile: str = "open") -> ExecResult:
    """What is known of a turn that is killed after the code, however long that takes: it may call `ask()` once, and not again."""
    with Sandbox(profile, host=lambda name, args: None, functions=["ask"], limits=Limits(host_calls=1)) as box:
        result = box.execute(f"{code}\nask()\nask()")
        assert kind(result) == "quota" and run(box, "print('well')") == "well\n"
    return result


def test_output_of_a_killed_turn_is_shown_as_far_as_it_came() -> None:
    assert stopped("for i in range(3): print('step', i)", "analysis").stdout == "step 0\nstep 1\nstep 2\n"


def test_output_of_a_turn_that_ran_out_of_time_is_shown_as_far_as_it_came() -> None:
    with Sandbox("open") as box:
        result = box.execute("import time\nprint('waiting')\ntime.sleep(600)", wall_s=3)

        assert (kind(result), result.stdout) == ("timeout", "waiting\n")


@pytest.mark.requirement(79, 120)
def test_the_long_output_of_a_killed_turn_is_cut_with_head_tail_and_length_as_that_of_any_other() -> None:
    result = stopped("print('HEAD' + 'x' * 100_000 + 'TAIL')", "analysis")

    assert len(result.stdout) <= 8192
    assert result.stdout.startswith("HEAD") and result.stdout.endswith("TAIL\n")
    assert "at least 100009 characters in all" in result.stdout
    assert result.output_chars == 100_009


def test_the_last_lines_before_a_block_was_stopped_are_shown_whatever_it_printed_before() -> None:
    with Sandbox("open", host=lambda name, args: None, functions=["ask"], limits=Limits(host_calls=1)) as box:
        result = box.execute("for i in range(5000): print(i)\nask()\nprint('then it was stopped', flush=True)\nask()")

        assert result.stdout.startswith("0\n1\n") and result.stdout.endswith("4999\nthen it was stopped\n")
        assert 7500 < len(result.stdout) <= 8192 and result.output_chars == 23_890 + 20


def test_a_killed_turn_shows_stdout_and_stderr_apart_and_lines_that_did_not_end() -> None:
    result = stopped("import sys\nprint('err', file=sys.stderr)\nprint('no end', end='')")

    assert (result.stdout, result.stderr, result.output_chars) == ("no end", "err\n", 10)


@pytest.mark.parametrize(
    "lie", ["b'\\x00' + b'\\xff' * 8 + b'\\x00\\x00'", "b'\\x03' * 4000", "b'\\x01'", "b'plain\\n' * 3000", "b'\\xff'"]
)
def test_records_that_the_code_wrote_itself_are_bounded(lie: str) -> None:
    result = stopped(f"import os\nos.write(1, {lie})")

    assert len(result.stdout) + len(result.stderr) <= 8192
    assert result.output_chars <= 1 << 54


def test_a_violation_shows_no_output() -> None:
    with Sandbox("open") as box:
        assert box.execute("print('secret')\nimport os\nos.fork()").stdout == ""


def test_text_that_is_not_utf8_is_shown_not_fatal() -> None:
    with Sandbox() as box:
        assert run(box, "print('\\ud800 \\x00 é')") == "? \x00 é\n"


texts = st.text(alphabet="ab\n\N{GRINNING FACE}", max_size=40)


def captured(stream: Capture) -> Captured:
    return Captured(stream.head(), stream.tail(), stream.total, lines=stream.lines)


@given(st.lists(st.tuples(st.booleans(), texts, st.integers(1, 60))), st.integers(160, 2000))
def test_cutting_keeps_the_promise_for_any_output(prints: list[tuple[bool, str, int]], limit: int) -> None:
    out, err = Capture(limit), Capture(limit)
    whole = {True: "", False: ""}
    for to_out, text, times in prints:
        (out if to_out else err).write(text * times)
        whole[to_out] += text * times

    shown_out, shown_err = cut_output(captured(out), captured(err), limit)

    assert len(shown_out) + len(shown_err) <= limit
    if len(whole[True]) + len(whole[False]) <= limit:
        assert (shown_out, shown_err) == (whole[True], whole[False])
    for shown, text in ((shown_out, whole[True]), (shown_err, whole[False])):
        assert shown == text or text.startswith(shown.partition("\n[... output cut")[0])
