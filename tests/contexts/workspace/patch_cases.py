# ruff: noqa: E501 - a case is a row of a table and stays on one line
"""The patch table: files before, a patch, files after. `after=None` means refused, with every byte as before."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    before: dict[str, bytes]
    patch: str
    after: dict[str, bytes] | None  # None: refused


def envelope(body: str) -> str:
    return f"*** Begin Patch\n{body.strip(chr(10))}\n*** End Patch"


def update(body: str, path: str = "a.py") -> str:
    return envelope(f"*** Update File: {path}\n{body.strip(chr(10))}")


def a(text: str | bytes) -> dict[str, bytes]:
    return {"a.py": text if isinstance(text, bytes) else text.encode()}


TWO_CLASSES = """class A:
    def run(self):
        return 1

class B:
    def run(self):
        return 1
"""
BIG = "".join(f"line {n}\n" for n in range(90_000))  # a little over 1 MB
THREE = "one\ntwo\nthree\n"

UPDATES = [
    Case("replace a line", a(THREE), update("-two\n+2"), a("one\n2\nthree\n")),
    Case("replace with context", a(THREE), update("@@\n one\n-two\n+2\n three"), a("one\n2\nthree\n")),
    Case("insert between", a(THREE), update(" one\n+one and a half\n two"), a("one\none and a half\ntwo\nthree\n")),
    Case("insert at the top", a(THREE), update("+zero\n one"), a("zero\none\ntwo\nthree\n")),
    Case("append at end of file", a(THREE), update("@@\n+four\n*** End of File"), a("one\ntwo\nthree\nfour\n")),
    Case("append after last line", a(THREE), update(" three\n+four"), a("one\ntwo\nthree\nfour\n")),
    Case("delete a line", a(THREE), update("-two"), a("one\nthree\n")),
    Case("delete all lines", a(THREE), update("-one\n-two\n-three"), a("")),
    Case("two hunks", a(THREE), update("@@\n-one\n+1\n@@\n-three\n+3"), a("1\ntwo\n3\n")),
    Case("two hunks out of order", a(THREE), update("@@\n-three\n+3\n@@\n-one\n+1"), a("1\ntwo\n3\n")),
    Case("two sections of one file", a(THREE), envelope("*** Update File: a.py\n-one\n+1\n*** Update File: a.py\n-two\n+2"), a("1\n2\nthree\n")),
    Case("anchor picks the class", a(TWO_CLASSES), update("@@ class B:\n     def run(self):\n-        return 1\n+        return 2"), a(TWO_CLASSES[:-2] + "2\n")),
    Case("anchor picks the first class", a(TWO_CLASSES), update("@@ class A:\n-        return 1\n+        return 2"), a(TWO_CLASSES.replace("1", "2", 1))),
    Case("nested anchors", a(TWO_CLASSES), update("@@ class B:\n@@     def run(self):\n-        return 1\n+        return 2"), a(TWO_CLASSES[:-2] + "2\n")),
    Case("anchor by beginning", a(TWO_CLASSES), update("@@ class B\n-        return 1\n+        return 2"), a(TWO_CLASSES[:-2] + "2\n")),
    Case("anchor repeated as context", a(TWO_CLASSES), update("@@ class B:\n class B:\n-    def run(self):\n+    def go(self):"), a(TWO_CLASSES[:42] + TWO_CLASSES[42:].replace("run", "go"))),
    Case("only added lines below an anchor", a(TWO_CLASSES), update("@@ class B:\n+    x = 1"), a(TWO_CLASSES.replace("class B:\n", "class B:\n    x = 1\n"))),
    Case("same context twice, both changed in order", a("x\n-\nx\n"), update("@@\n-x\n+1\n@@\n-x\n+2"), a("1\n-\n2\n")),
    Case("empty line for an empty context line", a("one\n\ntwo\n"), update(" one\n\n-two\n+2"), a("one\n\n2\n")),
    Case("a line of the file looks like a header", a("x\n*** End Patch\ny\n"), update(" *** End Patch\n-y\n+z"), a("x\n*** End Patch\nz\n")),
    Case("code fence around the patch", a(THREE), "```diff\n" + update("-two\n+2") + "\n```", a("one\n2\nthree\n")),
    Case("prose and a here-document around it", a(THREE), "apply_patch <<'EOF'\n" + update("-two\n+2") + "\nEOF", a("one\n2\nthree\n")),
    Case("patch with CRLF on a LF file", a(THREE), update("-two\n+2").replace("\n", "\r\n"), a("one\n2\nthree\n")),
    Case("empty file gets lines", a(""), update("+one"), a("one\n")),
    Case("1 MB file", a(BIG), update(" line 44999\n-line 45000\n+changed\n line 45001"), a(BIG.replace("line 45000\n", "changed\n"))),
    Case("1 MB file, repeated lines told apart by context", a("x\n" * 300_000 + "end\n" + "x\n" * 300_000), update("-end\n+END\n x"), a("x\n" * 300_000 + "END\n" + "x\n" * 300_000)),
]  # fmt: skip

FORMS = [
    Case("CRLF is kept", a(b"one\r\ntwo\r\n"), update("-two\n+2\n+3"), a(b"one\r\n2\r\n3\r\n")),
    Case("CR is kept", a(b"one\rtwo\r"), update("-two\n+2"), a(b"one\r2\r")),
    Case("mixed endings: each line keeps its own", a(b"one\r\ntwo\nthree\r\n"), update("-two\n+2"), a(b"one\r\n2\nthree\r\n")),
    Case("mixed endings: an added line ends like the one above", a(b"one\r\ntwo\n"), update(" one\n+1.5"), a(b"one\r\n1.5\r\ntwo\n")),
    Case("UTF-8 mark is kept", a(b"\xef\xbb\xbfone\ntwo\n"), update("-one\n+1"), a(b"\xef\xbb\xbf1\ntwo\n")),
    Case("UTF-16 LE is kept", a("\ufeffone\ntwo\n".encode("utf-16-le")), update("-two\n+zwei ü"), a("\ufeffone\nzwei ü\n".encode("utf-16-le"))),
    Case("UTF-16 BE is kept", a("\ufeffone\ntwo\n".encode("utf-16-be")), update("-two\n+2"), a("\ufeffone\n2\n".encode("utf-16-be"))),
    Case("UTF-32 is kept", a("\ufeffone\n".encode("utf-32-le")), update("-one\n+2"), a("\ufeff2\n".encode("utf-32-le"))),
    Case("Latin-1 bytes are kept", a(b"caf\xe9\ntwo\n"), update("-two\n+2"), a(b"caf\xe9\n2\n")),
    Case("Latin-1 cannot hold an arrow", a(b"caf\xe9\ntwo\n"), update("-two\n+→"), None),
    Case("no final newline stays so", a("one\ntwo"), update("-two\n+2"), a("one\n2")),
    Case("append to a file without final newline", a("one\ntwo"), update(" two\n+three"), a("one\ntwo\nthree")),
    Case("delete the last line without newline", a("one\ntwo"), update("-two"), a("one")),
    Case("form feed and line separator are not line ends", a("one\x0c\u2028x\ntwo\n".encode()), update("-two\n+2"), a("one\x0c\u2028x\n2\n".encode())),
    Case("multi-byte characters", a("größe = 'ß'\n🙂\n"), update("-🙂\n+🙃"), a("größe = 'ß'\n🙃\n")),
    Case("binary is refused", a(b"one\n\0two\n"), update("-one\n+1"), None),
    Case("broken UTF-16 is refused", a(b"\xff\xfeo"), update("-o\n+1"), None),
    Case("a lone surrogate is refused", a(THREE), update("-two\n+\ud800"), None),
]  # fmt: skip

WHITESPACE = [
    Case("tabs against spaces", a("if x:\n\tgo()\n"), update(" if x:\n-    go()\n+    stop()"), a("if x:\n\tstop()\n")),
    Case("less indentation in the patch", a("class A:\n    def f(self):\n        return 1\n"), update(" def f(self):\n-    return 1\n+    x = 1\n+    return x"), a("class A:\n    def f(self):\n        x = 1\n        return x\n")),
    Case("deeper lines keep their difference", a("    if x:\n        go()\n"), update(" if x:\n-    go()\n+    while y:\n+        go()"), a("    if x:\n        while y:\n            go()\n")),
    Case("trailing space in the file", a("one  \ntwo\n"), update(" one\n-two\n+2"), a("one  \n2\n")),
    Case("white space matches in two places: refused", a("  x\n y\n\tx\n y\n"), update("-x\n+z"), None),
    Case("exact beats loose", a("  x\nx\n"), update("-x\n+z"), a("  x\nz\n")),
    Case("words run together do not match", a("a b\n"), update("-ab\n+c"), None),
]  # fmt: skip

AMBIGUOUS = [
    Case("repeated context", a("x\ny\nx\n"), update("-x\n+z"), None),
    Case("repeated context in two classes", a(TWO_CLASSES), update("-        return 1\n+        return 2"), None),
    Case("anchor that is in both classes", a(TWO_CLASSES), update("@@     def run(self):\n-        return 1\n+        return 2"), None),
    Case("two of three places", a("x\nx\nx\n"), update("@@\n-x\n+1\n@@\n-x\n+2"), None),
    Case("added lines without a place", a(THREE), update("+four"), None),
    Case("added lines below a repeated anchor", a(TWO_CLASSES), update("@@     def run(self):\n+        pass"), None),
    Case("context not in the file", a(THREE), update("-four\n+4"), None),
    Case("context half right", a(THREE), update(" one\n-three\n+3"), None),
    Case("anchor not in the file", a(THREE), update("@@ def f():\n-two\n+2"), None),
    Case("end of file mark on a line that is not last", a(THREE), update("-two\n+2\n*** End of File"), None),
    Case("overlapping hunks", a(THREE), update("@@\n one\n-two\n+2\n@@\n-two\n+zwei\n three"), None),
    Case("applied earlier", a("one\n2\nthree\n"), update("-two\n+2"), None),
    Case("partly applied earlier", a("1\ntwo\nthree\n"), update("@@\n-one\n+1\n@@\n-two\n+2"), None),
    Case("no change", a(THREE), update(" one\n two"), None),
    Case("second file fails, first is untouched", {"a.py": b"one\n", "b.py": b"two\n"}, envelope("*** Update File: a.py\n-one\n+1\n*** Update File: b.py\n-nope\n+2"), None),
]  # fmt: skip

FILES = [
    Case("add", {}, envelope("*** Add File: new/deep/a.py\n+one\n+\n+two"), {"new/deep/a.py": b"one\n\ntwo\n"}),
    Case("add an empty file", {}, envelope("*** Add File: a.py"), a("")),
    Case("add over an existing file", a(THREE), envelope("*** Add File: a.py\n+x"), None),
    Case("add with a line that lacks its +", {}, envelope("*** Add File: a.py\n+one\ntwo"), None),
    Case("delete", a(THREE), envelope("*** Delete File: a.py"), {}),
    Case("delete what is not there", {}, envelope("*** Delete File: a.py"), None),
    Case("delete with lines", a(THREE), envelope("*** Delete File: a.py\n-one"), None),
    Case("update what is not there", {}, update("-one\n+1"), None),
    Case("move and change", a(THREE), envelope("*** Update File: a.py\n*** Move to: lib/b.py\n-two\n+2"), {"lib/b.py": b"one\n2\nthree\n"}),
    Case("move only", a(b"\xef\xbb\xbfone\r\n"), envelope("*** Update File: a.py\n*** Move to: b.py"), {"b.py": b"\xef\xbb\xbfone\r\n"}),
    Case("move onto an existing file", {"a.py": b"1\n", "b.py": b"2\n"}, envelope("*** Update File: a.py\n*** Move to: b.py"), None),
    Case("add, update, delete, move at once", {"u": b"1\n", "d": b"2\n", "m": b"3\n"}, envelope("*** Add File: n\n+new\n*** Update File: u\n-1\n+one\n*** Delete File: d\n*** Update File: m\n*** Move to: moved"), {"n": b"new\n", "u": b"one\n", "moved": b"3\n"}),
    Case("delete and add the same file", a(THREE), envelope("*** Delete File: a.py\n*** Add File: a.py\n+x"), None),
    Case("one file moved to where another is added", a(THREE), envelope("*** Update File: a.py\n*** Move to: b\n*** Add File: b\n+x"), None),
    Case("two new names that differ in case", {}, envelope("*** Add File: x.py\n+1\n*** Add File: X.py\n+2"), None),
    Case("new name that differs in case from an old one", {"Readme.md": b"x\n"}, envelope("*** Add File: README.md\n+1"), None),
    Case("new folder that differs in case from an old one", {"src/a": b"x\n"}, envelope("*** Add File: SRC/b\n+1"), None),
    Case("accents in two spellings are one name", {"caf\u00e9": b"x\n"}, envelope("*** Add File: cafe\u0301\n+1"), None),
    Case("file used as a folder", a(THREE), envelope("*** Add File: a.py/b\n+1"), None),
    Case("folders that differ in case only", {}, envelope("*** Add File: Lib/a.py\n+1\n*** Add File: lib/b.py\n+1"), None),
    Case("names that differ in the spelling of accents only", {}, envelope("*** Add File: caf\u00e9\n+1\n*** Add File: cafe\u0301\n+1"), None),
]  # fmt: skip

HOSTILE_PATHS = [
    Case(f"path {path!r}", {"a.py": b"x\n", "src/a": b"x\n"}, envelope(f"*** Add File: {path}\n+x"), None)
    for path in (
        *(
            "../out",
            "a/../../out",
            "src/../../out",
            "/tmp/out",
            "~/out",
            "C:\\out",
            "c:/out",
            "..\\out",
            "\\\\host\\out",
            "",
        ),
        *(
            "src",
            "src/",
            "./",
            ".git/config",
            ".GIT/hooks/pre-commit",
            "sub/.git/config",
            ".git./config",
            "a\u200bb",
            "a\x00b",
        ),
        *(
            ".env",
            "config/.env.local",
            "id_rsa",
            "deploy.pem",
            ".ssh/authorized_keys",
            "secrets.yaml",
            ".vscode/tasks.json",
        ),
        *("nul", "aux.txt", "COM1", "a:stream", "what?", "trailing.", "p.code-workspace", ".npmrc"),
    )
]

MALFORMED = [
    Case("empty patch", a(THREE), "", None),
    Case("white space only", a(THREE), " \n\n", None),
    Case("no end", a(THREE), "*** Begin Patch\n*** Update File: a.py\n-two\n+2", None),
    Case("two envelopes", a(THREE), update("-two\n+2") + "\n" + update("-one\n+1"), None),
    Case("no file", a(THREE), envelope("-two\n+2"), None),
    Case("no header at all", a(THREE), "please change two to 2", None),
    Case("no lines", a(THREE), update(""), None),
    Case("anchor without lines", a(THREE), update("@@ one"), None),
    Case("line without a mark", a(THREE), update("two"), None),
]


def diff(body: str, old: str = "a/a.py", new: str = "b/a.py") -> str:
    return f"--- {old}\n+++ {new}\n{body}"


def git(name: str, headers: str = "index 1..2 100644") -> str:
    return f"diff --git a/{name} b/{name}\n{headers}\n"


ONE = diff("@@ -1 +1 @@\n-1\n+one\n")

UNIFIED = [
    Case("unified", a(THREE), diff("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"), a("one\n2\nthree\n")),
    Case("unified with git lines", a(THREE), "diff --git a/a.py b/a.py\nindex 1..2 100644\n" + diff("@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"), a("one\n2\nthree\n")),
    Case("unified with wrong numbers", a(THREE), diff("@@ -40,9 +41,7 @@ def x\n one\n-two\n+2\n three\n"), a("one\n2\nthree\n")),
    Case("unified without numbers", a(THREE), diff("@@ @@\n-two\n+2\n"), a("one\n2\nthree\n")),
    Case("unified: the stated line decides between equals", a("x\ny\nx\n"), diff("@@ -3,1 +3,1 @@\n-x\n+z\n"), a("x\ny\nz\n")),
    Case("unified: a wrong line does not decide", a("x\ny\nx\n"), diff("@@ -2,1 +2,1 @@\n-x\n+z\n"), None),
    Case("unified: wrong context is refused", a(THREE), diff("@@ -1,3 +1,3 @@\n one\n-zwei\n+2\n three\n"), None),
    Case("unified: two files", {"a.py": b"1\n", "b.py": b"2\n"}, diff("@@ -1 +1 @@\n-1\n+one\n") + diff("@@ -1 +1 @@\n-2\n+two\n", "a/b.py", "b/b.py"), {"a.py": b"one\n", "b.py": b"two\n"}),
    Case("unified: removed line that looks like a header", a("-- old\nx\n"), diff("@@ -1,2 +1,2 @@\n--- old\n+++ new\n x\n"), a("++ new\nx\n")),
    Case("unified: add", {}, diff("@@ -0,0 +1,2 @@\n+one\n+two\n", "/dev/null"), a("one\ntwo\n")),
    Case("unified: add without final newline", {}, diff("@@ -0,0 +1 @@\n+one\n\\ No newline at end of file\n", "/dev/null"), a("one")),
    Case("unified: delete", a("one\n"), diff("@@ -1 +0,0 @@\n-one\n", new="/dev/null"), {}),
    Case("unified: delete of other content", a("two\n"), diff("@@ -1 +0,0 @@\n-one\n", new="/dev/null"), None),
    Case("unified: rename", a(THREE), "diff --git a/a.py b/b.py\nsimilarity index 100%\nrename from a.py\nrename to b.py\n", {"b.py": THREE.encode()}),
    Case("unified: rename and change", a(THREE), "rename from a.py\nrename to b.py\n" + diff("@@ -2 +2 @@\n-two\n+2\n", new="b/b.py"), {"b.py": b"one\n2\nthree\n"}),
    Case("unified: newline added at the end", a("one"), diff("@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+1\n"), a("1\n")),
    Case("unified: newline taken from the end", a("one\n"), diff("@@ -1 +1 @@\n-one\n+1\n\\ No newline at end of file\n"), a("1")),
    Case("unified: no newline before or after", a("one"), diff("@@ -1 +1 @@\n-one\n\\ No newline at end of file\n+1\n\\ No newline at end of file\n"), a("1")),
    Case("unified: bare insertion by line number", a(THREE), diff("@@ -2,0 +3 @@\n+x\n"), None),
    Case("unified: outside the root", a(THREE), diff("@@ -0,0 +1 @@\n+x\n", "/dev/null", "b/../../out"), None),
    Case("unified: headers without hunk", a(THREE), diff(""), None),
    Case("unified: both sides /dev/null", a(THREE), diff("@@ -1 +1 @@\n-one\n+1\n", "/dev/null", "/dev/null"), None),
    Case("unified: a copy would lose the source", a(THREE), "copy from a.py\ncopy to b.py\n" + diff("@@ -2 +2 @@\n-two\n+2\n", new="b/b.py"), None),
    Case("unified: an empty file beside a change", a("1\n"), git("e.py", "new file mode 100644\nindex 0..e") + git("a.py") + ONE, {**a("one\n"), "e.py": b""}),
    Case("unified: an empty file alone", a("1\n"), git("e.py", "new file mode 100644\nindex 0..e"), {**a("1\n"), "e.py": b""}),
    Case("unified: an empty file goes beside a change", {**a("1\n"), "e.py": b""}, git("a.py") + ONE + git("e.py", "deleted file mode 100644"), a("one\n")),
    Case("unified: a rename beside a change", {**a("1\n"), "e.py": b"x\n"}, git("a.py") + ONE + "diff --git a/e.py b/f.py\nsimilarity index 100%\nrename from e.py\nrename to f.py\n", {**a("one\n"), "f.py": b"x\n"}),
    Case("unified: a binary file beside a change", {**a("1\n"), "e.py": b"x\n"}, git("e.py", "index 1..2 100644\nBinary files a/e.py and b/e.py differ") + git("a.py") + ONE, None),
    Case("unified: a mode beside a change", {**a("1\n"), "e.py": b"x\n"}, git("e.py", "old mode 100644\nnew mode 100755") + git("a.py") + ONE, None),
    Case("unified: a folder named b, names as they are", {"b/x.py": b"1\n"}, diff("@@ -1 +1 @@\n-1\n+one\n", "b/x.py", "b/x.py"), {"b/x.py": b"one\n"}),
    Case("unified: a folder named a, names as they are", {"a/x.py": b"1\n"}, diff("@@ -1 +1 @@\n-1\n+one\n", "a/x.py", "a/x.py"), {"a/x.py": b"one\n"}),
    Case("unified: a move in a folder named b", {"b/x.py": b"1\n"}, diff("@@ -1 +1 @@\n-1\n+one\n", "b/x.py", "b/y.py"), {"b/y.py": b"one\n"}),
    Case("unified: one name with its prefix, one without", a("1\n"), diff("@@ -1 +1 @@\n-1\n+one\n", new="a.py"), a("one\n")),
    Case("unified: lines after a line without a mark that looks like git's", a("1\nindex of x\n2\n3\n"), diff("@@ -1,4 +1,4 @@\n-1\n+one\nindex of x\n-2\n+two\n 3\n"), None),
    Case("unified: lines before the first hunk", a(THREE), diff("-one\n+1\n@@ -2 +2 @@\n-two\n+2\n"), None),
    Case("unified: CRLF file", a(b"one\r\ntwo\r\n"), diff("@@ -1,2 +1,2 @@\n one\n-two\n+2\n"), a(b"one\r\n2\r\n")),
]  # fmt: skip

CASES = [*UPDATES, *FORMS, *WHITESPACE, *AMBIGUOUS, *FILES, *HOSTILE_PATHS, *MALFORMED, *UNIFIED]
