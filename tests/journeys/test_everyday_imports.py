"""Fatma's model writes the Python that every model writes: csv through io.StringIO, random with a seed, Decimal, heapq, ..."""

from __future__ import annotations

import pytest
from journey import Person

CODE = """
import base64, bisect, calendar, csv, decimal, difflib, enum, fractions, heapq, html, io, random, string, struct
import time, unicodedata, urllib.parse, uuid, zlib
text = read_file("sales.csv")
rows = list(csv.DictReader(io.StringIO(text)))
total = sum(decimal.Decimal(row["price"]) for row in rows)
best = heapq.nlargest(1, rows, key=lambda row: decimal.Decimal(row["price"]))[0]["item"]
host = urllib.parse.urlsplit("https://shop.example/a?b=1").hostname
near = difflib.get_close_matches("lampp", [row["item"] for row in rows])[0]
drawn = random.Random(7).randrange(10) in range(10) and time.time() > 0 and io.BytesIO(b"x").read() == b"x"
coded = base64.b64encode(zlib.decompress(zlib.compress(b"ok"))).decode()
print(text, total, best)
"""
FINISH = 'FINAL(f"{total} in all, most for the {best} at {host}, {near} {coded} {drawn} [sales.csv:3-3]")'


@pytest.mark.journey
@pytest.mark.parametrize("person", ["kernel"], indirect=True)  # Monty has few of these modules, and says so
def test_everyday_modules_of_the_standard_library_can_be_imported(person: Person) -> None:
    person.write("sales.csv", "item,price\nlamp,19.90\ndesk,120.10\nchair,60.00\n")
    model = person.model(CODE, FINISH)

    asked = person.sonde("ask", "What did we sell, and what brought most?", "sales.csv", "--model", model.name)

    assert "ImportError" not in asked.stderr
    assert asked.stdout.startswith("200.00 in all, most for the desk at shop.example, lamp b2s= True")
    assert "succeeded · 2 turns" in asked.stderr
