"""Symbols of a source file: what it defines, under which dotted name, on which lines.

Python is read by `ast`, other languages by tree-sitter grammars of the extra `code`: compiled packages, loaded on first use, nothing is
downloaded. Lines are those of `contexts.files`: only a newline ends one, so what is found here can be cited there. A file that cannot be
parsed has no symbols and a note that says why; its text stays readable.
"""

from __future__ import annotations

import ast
import importlib
import posixpath
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sonde.sandbox.source import has_too_many_fields

SIGNATURE_CHARS = 200
_quiet = threading.Lock()
_SUFFIXES = {
    "python": ".py .pyi .pyw",
    "javascript": ".js .jsx .mjs .cjs",
    "typescript": ".ts .mts .cts",
    "tsx": ".tsx",
    "go": ".go",
    "rust": ".rs",
    "java": ".java",
    "c": ".c .h",
    "cpp": ".cc .cpp .cxx .hpp .hh .hxx",
    "ruby": ".rb",
}
_LANGUAGES = {suffix: language for language, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_PACKAGES = {
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}

_SCOPES = frozenset(
    {
        "class_declaration", "abstract_class_declaration", "interface_declaration", "enum_declaration", "record_declaration",
        "internal_module", "impl_item", "trait_item", "mod_item", "class_specifier", "struct_specifier", "namespace_definition",
        "class", "module",
    }
)  # fmt: skip
_DEFINED = _SCOPES | {
    "function_declaration", "generator_function_declaration", "function_signature", "method_definition", "abstract_method_signature",
    "type_alias_declaration", "variable_declarator", "method_declaration", "constructor_declaration", "type_spec", "function_item",
    "function_signature_item", "struct_item", "enum_item", "type_item", "macro_definition", "function_definition", "enum_specifier",
    "union_specifier", "type_definition", "preproc_function_def", "method", "singleton_method",
}  # fmt: skip
_OPEN = frozenset(
    {
        "program", "source_file", "translation_unit", "export_statement", "lexical_declaration", "variable_declaration",
        "expression_statement", "ambient_declaration", "class_body", "interface_body", "enum_body", "enum_body_declarations",
        "statement_block", "declaration_list", "field_declaration_list", "body_statement", "template_declaration",
        "type_declaration", "preproc_ifdef", "preproc_if", "preproc_else", "linkage_specification",
    }
)  # fmt: skip
"""Nodes that are looked into: what holds definitions without being one. Bodies of functions are not."""
_WRAPPERS = frozenset(
    {"export_statement", "template_declaration", "ambient_declaration", "lexical_declaration", "type_declaration"}
)
_FUNCTIONS = frozenset({"arrow_function", "function_expression", "generator_function", "class"})


class GrammarMissing(Exception):
    """The grammar of a language is not installed; the message names the extra that has it."""


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
    """The symbols of a file in order, or a note on why it has none."""

    language: str
    symbols: tuple[Symbol, ...] = ()
    note: str = ""

    def members(self, scope: str) -> list[Symbol]:
        """What is defined directly in a scope; an empty scope is the top of the file."""
        return [symbol for symbol in self.symbols if symbol.parent == scope]

    def find(self, name: str) -> Symbol | None:
        """The symbol of this dotted name."""
        return next((symbol for symbol in self.symbols if symbol.name == name), None)


def language_of(path: str) -> str:
    """The language of a file by its suffix; empty if unknown."""
    return _LANGUAGES.get(posixpath.splitext(path)[1].lower(), "")


def parse(path: str, text: str) -> Parsed:
    """The symbols of a source text; no text makes it raise. A second `size` in one scope (a setter, an overload) becomes `size~2`."""
    language = language_of(path)
    if not language:
        return Parsed(language="text", note="this kind of file has no symbols; read it by lines")
    try:
        if language == "python":
            # Python ends lines at a lone carriage return too; a space in its place keeps the numbers those of our lines.
            source = text.replace("\r", " ")
            if has_too_many_fields(source):
                return Parsed(
                    language=language, note="it cannot be parsed (f-strings of too many fields); read it by lines"
                )
            with _quiet, warnings.catch_warnings():  # an invalid escape in somebody's code is not our warning to print
                warnings.simplefilter("ignore")
                body = ast.parse(source).body
            found = list(_in_body(body, ""))
        else:
            parser, lock = _parser(language)
            encoded = text.encode("utf-8", "replace")
            with lock:
                tree = parser.parse(encoded)
            found = list(_walk(tree.root_node, "", encoded))
    except GrammarMissing as error:
        return Parsed(language=language, note=str(error))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return Parsed(language=language, note=f"it cannot be parsed ({error}); read it by lines")
    seen: dict[str, int] = {}
    unique: list[Symbol] = []
    for symbol in found:
        seen[symbol.name] = count = seen.get(symbol.name, 0) + 1
        unique.append(symbol if count == 1 else replace(symbol, name=f"{symbol.name}~{count}"))
    return Parsed(language=language, symbols=tuple(unique))


def _clipped(signature: str) -> str:
    one_line = " ".join(signature.split())
    return one_line if len(one_line) <= SIGNATURE_CHARS else f"{one_line[: SIGNATURE_CHARS - 1]}…"


def _in_body(body: Sequence[ast.stmt], prefix: str) -> Iterator[Symbol]:
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            # Definitions inside belong to the scope around it.
            inside: list[ast.stmt] = []
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.stmt):
                    inside.append(child)
                elif isinstance(child, ast.ExceptHandler):
                    inside.extend(child.body)
            yield from _in_body(inside, prefix)
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
            signature = f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"
        else:
            kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
            returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            signature = f"{kind} {node.name}({ast.unparse(node.args)}){returns}"
        yield Symbol(
            name=prefix + node.name,
            signature=_clipped(signature),
            start_line=min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]),
            end_line=node.end_lineno or node.lineno,
        )
        if isinstance(node, ast.ClassDef):
            yield from _in_body(node.body, f"{prefix}{node.name}.")


@lru_cache
def _parser(language: str) -> tuple[Any, threading.Lock]:
    package, function = _PACKAGES.get(language, (f"tree_sitter_{language}", "language"))
    try:
        library = importlib.import_module("tree_sitter")
        grammar = importlib.import_module(package)
    except ImportError:
        raise GrammarMissing(
            f"symbols of {language} need the extra code: pip install 'sonde-rlm[code]'; until then read it by lines"
        ) from None
    return library.Parser(library.Language(getattr(grammar, function)())), threading.Lock()


def _walk(node: Any, prefix: str, source: bytes) -> Iterator[Symbol]:
    """All definitions below a node, outer ones before inner ones."""
    for child in node.named_children:
        name = _name(child) if child.type in _DEFINED else ""
        if name:
            outer = child
            while outer.parent is not None and outer.parent.type in _WRAPPERS and outer.parent.named_child_count <= 2:
                outer = outer.parent
            body = child.child_by_field_name("body")
            end = body or (child.child_by_field_name("value") or child).child_by_field_name("body")
            signature = source[outer.start_byte : end.start_byte if end else outer.end_byte].decode("utf-8", "replace")
            first, (row, column) = outer.start_point[0], outer.end_point
            yield Symbol(
                name=prefix + name,
                signature=_clipped(signature.rstrip(" {\n=>;")),
                start_line=first + 1,
                end_line=row if column == 0 and row > first else row + 1,  # the end of a line is not the next line
            )
            if child.type in _SCOPES and body:
                yield from _walk(body, f"{prefix}{name}.", source)
        elif child.type in _OPEN:
            yield from _walk(child, prefix, source)


def _name(node: Any) -> str:
    """What a node defines; empty for one that only uses a name."""
    match node.type:
        case "variable_declarator":
            value = node.child_by_field_name("value")
            return _text(node.child_by_field_name("name")) if value is not None and value.type in _FUNCTIONS else ""
        case "impl_item":
            return re.sub(r"<.*", "", _text(node.child_by_field_name("type")), flags=re.DOTALL)
        case "function_definition" | "type_definition":
            # The name in a C declarator such as `*(*f)(int)`: innermost, with `A::f` as `A.f`.
            declarator = node.child_by_field_name("declarator")
            while declarator is not None and declarator.child_by_field_name("declarator") is not None:
                declarator = declarator.child_by_field_name("declarator")
            return re.sub(r"\s+", "", _text(declarator)).replace("::", ".")
        case "struct_specifier" | "class_specifier" | "enum_specifier" | "union_specifier" if (
            node.child_by_field_name("body") is None
        ):
            return ""  # a use of the type, not its definition
        case "method_declaration" if node.child_by_field_name("receiver") is not None:
            name = _text(node.child_by_field_name("name"))
            receiver = re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*\)$", _text(node.child_by_field_name("receiver")))
            return f"{receiver[1]}.{name}" if receiver else name
        case _:
            return _text(node.child_by_field_name("name")).replace("::", ".").strip("'\"")


def _text(node: Any) -> str:
    return "" if node is None else node.text.decode("utf-8", "replace")
