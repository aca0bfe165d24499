"""Definitions in languages other than Python, by tree-sitter grammars that are part of the extra `code`.

The grammars are compiled packages, loaded on first use; nothing is downloaded. Positions are lines, never byte columns, so text
with multi-byte characters needs no correction.
"""

from __future__ import annotations

import importlib
import posixpath
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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
    """The grammar of a language is not installed; says which extra has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """One definition as the grammar finds it."""

    name: str
    signature: str
    start_line: int
    end_line: int


def language_of(path: str) -> str:
    """The language that a file's suffix says; empty when none is known."""
    return _LANGUAGES.get(posixpath.splitext(path)[1].lower(), "")


def definitions(path: str, text: str) -> Iterator[Definition]:
    """All definitions in a source text, outer ones before inner ones."""
    parser, lock = _parser(language_of(path))
    source = text.encode("utf-8", "replace")
    with lock:
        tree = parser.parse(source)
    yield from _walk(tree.root_node, "", source)


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


def _walk(node: Any, prefix: str, source: bytes) -> Iterator[Definition]:
    for child in node.named_children:
        name = _name(child) if child.type in _DEFINED else ""
        if name:
            yield _definition(child, prefix + name, source)
            if child.type in _SCOPES:
                body = child.child_by_field_name("body")
                yield from _walk(body, f"{prefix}{name}.", source) if body else ()
        elif child.type in _OPEN:
            yield from _walk(child, prefix, source)


def _definition(node: Any, name: str, source: bytes) -> Definition:
    outer = node
    while outer.parent is not None and outer.parent.type in _WRAPPERS and outer.parent.named_child_count <= 2:
        outer = outer.parent
    body = node.child_by_field_name("body") or (node.child_by_field_name("value") or node).child_by_field_name("body")
    signature = source[outer.start_byte : body.start_byte if body else outer.end_byte].decode("utf-8", "replace")
    return Definition(
        name=name,
        signature=signature.rstrip(" {\n=>;"),
        start_line=outer.start_point[0] + 1,
        end_line=_last_line(outer),
    )


def _last_line(node: Any) -> int:
    """The line that a node ends on; one that ends right after a line end does not reach into the next line."""
    row, column = node.end_point
    return row if column == 0 and row > node.start_point[0] else row + 1


def _name(node: Any) -> str:
    match node.type:
        case "variable_declarator":
            value = node.child_by_field_name("value")
            return _text(node.child_by_field_name("name")) if value is not None and value.type in _FUNCTIONS else ""
        case "impl_item":
            return re.sub(r"<.*", "", _text(node.child_by_field_name("type")), flags=re.DOTALL)
        case "function_definition" | "type_definition":
            return _declared(node)
        case "struct_specifier" | "class_specifier" | "enum_specifier" | "union_specifier" if (
            node.child_by_field_name("body") is None
        ):
            return ""  # a use of the type, not its definition
        case "method_declaration" if node.child_by_field_name("receiver") is not None:
            receiver = re.search(r"(\w+)\s*(?:\[[^\]]*\])?\s*\)$", _text(node.child_by_field_name("receiver")))
            return (
                f"{receiver[1]}.{_text(node.child_by_field_name('name'))}"
                if receiver
                else _text(node.child_by_field_name("name"))
            )
        case _:
            return _text(node.child_by_field_name("name")).replace("::", ".").strip("'\"")


def _declared(node: Any) -> str:
    """The name in a C declarator such as `*(*f)(int)`: innermost, with `A::f` as `A.f`."""
    declarator = node.child_by_field_name("declarator")
    while declarator is not None and declarator.child_by_field_name("declarator") is not None:
        declarator = declarator.child_by_field_name("declarator")
    return re.sub(r"\s+", "", _text(declarator)).replace("::", ".")


def _text(node: Any) -> str:
    return "" if node is None else node.text.decode("utf-8", "replace")
