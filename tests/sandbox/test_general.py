"""The general profile: the standard library that needs no files, network or processes, fed with the caller's time and chance."""

from __future__ import annotations

from pathlib import Path

import pytest
from watching import run

from sonde.sandbox import CodeClock, Sandbox
from sonde.sandbox.worker.library import read_zones

USES = {
    "csv": ("import csv, io\nprint([*csv.reader(io.StringIO('a,\"b,c\"'))])", "[['a', 'b,c']]"),
    "bytes": ("import io\nprint([*io.TextIOWrapper(io.BytesIO(b'a\\nb'))])", "['a\\n', 'b']"),
    "xml": (
        "import xml.etree.ElementTree as ET\nprint(ET.fromstring('<a><b c=\"1\"/></a>').find('.//b').get('c'))",
        "1",
    ),
    "xml from": ("from xml.etree import ElementTree\nprint(ElementTree.Element('x').tag)", "x"),
    "url": (
        "from urllib.parse import urlsplit, quote\nprint(urlsplit('https://a.b/c').hostname, quote('ä'))",
        "a.b %C3%A4",
    ),
    "html": (
        "import html\nfrom html.parser import HTMLParser\nprint(html.unescape('&eacute;'), HTMLParser().rawdata == '')",
        "é True",
    ),
    "decimal": ("import decimal, fractions\nprint(decimal.Decimal('0.1') * 3, fractions.Fraction(1, 3) * 3)", "0.3 1"),
    "gzip": (
        "import gzip, zlib, base64\nprint(gzip.decompress(gzip.compress(b'ok')), base64.b64encode(b'ok'))",
        "b'ok' b'b2s='",
    ),
    "mail": (
        """
import email, email.policy
mail = email.message_from_string("Subject: =?utf-8?q?h=C3=A9?=\\nTo: a@b.c\\n\\nbody", policy=email.policy.default)
print(mail["subject"], mail["to"].addresses[0].domain, mail.get_content(), "body" in mail.as_string())
""",
        "hé b.c body True",
    ),
    "python": ("import ast, io, tokenize\nprint(len([*tokenize.generate_tokens(io.StringIO('a = 1').readline)]))", "5"),
    "settings": (
        """
import configparser, tomllib
read = configparser.ConfigParser()
read.read_string("[a]\\nb=1")
print(read["a"]["b"], tomllib.loads("x = [1]"))
""",
        "1 {'x': [1]}",
    ),
    "dates": (
        "import calendar, time\nprint(calendar.day_name[calendar.weekday(2024, 2, 29)], time.strptime('2024', '%Y').tm_year)",
        "Thursday 2024",
    ),
    "future": ("from __future__ import annotations\nimport enum\nprint(enum.Enum('E', 'A').A.value)", "1"),
    "array": (
        "import array, copy, struct\nprint(copy.deepcopy(array.array('i', [1]))[0], struct.unpack('<H', b'a\\0'))",
        "1 (97,)",
    ),
    "paths": (
        "import ntpath, posixpath, stat\nprint(posixpath.splitext('a/b.tar.gz'), ntpath.basename(r'C:\\a\\b'), stat.S_IFDIR)",
        "('a/b.tar', '.gz') b 16384",
    ),
    "difflib": (
        "import difflib, heapq\nprint(difflib.get_close_matches('lampp', ['lamp', 'desk']), heapq.nlargest(1, [1, 2]))",
        "['lamp'] [2]",
    ),
}


@pytest.mark.parametrize("name", USES)
def test_everyday_code_runs(name: str) -> None:
    code, expected = USES[name]
    with Sandbox("general") as box:
        assert run(box, code).strip() == expected


@pytest.mark.parametrize(
    "name", ["urllib.request", "urllib.error", "xml.dom", "xml.sax", "os", "sys", "socket", "pickle"]
)
def test_what_needs_files_network_or_processes_cannot_be_imported(name: str) -> None:
    package, _, part = name.rpartition(".")
    with Sandbox("general") as box:
        told = [box.execute(f"import {name}").fault]
        told += [box.execute(f"from {package} import {part}").fault] if package else []

    assert all(fault and fault.kind == "import" and f"`{name}` cannot be imported" in fault.message for fault in told)


def test_of_io_only_buffers_in_memory_are_there() -> None:
    with Sandbox("general") as box:
        taken, named = box.execute("from io import open").fault, box.execute("import io\nio.open('x')").fault
        everything = run(box, "from io import *\nprint(StringIO('x').read(), 'FileIO' in dir())")

    assert taken is not None and taken.kind == "import" and "`io.open` is not in this sandbox" in taken.message
    assert named is not None and "StringIO" in named.message
    assert everything == "x False\n"


@pytest.mark.parametrize("module", ["ntpath", "posixpath"])
def test_of_paths_only_what_needs_no_file_is_there(module: str) -> None:
    with Sandbox("general") as box:
        told = [box.execute(f"import {module}\n{module}.{name}").fault for name in ("exists", "realpath", "os")]

    assert all(fault and f"`{module}." in fault.message for fault in told)


def test_a_module_shows_no_module_that_it_uses_itself() -> None:
    with Sandbox("general") as box:
        faults = [
            box.execute(code).fault
            for code in ("import csv\ncsv.re", "import uuid\nuuid.os", "import gzip\ngzip.builtins")
        ]

    assert all(fault and "import" in fault.message for fault in faults)


CHANCE = """
import random, time, uuid
print(uuid.uuid4(), uuid.uuid1(), random.random(), random.Random().random(), random.SystemRandom().random())
print(time.time(), time.strftime('%Y-%m-%d'), time.monotonic())
"""


def test_time_chance_and_identifiers_repeat_with_the_seed_and_the_clock() -> None:
    def told(seed: int, start: float) -> list[str]:
        with Sandbox("general", seed=seed, clock=CodeClock(start=start)) as box:
            return [run(box, CHANCE) for _ in range(2)]

    first = told(1, 1e9)

    assert first == told(1, 1e9)
    assert first != told(2, 1e9)
    assert first != told(1, 2e9)
    assert "1000000000.0 2001-09-09 0.0" in first[0]


def test_links_to_nowhere_among_the_time_zones_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "Europe").mkdir()
    (tmp_path / "Europe/Berlin").write_bytes(b"TZif2")
    for name in ("localtime", "Europe/Atlantis"):
        (tmp_path / name).symlink_to("/nowhere/localtime")

    assert read_zones(str(tmp_path)) == {"Europe/Berlin": b"TZif2"}


def test_time_zones_are_there_without_files() -> None:
    code = (
        "from datetime import UTC, datetime\nfrom zoneinfo import ZoneInfo, available_timezones\n"
        "print(datetime(2024, 7, 1, tzinfo=UTC).astimezone(ZoneInfo('America/New_York')).isoformat())\n"
        "print(datetime.now(ZoneInfo('Europe/Berlin')).isoformat(), 'Asia/Tokyo' in available_timezones())"
    )
    with Sandbox("general", clock=CodeClock(start=1e9)) as box:
        if (fault := box.execute("from zoneinfo import ZoneInfo\nZoneInfo('Europe/Berlin')").fault) is not None:
            assert "No time zone found with key Europe/Berlin" in fault.message
            pytest.skip("neither this system nor the package tzdata has time zones")
        unknown = box.execute("from zoneinfo import ZoneInfo\nZoneInfo('No/Where')").fault

        assert run(box, code) == "2024-06-30T20:00:00-04:00\n2001-09-09T03:46:40+02:00 True\n"
    assert unknown is not None and "ZoneInfoNotFoundError" in unknown.message
