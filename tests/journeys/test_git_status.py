"""Emil asks about his own repository. `git status` shows afterwards what it showed before, and the run can be found again."""

from __future__ import annotations

from journey import Person


def test_asking_in_a_repository_leaves_git_status_clean(person: Person) -> None:
    person.write("notes.md", "The pump failed at noon.\n")
    person.run("git", "init", "-q")
    person.run("git", "add", ".")
    person.run("git", "-c", "user.name=Emil", "-c", "user.email=emil@example.org", "commit", "-qm", "notes")

    asked = person.sonde("ask", "When did the pump fail?", ".")
    runs = person.sonde("runs")

    assert "notes.md:1" in asked.stdout
    assert "When did the pump fail?" in runs.stdout
    assert person.run("git", "log", "--oneline").stdout.endswith("notes\n")
    assert person.run("git", "status", "--porcelain").stdout == ""
