from __future__ import annotations

import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sonde.contexts.files import FilesContext
from sonde.core.canonical import sha256_text
from sonde.core.evidence import EvidenceLog, Excerpt
from sonde.errors import ConfigError, ToolFault
from sonde.tools import ToolRegistry, ToolResult


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder


def write(root: Path, files: dict[str, str | bytes]) -> FilesContext:
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return FilesContext(root)


def call(context: FilesContext, name: str, *args: Any, **kwargs: Any) -> ToolResult:
    registry = ToolRegistry(context.tools())
    return registry.call(name, registry.bind(name, args, kwargs))


def proved(context: FilesContext, result: ToolResult) -> bool:
    texts = [context.reread(excerpt) for excerpt in result.excerpts]
    return all(t is not None and sha256_text(t) == e.hash for t, e in zip(texts, result.excerpts, strict=True))


@pytest.mark.requirement(32)
@pytest.mark.requirement(33)
def test_files_are_listed_in_order_and_by_glob(root: Path) -> None:
    context = write(root, {"b.md": "", "a/x.py": "", "a/deep/y.py": "", "c.txt": ""})

    assert call(context, "list_files").result == ["a/deep/y.py", "a/x.py", "b.md", "c.txt"]
    assert call(context, "list_files", "*.py").result == ["a/deep/y.py", "a/x.py"]
    assert call(context, "list_files", "a/*.py").result == ["a/x.py"]
    assert call(context, "list_files", "a/**/*.py").result == ["a/deep/y.py", "a/x.py"]
    assert call(context, "list_files", "*.{md,txt}").result == ["b.md", "c.txt"]
    assert call(context, "list_files", "[!axy].*").result == ["b.md", "c.txt"]
    with pytest.raises(ToolFault):
        call(context, "list_files", "*.rs")


@pytest.mark.requirement(33)
def test_lines_are_read_from_one_and_both_ends_included(root: Path) -> None:
    context = write(root, {"a.txt": "one\ntwo\nthree\n"})

    assert call(context, "read_file", "a.txt").result == "one\ntwo\nthree"
    assert call(context, "read_file", "a.txt", 2).result == "two\nthree"
    assert call(context, "read_file", "a.txt", 2, 2).result == "two"
    assert call(context, "read_file", "./a.txt", 3, 99).result == "three"
    assert call(context, "read_file", str(root / "a.txt"), 3).result == "three"
    for bad in [(0,), (4,), (2, 1), (-1, 2)]:
        with pytest.raises(ToolFault):
            call(context, "read_file", "a.txt", *bad)


@pytest.mark.requirement(1)
@pytest.mark.requirement("O2")
def test_what_is_read_can_be_cited_and_proved(root: Path) -> None:
    context = write(root, {"a.txt": "one\ntwö\nthree"})
    log = EvidenceLog()

    result = call(context, "read_file", "a.txt", 1, 3)
    log.note(result.excerpts)

    assert result.excerpts == (Excerpt.of_lines("a.txt", 1, 3, "one\ntwö\nthree"),)
    exact = log.prove_lines("a.txt", 2, 2, context.reread)
    assert isinstance(exact, Excerpt) and exact.hash == sha256_text("twö")


@pytest.mark.requirement("O14")
def test_a_file_that_changed_or_went_no_longer_proves(root: Path) -> None:
    context = write(root, {"a.txt": "one\ntwo\n", "b.txt": "one\n", "c.txt": "one\ntwo\n"})
    seen = [call(context, "read_file", name).excerpts[0] for name in ("a.txt", "b.txt", "c.txt")]

    (root / "a.txt").write_text("one\n2\n")
    (root / "b.txt").unlink()
    (root / "c.txt").write_text("one\n")

    changed = context.reread(seen[0])
    assert changed is not None and sha256_text(changed) != seen[0].hash
    assert context.reread(seen[1]) is None
    assert context.reread(seen[2]) is None
    with pytest.raises(ToolFault):
        call(context, "read_file", "b.txt")


def test_empty_files_and_files_without_a_final_newline_are_files(root: Path) -> None:
    context = write(root, {"empty": "", "open": "a", "blank": "\n"})

    assert call(context, "read_file", "empty").result == ""
    assert call(context, "read_file", "open").result == "a"
    assert [call(context, "file_info", name).result["lines"] for name in ("empty", "open", "blank")] == [0, 1, 1]


@pytest.mark.requirement(69)
def test_a_read_is_capped_at_whole_lines_and_says_how_to_go_on(root: Path) -> None:
    line = "x" * 99
    context = write(root, {"big.txt": f"{line}\n" * 12_000})

    first = call(context, "read_file", "big.txt")

    assert first.result == "\n".join([line] * 5_000)
    assert first.truncated is not None and "start_line=5001" in first.truncated
    assert proved(context, first)
    assert len(call(context, "read_file", "big.txt", 10_001).result) == 2_000 * 100 - 1


def test_a_line_too_long_for_one_call_is_read_in_slices_that_can_be_cited(root: Path) -> None:
    text = "é" * 400_000
    context = write(root, {"long.json": f"a\n{text}\nb"})

    first = call(context, "read_file", "long.json", 2)
    assert first.truncated is not None and "context_slice(500002" in first.truncated
    rest = call(context, "context_slice", 500_002, 400_000, path="long.json")

    assert first.result + rest.result == f"{text}\nb"
    assert proved(context, first) and proved(context, rest)


def test_a_slice_never_cuts_a_character(root: Path) -> None:
    context = write(root, {"a.txt": "añb€c😀d"})

    parts = [call(context, "context_slice", start, 1, path="a.txt").result for start in range(13)]

    assert set("".join(parts)) <= set("añb€c😀d")


@pytest.mark.requirement(69)
def test_a_long_read_needs_a_reason_where_the_engine_asks_for_one(root: Path) -> None:
    write(root, {"a.txt": "x\n" * 300})
    context = FilesContext(root, rationale_over=200)

    assert call(context, "read_file", "a.txt", 1, 200).result
    assert call(context, "read_file", "a.txt", rationale="the whole log is one incident").result
    with pytest.raises(ToolFault, match="rationale="):
        call(context, "read_file", "a.txt")


@pytest.mark.requirement(33)
def test_grep_gives_path_line_and_text(root: Path) -> None:
    context = write(root, {"a.log": "ok\nERROR one\r\nerror two\n", "b/c.log": "ERROR three"})

    rows = call(context, "grep", "^ERROR .*e$")

    assert rows.result == [
        {"path": "a.log", "line": 2, "text": "ERROR one"},
        {"path": "b/c.log", "line": 1, "text": "ERROR three"},
    ]
    assert proved(context, rows)
    assert [r["line"] for r in call(context, "grep", "error", path="a.log", flags="i").result] == [2, 3]
    assert [r["path"] for r in call(context, "grep", "ERROR", path="b").result] == ["b/c.log"]
    assert [r["path"] for r in call(context, "grep", "ERROR", path="*/c.*").result] == ["b/c.log"]
    assert call(context, "grep", "one)", flags="F").result == []
    assert call(context, "grep", "tw", flags="w").result == []


def test_grep_says_how_many_matches_it_left_off(root: Path) -> None:
    context = write(root, {"a.txt": "hit\n" * 100, "b.txt": "hit\n" * 20_000})

    some = call(context, "grep", "hit", path="a.txt", max_matches=30)
    many = call(context, "grep", "hit", max_matches=30)

    assert len(some.result) == len(many.result) == 30
    assert some.truncated is not None and some.truncated.startswith("70 further")
    assert many.truncated is not None and many.truncated.startswith("more than 10,000 further")
    with pytest.raises(ToolFault):
        call(context, "grep", "hit", max_matches=0)


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "a\nb", r"a\nb", "x{1,5000}"])
def test_a_pattern_that_cannot_be_used_is_explained(root: Path, pattern: str) -> None:
    context = write(root, {"a.txt": "x"})

    with pytest.raises(ToolFault):
        call(context, "grep", pattern)


@pytest.mark.timeout(20)
def test_hostile_patterns_take_linear_time(root: Path) -> None:
    context = write(root, {"a.txt": "a" * 200_000 + "\n"})

    assert call(context, "grep", "(a+)+$|(a|aa)+b").result[0]["line"] == 1


def test_matches_never_span_lines_and_empty_matches_are_lines(root: Path) -> None:
    context = write(root, {"a.txt": "a\n\nb\n"})

    assert call(context, "grep", r"a\s*b").result == []
    assert [r["line"] for r in call(context, "grep", "^$").result] == [2]
    assert [r["line"] for r in call(context, "grep", "x*").result] == [1, 2, 3]


def test_a_long_line_is_shown_around_the_match(root: Path) -> None:
    context = write(root, {"a.txt": "x" * 5_000 + "needle" + "y" * 5_000})

    (row,) = call(context, "grep", "needle").result

    assert "needle" in row["text"] and len(row["text"]) < 600


def test_search_ranks_passages_and_cites_them(root: Path) -> None:
    noise = "\n".join(f"line {n} about the weather and the sea" for n in range(400))
    context = write(root, {"a.md": noise, "b.md": f"{noise}\nThe payments were retried until exhaustion.\n{noise}"})

    hits = call(context, "search", "Why was the payment retry exhausted?", 3)

    assert hits.result[0]["path"] == "b.md"
    assert "payments were retried" in hits.result[0]["text"]
    assert hits.result[0]["start_line"] <= 401 <= hits.result[0]["end_line"]
    assert proved(context, hits)
    with pytest.raises(ToolFault):
        call(context, "search", "?!")


def test_a_search_index_is_kept_for_the_next_run_and_rebuilt_when_data_changes(root: Path, tmp_path: Path) -> None:
    write(root, {"a.md": "the harbour is closed\n"})
    cache = tmp_path / "cache"

    first = call(FilesContext(root, cache_dir=cache), "search", "harbour")
    again = call(FilesContext(root, cache_dir=cache), "search", "harbour")
    assert len(list(cache.iterdir())) == 1
    next(iter(cache.iterdir())).write_bytes(b"damaged")
    repaired = call(FilesContext(root, cache_dir=cache), "search", "harbour")
    write(root, {"a.md": "the harbour is open again\n"})
    changed = call(FilesContext(root, cache_dir=cache), "search", "harbour")

    assert first.result == again.result == repaired.result != changed.result
    assert len(list(cache.iterdir())) == 2


def test_data_too_large_to_index_is_searched_through_its_hits(root: Path) -> None:
    row = "2024-01-01 INFO nothing happened here at all, again and again and again\n"
    context = write(root, {"big.log": row * 250_000 + "2024-01-02 FATAL disk quota reached\n" + row * 250_000})

    hits = call(context, "search", "disk quota happened", 2)

    assert "quota reached" in hits.result[0]["text"]
    assert hits.truncated is not None and "happened" in hits.truncated
    assert proved(context, hits)


@pytest.mark.requirement(32)
def test_small_data_is_shared_whole(root: Path) -> None:
    context = write(root, {"a.txt": "one", "b.png": b"\x89PNG\0\0", "c.txt": "é".encode("latin-1") * 9})

    shared = context.shared()["CONTEXT"]

    assert isinstance(shared, dict)
    assert shared == {"a.txt": root / "a.txt", "c.txt": "é" * 9}


def test_large_data_is_shared_as_a_table_of_offsets(root: Path) -> None:
    context = write(root, {"a.txt": "one\n", "b.bin": "two\n"})
    with (root / "huge.txt").open("wb") as file:
        file.truncate(300_000_000)

    table = context.shared()["CONTEXT_INDEX"]

    assert table == "0\t4\ta.txt\n4\t4\tb.bin\n8\t300000000\thuge.txt\n"
    assert call(context, "context_slice", 4, 3).result == "two"
    with pytest.raises(ToolFault):
        call(context, "context_slice", 300_000_008)


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


@pytest.mark.timeout(20)
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


def test_several_sources_keep_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"one/a.txt": "1", "two/a.txt": "2", "c.txt": "3", "logs/x.log": "4", "logs/y.txt": "5"})
    monkeypatch.chdir(tmp_path)

    context = FilesContext(["one", str(tmp_path / "two"), "c.txt", "logs/*.log"], texts={"stdin.txt": "6"})

    assert call(context, "list_files").result == ["c.txt", "logs/x.log", "one/a.txt", "stdin.txt", "two/a.txt"]
    assert call(context, "read_file", "two/a.txt").result == "2"
    assert call(context, "read_file", "stdin.txt").result == "6"
    assert context.locate("one/a.txt") == tmp_path / "one/a.txt"
    assert context.locate("stdin.txt") is None
    for missing in ("nothing", "no/*.log"):
        with pytest.raises(ConfigError):
            FilesContext(missing).describe()


def test_text_in_memory_is_a_file_like_others() -> None:
    context = FilesContext(texts={"stdin.txt": "one\ntwo ERROR\n"})

    found = call(context, "grep", "ERROR")

    assert found.result == [{"path": "stdin.txt", "line": 2, "text": "two ERROR"}]
    assert proved(context, found)
    assert context.shared()["CONTEXT"] == {"stdin.txt": "one\ntwo ERROR\n"}


def test_the_fingerprint_follows_the_content_not_the_clock(root: Path) -> None:
    first = write(root, {"a.txt": "one"}).fingerprint()
    os.utime(root / "a.txt", (1, 1))
    touched = FilesContext(root).fingerprint()
    (root / "a.txt").write_text("two")

    assert first == touched != FilesContext(root).fingerprint()


def test_an_unknown_name_is_answered_with_near_ones(root: Path) -> None:
    context = write(root, {"src/app/main.py": "x"})

    with pytest.raises(ToolFault, match=r"src/app/main\.py"):
        call(context, "read_file", "main.py")


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


def test_files_that_vanish_while_they_are_searched_are_told_of(root: Path) -> None:
    context = write(root, {f"{n}.txt": "x\n" for n in range(5)})
    call(context, "list_files")
    for file in _half(root):
        file.unlink()

    found = call(context, "grep", "x")

    assert len(found.result) == 3
    assert found.truncated is not None and "2 files could not be searched" in found.truncated


def _half(root: Path) -> Iterator[Path]:
    yield root / "1.txt"
    yield root / "3.txt"


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
