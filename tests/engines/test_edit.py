"""The edit engine on the demo workspace, with a scripted model."""

from __future__ import annotations

from pathlib import Path

import pytest

from sonde.api.edit_run import edit
from sonde.api.result import Edited
from sonde.api.settings import Settings
from sonde.contexts.workspace import LocalWorkspace, Policy, accept
from sonde.core.events import Event, HostReturned, ModelReplied, SubcallStarted
from sonde.core.status import RunStatus
from sonde.engines.edit import PROTOCOL_BUDGET
from sonde.models.base import estimate_tokens
from sonde.testing import ScriptedModel

SAMPLE = "export function trim(text: string): string {\n  return text.trim();\n}\n"
PATCH = '''apply_patch("""*** Begin Patch
*** Update File: sample.ts
@@
 export function trim(text: string): string {
   return text.trim();
 }
+
+export function normalizeWhitespace(text: string): string {
+  return text.replace(/\\\\s+/g, " ").trim();
+}
*** End Patch""")'''
STEPS = [
    'print(read_file("sample.ts")["content"])',
    'plan = llm_query("Plan: add normalizeWhitespace")\nprint(plan)',
    "add it after trim",
    PATCH,
    'print(read_file("sample.ts")["content"])',
    'FINAL("Added normalizeWhitespace. [sample.ts:5-7]")',
]


def run(tmp_path: Path, script: list[str], events: list[Event] | None = None, **options: object) -> Edited:
    (tmp_path / "sample.ts").write_text(SAMPLE)
    return edit(
        "Add a function that normalizes whitespace",
        tmp_path,
        approve=accept,
        model=ScriptedModel(script),
        settings=Settings(),
        in_memory=True,
        on_event=(events if events is not None else []).append,
        **options,  # pyright: ignore[reportArgumentType]  # a few knobs
    )


@pytest.mark.requirement(67)
@pytest.mark.requirement(68)
@pytest.mark.requirement(71)
def test_the_demo_task_fits_the_budget_of_the_document_and_is_cited(tmp_path: Path) -> None:
    events: list[Event] = []
    done = run(tmp_path, STEPS, events, budget=PROTOCOL_BUDGET)

    assert done.status is RunStatus.SUCCEEDED
    assert "normalizeWhitespace" in (tmp_path / "sample.ts").read_text()
    assert [(c.path, c.start_line, c.end_line) for c in done.citations] == [("sample.ts", 5, 7)]
    assert [e.name for e in events if isinstance(e, HostReturned)] == [
        "read_file",
        "llm_query",
        "apply_patch",
        "read_file",
    ]
    assert any(isinstance(e, SubcallStarted) for e in events)
    assert done.record.runtime_ref.usage.tokens_in + done.record.runtime_ref.usage.tokens_out <= 6000


@pytest.mark.requirement(68)
def test_the_prompt_is_at_most_700_tokens(tmp_path: Path) -> None:
    model = ScriptedModel(STEPS)
    (tmp_path / "sample.ts").write_text(SAMPLE)
    edit("task", tmp_path, model=model, settings=Settings(), in_memory=True)

    assert estimate_tokens(model.requests[0].messages[0].content) <= 700


def test_the_prompt_shows_allowed_commands_whole(tmp_path: Path) -> None:
    model, allowed = ScriptedModel(STEPS), ("./.venv/bin/python -m pytest -q tests/test_basic.py", "ruff check . --fix")
    (tmp_path / "sample.ts").write_text(SAMPLE)
    edit("task", tmp_path, model=model, settings=Settings(), in_memory=True, commands=[f"={allowed[0]}", allowed[1]])

    assert all(repr(command) in model.requests[0].messages[0].content for command in allowed)


@pytest.mark.requirement(67)
def test_a_changed_file_must_be_read_again_before_it_is_finished(tmp_path: Path) -> None:
    script = [*STEPS[:4], 'FINAL("done [sample.ts:1-3]")', STEPS[4], STEPS[5]]
    done = run(tmp_path, script, max_tokens_total=20_000)

    assert done.status is RunStatus.SUCCEEDED
    assert done.record.runtime_ref.usage.iterations == 6


def test_a_change_that_nobody_approves_leaves_the_file_alone_and_the_reason_reaches_the_model(tmp_path: Path) -> None:
    (tmp_path / "sample.ts").write_text(SAMPLE)
    model = ScriptedModel([STEPS[0], f"print({PATCH})", 'FINAL("The user said no. [sample.ts:1-3]")'])
    done = edit("task", tmp_path, model=model, settings=Settings(), in_memory=True)

    assert (tmp_path / "sample.ts").read_text() == SAMPLE
    assert done.changed == ()
    assert "not approved: there is nobody to ask" in model.requests[-1].messages[-1].content


@pytest.mark.requirement(69)
def test_a_long_read_without_a_reason_is_refused_with_an_example(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("line\n" * 300)
    model = ScriptedModel(['read_file("long.txt")', 'FINAL("no")', 'FINAL("no")'])
    edit("task", tmp_path, model=model, settings=Settings(), in_memory=True)

    assert "rationale=" in model.requests[1].messages[-1].content


def test_a_patch_that_was_applied_before_its_block_failed_is_told(tmp_path: Path) -> None:
    (tmp_path / "sample.ts").write_text(SAMPLE)
    model = ScriptedModel([f"{PATCH}\nprint(done)", 'FINAL("no")', 'FINAL("no")'])
    edit("task", tmp_path, approve=accept, model=model, settings=Settings(), in_memory=True)

    told = model.requests[1].messages[-1].content
    assert told.startswith("failed, but this was done before and stays: sample.ts: updated +4 -0\nerror (line 12)")


def test_lines_are_numbered_on_request_as_in_ask(tmp_path: Path) -> None:
    (tmp_path / "sample.ts").write_text(SAMPLE)
    looks = 'print(read_file("sample.ts", 2, 3, numbered=True)["content"])'
    model = ScriptedModel([looks, 'FINAL("It trims. [sample.ts:2]")'])
    done = edit("task", tmp_path, model=model, settings=Settings(), in_memory=True)

    assert "\n2:   return text.trim();\n3: }\n" in model.requests[1].messages[-1].content
    assert [(cited.path, cited.start_line) for cited in done.citations] == [("sample.ts", 2)]


def test_warnings_of_a_locale_that_is_not_installed_are_left_off(tmp_path: Path) -> None:
    warning = "bash: warning: setlocale: LC_ALL: cannot change locale (xx_YY.UTF-8)"
    (tmp_path / "noisy").write_text(
        f"#!/bin/sh\necho '{warning}' >&2; echo '{warning}: No such file' >&2; echo wrong >&2\n"
    )
    (tmp_path / "noisy").chmod(0o755)
    events: list[Event] = []

    run(tmp_path, ['execute_command("./noisy")', "FINAL('x')", "FINAL('x')"], events, commands=["./noisy"])

    ran = next(event.result for event in events if isinstance(event, HostReturned))
    assert ran["stderr"].splitlines() == ["wrong"]


def test_a_sub_call_may_not_pass_its_own_token_limit(tmp_path: Path) -> None:
    events: list[Event] = []
    run(tmp_path, ['llm_query("x" * 5000)', 'FINAL("no")', 'FINAL("no")'], events, budget=PROTOCOL_BUDGET)

    assert not [e for e in events if isinstance(e, ModelReplied) and e.session != "root"]


def test_allowed_commands_find_the_callers_programs_and_see_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "lint-it").write_text("#!/bin/sh\necho linted; env\n")
    (programs / "lint-it").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("SOME_API_KEY", "not-for-commands")
    events: list[Event] = []

    run(tmp_path, ['print(execute_command("lint-it"))', "FINAL('x')", "FINAL('x')"], events, commands=["lint-it"])

    shown = next(str(event.result) for event in events if isinstance(event, HostReturned))
    assert "linted" in shown
    assert "not-for-commands" not in shown


def test_a_command_that_was_stopped_counts_as_failed(tmp_path: Path) -> None:
    (tmp_path / "sample.ts").write_text(SAMPLE)
    command = "sleep 600"
    workspace = LocalWorkspace(tmp_path, policy=Policy(commands=(f"={command}",), command_timeout_s=0.1))
    final = 'FINAL("It was too slow. [sample.ts:1-3]")'
    model = ScriptedModel([STEPS[0], f"execute_command({command!r})", final, final])

    done = edit("Check it", workspace, model=model, commands=[f"={command}"], settings=Settings(), in_memory=True)

    assert (done.status, dict(done.ran)) == (RunStatus.PARTIAL, {command: None})
    assert done.gaps == (f"the last run of `{command}` was stopped",)
