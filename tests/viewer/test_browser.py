"""The page in a real browser: chromium driven by playwright (`scripts/browser.sh` installs both); screenshots go to .tools/shots/viewer."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.streams import SOURCE, Teller, TickingClock, finish, write_long_story, write_story
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import RunDir
from sonde.viewer import ViewerServer, export_html

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".tools" / "browser"
HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\"'`${1}</script>"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not (TOOLS / "node_modules").exists() or shutil.which("chromium") is None, reason="run scripts/browser.sh first"
    ),
]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    base = tmp_path_factory.mktemp("view")
    runs, source, shots = base / "runs", base / "repo", ROOT / ".tools" / "shots" / "viewer"
    (source / "src").mkdir(parents=True)
    (source / "src" / "fetch.py").write_text(SOURCE)
    shots.mkdir(parents=True, exist_ok=True)
    first = write_story(runs, "story-a", root=source)
    write_story(runs, "story-b", root=source, remark=HOSTILE)
    write_story(runs, "story-c", root=source)
    write_long_story(runs, 10_000, "long")
    tampered = write_story(runs, "tampered")
    tampered.journal_path.write_bytes(tampered.journal_path.read_bytes().replace(b"fetch module", b"other module", 1))
    page = export_html(first, base / "one.html")
    with ViewerServer(runs) as server:
        yield drive(server.url, page, shots, RunDir.create(runs, "live"))


def drive(url: str, page: Path, shots: Path, going: RunDir) -> dict[str, Any]:
    """Run the script; when it is looking at the run that goes on, end that run."""
    journal = going.journal()
    recorder = Recorder(TickingClock(), journal)
    teller = Teller(recorder)
    teller.start("live", "A question whose answer is being found")
    script = ["node", str(Path(__file__).with_name("drive.mjs")), url, str(page), str(shots), str(TOOLS)]
    with subprocess.Popen(script, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            last = line
            if line == "READY\n":
                teller.turn(1, "print(1)")
                teller.ran(1, "1")
                teller.end("It is one.")
                finish(going, recorder)
                journal.close()
    assert process.returncode == 0
    return json.loads(last)


def test_nothing_goes_wrong_and_nothing_foreign_is_loaded(seen: dict[str, Any]) -> None:
    problems = [text for text in seen["problems"] if "404" not in text]  # the run that does not exist

    assert problems == []
    assert seen["foreign"] == []


def test_runs_are_listed_and_filtered(seen: dict[str, Any]) -> None:
    assert seen["runs"] == 6 and seen["filtered_runs"] == 1


def test_the_source_stands_beside_each_claim_and_is_verified(seen: dict[str, Any]) -> None:
    assert seen["verified"] == 2
    assert seen["excerpt"].split() == ["RETRIES", "=", "3", "BACKOFF_S", "=", "0.5"]


def test_a_citation_leads_to_its_excerpt_and_from_there_to_the_call(seen: dict[str, Any]) -> None:
    assert (seen["pointed"], seen["pointed_lines"]) == ("src/fetch.py", "8–12")
    assert seen["hashes"] >= 3


def test_steps_are_filtered_by_text_and_kind(seen: dict[str, Any]) -> None:
    assert seen["all_steps"] == "37 steps"
    assert int(seen["filtered_steps"].split()[0]) < 10
    assert seen["gate_steps"] == "2 of 37 steps"


def test_a_turn_shows_its_prompt_put_together_and_its_code(seen: dict[str, Any]) -> None:
    assert seen["messages"] == 4
    assert seen["system_prompt"] == "You have a Python session."
    assert seen["highlighted"] >= 1


def test_the_keyboard_is_enough(seen: dict[str, Any]) -> None:
    assert seen["chosen"] == "step-2"
    assert seen["help"] == 1
    assert seen["focused"] == "CANVAS"


def test_dark_and_light_follow_the_system_and_the_key(seen: dict[str, Any]) -> None:
    assert seen["paper_light"] != seen["paper_dark"] and seen["theme_turned"]


def test_the_flame_chart_explains_itself_and_the_budget_is_plotted(seen: dict[str, Any]) -> None:
    assert "How many times" in seen["tip"]
    assert seen["curves"] == 6


def test_hostile_content_stays_text(seen: dict[str, Any]) -> None:
    assert seen["dialogs"] == 0 and seen["hostile_nodes"] == 0 and seen["hostile_text"]


def test_ten_thousand_events_open_within_a_second_and_scroll_smoothly(seen: dict[str, Any]) -> None:
    assert seen["long_steps"] == "5,402 steps"
    assert seen["long_ms"] <= 1_000
    assert seen["frames"] < 50 and seen["rows_built"] < 60


def test_two_runs_are_compared(seen: dict[str, Any]) -> None:
    assert (seen["same"], seen["differs"], seen["two_timelines"]) == ("The same path", "The runs part", 2)


def test_tampering_and_unknown_runs_are_said(seen: dict[str, Any]) -> None:
    assert "Line" in seen["tampered"] and "checksum" in seen["tampered"]
    assert "nosuch" in seen["nosuch"]


def test_one_file_shows_the_same_without_a_server(seen: dict[str, Any]) -> None:
    assert seen["one_file"].startswith("How many times") and seen["one_file_verified"] == 2


def test_a_run_that_goes_on_is_followed_to_its_end(seen: dict[str, Any]) -> None:
    before, after = seen["live"]
    assert int(before.split()[0]) < int(after.split()[0])
    assert seen["live_answer"] == "It is one."


def test_it_fits_a_phone(seen: dict[str, Any]) -> None:
    assert seen["phone_overflow"] <= 0
