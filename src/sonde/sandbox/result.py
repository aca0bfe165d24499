"""From what a worker said, or failed to say, to the `ExecResult` of a turn."""

from __future__ import annotations

from sonde.sandbox.base import ExecFault, ExecResult, FaultKind, Final, Variable
from sonde.sandbox.frames import FaultReport, Stream
from sonde.sandbox.output import NOTHING, Captured, cut_output
from sonde.sandbox.prepare import Prepared
from sonde.sandbox.turn import Outcome
from sonde.sandbox.worker.report import MESSAGE_CHARS, SHOWN_VARIABLES, TOLD_NAMES

NAME_CHARS = 200
SHOWN_REBOUND = 20
TOLD: dict[str, FaultKind] = {"error": "error", "syntax": "syntax", "import": "import", "memory": "memory"}
"""Kinds that a worker may report of itself. That a turn was stopped or lost, or broke a rule, is for us to say."""


def finished(outcome: Outcome, prepared: Prepared, *, turn: int, layers: tuple[str, ...], limit: int) -> ExecResult:
    """The result of a turn that reported. Lengths and kinds are the worker's word, so they are bounded here."""
    report = outcome.report
    assert report is not None
    out, err = _captured(report.out), _captured(report.err)
    stdout, stderr = cut_output(out, err, limit)
    rebound = tuple(
        f"the code assigned to {name[:NAME_CHARS]!r}, which is a function of the host; it was restored"
        for name in report.rebound[:SHOWN_REBOUND]
    )
    return ExecResult(
        ok=report.fault is None,
        turn=turn,
        stdout=stdout,
        stderr=stderr,
        fault=_fault(report.fault),
        final=Final(outcome.final[0]) if outcome.final is not None else None,
        variables=tuple(
            Variable(name[:NAME_CHARS], kind[:NAME_CHARS], size if size >= 0 else None)
            for name, kind, size in report.variables[:SHOWN_VARIABLES]
        ),
        usage=outcome.usage,
        layers=layers,
        output_chars=out.total + err.total,
        warnings=prepared.warnings + rebound,
    )


def stopped(
    fault: ExecFault,
    outcome: Outcome,
    printed: tuple[Captured, Captured],
    prepared: Prepared,
    *,
    turn: int,
    layers: tuple[str, ...],
    limit: int,
) -> ExecResult:
    """The result of a turn that was ended from outside, with what is known of its output. A violation shows no output."""
    out, err = (NOTHING, NOTHING) if fault.kind == "violation" else printed
    stdout, stderr = cut_output(out, err, limit)
    return ExecResult(
        ok=False,
        turn=turn,
        stdout=stdout,
        stderr=stderr,
        fault=fault,
        usage=outcome.usage,
        layers=layers,
        output_chars=out.total + err.total,
        warnings=prepared.warnings,
    )


def names_told(outcome: Outcome) -> frozenset[str]:
    """The names that the turn bound, as the worker says: a bounded part of its word."""
    assert outcome.report is not None
    return frozenset(name[:NAME_CHARS] for name in outcome.report.names[:TOLD_NAMES])


def _captured(stream: Stream) -> Captured:
    return Captured(stream.head, stream.tail, max(stream.total, 0))


def _fault(report: FaultReport | None) -> ExecFault | None:
    if report is None:
        return None
    message = report.message[:MESSAGE_CHARS]
    return ExecFault(
        kind=TOLD.get(report.kind, "error"),
        message=message,
        line=report.line if report.line is None or report.line > 0 else None,
        hint=report.hint and report.hint[:MESSAGE_CHARS],
        traceback=report.traceback[-2 * MESSAGE_CHARS :]
        or message,  # a memory fault without one would be of a lost turn
    )
