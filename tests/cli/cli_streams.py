"""Event streams of made-up runs, for the tests of the views."""

from __future__ import annotations

from sonde.core import events
from sonde.core.budget import Budget
from sonde.core.events import Event


def started(**changes: object) -> events.RunStarted:
    fields: dict[str, object] = {
        "run_id": "r1",
        "run_type": "ask",
        "objective": "Which service failed first?",
        "engine_version": "0",
        "model": "scripted",
        "sub_model": None,
        "provider": "scripted",
        "temperature": 0.0,
        "prompt_template_hash": "",
        "mode": "code",
        "profile": "analysis",
        "budget": Budget(max_iterations=10, max_tokens_total=1000, max_cost_usd=0.5).as_dict(),
        "seed": 0,
        "input_ref": {},
        "dataset_ref": {},
    }
    return events.RunStarted(**(fields | changes))  # type: ignore[arg-type]  # a table of fields


def replied(turn: int, session: str = events.ROOT, text: str = "…") -> events.ModelReplied:
    return events.ModelReplied(
        session=session,
        turn=turn,
        ordinal=0,
        request_hash="",
        text=text,
        model="scripted",
        tokens_in=80,
        tokens_out=20,
        cost_usd=0.01,
    )


def turn(number: int, code: str, output: str, session: str = events.ROOT) -> list[Event]:
    return [
        events.TurnStarted(session=session, turn=number, elapsed_s=0.0),
        replied(number, session),
        events.CodeStarted(session=session, turn=number, block=0, code=code),
        events.CodeRan(session=session, turn=number, block=0, ok=True, stdout=output),
    ]


def subcall(session: str, objective: str) -> list[Event]:
    """A child that does one turn and succeeds."""
    return [
        events.SubcallStarted(
            session=session,
            call_id=session,
            parent_call_id="root",
            depth=1,
            objective=objective,
            input_ref_hash="",
            mode="rlm",
        ),
        *turn(1, "print(1)", "1", session),
        events.SubcallEnded(session=session, call_id=session, status="succeeded", summary="it is 1"),
    ]


def whole_run() -> list[Event]:
    return [
        started(),
        *turn(1, "hits = grep('ERROR')\nprint(len(hits))", "12"),
        *subcall("root/1.1", "look at payments"),
        events.ModelFailed(
            turn=2, ordinal=0, attempt=1, request_hash="", message="429 from the server", retryable=True, wait_s=1.5
        ),
        events.Noted(text="no price is known for scripted", level="warning"),
        *turn(2, "FINAL('payments')", ""),
        events.GateChecked(turn=2, gate="citations", ok=False, reason="the answer cites nothing"),
        events.RunEnded(status="succeeded"),
    ]
