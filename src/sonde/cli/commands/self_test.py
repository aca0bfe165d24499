"""`sonde self-test`: does this installation work? A sandbox, a run with a scripted model and its replay, all for real.

It needs no key, no network and no checkout, writes only to a temporary folder, and takes a second or two.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from sonde.cli.options import settings_of, spread
from sonde.cli.text import escaped_json, indented, printable_lines
from sonde.core.canonical import plural
from sonde.errors import SondeError, how_to_install

LOG = """\
09:00 web started
09:01 payments: connection refused by ledger
09:02 web answered 500
"""
REPLIES = (
    "for hit in grep('refused'):\n    print(hit)",
    "FINAL('ledger refused the connection of payments [app.log:2-2]')",
)


@dataclass(slots=True, kw_only=True)
class SelfCheck:
    """One thing that was tried; `todo` says what helps if it failed."""

    name: str
    ok: bool = True
    detail: str = ""
    todo: str = ""
    seconds: float = 0.0


class CheckFailed(Exception):
    """A check failed; those that build on it are not tried."""


@dataclass(frozen=True, slots=True)
class SelfTest:
    """The checks so far, each shown as soon as it is done unless `silent`."""

    silent: bool
    checks: list[SelfCheck] = field(default_factory=list[SelfCheck])

    @contextlib.contextmanager
    def trying(self, name: str, todo: str) -> Generator[SelfCheck]:
        check = SelfCheck(name=name, todo=todo)
        self.checks.append(check)
        started = time.monotonic()
        try:
            yield check
        except (SondeError, OSError, AssertionError) as error:
            check.ok, check.detail = False, str(error)
        check.seconds = round(time.monotonic() - started, 2)
        if not self.silent:
            detail = indented(printable_lines(check.detail))
            print(f"  {'ok ' if check.ok else 'NO '} {name}{f': {detail}' if detail else ''}")
        if not check.ok:
            raise CheckFailed


def register(app: typer.Typer) -> None:
    app.command("self-test")(spread(self_test))


def self_test(
    *,
    backend: Annotated[
        str | None, typer.Option(metavar="kernel|monty", help="What runs the code; as `sonde config` says by default.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> int:
    """Try this installation: the sandbox, a run with a scripted model, and its replay to the bit.

    Needs no key and no network, and writes only to a temporary folder.
    Exit code 1 if something does not work; it says what to do.
    """
    from importlib.metadata import version

    test, number, ok = SelfTest(silent=json), version("sonde-rlm"), False
    if not json:
        print(f"sonde {number} in {Path(__file__).parents[2]}, Python {sys.version.split()[0]}")
    with contextlib.suppress(CheckFailed), contextlib.ExitStack() as cleanup:
        _try_all(test, backend, cleanup)
        ok = True
    if json:
        from sonde.runs.rundir import pretty_json

        found = {"ok": ok, "version": number, "checks": [asdict(check) for check in test.checks]}
        sys.stdout.write(escaped_json(pretty_json(found).decode()))
    else:
        last = test.checks[-1]
        print("everything works" if ok else f"{last.name} failed, and nothing after it was tried. {last.todo}")
    return 0 if ok else 1


def _try_all(test: SelfTest, backend: str | None, cleanup: contextlib.ExitStack) -> None:
    """One check after the other; the first that fails is the last."""
    from sonde.api.rerun import replay
    from sonde.api.settings import Settings
    from sonde.cli.commands.doctor import mixed_up
    from sonde.sandbox.doctor import examine, examine_portable
    from sonde.testing import ScriptedModel, ask

    with test.trying("installation", "Type the two commands of the message."):
        assert (other := mixed_up()) is None, other
    with test.trying("settings", "Mend what the message names; `sonde config` shows every setting.") as check:
        chosen = settings_of(backend=backend).backend
        check.detail = f"backend {chosen}"
    with test.trying("temporary folder", "Set TMPDIR to a folder that you may write to.") as check:
        place = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="sonde-self-test-")))
        check.detail = str(place.parent)
    own = Settings(backend=chosen, runs_dir=place / "runs", environ={"HOME": str(place)})
    todo = "`sonde doctor` shows every layer. Where the kernel lacks one there is --backend monty, a weaker boundary."
    with test.trying("sandbox", todo) as check:
        if own.backend == "kernel":
            found = examine()
            assert found.safe, found.problem
            check.detail = ", ".join(found.layers)
        else:
            check.todo = f"Install the extra monty: {how_to_install('monty')}"
            portable = examine_portable()
            assert portable.works, portable.problem
            check.detail = ", ".join(portable.layers)
    report = "Try it again; if it stays, report it with the output of `sonde doctor`."
    with test.trying("run", report) as check:
        (place / "logs").mkdir()
        (place / "logs" / "app.log").write_text(LOG)
        model = ScriptedModel([f"```python\n{code}\n```" for code in REPLIES])
        answer = ask("Who refused the connection?", place / "logs", model=model, settings=own)
        assert answer.status.value == "succeeded", f"it ended {answer.status.value}: {'; '.join(answer.gaps)}"
        check.detail = f"2 turns of a scripted model, {plural(len(answer.citations), 'citation')} proved"
        assert len(answer.citations) == 1, check.detail
    with test.trying("replay", report) as check:
        again = replay(answer.run_dir or "last", settings=own, trust_run=True)
        replies = plural(again.replies, "reply", "replies")
        assert again.equal, f"{plural(len(again.differences), 'difference')}, the first at {again.differences[:1]}"
        check.detail = f"{replies} and {plural(again.host_calls, 'host call')}, every hash is the same"
