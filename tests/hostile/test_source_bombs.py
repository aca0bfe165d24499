"""Source files that are small to write and take hours to outline, if an outline is made carelessly."""

from __future__ import annotations

import pytest
from victim import Victim

BOMBS = {
    "receiver.go": "package a\nfunc (" + "A" * 400_000 + " B) C() {}\n",
    "functions.go": "package a\n" + "func a() {}\n" * 30_000,
    "exports.ts": "export const a = () => 1;\n" * 15_000,
    "nested.js": "class A { static a = " * 2_000,
    "brackets.cpp": "namespace a {" * 20_000,
    "parentheses.py": "(" * 200_000,
    "fields.py": "f'" + "{a}" * 100_000 + "'",
    "declarator.c": "int " + "*(" * 50_000 + "f)(int) {}\n",
    "generic.rs": "impl A" + "<" * 200_000 + " {}\n",
    "spaces.rb": "class " + " " * 300_000 + "A\nend\n",
}


@pytest.mark.hostile_long
def test_an_outline_of_hostile_source_is_made_in_time(victim: Victim) -> None:
    for name, text in BOMBS.items():
        victim.write(name, text)
    victim.write("honest.go", "package a\n\nfunc Pay() error {\n\treturn nil\n}\n")
    model = victim.model(
        "print(nav_ls('honest.go'), nav_info()['file_count'], len(nav_outline()))",
        "print(read_file('honest.go', 3, 5))",
        "FINAL('Pay pays. [honest.go:3-5]')",
    )

    done = victim.sonde("ask", "Who pays?", ".", "--code", "--model", model.name, "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    assert "func Pay() error" in "".join(model.prompts)
    assert "Pay pays." in done.stdout
