"""Effort, reply length, temperature and top_p: what is sent by default, who may set it, and where one sees it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_program import sonde

import sonde as library
from sonde.core.events import RunStarted
from sonde.errors import ConfigError
from sonde.runs.rundir import find_run
from sonde.testing import ScriptedModel, ScriptedReply, ScriptedServer

FINAL = "FINAL('alpha [a.txt:1-1]')"
SENT = ("reasoning_effort", "temperature", "top_p", "max_tokens", "max_completion_tokens")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("alpha\n")
    return tmp_path


def asked(folder: Path, *words: str) -> tuple[dict[str, Any], RunStarted]:
    """What the server got along with the first prompt, and the first event of the run."""
    with ScriptedServer(["print(read_file('a.txt'))", FINAL]) as server:
        place = ("--base-url", server.base_url, "--runs-dir", str(folder / "runs"))
        shown = sonde("ask", "?", "a.txt", *words, *place, cwd=folder, OPENAI_API_KEY="sk-none")
    assert shown.returncode == 0, shown.stderr
    (started,) = [each for each in find_run(folder / "runs", "last").events() if isinstance(each, RunStarted)]
    body = server.requests[0].body
    return {name: body[name] for name in SENT if name in body}, started


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        ("openai:gpt-4o-mini", {"temperature": 0.0, "max_tokens": 4096}),
        ("openai:gpt-5-mini", {"reasoning_effort": "low", "max_completion_tokens": 4096}),
        ("openai:gpt-5.1", {"reasoning_effort": "low", "max_completion_tokens": 4096}),
        ("openai:o3", {"max_completion_tokens": 4096}),
    ],
)
def test_a_question_is_asked_with_what_suits_the_family_and_the_record_says_so(
    folder: Path, model: str, sent: dict[str, Any]
) -> None:
    body, started = asked(folder, "--model", model)

    assert body == sent
    assert started.sampling.pop("max_output_tokens") == 4096
    assert started.sampling == {name: value for name, value in sent.items() if not name.startswith("max_")}


def test_flags_are_sent_as_given_to_any_family(folder: Path) -> None:
    flags = ("--reasoning-effort", "high", "--max-output-tokens", "900", "--temperature", "0.5", "--top-p", "0.9")
    body, started = asked(folder, "--model", "openai:gpt-5", *flags)

    chosen = {"reasoning_effort": "high", "temperature": 0.5, "top_p": 0.9}
    assert body == {**chosen, "max_completion_tokens": 900}
    assert started.sampling == {**chosen, "max_output_tokens": 900}
    assert started.temperature == 0.5


def test_an_entry_of_models_has_settings_of_its_own_and_a_flag_wins(folder: Path) -> None:
    (folder / "own.toml").write_text(
        'temperature = 0.1\n[models.mine]\nname = "openai:x"\ntemperature = 0.7\ntop_p = 0.2\n'
    )
    (folder / ".config/sonde").mkdir(parents=True)
    (folder / "own.toml").rename(folder / ".config/sonde/sonde.toml")

    assert asked(folder, "--model", "openai:x")[0]["temperature"] == 0.1
    assert asked(folder, "--model", "mine")[0] == {"temperature": 0.7, "top_p": 0.2, "max_tokens": 4096}
    assert asked(folder, "--model", "mine", "--temperature", "1.5")[0]["temperature"] == 1.5


def test_what_the_user_sets_is_never_dropped_in_silence(folder: Path) -> None:
    refusal = ScriptedReply(status=400, raw=b'{"error": {"message": "unsupported: top_p", "param": "top_p"}}')
    with ScriptedServer(refusal) as server:
        place = ("--base-url", server.base_url, "--runs-dir", "runs", "--model", "openai:x")
        shown = sonde("ask", "?", "a.txt", "--top-p", "0.5", *place, cwd=folder, OPENAI_API_KEY="sk-none")

    assert shown.returncode == 1
    assert "unsupported: top_p" in shown.stderr
    assert len(server.requests) == 1


def test_python_takes_the_same_by_keyword_and_refuses_it_for_an_object(folder: Path) -> None:
    with ScriptedServer(["print(read_file('a.txt'))", FINAL]) as server:
        settings = library.load_settings(base_url=server.base_url)
        library.ask("?", folder / "a.txt", model="openai:x", temperature=0.3, settings=settings, in_memory=True)

    assert server.requests[0].body["temperature"] == 0.3
    with pytest.raises(ConfigError):
        library.ask("?", folder / "a.txt", model=ScriptedModel([FINAL]), temperature=0.3, in_memory=True)


@pytest.mark.parametrize(
    "words",
    [
        ("--temperature", "3"),
        ("--top-p", "1.5"),
        ("--max-output-tokens", "0"),
        ("--model", "command:cat", "--temperature", "0.5"),
    ],
)
def test_a_value_that_cannot_be_or_has_no_effect_is_refused(folder: Path, words: tuple[str, ...]) -> None:
    shown = sonde("ask", "?", "a.txt", "--runs-dir", "runs", *words, cwd=folder, OPENAI_API_KEY="sk-none")

    assert shown.returncode == 2
    assert words[-2] in shown.stderr


def test_config_shows_what_a_model_gets(folder: Path) -> None:
    shown = sonde("config", "--json", "--model", "openai:gpt-5", "--top-p", "0.5", cwd=folder)

    rows = {row["name"]: (row["value"], row["source"]) for row in json.loads(shown.stdout)["settings"]}
    assert rows["reasoning_effort"][0] == "low"
    assert rows["max_output_tokens"][0] == "4096"
    assert rows["temperature"] == ("unset", "default")
    assert rows["top_p"] == ("0.5", "--top-p")
