"""Flags, variables and what is wrong with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rlms_loop import Loop, Program

from sonde.errors import ConfigError
from sonde.rlms.request import REQUIRED, MissingRootCommand, Request, read_request

MODEL = Program(Path("/models/root.sh"))


@pytest.fixture
def loop(tmp_path: Path) -> Loop:
    return Loop(tmp_path)


@pytest.mark.requirement(35)
def test_commands_and_arguments_are_joined_and_the_modes_are_stdin_and_file(loop: Loop) -> None:
    flags = loop.flags(
        None,
        root_command_json='["codex"]',
        root_args_json='["exec", "{prompt_file}"]',
        root_prompt_mode="file",
        subcall_command_json='["claude", "{repo}"]',
        subcall_args_json='["-p"]',
        subcall_prompt_mode="telepathy",
    )

    request = read_request(flags, {})

    assert request.root.argv == ("codex", "exec", "{prompt_file}")
    assert request.root.prompt_mode == "file"
    assert request.subcall.argv == ("claude", str(loop.repo), "-p")
    assert request.subcall.prompt_mode == "stdin"  # what is not known means stdin


@pytest.mark.requirement(37)
def test_the_sub_call_runner_is_the_roots_unless_overridden(loop: Loop) -> None:
    flags = loop.flags(None, root_command_json='["codex"]', root_args_json='["{prompt_file}"]', root_prompt_mode="file")

    same = read_request(flags, {})
    other_args = read_request({**flags, "subcall_args_json": '["--fast", "{prompt_file}"]'}, {})
    other = read_request({**flags, "subcall_command_json": '["claude"]'}, {})

    assert same.subcall == same.root
    assert other_args.subcall.argv == ("codex", "--fast", "{prompt_file}")
    assert other_args.subcall.prompt_mode == "file"
    assert other.subcall.argv == ("claude",)
    assert other.subcall.prompt_mode == "stdin"


@pytest.mark.requirement(36)
def test_variables_override_their_flags(loop: Loop) -> None:
    flags = loop.flags(MODEL, root_args_json='["a"]', max_subcalls=5)
    environ = {
        "SUPERLOOP_RLMS_ROOT_COMMAND_JSON": '["other"]',
        "SUPERLOOP_RLMS_ROOT_ARGS_JSON": '["{prompt_file}"]',
        "SUPERLOOP_RLMS_ROOT_PROMPT_MODE": "file",
        "SUPERLOOP_RLMS_SUBCALL_COMMAND_JSON": '["third"]',
        "SUPERLOOP_RLMS_SUBCALL_ARGS_JSON": '["{prompt_file}", "x"]',
        "SUPERLOOP_RLMS_SUBCALL_PROMPT_MODE": "file",
        "SUPERLOOP_RLMS_MAX_SUBCALLS": "7",
    }

    request = read_request(flags, environ)

    assert (request.root.argv, request.root.prompt_mode) == (("other", "{prompt_file}"), "file")
    assert (request.subcall.argv, request.subcall.prompt_mode) == (("third", "{prompt_file}", "x"), "file")
    assert request.limits.max_subcalls == 7


@pytest.mark.requirement(36)
def test_an_empty_variable_overrides_nothing(loop: Loop) -> None:
    request = read_request(loop.flags(MODEL), {"SUPERLOOP_RLMS_ROOT_COMMAND_JSON": ""})

    assert request.root.argv == ("sh", "/models/root.sh")


@pytest.mark.requirement(39)
def test_sub_calls_are_twice_the_steps_when_zero_or_unsaid(loop: Loop) -> None:
    assert read_request(loop.flags(MODEL, max_steps=7), {}).limits.max_subcalls == 14
    assert read_request(loop.flags(MODEL, max_steps=7, max_subcalls=0), {}).limits.max_subcalls == 14


@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_flag_is_named(loop: Loop, name: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        read_request(loop.flags(MODEL, **{name: None}), {})


@pytest.mark.parametrize("command", [None, "", "null", "[]"])
def test_without_a_root_command_there_is_nothing_to_run(loop: Loop, command: str | None) -> None:
    with pytest.raises(MissingRootCommand):
        read_request(loop.flags(None, root_command_json=command), {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("root_command_json", "codex exec"),
        ("root_command_json", '"codex"'),
        ("root_command_json", '{"a": 1}'),
        ("root_args_json", "[1]"),
        ("root_args_json", r'["\ud800"]'),
        ("root_command_json", "[" * 100_000),
        ("subcall_command_json", "[null]"),
        ("max_steps", "0"),
        ("max_steps", "many"),
        ("max_steps", "1.5"),
        ("max_steps", "1_0"),
        ("max_steps", "٣"),
        ("max_steps", "1000000001"),
        ("max_depth", "-1"),
        ("timeout_seconds", "0"),
        ("max_subcalls", "-2"),
        ("iteration", "first"),
        ("require_citations", "perhaps"),
        ("format", "xml"),
        ("repo", "/no/such/folder"),
        ("metadata_file", "/no/such/file"),
    ],
)
def test_a_flag_that_makes_no_sense_is_refused_by_its_name(loop: Loop, name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=f"--{name.replace('_', '-')}"):
        read_request(loop.flags(MODEL, **{name: value}), {})


@pytest.mark.parametrize("text", ["[1, 2]", "not json", '{"a":' * 100_000])
def test_metadata_is_a_json_object(loop: Loop, text: str) -> None:
    place = loop.tmp / "metadata.json"
    place.write_text(text)

    with pytest.raises(ConfigError, match="--metadata-file"):
        read_request(loop.flags(MODEL, metadata_file=place), {})


def test_numbers_that_json_does_not_have_are_text_in_the_metadata(loop: Loop) -> None:
    place = loop.tmp / "metadata.json"
    place.write_text('{"score": NaN, "most": 1e999}')

    request = read_request(loop.flags(MODEL, metadata_file=place), {})

    assert request.metadata == {"score": "nan", "most": "inf"}


def test_a_request_survives_its_way_to_the_worker(loop: Loop) -> None:
    request = read_request(loop.flags(MODEL), {})

    assert Request.from_wire(json.loads(json.dumps(request.to_wire()))) == request
