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
from sonde.api.ask_run import ask
from sonde.api.settings import Settings
from sonde.runs.recorder import Recorder
from sonde.runs.rundir import RunDir
from sonde.testing import ScriptedModel
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
    page = export_html(first, base / "one.html", within=lambda _run: ["/"])
    with ViewerServer(runs, within=lambda _run: ["/"]) as server:
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


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A table as the answer, passages without a model, a list of lines as citation; and what the page shows of them."""
    base = tmp_path_factory.mktemp("answers")
    log = base / "app.log"
    log.write_text("".join(f"line {n} {'ERROR' if n == 123_500 else 'ok'}\n" for n in range(1, 130_000)))
    table = '{"rows": [{"service": "payments", "errors": 3}, {"service": "cart", "errors": 1}]}'
    look = "for n in (76, 175, 123500):\n    print(read_file('app.log', n, n))\n    add_citation('app.log', n, n)\n"
    unpriced: dict[str, Any] = {"name": f"openai:vendor/{'a-long-name-' * 6}model", "cost_usd": None}
    models = {
        "table": ScriptedModel([f"```python\n{look}FINAL({table})\n```"] * 3, **unpriced),
        "passages": None,
        "lines": ScriptedModel([f"```python\n{look}FINAL('Three lines [app.log:76,175,123500].')\n```"] * 3),
    }
    runs = {
        name: ask("Where is ERROR?", log, model=model, settings=Settings(runs_dir=base / "runs")).run_dir
        for name, model in models.items()
    }
    ids = {name: path.name for name, path in runs.items() if path is not None}
    page = export_html(RunDir(base / "runs" / ids["lines"]), base / "one.html")
    with ViewerServer(base / "runs") as server:
        script = [
            "node",
            str(Path(__file__).with_name("answers.mjs")),
            server.url,
            str(page),
            str(TOOLS),
            *ids.values(),
        ]
        done = subprocess.run(script, capture_output=True, text=True, check=True)
    shown = json.loads(done.stdout)
    return shown | {name: shown[run_id] for name, run_id in ids.items()}


def test_the_list_of_runs_fits_a_wide_and_a_narrow_window(answers: dict[str, Any]) -> None:
    assert (answers["hidden_1400"], answers["hidden_420"]) == (0, 0)


def test_a_long_model_name_is_cut_in_a_wide_list_and_wraps_in_a_narrow_one(answers: dict[str, Any]) -> None:
    name = f"openai:vendor/{'a-long-name-' * 6}model"

    assert answers["model_1400"] == {"title": name, "cut": True}
    assert answers["model_420"] == {"title": name, "cut": False}


def test_an_answer_of_objects_is_a_table(answers: dict[str, Any]) -> None:
    assert answers["table"]["cells"] == ["payments", "3", "cart", "1"]


def test_a_list_of_lines_becomes_one_chip_per_line(answers: dict[str, Any]) -> None:
    assert answers["lines"]["chips"] == ["1", "2", "3"]


def test_passages_without_a_claim_are_not_called_verified(answers: dict[str, Any]) -> None:
    assert answers["passages"]["tiles"][-1].endswith("passages, no claims")
    assert not any("verified" in badge for badge in answers["passages"]["badges"])


def test_an_exported_page_does_not_claim_to_verify_now(answers: dict[str, Any]) -> None:
    assert answers["lines"]["tiles"][-1] == "3 cited, 3 verified now"
    assert answers["exported"]["tiles"][-1] == "3 cited, 3 verified when exported"


def test_a_cost_that_is_not_known_is_called_unknown_and_its_warning_is_no_error(answers: dict[str, Any]) -> None:
    assert "unknown cost" in answers["table"]["tiles"]
    assert any(text.startswith("cost unknown") for text in answers["table"]["legend"])
    assert not any("price" in row for row in answers["table"]["red"])


def test_the_time_of_the_tile_is_the_time_of_the_budget(answers: dict[str, Any]) -> None:
    tile = answers["lines"]["tiles"][0].removesuffix(" time")

    assert any(text.startswith(f"time {tile} of") for text in answers["lines"]["legend"])


def test_long_line_numbers_have_room(answers: dict[str, Any]) -> None:
    digits = [round(width / 0.6) for width in answers["lines"]["gap"]]  # a digit is 0.6 em wide

    assert max(digits) >= 6
