"""Where settings come from, who wins, and what a file that nobody chose may not do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sonde.api.config_file import trust
from sonde.api.keys import KEYS
from sonde.api.settings import Settings, resolve
from sonde.core.budget import CONTRACT_MAXIMA, Budget
from sonde.errors import ConfigError

KEY = "sk-never-show-me"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of our own; `tmp_path / "project"` is the working folder."""
    (tmp_path / "home/.config/sonde").mkdir(parents=True)
    (tmp_path / "project/deep/er").mkdir(parents=True)
    return tmp_path / "home"


def project_file(home: Path, text: str) -> None:
    (home.parent / "project/sonde.toml").write_text(text)


def user_file(home: Path, text: str) -> None:
    (home / ".config/sonde/sonde.toml").write_text(text)


def settings(home: Path, *, use: str | None = None, env: dict[str, str] | None = None, **flags: object) -> Settings:
    return resolve(flags, {"HOME": str(home), **(env or {})}, home.parent / "project/deep/er", use=use)


def test_a_flag_beats_a_variable_beats_a_preset_beats_the_file_beats_the_default(home: Path) -> None:
    project_file(
        home, 'max_iterations = 5\nmax_depth = 1\nmode = "actions"\n[preset.ci]\nmax_iterations = 6\nmax_depth = 2'
    )
    env = {"SONDE_PRESET": "ci", "SONDE_MAX_ITERATIONS": "7"}

    found = settings(home, env=env, max_iterations=8)

    assert (found.knobs["max_iterations"], found.sources["max_iterations"]) == (8, "--max-iterations")
    assert settings(home, env=env).sources["max_iterations"] == "SONDE_MAX_ITERATIONS"
    assert found.knobs["max_depth"] == 2
    assert found.sources["max_depth"].endswith("sonde.toml [preset.ci]")
    assert found.mode == "actions"
    assert {name: source for name, _, source in found.rows()}["max_subcalls"] == "default"


def test_every_key_can_be_set_by_a_variable_and_says_so(home: Path) -> None:
    sample = {
        "whole": "3",
        "number": "0.5",
        "switch": "no",
        "text": "x",
        "path": "/x",
        "folders": "/x:/y",
        "names": "x,y",
        "lines": "customer=C-[0-9]+",
        "model": "openai:x",
        "price": "0.5/1.5",
    }
    for key in KEYS.values():
        value = key.choices[-1] if key.choices else sample[key.form]
        found = settings(home, env={key.variables[0]: value})
        assert found.sources[key.name] == key.variables[0]


def test_the_project_file_beats_the_users_own_and_paths_are_relative_to_their_file(home: Path) -> None:
    user_file(home, 'runs_dir = "mine"\nmode = "actions"')
    project_file(home, 'runs_dir = "runs"')

    found = settings(home)

    assert found.runs_dir == home.parent / "project/runs"
    assert found.mode == "actions"


def test_sonde_config_names_the_only_file_and_empty_means_none(home: Path) -> None:
    project_file(home, "max_depth = 1")
    (home / "other.toml").write_text("max_depth = 2")

    assert settings(home, env={"SONDE_CONFIG": str(home / "other.toml")}).knobs["max_depth"] == 2
    assert settings(home, env={"SONDE_CONFIG": ""}).knobs == {}


@pytest.mark.requirement(75)
def test_the_default_model_needs_a_key_and_says_why_it_was_chosen(home: Path) -> None:
    with_key = settings(home, env={"OPENAI_API_KEY": KEY})

    assert with_key.model == "openai:gpt-4o-mini"
    assert "because OPENAI_API_KEY is set" in with_key.model_line()
    assert settings(home).model is None
    assert "--model" in settings(home).model_line()


def test_keys_are_shown_to_nobody(home: Path) -> None:
    found = settings(home, env={"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY + "2"})

    assert KEY not in repr(found) + str(found.rows()) + repr(found.choose("openai:gpt-4o-mini"))
    assert ("api_key", "set", "OPENAI_API_KEY") in found.rows()
    assert ("api_key", "unset", "default") in settings(home).rows()
    assert found.secrets() == [KEY, KEY + "2"]


def test_a_model_gets_the_key_of_its_own_provider_only(home: Path) -> None:
    found = settings(home, env={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://x/v1", "GEMINI_API_KEY": "g" * 9})

    openai, google = found.choose("gpt-4o").settings, found.choose("google-gla:gemini").settings
    assert openai.api_key is not None and openai.api_key.reveal() == KEY and openai.base_url == "http://x/v1"
    assert google.api_key is not None and google.api_key.reveal() == "g" * 9 and google.base_url is None
    assert found.choose("mistral:large").settings.api_key is None


@pytest.mark.requirement(34)
def test_a_command_model_is_an_argv_list_with_its_options(home: Path) -> None:
    user_file(home, '[models.person]\ncommand = ["python3", "my model.py"]\ntimeout_s = 3600\ncount_wait = false')

    choice = settings(home, model="person").choose("person")

    assert choice.spec == "command:python3 'my model.py'"
    assert choice.settings.timeout_s == 3600
    assert choice.settings.count_wait is False
    assert settings(home, model=["python3", "a b"]).model == "command:python3 'a b'"
    assert settings(home, env={"SONDE_MODEL": '["python3", "a b"]'}).model == "command:python3 'a b'"


def test_a_named_program_gets_the_variables_that_its_entry_names_and_no_others(home: Path) -> None:
    user_file(home, '[models.mine]\ncommand = ["cat"]\nenv = ["MINE_TOKEN", "TZ", "NOT_SET"]')

    found = settings(home, env={"MINE_TOKEN": "mine-secret", "TZ": "Europe/Rome", "OPENAI_API_KEY": KEY})

    assert found.choose("mine").settings.env == {"MINE_TOKEN": "mine-secret", "TZ": "Europe/Rome"}
    assert "mine-secret" in found.secrets() and "Europe/Rome" not in found.secrets()
    user_file(home, '[models.mine]\ncommand = ["cat"]\nenv = "MINE_TOKEN"')
    with pytest.raises(ConfigError, match="a list of variables to pass on"):
        settings(home)


def test_a_named_server_has_its_own_address_and_key(home: Path) -> None:
    user_file(home, '[models.lab]\nname = "openai:qwen"\nbase_url = "http://lab/v1"\napi_key_env = "LAB"')

    found = settings(home, env={"LAB": "lab-secret", "OPENAI_API_KEY": KEY}, model="lab")
    choice = found.choose("lab")

    assert choice.settings.base_url == "http://lab/v1"
    assert choice.settings.api_key is not None and choice.settings.api_key.reveal() == "lab-secret"
    assert "lab-secret" in found.secrets()


@pytest.mark.parametrize(
    "text",
    [
        'model = "command:sh -c evil"',
        'model = ["sh", "-c", "evil"]',
        'model = "x"\n[models.x]\ncommand = ["sh"]',
        'sub_model = "x"\n[models.x]\nname = "openai:y"\nbase_url = "https://evil.example/v1"',
        'base_url = "https://evil.example/v1"',
        'base_url = "https://127.0.0.1.evil.example/v1"',
    ],
)
def test_a_file_found_in_a_folder_starts_no_program_and_redirects_no_prompts(home: Path, text: str) -> None:
    project_file(home, text)

    found = settings(home, env={"OPENAI_API_KEY": KEY})

    assert (found.model, found.sub_model, found.base_url, found.models) == ("openai:gpt-4o-mini", None, None, {})
    assert "may not set" in found.ignored and "sonde config trust" in found.ignored


def test_a_file_that_was_accepted_may_set_everything_until_it_changes(home: Path) -> None:
    text = 'base_url = "http://lab/v1"\nmax_cost_usd = 5\n[models.x]\ncommand = ["sh"]\n[preset.p]\nmodel = ["sh"]'
    project_file(home, text)
    trust(home.parent / "project/sonde.toml", {"HOME": str(home)})

    assert settings(home, model="x").choose("x").spec == "command:sh"
    assert settings(home, use="p").model == "command:sh"
    assert (settings(home).base_url, settings(home).ignored) == ("http://lab/v1", "")
    assert settings(home).knobs["max_cost_usd"] == 5
    user_file(home, 'model = ["mine"]')
    assert settings(home).model == "command:mine"

    project_file(home, text + " ")
    assert settings(home).base_url is None


def test_a_folders_preset_does_not_overrule_the_users_own_of_that_name(home: Path) -> None:
    project_file(home, '[preset.work]\nmodel = ["evil"]')
    user_file(home, '[preset.work]\nmodel = "openai:mine"')

    assert settings(home, env={"SONDE_PRESET": "work"}).model == "openai:mine"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max_iteration = 1", ["'max_iteration'", "did you mean 'max_iterations'", "base_url"]),
        ("[models.m]\ncomand = []", ["'comand'", "command", "[models.m]"]),
        ("[models.m]\ntimeout_s = 3", ["[models.m]", "command = ["]),
        ("[preset.p]\nx = 1", ["[preset.p]", "'x'", "allowed:"]),
        ("preset = 3", ["[preset.ci]"]),
        ('api_key = "sk-x"', ["api_key", "OPENAI_API_KEY"]),
        ('max_iterations = "many"', ["max_iterations", "whole number", "'many'"]),
        ("max_cost_usd = nan", ["max_cost_usd", "a number"]),
        ("max_parallel = 0", ["max_parallel", "1 or more"]),
        ('mode = "fast"', ["mode", "code, actions", "'fast'"]),
        ("model = []", ["model", "argv list"]),
        ("= broken", ["sonde.toml is not TOML"]),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_remedy(home: Path, text: str, words: list[str]) -> None:
    project_file(home, text)

    with pytest.raises(ConfigError) as refused:
        settings(home)

    assert all(word in refused.value.message for word in ["sonde.toml", *words])


def test_a_preset_that_does_not_exist_is_refused_with_those_that_do(home: Path) -> None:
    project_file(home, "[preset.fast]\nmax_depth = 1")

    with pytest.raises(ConfigError, match="fast"):
        settings(home, use="fats")


def test_a_strangers_file_where_everybody_may_write_does_not_count(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can give a file to someone else")
    project_file(home, "max_depth = 1")
    os.chown(home.parent / "project/sonde.toml", 65534, 65534)
    assert settings(home).knobs == {"max_depth": 1}

    (home.parent / "project").chmod(0o1777)

    assert settings(home).knobs == {}


def test_a_misspelt_variable_is_pointed_out(home: Path) -> None:
    assert settings(home, env={"SONDE_MODLE": "x"}).notes == (
        "SONDE_MODLE sets nothing (did you mean SONDE_MODEL?); `sonde config` lists what does",
    )


@pytest.mark.requirement(93)
def test_a_knob_above_the_contracts_maximum_is_refused_with_the_maximum(home: Path) -> None:
    found = settings(home, max_iterations=61)

    assert found.budget().max_iterations == 61
    with pytest.raises(ConfigError, match="60"):
        found.budget(Budget(), CONTRACT_MAXIMA)


def test_what_commands_may_reach_is_never_set_by_a_file_that_merely_lies_there(home: Path) -> None:
    project_file(home, 'command_write = ["/"]\ncommand_read = ["/"]')

    found = settings(home)

    assert (found.command_read, found.command_write) == ((), ())
    assert "command_write" in found.ignored


def test_the_users_own_file_says_what_commands_may_reach(home: Path) -> None:
    user_file(home, 'command_write = ["cache", "/dev/shm"]')

    found = settings(home)

    assert [Path(each).is_absolute() for each in found.command_write] == [True, True]
    assert found.command_write[1] == "/dev/shm"
    assert settings(home, command_write=["/x"]).command_write == ("/x",)
    with pytest.raises(ConfigError):
        settings(home, command_write=[""])


def test_what_presets_were_called_before_still_works(home: Path) -> None:
    project_file(home, "[profile.ci]\nmax_depth = 2\n[preset.fast]\nmax_depth = 1")

    assert settings(home, env={"SONDE_PROFILE": "ci"}).knobs == {"max_depth": 2}
    assert settings(home, env={"SONDE_PROFILE": "ci", "SONDE_PRESET": "fast"}).knobs == {"max_depth": 1}
