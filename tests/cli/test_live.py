"""The live view shows what the events say, and lets no text of theirs drive the terminal."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterable

import pytest
from cli_streams import started, subcall, turn, whole_run
from hypothesis import given, settings, strategies as st
from rich.console import Console

from sonde.cli.live import Lines, RunProgress, open_view
from sonde.cli.screen import draw
from sonde.cli.text import printable
from sonde.core import events
from sonde.core.events import Event


def lines_of(stream: Iterable[Event]) -> str:
    out = io.StringIO()
    view = Lines(out)
    for event in stream:
        view.on_event(event)
    return out.getvalue()


def progress_of(stream: Iterable[Event]) -> RunProgress:
    progress = RunProgress()
    for event in stream:
        progress.add(event)
    return progress


def drawn(progress: RunProgress, height: int = 30) -> str:
    console = Console(file=io.StringIO(), width=100, height=height, force_terminal=False)
    with console.capture() as captured:
        console.print(draw(progress, 3.0, height))
    return captured.get()


def test_plain_lines_tell_turns_code_output_subcalls_and_what_is_left() -> None:
    assert lines_of(whole_run()).splitlines() == [
        "turn 1 (9 turns · 1,000 tokens · $0.5000 left)",
        "  | hits = grep('ERROR')",
        "  | print(len(hits))",
        "  > 12",
        "  root/1.1 starts: look at payments",
        "root/1.1 turn 1 (8 turns · 900 tokens · $0.4900 left)",
        "  | print(1)",
        "  > 1",
        "  root/1.1 succeeded: it is 1",
        "  attempt 1 failed, retrying in 1.5 s: 429 from the server",
        "warning: no price is known for scripted",
        "turn 2 (7 turns · 800 tokens · $0.4800 left)",
        "  | FINAL('payments')",
        "  citations gate: the answer cites nothing",
    ]


def test_long_code_and_output_are_cut_and_say_so() -> None:
    shown = lines_of([started(), *turn(1, "x = 1\n" * 500, "y\n" * 500)])

    assert len(shown.splitlines()) < 30
    assert "… 485 more lines" in shown
    assert "… 491 more lines" in shown


def test_the_same_remark_is_shown_once() -> None:
    remark = events.Noted(text="no price is known for x", level="warning")

    assert lines_of([remark, remark, remark]) == "warning: no price is known for x\n"


def test_a_fault_is_shown_with_its_kind() -> None:
    fault = {"kind": "timeout", "message": "the turn took longer than 30 s"}

    assert "> timeout: the turn took" in lines_of([events.CodeRan(turn=1, block=0, ok=False, fault=fault)])


def test_the_picture_shows_the_tree_the_code_and_what_is_left() -> None:
    picture = drawn(progress_of(whole_run()[:-2]))

    for words in ("Which service failed first?", "look at payments", "FINAL('payments')", "7 turns", "$0.4700 left"):
        assert words in picture


def test_a_reply_is_shown_while_it_is_written_and_gives_way_to_its_code() -> None:
    progress = progress_of([started(), events.TurnStarted(turn=1, elapsed_s=0.0)])
    progress.hear(events.ROOT, "I will look ")
    progress.hear("root/1.1", "something else")
    progress.hear(events.ROOT, "at the logs")

    assert "I will look at the logs" in drawn(progress)
    assert "something else" not in drawn(progress)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 60), st.integers(0, 80), st.integers(8, 60))
def test_the_picture_is_never_taller_than_the_terminal(children: int, code_lines: int, height: int) -> None:
    stream = [started(), *(event for number in range(children) for event in subcall(f"root/1.{number}", "x"))]
    stream += turn(1, "pass\n" * code_lines, "out\n" * code_lines)

    assert len(drawn(progress_of(stream), height).splitlines()) <= height


HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\r\u202eevil"


@given(st.text())
def test_printable_text_has_no_control_characters_and_can_be_written(text: str) -> None:
    shown = printable(text)

    assert not any((ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160 for char in shown)
    assert shown.encode().decode() == shown
    assert printable(shown) == shown


def test_what_models_tools_and_files_say_cannot_drive_the_terminal() -> None:
    stream: list[Event] = [
        started(objective=HOSTILE, model=HOSTILE),
        *subcall("root/1.1", HOSTILE),
        *turn(1, HOSTILE, HOSTILE),
        events.Noted(text=HOSTILE, level="warning"),
        events.HostReturned(turn=1, ordinal=0, name=HOSTILE, args={}, args_hash="", ok=True),
    ]

    for shown in (lines_of(stream), drawn(progress_of(stream))):
        assert "evil" in shown
        assert not any(char in shown for char in "\x1b\x07\x9b\r\u202e")


def read_all(fd: int) -> bytes:
    """What was written to the other side of a pseudo terminal."""
    chunks: list[bytes] = []
    try:
        while chunk := os.read(fd, 65536):
            chunks.append(chunk)
    except OSError:  # Linux answers EIO when the other side is closed
        pass
    return b"".join(chunks)


def test_on_a_terminal_the_screen_is_drawn_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, open_view(terminal) as view:
        for event in whole_run():
            view.on_event(event)
    written = read_all(ours)
    os.close(ours)

    assert b"no price is known" in written
    assert written.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?25h" in written[-200:]
    assert view.progress.status == "succeeded"


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_dumb_terminal_gets_plain_lines(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, open_view(terminal) as view:
        assert isinstance(view, Lines)
    os.close(ours)


def test_a_silent_view_writes_nothing_but_counts() -> None:
    out = io.StringIO()
    with open_view(out, silent=True) as view:
        for event in whole_run():
            view.on_event(event)

    assert out.getvalue() == ""
    used = view.progress.used
    assert (used.iterations, used.llm_subcalls, used.tokens_total) == (3, 1, 300)
