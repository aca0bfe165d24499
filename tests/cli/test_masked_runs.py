"""`mask`: no model, no journal and no file for programs sees people's data; the user does, and runs go on and replay all the same."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from cli_program import sonde as program

import sonde
from sonde.api.rerun import branch, replay, resume
from sonde.api.settings import Settings
from sonde.contexts.files import FilesContext
from sonde.contexts.workspace import accept
from sonde.core.canonical import sha256_text
from sonde.core.deadline import SystemClock
from sonde.core.status import RunStatus
from sonde.errors import ConfigError, NotInSource, ToolFault
from sonde.models.base import ModelRequest
from sonde.runs.export import export_page, export_run, unpack_run
from sonde.runs.rundir import JOURNAL, RECORD, SUMMARY, RunDir
from sonde.testing import ScriptedModel, ScriptedServer
from sonde.viewer import export_html

JANE, BOB, CARD, TOKEN, CUSTOMER = "jane.doe@corp.com", "bob@corp.com", "4111 1111 1111 1111", "k3y5ecret99", "C-991"
PRIVATE = (JANE, BOB, CARD, "4111 1", TOKEN, CUSTOMER, "jane.doe", "bob@", "bob%40")
LOG = f"""08:00 login {JANE} ok
08:01 pay with {CARD} by {JANE}
08:02 error for {BOB} token={TOKEN} customer {CUSTOMER}
08:03 GET /?user=bob%40corp.com says <email-1>
"""
LOOK = "rows = grep('<email-1>')\nprint(rows)\nprint(CONTEXT['app.log'])"
FINISH = "FINAL('It was <email-1>, who paid with <card-1>. [app.log:2]')"
PATTERNS = {"customer": r"C-\d+"}
TRACE, SPAN, DIGITS = "a" * 32, "b" * 16, CARD.replace(" ", "")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return tmp_path / "home"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "app.log").write_text(LOG)
    return tmp_path / "data"


def asked(data: Path, script: Any, question: str = "Who paid?", **options: Any) -> tuple[sonde.Answer, ScriptedModel]:
    model = script if isinstance(script, ScriptedModel) else ScriptedModel(script)
    options = {"mask": True, "mask_patterns": PATTERNS, "runs_dir": data.parent / "runs", **options}
    return sonde.ask(question, data, model=model, settings=Settings(), **options), model


def sent(requests: Sequence[ModelRequest]) -> str:
    return "\n".join(message.content for request in requests for message in request.messages)


def leaks(text: str) -> list[str]:
    return [value for value in PRIVATE if value in text]


def files_with(folder: Path) -> set[str]:
    """The files of a run that hold a real value."""
    return {path.name for path in folder.rglob("*") if path.is_file() and leaks(path.read_text("utf-8", "replace"))}


def folder_of(result: sonde.Result) -> Path:
    assert result.run_dir is not None
    return result.run_dir


def test_a_model_sees_placeholders_and_the_user_the_values(data: Path) -> None:
    answer, model = asked(data, [LOOK, FINISH])

    assert answer.status is RunStatus.SUCCEEDED
    assert answer.text == f"It was {JANE}, who paid with {CARD}. [app.log:2]"
    assert leaks(sent(model.requests)) == []
    assert "08:01 pay with <card-1> by <email-1>" in sent(model.requests)
    assert answer.text in (folder_of(answer) / "report.md").read_text()


def test_nothing_but_the_page_for_people_holds_a_value(data: Path, home: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH], f"What about {BOB}, {CUSTOMER} and token={TOKEN}?")

    assert files_with(folder_of(answer)) == {"report.md"}
    (kept,) = home.glob(".local/state/sonde/masks/*.jsonl")
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert JANE in kept.read_text()


def test_every_byte_that_goes_to_a_server_is_masked(data: Path) -> None:
    def reply(seen: Any) -> str:
        return "yes" if seen.prompt().startswith("ask") else next(script)

    script = iter(
        [
            f"{LOOK}\nprint(llm_batch(['ask ' + CONTEXT['app.log'], 'ask <email-2>']), sub_rlm('say ' + rows[0]['text']))",
            "FINAL('ok')",
            FINISH,
        ]
    )
    with ScriptedServer(reply) as server:
        settings = Settings(
            model="openai:gpt-4o-mini", base_url=server.base_url, mask=True, mask_patterns=(r"customer=C-\d+",)
        )
        answer = sonde.ask(f"Is it {JANE}?", data, settings=settings, runs_dir=data.parent / "runs")
        said = json.dumps([request.body for request in server.requests])

    assert len(server.requests) == 5
    assert leaks(said) == []
    assert JANE in answer.text


def test_a_citation_is_proved_and_has_the_hash_of_the_real_lines(data: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH])
    (citation,) = answer.citations

    assert citation.snippet == LOG.splitlines()[1]
    assert citation.excerpt_hash == sha256_text(LOG.splitlines()[1])


def test_a_citation_has_the_line_itself_whatever_is_quoted_beside_it(data: Path) -> None:
    wrong = "FINAL('\"pay with <card-1> by <email-2>\" [app.log:2]')"
    nowhere = "FINAL('\"pay with <card-1> by <email-1>\" [app.log:99]')"
    (citation,) = asked(data, [LOOK, wrong])[0].citations
    refused, model = asked(data, [LOOK, *[nowhere] * 9])

    assert citation.snippet == LOG.splitlines()[1]  # Jane's, although Bob's was quoted
    assert refused.status is not RunStatus.SUCCEEDED
    assert refused.citations == ()
    assert "app.log:99" in model.requests[2].messages[-1].content
    assert leaks(sent(model.requests)) == []


def test_parts_of_a_file_never_cut_a_value_in_two(data: Path) -> None:
    step = "for at in range(0, 160, 5):\n    print(context_slice(at, 7, path='app.log'))"
    _, model = asked(data, [step, LOOK, FINISH])

    assert leaks(sent(model.requests)) == []
    assert "jane" not in sent(model.requests)


def test_names_of_files_are_masked_and_lead_to_them(data: Path) -> None:
    (data / f"{BOB}.txt").write_text("bob owes 42\n")
    for name in ("zoe@corp.co.uk", f"{CUSTOMER}.C-992"):  # what looks like a suffix may be a part of the value
        (data / name).write_text("nothing\n")
    finish = "FINAL('42 [<email-1>.txt:1]')"
    answer, model = asked(data, ["print(list_files(), read_file('<email-1>.txt'))", finish], f"What does {BOB} owe?")

    assert leaks(sent(model.requests)) == []
    assert answer.citations[0].path == f"{BOB}.txt"
    assert "<customer-1>.<customer-2>" in sent(model.requests)
    assert not {"C-992", ".uk"} & set(re.findall(r"C-992|\.uk", sent(model.requests)))
    assert files_with(folder_of(answer)) == {"report.md"}
    assert replay(folder_of(answer), settings=Settings()).equal


def test_a_value_and_a_schema_are_about_the_real_values(tmp_path: Path) -> None:
    rows = [{"who": JANE, "card": 4111111111111111}, {"who": BOB, "card": 1}]
    schema = {"type": "object", "properties": {"who": {"type": "string", "pattern": "^[a-z.]+@corp.com$"}}}
    model = ScriptedModel(["print(context)", "FINAL({'who': context[0]['who']})"])
    answer = sonde.ask(
        "Who?",
        rows,
        model=model,
        schema=schema,
        mask=True,
        settings=Settings(),
        citations=False,
        runs_dir=tmp_path / "runs",
    )

    assert answer.value == {"who": JANE}
    assert leaks(sent(model.requests)) == []


def test_a_tool_of_the_user_works_on_the_real_values(data: Path) -> None:
    heard: list[str] = []

    def look_up(address: str) -> dict[str, str]:
        """Who has this address."""
        heard.append(address)
        return {"owner": f"{BOB} of {CUSTOMER}"}

    answer, model = asked(data, ["print(look_up('<email-1>'))", LOOK, FINISH], tools=[look_up])

    assert heard == [JANE]
    assert leaks(sent(model.requests)) == []
    assert files_with(folder_of(answer)) == {"report.md"}


def test_a_masked_run_replays_to_the_bit(data: Path) -> None:
    answer, _ = asked(data, [f"{LOOK}\nprint(llm_query('ask'))", "yes", FINISH])

    assert replay(folder_of(answer), settings=Settings()).equal


@pytest.mark.long
def test_a_masked_run_that_was_killed_goes_on_with_the_same_placeholders(data: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH], f"Is it {BOB}?")
    folder = folder_of(answer)
    lines = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
    cut = next(at for at, line in enumerate(lines) if b'"code_ran"' in line) + 1
    (folder / JOURNAL).write_bytes(b"".join(lines[:cut]))
    for name in (RECORD, SUMMARY):
        (folder / name).unlink()
    model = ScriptedModel([FINISH])
    finished = resume(folder, model=model, settings=Settings())

    assert finished.text == answer.text
    assert leaks(sent(model.requests)) == []
    assert files_with(folder) == {"report.md"}
    assert replay(folder, settings=Settings()).equal


@pytest.mark.long
def test_a_branch_keeps_the_mask(data: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH])
    model = ScriptedModel(["FINAL('So it was <email-1>. [app.log:1]')"])
    other = branch(folder_of(answer), 2, model=model, settings=Settings(), runs_dir=data.parent / "runs")

    assert other.text == f"So it was {JANE}. [app.log:1]"
    assert leaks(sent(model.requests)) == []


def test_a_follow_up_has_the_same_placeholders(data: Path) -> None:
    first, _ = asked(data, [LOOK, FINISH], f"Is it {BOB}?")
    model = ScriptedModel(["print(rows)\nFINAL('<email-2> again, not <email-1> [app.log:1]')"])
    answer = sonde.ask(
        f"And {JANE}? You said <email-2>.",
        model=model,
        settings=Settings(),
        continue_from=folder_of(first),
        runs_dir=data.parent / "runs",
    )

    assert answer.text == f"{JANE} again, not {BOB} [app.log:1]"
    assert leaks(sent(model.requests)) == []
    assert files_with(folder_of(answer)) == {"report.md"}


def test_a_run_that_was_not_masked_is_not_continued_masked(data: Path) -> None:
    first, _ = asked(
        data, [LOOK.replace("<email-1>", "pay"), "FINAL('ok [app.log:2]')"], mask=False, mask_patterns=None
    )

    with pytest.raises(ConfigError, match="was not masked"):
        asked(data, [FINISH], continue_from=folder_of(first))


@pytest.mark.parametrize(
    "patterns", [{"order": "O-[0-9]+"}, {"customer": "[A-Z]-[0-9]+"}, {**PATTERNS, "order": "O-1"}]
)
def test_a_masked_run_is_not_continued_with_a_pattern_that_it_did_not_have(
    data: Path, patterns: dict[str, str]
) -> None:
    first, _ = asked(data, [LOOK, FINISH])
    model = ScriptedModel([FINISH])

    with pytest.raises(ConfigError, match="was masked without the pattern"):
        asked(data, model, continue_from=folder_of(first), mask_patterns=patterns)
    assert model.requests == []
    asked(data, model, continue_from=folder_of(first), mask_patterns=PATTERNS)
    assert leaks(sent(model.requests)) == []


def test_without_the_values_a_masked_run_can_only_be_looked_at(data: Path, home: Path, tmp_path: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH])
    exported = export_run(RunDir(folder_of(answer)), tmp_path / "shared.tar.gz")
    imported = unpack_run(exported, tmp_path / "imported")

    assert files_with(imported.path) == set()
    with pytest.raises(ConfigError, match="masked"):
        replay(imported.path, settings=Settings())
    for kept in home.glob(".local/state/sonde/masks/*"):
        kept.unlink()
    with pytest.raises(ConfigError, match="masked"):
        replay(folder_of(answer), settings=Settings())


def test_an_edit_writes_the_real_values(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    text = f"owner = '{JANE}'\ncopy = '{BOB}'\n# <email-1> is how we write it\n"
    (tmp_path / "work" / "config.py").write_text(text)
    changes = ["-copy = '<email-2>'", "+copy = '<email-1>'", "+old = '<email-2>'"]
    patch = "\n".join(["*** Begin Patch", "*** Update File: config.py", "@@", *changes, "*** End Patch"])
    script = [
        "print(read_file('config.py'))\nprint(search('<email-2>'))",
        f"print(apply_patch({patch!r}))\nprint(read_file('config.py'))",
        "FINAL('The copy goes to <email-1>. [config.py:2]')",
    ]
    model, shown = ScriptedModel(script), list[str]()

    def approve(plan: Any) -> Any:
        shown.append(plan.diff())
        return accept(plan)

    edited = sonde.edit(
        f"Send copies to the owner, {JANE}",
        tmp_path / "work",
        approve=approve,
        model=model,
        mask=True,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
    )

    after = text.replace(f"copy = '{BOB}'", f"copy = '{JANE}'\nold = '{BOB}'")
    assert (tmp_path / "work" / "config.py").read_text() == after
    assert f"+copy = '{JANE}'" in shown[0]
    assert leaks(sent(model.requests)) == []
    assert files_with(folder_of(edited)) == {"report.md"}
    assert edited.changed == ("config.py",)


class Hands:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.moved = 0.0

    def now(self) -> float:
        return SystemClock().now() + self.moved

    def utc(self) -> datetime:
        return SystemClock().utc()


@pytest.mark.parametrize("mask", [False, True])
def test_only_the_time_of_the_user_who_approves_is_not_the_runs(tmp_path: Path, mask: bool) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text(f"owner {JANE}\nlast\n")
    clock, patch = Hands(), "*** Begin Patch\n*** Update File: a.txt\n@@\n-last\n+Last\n*** End Patch"

    def approve(plan: Any) -> Any:
        clock.moved += 100_000
        return accept(plan)

    script = [
        f"print(read_file('a.txt'), apply_patch({patch!r}))",
        "print(read_file('a.txt'))",
        "FINAL('done [a.txt:2]')",
    ]
    options: dict[str, Any] = {"mask": mask, "clock": clock, "settings": Settings(), "runs_dir": tmp_path / "runs"}
    done = sonde.edit("Change it", tmp_path / "work", approve=approve, model=ScriptedModel(script), **options)

    assert clock.moved == 100_000
    assert done.status is RunStatus.SUCCEEDED


def edited(tmp_path: Path, files: dict[str, str], script: Sequence[str], **options: Any) -> str:
    """What the model heard while it worked on these files in the folder `work`."""
    for name, text in files.items():
        (tmp_path / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "work" / name).write_text(text)
    model = ScriptedModel([*script, *["FINAL('no')"] * 3])
    options = {"mask_patterns": PATTERNS, "settings": Settings(), "runs_dir": tmp_path / "runs", **options}
    sonde.edit("Change it", tmp_path / "work", approve=accept, model=model, **options)
    return sent(model.requests)


def test_an_edit_never_writes_a_placeholder_that_stands_for_nothing(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: config.py\n@@\n-owner = '<email-1>'\n+owner = '<email-7>'\n*** End Patch"
    script = ["print(read_file('config.py'))", f"print(apply_patch({patch!r}))"]
    said = edited(tmp_path, {"config.py": f"owner = '{JANE}'\n"}, script)

    assert (tmp_path / "work" / "config.py").read_text() == f"owner = '{JANE}'\n"
    assert "<email-7> stands for nothing" in said


def test_an_edit_confirms_no_guess_at_a_value(tmp_path: Path) -> None:
    files = {"config.py": f"pay = '{DIGITS}'\nsize = 77\n", f"{CUSTOMER}.txt": "42\n"}
    look = (
        "def tried(path):\n    try:\n        return read_file(path)\n"
        "    except Exception as error:\n        return str(error).replace(path, '')\n"
        "print('searched', [len(search(each)) for each in ('4111', '77', '<card-1>', 'card')], 'ends')\n"
        "print('named', tried('C-' '991.txt') == tried('C-' '992.txt'), tried('C-' '991.txt'))\n"
        "print('found', read_file('<customer-1>.txt')['content'], search('42', '<customer-1>.txt'))"
    )
    said = edited(tmp_path, files, ["print(list_files(), read_file('config.py'))", look])

    assert "searched [0, 1, 1, 1] ends" in said
    assert "named True read_file: there is no" in said
    assert "found 42 [{" in said
    assert leaks(said) == []


@pytest.mark.long
def test_what_a_command_prints_is_masked_before_it_is_cut(tmp_path: Path) -> None:
    text = "x" * 300 + f" {CARD}\n" + "y" * 19_990  # the cut, 20,000 characters from the end, is in the card
    said = edited(
        tmp_path, {"a.txt": text}, ["print(execute_command('cat a.txt')['stdout'][:40])"], commands=["=cat a.txt"]
    )

    assert "<card-1>\nyyyy" in said
    assert "1111" not in said


def test_a_dry_run_says_how_many_values_would_be_hidden(data: Path, tmp_path: Path) -> None:
    said = program(
        "ask",
        "Who paid?",
        data,
        "--dry-run",
        "--mask-pattern",
        r"customer=C-\d+",
        "--model",
        "openai:gpt-4o-mini",
        cwd=tmp_path,
    )

    assert "would mask    card 1, customer 1, email 2, token 1" in said.stdout


def test_the_program_prints_the_values_and_shows_the_masked_run_with_a_note(data: Path, tmp_path: Path) -> None:
    with ScriptedServer([LOOK, FINISH]) as server:
        keys = {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": server.base_url}
        said = program("ask", "Who paid?", data, "--mask", "--base-url", server.base_url, cwd=tmp_path, **keys)
        shown = program("runs", "show", "last", cwd=tmp_path, **keys)
        listed = program("runs", cwd=tmp_path, **keys)

    assert f"It was {JANE}, who paid with {CARD}." in said.stdout
    assert leaks(shown.stdout + listed.stdout) == []
    assert "<email-1>" in shown.stdout
    assert "masked" in shown.stderr


def test_settings_turn_it_on_and_a_flag_turns_it_off(data: Path, tmp_path: Path) -> None:
    (tmp_path / "sonde.toml").write_text("mask = true\n")
    on = program("ask", "Who?", data, "--dry-run", "--model", "openai:gpt-4o-mini", cwd=tmp_path)
    off = program("ask", "Who?", data, "--dry-run", "--no-mask", "--model", "openai:gpt-4o-mini", cwd=tmp_path)

    assert ("would mask" in on.stdout, "would mask" in off.stdout) == (True, False)


def test_a_context_that_cannot_be_masked_is_refused(tmp_path: Path) -> None:
    class Own:
        """A context of a user, without mask_with."""

        def tools(self) -> Sequence[Any]:
            return ()

        def describe(self) -> str:
            return JANE

        def shared(self) -> dict[str, Any]:
            return {}

        def reread(self, excerpt: Any) -> None:
            del excerpt

        def fingerprint(self) -> str:
            return ""

    with pytest.raises(ConfigError, match="cannot be masked"):
        sonde.ask("Who?", Own(), model=ScriptedModel([FINISH]), mask=True, settings=Settings(), runs_dir=tmp_path)


def test_what_the_model_makes_up_is_masked_as_well(data: Path) -> None:
    made_up = "print('mail eve@corp.com now, or jane.doe' + chr(64) + 'corp.com')\n"
    made_up += "print('and\\n' + '37828224' + '6310005')  # the card begins a line\n"
    answer, model = asked(data, [f"{made_up}{LOOK}", FINISH])

    assert "and\n<written-" in sent(model.requests)
    assert "mail <written-1> now, or <written-2>" in sent(model.requests)  # not <email-1>: that would confirm a guess
    for value in ("eve@corp.com", JANE, "378282246310005"):
        assert value not in sent(model.requests)
        assert value not in (folder_of(answer) / JOURNAL).read_text()


def test_a_result_for_another_model_keeps_the_placeholders(data: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH], restore=False)

    assert answer.text == "It was <email-1>, who paid with <card-1>. [app.log:2]"
    assert answer.citations[0].snippet == "08:01 pay with <card-1> by <email-1>"


def test_a_context_is_as_it_was_after_a_masked_run(data: Path, tmp_path: Path) -> None:
    context = FilesContext(data)
    asked_with: dict[str, Any] = {"settings": Settings(), "runs_dir": tmp_path / "runs", "citations": False}
    for mask, shown in ((True, "<email-1>"), (False, JANE), (True, "<email-1>")):
        model = ScriptedModel(["print(CONTEXT['app.log'])", "FINAL(1)"])
        sonde.ask("Who?", context, model=model, mask=mask, **asked_with)
        assert f"login {shown} ok" in sent(model.requests)


def one_trace(tmp_path: Path) -> Path:
    row = {
        "trace_id": TRACE,
        "span_id": SPAN,
        "parent_id": None,
        "name": f"mail to {JANE}",
        "start_time": 1_767_225_600_000_000_000,
        "end_time": 1_767_225_601_000_000_000,
        "status_code": "ERROR",
        "status_message": f"TimeoutError: {BOB} did not answer; token={TOKEN}",
        "attributes": {
            "openinference.span.kind": "TOOL",
            "tool.name": "mail",
            "input.value": f"{JANE} {CARD}",
            "card": 4111111111111111,
        },
        "events": [
            {"name": "exception", "timestamp": 1_767_225_600_500_000_000, "attributes": {"exception.message": BOB}}
        ],
    }
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(row) + "\n")
    return path


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    return one_trace(tmp_path)


LOOK_AT_TRACE = (
    f"print(read_trace('{TRACE}'))\nprint(get_span('{SPAN}'), get_tool_io('{SPAN}'))\n"
    f"print(overview('{TRACE}'), search_trace('{TRACE}', 'email'))"
)
SUBMIT = (
    "SUBMIT(primary_label='tool_failure', summary='<email-2> did not answer the mail to <email-1>', confidence=0.8, "
    f"evidence_refs=[{{'kind': 'SPAN', 'ref': '{SPAN}'}}], remediation=['ask <email-2>'], gaps=[], "
    "alternatives=[{'hypothesis': 'the prompt drifted', 'why_rejected': 'the call is right'}])"
)


def test_an_investigation_is_masked_and_its_report_is_not(traces: Path, tmp_path: Path) -> None:
    model = ScriptedModel(
        lambda request: LOOK_AT_TRACE if "TimeoutError" not in request.messages[-1].content else SUBMIT
    )
    found = sonde.rca(TRACE, traces, model=model, mask=True, settings=Settings(), runs_dir=tmp_path / "runs")
    folder = folder_of(found)

    assert found.report is not None
    assert leaks(sent(model.requests)) == []
    assert "4111111111111111" not in sent(model.requests)
    assert files_with(folder) == {"report.md"}
    assert JANE in (folder / "report.md").read_text()
    assert BOB in found.text
    assert "<email-" not in (folder / "report.md").read_text()
    assert "lt;email-2> did not answer" in (folder / "annotations.jsonl").read_text()
    assert replay(folder, settings=Settings()).equal


def findings_of(found: sonde.Investigation, field: str = "pass_fail") -> dict[str, str]:
    assert found.report is not None
    return {each["control_id"]: each[field] for each in found.report["controls_evaluated"]}


@pytest.mark.long
def test_controls_are_checked_against_the_real_values_of_which_nothing_is_shown(traces: Path, tmp_path: Path) -> None:
    patterns = {"own.domain": "d[o]e@corp", "own.word": "TimeoutError", "own.sign": "<email-"}
    words = {"title": "T", "description": "D", "severity": "high", "remediation_template": "R", "controls_version": "1"}
    need = {"required_evidence": ["required_tool_io"]}
    own = [{"control_id": each, "violation_patterns": [made], **words, **need} for each, made in patterns.items()]
    controls = tmp_path / "own.json"
    controls.write_text(json.dumps({"controls": own}))
    model = ScriptedModel(["print(controls)", "SUBMIT(findings=[], gaps=[])"])
    options: dict[str, Any] = {"controls_files": [controls], "settings": Settings(), "runs_dir": tmp_path / "runs"}

    real = sonde.comply(TRACE, traces, **options)
    found = sonde.comply(TRACE, traces, mask=True, model=model, **options)

    said = findings_of(found, "rationale")
    assert findings_of(found) == findings_of(real) == {"own.domain": "fail", "own.word": "fail", "own.sign": "pass"}
    assert said["own.domain"] == f"matched a value that the mask hides in span {SPAN}"
    assert said["own.word"] == f"matched 'TimeoutError' in span {SPAN}"
    assert leaks(sent(model.requests)) == []
    assert "doe@" not in sent(model.requests) + (folder_of(found) / JOURNAL).read_text()
    assert files_with(folder_of(found)) == {"report.md"}
    assert replay(folder_of(found), settings=Settings()).equal


def test_a_masked_key_still_fails_the_shipped_control_about_keys(tmp_path: Path) -> None:
    key = "sk-proj-" + "Ab3dEf6hIj9kLm2n" * 2
    path = one_trace(tmp_path)
    row = json.loads(path.read_text())
    path.write_text(json.dumps({**row, "attributes": {**row["attributes"], "output.value": f"use {key} today"}}))

    found = sonde.comply(
        TRACE, path, controls="owasp-llm-2025", mask=True, settings=Settings(), runs_dir=tmp_path / "runs"
    )

    kept = [each for each in folder_of(found).rglob("*") if each.is_file() and key[:16] in each.read_text()]
    assert findings_of(found)["llm02.sensitive_information"] == "fail"
    assert [each.name for each in kept if each.name != "report.md"] == []


@pytest.mark.long
def test_without_a_model_an_investigation_masks_its_files_as_well(traces: Path, tmp_path: Path) -> None:
    for found in (
        sonde.rca(TRACE, traces, mask=True, settings=Settings(), runs_dir=tmp_path / "runs"),
        sonde.comply(TRACE, traces, mask=True, settings=Settings(), runs_dir=tmp_path / "runs"),
        sonde.incident(traces, mask=True, settings=Settings(), runs_dir=tmp_path / "runs"),
    ):
        assert files_with(folder_of(found)) <= {"report.md"}
        assert "<email-" not in found.text


@pytest.mark.long
def test_a_batch_is_masked_item_by_item(traces: Path, data: Path, tmp_path: Path) -> None:
    items = [
        {"id": "q", "engine": "ask", "question": f"Who is {BOB}?", "paths": [str(data)]},
        {"id": "r", "engine": "rca", "trace_ids": [TRACE], "source": str(traces)},
    ]
    (tmp_path / "items.jsonl").write_text("".join(f"{json.dumps(item)}\n" for item in items))

    def reply(seen: Any) -> str:
        words = json.dumps(seen.body)
        return (SUBMIT if "TimeoutError: " in words else LOOK_AT_TRACE) if TRACE in words else FINISH

    with ScriptedServer(reply) as server:
        keys = {"OPENAI_API_KEY": "sk-none", "SONDE_MASK_PATTERNS": r"customer=C-\d+"}
        done = program("batch", "items.jsonl", "--runs-dir", "out", "--base-url", server.base_url, cwd=tmp_path, **keys)
        said = json.dumps([request.body for request in server.requests])

    assert done.returncode == 0, done.stderr
    assert server.requests
    assert leaks(said) == []
    assert files_with(tmp_path / "out") == {"report.md", "manifest.jsonl"}  # the manifest is the user's own list
    assert leaks(next((tmp_path / "out").glob("batch-*/report.md")).read_text()) == []


def test_a_page_and_a_published_trace_show_placeholders(data: Path, tmp_path: Path) -> None:
    answer, _ = asked(data, [LOOK, FINISH])
    page = export_html(RunDir(folder_of(answer)), tmp_path / "page.html").read_text()

    assert leaks(page) == []
    for redact in (False, True):
        written = export_page(RunDir(folder_of(answer)), tmp_path / "page.md", redact=redact).read_text()
        assert "&lt;email-1>, who paid with &lt;card-1>" in written
        assert leaks(written) == []
    assert "masked: placeholders stand for people" in page


def test_a_question_over_traces_is_masked_in_sql_as_well(traces: Path, tmp_path: Path) -> None:
    look = (
        "print(sql(\"SELECT name, status_message, substr(attr(span_id, 'input.value'), 1, 6) AS head FROM spans\"))\n"
        "print(search_spans('mail'), group_by('card'), list_traces('shop'))"
    )
    finish = f"FINAL('<email-1> did not answer <email-2> [span:{SPAN}]')"
    model = ScriptedModel([look, f"print(get_span('{SPAN}'))", finish, finish, finish])
    answer = sonde.ask(
        "Who did not answer?",
        source=traces,
        filter_expr=f"'{BOB}' in status_message",
        model=model,
        mask=True,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
    )

    assert leaks(sent(model.requests)) == []
    assert "mail to <email-2>" in sent(model.requests)
    assert answer.text.startswith(f"{BOB} did not answer {JANE}")
    assert files_with(folder_of(answer)) == {"report.md"}
    assert replay(folder_of(answer), settings=Settings()).equal


@pytest.mark.parametrize("flag", [["--no-mask"], ["--mask-pattern", "x=y"]])
def test_a_masked_run_is_not_resumed_in_another_way(data: Path, tmp_path: Path, flag: list[str]) -> None:
    answer, _ = asked(data, [LOOK, FINISH])
    (folder_of(answer) / SUMMARY).unlink()  # as a kill at the very end leaves it
    said = program("resume", folder_of(answer), *flag, cwd=tmp_path, XDG_STATE_HOME=str(tmp_path / "home/.local/state"))

    assert said.returncode == 2
    assert flag[0] in said.stderr


def test_pruning_a_run_deletes_its_values(data: Path, tmp_path: Path) -> None:
    with ScriptedServer([LOOK, FINISH]) as server:
        program(
            "ask", "Who paid?", data, "--mask", "--base-url", server.base_url, cwd=tmp_path, OPENAI_API_KEY="sk-none"
        )
    kept = list(tmp_path.glob(".local/state/sonde/masks/*"))
    pruned = program("runs", "prune", "--keep", "0", "--yes", cwd=tmp_path)

    assert len(kept) == 1
    assert "1 run deleted" in pruned.stdout
    assert list(tmp_path.glob(".local/state/sonde/masks/*")) == []


def test_what_changed_is_masked_before_it_is_cut(traces: Path, tmp_path: Path) -> None:
    padding = "x" * 290
    deploys = [
        {"at": "2025-12-31T23:50:00Z", "name": f"rollout for {CUSTOMER} by {BOB}", "summary": f"{padding} {JANE}"},
        {"at": "2025-12-31T23:40:00Z", "service": JANE, "commit": BOB, "version": 4111111111111111},
    ]
    (tmp_path / "deploys.json").write_text(json.dumps(deploys))
    model = ScriptedModel(["FINAL('no')"] * 9)
    found = sonde.incident(
        traces,
        changes=[str(tmp_path / "deploys.json")],
        model=model,
        mask_patterns=PATTERNS,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
    )

    assert files_with(folder_of(found)) == {"report.md"}
    assert leaks(sent(model.requests)) == []
    assert "jane" not in sent(model.requests)
    assert "rollout for <customer-1> by <email-" in sent(model.requests)
    assert leaks(export_html(RunDir(folder_of(found)), tmp_path / "page.html").read_text()) == []
    assert leaks(export_page(RunDir(folder_of(found)), tmp_path / "page.md").read_text()) == []
    assert f"rollout for {CUSTOMER} by {BOB}" in (folder_of(found) / "report.md").read_text()


@pytest.mark.long
def test_the_sender_of_a_span_and_ids_that_hold_a_value_are_masked_and_found(tmp_path: Path) -> None:
    span = {
        "traceId": f"tr-{CUSTOMER}",
        "spanId": f"sp-{JANE}",
        "name": "pay",
        "startTimeUnixNano": "1767225600000000000",
        "endTimeUnixNano": "1767225601000000000",
        "status": {"code": 2, "message": "TimeoutError"},
    }
    child = {**span, "spanId": "child", "parentSpanId": f"sp-{JANE}"}
    sender = {"attributes": [{"key": "service.name", "value": {"stringValue": f"shop of {BOB}"}}]}
    source = tmp_path / "otlp.jsonl"
    source.write_text(json.dumps({"resourceSpans": [{"resource": sender, "scopeSpans": [{"spans": [span, child]}]}]}))
    options: dict[str, Any] = {"mask_patterns": PATTERNS, "settings": Settings(), "runs_dir": tmp_path / "runs"}
    look = (
        "row = sql(\"SELECT span_id, trace_id, attr(span_id, 'service.name') AS sender FROM spans WHERE parent_id IS NULL\")[0]\n"
        "print(row, group_by('service.name'), get_children(row['span_id']), get_span(row['span_id']))"
    )
    model = ScriptedModel([look, *["FINAL('It is [span:' + row['span_id'] + ']')"] * 3])
    answer = sonde.ask("What failed?", source=source, model=model, **options)
    told = sonde.rca(f"tr-{CUSTOMER}", source, model=(other := ScriptedModel(["FINAL('no')"] * 9)), **options)

    assert leaks(sent(model.requests) + sent(other.requests)) == []
    assert "'sender': 'shop of <email-" in sent(model.requests)
    assert answer.text == f"It is [span:sp-{JANE}]"
    assert answer.citations[0].ref == f"sp-{JANE}"
    assert [files_with(folder_of(each)) for each in (answer, told)] == [{"report.md"}] * 2
    assert told.report is not None and told.report["trace_id"] == f"tr-{CUSTOMER}"
    assert replay(folder_of(told), settings=Settings()).equal


def test_a_call_does_not_bring_back_the_values_that_were_handed_to_it(data: Path) -> None:
    def echo(text: str, most: int = 100) -> str:
        """What it was given, or a complaint about it."""
        if text.startswith("no"):
            raise ToolFault(f"cannot use {text[:most]!r}")
        return f"got {text}"

    look = (
        "def tried(*given):\n    try:\n        return echo(*given)\n    except Exception as error:\n        return str(error)\n"
        "print(tried('<card-1>z'), '|', tried('no<customer-1>z<card-1>z'), '|', tried('no<card-1>', 9), '|', tried('no', 1))\n"
        "right, wrong = tried('no 41' + '11 <card-1>'), tried('no 5222 <card-1>')\n"
        "print('the same words:', right == wrong, '|', tried('<card-1>', 'many'))"
    )
    _, model = asked(data, [LOOK, look, FINISH], tools=[echo])
    said = sent(model.requests)

    assert leaks(said) == []
    assert "4111" not in said
    assert "got <card-1>z | " in said
    assert "cannot use 'no" not in said
    assert "it failed; why is not said here" in said
    assert "cannot use 'n'" in said
    assert "the same words: True" in said
    assert "argument 'most'" in said


def test_what_a_tool_returns_is_masked_before_it_is_cut(data: Path) -> None:
    def large() -> str:
        """A text a little longer than what is kept of a result; the end of that is in the card."""
        return f"{'x ' * 499_990}{CARD} is the card"

    _, model = asked(data, ["print('end', large()[-20:])", LOOK, FINISH], tools=[large])

    assert "end x <card-1> is the" in sent(model.requests)
    assert "4111" not in sent(model.requests)


def test_the_words_about_a_schema_do_not_bring_a_value_back(data: Path) -> None:
    schema = {"type": "object", "properties": {"who": {"enum": ["nobody"]}, "how": {"type": "integer"}}}
    wrong = f"FINAL({{'who': '{'x' * 50}<card-1>z', 'how': '<customer-1>_<card-1>'}})"
    _, model = asked(data, [LOOK, wrong, *["FINAL({'who': 'nobody', 'how': 1})"] * 3], schema=schema)

    assert "does not fit the schema" in sent(model.requests)
    assert leaks(sent(model.requests)) == []
    assert "4111" not in sent(model.requests)


def test_an_edit_neither_quotes_nor_writes_a_value_that_it_would_read_again_in_the_clear(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: config.py\n@@\n-pay = '<card-1>'\n+pay = '<card-1>z'\n*** End Patch"
    tries = "".join(
        f"try:\n    print({call})\nexcept Exception as error:\n    print(error)\n"
        for call in (
            "list_files('<customer-1>')",
            "read_file('<card-1>z')",
            "search('<card-1>z', '<card-1>z')",
            f"apply_patch({patch!r})",
        )
    )
    look = "print(read_file('config.py'))"
    said = edited(tmp_path, {"config.py": f"pay = '{DIGITS}'\nwho = '{CUSTOMER}'\n"}, [look, tries, look])

    assert "4111" not in said
    assert leaks(said) == []
    assert "<card-1> would not be recognised there" in said
    assert DIGITS + "z" not in (tmp_path / "work" / "config.py").read_text()


def test_a_span_that_is_not_there_is_named_as_the_code_named_it(traces: Path, tmp_path: Path) -> None:
    look = "try:\n    get_span('<card-1>z')\nexcept Exception as error:\n    print(error)"
    model = ScriptedModel([f"print(get_span('{SPAN}'))", look, *["FINAL('no')"] * 5])
    sonde.rca(TRACE, traces, model=model, mask=True, settings=Settings(), runs_dir=tmp_path / "runs")

    assert "no span '<card-1>z'" in sent(model.requests)
    assert leaks(sent(model.requests)) == []


def test_a_filter_and_an_id_confirm_no_guess_at_a_value(tmp_path: Path) -> None:
    """Each line of the code would find the trace in the real data; those with placeholders find it in the masked data."""
    row = {
        "trace_id": f"tr-{CUSTOMER}",
        "span_id": f"sp-{CUSTOMER}",
        "name": f"mail to {JANE}",
        "start_time": 1_767_225_600_000_000_000,
        "end_time": 1_767_225_601_000_000_000,
        "status_code": "ERROR",
        "attributes": {"user": JANE, "card": 4111111111111111},
    }
    source = tmp_path / "traces.jsonl"
    source.write_text(f"{json.dumps(row)}\n")
    snapshot = tmp_path / "configs" / f"of-{CUSTOMER}"
    snapshot.mkdir(parents=True)
    (snapshot / "metadata.json").write_text(json.dumps({"created_at": "2025-12-31T23:50:00Z"}))
    guesses = (
        "name == 'mail to jane.doe at corp.com'",
        "'jane' in name",
        "attributes['user'] > 'j' and attributes['user'] < 'k'",
        "attributes['user'] == 'jane.doe at corp.com'",
        "attributes['card'] > 4000000000000000",
        f"trace_id == 'tr-{CUSTOMER}'",
    )
    known = ("name == 'mail to <email-1>'", "attributes['user'] == '<email-1>'", "status_code == 'ERROR'")
    look = (
        f"print('guessed', [len(list_traces('default', filter_expr=each.replace(' at ', chr(64)))) for each in {guesses!r}])\n"
        f"print('known', [len(list_traces('default', filter_expr=each)) for each in {known!r}])\n"
        f"for call in (lambda: list_spans('tr-{CUSTOMER}'), lambda: get_span('sp-{CUSTOMER}'), "
        f"lambda: get_config_snapshot('of-{CUSTOMER}')):\n"
        "    try:\n        print('answered', len(call()))\n    except Exception as error:\n        print('unknown')"
    )
    model = ScriptedModel([look, *["FINAL('no')"] * 5])
    options: dict[str, Any] = {"mask_patterns": PATTERNS, "settings": Settings(), "runs_dir": tmp_path / "runs"}
    sonde.incident(source, model=model, configs=tmp_path / "configs", **options)
    said = sent(model.requests)

    assert "guessed [0, 0, 0, 0, 0, 0]" in said
    assert "known [1, 1, 1]" in said
    assert "unknown\nunknown\nunknown" in said
    assert "answered 1" not in said


def test_numbers_of_a_trace_are_masked_by_the_patterns_of_the_user(tmp_path: Path) -> None:
    row = {
        "trace_id": TRACE,
        "span_id": SPAN,
        "name": "pay",
        "start_time": 1_767_225_600_000_000_000,
        "end_time": 1_767_225_601_000_000_000,
        "status_code": "ERROR",
        "attributes": {"account": 70012345, "share": 70012346.0, "card": float(DIGITS), "change": -5, "rate": 0.25},
    }
    source = tmp_path / "traces.jsonl"
    source.write_text(f"{json.dumps(row)}\n")
    model = ScriptedModel([f"print(get_span('{SPAN}')['attributes'])", *["FINAL('no')"] * 5])
    options: dict[str, Any] = {"mask_patterns": {"account": "700[0-9]{5}"}, "settings": Settings()}
    found = sonde.rca(TRACE, source, model=model, runs_dir=tmp_path / "runs", **options)

    for text in (sent(model.requests), (folder_of(found) / JOURNAL).read_text()):
        assert [each for each in ("7001234", DIGITS[:9]) if each in text] == []
    for shown in ("'account': '<account-", "'share': '<account-", "'card': '<card-", "'change': -5", "'rate': 0.25"):
        assert shown in sent(model.requests)
    assert replay(folder_of(found), settings=Settings()).equal


@pytest.mark.long
def test_the_hash_of_masked_data_is_not_one_that_can_be_tried_with_guesses(data: Path, tmp_path: Path) -> None:
    plain, _ = asked(data, ["FINAL(1)"], mask=False, mask_patterns=None, citations=False)
    masked, _ = asked(data, ["print(sorted(CONTEXT))", "FINAL(1)"], citations=False)
    again, _ = asked(data, ["FINAL(1)"], citations=False)
    real, hashed, other = (each.record.dataset_ref.dataset_hash for each in (plain, masked, again))
    unchanged = replay(folder_of(masked), settings=Settings())
    (data / "new.log").write_text("more\n")
    changed = replay(folder_of(masked), settings=Settings())

    assert real and hashed and hashed != real
    assert hashed == other  # the same data are still known to be the same
    assert (unchanged.equal, changed.equal, changed.changed) == (True, False, ("the data",))
    shown, hidden = (
        sonde.incident(folder, mask=mask, settings=Settings(), runs_dir=tmp_path / "runs").report
        for folder, mask in ((one_trace(tmp_path), False), (one_trace(tmp_path), True))
    )
    assert shown is not None and hidden is not None and shown["incident_id"] != hidden["incident_id"]


def test_the_filter_of_the_user_is_about_the_real_values(traces: Path, tmp_path: Path) -> None:
    options: dict[str, Any] = {"mask": True, "settings": Settings(), "runs_dir": tmp_path / "runs"}
    found = sonde.incident(traces, filter_expr="'bob@' in status_message", **options)
    with pytest.raises(NotInSource):
        sonde.incident(traces, filter_expr="'eve@' in status_message", **options)

    assert found.status is not RunStatus.FAILED


def test_config_snapshots_are_named_by_placeholders_and_found_by_them(traces: Path, tmp_path: Path) -> None:
    for number, name in enumerate((f"for-{CUSTOMER}", f"of-{BOB}")):
        folder = tmp_path / "configs" / name
        folder.mkdir(parents=True)
        (folder / "metadata.json").write_text(json.dumps({"created_at": f"2025-12-31T23:5{number}:00Z", "tag": BOB}))
        (folder / "app.toml").write_text(f"limit = {number}\n")
    look = "try:\n    get_config_diff('x', 'y')\nexcept Exception as error:\n    print(error)"
    model = ScriptedModel([look, *["FINAL('no')"] * 5])
    found = sonde.incident(
        traces,
        configs=tmp_path / "configs",
        model=model,
        mask_patterns=PATTERNS,
        settings=Settings(),
        runs_dir=tmp_path / "runs",
    )

    said = sent(model.requests)
    assert re.search(r"no config snapshot 'x'; there are: <email-\d\.?\d?>, for-<customer-1>", said)
    assert leaks(said) == []
    assert files_with(folder_of(found)) == {"report.md"}
    assert "limit = 1" in (folder_of(found) / "report.md").read_text()
