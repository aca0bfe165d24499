"""The loop's programs as models, and what a run of them leaves for result.json while it goes on.

A program gets the whole environment of the loop, because agents find their keys and settings there; generated code sees none of it. A
program that prints more than is kept has failed: half a reply is no reply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sonde.core.canonical import clip
from sonde.core.deadline import Deadline
from sonde.core.events import (
    ROOT,
    Cited,
    CodeRan,
    CodeStarted,
    Event,
    Highlighted,
    HostReturned,
    ModelFailed,
    ModelReplied,
    SubcallStarted,
    TurnStarted,
)
from sonde.core.evidence import Citation
from sonde.errors import ModelCallFailed
from sonde.models.base import ModelReply, ModelRequest, ModelSettings, OnText, prompt_tokens
from sonde.models.command import PASSED_ON, CommandModel
from sonde.rlms.request import Runner
from sonde.rlms.result import LoopFindings, citation_row
from sonde.runtime.actions import RunCode, read_longest

PREVIEW_CHARS = 240
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings(ModelSettings):
    """The settings of a program that gets a whole environment: only what is named like a secret is one."""

    def secrets(self) -> tuple[str, ...]:
        """Values that no message may show."""
        return tuple(value for name, value in self.env.items() if _SECRET_NAME.search(name))


class RunnerModel:
    """A runner as a model; `returncode` is how its last call ended. With `again` a failed call asks to be repeated, once."""

    def __init__(self, runner: Runner, repo: str, environ: Mapping[str, str], *, again: bool) -> None:
        env = {name: value for name, value in environ.items() if name not in PASSED_ON}
        settings = RunnerSettings(environ=environ, env=env, cwd=repo, prompt_mode=runner.prompt_mode, timeout_s=86_400)
        self._command = CommandModel(runner.argv, settings)
        self._again = again
        self._failed: ModelRequest | None = None
        self.name = self._command.name
        self.returncode: int | None = None

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Run the program once."""
        try:
            reply = self._command.complete(request, deadline=deadline, on_text=on_text)
        except ModelCallFailed as failure:
            raise self._ended(failure, request) from None
        if reply.finish_reason == "length":
            said = f"{self.name} printed more than {len(reply.text):,} characters and was ended; it should print its reply only"
            raise self._ended(ModelCallFailed(said, tokens_in=prompt_tokens(request), returncode=-1), request)
        self.returncode = 0
        return reply

    def _ended(self, failure: ModelCallFailed, request: ModelRequest) -> ModelCallFailed:
        self.returncode = failure.returncode
        failure.retryable = self._again and self._failed is not request
        self._failed = request
        return failure


class CallLog:
    """Listens to the run's stream and keeps what a result needs, whichever way the run ends."""

    def __init__(self, root: RunnerModel, subcall: RunnerModel, kept: LoopFindings) -> None:
        self._models = {"root": root, "subcall": subcall}
        self._kept = kept
        self._given = 0
        self.last_fault: str | None = None
        self.last_words = ""

    def __call__(self, event: Event) -> None:
        match event:
            case TurnStarted(session=session) if session == ROOT:
                self._kept.add("step", event.turn)
            case SubcallStarted():
                self._kept.add("subcall", event.call_id)
            case CodeStarted(session=session) if session == ROOT:
                self.last_fault, self.last_words = None, ""  # a limit that this code meets leaves no other trace of it
            case CodeRan(session=session, fault=fault) if session == ROOT:
                self.last_fault = str(fault.get("kind")) if fault else None
                self.last_words = str(fault.get("message")).partition("\n")[0] if fault else ""
            case Highlighted():
                self._kept.add("highlight", event.text)
            case HostReturned(name="append_highlight", ok=True):
                self._given += 1
                if self._given > len(self._kept.highlights):
                    self._kept.add("left_off", self._given - len(self._kept.highlights))
            case Cited():
                self._kept.add("citation", citation_row(Citation.model_validate(event.citation)))
            case ModelReplied():
                self._call(event, event.text)
            case ModelFailed():
                self._call(event, "")
            case _:
                return

    def _call(self, event: ModelReplied | ModelFailed, text: str) -> None:
        kind = "root" if event.session == ROOT else "subcall"
        action = read_longest(text) if kind == "root" else None
        row = {
            "step": self._kept.steps,
            "type": kind,
            "returncode": self._models[kind].returncode,
            "duration_ms": round(event.latency_s * 1000),
            "code_preview": clip(action.blocks[0] if isinstance(action, RunCode) else "", PREVIEW_CHARS),
            "stdout_preview": clip(text, PREVIEW_CHARS),
        }
        self._kept.add("run", row)
