"""Event streams for tests: what a run of the runtime writes, without running one.

`story()` is a small but complete run: five turns, a batch of plain queries, a child session with turns of its own, a tool that fails, a
gate that refuses once, citations and an answer. `long_story(n)` has about n events.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sonde.core.canonical import hash_value, sha256_text
from sonde.core.events import (
    AnyEvent,
    Cited,
    CodeRan,
    CodeStarted,
    Event,
    GateChecked,
    Highlighted,
    HostReturned,
    ModelAsked,
    ModelFailed,
    ModelReplied,
    Noted,
    RunEnded,
    RunStarted,
    StateChanged,
    StatusChanged,
    SubcallEnded,
    SubcallStarted,
    TurnStarted,
)
from sonde.core.evidence import Excerpt
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import RunDir

BEGIN = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
SOURCE = """import time

RETRIES = 3
BACKOFF_S = 0.5


def fetch(url):
    for attempt in range(RETRIES):
        try:
            return open_url(url)
        except OSError:
            time.sleep(BACKOFF_S * 2 ** attempt)
    raise GaveUp(url)
"""


class TickingClock:
    """Every look at the time of day takes a tenth of a second; the same in every test."""

    def __init__(self, step_s: float = 0.1) -> None:
        self._at = BEGIN
        self._step = timedelta(seconds=step_s)

    def now(self) -> float:
        return (self._at - BEGIN).total_seconds()

    def utc(self) -> datetime:
        self._at += self._step
        return self._at


class Teller:
    """Emits the events of a run through a real recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.events: list[Event] = []
        self._messages: dict[str, int] = {}
        self._replies: dict[str, str] = {}
        self._states: dict[str, int] = {}
        self.citations: list[dict[str, Any]] = []

    def emit(self, event: Event) -> Event:
        done = self._recorder.emit(event)
        self.events.append(done)
        return done

    def start(self, run_id: str, question: str, root: Path | None = None, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "run_type": "ask",
            "engine_version": "0.1.0",
            "model": "gpt-4o-mini",
            "sub_model": "gpt-4o-mini",
            "provider": "openai",
            "temperature": 0.0,
            "prompt_template_hash": sha256_text("prompt"),
            "mode": "code",
            "profile": "analysis",
            "budget": {
                "max_iterations": 60,
                "max_depth": 3,
                "max_tool_calls": 200,
                "max_subcalls": 40,
                "max_tokens_total": 200_000,
                "max_cost_usd": 1.0,
                "sampling_seed": 7,
                "max_wall_time_sec": 600.0,
            },
            "seed": 7,
            "input_ref": {"paths": [str(root)]} if root else {},
            "dataset_ref": {"dataset_id": "files", "dataset_hash": sha256_text(SOURCE)},
            "layers": ["no_new_privs", "rlimits", "landlock", "seccomp"],
            "context": "1 file, 13 lines",
        }
        self.emit(RunStarted(run_id=run_id, objective=question, **(fields | changes)))
        self.emit(StatusChanged(status="running"))
        self.state("initialized")

    def state(self, state: str, session: str = "root", turn: int = 0) -> None:
        ordinal = self._states.get(session, 0)
        self._states[session] = ordinal + 1
        self.emit(StateChanged(session=session, turn=turn, state=state, ordinal=ordinal))

    def turn(
        self, turn: int, code: str, *, session: str = "root", reasoning: str = "", observation: str = "", **asked: Any
    ) -> None:
        """The start of a turn up to the point where its code runs."""
        self.state("planning", session, turn)
        left = {"iterations": 60 - turn, "tokens": 200_000 - 1_500 * turn, "cost_usd": 1.0 - 0.01 * turn}
        self.emit(TurnStarted(session=session, turn=turn, elapsed_s=float(turn), left=left))
        text = f"{reasoning}\n```python\n{code}\n```"
        self.ask(turn, text, session=session, observation=observation, **asked)
        self.state("acting", session, turn)
        self.emit(CodeStarted(session=session, turn=turn, block=0, code=code, reasoning=reasoning, clock=1000.0 + turn))

    def ask(self, turn: int, text: str, *, session: str = "root", observation: str = "", tokens: int = 1_200) -> None:
        kept = self._messages.get(session, 0)
        system = [{"role": "system", "content": "You have a Python session."}, {"role": "user", "content": "The task."}]
        said = {"role": "assistant", "content": self._replies.get(session, "")}
        told = [said, {"role": "user", "content": observation or f"Output of turn {turn - 1}"}]
        fresh = told if kept else system
        hashed = hash_value([session, turn, kept])
        asked: dict[str, Any] = {
            "session": session,
            "turn": turn,
            "ordinal": 0,
            "request_hash": hashed,
            "model": "gpt-4o-mini",
        }
        self.emit(ModelAsked(**asked, kept=kept, messages=fresh))
        self.emit(ModelReplied(**asked, text=text, tokens_in=tokens, tokens_out=80, cost_usd=0.0004, latency_s=0.8))
        self._messages[session] = kept + len(fresh)
        self._replies[session] = text

    def call(
        self,
        turn: int,
        ordinal: int,
        name: str,
        args: Any,
        result: Any = None,
        *,
        session: str = "root",
        excerpts: Sequence[Excerpt] = (),
        error: str | None = None,
        tool: bool = True,
    ) -> None:
        shown: list[dict[str, Any]] = [
            {"kind": e.kind.value, "ref": e.ref, "hash": e.hash, "path": e.path}
            | {"start_line": e.start_line, "end_line": e.end_line}
            for e in excerpts
        ]
        self.emit(
            HostReturned(
                session=session,
                turn=turn,
                ordinal=ordinal,
                name=name,
                args=args,
                args_hash=hash_value(args),
                ok=error is None,
                result=result,
                response_hash="" if error else hash_value(result),
                error=error,
                latency_s=0.002 * (ordinal + 1),
                excerpts=shown,
                tool=tool,
            )
        )

    def ran(self, turn: int, stdout: str = "", *, session: str = "root", final: bool = False, **more: Any) -> None:
        self.emit(
            CodeRan(
                session=session,
                turn=turn,
                block=0,
                ok=more.pop("ok", True),
                stdout=stdout,
                output_hash=sha256_text(stdout),
                final=final,
                duration_s=0.01,
                **more,
            )
        )

    def query(self, path: str, prompt: str, answer: str, depth: int = 1) -> None:
        parent = path.rpartition("/")[0]
        begun: dict[str, Any] = {"session": path, "call_id": path}
        self.emit(
            SubcallStarted(
                **begun,
                parent_call_id=parent,
                depth=depth,
                objective=prompt,
                input_ref_hash=sha256_text(prompt),
                mode="query",
            )
        )
        self.ask(0, answer, session=path, tokens=300)
        self.emit(
            SubcallEnded(**begun, status="succeeded", summary=answer, tokens_in=300, tokens_out=80, cost_usd=0.0004)
        )

    def cite(self, turn: int, ordinal: int, path: str, start: int, *, end: int) -> None:
        text = lines_of(start, end)
        excerpt = Excerpt.of_lines(path, start, end, text)
        citation = {
            "path": path,
            "start_line": start,
            "end_line": end,
            "excerpt_hash": excerpt.hash,
            "signal": "reference",
            "snippet": text[:220],
            "kind": "FILE",
            "ref": excerpt.ref,
            "fallback": False,
        }
        self.citations.append(citation)
        self.emit(Cited(turn=turn, ordinal=ordinal, citation=citation))

    def end(self, output: Any, status: str = "succeeded", **more: Any) -> None:
        self.emit(StatusChanged(status=status, error=more.get("error")))
        self.emit(
            RunEnded(
                status=status,
                output=output,
                output_type="answer",
                output_hash=hash_value(output),
                annotator_kind="LLM",
                elapsed_s=6.0,
                **more,
            )
        )


def lines_of(start: int, end: int) -> str:
    return "\n".join(SOURCE.split("\n")[start - 1 : end])


def story(teller: Teller, run_id: str = "run-1", *, root: Path | None = None, remark: str = "") -> None:
    """One run from start to end; `remark` is put wherever content can stand."""
    teller.start(run_id, f"How many times is a fetch retried, and how long does it wait? {remark}", root)
    teller.turn(1, f"print(list_files())\n# {remark}", reasoning=f"Look around first. {remark}")
    teller.call(1, 1, "list_files", {}, ["src/fetch.py", "README.md"])
    teller.ran(1, f"['src/fetch.py', 'README.md']\n{remark}")
    teller.turn(2, "print(read_file('src/fetch.py', 1, 13))", reasoning="The fetch module.")
    whole = Excerpt.of_lines("src/fetch.py", 1, 13, lines_of(1, 13))
    teller.call(2, 1, "read_file", {"path": "src/fetch.py"}, SOURCE, excerpts=[whole])
    teller.call(
        2, 2, "read_file", {"path": "src/fetsch.py"}, error=f"no file src/fetsch.py; near: src/fetch.py {remark}"
    )
    teller.ran(2, SOURCE, ok=False, fault={"kind": "error", "message": f"ToolError: no file {remark}", "line": 2})
    teller.emit(
        ModelFailed(turn=3, ordinal=0, attempt=1, request_hash="r", message="429", retryable=True, tokens_in=50)
    )
    teller.turn(3, "notes = llm_batch([...])\nprint(sub_rlm('Check the back-off'))", reasoning="Ask about each part.")
    for index in range(3):
        teller.query(f"root/3.1.{index}", f"Summarise part {index} {remark}", f"Part {index} retries. {remark}")
    teller.call(3, 1, "llm_batch", {"prompts": ["a", "b", "c"]}, ["x", "y", "z"], tool=False)
    _child(teller, "root/3.2", remark)
    teller.call(3, 2, "sub_rlm", {"prompt": "Check the back-off"}, "It doubles.", tool=False)
    teller.ran(3, "It doubles.")
    teller.turn(4, "add_citation('src/fetch.py', 3, 4)\nadd_citation('src/fetch.py', 8, 12)", reasoning="Cite.")
    teller.cite(4, 1, "src/fetch.py", 3, end=4)
    teller.cite(4, 2, "src/fetch.py", 8, end=12)
    teller.emit(Highlighted(turn=4, ordinal=3, text=f"The wait doubles each time {remark}"))
    teller.emit(GateChecked(turn=4, gate="seen", ok=False, reason="look at the output first"))
    teller.ran(4, "cited")
    teller.turn(5, "FINAL('Three times [1], waiting 0.5 s and doubling [2].')", reasoning="Done.")
    teller.ran(5, "", final=True, final_hash=sha256_text("final"))
    teller.emit(GateChecked(turn=5, gate="citations", ok=True))
    teller.state("planning", turn=5)
    teller.state("finalizing", turn=5)
    teller.emit(Noted(text="no price is known for gpt-4o-mini", level="warning"))
    teller.state("completed", turn=5)
    answer = (
        "A fetch is tried **three times** [src/fetch.py:3-4].\n\n"
        f"Between two tries it waits half a second, then one, then two [src/fetch.py:8-12]. {remark}"
    )
    teller.end(
        {"answer": answer, "value": answer, "citations": teller.citations, "highlights": []},
        gaps=[f"the caller was not looked at {remark}"] if remark else [],
    )


def _child(teller: Teller, path: str, remark: str) -> None:
    teller.emit(
        SubcallStarted(
            session=path,
            call_id=path,
            parent_call_id="root",
            depth=1,
            objective=f"Check the back-off {remark}",
            input_ref_hash=sha256_text("Check the back-off"),
            mode="rlm",
        )
    )
    teller.state("initialized", path)
    for turn in (1, 2):
        teller.turn(turn, f"print(grep('BACKOFF', {turn}))", session=path, reasoning=f"Step {turn}.")
        found = [{"path": "src/fetch.py", "line": 4, "text": "BACKOFF_S = 0.5"}]
        shown = Excerpt.of_lines("src/fetch.py", 4, 4, lines_of(4, 4))
        teller.call(turn, 1, "grep", {"pattern": "BACKOFF"}, found, session=path, excerpts=[shown])
        teller.ran(turn, str(found), session=path, final=turn == 2)
    teller.state("planning", path, 2)
    teller.state("finalizing", path, 2)
    teller.state("completed", path, 2)
    teller.emit(
        SubcallEnded(
            session=path, call_id=path, status="succeeded", summary="It doubles.", tokens_in=2_400, tokens_out=160
        )
    )


def long_story(teller: Teller, events: int, run_id: str = "run-long", output: str = "line\n" * 40) -> None:
    """A run of about this many events, most of them in parallel-looking children."""
    teller.start(run_id, "Read a thousand files")
    for turn in range(1, events // 50 + 1):
        teller.turn(turn, f"for path in paths[{turn}]:\n    print(read_file(path))", reasoning=f"Batch {turn}")
        for ordinal in range(1, 8):
            teller.call(turn, ordinal, "read_file", {"path": f"src/{turn}/{ordinal}.py"}, output)
        for index in range(9):
            teller.query(f"root/{turn}.8.{index}", f"Summarise {turn} {index}", "A summary.")
        teller.ran(turn, output)
    teller.end("Done.")


def told(**options: Any) -> list[AnyEvent]:
    """The events of a story, in memory."""
    teller = Teller(Recorder(TickingClock()))
    story(teller, **options)
    return teller.events  # pyright: ignore[reportReturnType]  # every event of a story is one of the union


def write_story(runs_dir: Path, run_id: str = "run-1", *, secrets: Sequence[str] = (), **options: Any) -> RunDir:
    """A story on disk, journal and record."""
    run = RunDir.create(runs_dir, run_id)
    journal = run.journal(secrets)
    recorder = Recorder(TickingClock(), journal)
    story(Teller(recorder), run_id, **options)
    finish(run, recorder)
    journal.close()
    return run


def write_long_story(runs_dir: Path, events: int, run_id: str = "run-long") -> RunDir:
    run = RunDir.create(runs_dir, run_id)
    journal = run.journal()
    recorder = Recorder(TickingClock(0.01), journal)
    long_story(Teller(recorder), events, run_id)
    finish(run, recorder)
    journal.close()
    return run


def finish(run: RunDir, recorder: Recorder) -> None:
    record = recorder.fold.record()
    run.write_record(record)
    run.write_result(record.state.artifacts.final_output)
