from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from files_support import call, proved, write

from sonde.contexts.files import FilesContext
from sonde.core.deadline import Deadline, SystemClock
from sonde.core.mask import Mask
from sonde.errors import ToolFault


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def test_encodings_are_recognised_and_named(root: Path) -> None:
    text = "naïve\nÜber\n"
    context = write(
        root,
        {
            "utf8": text,
            "bom": b"\xef\xbb\xbf" + text.encode(),
            "utf16": text.encode("utf-16"),
            "utf16be": b"\xfe\xff" + text.encode("utf-16-be"),
            "utf32": text.encode("utf-32"),
            "latin": text.encode("latin-1"),
            "stray": "ééé\n".encode() + b"\xff\n",
        },
    )

    for name in ("utf8", "bom", "utf16", "utf16be", "utf32", "latin"):
        assert call(context, "read_file", name).result == text.strip()
        found = call(context, "grep", "^Über$", path=name)
        assert [row["line"] for row in found.result] == [2]
        assert proved(context, found)
    assert call(context, "read_file", "stray").result == "ééé\n\N{REPLACEMENT CHARACTER}"
    assert call(context, "file_info", "latin").result["encoding"] == "latin-1 (not UTF-8)"
    assert call(context, "file_info", "utf16").result["encoding"] == "utf-16"


def test_binary_files_are_listed_but_not_read(root: Path) -> None:
    context = write(
        root, {"a.bin": b"\x7fELF\0\0", "noise": bytes(range(1, 32)) * 9, "broken16": b"\xff\xfe\x00\xd8", "ok": "ok"}
    )

    assert call(context, "list_files").result == ["a.bin", "broken16", "noise", "ok"]
    for name in ("a.bin", "noise", "broken16"):
        assert call(context, "file_info", name).result["skipped"]
        with pytest.raises(ToolFault):
            call(context, "read_file", name)
        with pytest.raises(ToolFault):
            call(context, "grep", "x", path=name)
    assert [row["path"] for row in call(context, "grep", ".").result] == ["ok"]


@pytest.mark.requirement("O11")
def test_secrets_and_installed_things_are_left_out_unless_named(root: Path) -> None:
    secrets = [
        ".env", ".env.local", "prod.env", "server.pem", "tls.key", "id_rsa", "credentials", "credentials.json",
        "aws_credentials.yaml", "secrets.toml", "api-token.txt", ".npmrc", ".ssh/config", ".aws/config",
    ]  # fmt: skip
    plain = [".env.example", "id_rsa.pub", "secrets.py", "tokenizer.json", "token.md", "keyboard.txt"]
    noise = [".git/config", "node_modules/x/index.js", "a/__pycache__/b.txt", ".venv/lib/c.txt"]
    context = write(root, dict.fromkeys([*secrets, *plain, *noise], "password"))

    assert call(context, "list_files").result == sorted(plain)
    for name in secrets:
        with pytest.raises(ToolFault, match="secrets"):
            call(context, "read_file", name)
    for name in noise:
        with pytest.raises(ToolFault):
            call(context, "read_file", name)
    assert "node_modules (1)" in context.describe()
    assert "password" not in context.describe()
    named = FilesContext([root / ".env", root / "node_modules"])
    assert call(named, "list_files").result == [".env", "node_modules/x/index.js"]


@pytest.mark.requirement("O11")
def test_nothing_outside_the_root_is_reached(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "x.txt").write_text("secret")
    context = write(root, {"in.txt": "inside", ".env": "K=1", ".git/x": "y"})
    (root / "out.txt").symlink_to(tmp_path / "outside.txt")
    (root / "out").symlink_to(tmp_path / "folder")
    (root / "loop").symlink_to(root)
    (root / "dangling").symlink_to(root / "nothing")
    (root / "to_secret").symlink_to(root / ".env")
    (root / "to_git").symlink_to(root / ".git" / "x")
    (root / "link.txt").symlink_to(root / "in.txt")

    assert call(context, "list_files").result == ["in.txt", "link.txt"]
    assert call(context, "read_file", "link.txt").result == "inside"
    for name in (
        "out.txt",
        "out/x.txt",
        "../outside.txt",
        "/etc/passwd",
        "loop/in.txt",
        "dangling",
        "to_secret",
        "to_git",
        "",
    ):
        with pytest.raises(ToolFault):
            call(context, "read_file", name)
    assert "symlink" in context.describe()


def test_a_file_swapped_for_a_symlink_after_listing_is_not_followed(root: Path, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b.txt").write_text("secret")
    context = write(root, {"a.txt": "a", "d/b.txt": "b"})
    call(context, "list_files")

    (root / "a.txt").unlink()
    (root / "a.txt").symlink_to(tmp_path / "d" / "b.txt")
    (root / "d").rename(root / "e")
    (root / "d").symlink_to(tmp_path / "d")

    for name in ("a.txt", "d/b.txt"):
        with pytest.raises(ToolFault):
            call(context, "read_file", name)
    found = call(context, "grep", ".")
    assert found.result == []
    assert found.truncated is not None and "2 files could not be searched" in found.truncated


@pytest.mark.timeout(200)
def test_pipes_and_sockets_are_refused_and_never_waited_for(root: Path) -> None:
    context = write(root, {"a.txt": "a", "b.txt": "b"})
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(root / "socket"))
    call(context, "list_files")
    (root / "b.txt").unlink()
    os.mkfifo(root / "b.txt")

    assert call(context, "list_files").result == ["a.txt", "b.txt"]
    for name in ("pipe", "socket", "b.txt"):
        with pytest.raises(ToolFault):
            call(context, "read_file", name)


def test_a_file_without_permission_is_listed_and_refused(root: Path) -> None:
    context = write(root, {"a.txt": "a", "b.txt": "b"})
    (root / "a.txt").chmod(0)
    call(context, "list_files")

    with _ordinary_user(), pytest.raises(ToolFault, match="ermission"):
        call(context, "read_file", "a.txt")


@contextmanager
def _ordinary_user() -> Generator[None]:
    """Root may read everything, so the test steps down for a moment."""
    mine = os.geteuid()
    if mine == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(mine)


def test_a_named_pipe_given_by_the_user_is_read_to_its_end(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"from a pipe\n")
    os.close(writer)
    try:
        context = FilesContext(f"/dev/fd/{reader}")
        (name,) = call(context, "list_files").result
        assert call(context, "read_file", name).result == "from a pipe"
    finally:
        os.close(reader)


HOSTILE = [
    "a b",
    "new\nline",
    "quote'\"",
    "-rf",
    "~",
    "ünï",
    "\\x",
    "*",
    "[a]",
    "#",
    "..hidden",
    "e\u0301",
    "\u202egnp.exe",
    "a" * 200,
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_only_names(root: Path, name: str) -> None:
    context = write(root, {name: "content\n", "folder/other": "x"})

    assert name in call(context, "list_files").result
    assert call(context, "read_file", name).result == "content"
    assert proved(context, call(context, "grep", "content", path=name))
    assert "new\nline" not in context.describe()


def test_names_that_are_not_utf8_are_shown_escaped(root: Path) -> None:
    context = write(root, {})
    (Path(os.fsdecode(os.fsencode(root) + b"/bad\xff"))).write_text("x")

    assert call(context, "list_files").result == ["bad\\xff"]
    assert call(context, "read_file", "bad\\xff").result == "x"


def test_a_pdf_is_read_as_text_with_its_pages(root: Path) -> None:
    context = write(root, {"a.pdf": _pdf("Quarterly harbour report"), "broken.pdf": b"%PDF-1.4\ngarbage"})

    text = call(context, "read_file", "a.pdf")

    assert "[page 1]" in text.result and "Quarterly harbour report" in text.result
    assert proved(context, text)
    with pytest.raises(ToolFault, match="PDF"):
        call(context, "read_file", "broken.pdf")


def _pdf(text: str) -> bytes:
    """The smallest PDF that shows a line of text."""
    stream = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 4 0 R /Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, offsets = b"%PDF-1.4\n", list[int]()
    for number, item in enumerate(objects, 1):
        offsets.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, item)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    return (
        body
        + b"xref\n0 6\n0000000000 65535 f \n"
        + table
        + b"trailer << /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(body)
    )


def test_a_stray_byte_late_in_a_file_does_not_keep_it_from_being_shared(root: Path) -> None:
    context = write(root, {"a.log": b"ok\n" * 40_000 + b"\xff\n", "b.log": "ok\n"})

    assert context.shared() == {
        "CONTEXT": {"a.log": "ok\n" * 40_000 + "\N{REPLACEMENT CHARACTER}\n", "b.log": root / "b.log"}
    }


def test_large_binary_files_do_not_keep_text_from_being_shared(root: Path) -> None:
    context = write(root, {"a.txt": "one\n"})
    with (root / "video.mp4").open("wb") as file:
        file.truncate(400_000_000)

    assert context.shared() == {"CONTEXT": {"a.txt": root / "a.txt"}}
    assert "video.mp4" in call(context, "list_files").result
    assert call(context, "search", "one").result[0]["path"] == "a.txt"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("glob", ["[" * 500_000, "x" * 5_000_000, "**/" * 500_000], ids=["brackets", "long", "deep"])
def test_a_glob_that_is_longer_than_any_path_is_refused_at_once(root: Path, glob: str) -> None:
    context = write(root, {"a.txt": "alpha"})

    listed = call(context, "list_files", glob)
    with pytest.raises(ToolFault, match="characters"):
        call(context, "grep", "alpha", f"{glob}*")

    assert listed.result == [] and "characters" in (listed.truncated or "")


class TickingClock(SystemClock):
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def now(self) -> float:
        return float(next(self._ticks))


def test_a_large_file_that_is_still_being_masked_when_the_run_ends_is_left_out_and_named(root: Path) -> None:
    context = write(root, {"large.log": "4111 4111 4111 4111\n" * 50_000, "small.log": "jane@corp.com\n"})
    context.mask_with(Mask())

    assert call(context, "read_file", "small.log").result == "<email-1>"
    with (
        Deadline(TickingClock(), 3).in_force(),
        pytest.raises(ToolFault, match="was still being masked when the run had to end"),
    ):
        call(context, "read_file", "large.log")
    assert context.left_out == {"large.log": "was still being masked when the run had to end"}


PAGE = b"BT /F1 12 Tf 10 10 Td (Customer C-1234) Tj ! (owes C-5678 much) Tj ET"
BROKEN_PDF = (
    b"%%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n"
    b"3 0 obj<</Type/Page/Parent 2 0 R/Contents 4 0 R/MediaBox[0 0 200 200]/Resources<</Font<</F1 5 0 R>>>>>>endobj\n"
    b"4 0 obj<</Length %d>>stream\n%s\nendstream endobj\n5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\n"
    b"trailer<</Root 1 0 R/Size 6>>\nstartxref\n0\n%%%%EOF"
) % (len(PAGE), PAGE)
"""What pypdf says about it quotes it."""


def test_a_masked_run_hears_neither_the_words_nor_the_name_of_a_broken_document(root: Path) -> None:
    context = write(root, {"C-1234.zip": "none", "C-1234.pdf": BROKEN_PDF, "C-1234.log.gz": b"\x1f\x8bC-1234"})
    assert "C-1234" in context.describe()  # everything was listed, and archives were opened, before it was masked
    with pytest.raises(ToolFault):
        call(context, "read_file", "C-1234.pdf")
    context.mask_with(Mask({"customer": "C-[0-9]+"}))

    said = [context.describe(), context.outline(), repr(dict(context.left_out))]
    for path in call(context, "list_files").result:
        with pytest.raises(ToolFault) as fault:
            call(context, "read_file", path)
        said += [fault.value.message, repr(call(context, "file_info", path).result)]

    assert not [words for words in said if "C-" in words or "5678" in words or "owes" in words]
    assert sum("cannot be read" in words for words in said) == 7, said
