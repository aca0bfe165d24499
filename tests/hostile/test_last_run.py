"""`last` is a run of the user's own: no folder or date that a repository brings makes it another one."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

import sonde
from sonde.api.settings import load_settings
from sonde.core.events import RunStarted
from sonde.runs.export import journal_bytes
from sonde.runs.rundir import ARTIFACTS, RunDir
from sonde.viewer import export_html
from sonde.viewer.server import Shelf

pytestmark = pytest.mark.hostile


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own newest run; the working folder is the repository that it is about."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    repository = tmp_path / "repository"
    repository.mkdir()
    monkeypatch.chdir(repository)
    (repository / "app.log").write_text("disk full\nno fix known\n")
    done = sonde.ask("why disk full?", "app.log").run_dir
    assert done is not None
    return done


def stranger(place: Path, mine: Path) -> Path:
    """A recording without the user's seal."""
    shutil.copytree(mine, place, ignore=shutil.ignore_patterns("seal"))
    return place


@pytest.mark.parametrize("place", ["last", f"{ARTIFACTS}/20990101-000000-000000000"])
def test_a_run_that_a_repository_brings_is_not_last(mine: Path, place: str) -> None:
    planted = stranger(Path(place), mine)
    os.utime(planted / "events.jsonl", (4_070_908_800, 4_070_908_800))  # 2099, as an archive can say

    assert load_settings().find_run("last").path == mine


def test_an_older_run_of_mine_comes_before_a_newer_one_of_a_stranger(mine: Path) -> None:
    stranger(Path(ARTIFACTS, mine.name[:-1] + "f"), mine)

    assert load_settings().find_run("last").path == mine


def test_a_bare_name_is_a_run_first_and_a_folder_only_if_no_run_has_it(mine: Path) -> None:
    planted = stranger(Path(mine.name), mine)
    other = stranger(Path("theirs"), mine)

    assert load_settings().find_run(mine.name).path == mine
    assert load_settings().find_run(f"./{planted}").path == planted
    assert load_settings().find_run("theirs").path == other


@pytest.mark.parametrize("words", [("runs", "show"), ("export", "--html", "-o", "page.html")])
def test_showing_a_run_without_the_seal_says_so(
    mine: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    from sonde.cli.main import main

    with pytest.raises(SystemExit):
        main([*words, str(mine)])
    assert "seal" not in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main([*words, str(stranger(Path("theirs"), mine).absolute())])
    assert "does not have your seal" in capfd.readouterr().err


def test_a_source_below_proc_is_not_read_for_a_page(mine: Path) -> None:
    def states(run: Path) -> set[str]:
        return {each["state"] for each in Shelf(run.parent, within=lambda _: (Path.cwd(),)).excerpts(run.name)}

    planted = stranger(Path("theirs"), mine)
    assert states(planted) == {"verified"}

    point_at("/proc/self/cwd", planted)

    assert "verified" not in states(planted)


def point_at(place: str, run: Path) -> None:
    """Make the recording say that it read this folder instead of the working folder."""
    events = RunDir(run).events()
    first = events[0]
    assert isinstance(first, RunStarted)
    moved = json.loads(json.dumps([first.settings, first.input_ref]).replace(str(Path.cwd()), place))
    events[0] = msgspec.structs.replace(first, settings=moved[0], input_ref=moved[1])
    (run / "events.jsonl").write_bytes(journal_bytes(events))


def test_a_page_says_that_a_run_is_a_strangers_and_verifies_no_file_that_came_with_it(mine: Path) -> None:
    def shown(run: Path) -> tuple[bool, set[tuple[str, str]]]:
        shelf = Shelf(run.parent)
        page = export_html(RunDir(run), "page.html").read_text()
        held = json.loads(page.partition('id="sonde-data">')[2].partition("</script>")[0])
        stranger, cards = shelf.news(run.name)["stranger"], shelf.excerpts(run.name)
        assert (held["news"][run.name]["stranger"], held["excerpts"][run.name]) == (stranger, cards)
        return stranger, {(card["state"], card["brought_in"]) for card in cards}

    planted = stranger(Path("theirs"), mine)
    assert shown(mine) == (False, {("verified", "")})
    assert shown(planted) == (True, {("verified", "")})  # the user's own file has the text

    (planted / "app").mkdir()
    Path("app.log").rename(planted / "app/app.log")
    Path("app.log").write_text("FAILED\n")
    point_at(str(planted.absolute() / "app"), planted)

    assert shown(planted) == (True, {("recorded", "theirs")})
