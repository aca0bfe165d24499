"""Runs from the command line: model line, live view, Ctrl-C, answer or report, exit code. Shared by every command that starts a run.

The answer or report goes to stdout; the model line, progress, notes and errors go to stderr. With --json, one object goes to stdout and
nothing to stderr; several reports are one object per line.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event as Flag
from typing import TYPE_CHECKING, TypedDict

from sonde.api.consent import is_own
from sonde.api.keys import KEYS
from sonde.cli.interrupt import soft_stop
from sonde.cli.live import OnText, View, open_view
from sonde.cli.options import EndOptions, OutputOptions
from sonde.cli.text import escaped_json, link, links_shown, one_line, printable, printable_lines
from sonde.core.canonical import plural, shown_cost
from sonde.core.events import Event
from sonde.core.markdown_safety import quoted_headings, unescaped
from sonde.errors import BudgetExceeded, Cancelled, UsageError
from sonde.runs.rundir import RunDir

if TYPE_CHECKING:
    from sonde import Investigation, Result
    from sonde.api.estimate import Estimate
    from sonde.api.settings import Settings
    from sonde.core.budget import Budget
    from sonde.core.evidence import Citation


FEW_TURNS = 5.0  # hardly a question takes fewer


class RunHooks(TypedDict):
    """What the terminal gives a run: where its events and text go, and how it is stopped."""

    on_event: Callable[[Event], None]
    on_text: OnText | None
    cancel: Flag


def run_with_view(
    output: EndOptions,
    settings: Settings,
    start: Callable[[RunHooks], Result],
    *,
    roots: Sequence[Path] = (),
    model_line: str | None = None,
    way_on: Callable[[Result], None] | None = None,
) -> int:
    """Start a run, show it live, print its answer and, after a limit, the `way_on`; the exit code."""
    silent = output.json or output.quiet
    if not silent:
        print_model_line(settings, model_line)
    with soft_stop() as cancel, open_view(sys.stderr, silent=silent) as view:
        answer = start(hooks_of(view, cancel))
    print_answer(answer, output, roots)
    if way_on is not None and not silent:
        way_on(answer)
    return cancel.exit_code(output.exit_code([answer.status]))


def investigate_each(
    output: EndOptions, settings: Settings, starts: Sequence[Callable[[RunHooks], Investigation]]
) -> int:
    """Run investigations one after the other and print each report when it is there; the worst exit code.

    A refused one does not keep the others from running.
    """
    silent = output.json or output.quiet
    if not silent:
        print_model_line(settings)
    found: list[Investigation] = []
    refused: list[str] = []
    with soft_stop() as cancel:
        for start in starts:
            try:
                with open_view(sys.stderr, silent=silent) as view:
                    found.append(start(hooks_of(view, cancel)))
                _print_report(found[-1], output, several=len(starts) > 1, first=len(found) == 1)
            except UsageError as error:
                refused.append(error.message)
            if cancel.is_set():
                break
    if refused:
        raise UsageError("; ".join(dict.fromkeys(refused)))
    verdicts = [each.report.get("overall_verdict") for each in found if each.report]
    return cancel.exit_code(output.exit_code([each.status for each in found], verdicts))


def print_model_line(settings: Settings, line: str | None = None) -> None:
    """Say on stderr which model will be used (if none: which of this machine could be), and what is odd about the settings."""
    if line is None and settings.model is None and "model" not in settings.sources:
        from sonde.models.loopback import find_servers, ports_of

        found = find_servers(ports_of(settings.local_ports))
        line = f"model: none, but {found[0].name} answers on this machine: add {found[0].flags}" if found else None
    for each in (line or settings.model_line(), *(f"note: {note}" for note in settings.notes)):
        print(printable(each), file=sys.stderr)


def print_estimate(
    estimates: Sequence[Estimate],
    settings: Settings,
    budget: Budget,
    *,
    as_json: bool,
    runs: int | None = None,
    names: Sequence[str] = (),
) -> int:
    """What so many runs would read and cost, from estimates of them or of some of them, which have names; the exit code."""
    count = len(estimates) if runs is None else runs
    scale = count / len(estimates)
    low, high = (int(scale * sum(each.tokens[end] for each in estimates)) for end in (0, 1))
    costs = [each.cost_usd for each in estimates if each.cost_usd is not None]
    cost = (
        [round(scale * sum(each[end] for each in costs), 6) for end in (0, 1)] if len(costs) == len(estimates) else None
    )
    first = estimates[0]
    if as_json:
        shown = {
            "reads": [each.reads for each in estimates],
            "model": settings.model,
            "runs": count,
            "first_prompt_tokens": [each.first_prompt for each in estimates],
            "typical_tokens": [low, high],
            "typical_cost_usd": cost,
            **({} if first.masked is None else {"masked": [each.masked for each in estimates]}),
        }
        print(escaped_json(json.dumps(shown, ensure_ascii=False, sort_keys=True)))
        return 0
    if runs is not None:
        looked_at = f"; the figures below come from {len(estimates)} of them" if scale > 1 else ""
        print(f"would run     {plural(count, 'item')}{looked_at}")
    for reads in dict.fromkeys(each.reads for each in estimates):
        alike = [name for name, each in zip(names, estimates, strict=False) if each.reads == reads]
        whose = f" ({one_line(', '.join(alike), 100)})" if alike else ""
        print(f"would read    {one_line(reads, 400)}{whose}")
    if first.masked is not None:
        kinds = sorted({kind for each in estimates for kind in each.masked or ()})
        found = [f"{kind} {sum((each.masked or {}).get(kind, 0) for each in estimates):,}" for kind in kinds]
        print(f"would mask    {', '.join(found) or 'nothing: no value was found'}")
    if settings.model is None:
        print("would cost    nothing: no model is set, so only passages or rules would be shown")
        return 0
    print(f"first prompt  about {plural(first.first_prompt, 'token')} for {printable(settings.model)}")
    unknown = "cost unknown: no price is known for this model"
    if count == 1:
        money = f"${cost[0]:.4f} to ${cost[1]:.4f}" if cost else unknown
        print(f"typical       {first.turns[0]} to {first.turns[1]} turns: {low:,} to {high:,} tokens, {money}")
    else:  # hardly ever do all take the most turns
        little, much = (f", ${each:.4f}" for each in cost) if cost else (f"; {unknown}", "")
        print(f"typical       {first.turns[0]} turns in each of {count:,} runs: {low:,} tokens{little}")
        print(f"if all go on  {first.turns[1]} turns in each: {high:,} tokens{much}")
    capped = "" if budget.max_cost_usd is None else f", ${budget.max_cost_usd:g} if the price is known"
    most = f"{plural(budget.max_iterations, 'turn')}, {plural(budget.max_tokens_total, 'token')}"
    print(f"at most       {most}{capped}{'' if count == 1 else ' in each run'}")
    print("no model was called")
    return 0


def hooks_of(view: View, cancel: Flag) -> RunHooks:
    """The keywords with which a run reports to this view."""
    return {"on_event": view.on_event, "on_text": view.on_text, "cancel": cancel}


def print_answer(answer: Result, output: OutputOptions, roots: Sequence[Path] = ()) -> None:
    """The text with its citations and gaps, or one object with --json. A line of the text that reads like our own heading is quoted,
    unless the text stands alone.

    Of an edit also what it wrote and how its commands ended.
    """
    from sonde.api.result import Edited, ran_lines

    edited = answer if isinstance(answer, Edited) else None
    if output.json:
        from sonde.runs.rundir import pretty_json

        record = answer.record
        shown = {
            "answer": answer.text,
            "value": answer.value,
            "citations": [citation.model_dump(mode="json") for citation in answer.citations],
            "gaps": list(answer.gaps),
            **({"unproved": True} if record.runtime_ref.unproved else {}),
            "status": str(answer.status),
            "annotator_kind": answer.annotator_kind,
            "usage": {**record.runtime_ref.usage.model_dump(mode="json"), "cost_usd": record.runtime_ref.cost},
            "model": record.runtime_ref.model_name,
            "error": record.error.model_dump(mode="json") if record.error else None,
            "run_id": record.run_id,
            "run_dir": str(answer.run_dir) if answer.run_dir else None,
        }
        if edited is not None:
            shown["changed"] = list(edited.changed)
            shown["changed_by_commands"] = list(edited.changed_by_commands)
            shown["ran"] = [{"command": line, "exit_code": code} for line, code in edited.ran.items()]
        sys.stdout.write(escaped_json(pretty_json(shown).decode()))
        return
    text = printable_lines(answer.text)
    if text and edited is not None:
        from sonde.engines.edit import NOT_APPLIED

        if any(gap.startswith(NOT_APPLIED) for gap in answer.gaps):
            text = f"Proposed, not written: {text}"
    lines = (text if output.quiet else quoted_headings(text)).rstrip("\n").split("\n")
    rows: list[str] = []
    linked = links_shown(sys.stdout)
    for number, citation in enumerate(answer.citations, 1):
        quoted = f"[{number}] {citation.heading}"
        place = _place(citation, roots, linked=linked)
        if quoted in lines:  # without a model, the text shows the lines themselves
            lines[lines.index(quoted)] = f"[{number}] {place}"
        else:
            rows.append(f"  [{number}] {place}  {one_line(citation.snippet, 100)}".rstrip())
    parts = ["\n".join(lines)] if text else []
    if rows and not output.quiet:
        parts.append("\n".join(["Citations:", *rows]))
    error = answer.record.error
    said = error.message if error is not None and answer.status == "failed" else None  # stderr says it
    gaps = [gap for gap in answer.gaps if gap != said]
    if gaps and not output.quiet:
        parts.append("\n".join(["Gaps:", *(f"  - {one_line(gap, 300)}" for gap in gaps)]))
    sys.stdout.write("\n\n".join(parts) + "\n" if parts else "")
    sys.stdout.flush()
    _print_error(answer, output)
    if not output.quiet:
        if edited is not None:
            print(printable(f"changed: {', '.join(edited.changed) or 'nothing'}"), file=sys.stderr)
            if edited.changed_by_commands:
                print(f"changed by commands: {one_line(', '.join(edited.changed_by_commands), 1000)}", file=sys.stderr)
            for line in ran_lines(edited.ran):
                print(f"ran: {one_line(line, 300)}", file=sys.stderr)
        print(_summary(answer), file=sys.stderr)
        if edited is not None and edited.run_dir is not None:
            from sonde.api.edit_run import undo_command
            from sonde.contexts.workspace.history import UNDO

            if (edited.run_dir / UNDO).exists():
                back = undo_command(RunDir(edited.run_dir), roots[0] if roots else None)
                print(printable(f"to take it back: {back}"), file=sys.stderr)


def warn_of_stranger(run: RunDir, settings: Settings) -> None:
    """Say so where a run that is shown or continued was not made by this user on this machine."""
    if not is_own(run, settings.environ):
        said = "this run does not have your seal: whoever made it wrote what it says of its proofs"
        print(f"sonde: {said}", file=sys.stderr)


def print_way_on(ended: Result, words: Sequence[str], budget: Budget, maxima: Budget | None = None) -> None:
    """After a stop or a limit: the typed command (`words`) again, on from this run; after a limit with one that fits: twice the old
    one, or twice what the run has needed where that is more, as far as that is allowed.
    """
    error, flag, raised = ended.error, "", None
    if isinstance(error, BudgetExceeded) and error.limit in KEYS:
        usual = {"max_iterations": FEW_TURNS, "max_wall_time_sec": ended.record.metrics.total_latency_s}
        needed = max(error.needed, usual.get(error.limit, 0.0))
        flag, raised = KEYS[error.limit].option, budget.raised(error.limit, maxima, needed=needed)
    elif not isinstance(error, Cancelled):  # a limit of a sub-call, for example
        return
    at = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:at] if not word.startswith((f"{flag or '--continue'}=", "--continue="))]
    for given in filter(None, (flag, "--continue")):
        while given in kept:
            del kept[kept.index(given) : kept.index(given) + 2]
    more = ["--continue", ended.record.run_id, *([] if raised is None else [flag, str(raised)])]
    print(printable(f"to go on: {shlex.join(['sonde', *kept, *more, *words[at:]])}"), file=sys.stderr)


def _print_report(found: Investigation, output: OutputOptions, *, several: bool, first: bool) -> None:
    if output.json:
        shown = {
            "report": found.report,
            "annotator_kind": found.annotator_kind,
            "status": str(found.status),
            "run_dir": str(found.run_dir) if found.run_dir else None,
        }
        text = json.dumps(shown, ensure_ascii=False, sort_keys=True, indent=None if several else 2)
        print(escaped_json(text), flush=True)
        return
    text = printable_lines(unescaped(found.text) if sys.stdout.isatty() else found.text)
    print(("" if first else "\n") + (text.rstrip("\n") or "no report"), flush=True)
    _print_error(found, output)
    if not output.quiet:
        for gap in found.gaps:
            if gap not in (found.report or {}).get("gaps", ()) and found.status != "failed":
                print(f"gap: {one_line(gap, 300)}", file=sys.stderr)
        controls = (found.report or {}).get("controls_evaluated", ())
        people = sum(each["annotator_kind"] == "HUMAN" for each in controls)
        by_people = (
            f"{'' if found.annotator_kind == 'HUMAN' else ' and a person'} ({plural(people, 'verdict')})"
            if people
            else ""
        )
        print(f"judged by {found.annotator_kind}{by_people} · {_summary(found)}", file=sys.stderr)
        error = found.error
        if isinstance(error, BudgetExceeded) and error.limit in KEYS:  # sub-calls have shares of several limits
            print(f"a limit ended this run: raise it with {KEYS[error.limit].option}", file=sys.stderr)


def _place(citation: Citation, roots: Sequence[Path], *, linked: bool) -> str:
    """`path:line` or `path:line-line`; with a link where the file is found."""
    if not citation.path:
        called = citation.place if citation.ref in citation.place else f"{citation.place} [{citation.ref}]"
        return one_line(called, 300)
    shown = one_line(citation.heading, 400)
    if not linked:
        return shown
    from sonde.api.sources import cited_file  # loaded by now, where a question was asked

    target = cited_file(citation.path, roots)
    return link(shown, target, citation.start_line) if target else shown


def _print_error(answer: Result, output: OutputOptions) -> None:
    """Say on stderr what went wrong; after a partial run only if its gaps do not already say it, or are not shown."""
    error, failed = answer.record.error, answer.status == "failed"
    if output.quiet and answer.status not in ("succeeded", "failed"):
        reason = error.message if error is not None else "; ".join(answer.gaps)
        print(f"{answer.status}: {one_line(reason, 300)}".rstrip(": "), file=sys.stderr)
    if error is None:
        return
    told = error.message in answer.gaps or set(error.message.split("; ")) <= set(
        answer.gaps
    )  # several gates in one message
    if failed or not (output.quiet or told):
        print(f"sonde: {error.code}: {one_line(error.message, 600)}", file=sys.stderr)


def _summary(answer: Result) -> str:
    """One line on how the run went."""
    usage = answer.record.runtime_ref.usage
    cached = f" ({usage.cached_in:,} of them cached)" if usage.cached_in else ""
    parts = [
        str(answer.status),
        plural(usage.iterations, "turn"),
        plural(usage.llm_subcalls, "sub-call"),
        plural(usage.tokens_total, "token") + cached,
        shown_cost(answer.record.runtime_ref.cost),
    ]
    where = f" · {printable(str(answer.run_dir))}" if answer.run_dir else ""
    return " · ".join(parts) + where
