"""What code alone can find in the steps of a trace, and a reader would have to count: failed calls, wrong arguments, repeats, requests that
were printed instead of sent, missing end tags, answers without a look-up, giving up. Pure functions, no model.

    for fact in facts_of(spans, transcript):
        print(fact.line())      # "steps 17, 19, 21 (spans ...): page_down failed: unexpected keyword argument 'page_down'"

A fact says what is there, never that it is a failure: a plan without its end tag may be all there is to say about a trace, or nothing.
Texts are a stranger's, so everything is linear in them, and counts, quotes and what is read of one text are bounded. Of a trace with very
many steps only the first and the last are looked at, and a fact says so. When the run's time is up, the facts found so far are returned:
the run ends before its first model call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, TypeVar, cast

from sonde.contexts.traces.genai import maybe_json
from sonde.contexts.traces.span import Span
from sonde.contexts.traces.transcript import Step, Transcript
from sonde.contexts.traces.views import messages_of, tool_io_of
from sonde.core.deadline import deadline_in_force

QUOTED = 160
MOST_STEPS = 12
MOST_CALLS = 400
MOST_WRITTEN = 5_000
MOST_TOOLS = 60
MOST_NAMES, NAME_CHARS = 20, 60
LOOKED_AT = 2_000  # steps
SIMILAR = 0.6
LEAST_WORDS, MOST_WORDS = 3, 300
READ_CHARS = 20_000
PROMPT_CHARS = 200_000
MEMBERS = "team members that you can call"
HEAD_CHARS = 600
MUCH_CHARS, MUCH_LINES = 8_000, 100
Item = TypeVar("Item")
FINAL = re.compile(r"final_?answer", re.IGNORECASE)
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s+")
_EXCEPTION = re.compile(r"\b(?:\w{1,60}Error|\w{0,60}Exception):")
_STATUS = re.compile(r"\b(?:error|status|code|http)\b[ :=]{0,3}(?:code[ :=]{0,3})?([45]\d\d)\b", re.IGNORECASE)
_TAG = re.compile(r"\b(?:write|end|finish|close)[^.\n]{0,80}?['\"`](?:\\n)?(<\w{1,40}>)['\"`]", re.IGNORECASE)
_TOOL = re.compile(r"^- (\w{1,60}):", re.MULTILINE)
_TAKES = re.compile(r"^[ \t]*Takes inputs: (\{[^\n]{0,20000}\})", re.MULTILINE)
_INPUT = re.compile(r"'(\w+)': \{")
_CODE = re.compile(r"```(?:py|python)?\n([^`]{0,20000})")
_QUOTE = re.compile("[\"']")
_TRIPLE = re.compile(r"\"\"\"[^\"]*\"\"\"")
_STRINGS = {sign: re.compile(rf"{sign}(?:[^{sign}\\\n]|\\.)*+({sign})?") for sign in "\"'"}
_CALLED = re.compile(r"\b(\w{1,60}+)\s*+\(")
_UNABLE = re.compile(
    r"\b(?:unable to|not able to|could not|couldn't|cannot|can't|failed to) (?:be )?(?:find|found|locate|access|retrieve|determine|verif"
    r"|confirm|obtain|produce|complete|identif|open|read)[^.\n]{0,100}",
    re.IGNORECASE,
)
_EMPTY = re.compile(
    r"\bno results? (?:were |was )?found|found 0 results|\bnothing found\b|\(no documents", re.IGNORECASE
)
_LIMIT = re.compile(
    r"reached max(?:imum)? (?:steps|iterations)|max(?:imum)? (?:steps|iterations) reached|step limit", re.IGNORECASE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that code found, and at which steps; at none if it is about the whole trace."""

    text: str
    steps: tuple[int, ...]
    span_ids: tuple[str, ...]

    def line(self) -> str:
        """In one line, with the ids to cite."""
        numbers = ", ".join(map(str, self.steps[:MOST_STEPS])) + (" ..." if len(self.steps) > MOST_STEPS else "")
        spans = ", ".join(self.span_ids[:MOST_STEPS])
        plural = "s" if len(self.steps) > 1 else ""
        return f"step{plural} {numbers} (span{plural} {spans}): {self.text}" if self.steps else self.text

    def within(self, span_ids: Collection[str]) -> Fact | None:
        """What of it is about these spans, for whoever reads only them; None if nothing is."""
        kept = [(step, span_id) for step, span_id in zip(self.steps, self.span_ids, strict=True) if span_id in span_ids]
        if self.steps and not kept:
            return None
        return replace(self, steps=tuple(step for step, _ in kept), span_ids=tuple(span_id for _, span_id in kept))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """A call of a tool: the step that wrote or made it, the tool and its arguments."""

    step: Step
    tool: str
    arguments: Mapping[str, Any]
    text: str


def facts_of(spans: Iterable[Span], transcript: Transcript) -> list[Fact]:
    """All facts, those of errors first."""
    known = {span.summary.span_id: span for span in spans}
    steps = transcript.steps
    cut: list[Fact] = []
    if len(steps) > LOOKED_AT:
        half = LOOKED_AT // 2
        unread = steps[half:-half]
        cut = [
            _fact(f"code looked at none of the {len(unread):,} steps from here to the other", (unread[0], unread[-1]))
        ]
        steps = (*steps[:half], *steps[-half:])
        transcript = replace(transcript, steps=steps)
    asked = {step.number: _prompts(known[step.span_id]) for step in _in_time(steps) if step.kind == "LLM"}
    tools: dict[str, frozenset[str]] = {}
    for text in _in_time(dict.fromkeys(text for texts in asked.values() for text in texts)):
        tools |= _declared(text)
    calls = (call for step in _in_time(steps) if step.kind == "LLM" for call in _written(step))
    written = list(islice(calls, MOST_WRITTEN))
    # A call with arguments that its tool does not have is told once: neither as an error nor as a repeat besides.
    misused = {
        call.step.number: call
        for call in written
        if call.tool in tools and not tools[call.tool].issuperset(call.arguments)
    }
    ran = {step.number: after for step, after in pairwise(steps) if after.kind == "TOOL" and after.run == step.run}
    in_vain = {ran[number].number for number in misused if number in ran}
    made = [call for step in _in_time(steps) if (call := _made(step, known[step.span_id])) is not None]
    has_tools = any(not FINAL.search(name) for name in tools)
    all_read = not cut and len(written) < MOST_WRITTEN  # a call that was not read is no proof that there was none
    looks: list[Callable[[], list[Fact]]] = [
        lambda: _counted(steps) if transcript.team else [],
        lambda: _failed(steps, misused),
        lambda: _unknown(written, tools),
        lambda: _misused(misused, tools, ran),
        lambda: _unsent(steps, tools),
        lambda: _refused(steps),
        lambda: _repeated([call for call in made if call.step.number not in in_vain], "called"),
        lambda: _errands(transcript),
        lambda: _same_outputs(steps),
        lambda: _without_tags(steps, asked),
        lambda: _given_up(steps),
        lambda: _without_look(transcript, written, made) if all_read and has_tools else [],
        lambda: _shown_much(steps, known),
        lambda: _limits(steps),
    ]
    return [*(fact for look in _in_time(looks) for fact in look()), *cut]


def _in_time(items: Iterable[Item]) -> Iterator[Item]:
    """The items, as long as the run that this code works for has time left and is not stopped."""
    run = deadline_in_force()
    for item in items:
        if run is not None and (run.expired() or run.stop.is_set()):
            return
        yield item


def listed(facts: Iterable[Fact], numbers: Iterable[int] | None = None, most: int = 6_000) -> str:
    """The facts in lines, those of some steps only if `numbers` are given; what does not fit is counted."""
    wanted = None if numbers is None else set(numbers)
    lines = [f"- {fact.line()}" for fact in facts if wanted is None or wanted.intersection(fact.steps)]
    kept: list[str] = []
    for line in lines:
        if sum(map(len, kept)) + len(line) > most:
            kept.append(f"- and {len(lines) - len(kept)} more")
            break
        kept.append(line)
    return "\n".join(kept) or "- nothing"


def _fact(text: str, steps: Sequence[Step]) -> Fact:
    return Fact(text=text, steps=tuple(step.number for step in steps), span_ids=tuple(step.span_id for step in steps))


def _short(text: str, room: int = QUOTED) -> str:
    words = _SPACE.sub(" ", text[: room * 4]).strip()
    return words if len(words) <= room else f"{words[:room]}..."


def _grouped(pairs: Iterable[tuple[str, Step]]) -> dict[str, list[Step]]:
    groups: dict[str, list[Step]] = {}
    for key, step in pairs:
        groups.setdefault(key, []).append(step)
    return groups


def _counted(steps: Sequence[Step]) -> list[Fact]:
    """How many calls failed in all: whoever reads one agent's run does not see the others."""
    failed = sum(step.kind == "LLM" and bool(step.around) for step in steps)
    return [_fact(f"in the whole trace {failed} calls or pieces of code failed", [])]


def _failed(steps: Sequence[Step], misused: Collection[int]) -> list[Fact]:
    """Steps that ended in an error, equal errors together, with the steps that were told of them. A tool's own error is left out if the
    call before it reports the same, and a refused argument if it is told as such.
    """
    told = {step.reports: f"{step.number} (span {step.span_id})" for step in steps if step.reports is not None}
    found: list[tuple[str, Step]] = []
    before = ""
    for step in steps:
        if not step.around:
            continue
        *_, start = [0, *(each.start() for each in _EXCEPTION.finditer(step.around[:READ_CHARS]))]
        error = _short(step.around[start:].partition("You should only use")[0])
        if step.kind != "LLM" and error[:60] in before:
            continue
        before = _short(step.around, READ_CHARS) if step.kind == "LLM" else before
        if step.number in misused and "argument" in error:
            continue
        found.append((f"{'the call or code that it wrote' if step.kind == 'LLM' else 'it'} failed: {error}", step))
    facts: list[Fact] = []
    for text, group in _grouped(found).items():
        heard = ", ".join([told[step.number] for step in group if step.number in told][:MOST_STEPS])
        facts.append(_fact(f"{text}{f'; told to step {heard}' if heard else ''}", group))
    return facts


def _unknown(calls: Sequence[ToolUse], tools: Mapping[str, frozenset[str]]) -> list[Fact]:
    """Structured calls of tools that nobody declared."""
    if not tools:
        return []
    found = [
        (f"it calls {call.tool[:NAME_CHARS]!r}, which is not among the declared tools", call.step)
        for call in calls
        if call.tool not in tools
    ]
    return [_fact(text, group) for text, group in _grouped(found).items()]


def _misused(
    misused: Mapping[int, ToolUse], tools: Mapping[str, frozenset[str]], ran: Mapping[int, Step]
) -> list[Fact]:
    """Structured calls with arguments that the tool does not have: those written right after such a call failed, and the others."""
    groups: dict[tuple[str, bool], list[ToolUse]] = {}
    last: dict[str, Step] = {}
    for number, call in misused.items():
        groups.setdefault((call.tool, call.step.reports in misused), []).append(call)
        if number in ran:
            last[call.tool] = ran[number]
    facts: list[Fact] = []
    for (tool, again), calls in groups.items():
        takes = ", ".join(sorted(tools[tool])[:MOST_NAMES]) or "no arguments"
        names = dict.fromkeys(name for call in calls for name in sorted(set(call.arguments) - tools[tool]))
        wrong = ", ".join(repr(name[:NAME_CHARS]) for name in list(names)[:MOST_NAMES])
        text = f"it calls {tool} with {wrong}; the tool takes {takes}"
        if again:
            text = f"it was just told that such a call failed, and {text}"
        if len(misused) > 1 and tool in last:
            text += f"; the last of these calls ran in step {last[tool].number} (span {last[tool].span_id})"
        facts.append(_fact(text, [call.step for call in calls]))
    return facts


def _unsent(steps: Sequence[Step], tools: Mapping[str, frozenset[str]]) -> list[Fact]:
    """Code that names a tool or team member only in its words, prints them, and calls none."""
    found: list[tuple[str, Step]] = []
    names = [name for name in tools if not FINAL.search(name)][:MOST_TOOLS]
    for step in _in_time(steps):
        code = "\n".join(_CODE.findall(step.came[:READ_CHARS])) if step.kind == "LLM" else ""
        bare = _without_strings(re.sub(r"#[^\n]*", "", code)) if "print" in code else ""
        if "print" not in bare or not set(names).isdisjoint(_CALLED.findall(bare)):
            continue
        named = [name for name in names if name in step.came[:READ_CHARS]]
        if named and re.search(r"request|task|query|search|ask", code, re.IGNORECASE):
            found.append(
                (f"its words name {', '.join(named)}, but its code only prints and calls none of the tools", step)
            )
    return [_fact(text, group) for text, group in _grouped(found).items()]


def _without_strings(code: str) -> str:
    """Code with its strings empty. A quote that nothing closes stays as it is. All others of its kind up to the end of its line are
    escaped, so nothing closes those either, and the line is not read again from each of them.
    """
    kept: list[str] = []
    at = 0
    unclosed = {'"': 0, "'": 0}
    while (quote := _QUOTE.search(code, at)) is not None:
        sign, start, end = quote.group(), quote.start(), quote.end()
        string = _TRIPLE.match(code, start)
        if string is None and start >= unclosed[sign]:
            string = _STRINGS[sign].match(code, start)
            if string is not None and string.group(1) is None:
                unclosed[sign], string = string.end(), None
        kept.append(code[at:start] + (sign if string is None else "''"))
        at = end if string is None else string.end()
    return "".join([*kept, code[at:]])


def _refused(steps: Sequence[Step]) -> list[Fact]:
    """Results of tools that report a status, or that are empty."""
    found: list[tuple[str, Step]] = []
    for step in steps:
        if step.kind not in {"TOOL", "RETRIEVER"}:
            continue
        head = f"{step.came[:HEAD_CHARS]} {step.around[:HEAD_CHARS]}"
        if status := _STATUS.search(head):
            found.append(
                (f"the tool reports {status.group(1)}: {_short(head[max(0, status.start() - 40) :], 80)}", step)
            )
        elif _EMPTY.search(head):
            found.append(("the look-up came back with nothing", step))
    return [_fact(text, group) for text, group in _grouped(found).items()]


def _repeated(calls: Sequence[ToolUse], verb: str) -> list[Fact]:
    """Equal calls, and calls of one tool in one run whose words are mostly the same."""
    facts: list[Fact] = []
    by_tool: dict[tuple[str, str], list[ToolUse]] = {}
    for call in calls[:MOST_CALLS]:
        if not FINAL.search(call.tool):
            by_tool.setdefault((call.step.run, call.tool), []).append(call)
    for (_, tool), listed_calls in by_tool.items():
        for group in _alike([call.text for call in listed_calls]):
            texts = list(dict.fromkeys(listed_calls[at].text for at in group))
            steps = [listed_calls[at].step for at in group]
            if len(texts) == 1:
                facts.append(
                    _fact(f"{tool} {verb} {len(group)} times with the same arguments: {_short(texts[0])}", steps)
                )
            else:
                shown = " | ".join(_short(text, 90) for text in texts[:4])
                facts.append(_fact(f"{tool} {verb} {len(group)} times in almost the same words: {shown}", steps))
    return facts


def _alike(texts: Sequence[str]) -> list[list[int]]:
    """Groups of texts that share most of their words with another of their group, by position."""
    words = [frozenset(list(dict.fromkeys(_WORD.findall(text[:READ_CHARS].casefold())))[:MOST_WORDS]) for text in texts]
    first: dict[str, int] = {}
    equal = [first.setdefault(text, at) for at, text in enumerate(texts)]
    worded = ["://" not in text and len(mine) >= LEAST_WORDS for text, mine in zip(texts, words, strict=True)]

    def similar(one: int, other: int) -> bool:
        both = len(words[one] & words[other])
        return both >= SIMILAR * (len(words[one]) + len(words[other]) - both)

    groups: list[list[int]] = []
    for at in _in_time(range(len(texts))):
        for group in groups:
            if any(
                equal[at] == equal[other] or (worded[at] and len(words[other]) >= LEAST_WORDS and similar(at, other))
                for other in group[-8:]
            ):
                group.append(at)
                break
        else:
            groups.append([at])
    return [group for group in groups if len(group) > 1]


def _errands(transcript: Transcript) -> list[Fact]:
    """Team members that got almost the same task again."""
    first: dict[str, Step] = {}
    for step in transcript.steps:
        first.setdefault(step.run, step)
    runs = [(run, known) for run, known in transcript.runs.items() if run in first][:MOST_CALLS]
    facts: list[Fact] = []
    for group in _alike([known.task for _, known in runs]):
        agent, steps = runs[group[0]][1].agent, [first[runs[at][0]] for at in group]
        facts.append(_fact(f"{agent} was given almost the same task {len(group)} times; its runs begin here", steps))
    return facts


def _same_outputs(steps: Sequence[Step]) -> list[Fact]:
    """Model calls that said the same as an earlier one."""
    said = _grouped(
        (step.came.strip(), step) for step in steps if step.kind == "LLM" and len(step.came.strip()) >= QUOTED
    )
    facts = [
        _fact(f"they say the same word for word: {_short(text)}", group)
        for text, group in said.items()
        if len(group) > 1
    ]
    again = [step for step in steps if step.kind != "LLM" and step.came.startswith("[the same output as that of step ")]
    return facts + ([_fact("the tool returned what it had returned before", again)] if again else [])


def _without_tags(steps: Sequence[Step], asked: Mapping[int, tuple[str, str]]) -> list[Fact]:
    """Outputs without the tag with which their prompt tells them to end."""
    found: list[tuple[str, Step]] = []
    for step in steps:
        text = asked.get(step.number, ("", ""))[1]
        if text and step.came and (tag := _TAG.search(text)) and tag.group(1) not in step.came:
            found.append((f"the prompt demands {tag.group(1)} at the end, the output lacks it", step))
    return [_fact(text, group) for text, group in _grouped(found).items()]


def _given_up(steps: Sequence[Step]) -> list[Fact]:
    """Answers that say that nothing was found."""
    return [
        _fact(f"the answer says: {_short(unable.group(0), 120)}", [step])
        for step in steps
        if step.kind == "LLM"
        and FINAL.search(step.came[:READ_CHARS])
        and (unable := _UNABLE.search(step.came[:READ_CHARS]))
    ]


def _without_look(transcript: Transcript, written: Sequence[ToolUse], made: Sequence[ToolUse]) -> list[Fact]:
    """Runs that came to an answer without any tool."""
    facts: list[Fact] = []
    used = {call.step.run for call in (*written, *made) if not FINAL.search(call.tool)}
    used |= {known.inside for known in transcript.runs.values()}
    for run, steps in _grouped((step.run, step) for step in transcript.steps).items():
        answers = (step for step in steps if FINAL.search(f"{step.name} {step.came[:READ_CHARS]}"))
        deciding = next((step for step in answers if step.kind == "LLM" and "final_answer(" in step.came), None)
        if run not in used and deciding is not None:
            text = "its run answers here; it called no tool or team member before, only code of its own or none"
            facts.append(_fact(text, [deciding]))
    return facts


def _limits(steps: Sequence[Step]) -> list[Fact]:
    """Runs that were stopped by their limit, and outputs that were cut off."""
    stopped = [step for step in steps if _LIMIT.search(f"{' '.join(step.given)[-2000:]} {step.around[:2000]}")]
    cut = [step for step in steps if any(mark.startswith("cut off") for mark in step.marks)]
    facts = [_fact("the run reached its limit of steps", stopped)] if stopped else []
    return facts + ([_fact("the model's output was cut off", cut)] if cut else [])


def _shown_much(steps: Sequence[Step], known: Mapping[str, Span]) -> list[Fact]:
    """Model calls that were shown a long output of their code or tool: the transcript cuts it, so its length is told here."""
    facts: list[Fact] = []
    seen: set[str] = set()
    before = ""  # after a team member's run, the newest result is its report
    for step in _in_time(steps):
        inputs = [each.row for each in messages_of(known[step.span_id]) if each.row["metadata"]["direction"] == "input"]
        results = [str(row["content"]) for row in inputs if row["role"] not in {"system", "user", "assistant"}]
        last = results[-1] if step.kind == "LLM" and results else ""
        lines = last.count("\n") + 1
        if (len(last) >= MUCH_CHARS or lines >= MUCH_LINES) and last not in seen and step.run == before:
            facts.append(_fact(f"its newest result has {lines} lines, {len(last):,} characters", [step]))
        seen.add(last)
        before = step.run
    return facts


def _prompts(span: Span) -> tuple[str, str]:
    """The system message of a model call, and the last thing that it was asked."""
    inputs = [each.row for each in messages_of(span) if each.row["metadata"]["direction"] == "input"]
    rules = [str(row["content"]) for row in inputs if row["role"] == "system"][:1]
    asked = [str(row["content"]) for row in inputs if row["role"] == "user"][-1:]
    return _ends("".join(rules)), _ends("".join(asked))


def _ends(text: str) -> str:
    """Beginning and end of a prompt that is too long to be read whole."""
    half = PROMPT_CHARS // 2
    return text if len(text) <= PROMPT_CHARS else f"{text[:half]}\n{text[-half:]}"


def _declared(prompt: str) -> dict[str, frozenset[str]]:
    """Tools with the names of their inputs, as prompts list them; a team member takes a task."""
    found: dict[str, frozenset[str]] = {}
    places = [*((each.start(), each.group(1)) for each in _TOOL.finditer(prompt)), (len(prompt), "")]
    members = prompt.find(MEMBERS)
    for (start, name), (end, _) in pairwise(places):
        takes = _TAKES.search(prompt, start, end)
        if takes is not None:
            found[name] = frozenset(_INPUT.findall(takes.group(1)))
        elif 0 <= members <= start - len(MEMBERS):
            found[name] = frozenset({"task", "request"})
    return found


def _written(step: Step) -> list[ToolUse]:
    """The structured calls in a model's output."""
    _, mark, rest = step.came.rpartition("calls: [")
    items: Any = maybe_json("[" + rest) if mark else None
    calls: list[ToolUse] = []
    for item in cast("list[Any]", items) if isinstance(items, list) else []:
        match item:
            case {"name": str(name), "arguments": str(text)}:
                arguments = maybe_json(text)
                if arguments is text:
                    continue
            case {"name": str(name), "arguments": dict(arguments)}:  # pyright: ignore[reportUnknownVariableType]  # any JSON object
                text = json.dumps(arguments)
            case _:
                continue
        fields = cast("dict[str, Any]", arguments) if isinstance(arguments, dict) else {}
        calls.append(ToolUse(step=step, tool=name, arguments=fields, text=text))
    return calls


def _made(step: Step, span: Span) -> ToolUse | None:
    """The call of a tool's span."""
    done = tool_io_of(span)
    if done is None:
        return None
    given = done.row["input"]
    given = maybe_json(given) if isinstance(given, str) else given
    fields = cast("dict[str, Any]", given) if isinstance(given, dict) else {"input": given}
    inner = fields.get("kwargs")
    if isinstance(inner, dict):
        fields = {**cast("dict[str, Any]", inner), **({"args": fields["args"]} if fields.get("args") else {})}
    return ToolUse(
        step=step, tool=str(done.row["tool_name"]), arguments=fields, text=json.dumps(fields, ensure_ascii=False)
    )
