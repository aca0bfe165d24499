"""A repository brings the folders of a loop with it, with links and pipes in the places of files. `sonde rlms` writes through none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cli.cli_program import sonde
from sonde.rlms.result import exit_code
from sonde.rlms.wrapper import invoke

LOOP = ".superloop/loops/demo"
OUTPUT = f"{LOOP}/rlms/iter-1/planner"
PLACES = [
    f"{OUTPUT}/worker-stderr.log",
    f"{LOOP}/events.jsonl",
    f"{LOOP}/rlms/latest",
    f"{OUTPUT}/runs",
    OUTPUT,
    f"{LOOP}/rlms",
    ".superloop",
]


class Home:
    """A home folder with a private file, and a repository that a stranger filled."""

    def __init__(self, place: Path) -> None:
        self.private = place / "private"
        self.private.mkdir()
        (self.private / "notes").write_text("mine\n")
        self.repo = place / "repo"
        (self.repo / OUTPUT).mkdir(parents=True)
        (self.repo / "a.txt").write_text("one\n")
        (place / "files.txt").write_text("a.txt\n")
        (place / "loop.json").write_text('{"enabled": true, "policy": {"force_off": true}}')
        self.place = place

    def plant(self, name: str) -> Path:
        """The place of this name, free."""
        place = self.repo / name
        if place.is_dir():
            place.rename(self.place / "before")
        return place

    def kept(self) -> dict[str, str]:
        return {str(each): each.read_text() for each in self.private.rglob("*") if each.is_file()}

    def call(self, **more: str) -> dict[str, object]:
        flags = {
            "repo": str(self.repo),
            "loop_id": "demo",
            "role": "planner",
            "iteration": "1",
            "context_file_list": str(self.place / "files.txt"),
            "output_dir": str(self.repo / OUTPUT),
            "max_steps": "1",
            "max_depth": "0",
            "timeout_seconds": "60",
            "root_command_json": '["true"]',
            "standalone": "true",
            **more,
        }
        return invoke(flags, dict(os.environ), python="no such program")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.parametrize("name", PLACES)
def test_nothing_is_written_through_a_link_in_the_repository(home: Home, name: str) -> None:
    place = home.plant(name)
    place.symlink_to(home.private / "notes" if place.suffix in (".log", ".jsonl") else home.private)
    before = home.kept()

    result = home.call()

    assert (result["error_code"], exit_code(result)) == ("invalid_config", 2)
    assert str(place) in str(result["error"])
    assert home.kept() == before


@pytest.mark.parametrize("name", PLACES[:2])
def test_nobody_waits_for_the_reader_of_a_pipe(home: Home, name: str) -> None:
    os.mkfifo(home.plant(name))

    assert exit_code(home.call()) == 2


def test_a_folder_of_runs_that_is_named_may_be_no_link_of_the_repository_either(home: Home) -> None:
    (home.repo / "kept").symlink_to(home.private)

    assert home.call(runs_dir=str(home.repo / "kept" / "deep"))["error_code"] == "invalid_config"
    assert not (home.private / "deep").exists()


def test_flags_that_make_no_request_lead_nothing_through_a_link_either(home: Home) -> None:
    home.plant(OUTPUT).symlink_to(home.private)
    before = home.kept()

    assert home.call(max_steps="none")["error_code"] == "invalid_config"
    assert home.kept() == before


@pytest.mark.parametrize("name", PLACES[1:3])
def test_a_decision_is_not_kept_through_a_link(home: Home, name: str) -> None:
    place = home.plant(name)
    place.symlink_to(home.private / "notes" if place.suffix else home.private)
    before = home.kept()
    words = ["--config", home.place / "loop.json", "--role", "planner", "--context-file-list", home.place / "files.txt"]

    done = sonde("rlms", "decide", *words, "--repo", home.repo, "--output-dir", home.repo / OUTPUT, cwd=home.place)

    assert done.returncode == 2
    assert home.kept() == before


def test_the_gate_does_not_wait_for_a_pipe_in_the_place_of_a_result(home: Home) -> None:
    for name in ("status.json", "result.json"):
        os.mkfifo(home.repo / OUTPUT / name)

    done = sonde("rlms", "gate", "--output-dir", home.repo / OUTPUT, cwd=home.place)

    assert done.returncode == 1


def test_links_around_the_repository_are_the_users_own(home: Home) -> None:
    (home.place / "short").symlink_to(home.repo)

    result = home.call(repo=str(home.place / "short"), output_dir=str(home.place / "short" / OUTPUT))

    assert result["error_code"] == "missing_python"
    assert json.loads((home.repo / OUTPUT / "result.json").read_text()) == result
