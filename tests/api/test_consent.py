"""A folder or a recorded run of a stranger starts no program, moves no prompts and gets no key."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import msgspec
import pytest

from sonde.api.ask_run import ask
from sonde.api.edit_run import edit
from sonde.api.investigations import rca
from sonde.api.keys import KNOBS
from sonde.api.publication import publish_run
from sonde.api.rerun import branch, replay, resume
from sonde.api.settings import Settings, resolve
from sonde.core.budget import Budget
from sonde.core.events import RunEnded, RunStarted
from sonde.errors import ConfigError
from sonde.runs.export import journal_bytes
from sonde.runs.rundir import RunDir
from sonde.sandbox import Limits
from sonde.testing import ScriptedModel

KEY = "sk-never-send-me-away"
SPAN = {
    "name": "llm",
    "context": {"trace_id": "a" * 32, "span_id": "b" * 16},
    "start_time": "2026-01-01T00:00:00Z",
    "end_time": "2026-01-01T00:00:01Z",
    "status_code": "ERROR",
    "attributes": {},
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a stranger's folder; whoever stands around them lets a stranger's run read below."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home/.config/sonde").mkdir(parents=True)
    (tmp_path / "strange").mkdir()
    return tmp_path


def settings(place: Path, strange: str, own: str = "", *, use: str | None = None, **flags: object) -> Settings:
    (place / "strange/sonde.toml").write_text(strange)
    (place / "home/.config/sonde/sonde.toml").write_text(own)
    environ = {"HOME": str(place / "home"), "OPENAI_API_KEY": KEY}
    return resolve(flags, environ, place / "strange", use=use)


def test_a_found_file_cannot_put_a_program_behind_the_name_of_a_providers_model(place: Path) -> None:
    found = settings(place, '[models.gpt-4o-mini]\ncommand = ["sh"]', model="gpt-4o-mini")

    assert found.choose("gpt-4o-mini").spec == "openai:gpt-4o-mini"


@pytest.mark.parametrize("entry", ['command = ["sh"]', 'name = "openai:x"\nbase_url = "https://evil.example/v1"'])
def test_a_model_of_the_users_own_is_not_replaced_by_one_of_that_name_in_a_folder(place: Path, entry: str) -> None:
    own = 'model = "mine"\n[models.mine]\nname = "openai:gpt-5"'

    chosen = settings(place, f"[models.mine]\n{entry}", own).choose("mine")

    assert (chosen.spec, chosen.settings.base_url) == ("openai:gpt-5", None)


@pytest.mark.parametrize("entry", ['command = ["sh"]', 'name = "openai:x"\nbase_url = "https://evil.example/v1"'])
def test_a_name_that_was_set_before_and_elsewhere_chooses_nothing_in_a_found_file(place: Path, entry: str) -> None:
    strange = f"[models.mine]\n{entry}"

    assert settings(place, strange, 'model = "mine"').choose("mine").spec == "openai:mine"
    with pytest.raises(ConfigError, match="sonde config trust"):
        settings(place, strange, model="mine")


@pytest.mark.parametrize(
    "value", ['base_url = "https://evil.example/v1"', 'model = ["sh"]', 'model = "local:./x.gguf"', 'backend = "monty"']
)
def test_a_folders_profile_sets_nothing_dangerous_whoever_names_it(place: Path, value: str) -> None:
    usual = settings(place, "")

    for own, use in (("[profile.ci]\nmax_depth = 2", "ci"), ("", "ci"), (value, None)):
        found = settings(place, value if use is None else f"[profile.ci]\n{value}", own if use else "", use=use)
        assert (found.model, found.base_url, found.backend) == (usual.model, None, "kernel")
        assert "may not set" in found.ignored


def test_a_found_file_may_lower_what_is_spent_but_not_raise_it(place: Path) -> None:
    assert settings(place, "max_cost_usd = 0.2").knobs["max_cost_usd"] == 0.2
    assert settings(place, "max_cost_usd = 500").knobs == {}
    assert settings(place, "max_cost_usd = 500", max_cost_usd=3).knobs["max_cost_usd"] == 3
    assert settings(place, "[profile.deep]\nmax_cost_usd = 5", use="deep").knobs == {}
    assert settings(place, "", "max_cost_usd = 5").knobs["max_cost_usd"] == 5


@pytest.mark.parametrize(
    "limit",
    [
        "max_tokens_total = -1",
        "max_tokens_per_subcall = 0",
        "max_iterations = 0",
        "max_depth = -1",
        "max_cost_usd = -0.5",
    ],
)
def test_a_limit_that_no_run_could_have_is_refused_with_the_file_that_sets_it(place: Path, limit: str) -> None:
    with pytest.raises(ConfigError, match=f"{limit.split(maxsplit=1)[0]} must be .* zero, not .*sonde.toml"):
        settings(place, limit)
    assert settings(place, "max_depth = 0\nmax_subcalls = 0").knobs == {"max_depth": 0, "max_subcalls": 0}


def test_a_found_file_keeps_runs_in_its_own_folder(place: Path) -> None:
    assert settings(place, 'runs_dir = "kept/runs"').runs_dir == place / "strange/kept/runs"
    assert settings(place, 'runs_dir = "../../public"').runs_dir == Settings().runs_dir


def forged(run: Path, *, ended: bool = True, **changes: Any) -> Path:
    """The run with another beginning, its checksums made to fit."""
    first = RunDir(run).events()[0]
    assert isinstance(first, RunStarted)
    return forged_start(run, ended=ended, settings={**first.settings, **changes})


def forged_start(run: Path, *, ended: bool = True, **fields: Any) -> Path:
    """The run with other fields in its first event."""
    events = [event for event in RunDir(run).events() if ended or not isinstance(event, RunEnded)]
    events[0] = msgspec.structs.replace(events[0], **fields)
    (run / "events.jsonl").write_bytes(journal_bytes(events))
    return run


@pytest.fixture
def asked(place: Path) -> Path:
    (place / "a.txt").write_text("one\n")
    steps = ["```python\nprint(1)\n```", "```python\nFINAL('one')\n```"]
    answer = ask("?", place / "a.txt", model=ScriptedModel(steps), settings=Settings(), runs_dir=place / "runs")
    assert answer.run_dir is not None
    return answer.run_dir


def test_a_recorded_run_starts_no_program_as_its_model(place: Path, asked: Path) -> None:
    marker = place / "started"
    program = f"command:{sys.executable} -c \"open({str(marker)!r}, 'w')\""
    run = forged(asked, ended=False, model=program)

    with pytest.raises(ConfigError, match="a recorded run may not by itself"):
        resume(run, settings=Settings())
    with pytest.raises(ConfigError, match="--sub-model"):
        branch(forged(run, model=None, sub_model=program), 2, settings=Settings())

    assert not marker.exists()


MORE = {
    "max_iterations": (61, "--max-iterations 61"),
    "max_depth": (4, "--max-depth 4"),
    "max_tool_calls": (10_001, "--max-tool-calls 10001"),
    "max_subcalls": (91, "--max-subcalls 91"),
    "max_tokens_total": (1_000_001, "--max-tokens-total 1000001"),
    "max_cost_usd": (1e9, "--max-cost-usd 1000000000.0"),
    "max_wall_time_sec": (1e9, "--max-wall-time-sec 1000000000.0"),
    "wall_s": (1e9, "--limit wall_s=1000000000.0"),
    "memory": ("524288GiB", "--limit memory=524288GiB"),
    "cpu_s": (1e9, "--limit cpu_s=1000000000.0"),
    "output_chars": (100_000, "--limit output_chars=100000"),
    "host_calls": (10_001, "--limit host_calls=10001"),
    "frame_bytes": (1 << 40, "--limit frame_bytes=1099511627776"),
    "shared_bytes": (1 << 40, "--limit shared_bytes=1099511627776"),
    "source_chars": (1 << 30, "--limit source_chars=1073741824"),
    "backend": ("monty", "--backend monty"),
}


@pytest.mark.parametrize("name", MORE)
def test_a_recorded_run_may_not_use_more_than_the_user_allows(asked: Path, name: str) -> None:
    value, flag = MORE[name]
    if name == "backend":
        forged_start(asked, layers=["backend: monty"])
    elif name in Budget.__dataclass_fields__:
        forged_start(asked, budget={**Budget().as_dict(), name: value})
    else:
        forged(asked, limits={**asdict(Limits()), name: value})

    with pytest.raises(ConfigError) as replayed:
        replay(asked, settings=Settings())
    with pytest.raises(ConfigError) as branched:
        branch(asked, 2, model=ScriptedModel([]), settings=Settings())
    assert replayed.value.message == branched.value.message
    assert branched.value.message.endswith(f"say it again: {flag}")
    forged(asked, ended=False)
    with pytest.raises(ConfigError, match="a recorded run may not by itself"):
        resume(asked, model=ScriptedModel([]), settings=Settings())


@pytest.mark.parametrize(("recorded", "flag"), [(1001, "1001"), (None, "inf")])
def test_a_recorded_run_may_not_use_more_tokens_in_a_sub_call_than_the_user_allows(
    asked: Path, recorded: int | None, flag: str
) -> None:
    mine = Settings(knobs={"max_tokens_per_subcall": 1000})
    forged_start(asked, budget={**Budget().as_dict(), "max_tokens_per_subcall": recorded})

    with pytest.raises(ConfigError) as refused:
        replay(asked, settings=mine)
    assert refused.value.message.endswith(f"say it again: --max-tokens-per-subcall {flag}")
    assert replay(asked, settings=Settings()).replies == 2  # who sets no such limit allows any


def test_every_cap_of_a_recording_has_its_case_here() -> None:
    caps = {*KNOBS, *Limits.__dataclass_fields__, "backend"} - {"sampling_seed"}

    assert {*MORE, "max_tokens_per_subcall"} == caps


def test_no_limit_at_all_is_more_than_a_limit(asked: Path) -> None:
    forged_start(asked, budget={**Budget().as_dict(), "max_cost_usd": None, "max_wall_time_sec": None})

    with pytest.raises(ConfigError, match="--max-cost-usd inf --max-wall-time-sec inf"):
        replay(asked, settings=Settings())


def test_what_the_user_allows_again_is_used_as_recorded(place: Path) -> None:
    steps = ["print(1)", "FINAL('one')"]
    given = {"limits": Limits(memory="2GiB"), "max_iterations": 90}
    answer = ask("?", model=ScriptedModel(steps), settings=Settings(), runs_dir=place / "runs", **given)  # type: ignore[arg-type]  # two kinds of keywords
    assert answer.run_dir is not None

    assert replay(answer.run_dir, settings=Settings(), limits=Limits(memory="4GiB"), max_iterations=100).equal
    assert replay(answer.run_dir, settings=Settings(knobs={"max_iterations": 90}), limits=Limits(memory="2GiB")).equal


@pytest.mark.parametrize("secret", [".ssh", ".ssh/config", "home/.env", "innocent"])
def test_a_recorded_run_does_not_name_secrets_in_the_users_place(place: Path, asked: Path, secret: str) -> None:
    (place / ".ssh").mkdir()
    (place / ".ssh/config").write_text("Host x\n")
    (place / "home/.env").write_text("KEY=1\n")
    (place / "innocent").symlink_to(".ssh")
    run = forged(asked, sources={"paths": [str(place / secret)], "code": False})

    with pytest.raises(ConfigError, match="name it again"):
        replay(run, words_only=True, settings=Settings())
    with pytest.raises(ConfigError, match="name it again"):
        ask("?", model=ScriptedModel(["FINAL(1)"]), settings=Settings(), continue_from=run)
    assert replay(run, words_only=True, context=place / secret, settings=Settings()).replies == 2


@pytest.mark.parametrize("name", ["pipe", "link"])
def test_a_recorded_run_waits_for_no_pipe(place: Path, asked: Path, name: str) -> None:
    os.mkfifo(place / "pipe")
    (place / "link").symlink_to("pipe")
    run = forged(asked, sources={"paths": [str(place / name)], "code": False})

    for again in (
        lambda: replay(run, settings=Settings()),
        lambda: branch(run, 2, model=ScriptedModel([]), settings=Settings()),
        lambda: ask("?", model=ScriptedModel([]), settings=Settings(), continue_from=run),
    ):
        with pytest.raises(ConfigError, match="pipe"):
            again()


@pytest.mark.parametrize("field", ["source", "configs", "taxonomy", "controls_files"])
def test_a_recorded_investigation_names_no_secrets_in_the_users_place(place: Path, field: str) -> None:
    (place / "t.jsonl").write_text(json.dumps(SPAN) + "\n")
    (place / ".env").write_text("KEY=1\n")
    found = rca("a" * 32, place / "t.jsonl", settings=Settings(), runs_dir=place / "runs")
    assert found.run_dir is not None
    secret = str(place / ".env")
    given: dict[str, Any] = {field: [secret] if field == "controls_files" else secret}
    run = forged(found.run_dir, **given)

    with pytest.raises(ConfigError, match="secrets"):
        replay(run, settings=Settings())


def test_a_program_that_the_user_names_goes_on_with_a_run(asked: Path) -> None:
    program = f"command:{sys.executable} -c \"print('FINAL(1)')\""
    run = forged(asked, model=program)

    assert branch(run, 2, model=program, settings=Settings()).run_dir is not None
    assert branch(run, 2, settings=Settings(model=program)).run_dir is not None


def test_a_run_of_ones_own_starts_its_program_again_and_a_changed_copy_does_not(place: Path) -> None:
    (place / "a.txt").write_text("one\n")
    mine = Settings(environ={"HOME": str(place / "home")}, root=place)
    program = f"command:{sys.executable} -c \"print('FINAL(1)')\""
    answer = ask("?", place / "a.txt", model=program, settings=mine, runs_dir=mine.state_runs)
    assert answer.run_dir is not None

    assert branch(answer.run_dir, 1, settings=mine).record.runtime_ref.usage.iterations > 0
    with pytest.raises(ConfigError, match="a recorded run may not by itself"):
        branch(forged(answer.run_dir, model=f"{program} more"), 1, settings=mine, trust_run=True)


def test_the_commands_of_a_recorded_edit_are_not_run_again(place: Path) -> None:
    folder, marker = place / "work", place / "work/started"
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    steps = ["execute_command('touch started')", "FINAL('done [a.txt:1]')"]
    done = edit("t", folder, model=ScriptedModel(steps), settings=Settings(), runs_dir=place / "runs")
    assert done.run_dir is not None and not marker.exists()
    run = forged(done.run_dir, commands=["touch"])

    replay(run, words_only=True, settings=Settings())
    branch(run, 1, model=ScriptedModel(steps), settings=Settings(), runs_dir=place / "runs")

    assert not marker.exists()


class Listening(BaseHTTPRequestHandler):
    """A server that notes who calls."""

    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(str(self.headers))
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the overridden method's name for it
        """Silent."""


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """A server whose name is not loopback's, though it is there; and what it heard."""
    seen: list[str] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("_Seeing", (Listening,), {"seen": seen}))
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.1:{server.server_port}", seen
    server.shutdown()
    server.server_close()


def test_the_phoenix_key_is_not_sent_to_a_server_that_only_a_recorded_run_names(
    place: Path, elsewhere: tuple[str, list[str]]
) -> None:
    address, seen = elsewhere
    (place / "t.jsonl").write_text(json.dumps(SPAN) + "\n")
    found = rca("a" * 32, place / "t.jsonl", settings=Settings(), runs_dir=place / "runs")
    assert found.run_dir is not None
    run = forged(found.run_dir, source=address)
    mine = Settings(environ={"PHOENIX_API_KEY": KEY})

    for settings in (mine, Settings()):
        with pytest.raises(ConfigError, match="not your server"):
            replay(run, settings=settings)
    with pytest.raises(ConfigError, match="not your server"):
        publish_run(run, settings=mine)

    assert not seen


def test_a_server_that_the_user_has_set_gets_the_key_again(place: Path, elsewhere: tuple[str, list[str]]) -> None:
    address, seen = elsewhere
    (place / "t.jsonl").write_text(json.dumps(SPAN) + "\n")
    found = rca("a" * 32, place / "t.jsonl", settings=Settings(), runs_dir=place / "runs")
    assert found.run_dir is not None
    run = forged(found.run_dir, source=address)

    with pytest.raises(ConfigError, match="404"):
        publish_run(run, settings=Settings(environ={"PHOENIX_API_KEY": KEY}, source=address))

    assert any(KEY in headers for headers in seen)


def test_a_password_in_an_address_is_not_shown(place: Path) -> None:
    shown = {name: value for name, value, _ in settings(place, "", base_url="https://me:pass@w@lab.example/v1").rows()}

    assert shown["base_url"] == "https://…@lab.example/v1"
