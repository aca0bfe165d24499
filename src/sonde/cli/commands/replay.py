"""`sonde replay`: run everything again against the recording and check every hash."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from sonde.cli.options import (
    AllowedAgain,
    BudgetOptions,
    GivenAgain,
    OutputOptions,
    PlaceOptions,
    RunName,
    settings_of,
    spread,
)
from sonde.cli.text import escaped_json, printable, some_lines
from sonde.core.canonical import plural

SHOWN_NAMES = 10


def register(app: typer.Typer) -> None:
    app.command()(spread(replay))


def replay(
    run: RunName,
    *,
    words_only: Annotated[
        bool, typer.Option("--words-only", help="Feed the replies by position even if prompts have changed.")
    ] = False,
    context: GivenAgain = None,
    allowed: AllowedAgain,
    budget: BudgetOptions,
    place: PlaceOptions,
    output: OutputOptions,
) -> int:
    """Run a recording again and check every hash.

    No model is asked.
    Exit code 1 at the first difference; --words-only lists the differences and goes on.
    """
    from sonde.api import rerun
    from sonde.cli.inputs import one_source
    from sonde.cli.interrupt import soft_stop
    from sonde.cli.live import open_view

    settings = settings_of(budget, place, backend=allowed.backend)
    silent = output.json or output.quiet
    with soft_stop("sonde: stopping (Ctrl-C again kills)\n") as cancel, open_view(sys.stderr, silent=silent) as view:
        found = rerun.replay(
            run,
            words_only=words_only,
            context=one_source(context),
            on_event=view.on_event,
            cancel=cancel,
            settings=settings,
            limits=allowed.limits(),
            trust_run=allowed.trust_run,
            without=allowed.without,
        )
    if cancel.is_set():  # the rest was not compared
        return cancel.exit_code(1)
    code = 0 if found.equal or words_only else 1
    if output.json:
        from sonde.runs.rundir import pretty_json

        shown = {
            "run_id": found.run_id,
            "equal": found.equal,
            "replies": found.replies,
            "host_calls": found.host_calls,
            "differences": [asdict(difference) for difference in found.differences],
            "changed": list(found.changed),
            "status": found.record.status.value if found.record else None,
        }
        sys.stdout.write(escaped_json(pretty_json(shown).decode()))
        return code
    proved = f"{plural(found.replies, 'model reply', 'model replies')} and {plural(found.host_calls, 'host call')}"
    print(f"{printable(found.run_id)}: {'every hash is the same' if found.equal else 'different'} ({proved})")
    for name in found.changed[:SHOWN_NAMES]:
        print(f"{printable(name)} has changed since the run; a replay needs it as it was")
    if len(found.changed) > SHOWN_NAMES:
        print(f"and {plural(len(found.changed) - SHOWN_NAMES, 'more file')} that the run read")
    for difference in found.differences:
        print(f"\n{printable(difference.where)}")
        for name, side in (("recorded", difference.recorded), ("now", difference.now)):
            print("\n".join(f"  {name:8} {line}" for line in some_lines(str(side), 12)))
    return code
