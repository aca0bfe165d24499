"""A stranger's file repeats the user's key in disguise. The run's folder, the answer and an export do not."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from victim import Victim

from sonde.core.redaction import secret_forms

KEY = "sk-Very/Secret+0123456789=Key"
DISGUISES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "capitals": str.upper,
    "small": str.lower,
    "hex": lambda key: key.encode().hex(),
    "hex in capitals": lambda key: key.encode().hex().upper(),
    "backwards": lambda key: key[::-1],
    "in a URL": lambda key: re.sub("%..", lambda code: code[0].lower(), quote(key, safe="")),
    "every character in a URL": lambda key: "".join(f"%{ord(letter):02X}" for letter in key),
    "hex with colons": lambda key: key.encode().hex(":"),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "escapes of a program": lambda key: "".join(f"\\x{ord(letter):02x}" for letter in key),
    "escapes of JSON": lambda key: "".join(f"\\u{ord(letter):04X}" for letter in key),
    "base64 of a login": lambda key: base64.urlsafe_b64encode(f"me:{key}".encode()).decode(),
}
RARE: dict[str, Callable[[str], str]] = {
    "twice in a URL": lambda key: quote(quote(key, safe=""), safe=""),
    "every character twice in a URL": lambda key: "".join(f"%25{ord(letter):02x}" for letter in key),
    "base32": lambda key: base64.b32encode(key.encode()).decode().rstrip("="),
    "base32 of a header": lambda key: base64.b32encode(f"Bearer {key}".encode()).decode().rstrip("=").lower(),
    "a command for PowerShell": lambda key: base64.b64encode(key.encode("utf-16-le")).decode().rstrip("="),
    "UTF-16 after something else": lambda key: base64.b64encode(f"x{key}".encode("utf-16-le")).decode().rstrip("="),
    "hex of UTF-16": lambda key: key.encode("utf-16-le").hex(),
    "octal escapes": lambda key: "".join(f"\\{ord(letter):03o}" for letter in key),
    "entities of HTML": lambda key: "".join(f"&#{ord(letter)};" for letter in key),
    "blanks between": " ".join,
    "dashes between": "-".join,
}


def left_in(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file() and text in path.read_text(errors="replace")]


@pytest.mark.parametrize(
    "disguise", [*DISGUISES, *(pytest.param(name, marks=pytest.mark.hostile_long) for name in RARE)]
)
def test_a_key_in_disguise_is_in_no_file_of_the_run(victim: Victim, disguise: str) -> None:
    victim.environ = {"OPENAI_API_KEY": KEY}
    told = {**DISGUISES, **RARE}[disguise](KEY)
    victim.write("log.txt", f"sent <{told}> at noon\n")
    model = victim.model("print(read_file('log.txt'))", "FINAL(read_file('log.txt') + ' [log.txt:1-1]')")

    done = victim.call("ask", "What was sent?", "log.txt", "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 0, done.stderr
    middle = told[4:-4]  # the outermost characters of base64 belong to what stands beside the key
    assert left_in(victim.own, middle) == []
    assert left_in(victim.own, "at noon"), "the rest of the line is there"


def test_the_password_of_an_address_is_in_no_file_of_the_run(victim: Victim) -> None:
    victim.write("log.txt", "GET http://me:hunter2x@127.0.0.1:9/v1 failed\n")
    model = victim.model("print(read_file('log.txt'))", "FINAL('It failed. [log.txt:1-1]')")

    flags = ("--runs-dir", victim.own, "--model", model.name, "--base-url", "http://me:hunter2x@127.0.0.1:9/v1")
    done = victim.call("ask", "What failed?", "log.txt", *flags)

    assert done.returncode == 0, done.stderr
    assert left_in(victim.own, "hunter2x") == []
    assert "hunter2x" not in done.stderr


def test_a_long_key_in_lines_of_base64_is_in_no_file_of_the_run(victim: Victim) -> None:
    key = "sk-" + "".join(f"{number:03}x" for number in range(40))
    victim.environ = {"OPENAI_API_KEY": key}
    lines = base64.encodebytes(key.encode()).decode()
    victim.write("mail.txt", f"attached at noon\n{lines}")
    model = victim.model("print(read_file('mail.txt'))", "FINAL(read_file('mail.txt') + ' [mail.txt:1-1]')")

    done = victim.call("ask", "What was attached?", "mail.txt", "--runs-dir", victim.own, "--model", model.name)

    assert done.returncode == 0, done.stderr
    assert [left_in(victim.own, line) for line in lines.splitlines()[:2]] == [[], []]
    assert left_in(victim.own, "at noon")


@pytest.mark.parametrize("before", range(40, 60))
@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n", "\n  "])
def test_a_key_in_base64_that_is_broken_into_lines_is_removed_wherever_the_break_is(before: int, end: str) -> None:
    packed = base64.b64encode(b"x" * before + KEY.encode() + b"y" * 40).decode()
    lines = [packed[at : at + 76] for at in range(0, len(packed), 76)]

    left = secret_forms([KEY]).remove(f"body: {end.join(lines)}")

    middle = packed[(before + 2) * 8 // 6 : (before + len(KEY) - 2) * 8 // 6]
    assert middle in packed and middle not in left.replace(end, "")
    assert left.count("[key removed]") == 1
