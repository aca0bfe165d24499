"""Code of the three engines that reaches outside: a file, a socket or a process ends the run, a blocked import does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from trace_cases import IO, LOOK, SPAN, TRACE, failed_trace, model, options, write

import sonde
from sonde.testing import ScriptedModel

OPEN = "open('/etc/hostname')"
SWALLOWED = f"try:\n    {OPEN}\nexcept Exception:\n    print('nobody saw that')"
INDIRECT = "import functools\nprint(list(map(functools.partial(eval('open'), mode='w'), ['notes.txt'])))"
WALKED = (
    "wrap = [c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '_wrap_close'][0]\n"
    "wrap.__init__.__globals__['listdir']('/')"
)
DONE = (
    f"SUBMIT(primary_label='tool_failure', summary='the tool timed out', confidence=0.4, evidence_refs=[{SPAN}, {IO}])"
)

Engine = Callable[[Path, ScriptedModel], sonde.Investigation]
ENGINES: dict[str, Engine] = {
    "rca": lambda source, scripted: sonde.rca(TRACE, source, **options(scripted)),
    "compliance": lambda source, scripted: sonde.comply(TRACE, source, **options(scripted)),
    "incident": lambda source, scripted: sonde.incident(source, project="shop", **options(scripted)),
}


@pytest.mark.parametrize("name", ENGINES)
def test_code_that_opens_a_file_ends_the_run_of_each_engine(name: str, tmp_path: Path) -> None:
    found = ENGINES[name](write(tmp_path, failed_trace()), model(SWALLOWED, LOOK, DONE))

    assert (found.status, found.report) == ("failed", None)
    assert found.record.error is not None and found.record.error.code == "SANDBOX_VIOLATION"


@pytest.mark.parametrize("code", [OPEN, INDIRECT, WALKED, f"exec({OPEN!r})"])
def test_no_way_to_a_file_is_forgiven(code: str, tmp_path: Path) -> None:
    found = ENGINES["rca"](write(tmp_path, failed_trace()), model(code, LOOK, DONE))

    assert found.record.error is not None and found.record.error.code == "SANDBOX_VIOLATION"


def test_a_blocked_import_and_lazy_imports_of_allowed_modules_are_forgiven(tmp_path: Path) -> None:
    lazy = (
        "import datetime, re, json\ndatetime.datetime.strptime('2026', '%Y')\n'x'.encode('cp500')\nre.compile('[[a]')"
    )
    scripted = model("import os\nos.listdir('/')", "import socket", lazy, LOOK, DONE)

    found = ENGINES["rca"](write(tmp_path, failed_trace()), scripted)

    assert (found.status, found.report is not None) == ("succeeded", True), found.record.error


@pytest.mark.parametrize(("refused", "status"), [(1, "succeeded"), (2, "failed")])
def test_what_the_gate_refuses_goes_back_to_the_model_once(refused: int, status: str, tmp_path: Path) -> None:
    scripted = model(*[OPEN] * refused, LOOK, DONE)

    found = sonde.rca(TRACE, write(tmp_path, failed_trace()), **options(scripted, profile="strict"))

    assert found.status == status
    if status == "failed":
        assert found.record.error is not None and found.record.error.code == "SANDBOX_VIOLATION"


def test_ask_hands_the_refusal_to_the_code(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    scripted = ScriptedModel([f"try:\n    {OPEN}\nexcept OSError:\n    FINAL('refused')"])

    answer = sonde.ask("?", tmp_path / "a.txt", model=scripted, citations=False, in_memory=True)

    assert answer.text == "refused"
