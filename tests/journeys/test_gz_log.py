"""Bela's logs are rotated: yesterday's is `app.log.gz`. He asks about it as he would about any other file."""

from __future__ import annotations

import gzip
import re

from journey import Person


def test_a_gz_log_is_read_like_the_log_in_it(person: Person, log_text: str) -> None:
    person.write("logs/app.log.gz", gzip.compress(log_text.encode(), mtime=0))

    asked = person.sonde("ask", "Who refused the connection?", "logs")

    assert asked.returncode == 0
    assert re.search(r"app\.log\S*:3211\b[^\n]*\s+\S+ payments ERROR ledger refused the connection", asked.stdout), (
        asked.stdout
    )
