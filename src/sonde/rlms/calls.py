"""The loop's programs as models, and their recent calls as result.json shows them.

A program gets the whole environment of the loop, because agents find their keys and settings there; generated code sees none of it. A
program that prints more than is kept has failed: half a reply is no reply.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sonde.core.canonical import clip
from sonde.core.deadline import Deadline
from sonde.core.events import ROOT, CodeRan, CodeStarted, Event, ModelFailed, ModelReplied, SubcallStarted, TurnStarted
from sonde.errors import ModelCallFailed
from sonde.models.base import ModelReply, ModelRequest, ModelSettings, OnText, prompt_tokens
from sonde.models.command import PASSED_ON, CommandModel
from sonde.rlms.request import Runner
from sonde.runtime.actions import RunCode, read_code, read_longest

TRACE_ROWS = 8
PREVIEW_CHARS = 240
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerSettings(ModelSettings):
    """The settings of a program that gets a whole environment: only what is named like a secret is one."""

    def secrets(self) -> tuple[str, ...]:
        """Values that no message may show."""
        return tuple(value for name, value in self.env.items() if _SECRET_NAME.search(name))


class RunnerModel:
    """A runner as a model; `returncode` is how its last call ended."""

    def __init__(self, runner: Runner, repo: str, environ: Mapping[str, str]) -> None:
        env = {name: value for name, value in environ.items() if name not in PASSED_ON}
        settings = RunnerSettings(environ=environ, env=env, cwd=repo, prompt_mode=runner.prompt_mode, timeout_s=86_400)
        self._command = CommandModel(runner.argv, settings)
        self.name = self._command.name
        self.returncode: int | None = None

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Run the program once."""
        try:
            reply = self._command.complete(request, deadline=deadline, on_text=on_text)
        except ModelCallFailed as failure:
            self.returncode = failure.returncode
            raise
        self.returncode = 0
        if reply.finish_reason == "length":
            self.returncode = -1
            raise ModelCallFailed(
                f"{self.name} printed more than {len(reply.text):,} characters and was ended; it should print its reply only",
                tokens_in=prompt_tokens(request),
            )
        return reply


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRow:
    """One call of a program."""

    step: int
    type: str
    returncode: int | None
    duration_ms: int
    code_preview: str = ""
    stdout_preview: str = ""


class CallLog:
    """Listens to the run's stream: counts, the last calls, and the fault of the root's last code."""

    def __init__(self, root: RunnerModel, subcall: RunnerModel) -> None:
        self._models = {"root": root, "subcall": subcall}
        self._rows: deque[CallRow] = deque(maxlen=TRACE_ROWS)
        self.steps = 0
        self.subcalls = 0
        self.last_fault: str | None = None

    def __call__(self, event: Event) -> None:
        match event:
            case TurnStarted(session=session) if session == ROOT:
                self.steps = event.turn
            case SubcallStarted():
                self.subcalls += 1
            case CodeStarted(session=session) if session == ROOT:
                self.last_fault = None  # a limit that this code meets leaves no other trace of it
            case CodeRan(session=session, fault=fault) if session == ROOT:
                self.last_fault = str(fault.get("kind")) if fault else None
            case ModelReplied():
                self._call(event, event.text)
            case ModelFailed():
                self._call(event, "")
            case _:
                return

    def _call(self, event: ModelReplied | ModelFailed, text: str) -> None:
        kind = "root" if event.session == ROOT else "subcall"
        action = read_longest(text) if kind == "root" else read_code(text)
        code = action.blocks[0] if isinstance(action, RunCode) else ""
        self._rows.append(
            CallRow(
                step=self.steps,
                type=kind,
                returncode=self._models[kind].returncode,
                duration_ms=round(event.latency_s * 1000),
                code_preview=clip(code, PREVIEW_CHARS),
                stdout_preview=clip(text, PREVIEW_CHARS),
            )
        )

    def trace(self) -> list[dict[str, Any]]:
        """The last calls, oldest first."""
        return [asdict(row) for row in self._rows]
