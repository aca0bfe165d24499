from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from sonde.contexts.code import CodeContext
from sonde.contexts.code.outline import CHUNK_CHARS, chunks
from sonde.core.canonical import sha256_text
from sonde.errors import ToolFault
from sonde.tools import CallResult, ToolRegistry

SOURCE = '''\
"""Ünïcødé 😀 before everything: byte offsets are wrong from here on."""
import os


@decorated("ñ")
class Session(Base, metaclass=Meta):
    """Doc 😀."""

    def run(self, task: str, *, depth: int = 1) -> "Run":
        return Run("é" * 3)

    async def wait(self): ...

    @property
    def size(self): return 1

    @size.setter
    def size(self, value): pass

    class Inner:
        def deep(self): return "last 😀"


if os.name == "posix":
    def fork(): return 1
else:
    def fork(): return 2


def main(argv=None):
    def local(): ...
    return Session()
'''


def call(context: CodeContext, name: str, *args: Any) -> CallResult:
    registry = ToolRegistry(context.tools())
    return registry.call(name, registry.bind(name, args, {}))


def refused(context: CodeContext, name: str, *args: Any) -> str:
    with pytest.raises(ToolFault) as caught:
        call(context, name, *args)
    return caught.value.message


def proved(context: CodeContext, result: CallResult) -> bool:
    texts = [context.reread(excerpt) for excerpt in result.excerpts]
    return bool(texts) and all(
        t is not None and sha256_text(t) == e.hash for t, e in zip(texts, result.excerpts, strict=True)
    )


@pytest.fixture
def one() -> CodeContext:
    return CodeContext(texts={"session.py": SOURCE})


@pytest.fixture
def repository(tmp_path: Path) -> CodeContext:
    files = {
        "src/app/__init__.py": "VERSION = 1\n",
        "src/app/main.py": "def start():\n    return 1\n\nclass App:\n    def close(self): pass\n",
        "src/app/store.py": "class Store:\n    def close(self): pass\n    def put(self, key): return key\n",
        "web/index.ts": "export class Page {\n  render(title: string): void {}\n}\n",
        "README.md": "# App\nclass NotCode\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return CodeContext(tmp_path)


def test_info_says_how_much_code_there_is(one: CodeContext) -> None:
    assert call(one, "nav_info").result == {
        "total_chars": len(SOURCE),
        "total_lines": 32,
        "estimated_tokens": -(-len(SOURCE) // 4),
        "language": "python",
        "symbol_count": 10,
        "source_path": "session.py",
    }


def test_the_top_and_a_scope_are_listed_by_signature(one: CodeContext) -> None:
    assert call(one, "nav_ls").result == [
        "class Session(Base, metaclass=Meta)",
        "def fork()",
        "def fork()",
        "def main(argv=None)",
    ]
    assert call(one, "nav_ls", "Session").result == [
        "def run(self, task: str, *, depth: int=1) -> 'Run'",
        "async def wait(self)",
        "def size(self)",
        "def size(self, value)",
        "class Inner",
    ]
    assert call(one, "nav_ls", "Session.Inner").result == ["def deep(self)"]


def test_the_outline_is_a_skeleton_with_lines(one: CodeContext) -> None:
    skeleton = call(one, "nav_outline").result

    assert skeleton.startswith("# session.py (python)\nclass Session(Base, metaclass=Meta)  # 5-21\n    def run(")
    assert "        def deep(self)  # 21-21" in skeleton
    assert "return" not in skeleton


@pytest.mark.requirement("O11")
def test_a_symbol_after_multibyte_text_is_read_exactly_and_cited(one: CodeContext) -> None:
    deep = call(one, "nav_read", "Session.Inner.deep")

    assert deep.result == '# session.py:21-21\n        def deep(self): return "last 😀"'
    assert proved(one, deep)
    assert call(one, "nav_read", "Session").result.startswith('# session.py:5-21\n@decorated("ñ")\nclass Session')
    assert call(one, "nav_read", "size~2").result.endswith("    def size(self, value): pass")
    assert call(one, "nav_read", "fork~2").result == "# session.py:27-27\n    def fork(): return 2"


def test_a_wrong_name_is_answered_with_the_right_ones(one: CodeContext) -> None:
    answer = refused(one, "nav_read", "Sesion.run")

    assert answer.startswith("nav_read: nothing here is called 'Sesion.run'. Call nav_ls() first")
    assert "use one of these symbols: Session.run" in answer
    assert "nothing here is called 'Nothing'. Call nav_ls() first" in refused(one, "nav_ls", "Nothing")
    many = CodeContext(texts={"a.py": "\n".join(f"def f{n}(): pass" for n in range(99))})
    assert [f"f{n}" in refused(many, "nav_read", "g") for n in (0, 19, 20)] == [True, True, False]


def test_a_large_symbol_is_read_in_chunks(one: CodeContext) -> None:
    body = "\n".join(f"    x{n} = 'é{n}'" for n in range(1_500))
    context = CodeContext(texts={"a.py": f"# head\ndef big():\n{body}\n"})

    first = call(context, "nav_read", "big")
    total = int(first.result.partition("chunk 1/")[2].split()[0])
    parts = [call(context, "nav_read", "big", number) for number in range(total)]

    assert first.result.startswith("# a.py:2-") and "# next: nav_read('big', 1)" in first.result
    assert "\n".join(part.result.split("\n", 1)[1].rpartition("\n# ")[0] for part in parts) == f"def big():\n{body}"
    assert all(proved(context, part) for part in parts)
    for number in (-1, total):
        assert f"chunk_index may be 0 to {total - 1}" in refused(context, "nav_read", "big", number)


def test_the_lines_of_a_symbol_are_numbered_for_citing_where_that_is_wanted(one: CodeContext) -> None:
    numbered = ToolRegistry(one.tools()).call("nav_read", {"symbol": "Session.run", "numbered": True})

    assert numbered.result.split("\n") == [
        "# session.py:9-10",
        '9:     def run(self, task: str, *, depth: int = 1) -> "Run":',
        '10:         return Run("é" * 3)',
    ]
    assert proved(one, numbered)


@given(
    text=st.lists(
        st.text("aé\n", max_size=40) | st.just("x" * (CHUNK_CHARS + 5)) | st.just("y" * 3_000), max_size=6
    ).map("".join)
)
def test_chunks_hold_the_whole_text_in_order(text: str) -> None:
    parts = chunks(text, 5)
    lines = text.split("\n")

    assert all(len(part.text) <= CHUNK_CHARS for part in parts)
    assert parts[0].start_line == 5 and parts[-1].end_line == 5 + len(lines) - 1
    for part in parts:
        assert part.text in "\n".join(lines[part.start_line - 5 : part.end_line - 5 + 1])
    assert sum(len(part.text.replace("\n", "")) for part in parts) == len(text.replace("\n", ""))


def test_search_gives_text_and_line(one: CodeContext) -> None:
    rows = call(one, "nav_search", "def (run|main)")

    assert [row["line"] for row in rows.result] == [9, 30]
    assert set(rows.result[0]) == {"text", "line"}
    assert proved(one, rows)
    assert "the pattern '(' cannot be used" in refused(one, "nav_search", "(")


def test_a_repository_is_walked_by_folder_file_and_symbol(repository: CodeContext) -> None:
    assert call(repository, "nav_ls").result == ["src/ (3 files)", "web/ (1 files)"]
    assert call(repository, "nav_ls", "src/app").result == [
        "src/app/__init__.py",
        "src/app/main.py",
        "src/app/store.py",
    ]
    assert call(repository, "nav_ls", "src/app/main.py").result == ["def start()", "class App"]
    assert call(repository, "nav_ls", "src/app/main.py:App").result == ["def close(self)"]
    assert call(repository, "nav_info").result["language"] == "python"
    assert "class Page" in call(repository, "nav_outline").result


@pytest.mark.parametrize(
    "name",
    [
        "src/app/store.py:Store.put",
        "app.store.Store.put",
        "src.app.store.Store.put",
        "store.Store.put",
        "Store.put",
        "put",
    ],
)
def test_a_symbol_of_a_repository_has_several_names(repository: CodeContext, name: str) -> None:
    found = call(repository, "nav_read", name)

    assert found.result == "# src/app/store.py:3-3\n    def put(self, key): return key"
    assert proved(repository, found)


def test_a_name_with_two_meanings_is_asked_back(repository: CodeContext) -> None:
    answer = refused(repository, "nav_read", "close")

    assert answer.startswith("nav_read: 'close' is defined 2 times")
    assert "src/app/main.py:App.close" in answer and "src/app/store.py:Store.close" in answer
    assert call(repository, "nav_read", "src/app/main.py").result.startswith("# src/app/main.py:1-5\ndef start")


def test_a_changed_file_is_parsed_again(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def old(): pass\n")
    context = CodeContext(tmp_path / "a.py")
    assert call(context, "nav_ls").result == ["def old()"]

    (tmp_path / "a.py").write_text("def new_one(): pass\n")

    assert call(context, "nav_ls").result == ["def new_one()"]


@pytest.mark.parametrize(
    "source",
    [
        "def broken(:\n",
        "text = f'" + "{a}" * 200_000 + "'\n",
        "print 'python 2'\n",
        "x = '\\d'\n" + "(" * 500 + ")" * 500,
        "def f():\n\tpass\n        pass\n",
        "\0",
    ],
)
def test_code_that_cannot_be_parsed_stays_readable(source: str) -> None:
    context = CodeContext(texts={"a.py": source})

    assert call(context, "nav_info").result["total_chars"] == len(source)
    assert "nothing here is called 'anything'" in refused(context, "nav_read", "anything")
    assert call(context, "nav_read", "a.py").result.startswith("# a.py:1-")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["a." * 500_000, "../" * 300_000, "x" * 5_000_000], ids=["dots", "parents", "long"])
def test_a_name_that_is_longer_than_any_path_is_answered_at_once(repository: CodeContext, name: str) -> None:
    assert len(refused(repository, "nav_read", name)) < 2_000


def test_lone_carriage_returns_and_form_feeds_do_not_shift_lines() -> None:
    context = CodeContext(texts={"a.py": 's = """a\rb"""\r\n\x0c\r\ndef f():\r\n    return 1\r\n'})

    assert call(context, "nav_read", "f").result == "# a.py:3-4\ndef f():\n    return 1"


OTHERS = {
    "a.js": ("// 😀\nexport default class A extends B {\n  m(x) {}\n}\nconst g = async (x) => {\n  return x\n}\n", ["A", "A.m", "g"]),
    "a.ts": ("interface I { a: string }\nnamespace N {\n  export function f(): void {}\n}\ntype T = 1\n", ["I", "N", "N.f", "T"]),
    "a.tsx": ("export const V = () => <p>é</p>;\nfunction W() { return <V/>; }\n", ["V", "W"]),
    "a.go": ("package m\n// é\nfunc (r *T[K]) M() error {\n return nil\n}\nfunc F() {}\ntype T struct{}\n", ["T.M", "F", "T"]),
    "a.rs": (
        "impl<T> Tr for S<T> {\n fn m(&self) {}\n}\npub fn f() {}\nmod a { fn b() {} }\nenum E { X }\n",
        ["S", "S.m", "f", "a", "a.b", "E"],
    ),
    "A.java": ("class A {\n  A(int y) {}\n  void m(String s) {}\n  enum E { X }\n}\n", ["A", "A.A", "A.m", "A.E"]),
    "a.c": ("static int *f(int a) { return 0; }\nstruct s { int a; };\nstruct s x;\ntypedef struct { int b; } t;\n", ["f", "s", "t"]),
    "a.cpp": (
        "namespace n {\nclass A { void m() {} };\nvoid A::k() {}\ntemplate<class T>\nT f(T a) { return a; }\n}\n",
        ["n", "n.A", "n.A.m", "n.A.k", "n.f"],
    ),
    "a.rb": ("module M\n class A\n  def m(x)\n  end\n  def self.s; end\n end\nend\n", ["M", "M.A", "M.A.m", "M.A.s"]),
}  # fmt: skip


@pytest.mark.parametrize("path", OTHERS)
def test_other_languages_have_symbols_too(path: str) -> None:
    pytest.importorskip("tree_sitter")
    source, names = OTHERS[path]
    context = CodeContext(texts={path: source})

    assert call(context, "nav_info").result["symbol_count"] == len(names)
    for name in names:
        found = call(context, "nav_read", name)
        assert found.result.startswith(f"# {path}:")
        assert proved(context, found)


def test_exact_source_of_a_method_in_another_language() -> None:
    pytest.importorskip("tree_sitter")
    context = CodeContext(texts={"a.js": OTHERS["a.js"][0]})

    assert call(context, "nav_read", "g").result == "# a.js:5-7\nconst g = async (x) => {\n  return x\n}"
    assert call(context, "nav_ls").result == ["export default class A extends B", "const g = async (x)"]


def test_a_language_without_grammar_says_so_and_is_still_text() -> None:
    context = CodeContext(texts={"a.zig": "fn main() void {}\n", "b.py": "def f(): pass\n"})

    assert call(context, "nav_read", "a.zig").result == "# a.zig:1-1\nfn main() void {}"
    assert call(context, "nav_search", "main").result[0]["path"] == "a.zig"


def test_a_single_file_is_the_variable_context(tmp_path: Path, repository: CodeContext) -> None:
    (tmp_path / "one.py").write_text("x = 1\n")

    assert CodeContext(tmp_path / "one.py").shared() == {"context": tmp_path / "one.py"}
    assert set(repository.shared()) == {"CONTEXT"}
