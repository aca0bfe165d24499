"""Symbols of a source file: what is defined, under which dotted name, on which lines.

Python is read by `ast`, other languages by tree-sitter (see `grammars`). Lines are those of `contexts.files`: only a newline ends
one, so that what is found here can be cited there. A file that cannot be parsed has no symbols and a note that says why; its text
stays readable.
"""

from __future__ import annotations

import ast
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sonde.contexts.code.grammars import Definition, GrammarMissing, definitions, language_of
from sonde.sandbox.source import has_too_many_fields

SIGNATURE_CHARS = 200
_quiet = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One definition; `name` is dotted within its file, as in `Class.method`. Lines count from 1, both included."""

    name: str
    signature: str
    start_line: int
    end_line: int

    @property
    def parent(self) -> str:
        """The name of what it is a member of; empty at the top."""
        return self.name.rpartition(".")[0]

    @property
    def depth(self) -> int:
        """How far below the top of the file."""
        return self.name.count(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """The symbols of a file in order, and why there may be none."""

    language: str
    symbols: tuple[Symbol, ...] = ()
    note: str = ""

    def members(self, scope: str) -> list[Symbol]:
        """What is defined directly in a scope; empty for the top of the file."""
        return [symbol for symbol in self.symbols if symbol.parent == scope]

    def find(self, name: str) -> Symbol | None:
        """The symbol of this dotted name."""
        return next((symbol for symbol in self.symbols if symbol.name == name), None)


def parse(path: str, text: str) -> Parsed:
    """The symbols of a source text; never raises for what the text holds."""
    language = language_of(path)
    try:
        if language == "python":
            found = list(_of_python(text))
        elif language:
            found = [_of_definition(each) for each in definitions(path, text)]
        else:
            return Parsed(language="text", note="this kind of file has no symbols; read it by lines")
    except GrammarMissing as error:
        return Parsed(language=language, note=str(error))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Parsed(language=language, note=f"it cannot be parsed ({error}); read it by lines")
    return Parsed(language=language, symbols=_numbered(found))


def _of_definition(found: Definition) -> Symbol:
    return Symbol(
        name=found.name,
        signature=_clipped(found.signature),
        start_line=found.start_line,
        end_line=found.end_line,
    )


def _of_python(text: str) -> Iterator[Symbol]:
    # Python ends lines at a lone carriage return too; a space in its place keeps the numbers those of our lines.
    source = text.replace("\r", " ")
    if has_too_many_fields(source):
        raise ValueError("f-strings of too many fields")
    with _quiet, warnings.catch_warnings():  # an invalid escape in somebody's code is not our warning to print
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    yield from _in_body(tree.body, "")


def _in_body(body: Sequence[ast.stmt], prefix: str) -> Iterator[Symbol]:
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield _symbol(node, prefix + node.name, _function(node))
            case ast.ClassDef():
                yield _symbol(node, prefix + node.name, _class(node))
                yield from _in_body(node.body, f"{prefix}{node.name}.")
            case ast.If() | ast.Try() | ast.With() | ast.For() | ast.While():
                yield from _in_body(_nested(node), prefix)
            case _:
                continue


def _nested(node: ast.stmt) -> list[ast.stmt]:
    """The statements within an if, try, with or loop: definitions there belong to the scope around it."""
    found: list[ast.stmt] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            found.append(child)
        elif isinstance(child, ast.ExceptHandler):
            found.extend(child.body)
    return found


def _symbol(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, name: str, signature: str) -> Symbol:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return Symbol(name=name, signature=_clipped(signature), start_line=first, end_line=node.end_lineno or node.lineno)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{kind} {node.name}({ast.unparse(node.args)}){returns}"


def _class(node: ast.ClassDef) -> str:
    bases = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
    return f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"


def _clipped(signature: str) -> str:
    one_line = " ".join(signature.split())
    return one_line if len(one_line) <= SIGNATURE_CHARS else f"{one_line[: SIGNATURE_CHARS - 1]}…"


def _numbered(symbols: list[Symbol]) -> tuple[Symbol, ...]:
    """Names made unique: a second `size` in the same scope (a setter, an overload) becomes `size~2`."""
    seen: dict[str, int] = {}
    unique: list[Symbol] = []
    for symbol in symbols:
        seen[symbol.name] = count = seen.get(symbol.name, 0) + 1
        unique.append(symbol if count == 1 else replace(symbol, name=f"{symbol.name}~{count}"))
    return tuple(unique)
