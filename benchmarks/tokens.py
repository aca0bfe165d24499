"""What a question costs in tokens, beside its peers: the same useful steps, played to each system on one scripted server.

    python benchmarks/tokens.py [--only sonde,dspy] [--tasks log,source] [--json]
    python benchmarks/tokens.py --follow-up   # a question that continues a run, against the same question asked afresh
    python benchmarks/tokens.py --model M     # a real model instead of the fixed policies, any model that Sonde can open
    python benchmarks/tokens.py --model "command:python3 examples/folder_model.py DIR"   # or whoever answers files in DIR

A fixed policy (tokens_tasks.py) is two or more steps of code and an answer, in each system's own dialect; what a system asks beyond them
(a refused answer, an extra turn) gets the answer again, and counts. All requests are counted by one tokenizer: cl100k_base, which comes
with dspy's packages, else a stand-in that takes pieces of words (`pieces`). "At cached prices" counts a prefix that an earlier request
of the run already had as a tenth, in steps of 128 tokens from 1,024 on, as providers do. The ratio is to the cheaper of dspy.RLM and
rlms. With `--model` a proxy on loopback answers every system by asking the model, and waits for it. Peers live in .bench/turn-NAME,
as in turn.py.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokens_peers import PATIENCE_S
from tokens_tasks import FIVE, LABEL, TASKS, Task, labels, steps_of
from turn import HERE, python_of

from sonde.core.deadline import Deadline, SystemClock
from sonde.models import Message, Model, ModelRequest, ModelSettings, open_model
from sonde.testing import ScriptedServer, SeenRequest

PEERS = ("dspy", "rlms")
CACHED_PRICE, CACHE_FROM, CACHE_STEP = 0.1, 1024, 128
FAULT = re.compile(r"\b(?:Name|Type|Key|Value|Index|Syntax|Attribute|Interpreter)Error\b")
MESSAGE_TOKENS = 4  # what the form of a message takes
Counting = Callable[[Sequence[str]], list[int]]
COUNT = """
import json, sys, os, importlib.util
litellm = os.path.dirname(importlib.util.find_spec("litellm").origin)
os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(litellm, "litellm_core_utils", "tokenizers")
import tiktoken
encoding = tiktoken.get_encoding("cl100k_base")
json.dump([len(each) for each in encoding.encode_batch(json.load(sys.stdin), disallowed_special=())], sys.stdout)
"""


def _fields(thought: str, code: str) -> str:
    fence = f"```python\n{code}\n```"
    return f"[[ ## reasoning ## ]]\n{thought}\n\n[[ ## code ## ]]\n{fence}\n\n[[ ## completed ## ]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a system is spoken to: a step, an answer, many prompts at once, one text, and texts by path."""

    step: Callable[[str, str], str]
    answer: str
    ask_all: str
    text: str = "context"
    texts: str = "context"


DIALECTS = {
    "sonde": Dialect(
        step=lambda thought, code: f"{thought}\n```python\n{code}\n```",
        answer="FINAL({0})",
        ask_all="llm_batch",
        text='CONTEXT["{file}"]',
        texts="CONTEXT",
    ),
    "rlms": Dialect(
        step=lambda thought, code: f"{thought}\n```repl\n{code}\n```",
        answer='answer["content"] = {0}\nanswer["ready"] = True',
        ask_all="llm_query_batched",
    ),
    "dspy": Dialect(step=_fields, answer="SUBMIT(answer={0})", ask_all="llm_query_batched"),
    "smolagents": Dialect(
        step=lambda thought, code: f"Thought: {thought}\n<code>\n{code}\n</code>",
        answer="final_answer({0})",
        ask_all="[llm_query(each) for each in {0}]",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchanged:
    """One request and its reply, as texts."""

    sent: tuple[str, ...]
    got: str


class Policy:
    """Plays a task's steps to one system; the answer again when it asks on."""

    def __init__(self, dialect: Dialect, task: Task) -> None:
        spoken = [dialect.step(thought, _in_dialect(code, dialect, task.file)) for thought, code in steps_of(task)]
        done = dialect.step("That settles it.", dialect.answer.format(repr(task.answer)))
        self._replies = iter([*spoken, done])
        self._done = done
        self.faults: list[str] = []
        """What went wrong in code that should run everywhere."""

    def __call__(self, seen: SeenRequest) -> str:
        first, prompt = texts_of(seen)[0], texts_of(seen)[-1]
        if FAULT.search(prompt) and not FAULT.search(first):
            self.faults.append(prompt[-1500:])
        if f"{LABEL}\n" in prompt:  # a sub-call: code has the line break as an escape
            return labels(prompt)
        return next(self._replies, self._done)


def _in_dialect(code: str, dialect: Dialect, file: str) -> str:
    if "{0}" in dialect.ask_all:
        code = re.sub(r"ask_all\((.*)\)", lambda found: dialect.ask_all.format(found.group(1)), code)
    code = code.replace("ask_all", dialect.ask_all)
    data = {"TEXT": dialect.text.format(file=file), "TEXTS": dialect.texts}
    return re.sub(r"\bTEXTS?\b", lambda found: data[found.group()], code)


class Proxy:
    """Answers by asking a model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __call__(self, seen: SeenRequest) -> str:
        roles = [str(message["role"]) for message in seen.body["messages"]]
        messages = [
            Message("assistant" if role == "assistant" else "system" if role == "system" else "user", text)
            for role, text in zip(roles, texts_of(seen), strict=True)
        ]
        request = ModelRequest(messages=messages, max_output_tokens=4096)
        return self._model.complete(request, deadline=Deadline(SystemClock(), PATIENCE_S)).text


def texts_of(seen: SeenRequest) -> tuple[str, ...]:
    """The text of each message; some clients send parts."""

    def text(content: str | list[dict[str, Any]] | None) -> str:
        return content if isinstance(content, str) else "".join(str(part.get("text", "")) for part in content or [])

    return tuple(text(message["content"]) for message in seen.body["messages"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What one system exchanged over one task."""

    name: str
    answer: str
    exchanged: tuple[Exchanged, ...]


def play(name: str, python: Path, task: Task, reply: Callable[[SeenRequest], str]) -> Played:
    """One task in one system, in a process of its own."""
    exchanged: list[Exchanged] = []

    def noted(seen: SeenRequest) -> str:
        got = reply(seen)
        exchanged.append(Exchanged(sent=texts_of(seen), got=got))
        return got

    # A policy says its steps in order; a model may be asked several things at once.
    with ScriptedServer(noted, parallel=isinstance(reply, Proxy)) as server, tempfile.TemporaryDirectory() as folder:
        place = task.write(Path(folder))
        env = os.environ | {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": server.base_url}
        command = [python, HERE / "tokens_peers.py", name, server.base_url, place, task.question]
        done = subprocess.run(
            command, cwd=folder, env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
    if done.returncode:
        sys.exit(f"{name} failed: {(done.stderr or done.stdout)[-2000:]}")
    said = json.loads(done.stdout.splitlines()[-1])
    return Played(name=said["name"], answer=said["answer"], exchanged=tuple(exchanged))


def pieces(texts: Sequence[str]) -> list[int]:
    """The stand-in tokenizer: a word with the space before it counts one for every nine letters begun, digits one for three, signs one
    for two, and breaks one each.
    """
    pattern = re.compile(r" ?[^\W\d_]{1,9}|\d{1,3}| ?[^\w\s]{1,2}|_|\n+|[ \t]+")
    return [len(pattern.findall(text)) for text in texts]


def counter() -> tuple[str, Counting]:
    """The tokenizer of this machine: its name, and how it counts."""
    python = HERE.parent / ".bench" / "turn-dspy" / "bin" / "python"

    def counted(texts: Sequence[str]) -> list[int]:
        done = subprocess.run(
            [python, "-c", COUNT], input=json.dumps(list(texts)), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    try:
        counted(["a word"])
    except (OSError, subprocess.CalledProcessError):
        return "the stand-in tokenizer", pieces
    return "cl100k_base", counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """The calls and tokens of one system over one task, or of several tasks together."""

    calls: int
    sent: int
    got: int
    cached: int

    @property
    def paid(self) -> float:
        """What was sent, at cached prices."""
        return self.sent - (1 - CACHED_PRICE) * self.cached

    def __add__(self, more: Tokens) -> Tokens:
        return Tokens(
            calls=self.calls + more.calls,
            sent=self.sent + more.sent,
            got=self.got + more.got,
            cached=self.cached + more.cached,
        )


def tokens_of(exchanged: Sequence[Exchanged], count: Counting) -> Tokens:
    """All requests of a run, and how much of each a provider would have found in its cache."""
    texts = [text for each in exchanged for text in (*each.sent, each.got)]
    earlier: list[tuple[str, ...]] = []
    heads: list[str] = []
    for each in exchanged:
        heads.append(max((_common(each.sent, before) for before in earlier), key=len, default=""))
        earlier.append(each.sent)
    numbers = iter(count([*texts, *heads]))
    sent = got = 0
    for each in exchanged:
        sent += sum(next(numbers) + MESSAGE_TOKENS for _ in each.sent)
        got += next(numbers)
    cached = sum(CACHE_STEP * (head // CACHE_STEP) for head in numbers if head >= CACHE_FROM)
    return Tokens(calls=len(exchanged), sent=sent, got=got, cached=cached)


def _common(new: tuple[str, ...], old: tuple[str, ...]) -> str:
    """The beginning that two requests share."""
    return os.path.commonprefix(["\0".join(new), "\0".join(old)])  # noqa: RUF071  # of texts, not of paths


def sent_by_sonde(names: Sequence[str]) -> int:
    """What Sonde sends over these tasks, by the stand-in tokenizer."""
    played = [
        play("sonde", Path(sys.executable), TASKS[name], Policy(DIALECTS["sonde"], TASKS[name])) for name in names
    ]
    return sum(tokens_of(each.exchanged, pieces).sent for each in played)


def follow_up(count: Counting) -> str:
    """What a follow-up costs that the earlier run's lines answer, against the same question asked afresh."""
    from sonde import ask
    from sonde.api.settings import Settings

    task, dialect = TASKS["log"], DIALECTS["sonde"]
    question, answer = "When did it happen, and on which database host?", "At 11:16:15, on db-2 [app.log:18303]."
    done = dialect.step("The line says it.", dialect.answer.format(repr(answer)))
    exchanged: list[Exchanged] = []
    with tempfile.TemporaryDirectory() as folder:
        place = task.write(Path(folder))

        def asked(words: str, policy: Callable[[SeenRequest], str], *context: Path, **options: Any) -> Any:
            exchanged.clear()

            def noted(seen: SeenRequest) -> str:
                exchanged.append(Exchanged(sent=texts_of(seen), got=policy(seen)))
                return exchanged[-1].got

            with ScriptedServer(noted) as server:
                settings = Settings(base_url=server.base_url)
                options |= {"settings": settings, "runs_dir": Path(folder, "runs"), "model": "openai:scripted"}
                return ask(words, *context, **options)

        first = asked(task.question, Policy(dialect, task), place)
        asked(question, Policy(dialect, replace(task, answer=answer)), place)
        fresh = tokens_of(exchanged, count)
        asked(question, lambda _seen: done, continue_from=first.run_dir)
        follow = tokens_of(exchanged, count)
    ratio = f"{follow.sent / fresh.sent:.2f}"
    lines = ["| | calls | tokens in | tokens out | ratio |", "|---|---|---|---|---|"]
    lines.append(f"| asked afresh | {fresh.calls} | {fresh.sent:,} | {fresh.got:,} | 1.00 |")
    lines.append(f"| with --continue | {follow.calls} | {follow.sent:,} | {follow.got:,} | {ratio} |")
    return "\n".join(lines)


def is_right(task: Task, answer: str) -> bool:
    plain = answer.lower().replace(",", "")
    return all(need.lower() in plain for need in task.needs)


def table(found: dict[str, dict[str, tuple[Played, Tokens]]]) -> str:
    """A row for each task and system, with a sum at the end."""
    labels_ = "| task | system | right | calls | tokens in | at cached prices | tokens out | in, to the cheaper of dspy.RLM and rlms |"
    lines = [labels_, "|---|---|---|---|---|---|---|---|"]
    counted = [task for task in found if task in FIVE]
    sums: dict[str, Tokens] = {}
    names: dict[str, str] = {}
    right: dict[str, int] = {}
    for task, systems in found.items():
        for name, (played, tokens) in systems.items():
            good = is_right(TASKS[task], played.answer)
            if task in counted:
                sums[name] = sums[name] + tokens if name in sums else tokens
                names[name], right[name] = played.name, right.get(name, 0) + good
            lines.append(
                _row(task, played.name, "yes" if good else "NO", tokens, {n: t for n, (_, t) in systems.items()})
            )
    for name, tokens in sums.items():
        lines.append(_row("all but long", names[name], f"{right[name]} of {len(counted)}", tokens, sums))
    return "\n".join(lines)


def _row(task: str, name: str, right: str, tokens: Tokens, all_: dict[str, Tokens]) -> str:
    least = min((all_[peer].sent for peer in PEERS if peer in all_), default=0)
    ratio = f"{tokens.sent / least:.2f}" if least else "-"
    return f"| {task} | {name} | {right} | {tokens.calls} | {tokens.sent:,} | {tokens.paid:,.0f} | {tokens.got:,} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(DIALECTS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--model", help="a real model instead of the fixed policies")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--follow-up", action="store_true", help="only a question that continues a run")
    parser.add_argument("--keep", type=Path, help="write every request and reply into this folder")
    chosen = parser.parse_args()
    systems = {name: python_of(name) or Path(sys.executable) for name in chosen.only.split(",")}
    tokenizer, count = counter()
    if chosen.follow_up:
        print(f"{follow_up(count)}\n\nTokens by {tokenizer}.")
        return
    model = (
        None
        if chosen.model is None
        else open_model(chosen.model, ModelSettings(timeout_s=PATIENCE_S, environ=os.environ))
    )
    found: dict[str, dict[str, tuple[Played, Tokens]]] = {}
    for title in chosen.tasks.split(","):
        task = TASKS[title]
        found[title] = {}
        for name, python in systems.items():
            policy = Policy(DIALECTS[name], task)
            played = play(name, python, task, policy if model is None else Proxy(model))
            if policy.faults:
                sys.exit(f"a step of {title} failed in {name}:\n{policy.faults[0]}")
            found[title][name] = played, tokens_of(played.exchanged, count)
            if chosen.keep:
                chosen.keep.mkdir(parents=True, exist_ok=True)
                rows = [{"sent": each.sent, "got": each.got} for each in played.exchanged]
                (chosen.keep / f"{title}-{name}.json").write_text(json.dumps(rows, indent=1))
    if chosen.json:
        rows = {t: {n: vars_of(tokens) for n, (_, tokens) in each.items()} for t, each in found.items()}
        print(json.dumps(rows, indent=1))
    else:
        print(f"{table(found)}\n\nTokens by {tokenizer}.")


def vars_of(tokens: Tokens) -> dict[str, float]:
    return {"calls": tokens.calls, "in": tokens.sent, "cached": tokens.cached, "paid": tokens.paid, "out": tokens.got}


if __name__ == "__main__":
    main()
