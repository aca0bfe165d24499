"""Jun asks about a folder in which some files cannot be read. One line says how many of which kind were left out, and why."""

from __future__ import annotations

from journey import Person


def test_files_that_were_left_out_are_told_in_one_line(person: Person) -> None:
    person.write("shop/app.log", "payments ERROR ledger refused the connection\n")
    person.write("shop/logo.png", b"\x89PNG\r\n\x1a\n\0\0\0\0")
    person.write("shop/app.pyc", bytes(range(256)))
    person.write("shop/.env", "KEY=hush-hush\n")

    asked = person.sonde("ask", "Who refused the connection?", "shop")

    told = [line for line in asked.stderr.splitlines() if line.startswith("skipped: ")]
    assert told == ["skipped: 2 binary, 1 secret (.env)"]
    assert "app.log:1" in asked.stdout
    assert "hush-hush" not in asked.stdout + asked.stderr
