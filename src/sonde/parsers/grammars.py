"""What a source file defines, found in a confined process: by `ast` for Python, by grammars of the extra `code` for others."""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from sonde.core.source import has_too_many_fields
from sonde.errors import how_to_install

SIGNATURE_CHARS = 200
Definition = tuple[str, str, int, int]
"""Dotted name, signature, first and last line."""
_PACKAGES = {
    "tsx": ("tree_sitter_typescript", "language_tsx"),
    "typescript": ("tree_sitter_typescript", "language_typescript"),
}
_LANGUAGES = ("javascript", "typescript", "tsx", "go", "rust", "java", "c", "cpp", "ruby")

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


def _installed() -> dict[str, Any]:
    """A parser for every language whose grammar is installed."""
    try:
        library = importlib.import_module("tree_sitter")
    except ImportError:
        return {}
    found: dict[str, Any] = {}
    for language in _LANGUAGES:
        package, function = _PACKAGES.get(language, (f"tree_sitter_{language}", "language"))
        try:
            grammar = importlib.import_module(package)
        except ImportError:
            continue
        found[language] = library.Parser(library.Language(getattr(grammar, function)()))
    return found


_parsers = _installed()
_install = how_to_install("code")  # looks at files, which the confined process cannot do later
warnings.simplefilter("ignore")  # an invalid escape in somebody's code is not our warning to print


def read(document: BinaryIO, *, files: list[tuple[str, int]]) -> Iterator[list[Definition] | str]:
    """Source texts in UTF-8, end to end: for each language and length, the definitions of that text, or why there are none."""
    for language, length in files:
        source = document.read(length)
        if language != "python" and language not in _parsers:
            yield f"symbols of {language} need the extra code: {_install}; until then read it by lines"
            continue
        try:
            if language == "python":
                yield list(_of_python(source.decode()))
            else:
                yield list(_walk(_parsers[language].parse(source).root_node, "", source))
        except (
            SyntaxError,
            ValueError,
            RecursionError,
            MemoryError,
        ) as error:  # MemoryError is deep nesting, to CPython
            yield f"it cannot be parsed ({error}); read it by lines"


def _clipped(signature: str) -> str:
    one_line = " ".join(signature.split())
    return one_line if len(one_line) <= SIGNATURE_CHARS else f"{one_line[: SIGNATURE_CHARS - 1]}…"


def _of_python(text: str) -> Iterator[Definition]:
    # Python ends lines at a lone carriage return too; a space in its place keeps the numbers those of our lines.
    source = text.replace("\r", " ")
    if has_too_many_fields(source):
        raise ValueError("f-strings of too many fields")
    yield from _in_body(ast.parse(source).body, "")


def _in_body(body: Sequence[ast.stmt], prefix: str) -> Iterator[Definition]:
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
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        yield prefix + node.name, _clipped(signature), first, node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef):
            yield from _in_body(node.body, f"{prefix}{node.name}.")


def _walk(node: Any, prefix: str, source: bytes) -> Iterator[Definition]:
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
            last = row if column == 0 and row > first else row + 1  # the end of a line is not the next line
            yield prefix + name, _clipped(signature.rstrip(" {\n=>;")), first + 1, last
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
            receiver = _text(node.child_by_field_name("receiver")).removesuffix(")").rstrip()
            if receiver.endswith("]"):
                receiver = receiver[: receiver.rfind("[")].rstrip()
            kind = re.split(r"\W", receiver)[-1]
            return f"{kind}.{name}" if kind else name
        case _:
            return _text(node.child_by_field_name("name")).replace("::", ".").strip("'\"")


def _text(node: Any) -> str:
    return "" if node is None else node.text.decode("utf-8", "replace")
