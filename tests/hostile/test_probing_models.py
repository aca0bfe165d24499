"""A model in a masked run that wants the values behind the placeholders, and data that is written so that no pattern sees it."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest
from victim import Victim, one_in_make_test

import sonde
from journeys.journey import PlayedModel
from sonde.api.settings import Settings
from sonde.runs.rundir import JOURNAL
from sonde.testing import ScriptedModel

CARD, SSN, MAIL, NAME = "4111 1111 1111 1111", "123-45-6789", "jane.doe@secretcorp.com", "Jane Quill"
WRITTEN = f"owner {MAIL}\nssn {SSN}\npaid {CARD}\nname {NAME}\n"
PARTS = (
    "secretcorp",
    "jane.doe",
    "45-6789",
    "1111 1111",
    "> 1111",
    ">1111",
    "Quill",
)  # no digits alone: hashes have them
PATTERNS = {"ssn": "[0-9]{3}-[0-9]{2}-[0-9]{4}", "name": "[A-Z][a-z]+ [A-Z][a-z]+"}
TRY = """
def tried(call, *given):
    try:
        return call(*given)
    except Exception as error:
        return str(error).partition('Signature')[0]
def patched(name, *lines):
    return tried(apply_patch, '\\n'.join(['*** Begin Patch', '*** Add File: ' + name, *('+' + line for line in lines), '*** End Patch']))
print(read_file('a.txt'))
"""


def probed(victim: Victim, *script: str, yes: bool = True) -> tuple[PlayedModel, str]:
    """The model after an edit in which it ran these blocks, and all that it and the run's files got to see."""
    victim.write("a.txt", WRITTEN)
    model = victim.model(*(TRY + each for each in script), *["FINAL('done [a.txt:1]')"] * 3)
    patterns = [word for name, source in PATTERNS.items() for word in ("--mask-pattern", f"{name}={source}")]
    words = ("edit", "Change it", ".", *patterns, *(["--yes"] if yes else []), "--runs-dir", victim.own)
    victim.call(*words, "--model", model.name)
    assert model.calls > 1
    files = [path.read_text() for path in victim.own.rglob("*") if path.is_file() and path.name != "report.md"]
    return model, "".join([*model.prompts, *files])


@pytest.mark.parametrize(
    "text",
    one_in_make_test(
        {
            "json": r'{"a": "card:\n4111111111111111", "b": "key\tghp_'
            + "a1B2" * 9
            + r'", "c": "\r\nAKIAABCD1234EFGH5678"}',
            "nested": json.dumps(json.dumps({"a": "card:\n4111111111111111", "b": {"password": "hunter2x"}})),
            "addresses": "/pay?card%3D4111111111111111&key%3Dsk-abcdefghijklmnop1234 /?q=card%20 4111111111111111",
            "words": "card_4111111111111111 PAN4111111111111111 4111111111111111_x 4111.1111.1111.1111",
            "signs": "&#52;111111111111111 ４１１１１１１１１１１１１１１１ 4111\u200b1111\u200b1111\u200b1111",
            "mails": 'o\'brien@secretcorp.com "jane quill"@secretcorp.com jane&#64;secretcorp.com',
        }
    ),
)
def test_a_value_in_an_escape_reaches_no_model(victim: Victim, text: str) -> None:
    victim.write("log.txt", f"{text}\n")
    model = victim.model("print(CONTEXT['log.txt'])", *["FINAL('done [log.txt:1]')"] * 3)
    victim.call("ask", "What?", "log.txt", "--mask", "--runs-dir", victim.own, "--model", model.name)

    seen = "".join(model.prompts)
    assert model.calls > 1
    for part in ("1111", "１１", "a1B2", "AKIAAB", "hunter2", "abcdefgh", "secretcorp", "o'", "quill"):
        assert part not in seen


@pytest.mark.hostile_long
def test_a_key_in_an_escape_leaves_with_no_redacted_export(victim: Victim) -> None:
    victim.write(
        "log.txt",
        r'{"b": "key\tghp_'
        + "a1B2" * 9
        + r'", "in": "{\"password\": \"hunter2x\"}", "u": "?k%3Dsk-abcdefghijklmnop1234"}',
    )
    model = victim.model("print(CONTEXT['log.txt'])", *["FINAL('done [log.txt:1]')"] * 3)
    victim.call("ask", "What?", "log.txt", "--runs-dir", victim.own, "--model", model.name)
    done = victim.call("export", "last", "--redact", "--html", "-o", "shared.html", "--runs-dir", victim.own)

    assert done.returncode == 0, done.stderr
    page = (victim.folder / "shared.html").read_text()
    assert "done" in page
    for part in ("a1B2", "hunter2", "abcdefgh"):
        assert part not in page


@pytest.mark.parametrize(
    "line",
    one_in_make_test(
        {
            "mail": "x foo@x.<email-1>",
            "mail at": "x foo@<email-1>",
            "mail escaped": "x foo@x&#46;<email-1> foo@x.\u200b<email-1> foo@x%2E<email-1>",
            "own pattern": "y 111-11-111<ssn-1>",
            "card": "\\n+".join(f"z 40{digits:02} <card-1>" for digits in range(30)),
            "card in disguise": "\\n+".join(f"z %40{digits:02} <card-1>" for digits in range(30)),
            "two": "<ssn-1><card-1><email-1>",
            "name": "Foo <name-1>",
        }
    ),
)
def test_a_placeholder_beside_chosen_text_shows_nothing_of_its_value(victim: Victim, line: str) -> None:
    script = (
        f"print(patched('b.txt', '{line}'))\nprint(tried(read_file, 'b.txt'), tried(search, 'x'), list_files())",
        "print(patched('c.txt', 'ok'), tried(read_file, 'b.txt'), tried(search, 'Q'))",
    )
    _, seen = probed(victim, *script)

    assert [part for part in PARTS if part in seen] == []


def test_the_name_of_a_new_file_shows_nothing_of_a_value_and_confirms_no_guess(victim: Victim) -> None:
    names = ("foo@x.<email-1>", "111-11-111<ssn-1>.txt", "<ssn-1><ssn-1>", "Foo <name-1>", "<email-9>.txt")
    guesses = (f"123-45-67{end}.txt" for end in ("89", "90"))
    script = (
        f"for name in {names!r}:\n    print(patched(name, 'x'))\nprint(list_files())\n"
        f"print('same', len({{str(patched(a + b, 'x')).replace(b, '') for a, b in {[(each[:-6], each[-6:]) for each in guesses]!r}}}))"
    )
    model, seen = probed(victim, script)

    assert "same 1" in model.prompts[1]
    assert [part for part in ("secretcorp", "jane.doe", "Quill") if part in seen] == []


def test_a_patch_that_nobody_approves_confirms_no_guess(victim: Victim) -> None:
    guess = (
        "def said(digits):\n"
        "    return str(patched('g.txt', 'pay <card-1>', 'x' + digits, digits, '<card-1>, ' + digits)).replace(digits, '')\n"
        "right, wrong = said('4111 1111 1111 ' + '11' + '11'), said('4111 1111 1111 ' + '11' + '29')\n"
        "print('the same:', right == wrong, right)"
    )
    model, _ = probed(victim, guess, yes=False)

    assert "the same: True {'applied': False" in model.prompts[1]


def test_a_tool_that_quotes_its_argument_brings_no_part_of_a_value_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text(WRITTEN)
    kept: list[str] = []

    def look_up(key: str) -> str:
        """Whom there is."""
        kept.append(key)
        return f"no customer {key}, nor 4008 {''.join(kept)}"

    keys = (
        "foo@x.<email-1>",
        "111-11-111<ssn-1>",
        "4008 <card-1>",
        "4009 <card-1>",
        "Foo <name-1>",
        "x<ssn-1>x<email-1>",
        "4008 ",
    )
    model = ScriptedModel([f"for key in {keys!r}:\n    print(look_up(key))", *["FINAL('done [a.txt:1]')"] * 3])
    done = sonde.ask(
        "Who?",
        tmp_path / "a.txt",
        model=model,
        tools=[look_up],
        mask=True,
        mask_patterns=PATTERNS,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
    )

    assert done.run_dir is not None
    seen = "".join(message.content for request in model.requests for message in request.messages)
    seen += (done.run_dir / JOURNAL).read_text()
    assert MAIL in kept[0]
    assert [part for part in PARTS if part in seen] == []


@pytest.mark.hostile_long
def test_a_small_patch_of_a_file_full_of_addresses_takes_little_work(victim: Victim) -> None:
    rows = "".join(f"u{number},user{number}x@mail{number}.example.org,active\n" for number in range(60_000))
    victim.write("people.csv", f"title\n{rows}")
    patch = "*** Begin Patch\n*** Update File: people.csv\n@@\n-title\n+titel\n*** End Patch"
    model = victim.model(
        f"print(apply_patch({patch!r}))\nprint(read_file('people.csv', 1, 2))", "FINAL('done [people.csv:1]')"
    )
    victim.cpu_seconds = 20

    done = victim.sonde("edit", "Change it", ".", "--yes", "--mask", "--runs-dir", victim.own, "--model", model.name)
    assert done.returncode == 0, done.stderr
    assert (victim.folder / "people.csv").read_text().startswith("titel\nu0,user0x@")
    assert "@mail" not in "".join(model.prompts)


@pytest.mark.hostile_long
def test_masking_a_small_archive_of_large_logs_ends_with_the_run(victim: Victim) -> None:
    with zipfile.ZipFile(victim.folder / "logs.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(3):
            archive.writestr(f"{number}.log", f"{'4111 ' * 200}\n" * 10_000)
    model = victim.model("print(grep('zzz'))", *["FINAL('done')"] * 3)
    words = ("ask", "What?", "logs.zip", "--mask", "--max-wall-time-sec", "1", "--runs-dir", victim.own)

    done = victim.sonde(*words, "--model", model.name)
    assert "(was still being masked when the run had to end)" in done.stdout, done.stderr
