"""Rollouts to train on: questions with known answers, a policy, a reward that the run itself proves, one JSON line per conversation.

    python examples/rollouts.py rollouts.jsonl 16

Needs no key: `StandIn` plays the policy, now well, now badly. Put yours in its place; docs/train.md says what it may keep beside.
"""

from __future__ import annotations

import json
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import sonde
from sonde.core.events import Event, ModelAsked, ModelReplied
from sonde.models.base import ModelReply, ModelRequest, estimate_usage

SERVICES = ("web", "payments", "ledger")


class Count(BaseModel):
    count: int
    citations: list[str] = []


def tasks(seed: int = 7) -> list[tuple[str, str, int]]:
    """Question, data, right answer: code that makes the data knows the answer."""
    chance = random.Random(seed)
    lines = [f"{chance.choice(SERVICES)} {chance.choice(('INFO', 'ERROR'))} request {number}" for number in range(400)]
    log = "\n".join(lines)
    return [(f"How many ERROR lines has {name}?", log, log.count(f"{name} ERROR")) for name in SERVICES]


class StandIn:
    """In the place of your policy, which samples from `request.messages`. Called from many threads at once."""

    name = "local:stand-in"

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def complete(self, request: ModelRequest, *, deadline: Any, on_text: Any = None) -> ModelReply:  # noqa: ARG002  # it needs no time
        asked = request.messages[-1].content
        if asked.startswith("Is this an error?"):  # a sub-call: a session of its own, with a line of its own
            text = "yes"
        elif len(request.messages) > 2:
            text = "```python\nFINAL({'count': len(rows), 'citations': [rows[0]['path'] + ':' + str(rows[0]['line'])]})\n```"
        elif self._chance.random() < 0.3:
            text = "```python\nFINAL({'count': 42})\n```"  # a guess: cheap, wrong, unproved
        else:
            service = asked.partition("lines has ")[2].partition("?")[0]
            text = f"```python\nrows = grep('^{service} ERROR', max_matches=400)\nprint(len(rows), rows[0])\n"
            text += "print(llm_query('Is this an error? ' + rows[0]['text']))\n```"
        return ModelReply(text=text, usage=estimate_usage(request, text), model=self.name)


class Conversations:
    """Listens to a run. A session is a conversation that grows; when its earlier turns are shortened, another one begins."""

    def __init__(self) -> None:
        self.all: list[dict[str, Any]] = []

    def hear(self, event: Event) -> None:
        now = next((each for each in reversed(self.all) if each["session"] == event.session), None)
        if isinstance(event, ModelAsked):  # it leaves out what the session's last prompt began with: `kept` messages
            before: list[dict[str, str]] = now["messages"] if now else []
            prompt = [*before[: event.kept], *event.messages]
            if now and prompt[: len(before)] == before:
                now["messages"] = prompt
            else:
                self.all.append({"session": event.session, "messages": prompt, "turns": []})
        elif isinstance(event, ModelReplied) and now is not None:
            now["turns"].append({"turn": event.turn, "message": len(now["messages"]), "tokens": event.tokens_out})
            now["messages"].append({"role": "assistant", "content": event.text})


def reward(answer: sonde.Answer, truth: int) -> float:
    """Right value, proved citation, little spent. A citation counts only if its lines were read in the run and hashed again."""
    right = answer.status == "succeeded" and isinstance(answer.value, Count) and answer.value.count == truth
    spent = answer.record.metrics.tokens_in + answer.record.metrics.tokens_out
    return round(right + 0.5 * bool(right and answer.citations) - 0.02 * answer.usage.iterations - spent / 1e6, 4)


def rollout(job: tuple[int, tuple[str, str, int]]) -> list[dict[str, Any]]:
    number, (question, data, truth) = job
    heard = Conversations()
    # Unproved answers are accepted, so that the reward can tell them apart.
    asking = partial(sonde.ask, schema=Count, citations=False, max_iterations=6, max_tokens_total=50_000)
    answer = asking(question, data, model=StandIn(number), on_event=heard.hear, runs_dir="rollouts")
    shared = {"rollout": number, "question": question, "reward": reward(answer, truth), "status": answer.status.value}
    return [{**shared, "run": str(answer.run_dir), **each} for each in heard.all if each["turns"]]


def main(path: str, each: str) -> None:
    jobs = list(enumerate(task for task in tasks() for _ in range(int(each))))
    with ThreadPoolExecutor(16) as pool, Path(path).open("w") as file:
        for lines in pool.map(rollout, jobs):
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
            for line in lines[:1]:  # none if the policy never replied
                print(f"{line['reward']:.3f} {line['status']} {line['question']}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
