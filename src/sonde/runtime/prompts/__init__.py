"""The words that models read, as files, and how they are filled in. Their hash goes into the record. Each engine has its own beside it.

A template has `{{name}}` places. The prompt names only functions that are really there: their documentation comes
from the functions themselves, and a line that begins with `{{needs NAME}}` is left out where that function is not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sonde.core.canonical import clip, jsonable, sha256_text
from sonde.models.base import Message, Role
from sonde.runtime.actions import DELEGATE, action_schema
from sonde.runtime.playing import CARRIED
from sonde.sandbox.backend import describe

if TYPE_CHECKING:
    from sonde.runtime.engine import Engine
    from sonde.runtime.session import Session

SHARED_WORDS = {
    "CONTEXT": "CONTEXT holds each file's text by path.",
    "context": "context holds the file's text.",
    "CONTEXT_INDEX": "There is too much for one variable: use grep, search and read_file. "
    "CONTEXT_INDEX lists `offset, bytes, path` for context_slice.",
}
STATE_NAMES = "variables, evidence_refs and hypothesis_candidates are empty and yours; tool_trace and budget_counters are kept up to date."
_IN_CODE = re.compile(r" (?=You work in a Python session|Each reply is one fenced)")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_NEEDS = re.compile(r"^\{\{needs (\w+)\}\} ?(.*\n?)", re.MULTILINE)


@cache
def prompt_file(place: str) -> str:
    """A prompt text by its place: `engines/ask` is in engines/prompts/ask.md. What several engines share is in runtime/prompts."""
    package, _, name = place.partition("/")
    return resources.files("sonde").joinpath(package, "prompts", f"{name}.md").read_text(encoding="utf-8").strip()


def fill(template: str, **places: str) -> str:
    """The template with its places filled; a place without a value is a bug."""
    return _PLACE.sub(lambda found: places[found.group(1)], template).strip()


def offered(template: str, names: Collection[str]) -> str:
    """The template without the lines that need a function which is not there: `{{needs llm_query}} ...`."""
    return _NEEDS.sub(lambda found: found.group(2) if found.group(1) in names else "", template)


def template_hash(engine: Engine) -> str:
    """Sha256 over every template that a run of this engine may use."""
    parts = [
        engine.system,
        engine.child,
        *engine.templates,
        *(prompt_file(f"runtime/{name}") for name in ("actions", "guided", "convention", "strict", "schema")),
    ]
    return sha256_text("\0".join(parts))


def render_system(session: Session) -> str:
    """The system prompt of a session: rules, functions, how to finish."""
    engine = session.engine
    if session.guide is not None:
        return fill(_parts("guided")[0], tools=session.guide.prompt)
    if session.wiring.mode == "actions":
        return fill(
            offered(prompt_file("runtime/actions"), [DELEGATE] if session.delegates else []),
            engine=_purpose(engine.child if session.errand is not None else engine.system),
            tools=session.wiring.registry.prompt,
            schema=json.dumps(action_schema(delegates=session.delegates)["properties"]),
            final=session.final_example,
        )
    template = offered(engine.child if session.errand is not None else engine.system, session.host.names)
    return fill(
        template,
        functions=session.host.prompt,
        profile=offered(language_text(session.wiring.profile, session.wiring.backend), session.host.names),
        form=prompt_file("runtime/schema") if engine.reply_form == "schema" else "",
        final=session.final_example,
    )


def render_examples(session: Session) -> list[Message]:
    """Turns of another run that show the form; weak models follow them better than rules."""
    if session.guide is None:
        return []
    roles: tuple[Role, Role] = ("user", "assistant")
    return [Message(roles[at % 2], text) for at, text in enumerate(_parts("guided")[1:])]


def _parts(name: str) -> list[str]:
    """A prompt file of several messages, between lines of three dashes."""
    return [part.strip() for part in prompt_file(f"runtime/{name}").split("\n---\n")]


def _purpose(system: str) -> str:
    """What a prompt says the work is, without how it is done in code."""
    return _IN_CODE.split(system.partition("\n\n")[0])[0]


def language_text(profile: str, backend: str) -> str:
    """What profile and backend ask of the code."""
    return " ".join(filter(None, (profile_text(profile), describe(backend))))


def profile_text(profile: str) -> str:
    """What this profile asks of the code."""
    match profile:
        case "assign-only":
            return prompt_file("runtime/convention")
        case "strict":
            return prompt_file("runtime/strict")
        case "open":
            return (
                "Any module of the standard library may be imported; files and network are out of reach all the same."
            )
        case _:
            return (
                "Imports allowed: json, re, math, statistics, collections, itertools, functools, operator, datetime, "
                "dataclasses, typing, copy, textwrap, hashlib. There are no files and no network but the functions above."
            )


def render_task(session: Session) -> str:
    """The first user message: the task, what there is to look at, the variables, the budget."""
    task = session.wiring.task
    if session.guide is not None:
        return session.guide.question
    parts = [f"Task: {session.objective}"]
    if session.errand is None:
        if task.earlier:
            parts.append(f"Earlier in this conversation:\n{_earlier(session)}")
        parts.append(f"What there is:\n{task.context.describe()}")
        if session.prefilter.text:
            parts.append(session.prefilter.text)
    else:
        parts.append(f"What there is (read it with the functions):\n{clip(task.context.describe(), 700)}")
    if session.errand is not None and session.errand.context:
        shown = clip(json.dumps(jsonable(session.errand.context), ensure_ascii=False), 4000)
        also = (
            " (also as the variable `context` and as variables of these names)" if session.wiring.mode == "code" else ""
        )
        parts.append(f"Given to you{also}:\n{shown}")
    if session.wiring.mode == "code":
        shared: Mapping[str, Any] = task.context.shared() if session.errand is None else {}
        names = [*shared, *session.coder.variables, *session.host.counters()]
        words = [*_shared_words(shared), *_value_words(session), _state_words(session)]
        parts.append(" ".join([f"Variables: {', '.join(names)}.", *words]))
    if task.schema is not None and session.errand is None:
        parts.append(f"The final value must fit this JSON schema:\n{json.dumps(task.schema, ensure_ascii=False)}")
    parts.append(session.left_line(0.0))
    return "\n\n".join(parts)


def _earlier(session: Session) -> str:
    """The story of the earlier run; only code has its variables."""
    told = session.wiring.task.earlier
    return told if session.wiring.mode == "code" else re.sub(rf"^{CARRIED}.*\n?", "", told, flags=re.MULTILINE)


def _state_words(session: Session) -> str:
    """What the variables of the runtime hold at the start; an earlier run or a parent may have put something in."""
    task, given = session.wiring.task, session.coder.variables
    carried = session.errand is None and bool(task.played.blocks)
    full = carried or any(given.get(name) for name in ("variables", "evidence_refs", "hypothesis_candidates"))
    return STATE_NAMES.replace("are empty and yours", "are yours") if full else STATE_NAMES


def _shared_words(shared: Mapping[str, Any]) -> list[str]:
    """What shared variables hold."""
    told = [
        "context holds the texts by name."
        if name == "context" and isinstance(value, Mapping)
        else SHARED_WORDS.get(name)
        for name, value in shared.items()
    ]
    return [words for words in told if words]


def _value_words(session: Session) -> list[str]:
    """What `context` holds where it is a value that was copied in."""
    return ["context holds the value."] if session.errand is None and "context" in session.coder.variables else []
