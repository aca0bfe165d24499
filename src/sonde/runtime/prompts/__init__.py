"""The words that models read, as files, and how they are filled in. Their hash goes into the record. Engines keep theirs beside them.

A template has `{{name}}` places. The prompt names only functions that the session offers: their documentation comes
from the functions themselves, and a line that begins with `{{needs NAME}}` is left out without that function.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sonde.contexts import Showable
from sonde.core.canonical import clip, jsonable, sha256_text
from sonde.sandbox.box import describe
from sonde.sandbox.intercept import as_lifted
from sonde.tools import Tool, tool

if TYPE_CHECKING:
    from sonde.runtime.engine import Engine
    from sonde.runtime.session import Session

SHARED_WORDS = {
    "CONTEXT": "CONTEXT holds each file's text by path.",
    "context": "context holds the file's text.",
    "CONTEXT_INDEX": "There is too much for one variable: use grep, search and read_file. "
    "CONTEXT_INDEX lists `offset, bytes, path` for context_slice.",
}
CARRIED = "Its variables are in your session: "
"""How the line about the variables of an earlier run begins; true only where replies are code."""
STATE = ("variables", "evidence_refs", "hypothesis_candidates")
STATE_NAMES = "variables, evidence_refs and hypothesis_candidates are empty and yours; tool_trace and budget_counters are kept up to date."
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_NEEDS = re.compile(r"^\{\{needs (\w+)\}\} ?(.*\n?)", re.MULTILINE)


@cache
def prompt_file(place: str) -> str:
    """A prompt text by its place: `engines/ask` is engines/prompts/ask.md. Texts that engines share are in runtime/prompts."""
    package, _, name = place.partition("/")
    return resources.files("sonde").joinpath(package, "prompts", f"{name}.md").read_text(encoding="utf-8").strip()


def fill(template: str, **places: str) -> str:
    """The template with its places filled; a place without a value is a bug."""
    return _PLACE.sub(lambda found: places[found.group(1)], template).strip()


def offered(template: str, names: Collection[str]) -> str:
    """The template without the lines that need a function not offered: `{{needs llm_query}} ...`."""
    return _NEEDS.sub(lambda found: found.group(2) if found.group(1) in names else "", template)


def template_hash(engine: Engine) -> str:
    """Sha256 over every template that a run of this engine may use."""
    parts = [
        engine.system,
        engine.child,
        *engine.templates,
        *filter(None, [engine.in_actions]),
        *(prompt_file(f"runtime/{name}") for name in ("actions", "guided", "convention", "strict", "schema")),
    ]
    return sha256_text("\0".join(parts))


def brief_prompt(tools: Sequence[Tool], brief: Mapping[str, str | None]) -> str:
    """One line per function where that is enough, only the names of rare ones ("") or not even those (None), and the documentation of the
    rest.
    """
    lines = [line for each in tools if (line := brief.get(each.name))]
    rare = [each.name for each in tools if brief.get(each.name) == ""]
    if rare:
        lines.append(f'More, by help("name"): {", ".join(rare)}')
    others = [each.prompt for each in tools if each.name not in brief]
    return "\n\n".join(["\n".join(lines), *others])


def language_text(profile: str, backend: str, packages: Sequence[str] = (), *, brief: bool = False) -> str:
    """What profile and backend ask of the code."""
    match profile:
        case "assign-only":
            asked = prompt_file("runtime/convention")
        case "strict":
            asked = prompt_file("runtime/strict")
        case "open":
            asked = (
                "Any module of the standard library may be imported; files and network are out of reach all the same."
            )
        case "general" if backend == "kernel" and brief:
            asked = (
                "Imports: the standard library except os, sys, pathlib, subprocess, threading; no files, no network."
            )
        case "general" if backend == "kernel":  # monty has few modules beyond those below
            asked = (
                "The standard library can be imported except what needs files, network or processes (no os, sys, pathlib, "
                "subprocess, threading). There are no files and no network but the functions above."
            )
        case _:
            asked = (
                "Imports allowed: json, re, math, statistics, collections, itertools, functools, operator, datetime, "
                "dataclasses, typing, copy, textwrap, hashlib. There are no files and no network but the functions above."
            )
    also = f"These packages can be imported too: {', '.join(packages)}." if packages else ""
    return " ".join(filter(None, (asked, also, describe(backend))))


def taught(tools: Iterable[Tool | Callable[..., Any]], profile: str) -> list[Tool]:
    """The tools with examples that the profile takes: with assign-only, code in any other form is refused."""
    made = [tool(each) for each in tools]
    if profile != "assign-only":
        return made
    shown = [(each, each.example, as_lifted(each.example, each.name)) for each in made]
    return [replace(each, doc=each.doc.replace(f"Example: {old}", f"Example: {new}")) for each, old, new in shown]


def render_task(session: Session, *, in_code: bool, left: str, found: bool = True) -> str:
    """The first user message: the task, the context, the variables of the code, the budget. What was `found` may be shown elsewhere."""
    spec, errand = session.spec, session.errand
    parts = [f"Task: {session.objective}"]
    if errand is None:
        if spec.earlier:  # only code has the variables of the earlier run
            earlier = spec.earlier if in_code else re.sub(rf"^{CARRIED}.*\n?", "", spec.earlier, flags=re.MULTILINE)
            parts.append(f"Earlier in this conversation:\n{earlier}")
        context = spec.context
        if session.host.functions.brief and isinstance(context, Showable):
            parts.append(f"Data: {context.outline()}")
        else:
            parts.append(f"What there is:\n{session.shared.described}")
        if session.prefilter.text and found:
            parts.append(session.prefilter.text)
    else:
        parts.append(f"What there is (read it with the functions):\n{clip(session.shared.described, 700)}")
        if errand.context:
            shown = clip(json.dumps(jsonable(errand.context), ensure_ascii=False), 4000)
            also = " (also as the variable `context` and as variables of these names)" if in_code else ""
            parts.append(f"Given to you{also}:\n{shown}")
    if warned := session.delegation.heed("\n\n".join(parts[1:] if errand is None else parts)):
        parts.append(warned)
    if in_code:  # the names of all variables, and what those hold that the user did not set
        given, root, brief = session.coder.variables, errand is None, bool(session.host.functions.brief)
        shared: Mapping[str, Any] = spec.context.shared() if root else {}
        named = [name for name in given if name not in STATE] if brief else [*shared, *given, *session.host.counters()]
        words = [f"Variables: {', '.join(named)}."] if named else []
        for name, value in shared.items():
            if name == "context" and isinstance(value, Mapping):
                words.append("context holds the texts by name.")
            elif name in SHARED_WORDS:
                words.append(SHARED_WORDS[name])
        if root and "context" in given:
            words.append("context holds the value.")
        # An earlier run or a parent may have put something in.
        full = any(given.get(name) for name in STATE) or (root and bool(spec.played.recordings))
        if not brief and not spec.engine.terse:
            words.append(STATE_NAMES.replace("are empty and yours", "are yours") if full else STATE_NAMES)
        if words:
            parts.append(" ".join(words))
    if spec.schema is not None and errand is None:
        parts.append(f"The final value must fit this JSON schema:\n{json.dumps(spec.schema, ensure_ascii=False)}")
    return "\n\n".join([*parts, left])
