"""`command:PROGRAM ARGS`: any program that reads a prompt and prints a reply is a model.

Promises: never a shell; the prompt on standard input or in a file; bounded output, however much the program prints; the
program and all that it started killed when time is up, when the run is stopped, when too much was printed, when the caller
is interrupted, and when this process dies, even by SIGKILL; an environment of PATH, HOME, LANG and what the caller gave.
After a reply, a process that left the group on purpose may stay: somebody's daemon.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from sonde.core.deadline import Deadline
from sonde.core.redaction import secret_forms
from sonde.errors import ConfigError, ErrorCode, ModelCallFailed
from sonde.models.base import (
    ModelReply,
    ModelRequest,
    ModelSettings,
    OnText,
    cost_of,
    cut_at_stop,
    estimate_usage,
    interrupted,
    prompt_tokens,
    render_prompt,
)
from sonde.models.process import Program, ProgramEnd, run_process

ATTEMPT_S = 600.0
WAITING_S = 86_400.0  # with count_wait=False a person may be behind the command
PASSED_ON = ("PATH", "HOME", "LANG")
ENVIRONMENT = (
    f'it sees only {", ".join(PASSED_ON)} of the environment; env = ["NAME"] in its [models] entry passes on more'
)
TEMPORARY_FAILURE = 75  # EX_TEMPFAIL of sysexits.h: "try again later"
SAID_CHARS = 2000  # of what it wrote to stderr; cut only after keys are removed: half a key would no longer be found
_UNREACHED = "the model could not be reached"


class CommandModel:
    """A program as a model. Each call is a process of its own, so parallel calls are independent."""

    def __init__(self, command: str | Sequence[str], settings: ModelSettings) -> None:
        if sys.platform == "win32":  # it has no process groups by which a program is ended for sure
            raise ConfigError(
                "a program as a model needs Linux or macOS: use WSL2, or a server: --base-url URL --model openai:NAME"
            )
        try:
            self._argv = shlex.split(command) if isinstance(command, str) else [str(part) for part in command]
        except ValueError as error:
            raise ConfigError(f"the model command cannot be split into words: {error}; check its quotes") from None
        if not self._argv or not self._argv[0]:
            raise ConfigError('the model command is empty; give a program, as in "command:python3 my_model.py"')
        if any("\0" in part for part in self._argv):
            raise ConfigError("the model command holds a NUL character")
        self._settings = settings
        self.price = settings.price
        passed = {name: settings.environ[name] for name in PASSED_ON if name in settings.environ}
        self._environment = {"PATH": os.defpath, **passed, **settings.env}
        # Up to the first option: options may carry keys, and names go into the record.
        words = takewhile(lambda word: not word.startswith(("-", "{")), self._argv[1:])
        self.name = f"command:{settings.label or shlex.join([self._argv[0], *words])}"
        if settings.prompt_mode == "file" and not any("{prompt_file}" in part for part in self._argv):
            raise ConfigError(
                f"{self.name} gets its prompt by file but has no place for its path; add {{prompt_file}}, as in "
                '["my-model", "--prompt", "{prompt_file}"]'
            )
        program, path, cwd = self._argv[0], self._environment["PATH"], settings.cwd
        if cwd is not None and not Path(cwd).is_dir():
            raise ConfigError(f"the model command is to run in {cwd}, which is not a folder")
        placed = str(Path(cwd or ".", program).absolute()) if os.sep in program else program
        if shutil.which(placed, path=path) is None:
            raise ConfigError(
                f"the model command's program {program!r} was not found or may not be executed; PATH is {path}"
            )

    def __repr__(self) -> str:
        return f"CommandModel({self.name!r})"

    def complete(self, request: ModelRequest, *, deadline: Deadline, on_text: OnText | None = None) -> ModelReply:
        """Run the program once; raises `ModelCallFailed`."""
        if self._settings.count_wait:
            seconds = min(self._settings.timeout_s or ATTEMPT_S, deadline.remaining())
        else:
            seconds = self._settings.timeout_s or WAITING_S
        if seconds <= 0:
            raise ModelCallFailed(f"no time was left to ask {self.name}")
        with tempfile.TemporaryDirectory(prefix="sonde-model-") as folder:
            prompt_file, last_message = Path(folder, "prompt.md"), Path(folder, "last-message.md")
            prompt = render_prompt(request).encode("utf-8", "replace")
            if any("{prompt_file}" in part for part in self._argv):
                prompt_file.write_bytes(prompt)
            values = {
                "{prompt_file}": str(prompt_file),
                "{last_message_file}": str(last_message),
                "{repo}": str(Path(self._settings.cwd or ".").absolute()),
            }
            argv = self._argv
            for placeholder, value in values.items():
                argv = [part.replace(placeholder, value) for part in argv]
            program = Program(
                argv=argv,
                stdin=b"" if self._settings.prompt_mode == "file" else prompt,
                cwd=self._settings.cwd,
                environment=self._environment,
                seconds=seconds,
                stop=deadline.stop,
            )
            try:
                finished = run_process(program, on_text)
            except OSError as error:
                raise ModelCallFailed(
                    f"{_UNREACHED}: {self.name} could not be started: {error.strerror or error}; "
                    "check that the program is there and may be executed",
                    code=ErrorCode.MODEL_UNREACHABLE,
                ) from None
            text = finished.text or _read(last_message)
        waited = 0.0 if self._settings.count_wait else finished.seconds
        self._check(finished, request, seconds, waited)
        text = cut_at_stop(text, request.stop)
        usage = estimate_usage(request, text)
        return ModelReply(
            text=text,
            usage=usage,
            model=self.name,
            cost_usd=cost_of(self.name, usage, self.price),
            latency_s=finished.seconds,
            waited_s=waited,
            finish_reason="length" if finished.overflowed else "stop",
        )

    def _check(self, finished: ProgramEnd, request: ModelRequest, seconds: float, waited: float) -> None:
        spent = prompt_tokens(request)
        if finished.stopped:
            raise interrupted(self.name, spent, waited)
        if finished.timed_out:
            raise ModelCallFailed(
                f"{self.name} did not answer within {round(seconds, 2):g} s and was ended; give it longer with --model-timeout "
                "(timeout_s in Python and sonde.toml)",
                code=ErrorCode.MODEL_UNREACHABLE,
                retryable=self._settings.count_wait,
                tokens_in=spent,
                waited_s=waited,
                returncode=finished.returncode,
            )
        if finished.returncode != 0 and not finished.overflowed:
            code = finished.returncode
            ending = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            # The last line is what matters of a traceback, and messages are cut at their end.
            before, _, last = self._clean(finished.stderr_tail)[-SAID_CHARS:].strip().rpartition("\n")
            told = f": {last}" if last else ". It wrote nothing to stderr; try it by hand: echo Hello | PROGRAM"
            if code > 0 and not self._settings.env:
                told += f" ({ENVIRONMENT})"
            raise ModelCallFailed(
                self._clean(f"the model's program failed: {self.name} {ending}")
                + told
                + (f". Before that: {before.strip()}" if before else ""),
                code=ErrorCode.MODEL_UNREACHABLE,
                retryable=finished.returncode < 0 or finished.returncode == TEMPORARY_FAILURE,
                tokens_in=spent if code < 0 else 0,  # one that gave up by itself has no reply to be paid for
                waited_s=waited,
                returncode=finished.returncode,
            )

    def _clean(self, text: str) -> str:
        return secret_forms(self._settings.secrets()).remove(text)


def _read(path: Path) -> str:
    """What programs such as codex leave in the file they were given for their last message."""
    try:
        with path.open("rb") as file:
            return file.read(8 * 1024 * 1024).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
