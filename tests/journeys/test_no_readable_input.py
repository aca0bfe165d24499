"""Deniz points at a folder in which there is nothing to read, and then at nothing at all.

A script must be able to tell that from an answer: exit code 2, and words that say what was there.
"""

from __future__ import annotations

import pytest
from journey import Person


def test_a_folder_without_readable_text_is_refused_and_says_what_was_in_it(person: Person) -> None:
    person.write("pictures/a.png", b"\x89PNG\r\n\x1a\n\0\0\0\0")
    person.write("pictures/raw", bytes(range(256)))

    asked = person.sonde("ask", "What is in the picture?", "pictures")

    assert asked.returncode == 2, asked.stdout
    assert asked.stdout == ""
    assert "pictures" in asked.stderr
    assert "none of its 2 files is text" in asked.stderr
    assert [path.name for path in person.folder.iterdir()] == ["pictures"]


@pytest.mark.journey
def test_neither_files_nor_a_model_is_refused(person: Person) -> None:
    asked = person.sonde("ask", "What is in the picture?")

    assert asked.returncode == 2, asked.stdout
    assert "PATH" in asked.stderr
