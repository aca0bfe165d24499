"""Quinn asks about a glob and a folder, then replays the run and asks on: both see the same files under the same names."""

from __future__ import annotations

import pytest
from journey import Person

LOOK = 'print(read_file("t1/a.txt"))'
FINISH = 'FINAL("At noon. [t1/a.txt:1-1]")'


@pytest.mark.journey
def test_a_run_over_relative_paths_replays_and_goes_on_with_the_same_names(person: Person) -> None:
    person.write("t1/a.txt", "the pump failed at noon\n")
    person.write("t1/deep/b.txt", "the pump failed again\n")
    first, second = person.model(LOOK, FINISH), person.model(LOOK, FINISH)

    asked = person.sonde("ask", "When did it fail?", "t1/*.txt", "./t1/deep", "--model", first.name)
    replayed = person.sonde("replay", "last")
    followed = person.sonde("ask", "Are you sure?", "--continue", "last", "--model", second.name)

    assert "[1] t1/a.txt:1  the pump failed at noon" in asked.stdout
    assert replayed.returncode == 0, replayed.stdout
    assert "[1] t1/a.txt:1  the pump failed at noon" in followed.stdout, followed.stderr
