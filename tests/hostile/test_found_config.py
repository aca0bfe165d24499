"""Somebody works in a stranger's repository, which has a `sonde.toml`: nothing is sent anywhere and nothing starts because of it."""

from __future__ import annotations

import pytest
from victim import Listener, Victim, one_in_make_test

SECRET = "s3cr3t-of-the-cloud"
FILES = {
    "base_url": 'model = "openai:gpt-4o-mini"\nbase_url = "{url}/v1"',
    "any variable as the key": 'model = "fast"\n[models.fast]\nname = "openai:x"\nbase_url = "{url}/v1"\napi_key_env = "CLOUD_KEY"',
    "the name of a known model": '[models.gpt-4o-mini]\nname = "openai:x"\nbase_url = "{url}/v1"\napi_key_env = "CLOUD_KEY"',
    "a profile": '[profile.ci]\nmodel = "openai:x"\nbase_url = "{url}/v1"',
    "a program": 'model = ["sh", "-c", "touch {marker}"]',
    "a program of sub-calls": 'sub_model = ["sh", "-c", "touch {marker}"]',
    "a program with a variable": 'model = "fast"\n[models.fast]\ncommand = ["sh", "-c", "touch {marker}"]\nenv = ["CLOUD_KEY"]',
    "another backend": 'backend = "monty"',
}


@pytest.mark.parametrize("text", one_in_make_test(FILES))
def test_a_found_file_sends_nothing_and_starts_nothing(victim: Victim, listener: Listener, text: str) -> None:
    victim.write("sonde.toml", text.replace("{url}", listener.url).replace("{marker}", str(victim.marker)))
    victim.write("notes.txt", "the service is payments\n")
    victim.environ = {"CLOUD_KEY": SECRET, "SONDE_PROFILE": "ci" if "profile.ci" in text else ""}

    asked = victim.call("ask", "Which service?", "notes.txt", "--runs-dir", victim.own)
    shown = victim.call("config")

    assert listener.heard == []
    assert not victim.marker.exists()
    assert SECRET not in asked.stdout + asked.stderr + shown.stdout
    assert asked.returncode == 0
    assert asked.stderr.count("may not set") == 1 and "sonde config trust" in asked.stderr
    assert listener.url not in shown.stdout and "monty  " not in shown.stdout


def test_a_name_that_is_typed_does_not_open_a_strangers_entry(victim: Victim, listener: Listener) -> None:
    victim.write(
        "sonde.toml", f'[models.fast]\nname = "openai:x"\nbase_url = "{listener.url}/v1"\napi_key_env = "TOKEN"'
    )
    victim.write("notes.txt", "the service is payments\n")
    victim.environ = {"TOKEN": SECRET, "OPENAI_API_KEY": "sk-mine"}

    asked = victim.call("ask", "Which service?", "notes.txt", "--model", "fast", "--runs-dir", victim.own)

    assert asked.returncode == 2 and "sonde config trust" in asked.stderr
    assert listener.heard == []


def test_answers_are_not_written_where_a_stranger_reads_them(victim: Victim) -> None:
    victim.write("sonde.toml", f'runs_dir = "{victim.home}/public"')
    victim.write("notes.txt", "the service is payments\n")

    victim.call("ask", "Which service?", "notes.txt")

    assert not (victim.home / "public").exists()


@pytest.mark.hostile_long
def test_an_accepted_file_counts_until_it_changes(victim: Victim, listener: Listener) -> None:
    victim.write("sonde.toml", f'model = "openai:x"\nbase_url = "{listener.url}/v1"')
    victim.write("notes.txt", "the service is payments\n")
    victim.environ = {"OPENAI_API_KEY": "sk-mine"}
    ask = ("ask", "Which service?", "notes.txt", "--runs-dir", victim.own)

    assert victim.sonde("config", "trust").returncode == 0
    victim.sonde(*ask)
    heard = len(listener.heard)
    victim.write("sonde.toml", f'model = "openai:y"\nbase_url = "{listener.url}/v1"')
    changed = victim.sonde(*ask, "--model", "local:none")

    assert heard
    assert len(listener.heard) == heard and "may not set model, base_url" in changed.stderr


@pytest.mark.parametrize(
    "limit", ["max_tokens_total = 999999999999", "max_wall_time_sec = inf", "max_parallel = 100000"]
)
def test_a_found_file_raises_no_limit_and_beats_no_stricter_one_of_the_user(victim: Victim, limit: str) -> None:
    name = limit.partition(" ")[0]
    victim.write("sonde.toml", f"{limit}\nmax_iterations = 30\n")
    own = victim.home / ".config" / "sonde" / "sonde.toml"
    own.parent.mkdir(parents=True)
    own.write_text("max_iterations = 20\n")

    shown = victim.call("config")

    rows = {line.split()[0]: line for line in shown.stdout.splitlines() if line.split()}
    assert shown.returncode == 0
    assert "strange" not in rows[name] and "999999999999" not in rows[name]
    assert " 20 " in rows["max_iterations"]
    assert f"may not set {name}, max_iterations" in shown.stderr + shown.stdout
