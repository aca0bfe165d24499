"""Ines gets a folder from a client: a report, a budget, slides and saved web pages. She asks, and finds the lines again on the page."""

from __future__ import annotations

import json

import office_oxide
import pytest
from journey import Person


@pytest.mark.journey
def test_a_folder_of_office_files_and_pages_is_asked_about_and_cited(person: Person) -> None:
    person.write("in/page.html", "<html><title>Crane</title><p>The crane is inspected in May.</p></html>")
    office_oxide.create_from_markdown(
        "# Report\n\nThe crane failed because a bolt sheared.\n", "docx", person.folder / "in/report.docx"
    )
    book = office_oxide.XlsxWriter()
    sheet = book.add_sheet("Costs")
    book.set_cell(sheet, 0, 0, "bolt")
    book.set_cell(sheet, 0, 1, 12)
    book.save(person.folder / "in/costs.xlsx")
    model = person.model(
        "rows = grep('bolt|inspected')\nprint(rows)",
        "FINAL('A bolt sheared [report.docx:2]; it costs 12 [costs.xlsx:2]; inspected in May [page.html:2].')",
    )

    asked = person.sonde("ask", "Why did the crane fail?", "in", "--model", model.name, "--json")
    answer = json.loads(asked.stdout)
    exported = person.sonde("export", "last", "--html", "-o", "page.html")

    assert asked.returncode == 0, asked.stderr
    assert {(cited["path"], cited["start_line"]) for cited in answer["citations"]} == {
        ("report.docx", 2),
        ("costs.xlsx", 2),
        ("page.html", 2),
    }
    assert exported.returncode == 0, exported.stderr
    page = (person.folder / "page.html").read_text()
    assert all(text in page for text in ("The crane failed because a bolt sheared.", "bolt | 12", "inspected in May"))
    assert "skipped" not in asked.stderr
